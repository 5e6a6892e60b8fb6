//! Posted Sends and Writes that leave in one segment, from their elements to the frame, and frames of other new data.

use std::collections::VecDeque;

use uwarp_iwarp::framing::{LENGTH_LEN, fpdu_len};
use uwarp_memory::{Association, Turn, kernels};
use uwarp_tcp::{Instant, UsualSegment};
use uwarp_wire::address::IpAddress;
use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::rdmap::READ_REQUEST_LEN;

use crate::api::counters::Counters;
use crate::api::work::{SendElement, SendFlags, SendOpcode};
use crate::connection::phase::Phase;
use crate::connection::running::{Outgoing, Running, Source};
use crate::connection::slab::BufferStore;
use crate::connection::wheel::Wheel;
use crate::connection::{Connection, NextHop, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::link::transmit::offloads;
use crate::rdma::choose::{header_len, send_kind};
use crate::rdma::cutting::build_segment;
use crate::rdma::element::UsualElement;
use crate::rdma::fpdu::{Fpdu, SHORT, build_short};
use crate::rdma::lanes::Lanes;
use crate::rdma::operations::begin_read;
use crate::rdma::packing::{Open, Sending};
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::send::{BALANCE_LIMIT, MESSAGE_COST, build_whole};

/// Whether the peer waits for a response that may leave.
#[inline]
fn has_response(connection: &Connection) -> bool {
    matches!(&connection.phase, Phase::Running(running) if running.stream.has_response())
}

/// The next element, if it is a Send or Write of registered memory, or a Read.
#[inline]
fn next_usual(queue_pair: &mut QueuePair) -> Option<SendElement> {
    const OTHER: SendFlags = SendFlags::INLINE.union(SendFlags::FENCE);
    let element = queue_pair.send.peek_next()?.ok()?;
    let is_usual = element.opcode.is_send_or_write() || element.opcode == SendOpcode::Read;
    (is_usual && element.flags.0 & OTHER.0 == 0).then_some(element)
}

/// Octets of the longest ULPDU of a lone element, whose CRC takes one run.
const SHORT_ULPDU: usize = UNTAGGED_HEADER_LEN + SHORT;

/// Builds the FPDU of a lone Send. `None`: its memory is refused.
#[inline(never)]
fn build_lone_send(
    turn: &Turn<'_>,
    running: &mut Running,
    association: Association,
    element: UsualElement<'_>,
    room: &mut [u8],
) -> Option<usize> {
    let header = running.stream.whole_send(send_kind(&element.decode()?));
    build_short(turn, association, header, element.entry(), running.crc, room)
}

/// Builds the request of a Read; returns its length.
#[inline(never)]
fn build_request(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    element: &SendElement,
    room: &mut [u8],
) -> Option<usize> {
    let place = room.get_mut(LENGTH_LEN..)?;
    if !queue_pair.waiting_commits.is_empty() {
        return None;
    }
    let mut message = begin_read(turn, running, queue_pair, element).ok()??;
    let cut = message.cut_into(u16::MAX, place)?;
    Some(Fpdu::begin(room, cut.header_len, 0, running.crc).end())
}

/// Builds the next response if it is to a Read and one FPDU of at most `limit` octets; returns its length and its
/// payload's. If it is a longer one, or its memory is refused, it is the message in transmission now.
#[inline(never)]
fn build_response(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    room: &mut [u8],
    limit: u16,
) -> Option<(usize, u32)> {
    if !(queue_pair.held.is_empty() && queue_pair.waiting_commits.is_empty()) {
        return None;
    }
    let response = running.stream.next_response()?;
    let source = Source::Response { stag: response.source_stag, offset: response.source_offset };
    let mut outgoing = Outgoing { message: response.message, source, tail: None };
    let length = outgoing.message.length();
    if !outgoing.message.continues(limit)
        && let Ok(octets) = build_segment(turn, &mut outgoing, queue_pair, room, limit, running.crc, &mut None)
        && octets > 0
    {
        return Some((octets, length));
    }
    running.outgoing = Some(outgoing);
    None
}

/// Arms a connection's timer.
#[inline(never)]
pub(super) fn arm(wheel: &mut Wheel, connection: &Connection) {
    if let Some(deadline) = connection.next_deadline() {
        wheel.arm(connection.index, deadline);
    }
}

/// The headers of a segment that are in front of its record.
struct Headers {
    octets: usize,
    /// Octets of the record.
    length: usize,
    /// Partial checksum of the record; 0 if the device computes checksums.
    sum: u32,
}

impl<P: Port> Link<P> {
    /// Whether a frame for this next hop may be made without cutting it. `epoch`: the neighbours' addresses that are
    /// known now.
    #[inline]
    fn takes_frame(&self, next_hop: &NextHop, epoch: u32) -> bool {
        next_hop.epoch == epoch && self.transmit.frames_each > 0 && self.has_room()
    }

    /// Writes the headers of a segment, whose payload is a whole record and begins `room`, to the end of `headroom`.
    #[inline(always)]
    fn prepend(&self, connection: &Connection, segment: &UsualSegment, headroom: &mut [u8], room: &[u8]) -> Headers {
        let payload = room.get(..segment.len as usize).unwrap_or(&[]);
        let sum = if self.offload_tcp { 0 } else { kernels::checksum_sum(payload) };
        let template = connection.next_hop.template.as_ref();
        let sum_if_needed = (!self.offload_tcp).then_some(sum);
        let octets = template.and_then(|template| template.prepend_usual(headroom, segment, sum_if_needed));
        Headers { octets: octets.unwrap_or(0), length: segment.len as usize, sum }
    }

    /// The frame of a record that leaves at once.
    #[inline(always)]
    fn frame_of(&self, record: &mut Record<P::Buffer>, headers: &Headers, local: IpAddress) -> P::Buffer {
        let Headers { octets, length, sum } = *headers;
        (record.length, record.segment, record.sum) = (length as u16, u16::MAX, sum);
        record.buffer.set_range(self.payload_start - octets, octets + length);
        if self.offload_tcp {
            record.buffer.set_transmit_checksums(offloads(octets, self.vlan, local));
        }
        record.buffer.share()
    }
}

impl Counters {
    /// Counts a frame that a short way sends.
    #[inline(always)]
    fn sent_at_once(&mut self, headers: &Headers) {
        if headers.octets == 0 {
            self.cannot_be("the headers of a segment do not fit in front of its record");
        }
        self.hot_sent += 1;
        self.octets_sent += (headers.octets + headers.length) as u64;
    }
}

impl<P: Port> Sending<'_, P> {
    /// Hands TCP the open record, behind which nothing follows, and has its frame leave at once. False: it may not.
    /// `epoch`: the neighbours' addresses that are known now.
    #[inline]
    pub(crate) fn send_open(&mut self, epoch: u32) -> bool {
        let Sending { link, records, common, connection, open, .. } = self;
        let leaves = |open: &mut Open<_>| {
            link.takes_frame(&connection.next_hop, epoch)
                && !connection.next_hop.to_self
                && connection.next_hop.template.is_some()
                && open.is_new()
                && (1..=connection.tcp.effective_mss() as usize).contains(&open.length())
                && connection.tcp.sends_at_once()
                && link.has_free(1)
        };
        let Some((buffer, length)) = open.take_if(leaves).and_then(Open::into_new) else { return false };
        let (token, record) = records.place(Record::new(buffer));
        let storage = record.buffer.storage_mut().and_then(|storage| storage.split_at_mut_checked(link.payload_start));
        let (headroom, room) = storage.unwrap_or_default();
        let segment = connection.tcp.send_at_once(common.now, token, length as u32);
        let headers = link.prepend(connection, &segment, headroom, room);
        let frame = link.frame_of(record, &headers, connection.flow.local);
        link.transmit.queue.push_back(frame);
        common.counters.sent_at_once(&headers);
        true
    }
}

