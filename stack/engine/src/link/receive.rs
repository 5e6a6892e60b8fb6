//! Received frames: classified, assigned to a connection, and given to TCP.

use uwarp_memory::Turn;
use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::{Events, Payload};
use uwarp_wire::WireError;
use uwarp_wire::ethernet::VlanTag;
use uwarp_wire::frame::{Frame, TcpFrame, classify, usual_tcp};
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::api::command::DisconnectReason;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::Connection;
use crate::connection::HeldFrame;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::link::port::{Buffer, ChecksumStatus, Port};
use crate::link::{Link, contiguous};

impl<P: Port> Core<P> {
    /// Takes one frame.
    pub(crate) fn receive_frame(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        if self.receive_short(turn, std::slice::from_ref(&buffer)) == 0 {
            self.receive_long(turn, buffer);
        }
    }

    /// Takes the first of these frames, and others behind it, the short way, if they are for it. Gives how many.
    #[inline(always)]
    pub(crate) fn receive_short(&mut self, turn: &Turn<'_>, frames: &[P::Buffer]) -> usize {
        if self.config.hot { self.receive_hot(turn, frames) } else { 0 }
    }

    /// Takes a frame that is none for the short way.
    #[inline]
    pub(crate) fn receive_long(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        self.counters.frames_received += 1;
        self.counters.octets_received += buffer.total_len() as u64;
        self.was_usual = false;
        // A value of its own, inspected in place: as a variant of [`Frame`] it would be copied.
        let usual = usual_tcp(buffer.data(), buffer.total_len());
        match &usual {
            Some(frame) => self.receive_tcp(turn, frame, buffer),
            None => self.receive_unusual(turn, buffer),
        }
    }

