//! An object of the directory, and the cache of open ones.

use super::attributes::born;
use super::caller::become_server;
use super::index::Key;
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Whether the writer was asked for since [`Open::take_unused`] last looked.
    is_written: AtomicBool,
    /// Whether it may have data that no sync has covered.
    pub(super) is_unsynced: AtomicBool,
}

/// Open objects, and when they were last used.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) objects: HashMap<Key, (Arc<Object>, u64)>,
    clock: u64,
}

/// A descriptor that is no longer needed, of data that may have to be synced before it is closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) key: Key,
    pub(super) writer: OwnedFd,
}

pub(super) fn key_of(stat: &Statx) -> Key {
    Key { inode: stat.stx_ino, born: born(stat) }
}

impl Object {
    pub(super) fn new(path: OwnedFd, stat: &Statx) -> Self {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let (is_written, is_unsynced) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            key: key_of(stat),
            kind,
            path,
            reader: OnceLock::new(),
            writer: OnceLock::new(),
            is_written,
            is_unsynced,
        }
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
        self.is_written.store(true, Ordering::Relaxed);
        self.descriptor(&self.writer, OFlags::RDWR)
    }

    /// Keeps a descriptor for writing. The creator of a file may write it; if this process is not root, the file's mode
    /// may not permit opening it a second time.
    pub(super) fn keep_writer(&self, file: OwnedFd) {
        let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        // Another program may have put another object in its place.
        if stat.is_ok_and(|stat| key_of(&stat) == self.key) {
            let _ = self.writer.set(file);
            self.is_written.store(true, Ordering::Relaxed);
        }
    }

    /// Whether no name leads to it any more.
    fn is_removed(&self) -> bool {
        self.stat().is_ok_and(|stat| stat.stx_nlink == 0)
    }

    /// Whether this process's user may write it by its mode.
    pub(super) fn is_writable(&self) -> bool {
        rustix::fs::accessat(CWD, self.link(), Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }

    /// Takes the writer of an object that nobody else uses, if it has to be synced; otherwise it is closed.
    fn take_writer(&mut self) -> Option<Closing> {
        let writer = self.writer.take()?;
        self.is_unsynced.get_mut().then_some(Closing { key: self.key, writer })
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

    /// Keeps an object open; returns the one that is already open, if there is one. Others may make way for it.
    pub(super) fn put(&mut self, object: Object) -> (Arc<Object>, Vec<Closing>) {
        if let Some(open) = self.get(object.key) {
            return (open, Vec::new());
        }
        let mut closing = Vec::new();
        if self.objects.len() >= OPEN_MAX {
            let mut uses: Vec<u64> = self.objects.values().map(|(_, used)| *used).collect();
            let (_, &mut middle, _) = uses.select_nth_unstable(OPEN_MAX / 8);
            closing = self.take(|_, used| used <= middle);
        }
        let object = Arc::new(object);
        self.objects.insert(object.key, (Arc::clone(&object), self.clock));
        (object, closing)
    }

    /// Closes removed objects, and the writers that were not used since the last time and may be opened again.
    pub(super) fn take_unused(&mut self, may_open: impl Fn(&Object) -> bool) -> Vec<Closing> {
        self.take(|object, _| object.is_removed());
        let mut closing = Vec::new();
        for object in self.objects.values_mut().filter_map(|(object, _)| Arc::get_mut(object)) {
            let is_idle = !std::mem::take(object.is_written.get_mut()) && object.writer.get().is_some();
            if is_idle && may_open(object) {
                closing.extend(object.take_writer());
            }
        }
        closing
    }

    /// Removes objects, but none that is in use: what a call does to it would not be synced.
    fn take(&mut self, is_wanted: impl Fn(&Object, u64) -> bool) -> Vec<Closing> {
        let mut closing = Vec::new();
        self.objects.retain(|_, (object, used)| match Arc::get_mut(object) {
            Some(object) if is_wanted(object, *used) => {
                closing.extend(object.take_writer());
                false
            }
            _ => true,
        });
        closing
    }
}
