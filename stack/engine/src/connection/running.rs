//! A stream in full operation: what it sends, what it waits for, and how it ends.

use std::time::Duration;

use uwarp_iwarp::framing::mulpdu;
use uwarp_iwarp::{Message, Stream};
use uwarp_tcp::Instant;
use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::mpa::MARKER_INTERVAL;
use uwarp_wire::rdmap::{CommitRegion, CommitRequest, IMMEDIATE_LEN, ImmediateData};

/// A stream in full operation.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stream: Stream,
    /// CRCs are generated and checked.
    pub(crate) crc: bool,
    /// All ones if sent FPDUs have markers, else zero.
    pub(crate) marker_mask: u32,
    /// Octets of TCP's stream before full operation: positions of markers count from there.
    pub(crate) transmit_start: u64,
    /// What is received has markers.
    pub(crate) receive_markers: bool,
    /// The general code takes all that is received: it has markers, or else the first message is to be reported.
    pub(crate) receives_long: bool,
    /// Octets of full operation before the next FPDU; counted only with markers.
    pub(crate) receive_position: u64,
    /// The message in transmission.
    pub(crate) outgoing: Option<Outgoing>,
    /// Octets of recent read responses minus those of our own messages. The side that is behind comes next.
    pub(crate) balance: i64,
    pub(crate) limit: Limit,
    /// How many waits of [`Limit::Silence`] are over.
    pub(crate) silences: u8,
    /// Progress of the orderly end.
    pub(crate) ending: Ending,
    /// The message that waits for a receive, while there is one.
    pub(crate) receive_wait: Option<ReceiveWait>,
    /// An acknowledgment of ours says that octets are placed: that of an FPDU's last octet is withheld until then.
    pub(crate) acknowledges_placed: bool,
    /// The peer has closed its side: no response to a read can arrive.
    pub(crate) peer_closed: bool,
    /// The Terminate, which is sent as soon as possible and is the last message.
    pub(crate) terminate: Option<Message>,
}

/// A message that waits for a receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveWait {
    /// Its sequence number.
    pub(crate) message: u32,
    pub(crate) since: Instant,
    /// When a receive was looked for last.
    pub(crate) looked: Instant,
    /// How long it waits; `None` if there is no end.
    pub(crate) limit: Option<Duration>,
    /// It says so itself, as both ends have agreed. If it has waited in vain, it alone fails.
    pub(crate) is_agreed: bool,
}

/// A message in transmission, and where its payload comes from.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: Message,
    pub(crate) source: Source,
    /// What follows the message as part of the same work request.
    pub(crate) tail: Option<Tail>,
}

/// What follows a Write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tail {
    /// Immediate Data.
    Immediate { data: u64, solicited: bool },
    /// A Commit of what was written. A slot for its request is free.
    Commit(CommitRegion),
}

impl Tail {
    /// Octets of its ULPDU.
    pub(crate) const fn ulpdu_len(self) -> usize {
        UNTAGGED_HEADER_LEN
            + match self {
                Tail::Immediate { .. } => IMMEDIATE_LEN,
                Tail::Commit(_) => CommitRequest::emit_len(1),
            }
    }

    /// Its message.
    pub(crate) fn message(self, stream: &mut Stream) -> Option<Message> {
        match self {
            Tail::Immediate { data, solicited } => Some(stream.immediate(ImmediateData(data), solicited)),
            Tail::Commit(region) => stream.try_begin_commit_of(&region),
        }
    }
}

/// Where the payload of a message comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// There is none, and no work request completes with it.
    Nothing,
    /// The entries of the send queue's current element.
    Entries,
    /// The inline data of the send queue's current element.
    Inline,
    /// The send queue's current element has no payload: a request for the peer's memory, or Immediate Data.
    NoPayload,
    /// Memory that the peer reads.
    Response {
        /// Region.
        stag: Stag,
        /// Offset of the message's first octet.
        offset: TaggedOffset,
    },
    /// The answer to an atomic or a commit of the peer, which the message contains.
    Answer,
    /// A Commit Request with this identifier, for the regions that the send queue's current element names.
    CommitRequest(u32),
}

/// What a stream in full operation waits for, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// For nothing in particular.
    None,
    /// Nothing is sent before this time; then the stream continues.
    Pause(Instant),
    /// The peer must send its first FPDU before this time, or the connection is reset.
    FirstFpdu(Instant),
    /// One side has sent a Terminate: the peer must close before this time, or the connection is reset.
    Close(Instant),
    /// A peer that we have connected to has sent nothing so far. At this time it may get a Write of nothing, since it
    /// may have left our first FPDU unread until more octets come. Linux' siw does so with one that comes before it has
    /// put its own reader of the socket into place.
    Silence(Instant),
}

/// How often the peer's silence may end a wait, and so how many Writes of nothing it gets at most.
const SILENCES: u8 = 5;
/// Each wait is so many times as long as the one before.
const GROWTH: u32 = 4;

impl Limit {
    /// The wait for the peer's first FPDU behind `over` others, of which the first was as long as `first`. Zero: none.
    pub(crate) fn silence(now: Instant, first: Duration, over: u8) -> Limit {
        if first.is_zero() || over >= SILENCES {
            return Limit::None;
        }
        Limit::Silence(now + first * GROWTH.pow(over.into()))
    }

    #[inline]
    pub(crate) fn at(self) -> Option<Instant> {
        match self {
            Limit::None => None,
            Limit::Pause(at) | Limit::FirstFpdu(at) | Limit::Close(at) | Limit::Silence(at) => Some(at),
        }
    }
}

/// Progress of the orderly end of a stream, and of what stops its send queue before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Not ending.
    No,
    /// Not ending. No request is begun until the application lets the queue go on.
    Held {
        /// The application knows that all that was begun has completed.
        is_drained: bool,
    },
    /// The send queue is processed up to this position, then FIN follows.
    Finishing {
        /// See [`SendQueue::position`](crate::rdma::send_queue::SendQueue::position).
        until: u64,
    },
    /// TCP is closed on our side.
    Closed,
}

impl Ending {
    /// Whether the stream goes on.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Ending::No | Ending::Held { .. })
    }

    /// What comes of it when requests are held, or are not any more.
    pub(crate) fn held(self, holds: bool) -> Ending {
        match (self, holds) {
            (Ending::No, true) => Ending::Held { is_drained: false },
            (Ending::Held { .. }, false) => Ending::No,
            (as_before, _) => as_before,
        }
    }
}

impl Running {
    /// The longest ULPDU that fits a segment of `segment` octets, with markers if there are any.
    #[inline]
    pub(crate) fn mulpdu(&self, segment: u32) -> u16 {
        mulpdu(segment.saturating_sub((4 * segment.div_ceil(MARKER_INTERVAL as u32)) & self.marker_mask))
    }

    /// The longest ULPDU that may be built together with its message: none if it needs markers.
    #[inline]
    pub(crate) fn whole_limit(&self, limit: u16) -> u16 {
        limit & !(self.marker_mask as u16)
    }

    /// Whether the next message may begin: none is being cut, and nothing ends the stream or makes it wait.
    #[inline]
    pub(crate) fn may_begin(&self) -> bool {
        self.outgoing.is_none()
            && self.terminate.is_none()
            && !matches!(self.limit, Limit::Pause(_))
            && self.ending == Ending::No
    }

    /// Whether sent FPDUs have markers.
    #[inline]
    pub(crate) fn transmits_markers(&self) -> bool {
        self.marker_mask != 0
    }
}
