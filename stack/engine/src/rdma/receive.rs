//! Octets of a stream in full operation: FPDUs, and what they mean to memory and to the queue pair.
//!
//! An FPDU that lies whole in a frame is used in place. One that comes in pieces is put together in a buffer of the
//! connection: a copy at once, instead of holding on to the device's buffers, so that a slow peer can pin heap memory
//! (at most one FPDU a connection, under a budget of the engine) but never the receive pool. The budget is held behind
//! the frames of a turn, and counts what the buffer takes and not what lies in it: a buffer that was grown for a long
//! FPDU is used again for short ones.

use uwarp_iwarp::fault::LocalStatus;
use uwarp_iwarp::framing::{Framed, LENGTH_LEN, Marked, deframe, deframe_marked};
use uwarp_iwarp::{Delivery, Fault};
use uwarp_memory::{Access, AccessError, AtomicError, InvalidateError, Turn, kernels};

use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::api::work::{Sge, Status};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::connection::running::Running;
use crate::rdma::operations::deliver_original;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::receive_queue::ScatterError;
use crate::rdma::{Moment, Rdma};

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

impl Rdma {
    /// Octets of full operation, in order.
    #[inline]
    pub(crate) fn on_stream(
        &mut self,
        turn: &Turn<'_>,
        common: &mut Common,
        connection: &mut Connection,
        octets: &[u8],
    ) {
        let Some(running) = connection.phase.running(&mut common.counters) else { return };
        if running.receive_markers {
            return self.on_marked_stream(turn, common, connection, octets);
        }
        let crc = crc_of(running);
        let mut queue_pair = self.take(connection.queue_pair);
        let mut rest = octets;
        if !connection.gather.is_empty() {
            rest = self.gather(turn, common, connection, queue_pair.as_deref_mut(), rest);
        }
        while !rest.is_empty() {
            match deframe(rest, crc) {
                Framed::Fpdu { ulpdu, fpdu_len } => {
                    let queue_pair = queue_pair.as_deref_mut();
                    if !self.on_ulpdu(turn, common, connection, queue_pair, &rest[ulpdu]) {
                        connection.withhold(rest.len() - fpdu_len + 1);
                        if connection.awaits_receive() {
                            self.start_gather(&mut common.counters, connection, rest, Some(rest.len()));
                            break;
                        }
                    }
                    common.counters.fpdus_received += 1;
                    if connection.gone {
                        break;
                    }
                    rest = &rest[fpdu_len..];
                }
                Framed::Incomplete { needed } => {
                    self.start_gather(&mut common.counters, connection, rest, needed);
                    rest = &[];
                }
                Framed::BadCrc { .. } => {
                    connection.withhold(rest.len());
                    self.on_bad_crc(common, connection, queue_pair.as_deref_mut());
                    rest = &[];
                }
            }
        }
        self.give(queue_pair);
    }

    /// As [`Rdma::on_stream`], with markers in the octets. All of them go through the connection's gather buffer.
    #[cold]
    pub(super) fn on_marked_stream(
        &mut self,
        turn: &Turn<'_>,
        common: &mut Common,
        connection: &mut Connection,
        octets: &[u8],
    ) {
        let mut queue_pair = self.take(connection.queue_pair);
        let mut gather = self.gathers.resume(connection);
        if gather.capacity() == 0 {
            gather = self.gathers.take(octets.len());
        }
        let enough = gather.len() + octets.len();
        common.counters.work.octets_gathered += octets.len() as u64;
        if gather.capacity() < enough {
            common.counters.work.octets_gathered += gather.len() as u64;
            // Some more, so that not every piece moves those before it. It counts, so not much more.
            gather.reserve_exact(enough + enough / 4 - gather.len());
        }
        gather.extend_from_slice(octets);
        let mut ulpdu = self.gathers.take_any();
        let mut at = 0;
        while let Phase::Running(running) = &mut connection.phase
            && !connection.gone
            && at < gather.len()
        {
            match deframe_marked(&gather[at..], running.receive_position, crc_of(running), &mut ulpdu) {
                Marked::Fpdu { len } => {
                    if !self.on_ulpdu(turn, common, connection, queue_pair.as_deref_mut(), &ulpdu) {
                        connection.withhold(gather.len() - at - len + 1);
                        if connection.awaits_receive() {
                            break;
                        }
                    }
                    at += len;
                    common.counters.fpdus_received += 1;
                    if let Phase::Running(running) = &mut connection.phase {
                        running.receive_position += len as u64;
                    }
                }
                Marked::Incomplete { .. } => break,
                Marked::BadCrc => {
                    connection.withhold(gather.len() - at);
                    at = gather.len();
                    self.on_bad_crc(common, connection, queue_pair.as_deref_mut());
                }
                Marked::Mismatch => {
                    connection.withhold(gather.len() - at);
                    at = gather.len();
                    let failure = Fault::MarkerMismatch.into();
                    self.fail_stream(common, connection, queue_pair.as_deref_mut(), failure, None);
                }
            }
        }
        gather.drain(..at);
        if at > 0 || connection.awaits_receive() {
            connection.gather_number = 0;
        }
        self.gathers.put_aside(connection, gather);
        self.gathers.give(ulpdu);
        self.give(queue_pair);
    }

