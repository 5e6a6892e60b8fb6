//! Events for applications, and why connections fail and end.

use crate::api::ids::{CompletionQueueId, ListenerId, RequestId};
use crate::api::shared::SharedReceiveQueueId;
use crate::api::work::Status;
use crossbeam::channel::Sender;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uwarp_ring::Notifier;

/// A peer's request for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRequest {
    /// Handle for accept and reject.
    pub request: RequestId,
    /// The listener; `None` for the conversion of a plain stream.
    pub listener: Option<ListenerId>,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// The peer's IRD, if the Request contains it (MPA revision 2).
    pub ird: Option<u16>,
    /// The peer's ORD, if the Request contains it (MPA revision 2).
    pub ord: Option<u16>,
    /// MPA revision of the Request.
    pub revision: u8,
    /// The peer asks for a peer-to-peer start-up: this side may speak first.
    pub peer_to_peer: bool,
}

/// An event of a queue pair's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The stream is in full operation.
    Established(Box<Established>),
    /// The peer's reply had the reject bit. The queue pair is idle again.
    Rejected {
        /// The peer's private data.
        private_data: Vec<u8>,
        /// The IRD that the peer would have, if it says so (MPA revision 2).
        peer_ird: Option<u16>,
        /// The ORD that the peer wants, if it says so (MPA revision 2).
        peer_ord: Option<u16>,
    },
    /// The connection failed. The queue pair is idle again.
    Failed(ConnectFailure),
    /// The stream is over; all work has completed or was flushed.
    Disconnected(DisconnectReason),
}

/// A connection in full operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The peer's address.
    pub peer: SocketAddr,
    /// This side's address.
    pub local: SocketAddr,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// Inbound RDMA Reads that are taken at once.
    pub ird: u16,
    /// RDMA Reads outstanding at once.
    pub ord: u16,
    /// IRD as the peer sent it, if it did (MPA revision 2); 0x3FFF leaves it to the applications.
    pub peer_ird: Option<u16>,
    /// ORD as the peer sent it.
    pub peer_ord: Option<u16>,
    /// Peer-to-peer: either side may send first.
    pub peer_to_peer: bool,
    /// Whether what this side sends has markers, because the peer asked for them.
    pub transmit_markers: bool,
    /// Whether what this side receives has markers.
    pub receive_markers: bool,
    /// Whether FPDUs carry CRCs.
    pub crc: bool,
}

/// Why a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectFailure {
    /// Reset in answer to our SYN.
    #[error("the peer refused the connection: nothing listens on that port, or its backlog is full")]
    Refused,
    /// No answer within the time limit.
    #[error("no answer within the time limit")]
    TimedOut,
    /// The next hop's hardware address could not be resolved.
    #[error("no host answers at that address (to ARP or Neighbor Discovery): check address, prefix length and gateway")]
    Unreachable,
    /// The peer closed the connection during the start-up, or this side ended the attempt.
    #[error("the peer closed the connection during start-up")]
    Closed,
    /// The peer reset the connection during the start-up.
    #[error("the peer reset the connection during start-up")]
    Reset,
    /// The peer's MPA frame was not acceptable.
    #[error("the peer does not speak MPA as RFC 5044 and RFC 6581 have it")]
    Startup,
    /// The read limits of both sides do not fit (RFC 6581 §9.1).
    #[error("the peer's limits of concurrent reads (IRD, ORD) and the least that this side needs do not fit")]
    ReadLimits,
    /// Peer-to-peer was asked for, and both sides have no ready-to-receive indication in common (RFC 6581 §9.2).
    #[error(
        "the peer offers none of the ready-to-receive indications asked for: allow more kinds, or connect client-server"
    )]
    ReadyToReceive,
    /// No local port is free.
    #[error("no local TCP port is free for that peer")]
    NoPort,
    /// The local port given is in use.
    #[error("the local TCP port is in use")]
    AddressInUse,
    /// A limit of the configuration is reached.
    #[error("the configured limit of connections is reached: raise limits")]
    Limit,
    /// The queue pair is unknown or not idle, or its completion queues do not exist.
    #[error("the queue pair is not idle")]
    QueuePair,
    /// The connection request is gone: the peer left, or it was answered already.
    #[error("the connection request is gone")]
    RequestGone,
    /// The address family or value is not supported.
    #[error(
        "the address cannot be reached from this context: not unicast, or of an IP version that it has no address of"
    )]
    Address,
    /// The address to connect from is none of this side's, or of another IP version than the peer's.
    #[error("the address to connect from is none of this context's, or of another IP version than the peer's")]
    LocalAddress,
    /// The engine is shutting down.
    #[error("the context is closing")]
    ShuttingDown,
}

/// Layer, type and code of a Terminate message (RFC 5040 §4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TerminateCode {
    /// 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type within the layer.
    pub error_type: u8,
    /// Error code within the type.
    pub code: u8,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// This side disconnected, and everything was acknowledged.
    Local,
    /// The peer closed in order, on a message boundary.
    PeerClosed,
    /// The peer closed in the middle of an FPDU or message.
    PeerClosedEarly,
    /// The peer sent a Terminate.
    PeerTerminated(TerminateCode),
    /// We sent a Terminate.
    LocalTerminated(TerminateCode),
    /// The connection was reset by the peer.
    Reset,
    /// No answer within the user time-out or keep-alive.
    TimedOut,
    /// Aborted here.
    Aborted,
    /// A local error (completion queue overflow, bad element) ended it.
    LocalError(Status),
}

