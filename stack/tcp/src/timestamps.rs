//! Timestamps of one connection (RFC 7323 §3 to §5).

use uwarp_wire::tcp::{TcpFlags, TcpHeader, Timestamps};

use crate::position::Position;
use crate::{Config, Instant};

/// After this long without a segment, the stored timestamp is meaningless (RFC 7323 §5.5): 24 days in ns.
const OUTDATED: u64 = 24 * 24 * 3600 * 1_000_000_000;

/// Both clocks, and the value to echo. Our clock ticks every millisecond, the fastest that RFC 7323 §5.4 allows.
/// Aligned to lie within one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct TimestampState {
    /// Both ends agreed.
    pub(crate) enabled: bool,
    /// We accept timestamps.
    offered: bool,
    offset: u32,
    /// TS.Recent.
    recent: u32,
    recent_at: Instant,
    /// Set once there is a TS.Recent.
    known: bool,
}

impl TimestampState {
    pub(crate) fn new(config: &Config) -> TimestampState {
        TimestampState {
            enabled: config.timestamps,
            offered: config.timestamps,
            offset: config.timestamp_offset,
            recent: 0,
            recent_at: Instant::ZERO,
            known: false,
        }
    }

    /// TSval for a segment sent at `at`.
    #[inline]
    pub(crate) fn value(&self, at: Instant) -> u32 {
        (at.as_millis() as u32).wrapping_add(self.offset)
    }

    /// The option for a segment sent now.
    #[inline]
    pub(crate) fn option(&self, now: Instant) -> Option<Timestamps> {
        self.enabled.then(|| Timestamps { value: self.value(now), echo: self.recent })
    }

    /// Whether a segment's timestamp is too old (RFC 7323 §5.3, R1).
    #[inline]
    pub(crate) fn is_old(&self, value: u32, now: Instant) -> bool {
        self.known && (value.wrapping_sub(self.recent) as i32) < 0 && now.nanos_since(self.recent_at) < OUTDATED
    }

    /// Whether a segment's timestamp is later than all before.
    pub(crate) fn is_newer(&self, value: u32) -> bool {
        self.known && value.wrapping_sub(self.recent) as i32 > 0
    }

    /// Whether a segment's timestamp is earlier than the latest.
    pub(crate) fn is_older(&self, value: u32) -> bool {
        self.known && (value.wrapping_sub(self.recent) as i32) < 0
    }

    /// Whether `header`, a SYN, belongs to a new connection and not to the old one, which expects `next` (RFC 6191 §2).
    pub(crate) fn admits(&self, header: &TcpHeader, next: Position) -> bool {
        if !header.flags.contains(TcpFlags::SYN)
            || header.flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN)
        {
            return false;
        }
        let begins_later = next.near(header.sequence) > next;
        match header.options.timestamps {
            Some(timestamps) if self.enabled => {
                self.is_newer(timestamps.value) || (!self.is_older(timestamps.value) && begins_later)
            }
            // The new connection has timestamps and the old one has none, so their segments cannot be confused.
            Some(_) if self.offered => true,
            _ => begins_later,
        }
    }

    /// Stores the timestamp of a segment that begins at or before the last acknowledgment sent (RFC 7323 §4.3, rule 2).
    #[inline]
    pub(crate) fn note(&mut self, value: u32, now: Instant) {
        self.recent = value;
        self.recent_at = now;
        self.known = true;
    }

    /// Whether a segment answers the one sent at `sent_at`, and not one that was sent in another tick (RFC 7323 §4.1).
    pub(crate) fn answers(&self, header: &TcpHeader, sent_at: Instant) -> bool {
        header.options.timestamps.is_some_and(|received| self.enabled && received.echo == self.value(sent_at))
    }

    /// Whether `echo` shows that the peer answers a segment sent before the one with `stamp`.
    #[inline]
    pub(crate) fn precedes(echo: u32, stamp: u32) -> bool {
        echo.wrapping_sub(stamp) as i32 <= -1
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn earlier_timestamp_is_old_for_24_days() {
        let mut state = TimestampState::new(&Config::default());
        let now = Instant::from_nanos(5_000_000_000);
        assert!(!state.is_old(0, now), "none is known");
        state.note(1000, now);
        const DAY: Duration = Duration::from_secs(24 * 3600);
        assert!(state.is_old(999, now) && state.is_old(999, now + 23 * DAY));
        assert!(!state.is_old(1000, now) && !state.is_old(1001, now));
        assert!(!state.is_old(999, now + 24 * DAY)); // RFC 7323 §5.5
    }
}
