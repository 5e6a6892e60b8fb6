//! Copying, by pairs of 128-bit registers.

use std::arch::aarch64::uint8x16_t;

/// Moves the first and the last `size_of::<T>()` octets, which cover all of them.
///
/// # Safety
/// As [`Kernels::copy_in`](super::Kernels::copy_in), and the size is at least half the length and at most the length.
#[inline(always)]
unsafe fn ends<T>(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let last = length - size_of::<T>();
        let (first_value, last_value) =
            (source.cast::<T>().read_unaligned(), source.add(last).cast::<T>().read_unaligned());
        target.cast::<T>().write_unaligned(first_value);
        target.add(last).cast::<T>().write_unaligned(last_value);
    }
}

/// Sixty-four octets.
type Line = [uint8x16_t; 4];
const LINE: usize = size_of::<Line>();

/// # Safety
/// As [`Kernels::copy_in`](super::Kernels::copy_in).
pub(super) unsafe fn copy(target: *mut u8, source: *const u8, length: usize) {
    // SAFETY: each size is at least half the length and at most the length; the offsets of lines are such that a line
    // from there is within the length.
    unsafe {
        match length {
            0 => {}
            1 => target.write(source.read()),
            2..4 => ends::<u16>(target, source, length),
            4..8 => ends::<u32>(target, source, length),
            8..16 => ends::<u64>(target, source, length),
            16..=32 => ends::<uint8x16_t>(target, source, length),
            33..=64 => ends::<[uint8x16_t; 2]>(target, source, length),
            65..=128 => ends::<Line>(target, source, length),
            _ => {
                let load = |offset: usize| source.add(offset).cast::<Line>().read_unaligned();
                let store = |offset: usize, line| target.add(offset).cast::<Line>().write_unaligned(line);
                let last = length - LINE;
                // Loaded before anything is stored, so that the processor need not find out that they do not overlap.
                let last_value = load(last);
                store(0, load(0));
                // From here on at multiples of 64 of the target: stores that cross a line cost twice.
                let mut offset = LINE - target.addr() % LINE;
                while offset < last {
                    store(offset, load(offset));
                    offset += LINE;
                }
                store(last, last_value);
            }
        }
    }
}
