//! Outbound messages, and cutting them into DDP segments (RFC 5041 §5.1, RFC 5040 §4).
//!
//! A [`Message`] holds no payload, only the position of each segment in it. The sender requests one segment at a time
//! with the maximum ULPDU of that moment. So if the path MTU shrinks in the middle of a message, only the segments not
//! yet cut change.

use uwarp_wire::ddp::{
    MessageSequenceNumber, QueueNumber, Stag, TAGGED_HEADER_LEN, TaggedHeader, TaggedOffset, UNTAGGED_HEADER_LEN,
    UntaggedHeader,
};
use uwarp_wire::mpa::{MAXIMUM_MULPDU, MINIMUM_MULPDU};
use uwarp_wire::rdmap::{
    AtomicRequest, AtomicResponse, CommitRegion, CommitRequest, CommitResponse, Control, ImmediateData,
    MAXIMUM_TERMINATE_LEN, Opcode, ReadRequest, Terminate,
};

/// Octets of the longest RDMAP header behind a DDP header: a Terminate with all its parts, or an Atomic Request.
const LONGEST_BODY: usize = MAXIMUM_TERMINATE_LEN;
/// Octets of the longest header of a segment: an untagged DDP header and the longest RDMAP header.
pub const LONGEST_HEADER: usize = UNTAGGED_HEADER_LEN + LONGEST_BODY;

/// The four kinds of Send (RFC 5040 §5.3), and two that are not in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendKind {
    /// Send.
    Plain,
    /// Send with Solicited Event.
    Solicited,
    /// Send with Invalidate of a remote STag.
    Invalidate(Stag),
    /// Send with Solicited Event and Invalidate of a remote STag.
    SolicitedInvalidate(Stag),
    /// Send with immediate data, where [`Features::infiniband`](crate::opcode::Features::infiniband) is agreed on.
    Immediate(u32),
    /// Send with Solicited Event and immediate data.
    SolicitedImmediate(u32),
}

impl SendKind {
    /// The opcode of the message.
    #[inline]
    pub const fn opcode(self) -> Opcode {
        match self {
            SendKind::Plain | SendKind::Immediate(_) => Opcode::Send,
            SendKind::Solicited | SendKind::SolicitedImmediate(_) => Opcode::SendSolicited,
            SendKind::Invalidate(_) => Opcode::SendInvalidate,
            SendKind::SolicitedInvalidate(_) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// The control octet of the message.
    #[inline]
    pub(crate) const fn control(self) -> Control {
        match self.immediate() {
            None => Control::new(self.opcode()),
            Some(_) => Control::with_immediate(self.opcode()),
        }
    }

    /// The STag that the peer of the sender has to invalidate before the receive completes.
    #[inline]
    pub const fn invalidates(self) -> Option<Stag> {
        match self {
            SendKind::Invalidate(stag) | SendKind::SolicitedInvalidate(stag) => Some(stag),
            _ => None,
        }
    }

    /// The immediate data that comes with the message.
    #[inline]
    pub const fn immediate(self) -> Option<u32> {
        match self {
            SendKind::Immediate(data) | SendKind::SolicitedImmediate(data) => Some(data),
            _ => None,
        }
    }

    /// Whether the completion of the receive is a solicited event.
    #[inline]
    pub const fn is_solicited(self) -> bool {
        matches!(self, SendKind::Solicited | SendKind::SolicitedInvalidate(_) | SendKind::SolicitedImmediate(_))
    }

    /// The word in the header that is an STag or immediate data.
    pub(crate) const fn word(self) -> Stag {
        match self {
            SendKind::Plain | SendKind::Solicited => Stag(0),
            SendKind::Invalidate(stag) | SendKind::SolicitedInvalidate(stag) => stag,
            SendKind::Immediate(data) | SendKind::SolicitedImmediate(data) => Stag(data),
        }
    }
}

/// An RDMAP message that is being cut into segments.
#[derive(Clone, Debug)]
pub struct Message {
    target: Target,
    opcode: Opcode,
    control: Control,
    /// What an untagged header's first octet says besides.
    spare: u8,
    finished: bool,
    length: u32,
    cut: u32,
}

#[derive(Clone, Debug)]
enum Target {
    Tagged {
        stag: Stag,
        offset: TaggedOffset,
    },
    Untagged {
        queue: QueueNumber,
        sequence_number: MessageSequenceNumber,
        invalidate_stag: Stag,
    },
    /// One segment without payload: an RDMAP header behind an untagged DDP header.
    Fixed {
        queue: QueueNumber,
        sequence_number: MessageSequenceNumber,
        body: [u8; LONGEST_BODY],
        body_len: u8,
    },
}

/// One DDP segment to send: its headers, and the part of the message's payload that follows them.
#[derive(Clone, Debug)]
pub struct Segment {
    header: [u8; LONGEST_HEADER],
    header_len: u8,
    /// First octet of payload in the message.
    pub payload_offset: u32,
    /// Octets of payload.
    pub payload_len: u32,
    /// The last segment of the message.
    pub last: bool,
}

/// One DDP segment whose header [`Message::cut_into`] has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Octets of the header.
    pub header_len: usize,
    /// First octet of payload in the message.
    pub payload_offset: u32,
    /// Octets of payload.
    pub payload_len: u32,
    /// The last segment of the message.
    pub last: bool,
}

impl Segment {
    /// DDP header and, for messages that have one, RDMAP header.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// Octets of the ULPDU: headers and payload.
    #[inline]
    pub const fn ulpdu_len(&self) -> usize {
        self.header_len as usize + self.payload_len as usize
    }
}

impl Message {
    const fn new(opcode: Opcode, target: Target, length: u32) -> Message {
        Message { target, opcode, control: Control::new(opcode), spare: 0, finished: false, length, cut: 0 }
    }

