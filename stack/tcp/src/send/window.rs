//! The window that the peer offers (RFC 9293 §3.8.6).

use crate::event::Events;
use crate::position::Position;

/// SND.WND, and the segment that set it.
#[derive(Debug)]
pub(crate) struct PeerWindow {
    /// SND.WL1 and SND.WL2.
    sequence: Position,
    acknowledgment: Position,
    /// SND.WND in octets.
    pub(crate) octets: u32,
    /// The largest that the peer ever offered (MAX.SND.WND of RFC 5961 §5.2, Max(SND.WND) of RFC 9293 §3.8.6.2.1).
    pub(crate) largest: u32,
}

impl PeerWindow {
    pub(super) fn new(sequence: Position, acknowledgment: Position) -> PeerWindow {
        PeerWindow { sequence, acknowledgment, octets: 0, largest: 0 }
    }

    /// The peer's SYN at `initial` offers so many octets.
    pub(crate) fn learn_peer(&mut self, initial: Position, octets: u32) {
        self.sequence = initial;
        self.octets = octets;
        self.largest = octets;
    }

    /// Whether a segment may change the window: it is no older than the one that did last (§3.10.7.4, fifth check).
    #[inline]
    pub(crate) fn is_newer(&self, sequence: Position, acknowledgment: Position) -> bool {
        self.sequence < sequence || (self.sequence == sequence && self.acknowledgment <= acknowledgment)
    }

    /// A segment that may change the window offers so many octets.
    #[inline(always)]
    pub(crate) fn update(&mut self, sequence: Position, acknowledgment: Position, octets: u32) -> Events {
        self.sequence = sequence;
        self.acknowledgment = acknowledgment;
        if octets == self.octets {
            return Events::NONE;
        }
        self.octets = octets;
        self.largest = self.largest.max(octets);
        if octets > 0 { Events::SEND_SPACE } else { Events::NONE }
    }

    /// The data of the last such segment continues at `sequence`: see `Connection::on_alike_segment`.
    #[inline(always)]
    pub(crate) fn advance(&mut self, sequence: Position) {
        self.sequence = sequence;
    }

    /// Our SYN is acknowledged.
    pub(crate) fn opened(&mut self, acknowledgment: Position) {
        self.acknowledgment = acknowledgment;
    }
}
