//! CRC32C by folding (Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! 2009), with or without storing what is read, and by the `crc32` instruction where folding does not pay: in three
//! streams, or in one for what is shorter still.
//!
//! A 128-bit piece of the message may be replaced by its product with x^n modulo the polynomial, added to the piece n
//! bits further on. In the bit-reflected order of CRC32C, and with the product of two reflected factors coming out one
//! bit short, the constants for the piece's first and second half are x^(n+31) and x^(n−33); see [`fold_by`].
//!
//! A variant that copies reads each octet of the source once (or stores the later value and computes with it), since
//! the source may change meanwhile: the CRC is that of the copy.

use std::arch::x86_64::*;

use crate::kernels::polynomial::power;

/// The factors that move the two halves of a piece by `bits`: that of the first octets, that of the last octets.
const fn fold_by(bits: u32) -> [i64; 2] {
    [power(bits + 31) as i64, power(bits - 33) as i64]
}

const BY_128: [i64; 2] = fold_by(128);
const BY_256: [i64; 2] = fold_by(256);
const BY_384: [i64; 2] = fold_by(384);
const BY_512: [i64; 2] = fold_by(512);
const BY_1024: [i64; 2] = fold_by(1024);
const BY_1536: [i64; 2] = fold_by(1536);
const BY_2048: [i64; 2] = fold_by(2048);

/// By the `crc32` instruction, eight octets at a time, one after the other: three cycles each.
///
/// # Safety
/// As [`Kernels::copy_out_crc32c`](super::Kernels::copy_out_crc32c), `target` being used only if `COPY`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn serial<const COPY: bool>(register: u32, mut target: *mut u8, mut source: *const u8, length: usize) -> u32 {
    macro_rules! step {
        ($integer:ty, $crc:ident, $register:expr) => {{
            // SAFETY: the loop and the tests below take from the length what they move.
            let value = unsafe { source.cast::<$integer>().read_unaligned() };
            if COPY {
                // SAFETY: as above.
                unsafe { target.cast::<$integer>().write_unaligned(value) };
            }
            source = source.wrapping_add(size_of::<$integer>());
            target = target.wrapping_add(size_of::<$integer>());
            $crc($register, value)
        }};
    }
    let mut wide = u64::from(register);
    // Four at a time, and the rest by the bits of the length: less to count than one by one.
    for _ in 0..length / 32 {
        wide = step!(u64, _mm_crc32_u64, wide);
        wide = step!(u64, _mm_crc32_u64, wide);
        wide = step!(u64, _mm_crc32_u64, wide);
        wide = step!(u64, _mm_crc32_u64, wide);
    }
    if length & 16 != 0 {
        wide = step!(u64, _mm_crc32_u64, wide);
        wide = step!(u64, _mm_crc32_u64, wide);
    }
    if length & 8 != 0 {
        wide = step!(u64, _mm_crc32_u64, wide);
    }
    let mut register = wide as u32;
    if length & 4 != 0 {
        register = step!(u32, _mm_crc32_u32, register);
    }
    // An FPDU ends behind a multiple of four.
    if length & 3 != 0 {
        if length & 2 != 0 {
            register = step!(u16, _mm_crc32_u16, register);
        }
        if length & 1 != 0 {
            register = step!(u8, _mm_crc32_u8, register);
        }
    }
    let _ = (source, target);
    register
}

/// Below this many octets three streams of the `crc32` instruction are no faster than one.
const STREAMS_FROM: usize = 96;

/// From this many octets on folding is faster than three streams.
const STREAMS_BELOW: usize = 480;

/// By the number of 64-bit words: the factors that move the registers of the first and of the second stream over all
/// words behind them. The last word's `crc32` multiplies by x^32 itself.
static TO_THE_END: [[u64; 2]; STREAMS_BELOW / 8] = {
    let mut factors = [[0; 2]; STREAMS_BELOW / 8];
    let mut words = STREAMS_FROM / 8;
    while words < factors.len() {
        let part = words / 3;
        factors[words] = [power(64 * (words - part) as u32 - 33), power(64 * (words - 2 * part) as u32 - 33)];
        words += 1;
    }
    factors
};

