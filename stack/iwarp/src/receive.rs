//! The inbound half of a stream: the meaning of one DDP segment (RFC 5041 §4, §5 and §7; RFC 5040 §5 and §7.2).
//!
//! TCP delivers in order, so every check is exact: the next message sequence number, the octets so far. One tagged and,
//! on each queue, one untagged message may be open at a time.
//!
//! [`Stream::inspect`] checks a segment and changes nothing. Its answer is the segment's meaning, a [`Delivery`].
//! Checks that need registered memory or posted receives are the caller's. The caller then takes the segment by
//! [`Stream::commit`], leaves it for later, or reports a fault through [`Stream::fail`](crate::Stream::fail) with the
//! same ULPDU. A caller that expects a certain message can check and take it alone: `inspect_write`, `take_write`.
//!
//! Checks are in the order in which the layers would make them, DDP before RDMAP: length of the header, version, queue,
//! sequence number, offset, then RDMAP version, opcode, length.

use std::borrow::Cow;

use uwarp_wire::WireError;
use uwarp_wire::ddp::{
    Header, QueueNumber, Stag, TAGGED_HEADER_LEN, TaggedHeader, TaggedOffset, UNTAGGED_HEADER_LEN, UntaggedHeader,
};
use uwarp_wire::rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, CommitRegion, CommitRequest, CommitResponse, Control,
    ImmediateData, Opcode, ReadRequest, TerminatedHeader,
};

use crate::fault::Fault;
use crate::opcode::{Buffer, LARGEST_REQUEST};
use crate::stream::{CommitHead, InboundAtomic, InboundCommit, InboundRead, OpenSend, OpenTagged, Stream};
use crate::terminate::ReceivedTerminate;
use crate::transmit::SendKind;

/// What a received segment means to the caller. Nothing is placed and no state has changed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// Part of an RDMA Write: check STag, offset and rights, and place it. Without payload, check nothing.
    Write {
        /// STag of the buffer.
        stag: Stag,
        /// Destination of the first octet of this part.
        offset: TaggedOffset,
        /// The octets.
        payload: &'a [u8],
        /// The Write ends here. No completion reports it.
        last: bool,
    },
    /// Part of the response to our oldest read, already checked against it.
    ReadResponse {
        /// STag of the sink, as asked.
        sink_stag: Stag,
        /// Destination of the first octet of this part.
        sink_offset: TaggedOffset,
        /// The octets.
        payload: &'a [u8],
        /// The read is complete when the octets are placed.
        completes: bool,
    },
    /// Part of a Send for the oldest posted receive. If none is posted, fail with [`Fault::NoBuffer`], or call
    /// [`Stream::await_receive`]; if it is too short, fail with [`Fault::MessageTooLong`].
    Send {
        /// The first segment of a message, which takes a receive.
        first: bool,
        /// The kind of the Send.
        kind: SendKind,
        /// Offset of the first octet of this part in the receive.
        message_offset: u32,
        /// The octets.
        payload: &'a [u8],
        /// The message ends here. Its length is the end of this part.
        last: bool,
    },
    /// A read of the peer. Check its source (unless its length is 0), then commit, or fail with one of the `Read…`
    /// faults. It is answered after the requests before it.
    ReadRequest(InboundRead),
    /// Immediate Data, all eight octets. It takes the oldest posted receive and leaves its buffer untouched. If none is
    /// posted, fail with [`Fault::NoBuffer`], or call [`Stream::await_receive`].
    Immediate {
        /// The data.
        data: ImmediateData,
        /// The sender asks for a solicited event.
        solicited: bool,
    },
    /// An atomic of the peer. Check its target, then commit, or fail with [`Fault::AtomicMisaligned`] or one of the
    /// `Read…` faults. It is carried out and answered after the requests before it.
    AtomicRequest(InboundAtomic),
    /// The response to our oldest request, an atomic.
    AtomicResponse {
        /// The previous value in the peer's memory.
        original_value: u64,
    },
    /// A complete commit of the peer. Check that each region may be written, then commit, pass its head to
    /// [`Stream::accept_commit`](crate::Stream::accept_commit) and carry it out, or fail with one of the `Read…`
    /// faults.
    CommitRequest(InboundCommit<'a>),
    /// Part of a commit of the peer; more follows.
    CommitPart {
        /// The octets.
        payload: &'a [u8],
    },
    /// The response to our oldest request, a commit.
    CommitResponse {
        /// How it ended: 0 is success.
        status: u32,
    },
    /// The peer ended the stream. Send nothing more; close TCP.
    Terminate(ReceivedTerminate),
    /// A segment of the peer-to-peer set-up that uses nothing of the consumer's: only commit.
    ReadyToReceive {
        /// The message ends here.
        last: bool,
    },
    /// The stream has ended; further octets are ignored.
    Ignored,
}

