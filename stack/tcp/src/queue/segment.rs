//! What the send queue consists of: records, and the segments that carried them.

use crate::event::BufferToken;
use crate::instant::Instant;
use crate::position::Position;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    pub(super) start: Position,
    pub(super) len: u32,
    pub(super) token: BufferToken,
}

impl Record {
    pub(super) fn end(&self) -> Position {
        self.start + self.len
    }
}

/// The first record with unsent octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsent {
    pub(super) number: u32,
    pub(super) record: Record,
    /// Unsent octets of it: at least one.
    pub(crate) len: u32,
}

impl Unsent {
    /// Whether nothing of the record was sent.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        self.len == self.record.len
    }
}

/// The presumed fate of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Fate {
    #[default]
    InFlight,
    /// The peer reported it (RFC 2018), but may still discard it.
    Sacked,
    /// Considered lost and not retransmitted yet.
    Lost,
}

/// The contents of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Content {
    Syn,
    #[default]
    Data,
    Fin,
}

/// A part of the sequence space that was sent as one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) start: Position,
    /// When it was sent last.
    pub(crate) sent_at: Instant,
    pub(crate) len: u32,
    /// Number of its record, counted from the first one ever pushed, modulo 2^32.
    pub(super) record: u32,
    /// While `fate` is [`Fate::Sacked`]: octets from `start` on that are known to be sacked, up to the end of a
    /// segment.
    pub(super) sacked_len: u32,
    pub(crate) fate: Fate,
    pub(crate) content: Content,
    pub(crate) retransmitted: bool,
    /// It was retransmitted, later than its neighbours were sent.
    pub(super) resent: bool,
}

impl Segment {
    #[inline]
    pub(crate) fn end(&self) -> Position {
        self.start + self.len
    }

    /// Whether it was sent once and nothing is known of it.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.fate == Fate::InFlight && !self.retransmitted
    }
}

/// What one acknowledgment reveals about segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    /// Newly delivered octets.
    pub(crate) octets: u32,
    /// Octets by which the cumulative acknowledgment advanced.
    pub(crate) advanced: u32,
    /// When the oldest of them was sent, provided each was sent once (Karn, RFC 6298 §3).
    pub(crate) oldest_sent: Option<Instant>,
    /// Some were sent more than once.
    pub(crate) ambiguous: bool,
    /// The lowest end of those that were sent once.
    pub(crate) original: Option<Position>,
    /// The one sent last: when, its end, whether it was sent more than once (RFC 8985 §6.2, step 1 and 2).
    pub(crate) newest: Option<(Instant, Position, bool)>,
    /// A segment sent once arrived behind one with a higher sequence number (RFC 8985 §6.2, step 3).
    pub(crate) reordered: bool,
}

impl Delivered {
    pub(crate) fn new() -> Delivered {
        Delivered {
            octets: 0,
            advanced: 0,
            oldest_sent: None,
            ambiguous: false,
            original: None,
            newest: None,
            reordered: false,
        }
    }

    /// As [`Delivered::add`] for each [plain](Segment::is_plain) segment from `first` to `last`, before any other.
    /// Segments that were sent once were sent in their order.
    #[inline]
    pub(super) fn add_run(&mut self, first: &Segment, last: &Segment, forward: &mut Position) {
        let end = last.end();
        self.octets = end.octets_since(first.start);
        self.oldest_sent = Some(first.sent_at);
        self.original = Some(first.end());
        self.reordered = first.end() < *forward;
        *forward = end.max(*forward);
        self.newest = Some((last.sent_at, end, false));
    }

    #[inline]
    pub(super) fn add(&mut self, segment: &Segment, forward: &mut Position) {
        self.octets += segment.len;
        let end = segment.end();
        if segment.retransmitted {
            self.ambiguous = true;
        } else {
            if self.oldest_sent.is_none_or(|oldest| segment.sent_at < oldest) {
                self.oldest_sent = Some(segment.sent_at);
            }
            if self.original.is_none_or(|lowest| end < lowest) {
                self.original = Some(end);
            }
            self.reordered |= end < *forward;
        }
        if end > *forward {
            *forward = end;
        }
        if self.newest.is_none_or(|(sent_at, newest_end, _)| (segment.sent_at, end) > (sent_at, newest_end)) {
            self.newest = Some((segment.sent_at, end, segment.retransmitted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_as_its_segments_do() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..2_000 {
            let (mut start, mut sent_at) = (Position::default() + random.u32(0..5_000), Instant::from_nanos(1));
            let segments: Vec<Segment> = (0..random.usize(1..6))
                .map(|_| {
                    let segment = Segment { start, sent_at, len: random.u32(1..1_500), ..Segment::default() };
                    start = segment.end();
                    sent_at = sent_at.after_nanos(random.u64(0..3));
                    segment
                })
                .collect();
            let forward = Position::default() + random.u32(0..10_000);
            let (mut one_by_one, mut at_once) = (Delivered::new(), Delivered::new());
            let (mut after_each, mut after_all) = (forward, forward);
            segments.iter().for_each(|segment| one_by_one.add(segment, &mut after_each));
            at_once.add_run(&segments[0], &segments[segments.len() - 1], &mut after_all);
            assert_eq!(format!("{at_once:?}"), format!("{one_by_one:?}"));
            assert_eq!(after_all, after_each);
        }
    }
}