    /// Has the headers of an untagged message say how long it waits for a receive: see
    /// [`NotReadyRetries::bits`](uwarp_wire::ddp::NotReadyRetries::bits).
    pub(crate) const fn with_spare(mut self, spare: u8) -> Message {
        self.spare = spare;
        self
    }

    /// A Send of `length` octets with the next message sequence number of queue 0.
    pub const fn send(kind: SendKind, sequence_number: MessageSequenceNumber, length: u32) -> Message {
        let target = Target::Untagged { queue: QueueNumber::SEND, sequence_number, invalidate_stag: kind.word() };
        Message { control: kind.control(), ..Message::new(kind.opcode(), target, length) }
    }

    /// An RDMA Write of `length` octets to a remote tagged buffer.
    pub const fn write(stag: Stag, offset: TaggedOffset, length: u32) -> Message {
        Message::new(Opcode::Write, Target::Tagged { stag, offset }, length)
    }

    /// The response to a Read Request. STag and offset are those of the sink, uninterpreted (RFC 5040 §4.4).
    pub const fn read_response(sink_stag: Stag, sink_offset: TaggedOffset, length: u32) -> Message {
        Message::new(Opcode::ReadResponse, Target::Tagged { stag: sink_stag, offset: sink_offset }, length)
    }

    /// A Read Request with the next message sequence number of queue 1.
    pub fn read_request(request: &ReadRequest, sequence_number: MessageSequenceNumber) -> Message {
        Message::fixed(Opcode::ReadRequest, QueueNumber::READ_REQUEST, sequence_number, &request.to_octets())
    }

    /// Immediate Data with the next message sequence number of queue 0 (RFC 7306 §6.3).
    pub fn immediate(data: ImmediateData, solicited: bool, sequence_number: MessageSequenceNumber) -> Message {
        let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        Message::fixed(opcode, QueueNumber::SEND, sequence_number, &data.to_octets())
    }

    /// An Atomic Request with the next message sequence number of queue 1 (RFC 7306 §5.2.1).
    pub fn atomic_request(request: &AtomicRequest, sequence_number: MessageSequenceNumber) -> Message {
        Message::fixed(Opcode::AtomicRequest, QueueNumber::READ_REQUEST, sequence_number, &request.to_octets())
    }

    /// An Atomic Response with the next message sequence number of queue 3 (RFC 7306 §5.2.2).
    pub fn atomic_response(response: &AtomicResponse, sequence_number: MessageSequenceNumber) -> Message {
        Message::fixed(Opcode::AtomicResponse, QueueNumber::ATOMIC_RESPONSE, sequence_number, &response.to_octets())
    }

