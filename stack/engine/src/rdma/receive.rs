//! Octets of a stream in full operation: FPDUs, and what they mean to memory and to the queue pair.
//!
//! An FPDU that lies whole in a frame is used in place. One that comes in pieces is put together in a buffer of the
//! connection: a copy at once, instead of holding on to the device's buffers, so that a slow peer can pin heap memory
//! (at most one FPDU a connection, under a budget of the engine) but never the receive pool. The budget is looked at whenever a
//! piece is put aside, and counts what the buffer takes and not what lies in it: a buffer that was grown for a long FPDU is
//! used again for short ones.

use uwarp_iwarp::fault::LocalStatus;
use uwarp_iwarp::framing::{Framed, LENGTH_LEN, Marked, deframe, deframe_marked};
use uwarp_iwarp::{Delivery, Fault, SendEnd, Stream};
use uwarp_memory::{Access, AccessError, AtomicError, InvalidateError, Turn, kernels};

use crate::api::work::{Completion, CompletionFlags, Status};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::Rdma;
use crate::rdma::commits::Hold;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::receive_queue::ScatterError;

/// A fault found while an FPDU was handled, and what our own work gets for it beyond what the fault's row says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    /// Status of the open receive, if it is at fault.
    pub(crate) receive: Option<Status>,
    /// Status of the oldest outstanding send element, if it is at fault.
    pub(crate) send: Option<Status>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        let (receive, send) = match fault.local_status() {
            LocalStatus::ReceiveLength => (Some(Status::LocalLength), None),
            LocalStatus::ReceiveInvalidation => (Some(Status::RemoteOperation), None),
            LocalStatus::ReadResponse => (None, Some(Status::PeerProtocol)),
            LocalStatus::Flushed | LocalStatus::ConnectionLost | LocalStatus::Fatal => (None, None),
        };
        Failure { fault, receive, send }
    }
}

impl<P: Port> Core<P> {
    /// Octets of full operation, in order.
    #[inline]
    pub(crate) fn on_stream(&mut self, turn: &Turn<'_>, connection: &mut Connection, octets: &[u8]) {
        let Phase::Running(running) = &connection.phase else { return };
        if running.receive_markers {
            return self.on_marked_stream(turn, connection, octets);
        }
        let crc = running.crc.then_some(kernels::crc32c as fn(&[u8]) -> u32);
        let mut queue_pair = self.take_queue_pair(connection);
        let mut rest = octets;
        if !connection.gather.is_empty() {
            rest = self.gather(turn, connection, queue_pair.as_deref_mut(), rest, crc);
        }
        while !rest.is_empty() {
            match deframe(rest, crc) {
                Framed::Fpdu { ulpdu, fpdu_len } => {
                    self.counters.fpdus_received += 1;
                    self.on_ulpdu(turn, connection, queue_pair.as_deref_mut(), &rest[ulpdu]);
                    if connection.gone | connection.awaits_receive() {
                        self.on_interruption(connection, queue_pair.as_deref_mut(), rest);
                        break;
                    }
                    rest = &rest[fpdu_len..];
                }
                Framed::Incomplete { needed } => {
                    self.start_gather(connection, queue_pair.as_deref_mut(), rest, needed);
                    rest = &[];
                }
                Framed::BadCrc { .. } => {
                    self.on_bad_crc(connection, queue_pair.as_deref_mut());
                    rest = &[];
                }
            }
        }
        self.give_queue_pair(queue_pair);
    }

