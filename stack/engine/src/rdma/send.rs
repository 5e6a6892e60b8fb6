//! From posted work to records of TCP: which message comes next, and the FPDUs that it is cut into.
//!
//! Work is pulled only when TCP can take it. Read responses and own messages take turns by octets, so that neither a
//! peer that reads much nor an application that writes much starves the other. A message is finished before the next
//! one begins: segments of two messages are never mixed (RFC 5040 §5.5).

use uwarp_iwarp::framing::{LENGTH_LEN, Trailer, fpdu_len, insert_markers};
use uwarp_memory::{AccessError, Turn, kernels};
use uwarp_tcp::State;
use uwarp_wire::ddp::{Stag, TaggedOffset};
use uwarp_wire::mpa::MARKER_LEN;

use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::work::{SendElement, SendFlags, SendOpcode};
use crate::connection::phase::Phase;
use crate::connection::running::{Outgoing, Running, Source};
use crate::connection::{Connection, Connections, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::rdma::Moment;
use crate::rdma::choose::{Chosen, Refused, choose, header_len, send_kind};
use crate::rdma::cutting::copy_payload;
use crate::rdma::fpdu::Fpdu;
use crate::rdma::packing::{Open, Pulled, Sending};
use crate::rdma::queue_pair::QueuePair;

/// The most by which one side of the turn-taking may get ahead, in octets.
pub(crate) const BALANCE_LIMIT: i64 = 256 << 10;
/// What a message counts at least, so that empty ones take turns too.
pub(crate) const MESSAGE_COST: i64 = 64;

impl<P: Port> Sending<'_, P> {
    /// Builds FPDUs while TCP takes them. The last record stays open.
    ///
    /// # Errors
    /// What comes next cannot be carried out, for this reason.
    #[inline]
    pub(crate) fn pull(&mut self) -> Result<Pulled, Refused> {
        let Some(running) = self.connection.phase.running(&mut self.common.counters) else { return Ok(Pulled::Dry) };
        if self.open.is_none() {
            self.open = Open::tail(running, &self.connection.tcp);
        }
        let begun = self.open.as_ref().filter(|open| open.is_new()).map_or(0, Open::built) as usize;
        let mut budget = self.link.transmit.frames_each - u32::from(begun > 0);
        let mut space = (self.connection.tcp.send_space() as usize).saturating_sub(begun);
        let segment = self.connection.tcp.effective_mss() as usize;
        while space > 0 {
            let Some(running) = self.connection.phase.running(&mut self.common.counters) else {
                return Ok(Pulled::Dry);
            };
            let mut whole = None;
            let limit = running.mulpdu(self.connection.tcp.effective_mss()).min(self.rdma.config.max_ulpdu);
            if running.outgoing.is_none() {
                match choose(self.turn, running, self.queue_pair, limit)? {
                    Chosen::Nothing => return Ok(Pulled::Dry),
                    Chosen::Begun => {
                        if !self.queue_pair.waiting_commits.is_empty() {
                            let moment = Moment { turn: self.turn, now: self.common.now };
                            self.rdma.begin_waiting_commits(moment, running, self.queue_pair);
                        }
                    }
                    Chosen::Whole(element) => whole = Some(element),
                    Chosen::Done(element) => {
                        self.finish_whole(&element);
                        if budget == 0 {
                            self.link.transmit.greedy += 1;
                            return Ok(Pulled::More);
                        }
                        budget -= 1;
                        continue;
                    }
                }
            }
            if whole.is_none() {
                self.cut_long(limit, (&mut budget, &mut space))?;
            }
            if space == 0 {
                break;
            }
            let Some(running) = self.connection.phase.running(&mut self.common.counters) else {
                return Ok(Pulled::Dry);
            };
            let length = fpdu_len(match (&whole, &running.outgoing) {
                (Some(element), _) => header_len(element.opcode) + element.length as usize,
                (None, Some(outgoing)) => outgoing.message.next_ulpdu_len(limit) as usize,
                (None, None) => {
                    self.common.counters.cannot_be("a message was begun and is not there");
                    return Ok(Pulled::Dry);
                }
            });
            let open = self.open.as_ref();
            let shares = !running.transmits_markers() && open.is_some_and(|open| open.length() + length <= segment);
            if !shares {
                self.push_open();
                if budget == 0 || !self.link.has_room() {
                    self.link.transmit.greedy += 1;
                    return Ok(Pulled::More);
                }
                budget -= 1;
                let held = self.connection.tcp.records();
                if !self.link.has_share(held) {
                    return Ok(if held == 0 { Pulled::Starved } else { Pulled::Held });
                }
                let Some(buffer) = self.link.alloc() else { return Ok(Pulled::Starved) };
                self.open = Some(Open::new(buffer));
            }
            let octets = match &whole {
                Some(element) => self.build_whole(element)?,
                None => self.build(limit)?,
            };
            if octets == 0 {
                return Ok(Pulled::More);
            }
            space = space.saturating_sub(octets);
        }
        Ok(Pulled::Dry)
    }

    /// Builds the one FPDU of a Send or Write that fits into it: the short way of most messages. Gives its octets.
    #[inline]
    fn build_whole(&mut self, element: &SendElement) -> Result<usize, AccessError> {
        let Sending { turn, queue_pair, .. } = self;
        let Some(running) = self.connection.phase.running(&mut self.common.counters) else { return Ok(0) };
        let Some(open) = &mut self.open else { return nothing(&mut self.common.counters) };
        let Some(room) = open.room(self.records, self.link.payload_start) else {
            return nothing(&mut self.common.counters);
        };
        let length = build_whole(turn, running, queue_pair, element, room)?;
        running.balance = (running.balance - i64::from(element.length) - MESSAGE_COST).max(-BALANCE_LIMIT);
        self.common.counters.fpdus_sent += 1;
        open.add(length);
        self.finish_whole(element);
        Ok(length)
    }

    /// The next element of the send queue was built or carried out in one go.
    #[inline]
    fn finish_whole(&mut self, element: &SendElement) {
        let position = self.connection.tcp.octets_pushed() + self.open.as_ref().map_or(0, Open::built);
        let completion = self.queue_pair.send.finish_whole(element, self.queue_pair.number, position);
        self.queue_pair.complete_send(&mut self.rdma.lanes, completion);
    }

    /// Builds the next FPDU of the message being cut. Gives its octets.
    #[inline]
    fn build(&mut self, limit: u16) -> Result<usize, AccessError> {
        let tcp = &self.connection.tcp;
        let Some(running) = self.connection.phase.running(&mut self.common.counters) else { return Ok(0) };
        let Some(outgoing) = &mut running.outgoing else { return nothing(&mut self.common.counters) };
        let Some(open) = &mut self.open else { return nothing(&mut self.common.counters) };
        let left = (tcp.effective_mss() as usize).saturating_sub(open.length());
        let Some(room) = open.room(self.records, self.link.payload_start) else {
            return nothing(&mut self.common.counters);
        };
        let Some(cut) = outgoing.message.cut_into(limit, &mut room[LENGTH_LEN..]) else {
            running.outgoing = None;
            return nothing(&mut self.common.counters);
        };
        let mut fpdu = Fpdu::begin(room, cut.header_len, cut.payload_len, running.crc);
        if let Err(refused) = copy_payload(self.turn, self.queue_pair, outgoing.source, &cut, &mut fpdu) {
            // The peer is told how much of a response was sent.
            outgoing.message.take_back(&cut);
            return Err(refused);
        }
        let mut length = fpdu.end();
        if cut.last && outgoing.tail.is_some() {
            // Both in one segment, if they fit.
            length = append_tail(&mut self.common.counters, running, left, room, length);
        }
        if running.transmits_markers() {
            length = mark(running, tcp.octets_pushed(), room, length);
        }
        self.common.counters.fpdus_sent += 1;
        open.add(length);
        if cut.last {
            finish_message(&mut self.common.counters, running, self.queue_pair, tcp.octets_pushed() + open.built());
        }
        Ok(length)
    }
}

