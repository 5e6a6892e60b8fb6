//! From what TCP wants sent to frames on the device's queue.
//!
//! A record that leaves whole gets its headers in front of it, in the headroom of its own buffer, and the device gets a
//! reference of its own. While the device still has one, the headers must not be touched: a retransmission is copied
//! into a fresh buffer then, as is a part of a record.

use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::{BufferToken, Transmit};
use uwarp_wire::address::{FlowKey, IpAddress};
use uwarp_wire::ethernet::{EthernetAddress, HEADER_LEN, VLAN_TAG_LEN, VlanTag};
use uwarp_wire::frame::{Path, TcpChecksum, prepend_tcp};
use uwarp_wire::tcp::{TcpFlags, TcpHeader};
use uwarp_wire::{ipv4, ipv6};

use crate::api::command::{ConnectFailure, DisconnectReason};
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::Connection;
use crate::connection::Record;
use crate::core::Core;
use crate::link::Link;
use crate::link::port::{Buffer, Port, TransmitChecksums};
use crate::link::template::Template;
use crate::net::neighbours::Resolution;

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
            let path = self.link.path(EthernetAddress(connection.mac), connection.flow.local, connection.flow.remote);
            connection.template = Template::new(&path, connection.flow.local_port, connection.flow.remote_port);
        }
        if self.link.segmentation_parts > 2 && !connection.to_self {
            return self.transmit_joined(connection);
        }
        let mut budget = self.link.transmit.frames_each;
        loop {
            if budget == 0 || !self.link.has_room() {
                return connection.tcp.wants_transmit(now);
            }
            if !self.link.has_free(1) {
                let more = connection.tcp.wants_transmit(now);
                self.connections.starved |= more;
                return more;
            }
            if self.config.hot
                && let Some((mut segment, mut slice)) = connection.tcp.next_fresh(now)
            {
                let mut room = connection.tcp.room_for_alike(&segment);
                let mut pattern = None;
                loop {
                    self.emit_fresh(connection, &segment, slice, &mut pattern, room > 0);
                    budget -= 1;
                    if room == 0 || budget == 0 || !self.link.has_room() || !self.link.has_free(1) {
                        break;
                    }
                    let Some(next) = connection.tcp.next_alike(now, &mut segment, &mut room) else { break };
                    slice = next;
                }
                continue;
            }
            // Much cheaper than to ask for a segment that is not there.
            if !connection.tcp.wants_transmit(now) {
                return false;
            }
            // Looked at where it was written: moved, it would be copied first.
            let Some(transmit) = &connection.tcp.poll_transmit(now) else { return false };
            self.emit(connection, transmit);
            budget -= 1;
        }
    }

    /// Makes sure that the next hop's hardware address is known. False: the connection has to wait for it.
    #[inline]
    fn resolve(&mut self, index: u32, connection: &mut Connection) -> bool {
        if connection.epoch == self.net.neighbours.epoch() || connection.to_self {
            return true;
        }
        self.resolve_anew(index, connection)
    }

    #[cold]
    fn resolve_anew(&mut self, index: u32, connection: &mut Connection) -> bool {
        self.counters.neighbour_lookups += 1;
        if self.net.addresses.is_tentative(connection.flow.local) {
            // RFC 4862 §5.4: nothing leaves from an address before it is known to be ours alone.
            self.net.wait_for_address(index, connection);
            return false;
        }
        match self.net.neighbours.resolve(self.now, self.net.addresses.next_hop(connection.flow.remote)) {
            Resolution::Known(mac) => {
                if connection.mac != mac {
                    connection.mac = mac;
                    connection.template = None;
                }
                connection.epoch = self.net.neighbours.epoch();
                true
            }
            // A passive connection has the address that its SYN came from.
            Resolution::Pending | Resolution::Full if connection.epoch != 0 => {
                self.net.flush_requests(&mut self.link, &mut self.counters);
                true
            }
            Resolution::Pending => {
                self.net.wait_for_address(index, connection);
                self.net.flush_requests(&mut self.link, &mut self.counters);
                false
            }
            Resolution::Full => {
                connection.ends_by(DisconnectReason::TimedOut);
                if connection.is_opening() {
                    let (link, rdma, counters) = (&mut self.link, &mut self.rdma, &mut self.counters);
                    connection.fail_startup(link, rdma, counters, self.now, ConnectFailure::Limit);
                }
                false
            }
        }
    }

    /// Makes a frame of one segment.
    #[inline]
    pub(crate) fn emit(&mut self, connection: &Connection, transmit: &Transmit) {
        let Some(slice) = transmit.payload else { return self.emit_bare(connection, transmit) };
        if transmit.retransmission {
            self.counters.retransmissions += 1;
        }
        let start = self.link.payload_start;
        let offload = self.link.offload_tcp && !connection.to_self;
        let Some(record) = self.connections.records.get_mut(slice.token) else { return };
        let whole = slice.offset == 0 && slice.len == record.length;
        if !whole || record.buffer.is_shared() {
            return self.emit_copy(connection, transmit, slice.token, slice.offset, slice.len);
        }
        let sum = if offload {
            None
        } else if self.link.offload_tcp {
            Some(payload_sum(record, start))
        } else {
            Some(record.sum)
        };
        let length = slice.len as usize;
        let Some(storage) = record.buffer.storage_mut() else { return };
        let station = (self.link.own_mac, self.link.vlan);
        let headers = write_headers(&mut storage[..start], connection, station, transmit, length, sum);
        let Some(headers) = headers else { return };
        record.buffer.set_range(start - headers, headers + length);
        if offload {
            record.buffer.set_transmit_checksums(offloads(headers, self.link.vlan, connection.flow.local));
        }
        let frame = record.buffer.share();
        self.link.enqueue(&mut self.counters, frame, connection.to_self);
    }

    /// A segment without payload.
    fn emit_bare(&mut self, connection: &Connection, transmit: &Transmit) {
        let mut header = transmit.header;
        header.source_port = connection.flow.local_port;
        header.destination_port = connection.flow.remote_port;
        if !header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) {
            self.counters.pure_acknowledgments += 1;
        }
        let mac = EthernetAddress(connection.mac);
        self.link.send_bare(&mut self.counters, &connection.flow, mac, connection.to_self, header);
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
        let Some(mut copy) = self.link.alloc() else { return self.count_drop(DropReason::NoTransmitBuffer) };
        let start = self.link.payload_start;
        let offload_tcp = self.link.offload_tcp && !connection.to_self;
        let Some(record) = self.connections.records.get_mut(token) else { return };
        // The frame of the record's buffer may begin with headers of an earlier transmission.
        let from = start - record.buffer.start() + offset as usize;
        let Some(source) = record.buffer.data().get(from..from + length as usize) else { return };
        let Some(storage) = copy.storage_mut() else { return };
        let end = start + source.len();
        let Some(room) = storage.get_mut(start..end) else { return };
        room.copy_from_slice(source);
        let sum = (!offload_tcp).then(|| checksum_sum(room));
        let length = length as usize;
        let station = (self.link.own_mac, self.link.vlan);
        let headers = write_headers(&mut storage[..start], connection, station, transmit, length, sum);
        let Some(headers) = headers else { return };
        copy.set_range(start - headers, headers + length);
        if offload_tcp {
            copy.set_transmit_checksums(offloads(headers, self.link.vlan, connection.flow.local));
        }
        self.link.enqueue(&mut self.counters, copy, connection.to_self);
    }
}

