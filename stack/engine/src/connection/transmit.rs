//! From what TCP wants sent to frames on the device's queue.
//!
//! A record that leaves whole gets its headers in front of it, in the headroom of its own buffer, and the device gets a
//! reference of its own. While the device still has one, the headers must not be touched: a retransmission is copied
//! into a fresh buffer then, as is a part of a record.
//!
//! If the device cuts long frames (TSO), a record may hold several segments, and leave in one frame. For RDMA they are
//! as many FPDUs of one size, so every segment begins with one, as RFC 5044 §5.1 asks. What is lost of it is
//! retransmitted in segments.

use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::{Slice, Transmit, UsualSegment};
use uwarp_wire::ethernet::{EthernetAddress, VlanTag};
use uwarp_wire::frame::{Path, prepend_tcp};
use uwarp_wire::tcp::TcpFlags;

use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::slab::BufferStore;
use crate::connection::{Connection, Connections, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::link::template::{Pattern, Template};
use crate::link::transmit::{checksum, offloads};

impl<P: Port> Link<P> {
    /// Sends what TCP has to send to a next hop that is known. True: there is more.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        connections: &mut Connections<P::Buffer>,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        if connection.next_hop.template.is_none() {
            let path =
                self.path(EthernetAddress(connection.next_hop.mac), connection.flow.local, connection.flow.remote);
            connection.next_hop.template =
                Template::new(&path, connection.flow.local_port, connection.flow.remote_port);
        }
        let records = &mut connections.records;
        let mut budget = self.transmit.frames_each;
        loop {
            if budget == 0 || !self.has_room() {
                return connection.tcp.wants_transmit();
            }
            if !self.has_free(1) {
                let more = connection.tcp.wants_transmit();
                connections.starved |= more;
                return more;
            }
            if common.config.hot
                && let Some((mut segment, mut slice)) = connection.tcp.next_fresh(common.now)
            {
                let mut room = connection.tcp.room_for_alike(&segment);
                let mut pattern = None;
                loop {
                    self.emit_fresh(
                        records,
                        &mut common.counters,
                        connection,
                        (&segment, slice),
                        &mut pattern,
                        room > 0,
                    );
                    budget -= 1;
                    if room == 0 || budget == 0 || !self.has_room() || !self.has_free(1) {
                        break;
                    }
                    let Some(next) = connection.tcp.next_alike(common.now, &mut segment, &mut room) else { break };
                    slice = next;
                }
                continue;
            }
            // Much cheaper than to ask for a segment that is not there.
            if !connection.tcp.wants_transmit() {
                return false;
            }
            // Looked at where it was written: moved, it would be copied first.
            let Some(transmit) = &connection.tcp.poll_transmit(common.now) else { return false };
            self.emit(records, &mut common.counters, connection, transmit);
            budget -= 1;
        }
    }

    /// Makes a frame of new data: of a whole record, in its own buffer. `pattern`: the headers of the segment before,
    /// if this one may differ from it in sequence number, length and flags alone; it becomes those of this segment if
    /// more follow (`goes_on`).
    #[inline]
    fn emit_fresh(
        &mut self,
        records: &mut BufferStore<Record<P::Buffer>>,
        counters: &mut Counters,
        connection: &Connection,
        (segment, slice): (&UsualSegment, Slice),
        pattern: &mut Option<Pattern>,
        goes_on: bool,
    ) {
        let start = self.payload_start;
        if let Some(record) = records.get_mut(slice.token)
            && let Some(template) = connection.next_hop.template.as_ref().filter(|_| !connection.next_hop.to_self)
            && slice.len == u32::from(record.length)
            && !record.buffer.is_shared()
            && let Some(headroom) = record.buffer.storage_mut().and_then(|storage| storage.get_mut(..start))
        {
            let offload = self.offload_tcp;
            let sum = (!offload).then_some(record.sum);
            let headers = match pattern.as_ref().and_then(|pattern| pattern.repeat(headroom, segment, sum)) {
                Some(headers) => headers,
                None => {
                    let Some(headers) = template.prepend_usual(headroom, segment, sum) else {
                        return counters.cannot_be("the headers of a segment do not fit in front of its record");
                    };
                    *pattern = if goes_on { template.pattern(headroom, headers, segment) } else { None };
                    headers
                }
            };
            record.buffer.set_range(start - headers, headers + slice.len as usize);
            if offload {
                self.offload_record(counters, connection, record, headers);
            }
            let frame = record.buffer.share();
            counters.hot_sent += 1;
            return self.enqueue(counters, frame, false);
        }
        self.emit(records, counters, connection, &Transmit::fresh(segment, slice));
    }

    /// Makes a frame of one segment.
    #[inline]
    fn emit(
        &mut self,
        records: &mut BufferStore<Record<P::Buffer>>,
        counters: &mut Counters,
        connection: &Connection,
        transmit: &Transmit,
    ) {
        let Some(slice) = transmit.payload else { return self.emit_bare(counters, connection, transmit) };
        if transmit.retransmission {
            counters.retransmissions += 1;
        }
        let start = self.payload_start;
        let offload = self.offload_tcp && !connection.next_hop.to_self;
        let Some(record) = records.get_mut(slice.token) else {
            return counters.cannot_be("TCP sends a record that is gone");
        };
        let whole = slice.offset == 0 && slice.len == u32::from(record.length);
        if !whole || record.buffer.is_shared() {
            return self.emit_copy(record, counters, connection, transmit, slice);
        }
        let sum = if offload {
            None
        } else if self.offload_tcp {
            let Some(sum) = payload_sum(record, start) else {
                return counters.cannot_be("TCP sends more than a record has");
            };
            Some(sum)
        } else {
            Some(record.sum)
        };
        let length = slice.len as usize;
        let station = (self.own_mac, self.vlan);
        let headers = (record.buffer.storage_mut())
            .and_then(|storage| write_headers(&mut storage[..start], connection, station, transmit, length, sum));
        let Some(headers) = headers else {
            return counters.cannot_be("the headers of a segment do not fit in front of its record");
        };
        record.buffer.set_range(start - headers, headers + length);
        if offload {
            self.offload_record(counters, connection, record, headers);
        }
        let frame = record.buffer.share();
        self.enqueue(counters, frame, connection.next_hop.to_self);
    }

    /// Leaves a whole record, behind so many octets of headers, to the device: its checksum, and to cut it if it is
    /// longer than a segment.
    #[inline]
    fn offload_record(
        &self,
        counters: &mut Counters,
        connection: &Connection,
        record: &mut Record<P::Buffer>,
        headers: usize,
    ) {
        let mut checksums = offloads(headers, self.vlan, connection.flow.local);
        if u32::from(record.length) > connection.tcp.effective_mss() {
            checksums.segment_size = record.segment_size(connection);
            counters.frames_to_be_cut += 1;
        }
        record.buffer.set_transmit_checksums(checksums);
    }

    /// A segment without payload.
    fn emit_bare(&mut self, counters: &mut Counters, connection: &Connection, transmit: &Transmit) {
        let mut header = transmit.header;
        header.source_port = connection.flow.local_port;
        header.destination_port = connection.flow.remote_port;
        if !header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) {
            counters.pure_acknowledgments += 1;
        }
        let mac = EthernetAddress(connection.next_hop.mac);
        self.send_bare(counters, &connection.flow, mac, connection.next_hop.to_self, header);
    }

    /// A segment that needs a buffer of its own.
    #[cold]
    fn emit_copy(
        &mut self,
        record: &Record<P::Buffer>,
        counters: &mut Counters,
        connection: &Connection,
        transmit: &Transmit,
        slice: Slice,
    ) {
        if transmit.retransmission {
            counters.retransmission_copies += 1;
        }
        let Some(mut copy) = self.alloc() else { return counters.count_drop(DropReason::NoTransmitBuffer) };
        let start = self.payload_start;
        let offload_tcp = self.offload_tcp && !connection.next_hop.to_self;
        let length = slice.len as usize;
        // The frame of the record's buffer may begin with headers of an earlier transmission.
        let from = start - record.buffer.start() + slice.offset as usize;
        let Some(source) = record.buffer.data().get(from..from + length) else {
            return counters.cannot_be("TCP sends more than a record has");
        };
        let station = (self.own_mac, self.vlan);
        let headers = copy.storage_mut().and_then(|storage| {
            let room = storage.get_mut(start..start + length)?;
            room.copy_from_slice(source);
            let sum = (!offload_tcp).then(|| checksum_sum(room));
            write_headers(&mut storage[..start], connection, station, transmit, length, sum)
        });
        let Some(headers) = headers else {
            return counters.cannot_be("a segment does not fit into a fresh buffer");
        };
        copy.set_range(start - headers, headers + length);
        if offload_tcp {
            copy.set_transmit_checksums(offloads(headers, self.vlan, connection.flow.local));
        }
        self.enqueue(counters, copy, connection.next_hop.to_self);
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
    if let Some(template) = &connection.next_hop.template
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
    let path = Path { vlan, ..Path::new(own_mac, EthernetAddress(connection.next_hop.mac), flow.local, flow.remote) };
    let checksum = checksum(sum.is_none(), sum.unwrap_or(0));
    prepend_tcp(headroom, &path, &header, transmit.ecn, length, checksum).ok()
}

impl<B> Record<B> {
    /// Octets of a segment that the device cuts out of the record. The path may have shrunk since it was built.
    #[inline]
    fn segment_size(&self, connection: &Connection) -> u16 {
        self.segment.min(connection.tcp.effective_mss() as u16)
    }
}

/// The sum of a record that was built for a device that computes checksums, and goes another way.
#[cold]
fn payload_sum<B: Buffer>(record: &Record<B>, start: usize) -> Option<u32> {
    let from = start - record.buffer.start();
    record.buffer.data().get(from..from + usize::from(record.length)).map(checksum_sum)
}