/// Builds the one FPDU of a Send or Write that fits into it; gives its octets.
///
/// # Errors
/// The element's memory is refused.
#[inline(always)]
pub(crate) fn build_whole(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &QueuePair,
    element: &SendElement,
    room: &mut [u8],
) -> Result<usize, AccessError> {
    let header_len = header_len(element.opcode);
    let place = &mut room[LENGTH_LEN..LENGTH_LEN + header_len];
    if element.opcode == SendOpcode::Write {
        place.copy_from_slice(&running.stream.whole_write(Stag(element.stag), TaggedOffset(element.remote_offset)));
    } else {
        place.copy_from_slice(&running.stream.whole_send(send_kind(element)));
    }
    let mut fpdu = Fpdu::begin(room, header_len, element.length, running.crc);
    if element.flags.contains(SendFlags::INLINE) {
        queue_pair.send.copy_inline_of(element, fpdu.payload())?;
    } else {
        let mut index = 0;
        while let Some(piece) = queue_pair.send.entry(element, index) {
            fpdu.gather(turn, queue_pair.association, piece)?;
            index += 1;
        }
    }
    Ok(fpdu.end())
}

/// An FPDU lacks its message or its place, which cannot be.
#[cold]
fn nothing(counters: &mut Counters) -> Result<usize, AccessError> {
    counters.cannot_be("there is no message to build an FPDU of, or no record to build it into");
    Ok(0)
}