/// A connection that a short way serves, and what its messages touch.
pub(crate) struct Served<'a> {
    pub(crate) turn: &'a Turn<'a>,
    pub(crate) connection: &'a mut Connection,
    pub(crate) queue_pair: &'a mut QueuePair,
    pub(crate) lanes: &'a mut Lanes,
    pub(crate) counters: &'a mut Counters,
}

/// What was built into a record.
#[derive(Default)]
struct Built {
    /// Octets.
    length: usize,
    /// Nothing else is to be sent.
    is_last: bool,
}

impl Built {
    /// All that is to be sent. No answer waits, so what was sent alone gives no claim later.
    #[inline(always)]
    fn last(running: &mut Running, length: usize) -> Built {
        running.balance = 0;
        Built { length, is_last: true }
    }
}

/// What a short way sends.
trait Work {
    /// Builds it. Nothing: its memory is refused, or it has to wait.
    fn build(self, served: &mut Served<'_>, room: &mut [u8]) -> Built;
}

/// The lone element, a short Send or Write of one entry.
struct Lone;

impl Work for Lone {
    #[inline(always)]
    fn build(self, served: &mut Served<'_>, room: &mut [u8]) -> Built {
        let Served { turn, connection, queue_pair, lanes, counters } = served;
        let Phase::Running(running) = &mut connection.phase else { return Built::default() };
        let Some(element) = queue_pair.send.next_slot().map(UsualElement::of) else { return Built::default() };
        let flags = element.flags();
        let built = if element.is_write() {
            let header = running.stream.whole_write(Stag(element.stag()), TaggedOffset(element.remote_offset()));
            build_short(turn, queue_pair.association, header, element.entry(), running.crc, room)
        } else {
            build_lone_send(turn, running, queue_pair.association, element, room)
        };
        let Some(length) = built else { return Built::default() };
        counters.fpdus_sent += 1;
        let position = || connection.tcp.octets_pushed() + length as u64;
        let completion = queue_pair.send.finish_lone(flags, queue_pair.number, position);
        queue_pair.complete_send(lanes, completion);
        // What is posted from now on comes with a doorbell.
        Built::last(running, length)
    }
}

/// Elements that share a segment.
struct Several {
    first: SendElement,
    /// Octets of the longest ULPDU.
    limit: u16,
    /// Octets of the segment.
    segment: usize,
}

impl Several {
    /// Whether an element's FPDU fits behind so many octets of others.
    #[inline(always)]
    fn fit(&self, element: &SendElement, before: usize) -> bool {
        let ulpdu_len = match element.opcode {
            SendOpcode::Read => UNTAGGED_HEADER_LEN + READ_REQUEST_LEN,
            opcode => header_len(opcode) + element.length as usize,
        };
        ulpdu_len <= usize::from(self.limit) && before + fpdu_len(ulpdu_len) <= self.segment
    }
}

impl Work for Several {
    #[inline(always)]
    fn build(self, served: &mut Served<'_>, room: &mut [u8]) -> Built {
        let Served { turn, connection, queue_pair, lanes, counters } = served;
        let Phase::Running(running) = &mut connection.phase else { return Built::default() };
        let (pushed, mut length) = (connection.tcp.octets_pushed(), 0);
        let mut next = Some(self.first);
        while let Some(element) = &next
            && let Some(room) = room.get_mut(length..)
            && let Some(octets) = match element.opcode {
                SendOpcode::Read => build_request(turn, running, queue_pair, element, room),
                _ => build_whole(turn, running, queue_pair, element, room).ok(),
            }
        {
            let payload = if element.opcode == SendOpcode::Read { 0 } else { element.length };
            running.balance = (-i64::from(payload) - MESSAGE_COST).max(-BALANCE_LIMIT);
            counters.fpdus_sent += 1;
            length += octets;
            let position = pushed + length as u64;
            let completion = queue_pair.send.finish_whole(element, queue_pair.number, position);
            queue_pair.complete_send(lanes, completion);
            // A last look at what was posted meanwhile.
            if !queue_pair.send.look_for_next() {
                return Built::last(running, length);
            }
            let following = next_usual(queue_pair);
            next = following.filter(|element| self.fit(element, length));
        }
        Built { length, is_last: false }
    }
}

/// The next response, if it is to a Read and one FPDU. If it is a longer one, or its memory is refused, it is the
/// message in transmission then.
struct Response {
    /// Octets of the longest ULPDU.
    limit: u16,
}

impl Work for Response {
    #[inline(always)]
    fn build(self, served: &mut Served<'_>, room: &mut [u8]) -> Built {
        let Served { turn, connection, queue_pair, counters, .. } = served;
        let Phase::Running(running) = &mut connection.phase else { return Built::default() };
        let Some((length, payload)) = build_response(turn, running, queue_pair, room, self.limit) else {
            return Built::default();
        };
        running.stream.response_sent(connection.tcp.octets_pushed() + length as u64);
        running.balance = (running.balance + i64::from(payload) + MESSAGE_COST).min(BALANCE_LIMIT);
        counters.fpdus_sent += 1;
        if running.stream.has_response() || queue_pair.send.peek_next().is_some() {
            return Built { length, is_last: false };
        }
        Built::last(running, length)
    }
}

/// The visit of a short way to a connection, for posted work or responses.
pub(crate) struct Visit<'a, P: Port> {
    pub(crate) served: Served<'a>,
    /// The connection's mark, see [`Slab::get_with_mark`](crate::connection::slab::Slab::get_with_mark).
    pub(crate) known_usual: &'a mut bool,
    pub(crate) now: Instant,
    /// The neighbours' addresses that are known now.
    pub(crate) epoch: u32,
    pub(crate) link: &'a mut Link<P>,
    pub(crate) records: &'a mut BufferStore<Record<P::Buffer>>,
    pub(crate) wheel: &'a mut Wheel,
    /// Connections that are served next.
    pub(crate) ready: &'a VecDeque<u32>,
    pub(crate) max_ulpdu: u16,
}

