//! Sequence numbers modulo 2^32 (RFC 9293 §3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A sequence number. It has no total order: two of them are compared by their distance, which is meaningful while they
/// are less than 2^31 apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNumber(
    /// The number as it stands in a header.
    pub u32,
);

impl SeqNumber {
    /// Whether `self` comes before `other`.
    #[inline]
    pub const fn lt(self, other: SeqNumber) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether `self` comes before `other` or equals it.
    #[inline]
    pub const fn le(self, other: SeqNumber) -> bool {
        self.0.wrapping_sub(other.0) as i32 <= 0
    }

    /// Whether `self` comes after `other`.
    #[inline]
    pub const fn gt(self, other: SeqNumber) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }

    /// Whether `self` comes after `other` or equals it.
    #[inline]
    pub const fn ge(self, other: SeqNumber) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }

    /// The later of the two.
    #[inline]
    pub const fn max(self, other: SeqNumber) -> SeqNumber {
        if self.ge(other) { self } else { other }
    }

    /// The earlier of the two.
    #[inline]
    pub const fn min(self, other: SeqNumber) -> SeqNumber {
        if self.le(other) { self } else { other }
    }

    /// How far `self` is behind `start`, as an offset in a stream that begins there.
    #[inline]
    pub const fn offset_from(self, start: SeqNumber) -> u32 {
        self.0.wrapping_sub(start.0)
    }
}

impl Add<u32> for SeqNumber {
    type Output = SeqNumber;
    #[inline]
    fn add(self, octets: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(octets))
    }
}

impl AddAssign<u32> for SeqNumber {
    #[inline]
    fn add_assign(&mut self, octets: u32) {
        *self = *self + octets;
    }
}

impl Sub<u32> for SeqNumber {
    type Output = SeqNumber;
    #[inline]
    fn sub(self, octets: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_sub(octets))
    }
}

/// The signed distance; negative if the left one comes first.
impl Sub<SeqNumber> for SeqNumber {
    type Output = i32;
    #[inline]
    fn sub(self, other: SeqNumber) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl fmt::Debug for SeqNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl fmt::Display for SeqNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}
