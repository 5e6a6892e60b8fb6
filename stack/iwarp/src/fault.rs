//! Every protocol fault, with its Terminate for the peer and its status for the local consumer.
//!
//! A fault is one value. [`Fault::row`] gives the Terminate coordinates (layer, error type, error code), the headers of
//! the failing segment that are returned with it (RFC 5040 §4.8, Figure 10), and the local work request that it fails.
//! A test freezes the table.
//!
//! The numbers of a mistake depend on the layer that finds it. DDP finds those of a Write or a Read Response (layer 1),
//! RDMAP those of a Read Request or of a Send with Invalidate (layer 0). Hence two families of names: `Tagged…` and
//! `Read…`.

/// A protocol fault. Any of them ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The TCP connection closed inside an FPDU or inside a DDP message (RFC 5044 §8, code 1).
    ConnectionLost,
    /// The CRC32c of an FPDU is wrong (RFC 5044 §8, code 2).
    Crc,
    /// A marker and the chain of ULPDU lengths disagree about where an FPDU starts (RFC 5044 §8, code 3).
    MarkerMismatch,
    /// An MPA Request or Reply frame is not valid. No Terminate can be sent: TCP is closed (RFC 5044 §8, code 4).
    InvalidStartupFrame,
    /// Start-up failed for a local reason after the Reply (RFC 6581 §8, code 5).
    StartupLocalCatastrophic,
    /// This side cannot serve as many inbound reads as the peer may have outstanding (RFC 6581 §8, code 6).
    InsufficientIrd,
    /// The two sides have no ready-to-receive indication in common (RFC 6581 §8, code 7).
    NoMatchingRtr,

    /// A ULPDU is shorter than the DDP header that its T bit announces. No document assigns a code. There is no header
    /// to return, so it is DDP's "local catastrophic".
    SegmentTooShort,

    /// Tagged segment: the STag is not valid (RFC 5041 §7.1).
    TaggedInvalidStag,
    /// Tagged segment: offset or length exceed the buffer.
    TaggedBounds,
    /// Tagged segment: the STag is valid but not usable on this stream.
    TaggedNotAssociated,
    /// Tagged segment: offset plus length pass 2^64.
    TaggedWrap,
    /// Tagged segment: the DDP version is not 1.
    TaggedVersion,
    /// Tagged segment: the buffer does not allow remote writes. DDP has no code for rights, so "Invalid STag" is sent;
    /// base/bounds would mislead the peer.
    TaggedAccess,

    /// Read Response segment whose STag is not that of the oldest outstanding read.
    ResponseStag,
    /// Read Response segment whose offset or total length is not that of the oldest outstanding read.
    ResponseBounds,
    /// A response that does not match the kind of the oldest outstanding request, or with none outstanding.
    ResponseUnexpected,
    /// Atomic Response whose request identifier is not that of the oldest outstanding request.
    ResponseIdentifier,

    /// Untagged segment: no such queue, or an opcode on the wrong queue.
    InvalidQueue,
    /// Untagged segment: no buffer for this message: no receive posted (queue 0), or more reads than agreed (queue 1).
    NoBuffer,
    /// Untagged segment: not the next message sequence number.
    InvalidMessageSequenceNumber,
    /// Untagged segment: the message offset is not the number of octets received so far.
    InvalidMessageOffset,
    /// Untagged segment: the message does not fit the posted receive, or the request queue's largest request.
    MessageTooLong,
    /// Untagged segment: the DDP version is not 1.
    UntaggedVersion,

    /// Read or Atomic Request: the STag is not valid (RFC 5040 §7.2).
    ReadInvalidStag,
    /// Read or Atomic Request: offset or size exceed the buffer.
    ReadBounds,
    /// Read Request: the source buffer does not allow remote reads; Atomic Request: the buffer lacks one of its rights.
    ReadAccess,
    /// Read or Atomic Request: the STag is valid but not usable on this stream.
    ReadNotAssociated,
    /// Read or Atomic Request: offset plus size exceed 2^64.
    ReadWrap,

    /// Send with Invalidate: the STag is not valid, or not usable on this stream.
    InvalidateNotAssociated,
    /// Send with Invalidate: the STag is usable here but may not be invalidated remotely (shared by streams, or with
    /// bound windows).
    InvalidateShared,

    /// The RDMAP version is not 1.
    RdmapVersion,
    /// The opcode is unknown, not enabled, or its T bit is wrong.
    UnexpectedOpcode,
    /// A message began before an open one of the same kind had ended.
    Interleaved,
    /// A message that must be one segment arrived with L=0.
    NotOneSegment,
    /// A Read Request, Terminate or other message of fixed length has the wrong length.
    WrongLength,
    /// An Atomic Request names an address that is not a multiple of 8 (draft-ietf-storm-rdmap-ext §5.1).
    AtomicMisaligned,

    /// This side cannot continue the stream, for a reason unrelated to input (RFC 5040 §7.1 (1)).
    LocalCatastrophic,
    /// This device cannot go on at all.
    GlobalCatastrophic,
}

/// Which parts of the failing segment go into the Terminate (RFC 5040 §4.8, Figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Headers {
    /// None: M, D and R are 0.
    None,
    /// Segment length and DDP header (M and D), if a segment is at fault.
    Ddp,
    /// Segment length, DDP header and Read Request header (M, D and R).
    DdpAndReadRequest,
}

/// The status for the local consumer, beyond the end of the stream and the flush of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalStatus {
    /// No work request of ours is at fault: all are flushed.
    Flushed,
    /// The oldest posted receive completes with a length error; the rest is flushed.
    ReceiveLength,
    /// The oldest posted receive holds all its data but completes with an invalidation error; the rest is flushed.
    ReceiveInvalidation,
    /// The oldest outstanding read completes with "bad response"; the rest is flushed.
    ReadResponse,
    /// The connection is lost; work is flushed.
    ConnectionLost,
    /// This side failed; work is flushed after a fatal event.
    Fatal,
}

