//! A directory of this machine as an NFS version 3 file system (RFC 1813).
//!
//! - [`caller`]: who calls, and how the kernel judges what they may do.
//! - [`procedures`]: the procedures of the program.
//! - `index`, `listing`, `attributes`: names of objects, READDIR, what NFS says of an object.
//!
//! An object is reached from the root by its names, one at a time and never through a symbolic link or into another file
//! system, so there is no way out of the directory. Its handle says which object it is, not where: it holds for as long as the
//! object exists, under any name, and over restarts of the server.

mod attributes;
pub mod caller;
mod index;
mod listing;
pub mod procedures;

pub use index::Key;

use crate::metrics::Metrics;
use attributes::{born, of_errno};
use caller::{become_caller, become_server};
use index::Index;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::Opaque;
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Octets of a handle.
pub const HANDLE_LEN: usize = 24;
/// First word of a handle: which kind it is.
const HANDLE_KIND: u32 = 0x7577_0001;
/// Objects that are kept open; each has up to three descriptors.
const OPEN_MAX: usize = 256;
/// Locks for changes, shared by objects.
const LOCKS: usize = 64;
/// How far names may lie below the root.
const DEPTH_MAX: usize = 1000;
/// After a search of the whole directory, the next one waits so many times as long as it took, and at least so long.
const SEARCH_PAUSE: u32 = 20;
const SEARCH_PAUSE_MIN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// Keys remembered that a search could not tell of, since it did not see everything.
const UNSURE_MAX: usize = 1000;

/// How the directory is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryOptions {
    /// Refuse what would change it.
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
    /// Whether threads can become callers: the server is root's.
    switches: bool,
    /// Which directory its handles are of.
    export: u32,
    /// Changes when data that was not committed may be lost (RFC 1813 §3.3.7).
    verifier: AtomicU64,
    index: Mutex<Index>,
    open: Mutex<Open>,
    locks: [Mutex<()>; LOCKS],
    syncs: [Mutex<()>; LOCKS],
    /// Searches have it for themselves; renames, which would hide objects from them, share it.
    tree: RwLock<()>,
    search: Mutex<Search>,
    metrics: Arc<Metrics>,
    #[cfg(test)]
    fail_sync: std::sync::atomic::AtomicBool,
    #[cfg(test)]
    fail_step: Mutex<Option<Errno>>,
    /// Inodes of objects that were synced.
    #[cfg(test)]
    synced: Mutex<Vec<u64>>,
}

/// A file, directory, or anything else in it.
#[derive(Debug)]
struct Object {
    key: Key,
    kind: FileType,
    /// The object itself, not to be read from or written to.
    path: OwnedFd,
    reader: OnceLock<OwnedFd>,
    writer: OnceLock<OwnedFd>,
}

/// Objects that are open, and when they were last asked for.
#[derive(Debug, Default)]
struct Open {
    objects: HashMap<Key, (Arc<Object>, u64)>,
    clock: u64,
}

/// Searches of the whole directory.
#[derive(Debug, Default)]
struct Search {
    /// When the last one ended, and how long it took.
    last: Option<(Instant, Duration)>,
    /// It has seen everything.
    whole: bool,
    /// Objects that had been lost before it, and that it has not found, though it has seen everything.
    missed: HashSet<Key>,
    /// What was asked for and not found by one that did not see everything.
    unsure: HashSet<Key>,
}

