//! The send queue of a connection with nothing to repair.

use super::{Record, Segment, SendQueue};
use crate::event::BufferToken;
use crate::instant::Instant;
use crate::position::Position;

impl SendQueue {
    /// Whether everything was sent, and nothing of it is lost, selectively acknowledged or a window probe.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.next == self.end && self.lost | self.sacked == 0 && !self.probed
    }

    /// Whether the octet behind SND.NXT was sent as a window probe.
    #[inline]
    pub(crate) fn is_probed(&self) -> bool {
        self.probed
    }

    /// Appends a record and sends it whole, if [`SendQueue::is_plain`].
    #[inline(always)]
    pub(crate) fn push_sent(&mut self, now: Instant, token: BufferToken, len: u32) {
        debug_assert!(self.is_plain());
        let start = self.next;
        let number = self.records.mark.wrapping_add(self.records.len() as u32);
        // Where the ends take turns, each queue is empty.
        if self.records.is_empty() & self.segments.is_empty() {
            self.records.begin(Record { start, len, token });
            self.segments.begin(Segment { start, sent_at: now, len, record: number, ..Segment::default() });
        } else {
            self.push_behind(start, now, token, len, number);
        }
        self.next = start + len;
        self.end = self.next;
        self.in_flight += len;
        self.segments.mark = number.wrapping_add(1);
    }

    /// The only record if it was sent and all of it is acknowledged.
    #[inline(always)]
    pub(crate) fn pop_lone_acknowledged(&mut self) -> Option<BufferToken> {
        let record = *self.records.front()?;
        if self.records.len() > 1 || self.unacknowledged < self.end || self.segments.mark == self.records.mark {
            return None;
        }
        self.records.drop_front();
        self.records.mark = self.records.mark.wrapping_add(1);
        Some(record.token)
    }

    #[inline(never)]
    fn push_behind(&mut self, start: Position, now: Instant, token: BufferToken, len: u32, number: u32) {
        self.records.push_back(Record { start, len, token });
        self.segments.push_back(Segment { start, sent_at: now, len, record: number, ..Segment::default() });
    }
}
