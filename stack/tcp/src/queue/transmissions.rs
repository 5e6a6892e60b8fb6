//! Transmissions in the order in which they were made. [`super::order`] reads them.

use std::collections::VecDeque;

use super::segment::Segment;
use crate::instant::Instant;
use crate::position::Position;

/// When a segment was sent, and its end, which identifies it: when a segment is cut, the part that is not retransmitted
/// keeps the end. Ordered as RACK_sent_after in RFC 8985 §6.2.
pub(crate) type Transmission = (Instant, Position);

#[derive(Debug, Default)]
pub(super) struct SendOrder {
    /// Segments before this position that were sent once have been read.
    pub(super) read_to: Position,
    /// Retransmissions that have not been read.
    pub(super) again: VecDeque<Transmission>,
    /// Sent before RACK's segment; in flight when read, and perhaps still.
    pub(super) overtaken: VecDeque<Transmission>,
}

impl SendOrder {
    /// Octets of heap in use.
    pub(super) fn heap(&self) -> usize {
        (self.again.capacity() + self.overtaken.capacity()) * size_of::<Transmission>()
    }
}

impl Segment {
    #[inline]
    pub(crate) fn transmission(&self) -> Transmission {
        (self.sent_at, self.end())
    }
}
