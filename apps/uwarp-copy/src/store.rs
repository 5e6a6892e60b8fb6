//! Files of a directory that no name leaves: the kernel resolves names beneath it, whatever `..` and symbolic links
//! they contain, and a file appears under its name only when it is complete.

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

/// Prefix of the names of incomplete files. Peers cannot name them.
const TEMPORARY: &str = ".uwarp-copy-";

/// A directory.
pub struct Store {
    root: OwnedFd,
}

/// A file that is being sent.
pub struct Outgoing {
    file: File,
    size: u64,
    left: u64,
    hash: blake3::Hasher,
}

/// A file that is being received, under a temporary name until it is complete.
pub struct Incoming {
    file: File,
    folder: OwnedFd,
    temporary: String,
    name: String,
    size: u64,
    left: u64,
    hash: blake3::Hasher,
    finished: bool,
}

/// Checks that a name stays in its directory.
///
/// # Errors
/// One sentence that says why not.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() {
        bail!("a file name is empty");
    }
    if name.len() > crate::protocol::NAME_MAX {
        bail!("a file name is longer than {} octets", crate::protocol::NAME_MAX);
    }
    if name.contains('\0') || name.ends_with('/') {
        bail!("'{}' is not the name of a file", name.escape_default());
    }
    if Path::new(name).file_name().is_some_and(|last| last.as_encoded_bytes().starts_with(TEMPORARY.as_bytes())) {
        bail!("'{name}' is a name for files that are not whole: choose one that does not begin with {TEMPORARY}");
    }
    for component in Path::new(name).components() {
        match component {
            Component::Normal(_) => {}
            Component::CurDir => bail!("'{name}' begins with '.': write the name without it"),
            Component::ParentDir => bail!("'{name}' leaves the directory: '..' is not allowed"),
            Component::RootDir | Component::Prefix(_) => {
                bail!("'{name}' leaves the directory: only relative names are allowed")
            }
        }
    }
    Ok(())
}

impl Store {
    /// Opens a directory.
    ///
    /// # Errors
    /// It does not exist, or is not a directory.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let root = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("cannot open the directory {}", path.display()))?;
        Ok(Self { root })
    }

    fn beneath(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat2(
            &self.root,
            name,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        )
    }

    /// Opens a file to send.
    ///
    /// # Errors
    /// The name leaves the directory, or there is no such regular file.
    pub fn outgoing(&self, name: &str) -> anyhow::Result<Outgoing> {
        check_name(name)?;
        // Without NONBLOCK, opening a named pipe would wait for its other end.
        let file = self.beneath(name, OFlags::RDONLY | OFlags::NONBLOCK).map_err(|error| explain(name, error))?;
        Outgoing::new(name, File::from(file))
    }

    /// Starts to receive a file of this size.
    ///
    /// # Errors
    /// The name leaves the directory, is a directory's, or the directory cannot be written.
    pub fn incoming(&self, name: &str, size: u64) -> anyhow::Result<Incoming> {
        check_name(name)?;
        let path = Path::new(name);
        let Some(last) = path.file_name().and_then(|last| last.to_str()) else {
            bail!("'{name}' is not the name of a file");
        };
        let parent = match path.parent().and_then(Path::to_str) {
            None | Some("") => ".",
            Some(parent) => parent,
        };
        let folder = self.beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|error| explain(name, error))?;
        if let Ok(status) = rustix::fs::statat(&folder, last, AtFlags::SYMLINK_NOFOLLOW)
            && !rustix::fs::FileType::from_raw_mode(status.st_mode).is_file()
        {
            bail!("'{name}' exists and is not a regular file: it is left alone");
        }
        let (temporary, file) = temporary(&folder).map_err(|error| explain(name, error))?;
        Ok(Incoming {
            file: File::from(file),
            folder,
            temporary,
            name: last.to_owned(),
            size,
            left: size,
            hash: blake3::Hasher::new(),
            finished: false,
        })
    }
}

/// Creates a file under an unpredictable name.
fn temporary(folder: &OwnedFd) -> Result<(String, OwnedFd), Errno> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
    let name = format!("{TEMPORARY}{:032x}.part", u128::from_ne_bytes(random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // With 128 random bits, an existing name is no coincidence.
    let file = rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(0o644))?;
    Ok((name, file))
}

impl Outgoing {
    /// An opened file.
    ///
    /// # Errors
    /// It is not a regular file.
    pub fn new(name: &str, file: File) -> anyhow::Result<Self> {
        let status = file.metadata().with_context(|| format!("'{name}'"))?;
        if !status.is_file() {
            bail!("'{name}' is not a regular file");
        }
        Ok(Self { file, size: status.len(), left: status.len(), hash: blake3::Hasher::new() })
    }

    /// Octets of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Octets that have not been read.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads the next part, at most `room.len()` octets; returns its length.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn next(&mut self, room: &mut [u8]) -> anyhow::Result<usize> {
        let length = self.left.min(room.len() as u64) as usize;
        let part = &mut room[..length];
        self.file.read_exact(part).context("the file cannot be read, or became shorter meanwhile")?;
        self.hash.update(part);
        self.left -= length as u64;
        Ok(length)
    }

    /// BLAKE3 of the octets read, in hexadecimal.
    pub fn hash(&self) -> String {
        self.hash.finalize().to_string()
    }
}

