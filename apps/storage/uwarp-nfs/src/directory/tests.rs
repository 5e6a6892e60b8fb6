//! Behaviour that is not visible from outside: failures of the system, and pauses.

mod closing;

use super::search::SEARCH_PAUSE_MIN;
use super::*;
use crate::call::Call;
use crate::programs::{Mounts, PortMapper};
use crate::service::{Programs, Service};
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, GETATTR3args, LINK3args, MKDIR3args, MKNOD3args, Nfs3Option, Nfs3Result,
    READ3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, WRITE3args, WRITE3res, createhow3,
    diropargs3, mknoddata3, sattr3, stable_how, symlinkdata3,
};
use nfs3_types::xdr_codec::{Pack, Unpack};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::rpc::Auth;
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

/// The status of a call whose arguments are packed.
fn carry_out(directory: &Directory, procedure: u32, octets: &[u8]) -> u32 {
    let mut walk = Walk::new(octets, 0, Removed::Nothing);
    Nfs3.arguments(3, procedure, &mut walk).unwrap();
    let arguments = split(octets, &walk.finish().unwrap(), |_| unreachable!()).unwrap();
    let answer = directory.call(&ROOT, procedure, &arguments, Vec::new());
    become_server();
    Reader::new(answer.results[0].octets()).u32().unwrap()
}

fn at(dir: &nfs_fh3, name: &'static str) -> diropargs3<'static> {
    diropargs3 { dir: dir.clone(), name: name.as_bytes().into() }
}

fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

const ROOT: caller::Caller = caller::Caller { uid: 0, gid: 0, groups: Vec::new() };

/// Every change is synced before its call is answered, and fails if its sync fails; nothing else is synced.
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
        let status = carry_out(&directory, procedure, &octets);
        let name = number::NAMES[procedure as usize];
        let fails = fails && !expected.is_empty();
        let ends = if fails { nfsstat3::NFS3ERR_IO } else { nfsstat3::NFS3_OK };
        assert_eq!(status, ends as u32, "{name}");
        failed += u64::from(fails);
        let synced = std::mem::take(&mut *lock(&directory.synced));
        let inode = |path: &&str| std::fs::metadata(folder.path().join(path)).unwrap().ino();
        let expected: Vec<u64> = expected.iter().map(inode).collect();
        // One that fails is the last.
        assert_eq!(synced, expected[..if fails { 1 } else { expected.len() }], "{name}");
    }
    assert_eq!(directory.metrics.failed_syncs.load(Ordering::Relaxed), failed);
}