impl Object {
    /// A path that leads to it whatever became of its names.
    fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }

    fn stat(&self) -> Result<Statx, Errno> {
        rustix::fs::statx(&self.path, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
    }

    /// To read from, or to sync. Whether the caller may is asked elsewhere: the descriptor is everybody's.
    fn reader(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.descriptor(&self.reader, OFlags::RDONLY)
    }

    /// To write to.
    fn writer(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.descriptor(&self.writer, OFlags::RDWR)
    }

    fn descriptor<'a>(&'a self, slot: &'a OnceLock<OwnedFd>, how: OFlags) -> Result<BorrowedFd<'a>, Errno> {
        use rustix::fd::AsFd as _;
        if let Some(open) = slot.get() {
            return Ok(open.as_fd());
        }
        // Opening anything else can have consequences: a device may rewind a tape.
        if !matches!(self.kind, FileType::RegularFile | FileType::Directory) {
            return Err(Errno::INVAL);
        }
        become_server();
        let open = rustix::fs::open(self.link(), how | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
        Ok(slot.get_or_init(|| open).as_fd())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of what is behind these locks is made at once.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Opens a directory to serve it. The process's mask of permissions for new files is cleared: clients have applied theirs.
    ///
    /// # Errors
    /// It is no directory, or the system has no /proc or no openat2 (Linux 5.6).
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
            search: Mutex::default(),
            metrics,
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

    /// Whether callers are told apart: only a server of root's can act as they.
    pub fn tells_callers_apart(&self) -> bool {
        self.switches
    }

    /// The handle of what a path below the root names, for MOUNT. Empty components and `.` count for nothing.
    ///
    /// # Errors
    /// What is wrong with the path; one that would lead out of the directory is NFS3ERR_ACCES.
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
        // Of a directory that was here before, or lies elsewhere.
        if number(0) as u32 != self.export {
            return Err(nfsstat3::NFS3ERR_STALE);
        }
        Ok(Key { inode: number(8), born: number(16) })
    }

    /// What a handle stands for, and its attributes.
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

    /// The object of a key: one that is open, or found by its names.
    fn object(&self, key: Key) -> Result<Arc<Object>, nfsstat3> {
        if key == self.root.key {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(object) = locked(&self.open).get(key) {
            return Ok(object);
        }
        become_server();
        match self.descend(key, &mut HashSet::new()).map_err(of_errno)? {
            Some(object) => Ok(object),
            None => self.search(key)?.ok_or(nfsstat3::NFS3ERR_STALE),
        }
    }

    /// Goes from the root, or from the nearest ancestor that is open, to the object, by one of its names that is still right.
    ///
    /// # Errors
    /// Why none could be gone to, of those that may be right yet.
    fn descend(&self, key: Key, visited: &mut HashSet<Key>) -> Result<Option<Arc<Object>>, Errno> {
        if key == self.root.key {
            return Ok(Some(Arc::clone(&self.root)));
        }
        if let Some(object) = locked(&self.open).get(key) {
            return Ok(Some(object));
        }
        if visited.len() > DEPTH_MAX || !visited.insert(key) {
            return Ok(None);
        }
        let places = locked(&self.index).places(key);
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
                Ok(_) | Err(Errno::NOENT) => locked(&self.index).forget(key, place.parent, &place.name),
                // Another file system lies over it, perhaps not for ever.
                Err(Errno::XDEV) => {}
                // This says nothing of the place: there are no more descriptors, or the disk fails.
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// What a directory has under a name, as the thread's present user; it is kept open.
    fn step(&self, parent: &Object, name: &[u8]) -> Result<(Arc<Object>, Statx), Errno> {
        #[cfg(test)]
        if let Some(error) = *locked(&self.fail_step) {
            return Err(error);
        }
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(&parent.path, name, how, Mode::empty(), WITHIN)?;
        let stat = rustix::fs::statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let object = Object::new(opened, &stat);
        locked(&self.index).learn(object.key, parent.key, name);
        Ok((locked(&self.open).put(object), stat))
    }

    /// Looks through the whole directory for an object, since there is a handle of it and its place is not known: the server was
    /// started again, or others have moved it.
    ///
    /// # Errors
    /// It may exist, and cannot be looked for now.
    fn search(&self, key: Key) -> Result<Option<Arc<Object>>, nfsstat3> {
        let mut search = locked(&self.search);
        let _alone = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        // The last search, or a rename that was under way, may have told where it is.
        if let Some(object) = self.descend(key, &mut HashSet::new()).map_err(of_errno)? {
            return Ok(Some(object));
        }
        let is_known = locked(&self.index).knows(key);
        if let Some((ended, took)) = search.last {
            // What had no place after a whole search does not exist; each place since then was learned.
            if !is_known && search.whole {
                return Ok(None);
            }
            if ended.elapsed() < SEARCH_PAUSE_MIN.max(took * SEARCH_PAUSE) {
                return if search.missed.contains(&key) { Ok(None) } else { Err(nfsstat3::NFS3ERR_JUKEBOX) };
            }
        }
        let lost = locked(&self.index).lost();
        let start = Instant::now();
        let looked = self.look_through();
        search.last = Some((Instant::now(), start.elapsed()));
        search.whole = looked == Ok(true);
        Metrics::count(&self.metrics.searches);
        looked.map_err(of_errno)?;
        let mut index = locked(&self.index);
        let still_lost = index.lost();
        for &key in lost.intersection(&still_lost).filter(|_| search.whole) {
            // A search can miss what others move meanwhile, but hardly two.
            if search.missed.contains(&key) {
                index.gone(key);
            }
        }
        let is_missed = |key: &Key| search.whole && still_lost.contains(key) && index.knows(*key);
        search.missed = lost.into_iter().filter(is_missed).collect();
        drop(index);
        let found = self.descend(key, &mut HashSet::new()).map_err(of_errno)?;
        if search.whole {
            search.unsure.clear();
        } else if found.is_none() && search.unsure.len() < UNSURE_MAX && search.unsure.insert(key) {
            // It may be where this search could not look. One more, and it counts as gone: some places may never be seen.
            return Err(nfsstat3::NFS3ERR_JUKEBOX);
        }
        Ok(found)
    }

    /// Learns the names of everything; false if something could not be looked at, and an error if that may be otherwise soon.
    fn look_through(&self) -> Result<bool, Errno> {
        let mut whole = true;
        let mut failed = |error| match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(error),
            // What the server may not read has nothing to serve, and what lies elsewhere neither.
            Errno::ACCESS | Errno::XDEV => Ok(()),
            // That it was not there any more is no failure of a name's, but a directory may have been moved.
            _ => {
                whole = false;
                Ok(())
            }
        };
        let mut directories = vec![self.root.key];
        while let Some(key) = directories.pop() {
            // Those that wait are not open: there may be more of them than descriptors.
            let names = match self.descend(key, &mut HashSet::new()) {
                Ok(Some(directory)) => listing::names(&directory).map(|names| (directory, names)),
                Ok(None) => Err(Errno::NOENT),
                Err(error) => Err(error),
            };
            let (directory, names) = match names {
                Ok(found) => found,
                Err(error) => {
                    failed(error)?;
                    continue;
                }
            };
            for name in names {
                let stat = match self.look(&directory, &name) {
                    Ok(stat) => stat,
                    Err(Errno::NOENT) => continue,
                    Err(error) => {
                        failed(error)?;
                        continue;
                    }
                };
                let found = key_of(&stat);
                locked(&self.index).learn(found, key, &name);
                if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory {
                    directories.push(found);
                }
            }
        }
        Ok(whole)
    }

    /// Attributes of what a directory has under a name.
    fn look(&self, parent: &Object, name: &[u8]) -> Result<Statx, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(&parent.path, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        if self.is_elsewhere(&stat) { Err(Errno::XDEV) } else { Ok(stat) }
    }

    /// Whether this is of another file system.
    fn is_elsewhere(&self, stat: &Statx) -> bool {
        (stat.stx_dev_major, stat.stx_dev_minor) != self.device
    }

    /// An object has no name any more.
    fn gone(&self, key: Key) {
        locked(&self.open).objects.remove(&key);
        locked(&self.index).gone(key);
    }

    /// Locks out other changes of this object, so that the attributes before and after one are its own.
    fn lock(&self, key: Key) -> MutexGuard<'_, ()> {
        locked(&self.locks[lock_number(key)])
    }

    /// The same for two objects.
    fn lock_two(&self, one: Key, other: Key) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        // Always in the same order.
        let (low, high) = (lock_number(one).min(lock_number(other)), lock_number(one).max(lock_number(other)));
        (locked(&self.locks[low]), (low != high).then(|| locked(&self.locks[high])))
    }

    /// The thread becomes the caller, if there is a difference.
    fn become_caller(&self, caller: &caller::Caller) -> Result<(), nfsstat3> {
        if !self.switches {
            return Ok(());
        }
        become_caller(caller).map_err(|error| {
            tracing::error!("cannot act for user {}: {error}", caller.uid);
            nfsstat3::NFS3ERR_SERVERFAULT
        })
    }

    /// Brings to the disk what was changed of an object.
    fn sync(&self, object: &Object, data_only: bool) -> Result<(), nfsstat3> {
        // An error is told to one of those who sync at the same time. The others must see the new verifier.
        let _alone = locked(&self.syncs[lock_number(object.key)]);
        let synced = match object.writer.get() {
            // An error in the background is told to descriptors that were open then, or to the next one that is opened.
            Some(writer) if data_only => rustix::fs::fdatasync(writer),
            Some(writer) => rustix::fs::fsync(writer),
            // That it cannot be opened says nothing of what was written.
            None => rustix::fs::fsync(object.reader().map_err(of_errno)?),
        };
        #[cfg(test)]
        locked(&self.synced).push(object.key.inode);
        #[cfg(test)]
        let synced = if self.fail_sync.load(Ordering::Relaxed) { Err(Errno::IO) } else { synced };
        synced.map_err(|error| {
            // The system tells this once, and then takes lost data for written: clients have to send it again.
            self.verifier.fetch_add(1, Ordering::AcqRel);
            Metrics::count(&self.metrics.failed_syncs);
            tracing::error!("what was written to an object is lost: {error}");
            of_errno(error)
        })
    }

    /// The word by which clients see that uncommitted data may be lost.
    fn verifier(&self) -> [u8; 8] {
        self.verifier.load(Ordering::Acquire).to_be_bytes()
    }
}