    #[inline(never)]
    fn receive_unusual(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        self.needs_attention = true;
        if buffer.segment_count() == 1 {
            match classify(buffer.data(), buffer.total_len()) {
                Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, &frame, buffer),
                other => self.receive_other(turn, other, buffer.data()),
            }
        } else {
            self.receive_chain(turn, buffer);
        }
    }

    /// A frame in several buffers: parsed in place if its headers are contiguous, otherwise in a copy.
    fn receive_chain(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        match classify(buffer.data(), buffer.total_len()) {
            Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, &frame, buffer),
            Err(WireError::NotContiguous) => {
                let mut scratch = std::mem::take(&mut self.link.scratch);
                let octets = contiguous(&buffer, &mut scratch);
                match classify(octets, octets.len()) {
                    Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, &frame, buffer),
                    other => self.receive_other(turn, other, octets),
                }
                self.link.scratch = scratch;
            }
            // Everything else is rare, so a copy is good enough.
            _ => {
                let mut scratch = std::mem::take(&mut self.link.scratch);
                let octets = contiguous(&buffer, &mut scratch);
                self.receive_other(turn, classify(octets, octets.len()), octets);
                self.link.scratch = scratch;
            }
        }
    }

    #[cold]
    pub(crate) fn receive_other(&mut self, turn: &Turn<'_>, frame: Result<Frame<'_>, WireError>, octets: &[u8]) {
        let vlan = match &frame {
            Ok(Frame::Arp(frame)) => frame.vlan,
            Ok(Frame::Icmp(frame)) => frame.route.vlan,
            Ok(Frame::Icmp6(frame)) => frame.route.vlan,
            Ok(Frame::Fragment(frame)) => frame.route.vlan,
            Ok(Frame::Refused(frame)) => frame.route.vlan,
            Ok(Frame::Tcp(_) | Frame::Other(_)) | Err(_) => self.link.vlan,
        };
        if !self.link.is_our_vlan(vlan) {
            return self.counters.count_drop(DropReason::WrongVlan);
        }
        match frame {
            Ok(Frame::Arp(frame)) => {
                self.link.share(&mut self.counters, octets);
                self.net.receive_arp(&mut self.link, &mut self.counters, self.now, &frame);
            }
            Ok(Frame::Icmp(frame)) => {
                let flow = frame.message.quoted_tcp().map(|quoted| quoted.flow);
                if !flow.is_some_and(|flow| self.link.hand_off_octets(&mut self.counters, &flow, octets)) {
                    let Core { net, link, connections, counters, now, .. } = self;
                    net.receive_icmp(link, connections, counters, *now, &frame);
                    self.end_connections();
                }
            }
            Ok(Frame::Icmp6(frame)) => {
                let flow = frame.message.quoted_tcp().map(|quoted| quoted.flow);
                if frame.message.is_discovery() {
                    self.link.share(&mut self.counters, octets);
                }
                if !flow.is_some_and(|flow| self.link.hand_off_octets(&mut self.counters, &flow, octets)) {
                    let Core { net, link, connections, counters, now, .. } = self;
                    net.receive_icmp6(link, connections, counters, *now, &frame);
                    self.end_connections();
                }
            }
            Ok(Frame::Fragment(frame)) => {
                let Core { net, link, counters, now, .. } = self;
                if let Some(whole) = net.take_fragment(link, counters, *now, &frame, octets) {
                    self.receive_octets(turn, &whole, false);
                }
            }
            Ok(Frame::Refused(frame)) => {
                self.net.refuse_packet(&mut self.link, &mut self.counters, self.now, &frame, octets);
            }
            Ok(Frame::Other(_)) => self.counters.count_drop(DropReason::UnknownProtocol),
            Ok(Frame::Tcp(_)) => {}
            Err(WireError::HeaderChecksum) => self.counters.count_drop(DropReason::IpChecksum),
            Err(WireError::IcmpChecksum) => self.counters.count_drop(DropReason::L4Checksum),
            Err(WireError::Neighbour) => self.counters.count_drop(DropReason::BadDiscovery),
            Err(_) => self.counters.count_drop(DropReason::Malformed),
        }
    }

    #[inline]
    pub(crate) fn receive_tcp(&mut self, turn: &Turn<'_>, frame: &TcpFrame, buffer: P::Buffer) {
        if frame.destination_mac != self.link.own_mac {
            return self.counters.count_drop(DropReason::NotForUs);
        }
        if !self.link.is_our_vlan(frame.vlan) {
            return self.counters.count_drop(DropReason::WrongVlan);
        }
        let good = match buffer.received_checksums().tcp {
            ChecksumStatus::Good => true,
            ChecksumStatus::Bad => false,
            ChecksumStatus::Unknown if buffer.segment_count() == 1 => {
                frame.checksum_is_good(buffer.data(), checksum_sum)
            }
            ChecksumStatus::Unknown => {
                let pieces = (0..buffer.segment_count()).map(|index| buffer.segment(index).unwrap_or(&[]));
                frame.checksum_is_good_chained(pieces, checksum_sum)
            }
        };
        if !good {
            return self.counters.count_drop(DropReason::L4Checksum);
        }
        let mut index = self.connections.find(&frame.flow);
        if index.is_none() {
            if self.link.handoff.is_some()
                && !self.connections.time_wait.contains(&frame.flow)
                && self.link.hand_off(&mut self.counters, &frame.flow, &buffer)
            {
                return;
            }
            // Connections have one of our addresses; this flow has no connection.
            if !self.net.addresses.is_own(frame.flow.local) {
                return self.counters.count_drop(DropReason::WrongAddress);
            }
            self.needs_attention = true;
            index = self.on_stranger(frame);
        }
        let Some((index, mut connection)) = index.and_then(|index| Some((index, self.connections.table.take(index)?)))
        else {
            return;
        };
        self.connections.guess = Some(index);
        if frame.header.flags.contains(TcpFlags::SYN) && connection.tcp.admits_new_incarnation(&frame.header) {
            // The peer reuses the ports of a finished connection (RFC 6191): the new connection replaces it.
            if let Some(old) = connection.tcp.time_wait() {
                self.enter_time_wait(index, connection, old);
            } else {
                connection.gone = true;
                self.put_back(index, connection);
            }
            self.on_stranger(frame);
            return;
        }
        let usual = self.on_segment(turn, index, &mut connection, frame, buffer);
        self.settle_segment(index, connection, usual);
    }

    /// Puts a connection back whose segment was processed. `usual`: nothing happened that changes its state.
    #[inline]
    pub(crate) fn settle_segment(&mut self, index: u32, mut connection: Box<Connection>, usual: bool) {
        if usual && !connection.gone && !connection.quiet {
            connection.look_for_quiet(&mut self.rdma.queue_pairs);
        }
        if connection.gone || usual && connection.quiet && !connection.tcp.wants_transmit(self.now) {
            return self.put_back(index, connection);
        }
        // It is served later in this turn, which also arms its timer.
        connection.schedule(&mut self.connections.ready, index);
        self.connections.table.put(index, connection);
    }

    /// Takes a segment. True: nothing happened that changes the connection's state.
    #[inline]
    fn on_segment(
        &mut self,
        turn: &Turn<'_>,
        index: u32,
        connection: &mut Connection,
        frame: &TcpFrame,
        buffer: P::Buffer,
    ) -> bool {
        let token = self.connections.held.next_token();
        let (mut header, mut payload_len) = (&frame.header, frame.payload_len as u32);
        let bare;
        let waits = connection.awaits_receive();
        // A frame that was joined by LRO or GRO holds several buffers.
        if !self.connections.held.fits(buffer.segment_count(), connection.tcp.out_of_order_buffers(), waits)
            && (waits && payload_len > 0 || connection.tcp.is_ahead(header))
        {
            // No more may be held: data behind a gap counts as lost, but its acknowledgment is processed.
            bare = TcpHeader { flags: header.flags.without(TcpFlags::FIN), ..*header };
            (header, payload_len) = (&bare, 0);
            self.counters.count_drop(DropReason::OutOfOrderBudget);
        }
        let received = connection.tcp.on_segment(self.now, header, payload_len, frame.ecn, token);
        if let Some(reason) = received.drop {
            self.counters.count_drop(drop_reason(reason));
        }
        if received.events.intersects(Events::ESTABLISHED | Events::URGENT) {
            self.on_rare(index, connection, received.events);
        }
        if received.events.intersects(Events::OCTETS_ACKED | Events::FIN_ACKED) {
            connection.acknowledged(&mut self.connections.records);
        }
        match received.payload {
            Payload::InOrder { skip, len } => {
                self.deliver(turn, index, connection, &buffer, frame.payload_offset, skip, len);
                drop(buffer);
                while let Some(held) = connection.tcp.take_in_order() {
                    if let Some(next) = self.connections.held.remove(held.token) {
                        self.deliver(
                            turn,
                            index,
                            connection,
                            &next.buffer,
                            next.payload_offset as usize,
                            held.skip,
                            held.len,
                        );
                    }
                }
            }
            Payload::Held => {
                self.connections.held.insert(HeldFrame { buffer, payload_offset: frame.payload_offset as u32 });
            }
            Payload::None | Payload::Discarded => {}
        }
        while let Some(token) = connection.tcp.drain_discarded() {
            self.connections.held.remove(token);
        }
        if received.events.intersects(
            Events::PEER_FIN
                | Events::RESET
                | Events::CLOSED
                | Events::TIME_WAIT
                | Events::FIN_ACKED
                | Events::TIMED_OUT,
        ) {
            self.on_tcp_end(index, connection, received.events);
            return false;
        }
        !received.events.contains(Events::ESTABLISHED)
    }

    /// Events that must be handled before the segment's octets are delivered.
    #[cold]
    fn on_rare(&mut self, index: u32, connection: &mut Connection, events: Events) {
        if events.contains(Events::ESTABLISHED) {
            self.on_established(index, connection);
        }
        if events.contains(Events::URGENT) {
            self.streams.on_urgent(index, connection);
        }
    }

    /// Delivers octets `skip .. skip + len` of a frame's payload to the layers above.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn deliver(
        &mut self,
        turn: &Turn<'_>,
        index: u32,
        connection: &mut Connection,
        buffer: &P::Buffer,
        payload_offset: usize,
        skip: u32,
        len: u32,
    ) {
        let from = payload_offset + skip as usize;
        let range = from..from + len as usize;
        if buffer.segment_count() == 1 {
            let octets = buffer.data().get(range).unwrap_or(&[]);
            self.on_octets(turn, index, connection, octets);
        } else {
            let mut scratch = std::mem::take(&mut self.link.scratch);
            let octets = contiguous(buffer, &mut scratch).get(range).unwrap_or(&[]);
            self.on_octets(turn, index, connection, octets);
            self.link.scratch = scratch;
        }
    }

    /// Takes octets of the stream, in order.
    #[inline]
    pub(crate) fn on_octets(&mut self, turn: &Turn<'_>, index: u32, connection: &mut Connection, octets: &[u8]) {
        let mut rest = octets;
        while !rest.is_empty() {
            match &mut connection.phase {
                Phase::Running(_) => return self.on_stream(turn, connection, rest),
                Phase::Stream(_) => {
                    let Core { streams, link, counters, now, .. } = self;
                    return streams.on_octets(link, counters, *now, index, connection, rest);
                }
                phase @ (Phase::Closing(_) | Phase::Incoming(_)) => {
                    if let Phase::Closing(closing) = phase {
                        closing.reader.missed();
                    }
                    self.counters.count_drop(DropReason::StreamEnded);
                    if connection.finished && connection.queue_pair.is_none() {
                        // Our side has finished and nobody reads: the peer must learn that its data are discarded.
                        connection.ends_by(DisconnectReason::Aborted);
                        connection.abort(&mut self.link, &mut self.counters, self.now);
                    }
                    return;
                }
                Phase::Initiating(_) | Phase::Responding(_) | Phase::Requested(_) => {
                    let used = self.on_startup_octets(index, connection, rest);
                    rest = &rest[used.min(rest.len())..];
                }
            }
        }
    }

    /// Answers a segment of an unknown flow, see [`Connections::on_stranger`].
    #[cold]
    fn on_stranger(&mut self, frame: &TcpFrame) -> Option<u32> {
        let Core { connections, link, net, counters, config, now, .. } = self;
        let index = connections.on_stranger(link, net, counters, config, *now, frame);
        self.end_connections();
        index
    }
}