/// A server that is not root: modes of its own files exclude it, too.
#[test]
fn what_the_server_itself_cannot_read_is_synced_all_the_same() {
    // In memory, if possible: syncing a whole disk can take long.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path();
    let set = |name: &str, mode: u32| std::fs::set_permissions(path.join(name), Permissions::from_mode(mode)).unwrap();
    as_a_user(path, || {
        std::fs::write(path.join("file"), "data").unwrap();
        std::fs::create_dir(path.join("closed")).unwrap();
        for name in ["closed/gone", "closed/left"] {
            std::fs::write(path.join(name), "data").unwrap();
        }
        set("closed", 0o300);
        let options = DirectoryOptions { read_only: false, squash_root: false };
        let directory = Directory::open(path, options, Arc::default()).unwrap();
        assert!(!directory.tells_callers_apart());
        let (file, _) = directory.step(&directory.root, b"file").unwrap();
        let (closed, _) = directory.step(&directory.root, b"closed").unwrap();
        let (root, within) = (directory.handle(directory.root.key), directory.handle(closed.key));
        let to_nothing = |key: Key| {
            let (object, guard) = (directory.handle(key), Nfs3Option::None);
            packed(&SETATTR3args { object, new_attributes: mode(0), guard })
        };
        let create = |dir, name| packed(&CREATE3args { where_: at(dir, name), how: createhow3::GUARDED(mode(0)) });
        let mkdir = packed(&MKDIR3args { where_: at(&within, "made"), attributes: mode(0o300) });
        let rename = packed(&RENAME3args { from: at(&within, "gone"), to: at(&within, "moved") });
        let remove = |name| packed(&REMOVE3args { object: at(&within, name) });
        let (own, dir) = (file.key.inode, directory.root.key.inode);
        // Zero is the whole file system.
        for (procedure, arguments, expected) in [
            (number::SETATTR, to_nothing(file.key), &[Some(own)][..]),
            (number::SETATTR, to_nothing(file.key), &[Some(0)]),
            (number::CREATE, create(&root, "new"), &[None, Some(dir)]),
            (number::CREATE, create(&within, "new"), &[None, Some(0)]),
            (number::MKDIR, mkdir, &[Some(0), Some(0)]),
            (number::RENAME, rename, &[Some(0)]),
            (number::REMOVE, remove("moved"), &[Some(0)]),
        ] {
            let name = number::NAMES[procedure as usize];
            assert_eq!(carry_out(&directory, procedure, &arguments), 0, "{name}");
            let synced = std::mem::take(&mut *lock(&directory.synced));
            // The inode of a new file is not known before.
            let fits = synced.iter().zip(expected).all(|(is, should)| should.map_or(*is != 0, |should| *is == should));
            assert!(fits && synced.len() == expected.len(), "{name}: {synced:?}");
            close(&directory, file.key);
        }
        // The creator of a file may write it, whatever its mode.
        let new = directory.handle(directory.step(&directory.root, b"new").unwrap().0.key);
        let write = WRITE3args {
            file: new,
            offset: 0,
            count: 4,
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(b"data"),
        };
        assert_eq!(carry_out(&directory, number::WRITE, &packed(&write)), 0);
        // Without any descriptor nothing is done.
        set("", 0o300);
        let directory = Directory::open(path, options, Arc::default()).unwrap();
        directory.step(&directory.root, b"closed").unwrap();
        assert_eq!(carry_out(&directory, number::REMOVE, &remove("left")), nfsstat3::NFS3ERR_ACCES as u32);
        assert!(path.join("closed/left").exists());
        set("", 0o700);
        set("closed", 0o700);
    });
}

/// Runs `work` as an unprivileged user who owns this folder.
fn as_a_user(folder: &Path, work: impl FnOnce() + Send) {
    const USER: u32 = 1000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(folder, Some(USER), Some(USER)).unwrap();
                let (uid, gid) = (rustix::process::Uid::from_raw(USER), rustix::process::Gid::from_raw(USER));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            work();
        });
    });
}

/// "Try again later" is for calls that were not begun.
#[test]
fn what_was_made_in_part_is_not_put_off() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = with_file(folder.path());
    let root = directory.handle(directory.root.key);
    let failing = |procedure, arguments: &[u8]| {
        *lock(&directory.fail_step) = Some(Errno::MFILE);
        let status = carry_out(&directory, procedure, arguments);
        *lock(&directory.fail_step) = None;
        status
    };
    let mkdir = packed(&MKDIR3args { where_: at(&root, "made"), attributes: mode(0o777) });
    assert_eq!(failing(number::MKDIR, &mkdir), nfsstat3::NFS3ERR_IO as u32);
    let create = packed(&CREATE3args { where_: at(&root, "new"), how: createhow3::UNCHECKED(mode(0o666)) });
    assert_eq!(failing(number::CREATE, &create), nfsstat3::NFS3ERR_JUKEBOX as u32, "it may be made twice");
    assert_eq!(carry_out(&directory, number::CREATE, &create), 0);
}

