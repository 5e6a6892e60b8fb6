//! CRC32C by the processor's instruction, with or without storing what is read: in three streams, or in one for what is
//! too short.
//!
//! A variant that copies reads each octet of the source once, since the source may change meanwhile: the CRC is that of
//! the copy.

use std::arch::aarch64::{__crc32cb, __crc32cd, __crc32ch, __crc32cw, vmull_p64};

use crate::kernels::polynomial::{power, times_power};
use crate::kernels::portable;

/// # Safety
/// As [`Kernels::crc32c`](super::Kernels::crc32c), and the processor has the features.
#[target_feature(enable = "crc,aes")]
pub(super) unsafe fn crc32c(register: u32, octets: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise; nothing is stored.
    unsafe { run::<false>(register, std::ptr::null_mut(), octets, length) }
}

/// # Safety
/// As [`Kernels::crc32c_sum`](super::Kernels::crc32c_sum), and the processor has the features.
#[target_feature(enable = "crc,aes")]
pub(super) unsafe fn crc32c_sum(register: u32, octets: *const u8, length: usize) -> (u32, u32) {
    // SAFETY: the caller's promise.
    unsafe { (crc32c(register, octets, length), portable::sum(octets, length)) }
}

/// # Safety
/// As [`Kernels::copy_out_crc32c`](super::Kernels::copy_out_crc32c), and the processor has the features.
#[target_feature(enable = "crc,aes")]
pub(super) unsafe fn copy_crc32c(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { run::<true>(register, target, source, length) }
}

/// Below this many words three streams are no faster than one.
const STREAMS_FROM: usize = 12;

/// Words that three streams take at once: those of a full segment.
const BLOCK: usize = 192;

/// By a number of words: the factor that moves a register over them. The last word's instruction multiplies by x^32
/// itself.
static OVER_WORDS: [u64; BLOCK] = {
    let mut factors = [0; BLOCK];
    factors[1] = power(64 - 33);
    let mut words = 2;
    while words < BLOCK {
        factors[words] = times_power(factors[words - 1], 64);
        words += 1;
    }
    factors
};

/// All octets: blocks, what is left of three streams, and a rest.
///
/// # Safety
/// As [`copy_crc32c`], `target` being used only if `COPY`.
#[inline]
#[target_feature(enable = "crc,aes")]
unsafe fn run<const COPY: bool>(mut register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
    let mut done = 0;
    loop {
        let words = ((length - done) / 8).min(BLOCK);
        if words < STREAMS_FROM {
            // SAFETY: the octets that are left.
            return unsafe { serial::<COPY>(register, target.wrapping_add(done), source.add(done), length - done) };
        }
        // SAFETY: as many words as are left, and not too many.
        register = unsafe { streams::<COPY>(register, target.wrapping_add(done), source.add(done), words) };
        done += 8 * words;
    }
}

/// Three streams, of which each takes a third of the words: an instruction has a latency of two or three cycles, but
/// one can begin in each cycle.
///
/// # Safety
/// As [`run`]; `words` is from [`STREAMS_FROM`] to [`BLOCK`].
#[inline]
#[target_feature(enable = "crc,aes")]
unsafe fn streams<const COPY: bool>(register: u32, target: *mut u8, source: *const u8, words: usize) -> u32 {
    let word = |index: usize| {
        // SAFETY: all indexes below are of words within the length.
        unsafe {
            let value = source.cast::<u64>().add(index).read_unaligned();
            if COPY {
                target.cast::<u64>().add(index).write_unaligned(value);
            }
            value
        }
    };
    let part = words / 3;
    let (mut first, mut second, mut third) = (register, 0, 0);
    for index in 0..part {
        first = __crc32cd(first, word(index));
        second = __crc32cd(second, word(part + index));
        // The last word waits for the other streams.
        if 2 * part + index + 1 < words {
            third = __crc32cd(third, word(2 * part + index));
        }
    }
    for index in 3 * part..words - 1 {
        third = __crc32cd(third, word(index));
    }
    let over = |words: usize, register: u32| vmull_p64(u64::from(register), OVER_WORDS[words]);
    // The low half: a product of 32 by 32 bits has no more.
    let moved = over(words - part, first) ^ over(words - 2 * part, second);
    __crc32cd(third, word(words - 1) ^ moved as u64)
}

/// One instruction after the other.
///
/// # Safety
/// As [`run`].
#[inline]
#[target_feature(enable = "crc")]
unsafe fn serial<const COPY: bool>(
    mut register: u32,
    mut target: *mut u8,
    mut source: *const u8,
    length: usize,
) -> u32 {
    macro_rules! step {
        ($integer:ty, $crc:ident) => {{
            // SAFETY: the loop and the tests below take from the length what they move.
            let value = unsafe { source.cast::<$integer>().read_unaligned() };
            if COPY {
                // SAFETY: as above.
                unsafe { target.cast::<$integer>().write_unaligned(value) };
            }
            source = source.wrapping_add(size_of::<$integer>());
            target = target.wrapping_add(size_of::<$integer>());
            register = $crc(register, value);
        }};
    }
    for _ in 0..length / 8 {
        step!(u64, __crc32cd);
    }
    if length & 4 != 0 {
        step!(u32, __crc32cw);
    }
    // An FPDU ends behind a multiple of four.
    if length & 3 != 0 {
        if length & 2 != 0 {
            step!(u16, __crc32ch);
        }
        if length & 1 != 0 {
            step!(u8, __crc32cb);
        }
    }
    let _ = (source, target);
    register
}
