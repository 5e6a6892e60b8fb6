//! Points in time. They are always arguments, never read from a clock.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the owner chooses, one for all its connections.
///
/// All arithmetic saturates: 2^64 ns are 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);
    /// The latest point in time; stands for "never" in a deadline.
    pub(crate) const NEVER: Instant = Instant(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since the origin, rounded down.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `nanos` nanoseconds later.
    #[inline]
    pub(crate) const fn after_nanos(self, nanos: u64) -> Instant {
        Instant(self.0.saturating_add(nanos))
    }

    /// `None` if this stands for "never".
    #[inline]
    pub(crate) fn finite(self) -> Option<Instant> {
        (self != Instant::NEVER).then_some(self)
    }
}

/// A duration in nanoseconds, saturating.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, duration: Duration) -> Instant {
        self.after_nanos(nanos(duration))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

/// The time between two points; zero if the right one is later.
impl Sub<Instant> for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, other: Instant) -> Duration {
        self.since(other)
    }
}
