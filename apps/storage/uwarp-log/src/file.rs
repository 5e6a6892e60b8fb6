//! A target's file: made, locked, read.

use anyhow::{Context as _, bail};
use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use uwarp::{Access, FileStore, MemoryRegion, ProtectionDomain, RegionOptions};
use uwarp_app::usage;
use uwarp_log::layout::{Geometry, Identity, PAGE};
use uwarp_log::record::{Record, Tail};
use uwarp_log::target::{self, Walk};

/// A file of a log, which no other target has open.
pub struct LogFile {
    /// The open file, locked.
    pub file: File,
    /// Its first page.
    pub identity: Identity,
}

impl LogFile {
    /// Opens a file, or makes one where there is none or an empty one.
    ///
    /// # Errors
    /// It is not a log's file, or cannot be opened or made.
    pub fn open(path: &Path, size: u64, segment: u32) -> anyhow::Result<LogFile> {
        let name = || path.display().to_string();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).with_context(name)?;
        let metadata = file.metadata().with_context(name)?;
        if !metadata.is_file() {
            return Err(usage(format!("{} is not a regular file: choose another --file", path.display())));
        }
        let file = if metadata.len() == 0 {
            let geometry = Geometry::new(size, segment).map_err(usage)?;
            match make(path, geometry, metadata.permissions()) {
                Err(error) if has_fixed_name(&error) => fill(file, path, geometry)?,
                made => made?,
            }
        } else {
            lock(&file, path)?;
            file
        };
        // Each time: whoever made it may have been killed before it did. Not every file system can promise that.
        let place = path.canonicalize().with_context(name)?;
        let _ = File::open(directory(&place)).and_then(|directory| directory.sync_all());
        let identity = read_identity(&file).with_context(name)?;
        Ok(LogFile { file, identity })
    }

    /// Makes another first page durable.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&mut self, identity: Identity) -> anyhow::Result<()> {
        self.file.write_all_at(&identity.to_octets(), 0).context("the file cannot be written")?;
        self.file.sync_data().context("the file cannot be synced")?;
        self.identity = identity;
        Ok(())
    }

    /// Registers what is behind the first page.
    ///
    /// # Errors
    /// Those of registration.
    pub fn register(&self, domain: &ProtectionDomain, follow: bool) -> anyhow::Result<MemoryRegion> {
        let mut store = FileStore::default();
        store.add(&self.file, PAGE, self.identity.geometry.region())?;
        let memory = store.load()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        // A notification of a record waits until the record is durable.
        Ok(domain.register(memory, RegionOptions::new(access).store(store).transparent(follow))?)
    }
}

/// Takes a file for this process.
fn lock(file: &File, path: &Path) -> anyhow::Result<()> {
    if file.try_lock().is_err() {
        bail!("{} is another target's: one process at a time", path.display());
    }
    Ok(())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a log's file in place of an empty one. It appears when it is whole: a part of one would be no log's file for
/// ever.
fn make(path: &Path, geometry: Geometry, permissions: Permissions) -> anyhow::Result<File> {
    let name = || format!("{} cannot be made", path.display());
    // A link stays one.
    let place = path.canonicalize().with_context(name)?;
    let mut temporary = OsString::from(".");
    temporary.push(place.file_name().unwrap_or_default());
    temporary.push(".new");
    let temporary = directory(&place).join(temporary);
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&temporary);
    let file = file.with_context(name)?;
    lock(&file, path)?;
    // Whoever has the lock makes the file, unless another process did so before this one got it.
    let is_made = std::fs::metadata(&place).is_ok_and(|made| made.len() > 0);
    let is_own = std::fs::metadata(&temporary).is_ok_and(|named| is_same(&named, &file));
    if is_made || !is_own {
        if is_own {
            let _ = std::fs::remove_file(&temporary);
        }
        bail!("{} is another target's: one process at a time", path.display());
    }
    let made = file
        .set_len(0)
        .and_then(|()| file.set_permissions(permissions))
        .and_then(|()| file.set_len(geometry.file()))
        .and_then(|()| file.write_all_at(&target::first_page(Identity::new(geometry)), 0))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&temporary, &place));
    if made.is_err() {
        // If this fails too, the first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    made.with_context(name)?;
    Ok(file)
}

