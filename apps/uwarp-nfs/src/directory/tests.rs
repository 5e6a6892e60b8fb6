//! Of what cannot be seen from outside: failures of the system, and pauses.

use super::procedures::number;
use super::search::SEARCH_PAUSE_MIN;
use super::*;
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, GETATTR3args, LINK3args, MKDIR3args, MKNOD3args, Nfs3Option, Nfs3Result,
    READ3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, WRITE3args, WRITE3res, createhow3,
    diropargs3, mknoddata3, sattr3, stable_how, symlinkdata3,
};
use nfs3_types::xdr_codec::{Pack, Unpack};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::Reader;

fn call<T: Unpack>(directory: &Directory, procedure: u32, arguments: &impl Pack, data: &[u8]) -> T {
    let mut octets = Vec::new();
    arguments.pack(&mut octets).unwrap();
    let arguments = [Part::Octets(octets), Part::Item(data.to_vec())];
    let answer = directory.call(&ROOT, procedure, &arguments, Vec::new());
    T::unpack(&mut answer.results[0].octets()).unwrap().0
}

fn packed(value: &impl Pack) -> Vec<u8> {
    let mut octets = Vec::new();
    value.pack(&mut octets).unwrap();
    octets
}

const ROOT: caller::Caller = caller::Caller { uid: 0, gid: 0, groups: Vec::new() };

/// Every change is on the disk before its call is answered: whatever it has changed is synced, and it fails if that fails;
/// nothing else is synced.
#[test]
fn changes_are_synced_before_they_are_answered() {
    check_syncs(false);
    check_syncs(true);
}

fn check_syncs(fails: bool) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["file", "gone", "moved"] {
        std::fs::write(folder.path().join(name), "data").unwrap();
    }
    std::fs::create_dir_all(folder.path().join("other/empty")).unwrap();
    let options = DirectoryOptions { read_only: false, squash_root: false };
    let directory = Directory::open(folder.path(), options, Arc::default()).unwrap();
    let root = Arc::clone(&directory.root);
    let handle = |name: &[u8]| directory.handle(directory.step(&root, name).unwrap().0.key);
    let (dir, file, other) = (directory.handle(root.key), handle(b"file"), handle(b"other"));
    let at = |dir: &nfs_fh3, name: &'static str| diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
    let attributes = sattr3::default;
    let write = |stable| {
        packed(&WRITE3args { file: file.clone(), offset: 0, count: 4, stable, data: Opaque::borrowed(b"data") })
    };
    let guard = Nfs3Option::None;
    let target = symlinkdata3 { symlink_attributes: attributes(), symlink_data: b"file"[..].into() };
    let pipe = mknoddata3::NF3FIFO(attributes());
    let calls = [
        (number::WRITE, write(stable_how::DATA_SYNC), &["file"][..]),
        (number::WRITE, write(stable_how::FILE_SYNC), &["file"]),
        (number::WRITE, write(stable_how::UNSTABLE), &[]),
        (number::COMMIT, packed(&COMMIT3args { file: file.clone(), offset: 0, count: 0 }), &["file"]),
        (
            number::SETATTR,
            packed(&SETATTR3args { object: file.clone(), new_attributes: attributes(), guard }),
            &["file"],
        ),
        (
            number::CREATE,
            packed(&CREATE3args { where_: at(&dir, "new"), how: createhow3::GUARDED(attributes()) }),
            &["new", "."],
        ),
        (number::MKDIR, packed(&MKDIR3args { where_: at(&dir, "made"), attributes: attributes() }), &["made", "."]),
        (number::SYMLINK, packed(&SYMLINK3args { where_: at(&dir, "symlink"), symlink: target }), &["."]),
        (number::MKNOD, packed(&MKNOD3args { where_: at(&dir, "pipe"), what: pipe }), &["."]),
        (number::REMOVE, packed(&REMOVE3args { object: at(&dir, "gone") }), &["."]),
        (number::RMDIR, packed(&RMDIR3args { object: at(&other, "empty") }), &["other"]),
        (number::RENAME, packed(&RENAME3args { from: at(&dir, "moved"), to: at(&other, "to") }), &["other", "."]),
        (number::LINK, packed(&LINK3args { file: file.clone(), link: at(&dir, "link") }), &["."]),
        (number::GETATTR, packed(&GETATTR3args { object: file.clone() }), &[]),
        (number::READ, packed(&READ3args { file: file.clone(), offset: 0, count: 4 }), &[]),
    ];
    directory.fail_sync.store(fails, Ordering::Relaxed);
    let mut failed = 0;
    for (procedure, octets, expected) in calls {
        let mut walk = Walk::new(&octets, 0, Removed::Nothing);
        Nfs3.arguments(3, procedure, &mut walk).unwrap();
        let arguments = split(&octets, &walk.finish().unwrap(), |_| unreachable!()).unwrap();
        let answer = directory.call(&ROOT, procedure, &arguments, Vec::new());
        become_server();
        let status = Reader::new(answer.results[0].octets()).u32().unwrap();
        let name = procedures::NAMES[procedure as usize];
        let fails = fails && !expected.is_empty();
        let ends = if fails { nfsstat3::NFS3ERR_IO } else { nfsstat3::NFS3_OK };
        assert_eq!(status, ends as u32, "{name}");
        failed += u64::from(fails);
        let synced = std::mem::take(&mut *locked(&directory.synced));
        let inode = |path: &&str| std::fs::metadata(folder.path().join(path)).unwrap().ino();
        let expected: Vec<u64> = expected.iter().map(inode).collect();
        // One that fails is the last.
        assert_eq!(synced, expected[..if fails { 1 } else { expected.len() }], "{name}");
    }
    assert_eq!(directory.metrics.failed_syncs.load(Ordering::Relaxed), failed);
}