    /// As [`Core::on_stream`], with markers in the octets. All of them go through the connection's gather buffer.
    #[cold]
    pub(crate) fn on_marked_stream(&mut self, turn: &Turn<'_>, connection: &mut Connection, octets: &[u8]) {
        let mut queue_pair = self.take_queue_pair(connection);
        let mut gather = self.rdma.gathers.resume(connection);
        if gather.capacity() == 0 {
            gather = self.rdma.gathers.take(octets.len());
        }
        let enough = gather.len() + octets.len();
        self.counters.octets_gathered += octets.len() as u64;
        if gather.capacity() < enough {
            self.counters.octets_gathered += gather.len() as u64;
            // Some more, so that not every piece moves those before it. It counts, so not much more.
            gather.reserve_exact(enough + enough / 4 - gather.len());
        }
        gather.extend_from_slice(octets);
        let mut ulpdu = self.rdma.gathers.take_any();
        let mut at = 0;
        while let Phase::Running(running) = &mut connection.phase
            && !connection.gone
            && at < gather.len()
        {
            let crc = running.crc.then_some(kernels::crc32c as fn(&[u8]) -> u32);
            match deframe_marked(&gather[at..], running.receive_position, crc, &mut ulpdu) {
                Marked::Fpdu { len } => {
                    at += len;
                    running.receive_position += len as u64;
                    self.counters.fpdus_received += 1;
                    self.on_ulpdu(turn, connection, queue_pair.as_deref_mut(), &ulpdu);
                    if connection.awaits_receive() {
                        self.counters.fpdus_received -= 1;
                        at -= len;
                        if let Phase::Running(running) = &mut connection.phase {
                            running.receive_position -= len as u64;
                        }
                        break;
                    }
                }
                Marked::Incomplete { .. } => break,
                Marked::BadCrc => {
                    at = gather.len();
                    self.on_bad_crc(connection, queue_pair.as_deref_mut());
                }
                Marked::Mismatch => {
                    at = gather.len();
                    self.rdma.fail_stream(
                        &mut self.counters,
                        self.now,
                        connection,
                        queue_pair.as_deref_mut(),
                        Fault::MarkerMismatch.into(),
                        None,
                    );
                }
            }
        }
        gather.drain(..at);
        if at > 0 || connection.awaits_receive() {
            connection.gather_number = 0;
        }
        if gather.is_empty() || connection.gone {
            self.rdma.gathers.give(gather);
        } else {
            let Core { rdma, connections, counters, now, .. } = self;
            rdma.put_aside(connections, counters, *now, connection, queue_pair.as_deref_mut(), gather);
        }
        self.rdma.gathers.give(ulpdu);
        self.give_queue_pair(queue_pair);
    }

    /// Takes the connection's queue pair out of the table for a while.
    #[inline]
    pub(crate) fn take_queue_pair(&mut self, connection: &Connection) -> Option<Box<QueuePair>> {
        self.rdma.queue_pairs.get_mut(connection.queue_pair? as usize)?.take()
    }

    /// Puts it back.
    #[inline]
    pub(crate) fn give_queue_pair(&mut self, queue_pair: Option<Box<QueuePair>>) {
        self.rdma.give(queue_pair);
    }

    /// The first piece of an FPDU.
    #[cold]
    pub(crate) fn start_gather(
        &mut self,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        octets: &[u8],
        needed: Option<usize>,
    ) {
        let mut gather = self.rdma.gathers.take(needed.unwrap_or(LENGTH_LEN));
        self.counters.octets_gathered += octets.len() as u64;
        gather.extend_from_slice(octets);
        self.rdma.put_aside(&mut self.connections, &mut self.counters, self.now, connection, queue_pair, gather);
    }

