//! From what TCP wants sent to frames on the device's queue.
//!
//! A record that leaves whole gets its headers in front of it, in the headroom of its own buffer, and the device gets a
//! reference of its own. While the device still has one, the headers must not be touched: a retransmission is copied
//! into a fresh buffer then, as is a part of a record.

use std::net::Ipv4Addr;

use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::{BufferToken, Transmit};
use uwarp_wire::address::{FlowKey, IpAddress};
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Path, TcpChecksum, emit_icmp, prepend_tcp};
use uwarp_wire::icmp::IcmpMessage;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::command::{ConnectFailure, DisconnectReason};
use crate::connection::{Connection, Phase};
use crate::core::{Core, Record};
use crate::neighbours::{Request, Resolution};
use crate::port::{Buffer, Port, TransmitChecksums};
use crate::stats::DropReason;
use crate::template::Template;

/// Length of the Ethernet and IPv4 headers that are written.
const LINK_LENGTH: u8 = 14;
const IP_LENGTH: u16 = 20;

impl<P: Port> Core<P> {
    /// Sends what TCP has to send. True: there is more.
    #[inline]
    pub(crate) fn transmit(&mut self, index: u32, connection: &mut Connection) -> bool {
        let now = self.now;
        if !connection.tcp.wants_transmit(now) {
            return false;
        }
        if !self.resolve(index, connection) {
            return false;
        }
        if connection.template.is_none() {
            let path = self.path(EthernetAddress(connection.mac), connection.flow.remote);
            connection.template = Template::new(&path, connection.flow.local_port, connection.flow.remote_port);
        }
        let mut budget = self.config.budgets.frames_per_connection;
        loop {
            if budget == 0 || !self.has_room() {
                return connection.tcp.wants_transmit(now);
            }
            if !self.has_free(1) {
                self.starved = true;
                return connection.tcp.wants_transmit(now);
            }
            let Some(transmit) = connection.tcp.poll_transmit(now) else { return false };
            self.emit(connection, &transmit);
            // Much cheaper than to ask for a segment that is not there.
            if !connection.tcp.wants_transmit(now) {
                return false;
            }
            budget -= 1;
        }
    }

    /// Makes sure that the next hop's hardware address is known. False: the connection has to wait for it.
    #[inline]
    fn resolve(&mut self, index: u32, connection: &mut Connection) -> bool {
        if connection.epoch == self.neighbours.epoch() || connection.to_self {
            return true;
        }
        self.resolve_anew(index, connection)
    }

    #[cold]
    fn resolve_anew(&mut self, index: u32, connection: &mut Connection) -> bool {
        let remote = Ipv4Addr::from_bits(connection.flow.remote.ipv4_bits());
        match self.neighbours.resolve(self.now, self.next_hop(remote)) {
            Resolution::Known(mac) => {
                connection.mac = mac;
                connection.template = None;
                connection.epoch = self.neighbours.epoch();
                true
            }
            // A passive connection has the address that its SYN came from.
            Resolution::Pending | Resolution::Full if connection.epoch != 0 => {
                self.flush_requests();
                true
            }
            Resolution::Pending => {
                if !connection.unresolved {
                    connection.unresolved = true;
                    self.unresolved.push(index);
                }
                self.flush_requests();
                false
            }
            Resolution::Full => {
                connection.ends_by(DisconnectReason::TimedOut);
                if connection.is_opening() {
                    self.startup_failed(connection, ConnectFailure::Limit);
                }
                false
            }
        }
    }

    fn flush_requests(&mut self) {
        while let Some(request) = self.neighbours.poll_request() {
            self.send_arp_request(request);
        }
    }

    /// A next hop did not answer: attempts to connect through it fail; open connections go on asking until TCP gives up.
    #[cold]
    pub(crate) fn on_unreachable(&mut self, address: Ipv4Addr) {
        let waiting = std::mem::take(&mut self.unresolved);
        for index in waiting {
            let Some(mut connection) = self.connections.take(index) else { continue };
            let remote = Ipv4Addr::from_bits(connection.flow.remote.ipv4_bits());
            if self.next_hop(remote) == address {
                connection.unresolved = false;
                if connection.is_opening() {
                    self.startup_failed(&mut connection, ConnectFailure::Unreachable);
                } else {
                    Self::schedule(&mut self.ready, index, &mut connection);
                }
            } else {
                self.unresolved.push(index);
            }
            self.put_back(index, connection);
        }
    }