impl<P: Port> Link<P> {
    /// What the headers of a frame of ours say.
    pub(crate) fn path(&self, mac: EthernetAddress, local: IpAddress, remote: IpAddress) -> Path {
        Path { vlan: self.vlan, ..Path::new(self.own_mac, mac, local, remote) }
    }

    /// Sends a segment without payload. False: no buffer.
    #[inline]
    pub(crate) fn send_bare(
        &mut self,
        counters: &mut Counters,
        flow: &FlowKey,
        mac: EthernetAddress,
        to_self: bool,
        header: TcpHeader,
    ) -> bool {
        let Some(mut buffer) = self.alloc() else { return false };
        let path = self.path(mac, flow.local, flow.remote);
        let start = self.payload_start;
        let offload_tcp = self.offload_tcp && !to_self;
        let checksum = checksum(offload_tcp, 0);
        let headers = buffer
            .storage_mut()
            .and_then(|storage| prepend_tcp(&mut storage[..start], &path, &header, 0, 0, checksum).ok());
        let Some(headers) = headers else {
            counters.cannot_be("the headers of a segment do not fit into a fresh buffer");
            return false;
        };
        buffer.set_range(start - headers, headers);
        if offload_tcp {
            buffer.set_transmit_checksums(offloads(headers, self.vlan, flow.local));
        }
        self.enqueue(counters, buffer, to_self);
        true
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, counters: &mut Counters, frame: P::Buffer, to_self: bool) {
        counters.octets_sent += frame.total_len() as u64;
        if to_self {
            counters.frames_sent += 1;
            self.loopback.push_back(frame);
        } else {
            self.transmit.queue.push_back(frame);
        }
    }

