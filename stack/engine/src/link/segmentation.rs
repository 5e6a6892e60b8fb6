//! Segments that leave as one frame, which the device cuts (TSO).
//!
//! TCP does not know about it: it gives one segment at a time, each a record of its own, and keeps account of each.
//! Consecutive segments of equal size whose headers differ only in the sequence number are put behind one header, as a
//! chain that refers to the records' buffers. So the device cuts where the records end. For RDMA each record is an
//! FPDU, so every segment begins with one, as RFC 5044 §5.1 asks; for that reason records of different sizes are not
//! joined. Retransmissions leave singly.

use arrayvec::ArrayVec;
use uwarp_tcp::{BufferToken, Instant, Slice, Transmit};
use uwarp_wire::checksum::{combine, fold};
use uwarp_wire::tcp::{self, TcpFlags};

use crate::api::counters::Counters;
use crate::connection::slab::BufferStore;
use crate::connection::{Connection, Connections, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::link::transmit::{offloads, write_headers};

/// Most segments of one frame: 64 KiB of segments of 1460 octets.
pub(crate) const MOST: usize = 44;
/// Most octets of payload, so that the packet's length fits its field behind any headers.
const MOST_OCTETS: u32 = 65_535 - 120;

/// Segments that wait to leave as one frame.
#[derive(Debug)]
struct Run {
    first: Transmit,
    tokens: ArrayVec<BufferToken, MOST>,
    /// Octets of each but the last, which may be shorter.
    size: u32,
    octets: u32,
}

/// The payload of a segment that may be joined: a whole record, sent for the first time, without anything special in
/// its header.
fn plain(transmit: &Transmit) -> Option<Slice> {
    let special = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST | TcpFlags::URG | TcpFlags::CWR;
    let usual = !transmit.header.flags.intersects(special) && transmit.header.options.sack.is_empty();
    transmit.payload.filter(|slice| usual && slice.whole_first_transmission && !transmit.retransmission)
}

impl Run {
    fn new(first: Transmit, slice: Slice) -> Run {
        Run { first, tokens: ArrayVec::from_iter([slice.token]), size: slice.len, octets: slice.len }
    }

    /// Adds a segment if it continues the run. `most`: parts of a frame, including that of the headers.
    fn join(&mut self, transmit: &Transmit, slice: Slice, most: usize) -> bool {
        let (ours, theirs) = (&self.first.header, &transmit.header);
        let alike = theirs.flags.without(TcpFlags::PSH) == ours.flags.without(TcpFlags::PSH)
            && theirs.acknowledgment == ours.acknowledgment
            && theirs.window == ours.window
            && theirs.options.timestamps == ours.options.timestamps
            && transmit.ecn == self.first.ecn;
        // A segment that is shorter than the others ends a run.
        let goes_on = self.octets == self.size * self.tokens.len() as u32
            && theirs.sequence == ours.sequence + self.octets
            && slice.len <= self.size
            && self.octets + slice.len <= MOST_OCTETS;
        if !alike || !goes_on || self.tokens.len() + 1 >= most.min(MOST) {
            return false;
        }
        self.tokens.push(slice.token);
        self.octets += slice.len;
        // The device sets these flags on the last segment only.
        self.first.header.flags |= theirs.flags;
        true
    }
}

impl<P: Port> Link<P> {
    /// Sends what TCP has to send, joined as far as the device can cut it. True: there is more to send.
    pub(crate) fn transmit_joined(
        &mut self,
        connections: &mut Connections<P::Buffer>,
        counters: &mut Counters,
        now: Instant,
        connection: &mut Connection,
    ) -> bool {
        let mut budget = self.transmit.frames_each;
        let mut run: Option<Run> = None;
        let more = loop {
            // A run takes one buffer for its headers and one for each segment.
            let parts = run.as_ref().map_or(0, |run| run.tokens.len() + 1);
            if budget == 0 || !self.has_room() {
                break connection.tcp.wants_transmit(now);
            }
            if !self.has_free(parts + 2) {
                connections.starved = true;
                break connection.tcp.wants_transmit(now);
            }
            let Some(transmit) = connection.tcp.poll_transmit(now) else { break false };
            match plain(&transmit) {
                Some(slice) => {
                    let joined = run.as_mut().is_some_and(|run| run.join(&transmit, slice, self.segmentation_parts));
                    if !joined && let Some(full) = run.replace(Run::new(transmit, slice)) {
                        self.emit_run(&mut connections.records, counters, connection, full);
                    }
                }
                None => {
                    if let Some(run) = run.take() {
                        self.emit_run(&mut connections.records, counters, connection, run);
                    }
                    self.emit(&mut connections.records, counters, connection, &transmit);
                }
            }
            if !connection.tcp.wants_transmit(now) {
                break false;
            }
            budget -= 1;
        };
        if let Some(run) = run {
            self.emit_run(&mut connections.records, counters, connection, run);
        }
        more
    }

    fn emit_run(
        &mut self,
        records: &mut BufferStore<Record<P::Buffer>>,
        counters: &mut Counters,
        connection: &Connection,
        run: Run,
    ) {
        if run.tokens.len() == 1 || !self.emit_frame(records, counters, connection, &run) {
            self.emit_singly(records, counters, connection, &run);
        }
    }

    /// Sends the segments of a run singly, each from its own buffer.
    fn emit_singly(
        &mut self,
        records: &mut BufferStore<Record<P::Buffer>>,
        counters: &mut Counters,
        connection: &Connection,
        run: &Run,
    ) {
        let mut left = run.octets;
        for token in &run.tokens {
            let len = left.min(run.size);
            let mut transmit = run.first;
            transmit.header.sequence += run.octets - left;
            left -= len;
            if left > 0 {
                transmit.header.flags = transmit.header.flags.without(TcpFlags::PSH);
            }
            transmit.payload = Some(Slice { token: *token, offset: 0, len, whole_first_transmission: true });
            self.emit(records, counters, connection, &transmit);
        }
    }

    /// Sends a run as one frame. False: buffers are short, and nothing was sent. The caller then sends each segment,
    /// and what is wrong with one is counted there.
    fn emit_frame(
        &mut self,
        records: &mut BufferStore<Record<P::Buffer>>,
        counters: &mut Counters,
        connection: &Connection,
        run: &Run,
    ) -> bool {
        let start = self.payload_start;
        let mut tail: Option<P::Buffer> = None;
        // From the end, so each part is chained once.
        for token in run.tokens.iter().rev() {
            let Some(record) = records.get(*token) else { return false };
            let Some(mut part) = self.port.view(&record.buffer, start, record.length as usize) else {
                return false;
            };
            self.transmit.free_known = self.transmit.free_known.saturating_sub(1);
            if let Some(tail) = tail.take()
                && part.chain(tail).is_err()
            {
                return false;
            }
            tail = Some(part);
        }
        let Some(mut head) = self.alloc() else { return false };
        let Some(storage) = head.storage_mut() else { return false };
        let station = (self.own_mac, self.vlan);
        let headers = write_headers(&mut storage[..start], connection, station, &run.first, run.octets as usize, None);
        let Some(headers) = headers else { return false };
        let mut checksums = offloads(headers, self.vlan, connection.flow.local);
        let ip_at = start - headers + usize::from(checksums.link_length);
        let tcp_at = ip_at + usize::from(checksums.ip_length);
        let field = &mut storage[tcp_at + tcp::CHECKSUM_OFFSET..][..2];
        // The sum of the pseudo-header leaves out the length, which differs between segments.
        let length = u16::from(checksums.tcp_length) as u32 + run.octets;
        let sum = u32::from(u16::from_be_bytes([field[0], field[1]]));
        field.copy_from_slice(&fold(combine(sum, u32::from(!fold(length)))).to_be_bytes());
        if connection.flow.local.is_ipv4() && self.port.capabilities().transmit_ip_checksum {
            // So does the IP header's checksum.
            checksums.ip = true;
            storage[ip_at + 10..ip_at + 12].fill(0);
        }
        checksums.segment_size = run.size as u16;
        head.set_range(start - headers, headers);
        head.set_transmit_checksums(checksums);
        if let Some(tail) = tail
            && head.chain(tail).is_err()
        {
            return false;
        }
        counters.frames_to_be_cut += 1;
        self.enqueue(counters, head, false);
        true
    }
}