    fn path(&self, mac: EthernetAddress, remote: IpAddress) -> Path {
        Path::new(self.own_mac, mac, self.own_address, remote)
    }

    /// Makes a frame of one segment.
    #[inline]
    fn emit(&mut self, connection: &Connection, transmit: &Transmit) {
        let Some(slice) = transmit.payload else { return self.emit_bare(connection, transmit) };
        if transmit.retransmission {
            self.counters.retransmissions += 1;
            if self.config.sabotage.no_retransmission {
                return;
            }
        }
        let start = self.payload_start;
        let offload = self.offload_tcp && !connection.to_self;
        let Some(record) = self.records.get_mut(slice.token) else { return };
        let whole = slice.offset == 0 && slice.len == record.length;
        if !whole || record.buffer.is_shared() {
            return self.emit_copy(connection, transmit, slice.token, slice.offset, slice.len);
        }
        let sum = if offload {
            None
        } else if self.offload_tcp {
            Some(payload_sum(record, start))
        } else {
            Some(record.sum)
        };
        let length = slice.len as usize;
        let Some(storage) = record.buffer.storage_mut() else { return };
        let headers = write_headers(&mut storage[..start], connection, self.own_mac, transmit, length, sum);
        let Some(headers) = headers else { return };
        record.buffer.set_range(start - headers, headers + length);
        if offload {
            record.buffer.set_transmit_checksums(offloads(headers));
        }
        let frame = record.buffer.share();
        self.enqueue(frame, connection.to_self);
    }

    /// A segment without payload.
    fn emit_bare(&mut self, connection: &Connection, transmit: &Transmit) {
        let mut header = transmit.header;
        header.source_port = connection.flow.local_port;
        header.destination_port = connection.flow.remote_port;
        if !header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) {
            self.counters.pure_acknowledgments += 1;
        }
        if transmit.retransmission && self.config.sabotage.no_retransmission {
            return;
        }
        self.send_bare(&connection.flow, EthernetAddress(connection.mac), connection.to_self, header);
    }

    /// A segment that needs a buffer of its own.
    #[cold]
    fn emit_copy(
        &mut self,
        connection: &Connection,
        transmit: &Transmit,
        token: BufferToken,
        offset: u32,
        length: u32,
    ) {
        if transmit.retransmission {
            self.counters.retransmission_copies += 1;
        }
        let Some(mut copy) = self.alloc() else { return self.count_drop(DropReason::NoTransmitBuffer) };
        let start = self.payload_start;
        let offload_tcp = self.offload_tcp && !connection.to_self;
        let Some(record) = self.records.get_mut(token) else { return };
        // The frame of the record's buffer may begin with headers of an earlier transmission.
        let from = start - record.buffer.start() + offset as usize;
        let Some(source) = record.buffer.data().get(from..from + length as usize) else { return };
        let Some(storage) = copy.storage_mut() else { return };
        let end = start + source.len();
        let Some(room) = storage.get_mut(start..end) else { return };
        room.copy_from_slice(source);
        let sum = (!offload_tcp).then(|| checksum_sum(room));
        let length = length as usize;
        let headers = write_headers(&mut storage[..start], connection, self.own_mac, transmit, length, sum);
        let Some(headers) = headers else { return };
        copy.set_range(start - headers, headers + length);
        if offload_tcp {
            copy.set_transmit_checksums(offloads(headers));
        }
        self.enqueue(copy, connection.to_self);
    }

    /// Sends a segment without payload. False: no buffer.
    #[inline]
    pub(crate) fn send_bare(&mut self, flow: &FlowKey, mac: EthernetAddress, to_self: bool, header: TcpHeader) -> bool {
        let Some(mut buffer) = self.alloc() else { return false };
        let path = self.path(mac, flow.remote);
        let start = self.payload_start;
        let offload_tcp = self.offload_tcp && !to_self;
        let Some(storage) = buffer.storage_mut() else { return false };
        let checksum = checksum(offload_tcp, 0);
        let Ok(headers) = prepend_tcp(&mut storage[..start], &path, &header, 0, 0, checksum) else { return false };
        buffer.set_range(start - headers, headers);
        if offload_tcp {
            buffer.set_transmit_checksums(offloads(headers));
        }
        self.enqueue(buffer, to_self);
        true
    }

    #[inline]
    fn enqueue(&mut self, frame: P::Buffer, to_self: bool) {
        self.counters.octets_sent += frame.total_len() as u64;
        if to_self {
            self.counters.frames_sent += 1;
            self.loopback.push_back(frame);
        } else {
            self.transmit_queue.push_back(frame);
        }
    }

    /// Says to everybody on the link who we are.
    pub(crate) fn announce(&mut self) {
        let packet = ArpPacket::announcement(self.own_mac, self.config.address);
        self.send_arp(&packet, EthernetAddress::BROADCAST);
    }

    pub(crate) fn send_arp_request(&mut self, request: Request) {
        let packet = ArpPacket::request(self.own_mac, self.config.address, request.target);
        let destination = request.mac.map_or(EthernetAddress::BROADCAST, EthernetAddress);
        self.send_arp(&packet, destination);
    }

    pub(crate) fn send_arp(&mut self, packet: &ArpPacket, destination: EthernetAddress) {
        if !self.has_room() {
            return;
        }
        let Some(mut buffer) = self.alloc() else { return self.count_drop(DropReason::NoTransmitBuffer) };
        let start = self.payload_start;
        let Some(room) = buffer.storage_mut().and_then(|storage| storage.get_mut(start..)) else { return };
        let Ok(length) = packet.emit_frame(room) else { return };
        room[..6].copy_from_slice(&destination.0);
        buffer.set_range(start, length);
        self.enqueue(buffer, false);
    }

    pub(crate) fn send_icmp(&mut self, mac: EthernetAddress, remote: IpAddress, message: &IcmpMessage<'_>) {
        if !self.has_room() {
            return;
        }
        let Some(mut buffer) = self.alloc() else { return self.count_drop(DropReason::NoTransmitBuffer) };
        let path = self.path(mac, remote);
        let start = self.payload_start;
        let Some(room) = buffer.storage_mut().and_then(|storage| storage.get_mut(start..)) else { return };
        let Ok(length) = emit_icmp(room, &path, message) else { return };
        buffer.set_range(start, length);
        self.enqueue(buffer, false);
    }

    /// The peer has acknowledged more: buffers come back, inbound reads give up their slots.
    #[inline]
    pub(crate) fn on_acknowledged(&mut self, connection: &mut Connection) {
        while let Some(token) = connection.tcp.pop_acknowledged() {
            self.records.remove(token);
        }
        if let Phase::Running(running) = &mut connection.phase {
            running.stream.acknowledged(connection.tcp.octets_acknowledged());
        }
    }
}

