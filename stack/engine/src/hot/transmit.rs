//! Posted Sends and Writes that leave in one segment, from their elements to the frame, and frames of other new data.

use uwarp_iwarp::framing::{LENGTH_LEN, fpdu_len};
use uwarp_memory::{Association, Turn, kernels};
use uwarp_tcp::{BufferToken, Instant};
use uwarp_wire::address::IpAddress;
use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::rdmap::READ_REQUEST_LEN;

use crate::api::counters::Counters;
use crate::api::work::{SendElement, SendFlags, SendOpcode};
use crate::connection::phase::Phase;
use crate::connection::running::{Outgoing, Running, Source};
use crate::connection::wheel::Wheel;
use crate::connection::{Connection, Connections, NextHop, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::link::transmit::offloads;
use crate::rdma::Rdma;
use crate::rdma::choose::{header_len, send_kind};
use crate::rdma::cutting::build_segment;
use crate::rdma::element::UsualElement;
use crate::rdma::fpdu::{Fpdu, SHORT, build_short};
use crate::rdma::operations::begin_read;
use crate::rdma::packing::Open;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::send::{BALANCE_LIMIT, MESSAGE_COST};

/// What a short way serves: one posted Send or Write of one entry,
const LONE: u8 = 0;
/// posted work that shares a segment,
const SEVERAL: u8 = 1;
/// or a response to a Read.
const RESPONSE: u8 = 2;

/// Whether the peer waits for a response that may leave.
#[inline]
fn has_response(connection: &Connection) -> bool {
    matches!(&connection.phase, Phase::Running(running) if running.stream.has_response())
}

/// Whether a record of so many octets is a segment.
#[inline]
fn is_segment(length: usize, connection: &Connection) -> bool {
    length > 0 && length <= connection.tcp.effective_mss() as usize
}

/// The next element, if it is a Send or Write of registered memory, or a Read.
#[inline]
fn next_usual(queue_pair: &mut QueuePair) -> Option<SendElement> {
    const OTHER: SendFlags = SendFlags::INLINE.union(SendFlags::FENCE);
    let element = queue_pair.send.peek_next()?.ok()?;
    let is_usual = element.opcode.is_send_or_write() || element.opcode == SendOpcode::Read;
    (is_usual && element.flags.0 & OTHER.0 == 0).then_some(element)
}

/// Octets of an element's ULPDU if it is one.
#[inline]
fn ulpdu_len(element: &SendElement) -> usize {
    match element.opcode {
        SendOpcode::Read => UNTAGGED_HEADER_LEN + READ_REQUEST_LEN,
        opcode => header_len(opcode) + element.length as usize,
    }
}

/// Builds the FPDU of an element; returns its length. `None`: the element's memory is refused, or a Read has to wait.
#[inline(always)]
fn build(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    element: &SendElement,
    room: &mut [u8],
) -> Option<usize> {
    if element.opcode == SendOpcode::Read {
        return build_request(turn, running, queue_pair, element, room);
    }
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

/// Octets of the longest ULPDU of a lone element, whose CRC takes one run.
const SHORT_ULPDU: usize = UNTAGGED_HEADER_LEN + SHORT;

/// Builds the FPDU of a lone element; returns its length. `None`: the element's memory is refused.
#[inline(always)]
fn build_lone(
    turn: &Turn<'_>,
    running: &mut Running,
    association: Association,
    element: UsualElement<'_>,
    room: &mut [u8],
) -> Option<usize> {
    let entry = element.entry();
    if element.is_write() {
        let header = running.stream.whole_write(Stag(element.stag()), TaggedOffset(element.remote_offset()));
        return build_short(turn, association, header, entry, running.crc, room);
    }
    build_lone_send(turn, running, association, element, room)
}

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
pub(super) fn arm(wheel: &mut Wheel, index: u32, connection: &Connection) {
    if let Some(deadline) = connection.next_deadline() {
        wheel.arm(index, deadline);
    }
}

/// A segment whose headers are in front of its record.
struct Sent {
    headers: usize,
    length: usize,
    /// Partial checksum of the record; 0 if the device computes checksums.
    sum: u32,
}

impl Sent {
    /// Octets of the frame.
    #[inline(always)]
    fn octets(&self) -> u64 {
        (self.headers + self.length) as u64
    }
}

/// Hands TCP a record of `payload`, which leaves at once, and writes the headers of its segment to the end of
/// `headroom`.
#[inline(always)]
fn send_at_once(
    counters: &mut Counters,
    connection: &mut Connection,
    now: Instant,
    offload: bool,
    token: BufferToken,
    headroom: &mut [u8],
    payload: &[u8],
) -> Sent {
    let segment = connection.tcp.send_at_once(now, token, payload.len() as u32);
    let sum = if offload { 0 } else { kernels::checksum_sum(payload) };
    let headers = match &connection.next_hop.template {
        Some(template) => template.prepend_usual(headroom, &segment, (!offload).then_some(sum)),
        None => None,
    };
    if headers.is_none() {
        counters.cannot_be("the headers of a segment do not fit in front of its record");
    }
    Sent { headers: headers.unwrap_or(0), length: payload.len(), sum }
}

impl<P: Port> Link<P> {
    /// Whether a frame for this next hop may be made without cutting it. `epoch`: the neighbours' addresses that are
    /// known now.
    #[inline]
    fn takes_frame(&self, next_hop: &NextHop, epoch: u32) -> bool {
        next_hop.epoch == epoch && self.transmit.frames_each > 0 && self.has_room()
    }

    /// The frame of a record that leaves at once.
    #[inline(always)]
    fn frame_of(&self, record: &mut Record<P::Buffer>, sent: &Sent, local: IpAddress) -> P::Buffer {
        (record.length, record.segment, record.sum) = (sent.length as u16, u16::MAX, sent.sum);
        record.buffer.set_range(self.payload_start - sent.headers, sent.headers + sent.length);
        if self.offload_tcp {
            record.buffer.set_transmit_checksums(offloads(sent.headers, self.vlan, local));
        }
        record.buffer.share()
    }
}

/// The short ways of work, and what they touch.
pub(crate) struct Serving<'a, P: Port> {
    pub(crate) now: Instant,
    /// The neighbours' addresses that are known now.
    pub(crate) epoch: u32,
    pub(crate) link: &'a mut Link<P>,
    pub(crate) connections: &'a mut Connections<P::Buffer>,
    pub(crate) rdma: &'a mut Rdma,
    pub(crate) counters: &'a mut Counters,
}

impl<P: Port> Serving<'_, P> {
    /// Hands TCP a record behind which nothing follows. Gives it back if its frame may not leave at once.
    #[inline]
    pub(crate) fn send_open(
        self,
        connection: &mut Connection,
        open: Option<Open<P::Buffer>>,
    ) -> Option<Open<P::Buffer>> {
        let open = open?;
        let leaves = self.link.takes_frame(&connection.next_hop, self.epoch)
            && !connection.next_hop.to_self
            && connection.next_hop.template.is_some()
            && open.is_new()
            && is_segment(open.length(), connection)
            && connection.tcp.sends_at_once()
            && self.link.has_free(1);
        if !leaves {
            return Some(open);
        }
        let (buffer, length) = open.into_new()?;
        let (token, record) = self.connections.records.place(Record::new(buffer));
        let start = self.link.payload_start;
        let storage = record.buffer.storage_mut().and_then(|storage| storage.split_at_mut_checked(start));
        let (headroom, room) = storage.unwrap_or_default();
        let payload = room.get(..length).unwrap_or(&[]);
        let sent = send_at_once(self.counters, connection, self.now, self.link.offload_tcp, token, headroom, payload);
        let frame = self.link.frame_of(record, &sent, connection.flow.local);
        self.link.transmit.queue.push_back(frame);
        self.counters.octets_sent += sent.octets();
        self.counters.hot_sent += 1;
        None
    }

    /// Serves a connection whose posted Send or Write of one entry fits into one segment that may leave now. False: the
    /// other short ways, or the general code, have to serve it. If there are FPDUs in `begun` then, what they carry is
    /// used up, and the general code goes on with that record.
    #[inline(always)]
    pub(crate) fn serve_lone(self, turn: &Turn<'_>, index: u32, begun: &mut Option<Open<P::Buffer>>) -> bool {
        self.serve_short::<LONE>(turn, index, begun)
    }

    /// The same for posted work that shares a segment.
    #[inline(always)]
    pub(crate) fn serve_several(self, turn: &Turn<'_>, index: u32, begun: &mut Option<Open<P::Buffer>>) -> bool {
        self.serve_short::<SEVERAL>(turn, index, begun)
    }

    /// The same for a response to a Read.
    #[inline(always)]
    pub(crate) fn serve_response(self, turn: &Turn<'_>, index: u32, begun: &mut Option<Open<P::Buffer>>) -> bool {
        self.serve_short::<RESPONSE>(turn, index, begun)
    }

    /// Serves a connection that has nothing else to send but `WHAT`.
    #[inline(always)]
    fn serve_short<const WHAT: u8>(self, turn: &Turn<'_>, index: u32, begun: &mut Option<Open<P::Buffer>>) -> bool {
        let Some((connection, known_usual)) = self.connections.table.get_with_mark(index) else { return false };
        let number = connection.queue_pair.map_or(usize::MAX, |number| number as usize);
        let Some(Some(queue_pair)) = self.rdma.queue_pairs.get_mut(number) else { return false };
        // Most connections without posted work end here, and so do atomics.
        let next = if WHAT == SEVERAL { next_usual(queue_pair) } else { None };
        let has_it = match WHAT {
            LONE => queue_pair.send.has_lone(),
            SEVERAL => next.is_some(),
            _ => queue_pair.send.peek_next().is_none(),
        };
        let lone = if WHAT == LONE && has_it { queue_pair.send.lone(SHORT as u32) } else { None };
        let has_it = has_it && lone.is_some() == (WHAT == LONE);
        if !has_it || has_response(connection) != (WHAT == RESPONSE) {
            return false;
        }
        if !self.link.takes_frame(&connection.next_hop, self.epoch)
            || !(*known_usual || connection.is_usual())
            || queue_pair.send.is_cutting()
        {
            return false;
        }
        // The short ways leave it so.
        debug_assert!(connection.is_usual());
        if !connection.tcp.has_room_for_segment() {
            return false;
        }
        let segment = connection.tcp.effective_mss();
        let Phase::Running(running) = &mut connection.phase else { return false };
        let max_ulpdu = self.rdma.config.max_ulpdu;
        if WHAT == LONE && (max_ulpdu < SHORT_ULPDU as u16 || segment < fpdu_len(SHORT_ULPDU) as u32) {
            return false;
        }
        let limit = running.mulpdu(segment).min(max_ulpdu);
        let fits = |element: &SendElement, before: usize| {
            let ulpdu_len = ulpdu_len(element);
            ulpdu_len <= usize::from(limit) && before + fpdu_len(ulpdu_len) <= segment as usize
        };
        let is_short = next.as_ref().is_none_or(|element| fits(element, 0));
        if !is_short || !self.link.has_share(connection.tcp.records()) {
            return false;
        }
        // It is built where it stays: a buffer that is passed on is copied.
        let fresh = || self.link.alloc().map(Record::new);
        let Some((token, record)) = self.connections.records.place_kept(fresh) else { return false };
        let start = self.link.payload_start;
        let storage = record.buffer.storage_mut().and_then(|storage| storage.split_at_mut_checked(start));
        let (headroom, room) = storage.unwrap_or_default();
        let (mut length, pushed) = (0, connection.tcp.octets_pushed());
        let mut is_last = false;
        if WHAT == LONE
            && let Some(element) = lone
            && let flags = element.flags()
            && let Some(octets) = build_lone(turn, running, queue_pair.association, element, room)
        {
            // What is posted from now on comes with a doorbell.
            is_last = true;
            length = octets;
            self.counters.fpdus_sent += 1;
            let position = || connection.tcp.octets_pushed() + octets as u64;
            let completion = queue_pair.send.finish_lone(flags, queue_pair.number, position);
            queue_pair.complete_send(&mut self.rdma.lanes, completion);
        }
        if WHAT == RESPONSE
            && let Some((octets, payload)) = build_response(turn, running, queue_pair, room, limit)
        {
            running.stream.response_sent(pushed + octets as u64);
            running.balance = (running.balance + i64::from(payload) + MESSAGE_COST).min(BALANCE_LIMIT);
            self.counters.fpdus_sent += 1;
            length = octets;
            is_last = !running.stream.has_response() && queue_pair.send.peek_next().is_none();
        }
        let mut element = next;
        while WHAT == SEVERAL
            && let Some(built) = &element
            && let Some(room) = room.get_mut(length..)
            && let Some(octets) = build(turn, running, queue_pair, built, room)
        {
            let payload = if built.opcode == SendOpcode::Read { 0 } else { built.length };
            running.balance = (-i64::from(payload) - MESSAGE_COST).max(-BALANCE_LIMIT);
            self.counters.fpdus_sent += 1;
            length += octets;
            let completion = queue_pair.send.finish_whole(built, queue_pair.number, pushed + length as u64);
            queue_pair.complete_send(&mut self.rdma.lanes, completion);
            // A last look at what was posted meanwhile.
            is_last = !queue_pair.send.look_for_next();
            element = if is_last { None } else { next_usual(queue_pair).filter(|next| fits(next, length)) };
        }
        if is_last && queue_pair.send.begun() > 0 {
            queue_pair.retire(&mut self.rdma.lanes, connection.tcp.octets_acknowledged());
        }
        if !is_last || queue_pair.overflowed.is_some() {
            let record = self.connections.records.remove(token);
            // Nothing was built of a lone element whose memory is refused.
            *begun = record.filter(|_| WHAT != LONE || length > 0).map(|record| Open::begun(record.buffer, length));
            return false;
        }
        // No answer waits, so what was sent alone gives no claim later.
        running.balance = 0;
        connection.scheduled = false;
        connection.quiet = if WHAT == LONE { queue_pair.send.is_known_idle() } else { queue_pair.send.is_idle() };
        let payload = room.get(..length).unwrap_or(&[]);
        let sent = send_at_once(self.counters, connection, self.now, self.link.offload_tcp, token, headroom, payload);
        let frame = self.link.frame_of(record, &sent, connection.flow.local);
        let wheel = &mut self.connections.wheel;
        if !*known_usual {
            arm(wheel, index, connection);
            // Its entry fires before any timer that the short ways start from now on, and then the mark goes.
            *known_usual = wheel.fires_by(index, connection.tcp.soonest_timer(self.now));
        }
        debug_assert!(connection.next_deadline().is_none_or(|at| wheel.is_armed_for(index, at)));
        self.counters.hot_sent += 1;
        self.counters.octets_sent += sent.octets();
        if self.connections.ready.is_empty() {
            self.counters.frames_sent += self.link.send(frame) as u64;
        } else {
            self.link.transmit.queue.push_back(frame);
        }
        true
    }
}
