//! Posted Sends and Writes that leave in one segment, from their elements to the frame, and frames of other new data.

use uwarp_iwarp::framing::{LENGTH_LEN, fpdu_len};
use uwarp_memory::{Turn, kernels};
use uwarp_tcp::{Slice, Transmit, UsualSegment};
use uwarp_wire::ddp::{Stag, TaggedOffset};

use crate::api::work::{SendElement, SendFlags, SendOpcode};
use crate::connection::phase::Phase;
use crate::connection::{Connection, Record};
use crate::core::Core;
use crate::link::port::{Buffer, Port};
use crate::link::transmit::offloads;
use crate::rdma::choose::{header_len, send_kind};
use crate::rdma::fpdu::Fpdu;
use crate::rdma::lanes::Lanes;
use crate::rdma::packing::Open;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::{Ending, Limit, Running};
use crate::rdma::send::{BALANCE_LIMIT, MESSAGE_COST};

/// A connection whose next message is its own work, and whose FPDUs are records of TCP right away.
#[inline]
fn is_usual(connection: &Connection) -> bool {
    let Phase::Running(running) = &connection.phase else { return false };
    !(connection.gone | connection.to_self)
        && connection.stream.is_none()
        && connection.startup_frame.is_none()
        && connection.template.is_some()
        && running.outgoing.is_none()
        && running.terminate.is_none()
        && !matches!(running.limit, Limit::Pause(_))
        && running.ending == Ending::No
        && !running.transmits_markers()
        && !running.stream.has_response()
        && !running.stream.owes_ready_to_receive()
        && running.stream.may_send_messages()
        && connection.tcp.sends_at_once()
}

/// The next element, if it is a Send or Write of registered memory.
#[inline]
fn next_usual(queue_pair: &mut QueuePair) -> Option<SendElement> {
    const OTHER: SendFlags = SendFlags::INLINE.union(SendFlags::FENCE);
    let element = queue_pair.send.peek_next()?.ok()?;
    (element.opcode.is_send_or_write() && element.flags.0 & OTHER.0 == 0).then_some(element)
}

/// Builds the FPDU of an element; returns its length. `None`: the element's memory is refused.
#[inline]
fn build(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &QueuePair,
    element: &SendElement,
    room: &mut [u8],
) -> Option<usize> {
    let header_len = header_len(element.opcode);
    let place = room.get_mut(LENGTH_LEN..LENGTH_LEN + header_len)?;
    if element.opcode == SendOpcode::Write {
        place.copy_from_slice(&running.stream.whole_write(Stag(element.stag), TaggedOffset(element.remote_offset)));
    } else {
        place.copy_from_slice(&running.stream.whole_send(send_kind(element)));
    }
    let mut fpdu = Fpdu::begin(room, header_len, element.length, running.crc);
    let (mut at, mut index) = (0, 0);
    while let Some(piece) = queue_pair.send.entry(element, index) {
        fpdu.gather(turn, queue_pair.association, piece, &mut at).ok()?;
        index += 1;
    }
    Some(fpdu.end())
}

/// Publishes the completions of elements that are done.
#[inline]
fn complete(lanes: &mut Lanes, acknowledged: u64, queue_pair: &mut QueuePair) {
    while let Some(completion) = queue_pair.send.retire(queue_pair.number, acknowledged) {
        queue_pair.complete_send(lanes, completion);
    }
}