/// The directory and its file, which is not open.
fn with_file(folder: &Path) -> (Directory, Key) {
    std::fs::write(folder.join("file"), "").unwrap();
    let directory = Directory::open(folder, DirectoryOptions::default(), Arc::default()).unwrap();
    let root = Arc::clone(&directory.root);
    let key = directory.step(&root, b"file").unwrap().0.key;
    close(&directory, key);
    (directory, key)
}

/// The same, and a directory with another file in it, both of which are open.
fn with_another_below(folder: &Path) -> (Directory, Key, (Key, Key)) {
    std::fs::create_dir(folder.join("sub")).unwrap();
    std::fs::write(folder.join("sub/file"), "").unwrap();
    let (directory, file) = with_file(folder);
    let (sub, _) = directory.step(&directory.root, b"sub").unwrap();
    let below = directory.step(&sub, b"file").unwrap().0.key;
    (directory, file, (sub.key, below))
}

fn close(directory: &Directory, key: Key) {
    locked(&directory.open).objects.remove(&key);
}

/// As if the pause after the last search were over.
fn pause_is_over(directory: &Directory) {
    let last = &mut locked(&directory.search).last;
    *last = last.map(|(ended, _)| (ended.checked_sub(SEARCH_PAUSE_MIN).unwrap(), Duration::ZERO));
}

#[test]
fn what_cannot_be_gone_to_now_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, key) = with_file(folder.path());
    let handle = directory.handle(key);
    let find = || directory.find(&handle.data).map(|(object, _)| object.key);
    for (error, expected) in [(Errno::MFILE, nfsstat3::NFS3ERR_JUKEBOX), (Errno::IO, nfsstat3::NFS3ERR_IO)] {
        *locked(&directory.fail_step) = Some(error);
        assert_eq!(find(), Err(expected));
        *locked(&directory.fail_step) = None;
        assert_eq!(find(), Ok(key));
        close(&directory, key);
    }
    assert_eq!(directory.metrics.searches.load(Ordering::Relaxed), 0);
}

#[test]
fn what_others_move_is_never_stale() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, key) = with_file(folder.path());
    let unknown = directory.handle(Key { inode: key.inode, born: key.born + 1 });
    let handle = directory.handle(key);
    let find = |handle: &nfs_fh3| directory.find(&handle.data).map(|(object, _)| object.key);
    let searches = || directory.metrics.searches.load(Ordering::Relaxed);
    let (file, moved) = (folder.path().join("file"), folder.path().join("moved"));
    assert_eq!((find(&unknown), searches()), (Err(nfsstat3::NFS3ERR_STALE), 1));
    std::fs::rename(&file, &moved).unwrap();
    for _ in 0..3 {
        assert_eq!((find(&handle), searches()), (Err(nfsstat3::NFS3ERR_JUKEBOX), 1), "it cannot be looked for yet");
    }
    // What never was needs no search.
    assert_eq!((find(&unknown), searches()), (Err(nfsstat3::NFS3ERR_STALE), 1));
    pause_is_over(&directory);
    assert_eq!((find(&handle), searches()), (Ok(key), 2));
    // One that a search has missed, because it was moved meanwhile or hidden, is found by the next.
    close(&directory, key);
    let (outside, hidden) = (tempfile::tempdir_in(folder.path().parent().unwrap()).unwrap(), "hidden");
    std::fs::rename(&moved, outside.path().join(hidden)).unwrap();
    assert_eq!(find(&handle), Err(nfsstat3::NFS3ERR_JUKEBOX));
    pause_is_over(&directory);
    assert_eq!((find(&handle), searches()), (Err(nfsstat3::NFS3ERR_STALE), 3));
    std::fs::rename(outside.path().join(hidden), &file).unwrap();
    pause_is_over(&directory);
    assert_eq!((find(&handle), searches()), (Ok(key), 4));
    // What two have missed is gone, and costs none any more.
    close(&directory, key);
    std::fs::remove_file(&file).unwrap();
    for expected in [nfsstat3::NFS3ERR_JUKEBOX, nfsstat3::NFS3ERR_STALE, nfsstat3::NFS3ERR_STALE] {
        assert_eq!(find(&handle), Err(expected));
        pause_is_over(&directory);
    }
    assert_eq!(searches(), 6);
    assert_eq!((find(&handle), searches()), (Err(nfsstat3::NFS3ERR_STALE), 6));
}

