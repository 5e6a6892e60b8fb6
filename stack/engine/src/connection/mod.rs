//! Connections: TCP below, the phases of iWARP or a plain stream above.

use std::ops::Range;
use std::time::Duration;

use uwarp_iwarp::framing::mulpdu;
use uwarp_iwarp::opcode::Features;
use uwarp_iwarp::startup::{Initiator, Responder};
use uwarp_iwarp::{Message, Stream};
use uwarp_tcp::Instant;
use uwarp_wire::address::FlowKey;
use uwarp_wire::ddp::{Stag, TaggedOffset, UNTAGGED_HEADER_LEN};
use uwarp_wire::mpa::MARKER_INTERVAL;
use uwarp_wire::rdmap::{CommitRegion, CommitRequest, IMMEDIATE_LEN, ImmediateData};

use crate::api::command::{ConnectParameters, ConnectionRequest, DisconnectReason, EventSink, ListenerId};
use crate::bytestream::streaming::Streaming;
use crate::link::template::Template;
use crate::rdma::queue_pair::QueuePair;

mod accept;
mod buffers;
pub(crate) mod ending;
pub(crate) mod flow;
pub(crate) mod guesses;
pub(crate) mod listener;
pub(crate) mod ports;
pub(crate) mod shares;
pub(crate) mod shutdown;
pub(crate) mod slab;
pub(crate) mod startup;
mod table;
pub(crate) mod time_wait;
pub(crate) mod wheel;

pub(crate) use buffers::{HeldFrame, HeldFrames, Record};
pub(crate) use table::{Connections, Opening};

/// Octets of the headers of IPv6 and TCP without options.
pub(crate) const IPV6_AND_TCP: u16 = 60;

/// A connection. Rare fields first, then those that each segment touches, then TCP's: see [`Connection::places`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Connection {
    /// An MPA start-up frame that TCP does not have yet.
    pub(crate) startup_frame: Option<Vec<u8>>,
    /// Why it ends. The first reason counts.
    pub(crate) end: Option<DisconnectReason>,
    /// Octets of an incomplete FPDU.
    pub(crate) gather: Vec<u8>,
    /// Its number among incomplete FPDUs, see [`Gathers`](crate::rdma::gathers::Gathers); 0 if there is none.
    pub(crate) gather_number: u64,
    pub(crate) flow: FlowKey,
    /// Its tag in the flow table.
    pub(crate) tag: u32,
    /// It is in the ready list.
    pub(crate) scheduled: bool,
    /// Waits for its next hop's hardware address.
    pub(crate) unresolved: bool,
    /// A passive connection whose handshake is not done; counted by its listener.
    pub(crate) half_open: bool,
    /// The peer is this engine: frames take the internal loop.
    pub(crate) to_self: bool,
    /// Our FIN was acknowledged.
    pub(crate) finished: bool,
    /// It is removed when it is put back.
    pub(crate) gone: bool,
    /// Next hop's hardware address, valid while `epoch` is the neighbour table's.
    pub(crate) mac: [u8; 6],
    pub(crate) epoch: u32,
    /// Headers of its segments, valid as long as `mac` is.
    pub(crate) template: Option<Template>,
    /// Nothing waits for an acknowledgment, a response or a buffer: a received segment that needs no answer leaves
    /// nothing to do.
    pub(crate) quiet: bool,
    /// Largest segment, in octets of payload, that has arrived since the path MTU was last lowered.
    pub(crate) confirmed: u32,
    /// Number of the queue pair, once bound.
    pub(crate) queue_pair: Option<u32>,
    pub(crate) phase: Phase,
    /// The plain stream that it is, or was before MPA took over.
    pub(crate) stream: Option<Streaming>,
    /// Whether the application of a plain stream has left.
    pub(crate) left: Left,
    /// TCP is closed once it has everything.
    pub(crate) close_when_sent: bool,
    /// The phase's time limit; ARCHITECTURE.md has a table.
    pub(crate) deadline: Option<Instant>,
    pub(crate) tcp: uwarp_tcp::Connection,
}

/// Whether the application of a plain stream has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It has not, or this is no plain stream.
    No,
    /// It has, after reading all that had arrived.
    Read,
    /// It has, and octets arrived later.
    Unread,
}

/// The phase of a connection's life; ARCHITECTURE.md has the transitions.
#[derive(Debug)]
pub(crate) enum Phase {
    /// We opened it; TCP handshake and MPA Reply are to come.
    Initiating(Box<Initiating>),
    /// The peer opened it; TCP handshake and MPA Request are to come.
    Responding(Box<Responding>),
    /// The Request waits for accept or reject.
    Requested(Box<Responding>),
    /// Full operation, and its end, by Terminate or FIN.
    Running(Box<Running>),
    /// The peer opened it as a plain stream; the TCP handshake is not done.
    Incoming(ListenerId),
    /// A plain stream: from our SYN, or from the end of the peer's handshake.
    Stream,
    /// Only TCP is left. Received octets are discarded.
    Closing,
}

