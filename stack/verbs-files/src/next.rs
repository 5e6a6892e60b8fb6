//! The functions behind these: those of the C library, or of the next library that stands in front of it.

use libc::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function's name, and where it is once that is known.
pub(crate) struct Next {
    /// Ends in a zero.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name, which ends in a zero.
    pub(crate) const fn new(name: &'static str) -> Next {
        Next { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Where it is. Null if there is none.
    ///
    /// Asking the loader may be more than a signal's handler may do, so all of them are asked for at
    /// the start.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let name: *const c_char = self.name.as_ptr().cast();
        // What new programs do not link any more has no default version: these are the first ones of x86-64 and of Arm.
        // SAFETY: names that end in a zero.
        let found = unsafe {
            let versions = [c"GLIBC_2.2.5", c"GLIBC_2.17"].into_iter();
            let mut old = versions.map(|version| libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()));
            let default = libc::dlsym(libc::RTLD_NEXT, name);
            if default.is_null() { old.find(|found| !found.is_null()).unwrap_or(null_mut()) } else { default }
        };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// What a function of C returns, as far as failures go.
pub(crate) trait Outcome: Copy {
    /// What tells a failure.
    const FAILURE: Self;

    fn has_failed(self) -> bool;
}

impl Outcome for libc::c_int {
    const FAILURE: Self = -1;

    fn has_failed(self) -> bool {
        self < 0
    }
}

impl Outcome for libc::ssize_t {
    const FAILURE: Self = -1;

    fn has_failed(self) -> bool {
        self < 0
    }
}

impl<T> Outcome for *mut T {
    const FAILURE: Self = null_mut();

    fn has_failed(self) -> bool {
        self.is_null()
    }
}

/// Says that there is no such function.
pub(crate) fn missing<O: Outcome>() -> O {
    set_error(libc::ENOSYS);
    O::FAILURE
}

/// The calling thread's error.
pub(crate) fn error() -> libc::c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's error.
pub(crate) fn set_error(number: libc::c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = number }
}
