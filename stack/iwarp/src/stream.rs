//! One RDMAP stream in full operation: sequence numbers of its queues, read limits in both directions, the parameters
//! agreed at start-up, and how it ends.
//!
//! The inbound half is [`Stream::inspect`] and [`Stream::commit`] in [`crate::receive`]. Outbound messages are created
//! here, since they take sequence numbers and read slots; [`crate::Message::next_segment`] cuts them.

use uwarp_wire::ddp::{
    NotReadyRetries, QueueNumber, Stag, TAGGED_HEADER_LEN, TaggedHeader, TaggedOffset, UNTAGGED_HEADER_LEN,
    UntaggedHeader,
};
use uwarp_wire::rdmap::{
    AtomicRequest, AtomicResponse, CommitRegion, CommitResponse, Control, ImmediateData, Opcode, ReadRequest, Terminate,
};

use crate::fault::Fault;
use crate::opcode::Features;
use crate::qp::{Event, IllegalTransition, QpState};
use crate::startup::{Parameters, ReadyToReceive, Role};
use crate::terminate::{FailedSegment, ReceivedTerminate, terminate_for};
use crate::transmit::{Message, SendKind};

mod numbers;
mod open;
mod reads;
#[cfg(test)]
pub(crate) mod tests;

use numbers::{Numbers, take};
pub(crate) use open::{OpenMessages, OpenSend, OpenTagged};
pub use reads::{CommitHead, CommitTicket, FinishedCommit, InboundAtomic, InboundCommit, InboundRead, Response};
use reads::{InboundReads, OutstandingReads};

/// A stream in full operation.
///
/// It takes a few hundred octets. The two read queues allocate on first use; the negotiated limits bound
/// them.
#[derive(Clone, Debug)]
pub struct Stream {
    state: QpState,
    role: Role,
    features: Features,
    ready_to_receive: Option<ReadyToReceive>,
    /// The first FPDU may be a Send without payload that is not for the consumer.
    pub(crate) expects_ready_by_send: bool,
    /// An FPDU of the peer has arrived.
    pub(crate) heard: bool,
    /// A Terminate was created; it is the last message.
    terminate_sent: bool,
    pub(crate) open: OpenMessages,
    /// Numbers that the peer's next messages must have.
    pub(crate) expected: Numbers,
    /// Numbers that our next messages get.
    next: Numbers,
    pub(crate) outstanding: OutstandingReads,
    pub(crate) inbound: InboundReads,
    received_terminate: Option<Box<ReceivedTerminate>>,
    /// What the first octets of our Sends' headers say besides: how long they wait for a receive.
    spare: u8,
}

impl Stream {
    /// A stream with the parameters of start-up, in state Rts.
    pub fn new(parameters: &Parameters, features: Features) -> Stream {
        Stream {
            state: QpState::Rts,
            role: parameters.role,
            features,
            ready_to_receive: parameters.ready_to_receive,
            expects_ready_by_send: parameters.expects_ready_by_send,
            heard: false,
            terminate_sent: false,
            open: OpenMessages::default(),
            expected: Numbers::FIRST,
            next: Numbers::FIRST,
            outstanding: OutstandingReads::new(parameters.ord),
            inbound: InboundReads::new(parameters.ird),
            received_terminate: None,
            spare: 0,
        }
    }

    /// The state of the queue pair on this stream.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// The optional opcodes that are switched on.
    pub const fn features(&self) -> Features {
        self.features
    }

    /// Has our Sends and Immediate Data say from now on how long they wait for a receive, if both ends have agreed on
    /// [`Features::infiniband`].
    pub fn say_retries(&mut self, retries: NotReadyRetries) {
        self.spare = if self.features.infiniband { retries.bits() } else { 0 };
    }

    /// How long a message of the peer waits for a receive, if its ULPDU says so and both ends have agreed that it does.
    pub fn retries_of(&self, ulpdu: &[u8]) -> Option<NotReadyRetries> {
        NotReadyRetries::of(*ulpdu.first()?).filter(|_| self.features.infiniband)
    }

    /// Advances the state on an event that the owner of the connection sees: a close, or the loss of the connection.
    ///
    /// # Errors
    /// [`IllegalTransition`] if the event cannot happen in this state; nothing changes.
    pub fn advance(&mut self, event: Event) -> Result<QpState, IllegalTransition> {
        self.state = self.state.after(event)?;
        Ok(self.state)
    }