impl<P: Port> Visit<'_, P> {
    /// Serves a connection whose posted Send or Write of one entry fits into one segment that may leave now. False: the
    /// other short ways, or the general code, have to serve it. If there is a record in `begun` then, what it carries
    /// is used up, and the general code goes on with it.
    #[inline(always)]
    pub(crate) fn serve_lone(mut self, begun: &mut Option<Open<P::Buffer>>) -> bool {
        let Served { connection, queue_pair, .. } = &mut self.served;
        // Most connections without posted work end here, and so do atomics.
        if !queue_pair.send.has_lone() || queue_pair.send.lone(SHORT as u32).is_none() || has_response(connection) {
            return false;
        }
        let fits =
            self.max_ulpdu >= SHORT_ULPDU as u16 && connection.tcp.effective_mss() >= fpdu_len(SHORT_ULPDU) as u32;
        fits && self.may_send() && self.send(begun, Lone)
    }

    /// The same for posted work that shares a segment.
    #[inline(always)]
    pub(crate) fn serve_several(mut self, begun: &mut Option<Open<P::Buffer>>) -> bool {
        let Some(first) = next_usual(self.served.queue_pair) else { return false };
        let Some(limit) = self.limit().filter(|_| !has_response(self.served.connection)) else { return false };
        let several = Several { first, limit, segment: self.served.connection.tcp.effective_mss() as usize };
        several.fit(&first, 0) && self.may_send() && self.send(begun, several)
    }

    /// The same for a response to a Read.
    #[inline(always)]
    pub(crate) fn serve_response(mut self, begun: &mut Option<Open<P::Buffer>>) -> bool {
        if self.served.queue_pair.send.peek_next().is_some() || !has_response(self.served.connection) {
            return false;
        }
        let Some(limit) = self.limit() else { return false };
        self.may_send() && self.send(begun, Response { limit })
    }

    /// The longest ULPDU that is built now.
    #[inline(always)]
    fn limit(&self) -> Option<u16> {
        let Connection { phase: Phase::Running(running), tcp, .. } = &*self.served.connection else { return None };
        Some(running.mulpdu(tcp.effective_mss()).min(self.max_ulpdu))
    }

    /// Whether the connection is in the usual state and a segment may leave now.
    #[inline(always)]
    fn may_send(&mut self) -> bool {
        let Served { connection, queue_pair, .. } = &self.served;
        if !self.link.takes_frame(&connection.next_hop, self.epoch)
            || !(*self.known_usual || connection.is_usual())
            || queue_pair.send.is_cutting()
        {
            return false;
        }
        // The short ways leave it so.
        debug_assert!(connection.is_usual());
        connection.tcp.has_room_for_segment() && self.link.has_share(connection.tcp.records())
    }

    /// Sends what is built in a fresh buffer, if that is all that is to be sent; otherwise it is in `begun`.
    #[inline(always)]
    fn send(self, begun: &mut Option<Open<P::Buffer>>, work: impl Work) -> bool {
        let Visit { mut served, known_usual, now, link, records, wheel, ready, .. } = self;
        // It is built where it stays: a buffer that is passed on is copied.
        let fresh = || link.alloc().map(Record::new);
        let Some((token, record)) = records.place_kept(fresh) else { return false };
        let storage = record.buffer.storage_mut().and_then(|storage| storage.split_at_mut_checked(link.payload_start));
        let (headroom, room) = storage.unwrap_or_default();
        let Built { length, is_last } = work.build(&mut served, room);
        let Served { connection, queue_pair, lanes, counters, .. } = served;
        if is_last && queue_pair.send.begun() > 0 {
            queue_pair.retire(lanes, connection.tcp.octets_acknowledged());
        }
        if !is_last || queue_pair.overflowed.is_some() {
            *begun = records.remove(token).map(|record| Open::begun(record.buffer, length));
            return false;
        }
        connection.scheduled = false;
        connection.quiet = queue_pair.send.is_known_idle();
        let segment = connection.tcp.send_at_once(now, token, length as u32);
        let headers = link.prepend(connection, &segment, headroom, room);
        let frame = link.frame_of(record, &headers, connection.flow.local);
        if !*known_usual {
            arm(wheel, connection);
            // Its entry fires before any timer that the short ways start from now on, and then the mark goes.
            *known_usual = wheel.fires_by(connection.index, connection.tcp.soonest_timer(now));
        }
        debug_assert!(connection.next_deadline().is_none_or(|at| wheel.is_armed_for(connection.index, at)));
        counters.sent_at_once(&headers);
        if ready.is_empty() {
            counters.frames_sent += link.send(frame) as u64;
        } else {
            link.transmit.queue.push_back(frame);
        }
        true
    }
}
