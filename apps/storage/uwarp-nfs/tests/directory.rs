//! NFS on a directory, as a client sees it, with the types of another project.

mod user;

use nfs3_types::nfs3::{
    self, FSINFO3args, FSINFO3res, FSSTAT3args, FSSTAT3res, GETATTR3args, GETATTR3res, LINK3args, LINK3res,
    LOOKUP3args, MKDIR3args, MKDIR3res, MKNOD3args, MKNOD3res, Nfs3Option, Nfs3Result, PATHCONF3args, PATHCONF3res,
    READDIR3args, READDIR3res, READDIRPLUS3args, READDIRPLUS3res, READLINK3args, READLINK3res, REMOVE3args, REMOVE3res,
    RENAME3args, RMDIR3args, RMDIR3res, SETATTR3args, SETATTR3res, SYMLINK3args, SYMLINK3res, WRITE3args, WRITE3res,
    cookieverf3, createhow3, createverf3, ftype3, mknoddata3, nfs_fh3, nfsstat3, nfstime3, sattr3, set_mtime,
    stable_how, symlinkdata3,
};
use nfs3_types::xdr_codec::{Opaque, Pack};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use user::*;
use uwarp_nfs::directory::DirectoryOptions;
use uwarp_nfs::directory::{number, procedures};
use uwarp_nfs::service::Service;
use uwarp_rpcrdma::rpc::{OwnedAuth, Status};
use uwarp_vdev_tests::disk::{self, Disk, Trouble};

#[test]
fn a_file_is_written_in_any_order_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    let file = nfs.create(&root, "file", createhow3::UNCHECKED(mode(0o640))).unwrap();
    let metadata = std::fs::metadata(folder.path().join("file")).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.len()), (0o640, 0));
    // Behind the end, before it, across it.
    let first = nfs.write(&file, 100, b"end", stable_how::UNSTABLE).unwrap();
    let second = nfs.write(&file, 0, b"beginning", stable_how::DATA_SYNC).unwrap();
    let third = nfs.write(&file, 101, b"N", stable_how::FILE_SYNC).unwrap();
    let committed = nfs.commit(&file).unwrap();
    assert!([first, second, third].iter().all(|verifier| *verifier == committed));
    let mut expected = b"beginning".to_vec();
    expected.resize(100, 0);
    expected.extend_from_slice(b"eNd");
    assert_eq!(nfs.read(&file, 0, 4096), Ok((expected.clone(), true)));
    assert_eq!(nfs.read(&file, 0, 103), Ok((expected.clone(), true)));
    assert_eq!(nfs.read(&file, 0, 102), Ok((expected[..102].to_vec(), false)));
    assert_eq!(nfs.read(&file, 1000, 10), Ok((vec![], true)));
    assert_eq!(nfs.read(&file, u64::MAX, 10), Ok((vec![], true)));
    assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), expected);
    assert_eq!(nfs.write(&file, u64::MAX - 1, b"x", stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_FBIG));
    // A count that is not the data's.
    let mut arguments = packed(&WRITE3args {
        file: file.clone(),
        offset: 0,
        count: 9,
        stable: stable_how::UNSTABLE,
        data: Opaque::owned(vec![1; 5]),
    });
    let mut call = nfs.message(7, number::NULL, &0_u32);
    (call.procedure, call.arguments) = (number::WRITE, parts(number::WRITE, &arguments).unwrap());
    assert_eq!(status(&results::<WRITE3res>(&nfs.carry_out(&mut call))), nfsstat3::NFS3ERR_INVAL);
    // A stability that does not exist.
    let stable = arguments.len() - 16 + 3;
    arguments[stable] = 7;
    call.arguments = parts(number::WRITE, &arguments).unwrap();
    assert_eq!(nfs.carry_out(&mut call).status, Status::GarbageArguments);
    assert_eq!(nfs.read(&root, 0, 10), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(nfs.write(&root, 0, b"x", stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_ISDIR));
}

/// A disk that loses unsynced writes shows what was synced.
#[test]
fn what_is_said_to_be_stable_is_on_the_disk() {
    if uwarp_notes::lacks_root("callers of different users") {
        return;
    }
    const NAME: &str = "what_is_said_to_be_stable_is_on_the_disk";
    uwarp_netns::test_among_own_mounts(NAME, || {
        let folder = tempfile::tempdir().unwrap();
        let (platter, mountpoint) = (folder.path().join("platter"), folder.path().join("mountpoint"));
        std::fs::write(&platter, "........").unwrap();
        std::fs::create_dir(&mountpoint).unwrap();
        let disk = Disk { platter, mountpoint, deceitful: false };
        let mounted = disk.mount().unwrap();
        let durable = || std::fs::read_to_string(&disk.platter).unwrap();
        let nfs = Nfs::new(&disk.mountpoint, ALL);
        let file = nfs.find(&nfs.root(), disk::NAME).unwrap();
        nfs.write(&file, 0, b"A", stable_how::FILE_SYNC).unwrap();
        assert_eq!(durable(), "A.......");
        nfs.write(&file, 1, b"B", stable_how::DATA_SYNC).unwrap();
        assert_eq!(durable(), "AB......");
        let written = nfs.write(&file, 2, b"C", stable_how::UNSTABLE).unwrap();
        assert_eq!(durable(), "AB......");
        assert_eq!(nfs.commit(&file), Ok(written));
        assert_eq!(durable(), "ABC.....");
        let written = nfs.write(&file, 3, b"D", stable_how::UNSTABLE).unwrap();
        mounted.set_trouble(Some(Trouble::Unsyncable));
        assert_eq!(nfs.commit(&file), Err(nfsstat3::NFS3ERR_IO));
        assert_eq!(nfs.write(&file, 4, b"E", stable_how::FILE_SYNC), Err(nfsstat3::NFS3ERR_IO));
        mounted.set_trouble(None);
        assert_eq!(durable(), "ABC.....");
        // A server that did not write it, and has it open for reading at most.
        let again = Nfs::new(&disk.mountpoint, ALL);
        assert_eq!(again.find(&again.root(), disk::NAME).unwrap(), file);
        assert_ne!(again.commit(&file).unwrap(), written);
        assert_eq!(durable(), "ABCDE...");
    });
}

