//! Synchronisation primitives, from the standard library or from loom.

#[cfg(not(loom))]
pub(crate) use standard::*;

#[cfg(not(loom))]
mod standard {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

    /// `std::cell::UnsafeCell` with loom's interface. Loom's version checks each access for races.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        #[inline(always)]
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }

    /// Octets that two threads share. Each thread accesses only its own part at any time.
    #[derive(Debug)]
    pub(crate) struct Octets(Box<[std::cell::UnsafeCell<u8>]>);

    impl Octets {
        /// This many octets of zero, not touched yet.
        pub(crate) fn zeroed(count: usize) -> Self {
            let octets = Box::into_raw(vec![0_u8; count].into_boxed_slice());
            // SAFETY: a cell has the layout of what is in it, and the box is given back as it was taken, for the same
            // size.
            Self(unsafe { Box::from_raw(octets as *mut [std::cell::UnsafeCell<u8>]) })
        }

        #[inline(always)]
        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        /// The address of octet `at`.
        #[inline(always)]
        pub(crate) fn address(&self, at: usize) -> usize {
            self.0.as_ptr().addr() + at
        }

        /// Copies to the octets from `at` on.
        ///
        /// # Safety
        /// No other thread may access them meanwhile.
        #[inline(always)]
        pub(crate) unsafe fn write(&self, at: usize, from: &[u8]) {
            debug_assert!(at + from.len() <= self.len());
            // SAFETY: within the bounds, in cells, and by the caller's promise no other thread accesses them now.
            unsafe {
                self.0.as_ptr().cast::<u8>().cast_mut().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len())
            }
        }

        /// Copies from the octets from `at` on.
        ///
        /// # Safety
        /// No other thread may write them meanwhile.
        #[inline(always)]
        pub(crate) unsafe fn read(&self, at: usize, to: &mut [u8]) {
            debug_assert!(at + to.len() <= self.len());
            // SAFETY: within the bounds, and by the caller's promise not written now.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(self.0.as_ptr().cast::<u8>().add(at), to.len()) }
        }
    }
}

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence},
    },
};

/// Octets for loom, which checks the accesses to each of them.
#[cfg(loom)]
pub(crate) struct Octets(Box<[UnsafeCell<u8>]>);

#[cfg(loom)]
impl Octets {
    pub(crate) fn zeroed(count: usize) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn address(&self, at: usize) -> usize {
        self.0.as_ptr().addr() + at
    }

    pub(crate) unsafe fn write(&self, at: usize, from: &[u8]) {
        for (cell, octet) in self.0[at..].iter().zip(from) {
            // SAFETY: by the caller's promise; loom checks it.
            cell.with_mut(|cell| unsafe { *cell = *octet });
        }
    }

    pub(crate) unsafe fn read(&self, at: usize, to: &mut [u8]) {
        for (cell, octet) in self.0[at..].iter().zip(to) {
            // SAFETY: by the caller's promise; loom checks it.
            *octet = cell.with(|cell| unsafe { *cell });
        }
    }
}