/// Names are gone to one at a time, within the file system, and never by a symbolic link.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

fn lock_number(key: Key) -> usize {
    key.inode as usize % LOCKS
}

fn key_of(stat: &Statx) -> Key {
    Key { inode: stat.stx_ino, born: born(stat) }
}

impl Object {
    fn new(path: OwnedFd, stat: &Statx) -> Self {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        Self { key: key_of(stat), kind, path, reader: OnceLock::new(), writer: OnceLock::new() }
    }
}

impl Open {
    fn get(&mut self, key: Key) -> Option<Arc<Object>> {
        self.clock += 1;
        let (object, used) = self.objects.get_mut(&key)?;
        *used = self.clock;
        Some(Arc::clone(object))
    }

    /// Keeps an object open; gives the one that is open already, if there is one.
    fn put(&mut self, object: Object) -> Arc<Object> {
        if let Some(open) = self.get(object.key) {
            return open;
        }
        if self.objects.len() >= OPEN_MAX {
            let mut uses: Vec<u64> = self.objects.values().map(|(_, used)| *used).collect();
            let (_, &mut middle, _) = uses.select_nth_unstable(OPEN_MAX / 8);
            self.objects.retain(|_, (_, used)| *used > middle);
        }
        let object = Arc::new(object);
        self.objects.insert(object.key, (Arc::clone(&object), self.clock));
        object
    }
}

