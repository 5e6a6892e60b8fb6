//! Copying. `rep movsb` is not used: on some processors it is slow for some alignments, and it has a start-up cost that
//! packets feel.

use std::arch::x86_64::*;

/// Copies up to 64 octets by at most two overlapping moves.
///
/// # Safety
/// As [`Kernels::copy_in`](super::Kernels::copy_in), `length` being at most 64.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn up_to_64(target: *mut u8, source: *const u8, length: usize) {
    /// Moves the first and the last `size_of::<T>()` octets, which cover all of them.
    #[inline(always)]
    unsafe fn ends<T>(target: *mut u8, source: *const u8, length: usize) {
        // SAFETY: the caller chose a size of at least half the length and at most the length.
        unsafe {
            let last = length - size_of::<T>();
            let (first_value, last_value) =
                (source.cast::<T>().read_unaligned(), source.add(last).cast::<T>().read_unaligned());
            target.cast::<T>().write_unaligned(first_value);
            target.add(last).cast::<T>().write_unaligned(last_value);
        }
    }
    // SAFETY: each size is at least half the length and at most the length.
    unsafe {
        match length {
            33.. => ends::<__m256i>(target, source, length),
            16.. => ends::<__m128i>(target, source, length),
            8.. => ends::<u64>(target, source, length),
            4.. => ends::<u32>(target, source, length),
            2.. => ends::<u16>(target, source, length),
            1 => target.write(source.read()),
            0 => {}
        }
    }
}

/// # Safety
/// As [`Kernels::copy_in`](super::Kernels::copy_in), and the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) unsafe fn avx512(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: all offsets are such that 64 octets from there are within the length.
    unsafe {
        let load = |offset: usize| _mm512_loadu_si512(source.add(offset).cast());
        let store = |offset: usize, value| _mm512_storeu_si512(target.add(offset).cast(), value);
        if length <= 64 {
            return up_to_64(target, source, length);
        }
        let last = length - 64;
        // Loaded before anything is stored, so that the processor need not find out that they do not overlap.
        let last_value = load(last);
        if length <= 128 {
            let first_value = load(0);
            store(0, first_value);
            store(last, last_value);
            return;
        }
        store(0, load(0));
        // From here on at multiples of 64 of the target: stores that cross a line cost twice.
        let mut offset = 64 - target.addr() % 64;
        while offset + 256 <= length {
            let (a, b, c, d) = (load(offset), load(offset + 64), load(offset + 128), load(offset + 192));
            store(offset, a);
            store(offset + 64, b);
            store(offset + 128, c);
            store(offset + 192, d);
            offset += 256;
        }
        while offset < last {
            store(offset, load(offset));
            offset += 64;
        }
        store(last, last_value);
    }
}

/// # Safety
/// As [`Kernels::copy_in`](super::Kernels::copy_in), and the processor has the features.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn avx2(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: all offsets are such that 32 octets from there are within the length.
    unsafe {
        let load = |offset: usize| _mm256_loadu_si256(source.add(offset).cast());
        let store = |offset: usize, value| _mm256_storeu_si256(target.add(offset).cast(), value);
        if length <= 64 {
            return up_to_64(target, source, length);
        }
        let last = length - 32;
        let last_value = load(last);
        store(0, load(0));
        let mut offset = 32 - target.addr() % 32;
        while offset + 128 <= length {
            let (a, b, c, d) = (load(offset), load(offset + 32), load(offset + 64), load(offset + 96));
            store(offset, a);
            store(offset + 32, b);
            store(offset + 64, c);
            store(offset + 96, d);
            offset += 128;
        }
        while offset < last {
            store(offset, load(offset));
            offset += 32;
        }
        store(last, last_value);
    }
}
