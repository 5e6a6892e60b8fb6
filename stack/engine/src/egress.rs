//! From posted work to records of TCP: which message comes next, and the FPDUs that it is cut into.
//!
//! Work is pulled only when TCP can take it. Read responses and own messages take turns by octets, so that neither a
//! peer that reads much nor an application that writes much starves the other. A message is finished before the next
//! one begins: segments of two messages are never mixed (RFC 5040 §5.5).

use uwarp_iwarp::SendKind;
use uwarp_iwarp::framing::{LENGTH_LEN, Trailer, mulpdu};
use uwarp_iwarp::qp::Event;
use uwarp_memory::{Access, AccessError, Turn, kernels};
use uwarp_tcp::{Instant, State};
use uwarp_wire::ddp::{Stag, TaggedOffset};
use uwarp_wire::rdmap::ReadRequest;

use crate::command::DisconnectReason;
use crate::connection::{Connection, Ending, Outgoing, Phase, Running, Source};
use crate::core::{Core, Record};
use crate::port::{Buffer, Port};
use crate::queue_pair::QueuePair;
use crate::receive::{Failure, read_fault};
use crate::work::{SendElement, SendFlags, SendOpcode, Status};

/// The most by which one side of the turn-taking may get ahead, in octets.
const BALANCE_LIMIT: i64 = 256 << 10;
/// What a message counts at least, so that empty ones take turns too.
const MESSAGE_COST: i64 = 64;

/// What came of pulling work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pulled {
    /// There is nothing (more) that may be sent now.
    Dry,
    /// There is more, but the budget of this turn is used up.
    More,
    /// There is more, but buffers are short.
    Starved,
}

impl<P: Port> Core<P> {
    /// Serves a connection of the ready list: pulls its work, sends what TCP lets out, looks after its timer.
    #[inline]
    pub(crate) fn serve(&mut self, turn: &Turn<'_>, index: u32) {
        let Some(mut connection) = self.connections.take(index) else { return };
        connection.scheduled = false;
        let mut more = false;
        if !connection.gone {
            let mut queue_pair = self.take_queue_pair(&connection);
            more = self.feed(turn, &mut connection, queue_pair.as_deref_mut());
            self.give_queue_pair(queue_pair);
            more |= self.transmit(index, &mut connection);
        }
        if more && !connection.gone {
            Self::schedule(&mut self.ready, index, &mut connection);
        }
        self.put_back(index, connection);
    }

    /// Hands TCP what there is to send. True: there is more.
    #[inline]
    fn feed(&mut self, turn: &Turn<'_>, connection: &mut Connection, queue_pair: Option<&mut QueuePair>) -> bool {
        connection.quiet = false;
        if connection.startup_frame.is_some() && !self.push_startup_frame(connection) {
            return true;
        }
        if connection.close_when_sent {
            self.close_tcp(connection);
            return false;
        }
        let Phase::Running(running) = &mut connection.phase else { return false };
        if running.terminate.is_some() {
            return self.push_terminate(connection);
        }
        let Some(queue_pair) = queue_pair else { return false };
        if !running.stream.may_send_messages() {
            if running.stream.state().flushes() {
                self.flush_with(queue_pair, None, None);
            }
            return false;
        }
        if let Some(at) = running.first_fpdu_at {
            if at > self.now {
                return false;
            }
            running.first_fpdu_at = None;
        }
        let pulled = self.pull(turn, connection, queue_pair);
        if queue_pair.send.begun() > 0 {
            self.retire(connection, queue_pair);
        }
        if queue_pair.overflowed.is_some() {
            self.on_overflow(connection, queue_pair);
        }
        match pulled {
            Pulled::Dry => {
                self.close_if_finished(connection, queue_pair);
                connection.quiet = connection.is_quiet(queue_pair);
                false
            }
            Pulled::More => true,
            Pulled::Starved => {
                self.starved = true;
                true
            }
        }
    }

