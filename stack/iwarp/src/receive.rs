//! The inbound half of a stream: the meaning of one DDP segment (RFC 5041 §4, §5 and §7; RFC 5040 §5 and §7.2).
//!
//! TCP delivers in order, so every check is exact: the next message sequence number, the octets so far. One tagged and,
//! on each queue, one untagged message may be open at a time. Checks that need registered memory or posted receives are
//! the caller's. It gets the segment's meaning as a [`Delivery`], and reports a fault of its own through
//! [`Stream::fail`](crate::Stream::fail) with the same ULPDU.
//!
//! Checks are in the order in which the layers would make them, DDP before RDMAP: length of the header, version, queue,
//! sequence number, offset, then RDMAP version, opcode, length.

use uwarp_wire::WireError;
use uwarp_wire::ddp::{
    Header, QueueNumber, Stag, TAGGED_HEADER_LEN, TaggedHeader, TaggedOffset, UNTAGGED_HEADER_LEN, UntaggedHeader,
};
use uwarp_wire::rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, CommitRequest, CommitResponse, Control, ImmediateData, Opcode,
    ReadRequest, TerminatedHeader,
};

use crate::fault::Fault;
use crate::opcode::{Buffer, COMMIT_REGION_LIMIT, LARGEST_REQUEST};
use crate::stream::{CommitHead, InboundAtomic, InboundCommit, InboundRead, OpenSend, OpenTagged, Stream};
use crate::terminate::ReceivedTerminate;

/// The end of a Send, for the completion of its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendEnd {
    /// Octets of the whole message.
    pub length: u32,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// The sender requests that this STag be invalidated before the receive completes.
    pub invalidate: Option<Stag>,
}

/// What the caller has to do for a received segment. Nothing is placed yet.
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
    /// [`Stream::defer`]; if it is too short, fail with [`Fault::MessageTooLong`].
    Send {
        /// The first segment of a message, which takes a receive.
        first: bool,
        /// Offset of the first octet of this part in the receive.
        message_offset: u32,
        /// The octets.
        payload: &'a [u8],
        /// The message ends here.
        completes: Option<SendEnd>,
    },
    /// A read of the peer. Check its source (unless its length is 0), then pass it to
    /// [`Stream::accept_read`](crate::Stream::accept_read), or fail with one of the `Read…` faults.
    ReadRequest(InboundRead),
    /// Immediate Data, all eight octets. It takes the oldest posted receive and leaves its buffer untouched. If none is
    /// posted, fail with [`Fault::NoBuffer`], or call [`Stream::defer`].
    Immediate {
        /// The data.
        data: ImmediateData,
        /// The sender asks for a solicited event.
        solicited: bool,
    },
    /// An atomic of the peer. Check its target, then pass it to
    /// [`Stream::accept_atomic`](crate::Stream::accept_atomic), or fail with [`Fault::AtomicMisaligned`] or one of the
    /// `Read…` faults.
    AtomicRequest(InboundAtomic),
    /// The response to our oldest request, an atomic.
    AtomicResponse {
        /// The previous value in the peer's memory.
        original_value: u64,
    },
    /// A complete commit of the peer. Check that each region may be written, then pass its head to
    /// [`Stream::accept_commit`](crate::Stream::accept_commit) and carry it out, or fail with one of the `Read…`
    /// faults.
    CommitRequest(InboundCommit),
    /// Part of a commit of the peer; more follows.
    CommitPart,
    /// The response to our oldest request, a commit.
    CommitResponse {
        /// How it ended: 0 is success.
        status: u32,
    },
    /// The peer ended the stream. Send nothing more; close TCP.
    Terminate(ReceivedTerminate),
    /// A segment of the peer-to-peer set-up that uses nothing of the consumer's: nothing to do.
    ReadyToReceive,
    /// The stream has ended; further octets are ignored.
    Ignored,
}