#[test]
fn what_a_search_could_not_see_is_not_stale_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let key = with_another_below(folder.path()).2.1;
    for comes_back in [true, false] {
        let (again, _) = with_file(folder.path());
        let find = || again.find(&again.handle(key).data).map(|(object, _)| object.key);
        *locked(&again.fail_step) = Some(Errno::IO);
        for _ in 0..2 {
            assert_eq!(find(), Err(nfsstat3::NFS3ERR_JUKEBOX), "the directory that it is in could not be read");
        }
        pause_is_over(&again);
        if comes_back {
            *locked(&again.fail_step) = None;
        }
        assert_eq!(find(), if comes_back { Ok(key) } else { Err(nfsstat3::NFS3ERR_STALE) });
    }
}

#[test]
fn what_one_search_could_not_see_is_stale_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, one, (sub, other)) = with_another_below(folder.path());
    let find = |key: Key| directory.find(&directory.handle(key).data).map(|(object, _)| object.key);
    assert_eq!(find(Key { inode: one.inode, born: one.born + 1 }), Err(nfsstat3::NFS3ERR_STALE), "a first search");
    // Others move two, and the directory that they are in then cannot be read when they are looked for.
    std::fs::rename(folder.path().join("sub/file"), folder.path().join("sub/moved")).unwrap();
    std::fs::rename(folder.path().join("file"), folder.path().join("sub/last")).unwrap();
    close(&directory, other);
    let both_later = (Err(nfsstat3::NFS3ERR_JUKEBOX), Err(nfsstat3::NFS3ERR_JUKEBOX));
    assert_eq!((find(one), find(other)), both_later, "they cannot be looked for yet");
    pause_is_over(&directory);
    close(&directory, sub);
    *locked(&directory.fail_step) = Some(Errno::IO);
    assert_eq!((find(one), find(other)), both_later);
    pause_is_over(&directory);
    *locked(&directory.fail_step) = None;
    assert_eq!((find(one), find(other)), (Ok(one), Ok(other)));
}

#[test]
fn a_failed_sync_is_told_and_has_clients_send_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let options = DirectoryOptions { read_only: false, squash_root: false };
    let directory = Directory::open(folder.path(), options, Arc::default()).unwrap();
    let root = Arc::clone(&directory.root);
    let file = directory.handle(directory.step(&root, b"file").unwrap().0.key);
    let write = |stable| {
        let arguments = WRITE3args { file: file.clone(), offset: 0, count: 4, stable, data: Opaque::borrowed(b"data") };
        match call::<WRITE3res>(&directory, number::WRITE, &arguments, b"data") {
            Nfs3Result::Ok(done) => Ok(done.verf),
            Nfs3Result::Err((error, _)) => Err(error),
        }
    };
    let commit = || {
        let arguments = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        match call::<COMMIT3res>(&directory, number::COMMIT, &arguments, b"") {
            Nfs3Result::Ok(done) => Ok(done.verf),
            Nfs3Result::Err((error, _)) => Err(error),
        }
    };
    let fail = |fails| directory.fail_sync.store(fails, Ordering::Relaxed);
    let first = write(stable_how::UNSTABLE).unwrap();
    assert_eq!(commit(), Ok(first));
    fail(true);
    assert_eq!(write(stable_how::FILE_SYNC), Err(nfsstat3::NFS3ERR_IO));
    let second = write(stable_how::UNSTABLE).unwrap();
    assert_ne!(second, first);
    assert_eq!(commit(), Err(nfsstat3::NFS3ERR_IO));
    fail(false);
    // The system says that all is well again; what was written before is not.
    let third = commit().unwrap();
    assert!(third != first && third != second);
    assert_eq!(directory.metrics.failed_syncs.load(Ordering::Relaxed), 2);
}
