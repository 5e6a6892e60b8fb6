//! Memory that several processes have mapped.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file's octets. Others may change them at any time, so nothing here gives a reference to them that is not atomic.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the address is this process's, and every access goes through atomics or copies of raw octets.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file of exactly `length` octets to be read and written.
    ///
    /// # Errors
    /// It has another length, is not sealed against shrinking, or cannot be mapped.
    pub(super) fn shared(file: impl AsFd, length: usize) -> io::Result<Map> {
        Map::of(file, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a file of exactly `length` octets to be read.
    ///
    /// # Errors
    /// As for [`Map::shared`].
    pub(super) fn readable(file: impl AsFd, length: usize) -> io::Result<Map> {
        Map::of(file, length, ProtFlags::READ)
    }

    fn of(file: impl AsFd, length: usize, protection: ProtFlags) -> io::Result<Map> {
        let size = fstat(&file)?.st_size;
        if size != length as i64 {
            return Err(invalid(format!("shared memory of {size} octets in place of {length}")));
        }
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(invalid("shared memory that somebody could truncate".to_owned()));
        }
        // SAFETY: a new mapping at an address of the system's choice touches nobody's memory.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start).ok_or_else(|| invalid("memory at address 0".to_owned()))?;
        Ok(Map { start, length })
    }

    /// The address of octet `at`; what is accessed there ends within the map.
    #[inline(always)]
    pub(super) fn at(&self, at: usize, length: usize) -> NonNull<u8> {
        debug_assert!(at + length <= self.length);
        // SAFETY: within the mapping.
        unsafe { self.start.cast().add(at) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nothing borrowed from it outlives it.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