impl Incoming {
    /// Appends a part.
    ///
    /// # Errors
    /// The disk is full, or more octets arrive than were announced.
    pub fn append(&mut self, part: &[u8]) -> anyhow::Result<()> {
        if part.len() as u64 > self.left {
            bail!("more octets came than the {} that were announced", self.size);
        }
        // The hash first: it takes the octets from the processor's cache, which the file's new pages displace.
        self.hash.update(part);
        self.file.write_all(part).context("cannot write the file")?;
        self.left -= part.len() as u64;
        Ok(())
    }

    /// Octets received so far.
    pub fn received(&self) -> u64 {
        self.size - self.left
    }

    /// Compares the contents with the sender's BLAKE3, syncs the file, and gives it its name.
    ///
    /// # Errors
    /// Octets are missing, or the hashes differ; then no file remains.
    pub fn finish(mut self, hash: &str) -> anyhow::Result<()> {
        if self.left > 0 {
            bail!("{} of {} octets are missing", self.left, self.size);
        }
        let own = self.hash.finalize().to_string();
        if own != hash {
            bail!("the content differs: its BLAKE3 is {own}, the sender's {hash}");
        }
        self.file.sync_all().context("cannot write the file to the disk")?;
        rustix::fs::renameat(&self.folder, &self.temporary, &self.folder, &self.name)
            .context("cannot give the file its name")?;
        self.finished = true;
        // Sync the directory too, so that the name survives a power failure; not every file system can promise that.
        let _ = rustix::fs::fsync(&self.folder);
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.finished {
            let _ = rustix::fs::unlinkat(&self.folder, &self.temporary, AtFlags::empty());
        }
    }
}

fn explain(name: &str, error: Errno) -> anyhow::Error {
    match error {
        Errno::NOENT => anyhow::anyhow!("'{name}' does not exist"),
        Errno::XDEV | Errno::LOOP => {
            anyhow::anyhow!("'{name}' leaves the directory through a symbolic link: refused")
        }
        Errno::NOTDIR => anyhow::anyhow!("a part of '{name}' is not a directory"),
        error => anyhow::anyhow!("'{name}': {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", "..", "../x", "a/../../x", "/etc/passwd", "./x", "a/", "x\0y"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["x", "a/b", "..x", "a..b", "ünï"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn symbolic_links_lead_nowhere_outside() {
        let outside = folder();
        fs::write(outside.path().join("secret"), "x").unwrap();
        let inside = folder();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), inside.path().join("file")).unwrap();
        let store = Store::open(inside.path()).unwrap();
        for name in ["link/secret", "file"] {
            assert!(store.outgoing(name).is_err(), "{name}");
        }
        assert!(store.incoming("link/new", 1).is_err());
        assert!(store.incoming("file", 1).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "x");
    }

    #[test]
    fn temporary_names_cannot_be_foreseen_nor_named_by_a_peer() {
        let inside = folder();
        let store = Store::open(inside.path()).unwrap();
        let incoming = [store.incoming("name", 3).unwrap(), store.incoming("name", 3).unwrap()];
        let [first, second] = incoming.each_ref().map(|file| file.temporary.clone());
        let random = |name: &str| u128::from_str_radix(&name[TEMPORARY.len()..][..32], 16).unwrap();
        // 64 of 128 random bits differ, give or take 5 standard deviations.
        let differing = (random(&first) ^ random(&second)).count_ones();
        assert!((36..=92).contains(&differing), "{first} and {second}");
        for name in [first.as_str(), second.as_str(), ".uwarp-copy-mine"] {
            assert!(store.outgoing(name).is_err(), "{name}");
            assert!(store.incoming(name, 1).is_err(), "{name}");
        }
        drop(incoming);
        assert_eq!(fs::read_dir(inside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_appears_only_when_it_is_whole() {
        let inside = folder();
        let path = inside.path().join("name");
        let store = Store::open(inside.path()).unwrap();
        let sum = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";

        let mut incoming = store.incoming("name", 3).unwrap();
        incoming.append(b"ab").unwrap();
        assert!(incoming.append(b"cd").is_err());
        assert!(incoming.finish(sum).is_err());
        assert!(!path.exists());

        let mut incoming = store.incoming("name", 3).unwrap();
        incoming.append(b"abd").unwrap();
        assert!(incoming.finish(sum).is_err());
        drop(store.incoming("name", 3).unwrap());
        assert_eq!(fs::read_dir(inside.path()).unwrap().count(), 0);

        let mut incoming = store.incoming("name", 3).unwrap();
        incoming.append(b"a").unwrap();
        incoming.append(b"bc").unwrap();
        assert_eq!(incoming.received(), 3);
        assert!(!path.exists());
        incoming.finish(sum).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abc");

        let mut outgoing = store.outgoing("name").unwrap();
        let mut room = [0; 2];
        assert_eq!(outgoing.next(&mut room).unwrap(), 2);
        assert_eq!(outgoing.left(), 1);
        assert_eq!(outgoing.next(&mut room).unwrap(), 1);
        assert_eq!(outgoing.hash(), sum);
        assert!(store.outgoing("nothing").is_err());
    }
}