/// By the `crc32` instruction in three streams, of which each takes a third of the words: it has a latency of three
/// cycles, but one can begin in each cycle.
///
/// # Safety
/// As [`serial`], and `length` is from [`STREAMS_FROM`] to below [`STREAMS_BELOW`].
// Out of line, so that what is shorter saves no registers for it.
#[inline(never)]
#[target_feature(enable = "pclmulqdq,sse4.2")]
unsafe fn streams<const COPY: bool>(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
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
    let words = length / 8;
    let part = words / 3;
    let (mut first, mut second, mut third) = (u64::from(register), 0, 0);
    for index in 0..part {
        first = _mm_crc32_u64(first, word(index));
        second = _mm_crc32_u64(second, word(part + index));
        // The last word waits for the other streams.
        if index + 1 < part {
            third = _mm_crc32_u64(third, word(2 * part + index));
        }
    }
    for index in 3 * part - 1..words - 1 {
        third = _mm_crc32_u64(third, word(index));
    }
    let [first_factor, second_factor] = TO_THE_END[words];
    let product = |register: u64, factor: u64| {
        _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(register as i64), _mm_cvtsi64_si128(factor as i64))
    };
    let moved = _mm_xor_si128(product(first, first_factor), product(second, second_factor));
    let register = _mm_crc32_u64(third, word(words - 1) ^ _mm_cvtsi128_si64(moved) as u64) as u32;
    let taken = 8 * words;
    // SAFETY: the octets that are left.
    unsafe { serial::<COPY>(register, target.wrapping_add(taken), source.add(taken), length - taken) }
}

/// What is too short for folding: below [`STREAMS_BELOW`] octets.
///
/// # Safety
/// As [`serial`].
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
unsafe fn short<const COPY: bool>(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
    if length < STREAMS_FROM {
        // SAFETY: the caller's promise.
        return unsafe { serial::<COPY>(register, target, source, length) };
    }
    // SAFETY: the caller's promise, and the test above.
    unsafe { streams::<COPY>(register, target, source, length) }
}

/// The register after the sixteen octets of a folded piece.
#[inline]
#[target_feature(enable = "sse4.2")]
fn reduce(piece: __m128i) -> u32 {
    let first = _mm_crc32_u64(0, _mm_cvtsi128_si64(piece) as u64);
    _mm_crc32_u64(first, _mm_extract_epi64::<1>(piece) as u64) as u32
}

pub(super) mod avx512 {
    use super::super::sum::Sums;
    use super::*;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq")]
    fn everywhere(factors: [i64; 2]) -> __m512i {
        _mm512_broadcast_i32x4(_mm_set_epi64x(factors[1], factors[0]))
    }

    /// `next` plus each 128-bit piece of `value` times its factors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq")]
    fn fold(value: __m512i, factors: __m512i, next: __m512i) -> __m512i {
        let first = _mm512_clmulepi64_epi128::<0x00>(value, factors);
        let last = _mm512_clmulepi64_epi128::<0x11>(value, factors);
        _mm512_ternarylogic_epi64::<0x96>(first, last, next)
    }

    /// Gives the register, and with `SUM` the partial sum of the Internet checksum of an even number of octets.
    ///
    /// # Safety
    /// As [`Kernels::copy_out_crc32c`](super::super::Kernels::copy_out_crc32c), `target` being used only if `COPY`, and
    /// the processor has the features. `length` is at least [`STREAMS_BELOW`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,sse4.2")]
    unsafe fn fold_all<const COPY: bool, const SUM: bool>(
        register: u32,
        target: *mut u8,
        source: *const u8,
        length: usize,
    ) -> (u32, u32) {
        let mut sums = Sums::new();
        let load = |offset: usize| {
            // SAFETY: all offsets below are such that 64 octets from there are within the length.
            unsafe {
                let value = _mm512_loadu_si512(source.add(offset).cast());
                if COPY {
                    _mm512_storeu_si512(target.add(offset).cast(), value);
                }
                value
            }
        };

        // Octets that do not fill a block are taken at the start, as a block with zeros before them: zeros before the
        // message, and before the register is added to its first four octets, change nothing. Of the 64 octets read
        // here those that are not taken are read (and stored) again by the next block.
        let odd = length % 64;
        let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(register as i32));
        let head = load(0);
        if SUM {
            sums.add(_mm512_maskz_mov_epi8((1 << odd) - 1, head));
        }
        let mut block = |offset: usize| {
            let value = load(offset);
            if SUM {
                sums.add(value);
            }
            value
        };
        let head = _mm512_xor_si512(head, start);
        let head = _mm512_maskz_expand_epi8(!(u64::MAX >> odd), head);
        // What of the register the head has no room for.
        let rest = (u64::from(register) >> (8 * odd.min(4))) as i64;
        let rest = _mm512_zextsi128_si512(_mm_cvtsi64_si128(rest));