impl<P: Port> Link<P> {
    /// Whether a frame with this tag belongs to the port's VLAN. A tag with number 0 carries a priority and no VLAN
    /// (IEEE 802.1Q §9.6).
    #[inline]
    fn is_our_vlan(&self, tag: Option<VlanTag>) -> bool {
        let number = |tag: Option<VlanTag>| tag.map_or(0, VlanTag::identifier);
        (tag.is_none() && self.vlan.is_none()) || number(tag) == number(self.vlan)
    }

    /// Answers a segment that belongs to no connection with a reset.
    #[cold]
    pub(crate) fn send_reset(&mut self, counters: &mut Counters, to_self: bool, frame: &TcpFrame, header: TcpHeader) {
        if frame.flow.remote.is_unspecified() || frame.flow.remote.is_multicast() {
            return;
        }
        if !self.has_room() {
            return;
        }
        if self.send_bare(counters, &frame.flow, frame.source_mac, to_self, header) {
            counters.resets_sent += 1;
        } else {
            counters.count_drop(DropReason::NoTransmitBuffer);
        }
    }
}

/// The engine's counter for a reason of TCP's.
pub(crate) fn drop_reason(reason: uwarp_tcp::DropReason) -> DropReason {
    use uwarp_tcp::DropReason as Tcp;
    match reason {
        Tcp::Duplicate => DropReason::Duplicate,
        Tcp::OutsideWindow => DropReason::OutOfWindow,
        Tcp::OldTimestamp | Tcp::NoTimestamp => DropReason::OldTimestamp,
        Tcp::ResetChallenged | Tcp::SynChallenged => DropReason::Challenged,
        Tcp::AckInvalid => DropReason::BadAcknowledgment,
        Tcp::OutOfOrderBudget => DropReason::OutOfOrderBudget,
        Tcp::DataAfterFin => DropReason::StreamEnded,
        Tcp::Closed | Tcp::ResetInvalid | Tcp::SynInTimeWait | Tcp::NoAck | Tcp::Unexpected => DropReason::BadState,
    }
}