    /// A Commit Request of `regions` regions with the next message sequence number of queue 1. Identifier and regions
    /// are its payload, [`CommitRequest::emit_len`] octets (draft-talpey-rdma-commit §3.2.1).
    pub const fn commit_request(regions: u32, sequence_number: MessageSequenceNumber) -> Message {
        let target = Target::Untagged { queue: QueueNumber::READ_REQUEST, sequence_number, invalidate_stag: Stag(0) };
        Message::new(Opcode::CommitRequest, target, CommitRequest::emit_len(regions as usize) as u32)
    }

    /// A Commit Request of one region, which is in the header, without payload.
    pub fn commit_of(region: &CommitRegion, identifier: u32, sequence_number: MessageSequenceNumber) -> Message {
        let mut octets = [0; CommitRequest::emit_len(1)];
        CommitRequest::emit(identifier, std::slice::from_ref(region), &mut octets);
        Message::fixed(Opcode::CommitRequest, QueueNumber::READ_REQUEST, sequence_number, &octets)
    }

    /// A Commit Response with the next message sequence number of queue 3 (draft-talpey-rdma-commit §3.2.2).
    pub fn commit_response(response: &CommitResponse, sequence_number: MessageSequenceNumber) -> Message {
        Message::fixed(Opcode::CommitResponse, QueueNumber::ATOMIC_RESPONSE, sequence_number, &response.to_octets())
    }

    /// One segment without payload, with at most [`LONGEST_BODY`] octets behind the DDP header.
    fn fixed(opcode: Opcode, queue: QueueNumber, sequence_number: MessageSequenceNumber, octets: &[u8]) -> Message {
        let mut body = [0; LONGEST_BODY];
        body[..octets.len()].copy_from_slice(octets);
        let body_len = octets.len() as u8;
        Message::new(opcode, Target::Fixed { queue, sequence_number, body, body_len }, 0)
    }

    /// A Terminate, always message 1 of queue 2.
    pub fn terminate(terminate: &Terminate) -> Message {
        let mut body = [0; LONGEST_BODY];
        let body_len = terminate.emit(&mut body) as u8;
        Message::new(
            Opcode::Terminate,
            Target::Fixed {
                queue: QueueNumber::TERMINATE,
                sequence_number: MessageSequenceNumber::FIRST,
                body,
                body_len,
            },
            0,
        )
    }

    /// Octets of payload in the whole message.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Octets of payload in the segments already cut.
    #[inline]
    pub const fn octets_cut(&self) -> u32 {
        self.cut
    }

    /// The segment that was cut last is not sent.
    pub fn take_back(&mut self, cut: &Cut) {
        debug_assert!(cut.payload_offset + cut.payload_len == self.cut && cut.last == self.finished);
        self.cut = cut.payload_offset;
        self.finished = false;
    }

    /// Whether the last segment was cut.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// The RDMAP opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Octets of the next ULPDU if it were cut now, 0 if nothing is left.
    #[inline]
    pub fn next_ulpdu_len(&self, mulpdu: u16) -> u32 {
        if self.finished {
            return 0;
        }
        self.header_len() + self.left().min(self.room(mulpdu))
    }

    /// Whether another ULPDU follows the next one if that is cut now.
    #[inline]
    pub const fn continues(&self, mulpdu: u16) -> bool {
        self.left() > self.room(mulpdu)
    }

    /// Octets of payload that are not cut yet.
    const fn left(&self) -> u32 {
        self.length - self.cut
    }

    /// Octets of payload that fit behind the header.
    const fn room(&self, mulpdu: u16) -> u32 {
        clamp(mulpdu) - self.header_len()
    }

    const fn header_len(&self) -> u32 {
        match self.target {
            Target::Tagged { .. } => TAGGED_HEADER_LEN as u32,
            Target::Untagged { .. } => UNTAGGED_HEADER_LEN as u32,
            Target::Fixed { body_len, .. } => UNTAGGED_HEADER_LEN as u32 + body_len as u32,
        }
    }

    /// Cuts the next segment of at most `mulpdu` octets of ULPDU (clamped to 128 to 64768); `None` if the last one was
    /// already cut. A message without payload is one segment.
    #[inline]
    pub fn next_segment(&mut self, mulpdu: u16) -> Option<Segment> {
        if self.finished {
            return None;
        }
        Some(self.cut_segment(self.room(mulpdu)))
    }