    /// Whether any FPDU may be sent now. A Responder sends none, not even a Terminate, before it has received one from
    /// the Initiator (RFC 5044 §7.1.2).
    #[inline]
    pub fn may_transmit(&self) -> bool {
        self.heard || self.role == Role::Initiator
    }

    /// Whether an FPDU of the peer has arrived.
    pub const fn has_heard(&self) -> bool {
        self.heard
    }

    pub(crate) fn is_responder(&self) -> bool {
        self.role == Role::Responder
    }

    /// Whether messages of the consumer and responses may be sent now. Nothing follows a Terminate, sent or received
    /// (RFC 5040 §5.4).
    #[inline]
    pub fn may_send_messages(&self) -> bool {
        self.may_transmit() && self.delivers()
    }

    /// Whether received octets are still processed. After an error or a Terminate nothing more is delivered (RFC 5044
    /// §8).
    #[inline]
    pub fn delivers(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Closing)
    }

    /// Whether [`Stream::ready_to_receive_message`] has something to give.
    #[inline]
    pub const fn owes_ready_to_receive(&self) -> bool {
        self.ready_to_receive.is_some()
    }

    /// The indication that an Initiator must send to a peer-to-peer Responder as its first FPDU (RFC 6581 §9.2), or
    /// what [`Stream::owe_write_of_nothing`] asks for; `None` if there is none or it was already returned. It uses no
    /// slot of the consumer's queues.
    pub fn ready_to_receive_message(&mut self) -> Option<Message> {
        let kind = self.ready_to_receive.take()?;
        // No peer should check the tag, but some hardware fails on tag 0.
        let (stag, offset) = (Stag(1), TaggedOffset(0));
        match kind {
            ReadyToReceive::Write => Some(Message::write(stag, offset, 0)),
            ReadyToReceive::Send => Some(self.send(SendKind::Plain, 0)),
            ReadyToReceive::Read => {
                let request = ReadRequest {
                    sink_stag: stag,
                    sink_offset: offset,
                    length: 0,
                    source_stag: stag,
                    source_offset: offset,
                };
                self.begin_read(&request, true)
            }
        }
    }

    /// Has [`Stream::ready_to_receive_message`] give a Write of nothing, which any peer takes at any time and which
    /// changes nothing there. False: no message may be sent, or it has something to give.
    pub fn owe_write_of_nothing(&mut self) -> bool {
        let may = self.may_send_messages() && self.ready_to_receive.is_none();
        if may {
            self.ready_to_receive = Some(ReadyToReceive::Write);
        }
        may
    }

    /// A Send of `length` octets. It takes the next number of queue 0, so messages must be sent in the order of these
    /// calls.
    pub fn send(&mut self, kind: SendKind, length: u32) -> Message {
        let number = take(&mut self.next.send);
        Message::send(kind, number, length).with_spare(self.spare)
    }

    /// The header of a Send that is one segment. It takes the next number of queue 0, as [`Stream::send`] does.
    #[inline]
    pub fn whole_send(&mut self, kind: SendKind) -> [u8; UNTAGGED_HEADER_LEN] {
        let number = take(&mut self.next.send);
        let header = UntaggedHeader {
            last: true,
            control: kind.control(),
            invalidate_stag: kind.word(),
            queue: QueueNumber::SEND,
            message_sequence_number: number,
            message_offset: 0,
        };
        let mut octets = header.to_octets();
        octets[0] |= self.spare;
        octets
    }

    /// The header of an RDMA Write that is one segment.
    #[inline]
    pub fn whole_write(&self, stag: Stag, offset: TaggedOffset) -> [u8; TAGGED_HEADER_LEN] {
        TaggedHeader { last: true, control: Control::new(Opcode::Write), stag, offset }.to_octets()
    }

    /// An RDMA Write of `length` octets.
    pub fn write(&mut self, stag: Stag, offset: TaggedOffset, length: u32) -> Message {
        Message::write(stag, offset, length)
    }

    /// A Read Request, if an outbound read slot (ORD) is free; its response is expected from now on. `None`: wait until
    /// a read completes.
    pub fn try_begin_read(&mut self, request: &ReadRequest) -> Option<Message> {
        self.begin_read(request, false)
    }

    fn begin_read(&mut self, request: &ReadRequest, is_indication: bool) -> Option<Message> {
        self.outstanding.push(request, is_indication)?;
        let number = take(&mut self.next.request);
        Some(Message::read_request(request, number))
    }

    /// Immediate Data. It takes the next number of queue 0, as a Send does (RFC 7306 §6.3).
    pub fn immediate(&mut self, data: ImmediateData, solicited: bool) -> Message {
        let number = take(&mut self.next.send);
        Message::immediate(data, solicited, number).with_spare(self.spare)
    }

    /// An Atomic Request, if an outbound slot (ORD, shared with reads) is free; its response is expected from now on.
    /// `None`: wait until a read or atomic completes. The request's identifier is set here.
    pub fn try_begin_atomic(&mut self, request: &AtomicRequest) -> Option<Message> {
        if self.outstanding.is_full() {
            return None;
        }
        let number = take(&mut self.next.request);
        self.outstanding.push_atomic(number.0);
        Some(Message::atomic_request(&AtomicRequest { request_identifier: number.0, ..*request }, number))
    }

    /// A Commit Request of `regions` regions, if an outbound slot (ORD, shared with reads) is free; its response is
    /// expected from now on. `None`: wait until a request completes. Its payload is the returned identifier and the
    /// regions (draft-talpey-rdma-commit §3.2.1).
    pub fn try_begin_commit(&mut self, regions: u32) -> Option<(Message, u32)> {
        if self.outstanding.is_full() {
            return None;
        }
        let number = take(&mut self.next.request);
        self.outstanding.push_commit(number.0);
        Some((Message::commit_request(regions, number), number.0))
    }

    /// As [`Stream::try_begin_commit`] for a single region, which fits into the message's header.
    pub fn try_begin_commit_of(&mut self, region: &CommitRegion) -> Option<Message> {
        if self.outstanding.is_full() {
            return None;
        }
        let number = take(&mut self.next.request);
        self.outstanding.push_commit(number.0);
        Some(Message::commit_of(region, number.0, number))
    }

    /// Whether an outbound slot (ORD) is free.
    pub fn has_request_slot(&self) -> bool {
        !self.outstanding.is_full()
    }

    /// Outbound reads, atomics and commits without a complete response.
    pub fn reads_outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether a read fence may be passed: no read, atomic or commit is outstanding (RFC 5040 §5.5 (12)).
    pub fn fence_is_clear(&self) -> bool {
        self.outstanding.len() == 0
    }

    /// The limit of outbound reads (ORD).
    pub const fn ord(&self) -> u16 {
        self.outstanding.limit()
    }

    /// The limit of inbound reads (IRD).
    pub const fn ird(&self) -> u16 {
        self.inbound.limit()
    }

    /// The atomic to be answered next, if the next request is one. Carry it out once, now, and then call
    /// [`Stream::atomic_response`] or [`Stream::fail_atomic`].
    pub fn next_atomic(&mut self) -> Option<InboundAtomic> {
        self.inbound.next_atomic()
    }

    /// The response to the atomic from [`Stream::next_atomic`], with the previous value of the memory. Once it is
    /// handed to TCP, call [`Stream::response_sent`].
    pub fn atomic_response(&mut self, original_value: u64) -> Option<Message> {
        let request_identifier = self.inbound.answering_atomic()?;
        let number = take(&mut self.next.response);
        Some(Message::atomic_response(&AtomicResponse { request_identifier, original_value }, number))
    }

    /// Queues an inbound commit whose regions were found accessible. It is answered after the requests before it, and
    /// not before [`Stream::commit_done`].
    pub fn accept_commit(&mut self, head: CommitHead) -> CommitTicket {
        self.inbound.push_commit(head)
    }

    /// Whether a commit must not begin yet: an earlier atomic, whose effect it must make durable as well, is carried
    /// out only when it is due to be answered.
    pub fn commit_waits(&self, ticket: CommitTicket) -> bool {
        self.inbound.waits_for_atomic(ticket)
    }

    /// A commit of the peer has ended with this status; 0 is success. Returns false if it had ended before.
    pub fn commit_done(&mut self, ticket: CommitTicket, status: u32) -> bool {
        self.inbound.finish_commit(ticket, status)
    }

    /// The commit to be answered next, if the next request is one and it has ended. Then call
    /// [`Stream::commit_response`] or [`Stream::fail_atomic`].
    pub fn next_commit(&mut self) -> Option<FinishedCommit> {
        self.inbound.next_commit()
    }

    /// The response to the commit from [`Stream::next_commit`]. Once it is handed to TCP, call
    /// [`Stream::response_sent`].
    pub fn commit_response(&mut self) -> Option<Message> {
        let (request_identifier, status) = self.inbound.answering_commit()?;
        let number = take(&mut self.next.response);
        Some(Message::commit_response(&CommitResponse { request_identifier, status }, number))
    }

    /// Whether the peer is owed a response, including one that is not possible yet.
    pub fn owes_response(&self) -> bool {
        self.inbound.owes()
    }

    /// As [`Stream::fail`], for a fault while an atomic or a commit is carried out.
    pub fn fail_atomic(&mut self, fault: Fault) -> Option<Message> {
        let failed = self.inbound.failed_segment(0);
        self.terminate(fault, failed)
    }

    /// Inbound requests that hold a slot: waiting, being answered, or answered and unacknowledged.
    pub fn inbound_reads(&self) -> usize {
        self.inbound.len()
    }

    /// Requests of the peer (reads, atomics, commits) accepted on this stream so far.
    pub fn requests_accepted(&self) -> u64 {
        self.inbound.accepted()
    }

    /// How many of them are answered: the last segment of the response was handed to TCP.
    pub fn requests_answered(&self) -> u64 {
        self.inbound.done()
    }

    /// Whether [`Stream::next_response`], [`Stream::next_atomic`] or [`Stream::next_commit`] would return something.
    #[inline]
    pub fn has_response(&self) -> bool {
        self.inbound.has_next()
    }

    /// The next Read Response to send, in the order of the requests (RFC 5040 §5.2.2); one at a time, until
    /// [`Stream::response_sent`]. `None` if an atomic or commit precedes it.
    pub fn next_response(&mut self) -> Option<Response> {
        self.inbound.next()
    }

    /// The last segment of the response from [`Stream::next_response`] was handed to TCP and ends at `stream_position`
    /// octets of its stream. The request keeps its slot until that position is acknowledged (RFC 6581 §4.1).
    pub fn response_sent(&mut self, stream_position: u64) {
        self.inbound.sent(stream_position);
    }

    /// The peer's TCP has acknowledged all octets before `stream_position`: frees the slots of responses that end
    /// there.
    #[inline]
    pub fn acknowledged(&mut self, stream_position: u64) {
        self.inbound.acknowledged(stream_position);
    }

    /// Ends the stream because of a fault, and returns the Terminate to send as the next FPDU and last message. A
    /// segment that is being sent is finished first; its message is not.
    ///
    /// `failed` is the ULPDU at fault, if there is one. Returns `None` if no Terminate is due: one was sent or received
    /// before (the first fault counts), the stream is over, or none can be sent (an invalid start-up frame).
    pub fn fail(&mut self, fault: Fault, failed: Option<&[u8]>) -> Option<Message> {
        self.heard |= failed.is_some();
        self.terminate(fault, failed.and_then(FailedSegment::of))
    }

    /// As [`Stream::fail`], for a fault while the response to an inbound read is built. The unanswered part of the Read
    /// Request is returned: both offsets are advanced by the octets sent (RFC 5040 §4.8).
    pub fn fail_response(&mut self, fault: Fault, response: &Message) -> Option<Message> {
        let failed = self.inbound.failed_segment(response.octets_cut());
        self.terminate(fault, failed)
    }

    fn terminate(&mut self, fault: Fault, failed: Option<FailedSegment>) -> Option<Message> {
        let due = self.delivers() && !self.terminate_sent && fault != Fault::InvalidStartupFrame;
        if let Ok(state) = self.state.after(Event::LocalFault) {
            self.state = state;
        }
        if !due {
            return None;
        }
        self.terminate_sent = true;
        let terminate: Terminate = terminate_for(fault, failed);
        Some(Message::terminate(&terminate))
    }

    /// Takes note of the peer's Terminate.
    pub(crate) fn terminated_by_peer(&mut self, terminate: ReceivedTerminate) {
        if let Ok(state) = self.state.after(Event::PeerTerminate) {
            self.state = state;
        }
        self.received_terminate = Some(Box::new(terminate));
    }

    /// The peer's Terminate, if one arrived.
    pub fn received_terminate(&self) -> Option<&ReceivedTerminate> {
        self.received_terminate.as_deref()
    }

    /// The peer closed its half of TCP after `unframed` octets of an unfinished FPDU.
    ///
    /// # Errors
    /// [`Fault::ConnectionLost`] if that was inside an FPDU or a message (RFC 5044 §7.3, RFC 5041 §6.2).
    pub fn end_of_stream(&mut self, unframed: usize) -> Result<(), Fault> {
        if !self.delivers() {
            return Ok(());
        }
        if unframed != 0 || self.open.any() {
            return Err(Fault::ConnectionLost);
        }
        if let Ok(state) = self.state.after(Event::PeerClose) {
            self.state = state;
        }
        Ok(())
    }
}
