//! RDMAP control octet and messages (RFC 5040 §4; Atomic and Immediate: RFC 7306 as of draft-10; Commit:
//! draft-talpey-rdma-commit-00).
//!
//! Codecs only: `uwarp-iwarp` decides which operations a stream accepts, and on which queue.

mod extensions;
mod terminate;
#[cfg(test)]
mod tests;

pub use extensions::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicOperation, AtomicRequest, AtomicResponse, COMMIT_REGION_LEN,
    COMMIT_RESPONSE_LEN, CommitRegion, CommitRequest, CommitResponse, IMMEDIATE_LEN, ImmediateData,
};
pub use terminate::{MAXIMUM_TERMINATE_LEN, TERMINATE_CONTROL_LEN, Terminate, TerminateLayer, TerminatedHeader};

use crate::WireError;
use crate::ddp::{Stag, TaggedOffset};
use crate::octets::{put_u32, put_u64, u32_at, u64_at};

/// Octets of a Read Request behind its DDP header.
pub const READ_REQUEST_LEN: usize = 28;

const VERSION: u8 = 1;
/// Of the two reserved bits of the control octet, the one that [`Control::with_immediate`] sets.
const IMMEDIATE: u8 = 0x20;

/// The operation of an RDMAP message (RFC 5040 §4.3, RFC 7306 §10.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0x0,
    /// RDMA Read Request.
    ReadRequest = 0x1,
    /// RDMA Read Response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send with Invalidate.
    SendInvalidate = 0x4,
    /// Send with Solicited Event.
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 0x6,
    /// Terminate.
    Terminate = 0x7,
    /// Immediate Data.
    Immediate = 0x8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 0x9,
    /// Atomic Request.
    AtomicRequest = 0xA,
    /// Atomic Response.
    AtomicResponse = 0xB,
    /// RDMA Commit Request.
    CommitRequest = 0xC,
    /// RDMA Commit Response.
    CommitResponse = 0xD,
}

impl Opcode {
    /// Every operation in the order of its code.
    pub const ALL: [Opcode; 14] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
        Opcode::Immediate,
        Opcode::ImmediateSolicited,
        Opcode::AtomicRequest,
        Opcode::AtomicResponse,
        Opcode::CommitRequest,
        Opcode::CommitResponse,
    ];

    /// The operation with this code.
    ///
    /// # Errors
    /// [`WireError::Opcode`] for 0xE and above.
    #[inline]
    pub fn from_code(code: u8) -> Result<Opcode, WireError> {
        Opcode::ALL.get(usize::from(code)).copied().ok_or(WireError::Opcode)
    }

    /// The operation's code.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// The RDMAP control octet as received: version, two reserved bits, operation (RFC 5040 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control(
    /// The octet.
    pub u8,
);

impl Control {
    /// The octet of a message that we send: version 1, reserved bits 0.
    #[inline]
    pub const fn new(opcode: Opcode) -> Control {
        Control((VERSION << 6) | opcode as u8)
    }

    /// The octet of a Send that has immediate data in the four octets behind it. One of the reserved bits says so,
    /// which both ends must have agreed on.
    #[inline]
    pub const fn with_immediate(opcode: Opcode) -> Control {
        Control(Control::new(opcode).0 | IMMEDIATE)
    }

    /// Whether the bit of [`Control::with_immediate`] is set. It means nothing without the agreement.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        self.0 & IMMEDIATE != 0
    }

    /// The version field; 1 is the one that RFC 5040 defines.
    #[inline]
    pub const fn version(self) -> u8 {
        self.0 >> 6
    }

    /// The operation, whatever the version.
    ///
    /// # Errors
    /// [`WireError::Opcode`] if the code is not assigned.
    #[inline]
    pub fn opcode(self) -> Result<Opcode, WireError> {
        Opcode::from_code(self.0 & 0x0f)
    }

    /// The operation of a version 1 message; reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::RdmapVersion`] before [`WireError::Opcode`].
    #[inline]
    pub fn parse(self) -> Result<Opcode, WireError> {
        if self.version() != VERSION {
            return Err(WireError::RdmapVersion);
        }
        self.opcode()
    }
}

impl From<Opcode> for Control {
    #[inline]
    fn from(opcode: Opcode) -> Control {
        Control::new(opcode)
    }
}

/// A Read Request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReadRequest {
    /// The sink's buffer, where the requester wants the data.
    pub sink_stag: Stag,
    /// The offset in that buffer.
    pub sink_offset: TaggedOffset,
    /// RDMARDSZ: octets wanted.
    pub length: u32,
    /// The source's buffer, where the data is.
    pub source_stag: Stag,
    /// The offset in that buffer.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// The request's octets.
    #[inline]
    pub fn to_octets(&self) -> [u8; READ_REQUEST_LEN] {
        let mut octets = [0; READ_REQUEST_LEN];
        put_u32(&mut octets, 0, self.sink_stag.0);
        put_u64(&mut octets, 4, self.sink_offset.0);
        put_u32(&mut octets, 12, self.length);
        put_u32(&mut octets, 16, self.source_stag.0);
        put_u64(&mut octets, 20, self.source_offset.0);
        octets
    }

    /// Reads a request; `message` is the whole message behind the DDP header.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] if it has not exactly 28 octets.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<ReadRequest, WireError> {
        let octets: &[u8; READ_REQUEST_LEN] = message.try_into().map_err(|_| WireError::MessageLength)?;
        Ok(ReadRequest {
            sink_stag: Stag(u32_at(octets, 0)),
            sink_offset: TaggedOffset(u64_at(octets, 4)),
            length: u32_at(octets, 12),
            source_stag: Stag(u32_at(octets, 16)),
            source_offset: TaggedOffset(u64_at(octets, 20)),
        })
    }
}
