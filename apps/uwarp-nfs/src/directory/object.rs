//! An object of the directory, and the cache of open ones.

use super::attributes::born;
use super::caller::become_server;
use super::index::Key;
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Objects that are kept open; each has up to three descriptors.
const OPEN_MAX: usize = 256;

/// A file, directory, or anything else in it.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) key: Key,
    pub(super) kind: FileType,
    /// The object itself, neither for reading nor for writing.
    pub(super) path: OwnedFd,
    pub(super) reader: OnceLock<OwnedFd>,
    pub(super) writer: OnceLock<OwnedFd>,
}

/// Open objects, and when they were last used.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) objects: HashMap<Key, (Arc<Object>, u64)>,
    clock: u64,
}

pub(super) fn key_of(stat: &Statx) -> Key {
    Key { inode: stat.stx_ino, born: born(stat) }
}

impl Object {
    pub(super) fn new(path: OwnedFd, stat: &Statx) -> Self {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        Self { key: key_of(stat), kind, path, reader: OnceLock::new(), writer: OnceLock::new() }
    }

    /// A path that leads to it whatever happened to its names.
    pub(super) fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }

    pub(super) fn stat(&self) -> Result<Statx, Errno> {
        rustix::fs::statx(&self.path, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
    }

    /// For reading, or for syncing. Permission is checked elsewhere: the descriptor is shared by all callers.
    pub(super) fn reader(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.descriptor(&self.reader, OFlags::RDONLY)
    }

    /// To write to.
    pub(super) fn writer(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.descriptor(&self.writer, OFlags::RDWR)
    }

    /// Keeps a descriptor for writing. The creator of a file may write it; if this process is not root, the file's mode
    /// may not permit opening it a second time.
    pub(super) fn keep_writer(&self, file: OwnedFd) {
        let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        // Another program may have put another object in its place.
        if stat.is_ok_and(|stat| key_of(&stat) == self.key) {
            let _ = self.writer.set(file);
        }
    }

    fn descriptor<'a>(&'a self, slot: &'a OnceLock<OwnedFd>, how: OFlags) -> Result<BorrowedFd<'a>, Errno> {
        use rustix::fd::AsFd as _;
        if let Some(open) = slot.get() {
            return Ok(open.as_fd());
        }
        // Opening anything else can have side effects: a device may rewind a tape.
        if !matches!(self.kind, FileType::RegularFile | FileType::Directory) {
            return Err(Errno::INVAL);
        }
        become_server();
        let open = rustix::fs::open(self.link(), how | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
        Ok(slot.get_or_init(|| open).as_fd())
    }
}

impl Open {
    pub(super) fn get(&mut self, key: Key) -> Option<Arc<Object>> {
        self.clock += 1;
        let (object, used) = self.objects.get_mut(&key)?;
        *used = self.clock;
        Some(Arc::clone(object))
    }

    /// Keeps an object open; returns the one that is already open, if there is one.
    pub(super) fn put(&mut self, object: Object) -> Arc<Object> {
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
