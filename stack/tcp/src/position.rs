//! Sequence numbers without wrap-around.

use core::fmt;
use core::ops::{Add, Sub};

use uwarp_wire::tcp::SeqNumber;

/// A place in the sequence space of one direction, counted in 64 bits. Its low 32 bits are the sequence number.
///
/// Positions are ordered, so nothing inside the connection compares modulo 2^32. A header's number is converted to a
/// position once, relative to a known one ([`Position::near`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position(u64);

impl Position {
    /// Behind every position that a stream reaches.
    pub(crate) const LAST: Position = Position(u64::MAX);

    /// The position of an initial sequence number. It lies above 2^32, so earlier positions exist, too.
    #[inline]
    pub(crate) const fn first(initial: SeqNumber) -> Position {
        Position((1 << 32) | initial.0 as u64)
    }

    /// The sequence number for a header.
    #[inline]
    pub(crate) const fn sequence(self) -> SeqNumber {
        SeqNumber(self.0 as u32)
    }

    /// The position with this sequence number that is less than 2^31 away from `self`.
    #[inline]
    pub(crate) fn near(self, number: SeqNumber) -> Position {
        Position(self.0.wrapping_add_signed(i64::from(number - self.sequence())))
    }

    /// Octets from `earlier` to `self`; zero if `earlier` is not before `self`.
    #[inline]
    pub(crate) const fn since(self, earlier: Position) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The position this many octets ahead, which may be more than a window.
    pub(crate) const fn ahead(self, octets: u64) -> Position {
        Position(self.0.saturating_add(octets))
    }

    /// [`Position::since`] for two positions in one window, so the distance fits 32 bits.
    #[inline]
    pub(crate) fn octets_since(self, earlier: Position) -> u32 {
        u32::try_from(self.since(earlier)).unwrap_or(u32::MAX)
    }
}

impl Add<u32> for Position {
    type Output = Position;
    #[inline]
    fn add(self, octets: u32) -> Position {
        Position(self.0.wrapping_add(u64::from(octets)))
    }
}

impl Sub<u32> for Position {
    type Output = Position;
    #[inline]
    fn sub(self, octets: u32) -> Position {
        Position(self.0.saturating_sub(u64::from(octets)))
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}
