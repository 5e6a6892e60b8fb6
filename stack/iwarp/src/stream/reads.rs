//! The two request queues of a stream. One holds our reads, atomics and commits that await a response, together at most
//! ORD. The other holds the peer's requests that occupy a slot: at most IRD reads, and in addition IRD atomics (RFC
//! 7306 §5.2.2) and IRD commits.

use std::borrow::Cow;
use std::collections::VecDeque;

use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::rdmap::{
    ATOMIC_REQUEST_LEN, AtomicOperation, AtomicRequest, CommitRegion, CommitRequest, ReadRequest, TerminatedHeader,
};

use crate::fault::Fault;
use crate::opcode::COMMIT_REGION_LIMIT;
use crate::terminate::FailedSegment;
use crate::transmit::Message;

/// One of our reads: the destination of its response.
#[derive(Clone, Copy, Debug)]
struct OutstandingRead {
    sink_offset: TaggedOffset,
    /// It is only a ready-to-receive indication.
    is_indication: bool,
    sink_stag: Stag,
    length: u32,
}

/// One of our requests. Responses arrive in the order of the requests, whatever their kinds.
#[derive(Clone, Copy, Debug)]
enum Outstanding {
    Read(OutstandingRead),
    Atomic { identifier: u32 },
    Commit { identifier: u32 },
}

/// Requests of ours, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct OutstandingReads {
    queue: VecDeque<Outstanding>,
    /// Octets of the oldest read received so far.
    received: u32,
    limit: u16,
}

impl OutstandingReads {
    pub(super) const fn new(limit: u16) -> OutstandingReads {
        OutstandingReads { queue: VecDeque::new(), received: 0, limit }
    }

    pub(super) fn push(&mut self, request: &ReadRequest, is_indication: bool) -> Option<()> {
        // A ready-to-receive indication is sent even if the consumer wants no outbound reads: the Responder has raised
        // its limit for it (RFC 6581 §9.1).
        if !is_indication && self.is_full() {
            return None;
        }
        self.queue.push_back(Outstanding::Read(OutstandingRead {
            sink_offset: request.sink_offset,
            is_indication,
            sink_stag: request.sink_stag,
            length: request.length,
        }));
        Some(())
    }

    pub(super) fn push_atomic(&mut self, identifier: u32) {
        self.queue.push_back(Outstanding::Atomic { identifier });
    }

    pub(super) fn push_commit(&mut self, identifier: u32) {
        self.queue.push_back(Outstanding::Commit { identifier });
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= usize::from(self.limit)
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    pub(super) const fn limit(&self) -> u16 {
        self.limit
    }

    /// Checks a segment of a Read Response against the oldest read. Returns whether the read is only a ready-to-receive
    /// indication.
    ///
    /// The documents leave this check to the receiver. It is always made: otherwise a response could write into the
    /// sink of another read. A segment without payload is not placed, so its STag and offset are ignored.
    #[inline]
    pub(crate) fn inspect(&self, stag: Stag, offset: TaggedOffset, len: u32, last: bool) -> Result<bool, Fault> {
        let Some(Outstanding::Read(read)) = self.queue.front() else {
            return Err(Fault::ResponseUnexpected);
        };
        if len != 0 {
            if stag != read.sink_stag {
                return Err(Fault::ResponseStag);
            }
            if offset != read.sink_offset.wrapping_add(u64::from(self.received)) {
                return Err(Fault::ResponseBounds);
            }
        }
        let left = read.length - self.received;
        if len > left || (last && len != left) {
            return Err(Fault::ResponseBounds);
        }
        Ok(read.is_indication)
    }

    /// A segment of the response to the oldest request arrived, with `len` octets. With the last one the request is
    /// answered.
    #[inline]
    pub(crate) fn take(&mut self, len: u32, last: bool) {
        if last {
            self.queue.pop_front();
            self.received = 0;
        } else {
            self.received += len;
        }
    }

    /// Whether queue 3 has a buffer for a response: an atomic or a commit is outstanding.
    pub(crate) fn awaits_on_queue_3(&self) -> bool {
        self.queue.iter().any(|request| !matches!(request, Outstanding::Read(_)))
    }

    /// Checks a Commit Response against the oldest request, as [`OutstandingReads::inspect_atomic`].
    pub(crate) fn inspect_commit(&self, identifier: u32) -> Result<(), Fault> {
        match self.queue.front() {
            Some(Outstanding::Commit { identifier: asked }) if *asked == identifier => Ok(()),
            Some(Outstanding::Commit { .. }) => Err(Fault::ResponseIdentifier),
            _ => Err(Fault::ResponseUnexpected),
        }
    }

    /// Checks an Atomic Response against the oldest request. Responses are matched by their order; the identifier is a
    /// cross-check.
    pub(crate) fn inspect_atomic(&self, identifier: u32) -> Result<(), Fault> {
        match self.queue.front() {
            Some(Outstanding::Atomic { identifier: asked }) if *asked == identifier => Ok(()),
            Some(Outstanding::Atomic { .. }) => Err(Fault::ResponseIdentifier),
            _ => Err(Fault::ResponseUnexpected),
        }
    }
}

/// An Atomic Request of the peer, with a valid operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundAtomic {
    /// The operation.
    pub operation: AtomicOperation,
    /// Its target and operands.
    pub request: AtomicRequest,
    /// The DDP header that it arrived with, for a Terminate.
    header: TerminatedHeader,
}