impl Stream {
    /// Says what one ULPDU means, whose FPDU was complete and had a valid CRC.
    ///
    /// # Errors
    /// A [`Fault`] ends the stream: place nothing of the segment, and call [`Stream::fail`].
    #[inline]
    pub fn inspect<'a>(&self, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        if !self.delivers() {
            return Ok(Delivery::Ignored);
        }
        match Header::parse(ulpdu) {
            Ok(Header::Tagged(header)) => self.inspect_tagged(header, &ulpdu[TAGGED_HEADER_LEN..]),
            Ok(Header::Untagged(header)) => match header.queue {
                QueueNumber::SEND => self.inspect_queue_0(&header, &ulpdu[UNTAGGED_HEADER_LEN..]),
                QueueNumber::READ_REQUEST => self.inspect_request(&header, ulpdu),
                _ => self.inspect_rare(&header, ulpdu),
            },
            Err(error) => Err(header_fault(error)),
        }
    }

    /// Takes a segment: what [`Stream::inspect`] said of it, with no other segment taken in between.
    #[inline]
    pub fn commit(&mut self, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Write { stag, last, .. } => self.take_write(*stag, *last),
            Delivery::ReadResponse { payload, completes, .. } => self.take_response(payload.len() as u32, *completes),
            Delivery::Send { kind, message_offset, payload, last, .. } => {
                self.take_send(*kind, message_offset + payload.len() as u32, *last);
            }
            Delivery::ReadRequest(read) => self.take_read(*read),
            rare => self.commit_rare(rare),
        }
        self.heard = true;
    }

    fn commit_rare(&mut self, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Immediate { .. } => self.expected.send = self.expected.send.next(),
            Delivery::AtomicRequest(atomic) => {
                self.expected.request = self.expected.request.next();
                self.inbound.push_atomic(*atomic);
            }
            Delivery::CommitPart { payload } => {
                self.open.request.get_or_insert_default().extend_from_slice(payload);
            }
            Delivery::CommitRequest(_) => {
                self.expected.request = self.expected.request.next();
                self.open.request = None;
            }
            Delivery::AtomicResponse { .. } | Delivery::CommitResponse { .. } => {
                self.expected.response = self.expected.response.next();
                self.outstanding.take(0, true);
            }
            Delivery::Terminate(terminate) => self.terminated_by_peer(*terminate),
            Delivery::ReadyToReceive { .. } if self.awaits_ready_by_send() => {
                self.expected.send = self.expected.send.next();
            }
            Delivery::ReadyToReceive { last } => self.take_response(0, *last),
            Delivery::Write { .. }
            | Delivery::ReadResponse { .. }
            | Delivery::Send { .. }
            | Delivery::ReadRequest(_)
            | Delivery::Ignored => {}
        }
    }

    /// A [`Delivery::Send`] that is `first`, or a [`Delivery::Immediate`], waits for a receive: inspect it again when
    /// one is posted. Returns the message's sequence number.
    pub fn await_receive(&mut self) -> u32 {
        self.heard = true;
        self.expected.send.0
    }

    /// Whether the next FPDU is the first one, and may be a Send without payload that is not for the consumer.
    #[inline]
    pub fn awaits_ready_by_send(&self) -> bool {
        self.expects_ready_by_send && !self.heard
    }

    #[inline]
    fn inspect_tagged<'a>(&self, header: TaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let TaggedHeader { last, control, stag, offset } = header;
        match opcode(control) {
            Ok(Opcode::Write) => {
                self.inspect_write(&header, payload.len())?;
                Ok(Delivery::Write { stag, offset, payload, last })
            }
            Ok(Opcode::ReadResponse) => {
                if self.inspect_response(&header, payload.len())? {
                    return Ok(Delivery::ReadyToReceive { last });
                }
                Ok(Delivery::ReadResponse { sink_stag: stag, sink_offset: offset, payload, completes: last })
            }
            other => {
                check_wrap(&header, payload.len())?;
                Err(other.err().unwrap_or(Fault::UnexpectedOpcode))
            }
        }
    }

    /// Checks a segment of a Write with so many octets of payload; take it by [`Stream::take_write`].
    ///
    /// # Errors
    /// Those of [`Stream::inspect`].
    #[inline(always)]
    pub fn inspect_write(&self, header: &TaggedHeader, payload_len: usize) -> Result<(), Fault> {
        check_wrap(header, payload_len)?;
        match self.open.tagged {
            OpenTagged::Write(open) if open != header.stag => Err(Fault::Interleaved),
            OpenTagged::ReadResponse => Err(Fault::Interleaved),
            OpenTagged::None | OpenTagged::Write(_) => Ok(()),
        }
    }

    /// Takes the segment of a Write.
    #[inline(always)]
    pub fn take_write(&mut self, stag: Stag, last: bool) {
        self.heard = true;
        self.open.tagged = if last { OpenTagged::None } else { OpenTagged::Write(stag) };
    }

    /// Checks a segment of a Read Response with so many octets of payload; take it by [`Stream::take_response`]. True:
    /// it answers a ready-to-receive indication.
    ///
    /// # Errors
    /// Those of [`Stream::inspect`].
    #[inline(always)]
    pub fn inspect_response(&self, header: &TaggedHeader, payload_len: usize) -> Result<bool, Fault> {
        check_wrap(header, payload_len)?;
        if let OpenTagged::Write(_) = self.open.tagged {
            return Err(Fault::Interleaved);
        }
        self.outstanding.inspect(header.stag, header.offset, payload_len as u32, header.last)
    }

    /// Takes the segment of a Read Response.
    #[inline(always)]
    pub fn take_response(&mut self, payload_len: u32, last: bool) {
        self.heard = true;
        self.outstanding.take(payload_len, last);
        self.open.tagged = if last { OpenTagged::None } else { OpenTagged::ReadResponse };
    }

    #[inline]
    fn inspect_queue_0<'a>(&self, header: &UntaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let UntaggedHeader { last, message_offset, .. } = *header;
        // The word of the STag is meaningless in the other kinds and ignored.
        let kind = match opcode(header.control) {
            Ok(Opcode::Send) if self.has_immediate(header) => SendKind::Immediate(header.invalidate_stag.0),
            Ok(Opcode::SendSolicited) if self.has_immediate(header) => {
                SendKind::SolicitedImmediate(header.invalidate_stag.0)
            }
            Ok(Opcode::Send) => SendKind::Plain,
            Ok(Opcode::SendInvalidate) => SendKind::Invalidate(header.invalidate_stag),
            Ok(Opcode::SendSolicited) => SendKind::Solicited,
            Ok(Opcode::SendSolicitedInvalidate) => SendKind::SolicitedInvalidate(header.invalidate_stag),
            other => {
                self.inspect_place(header, payload.len())?;
                return self.inspect_immediate(other?, header, payload);
            }
        };
        let received = self.inspect_send(header, kind, payload.len())?;
        if self.awaits_ready_by_send() && last && received == 0 && kind == SendKind::Plain {
            return Ok(Delivery::ReadyToReceive { last });
        }
        Ok(Delivery::Send { first: self.open.send.is_none(), kind, message_offset, payload, last })
    }

    /// Whether a Send has immediate data.
    #[inline]
    fn has_immediate(&self, header: &UntaggedHeader) -> bool {
        header.control.has_immediate() && self.features().infiniband
    }

    /// Checks the place of a segment among the messages of queue 0. Returns where it ends in its message.
    #[inline(always)]
    fn inspect_place(&self, header: &UntaggedHeader, payload_len: usize) -> Result<u32, Fault> {
        let open = self.open.send;
        if header.message_sequence_number != self.expected.send {
            // The next message may not begin before the open one has ended. Any other number is simply wrong.
            let is_next = open.is_some() && header.message_sequence_number == self.expected.send.next();
            return Err(if is_next { Fault::Interleaved } else { Fault::InvalidMessageSequenceNumber });
        }
        let received = open.map_or(0, |open| open.received);
        if header.message_offset != received {
            return Err(Fault::InvalidMessageOffset);
        }
        received.checked_add(payload_len as u32).ok_or(Fault::MessageTooLong)
    }

    /// Checks a segment of a Send of this kind with so many octets of payload; take it by [`Stream::take_send`].
    /// Returns where it ends in its message. It is not for the consumer if it is the whole message, has no payload, and
    /// [`Stream::awaits_ready_by_send`].
    ///
    /// # Errors
    /// Those of [`Stream::inspect`].
    #[inline(always)]
    pub fn inspect_send(&self, header: &UntaggedHeader, kind: SendKind, payload_len: usize) -> Result<u32, Fault> {
        let end = self.inspect_place(header, payload_len)?;
        match self.open.send {
            Some(open) if open.kind != kind => Err(Fault::Interleaved),
            _ => Ok(end),
        }
    }

    /// Takes the segment of a Send that ends at `end` octets of its message.
    #[inline(always)]
    pub fn take_send(&mut self, kind: SendKind, end: u32, last: bool) {
        self.heard = true;
        if last {
            self.open.send = None;
            self.expected.send = self.expected.send.next();
        } else {
            self.open.send = Some(OpenSend { kind, received: end });
        }
    }

    /// Immediate Data: the messages on queue 0 that are not Sends (RFC 7306 §6.3).
    #[cold]
    fn inspect_immediate<'a>(
        &self,
        opcode: Opcode,
        header: &UntaggedHeader,
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
        let solicited = match opcode {
            Opcode::Immediate if self.features().immediate => false,
            Opcode::ImmediateSolicited if self.features().immediate => true,
            other => return Err(self.misplaced(other, QueueNumber::SEND)),
        };
        if self.open.send.is_some() {
            return Err(Fault::Interleaved);
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let data = ImmediateData::parse(payload).map_err(|_| Fault::WrongLength)?;
        Ok(Delivery::Immediate { data, solicited })
    }

    /// The queues of a Terminate and of responses.
    fn inspect_rare<'a>(&self, header: &UntaggedHeader, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let payload = &ulpdu[UNTAGGED_HEADER_LEN..];
        match header.queue {
            QueueNumber::TERMINATE => self.inspect_terminate(header, payload),
            queue if self.features().has_queue(queue) => self.inspect_queue_3(header, payload),
            _ => Err(Fault::InvalidQueue),
        }
    }

    fn inspect_request<'a>(&self, header: &UntaggedHeader, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let payload = &ulpdu[UNTAGGED_HEADER_LEN..];
        let opcode = opcode(header.control);
        if opcode == Ok(Opcode::ReadRequest) {
            return Ok(Delivery::ReadRequest(self.inspect_read(header, ulpdu)?));
        }
        self.inspect_request_place(header, payload)?;
        match opcode? {
            Opcode::CommitRequest if self.features().commit => self.inspect_commit(header, ulpdu, payload),
            _ if self.open.request.is_some() => Err(Fault::Interleaved),
            Opcode::AtomicRequest if self.features().atomics => self.inspect_atomic(header, ulpdu, payload),
            other => Err(self.misplaced(other, QueueNumber::READ_REQUEST)),
        }
    }

    /// Checks the place of a segment among the requests.
    #[inline(always)]
    fn inspect_request_place(&self, header: &UntaggedHeader, payload: &[u8]) -> Result<(), Fault> {
        let open = self.open.request.as_ref().map(Vec::len);
        if header.message_sequence_number != self.expected.request {
            let is_next = open.is_some() && header.message_sequence_number == self.expected.request.next();
            return Err(if is_next { Fault::Interleaved } else { Fault::InvalidMessageSequenceNumber });
        }
        let received = open.unwrap_or(0);
        if header.message_offset as usize != received {
            return Err(Fault::InvalidMessageOffset);
        }
        if received + payload.len() > LARGEST_REQUEST as usize {
            return Err(Fault::MessageTooLong);
        }
        Ok(())
    }

    /// Checks a Read Request; take it by [`Stream::take_read`], if its source may be read.
    ///
    /// # Errors
    /// Those of [`Stream::inspect`].
    #[inline(always)]
    pub fn inspect_read(&self, header: &UntaggedHeader, ulpdu: &[u8]) -> Result<InboundRead, Fault> {
        let payload = ulpdu.get(UNTAGGED_HEADER_LEN..).unwrap_or(&[]);
        self.inspect_request_place(header, payload)?;
        if self.open.request.is_some() {
            return Err(Fault::Interleaved);
        }
        // Check the opcode first, though DDP would find a full queue before it: a peer that probes for an extension
        // must learn that it is absent, and each kind of request has slots of its own.
        if self.inbound.is_full() {
            return Err(Fault::NoBuffer);
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let request = ReadRequest::parse(payload).map_err(|_| Fault::WrongLength)?;
        let end = u64::from(request.length);
        if end != 0 && request.source_offset.checked_add(end - 1).is_none() {
            return Err(Fault::ReadWrap);
        }
        let ddp_header = TerminatedHeader::from_segment(ulpdu).ok_or(Fault::SegmentTooShort)?;
        Ok(InboundRead::new(request, ddp_header))
    }

    /// Takes a Read Request, which is answered after the requests before it.
    #[inline(always)]
    pub fn take_read(&mut self, read: InboundRead) {
        self.heard = true;
        self.expected.request = self.expected.request.next();
        self.inbound.push(read);
    }

    /// An Atomic Request (RFC 7306 §5.2.1).
    fn inspect_atomic<'a>(
        &self,
        header: &UntaggedHeader,
        ulpdu: &'a [u8],
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
        if self.inbound.is_full_of_atomics() {
            return Err(Fault::NoBuffer);
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let request = AtomicRequest::parse(payload).map_err(|_| Fault::WrongLength)?;
        let operation = AtomicOperation::from_code(request.operation).map_err(|_| Fault::UnexpectedOpcode)?;
        if request.offset.checked_add(7).is_none() {
            return Err(Fault::ReadWrap);
        }
        let ddp_header = TerminatedHeader::from_segment(ulpdu).ok_or(Fault::SegmentTooShort)?;
        Ok(Delivery::AtomicRequest(InboundAtomic::new(operation, request, ddp_header)))
    }

    /// A Commit Request (draft-talpey-rdma-commit §3.2.1), the only request that may have several segments.
    #[cold]
    fn inspect_commit<'a>(
        &self,
        header: &UntaggedHeader,
        ulpdu: &'a [u8],
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
        if self.inbound.is_full_of_commits() {
            return Err(Fault::NoBuffer);
        }
        if !header.last {
            return Ok(Delivery::CommitPart { payload });
        }
        let octets = match &self.open.request {
            Some(before) => Cow::Owned([before, payload].concat()),
            None => Cow::Borrowed(payload),
        };
        let request_identifier = CommitRequest::parse(&octets).map_err(|_| Fault::WrongLength)?.request_identifier;
        let head = CommitHead {
            request_identifier,
            invalidate: header.invalidate_stag,
            header: TerminatedHeader::from_segment(ulpdu).ok_or(Fault::SegmentTooShort)?,
            segment_length: ulpdu.len() as u16,
        };
        let commit = InboundCommit::new(octets, head);
        let wraps = |region: CommitRegion| {
            region.length != 0 && region.offset.checked_add(u64::from(region.length) - 1).is_none()
        };
        if commit.regions().any(wraps) {
            return Err(Fault::ReadWrap);
        }
        Ok(Delivery::CommitRequest(commit))
    }

    /// Queue 3, which has one buffer per outstanding request that is answered on it (RFC 7306 §5.2.2).
    fn inspect_queue_3<'a>(&self, header: &UntaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        if header.message_sequence_number != self.expected.response {
            return Err(Fault::InvalidMessageSequenceNumber);
        }
        if header.message_offset != 0 {
            return Err(Fault::InvalidMessageOffset);
        }
        if !self.outstanding.awaits_on_queue_3() {
            return Err(Fault::NoBuffer);
        }
        match opcode(header.control)? {
            Opcode::AtomicResponse if self.features().atomics => {}
            Opcode::CommitResponse if self.features().commit => return self.inspect_commit_response(header, payload),
            other => return Err(self.misplaced(other, QueueNumber::ATOMIC_RESPONSE)),
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let response = AtomicResponse::parse(payload).map_err(|_| Fault::WrongLength)?;
        self.outstanding.inspect_atomic(response.request_identifier)?;
        Ok(Delivery::AtomicResponse { original_value: response.original_value })
    }

    fn inspect_commit_response<'a>(&self, header: &UntaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let response = CommitResponse::parse(payload).map_err(|_| Fault::WrongLength)?;
        self.outstanding.inspect_commit(response.request_identifier)?;
        Ok(Delivery::CommitResponse { status: response.status })
    }

    fn inspect_terminate<'a>(&self, header: &UntaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        // A stream has one Terminate only.
        if header.message_sequence_number != uwarp_wire::ddp::MessageSequenceNumber::FIRST {
            return Err(Fault::InvalidMessageSequenceNumber);
        }
        if header.message_offset != 0 {
            return Err(Fault::InvalidMessageOffset);
        }
        if payload.len() > uwarp_wire::rdmap::MAXIMUM_TERMINATE_LEN {
            return Err(Fault::MessageTooLong);
        }
        match opcode(header.control)? {
            Opcode::Terminate => {}
            other => return Err(self.misplaced(other, QueueNumber::TERMINATE)),
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let terminate =
            ReceivedTerminate::parse(payload, !self.heard && self.is_responder()).ok_or(Fault::WrongLength)?;
        Ok(Delivery::Terminate(terminate))
    }

    /// The fault of an opcode that arrived untagged on the wrong queue.
    #[cold]
    fn misplaced(&self, opcode: Opcode, queue: QueueNumber) -> Fault {
        match self.features().row(opcode).map(|row| row.buffer) {
            Some(Buffer::Untagged(own)) if own != queue => Fault::InvalidQueue,
            _ => Fault::UnexpectedOpcode,
        }
    }
}

/// The offsets of a tagged segment do not wrap.
#[inline(always)]
fn check_wrap(header: &TaggedHeader, payload_len: usize) -> Result<(), Fault> {
    match header.offset.checked_add((payload_len as u64).saturating_sub(1)) {
        Some(_) => Ok(()),
        None => Err(Fault::TaggedWrap),
    }
}

#[inline]
fn opcode(control: Control) -> Result<Opcode, Fault> {
    control.parse().map_err(|error| match error {
        WireError::RdmapVersion => Fault::RdmapVersion,
        _ => Fault::UnexpectedOpcode,
    })
}

#[cold]
fn header_fault(error: WireError) -> Fault {
    match error {
        WireError::DdpVersionTagged => Fault::TaggedVersion,
        WireError::DdpVersionUntagged => Fault::UntaggedVersion,
        _ => Fault::SegmentTooShort,
    }
}

#[cfg(test)]
mod tests;