    /// The first piece of an FPDU.
    #[cold]
    pub(super) fn start_gather(
        &mut self,
        counters: &mut Counters,
        connection: &mut Connection,
        octets: &[u8],
        needed: Option<usize>,
    ) {
        let mut gather = self.gathers.take(needed.unwrap_or(LENGTH_LEN));
        counters.work.octets_gathered += octets.len() as u64;
        gather.extend_from_slice(octets);
        self.gathers.put_aside(connection, gather);
    }

    /// A further piece of an FPDU. Gives what lies behind it.
    #[cold]
    fn gather<'a>(
        &mut self,
        turn: &Turn<'_>,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        octets: &'a [u8],
    ) -> &'a [u8] {
        let Some(running) = connection.phase.running(&mut common.counters) else { return &[] };
        let crc = crc_of(running);
        let mut gather = self.gathers.resume(connection);
        let mut rest = octets;
        loop {
            match deframe(&gather, crc) {
                Framed::Fpdu { ulpdu, .. } => {
                    connection.gather_number = 0;
                    if !self.on_ulpdu(turn, common, connection, queue_pair, &gather[ulpdu]) {
                        connection.withhold(rest.len() + 1);
                        if connection.awaits_receive() {
                            common.counters.work.octets_gathered += rest.len() as u64;
                            gather.extend_from_slice(rest);
                            self.gathers.put_aside(connection, gather);
                            return &[];
                        }
                    }
                    common.counters.fpdus_received += 1;
                    common.counters.fpdus_gathered += 1;
                    break;
                }
                Framed::BadCrc { .. } => {
                    connection.withhold(rest.len() + 1);
                    self.on_bad_crc(common, connection, queue_pair);
                    rest = &[];
                    break;
                }
                Framed::Incomplete { needed } => {
                    if rest.is_empty() {
                        self.gathers.put_aside(connection, gather);
                        return rest;
                    }
                    let whole = needed.unwrap_or(LENGTH_LEN);
                    let (piece, behind) = rest.split_at((whole - gather.len()).min(rest.len()));
                    let enough = gather.len() + piece.len();
                    common.counters.work.octets_gathered += piece.len() as u64;
                    if gather.capacity() < enough {
                        common.counters.work.octets_gathered += gather.len() as u64;
                        // Twice as much each time, but never more than the FPDU takes.
                        gather.reserve_exact(whole.min(2 * enough) - gather.len());
                    }
                    gather.extend_from_slice(piece);
                    rest = behind;
                }
            }
        }
        self.gathers.give(gather);
        rest
    }

    #[cold]
    pub(super) fn on_bad_crc(
        &mut self,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
    ) {
        // Behind a fault nobody knows any more where FPDUs begin.
        common.counters.crc_errors += u64::from(connection.delivers());
        self.fail_stream(common, connection, queue_pair, Fault::Crc.into(), None);
    }

    /// Takes an FPDU's contents. True: they are placed or carried out. Otherwise they wait for a receive, are refused,
    /// or come when nothing is delivered any more.
    #[inline]
    pub(super) fn on_ulpdu(
        &mut self,
        turn: &Turn<'_>,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        ulpdu: &[u8],
    ) -> bool {
        // Without a queue pair the stream is being closed: nothing is placed any more.
        let Some(queue_pair) = queue_pair else {
            common.counters.count_drop(DropReason::StreamEnded);
            return false;
        };
        let Some(running) = connection.phase.running(&mut common.counters) else { return false };
        let delivery = running.stream.inspect(ulpdu);
        let result = match &delivery {
            &Ok(Delivery::Write { stag, offset, payload, .. }) => {
                let placed = if payload.is_empty() {
                    Ok(())
                } else if turn.has_transparent() {
                    Rdma::place_and_note(turn, queue_pair, stag.0, offset.0, payload)
                } else {
                    turn.place(queue_pair.peer.writes, stag.0, offset.0, payload, Access::REMOTE_WRITE)
                };
                placed.map_err(|error| Failure::from(tagged_fault(error)))
            }
            &Ok(Delivery::ReadResponse { sink_stag, sink_offset, payload, completes }) => {
                let placed = if payload.is_empty() {
                    Ok(())
                } else {
                    turn.place(queue_pair.association, sink_stag.0, sink_offset.0, payload, Access::LOCAL_WRITE)
                };
                if placed.is_ok() && completes {
                    queue_pair.send.read_done();
                    queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
                }
                placed.map_err(|error| Failure {
                    send: Some(Status::LocalProtection),
                    ..Failure::from(tagged_fault(error))
                })
            }
            &Ok(Delivery::Send { first, kind, message_offset, payload, last }) => {
                if first && !self.begin_receive(queue_pair) {
                    self.await_receive(common, (running, ulpdu), &mut connection.tcp, queue_pair)
                } else {
                    // A receive completes only behind this: its message may answer one of ours, and programs count on
                    // hearing first that theirs has arrived, which the same segment may acknowledge.
                    if last {
                        queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
                    }
                    let placed = scatter(turn, queue_pair, message_offset, payload);
                    if last {
                        let length = message_offset + payload.len() as u32;
                        placed.and_then(|()| {
                            self.complete_receive(common, turn, queue_pair, &running.stream, kind, length)
                        })
                    } else {
                        placed
                    }
                }
            }
            Ok(Delivery::ReadRequest(read)) => {
                let request = &read.request;
                let length = u64::from(request.length);
                let checked = turn.check(
                    queue_pair.peer.reads,
                    request.source_stag.0,
                    request.source_offset.0,
                    length,
                    Access::REMOTE_READ,
                );
                // A read of nothing is not checked at all (RFC 5040 §5.2.1).
                match checked {
                    Err(error) if length != 0 => Err(Failure::from(read_fault(error))),
                    _ => {
                        connection.quiet = false;
                        Ok(())
                    }
                }
            }
            &Ok(Delivery::Immediate { data, solicited }) => {
                if self.begin_receive(queue_pair) {
                    queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
                    let immediate = (data, solicited);
                    self.on_immediate(common, turn, queue_pair, &running.stream, immediate);
                    Ok(())
                } else {
                    self.await_receive(common, (running, ulpdu), &mut connection.tcp, queue_pair)
                }
            }
            Ok(Delivery::AtomicRequest(atomic)) => {
                let request = &atomic.request;
                match turn.check_atomic(queue_pair.peer.atomics, request.stag.0, request.offset.0) {
                    Err(error) => Err(Failure::from(atomic_fault(error))),
                    Ok(()) => {
                        connection.quiet = false;
                        Ok(())
                    }
                }
            }
            &Ok(Delivery::AtomicResponse { original_value }) => {
                let delivered = deliver_original(turn, queue_pair, original_value);
                if delivered.is_ok() {
                    queue_pair.send.atomic_done(original_value);
                    queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
                }
                // Our own mistake, which the peer cannot know about.
                delivered
                    .map_err(|_| Failure { send: Some(Status::LocalProtection), ..Fault::LocalCatastrophic.into() })
            }
            Ok(Delivery::CommitRequest(commit)) => {
                connection.quiet = false;
                self.on_commit_request(Moment { turn, now: common.now }, running, queue_pair, commit)
            }
            &Ok(Delivery::CommitResponse { status }) => {
                queue_pair.send.commit_done(status);
                queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
                Ok(())
            }
            Ok(Delivery::CommitPart { .. } | Delivery::ReadyToReceive { .. } | Delivery::Terminate(_)) => Ok(()),
            Ok(Delivery::Ignored) => {
                common.counters.count_drop(DropReason::StreamEnded);
                return false;
            }
            // What the stream itself refuses is no posted receive's fault: too long a Send is found by `scatter`.
            Err(fault) => Err(Failure { receive: None, ..Failure::from(*fault) }),
        };
        let is_taken = match result {
            Ok(()) => {
                let is_taken = !connection.tcp.holds_in_order();
                if let Ok(delivery) = &delivery
                    && is_taken
                {
                    running.stream.commit(delivery);
                    if running.receives_long {
                        self.report_first(running, queue_pair.number, delivery);
                    }
                }
                is_taken
            }
            Err(failure) => {
                self.fail_stream(common, connection, Some(queue_pair), failure, Some(ulpdu));
                false
            }
        };
        if let Ok(Delivery::Terminate(terminate)) = &delivery {
            self.on_peer_terminate(common, connection, queue_pair, terminate);
        }
        if queue_pair.overflowed.is_some() {
            self.on_overflow(common, connection, queue_pair);
        }
        is_taken
    }
}

/// The check of a stream's CRCs, if it has any.
#[inline]
pub(super) fn crc_of(running: &Running) -> Option<fn(&[u8]) -> u32> {
    running.crc.then_some(kernels::crc32c as fn(&[u8]) -> u32)
}

/// Places octets of a Send in the receive that it has taken.
#[inline]
fn scatter(turn: &Turn<'_>, queue_pair: &mut QueuePair, message_offset: u32, payload: &[u8]) -> Result<(), Failure> {
    let association = queue_pair.association;
    let place =
        |target: Sge, part: &[u8]| turn.place(association, target.stag, target.offset, part, Access::LOCAL_WRITE);
    queue_pair.receive.scatter(message_offset, payload, place).map_err(|error| match error {
        ScatterError::TooLong => Failure::from(Fault::MessageTooLong),
        // Our own mistake, which the peer cannot know about.
        ScatterError::Entry(_) => Failure { receive: Some(Status::LocalProtection), ..Fault::LocalCatastrophic.into() },
    })
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