#[test]
fn a_disk_that_fails_is_told_of_and_what_was_there_stays() {
    if uwarp_notes::lacks_root("callers of different users") {
        return;
    }
    const NAME: &str = "a_disk_that_fails_is_told_of_and_what_was_there_stays";
    uwarp_netns::test_among_own_mounts(NAME, || {
        let folder = tempfile::tempdir().unwrap();
        let (platter, mountpoint) = (folder.path().join("platter"), folder.path().join("mountpoint"));
        let content: Vec<u8> = (0..2 << 20).map(|at: u32| (at % 251) as u8).collect();
        std::fs::write(&platter, &content).unwrap();
        std::fs::create_dir(&mountpoint).unwrap();
        let disk = Disk { platter, mountpoint, deceitful: false };
        let mounted = disk.mount().unwrap();
        let nfs = Nfs::new(&disk.mountpoint, ALL);
        let file = nfs.find(&nfs.root(), disk::NAME).unwrap();
        for (trouble, expected) in [
            (Trouble::Full, nfsstat3::NFS3ERR_NOSPC),
            (Trouble::Broken, nfsstat3::NFS3ERR_IO),
            (Trouble::ReadOnly, nfsstat3::NFS3ERR_ROFS),
        ] {
            mounted.set_trouble(Some(trouble));
            for stable in [stable_how::UNSTABLE, stable_how::FILE_SYNC] {
                assert_eq!(nfs.write(&file, 10, &[7; 70_000], stable), Err(expected), "{trouble:?}");
            }
        }
        // A part of what is asked for can be read.
        mounted.set_trouble(Some(Trouble::Unreadable));
        assert_eq!(nfs.read(&file, (1 << 20) - 100_000, 200_000), Err(nfsstat3::NFS3ERR_IO));
        assert_eq!(nfs.read(&file, 5, 100), Ok((content[5..105].to_vec(), false)));
        mounted.set_trouble(None);
        assert!(nfs.read(&file, 0, 1 << 20).unwrap() == (content[..1 << 20].to_vec(), false));
        assert!(nfs.read(&file, 1 << 20, 1 << 20).unwrap() == (content[1 << 20..].to_vec(), true));
    });
}

#[test]
fn a_file_that_others_truncate_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, [7; 9000]).unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let file = nfs.find(&nfs.root(), "file").unwrap();
    assert_eq!(nfs.read(&file, 0, 4096), Ok((vec![7; 4096], false)));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert_eq!(nfs.read(&file, 4096, 4096), Ok((vec![7; 904], true)));
    assert_eq!(nfs.read(&file, 8192, 4096), Ok((vec![], true)));
}

/// RFC 1813 §3.3.7: the verifier shows clients that uncommitted data may be lost.
#[test]
fn the_write_verifier_is_one_start_of_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let starts = [(); 3].map(|()| {
        let nfs = Nfs::new(folder.path(), ALL);
        let file = nfs.find(&nfs.root(), "file").unwrap();
        let verifiers = [
            nfs.write(&file, 0, b"data", stable_how::UNSTABLE),
            nfs.commit(&file),
            nfs.write(&file, 0, b"data", stable_how::DATA_SYNC),
            nfs.write(&file, 0, b"data", stable_how::FILE_SYNC),
            nfs.commit(&file),
        ]
        .map(Result::unwrap);
        assert!(verifiers.iter().all(|verifier| *verifier == verifiers[0]));
        verifiers[0]
    });
    assert!(starts[0] != starts[1] && starts[1] != starts[2] && starts[0] != starts[2]);
}

#[test]
fn attributes_are_set_as_they_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    let file = nfs.create(&root, "file", createhow3::GUARDED(mode(0o600))).unwrap();
    nfs.write(&file, 0, &[7; 5000], stable_how::UNSTABLE).unwrap();
    let set = sattr3 {
        mode: Nfs3Option::Some(0o4751),
        size: Nfs3Option::Some(1234),
        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1_000_000_000, nseconds: 5 }),
        ..sattr3::default()
    };
    assert_eq!(nfs.set(&file, set), nfsstat3::NFS3_OK);
    let is = std::fs::metadata(folder.path().join("file")).unwrap();
    assert_eq!((is.len(), is.mode() & 0o7777, is.mtime(), is.mtime_nsec()), (1234, 0o4751, 1_000_000_000, 5));
    let GETATTR3res::Ok(found) = nfs.call(number::GETATTR, &GETATTR3args { object: file.clone() }) else {
        panic!("no attributes");
    };
    let found = found.obj_attributes;
    assert_eq!((found.type_, found.mode, found.size, found.fileid), (ftype3::NF3REG, 0o4751, 1234, is.ino()));
    assert_eq!((found.uid, found.gid, u64::from(found.nlink)), (is.uid(), is.gid(), is.nlink()));
    assert_eq!(found.mtime, nfstime3 { seconds: 1_000_000_000, nseconds: 5 });
    // A guard that is of another time.
    for (guard, expected) in [
        (found.ctime, nfsstat3::NFS3_OK),
        (nfstime3 { seconds: found.ctime.seconds, nseconds: found.ctime.nseconds ^ 1 }, nfsstat3::NFS3ERR_NOT_SYNC),
    ] {
        let arguments =
            SETATTR3args { object: file.clone(), new_attributes: sattr3::default(), guard: Nfs3Option::Some(guard) };
        assert_eq!(status(&nfs.call::<SETATTR3res>(number::SETATTR, &arguments)), expected);
    }
    let size = |size| sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() };
    assert_eq!(nfs.set(&file, size(100_000)), nfsstat3::NFS3_OK, "longer too");
    assert_eq!(nfs.size(&file), Ok(100_000));
    assert_eq!(nfs.set(&file, size(u64::MAX)), nfsstat3::NFS3ERR_FBIG);
    assert_eq!(nfs.set(&root, size(0)), nfsstat3::NFS3ERR_ISDIR);
    let nobody = sattr3 { uid: Nfs3Option::Some(u32::MAX), ..sattr3::default() };
    assert_eq!(nfs.set(&file, nobody), nfsstat3::NFS3ERR_INVAL, "the system's word for 'as it is'");
    // The first two are the system's special values for "now" and "leave unchanged".
    for nseconds in [0x3fff_ffff, 0x3fff_fffe, 1_000_000_000, u32::MAX] {
        let mtime = set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 5, nseconds });
        assert_eq!(nfs.set(&file, sattr3 { mtime, ..sattr3::default() }), nfsstat3::NFS3ERR_INVAL, "{nseconds}");
    }
}

