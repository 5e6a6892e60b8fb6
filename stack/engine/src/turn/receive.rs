//! A received frame on its way through the rooms: classified, assigned to a connection, given to TCP. What TCP has in
//! order goes to the layer above.

use uwarp_memory::Turn;
use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::{Events, Payload};
use uwarp_wire::WireError;
use uwarp_wire::frame::{Frame, RefusedFrame, TcpFrame, classify, usual_tcp};
use uwarp_wire::roce;
use uwarp_wire::tcp::TcpFlags;

use crate::api::command::DisconnectReason;
use crate::api::stats::DropReason;
use crate::connection::phase::Phase;
use crate::connection::slab::Lent;
use crate::connection::{Connection, HeldFrame};
use crate::core::Core;
use crate::hot::receive::End;
use crate::link::contiguous;
use crate::link::port::{BURST, Buffer, Port};
use crate::link::receive::Origin;
use crate::net::Left;
use crate::net::fragments::Pieces;
use crate::rdma::Moment;
use crate::rdma::receive_wait::FIRST_LOOK;

impl<P: Port> Core<P> {
    /// Takes one frame.
    pub(super) fn receive_frame(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        if self.receive_short(turn, std::slice::from_ref(&buffer)) == 0 {
            self.receive_long(turn, buffer);
        }
    }

    /// Takes the first of these frames, and others behind it, the short way, if they are for it. Gives how many.
    #[inline(always)]
    pub(super) fn receive_short(&mut self, turn: &Turn<'_>, frames: &[P::Buffer]) -> usize {
        let (Some(index), true) = (self.connections.guess, self.common.config.hot) else { return 0 };
        let moment = Moment { turn, now: self.common.now };
        let mut end = End::All;
        let taken = self.connections.receive_hot(&mut self.rdma, &mut self.common.counters, moment, frames, &mut end);
        match end {
            End::All => {}
            End::Rest(octets) => self.receive_rest(turn, index, octets),
            End::Overflowed(octets) => self.fail_overflowed(turn, index, octets),
        }
        taken
    }

    /// Octets of a predicted segment that are not usual.
    #[inline(never)]
    fn receive_rest(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        self.only_short_ways = false;
        let Some(mut connection) = self.connections.take(&mut self.common.counters, index) else { return };
        self.on_octets(turn, &mut connection, octets);
        self.settle_segment(connection, true);
    }

    /// The completion of an FPDU before `octets` did not fit.
    #[cold]
    fn fail_overflowed(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        self.only_short_ways = false;
        let Some(mut connection) = self.connections.take(&mut self.common.counters, index) else { return };
        let mut queue_pair = self.rdma.take(connection.queue_pair);
        if let Some(queue_pair) = queue_pair.as_deref_mut() {
            self.rdma.on_overflow(&mut self.common, &mut connection, queue_pair);
        }
        self.rdma.give(queue_pair);
        if !connection.gone {
            self.on_octets(turn, &mut connection, octets);
        }
        self.settle_segment(connection, true);
    }

    /// Takes a frame that is none for the short way.
    #[inline]
    pub(super) fn receive_long(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        self.common.counters.frames_received += 1;
        self.common.counters.octets_received += buffer.total_len() as u64;
        self.only_short_ways = false;
        // A value of its own, inspected in place: as a variant of [`Frame`] it would be copied.
        let usual = usual_tcp(buffer.data(), buffer.total_len());
        match &usual {
            Some(frame) => self.receive_tcp(turn, frame, buffer, Origin::Frame),
            None => self.receive_unusual(turn, buffer),
        }
    }