    /// Builds FPDUs while TCP takes them.
    #[inline]
    fn pull(&mut self, turn: &Turn<'_>, connection: &mut Connection, queue_pair: &mut QueuePair) -> Pulled {
        let mut budget = self.config.budgets.frames_per_connection;
        loop {
            let Phase::Running(running) = &mut connection.phase else { return Pulled::Dry };
            if running.outgoing.is_none() {
                if connection.tcp.send_space() == 0 {
                    return Pulled::Dry;
                }
                match choose(turn, running, queue_pair) {
                    Ok(Some(outgoing)) => running.outgoing = Some(outgoing),
                    Ok(None) => return Pulled::Dry,
                    Err(status) => {
                        self.fail_work(connection, queue_pair, status);
                        return Pulled::Dry;
                    }
                }
            } else if connection.tcp.send_space() == 0 {
                return Pulled::Dry;
            }
            if budget == 0 || !self.has_room() {
                return Pulled::More;
            }
            if !self.has_free(self.reserve + 1) {
                return Pulled::Starved;
            }
            let Some(buffer) = self.alloc() else { return Pulled::Starved };
            if !self.build(turn, connection, queue_pair, buffer) {
                return Pulled::Dry;
            }
            budget -= 1;
        }
    }

    /// Builds the next FPDU of the message being cut and hands it to TCP. False: the stream failed.
    #[inline]
    fn build(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        mut buffer: P::Buffer,
    ) -> bool {
        let Phase::Running(running) = &mut connection.phase else { return false };
        let Some(outgoing) = &mut running.outgoing else { return false };
        let limit = mulpdu(connection.tcp.effective_mss()).min(self.config.iwarp.max_ulpdu);
        let Some(segment) = outgoing.message.next_segment(limit) else {
            running.outgoing = None;
            return true;
        };
        let header = segment.header();
        let ulpdu_len = segment.ulpdu_len();
        let start = self.payload_start;
        let Some(room) = buffer.storage_mut().and_then(|storage| storage.get_mut(start..)) else { return false };
        room[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        let payload_at = LENGTH_LEN + header.len();
        room[LENGTH_LEN..payload_at].copy_from_slice(header);
        let payload_end = payload_at + segment.payload_len as usize;
        let mut register = u32::MAX;
        if running.crc {
            register = kernels::crc32c_update(register, &room[..payload_at]);
        }
        let out = &mut room[payload_at..payload_end];
        let offset = segment.payload_offset;
        let copied = match outgoing.source {
            Source::Nothing | Source::ReadRequest => Ok(()),
            Source::Inline => {
                queue_pair.send.copy_inline(offset, out);
                if running.crc {
                    register = kernels::crc32c_update(register, out);
                }
                Ok(())
            }
            Source::Entries => {
                let association = queue_pair.association;
                let crc = running.crc;
                let mut at = 0;
                queue_pair.send.gather(offset, segment.payload_len, |piece| {
                    let part = &mut out[at..at + piece.length as usize];
                    at += part.len();
                    if crc {
                        register =
                            turn.gather_crc(association, piece.stag, piece.offset, part, register, Access::LOCAL_READ)?;
                        Ok(())
                    } else {
                        turn.gather(association, piece.stag, piece.offset, part, Access::LOCAL_READ)
                    }
                })
            }
            Source::Response { stag, offset: base } if !out.is_empty() => {
                let at = base.0.wrapping_add(u64::from(offset));
                let association = queue_pair.association;
                if running.crc {
                    turn.gather_crc(association, stag.0, at, out, register, Access::REMOTE_READ)
                        .map(|next| register = next)
                } else {
                    turn.gather(association, stag.0, at, out, Access::REMOTE_READ)
                }
            }
            Source::Response { .. } => Ok(()),
        };
        if let Err(error) = copied {
            self.fail_build(connection, queue_pair, error);
            return false;
        }
        let crc = running.crc.then(|| {
            let padding = Trailer::padding_octets(ulpdu_len);
            !if padding.is_empty() { register } else { kernels::crc32c_update(register, padding) }
        });
        let trailer = Trailer::new(ulpdu_len, crc);
        let trailer = trailer.as_bytes();
        let length = payload_end + trailer.len();
        room[payload_end..length].copy_from_slice(trailer);
        let sum = if self.offload_tcp { 0 } else { kernels::checksum_sum(&room[..length]) };
        buffer.set_range(start, length);
        let token = self.records.insert(Record { buffer, length: length as u32, sum });
        connection.tcp.push(token, length as u32);
        self.counters.fpdus_sent += 1;
        if segment.last {
            self.finish_message(connection, queue_pair);
        }
        true
    }

    /// The last segment of the message being cut was built.
    #[inline]
    fn finish_message(&mut self, connection: &mut Connection, queue_pair: &mut QueuePair) {
        let position = connection.tcp.octets_pushed();
        let Phase::Running(running) = &mut connection.phase else { return };
        let Some(outgoing) = running.outgoing.take() else { return };
        let cost = i64::from(outgoing.message.length()) + MESSAGE_COST;
        match outgoing.source {
            Source::Nothing => {}
            Source::Entries | Source::Inline | Source::ReadRequest => {
                queue_pair.send.finish(position);
                running.balance = (running.balance - cost).max(-BALANCE_LIMIT);
            }
            Source::Response { .. } => {
                running.stream.response_sent(position);
                running.balance = (running.balance + cost).min(BALANCE_LIMIT);
            }
        }
    }

    /// A message cannot be built: our memory is not (any longer) what it was said to be.
    #[cold]
    fn fail_build(&mut self, connection: &mut Connection, queue_pair: &mut QueuePair, error: AccessError) {
        let Phase::Running(running) = &mut connection.phase else { return };
        let Some(outgoing) = running.outgoing.take() else { return };
        if let Source::Response { .. } = outgoing.source {
            let fault = read_fault(error);
            let message = running.stream.fail_response(fault, &outgoing.message);
            self.end_by_fault(connection, Some(queue_pair), fault.into(), message);
        } else {
            self.fail_work(connection, queue_pair, Status::LocalProtection);
        }
    }

    /// The element at the head of what is not begun fails: it gets `status`, the rest is flushed, the stream ends.
    #[cold]
    fn fail_work(&mut self, connection: &mut Connection, queue_pair: &mut QueuePair, status: Status) {
        self.retire(connection, queue_pair);
        let Phase::Running(running) = &mut connection.phase else { return };
        let fault = uwarp_iwarp::Fault::LocalCatastrophic;
        let message = running.stream.fail(fault, None);
        connection.ends_by(DisconnectReason::LocalError(status));
        let at = queue_pair.send.begun();
        self.flush_with(queue_pair, Some((at, status)), None);
        let failure = Failure { fault, receive: None, send: None };
        self.end_by_fault(connection, Some(queue_pair), failure, message);
    }

    /// Hands the start-up frame to TCP. False: no buffer, or TCP does not take it yet.
    #[cold]
    fn push_startup_frame(&mut self, connection: &mut Connection) -> bool {
        if !matches!(connection.tcp.state(), State::Established | State::CloseWait) {
            return true;
        }
        let Some(frame) = connection.startup_frame.take() else { return true };
        if self.push_octets(connection, &frame) {
            return true;
        }
        connection.startup_frame = Some(frame);
        self.starved = true;
        false
    }

    /// Hands TCP a record of plain octets, at most what a buffer holds.
    fn push_octets(&mut self, connection: &mut Connection, octets: &[u8]) -> bool {
        let Some(mut buffer) = self.alloc() else { return false };
        let start = self.payload_start;
        let room = buffer.storage_mut().and_then(|storage| storage.get_mut(start..start + octets.len()));
        let Some(room) = room else { return false };
        room.copy_from_slice(octets);
        buffer.set_range(start, octets.len());
        let sum = kernels::checksum_sum(octets);
        let token = self.records.insert(Record { buffer, length: octets.len() as u32, sum });
        connection.tcp.push(token, octets.len() as u32);
        true
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
        if !self.push_octets(connection, &fpdu) {
            self.starved = true;
            return true;
        }
        if let Phase::Running(running) = &mut connection.phase {
            running.terminate = None;
        }
        self.counters.fpdus_sent += 1;
        self.counters.terminates_sent += 1;
        self.close_tcp(connection);
        false
    }

    /// Closes TCP on our side once the queue is worked off, if that is wanted.
    #[inline]
    pub(crate) fn close_if_finished(&mut self, connection: &mut Connection, queue_pair: &mut QueuePair) {
        let Phase::Running(running) = &mut connection.phase else { return };
        let Ending::Finishing { until } = running.ending else { return };
        let idle = running.outgoing.is_none() && !running.stream.has_response();
        let reads_left = running.stream.reads_outstanding() > 0 && !running.peer_closed;
        if idle && !reads_left && queue_pair.send.position() >= until {
            running.ending = Ending::Closed;
            let _ = running.stream.advance(Event::LocalClose);
            self.close_tcp(connection);
        }
    }
}

/// The message that comes next.
///
/// # Errors
/// The next element cannot be carried out, for this reason.
#[inline]
fn choose(turn: &Turn<'_>, running: &mut Running, queue_pair: &mut QueuePair) -> Result<Option<Outgoing>, Status> {
    if let Some(message) = running.stream.ready_to_receive_message() {
        return Ok(Some(Outgoing { message, source: Source::Nothing }));
    }
    if running.stream.has_response() {
        if running.balance <= 0 {
            return Ok(next_response(running));
        }
        return match next_work(turn, running, queue_pair)? {
            Some(outgoing) => Ok(Some(outgoing)),
            None => Ok(next_response(running)),
        };
    }
    // Nobody waits: what was sent alone gives no claim later.
    running.balance = 0;
    next_work(turn, running, queue_pair)
}

fn next_response(running: &mut Running) -> Option<Outgoing> {
    let response = running.stream.next_response()?;
    let source = Source::Response { stag: response.source_stag, offset: response.source_offset };
    Some(Outgoing { message: response.message, source })
}

/// The next element of the send queue, if it may go now.
#[inline]
fn next_work(turn: &Turn<'_>, running: &mut Running, queue_pair: &mut QueuePair) -> Result<Option<Outgoing>, Status> {
    match running.ending {
        Ending::No => {}
        Ending::Finishing { until } if queue_pair.send.position() < until => {}
        Ending::Finishing { .. } | Ending::Closed => return Ok(None),
    }
    let Some(element) = queue_pair.send.peek_next() else { return Ok(None) };
    let element = element.map_err(|_| Status::LocalOperation)?;
    if element.flags.contains(SendFlags::FENCE) && !running.stream.fence_is_clear() {
        return Ok(None);
    }
    let source = if element.flags.contains(SendFlags::INLINE) { Source::Inline } else { Source::Entries };
    let solicited = element.flags.contains(SendFlags::SOLICITED);
    let (message, source) = match element.opcode {
        SendOpcode::Write => {
            (running.stream.write(Stag(element.stag), TaggedOffset(element.remote_offset), element.length), source)
        }
        SendOpcode::Send => {
            let kind = if solicited { SendKind::Solicited } else { SendKind::Plain };
            (running.stream.send(kind, element.length), source)
        }
        SendOpcode::SendInvalidate => {
            let stag = Stag(element.stag);
            let kind = if solicited { SendKind::SolicitedInvalidate(stag) } else { SendKind::Invalidate(stag) };
            (running.stream.send(kind, element.length), source)
        }
        SendOpcode::Read => match begin_read(turn, running, queue_pair, &element)? {
            Some(message) => (message, Source::ReadRequest),
            None => return Ok(None),
        },
    };
    queue_pair.send.begin(element);
    Ok(Some(Outgoing { message, source }))
}

/// The request of a read, if a slot is free. A read has one sink: the wire knows no scatter list (RFC 5040 §4.4).
fn begin_read(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    element: &SendElement,
) -> Result<Option<uwarp_iwarp::Message>, Status> {
    if element.entries > 1 || element.flags.contains(SendFlags::INLINE) {
        return Err(Status::LocalOperation);
    }
    if running.stream.ord() == 0 {
        // It would wait for ever.
        return Err(Status::LocalOperation);
    }
    let sink = queue_pair.send.entry(element, 0).unwrap_or_default();
    if element.length > 0 {
        turn.check(queue_pair.association, sink.stag, sink.offset, u64::from(element.length), Access::LOCAL_WRITE)
            .map_err(|_| Status::LocalProtection)?;
    }
    let request = ReadRequest {
        sink_stag: Stag(sink.stag),
        sink_offset: TaggedOffset(sink.offset),
        length: element.length,
        source_stag: Stag(element.stag),
        source_offset: TaggedOffset(element.remote_offset),
    };
    Ok(running.stream.try_begin_read(&request, 0))
}

/// Whether a time has come.
#[inline]
pub(crate) fn is_due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| at <= now)
}