impl InboundAtomic {
    pub(crate) fn new(operation: AtomicOperation, request: AtomicRequest, header: TerminatedHeader) -> InboundAtomic {
        InboundAtomic { operation, request, header }
    }
}

/// A complete Commit Request of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundCommit<'a> {
    /// The message behind its DDP headers.
    octets: Cow<'a, [u8]>,
    /// The state kept until it is answered.
    pub head: CommitHead,
}

impl<'a> InboundCommit<'a> {
    pub(crate) fn new(octets: Cow<'a, [u8]>, head: CommitHead) -> InboundCommit<'a> {
        InboundCommit { octets, head }
    }

    /// It lists more regions than [`COMMIT_REGION_LIMIT`].
    pub fn exceeds(&self) -> bool {
        self.octets.len() > CommitRequest::emit_len(COMMIT_REGION_LIMIT as usize)
    }

    /// The regions to be made durable; none if there are too many.
    pub fn regions(&self) -> impl Iterator<Item = CommitRegion> + '_ {
        let request = CommitRequest::parse(&self.octets).ok().filter(|_| !self.exceeds());
        request.into_iter().flat_map(|request| request.regions())
    }
}

/// A Commit Request without its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitHead {
    pub(crate) request_identifier: u32,
    /// STag to be invalidated after the commit has succeeded and before it is answered; 0 if none.
    pub(crate) invalidate: Stag,
    /// The DDP header that it arrived with (the last one, if segmented), for a Terminate, and its segment's length.
    pub(crate) header: TerminatedHeader,
    pub(crate) segment_length: u16,
}

/// Identifies a commit of the peer on its stream until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommitTicket(pub u64);

/// A commit of the peer that is due to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedCommit {
    /// How it ended: 0 is success.
    pub status: u32,
    /// STag to be invalidated before the answer, set if the commit succeeded.
    pub invalidate: Option<Stag>,
}

/// A request of the peer that occupies a slot.
#[derive(Clone, Copy, Debug)]
struct Inbound {
    what: What,
    /// Stream position at which the response ends, once it is sent.
    end: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read(InboundRead),
    Atomic(InboundAtomic),
    Commit {
        head: CommitHead,
        ticket: CommitTicket,
        /// How it ended, once it has.
        status: Option<u32>,
    },
}

/// A Read Request of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundRead {
    /// What is asked.
    pub request: ReadRequest,
    /// The DDP header that it arrived with, for a Terminate.
    header: TerminatedHeader,
}

impl InboundRead {
    pub(crate) fn new(request: ReadRequest, header: TerminatedHeader) -> InboundRead {
        InboundRead { request, header }
    }

