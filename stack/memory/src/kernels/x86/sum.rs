//! The sum of the Internet checksum. One's complement sums do not mind the width of the words nor their byte order (RFC
//! 1071 §2): 32-bit words in the machine's order are added up in 64-bit lanes, and the result is turned at the end.

use std::arch::x86_64::*;

/// The partial sum from a sum of 32-bit words in little-endian order.
#[inline(always)]
fn finish(total: u64) -> u32 {
    let (half, carry) = (total as u32).overflowing_add((total >> 32) as u32);
    (half + u32::from(carry)).swap_bytes()
}

/// The sums of the even and of the odd words of whole blocks.
pub(super) struct Sums {
    even: __m512i,
    odd: __m512i,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new() -> Sums {
        Sums { even: _mm512_setzero_si512(), odd: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add(&mut self, block: __m512i) {
        let low = _mm512_set1_epi64(0xffff_ffff);
        self.even = _mm512_add_epi64(self.even, _mm512_and_si512(block, low));
        self.odd = _mm512_add_epi64(self.odd, _mm512_srli_epi64::<32>(block));
    }

    /// The partial sum.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn total(&self) -> u32 {
        finish(_mm512_reduce_add_epi64(_mm512_add_epi64(self.even, self.odd)) as u64)
    }
}

/// # Safety
/// As [`Kernels::sum`](super::Kernels::sum), and the processor has the features.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn avx512(octets: *const u8, length: usize) -> u32 {
    let low = _mm512_set1_epi64(0xffff_ffff);
    let halves = |value| (_mm512_and_si512(value, low), _mm512_srli_epi64::<32>(value));
    let zero = _mm512_setzero_si512();
    let (mut even_1, mut odd_1, mut even_2, mut odd_2) = (zero, zero, zero, zero);
    let mut offset = 0;
    // SAFETY: whole loads are within the length, and the last one reads only the octets of its mask.
    unsafe {
        while offset + 128 <= length {
            let (even, odd) = halves(_mm512_loadu_si512(octets.add(offset).cast()));
            even_1 = _mm512_add_epi64(even_1, even);
            odd_1 = _mm512_add_epi64(odd_1, odd);
            let (even, odd) = halves(_mm512_loadu_si512(octets.add(offset + 64).cast()));
            even_2 = _mm512_add_epi64(even_2, even);
            odd_2 = _mm512_add_epi64(odd_2, odd);
            offset += 128;
        }
        if offset + 64 <= length {
            let (even, odd) = halves(_mm512_loadu_si512(octets.add(offset).cast()));
            even_1 = _mm512_add_epi64(even_1, even);
            odd_1 = _mm512_add_epi64(odd_1, odd);
            offset += 64;
        }
        let mask = (1u64 << (length - offset)) - 1;
        let (even, odd) = halves(_mm512_maskz_loadu_epi8(mask, octets.add(offset).cast()));
        even_2 = _mm512_add_epi64(even_2, even);
        odd_2 = _mm512_add_epi64(odd_2, odd);
    }
    let total = _mm512_add_epi64(_mm512_add_epi64(even_1, odd_1), _mm512_add_epi64(even_2, odd_2));
    finish(_mm512_reduce_add_epi64(total) as u64)
}

/// From the `n`-th octet on: a mask of the last `n` of 32 octets.
const LAST_OF_32: [u8; 64] = {
    let mut mask = [0; 64];
    let mut at = 32;
    while at < 64 {
        mask[at] = 0xff;
        at += 1;
    }
    mask
};

/// # Safety
/// As [`Kernels::sum`](super::Kernels::sum), and the processor has the features.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn avx2(octets: *const u8, length: usize) -> u32 {
    if (32..=SHORT).contains(&length) && length.is_multiple_of(2) {
        // SAFETY: the caller's promise, and the test above.
        return unsafe { short(octets, length) };
    }
    // SAFETY: the caller's promise.
    unsafe { long(octets, length) }
}

