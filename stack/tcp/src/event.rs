//! What a connection reports to its owner.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader, Timestamps};

/// Names a buffer of the owner. Its value means nothing to the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct BufferToken(pub u32);

/// What to do with the payload of a received segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// There was none.
    None,
    /// It continues the stream: octets `skip .. skip + len` of the payload are next. Held payloads may follow: call
    /// [`crate::Connection::take_in_order`].
    InOrder {
        /// Octets at the start of the payload that are duplicates.
        skip: u32,
        /// Octets to consume.
        len: u32,
    },
    /// It is ahead of a gap, or [`crate::Connection::hold_in_order`] was called. Keep the buffer under its token until
    /// [`crate::Connection::take_in_order`] or [`crate::Connection::drain_discarded`] returns the token.
    Held,
    /// Not wanted; the buffer can be reused.
    Discarded,
}

/// The result of a received segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// What to do with the payload.
    pub payload: Payload,
    /// What has changed.
    pub events: Events,
    /// Why the segment, or its payload, was not used.
    pub drop: Option<DropReason>,
}

/// A segment of an open connection, with no option but timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsualSegment {
    /// ACK, PSH, and the flags of ECN. A received one has none of those.
    pub flags: TcpFlags,
    /// SEG.SEQ.
    pub sequence: SeqNumber,
    /// SEG.ACK.
    pub acknowledgment: SeqNumber,
    /// The window field, not scaled.
    pub window: u16,
    /// The timestamp option.
    pub timestamps: Option<Timestamps>,
    /// The ECN field of the IP header.
    pub ecn: u8,
    /// Octets of payload.
    pub len: u32,
}

impl UsualSegment {
    /// Whether the two differ in sequence number and length alone.
    #[inline]
    pub fn is_alike(&self, other: &UsualSegment) -> bool {
        *self == UsualSegment { sequence: self.sequence, len: self.len, ..*other }
    }
}

/// A held payload that now continues the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldPayload {
    /// The buffer, which belongs to the owner again.
    pub token: BufferToken,
    /// Octets at the start of the payload to be skipped.
    pub skip: u32,
    /// Octets to consume.
    pub len: u32,
}

/// A part of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// The record's buffer.
    pub token: BufferToken,
    /// First octet within the record.
    pub offset: u32,
    /// Number of octets.
    pub len: u32,
    /// A whole record, sent for the first time: its own buffer can take the headers.
    pub whole_first_transmission: bool,
}

/// A segment to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The header. Its ports are zero; the owner fills them in.
    pub header: TcpHeader,
    /// The payload, if any.
    pub payload: Option<Slice>,
    /// Some of these octets were sent before.
    pub retransmission: bool,
    /// The ECN field for the IP header (RFC 3168 §5).
    pub ecn: u8,
}

impl Transmit {
    /// A segment of new data.
    #[inline]
    pub fn fresh(segment: &UsualSegment, slice: Slice) -> Transmit {
        let mut header = TcpHeader::new(segment.flags);
        header.sequence = segment.sequence;
        header.acknowledgment = segment.acknowledgment;
        header.window = segment.window;
        header.options.timestamps = segment.timestamps;
        Transmit { header, payload: Some(slice), retransmission: false, ecn: segment.ecn }
    }
}

/// A set of things that happened.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Events(u16);

impl Events {
    /// Nothing.
    pub const NONE: Events = Events(0);
    /// The connection is open (ESTABLISHED was entered).
    pub const ESTABLISHED: Events = Events(1);
    /// The peer's stream ends behind the octets handed out so far.
    pub const PEER_FIN: Events = Events(1 << 1);
    /// The peer reset the connection, or refused it. CLOSED is set, too.
    pub const RESET: Events = Events(1 << 2);
    /// The connection is closed: drain its tokens, then drop it.
    pub const CLOSED: Events = Events(1 << 3);
    /// Both directions are finished; the connection only waits for late segments.
    pub const TIME_WAIT: Events = Events(1 << 4);
    /// [`crate::Connection::send_space`] may have grown.
    pub const SEND_SPACE: Events = Events(1 << 5);
    /// [`crate::Connection::octets_acknowledged`] has grown, and [`crate::Connection::pop_acknowledged`] may have
    /// something.
    pub const OCTETS_ACKED: Events = Events(1 << 6);
    /// The peer has acknowledged our FIN, and so everything that was sent.
    pub const FIN_ACKED: Events = Events(1 << 7);
    /// The peer stopped answering. CLOSED is set, too.
    pub const TIMED_OUT: Events = Events(1 << 8);
    /// The peer has announced urgent data, or more of it (RFC 9293 §3.8.5, MUST-32). See
    /// [`crate::Connection::urgent_told`], before handing out the segment's payload.
    pub const URGENT: Events = Events(1 << 9);

