//! Wake-ups from one process to another that trusts it in nothing.
//!
//! A bell is a pipe without a name. Both of its descriptors were opened by themselves, so each is a description of its
//! own, with flags that nobody else can change. Each is a reader and a writer at once: so no write meets a pipe without
//! a reader and raises SIGPIPE, and no reader sees the end of the writers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open, unlink};
use rustix::io::{Errno, read, write};

/// One end of a bell: the one that rings, or the one that hears.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

/// The two ends of a new bell.
pub(super) fn pair(directory: &Path) -> io::Result<(Bell, Bell)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let path = directory.join(format!("bell-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let end = || open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map(Bell);
    let ends = end().and_then(|first| Ok((first, end()?)));
    unlink(&path)?;
    Ok(ends?)
}

impl From<OwnedFd> for Bell {
    fn from(descriptor: OwnedFd) -> Bell {
        Bell(descriptor)
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> OwnedFd {
        bell.0
    }
}

impl Bell {
    /// Rings. A bell that is full rings already.
    pub(super) fn ring(&self) {
        while let Err(Errno::INTR) = write(&self.0, &[1]) {}
    }

    /// Takes what has rung.
    pub(super) fn drain(&self) {
        let mut rung = [0; 256];
        loop {
            match read(&self.0, &mut rung) {
                Ok(256) | Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
