//! Which message of a stream is sent next: an answer to the peer, or our own work.

use crate::api::work::{SendElement, SendFlags, SendOpcode, Status};
use crate::connection::running::{Ending, Outgoing, Running, Source, Tail};
use crate::rdma::operations::{begin_atomic, begin_commit, begin_read, execute_local, execute_peer_atomic};
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::receive::{atomic_fault, invalidate_fault};
use uwarp_iwarp::{Fault, SendKind};
use uwarp_memory::{AccessError, Turn};
use uwarp_wire::ddp::{Stag, TAGGED_HEADER_LEN, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::rdmap::{CommitRegion, ImmediateData};

/// The choice.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// Nothing may be sent now.
    Nothing,
    /// The message is in [`Running::outgoing`].
    Begun,
    /// A Send or Write of a single FPDU, not begun yet.
    Whole(SendElement),
    /// A local operation, which was executed.
    Done(SendElement),
}

/// Why the next message cannot be sent.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The next element of the send queue fails with this status.
    Work(Status),
    /// The answer to an atomic fails, because its target has gone since the request; or the answer to a commit, whose
    /// STag cannot be invalidated.
    Answer(Fault),
    /// The message being cut cannot go on: our memory is not (any longer) what it was said to be.
    Memory(AccessError),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::Work(status)
    }
}

impl From<AccessError> for Refused {
    fn from(error: AccessError) -> Refused {
        Refused::Memory(error)
    }
}

/// Chooses the message that comes next; `limit` is the longest ULPDU.
///
/// # Errors
/// Something that is due cannot be carried out, for this reason.
#[inline(always)]
pub(crate) fn choose(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    limit: u16,
) -> Result<Chosen, Refused> {
    if running.stream.owes_ready_to_receive()
        && let Some(message) = running.stream.ready_to_receive_message()
    {
        running.outgoing = Some(Outgoing { message, source: Source::Nothing, tail: None });
        return Ok(Chosen::Begun);
    }
    let answers = running.stream.has_response()
        && !queue_pair.held.front().is_some_and(|held| held.precedes_response(&running.stream));
    if !answers {
        // Nobody waits: what was sent alone gives no claim later.
        running.balance = 0;
    } else if running.balance <= 0 {
        return next_response(turn, running, queue_pair);
    }
    match next_work(turn, running, queue_pair, limit)? {
        Chosen::Nothing if answers => next_response(turn, running, queue_pair),
        chosen => Ok(chosen),
    }
}

/// A request that is due has no answer, which cannot be. The peer would wait for ever, so the stream ends.
const LOST_ANSWER: Refused = Refused::Answer(Fault::LocalCatastrophic);

#[inline(never)]
fn next_response(turn: &Turn<'_>, running: &mut Running, queue_pair: &QueuePair) -> Result<Chosen, Refused> {
    if let Some(atomic) = running.stream.next_atomic() {
        let original =
            execute_peer_atomic(turn, queue_pair, &atomic).map_err(|error| Refused::Answer(atomic_fault(error)))?;
        let message = running.stream.atomic_response(original).ok_or(LOST_ANSWER)?;
        running.outgoing = Some(Outgoing { message, source: Source::Answer, tail: None });
        return Ok(Chosen::Begun);
    }
    if let Some(finished) = running.stream.next_commit() {
        if let Some(stag) = finished.invalidate {
            turn.invalidate(queue_pair.association, stag.0, queue_pair.domain_is_shared())
                .map_err(|error| Refused::Answer(invalidate_fault(error)))?;
        }
        let message = running.stream.commit_response().ok_or(LOST_ANSWER)?;
        running.outgoing = Some(Outgoing { message, source: Source::Answer, tail: None });
        return Ok(Chosen::Begun);
    }
    let response = running.stream.next_response().ok_or(LOST_ANSWER)?;
    let source = Source::Response { stag: response.source_stag, offset: response.source_offset };
    running.outgoing = Some(Outgoing { message: response.message, source, tail: None });
    Ok(Chosen::Begun)
}

/// The next element of the send queue, if it may go now.
#[inline(always)]
fn next_work(turn: &Turn<'_>, running: &mut Running, queue_pair: &mut QueuePair, limit: u16) -> Result<Chosen, Status> {
    match running.ending {
        Ending::No => {}
        Ending::Finishing { until } if queue_pair.send.position() < until => {}
        Ending::Held { .. } | Ending::Finishing { .. } | Ending::Closed => return Ok(Chosen::Nothing),
    }
    let Some(element) = queue_pair.send.peek_next() else { return Ok(Chosen::Nothing) };
    let element = element.map_err(|_| Status::LocalOperation)?;
    if element.flags.contains(SendFlags::FENCE) && !running.stream.fence_is_clear() {
        return Ok(Chosen::Nothing);
    }
    let whole = header_len(element.opcode) + element.length as usize;
    if element.opcode.is_send_or_write() && whole <= usize::from(running.whole_limit(limit)) {
        return Ok(Chosen::Whole(element));
    }
    next_other(turn, running, queue_pair, element, limit)
}