    /// Whether every event of `other` is in the set.
    #[inline]
    pub const fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any event of `other` is in the set.
    #[inline]
    pub const fn intersects(self, other: Events) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether nothing happened.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Events {
    type Output = Events;
    #[inline]
    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

impl BitOrAssign for Events {
    #[inline]
    fn bitor_assign(&mut self, other: Events) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 10] = [
            "ESTABLISHED",
            "PEER_FIN",
            "RESET",
            "CLOSED",
            "TIME_WAIT",
            "SEND_SPACE",
            "OCTETS_ACKED",
            "FIN_ACKED",
            "TIMED_OUT",
            "URGENT",
        ];
        let mut separator = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                write!(formatter, "{separator}{name}")?;
                separator = "|";
            }
        }
        if self.is_empty() { formatter.write_str("-") } else { Ok(()) }
    }
}

/// Why a segment or its payload was not used. The owner keeps a counter for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DropReason {
    /// The connection is closed.
    Closed,
    /// Every octet was received before.
    Duplicate,
    /// Outside the receive window (RFC 9293 §3.10.7.4, first check).
    OutsideWindow,
    /// An old timestamp (RFC 7323 §5.3, PAWS).
    OldTimestamp,
    /// No timestamp although both ends agreed on them (RFC 7323 §3.2).
    NoTimestamp,
    /// A reset whose sequence number is in the window but not the expected one (RFC 5961 §3.2).
    ResetChallenged,
    /// An invalid reset (RFC 9293 §3.10.7.3 and §3.10.7.4).
    ResetInvalid,
    /// A SYN on a synchronised connection (RFC 5961 §4.2).
    SynChallenged,
    /// A SYN that can start a new connection with the same endpoints while the old one is in TIME-WAIT.
    SynInTimeWait,
    /// No ACK flag where one is needed (RFC 9293 §3.10.7.4, fifth check).
    NoAck,
    /// An acknowledgment of octets never sent, or too old (RFC 5961 §5.2).
    AckInvalid,
    /// Data after the peer's FIN, or in a state that accepts none.
    DataAfterFin,
    /// No buffer left to hold data out of order.
    OutOfOrderBudget,
    /// A segment of no use while a connection is being opened: no acceptable SYN, ACK or RST.
    Unexpected,
}

impl DropReason {
    /// All reasons, in the order of [`DropReason::index`].
    pub const ALL: [DropReason; 14] = [
        DropReason::Closed,
        DropReason::Duplicate,
        DropReason::OutsideWindow,
        DropReason::OldTimestamp,
        DropReason::NoTimestamp,
        DropReason::ResetChallenged,
        DropReason::ResetInvalid,
        DropReason::SynChallenged,
        DropReason::SynInTimeWait,
        DropReason::NoAck,
        DropReason::AckInvalid,
        DropReason::DataAfterFin,
        DropReason::OutOfOrderBudget,
        DropReason::Unexpected,
    ];

    /// A small index for an array of counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name of the counter.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Closed => "closed",
            DropReason::Duplicate => "duplicate",
            DropReason::OutsideWindow => "outside_window",
            DropReason::OldTimestamp => "old_timestamp",
            DropReason::NoTimestamp => "no_timestamp",
            DropReason::ResetChallenged => "reset_challenged",
            DropReason::ResetInvalid => "reset_invalid",
            DropReason::SynChallenged => "syn_challenged",
            DropReason::SynInTimeWait => "syn_in_time_wait",
            DropReason::NoAck => "no_ack",
            DropReason::AckInvalid => "ack_invalid",
            DropReason::DataAfterFin => "data_after_fin",
            DropReason::OutOfOrderBudget => "out_of_order_budget",
            DropReason::Unexpected => "unexpected",
        }
    }
}
