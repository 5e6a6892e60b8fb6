//! The set of a process that has used no kernel yet: each chooses the best set for this processor, and then calls it.

use super::select;
use super::set::Kernels;

pub(crate) static KERNELS: Kernels =
    Kernels { name: "not chosen yet", crc32c, copy_in, copy_out, copy_out_crc32c, sum };

/// # Safety
/// As [`Kernels::crc32c`].
unsafe fn crc32c(register: u32, octets: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (select().crc32c)(register, octets, length) }
}

/// # Safety
/// As [`Kernels::copy_in`].
unsafe fn copy_in(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { (select().copy_in)(target, source, length) }
}

/// # Safety
/// As [`Kernels::copy_out`].
unsafe fn copy_out(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { (select().copy_out)(target, source, length) }
}

/// # Safety
/// As [`Kernels::copy_out_crc32c`].
unsafe fn copy_out_crc32c(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (select().copy_out_crc32c)(register, target, source, length) }
}

/// # Safety
/// As [`Kernels::sum`].
unsafe fn sum(octets: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (select().sum)(octets, length) }
}
