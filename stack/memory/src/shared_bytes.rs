//! Octets that others may read and write at the same time.
//!
//! Rust has no copy that is allowed to race. So these octets are never the target of a reference. They are moved by
//! kernels that are called through function pointers, so the compiler knows neither what they load nor when, and can
//! conclude nothing from it. And every value of an octet is valid. So a race has the outcome that the processor gives
//! it: each octet is an old or a new one.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::kernels;

/// Copies `source` to `target`. The octets of the last aligned word of eight are stored last, the last one at the very
/// end, with release ordering; an aligned value of up to eight octets that ends where the copy ends is stored in one.
///
/// # Safety
/// `target` must be valid for writes of as many octets.
#[inline(always)]
pub(crate) unsafe fn store(target: NonNull<u8>, source: &[u8]) {
    if source.is_empty() {
        return;
    }
    let target = target.as_ptr();
    let end = target.addr() + source.len();
    // The last word, as far as it is in the copy.
    let tail = ((end - 1) % 8 + 1).min(source.len());
    let (head, tail) = source.split_at(source.len() - tail);
    // SAFETY: `head` and `tail` together are as long as what the caller vouches for.
    unsafe {
        kernels::copy_in(target, head);
        store_tail(target.add(head.len()), tail);
    }
}

/// Stores up to eight octets that lie in one aligned word, in rising order, by naturally aligned stores, the fewest.
///
/// # Safety
/// `target` must be valid for writes of as many octets.
#[inline(always)]
unsafe fn store_tail(target: *mut u8, source: &[u8]) {
    // The usual case: the copy ends at a multiple of eight.
    if let Ok(word) = <[u8; 8]>::try_from(source) {
        // SAFETY: eight octets in one aligned word are the word.
        unsafe { AtomicU64::from_ptr(target.cast()) }.store(u64::from_ne_bytes(word), Release);
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { store_part(target, source) };
}

/// As [`store_tail`], for less than eight octets.
///
/// # Safety
/// As [`store_tail`].
#[inline(never)]
unsafe fn store_part(mut target: *mut u8, mut source: &[u8]) {
    while !source.is_empty() {
        let size = match (source.len(), target.addr() % 4) {
            (4.., 0) => 4,
            (2.., 0 | 2) => 2,
            _ => 1,
        };
        let (now, later) = source.split_at(size);
        // SAFETY: within the caller's range, and aligned to the size that was chosen for the alignment.
        unsafe {
            match *now {
                [a, b, c, d] => AtomicU32::from_ptr(target.cast()).store(u32::from_ne_bytes([a, b, c, d]), Release),
                [a, b] => AtomicU16::from_ptr(target.cast()).store(u16::from_ne_bytes([a, b]), Release),
                [a] => AtomicU8::from_ptr(target).store(a, Release),
                _ => unreachable!("sizes are 1, 2 and 4"),
            }
            target = target.add(size);
        }
        source = later;
    }
}

/// Copies from `source` to `out`.
///
/// # Safety
/// `source` must be valid for reads of as many octets.
#[inline]
pub(crate) unsafe fn load(source: NonNull<u8>, out: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { kernels::copy_out(source.as_ptr(), out) };
}

/// Copies from `source` to `out`; returns the CRC register continued over `out`.
///
/// # Safety
/// `source` must be valid for reads of as many octets.
#[inline]
pub(crate) unsafe fn load_crc32c(source: NonNull<u8>, out: &mut [u8], register: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { kernels::copy_out_crc32c(source.as_ptr(), out, register) }
}

/// Sets octets to a value.
///
/// # Safety
/// `target` must be valid for writes of `length` octets.
pub(crate) unsafe fn fill(target: NonNull<u8>, length: usize, value: u8) {
    const PIECE: usize = 256;
    let piece = [value; PIECE];
    let mut done = 0;
    while done < length {
        let size = (length - done).min(PIECE);
        // SAFETY: within the caller's range.
        unsafe { store(target.add(done), &piece[..size]) };
        done += size;
    }
}
