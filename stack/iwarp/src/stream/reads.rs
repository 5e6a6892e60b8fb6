//! The two read queues of a stream: reads of ours that await their response (at most ORD), and reads of the peer that
//! hold a slot (at most IRD).

use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::rdmap::{ReadRequest, TerminatedHeader};

use super::{LazyQueue, ReadToken};
use crate::fault::Fault;
use crate::terminate::FailedSegment;
use crate::transmit::Message;

/// A read of ours: where its response must go.
#[derive(Clone, Copy, Debug)]
struct OutstandingRead {
    sink_offset: TaggedOffset,
    /// `None` for the read that is only a ready-to-receive indication.
    token: Option<ReadToken>,
    sink_stag: Stag,
    length: u32,
}

/// Reads of ours, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct OutstandingReads {
    queue: LazyQueue<OutstandingRead>,
    /// Octets of the oldest read that have come.
    received: u32,
    limit: u16,
}

impl OutstandingReads {
    pub(super) const fn new(limit: u16) -> OutstandingReads {
        OutstandingReads { queue: LazyQueue::new(), received: 0, limit }
    }

    pub(super) fn push(&mut self, request: &ReadRequest, token: Option<ReadToken>) -> Option<()> {
        // A ready-to-receive indication goes out even if the consumer asked for no outbound reads at all: the Responder
        // has raised its limit for it (RFC 6581 section 9.1).
        if token.is_some() && self.queue.len() >= usize::from(self.limit) {
            return None;
        }
        self.queue.push_back(OutstandingRead {
            sink_offset: request.sink_offset,
            token,
            sink_stag: request.sink_stag,
            length: request.length,
        });
        Some(())
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

    /// Checks a segment of a Read Response against the oldest read and takes account of it. Gives the read's token and
    /// whether it is complete.
    ///
    /// The documents leave this check to the receiver. It is always made: without it a response could write into the
    /// sink of another read. A segment without payload is not placed, so its STag and offset are not looked at.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        stag: Stag,
        offset: TaggedOffset,
        len: u32,
        last: bool,
    ) -> Result<(Option<ReadToken>, bool), Fault> {
        let Some(read) = self.queue.front() else {
            return Err(Fault::ResponseUnexpected);
        };
        let token = read.token;
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
        if last {
            self.queue.pop_front();
            self.received = 0;
        } else {
            self.received += len;
        }
        Ok((token, last))
    }
}

/// A Read Request of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundRead {
    /// What is asked.
    pub request: ReadRequest,
    /// The DDP header that it came with, for a Terminate.
    header: TerminatedHeader,
    /// Stream position at which the response ends, once it was sent.
    end: u64,
}

impl InboundRead {
    pub(crate) fn new(request: ReadRequest, header: TerminatedHeader) -> InboundRead {
        InboundRead { request, header, end: 0 }
    }

    /// What goes back in a Terminate when `answered` octets of the response were sent.
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

/// A Read Response to send: its message, and where its payload lies.
#[derive(Clone, Debug)]
pub struct Response {
    /// To be cut into segments.
    pub message: Message,
    /// STag of the source.
    pub source_stag: Stag,
    /// Offset of the first octet in the source.
    pub source_offset: TaggedOffset,
}

/// Reads of the peer, oldest first: `answered` of them wait for the acknowledgment of their response, then comes the one
/// that is being answered if there is one, then those that wait.
#[derive(Clone, Debug)]
pub(crate) struct InboundReads {
    queue: LazyQueue<InboundRead>,
    answered: u16,
    limit: u16,
    answering: bool,
}

impl InboundReads {
    pub(super) const fn new(limit: u16) -> InboundReads {
        InboundReads { queue: LazyQueue::new(), answered: 0, limit, answering: false }
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

    /// Whether a further request would be more than was agreed.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= usize::from(self.limit)
    }

    pub(super) fn push(&mut self, read: InboundRead) {
        debug_assert!(!self.is_full(), "every accepted read was counted when it was received");
        self.queue.push_back(read);
    }

    pub(super) fn has_next(&self) -> bool {
        !self.answering && self.queue.len() > usize::from(self.answered)
    }

    pub(super) fn next(&mut self) -> Option<Response> {
        if !self.has_next() {
            return None;
        }
        let request = self.queue.get(usize::from(self.answered))?.request;
        self.answering = true;
        Some(Response {
            message: Message::read_response(request.sink_stag, request.sink_offset, request.length),
            source_stag: request.source_stag,
            source_offset: request.source_offset,
        })
    }

    pub(super) fn answering(&self) -> Option<&InboundRead> {
        if self.answering { self.queue.get(usize::from(self.answered)) } else { None }
    }

    pub(super) fn sent(&mut self, stream_position: u64) {
        if !self.answering {
            return;
        }
        self.answering = false;
        if let Some(read) = self.queue.get_mut(usize::from(self.answered)) {
            read.end = stream_position;
            self.answered += 1;
        }
    }

    #[inline]
    pub(super) fn acknowledged(&mut self, stream_position: u64) {
        while self.answered > 0 && self.queue.front().is_some_and(|read| read.end <= stream_position) {
            self.queue.pop_front();
            self.answered -= 1;
        }
    }
}