    /// A further piece of an FPDU. Gives what lies behind it.
    #[cold]
    fn gather<'a>(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        mut queue_pair: Option<&mut QueuePair>,
        octets: &'a [u8],
        crc: Option<fn(&[u8]) -> u32>,
    ) -> &'a [u8] {
        let mut gather = self.rdma.gathers.resume(connection);
        let mut rest = octets;
        loop {
            match deframe(&gather, crc) {
                Framed::Fpdu { ulpdu, .. } => {
                    self.counters.fpdus_received += 1;
                    self.counters.fpdus_gathered += 1;
                    connection.gather_number = 0;
                    self.on_ulpdu(turn, connection, queue_pair.as_deref_mut(), &gather[ulpdu]);
                    if connection.awaits_receive() {
                        self.counters.fpdus_received -= 1;
                        self.counters.fpdus_gathered -= 1;
                        self.counters.octets_gathered += rest.len() as u64;
                        gather.extend_from_slice(rest);
                        let Core { rdma, connections, counters, now, .. } = self;
                        rdma.put_aside(connections, counters, *now, connection, queue_pair, gather);
                        return &[];
                    }
                    break;
                }
                Framed::BadCrc { .. } => {
                    self.on_bad_crc(connection, queue_pair);
                    rest = &[];
                    break;
                }
                Framed::Incomplete { needed } => {
                    if rest.is_empty() {
                        let Core { rdma, connections, counters, now, .. } = self;
                        rdma.put_aside(connections, counters, *now, connection, queue_pair, gather);
                        return rest;
                    }
                    let whole = needed.unwrap_or(LENGTH_LEN);
                    let (piece, behind) = rest.split_at((whole - gather.len()).min(rest.len()));
                    let enough = gather.len() + piece.len();
                    self.counters.octets_gathered += piece.len() as u64;
                    if gather.capacity() < enough {
                        self.counters.octets_gathered += gather.len() as u64;
                        // Twice as much each time, but never more than the FPDU takes.
                        gather.reserve_exact(whole.min(2 * enough) - gather.len());
                    }
                    gather.extend_from_slice(piece);
                    rest = behind;
                }
            }
        }
        self.rdma.gathers.give(gather);
        rest
    }

    #[cold]
    pub(crate) fn on_bad_crc(&mut self, connection: &mut Connection, queue_pair: Option<&mut QueuePair>) {
        // Behind a fault nobody knows any more where FPDUs begin.
        self.counters.crc_errors += u64::from(connection.delivers());
        self.rdma.fail_stream(&mut self.counters, self.now, connection, queue_pair, Fault::Crc.into(), None);
    }

    #[inline]
    pub(crate) fn on_ulpdu(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        ulpdu: &[u8],
    ) {
        // Without a queue pair the stream is being closed: nothing is placed any more.
        let Some(queue_pair) = queue_pair else { return };
        let Phase::Running(running) = &mut connection.phase else { return };
        let result = match running.stream.receive(ulpdu) {
            Ok(Delivery::Write { stag, offset, payload, .. }) => {
                if payload.is_empty() {
                    return;
                }
                let placed = if turn.has_transparent() {
                    Rdma::place_and_note(turn, queue_pair, stag.0, offset.0, payload)
                } else {
                    turn.place(queue_pair.association, stag.0, offset.0, payload, Access::REMOTE_WRITE)
                };
                placed.map_err(|error| Failure::from(tagged_fault(error)))
            }
            Ok(Delivery::ReadResponse { sink_stag, sink_offset, payload, completes, .. }) => {
                let placed = if payload.is_empty() {
                    Ok(())
                } else {
                    turn.place(queue_pair.association, sink_stag.0, sink_offset.0, payload, Access::LOCAL_WRITE)
                };
                if placed.is_ok() && completes {
                    queue_pair.send.read_done();
                    self.retire(connection, queue_pair);
                }
                placed.map_err(|error| Failure {
                    send: Some(Status::LocalProtection),
                    ..Failure::from(tagged_fault(error))
                })
            }
            Ok(Delivery::Send { first, message_offset, payload, completes }) => {
                if first && !self.rdma.begin_receive(queue_pair) {
                    self.await_receive(running, &mut connection.tcp, queue_pair)
                } else {
                    if completes.is_some() {
                        self.retire_acknowledged(connection.tcp.octets_acknowledged(), queue_pair);
                    }
                    self.on_send(turn, queue_pair, &running.stream, message_offset, payload, completes)
                }
            }
            Ok(Delivery::ReadRequest(read)) => {
                let request = &read.request;
                let length = u64::from(request.length);
                let checked = turn.check(
                    queue_pair.association,
                    request.source_stag.0,
                    request.source_offset.0,
                    length,
                    Access::REMOTE_READ,
                );
                // A read of nothing is not checked at all (RFC 5040 §5.2.1).
                match checked {
                    Err(error) if length != 0 => Err(Failure::from(read_fault(error))),
                    _ => {
                        running.stream.accept_read(read);
                        connection.quiet = false;
                        Ok(())
                    }
                }
            }
            Ok(Delivery::Immediate { data, solicited }) => {
                if self.rdma.begin_receive(queue_pair) {
                    self.retire_acknowledged(connection.tcp.octets_acknowledged(), queue_pair);
                    self.rdma.on_immediate(turn, self.now, queue_pair, &running.stream, data, solicited);
                    Ok(())
                } else {
                    self.await_receive(running, &mut connection.tcp, queue_pair)
                }
            }
            Ok(Delivery::AtomicRequest(atomic)) => {
                let request = &atomic.request;
                match turn.check_atomic(queue_pair.association, request.stag.0, request.offset.0) {
                    Err(error) => Err(Failure::from(atomic_fault(error))),
                    Ok(()) => {
                        running.stream.accept_atomic(atomic);
                        connection.quiet = false;
                        Ok(())
                    }
                }
            }
            Ok(Delivery::AtomicResponse { original_value, .. }) => {
                let delivered = deliver_original(turn, queue_pair, original_value);
                if delivered.is_ok() {
                    queue_pair.send.atomic_done(original_value);
                    self.retire(connection, queue_pair);
                }
                // Our own mistake, which the peer cannot know about.
                delivered
                    .map_err(|_| Failure { send: Some(Status::LocalProtection), ..Fault::LocalCatastrophic.into() })
            }
            Ok(Delivery::CommitRequest(commit)) => {
                self.rdma.on_commit_request(turn, self.now, connection, queue_pair, commit)
            }
            Ok(Delivery::CommitResponse { status, .. }) => {
                queue_pair.send.commit_done(status);
                self.retire(connection, queue_pair);
                Ok(())
            }
            Ok(Delivery::Terminate(terminate)) => {
                self.rdma.on_peer_terminate(&mut self.counters, self.now, connection, queue_pair, &terminate);
                Ok(())
            }
            Ok(Delivery::CommitPart | Delivery::ReadyToReceive | Delivery::Ignored) => Ok(()),
            // What the stream itself refuses is no posted receive's fault: too long a Send is found by `scatter`.
            Err(fault) => Err(Failure { receive: None, ..Failure::from(fault) }),
        };
        if let Err(failure) = result {
            self.rdma.fail_stream(&mut self.counters, self.now, connection, Some(queue_pair), failure, Some(ulpdu));
        }
        if queue_pair.overflowed.is_some() {
            self.rdma.on_overflow(&mut self.counters, self.now, connection, queue_pair);
        }
    }

    #[inline]
    fn on_send(
        &mut self,
        turn: &Turn<'_>,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        message_offset: u32,
        payload: &[u8],
        completes: Option<SendEnd>,
    ) -> Result<(), Failure> {
        let association = queue_pair.association;
        queue_pair
            .receive
            .scatter(message_offset, payload, |target, part| {
                turn.place(association, target.stag, target.offset, part, Access::LOCAL_WRITE)
            })
            .map_err(|error| match error {
                ScatterError::TooLong => Failure::from(Fault::MessageTooLong),
                // Our own mistake, which the peer cannot know about.
                ScatterError::Entry(_) => {
                    Failure { receive: Some(Status::LocalProtection), ..Fault::LocalCatastrophic.into() }
                }
            })?;
        let Some(end) = completes else { return Ok(()) };
        // Before an STag is made invalid, which may be that of what was written.
        let hold = if queue_pair.written.is_empty() {
            Hold::Free
        } else {
            self.rdma.commit_written(turn, self.now, queue_pair)
        };
        if let Some(stag) = end.invalidate {
            let shared = queue_pair.domain_is_shared();
            turn.invalidate(association, stag.0, shared).map_err(|error| Failure::from(invalidate_fault(error)))?;
        }
        if let Some(mut completion) = queue_pair.receive.complete(queue_pair.number, end.length, Status::Success) {
            if end.solicited {
                completion.flags = completion.flags.union(CompletionFlags::SOLICITED);
            }
            if let Some(stag) = end.invalidate {
                completion.flags = completion.flags.union(CompletionFlags::INVALIDATED);
                completion.invalidated = stag.0;
            }
            self.rdma.tell_receive(queue_pair, stream, completion, hold);
        }
        Ok(())
    }

    /// Completes send elements that are done, in posting order.
    #[inline]
    pub(crate) fn retire(&mut self, connection: &Connection, queue_pair: &mut QueuePair) {
        self.retire_acknowledged(connection.tcp.octets_acknowledged(), queue_pair);
    }

    /// As [`retire`](Self::retire). A receive completes only behind this: its message may answer one of ours, and programs
    /// count on hearing first that theirs has arrived, which the same segment may acknowledge.
    #[inline]
    fn retire_acknowledged(&mut self, acknowledged: u64, queue_pair: &mut QueuePair) {
        queue_pair.retire(&mut self.rdma.lanes, acknowledged);
    }

    /// Publishes the completion of a send element, if one is wanted.
    #[inline]
    pub(crate) fn complete_send(&mut self, queue_pair: &mut QueuePair, completion: Option<Completion>) {
        queue_pair.complete_send(&mut self.rdma.lanes, completion);
    }
}