/// Up to this many octets one stream of 32 octets at a time takes fewer steps.
const SHORT: usize = 160;

/// # Safety
/// As [`avx2`], of an even number of octets from 32 to [`SHORT`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn short(octets: *const u8, length: usize) -> u32 {
    let low = _mm256_set1_epi64x(0xffff_ffff);
    let left = length % 32;
    // SAFETY: all loads are within the length or within the mask. The first one is as in `long`.
    let mut words = unsafe {
        let mask = _mm256_loadu_si256(LAST_OF_32.as_ptr().add(left).cast());
        _mm256_and_si256(_mm256_loadu_si256(octets.add(length - 32).cast()), mask)
    };
    let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let (mut at, end) = (octets, octets.wrapping_add(length - left));
    loop {
        even = _mm256_add_epi64(even, _mm256_and_si256(words, low));
        odd = _mm256_add_epi64(odd, _mm256_srli_epi64::<32>(words));
        if at == end {
            break;
        }
        // SAFETY: whole loads are within the length.
        words = unsafe { _mm256_loadu_si256(at.cast()) };
        at = at.wrapping_add(32);
    }
    total(_mm256_add_epi64(even, odd))
}

/// The partial sum from four sums.
#[inline]
#[target_feature(enable = "avx2")]
fn total(sums: __m256i) -> u32 {
    let total = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    finish((_mm_cvtsi128_si64(total) as u64).wrapping_add(_mm_extract_epi64::<1>(total) as u64))
}

/// # Safety
/// As [`avx2`].
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn long(octets: *const u8, length: usize) -> u32 {
    let low = _mm256_set1_epi64x(0xffff_ffff);
    let zero = _mm256_setzero_si256();
    let (mut even_1, mut odd_1, mut even_2, mut odd_2) = (zero, zero, zero, zero);
    let mut offset = 0;
    // SAFETY: whole loads are within the length, within the mask or within `last`.
    unsafe {
        while offset + 64 <= length {
            let first = _mm256_loadu_si256(octets.add(offset).cast());
            let second = _mm256_loadu_si256(octets.add(offset + 32).cast());
            even_1 = _mm256_add_epi64(even_1, _mm256_and_si256(first, low));
            odd_1 = _mm256_add_epi64(odd_1, _mm256_srli_epi64::<32>(first));
            even_2 = _mm256_add_epi64(even_2, _mm256_and_si256(second, low));
            odd_2 = _mm256_add_epi64(odd_2, _mm256_srli_epi64::<32>(second));
            offset += 64;
        }
        if offset + 32 <= length {
            let first = _mm256_loadu_si256(octets.add(offset).cast());
            even_1 = _mm256_add_epi64(even_1, _mm256_and_si256(first, low));
            odd_1 = _mm256_add_epi64(odd_1, _mm256_srli_epi64::<32>(first));
            offset += 32;
        }
        let left = length - offset;
        let rest = if length >= 32 && length.is_multiple_of(2) {
            // The last 32 octets without those that are summed. They may begin in the middle of a 32-bit word, since
            // the sum is the same modulo 0xFFFF for 16-bit words at any place.
            let mask = _mm256_loadu_si256(LAST_OF_32.as_ptr().add(left).cast());
            _mm256_and_si256(_mm256_loadu_si256(octets.add(length - 32).cast()), mask)
        } else {
            let mut last = [0u8; 32];
            super::copy::up_to_64(last.as_mut_ptr(), octets.add(offset), left);
            _mm256_loadu_si256(last.as_ptr().cast())
        };
        even_2 = _mm256_add_epi64(even_2, _mm256_and_si256(rest, low));
        odd_2 = _mm256_add_epi64(odd_2, _mm256_srli_epi64::<32>(rest));
    }
    total(_mm256_add_epi64(_mm256_add_epi64(even_1, odd_1), _mm256_add_epi64(even_2, odd_2)))
}