        let by_512 = everywhere(BY_512);
        let first = _mm512_xor_si512(block(odd), rest);
        let mut sum = fold(head, by_512, first);
        let mut offset = odd + 64;
        if length - offset >= 3 * 64 + 256 {
            let by_2048 = everywhere(BY_2048);
            let mut sums = [sum, block(offset), block(offset + 64), block(offset + 128)];
            offset += 3 * 64;
            while length - offset >= 256 {
                sums = [
                    fold(sums[0], by_2048, block(offset)),
                    fold(sums[1], by_2048, block(offset + 64)),
                    fold(sums[2], by_2048, block(offset + 128)),
                    fold(sums[3], by_2048, block(offset + 192)),
                ];
                offset += 256;
            }
            let zero = _mm512_setzero_si512();
            let first = fold(sums[0], everywhere(BY_1536), zero);
            let second = fold(sums[1], everywhere(BY_1024), first);
            let third = fold(sums[2], by_512, sums[3]);
            sum = _mm512_xor_si512(second, third);
        }
        while offset < length {
            sum = fold(sum, by_512, block(offset));
            offset += 64;
        }

        // The pieces of the block are 384, 256, 128 and 0 bits before its end.
        let factors = _mm512_set_epi64(0, 0, BY_128[1], BY_128[0], BY_256[1], BY_256[0], BY_384[1], BY_384[0]);
        let last_piece = _mm512_maskz_mov_epi64(0b1100_0000, sum);
        let sum = fold(sum, factors, last_piece);
        let sum = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
        let sum = _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        (reduce(sum), if SUM { sums.total() } else { 0 })
    }

    /// # Safety
    /// As [`Kernels::copy_out_crc32c`](super::super::Kernels::copy_out_crc32c), `target` being used only if `COPY`, and
    /// the processor has the features.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,sse4.2")]
    unsafe fn run<const COPY: bool>(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
        // SAFETY: the caller's promise, and the tests.
        unsafe {
            match length {
                ..STREAMS_BELOW => short::<COPY>(register, target, source, length),
                _ => fold_all::<COPY, false>(register, target, source, length).0,
            }
        }
    }

    /// # Safety
    /// As [`Kernels::crc32c_sum`](super::super::Kernels::crc32c_sum), and the processor has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,sse4.2")]
    pub(in super::super) unsafe fn crc32c_sum(register: u32, octets: *const u8, length: usize) -> (u32, u32) {
        // SAFETY: the caller's promise, and the test.
        unsafe {
            match length >= STREAMS_BELOW && length.is_multiple_of(2) {
                true => fold_all::<false, true>(register, std::ptr::null_mut(), octets, length),
                false => (crc32c(register, octets, length), super::super::sum::avx512(octets, length)),
            }
        }
    }

    /// # Safety
    /// As [`Kernels::crc32c`](super::super::Kernels::crc32c), and the processor has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,sse4.2")]
    pub(in super::super) unsafe fn crc32c(register: u32, octets: *const u8, length: usize) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { run::<false>(register, std::ptr::null_mut(), octets, length) }
    }

    /// # Safety
    /// As [`Kernels::copy_out_crc32c`](super::super::Kernels::copy_out_crc32c), and the processor has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq,pclmulqdq,sse4.2")]
    pub(in super::super) unsafe fn copy_crc32c(
        register: u32,
        target: *mut u8,
        source: *const u8,
        length: usize,
    ) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { run::<true>(register, target, source, length) }
    }
}

