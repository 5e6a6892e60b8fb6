//! The Internet checksum (RFC 1071) in parts.
//!
//! A *partial sum* is a `u32` that is congruent, modulo 0xFFFF, to the sum of the octets as big-endian 16-bit words. An
//! odd last octet is the high half of a word. The sum is 0 only if every octet is 0. This definition lets a fast kernel
//! add wider words. [`combine`] joins partial sums; [`append`] joins them where the first part may have an odd length.

#[cfg(test)]
mod tests;

use crate::address::IpAddress;
use crate::octets::u32_at;

/// A function that computes a partial sum: [`sum`], or a faster one with the same result modulo 0xFFFF.
pub type PartialSum = fn(&[u8]) -> u32;

/// The partial sum of `octets`, portable.
pub fn sum(octets: &[u8]) -> u32 {
    let (words, rest) = octets.as_chunks::<4>();
    let mut total: u64 = 0;
    // The 64 bits hold the sum of 2^32 words; slices are never that long.
    for word in words {
        total += u64::from(u32::from_be_bytes(*word));
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    narrow(total + u64::from(u32::from_be_bytes(last)))
}

/// A 64-bit sum of 32-bit words as a partial sum.
#[inline(always)]
const fn narrow(total: u64) -> u32 {
    let total = (total & 0xffff_ffff) + (total >> 32);
    ((total & 0xffff_ffff) + (total >> 32)) as u32
}

/// The partial sum of two parts, the first of which has an even number of octets.
#[inline]
pub const fn combine(first: u32, second: u32) -> u32 {
    narrow(first as u64 + second as u64)
}

/// The partial sum of two parts; `length_before` is the number of octets in the first one.
#[inline]
pub const fn append(first: u32, length_before: usize, second: u32) -> u32 {
    if length_before.is_multiple_of(2) {
        combine(first, second)
    } else {
        combine(first, fold(second).swap_bytes() as u32)
    }
}

/// The 16-bit one's complement sum of a partial sum. 0xFFFF over octets that contain their own checksum
/// means that they are intact.
#[inline]
pub const fn fold(partial: u32) -> u16 {
    let partial = (partial & 0xffff) + (partial >> 16);
    (partial + (partial >> 16)) as u16
}

/// As [`fold`], for a sum of words of any width in 64 bits, without an overflow.
#[inline(always)]
pub const fn fold_wide(total: u64) -> u16 {
    let (half, carry) = (total as u32).overflowing_add((total >> 32) as u32);
    let half = half + carry as u32;
    // The upper half of the sum of both halves, either way round, has their sum with its carry.
    (half.wrapping_add(half.rotate_left(16)) >> 16) as u16
}

/// The value of the checksum field for a partial sum over everything else.
#[inline]
pub const fn finish(partial: u32) -> u16 {
    !fold(partial)
}

/// The partial sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1); `length` is that of the upper-layer
/// header and its payload.
#[inline]
pub const fn pseudo_header(source: IpAddress, destination: IpAddress, protocol: u8, length: usize) -> u32 {
    // The 0xFFFF of an IPv4-mapped address is zero in one's complement arithmetic, so one path serves both versions of
    // IP.
    let total = address_sum(source) + address_sum(destination) + protocol as u64 + length as u64;
    narrow(total)
}

#[inline(always)]
const fn address_sum(address: IpAddress) -> u64 {
    let (high, low) = ((address.to_bits() >> 64) as u64, address.to_bits() as u64);
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
}

/// Whether an IPv4 header without options is intact. The sum is all ones in either byte order (RFC 1071 §2 (B)), so no
/// swap is needed.
#[inline(always)]
pub fn is_good_ipv4_header(header: &[u8; 20]) -> bool {
    let mut total = 0;
    for word in header.as_chunks::<4>().0 {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    fold_wide(total) == 0xffff
}

/// The partial sum of an IPv4 header without options.
#[inline(always)]
pub(crate) fn ipv4_header(header: &[u8; 20]) -> u32 {
    let mut total = 0;
    for word in 0..5 {
        total += u64::from(u32_at(header, word * 4));
    }
    narrow(total)
}