/// An event that no call of the application reports.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair went to the error state, other than by a disconnect.
    QueuePairFatal {
        /// Which queue pair.
        queue_pair: u32,
        /// Status of the work that failed. If none did: [`Status::PeerProtocol`] for a fault of the peer's,
        /// [`Status::Fatal`] for one of this side's.
        status: Status,
    },
    /// A connection failed after Sends or Writes had completed: the peer did not acknowledge all of them.
    OctetsNotAcknowledged {
        /// Which queue pair.
        queue_pair: u32,
        /// Octets of the stream, framing included.
        octets: u64,
    },
    /// The peer sent a Terminate.
    PeerTerminated {
        /// Which queue pair.
        queue_pair: u32,
        /// The Terminate's code.
        code: TerminateCode,
    },
    /// A completion queue is full. Nothing was lost; the queue pair goes to the error state.
    CompletionQueueOverflow {
        /// The queue.
        queue: CompletionQueueId,
        /// The queue pair whose completion did not fit.
        queue_pair: u32,
    },
    /// A shared receive queue has fallen below its limit, which is then unset.
    SharedReceivesLow {
        /// The queue.
        queue: SharedReceiveQueueId,
    },
    /// A peer sent more than its queue pair's share of a shared receive queue, and the stream was ended.
    SharedReceivesExceeded {
        /// The queue.
        queue: SharedReceiveQueueId,
        /// The queue pair.
        queue_pair: u32,
    },
    /// A queue pair takes no more receives from its shared receive queue: its connection is over, and all that it took
    /// have completed. It comes once.
    LastReceiveReached {
        /// The queue.
        queue: SharedReceiveQueueId,
        /// The queue pair.
        queue_pair: u32,
    },
    /// The peer of a queue pair with [`Features::infiniband`](crate::command::Features::infiniband) has sent its first
    /// message or request.
    FirstMessage {
        /// Which queue pair.
        queue_pair: u32,
    },
    /// All requests have completed that a queue pair had begun when it was told to hold the rest
    /// ([`Rules::holds_sends`](crate::command::Rules::holds_sends)). It comes once each time.
    SendQueueDrained {
        /// Which queue pair.
        queue_pair: u32,
    },
    /// The engine or its device is gone for good.
    DeviceFatal {
        /// Why.
        cause: String,
    },
    /// Another host has an address of ours. An IPv6 address that was being checked is given up; any other is kept.
    AddressConflict {
        /// The address.
        address: std::net::IpAddr,
    },
    /// The device's link changed.
    Link {
        /// Whether it is up now.
        up: bool,
    },
}

/// What an event channel carries: something that happened to a listener or a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedEvent {
    /// Number of the context in this process.
    pub context: u64,
    /// What the application calls the listener or queue pair.
    pub key: u64,
    /// What happened.
    pub what: Watched,
}

/// What happened to a listener or a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// A peer asks a listener for a connection.
    Request(ConnectionRequest),
    /// Something became of a queue pair's connection.
    Connection(ConnectionEvent),
}

/// An event channel, and what a listener or queue pair is called there.
#[derive(Debug, Clone)]
pub struct Watcher {
    /// The channel.
    pub events: EventSink<WatchedEvent>,
    /// Number of the context in this process.
    pub context: u64,
    /// What the application calls the listener or queue pair.
    pub key: u64,
}

impl Watcher {
    /// Hands an event to the channel.
    pub fn send(&self, what: Watched) {
        self.events.send(WatchedEvent { context: self.context, key: self.key, what });
    }
}

/// Which event channel a listener or queue pair is attached to, if any. The application changes it while the engine
/// looks, so it has a lock; only events of connections take it.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Option<Watcher>>>);

impl Watch {
    /// The watcher. No event is handed over while this is held.
    pub fn lock(&self) -> MutexGuard<'_, Option<Watcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where events of one kind go: a channel, and a notifier fired after each event.
#[derive(Debug)]
pub struct EventSink<T> {
    sender: Sender<T>,
    notifier: Option<Arc<Notifier>>,
}

impl<T> Clone for EventSink<T> {
    fn clone(&self) -> Self {
        EventSink { sender: self.sender.clone(), notifier: self.notifier.clone() }
    }
}

impl<T> EventSink<T> {
    /// A sink into `sender` that wakes `notifier`, when there is one.
    pub fn new(sender: Sender<T>, notifier: Option<Arc<Notifier>>) -> EventSink<T> {
        EventSink { sender, notifier }
    }

    /// Sends one event. It is dropped if nobody receives any more.
    pub fn send(&self, event: T) {
        if self.sender.send(event).is_ok()
            && let Some(notifier) = &self.notifier
        {
            notifier.fire_if_armed();
        }
    }
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The port has a listener.
    #[error("TCP port {0} has a listener already: stop it or choose another port")]
    PortInUse(u16),
    /// Port 0 or another value that cannot be.
    #[error("a listener needs a TCP port from 1 to 65535")]
    BadPort,
    /// An address to listen on that is not one of this side's.
    #[error("{0} is none of this context's addresses")]
    NotOwn(IpAddr),
    /// A configured limit is reached.
    #[error("the configured limit of {0} is reached: raise limits")]
    Limit(&'static str),
    /// A file could not be written.
    #[error("cannot write {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The engine is shutting down.
    #[error("the context is closing")]
    ShuttingDown,
}