/// RFC 1813 §2.6: a client that was told to try again does so with another XID. The old XID stays that of the first
/// call, which may arrive late.
#[test]
fn a_call_that_was_put_off_is_carried_out_under_another_number() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _, (sub, _)) = with_another_below(folder.path());
    let octets = packed(&REMOVE3args { object: at(&directory.handle(sub), "file") });
    close(&directory, sub);
    *lock(&directory.fail_step) = Some(Errno::MFILE);
    let metrics = Arc::<Metrics>::default();
    let programs = Arc::new(Programs {
        directory,
        mounts: Mounts::default(),
        port_mapper: PortMapper::new([10, 0, 0, 1].into(), Vec::new()),
        metrics: Arc::clone(&metrics),
    });
    let mut service = Service::start(Arc::clone(&programs), 1).unwrap();
    let mut remove = |xid| {
        let (client, credential) = (([10, 0, 0, 2], 700).into(), Auth::NONE.into());
        let (program, version, procedure) = (100_003, 3, number::REMOVE);
        let (arguments, room) = (vec![Part::Octets(octets.clone())], Vec::new());
        service.submit(Call { client, xid, program, version, procedure, credential, arguments, room }, xid);
        loop {
            if let Some(finished) = service.poll() {
                return Reader::new(finished.answer.results[0].octets()).u32().unwrap();
            }
            std::thread::yield_now();
        }
    };
    std::fs::set_permissions(folder.path().join("sub"), Permissions::from_mode(0o777)).unwrap();
    let put_off = nfsstat3::NFS3ERR_JUKEBOX as u32;
    assert_eq!(remove(1), put_off);
    *lock(&programs.directory.fail_step) = None;
    assert_eq!((remove(1), remove(2)), (put_off, nfsstat3::NFS3_OK as u32));
    assert_eq!(metrics.duplicates.load(Ordering::Relaxed), 1);
}

/// The directory and a file in it, which is not open.
fn with_file(folder: &Path) -> (Directory, Key) {
    std::fs::write(folder.join("file"), "").unwrap();
    let directory = Directory::open(folder, DirectoryOptions::default(), Arc::default()).unwrap();
    let root = Arc::clone(&directory.root);
    let key = directory.step(&root, b"file").unwrap().0.key;
    close(&directory, key);
    (directory, key)
}

/// The same, with a subdirectory that contains another file, both open.
fn with_another_below(folder: &Path) -> (Directory, Key, (Key, Key)) {
    std::fs::create_dir(folder.join("sub")).unwrap();
    std::fs::write(folder.join("sub/file"), "").unwrap();
    let (directory, file) = with_file(folder);
    let (sub, _) = directory.step(&directory.root, b"sub").unwrap();
    let below = directory.step(&sub, b"file").unwrap().0.key;
    (directory, file, (sub.key, below))
}

fn close(directory: &Directory, key: Key) {
    lock(&directory.open).objects.remove(&key);
}

/// Ends the pause after the last search.
fn pause_is_over(directory: &Directory) {
    let last = &mut lock(&directory.search).last;
    *last = last.map(|(ended, _)| (ended.checked_sub(SEARCH_PAUSE_MIN).unwrap(), Duration::ZERO));
}

#[test]
fn what_cannot_be_gone_to_now_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, key) = with_file(folder.path());
    let handle = directory.handle(key);
    let find = || directory.find(&handle.data).map(|(object, _)| object.key);
    for (error, expected) in [(Errno::MFILE, nfsstat3::NFS3ERR_JUKEBOX), (Errno::IO, nfsstat3::NFS3ERR_IO)] {
        *lock(&directory.fail_step) = Some(error);
        assert_eq!(find(), Err(expected));
        *lock(&directory.fail_step) = None;
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
    // An object that never existed needs no search.
    assert_eq!((find(&unknown), searches()), (Err(nfsstat3::NFS3ERR_STALE), 1));
    pause_is_over(&directory);
    assert_eq!((find(&handle), searches()), (Ok(key), 2));
    // An object that one search has missed, because it was moved or hidden meanwhile, is found by the next.
    close(&directory, key);
    let (outside, hidden) = (tempfile::tempdir_in(folder.path().parent().unwrap()).unwrap(), "hidden");
    std::fs::rename(&moved, outside.path().join(hidden)).unwrap();
    assert_eq!(find(&handle), Err(nfsstat3::NFS3ERR_JUKEBOX));
    pause_is_over(&directory);
    assert_eq!((find(&handle), searches()), (Err(nfsstat3::NFS3ERR_STALE), 3));
    std::fs::rename(outside.path().join(hidden), &file).unwrap();
    pause_is_over(&directory);
    assert_eq!((find(&handle), searches()), (Ok(key), 4));
    // An object that two have missed is gone, and causes no more searches.
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
        *lock(&again.fail_step) = Some(Errno::IO);
        for _ in 0..2 {
            assert_eq!(find(), Err(nfsstat3::NFS3ERR_JUKEBOX), "the directory that it is in could not be read");
        }
        pause_is_over(&again);
        if comes_back {
            *lock(&again.fail_step) = None;
        }
        let expected = if comes_back { Ok(key) } else { Err(nfsstat3::NFS3ERR_STALE) };
        for _ in 0..3 {
            assert_eq!(find(), expected, "what is given up stays so: nobody is told to ask again for ever");
        }
        pause_is_over(&again);
        *lock(&again.fail_step) = None;
        assert_eq!(find(), Ok(key), "a later search may see it all the same");
    }
}

