//! When files that clients have written are closed.

use super::*;

fn written(directory: &Directory, key: Key) -> WRITE3res {
    let (file, stable, data) = (directory.handle(key), stable_how::UNSTABLE, Opaque::borrowed(b"data"));
    call(directory, number::WRITE, &WRITE3args { file, offset: 0, count: 4, stable, data }, b"data")
}

/// Whether this process has a file open for writing.
fn is_open_for_writing(path: &Path) -> bool {
    let own = std::fs::metadata(path).unwrap().ino();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    descriptors.filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|file| file.ino() == own)).any(|entry| {
        let information = Path::new("/proc/self/fdinfo").join(entry.file_name());
        let text = std::fs::read_to_string(information).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or_default();
        u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & 3 != 0)
    })
}

#[test]
fn a_file_that_is_not_written_any_more_can_be_run_and_gives_its_space_back() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, key) = with_file(folder.path());
    let file = folder.path().join("file");
    let handle = directory.handle(key);
    assert!(matches!(written(&directory, key), Nfs3Result::Ok(_)));
    lock(&directory.synced).clear();
    directory.close_unused();
    assert!(is_open_for_writing(&file), "it was just written");
    // Reading it does not keep it open.
    assert_eq!(carry_out(&directory, number::GETATTR, &packed(&GETATTR3args { object: handle.clone() })), 0);
    directory.close_unused();
    assert!(!is_open_for_writing(&file));
    assert_eq!(*lock(&directory.synced), [key.inode], "before it was closed");
    assert_eq!(std::fs::read(&file).unwrap(), b"data");
    // What was committed needs no sync, and what was closed can be written again.
    assert!(matches!(written(&directory, key), Nfs3Result::Ok(_)));
    assert_eq!(carry_out(&directory, number::COMMIT, &packed(&COMMIT3args { file: handle, offset: 0, count: 0 })), 0);
    lock(&directory.synced).clear();
    directory.close_unused();
    directory.close_unused();
    assert!(!is_open_for_writing(&file) && lock(&directory.synced).is_empty());
    // Another program removes it.
    let _reader = directory.object(key).unwrap().reader().map(drop);
    std::fs::remove_file(&file).unwrap();
    directory.close_unused();
    assert!(!lock(&directory.open).objects.contains_key(&key));
}

#[test]
fn clients_learn_of_data_that_was_lost_when_its_file_was_closed() {
    // Closed after a time without writes, or because many other objects were used.
    for is_late in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (directory, key) = with_file(folder.path());
        let Nfs3Result::Ok(done) = written(&directory, key) else { panic!("it can be written") };
        directory.fail_sync.store(true, Ordering::Relaxed);
        if is_late {
            directory.close_unused();
            directory.close_unused();
        } else {
            for number in 0..300 {
                let name = format!("other-{number}");
                std::fs::write(folder.path().join(&name), "").unwrap();
                directory.step(&directory.root, name.as_bytes()).unwrap();
            }
        }
        assert!(!is_open_for_writing(&folder.path().join("file")));
        directory.fail_sync.store(false, Ordering::Relaxed);
        let arguments = COMMIT3args { file: directory.handle(key), offset: 0, count: 0 };
        let COMMIT3res::Ok(committed) = call(&directory, number::COMMIT, &arguments, &[]) else {
            panic!("nothing fails any more")
        };
        assert_ne!(committed.verf.0, done.verf.0, "late: {is_late}");
    }
}

/// A server that is not root: the creator of a file may write it although its mode says no, and nobody may open it so.
#[test]
fn a_file_that_could_not_be_opened_again_stays_open() {
    let folder = tempfile::tempdir().unwrap();
    as_a_user(folder.path(), || {
        let options = DirectoryOptions { read_only: false, squash_root: false };
        let directory = Directory::open(folder.path(), options, Arc::default()).unwrap();
        let root = directory.handle(directory.root.key);
        let create = packed(&CREATE3args { where_: at(&root, "file"), how: createhow3::GUARDED(mode(0o444)) });
        assert_eq!(carry_out(&directory, number::CREATE, &create), 0);
        let key = directory.step(&directory.root, b"file").unwrap().0.key;
        for _ in 0..3 {
            directory.close_unused();
        }
        assert!(matches!(written(&directory, key), Nfs3Result::Ok(_)));
        std::fs::set_permissions(folder.path().join("file"), Permissions::from_mode(0o644)).unwrap();
        directory.close_unused();
        directory.close_unused();
        assert!(!is_open_for_writing(&folder.path().join("file")));
    });
}