/// Whether no file may get the name in place of the one that has it: in somebody else's directory, or where a file is
/// mounted alone.
fn has_fixed_name(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{InvalidFilename, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    let kinds = [InvalidFilename, PermissionDenied, ReadOnlyFilesystem, ResourceBusy];
    error.downcast_ref::<std::io::Error>().is_some_and(|error| kinds.contains(&error.kind()))
}

/// Makes a log's file of an empty one where it is. If this process is killed meanwhile, somebody has to empty it again.
fn fill(file: File, path: &Path, geometry: Geometry) -> anyhow::Result<File> {
    lock(&file, path)?;
    let filled = file
        .set_len(geometry.file())
        .and_then(|()| file.write_all_at(&target::first_page(Identity::new(geometry)), 0))
        .and_then(|()| file.sync_all());
    if filled.is_err() {
        // If this fails too, the first error is the one to report.
        let _ = file.set_len(0);
    }
    filled.with_context(|| format!("{} cannot be made", path.display()))?;
    Ok(file)
}

fn is_same(named: &Metadata, file: &File) -> bool {
    file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
}

/// Reads the first page of a log's file.
///
/// # Errors
/// It is not one.
pub fn read_identity(file: &File) -> anyhow::Result<Identity> {
    let mut octets = [0; 64];
    file.read_exact_at(&mut octets, 0).context("this is not a log's file: it is too short")?;
    Ok(Identity::from_octets(&octets)?)
}

/// Walks through the records in a file: all of them, or those behind a given one.
///
/// # Errors
/// The file is not a log's, or cannot be read; and those of `each`.
pub fn walk_file(
    file: &File,
    from: Option<Tail>,
    mut each: impl FnMut(&Record<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<(Identity, Walk)> {
    struct Error(anyhow::Error);
    impl From<String> for Error {
        fn from(text: String) -> Self {
            Error(anyhow::Error::msg(text))
        }
    }
    let identity = read_identity(file)?;
    let read = |offset: u64, out: &mut [u8]| {
        file.read_exact_at(out, PAGE + offset)
            .map_err(|error| Error(anyhow::Error::new(error).context("the file cannot be read")))
    };
    let walk = target::walk(&identity.geometry, from, read, |_, record| each(record).map_err(Error));
    walk.map(|walk| (identity, walk)).map_err(|Error(error)| error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    const SIZE: u64 = 1 << 20;
    const SEGMENT: u32 = 1 << 16;

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_whole_or_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        // What a killed target left behind: the length was set, and nothing written.
        let left = directory.path().join(".log.new");
        fs::write(&left, vec![0; 3 << 20]).unwrap();
        let log = LogFile::open(&path, SIZE, SEGMENT).unwrap();
        assert_eq!(names(directory.path()), ["log"]);
        assert_eq!(fs::metadata(&path).unwrap().len(), log.identity.geometry.file());
        assert!(walk_file(&log.file, None, |_| Ok(())).unwrap().1.has_head);
        let error = LogFile::open(&path, SIZE, SEGMENT).err().unwrap().to_string();
        assert!(error.contains("one process at a time"), "{error}");
        let identity = log.identity;
        drop(log);
        assert_eq!(LogFile::open(&path, SIZE * 2, SEGMENT).unwrap().identity, identity);

        // While another target makes the file, this one does not.
        fs::remove_file(&path).unwrap();
        let other = File::create(&left).unwrap();
        other.lock().unwrap();
        let error = LogFile::open(&path, SIZE, SEGMENT).err().unwrap().to_string();
        assert!(error.contains("one process at a time"), "{error}");
        assert!(left.exists());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn an_empty_file_becomes_a_log_with_the_same_mode_and_others_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link, dangling] = ["log", "link", "dangling"].map(|name| directory.path().join(name));
        File::create(&path).unwrap().set_permissions(Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let log = LogFile::open(&link, SIZE, SEGMENT).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), log.identity.geometry.file());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        std::os::unix::fs::symlink("new", &dangling).unwrap();
        LogFile::open(&dangling, SIZE, SEGMENT).unwrap();
        assert!(fs::metadata(directory.path().join("new")).unwrap().len() > 0);

        // No name is free for the temporary file.
        let long = directory.path().join("n".repeat(252));
        File::create(&long).unwrap();
        let log = LogFile::open(&long, SIZE, SEGMENT).unwrap();
        assert_eq!(fs::metadata(&long).unwrap().len(), log.identity.geometry.file());

        let other = directory.path().join("other");
        fs::write(&other, [7; 100]).unwrap();
        assert!(LogFile::open(&other, SIZE, SEGMENT).is_err());
        assert_eq!(fs::read(&other).unwrap(), [7; 100]);
        assert!(LogFile::open(Path::new("/dev/null"), SIZE, SEGMENT).is_err());
        assert!(LogFile::open(directory.path(), SIZE, SEGMENT).is_err());
    }
}
