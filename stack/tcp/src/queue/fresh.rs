//! The send queue of a connection with nothing to repair.

use super::{Segment, SendQueue};
use crate::event::BufferToken;
use crate::instant::Instant;

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
        let record = self.records.mark.wrapping_add(self.records.len() as u32);
        self.push(token, len);
        self.append(Segment { start: self.next, sent_at: now, len, record, ..Segment::default() });
        self.segments.mark = record.wrapping_add(1);
    }
}
