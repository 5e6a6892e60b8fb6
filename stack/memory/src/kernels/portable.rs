//! The variants that every processor runs, and the oracle of the others' tests.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

use super::set::Kernels;

pub(crate) static KERNELS: Kernels =
    Kernels { name: "portable", crc32c, one_pass: false, crc32c_sum, copy_in, copy_out, copy_out_crc32c, sum };

/// # Safety
/// As [`Kernels::crc32c`].
pub(crate) unsafe fn crc32c(register: u32, octets: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    let octets = unsafe { std::slice::from_raw_parts(octets, length) };
    !crc32c::crc32c_append(!register, octets)
}

/// # Safety
/// As [`Kernels::crc32c_sum`].
pub(crate) unsafe fn crc32c_sum(register: u32, octets: *const u8, length: usize) -> (u32, u32) {
    // SAFETY: the caller's promise.
    unsafe { (crc32c(register, octets, length), sum(octets, length)) }
}

/// Aligned atomic words on the shared side, whatever alignment the other one has.
///
/// # Safety
/// As [`Kernels::copy_in`].
pub(crate) unsafe fn copy_in(target: *mut u8, source: *const u8, length: usize) {
    let head = target.align_offset(8).min(length);
    let words = (length - head) / 8;
    // SAFETY: all offsets are below `length`, and the words' targets are aligned.
    unsafe {
        for offset in (0..head).chain(head + words * 8..length) {
            AtomicU8::from_ptr(target.add(offset)).store(source.add(offset).read(), Relaxed);
        }
        for offset in (head..head + words * 8).step_by(8) {
            let word = source.add(offset).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(target.add(offset).cast()).store(word, Relaxed);
        }
    }
}

/// As [`copy_in`], the source being the shared side.
///
/// # Safety
/// As [`Kernels::copy_out`].
pub(crate) unsafe fn copy_out(target: *mut u8, source: *const u8, length: usize) {
    let head = source.align_offset(8).min(length);
    let words = (length - head) / 8;
    // SAFETY: all offsets are below `length`, and the words' sources are aligned. The memory may be read-only for us,
    // which loads do not mind.
    unsafe {
        for offset in (0..head).chain(head + words * 8..length) {
            let octet = AtomicU8::from_ptr(source.add(offset).cast_mut()).load(Relaxed);
            target.add(offset).write(octet);
        }
        for offset in (head..head + words * 8).step_by(8) {
            let word = AtomicU64::from_ptr(source.add(offset).cast_mut().cast()).load(Relaxed);
            target.add(offset).cast::<u64>().write_unaligned(word);
        }
    }
}

/// # Safety
/// As [`Kernels::copy_out_crc32c`].
pub(crate) unsafe fn copy_out_crc32c(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise; the CRC is taken from the private copy.
    unsafe {
        copy_out(target, source, length);
        crc32c(register, target, length)
    }
}

/// # Safety
/// As [`Kernels::sum`].
pub(crate) unsafe fn sum(octets: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    let octets = unsafe { std::slice::from_raw_parts(octets, length) };
    let (words, rest) = octets.as_chunks::<4>();
    // 2^32 words fit the 64 bits; longer ones do not occur.
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_be_bytes(last));
    let total = (total & 0xffff_ffff) + (total >> 32);
    ((total & 0xffff_ffff) + (total >> 32)) as u32
}