/// Begins with an element that is more than one Send or Write in one FPDU, or carries it out.
#[inline(never)]
fn next_other(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    element: SendElement,
    limit: u16,
) -> Result<Chosen, Status> {
    if element.opcode.is_local() {
        execute_local(turn, queue_pair, &element)?;
        return Ok(Chosen::Done(element));
    }
    let source = if element.flags.contains(SendFlags::INLINE) { Source::Inline } else { Source::Entries };
    let mut tail = None;
    let (message, source) = match element.opcode {
        SendOpcode::Write => {
            (running.stream.write(Stag(element.stag), TaggedOffset(element.remote_offset), element.length), source)
        }
        SendOpcode::Immediate | SendOpcode::WriteImmediate if !running.stream.features().immediate => {
            return Err(Status::LocalOperation);
        }
        SendOpcode::WriteImmediate => {
            let data = queue_pair.send.immediate_of(&element).ok_or(Status::LocalOperation)?;
            tail = Some(Tail::Immediate { data, solicited: element.flags.contains(SendFlags::SOLICITED) });
            let (stag, offset) = (Stag(element.stag), TaggedOffset(element.remote_offset));
            (running.stream.write(stag, offset, element.payload_len()), source)
        }
        SendOpcode::Immediate => {
            let data = ImmediateData(element.remote_offset);
            (running.stream.immediate(data, element.flags.contains(SendFlags::SOLICITED)), Source::NoPayload)
        }
        SendOpcode::SendImmediate if !running.stream.features().infiniband => return Err(Status::LocalOperation),
        SendOpcode::Send | SendOpcode::SendInvalidate | SendOpcode::SendImmediate => {
            (running.stream.send(send_kind(&element), element.length), source)
        }
        SendOpcode::Read => match begin_read(turn, running, queue_pair, &element)? {
            Some(message) => (message, Source::NoPayload),
            None => return Ok(Chosen::Nothing),
        },
        SendOpcode::FetchAdd | SendOpcode::CompareSwap => match begin_atomic(turn, running, queue_pair, &element)? {
            Some(message) => (message, Source::NoPayload),
            None => return Ok(Chosen::Nothing),
        },
        SendOpcode::Commit => match begin_commit(running, &element, limit)? {
            Some((message, identifier)) => (message, Source::CommitRequest(identifier)),
            None => return Ok(Chosen::Nothing),
        },
        SendOpcode::WriteCommit => {
            if !running.stream.features().commit || running.stream.ord() == 0 {
                return Err(Status::LocalOperation);
            }
            // The slot is taken when the Write is done; no other request comes in between.
            if !running.stream.has_request_slot() {
                return Ok(Chosen::Nothing);
            }
            let (stag, offset) = (Stag(element.stag), TaggedOffset(element.remote_offset));
            tail = Some(Tail::Commit(CommitRegion { stag, length: element.length, offset }));
            (running.stream.write(stag, offset, element.length), source)
        }
        SendOpcode::Bind | SendOpcode::LocalInvalidate | SendOpcode::Datagram => return Err(Status::LocalOperation),
    };
    queue_pair.send.begin(element);
    running.outgoing = Some(Outgoing { message, source, tail });
    Ok(Chosen::Begun)
}

/// Octets of the header of a Write or a Send.
#[inline]
pub(crate) fn header_len(opcode: SendOpcode) -> usize {
    if opcode == SendOpcode::Write { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN }
}

pub(crate) fn send_kind(element: &SendElement) -> SendKind {
    let stag = Stag(element.stag);
    match (element.opcode, element.flags.contains(SendFlags::SOLICITED)) {
        (SendOpcode::SendInvalidate, false) => SendKind::Invalidate(stag),
        (SendOpcode::SendInvalidate, true) => SendKind::SolicitedInvalidate(stag),
        (SendOpcode::SendImmediate, false) => SendKind::Immediate(element.remote_offset as u32),
        (SendOpcode::SendImmediate, true) => SendKind::SolicitedImmediate(element.remote_offset as u32),
        (_, false) => SendKind::Plain,
        (_, true) => SendKind::Solicited,
    }
}
