//! A directory of this machine as an NFS version 3 file system (RFC 1813).
//!
//! - [`caller`]: who calls, and how the kernel checks what they may do.
//! - [`procedures`], [`number`]: the procedures of the program.
//! - `object`, `index`, `search`, `sought`: open objects, the names of others, and the search for objects without a
//!   known name.
//! - `listing`, `attributes`, `stability`: READDIR, the attributes of an object, and what must be synced.
//!
//! An object is reached from the root by its names, one at a time, and never through a symbolic link or into another
//! file system, so there is no way out of the directory. Its handle identifies the object, not its place: it is valid
//! for as long as the object exists, under any name, and across restarts of the server.

mod attributes;
pub mod caller;
mod index;
mod listing;
pub mod number;
mod object;
pub mod procedures;
mod search;
mod sought;
mod stability;

pub use index::Key;

use crate::metrics::Metrics;
use attributes::of_errno;
use caller::{become_caller, become_server};
use index::Index;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::Opaque;
use object::{Object, Open};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use sought::Search;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use uwarp_app::lock;

/// Octets of a handle.
pub const HANDLE_LEN: usize = 24;
/// First word of a handle: its kind.
const HANDLE_KIND: u32 = 0x7577_0001;
/// Locks for changes, shared by objects.
const LOCKS: usize = 64;
/// How deep names may lie below the root.
const DEPTH_MAX: usize = 1000;

/// How the directory is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryOptions {
    /// Refuse calls that would change it.
    pub read_only: bool,
    /// A client's root is nobody here.
    pub squash_root: bool,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self { read_only: false, squash_root: true }
    }
}

/// The directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    root: Arc<Object>,
    device: (u32, u32),
    options: DirectoryOptions,
    /// Whether threads can become callers: the server runs as root.
    switches: bool,
    /// Which directory its handles are of.
    export: u32,
    /// Changes when uncommitted data may be lost (RFC 1813 §3.3.7).
    verifier: AtomicU64,
    index: Mutex<Index>,
    open: Mutex<Open>,
    locks: [Mutex<()>; LOCKS],
    syncs: [Mutex<()>; LOCKS],
    /// Searches lock it exclusively. Renames, which would hide objects from them, share it.
    tree: RwLock<()>,
    /// Renames under way.
    moving: AtomicUsize,
    search: Mutex<Search>,
    search_over: Condvar,
    metrics: Arc<Metrics>,
    /// How often a search has had the tree exclusively.
    #[cfg(test)]
    exclusive: AtomicU64,
    #[cfg(test)]
    fail_sync: std::sync::atomic::AtomicBool,
    #[cfg(test)]
    fail_step: Mutex<Option<Errno>>,
    /// Inodes of synced objects; zero for the whole file system.
    #[cfg(test)]
    synced: Mutex<Vec<u64>>,
}

/// How often to retry the lookup of an object that is being renamed.
const RENAME_LOOKS: u32 = 3;