/// Delivers what stood in the peer's memory before an atomic to where its poster wants it, in the machine's octet order.
fn deliver_original(turn: &Turn<'_>, queue_pair: &mut QueuePair, original: u64) -> Result<(), AccessError> {
    match queue_pair.send.take_sink() {
        Some(sink) => {
            let octets = original.to_ne_bytes();
            turn.place(queue_pair.association, sink.stag, sink.offset, &octets, Access::LOCAL_WRITE)
        }
        None => Ok(()),
    }
}

/// What access was refused to a tagged segment (RFC 5041 §7.1).
fn tagged_fault(error: AccessError) -> Fault {
    match error {
        AccessError::InvalidStag => Fault::TaggedInvalidStag,
        AccessError::NotAssociated => Fault::TaggedNotAssociated,
        AccessError::Rights => Fault::TaggedAccess,
        AccessError::Wrap => Fault::TaggedWrap,
        AccessError::Bounds => Fault::TaggedBounds,
    }
}

/// Why an STag was not made invalid for a peer (RFC 5040 §7.2).
pub(crate) fn invalidate_fault(error: InvalidateError) -> Fault {
    match error {
        InvalidateError::Shared | InvalidateError::Bound => Fault::InvalidateShared,
        InvalidateError::InvalidStag | InvalidateError::NotAssociated => Fault::InvalidateNotAssociated,
    }
}

/// What was refused to an Atomic Request (RFC 7306 §8.2).
pub(crate) fn atomic_fault(error: AtomicError) -> Fault {
    match error {
        AtomicError::Access(error) => read_fault(error),
        AtomicError::Misaligned => Fault::AtomicMisaligned,
    }
}

/// What access was refused to a Read Request (RFC 5040 §7.2).
pub(crate) fn read_fault(error: AccessError) -> Fault {
    match error {
        AccessError::InvalidStag => Fault::ReadInvalidStag,
        AccessError::NotAssociated => Fault::ReadNotAssociated,
        AccessError::Rights => Fault::ReadAccess,
        AccessError::Wrap => Fault::ReadWrap,
        AccessError::Bounds => Fault::ReadBounds,
    }
}
