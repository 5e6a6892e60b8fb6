//! MPA start-up (RFC 5044 §7.1, RFC 6581): the Request/Reply exchange as two state machines that consume octets.
//!
//! [`Initiator`] sends a Request and waits for the Reply. [`Responder`] waits for a Request, lets the consumer decide,
//! and answers. Frames may arrive in parts of any size. Any [`StartupError`] closes TCP at once: there is no stream for
//! a Terminate yet (RFC 5044 §8, code 4). Time limits are the caller's.
//!
//! Each side says whether it wants markers in what it receives; the other side must then insert them (RFC 5044 §4.3).

use uwarp_wire::WireError;
use uwarp_wire::mpa::{
    ENHANCED_DATA_LEN, EnhancedData, MAXIMUM_PRIVATE_DATA, NOT_NEGOTIATED, STARTUP_HEADER_LEN, StartupFrame,
};

use crate::fault::Fault;

mod initiator;
mod responder;
#[cfg(test)]
mod tests;

pub use initiator::{Initiator, InitiatorOptions, Outcome, Revision};
pub use responder::{AcceptError, PeerRequest, Responder, ResponderOptions};

/// The most that a frame can have.
const LONGEST_FRAME: usize = STARTUP_HEADER_LEN + MAXIMUM_PRIVATE_DATA;
/// The largest negotiable read limit: 14 bits, of which the highest value means "not negotiated".
pub const LARGEST_READ_LIMIT: u16 = NOT_NEGOTIATED - 1;

/// Which side of the start-up this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends the Request, and the first FPDU.
    Initiator,
    /// Sends the Reply, and no FPDU before it has received one.
    Responder,
}

/// The indication after which the Responder to a peer-to-peer Initiator may send (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadyToReceive {
    /// A Send without payload.
    Send,
    /// An RDMA Write without payload.
    Write,
    /// A Read of nothing.
    Read,
}

/// A set of [`ReadyToReceive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadyToReceiveKinds {
    /// A Send without payload.
    pub send: bool,
    /// An RDMA Write without payload.
    pub write: bool,
    /// A Read of nothing.
    pub read: bool,
}

impl ReadyToReceiveKinds {
    /// Every kind.
    pub const ALL: ReadyToReceiveKinds = ReadyToReceiveKinds { send: true, write: true, read: true };
    /// No kind.
    pub const NONE: ReadyToReceiveKinds = ReadyToReceiveKinds { send: false, write: false, read: false };

    /// The kinds in both sets.
    pub const fn and(self, other: ReadyToReceiveKinds) -> ReadyToReceiveKinds {
        ReadyToReceiveKinds {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }

    /// What a Responder offers. A Read needs one that is served, so a side that serves none offers it only if the
    /// Write, which costs nothing, is not left.
    const fn for_limits(self, limits: &ReadLimits) -> ReadyToReceiveKinds {
        ReadyToReceiveKinds { read: self.read && (limits.maximum_ird > 0 || !self.write), ..self }
    }

    const fn of(data: &EnhancedData) -> ReadyToReceiveKinds {
        ReadyToReceiveKinds { send: data.ready_by_send, write: data.ready_by_write, read: data.ready_by_read }
    }

    /// The four octets with these kinds. They request peer-to-peer if there is any, else client-server.
    const fn with_limits(self, ird: u16, ord: u16) -> EnhancedData {
        EnhancedData {
            peer_to_peer: !self.is_empty(),
            ready_by_send: self.send,
            ready_by_write: self.write,
            ready_by_read: self.read,
            ird,
            ord,
        }
    }
}

/// Limits of concurrent reads, and how far start-up may change them (RFC 6581 §9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Inbound reads that this side serves concurrently (IRD).
    pub ird: u16,
    /// How far `ird` may be raised if the peer wants more outstanding reads. Not below `ird`.
    pub maximum_ird: u16,
    /// Outbound reads that this side wants outstanding (ORD). Lowered to what the peer serves.
    pub ord: u16,
    /// The fewest outbound reads that this side accepts; below it start-up fails.
    pub minimum_ord: u16,
    /// The Initiator's Request carries the values. Otherwise it leaves them to the consumers (0x3FFF).
    pub negotiate: bool,
}

impl ReadLimits {
    /// The same limit in both directions, as RFC 5040 §6.1 recommends. It is never raised, and may be lowered to 0.
    pub const fn both(limit: u16) -> ReadLimits {
        ReadLimits { ird: limit, maximum_ird: limit, ord: limit, minimum_ord: 0, negotiate: true }
    }

    const fn check(&self) -> Result<(), OptionsError> {
        if self.ird > LARGEST_READ_LIMIT || self.maximum_ird > LARGEST_READ_LIMIT || self.ord > LARGEST_READ_LIMIT {
            return Err(OptionsError::ReadLimit);
        }
        Ok(())
    }
}

impl Default for ReadLimits {
    fn default() -> ReadLimits {
        ReadLimits::both(16)
    }
}