    /// What a Terminate returns when `answered` octets of the response were sent.
    pub(super) fn failed_segment(&self, answered: u32) -> FailedSegment {
        let advance = u64::from(answered);
        FailedSegment {
            segment_length: (UNTAGGED_HEADER_LEN + uwarp_wire::rdmap::READ_REQUEST_LEN) as u16,
            ddp_header: self.header,
            read_request: Some(ReadRequest {
                sink_offset: self.request.sink_offset.wrapping_add(advance),
                source_offset: self.request.source_offset.wrapping_add(advance),
                length: self.request.length.saturating_sub(answered),
                ..self.request
            }),
        }
    }
}

/// A Read Response to send: its message, and the location of its payload.
#[derive(Clone, Debug)]
pub struct Response {
    /// The message to be cut into segments.
    pub message: Message,
    /// STag of the source.
    pub source_stag: Stag,
    /// Offset of the first octet in the source.
    pub source_offset: TaggedOffset,
}

/// Requests of the peer, oldest first. The first `answered` ones wait for their response to be acknowledged; then comes
/// the one that is being answered, if any; then those that wait.
#[derive(Clone, Debug)]
pub(crate) struct InboundReads {
    queue: VecDeque<Inbound>,
    answered: u16,
    /// Requests whose response is sent, over the life of the stream.
    done: u64,
    /// How many of the requests here are atomics,
    atomics: u16,
    /// and how many are commits.
    commits: u16,
    /// The limit of reads; the same applies to atomics and to commits in addition.
    limit: u16,
    answering: bool,
    next_ticket: u64,
}

impl InboundReads {
    pub(super) const fn new(limit: u16) -> InboundReads {
        InboundReads {
            queue: VecDeque::new(),
            answered: 0,
            done: 0,
            atomics: 0,
            commits: 0,
            limit,
            answering: false,
            next_ticket: 0,
        }
    }

    pub(super) const fn limit(&self) -> u16 {
        self.limit
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Whether a further read would exceed the agreed limit.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() - usize::from(self.atomics) - usize::from(self.commits) >= usize::from(self.limit)
    }

    /// Whether a further commit would exceed the agreed limit.
    pub(crate) fn is_full_of_commits(&self) -> bool {
        self.commits >= self.limit
    }

    /// Whether a further atomic would exceed the agreed limit.
    pub(crate) fn is_full_of_atomics(&self) -> bool {
        self.atomics >= self.limit
    }

    pub(crate) fn push(&mut self, read: InboundRead) {
        debug_assert!(!self.is_full(), "every accepted read was counted when it was received");
        self.queue.push_back(Inbound { what: What::Read(read), end: 0 });
    }

    pub(crate) fn push_atomic(&mut self, atomic: InboundAtomic) {
        debug_assert!(!self.is_full_of_atomics(), "every accepted atomic was counted when it was received");
        self.atomics += 1;
        self.queue.push_back(Inbound { what: What::Atomic(atomic), end: 0 });
    }

    pub(super) fn push_commit(&mut self, head: CommitHead) -> CommitTicket {
        debug_assert!(!self.is_full_of_commits(), "every accepted commit was counted when it was received");
        let ticket = CommitTicket(self.next_ticket);
        self.next_ticket += 1;
        self.commits += 1;
        self.queue.push_back(Inbound { what: What::Commit { head, ticket, status: None }, end: 0 });
        ticket
    }

    /// Whether an atomic before this commit is still to be carried out: the commit would not make its effect durable.
    pub(super) fn waits_for_atomic(&self, wanted: CommitTicket) -> bool {
        if self.atomics == 0 {
            return false;
        }
        // An atomic that is being answered was carried out when its answer was begun.
        let begun = usize::from(self.answered) + usize::from(self.answering);
        let before = |request: &&Inbound| !matches!(request.what, What::Commit { ticket, .. } if ticket == wanted);
        self.queue.iter().skip(begun).take_while(before).any(|request| matches!(request.what, What::Atomic(_)))
    }

    /// Records how a commit ended; false if it had ended before, or none has this ticket.
    pub(super) fn finish_commit(&mut self, wanted: CommitTicket, ended: u32) -> bool {
        for request in &mut self.queue {
            if let What::Commit { ticket, status, .. } = &mut request.what
                && *ticket == wanted
            {
                return status.is_none() && {
                    *status = Some(ended);
                    true
                };
            }
        }
        false
    }