    #[inline(never)]
    fn receive_unusual(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        self.needs_attention = true;
        match classify(buffer.data(), buffer.total_len()) {
            Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, &frame, buffer, Origin::Frame),
            other if buffer.segment_count() == 1 => self.receive_other(turn, other, buffer.data()),
            _ => self.receive_chain(turn, buffer),
        }
    }

    /// A frame in several buffers that is no segment, or whose headers are not contiguous. It is rare, so a copy is
    /// good enough.
    fn receive_chain(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        let mut scratch = std::mem::take(&mut self.link.scratch);
        let octets = contiguous(&buffer, &mut scratch);
        match classify(octets, octets.len()) {
            Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, &frame, buffer, Origin::Frame),
            other => self.receive_other(turn, other, octets),
        }
        self.link.scratch = scratch;
    }

    #[cold]
    fn receive_other(&mut self, turn: &Turn<'_>, frame: Result<Frame<'_>, WireError>, octets: &[u8]) {
        let Core { net, link, connections, rdma, common, .. } = self;
        if let Ok(Frame::Refused(refused)) = &frame
            && let Some(packet) = datagram(refused, octets)
            && !rdma.datagrams.is_empty()
            && refused.route.destination_mac == link.own_mac
            && link.is_our_vlan(refused.route.vlan)
            && net.addresses.is_own(refused.route.destination)
        {
            return rdma.on_datagram(turn, common, packet);
        }
        match net.receive(link, common, frame, octets) {
            None => {}
            Some(Left::Whole(whole)) => self.receive_octets(turn, &whole, false),
            Some(Left::TooBig(quoted, mtu)) => connections.on_too_big(net, common, quoted, mtu),
            Some(Left::SoftError(quoted)) => {
                connections.on_soft_error(&mut common.counters, quoted);
                self.end_connections();
            }
        }
    }

    /// Takes a frame of any length from our own memory. `verified`: the TCP checksum is known to be right.
    #[cold]
    fn receive_octets(&mut self, turn: &Turn<'_>, octets: &[u8], verified: bool) {
        match classify(octets, octets.len()) {
            Ok(Frame::Tcp(frame)) => {
                if !verified && !frame.checksum_is_good(octets, checksum_sum) {
                    return self.common.counters.count_drop(DropReason::L4Checksum);
                }
                let Some(mut pieces) = Pieces::of(&frame, octets) else {
                    return self.common.counters.cannot_be("the payload of a segment is behind its frame");
                };
                while let Some((piece, buffer, origin)) = self.link.next_piece(&mut self.common.counters, &mut pieces) {
                    self.receive_tcp(turn, &piece, buffer, origin);
                }
            }
            // Nested fragments are dropped.
            Ok(Frame::Fragment(_)) => self.common.counters.count_drop(DropReason::Fragment),
            other => self.receive_other(turn, other, octets),
        }
    }

    /// Takes the frames that other engines have handed over.
    #[cold]
    pub(super) fn run_handoff(&mut self, turn: &Turn<'_>) {
        let Some(handoff) = &mut self.link.handoff else { return };
        let mut octets = handoff.begin_second_hand();
        for _ in 0..BURST {
            let handoff = self.link.handoff.as_mut();
            let received = handoff.and_then(|handoff| handoff.receive(&mut self.common.counters, &mut octets));
            let Some(verified) = received else { break };
            self.common.counters.taken_over += 1;
            self.receive_octets(turn, &octets, verified);
        }
        if let Some(handoff) = &mut self.link.handoff {
            handoff.end_second_hand(octets);
        }
    }

    #[inline]
    fn receive_tcp(&mut self, turn: &Turn<'_>, frame: &TcpFrame, buffer: P::Buffer, origin: Origin) {
        if !self.link.admits(&mut self.common.counters, frame, &buffer) {
            return;
        }
        let found = self.connections.find(&frame.flow);
        let Some(index) = found.or_else(|| self.on_stranger(frame, &buffer)) else { return };
        let Some(mut connection) = self.connections.take(&mut self.common.counters, index) else { return };
        self.connections.guess = Some(index);
        if frame.header.flags.contains(TcpFlags::SYN) && connection.tcp.admits_new_incarnation(&frame.header) {
            // The peer reuses the ports of a finished connection (RFC 6191): the new connection replaces it.
            if let Some(old) = connection.tcp.time_wait() {
                self.enter_time_wait(connection, old);
            } else {
                connection.gone = true;
                self.put_back(connection);
            }
            self.on_stranger(frame, &buffer);
            return;
        }
        let usual = self.on_segment(turn, &mut connection, frame, (buffer, origin));
        self.settle_segment(connection, usual);
    }

    /// Finds who takes a segment of an unknown flow: another engine, nobody, or a connection that it opens by a cookie.
    #[cold]
    fn on_stranger(&mut self, frame: &TcpFrame, buffer: &P::Buffer) -> Option<u32> {
        let Core { connections, link, net, common, .. } = self;
        if link.handoff.is_some()
            && !connections.time_wait.contains(&frame.flow)
            && link.hand_off(&mut common.counters, &frame.flow, buffer)
        {
            return None;
        }
        // Connections have one of our addresses; this flow has no connection.
        if !net.addresses.is_own(frame.flow.local) {
            common.counters.count_drop(DropReason::WrongAddress);
            return None;
        }
        let index = connections.on_stranger(link, net, common, frame);
        self.needs_attention = true;
        self.end_connections();
        index
    }

    /// Puts a connection back whose segment was processed. `usual`: nothing happened that changes its state.
    #[inline]
    pub(crate) fn settle_segment(&mut self, mut connection: Lent<Connection>, usual: bool) {
        if usual && !connection.gone && !connection.quiet {
            connection.look_for_quiet(&mut self.rdma.queue_pairs);
        }
        if connection.gone || usual && connection.quiet && !connection.tcp.wants_transmit() {
            return self.put_back(connection);
        }
        // It is served later in this turn, which also arms its timer.
        connection.schedule(&mut self.connections.ready);
        self.connections.table.put(connection);
    }

    /// Takes a segment. True: nothing happened that changes the connection's state.
    #[inline]
    fn on_segment(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        frame: &TcpFrame,
        (buffer, origin): (P::Buffer, Origin),
    ) -> bool {
        let Core { connections, common, .. } = self;
        let received = connections.take_segment(common, connection, frame, (origin, buffer.segment_count()));
        if received.events.intersects(Events::ESTABLISHED | Events::URGENT) {
            self.on_tcp_start(connection, received.events);
        }
        if received.events.intersects(Events::OCTETS_ACKED | Events::FIN_ACKED) {
            connection.acknowledged(&mut self.connections.records);
        }
        match received.payload {
            Payload::InOrder { skip, len } => {
                self.deliver(turn, connection, &buffer, frame.payload_offset, skip, len);
                drop(buffer);
                self.deliver_held(turn, connection);
            }
            Payload::Held => {
                let payload_offset = frame.payload_offset as u32;
                self.connections.held.insert(HeldFrame { buffer, payload_offset, origin });
            }
            Payload::None | Payload::Discarded => {}
        }
        while let Some(token) = connection.tcp.drain_discarded() {
            self.connections.held.remove(token);
        }
        let mut events = received.events;
        if connection.tcp.withholds() && (connection.finished || events.contains(Events::FIN_ACKED)) {
            events |= self.end_withholding(turn, connection);
        }
        if events.intersects(
            Events::PEER_FIN
                | Events::RESET
                | Events::CLOSED
                | Events::TIME_WAIT
                | Events::FIN_ACKED
                | Events::TIMED_OUT,
        ) {
            self.on_tcp_end(connection, events);
            return false;
        }
        !events.contains(Events::ESTABLISHED)
    }

    /// The peer has our FIN while octets are withheld. Either they were refused, which the Terminate before the FIN has
    /// told: they are acknowledged now, so that the connection ends in order. Or nobody takes them any more, which a
    /// reset tells. Returns what TCP says.
    #[cold]
    fn end_withholding(&mut self, turn: &Turn<'_>, connection: &mut Connection) -> Events {
        match &mut connection.phase {
            // They wait for a receive.
            Phase::Running(_) if connection.tcp.holds_in_order() => Events::NONE,
            Phase::Running(running) => {
                running.acknowledges_placed = false;
                let events = connection.tcp.release(self.common.now);
                self.deliver_held(turn, connection);
                events
            }
            _ => {
                connection.ends_by(DisconnectReason::Aborted);
                connection.abort(&mut self.link, &mut self.common);
                Events::NONE
            }
        }
    }

    /// Delivers what TCP has held and is in order now.
    #[inline]
    fn deliver_held(&mut self, turn: &Turn<'_>, connection: &mut Connection) {
        while let Some(held) = connection.tcp.take_in_order() {
            let Some(next) = self.connections.held.remove(held.token) else { continue };
            let from = next.payload_offset as usize;
            self.deliver(turn, connection, &next.buffer, from, held.skip, held.len);
        }
    }

    /// A message waits: goes on with it, unless it is too early.
    #[cold]
    pub(super) fn look_for_receive(&mut self, turn: &Turn<'_>, connection: &mut Connection) {
        if let Some(look_at) = self.rdma.next_look(self.common.now, connection) {
            return self.connections.wheel.arm(connection.index, look_at);
        }
        connection.tcp.hold_in_order(false);
        let events = connection.tcp.release(self.common.now);
        self.rdma.take_waiting(turn, &mut self.common, connection);
        self.deliver_held(turn, connection);
        if connection.awaits_receive() {
            self.connections.wheel.arm(connection.index, self.common.now + FIRST_LOOK);
        } else if !connection.gone {
            connection.end_receive_wait();
            if connection.tcp.peer_has_finished() && !events.contains(Events::PEER_FIN) {
                self.on_peer_fin(connection);
            }
        }
        if !connection.gone && !events.is_empty() {
            self.on_tcp_end(connection, events);
        }
        connection.schedule(&mut self.connections.ready);
    }

    /// Delivers octets `skip .. skip + len` of a frame's payload to the layers above.
    #[inline]
    fn deliver(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        buffer: &P::Buffer,
        payload_offset: usize,
        skip: u32,
        len: u32,
    ) {
        let from = payload_offset + skip as usize;
        let range = from..from + len as usize;
        let is_whole = if buffer.segment_count() == 1 {
            let octets = buffer.data().get(range);
            octets.map(|octets| self.on_octets(turn, connection, octets)).is_some()
        } else {
            let mut scratch = std::mem::take(&mut self.link.scratch);
            let octets = contiguous(buffer, &mut scratch).get(range);
            let is_whole = octets.map(|octets| self.on_octets(turn, connection, octets)).is_some();
            self.link.scratch = scratch;
            is_whole
        };
        if !is_whole {
            self.common.counters.cannot_be("the payload of a segment is behind its frame");
        }
    }

    /// Takes octets of the stream, in order.
    #[inline]
    pub(crate) fn on_octets(&mut self, turn: &Turn<'_>, connection: &mut Connection, octets: &[u8]) {
        let mut rest = octets;
        while !rest.is_empty() {
            match &connection.phase {
                Phase::Running(_) => {
                    self.rdma.on_stream(turn, &mut self.common, connection, rest);
                    if connection.awaits_receive() {
                        self.connections.wheel.arm(connection.index, self.common.now + FIRST_LOOK);
                    }
                    return;
                }
                Phase::Stream(_) => {
                    let Core { streams, link, common, .. } = self;
                    return streams.on_octets(link, common, connection, rest);
                }
                Phase::Closing(_) | Phase::Incoming(_) => {
                    connection.withhold(rest.len());
                    return connection.discard_octets(&mut self.link, &mut self.common);
                }
                Phase::Initiating(_) | Phase::Responding(_) | Phase::Requested(_) => {
                    let used = self.on_startup_octets(connection, rest);
                    rest = &rest[used.min(rest.len())..];
                }
            }
        }
    }
}

/// The packet of a frame that nothing else takes, if it is one of RoCE v2.
fn datagram<'a>(refused: &RefusedFrame, octets: &'a [u8]) -> Option<&'a [u8]> {
    let packet = octets.get(refused.route.ip_offset..)?.get(..refused.route.ip_len)?;
    roce::is_in(packet).then_some(packet)
}
