//! The urgent mechanism (RFC 9293 §3.8.5, as clarified by RFC 6093).
//!
//! Urgent data is in the stream like any other. The pointer names the octet behind it (MUST-62) and only says how far
//! the receiver should read urgently. So the state is two positions, and only for connections that have used them: it
//! is on the heap, and neither header prediction nor the usual transmit path touches it.

use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::connection::Connection;
use crate::event::Events;
use crate::position::Position;

impl Connection {
    /// Makes all octets of the stream before `end` urgent, counted as [`Connection::octets_pushed`] counts. `end` may
    /// lie beyond what is pushed, for an owner that knows what follows, by any distance (RFC 9293 §3.8.5, MUST-31).
    ///
    /// All segments that begin before `end` announce it from now on, including retransmissions and window probes, until
    /// the peer has acknowledged the octets before `end`. A pointer reaches 65,535 octets: if `end` is further away, it
    /// points that far, and later segments continue. If data has to wait for a window, a pure acknowledgment announces
    /// it at once.
    ///
    /// It does nothing if all of it is acknowledged, or was urgent before. Octets that the peer received before this
    /// call cannot become urgent, and are not announced.
    ///
    /// RFC 6093 §5 advises against urgent data in new applications (RFC 9293 §3.8.5, SHLD-13).
    pub fn send_urgent_until(&mut self, end: u64) {
        let end = self.stream_start().ahead(end);
        if self.close_reason().is_some() || end <= self.sender.queue.unacknowledged() {
            return;
        }
        let urgent = self.urgent.get_or_insert_default();
        if urgent.send.is_some_and(|known| end <= known) {
            return;
        }
        urgent.send = Some(end);
        self.pending.urgent = true;
        // Data that can be sent at once carries the announcement itself.
        let by_peer = self.sender.usable_window();
        let by_congestion = self.sender.congestion.window().saturating_sub(self.sender.in_flight());
        if self.phase.sends()
            && (self.sender.queue.unsent() > 0 || by_peer.min(by_congestion) < self.sender.mss.segment)
        {
            self.receiver.acks.owe();
        }
    }

    /// Sets URG and the pointer if the segment begins before SND.UP.
    pub(crate) fn point_to_urgent(&mut self, header: &mut TcpHeader) {
        let Some(urgent) = &mut self.urgent else { return };
        // The owner may have closed without pushing all the octets that it announced: the FIN is not urgent.
        let limit = if self.sender.is_closing() { self.sender.queue.end() } else { Position::LAST };
        let unacknowledged = self.sender.queue.unacknowledged();
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

    /// RFC 9293 §3.10.7.4, sixth check, for a segment whose first octet is at `sequence`, before its text is processed.
    pub(crate) fn take_urgent(&mut self, sequence: Position, pointer: u16) -> Events {
        let next = self.receiver.next();
        let end = sequence + u32::from(pointer);
        // A pointer of 0 names no octet in the segment or behind it. Octets received earlier belong to the owner and
        // can no longer become urgent. From CLOSE-WAIT on, no data follows.
        if pointer == 0 || end <= next || !self.phase.receives() {
            return Events::NONE;
        }
        let urgent = self.urgent.get_or_insert_default();
        if urgent.receive.is_some_and(|known| end <= known) {
            // MUST-32 requires a report when the pointer advances; other pointers repeat it.
            return Events::NONE;
        }
        urgent.receive = Some(end);
        urgent.told_at = next;
        Events::URGENT
    }

    /// How far the urgent data of the last [`Events::URGENT`] reaches, in octets from the end of the data handed out
    /// before that segment, whether they have arrived or not. 0 if there never was any.
    ///
    /// An owner that calls this before it hands out the segment's octets knows which of them, and of those that follow,
    /// are urgent (RFC 9293 §3.8.5, MUST-33).
    pub fn urgent_told(&self) -> u32 {
        self.urgent.as_ref().map_or(0, |urgent| urgent.receive.map_or(0, |end| end.octets_since(urgent.told_at)))
    }

    /// Frees the state once it is meaningless.
    pub(crate) fn forget_urgent(&mut self) {
        let (unacknowledged, next) = (self.sender.queue.unacknowledged(), self.receiver.next());
        let over = |position: Option<Position>, reached| position.is_none_or(|end| end <= reached);
        if self.urgent.as_ref().is_some_and(|urgent| over(urgent.send, unacknowledged) && over(urgent.receive, next)) {
            self.urgent = None;
            self.pending.urgent = false;
        }
    }
}