    /// Sends a frame that `write` writes, apart from TCP; gives whether it was sent. Nobody waits for such a frame: without room or
    /// a buffer it is dropped.
    pub(crate) fn send_aside(
        &mut self,
        counters: &mut Counters,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        let Some(mut buffer) = self.alloc() else {
            counters.count_drop(DropReason::NoTransmitBuffer);
            return false;
        };
        let start = self.payload_start;
        let Some(length) = buffer.storage_mut().and_then(|storage| write(storage.get_mut(start..)?)) else {
            counters.cannot_be("a frame does not fit into a fresh buffer");
            return false;
        };
        buffer.set_range(start, length);
        self.enqueue(counters, buffer, false);
        true
    }
}

/// Writes the headers of a segment in front of its payload: from the connection's template, or from scratch.
#[inline]
pub(crate) fn write_headers(
    headroom: &mut [u8],
    connection: &Connection,
    station: (EthernetAddress, Option<VlanTag>),
    transmit: &Transmit,
    length: usize,
    sum: Option<u32>,
) -> Option<usize> {
    if let Some(template) = &connection.template
        && let Some(headers) = template.prepend(headroom, &transmit.header, transmit.ecn, length, sum)
    {
        return Some(headers);
    }
    write_unusual_headers(headroom, connection, station, transmit, length, sum)
}

#[cold]
fn write_unusual_headers(
    headroom: &mut [u8],
    connection: &Connection,
    station: (EthernetAddress, Option<VlanTag>),
    transmit: &Transmit,
    length: usize,
    sum: Option<u32>,
) -> Option<usize> {
    let mut header = transmit.header;
    header.source_port = connection.flow.local_port;
    header.destination_port = connection.flow.remote_port;
    let flow = &connection.flow;
    let (own_mac, vlan) = station;
    let path = Path { vlan, ..Path::new(own_mac, EthernetAddress(connection.mac), flow.local, flow.remote) };
    let checksum = checksum(sum.is_none(), sum.unwrap_or(0));
    prepend_tcp(headroom, &path, &header, transmit.ecn, length, checksum).ok()
}

#[inline]
fn checksum(offload: bool, payload_sum: u32) -> TcpChecksum {
    if offload { TcpChecksum::PseudoHeaderOnly } else { TcpChecksum::Full { payload_sum } }
}

/// The IPv4 header's own checksum costs less than asking for it.
#[inline]
pub(crate) fn offloads(headers: usize, vlan: Option<VlanTag>, local: IpAddress) -> TransmitChecksums {
    let link = HEADER_LEN + if vlan.is_some() { VLAN_TAG_LEN } else { 0 };
    let ip = if local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    TransmitChecksums {
        ip: false,
        tcp: true,
        link_length: link as u8,
        ip_length: ip as u16,
        tcp_length: (headers - link - ip) as u8,
        segment_size: 0,
    }
}

/// The sum of a record that was built for a device that computes checksums, and goes another way.
#[cold]
fn payload_sum<B: Buffer>(record: &Record<B>, start: usize) -> u32 {
    let from = start - record.buffer.start();
    record.buffer.data().get(from..from + record.length as usize).map_or(0, checksum_sum)
}
