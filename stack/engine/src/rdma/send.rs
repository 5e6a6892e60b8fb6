//! From posted work to records of TCP: which message comes next, and the FPDUs that it is cut into.
//!
//! Work is pulled only when TCP can take it. Read responses and own messages take turns by octets, so that neither a
//! peer that reads much nor an application that writes much starves the other. A message is finished before the next
//! one begins: segments of two messages are never mixed (RFC 5040 §5.5).

use uwarp_iwarp::framing::{LENGTH_LEN, Trailer, fpdu_len, insert_markers};
use uwarp_memory::{AccessError, Turn, kernels};
use uwarp_tcp::State;
use uwarp_wire::ddp::{Stag, TAGGED_HEADER_LEN, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::mpa::MARKER_LEN;

use crate::api::work::{SendElement, SendFlags, SendOpcode};
use crate::bytestream::conversion::TextPushed;
use crate::connection::Record;
use crate::connection::phase::{Closing, Phase};
use crate::connection::{Connection, Connections};
use crate::core::Core;
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::rdma::choose::{Chosen, choose, header_len, send_kind};
use crate::rdma::cutting::copy_payload;
use crate::rdma::fpdu::Fpdu;
use crate::rdma::packing::{Open, Pulled};
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::{Limit, Outgoing, Running, Source};

/// The most by which one side of the turn-taking may get ahead, in octets.
pub(crate) const BALANCE_LIMIT: i64 = 256 << 10;
/// What a message counts at least, so that empty ones take turns too.
pub(crate) const MESSAGE_COST: i64 = 64;

impl<P: Port> Core<P> {
    /// Serves a connection by the general code, which goes on with the record that a short way has begun.
    #[inline(never)]
    pub(crate) fn serve_any(&mut self, turn: &Turn<'_>, index: u32, mut open: Option<Open<P::Buffer>>) {
        self.was_usual = false;
        let Some(mut connection) = self.connections.table.take(index) else { return };
        connection.scheduled = false;
        let mut more = false;
        if !connection.gone {
            let mut queue_pair = self.rdma.take(connection.queue_pair);
            more = self.feed(turn, index, &mut connection, queue_pair.as_deref_mut(), &mut open);
            self.rdma.give(queue_pair);
            more |= self.transmit(index, &mut connection);
            if self.connections.ready.is_empty() {
                // Nobody else has anything to send: what is left of the turn need not be waited for.
                self.flush();
            }
        }
        if more && !connection.gone {
            connection.schedule(&mut self.connections.ready, index);
        }
        self.put_back(index, connection);
    }

    /// Hands TCP what there is to send. True: there is more.
    #[inline]
    fn feed(
        &mut self,
        turn: &Turn<'_>,
        index: u32,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        open: &mut Option<Open<P::Buffer>>,
    ) -> bool {
        connection.quiet = false;
        if let Phase::Stream(_) = connection.phase {
            let Core { connections, link, streams, counters, now, .. } = self;
            return connections.feed_stream(link, streams, counters, *now, index, connection);
        }
        if connection.stream.is_some() {
            // What was written before MPA took over comes before anything of MPA's.
            let Core { connections, link, streams, counters, now, .. } = self;
            match connections.push_text(link, streams, counters, *now, index, connection) {
                TextPushed::All => {}
                TextPushed::TimeWaits => return false,
                TextPushed::More => return true,
            }
        }
        if connection.startup_frame.is_some() {
            if !self.connections.push_startup_frame(&mut self.link, connection) {
                return true;
            }
            if let Phase::Running(_) = connection.phase
                && connection.startup_frame.is_none()
            {
                connection.leave_stream(&self.connections.tcp_config);
            }
        }
        if let Phase::Closing(Closing { close_when_sent: true, .. }) = connection.phase {
            connection.close_tcp(self.now);
            return false;
        }
        let Phase::Running(running) = &mut connection.phase else { return false };
        if running.terminate.is_some() {
            return self.push_terminate(connection);
        }
        let Some(queue_pair) = queue_pair else { return false };
        if !running.stream.may_send_messages() {
            if running.stream.state().flushes() {
                self.rdma.flush_with(&mut self.counters, queue_pair, None, None);
            } else {
                connection.close_if_finished(queue_pair, self.now);
            }
            return false;
        }
        if let Limit::Pause(at) = running.limit {
            if at > self.now {
                return false;
            }
            running.limit = Limit::None;
        }
        let pulled = self.pull(turn, connection, queue_pair, open);
        if queue_pair.send.begun() > 0 {
            queue_pair.retire(&mut self.rdma.lanes, connection.tcp.octets_acknowledged());
        }
        if queue_pair.overflowed.is_some() {
            self.rdma.on_overflow(&mut self.counters, self.now, connection, queue_pair);
        }
        match pulled {
            Pulled::Dry => {
                connection.close_if_finished(queue_pair, self.now);
                connection.quiet = connection.is_quiet(queue_pair);
                false
            }
            Pulled::More => true,
            Pulled::Starved => self.connections.is_starved(),
            Pulled::Held => false,
        }
    }

    /// Builds FPDUs while TCP takes them; `open` is the record that they go into.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        open: &mut Option<Open<P::Buffer>>,
    ) -> Pulled {
        let begun = open.as_ref().filter(|open| open.is_new()).map_or(0, Open::built) as usize;
        let mut budget = self.link.transmit.frames_each - u32::from(begun > 0);
        let mut space = (connection.tcp.send_space() as usize).saturating_sub(begun);
        let segment = connection.tcp.effective_mss() as usize;
        while space > 0 {
            let Phase::Running(running) = &mut connection.phase else { return Pulled::Dry };
            let mut whole = None;
            let limit = running.mulpdu(connection.tcp.effective_mss()).min(self.config.iwarp.max_ulpdu);
            if running.outgoing.is_none() {
                match choose(turn, running, queue_pair, limit) {
                    Ok(Chosen::Nothing) => return Pulled::Dry,
                    Ok(Chosen::Begun) => {
                        if !queue_pair.waiting_commits.is_empty() {
                            self.rdma.begin_waiting_commits(turn, self.now, running, queue_pair);
                        }
                    }
                    Ok(Chosen::Whole(element)) => whole = Some(element),
                    Ok(Chosen::Done(element)) => {
                        self.finish_whole(connection, queue_pair, &element, open.as_ref());
                        if budget == 0 {
                            self.link.transmit.greedy += 1;
                            return Pulled::More;
                        }
                        budget -= 1;
                        continue;
                    }
                    Err(refused) => {
                        self.push_open(connection, open.take());
                        self.rdma.fail_refused(&mut self.counters, self.now, connection, queue_pair, refused);
                        // Of a Terminate: nobody else may come to have it sent.
                        return Pulled::More;
                    }
                }
            }
            if whole.is_none()
                && let Err(error) = self.cut_long(turn, connection, queue_pair, open, limit, (&mut budget, &mut space))
            {
                self.rdma.fail_build(&mut self.counters, self.now, connection, queue_pair, error);
                return Pulled::More;
            }
            if space == 0 {
                break;
            }
            let Phase::Running(running) = &connection.phase else { return Pulled::Dry };
            let length = fpdu_len(match (&whole, &running.outgoing) {
                (Some(element), _) => header_len(element.opcode) + element.length as usize,
                (None, Some(outgoing)) => outgoing.message.next_ulpdu_len(limit) as usize,
                (None, None) => return Pulled::More,
            });
            let shares = !running.transmits_markers() && open.as_ref().is_some_and(|o| o.length() + length <= segment);
            if !shares {
                self.push_open(connection, open.take());
                if budget == 0 || !self.link.has_room() {
                    self.link.transmit.greedy += 1;
                    return Pulled::More;
                }
                budget -= 1;
                let held = connection.tcp.records();
                if !self.link.has_share(held) {
                    return if held == 0 { Pulled::Starved } else { Pulled::Held };
                }
                let Some(buffer) = self.link.alloc() else { return Pulled::Starved };
                *open = Some(Open::new(buffer));
            }
            let Some(record) = open else { return Pulled::Dry };
            let built = match &whole {
                Some(element) => self.build_whole(turn, connection, queue_pair, record, element),
                None => self.build(turn, connection, queue_pair, record, limit),
            };
            match built {
                Ok(0) => return Pulled::More,
                Ok(octets) => space = space.saturating_sub(octets),
                Err(error) => {
                    self.push_open(connection, open.take());
                    self.rdma.fail_build(&mut self.counters, self.now, connection, queue_pair, error);
                    return Pulled::More;
                }
            }
        }
        Pulled::Dry
    }

    /// Builds the one FPDU of a Send or Write that fits into it: the short way of most messages. Gives its octets.
    #[inline]
    fn build_whole(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        record: &mut Open<P::Buffer>,
        element: &SendElement,
    ) -> Result<usize, AccessError> {
        let Phase::Running(running) = &mut connection.phase else { return Ok(0) };
        let Some(room) = record.room(&mut self.connections.records, self.link.payload_start) else { return Ok(0) };
        let header_len = header_len(element.opcode);
        if element.opcode == SendOpcode::Write {
            let header = running.stream.whole_write(Stag(element.stag), TaggedOffset(element.remote_offset));
            room[LENGTH_LEN..LENGTH_LEN + TAGGED_HEADER_LEN].copy_from_slice(&header);
        } else {
            let header = running.stream.whole_send(send_kind(element));
            room[LENGTH_LEN..LENGTH_LEN + UNTAGGED_HEADER_LEN].copy_from_slice(&header);
        }
        let mut fpdu = Fpdu::begin(room, header_len, element.length, running.crc);
        if element.flags.contains(SendFlags::INLINE) {
            queue_pair.send.copy_inline_of(element, fpdu.payload());
        } else {
            let (mut at, mut index) = (0, 0);
            while let Some(piece) = queue_pair.send.entry(element, index) {
                fpdu.gather(turn, queue_pair.association, piece, &mut at)?;
                index += 1;
            }
        }
        let length = fpdu.end();
        running.balance = (running.balance - i64::from(element.length) - MESSAGE_COST).max(-BALANCE_LIMIT);
        self.counters.fpdus_sent += 1;
        record.add(length);
        self.finish_whole(connection, queue_pair, element, Some(&*record));
        Ok(length)
    }

    /// The next element of the send queue was built or carried out in one go.
    #[inline]
    fn finish_whole(
        &mut self,
        connection: &Connection,
        queue_pair: &mut QueuePair,
        element: &SendElement,
        open: Option<&Open<P::Buffer>>,
    ) {
        let position = connection.tcp.octets_pushed() + open.map_or(0, Open::built);
        let completion = queue_pair.send.finish_whole(element, queue_pair.number, position);
        queue_pair.complete_send(&mut self.rdma.lanes, completion);
    }

    /// Builds the next FPDU of the message being cut. Gives its octets.
    #[inline]
    fn build(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        record: &mut Open<P::Buffer>,
        limit: u16,
    ) -> Result<usize, AccessError> {
        let Phase::Running(running) = &mut connection.phase else { return Ok(0) };
        let Some(outgoing) = &mut running.outgoing else { return Ok(0) };
        let left = (connection.tcp.effective_mss() as usize).saturating_sub(record.length());
        let Some(room) = record.room(&mut self.connections.records, self.link.payload_start) else { return Ok(0) };
        let Some(cut) = outgoing.message.cut_into(limit, &mut room[LENGTH_LEN..]) else {
            running.outgoing = None;
            return Ok(0);
        };
        let mut fpdu = Fpdu::begin(room, cut.header_len, cut.payload_len, running.crc);
        copy_payload(turn, queue_pair, outgoing.source, &cut, &mut fpdu)?;
        let mut length = fpdu.end();
        if cut.last && outgoing.tail.is_some() {
            // Both in one segment, if they fit.
            length = append_tail(running, left, room, length);
        }
        if running.transmits_markers() {
            length = mark(running, connection.tcp.octets_pushed(), room, length);
        }
        self.counters.fpdus_sent += 1;
        record.add(length);
        if cut.last {
            self.finish_message(connection, queue_pair, connection.tcp.octets_pushed() + record.built());
        }
        Ok(length)
    }

    /// The last segment of the message being cut was built; it ends at `position` octets of TCP's stream.
    #[inline(always)]
    fn finish_message(&mut self, connection: &mut Connection, queue_pair: &mut QueuePair, position: u64) {
        let Phase::Running(running) = &mut connection.phase else { return };
        let Some(outgoing) = running.outgoing.take() else { return };
        let cost = i64::from(outgoing.message.length()) + MESSAGE_COST;
        match outgoing.source {
            Source::Nothing => {}
            Source::Entries | Source::Inline if outgoing.tail.is_some() => {
                // Not in the same segment: what goes behind is the next message, and the end of the work.
                running.balance = (running.balance - cost).max(-BALANCE_LIMIT);
                if let Some(message) = outgoing.tail.and_then(|tail| tail.message(&mut running.stream)) {
                    running.outgoing = Some(Outgoing { message, source: Source::NoPayload, tail: None });
                }
            }
            Source::Entries | Source::Inline | Source::NoPayload | Source::CommitRequest(_) => {
                queue_pair.send.finish(position);
                running.balance = (running.balance - cost).max(-BALANCE_LIMIT);
            }
            Source::Response { .. } | Source::Answer => {
                running.stream.response_sent(position);
                running.balance = (running.balance + cost).min(BALANCE_LIMIT);
            }
        }
    }

    /// Hands the Terminate to TCP and closes behind it. True: not yet possible.
    #[cold]
    fn push_terminate(&mut self, connection: &mut Connection) -> bool {
        let Phase::Running(running) = &mut connection.phase else { return false };
        if !running.stream.may_transmit() {
            // A Responder that has heard nothing has to be silent; its time limit runs.
            return false;
        }
        let Some(mut message) = running.terminate.clone() else { return false };
        let Some(segment) = message.next_segment(u16::MAX) else { return false };
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
        if !self.connections.push_octets(&mut self.link, connection, &fpdu) {
            self.connections.starved = true;
            return true;
        }
        if let Phase::Running(running) = &mut connection.phase {
            running.terminate = None;
        }
        self.counters.fpdus_sent += 1;
        self.counters.terminates_sent += 1;
        connection.close_tcp(self.now);
        false
    }
}

