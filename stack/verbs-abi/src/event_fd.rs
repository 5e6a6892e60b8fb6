//! Descriptors that count events.

use crate::errno::{EAGAIN, Errno};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno as Os;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A descriptor that is readable while events wait; reading takes one, and waits for one unless the program has set O_NONBLOCK.
#[derive(Debug)]
pub(crate) struct EventCounter(OwnedFd);

impl EventCounter {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// One event more.
    pub(crate) fn raise(&self) {
        add(self.0.as_fd(), 1);
    }

    /// Takes one event.
    ///
    /// # Errors
    /// EAGAIN if there is none and the program has set O_NONBLOCK; EINTR.
    pub(crate) fn take(&self) -> Result<(), Errno> {
        take_all(self.0.as_fd()).map(drop)
    }
}

/// Takes what an eventfd counts; one at a time if it is a semaphore.
pub(crate) fn take_all(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Os::AGAIN) => Err(EAGAIN),
        Err(other) => Err(other.into()),
    }
}

/// Adds to what an eventfd counts.
pub(crate) fn add(fd: BorrowedFd<'_>, events: u64) {
    // Fails only at 2^64 - 2 events.
    let _ = rustix::io::write(fd, &events.to_ne_bytes());
}