/// The kernel cannot report the path of a directory if it is longer than 4095 octets.
#[test]
fn the_directory_above_one_with_a_very_long_path_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = with_file(folder.path());
    let name = [b'n'; 200];
    let mut chain = vec![Arc::clone(&directory.root)];
    for _ in 0..25 {
        let above = &chain[chain.len() - 1];
        rustix::fs::mkdirat(&above.path, &name[..], Mode::RWXU).unwrap();
        let (below, _) = directory.step(above, &name).unwrap();
        chain.push(below);
    }
    // In another thread: it has stood still.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for pair in chain.windows(2) {
            let above = directory.parent(&pair[1]).map(|object| object.key);
            tell.send((above, pair[0].key)).unwrap();
        }
    });
    for _ in 0..25 {
        let (above, expected) = told.recv_timeout(Duration::from_secs(30)).expect("an answer");
        assert_eq!(above, Ok(expected));
    }
}

/// Another program moves a directory with known names to where a search cannot look.
#[test]
fn what_had_a_place_in_a_directory_that_cannot_be_found_is_not_stale_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _, (sub, below)) = with_another_below(folder.path());
    close(&directory, sub);
    close(&directory, below);
    std::fs::create_dir(folder.path().join("other")).unwrap();
    std::fs::rename(folder.path().join("sub"), folder.path().join("other/sub")).unwrap();
    assert!(directory.descend(sub, &mut HashSet::new()).unwrap().is_none(), "its place is forgotten");
    *lock(&directory.fail_step) = Some(Errno::IO);
    let find = || directory.find(&directory.handle(below).data).map(|(object, _)| object.key);
    assert_eq!(find(), Err(nfsstat3::NFS3ERR_JUKEBOX));
    *lock(&directory.fail_step) = None;
    pause_is_over(&directory);
    assert_eq!(find(), Ok(below));
}

/// Another program mounts a part of the same file system below the directory.
#[test]
fn what_is_mounted_below_is_elsewhere_and_hides_nothing() {
    if uwarp_notes::lacks_root("callers of different users") {
        return;
    }
    const NAME: &str = "directory::tests::what_is_mounted_below_is_elsewhere_and_hides_nothing";
    uwarp_netns::test_among_own_mounts(NAME, || {
        let folder = tempfile::tempdir().unwrap();
        let (served, outside) = (folder.path().join("served"), folder.path().join("outside"));
        for path in [served.join("mounted"), outside.join("inner")] {
            std::fs::create_dir_all(path).unwrap();
        }
        for path in [outside.join("secret"), served.join("covered")] {
            std::fs::write(path, "").unwrap();
        }
        let _mounts = [
            Mounted::new(&outside, served.join("mounted")),
            Mounted::new(&outside.join("secret"), served.join("covered")),
        ];
        let (directory, key) = with_file(&served);
        let find = |key: Key| directory.find(&directory.handle(key).data).map(|(object, _)| object.key);
        let stale = Err(nfsstat3::NFS3ERR_STALE);
        assert_eq!(find(Key { inode: key.inode, born: key.born + 1 }), stale, "the search has seen everything");
        for name in ["secret", "inner"] {
            let path = outside.join(name);
            let stat =
                rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME).unwrap();
            assert_eq!(find(object::key_of(&stat)), stale, "{name}");
        }
        // The client is not told to wait until it is unmounted.
        let root = directory.handle(directory.root.key);
        let refused = nfsstat3::NFS3ERR_ACCES as u32;
        for to in ["mounted", "covered"] {
            let rename = RENAME3args { from: at(&root, "file"), to: at(&root, to) };
            assert_eq!(carry_out(&directory, number::RENAME, &packed(&rename)), refused, "{to}");
            let remove = REMOVE3args { object: at(&root, to) };
            assert_eq!(carry_out(&directory, number::REMOVE, &packed(&remove)), refused, "{to}");
        }
    });
}