pub(super) mod avx2 {
    use super::*;

    /// `next` plus `value` times the factors.
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.2")]
    fn fold(value: __m128i, factors: [i64; 2], next: __m128i) -> __m128i {
        let factors = _mm_set_epi64x(factors[1], factors[0]);
        let first = _mm_clmulepi64_si128::<0x00>(value, factors);
        let last = _mm_clmulepi64_si128::<0x11>(value, factors);
        _mm_xor_si128(_mm_xor_si128(first, last), next)
    }

    /// # Safety
    /// As [`Kernels::copy_out_crc32c`](super::super::Kernels::copy_out_crc32c), `target` being used only if `COPY`, and
    /// the processor has the features.
    #[inline]
    #[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
    unsafe fn run<const COPY: bool>(register: u32, target: *mut u8, source: *const u8, length: usize) -> u32 {
        if length < STREAMS_BELOW {
            // SAFETY: the caller's promise.
            return unsafe { short::<COPY>(register, target, source, length) };
        }
        let piece = |offset: usize| {
            // SAFETY: all offsets below are such that 16 octets from there are within the length.
            unsafe {
                let value = _mm_loadu_si128(source.add(offset).cast());
                if COPY {
                    _mm_storeu_si128(target.add(offset).cast(), value);
                }
                value
            }
        };
        let start = _mm_cvtsi32_si128(register as i32);
        let mut sums = [_mm_xor_si128(piece(0), start), piece(16), piece(32), piece(48)];
        let mut offset = 64;
        while length - offset >= 64 {
            sums = [
                fold(sums[0], BY_512, piece(offset)),
                fold(sums[1], BY_512, piece(offset + 16)),
                fold(sums[2], BY_512, piece(offset + 32)),
                fold(sums[3], BY_512, piece(offset + 48)),
            ];
            offset += 64;
        }
        let first = fold(sums[0], BY_384, _mm_setzero_si128());
        let second = fold(sums[1], BY_256, first);
        let mut sum = _mm_xor_si128(second, fold(sums[2], BY_128, sums[3]));
        while length - offset >= 16 {
            sum = fold(sum, BY_128, piece(offset));
            offset += 16;
        }
        let register = reduce(sum);
        // SAFETY: the octets that are left.
        unsafe { serial::<COPY>(register, target.wrapping_add(offset), source.add(offset), length - offset) }
    }

    /// # Safety
    /// As [`Kernels::crc32c`](super::super::Kernels::crc32c), and the processor has the features.
    #[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
    pub(in super::super) unsafe fn crc32c(register: u32, octets: *const u8, length: usize) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { run::<false>(register, std::ptr::null_mut(), octets, length) }
    }

    /// In two passes.
    ///
    /// # Safety
    /// As [`Kernels::crc32c_sum`](super::super::Kernels::crc32c_sum), and the processor has the features.
    #[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
    pub(in super::super) unsafe fn crc32c_sum(register: u32, octets: *const u8, length: usize) -> (u32, u32) {
        // SAFETY: the caller's promise.
        unsafe { (crc32c(register, octets, length), super::super::sum::avx2(octets, length)) }
    }

    /// # Safety
    /// As [`Kernels::copy_out_crc32c`](super::super::Kernels::copy_out_crc32c), and the processor has the features.
    #[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
    pub(in super::super) unsafe fn copy_crc32c(
        register: u32,
        target: *mut u8,
        source: *const u8,
        length: usize,
    ) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { run::<true>(register, target, source, length) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The constants as they are found in the literature for this polynomial.
    #[test]
    fn constants_are_the_published_ones() {
        assert_eq!(BY_512, [0x740e_ef02, 0x9e4a_ddf8]);
        assert_eq!(BY_128, [0xf20c_0dfe, 0x493c_7d27]);
    }
}
