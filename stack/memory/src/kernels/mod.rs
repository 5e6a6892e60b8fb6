//! The loops over payload: CRC32C, copying, both in one pass, and the sum of the Internet checksum.
//!
//! Which variants run is decided once, by what the processor can do. All give the same results.
//!
//! The CRC32C functions come in terms of the *register*: it is all ones before the first octet, and the CRC is its
//! complement after the last one. So the CRC of pieces is that of the whole if the register is handed on.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod polynomial;
pub(crate) mod portable;
mod set;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(all(test, not(loom)))]
mod tests;

use std::ops::Range;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) use set::Kernels;

/// The CRC register before the first octet.
pub const CRC32C_START: u32 = !0;

/// Until somebody has chosen: kernels that choose, and leave the work to what they chose. So no call has to ask.
static SELECTED: AtomicPtr<Kernels> = AtomicPtr::new(std::ptr::from_ref(&choosing::KERNELS).cast_mut());

#[inline(always)]
fn kernels() -> &'static Kernels {
    // SAFETY: what is stored there are pointers to statics, which are never written.
    unsafe { &*SELECTED.load(Relaxed) }
}

fn best() -> &'static Kernels {
    available().first().copied().unwrap_or(&portable::KERNELS)
}

#[cold]
fn select() -> &'static Kernels {
    let unchosen = std::ptr::from_ref(&choosing::KERNELS).cast_mut();
    // Someone may have forced others meanwhile.
    let _ = SELECTED.compare_exchange(unchosen, std::ptr::from_ref(best()).cast_mut(), Relaxed, Relaxed);
    kernels()
}

/// The set of a process that has used no kernel yet: each chooses the best set for this processor, and then calls it.
mod choosing {
    use super::{Kernels, select};

    pub(crate) static KERNELS: Kernels = Kernels {
        name: "not chosen yet",
        crc32c,
        one_pass: false,
        crc32c_sum,
        copy_in,
        copy_out,
        copy_out_crc32c,
        sum,
    };

    /// # Safety
    /// As [`Kernels::crc32c`].
    unsafe fn crc32c(register: u32, octets: *const u8, length: usize) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { (select().crc32c)(register, octets, length) }
    }

    /// # Safety
    /// As [`Kernels::crc32c_sum`].
    unsafe fn crc32c_sum(register: u32, octets: *const u8, length: usize) -> (u32, u32) {
        // SAFETY: the caller's promise.
        unsafe { (select().crc32c_sum)(register, octets, length) }
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
}

fn use_kernels(kernels: &'static Kernels) {
    SELECTED.store(std::ptr::from_ref(kernels).cast_mut(), Relaxed);
}

/// The variants that this processor can run, best first.
pub(crate) fn available() -> Vec<&'static Kernels> {
    let mut all = Vec::new();
    #[cfg(target_arch = "x86_64")]
    all.extend(x86::available());
    #[cfg(target_arch = "aarch64")]
    all.extend(aarch64::available());
    all.push(&portable::KERNELS);
    all
}

/// The name of the variants in use: `avx512-vpclmulqdq` or `avx2-pclmulqdq` on x86-64, `armv8-crc-pmull` on aarch64, or
/// `portable`.
pub fn selected() -> &'static str {
    select().name
}

/// From now on use the portable variants, or again the best ones: for tests, and to find out what a fault is due to.
pub fn force_portable(portable: bool) {
    use_kernels(if portable { &portable::KERNELS } else { best() });
}

/// The CRC32C (RFC 3385) of `octets`.
#[inline]
pub fn crc32c(octets: &[u8]) -> u32 {
    !crc32c_update(CRC32C_START, octets)
}

/// The CRC register continued over `octets`.
#[inline]
pub fn crc32c_update(register: u32, octets: &[u8]) -> u32 {
    // SAFETY: a slice is valid for reads of its length.
    unsafe { (kernels().crc32c)(register, octets.as_ptr(), octets.len()) }
}

