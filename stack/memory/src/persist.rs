//! Writing caches back to persistent memory.

use std::ptr::NonNull;

/// Octets of a cache line.
const LINE: usize = 64;

/// Whether this processor's way to do it is known.
pub(crate) const IS_KNOWN: bool = cfg!(target_arch = "x86_64");

/// Writes the cache lines of `length` octets back, and waits until that is done. CLFLUSH, which every x86-64 has, also drops the
/// lines: the next access fetches them again.
///
/// # Safety
/// `start` must be valid for reads of as many octets.
pub(crate) unsafe fn write_back(start: NonNull<u8>, length: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_clflush, _mm_mfence};
        let end = start.as_ptr().wrapping_add(length);
        let mut line = start.as_ptr().wrapping_sub(start.as_ptr().addr() % LINE);
        // Stores before this are in the cache, or on their way there, when their line is flushed.
        // SAFETY: an instruction that SSE2 brings, which every x86-64 has.
        unsafe { _mm_mfence() };
        while line < end {
            // SAFETY: the line holds an octet of what the caller vouches for, and so is mapped.
            unsafe { _mm_clflush(line) };
            line = line.wrapping_add(LINE);
        }
        // SAFETY: as above.
        unsafe { _mm_mfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (start, length, LINE);
    }
}