/// The last segment of the message being cut was built; it ends at `position` octets of TCP's stream.
#[inline(always)]
fn finish_message(counters: &mut Counters, running: &mut Running, queue_pair: &mut QueuePair, position: u64) {
    let Some(outgoing) = running.outgoing.take() else {
        return counters.cannot_be("a message ends that was not begun");
    };
    let cost = i64::from(outgoing.message.length()) + MESSAGE_COST;
    match outgoing.source {
        Source::Nothing => {}
        Source::Entries | Source::Inline if outgoing.tail.is_some() => {
            // Not in the same segment: what goes behind is the next message, and the end of the work.
            running.balance = (running.balance - cost).max(-BALANCE_LIMIT);
            let Some(message) = outgoing.tail.and_then(|tail| tail.message(&mut running.stream)) else {
                return counters.cannot_be("a Commit lacks the slot that its Write has waited for");
            };
            running.outgoing = Some(Outgoing { message, source: Source::NoPayload, tail: None });
        }
        Source::Entries | Source::Inline | Source::NoPayload | Source::CommitRequest(_) => {
            if !queue_pair.send.finish(position) {
                return counters.cannot_be("an element ends that was not begun");
            }
            running.balance = (running.balance - cost).max(-BALANCE_LIMIT);
        }
        Source::Response { .. } | Source::Answer => {
            running.stream.response_sent(position);
            running.balance = (running.balance + cost).min(BALANCE_LIMIT);
        }
    }
}