/// Copies `source` to `out`, which is as long, and gives the CRC register continued over it.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_crc32c(register: u32, source: &[u8], out: &mut [u8]) -> u32 {
    assert_eq!(source.len(), out.len(), "copy between different lengths");
    // SAFETY: a slice is valid for reads of its length.
    unsafe { copy_out_crc32c(source.as_ptr(), out, register) }
}

/// Copies `source` to `out`, which is as long.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy(source: &[u8], out: &mut [u8]) {
    assert_eq!(source.len(), out.len(), "copy between different lengths");
    // SAFETY: a slice is valid for reads of its length.
    unsafe { copy_out(source.as_ptr(), out) };
}

/// A partial sum of the Internet checksum (RFC 1071) over `octets`: congruent, modulo 0xFFFF, to the sum of the octets
/// taken as big-endian 16-bit words, an odd last octet being the high half of a word; 0 only if every octet is 0.
#[inline]
pub fn checksum_sum(octets: &[u8]) -> u32 {
    // SAFETY: a slice is valid for reads of its length.
    unsafe { (kernels().sum)(octets.as_ptr(), octets.len()) }
}

/// Whether [`crc32c_and_sum`] takes one pass on this processor, as soon as a kernel was used.
#[inline]
pub fn has_one_pass() -> bool {
    kernels().one_pass
}

/// The CRC32C of `octets` and their [`checksum_sum`], in one pass where that is faster.
#[inline]
pub fn crc32c_and_sum(octets: &[u8]) -> (u32, u32) {
    // SAFETY: a slice is valid for reads of its length.
    let (register, sum) = unsafe { (kernels().crc32c_sum)(CRC32C_START, octets.as_ptr(), octets.len()) };
    (!register, sum)
}

/// Octets of a cache line.
const LINE: usize = 64;

/// Asks the processor to bring the octets of `value` near, for somebody who needs them soon, and does not wait for
/// them.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>().addr();
    prefetch_range(start..start + size_of_val(value));
}

/// The same for a range of addresses, whatever is there.
#[inline(always)]
pub fn prefetch_range(addresses: Range<usize>) {
    // Steps from the first address on, and the last address itself, for the line that the steps may leave out. So the
    // count depends on the length alone, which most callers know when they are compiled: there is no loop left.
    for step in 0..addresses.len().div_ceil(LINE) {
        prefetch_line(addresses.start + step * LINE);
    }
    if !addresses.is_empty() {
        prefetch_line(addresses.end - 1);
    }
}

/// The same for the cache line at an address, whatever is there.
#[inline(always)]
pub fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it reads nothing that the program could see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Copies into memory that others may access at the same time.
///
/// # Safety
/// `target` must be valid for writes of as many octets.
#[inline]
pub(crate) unsafe fn copy_in(target: *mut u8, source: &[u8]) {
    // SAFETY: the caller's promise, and a slice is valid for reads of its length.
    unsafe { (kernels().copy_in)(target, source.as_ptr(), source.len()) };
}

/// Copies out of memory that others may write at the same time.
///
/// # Safety
/// `source` must be valid for reads of as many octets.
#[inline]
pub(crate) unsafe fn copy_out(source: *const u8, out: &mut [u8]) {
    // SAFETY: the caller's promise, and an exclusive slice is valid for writes of its length.
    unsafe { (kernels().copy_out)(out.as_mut_ptr(), source, out.len()) };
}

/// As [`copy_out`]; gives the CRC register continued over what is in `out`.
///
/// # Safety
/// `source` must be valid for reads of as many octets.
#[inline]
pub(crate) unsafe fn copy_out_crc32c(source: *const u8, out: &mut [u8], register: u32) -> u32 {
    // SAFETY: the caller's promise, and an exclusive slice is valid for writes of its length.
    unsafe { (kernels().copy_out_crc32c)(register, out.as_mut_ptr(), source, out.len()) }
}
