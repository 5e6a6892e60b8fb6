//! How results leave the library: error numbers, and the boundary that no panic crosses.

use crate::lifetime;
use libc::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use uwarp::{Error, PostErrorReason};

/// An error number of errno(3); never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const EAGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const ENODEV: Errno = Errno(libc::ENODEV);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        Errno(error.errno())
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        tracing::info!(%error, "refused");
        Errno::from(&error)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Errno(error.raw_os_error())
    }
}

impl From<PostErrorReason> for Errno {
    fn from(reason: PostErrorReason) -> Self {
        Errno(reason.errno())
    }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library's own place for this thread.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Runs the body of an export. A panic becomes EIO; so does every call in a child that was forked after the start,
/// whose engine threads did not come along.
#[inline]
fn run<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if lifetime::in_forked_child() {
        return Err(EIO);
    }
    // What a panic left half-way is locked behind a poisoned mutex or is not used again.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO))
}

/// For functions that return an error number (most of the verbs); errno has it too, as callers of old look there.
#[inline]
pub(crate) fn number(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match run(body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// For functions that return a value, or -1 and errno (rdma_cm, and getting events).
#[inline]
pub(crate) fn minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    run(body).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For functions that return a pointer, or null and errno.
#[inline]
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    run(body).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// For functions that return nothing.
#[inline]
pub(crate) fn nothing(body: impl FnOnce() -> Result<(), Errno>) {
    if let Err(errno) = run(body) {
        set_errno(errno);
    }
}