impl Phase {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Phase::Initiating(_) => "initiating",
            Phase::Responding(_) => "responding",
            Phase::Requested(_) => "requested",
            Phase::Running(_) => "running",
            Phase::Incoming(_) => "incoming",
            Phase::Stream => "stream",
            Phase::Closing => "closing",
        }
    }
}

/// An active open.
#[derive(Debug)]
pub(crate) struct Initiating {
    pub(crate) machine: Initiator,
    pub(crate) first_fpdu_delay: Duration,
    pub(crate) features: Features,
    /// Another attempt, if the peer ends this one before its Reply.
    pub(crate) retry: Option<Box<ConnectParameters>>,
}

/// A passive open.
#[derive(Debug)]
pub(crate) struct Responding {
    pub(crate) machine: Responder,
    pub(crate) origin: Origin,
}

/// Where a passive open came from, which is where its request goes.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A SYN to a listener.
    Listener(ListenerId),
    /// The conversion of a plain stream.
    Stream(EventSink<ConnectionRequest>),
}

impl Responding {
    /// The listener that counts it, if any.
    pub(crate) fn listener(&self) -> Option<ListenerId> {
        match &self.origin {
            Origin::Listener(listener) => Some(*listener),
            Origin::Stream(_) => None,
        }
    }
}

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
    /// Octets of full operation before the next FPDU; counted only with markers.
    pub(crate) receive_position: u64,
    /// The message in transmission.
    pub(crate) outgoing: Option<Outgoing>,
    /// Octets of recent read responses minus those of our own messages. The side that is behind comes next.
    pub(crate) balance: i64,
    /// Nothing is sent before this time.
    pub(crate) first_fpdu_at: Option<Instant>,
    /// Progress of the orderly end.
    pub(crate) ending: Ending,
    /// The peer has closed its side: no response to a read can arrive.
    pub(crate) peer_closed: bool,
    /// The Terminate, which is sent as soon as possible and is the last message.
    pub(crate) terminate: Option<Message>,
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
            Tail::Commit(region) => stream.try_begin_commit_of(&region, 0),
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

/// Progress of the orderly end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Not ending.
    No,
    /// The send queue is processed up to this position, then FIN follows.
    Finishing {
        /// See [`crate::rdma::send_queue::SendQueue::position`].
        until: u64,
    },
    /// TCP is closed on our side.
    Closed,
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

    /// Whether sent FPDUs have markers.
    #[inline]
    pub(crate) fn transmits_markers(&self) -> bool {
        self.marker_mask != 0
    }
}

impl Connection {
    /// Whether received octets still count: the stream is in full operation and has not ended.
    pub(crate) fn delivers(&self) -> bool {
        matches!(&self.phase, Phase::Running(running) if running.stream.delivers())
    }

    /// Addresses of the fields here that a usual segment touches, without TCP's.
    #[inline]
    pub(crate) fn places(&self) -> Range<usize> {
        std::ptr::from_ref(&self.flow).addr()..std::ptr::from_ref(&self.tcp).addr()
    }

    /// Octets of memory that it takes: itself, its phase, TCP's lists, and an incomplete FPDU.
    pub(crate) fn memory(&self) -> usize {
        let phase = match &self.phase {
            Phase::Initiating(initiating) => size_of_val(&**initiating),
            Phase::Responding(responding) | Phase::Requested(responding) => size_of_val(&**responding),
            Phase::Running(running) => size_of_val(&**running),
            Phase::Incoming(_) | Phase::Stream | Phase::Closing => 0,
        };
        let own = size_of::<Connection>() - size_of::<uwarp_tcp::Connection>();
        own + self.tcp.memory() + phase + self.gather.capacity()
    }

    /// Records why the connection ends, unless a reason is known already.
    pub(crate) fn ends_by(&mut self, reason: DisconnectReason) {
        self.end.get_or_insert(reason);
    }

    /// Whether nothing of the queue pair waits for a segment.
    #[inline]
    pub(crate) fn is_quiet(&self, queue_pair: &QueuePair) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        running.outgoing.is_none()
            && running.ending == Ending::No
            && running.terminate.is_none()
            && running.first_fpdu_at.is_none()
            && !running.stream.has_response()
            && queue_pair.send.is_idle()
    }

    /// When the connection needs attention at the latest.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match (self.tcp.deadline(), self.deadline) {
            (Some(tcp), Some(own)) => Some(tcp.min(own)),
            (tcp, own) => tcp.or(own),
        }
    }
}