    /// Requests accepted over the life of the stream.
    pub(super) fn accepted(&self) -> u64 {
        self.done + self.queue.len() as u64 - u64::from(self.answered)
    }

    /// Requests whose response is sent, over the life of the stream.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Whether there is a request whose response is not being sent.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.queue.len() > usize::from(self.answered)
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        // An empty queue is the usual case.
        !self.answering && self.owes() && self.may_answer()
    }

    /// Whether the request that is answered next waits for nothing.
    fn may_answer(&self) -> bool {
        self.queue
            .get(usize::from(self.answered))
            .is_some_and(|request| !matches!(request.what, What::Commit { status: None, .. }))
    }

    pub(super) fn next(&mut self) -> Option<Response> {
        if !self.has_next() {
            return None;
        }
        let What::Read(InboundRead { request, .. }) = self.queue.get(usize::from(self.answered))?.what else {
            return None;
        };
        self.answering = true;
        Some(Response {
            message: Message::read_response(request.sink_stag, request.sink_offset, request.length),
            source_stag: request.source_stag,
            source_offset: request.source_offset,
        })
    }

    /// The atomic to be answered next, if the next request is one.
    pub(super) fn next_atomic(&mut self) -> Option<InboundAtomic> {
        if !self.has_next() {
            return None;
        }
        let What::Atomic(atomic) = self.queue.get(usize::from(self.answered))?.what else { return None };
        self.answering = true;
        Some(atomic)
    }

    /// The commit to be answered next, if the next request is one and it has ended.
    pub(super) fn next_commit(&mut self) -> Option<FinishedCommit> {
        if !self.has_next() {
            return None;
        }
        let What::Commit { head, status: Some(status), .. } = self.queue.get(usize::from(self.answered))?.what else {
            return None;
        };
        self.answering = true;
        let invalidate = (status == 0 && head.invalidate.0 != 0).then_some(head.invalidate);
        Some(FinishedCommit { status, invalidate })
    }

    /// The identifier of the atomic that is being answered.
    pub(super) fn answering_atomic(&self) -> Option<u32> {
        match self.answering()?.what {
            What::Atomic(atomic) => Some(atomic.request.request_identifier),
            _ => None,
        }
    }

    /// The identifier of the commit that is being answered, and how it ended.
    pub(super) fn answering_commit(&self) -> Option<(u32, u32)> {
        match self.answering()?.what {
            What::Commit { head, status: Some(status), .. } => Some((head.request_identifier, status)),
            _ => None,
        }
    }

    fn answering(&self) -> Option<&Inbound> {
        if self.answering { self.queue.get(usize::from(self.answered)) } else { None }
    }

    /// What a Terminate returns of the request being answered when `answered` octets of the response were sent.
    pub(super) fn failed_segment(&self, answered: u32) -> Option<FailedSegment> {
        Some(match &self.answering()?.what {
            What::Read(read) => read.failed_segment(answered),
            What::Atomic(atomic) => FailedSegment {
                segment_length: (UNTAGGED_HEADER_LEN + ATOMIC_REQUEST_LEN) as u16,
                ddp_header: atomic.header,
                read_request: None,
            },
            What::Commit { head, .. } => {
                FailedSegment { segment_length: head.segment_length, ddp_header: head.header, read_request: None }
            }
        })
    }

    pub(super) fn sent(&mut self, stream_position: u64) {
        if !self.answering {
            return;
        }
        self.answering = false;
        if let Some(read) = self.queue.get_mut(usize::from(self.answered)) {
            read.end = stream_position;
            self.answered += 1;
            self.done += 1;
        }
    }

    #[inline]
    pub(super) fn acknowledged(&mut self, stream_position: u64) {
        if self.answered > 0 {
            self.free_answered(stream_position);
        }
    }

    fn free_answered(&mut self, stream_position: u64) {
        while self.answered > 0
            && let Some(request) = self.queue.front()
            && request.end <= stream_position
        {
            match request.what {
                What::Read(_) => {}
                What::Atomic(_) => self.atomics -= 1,
                What::Commit { .. } => self.commits -= 1,
            }
            self.queue.pop_front();
            self.answered -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
