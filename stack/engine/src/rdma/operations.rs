//! Operations: requests for the peer's memory and local operations of the send queue, and atomics that peers request.

use uwarp_iwarp::Message;
use uwarp_iwarp::stream::InboundAtomic;
use uwarp_memory::{Access, AccessError, AtomicError, BindPiece, CompareSwap, Turn};
use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::rdmap::{AtomicOperation, AtomicRequest, CommitRequest, ReadRequest};

use crate::api::work::{SendElement, SendFlags, SendOpcode, Status};
use crate::connection::running::Running;
use crate::rdma::queue_pair::QueuePair;

/// Executes an atomic of the peer. That happens when its answer is due, so it is ordered with the requests before and
/// behind it (RFC 7306 §7).
pub(crate) fn execute_peer_atomic(
    turn: &Turn<'_>,
    queue_pair: &QueuePair,
    atomic: &InboundAtomic,
) -> Result<u64, AtomicError> {
    let (association, request) = (queue_pair.peer.atomics, &atomic.request);
    let (stag, offset) = (request.stag.0, request.offset.0);
    match atomic.operation {
        AtomicOperation::FetchAdd => {
            turn.fetch_add(association, stag, offset, request.add_swap_data, request.add_swap_mask)
        }
        AtomicOperation::CompareSwap => {
            let operands = CompareSwap {
                compare: request.compare_data,
                compare_mask: request.compare_mask,
                swap: request.add_swap_data,
                swap_mask: request.add_swap_mask,
            };
            turn.compare_swap(association, stag, offset, &operands)
        }
    }
}

/// Delivers what stood in the peer's memory before an atomic to where its poster wants it, in the machine's octet
/// order.
pub(crate) fn deliver_original(turn: &Turn<'_>, queue_pair: &mut QueuePair, original: u64) -> Result<(), AccessError> {
    match queue_pair.send.take_sink() {
        Some(sink) => {
            let octets = original.to_ne_bytes();
            turn.place(queue_pair.association, sink.stag, sink.offset, &octets, Access::LOCAL_WRITE)
        }
        None => Ok(()),
    }
}

/// Executes a local operation, in its place among the posted work: any later message of the stream may depend on it.
#[cold]
pub(crate) fn execute_local(turn: &Turn<'_>, queue_pair: &QueuePair, element: &SendElement) -> Result<(), Status> {
    let association = queue_pair.association;
    if element.opcode == SendOpcode::LocalInvalidate {
        // Other streams may be using it, so it cannot be revoked here: its owner has a call that waits for them.
        return turn
            .invalidate(association, element.stag, queue_pair.domain_is_shared())
            .map_err(|_| Status::LocalProtection);
    }
    let pieces = usize::from(element.entries).checked_sub(1).ok_or(Status::LocalOperation)?;
    let rights = queue_pair.send.entry(element, pieces).ok_or(Status::LocalOperation)?;
    let access = Access::from_bits_truncate(rights.offset as u8);
    let pieces = (0..pieces).filter_map(|index| queue_pair.send.entry(element, index)).map(|piece| BindPiece {
        stag: piece.stag,
        offset: piece.offset,
        length: u64::from(piece.length),
    });
    turn.bind(association, element.stag, element.remote_offset, access, pieces).map_err(|_| Status::LocalProtection)
}

/// The request of a Read, if a slot is free. A Read has one sink: the protocol has no scatter list (RFC 5040 §4.4).
pub(crate) fn begin_read(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    element: &SendElement,
) -> Result<Option<Message>, Status> {
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
    Ok(running.stream.try_begin_read(&request))
}

/// The request of an atomic, if a slot is free. Reads use the same slots.
pub(crate) fn begin_atomic(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    element: &SendElement,
) -> Result<Option<Message>, Status> {
    if !running.stream.features().atomics || running.stream.ord() == 0 {
        return Err(Status::LocalOperation);
    }
    let (operands, sink) = queue_pair.send.atomic_operands(element).ok_or(Status::LocalOperation)?;
    if let Some(sink) = sink {
        if sink.length != 8 {
            return Err(Status::LocalOperation);
        }
        turn.check(queue_pair.association, sink.stag, sink.offset, 8, Access::LOCAL_WRITE)
            .map_err(|_| Status::LocalProtection)?;
    }
    let operation = match element.opcode {
        SendOpcode::FetchAdd => AtomicOperation::FetchAdd,
        _ => AtomicOperation::CompareSwap,
    };
    let request = AtomicRequest {
        operation: operation as u8,
        request_identifier: 0,
        stag: Stag(element.stag),
        offset: TaggedOffset(element.remote_offset),
        add_swap_data: operands.add_swap,
        add_swap_mask: operands.add_swap_mask,
        compare_data: operands.compare,
        compare_mask: operands.compare_mask,
    };
    let message = running.stream.try_begin_atomic(&request);
    if message.is_some() {
        queue_pair.send.expect_original(sink);
    }
    Ok(message)
}

/// The Commit Request for the regions in the element's entries, with its identifier, if a slot is free. Reads use the
/// same slots. It is one segment of at most `limit` octets.
pub(crate) fn begin_commit(
    running: &mut Running,
    element: &SendElement,
    limit: u16,
) -> Result<Option<(Message, u32)>, Status> {
    let regions = u32::from(element.entries);
    let fits = UNTAGGED_HEADER_LEN + CommitRequest::emit_len(usize::from(element.entries)) <= usize::from(limit);
    if !running.stream.features().commit || running.stream.ord() == 0 || regions == 0 || !fits {
        return Err(Status::LocalOperation);
    }
    Ok(running.stream.try_begin_commit(regions))
}