impl<B: Buffer> Connections<B> {
    /// Hands the start-up frame to TCP once that is open. False: it is open, and there is no buffer.
    #[cold]
    pub(crate) fn push_startup_frame<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        counters: &mut Counters,
        connection: &mut Connection,
    ) -> bool {
        if !matches!(connection.tcp.state(), State::Established | State::CloseWait) {
            return true;
        }
        let Some(frame) = connection.startup_frame.take() else { return true };
        if self.push_octets(link, counters, connection, &frame) {
            if let Phase::Running(running) = &mut connection.phase {
                // Whatever else went before the frame.
                running.transmit_start = connection.tcp.octets_pushed();
            }
            return true;
        }
        connection.startup_frame = Some(frame);
        self.starved = true;
        false
    }

    /// Hands the Terminate to TCP and closes behind it. True: not yet possible.
    #[cold]
    pub(crate) fn push_terminate<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        let Some(running) = connection.phase.running(&mut common.counters) else { return false };
        if !running.stream.may_transmit() {
            // A Responder that has heard nothing has to be silent; its time limit runs.
            return false;
        }
        let mut message = running.terminate.clone();
        let Some(segment) = message.as_mut().and_then(|message| message.next_segment(u16::MAX)) else {
            common.counters.cannot_be("there is no Terminate to send");
            return false;
        };
        let mut fpdu = Vec::with_capacity(128);
        fpdu.extend_from_slice(&(segment.ulpdu_len() as u16).to_be_bytes());
        fpdu.extend_from_slice(segment.header());
        fpdu.extend_from_slice(Trailer::padding_octets(segment.ulpdu_len()));
        let crc = running.crc.then(|| kernels::crc32c(&fpdu));
        fpdu.truncate(LENGTH_LEN + segment.ulpdu_len());
        fpdu.extend_from_slice(Trailer::new(segment.ulpdu_len(), crc).as_bytes());
        if running.transmits_markers() {
            // The longest Terminate may have a marker in front and one inside.
            let length = fpdu.len();
            fpdu.resize(length + 2 * MARKER_LEN, 0);
            let length = mark(running, connection.tcp.octets_pushed(), &mut fpdu, length);
            fpdu.truncate(length);
        }
        if !self.push_octets(link, &mut common.counters, connection, &fpdu) {
            self.starved = true;
            return true;
        }
        if let Phase::Running(running) = &mut connection.phase {
            running.terminate = None;
        }
        common.counters.fpdus_sent += 1;
        common.counters.terminates_sent += 1;
        connection.close_tcp(common.now);
        false
    }

    /// Hands TCP a record of plain octets, at most what a buffer holds.
    fn push_octets<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        counters: &mut Counters,
        connection: &mut Connection,
        octets: &[u8],
    ) -> bool {
        let Some(mut buffer) = link.alloc() else { return false };
        let start = link.payload_start;
        let room = buffer.storage_mut().and_then(|storage| storage.get_mut(start..start + octets.len()));
        let Some(room) = room else {
            counters.cannot_be("a start-up frame or Terminate does not fit into a fresh buffer");
            return false;
        };
        room.copy_from_slice(octets);
        buffer.set_range(start, octets.len());
        let sum = kernels::checksum_sum(octets);
        let token = self.records.insert(Record { length: octets.len() as u16, sum, ..Record::new(buffer) });
        connection.tcp.push(token, octets.len() as u32);
        true
    }
}

/// Puts markers into the FPDU of `length` octets in `room` that goes behind `pushed` octets of TCP's stream. Gives its
/// length then.
#[cold]
fn mark(running: &Running, pushed: u64, room: &mut [u8], length: usize) -> usize {
    let crc = running.crc.then_some(kernels::crc32c as fn(&[u8]) -> u32);
    insert_markers(room, length, pushed - running.transmit_start, crc)
}

/// Puts what belongs behind a Write behind its last FPDU, which has `length` octets in `room`, if both fit into
/// `segment` octets. Gives the length of what is in `room`.
#[cold]
fn append_tail(
    counters: &mut Counters,
    running: &mut Running,
    segment: usize,
    room: &mut [u8],
    length: usize,
) -> usize {
    let Some(tail) = running.outgoing.as_ref().and_then(|outgoing| outgoing.tail) else { return length };
    let whole = length + fpdu_len(tail.ulpdu_len());
    // With markers, places would have to be found for both.
    if whole > segment || whole > room.len() || running.transmits_markers() {
        return length;
    }
    let room = &mut room[length..whole];
    let mut message = tail.message(&mut running.stream);
    let cut = message.as_mut().and_then(|message| message.cut_into(u16::MAX, &mut room[LENGTH_LEN..]));
    let Some(cut) = cut else {
        counters.cannot_be("what follows a Write has no message, or none that fits");
        return length;
    };
    if let Some(outgoing) = &mut running.outgoing {
        outgoing.tail = None;
    }
    length + Fpdu::begin(room, cut.header_len, 0, running.crc).end()
}
