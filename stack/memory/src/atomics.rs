//! Atomic operations on registered memory (RFC 7306 §5.1).
//!
//! Each is one atomic instruction, or a loop around a compare-and-swap, on a naturally aligned word of eight octets. So
//! it is atomic with the same operations of every engine of the process, and with atomic accesses of its threads to the
//! word. It is not atomic with RDMA Writes to the word, which RFC 7306 §5 leaves to the applications, nor with accesses
//! of a device.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use thiserror::Error;

use crate::access::AccessError;

/// Why an atomic operation was refused. Memory is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum AtomicError {
    /// The region does not permit the access.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address is not a multiple of eight.
    #[error("address is not a multiple of 8")]
    Misaligned,
}

/// Operands of a masked compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompareSwap {
    /// The value that memory is compared with,
    pub compare: u64,
    /// in these bits.
    pub compare_mask: u64,
    /// The value stored if they are equal,
    pub swap: u64,
    /// in these bits.
    pub swap_mask: u64,
}

impl CompareSwap {
    /// The new value of memory; `None` if it stays the same.
    #[inline]
    pub const fn apply(&self, old: u64) -> Option<u64> {
        if (old ^ self.compare) & self.compare_mask == 0 {
            Some(old & !self.swap_mask | self.swap & self.swap_mask)
        } else {
            None
        }
    }
}

/// Adds field by field: a bit of `mask` marks the most significant bit of a field, whose carry is dropped. Mask 0 is a
/// single field of 64 bits.
#[inline]
pub const fn add_fields(old: u64, data: u64, mask: u64) -> u64 {
    // Without the marked bits, no field can overflow into the next. They are added without a carry.
    (old & !mask).wrapping_add(data & !mask) ^ (old ^ data) & mask
}

/// Executes a FetchAdd; returns the former value.
///
/// # Safety
/// `target` must be valid for reads and writes of eight octets, and a multiple of eight.
#[inline]
pub(crate) unsafe fn fetch_add(target: NonNull<u8>, data: u64, mask: u64) -> u64 {
    // SAFETY: the caller's promise; other accesses are as tolerant of races as this one.
    let word = unsafe { AtomicU64::from_ptr(target.as_ptr().cast()) };
    if mask == 0 {
        return word.fetch_add(data, AcqRel);
    }
    match word.fetch_update(AcqRel, Acquire, |old| Some(add_fields(old, data, mask))) {
        Ok(old) | Err(old) => old,
    }
}

/// Executes a CmpSwap; returns the former value.
///
/// # Safety
/// As [`fetch_add`].
#[inline]
pub(crate) unsafe fn compare_swap(target: NonNull<u8>, operands: &CompareSwap) -> u64 {
    // SAFETY: the caller's promise; other accesses are as tolerant of races as this one.
    let word = unsafe { AtomicU64::from_ptr(target.as_ptr().cast()) };
    match word.fetch_update(AcqRel, Acquire, |old| operands.apply(old)) {
        Ok(old) | Err(old) => old,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Old value, add data, add mask, new value: computed from the pseudo code of RFC 7306 §5.1.1.
    const ADDITIONS: [[u64; 4]; 7] = [
        [0x0000_0000_ffff_fffe, 5, 0, 0x0000_0001_0000_0003],
        [u64::MAX, 1, 0, 0],
        [0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_8000_0000, 0x0000_0002_0000_0000],
        [0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_0000_0000, 0x0000_0003_0000_0000],
        [0xff00_ff00_ff00_ff00, 0x0101_0101_0101_0101, 0x8080_8080_8080_8080, 0x0001_0001_0001_0001],
        [0x7fff_ffff_ffff_ffff, 1, u64::MAX, 0x7fff_ffff_ffff_fffe],
        [0x1234, 0, 0, 0x1234],
    ];
    /// Old value, compare data, compare mask, swap data, swap mask, new value (RFC 7306 §5.1.2).
    const SWAPS: [[u64; 6]; 5] = [
        [
            0xaabb_ccdd_eeff_0011,
            0xaabb_ccdd_eeff_0011,
            u64::MAX,
            0x1122_3344_5566_7788,
            u64::MAX,
            0x1122_3344_5566_7788,
        ],
        [
            0xaabb_ccdd_eeff_0011,
            0xaabb_ccdd_eeff_0012,
            u64::MAX,
            0x1122_3344_5566_7788,
            u64::MAX,
            0xaabb_ccdd_eeff_0011,
        ],
        [0xaabb_ccdd_eeff_0011, 0x11, 0xff, 0x99, 0xffff, 0xaabb_ccdd_eeff_0099],
        [0xaabb_ccdd_eeff_0011, 0, 0, 0x1122_3344_5566_7788, 0xffff_ffff_0000_0000, 0x1122_3344_eeff_0011],
        [0xaabb_ccdd_eeff_0011, 0, 0, 0, 0, 0xaabb_ccdd_eeff_0011],
    ];

    fn word(value: &mut u64) -> NonNull<u8> {
        NonNull::from(value).cast()
    }

    #[test]
    fn additions_are_as_tabled() {
        for [old, data, mask, new] in ADDITIONS {
            assert_eq!(add_fields(old, data, mask), new, "{old:x} + {data:x} / {mask:x}");
            let mut memory = old;
            // SAFETY: a word of our own, aligned as such.
            assert_eq!(unsafe { fetch_add(word(&mut memory), data, mask) }, old);
            assert_eq!(memory, new);
        }
    }

    #[test]
    fn swaps_are_as_tabled() {
        for [old, compare, compare_mask, swap, swap_mask, new] in SWAPS {
            let operands = CompareSwap { compare, compare_mask, swap, swap_mask };
            let mut memory = old;
            // SAFETY: a word of our own, aligned as such.
            assert_eq!(unsafe { compare_swap(word(&mut memory), &operands) }, old);
            assert_eq!(memory, new, "{operands:x?}");
        }
    }

    /// Bit by bit, with the carry as the documents' words have it.
    #[test]
    fn additions_agree_with_an_adder_of_single_bits() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..10_000 {
            let (old, data, mask) = (next(), next(), next() & next() & next());
            let (mut sum, mut carry) = (0, 0);
            for bit in 0..64 {
                let (a, b) = (old >> bit & 1, data >> bit & 1);
                sum |= (a ^ b ^ carry) << bit;
                carry = if mask >> bit & 1 == 1 { 0 } else { a & b | a & carry | b & carry };
            }
            assert_eq!(add_fields(old, data, mask), sum, "{old:x} {data:x} {mask:x}");
        }
    }

    #[test]
    fn threads_lose_no_addition() {
        let word = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for mask in [0, 1 << 63, 0, 1 << 63] {
                let word = &word;
                scope.spawn(move || {
                    let target = NonNull::from(word).cast();
                    for _ in 0..20_000 {
                        // SAFETY: an atomic word that outlives the threads.
                        unsafe { fetch_add(target, 1, mask) };
                    }
                });
            }
        });
        assert_eq!(word.into_inner(), 80_000);
    }
}