/// A mount, until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(what: &Path, here: PathBuf) -> Self {
        uwarp_netns::run(Command::new("mount").arg("--bind").arg(what).arg(&here)).unwrap();
        Self(here)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        uwarp_netns::run(Command::new("umount").arg(&self.0)).unwrap();
    }
}

/// Requests for lost or nonexistent objects do not delay others.
#[test]
fn who_asks_between_searches_waits_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, key) = with_file(folder.path());
    let unknown = Key { inode: key.inode, born: key.born + 1 };
    let find = |key: Key| directory.find(&directory.handle(key).data).map(|(object, _)| object.key);
    assert_eq!(find(unknown), Err(nfsstat3::NFS3ERR_STALE), "a first search");
    std::fs::rename(folder.path().join("file"), folder.path().join("moved")).unwrap();
    // As by a rename that waits for the disk: a request for the exclusive lock would wait with it.
    let moving = directory.moving().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                assert_eq!(find(key), Err(nfsstat3::NFS3ERR_JUKEBOX));
                assert_eq!(find(unknown), Err(nfsstat3::NFS3ERR_STALE));
            }
            sender.send(()).unwrap();
        });
        let answered = receiver.recv_timeout(Duration::from_secs(60));
        drop(moving);
        answered.unwrap();
    });
    assert_eq!(directory.exclusive.load(Ordering::Relaxed), 1);
}

/// Nor does a search that takes long.
#[test]
fn who_asks_during_a_search_waits_a_moment_only() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, key) = with_file(folder.path());
    let find = |key: Key| directory.find(&directory.handle(key).data).map(|(object, _)| object.key);
    let later = nfsstat3::NFS3ERR_JUKEBOX;
    std::fs::rename(folder.path().join("file"), folder.path().join("moved")).unwrap();
    let root = directory.handle(directory.root.key);
    let rename = packed(&RENAME3args { from: at(&root, "moved"), to: at(&root, "again") });
    // One that began long ago.
    let search = directory.tree.write().unwrap();
    lock(&directory.search).running = Instant::now().checked_sub(Duration::from_secs(120));
    assert_eq!((find(key), carry_out(&directory, number::RENAME, &rename)), (Err(later), later as u32));
    // One that has just begun, and ends.
    lock(&directory.search).running = Some(Instant::now());
    std::thread::scope(|scope| {
        let found = scope.spawn(|| find(key));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!found.is_finished());
        directory.step(&directory.root, b"moved").unwrap();
        drop(search);
        lock(&directory.search).running = None;
        directory.search_over.notify_all();
        assert_eq!(found.join().unwrap(), Ok(key));
    });
    assert_eq!(directory.exclusive.load(Ordering::Relaxed), 0);
}

#[test]
fn what_one_search_could_not_see_is_stale_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, one, (sub, other)) = with_another_below(folder.path());
    let find = |key: Key| directory.find(&directory.handle(key).data).map(|(object, _)| object.key);
    assert_eq!(find(Key { inode: one.inode, born: one.born + 1 }), Err(nfsstat3::NFS3ERR_STALE), "a first search");
    // Another program moves two files, and their new directory cannot be read when they are searched for.
    std::fs::rename(folder.path().join("sub/file"), folder.path().join("sub/moved")).unwrap();
    std::fs::rename(folder.path().join("file"), folder.path().join("sub/last")).unwrap();
    close(&directory, other);
    let both_later = (Err(nfsstat3::NFS3ERR_JUKEBOX), Err(nfsstat3::NFS3ERR_JUKEBOX));
    assert_eq!((find(one), find(other)), both_later, "they cannot be looked for yet");
    pause_is_over(&directory);
    close(&directory, sub);
    *lock(&directory.fail_step) = Some(Errno::IO);
    assert_eq!((find(one), find(other)), both_later);
    pause_is_over(&directory);
    *lock(&directory.fail_step) = None;
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
    // The system now reports success; the earlier data is still lost.
    let third = commit().unwrap();
    assert!(third != first && third != second);
    assert_eq!(directory.metrics.failed_syncs.load(Ordering::Relaxed), 2);
}
