//! Big-endian reads and writes at fixed offsets.
//!
//! Callers first take a `first_chunk` of the header's size, so the indexes are constants within an array of known size
//! and the bounds checks vanish.

#[inline(always)]
pub(crate) fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

#[inline(always)]
pub(crate) fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

#[inline(always)]
pub(crate) fn u64_at(octets: &[u8], at: usize) -> u64 {
    (u64::from(u32_at(octets, at)) << 32) | u64::from(u32_at(octets, at + 4))
}

#[inline(always)]
pub(crate) fn put_u16(octets: &mut [u8], at: usize, value: u16) {
    octets[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put_u32(octets: &mut [u8], at: usize, value: u32) {
    octets[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put_u64(octets: &mut [u8], at: usize, value: u64) {
    octets[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