/// One row of the fault table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The fault.
    pub fault: Fault,
    /// Terminate layer: 0 RDMAP, 1 DDP, 2 LLP (here MPA).
    pub layer: u8,
    /// Terminate error type, within the layer.
    pub error_type: u8,
    /// Terminate error code, within layer and type.
    pub code: u8,
    /// The parts of the failing segment that are returned.
    pub headers: Headers,
    /// The status for the local consumer.
    pub local: LocalStatus,
}

const fn row(fault: Fault, layer: u8, error_type: u8, code: u8, headers: Headers, local: LocalStatus) -> Row {
    Row { fault, layer, error_type, code, headers, local }
}

/// The fault table, in the order of the variants of [`Fault`].
pub const TABLE: &[Row] = {
    use Fault as F;
    use Headers as H;
    use LocalStatus as L;
    &[
        row(F::ConnectionLost, 2, 0, 0x01, H::None, L::ConnectionLost),
        row(F::Crc, 2, 0, 0x02, H::None, L::Flushed),
        row(F::MarkerMismatch, 2, 0, 0x03, H::None, L::Flushed),
        row(F::InvalidStartupFrame, 2, 0, 0x04, H::None, L::ConnectionLost),
        row(F::StartupLocalCatastrophic, 2, 0, 0x05, H::None, L::Fatal),
        row(F::InsufficientIrd, 2, 0, 0x06, H::None, L::Flushed),
        row(F::NoMatchingRtr, 2, 0, 0x07, H::None, L::Flushed),
        row(F::SegmentTooShort, 1, 0, 0x00, H::None, L::Flushed),
        row(F::TaggedInvalidStag, 1, 1, 0x00, H::Ddp, L::Flushed),
        row(F::TaggedBounds, 1, 1, 0x01, H::Ddp, L::Flushed),
        row(F::TaggedNotAssociated, 1, 1, 0x02, H::Ddp, L::Flushed),
        row(F::TaggedWrap, 1, 1, 0x03, H::Ddp, L::Flushed),
        row(F::TaggedVersion, 1, 1, 0x04, H::Ddp, L::Flushed),
        row(F::TaggedAccess, 1, 1, 0x00, H::Ddp, L::Flushed),
        row(F::ResponseStag, 1, 1, 0x00, H::Ddp, L::ReadResponse),
        row(F::ResponseBounds, 1, 1, 0x01, H::Ddp, L::ReadResponse),
        row(F::ResponseUnexpected, 0, 2, 0x06, H::Ddp, L::Flushed),
        row(F::ResponseIdentifier, 0, 2, 0xff, H::Ddp, L::ReadResponse),
        row(F::InvalidQueue, 1, 2, 0x01, H::Ddp, L::Flushed),
        row(F::NoBuffer, 1, 2, 0x02, H::Ddp, L::Flushed),
        row(F::InvalidMessageSequenceNumber, 1, 2, 0x03, H::Ddp, L::Flushed),
        row(F::InvalidMessageOffset, 1, 2, 0x04, H::Ddp, L::Flushed),
        row(F::MessageTooLong, 1, 2, 0x05, H::Ddp, L::ReceiveLength),
        row(F::UntaggedVersion, 1, 2, 0x06, H::Ddp, L::Flushed),
        row(F::ReadInvalidStag, 0, 1, 0x00, H::DdpAndReadRequest, L::Flushed),
        row(F::ReadBounds, 0, 1, 0x01, H::DdpAndReadRequest, L::Flushed),
        row(F::ReadAccess, 0, 1, 0x02, H::DdpAndReadRequest, L::Flushed),
        row(F::ReadNotAssociated, 0, 1, 0x03, H::DdpAndReadRequest, L::Flushed),
        row(F::ReadWrap, 0, 1, 0x04, H::DdpAndReadRequest, L::Flushed),
        row(F::InvalidateNotAssociated, 0, 1, 0x09, H::Ddp, L::ReceiveInvalidation),
        row(F::InvalidateShared, 0, 2, 0x09, H::Ddp, L::ReceiveInvalidation),
        row(F::RdmapVersion, 0, 2, 0x05, H::Ddp, L::Flushed),
        row(F::UnexpectedOpcode, 0, 2, 0x06, H::Ddp, L::Flushed),
        row(F::Interleaved, 0, 2, 0x07, H::Ddp, L::Flushed),
        row(F::NotOneSegment, 0, 2, 0x07, H::Ddp, L::Flushed),
        row(F::WrongLength, 0, 2, 0xff, H::Ddp, L::Flushed),
        row(F::AtomicMisaligned, 0, 2, 0x07, H::Ddp, L::Flushed),
        row(F::LocalCatastrophic, 0, 0, 0x00, H::None, L::Fatal),
        row(F::GlobalCatastrophic, 0, 2, 0x08, H::None, L::Fatal),
    ]
};

// The table is indexed by the discriminant: a misplaced row does not compile.
const _: () = {
    let mut index = 0;
    while index < TABLE.len() {
        assert!(TABLE[index].fault as usize == index);
        index += 1;
    }
    assert!(Fault::GlobalCatastrophic as usize + 1 == TABLE.len());
};

impl Fault {
    /// The row of this fault: Terminate coordinates, returned headers, local status.
    pub const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The status for the local consumer.
    pub const fn local_status(self) -> LocalStatus {
        self.row().local
    }
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let row = self.row();
        write!(f, "{:?} (layer {}, type {}, code {:#04x})", self, row.layer, row.error_type, row.code)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests;
