//! The urgent mechanism (RFC 9293 §3.8.5, as RFC 6093 has it).
//!
//! Urgent data is part of the stream like any other: the pointer, which names the octet behind it (MUST-62), only says how far
//! the receiver should read in haste. So all there is to keep are two positions, and only by who has ever used them: they stand
//! on the heap, and neither the segments that header prediction takes nor those that leave otherwise know of them.

use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::connection::Connection;
use crate::event::Events;
use crate::position::Position;

/// What a connection that has seen urgent data knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Urgent {
    /// SND.UP, as long as something before it is not acknowledged.
    send: Option<Position>,
    /// RCV.UP: the furthest that was told of.
    receive: Option<Position>,
    /// RCV.NXT in front of the segment that told of it.
    told_at: Position,
}

impl Connection {
    /// Makes everything of the stream urgent that comes before octet `end`, counted as [`Connection::octets_pushed`] counts: also
    /// what is still to be pushed, for an owner who knows of it, any length of it (RFC 9293 §3.8.5, MUST-31).
    ///
    /// All segments that begin before `end` say so from now on, those sent again and window probes too, until the peer has
    /// acknowledged what comes before `end`. A pointer reaches 65,535 octets; where `end` is further away, it goes so far, and
    /// later segments carry it on. Where data has to wait for a window, a pure acknowledgment tells at once.
    ///
    /// Nothing happens if all of it is acknowledged, or was urgent before. Octets that the peer has got before they were made
    /// urgent cannot be called back: for these, nothing is told.
    ///
    /// RFC 6093 §5 asks new applications not to use this (RFC 9293 §3.8.5, SHLD-13).
    pub fn send_urgent_until(&mut self, end: u64) {
        let end = self.stream_start().ahead(end);
        if self.close_reason().is_some() || end <= self.queue.unacknowledged() {
            return;
        }
        let urgent = self.urgent.get_or_insert_default();
        if urgent.send.is_some_and(|known| end <= known) {
            return;
        }
        urgent.send = Some(end);
        self.pending.urgent = true;
        // What can leave at once brings the word itself.
        let by_peer = self.window_edge().octets_since(self.queue.next());
        let by_congestion = self.congestion.window().saturating_sub(self.in_flight());
        if self.phase.sends() && (self.queue.unsent() > 0 || by_peer.min(by_congestion) < self.segment) {
            self.receiver.acknowledge_now();
        }
    }

    /// Sets URG and the pointer if the segment begins before SND.UP.
    pub(crate) fn point_to_urgent(&mut self, header: &mut TcpHeader) {
        let Some(urgent) = &mut self.urgent else { return };
        // The owner may have closed without the octets that it had announced: the FIN is not urgent.
        let limit = if self.closing { self.queue.end() } else { Position::LAST };
        let unacknowledged = self.queue.unacknowledged();
        let Some(end) = urgent.send.map(|end| end.min(limit)).filter(|end| *end > unacknowledged) else {
            urgent.send = None;
            self.pending.urgent = false;
            return;
        };
        let sequence = unacknowledged.near(header.sequence);
        if sequence < end && !header.flags.intersects(TcpFlags::SYN | TcpFlags::RST) {
            header.flags |= TcpFlags::URG;
            header.urgent = u16::try_from(end.since(sequence)).unwrap_or(u16::MAX);
        }
    }

    /// RFC 9293 §3.10.7.4, sixth check, of a segment whose first octet stands at `sequence`: before its text is taken.
    pub(crate) fn take_urgent(&mut self, sequence: Position, pointer: u16) -> Events {
        let next = self.receiver.next();
        let end = sequence + u32::from(pointer);
        // A pointer of 0 names no octet of the segment or behind it. What was received before is in the owner's hands and cannot
        // become urgent any more; in the states from CLOSE-WAIT on there is nothing to come.
        if pointer == 0 || end <= next || !self.phase.receives() {
            return Events::NONE;
        }
        let urgent = self.urgent.get_or_insert_default();
        if urgent.receive.is_some_and(|known| end <= known) {
            // MUST-32 asks for news when the pointer advances; the others repeat it.
            return Events::NONE;
        }
        urgent.receive = Some(end);
        urgent.told_at = next;
        Events::URGENT
    }

    /// How far the urgent data reaches that [`Events::URGENT`] told of last: octets from the end of what had been handed out before
    /// that segment to the end of the urgent data, whether they have come or not. 0 if none was ever told of.
    ///
    /// So an owner who asks before it hands out the segment's octets knows how much of them, and of what follows, is urgent
    /// (RFC 9293 §3.8.5, MUST-33).
    pub fn urgent_told(&self) -> u32 {
        self.urgent.as_ref().map_or(0, |urgent| urgent.receive.map_or(0, |end| end.octets_since(urgent.told_at)))
    }

    /// Gives the memory back if nothing in it means anything any more.
    pub(crate) fn forget_urgent(&mut self) {
        let (unacknowledged, next) = (self.queue.unacknowledged(), self.receiver.next());
        let over = |position: Option<Position>, reached| position.is_none_or(|end| end <= reached);
        if self.urgent.as_ref().is_some_and(|urgent| over(urgent.send, unacknowledged) && over(urgent.receive, next)) {
            self.urgent = None;
            self.pending.urgent = false;
        }
    }
}