/// An object's attributes may be changed by its owner alone, but a file is read and written by them too, whatever its mode
/// says: it was open for that when they made it (RFC 1813 §4.4).
fn may(object: &Object, stat: &Statx, caller: &caller::Caller, access: rustix::fs::Access) -> Result<(), nfsstat3> {
    match rustix::fs::accessat(CWD, object.link(), access, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(Errno::ACCESS) if stat.stx_uid == caller.uid && object.kind == FileType::RegularFile => Ok(()),
        Err(error) => Err(of_errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::procedures::number;
    use super::*;
    use nfs3_types::nfs3::{
        COMMIT3args, COMMIT3res, CREATE3args, GETATTR3args, LINK3args, MKDIR3args, MKNOD3args, Nfs3Option, Nfs3Result,
        READ3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, WRITE3args, WRITE3res, createhow3,
        diropargs3, mknoddata3, sattr3, stable_how, symlinkdata3,
    };
    use nfs3_types::xdr_codec::{Pack, Unpack};
    use std::os::unix::fs::MetadataExt as _;
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
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/file"), "").unwrap();
        let (before, _) = with_file(folder.path());
        let (sub, _) = before.step(&before.root, b"sub").unwrap();
        let key = before.step(&sub, b"file").unwrap().0.key;
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
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/file"), "").unwrap();
        let (directory, one) = with_file(folder.path());
        let (sub, _) = directory.step(&directory.root, b"sub").unwrap();
        let other = directory.step(&sub, b"file").unwrap().0.key;
        let find = |key: Key| directory.find(&directory.handle(key).data).map(|(object, _)| object.key);
        assert_eq!(find(Key { inode: one.inode, born: one.born + 1 }), Err(nfsstat3::NFS3ERR_STALE), "a first search");
        // Others move two, and the directory that they are in then cannot be read when they are looked for.
        std::fs::rename(folder.path().join("sub/file"), folder.path().join("sub/moved")).unwrap();
        std::fs::rename(folder.path().join("file"), folder.path().join("sub/last")).unwrap();
        close(&directory, other);
        let both_later = (Err(nfsstat3::NFS3ERR_JUKEBOX), Err(nfsstat3::NFS3ERR_JUKEBOX));
        assert_eq!((find(one), find(other)), both_later, "they cannot be looked for yet");
        pause_is_over(&directory);
        close(&directory, sub.key);
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
            let arguments =
                WRITE3args { file: file.clone(), offset: 0, count: 4, stable, data: Opaque::borrowed(b"data") };
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
}