#[test]
fn names_are_made_moved_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    let (one, two) = (nfs.mkdir(&root, "one"), nfs.mkdir(&root, "two"));
    assert_eq!(std::fs::metadata(folder.path().join("one")).unwrap().mode() & 0o7777, 0o750);
    let file = nfs.create(&one, "file", createhow3::UNCHECKED(sattr3::default())).unwrap();
    nfs.write(&file, 0, b"data", stable_how::UNSTABLE).unwrap();
    // The object keeps its handle whatever happens to its names.
    assert_eq!(nfs.rename((&one, "file"), (&two, "other")), nfsstat3::NFS3_OK);
    assert_eq!(nfs.find(&two, "other").unwrap(), file);
    assert_eq!(nfs.find(&one, "file"), Err(nfsstat3::NFS3ERR_NOENT));
    let link = LINK3args { file: file.clone(), link: at(&one, "again") };
    let LINK3res::Ok(linked) = nfs.call(number::LINK, &link) else { panic!("no link") };
    assert_eq!(linked.file_attributes.unwrap().nlink, 2);
    assert_eq!(nfs.find(&one, "again").unwrap(), file);
    assert_eq!(status(&nfs.call::<LINK3res>(number::LINK, &link)), nfsstat3::NFS3ERR_EXIST);
    assert_eq!(nfs.remove(&two, "other"), nfsstat3::NFS3_OK);
    assert_eq!(nfs.read(&file, 0, 10), Ok((b"data".to_vec(), true)), "it has a name yet");
    assert_eq!(nfs.remove(&one, "again"), nfsstat3::NFS3_OK);
    assert_eq!(nfs.size(&file), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(nfs.remove(&one, "again"), nfsstat3::NFS3ERR_NOENT);
    // One that replaces another.
    let (old, new) = (
        nfs.create(&root, "old", createhow3::UNCHECKED(sattr3::default())).unwrap(),
        nfs.create(&root, "new", createhow3::UNCHECKED(sattr3::default())).unwrap(),
    );
    assert_eq!(nfs.rename((&root, "new"), (&root, "old")), nfsstat3::NFS3_OK);
    assert_eq!((nfs.size(&old), nfs.find(&root, "old")), (Err(nfsstat3::NFS3ERR_STALE), Ok(new)));
    // Directories: with contents, and not over one that is not empty.
    let inner = nfs.mkdir(&one, "inner");
    let below = nfs.create(&inner, "below", createhow3::UNCHECKED(sattr3::default())).unwrap();
    assert_eq!(nfs.rename((&root, "one"), (&two, "moved")), nfsstat3::NFS3_OK);
    assert_eq!(nfs.size(&below), Ok(0));
    assert_eq!(nfs.find(&inner, "..").unwrap(), one);
    assert_eq!(nfs.find(&one, "..").unwrap(), two);
    nfs.mkdir(&root, "empty");
    assert_eq!(nfs.rename((&root, "empty"), (&two, "moved")), nfsstat3::NFS3ERR_NOTEMPTY);
    assert_eq!(nfs.rename((&root, "two"), (&one, "itself")), nfsstat3::NFS3ERR_INVAL);
    let rmdir = |directory: &nfs_fh3, name: &str| {
        status(&nfs.call::<RMDIR3res>(number::RMDIR, &RMDIR3args { object: at(directory, name) }))
    };
    assert_eq!(rmdir(&two, "moved"), nfsstat3::NFS3ERR_NOTEMPTY);
    assert_eq!(rmdir(&root, "old"), nfsstat3::NFS3ERR_NOTDIR);
    assert_eq!(nfs.remove(&root, "two"), nfsstat3::NFS3ERR_ISDIR);
    assert_eq!(nfs.remove(&inner, "below"), nfsstat3::NFS3_OK);
    assert_eq!(rmdir(&one, "inner"), nfsstat3::NFS3_OK);
    assert_eq!(nfs.find(&inner, "."), Err(nfsstat3::NFS3ERR_STALE));
    // Symbolic links, and objects that are not files.
    let arguments = SYMLINK3args {
        where_: at(&root, "link"),
        symlink: symlinkdata3 { symlink_attributes: mode(0o777), symlink_data: b"../some/where"[..].into() },
    };
    let link = nfs.call::<SYMLINK3res>(number::SYMLINK, &arguments).unwrap().obj.unwrap();
    let READLINK3res::Ok(target) = nfs.call(number::READLINK, &READLINK3args { symlink: link }) else {
        panic!("no target");
    };
    assert_eq!(target.data.as_ref(), b"../some/where");
    assert_eq!(std::fs::read_link(folder.path().join("link")).unwrap(), Path::new("../some/where"));
    assert_eq!(
        status(&nfs.call::<READLINK3res<'_>>(number::READLINK, &READLINK3args { symlink: root.clone() })),
        nfsstat3::NFS3ERR_INVAL
    );
    let pipe = MKNOD3args { where_: at(&root, "pipe"), what: mknoddata3::NF3FIFO(mode(0o600)) };
    let pipe = nfs.call::<MKNOD3res>(number::MKNOD, &pipe).unwrap().obj.unwrap();
    assert!(std::fs::metadata(folder.path().join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(nfs.read(&pipe, 0, 10), Err(nfsstat3::NFS3ERR_INVAL), "nobody waits for its other end");
}

#[test]
fn a_create_that_comes_again_makes_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    let exclusive = |number| createhow3::EXCLUSIVE(createverf3([number; 8]));
    let file = nfs.create(&root, "file", exclusive(0xf7)).unwrap();
    assert_eq!(nfs.create(&root, "file", exclusive(0xf7)).unwrap(), file);
    assert_eq!(nfs.create(&root, "file", exclusive(0x07)), Err(nfsstat3::NFS3ERR_EXIST));
    let restarted = Nfs::new(folder.path(), ALL);
    assert_eq!(restarted.create(&root, "file", exclusive(0xf7)).unwrap(), file);
    assert_eq!(nfs.create(&root, "file", createhow3::GUARDED(mode(0o600))), Err(nfsstat3::NFS3ERR_EXIST));
    nfs.write(&file, 0, b"data", stable_how::UNSTABLE).unwrap();
    assert_eq!(nfs.create(&root, "file", exclusive(0xf7)), Err(nfsstat3::NFS3ERR_EXIST), "it is in use");
    let truncating = sattr3 { size: Nfs3Option::Some(0), ..mode(0o777) };
    assert_eq!(nfs.create(&root, "file", createhow3::UNCHECKED(sattr3::default())).unwrap(), file);
    assert_eq!(nfs.size(&file), Ok(4));
    assert_eq!(nfs.create(&root, "file", createhow3::UNCHECKED(truncating)).unwrap(), file);
    assert_eq!(nfs.size(&file), Ok(0));
    nfs.mkdir(&root, "folder");
    assert_eq!(nfs.create(&root, "folder", createhow3::UNCHECKED(mode(0))), Err(nfsstat3::NFS3ERR_EXIST));
}

#[test]
fn handles_hold_over_restarts_until_the_object_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let before = Nfs::new(folder.path(), ALL);
    let root = before.root();
    let mut directory = root.clone();
    for name in ["a", "b", "c"] {
        directory = before.mkdir(&directory, name);
    }
    let create = |name| before.create(&directory, name, createhow3::UNCHECKED(sattr3::default())).unwrap();
    let (stays, goes, replaced, moved) = (create("stays"), create("goes"), create("replaced"), create("moved"));
    let written = before.write(&stays, 0, b"data", stable_how::UNSTABLE).unwrap();
    drop(before);
    let path = folder.path().join("a/b/c");
    std::fs::remove_file(path.join("goes")).unwrap();
    // The new file may reuse the inode number of the old one: a link prevents that; the next one has none.
    std::fs::hard_link(path.join("replaced"), folder.path().join("kept")).unwrap();
    std::fs::remove_file(path.join("replaced")).unwrap();
    std::fs::write(path.join("replaced"), "new").unwrap();
    std::fs::rename(path.join("moved"), folder.path().join("elsewhere")).unwrap();

    let after = Nfs::new(folder.path(), ALL);
    assert_eq!(after.root(), root);
    assert_eq!(after.read(&stays, 0, 10), Ok((b"data".to_vec(), true)));
    assert_ne!(after.commit(&stays).unwrap(), written, "what was not committed may be lost");
    assert_eq!(after.size(&goes), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(after.size(&replaced), Ok(0), "it has another name");
    assert_eq!(after.size(&moved), Ok(0));
    assert_eq!(
        after.find(&directory, "..").and_then(|b| after.find(&b, "..")).map(|a| after.find(&a, "..")),
        Ok(Ok(root))
    );
    let searches = |nfs: &Nfs| nfs.metrics.searches.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(searches(&after), 1, "one search finds all");
    for _ in 0..100 {
        assert_eq!(after.size(&goes), Err(nfsstat3::NFS3ERR_STALE));
    }
    assert_eq!(searches(&after), 1, "what is gone costs none");
    // Inode numbers are reused, handles are not.
    let numbers: Vec<nfs_fh3> = (0..50)
        .map(|_| {
            let file = after.create(&directory, "same", createhow3::UNCHECKED(sattr3::default())).unwrap();
            assert_eq!(after.remove(&directory, "same"), nfsstat3::NFS3_OK);
            file
        })
        .collect();
    assert!(numbers.iter().all(|file| after.size(file) == Err(nfsstat3::NFS3ERR_STALE)));
}

#[test]
fn more_objects_than_are_kept_open_are_all_found() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let mut files = Vec::new();
    for number in 0..30 {
        let name = format!("folder-{number}");
        std::fs::create_dir(folder.path().join(&name)).unwrap();
        let directory = nfs.find(&nfs.root(), &name).unwrap();
        for number in 0..30 {
            std::fs::write(folder.path().join(&name).join(number.to_string()), vec![0; number]).unwrap();
            files.push((nfs.find(&directory, &number.to_string()).unwrap(), number as u64));
        }
    }
    for _ in 0..2 {
        for (file, size) in &files {
            assert_eq!(nfs.size(file), Ok(*size));
        }
    }
    // Moved by another program: found by a search.
    std::fs::rename(folder.path().join("folder-0"), folder.path().join("folder-29/moved")).unwrap();
    for (file, size) in &files {
        assert_eq!(nfs.size(file), Ok(*size));
    }
}

#[test]
fn the_directory_above_is_found_where_others_have_moved_it_and_never_outside() {
    let folder = tempfile::tempdir().unwrap();
    let (served, outside) = (folder.path().join("served"), folder.path().join("outside"));
    std::fs::create_dir(&served).unwrap();
    std::fs::create_dir(&outside).unwrap();
    let nfs = Nfs::new(&served, ALL);
    let root = nfs.root();
    let (one, two) = (nfs.mkdir(&root, "one"), nfs.mkdir(&root, "two"));
    let inner = nfs.mkdir(&one, "inner");
    let deep = nfs.mkdir(&inner, "deep");
    let rename = |from: &Path, to: &Path| std::fs::rename(from, to).unwrap();
    rename(&served.join("one/inner"), &served.join("two/moved"));
    assert_eq!((nfs.find(&inner, ".."), nfs.find(&deep, "..")), (Ok(two.clone()), Ok(inner.clone())));
    rename(&served.join("two"), &served.join("one/below"));
    assert_eq!((nfs.find(&inner, ".."), nfs.find(&two, "..")), (Ok(two), Ok(one)));
    rename(&served.join("one/below/moved"), &outside.join("out"));
    let stale = Err(nfsstat3::NFS3ERR_STALE);
    assert_eq!((nfs.find(&inner, ".."), nfs.find(&deep, "..")), (stale.clone(), stale.clone()));
    // A name that has the directory's own as its prefix.
    rename(&outside.join("out"), &folder.path().join("served-too"));
    assert_eq!((nfs.find(&inner, ".."), nfs.find(&deep, "..")), (stale.clone(), stale));
    rename(&folder.path().join("served-too"), &served.join("back"));
    assert_eq!((nfs.find(&inner, ".."), nfs.find(&deep, "..")), (Ok(root), Ok(inner)));
    assert_eq!(nfs.metrics.searches.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn nothing_leads_out_of_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (served, outside) = (folder.path().join("served"), folder.path().join("outside"));
    std::fs::create_dir_all(served.join("folder")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(&outside, served.join("link")).unwrap();
    std::os::unix::fs::symlink("../outside", served.join("relative")).unwrap();
    let nfs = Nfs::new(&served, ALL);
    let root = nfs.root();
    assert_eq!(nfs.find(&root, "..").unwrap(), root);
    assert_eq!(nfs.find(&root, ".").unwrap(), root);
    for name in ["../outside", "link/secret", "folder/..", "/etc", ""] {
        assert_eq!(nfs.find(&root, name), Err(nfsstat3::NFS3ERR_ACCES), "{name}");
    }
    for link in ["link", "relative"] {
        // The link itself, and nothing behind it.
        let link = nfs.find(&root, link).unwrap();
        assert_eq!(nfs.find(&link, "secret"), Err(nfsstat3::NFS3ERR_NOTDIR));
    }
    for name in ["..", ".", "", "../outside/new", "a/b"] {
        assert_eq!(
            nfs.create(&root, name, createhow3::UNCHECKED(sattr3::default())),
            Err(nfsstat3::NFS3ERR_INVAL),
            "{name}"
        );
        assert_eq!(nfs.remove(&root, name), nfsstat3::NFS3ERR_INVAL, "{name}");
        assert_eq!(nfs.rename((&root, "folder"), (&root, name)), nfsstat3::NFS3ERR_INVAL, "{name}");
    }
    assert_eq!(
        nfs.create(&root, &"n".repeat(256), createhow3::UNCHECKED(sattr3::default())),
        Err(nfsstat3::NFS3ERR_NAMETOOLONG)
    );
    // A file that was replaced by a link: the thread does not follow it.
    let file = nfs.create(&nfs.find(&root, "folder").unwrap(), "file", createhow3::UNCHECKED(mode(0o600))).unwrap();
    let fresh = Nfs::new(&served, ALL);
    std::fs::rename(served.join("folder"), served.join("away")).unwrap();
    std::os::unix::fs::symlink(&outside, served.join("folder")).unwrap();
    std::fs::write(outside.join("file"), "secret").unwrap();
    assert_eq!(fresh.read(&file, 0, 10), Ok((vec![], true)), "the file, where it is now");
    // Handles that were never issued: of an object outside, of another directory, of none.
    let secret = std::fs::metadata(outside.join("secret")).unwrap();
    let mut forged = root.data.to_vec();
    forged[8..16].copy_from_slice(&secret.ino().to_be_bytes());
    let handle = |octets: &[u8]| nfs_fh3 { data: Opaque::owned(octets.to_vec()) };
    assert_eq!(nfs.size(&handle(&forged)), Err(nfsstat3::NFS3ERR_STALE));
    let other = Nfs::new(&outside, ALL);
    let secret = other.find(&other.root(), "secret").unwrap();
    assert_eq!(nfs.size(&secret), Err(nfsstat3::NFS3ERR_STALE));
    for wrong in [&[][..], &[0; 24], &root.data[..23], &[&root.data[..], &[0]].concat()] {
        assert_eq!(nfs.size(&handle(wrong)), Err(nfsstat3::NFS3ERR_BADHANDLE));
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 2);
}

/// "Try again later" would keep the client trying for as long as the program runs.
#[test]
fn a_program_that_runs_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sleep");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let file = nfs.find(&nfs.root(), "sleep").unwrap();
    let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
    let written = nfs.write(&file, 0, b"x", stable_how::UNSTABLE);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(written, Err(nfsstat3::NFS3ERR_IO));
}

#[test]
fn the_kernel_judges_what_a_caller_may_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let root_user = Nfs::new(folder.path(), ALL);
    let root = root_user.root();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    std::fs::set_permissions(folder.path().join("secret"), PermissionsExt::from_mode(0o640)).unwrap();
    let user = root_user.of(1000, 1000, &[2000]);
    let secret = user.find(&root, "secret").unwrap();
    if !root_user.programs.directory.tells_callers_apart() {
        uwarp_notes::skipped("several callers: this process does not run as root, so all have the rights of its user");
        assert_eq!(user.read(&secret, 0, 10), Ok((b"secret".to_vec(), true)));
        return;
    }
    assert_eq!(user.read(&secret, 0, 10), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(user.write(&secret, 0, b"x", stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(user.set(&secret, mode(0o666)), nfsstat3::NFS3ERR_PERM);
    assert_eq!(user.create(&root, "new", createhow3::UNCHECKED(mode(0o600))), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(user.remove(&root, "secret"), nfsstat3::NFS3ERR_ACCES);
    assert_eq!(user.access(&secret), 0);
    assert_eq!(user.access(&root), nfs3::ACCESS3_READ | nfs3::ACCESS3_LOOKUP);
    assert_eq!(root_user.read(&secret, 0, 10), Ok((b"secret".to_vec(), true)));
    // A group of the caller's may read.
    std::os::unix::fs::chown(folder.path().join("secret"), None, Some(2000)).unwrap();
    assert_eq!(user.read(&secret, 0, 10), Ok((b"secret".to_vec(), true)));
    assert_eq!(user.access(&secret), nfs3::ACCESS3_READ);
    assert_eq!(root_user.of(1001, 1001, &[]).read(&secret, 0, 10), Err(nfsstat3::NFS3ERR_ACCES));
    // A user's file belongs to them, and they may still write it when its mode forbids that to all.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let own = user.create(&root, "own", createhow3::UNCHECKED(mode(0o444))).unwrap();
    let is = std::fs::metadata(folder.path().join("own")).unwrap();
    assert_eq!((is.uid(), is.gid()), (1000, 1000));
    user.write(&own, 0, b"mine", stable_how::FILE_SYNC).unwrap();
    let other = root_user.of(1001, 1001, &[]);
    assert_eq!(other.write(&own, 0, b"theirs", stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(other.read(&own, 0, 10), Ok((b"mine".to_vec(), true)));
    let give = sattr3 { uid: Nfs3Option::Some(1001), ..sattr3::default() };
    assert_eq!(user.set(&own, give.clone()), nfsstat3::NFS3ERR_PERM);
    assert_eq!(root_user.set(&own, give), nfsstat3::NFS3_OK);
    // Who may write may truncate, which the Linux client asks for with the server's time. Nobody else may do either.
    std::fs::write(folder.path().join("shared"), "shared").unwrap();
    std::fs::set_permissions(folder.path().join("shared"), PermissionsExt::from_mode(0o664)).unwrap();
    std::os::unix::fs::chown(folder.path().join("shared"), None, Some(2000)).unwrap();
    let shared = user.find(&root, "shared").unwrap();
    let touch = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
    let truncate = sattr3 { size: Nfs3Option::Some(0), ..touch.clone() };
    assert_eq!(other.set(&shared, truncate.clone()), nfsstat3::NFS3ERR_ACCES);
    assert_eq!(other.set(&shared, touch.clone()), nfsstat3::NFS3ERR_ACCES);
    assert_eq!(user.size(&shared), Ok(6));
    assert_eq!(user.set(&shared, truncate.clone()), nfsstat3::NFS3_OK);
    assert_eq!((user.size(&shared), user.set(&shared, truncate)), (Ok(0), nfsstat3::NFS3_OK));
    assert_eq!(user.set(&shared, touch), nfsstat3::NFS3_OK);
    let mtime = set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 5, nseconds: 0 });
    assert_eq!(user.set(&shared, sattr3 { mtime, ..sattr3::default() }), nfsstat3::NFS3ERR_PERM);
    // A program that may be executed but not read.
    assert_eq!(root_user.set(&secret, mode(0o711)), nfsstat3::NFS3_OK);
    assert_eq!(other.read(&secret, 0, 10), Ok((b"secret".to_vec(), true)));
    // A client's root is nobody, unless root access is permitted.
    let squashed = Nfs::new(folder.path(), DirectoryOptions::default());
    let made = squashed.create(&root, "nobody's", createhow3::UNCHECKED(mode(0o600))).unwrap();
    assert_eq!(std::fs::metadata(folder.path().join("nobody's")).unwrap().uid(), 65_534);
    assert_eq!(squashed.write(&secret, 0, b"x", stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(user.read(&made, 0, 1), Err(nfsstat3::NFS3ERR_ACCES));
    // "As it is" must not be root.
    let trick = root_user.of(u32::MAX, u32::MAX, &[u32::MAX]);
    assert_eq!(trick.write(&secret, 0, b"x", stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_ACCES));
    // In one thread, one after the other.
    assert_eq!(root_user.read(&made, 0, 1), Ok((vec![], true)));
    let mut call = user.message(7, number::GETATTR, &GETATTR3args { object: root });
    call.credential = OwnedAuth { flavor: 6, body: vec![0; 20] };
    assert_eq!(user.carry_out(&mut call).status, Status::AuthError(5), "RPCSEC_GSS is not known");
}

#[test]
fn a_directory_that_may_be_read_and_not_searched_is_listed() {
    if uwarp_notes::lacks_root("callers of different users") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().join("shown");
    std::fs::create_dir(&shown).unwrap();
    std::fs::write(shown.join("name"), b"x").unwrap();
    for (path, mode) in [(folder.path(), 0o755), (&shown, 0o744)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let server = Nfs::new(folder.path(), ALL);
    assert!(server.programs.directory.tells_callers_apart(), "run this as root");
    let root = server.root();
    let dir = server.find(&root, "shown").unwrap();
    let user = server.of(1000, 1000, &[]);
    assert_eq!(user.find(&dir, "name"), Err(nfsstat3::NFS3ERR_ACCES));
    let list = |nfs: &Nfs| {
        let arguments = READDIR3args { dir: dir.clone(), cookie: 0, cookieverf: cookieverf3::default(), count: 4096 };
        let page: READDIR3res<'static> = nfs.call(number::READDIR, &arguments);
        let Nfs3Result::Ok(page) = page else { return Err(status(&page)) };
        let names = page.reply.entries.0.iter().map(|entry| String::from_utf8_lossy(&entry.name.0).into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    };
    assert_eq!(list(&user), Ok([".", "..", "name"].map(str::to_owned).to_vec()));
    std::fs::set_permissions(&shown, PermissionsExt::from_mode(0o711)).unwrap();
    assert_eq!(list(&user), Err(nfsstat3::NFS3ERR_ACCES));
}

/// A thread that finds more calls waiting changes from one caller to the next without acting as the server in between.
#[test]
fn a_caller_has_nothing_of_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let server = Nfs::new(folder.path(), ALL);
    if !server.programs.directory.tells_callers_apart() {
        uwarp_notes::skipped("callers of different users: this process does not run as root");
        return;
    }
    let root = server.root();
    let own = server.mkdir(&root, "own");
    for name in ["one", "two", "three"] {
        std::fs::write(folder.path().join("own").join(name), "data").unwrap();
    }
    std::fs::create_dir(folder.path().join("own/empty")).unwrap();
    std::os::unix::fs::chown(folder.path().join("own"), Some(1000), Some(1000)).unwrap();
    std::fs::set_permissions(folder.path().join("own"), PermissionsExt::from_mode(0o700)).unwrap();
    let (owner, other) = (server.of(1000, 1000, &[]), server.of(1001, 1001, &[]));
    let remove = |name| packed(&REMOVE3args { object: at(&own, name) });
    let rename = |name, to| packed(&RENAME3args { from: at(&own, name), to: at(&own, to) });
    for (procedure, arguments) in [
        (number::REMOVE, remove("one")),
        (number::RMDIR, remove("empty")),
        (number::RENAME, rename("two", "moved")),
        (number::RENAME, rename("moved", "three")),
    ] {
        let call = |user: &Nfs, procedure, arguments: &[u8]| {
            let mut call = user.message(7, number::NULL, &0_u32);
            (call.procedure, call.arguments) = (procedure, parts(procedure, arguments).unwrap());
            let answer = server.programs.carry_out(&mut call);
            assert_eq!(answer.status, Status::Success);
            u32::from_be_bytes(answer.results[0].octets()[..4].try_into().unwrap())
        };
        let refused = nfsstat3::NFS3ERR_ACCES as u32;
        let lookup = packed(&LOOKUP3args { what: at(&own, "three") });
        let name = number::NAMES[procedure as usize];
        assert_eq!(call(&other, number::LOOKUP, &lookup), refused);
        assert_eq!(call(&other, procedure, &arguments), refused, "{name}");
        assert_eq!(call(&owner, procedure, &arguments), 0, "{name}");
        // The absence of a name is no secret from the owner, but one from all others.
        assert_eq!(call(&other, number::REMOVE, &remove("nothing")), refused, "{name}");
        assert_eq!(call(&owner, number::REMOVE, &remove("nothing")), nfsstat3::NFS3ERR_NOENT as u32, "{name}");
    }
    procedures::rest();
    assert_eq!(std::fs::read_dir(folder.path().join("own")).unwrap().count(), 1);
}

#[test]
fn a_read_only_directory_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "data").unwrap();
    let nfs = Nfs::new(folder.path(), DirectoryOptions { read_only: true, ..ALL });
    let root = nfs.root();
    let file = nfs.find(&root, "file").unwrap();
    assert_eq!(nfs.read(&file, 0, 10), Ok((b"data".to_vec(), true)));
    assert_eq!(nfs.access(&file) & (nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND), 0);
    assert_eq!(nfs.access(&root), nfs3::ACCESS3_READ | nfs3::ACCESS3_LOOKUP);
    let refused = nfsstat3::NFS3ERR_ROFS;
    assert_eq!(nfs.write(&file, 0, b"x", stable_how::UNSTABLE), Err(refused));
    assert_eq!(nfs.set(&file, mode(0o777)), refused);
    assert_eq!(nfs.create(&root, "new", createhow3::UNCHECKED(sattr3::default())), Err(refused));
    assert_eq!(nfs.remove(&root, "file"), refused);
    assert_eq!(nfs.rename((&root, "file"), (&root, "other")), refused);
    let mkdir = MKDIR3args { where_: at(&root, "new"), attributes: sattr3::default() };
    assert_eq!(status(&nfs.call::<MKDIR3res>(number::MKDIR, &mkdir)), refused);
    let link = LINK3args { file: file.clone(), link: at(&root, "new") };
    assert_eq!(status(&nfs.call::<LINK3res>(number::LINK, &link)), refused);
    let symlink = SYMLINK3args {
        where_: at(&root, "new"),
        symlink: symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data: b"file"[..].into() },
    };
    assert_eq!(status(&nfs.call::<SYMLINK3res>(number::SYMLINK, &symlink)), refused);
    let pipe = MKNOD3args { where_: at(&root, "new"), what: mknoddata3::NF3FIFO(sattr3::default()) };
    assert_eq!(status(&nfs.call::<MKNOD3res>(number::MKNOD, &pipe)), refused);
    let rmdir = RMDIR3args { object: at(&root, "file") };
    assert_eq!(status(&nfs.call::<RMDIR3res>(number::RMDIR, &rmdir)), refused);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_long_directory_is_listed_in_pieces_while_names_go() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..3000 {
        std::fs::write(folder.path().join(format!("name-{number:05}")), "").unwrap();
    }
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    for plus in [false, true] {
        let (mut cookie, mut names, mut pages) = (0, Vec::new(), 0);
        loop {
            let eof = if plus {
                let arguments = READDIRPLUS3args {
                    dir: root.clone(),
                    cookie,
                    cookieverf: cookieverf3::default(),
                    dircount: 4096,
                    maxcount: 16_384,
                };
                let page: READDIRPLUS3res<'static> = nfs.call(number::READDIRPLUS, &arguments);
                let page = page.unwrap();
                assert!(page.packed_size() <= 16_384);
                for entry in &page.reply.entries.0 {
                    cookie = entry.cookie;
                    let name = String::from_utf8(entry.name.0.to_vec()).unwrap();
                    if name.starts_with("name") {
                        let Nfs3Option::Some(attributes) = &entry.name_attributes else { panic!("no attributes") };
                        assert_eq!((attributes.fileid, attributes.size), (entry.fileid, 0));
                        let Nfs3Option::Some(handle) = &entry.name_handle else { panic!("no handle") };
                        assert_eq!(nfs.find(&root, &name).as_ref(), Ok(handle));
                    }
                    names.push(name);
                }
                page.reply.eof
            } else {
                let arguments =
                    READDIR3args { dir: root.clone(), cookie, cookieverf: cookieverf3::default(), count: 4096 };
                let page: READDIR3res<'static> = nfs.call(number::READDIR, &arguments);
                let page = page.unwrap();
                assert!(page.packed_size() <= 4096);
                for entry in &page.reply.entries.0 {
                    cookie = entry.cookie;
                    names.push(String::from_utf8(entry.name.0.to_vec()).unwrap());
                }
                page.reply.eof
            };
            pages += 1;
            if eof {
                break;
            }
            // A listed entry may be removed without any other being missed.
            if !plus && let Some(name) = names.last().filter(|name| name.starts_with("name")) {
                assert_eq!(nfs.remove(&root, name), nfsstat3::NFS3_OK);
            }
        }
        names.sort();
        let listed = names.len();
        names.dedup();
        assert_eq!(listed, names.len(), "none twice");
        assert_eq!(names[..2], [".", ".."]);
        let expected = if plus { std::fs::read_dir(folder.path()).unwrap().count() } else { 3000 };
        assert_eq!(listed - 2, expected);
        assert!(pages > 20);
    }
    let small = READDIR3args { dir: root.clone(), cookie: 0, cookieverf: cookieverf3::default(), count: 110 };
    assert_eq!(status(&nfs.call::<READDIR3res<'_>>(number::READDIR, &small)), nfsstat3::NFS3ERR_TOOSMALL);
}

#[test]
fn the_file_system_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let fsroot = nfs.root();
    let info = nfs.call::<FSINFO3res>(number::FSINFO, &FSINFO3args { fsroot: fsroot.clone() }).unwrap();
    assert_eq!((info.rtmax, info.wtmax, info.maxfilesize), (1 << 20, 1 << 20, i64::MAX as u64));
    let is = nfs.call::<FSSTAT3res>(number::FSSTAT, &FSSTAT3args { fsroot: fsroot.clone() }).unwrap();
    assert!(is.tbytes >= is.fbytes && is.fbytes >= is.abytes && is.tbytes > 0);
    let pathconf = nfs.call::<PATHCONF3res>(number::PATHCONF, &PATHCONF3args { object: fsroot }).unwrap();
    assert_eq!((pathconf.name_max, pathconf.no_trunc), (255, true));
}

#[test]
fn arguments_that_are_none_are_refused_and_nothing_else_happens() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    let mut random = fastrand::Rng::with_seed(5);
    let mut garbage = 0;
    for round in 0..20_000 {
        let procedure = random.u32(0..24);
        let mut octets = packed(&at(&root, "name"));
        for _ in 0..random.usize(0..20) {
            octets.extend_from_slice(&random.u32(0..5).to_be_bytes());
        }
        if round % 2 == 0 {
            octets.truncate(random.usize(0..octets.len()));
        } else {
            let at = random.usize(0..octets.len());
            octets[at] ^= 1 << random.u32(0..8);
        }
        let mut call = nfs.message(round, number::NULL, &0_u32);
        call.procedure = procedure;
        let Some(arguments) = parts(procedure, &octets) else { continue };
        call.arguments = arguments;
        let answer = nfs.carry_out(&mut call);
        match answer.status {
            Status::Success => {}
            Status::GarbageArguments => garbage += 1,
            Status::ProcedureUnavailable => assert!(procedure > number::COMMIT),
            other => panic!("{other:?}"),
        }
    }
    assert!(garbage > 1000);
    assert_eq!(nfs.root(), root, "it is alive");
}

#[test]
fn a_call_that_comes_again_is_carried_out_once() {
    let folder = tempfile::tempdir().unwrap();
    let nfs = Nfs::new(folder.path(), ALL);
    let root = nfs.root();
    std::fs::write(folder.path().join("file"), "data").unwrap();
    let mut service = Service::start(Arc::clone(&nfs.programs), 3).unwrap();
    let mut answer = |xid: u32, name: &str| {
        service.submit(nfs.message(xid, number::REMOVE, &REMOVE3args { object: at(&root, name) }), xid);
        loop {
            if let Some(finished) = service.poll() {
                assert_eq!(finished.to, xid);
                return status(&results::<REMOVE3res>(&finished.answer));
            }
            std::thread::yield_now();
        }
    };
    assert_eq!(answer(1, "file"), nfsstat3::NFS3_OK);
    assert_eq!(answer(1, "file"), nfsstat3::NFS3_OK, "it is the same call");
    assert_eq!(answer(1, "other"), nfsstat3::NFS3ERR_NOENT, "the same number, and another call");
    assert_eq!(answer(2, "file"), nfsstat3::NFS3ERR_NOENT);
    assert_eq!(nfs.metrics.duplicates.load(std::sync::atomic::Ordering::Relaxed), 1);
    let text = nfs.metrics.text();
    assert!(text.contains("uwarp_nfs_calls_total{procedure=\"remove\"} 3"), "{text}");
}