    /// Cuts a segment with at most `room` octets of payload.
    #[inline]
    pub(crate) fn cut_segment(&mut self, room: u32) -> Segment {
        let mut header = [0; LONGEST_HEADER];
        let Cut { header_len, payload_offset, payload_len, last } = self.cut_at_most(room, &mut header);
        Segment { header, header_len: header_len as u8, payload_offset, payload_len, last }
    }

    /// As [`Message::next_segment`], but writes the header to where it will be sent from.
    ///
    /// # Panics
    /// If `out` is shorter than the header; [`LONGEST_HEADER`] octets are always enough.
    #[inline(always)]
    pub fn cut_into(&mut self, mulpdu: u16, out: &mut [u8]) -> Option<Cut> {
        if self.finished {
            return None;
        }
        Some(self.cut_at_most(self.room(mulpdu), out))
    }

    /// As [`Message::cut_into`], for a tagged message: gives the header instead of writing it. `None` also if the
    /// message is untagged.
    #[inline(always)]
    pub fn cut_tagged(&mut self, mulpdu: u16) -> Option<([u8; TAGGED_HEADER_LEN], Cut)> {
        let Target::Tagged { stag, offset } = self.target else { return None };
        if self.finished {
            return None;
        }
        let cut = self.next_cut(self.room(mulpdu));
        let header = self.tagged_header((stag, offset), &cut).to_octets();
        self.advance(&cut);
        Some((header, cut))
    }

    #[inline(always)]
    fn cut_at_most(&mut self, room: u32, out: &mut [u8]) -> Cut {
        let cut = self.next_cut(room);
        let Cut { payload_offset, last, .. } = cut;
        match &self.target {
            Target::Tagged { stag, offset } => {
                self.tagged_header((*stag, *offset), &cut).emit(out);
            }
            Target::Untagged { queue, sequence_number, invalidate_stag } => {
                UntaggedHeader {
                    last,
                    control: self.control,
                    invalidate_stag: *invalidate_stag,
                    queue: *queue,
                    message_sequence_number: *sequence_number,
                    message_offset: payload_offset,
                }
                .emit(out);
                out[0] |= self.spare;
            }
            Target::Fixed { queue, sequence_number, body, body_len } => {
                UntaggedHeader {
                    last,
                    control: self.control,
                    invalidate_stag: Stag(0),
                    queue: *queue,
                    message_sequence_number: *sequence_number,
                    message_offset: 0,
                }
                .emit(out);
                out[0] |= self.spare;
                let body_len = usize::from(*body_len);
                out[UNTAGGED_HEADER_LEN..UNTAGGED_HEADER_LEN + body_len].copy_from_slice(&body[..body_len]);
            }
        }
        self.advance(&cut);
        cut
    }

    /// The segment that comes next, with at most `room` octets of payload.
    #[inline(always)]
    fn next_cut(&self, room: u32) -> Cut {
        let left = self.left();
        let payload_len = left.min(room);
        let header_len = self.header_len() as usize;
        Cut { header_len, payload_offset: self.cut, payload_len, last: payload_len == left }
    }

    #[inline(always)]
    fn advance(&mut self, cut: &Cut) {
        self.cut += cut.payload_len;
        self.finished = cut.last;
    }

    #[inline(always)]
    fn tagged_header(&self, target: (Stag, TaggedOffset), cut: &Cut) -> TaggedHeader {
        TaggedHeader {
            last: cut.last,
            control: self.control,
            stag: target.0,
            // A sink offset is the peer's, and so is a wrap of it (RFC 5040 §4.4).
            offset: target.1.wrapping_add(u64::from(cut.payload_offset)),
        }
    }
}

/// Every header fits the smallest MULPDU, so a segment always has room for payload behind it.
#[inline]
const fn clamp(mulpdu: u16) -> u32 {
    const { assert!(LONGEST_HEADER < MINIMUM_MULPDU as usize) };
    if mulpdu < MINIMUM_MULPDU {
        MINIMUM_MULPDU as u32
    } else if mulpdu > MAXIMUM_MULPDU {
        MAXIMUM_MULPDU as u32
    } else {
        mulpdu as u32
    }
}

#[cfg(test)]
mod tests;
