//! The control socket's file, and what else the daemon has beside it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use tempfile::TempDir;
use uwarp::switch::protocol;
use uwarp_app::usage;
use uwarp_dpdk::socket::refuse_descriptors;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 64;

/// The listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(super) struct Listener {
    path: PathBuf,
    socket: OwnedFd,
    /// Where the bells of cables are made: only this user can enter it.
    _bells: TempDir,
    /// The same, whatever becomes of its name.
    bell_directory: OwnedFd,
    /// Held as long as this process serves the path.
    _lock: File,
}

impl Listener {
    /// Listens, unless another switch does.
    pub(super) fn bind(path: &Path, mode: u32) -> anyhow::Result<Listener> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(usage(format!("{} is no path for a socket", path.display())));
        };
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        if !directory.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| format!("the directory {} cannot be made", directory.display()))?;
        }
        let lock_path = directory.join(format!("{name}.lock"));
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .with_context(|| format!("{} cannot be made: choose another --socket", lock_path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => bail!("another switch serves {}", path.display()),
            Err(error) => return Err(error).context(format!("{} cannot be locked", lock_path.display())),
        }
        let bells = Self::make_bell_directory(directory, name)?;
        let bell_directory =
            rustix::fs::open(bells.path(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        match fs::symlink_metadata(path) {
            Ok(metadata) if !std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()) => {
                return Err(usage(format!("{} exists and is not a socket: choose another --socket", path.display())));
            }
            // Nobody serves it: the lock is ours.
            Ok(_) => {
                fs::remove_file(path).with_context(|| format!("the stale {} cannot be removed", path.display()))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(format!("{} cannot be looked at", path.display())),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        if let Err(error) = refuse_descriptors(&socket) {
            tracing::debug!(%error, "the kernel does not refuse descriptors for the control socket");
        }
        let (address, _directory) =
            protocol::address(path).map_err(|error| usage(format!("the path {}: {error}", path.display())))?;
        bind(&socket, &address).with_context(|| format!("cannot listen on {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        listen(&socket, BACKLOG)?;
        Ok(Listener { path: path.to_owned(), socket, _bells: bells, bell_directory, _lock: lock })
    }

    /// A new directory for the bells, after removing what killed switches of this name have left behind.
    fn make_bell_directory(directory: &Path, name: &str) -> anyhow::Result<TempDir> {
        let prefix = format!(".{name}-");
        for entry in fs::read_dir(directory)?.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let own = Permissions::from_mode(0o700);
        Ok(tempfile::Builder::new().prefix(&prefix).permissions(own).rand_bytes(6).tempdir_in(directory)?)
    }

    /// The directory of the bells, by a name that only this process has.
    pub(super) fn bells(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.bell_directory.as_raw_fd()).into()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_switch_serves_a_path_and_what_a_killed_one_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/s");
        let first = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(first.bells()).unwrap().permissions().mode() & 0o777, 0o700);
        let error = Listener::bind(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("another switch serves"), "{error:#}");
        // Killed: nothing is dropped, but the lock is free.
        let bells = first._bells.path().to_owned();
        flock(&first._lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(first);
        let second = Listener::bind(&path, 0o666).unwrap();
        assert!(!bells.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_somebodys_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "kept").unwrap();
        assert!(Listener::bind(&path, 0o600).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }
}