/// Writes the headers of a segment in front of its payload: from the connection's template, or from scratch.
#[inline]
fn write_headers(
    headroom: &mut [u8],
    connection: &Connection,
    own_mac: EthernetAddress,
    transmit: &Transmit,
    length: usize,
    sum: Option<u32>,
) -> Option<usize> {
    if let Some(template) = &connection.template
        && let Some(headers) = template.prepend(headroom, &transmit.header, transmit.ecn, length, sum)
    {
        return Some(headers);
    }
    write_unusual_headers(headroom, connection, own_mac, transmit, length, sum)
}

#[cold]
fn write_unusual_headers(
    headroom: &mut [u8],
    connection: &Connection,
    own_mac: EthernetAddress,
    transmit: &Transmit,
    length: usize,
    sum: Option<u32>,
) -> Option<usize> {
    let mut header = transmit.header;
    header.source_port = connection.flow.local_port;
    header.destination_port = connection.flow.remote_port;
    let flow = &connection.flow;
    let path = Path::new(own_mac, EthernetAddress(connection.mac), flow.local, flow.remote);
    let checksum = checksum(sum.is_none(), sum.unwrap_or(0));
    prepend_tcp(headroom, &path, &header, transmit.ecn, length, checksum).ok()
}

#[inline]
fn checksum(offload: bool, payload_sum: u32) -> TcpChecksum {
    if offload { TcpChecksum::PseudoHeaderOnly } else { TcpChecksum::Full { payload_sum } }
}

/// The IPv4 header's own checksum costs less than asking for it.
#[inline]
fn offloads(headers: usize) -> TransmitChecksums {
    TransmitChecksums {
        ip: false,
        tcp: true,
        link_length: LINK_LENGTH,
        ip_length: IP_LENGTH,
        tcp_length: (headers - usize::from(LINK_LENGTH) - usize::from(IP_LENGTH)) as u8,
    }
}

/// The sum of a record that was built for a device that computes checksums, and goes another way.
#[cold]
fn payload_sum<B: Buffer>(record: &Record<B>, start: usize) -> u32 {
    let from = start - record.buffer.start();
    record.buffer.data().get(from..from + record.length as usize).map_or(0, checksum_sum)
}
