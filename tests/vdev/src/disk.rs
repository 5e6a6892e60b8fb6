//! A file system (FUSE) with one file on a disk that loses unsynced writes: they are lost with the process that serves
//! it, as on a real disk with a cache when the power fails.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use crate::peer::{self, Peer};

/// The name of the file.
pub const NAME: &str = "region";
const FILE: INodeNo = INodeNo(2);
/// The kernel asks each time.
const NEVER: Duration = Duration::ZERO;

/// The properties of a disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// The file with the durable contents. The disk's file has the same length.
    pub platter: PathBuf,
    /// A folder, where the disk's file appears.
    pub mountpoint: PathBuf,
    /// A sync is answered but not executed.
    pub deceitful: bool,
}

impl Disk {
    /// The path of its file.
    pub fn file(&self) -> PathBuf {
        self.mountpoint.join(NAME)
    }

    /// Mounts it, until this process dies or drops the returned value.
    ///
    /// # Errors
    /// The platter cannot be read, or this process may not mount (that requires root and `/dev/fuse`).
    pub fn mount(&self) -> io::Result<Mounted> {
        let platter = File::options().read(true).write(true).open(&self.platter)?;
        let octets = std::fs::read(&self.platter)?;
        let state = State { platter, octets, unsynced: Vec::new(), trouble: None, deceitful: self.deceitful };
        let state = Arc::new(Mutex::new(state));
        let session = fuser::spawn_mount(Files(Arc::clone(&state)), &self.mountpoint, &fuser::Config::default())?;
        Ok(Mounted { state, _session: session })
    }
}

impl Disk {
    /// The work of a disk's process: reports that it is mounted, and then simulates the requested faults.
    ///
    /// # Panics
    /// It cannot be mounted.
    pub fn serve(&self) {
        let mounted = self.mount().expect("a FUSE file system (root and /dev/fuse)");
        peer::tell("mounted");
        for word in peer::words() {
            mounted.set_trouble(serde_json::from_str(&word).expect("a trouble or none"));
            peer::tell("set");
        }
    }
}

/// A disk that a separate process serves. Dropping this kills the process, and removes the mount.
#[derive(Debug)]
pub struct DiskProcess {
    /// There until it is dropped.
    peer: Option<Peer>,
    mountpoint: PathBuf,
}

impl DiskProcess {
    /// Creates the mountpoint, and starts test `name` again with a `task` that leads to [`Disk::serve`] of this disk.
    ///
    /// # Panics
    /// Any of that fails.
    pub fn start(name: &str, disk: &Disk, task: &impl Serialize) -> Self {
        std::fs::create_dir(&disk.mountpoint).expect("a folder");
        let peer = Peer::start(name, task);
        assert_eq!(peer.told(), "mounted");
        Self { peer: Some(peer), mountpoint: disk.mountpoint.clone() }
    }

    /// Sets the disk's fault from now on, or none.
    ///
    /// # Panics
    /// The process is gone.
    pub fn set_trouble(&mut self, trouble: Option<Trouble>) {
        let peer = self.peer.as_mut().expect("there until it is dropped");
        peer.say(&serde_json::to_string(&trouble).expect("a word"));
        assert_eq!(peer.told(), "set");
    }

    /// SIGKILL.
    ///
    /// # Panics
    /// It has failed before.
    pub fn kill(mut self) {
        self.peer.take().expect("there until it is dropped").kill();
    }
}

impl Drop for DiskProcess {
    fn drop(&mut self) {
        drop(self.peer.take());
        // Files that are still open on it, or a folder in use, concern their users.
        let _ = unmount(&self.mountpoint, UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(&self.mountpoint);
    }
}

/// Which calls fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// Writes: no space left.
    Full,
    /// Writes: the file system is read-only.
    ReadOnly,
    /// Writes fail with "try again".
    Busy,
    /// Writes: input/output error.
    Broken,
    /// Reads behind the first MiB: input/output error.
    Unreadable,
    /// Syncs: input/output error.
    Unsyncable,
    /// Syncs: no answer until this is over.
    Stuck,
}

/// A disk at work.
#[derive(Debug)]
pub struct Mounted {
    state: Arc<Mutex<State>>,
    _session: BackgroundSession,
}

impl Mounted {
    /// Sets its fault from now on, or none.
    pub fn set_trouble(&self, trouble: Option<Trouble>) {
        lock(&self.state).trouble = trouble;
    }
}

#[derive(Debug)]
struct State {
    platter: File,
    /// All that was written.
    octets: Vec<u8>,
    /// The ranges written since the last sync.
    unsynced: Vec<std::ops::Range<usize>>,
    trouble: Option<Trouble>,
    deceitful: bool,
}

impl State {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        match self.trouble {
            Some(Trouble::Full) => return Err(Errno::ENOSPC),
            Some(Trouble::ReadOnly) => return Err(Errno::EROFS),
            Some(Trouble::Busy) => return Err(Errno::EAGAIN),
            Some(Trouble::Broken) => return Err(Errno::EIO),
            Some(Trouble::Unreadable | Trouble::Unsyncable | Trouble::Stuck) | None => {}
        }
        let start = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let end = start.checked_add(data.len()).filter(|end| *end <= self.octets.len()).ok_or(Errno::ENOSPC)?;
        self.octets[start..end].copy_from_slice(data);
        self.unsynced.push(start..end);
        Ok(data.len() as u32)
    }

    fn sync(&mut self) -> Result<(), Errno> {
        if self.trouble == Some(Trouble::Unsyncable) {
            return Err(Errno::EIO);
        }
        if !self.deceitful {
            for range in self.unsynced.drain(..) {
                // Other processes see it there whatever happens to this one; the machine's own power is not simulated.
                self.platter.write_all_at(&self.octets[range.clone()], range.start as u64).map_err(|_| Errno::EIO)?;
            }
        }
        Ok(())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no call panics")
}

struct Files(Arc<Mutex<State>>);

impl Files {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0),
            FILE => (FileType::RegularFile, lock(&self.0).octets.len() as u64),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Files {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(attributes) if parent == INodeNo::ROOT && Path::new(name) == Path::new(NAME) => {
                reply.entry(&NEVER, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&NEVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel must cache nothing that would outlive this process.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = lock(&self.0);
        let start = state.octets.len().min(offset as usize);
        let end = state.octets.len().min(start + size as usize);
        if state.trouble == Some(Trouble::Unreadable) && end > 1 << 20 {
            return reply.error(Errno::EIO);
        }
        reply.data(&state.octets[start..end]);
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match lock(&self.0).write(offset, data) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let mut state = lock(&self.0);
        while state.trouble == Some(Trouble::Stuck) {
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
            state = lock(&self.0);
        }
        match state.sync() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // Closing a file does not sync it.
        reply.ok();
    }
}