/// The result of start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// This side's role.
    pub role: Role,
    /// Revision of the exchange: 1 or 2.
    pub revision: u8,
    /// CRCs are generated and checked, in both directions: either side asked for them.
    pub crc: bool,
    /// The peer wants markers in what this side sends.
    pub transmit_markers: bool,
    /// This side wants markers in what it receives.
    pub receive_markers: bool,
    /// Inbound reads that this side serves concurrently.
    pub ird: u16,
    /// Outbound reads that this side may have outstanding.
    pub ord: u16,
    /// IRD as the peer sent it, for the consumer; `None` if the exchange was not enhanced. 0x3FFF: not negotiated.
    pub peer_ird: Option<u16>,
    /// ORD as the peer sent it.
    pub peer_ord: Option<u16>,
    /// What this side, as a peer-to-peer Initiator, sends first.
    pub ready_to_receive: Option<ReadyToReceive>,
    /// This side is a peer-to-peer Responder: the first FPDU is an indication, not a message for the consumer.
    pub expects_ready_to_receive: bool,
    /// That indication may be a Send without payload, which then uses no posted receive.
    pub expects_ready_by_send: bool,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

/// The peer rejected the connection. TCP is still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The IRD that the peer offers, in an enhanced exchange.
    pub peer_ird: Option<u16>,
    /// The ORD that the peer wants, in an enhanced exchange.
    pub peer_ord: Option<u16>,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

/// Options of this side that do not fit into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionsError {
    /// More octets of private data than this limit: 512, or 508 in an enhanced exchange.
    PrivateData {
        /// The most that is possible.
        limit: usize,
    },
    /// A limit of reads above [`LARGEST_READ_LIMIT`].
    ReadLimit,
    /// Peer-to-peer is requested without any ready-to-receive kind, or with revision 1.
    PeerToPeer,
}

impl core::fmt::Display for OptionsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OptionsError::PrivateData { limit } => {
                write!(f, "private data of a connection may have at most {limit} octets")
            }
            OptionsError::ReadLimit => write!(f, "limits of reads (IRD, ORD) may be at most {LARGEST_READ_LIMIT}"),
            OptionsError::PeerToPeer => f.write_str(
                "peer-to-peer start-up needs MPA revision 2 and at least one kind of ready-to-receive indication",
            ),
        }
    }
}

impl std::error::Error for OptionsError {}

/// Why start-up failed. TCP is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartupError {
    /// The frame does not begin with the expected key.
    Key,
    /// An unsupported revision: 0, above 2, or in a Reply above that of the Request.
    Revision,
    /// More than 512 octets of private data.
    PrivateDataLength,
    /// The enhanced flag is set, but the enhanced data does not fit.
    EnhancedData,
    /// An enhanced Request while enhanced start-up is disabled.
    EnhancedNotSupported,
    /// Octets behind the Request, before the Reply.
    OctetsAfterRequest,
    /// The peer closed before its frame was complete.
    Closed,
}

impl StartupError {
    /// The fault reported to the local consumer; it has no Terminate.
    pub const fn fault(self) -> Fault {
        Fault::InvalidStartupFrame
    }

    fn of(error: WireError) -> StartupError {
        match error {
            WireError::MpaRevision => StartupError::Revision,
            WireError::MpaPrivateDataLength => StartupError::PrivateDataLength,
            WireError::MpaEnhancedData => StartupError::EnhancedData,
            _ => StartupError::Key,
        }
    }
}

impl core::fmt::Display for StartupError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            StartupError::Key => "the peer does not speak MPA: its frame has the wrong key",
            StartupError::Revision => "the peer uses an unsupported revision of MPA",
            StartupError::PrivateDataLength => "the peer's MPA frame announces more than 512 octets of private data",
            StartupError::EnhancedData => "the peer's MPA frame lacks the enhanced data that it announces",
            StartupError::EnhancedNotSupported => {
                "the peer asks for enhanced connection set-up, which is switched off here"
            }
            StartupError::OctetsAfterRequest => {
                "the peer sent octets behind its MPA Request without waiting for the Reply"
            }
            StartupError::Closed => "the peer closed the connection during MPA start-up",
        })
    }
}

impl std::error::Error for StartupError {}

/// The octets of a frame that is not complete yet.
#[derive(Clone, Debug, Default)]
struct Collector {
    octets: Vec<u8>,
}

impl Collector {
    /// Appends `octets` and tries `parse` on everything so far. Returns its result and how many of the new octets
    /// belong to the frame.
    fn feed<T>(
        &mut self,
        octets: &[u8],
        parse: impl FnOnce(&[u8]) -> Result<Option<(T, usize)>, StartupError>,
    ) -> Result<Option<(T, usize)>, StartupError> {
        let before = self.octets.len();
        let taken = octets.len().min(LONGEST_FRAME - before);
        self.octets.extend_from_slice(&octets[..taken]);
        let parsed = parse(&self.octets)?;
        Ok(parsed.map(|(value, frame_len)| (value, frame_len.saturating_sub(before))))
    }
}

/// The octets of a frame of ours.
fn emit(frame: &StartupFrame<'_>) -> Result<Vec<u8>, OptionsError> {
    let mut octets = vec![0; frame.emit_len()];
    let limit = if frame.enhanced.is_some() { MAXIMUM_PRIVATE_DATA - ENHANCED_DATA_LEN } else { MAXIMUM_PRIVATE_DATA };
    frame.emit(&mut octets).map_err(|_| OptionsError::PrivateData { limit })?;
    Ok(octets)
}