impl Directory {
    /// Opens a directory to serve it. Clears the process's umask, because clients have applied theirs.
    ///
    /// # Errors
    /// It is not a directory, or the system lacks /proc or openat2 (Linux 5.6; as root also faccessat2, Linux 5.8).
    pub fn open(path: &Path, options: DirectoryOptions, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let path = path.canonicalize()?;
        let opened = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::openat2(&opened, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), WITHIN)?;
        let stat = rustix::fs::statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let root = Object::new(opened, &stat);
        rustix::fs::stat(root.link())?;
        rustix::process::umask(Mode::empty());
        let identity = [root.key.inode.to_be_bytes(), root.key.born.to_be_bytes()].concat();
        Ok(Self {
            path,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            export: crc32c::crc32c(&identity),
            root: Arc::new(root),
            options,
            switches: rustix::process::geteuid().is_root(),
            verifier: AtomicU64::new(fastrand::u64(..)),
            index: Mutex::default(),
            open: Mutex::default(),
            locks: std::array::from_fn(|_| Mutex::new(())),
            syncs: std::array::from_fn(|_| Mutex::new(())),
            tree: RwLock::new(()),
            moving: AtomicUsize::new(0),
            search: Mutex::default(),
            search_over: Condvar::new(),
            metrics,
            #[cfg(test)]
            exclusive: AtomicU64::new(0),
            #[cfg(test)]
            fail_sync: std::sync::atomic::AtomicBool::new(false),
            #[cfg(test)]
            fail_step: Mutex::default(),
            #[cfg(test)]
            synced: Mutex::default(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is served.
    pub fn options(&self) -> DirectoryOptions {
        self.options
    }

    /// Whether callers are distinguished: only a server that runs as root can act as they.
    pub fn tells_callers_apart(&self) -> bool {
        self.switches
    }

    /// Whether the file system stores birth times, as far as the directory itself shows. If not, the handle of a
    /// deleted object may name a new one that reuses its inode number. An inode's generation would distinguish them,
    /// too, but no safe call returns it.
    pub fn keeps_births(&self) -> bool {
        self.root.key.born != 0
    }

    /// The handle of the object at a path below the root, for MOUNT. Empty components and `.` are ignored.
    ///
    /// # Errors
    /// Why the path is invalid; one that would leave the directory is NFS3ERR_ACCES.
    pub fn mount(&self, path: &[u8]) -> Result<nfs_fh3, nfsstat3> {
        become_server();
        let mut object = Arc::clone(&self.root);
        for name in path.split(|&octet| octet == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            if name == b".." {
                return Err(nfsstat3::NFS3ERR_ACCES);
            }
            object = self.step(&object, name).map_err(of_errno)?.0;
        }
        match object.kind {
            FileType::Directory => Ok(self.handle(object.key)),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    fn handle(&self, key: Key) -> nfs_fh3 {
        let mut out = Vec::with_capacity(HANDLE_LEN);
        out.extend_from_slice(&HANDLE_KIND.to_be_bytes());
        out.extend_from_slice(&self.export.to_be_bytes());
        out.extend_from_slice(&key.inode.to_be_bytes());
        out.extend_from_slice(&key.born.to_be_bytes());
        nfs_fh3 { data: Opaque::owned(out) }
    }

    fn key(&self, handle: &[u8]) -> Result<Key, nfsstat3> {
        let handle: &[u8; HANDLE_LEN] = handle.try_into().map_err(|_| nfsstat3::NFS3ERR_BADHANDLE)?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|index| handle[at + index]));
        if number(0) >> 32 != u64::from(HANDLE_KIND) {
            return Err(nfsstat3::NFS3ERR_BADHANDLE);
        }
        // It is of a former directory, or of another one.
        if number(0) as u32 != self.export {
            return Err(nfsstat3::NFS3ERR_STALE);
        }
        Ok(Key { inode: number(8), born: number(16) })
    }

    /// The object of a handle, and its attributes.
    fn find(&self, handle: &[u8]) -> Result<(Arc<Object>, Statx), nfsstat3> {
        let key = self.key(handle)?;
        let object = self.object(key)?;
        let stat = object.stat().map_err(of_errno)?;
        if stat.stx_nlink == 0 {
            // Only the descriptor here keeps it.
            self.gone(key);
            return Err(nfsstat3::NFS3ERR_STALE);
        }
        Ok((object, stat))
    }

    /// The object of a key: an open one, or found by its names.
    fn object(&self, key: Key) -> Result<Arc<Object>, nfsstat3> {
        if key == self.root.key {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(object) = lock(&self.open).get(key) {
            return Ok(object);
        }
        become_server();
        match self.descend(key, &mut HashSet::new()).map_err(of_errno)? {
            Some(object) => Ok(object),
            None => self.search(key)?.ok_or(nfsstat3::NFS3ERR_STALE),
        }
    }

    /// Walks from the root, or from the nearest open ancestor, to the object, by one of its names that is still valid.
    ///
    /// # Errors
    /// Why none of the names that may still be valid could be followed.
    fn descend(&self, key: Key, visited: &mut HashSet<Key>) -> Result<Option<Arc<Object>>, Errno> {
        if key == self.root.key {
            return Ok(Some(Arc::clone(&self.root)));
        }
        if let Some(object) = lock(&self.open).get(key) {
            return Ok(Some(object));
        }
        if visited.len() > DEPTH_MAX || !visited.insert(key) {
            return Ok(None);
        }
        let places = lock(&self.index).places(key);
        let mut failure = None;
        for place in places {
            let stepped = match self.descend(place.parent, visited) {
                Ok(Some(parent)) => self.step(&parent, &place.name),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match stepped {
                Ok((object, _)) if object.key == key => return Ok(Some(object)),
                // Something else has the name, or nothing.
                Ok(_) | Err(Errno::NOENT) => lock(&self.index).forget(key, place.parent, &place.name),
                // Another file system is mounted over it, perhaps temporarily.
                Err(Errno::XDEV) => {}
                // This does not concern the name: descriptors are exhausted, or the disk fails.
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// The object under a name in a directory, as the thread's current user; it is kept open.
    fn step(&self, parent: &Object, name: &[u8]) -> Result<(Arc<Object>, Statx), Errno> {
        #[cfg(test)]
        if let Some(error) = *lock(&self.fail_step) {
            return Err(error);
        }
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(&parent.path, name, how, Mode::empty(), WITHIN)?;
        let stat = rustix::fs::statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let object = Object::new(opened, &stat);
        lock(&self.index).learn(object.key, parent.key, name);
        let (object, closing) = lock(&self.open).put(object);
        self.close(closing);
        Ok((object, stat))
    }

    /// The parent directory; the root is its own parent.
    ///
    /// # Errors
    /// This directory is elsewhere now (NFS3ERR_STALE), or is moved repeatedly (NFS3ERR_JUKEBOX).
    fn parent(&self, directory: &Arc<Object>) -> Result<Arc<Object>, nfsstat3> {
        become_server();
        if directory.key == self.root.key {
            return Ok(Arc::clone(&self.root));
        }
        let path = |object: &Object| rustix::fs::readlinkat(CWD, object.link(), Vec::new());
        'again: for _ in 0..RENAME_LOOKS {
            // Other programs may have moved an open directory, even out of the root: the kernel knows its path. Walk
            // that path from the root, as any other.
            let paths = path(&self.root).and_then(|root| Ok((root, path(directory)?)));
            let (root, path) = match paths {
                Ok(paths) => paths,
                Err(Errno::NAMETOOLONG) => return self.known_parent(directory),
                Err(error) => return Err(of_errno(error)),
            };
            let root = root.to_bytes().strip_suffix(b"/").unwrap_or(root.to_bytes());
            let Some(names) = path.to_bytes().strip_prefix(root).and_then(|below| below.strip_prefix(b"/")) else {
                return Err(nfsstat3::NFS3ERR_STALE);
            };
            let (mut above, mut found) = (Arc::clone(&self.root), Arc::clone(&self.root));
            for name in names.split(|octet| *octet == b'/') {
                above = found;
                found = match self.step(&above, name) {
                    Ok((found, _)) => found,
                    // It was moved meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR) => continue 'again,
                    Err(error) => return Err(of_errno(error)),
                };
            }
            if found.key == directory.key {
                return Ok(above);
            }
        }
        Err(nfsstat3::NFS3ERR_JUKEBOX)
    }

    /// The parent directory if the path is too long for the kernel to report, as far as its place is known.
    fn known_parent(&self, directory: &Object) -> Result<Arc<Object>, nfsstat3> {
        // Not in the loop's head, whose temporaries live for the whole loop: each step locks the index itself.
        let places = lock(&self.index).places(directory.key);
        for place in places {
            if let Ok(Some(parent)) = self.descend(place.parent, &mut HashSet::new())
                && self.step(&parent, &place.name).is_ok_and(|(found, _)| found.key == directory.key)
            {
                return Ok(parent);
            }
        }
        Err(nfsstat3::NFS3ERR_STALE)
    }

    /// Attributes of the object under a name in a directory.
    fn look(&self, parent: &Object, name: &[u8]) -> Result<Statx, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(&parent.path, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        if self.is_elsewhere(&stat) { Err(Errno::XDEV) } else { Ok(stat) }
    }

    /// Whether this belongs to another file system, or is another part of the same one mounted here.
    fn is_elsewhere(&self, stat: &Statx) -> bool {
        // Linux 5.8 and later report this. Before, only the number of another file system reveals a mount.
        stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            || (stat.stx_dev_major, stat.stx_dev_minor) != self.device
    }

    /// An object has no name any more.
    fn gone(&self, key: Key) {
        lock(&self.open).objects.remove(&key);
        lock(&self.index).gone(key);
    }

    /// Locks out other changes of this object, so that the attributes before and after a change belong to it.
    fn lock(&self, key: Key) -> MutexGuard<'_, ()> {
        lock(&self.locks[lock_number(key)])
    }

    /// The same for two objects.
    fn lock_two(&self, one: Key, other: Key) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        // Always in the same order.
        let (low, high) = (lock_number(one).min(lock_number(other)), lock_number(one).max(lock_number(other)));
        (lock(&self.locks[low]), (low != high).then(|| lock(&self.locks[high])))
    }

    /// Makes the thread act as the caller, if callers are distinguished.
    fn become_caller(&self, caller: &caller::Caller) -> Result<(), nfsstat3> {
        if !self.switches {
            return Ok(());
        }
        become_caller(caller).map_err(|error| {
            tracing::error!("cannot act for user {}: {error}", caller.uid);
            nfsstat3::NFS3ERR_SERVERFAULT
        })
    }
}

/// Names are followed one at a time, within the file system, and never through a symbolic link.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

fn lock_number(key: Key) -> usize {
    key.inode as usize % LOCKS
}

/// Checks access. A file's owner may always read and write it, whatever its mode says: it was open for that when they
/// made it (RFC 1813 §4.4).
fn may(object: &Object, stat: &Statx, access: rustix::fs::Access) -> Result<(), nfsstat3> {
    match rustix::fs::accessat(CWD, object.link(), access, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        // The caller is this thread's user, or the server's if it cannot become others.
        Err(Errno::ACCESS)
            if stat.stx_uid == rustix::process::geteuid().as_raw() && object.kind == FileType::RegularFile =>
        {
            Ok(())
        }
        Err(error) => Err(of_errno(error)),
    }
}

#[cfg(test)]
mod tests;