impl Stream {
    /// Processes one ULPDU, whose FPDU was complete and had a valid CRC.
    ///
    /// # Errors
    /// A [`Fault`] ends the stream: place nothing of the segment, and call [`Stream::fail`]. Nothing is delivered from
    /// then on.
    #[inline]
    pub fn receive<'a>(&mut self, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let first = !self.heard;
        self.heard = true;
        if !self.delivers() {
            return Ok(Delivery::Ignored);
        }
        let delivery = self.receive_segment(ulpdu, first);
        self.faulted = delivery.is_err();
        delivery
    }

    /// Takes back a message that [`Stream::receive`] has just begun: a [`Delivery::Send`] that is `first`, or a
    /// [`Delivery::Immediate`]. Pass the same ULPDU to `receive` again when a receive is posted. Returns the message's
    /// sequence number.
    pub fn defer(&mut self) -> u32 {
        if self.open.send.open {
            self.open.send = OpenSend::default();
        } else {
            // Its only segment, which has ended it.
            self.expected.send = self.expected.send.previous();
        }
        self.expected.send.0
    }

    /// The header of a segment that [`Stream::receive`] would deliver as part of a Write, if it does no more than
    /// [`Stream::write_received`].
    #[inline(always)]
    pub fn usual_write(&self, ulpdu: &[u8]) -> Option<TaggedHeader> {
        let Ok(Header::Tagged(header)) = Header::parse(ulpdu) else { return None };
        let is_next = match self.open.tagged {
            OpenTagged::None => true,
            OpenTagged::Write(open) => open == header.stag,
            OpenTagged::ReadResponse => false,
        };
        let is_write = header.control == Control::new(Opcode::Write) && self.delivers();
        let wraps = header.offset.checked_add(ulpdu.len() as u64).is_none();
        (is_write && is_next && !wraps).then_some(header)
    }

    /// The segment with this header, which [`Stream::usual_write`] returned, was placed.
    #[inline]
    pub fn write_received(&mut self, header: &TaggedHeader) {
        self.heard = true;
        self.open.tagged = if header.last { OpenTagged::None } else { OpenTagged::Write(header.stag) };
    }

    /// The header of a segment that [`Stream::receive`] would deliver as part of a Send that invalidates nothing, if it
    /// does no more than [`Stream::send_received`].
    #[inline]
    pub fn usual_send(&self, ulpdu: &[u8]) -> Option<UntaggedHeader> {
        let Ok(Header::Untagged(header)) = Header::parse(ulpdu) else { return None };
        let open = &self.open.send;
        let goes_on = |opcode: Opcode| !open.open || open.opcode == opcode.code();
        let is_next = header.queue == QueueNumber::SEND
            && header.message_sequence_number == self.expected.send
            && header.message_offset == open.received
            && usual_opcode(header.control).is_some_and(goes_on)
            && open.received.checked_add(ulpdu.len() as u32).is_some();
        (is_next && self.delivers() && (self.heard || !self.expects_ready_by_send)).then_some(header)
    }

    /// The segment with this header, which [`Stream::usual_send`] returned, and so many octets of payload was placed.
    #[inline]
    pub fn send_received(&mut self, header: &UntaggedHeader, payload_len: u32) {
        self.heard = true;
        self.open.send = OpenSend::default();
        if header.last {
            self.expected.send = self.expected.send.next();
        } else if let Some(opcode) = usual_opcode(header.control) {
            let received = header.message_offset + payload_len;
            self.open.send = OpenSend { open: true, opcode: opcode.code(), invalidate_stag: Stag(0), received };
        }
    }

    /// The header of a segment that [`Stream::receive`] would deliver as the whole response to a read, if it does no
    /// more than [`Stream::response_received`].
    #[inline]
    pub fn usual_response(&self, ulpdu: &[u8]) -> Option<TaggedHeader> {
        let Ok(Header::Tagged(header)) = Header::parse(ulpdu) else { return None };
        let is_next = header.control == Control::new(Opcode::ReadResponse)
            && header.last
            && matches!(self.open.tagged, OpenTagged::None)
            && header.offset.checked_add(ulpdu.len() as u64).is_some()
            && self.outstanding.is_answered_by(header.stag, header.offset, ulpdu.len() - TAGGED_HEADER_LEN);
        (is_next && self.delivers()).then_some(header)
    }

    /// The segment whose header [`Stream::usual_response`] returned was placed.
    #[inline]
    pub fn response_received(&mut self) {
        self.heard = true;
        self.outstanding.answered();
    }

    /// The read of at least one octet that [`Stream::receive`] would deliver, if it does no more than
    /// [`Stream::read_request_received`].
    #[inline]
    pub fn usual_read_request(&self, ulpdu: &[u8]) -> Option<InboundRead> {
        let Ok(Header::Untagged(header)) = Header::parse(ulpdu) else { return None };
        let is_next = header.queue == QueueNumber::READ_REQUEST
            && header.control == Control::new(Opcode::ReadRequest)
            && header.last
            && header.message_sequence_number == self.expected.request
            && header.message_offset == 0
            && self.open.request.is_none();
        if !is_next || self.inbound.is_full() || !self.delivers() {
            return None;
        }
        let request = ReadRequest::parse(ulpdu.get(UNTAGGED_HEADER_LEN..)?).ok()?;
        request.source_offset.checked_add(u64::from(request.length).checked_sub(1)?)?;
        Some(InboundRead::new(request, TerminatedHeader::from_segment(ulpdu)?))
    }

    /// The read that [`Stream::usual_read_request`] returned has an accessible source: as [`Stream::accept_read`].
    #[inline]
    pub fn read_request_received(&mut self, read: InboundRead) {
        self.heard = true;
        self.expected.request = self.expected.request.next();
        self.accept_read(read);
    }

    #[inline]
    fn receive_segment<'a>(&mut self, ulpdu: &'a [u8], first: bool) -> Result<Delivery<'a>, Fault> {
        match Header::parse(ulpdu) {
            Ok(Header::Tagged(header)) => self.receive_tagged(header, &ulpdu[TAGGED_HEADER_LEN..]),
            Ok(Header::Untagged(header)) => match header.queue {
                QueueNumber::SEND => self.receive_send(&header, &ulpdu[UNTAGGED_HEADER_LEN..], first),
                _ => self.receive_rare(&header, ulpdu, first),
            },
            Err(error) => Err(header_fault(error)),
        }
    }

    #[inline]
    fn receive_tagged<'a>(&mut self, header: TaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let TaggedHeader { last, control, stag, offset } = header;
        if !payload.is_empty() && offset.checked_add(payload.len() as u64 - 1).is_none() {
            return Err(Fault::TaggedWrap);
        }
        match opcode(control)? {
            Opcode::Write => {
                match self.open.tagged {
                    OpenTagged::None => {}
                    OpenTagged::Write(open) if open == stag => {}
                    OpenTagged::Write(_) | OpenTagged::ReadResponse => return Err(Fault::Interleaved),
                }
                self.open.tagged = if last { OpenTagged::None } else { OpenTagged::Write(stag) };
                Ok(Delivery::Write { stag, offset, payload, last })
            }
            Opcode::ReadResponse => {
                if let OpenTagged::Write(_) = self.open.tagged {
                    return Err(Fault::Interleaved);
                }
                let (is_indication, completes) = self.outstanding.receive(stag, offset, payload.len() as u32, last)?;
                self.open.tagged = if last { OpenTagged::None } else { OpenTagged::ReadResponse };
                if is_indication {
                    return Ok(Delivery::ReadyToReceive);
                }
                Ok(Delivery::ReadResponse { sink_stag: stag, sink_offset: offset, payload, completes })
            }
            _ => Err(Fault::UnexpectedOpcode),
        }
    }

    #[inline]
    fn receive_send<'a>(
        &mut self,
        header: &UntaggedHeader,
        payload: &'a [u8],
        first_fpdu: bool,
    ) -> Result<Delivery<'a>, Fault> {
        let open = self.open.send;
        if header.message_sequence_number != self.expected.send {
            // The next message may not begin before the open one has ended. Any other number is simply wrong.
            let is_next = open.open && header.message_sequence_number == self.expected.send.next();
            return Err(if is_next { Fault::Interleaved } else { Fault::InvalidMessageSequenceNumber });
        }
        if header.message_offset != open.received {
            return Err(Fault::InvalidMessageOffset);
        }
        let received = open.received.checked_add(payload.len() as u32).ok_or(Fault::MessageTooLong)?;
        let opcode = opcode(header.control)?;
        let (solicited, invalidates) = match opcode {
            Opcode::Send => (false, false),
            Opcode::SendInvalidate => (false, true),
            Opcode::SendSolicited => (true, false),
            Opcode::SendSolicitedInvalidate => (true, true),
            other => return self.receive_immediate(other, header, payload),
        };
        // The word is meaningless in the other kinds and ignored.
        let invalidate_stag = if invalidates { header.invalidate_stag } else { Stag(0) };
        if open.open && (open.opcode != opcode.code() || open.invalidate_stag != invalidate_stag) {
            return Err(Fault::Interleaved);
        }
        if !header.last {
            self.open.send = OpenSend { open: true, opcode: opcode.code(), invalidate_stag, received };
            return Ok(Delivery::Send {
                first: !open.open,
                message_offset: header.message_offset,
                payload,
                completes: None,
            });
        }
        self.open.send = OpenSend::default();
        self.expected.send = self.expected.send.next();
        if first_fpdu && self.expects_ready_by_send && received == 0 && opcode == Opcode::Send {
            return Ok(Delivery::ReadyToReceive);
        }
        Ok(Delivery::Send {
            first: !open.open,
            message_offset: header.message_offset,
            payload,
            completes: Some(SendEnd {
                length: received,
                solicited,
                invalidate: invalidates.then_some(invalidate_stag),
            }),
        })
    }

    /// Immediate Data: the messages on queue 0 that are not Sends (RFC 7306 §6.3).
    #[cold]
    fn receive_immediate<'a>(
        &mut self,
        opcode: Opcode,
        header: &UntaggedHeader,
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
        let solicited = match opcode {
            Opcode::Immediate if self.features().immediate => false,
            Opcode::ImmediateSolicited if self.features().immediate => true,
            other => return Err(self.misplaced(other, QueueNumber::SEND)),
        };
        if self.open.send.open {
            return Err(Fault::Interleaved);
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let data = ImmediateData::parse(payload).map_err(|_| Fault::WrongLength)?;
        self.expected.send = self.expected.send.next();
        Ok(Delivery::Immediate { data, solicited })
    }

    /// The queues other than queue 0.
    fn receive_rare<'a>(
        &mut self,
        header: &UntaggedHeader,
        ulpdu: &'a [u8],
        first_fpdu: bool,
    ) -> Result<Delivery<'a>, Fault> {
        let payload = &ulpdu[UNTAGGED_HEADER_LEN..];
        match header.queue {
            QueueNumber::READ_REQUEST => self.receive_request(header, ulpdu, payload),
            QueueNumber::TERMINATE => self.receive_terminate(header, payload, first_fpdu),
            queue if self.features().has_queue(queue) => self.receive_response(header, payload),
            _ => Err(Fault::InvalidQueue),
        }
    }

    fn receive_request<'a>(
        &mut self,
        header: &UntaggedHeader,
        ulpdu: &'a [u8],
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
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
        match opcode(header.control)? {
            Opcode::CommitRequest if self.features().commit => return self.receive_commit(header, ulpdu, payload),
            _ if open.is_some() => return Err(Fault::Interleaved),
            Opcode::ReadRequest => {}
            Opcode::AtomicRequest if self.features().atomics => return self.receive_atomic(header, ulpdu, payload),
            other => return Err(self.misplaced(other, QueueNumber::READ_REQUEST)),
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
        self.expected.request = self.expected.request.next();
        Ok(Delivery::ReadRequest(InboundRead::new(request, ddp_header)))
    }

    /// An Atomic Request (RFC 7306 §5.2.1).
    fn receive_atomic<'a>(
        &mut self,
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
        self.expected.request = self.expected.request.next();
        Ok(Delivery::AtomicRequest(InboundAtomic::new(operation, request, ddp_header)))
    }

    /// A Commit Request (draft-talpey-rdma-commit §3.2.1), the only request that may have several segments.
    #[cold]
    fn receive_commit<'a>(
        &mut self,
        header: &UntaggedHeader,
        ulpdu: &'a [u8],
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
        if self.inbound.is_full_of_commits() {
            return Err(Fault::NoBuffer);
        }
        if !header.last {
            self.open.request.get_or_insert_default().extend_from_slice(payload);
            return Ok(Delivery::CommitPart);
        }
        let gathered = self.open.request.take().map(|mut octets| {
            octets.extend_from_slice(payload);
            octets
        });
        let request = CommitRequest::parse(gathered.as_deref().unwrap_or(payload)).map_err(|_| Fault::WrongLength)?;
        let exceeds = request.region_count() > COMMIT_REGION_LIMIT as usize;
        let mut regions = self.spare_regions.pop().unwrap_or_default();
        if !exceeds {
            for region in request.regions() {
                if region.length != 0 && region.offset.checked_add(u64::from(region.length) - 1).is_none() {
                    return Err(Fault::ReadWrap);
                }
                regions.push(region);
            }
        }
        let head = CommitHead {
            request_identifier: request.request_identifier,
            invalidate: header.invalidate_stag,
            header: TerminatedHeader::from_segment(ulpdu).ok_or(Fault::SegmentTooShort)?,
            segment_length: ulpdu.len() as u16,
        };
        self.expected.request = self.expected.request.next();
        Ok(Delivery::CommitRequest(InboundCommit { regions, exceeds, head }))
    }

    /// Queue 3, which has one buffer per outstanding request that is answered on it (RFC 7306 §5.2.2).
    fn receive_response<'a>(&mut self, header: &UntaggedHeader, payload: &'a [u8]) -> Result<Delivery<'a>, Fault> {
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
            Opcode::CommitResponse if self.features().commit => return self.receive_commit_response(header, payload),
            other => return Err(self.misplaced(other, QueueNumber::ATOMIC_RESPONSE)),
        }
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let response = AtomicResponse::parse(payload).map_err(|_| Fault::WrongLength)?;
        self.outstanding.receive_atomic(response.request_identifier)?;
        self.expected.response = self.expected.response.next();
        Ok(Delivery::AtomicResponse { original_value: response.original_value })
    }

    fn receive_commit_response<'a>(
        &mut self,
        header: &UntaggedHeader,
        payload: &'a [u8],
    ) -> Result<Delivery<'a>, Fault> {
        if !header.last {
            return Err(Fault::NotOneSegment);
        }
        let response = CommitResponse::parse(payload).map_err(|_| Fault::WrongLength)?;
        self.outstanding.receive_commit(response.request_identifier)?;
        self.expected.response = self.expected.response.next();
        Ok(Delivery::CommitResponse { status: response.status })
    }

    fn receive_terminate<'a>(
        &mut self,
        header: &UntaggedHeader,
        payload: &'a [u8],
        first_fpdu: bool,
    ) -> Result<Delivery<'a>, Fault> {
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
            ReceivedTerminate::parse(payload, first_fpdu && self.is_responder()).ok_or(Fault::WrongLength)?;
        self.terminated_by_peer(terminate);
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

#[inline]
fn opcode(control: Control) -> Result<Opcode, Fault> {
    control.parse().map_err(|error| match error {
        WireError::RdmapVersion => Fault::RdmapVersion,
        _ => Fault::UnexpectedOpcode,
    })
}

/// The operation of a Send that invalidates nothing, with reserved bits 0.
#[inline]
fn usual_opcode(control: Control) -> Option<Opcode> {
    [Opcode::Send, Opcode::SendSolicited].into_iter().find(|opcode| control == Control::new(*opcode))
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