impl<B: Buffer> Connections<B> {
    /// Hands the start-up frame to TCP. False: no buffer, or TCP does not take it yet.
    #[cold]
    pub(crate) fn push_startup_frame<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        connection: &mut Connection,
    ) -> bool {
        if !matches!(connection.tcp.state(), State::Established | State::CloseWait) {
            return true;
        }
        let Some(frame) = connection.startup_frame.take() else { return true };
        if self.push_octets(link, connection, &frame) {
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

    /// Hands TCP a record of plain octets, at most what a buffer holds.
    fn push_octets<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        connection: &mut Connection,
        octets: &[u8],
    ) -> bool {
        let Some(mut buffer) = link.alloc() else { return false };
        let start = link.payload_start;
        let room = buffer.storage_mut().and_then(|storage| storage.get_mut(start..start + octets.len()));
        let Some(room) = room else { return false };
        room.copy_from_slice(octets);
        buffer.set_range(start, octets.len());
        let sum = kernels::checksum_sum(octets);
        let token = self.records.insert(Record { buffer, length: octets.len() as u32, sum });
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

/// Puts what belongs behind a Write behind its last FPDU, which has `length` octets in `room`, if both fit into `segment`
/// octets. Gives the length of what is in `room`.
#[cold]
fn append_tail(running: &mut Running, segment: usize, room: &mut [u8], length: usize) -> usize {
    let Some(tail) = running.outgoing.as_ref().and_then(|outgoing| outgoing.tail) else { return length };
    let whole = length + fpdu_len(tail.ulpdu_len());
    // With markers, places would have to be found for both.
    if whole > segment || whole > room.len() || running.transmits_markers() {
        return length;
    }
    let Some(mut message) = tail.message(&mut running.stream) else { return length };
    if let Some(outgoing) = &mut running.outgoing {
        outgoing.tail = None;
    }
    let room = &mut room[length..whole];
    let Some(cut) = message.cut_into(u16::MAX, &mut room[LENGTH_LEN..]) else { return length };
    length + Fpdu::begin(room, cut.header_len, 0, running.crc).end()
}