impl<P: Port> Core<P> {
    /// Serves a connection whose posted work fits into one segment that may leave now. False: the general code has to serve
    /// it. If there are FPDUs in `begun` then, their elements are used up, and it goes on with that record.
    #[inline]
    pub(crate) fn serve_hot(&mut self, turn: &Turn<'_>, index: u32, begun: &mut Option<Open<P::Buffer>>) -> bool {
        let Some(connection) = self.connections.table.get_mut(index) else { return false };
        let number = connection.queue_pair.map_or(usize::MAX, |number| number as usize);
        let Some(Some(queue_pair)) = self.rdma.queue_pairs.get_mut(number) else { return false };
        // Most connections without posted work end here, and so do Reads and atomics.
        let Some(mut element) = next_usual(queue_pair) else { return false };
        let link_is_usual = self.link.segmentation_parts <= 2
            && self.link.transmit.frames_each > 0
            && connection.epoch == self.net.neighbours.epoch()
            && self.link.has_room();
        if !link_is_usual || !is_usual(connection) || queue_pair.send.is_cutting() {
            return false;
        }
        let segment = connection.tcp.effective_mss();
        let Phase::Running(running) = &mut connection.phase else { return false };
        let limit = running.mulpdu(segment).min(self.config.iwarp.max_ulpdu);
        let fits = |element: &SendElement, before: usize| {
            let ulpdu_len = header_len(element.opcode) + element.length as usize;
            ulpdu_len <= usize::from(limit) && before + fpdu_len(ulpdu_len) <= segment as usize
        };
        if !fits(&element, 0) || !self.link.has_share(connection.tcp.records()) {
            return false;
        }
        let Some(buffer) = self.link.alloc() else { return false };
        // It is built where it stays: a buffer that is passed on is copied.
        let token = self.connections.records.insert(Record { buffer, length: 0, sum: 0 });
        let Some(record) = self.connections.records.get_mut(token) else { return false };
        let start = self.link.payload_start;
        let storage = record.buffer.storage_mut().and_then(|storage| storage.split_at_mut_checked(start));
        let (headroom, room) = storage.unwrap_or_default();
        let (mut length, pushed) = (0, connection.tcp.octets_pushed());
        let mut is_last = false;
        while let Some(room) = room.get_mut(length..)
            && let Some(octets) = build(turn, running, queue_pair, &element, room)
        {
            running.balance = (-i64::from(element.length) - MESSAGE_COST).max(-BALANCE_LIMIT);
            self.counters.fpdus_sent += 1;
            length += octets;
            let completion = queue_pair.send.finish_whole(&element, queue_pair.number, pushed + length as u64);
            queue_pair.complete_send(&mut self.rdma.lanes, completion);
            match next_usual(queue_pair).filter(|next| fits(next, length)) {
                Some(next) => element = next,
                None => {
                    is_last = !queue_pair.send.has_next();
                    break;
                }
            }
        }
        if is_last && queue_pair.send.begun() > 0 {
            complete(&mut self.rdma.lanes, connection.tcp.octets_acknowledged(), queue_pair);
        }
        if !is_last || queue_pair.overflowed.is_some() {
            *begun = self.connections.records.remove(token).map(|record| Open::begun(record.buffer, length));
            return false;
        }
        // No answer waits, so what was sent alone gives no claim later.
        running.balance = 0;
        connection.scheduled = false;
        connection.quiet = queue_pair.send.is_idle();
        let segment = connection.tcp.send_at_once(self.now, token, length as u32);
        let offload = self.link.offload_tcp;
        let sum = if offload { 0 } else { kernels::checksum_sum(room.get(..length).unwrap_or(&[])) };
        let template = connection.template.as_ref();
        let headers =
            template.and_then(|template| template.prepend_usual(headroom, &segment, (!offload).then_some(sum)));
        debug_assert!(headers.is_some(), "the headroom takes all headers");
        let headers = headers.unwrap_or(0);
        (record.length, record.sum) = (length as u32, sum);
        record.buffer.set_range(start - headers, headers + length);
        if offload {
            record.buffer.set_transmit_checksums(offloads(headers, self.link.vlan, connection.flow.local));
        }
        self.link.transmit.queue.push_back(record.buffer.share());
        if let Some(deadline) = connection.next_deadline() {
            self.connections.wheel.arm(index, deadline);
        }
        self.counters.hot_sent += 1;
        self.counters.octets_sent += (headers + length) as u64;
        if self.connections.ready.is_empty() {
            self.flush();
        }
        true
    }

    /// Makes a frame of new data: of a whole record, in its own buffer.
    #[inline]
    pub(crate) fn emit_fresh(&mut self, connection: &Connection, segment: &UsualSegment, slice: Slice) {
        let start = self.link.payload_start;
        if let Some(record) = self.connections.records.get_mut(slice.token)
            && let Some(template) = connection.template.as_ref().filter(|_| !connection.to_self)
            && slice.len == record.length
            && !record.buffer.is_shared()
            && let Some(headroom) = record.buffer.storage_mut().and_then(|storage| storage.get_mut(..start))
        {
            let offload = self.link.offload_tcp;
            let headers = template.prepend_usual(headroom, segment, (!offload).then_some(record.sum));
            debug_assert!(headers.is_some(), "the headroom takes all headers");
            let headers = headers.unwrap_or(0);
            record.buffer.set_range(start - headers, headers + slice.len as usize);
            if offload {
                let checksums = offloads(headers, self.link.vlan, connection.flow.local);
                record.buffer.set_transmit_checksums(checksums);
            }
            let frame = record.buffer.share();
            self.counters.hot_sent += 1;
            return self.enqueue(frame, false);
        }
        self.emit(connection, &Transmit::fresh(segment, slice));
    }
}
