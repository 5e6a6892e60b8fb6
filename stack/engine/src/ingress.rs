//! Received frames: what they are, whose they are, and what TCP says to them.

use uwarp_memory::Turn;
use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::{Events, Payload, reset_for};
use uwarp_wire::WireError;
use uwarp_wire::arp::ArpOperation;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{ArpFrame, Frame, IcmpFrame, Other, TcpFrame, classify};
use uwarp_wire::icmp::IcmpMessage;
use uwarp_wire::tcp::TcpFlags;

use crate::command::{ConnectFailure, DisconnectReason};
use crate::connection::{Connection, Phase};
use crate::core::{Core, HeldFrame, contiguous};
use crate::port::{Buffer, ChecksumStatus, Port};
use crate::stats::DropReason;

/// Window offered while buffers are short, in segments of our MSS: enough to go on, too little to fill a pool.
pub(crate) const SQUEEZED_SEGMENTS: u32 = 4;

impl<P: Port> Core<P> {
    /// Takes one frame.
    #[inline]
    pub(crate) fn receive_frame(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        self.counters.frames_received += 1;
        self.counters.octets_received += buffer.total_len() as u64;
        if buffer.segment_count() == 1 {
            match classify(buffer.data(), buffer.total_len()) {
                Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, frame, buffer),
                other => self.receive_other(other),
            }
        } else {
            self.receive_chain(turn, buffer);
        }
    }

    /// A chain: parsed in place where its headers are in one piece, otherwise in a copy.
    fn receive_chain(&mut self, turn: &Turn<'_>, buffer: P::Buffer) {
        match classify(buffer.data(), buffer.total_len()) {
            Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, frame, buffer),
            Err(WireError::NotContiguous) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let octets = contiguous(&buffer, &mut scratch);
                match classify(octets, octets.len()) {
                    Ok(Frame::Tcp(frame)) => self.receive_tcp(turn, frame, buffer),
                    other => self.receive_other(other),
                }
                self.scratch = scratch;
            }
            other => self.receive_other(other),
        }
    }

    #[cold]
    fn receive_other(&mut self, frame: Result<Frame<'_>, WireError>) {
        match frame {
            Ok(Frame::Arp(frame)) => self.receive_arp(&frame),
            Ok(Frame::Icmp(frame)) => self.receive_icmp(&frame),
            Ok(Frame::Fragment) => self.count_drop(DropReason::Fragment),
            Ok(Frame::Other(Other::EtherType(_) | Other::Protocol(_))) => {
                self.count_drop(DropReason::UnknownProtocol);
            }
            Ok(Frame::Tcp(_)) => {}
            Err(WireError::HeaderChecksum) => self.count_drop(DropReason::IpChecksum),
            Err(WireError::IcmpChecksum) => self.count_drop(DropReason::L4Checksum),
            Err(_) => self.count_drop(DropReason::Malformed),
        }
    }

    #[inline]
    fn receive_tcp(&mut self, turn: &Turn<'_>, frame: TcpFrame, buffer: P::Buffer) {
        if frame.destination_mac != self.own_mac {
            return self.count_drop(DropReason::NotForUs);
        }
        if frame.flow.local != self.own_address {
            return self.count_drop(DropReason::WrongAddress);
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
            return self.count_drop(DropReason::L4Checksum);
        }
        let index = self.find(&frame.flow);
        let Some((index, mut connection)) = index.and_then(|index| Some((index, self.connections.take(index)?))) else {
            if !self.on_stranger(&frame) {
                self.send_reset(&frame);
            }
            return;
        };
        if frame.header.flags.contains(TcpFlags::SYN) && connection.tcp.admits_new_incarnation(&frame.header) {
            // The peer used the ports of a finished connection again (RFC 6191): the new one takes its place.
            connection.gone = true;
            self.put_back(index, connection);
            self.on_stranger(&frame);
            return;
        }
        let usual = self.on_segment(turn, index, &mut connection, &frame, buffer);
        if connection.gone || usual && connection.quiet && !connection.tcp.wants_transmit(self.now) {
            return self.put_back(index, connection);
        }
        // It is served later in this turn, and its timer looked after then.
        Self::schedule(&mut self.ready, index, &mut connection);
        self.connections.put(index, connection);
    }

    /// Takes a segment. True: nothing happened that the state of the connection depends on.
    #[inline]
    fn on_segment(
        &mut self,
        turn: &Turn<'_>,
        index: u32,
        connection: &mut Connection,
        frame: &TcpFrame,
        buffer: P::Buffer,
    ) -> bool {
        let pressed = self.held.len() * 2 > self.held_budget;
        if pressed != connection.squeezed {
            connection.squeezed = pressed;
            let space = connection.owner_space();
            connection.set_receive_space(space, self.tcp_config.mss);
        }
        let token = self.held.next_token();
        let mut header = frame.header;
        let mut payload_len = frame.payload_len as u32;
        if self.held.len() >= self.held_budget && connection.tcp.is_ahead(&header) {
            // No room to hold anything more: what is ahead of a gap counts as lost, its acknowledgment does not.
            header.flags = header.flags.without(TcpFlags::FIN);
            payload_len = 0;
            self.count_drop(DropReason::OutOfOrderBudget);
        }
        let received = connection.tcp.on_segment(self.now, &header, payload_len, frame.ecn, token);
        if let Some(reason) = received.drop {
            self.count_drop(drop_reason(reason));
        }
        if received.events.contains(Events::ESTABLISHED) {
            self.on_established(index, connection);
        }
        if received.events.intersects(Events::RECORDS_ACKED | Events::FIN_ACKED) {
            self.on_acknowledged(connection);
        }
        match received.payload {
            Payload::InOrder { skip, len } => {
                self.deliver(turn, index, connection, &buffer, frame.payload_offset, skip, len);
                drop(buffer);
                while let Some(held) = connection.tcp.take_in_order() {
                    if let Some(next) = self.held.remove(held.token) {
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
                self.held.insert(HeldFrame { buffer, payload_offset: frame.payload_offset as u32 });
            }
            Payload::None | Payload::Discarded => {}
        }
        while let Some(token) = connection.tcp.drain_discarded() {
            self.held.remove(token);
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

    /// Hands octets `skip .. skip + len` of a frame's payload to the layers above.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn deliver(
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
            let mut scratch = std::mem::take(&mut self.scratch);
            let octets = contiguous(buffer, &mut scratch).get(range).unwrap_or(&[]);
            self.on_octets(turn, index, connection, octets);
            self.scratch = scratch;
        }
    }

    /// Octets of the stream in order.
    #[inline]
    pub(crate) fn on_octets(&mut self, turn: &Turn<'_>, index: u32, connection: &mut Connection, octets: &[u8]) {
        let mut rest = octets;
        while !rest.is_empty() {
            match &connection.phase {
                Phase::Running(_) => return self.on_stream(turn, connection, rest),
                Phase::Stream => return self.on_plain_octets(index, connection, rest),
                Phase::Closing | Phase::Incoming(_) => {
                    self.count_drop(DropReason::StreamEnded);
                    if connection.finished && connection.queue_pair.is_none() {
                        // Our side is done and nobody reads: the peer must learn that its data go nowhere.
                        connection.ends_by(DisconnectReason::Aborted);
                        self.abort(connection);
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

    /// Answers a segment that belongs to no connection.
    #[cold]
    fn send_reset(&mut self, frame: &TcpFrame) {
        let Some(header) = reset_for(&frame.header, frame.payload_len as u32) else { return };
        if !self.has_room() {
            return;
        }
        let to_self = frame.flow.remote == self.own_address;
        if self.send_bare(&frame.flow, frame.source_mac, to_self, header) {
            self.counters.resets_sent += 1;
        } else {
            self.count_drop(DropReason::NoTransmitBuffer);
        }
    }

    fn receive_arp(&mut self, frame: &ArpFrame) {
        let packet = &frame.packet;
        let for_us = packet.target_address == self.config.address;
        if frame.destination_mac != self.own_mac && frame.destination_mac != EthernetAddress::BROADCAST {
            return self.count_drop(DropReason::NotForUs);
        }
        // Our own announcement may come back, and a station with our address is not a neighbour.
        if packet.sender_mac == self.own_mac || packet.sender_address == self.config.address {
            return;
        }
        if !packet.is_probe() && packet.sender_mac.is_unicast() {
            self.neighbours.learn(self.now, packet.sender_address, packet.sender_mac.0, for_us);
        }
        if for_us && packet.operation == ArpOperation::Request {
            let reply = packet.reply(self.own_mac);
            self.send_arp(&reply, packet.sender_mac);
        }
    }

    fn receive_icmp(&mut self, frame: &IcmpFrame<'_>) {
        if frame.destination_mac != self.own_mac {
            return self.count_drop(DropReason::NotForUs);
        }
        if frame.destination != self.own_address {
            return self.count_drop(DropReason::WrongAddress);
        }
        match frame.message {
            IcmpMessage::EchoRequest { identifier, sequence, data } => {
                let reply = IcmpMessage::EchoReply { identifier, sequence, data };
                self.send_icmp(frame.source_mac, frame.source, &reply);
            }
            IcmpMessage::DestinationUnreachable { .. } => self.on_icmp_unreachable(&frame.message),
            _ => self.count_drop(DropReason::UnknownProtocol),
        }
    }

    /// A soft error (RFC 5927 §4): it ends an attempt to connect, and nothing else.
    fn on_icmp_unreachable(&mut self, message: &IcmpMessage<'_>) {
        let Some(quoted) = message.quoted_tcp() else { return };
        let Some(index) = self.find(&quoted.flow) else { return };
        let Some(mut connection) = self.connections.take(index) else { return };
        let opening = connection.tcp.state() == uwarp_tcp::State::SynSent;
        if opening && connection.is_opening() {
            self.startup_failed(&mut connection, ConnectFailure::Unreachable);
        }
        self.put_back(index, connection);
    }
}

/// The engine's counter for TCP's reason.
fn drop_reason(reason: uwarp_tcp::DropReason) -> DropReason {
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
