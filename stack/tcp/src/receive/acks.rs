//! When to acknowledge (RFC 5681 §4.2, RFC 9293 §3.8.6.3).

use crate::Config;
use crate::instant::{Instant, nanos};

/// A peer without SACK counts duplicate acknowledgments, so up to this many in a batch are not merged (RFC 5681 §3.2
/// needs three).
const DUPLICATES_OWED: u8 = 4;

/// Segments in order that are each acknowledged at once after one was out of order or a duplicate. A sender that has
/// just repaired a loss has a small window: if only every second segment were acknowledged, losing one acknowledgment
/// could cause a time-out.
const QUICK: u8 = 16;

/// The acknowledgments that are owed.
#[derive(Debug)]
pub(crate) struct Acks {
    /// One is due at the end of the batch.
    owed: bool,
    /// Further ones that must not be merged with it.
    duplicates: u8,
    /// Segments that are still acknowledged at once.
    quick: u8,
    /// Segments with data since the last one.
    segments: u16,
    /// When a delayed one is due.
    at: Instant,
    /// [`Config::ack_every`], as far as it can be counted.
    every: u16,
    /// In ns: up to 4 s, where RFC 9293 §3.8.6.3 allows half of one.
    delay: u32,
    /// Two segments' worth of octets: more than a segment brings unless the device has joined several.
    pair: u32,
}

impl Acks {
    pub(super) fn new(config: &Config) -> Acks {
        Acks {
            owed: false,
            duplicates: 0,
            quick: 0,
            segments: 0,
            at: Instant::NEVER,
            every: u16::try_from(config.ack_every.max(1)).unwrap_or(u16::MAX),
            delay: u32::try_from(nanos(config.delayed_ack)).unwrap_or(u32::MAX),
            pair: 2 * u32::from(config.mss.max(64) - 12),
        }
    }

    /// When a delayed acknowledgment is due; `Instant::NEVER` if none waits.
    #[inline]
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// The delay of an acknowledgment, in ns.
    #[inline]
    pub(crate) fn delay(&self) -> u64 {
        u64::from(self.delay)
    }

    /// Whether a pure acknowledgment is due.
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.owed
    }

    /// Whether one segment says all that is to be acknowledged, see [`Acks::one_sent`].
    #[inline]
    pub(crate) fn is_at_most_one(&self) -> bool {
        self.duplicates <= 1
    }

    /// Acknowledge at the end of the batch.
    #[inline]
    pub(crate) fn owe(&mut self) {
        self.owed = true;
    }

    /// A segment with `len` octets has continued the stream.
    #[inline(always)]
    pub(super) fn in_order(&mut self, now: Instant, len: u32) {
        // RFC 9293 §3.8.6.3: at least every second full-sized segment. A device that joins segments hides their number.
        self.segments = self.segments.saturating_add(if len >= self.pair { self.every } else { 1 });
        if self.segments >= self.every || self.quick > 0 {
            self.quick = self.quick.saturating_sub(1);
            self.owed = true;
        } else if self.at == Instant::NEVER {
            self.at = now.after_nanos(u64::from(self.delay));
        }
    }

    /// A segment was out of order, which is acknowledged at once (RFC 5681 §4.2).
    pub(super) fn out_of_order(&mut self) {
        self.owed = true;
        self.quick = QUICK;
        self.duplicates = self.duplicates.saturating_add(1).min(DUPLICATES_OWED);
    }

    /// Something arrived once more: its first acknowledgment may have been lost.
    pub(super) fn repeated(&mut self) {
        self.quick = QUICK;
    }

    /// The time of a delayed acknowledgment may have come.
    pub(crate) fn expire(&mut self, now: Instant) {
        if now >= self.at {
            self.at = Instant::NEVER;
            self.owed = true;
        }
    }

    /// Sends no further acknowledgment.
    pub(super) fn stop(&mut self) {
        self.at = Instant::NEVER;
        self.owed = false;
        self.duplicates = 0;
    }

    /// A segment with ACK is sent. Returns whether one was owed: then call [`Acks::all_sent`] or [`Acks::one_sent`].
    #[inline(always)]
    pub(super) fn sent(&mut self) -> bool {
        self.segments = 0;
        self.at = Instant::NEVER;
        self.owed
    }

    /// It is all that the peer needs, unless `again`.
    pub(super) fn all_sent(&mut self, again: bool) {
        self.owed = again;
        self.duplicates = 0;
    }

    /// It is one of several that the peer counts.
    pub(super) fn one_sent(&mut self) {
        self.duplicates = self.duplicates.saturating_sub(1);
        self.owed = self.duplicates > 0;
    }
}
