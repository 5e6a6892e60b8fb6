//! Commands: what application threads ask of an engine.
//!
//! Commands are rare and may allocate; the path of a packet never waits for one. Each engine has one mailbox (a
//! channel) and checks it once a turn. Answers and events go to channels in the command, with an optional [`Notifier`]
//! that wakes a thread waiting on a file descriptor.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crossbeam::channel::Sender;
pub use uwarp_iwarp::opcode::Features;
pub use uwarp_iwarp::startup::ReadyToReceiveKinds;
use uwarp_memory::Access;
use uwarp_ring::{Consumer, Notifier, Producer, Slot};
pub use uwarp_wire::ddp::NotReadyRetries;

use crate::api::ends::{IncomingStream, StreamEnds, StreamOptions, StreamSetup, StreamShared};
pub use crate::api::event::{
    AsyncEvent, ConnectFailure, ConnectionEvent, ConnectionRequest, ControlError, DisconnectReason, Established,
    EventSink, TerminateCode, Watch, Watched, WatchedEvent, Watcher,
};
use crate::api::faults::FaultRates;
pub use crate::api::ids::{CompletionQueueId, ListenerId, RequestId};
use crate::api::shared::SharedReceives;
use crate::api::stats::{EngineStats, TcpInfo};
use crate::api::work::Completion;

/// A message to an engine.
#[derive(Debug)]
pub enum Command {
    /// Gives the engine its lane of a completion queue. Must come before a queue pair that uses it.
    AddCompletionQueue {
        /// The queue.
        queue: CompletionQueueId,
        /// This engine's lane; its capacity bounds what may be unreaped before overflow.
        lane: Producer<Completion>,
        /// Fired when a completion is published while the queue is armed.
        notifier: Arc<Notifier>,
    },
    /// Removes the lane. Queue pairs that still use it fail with an overflow.
    RemoveCompletionQueue {
        /// The queue.
        queue: CompletionQueueId,
    },
    /// Gives the engine another lane of a completion queue in place of the one that it has. What was pushed into that
    /// one is older; the engine drops its end.
    ReplaceLane {
        /// The queue.
        queue: CompletionQueueId,
        /// The new lane.
        lane: Producer<Completion>,
    },
    /// Binds a queue pair to this engine. It starts idle; posted receives may lie in its ring already.
    CreateQueuePair(Box<QueuePairSetup>),
    /// Destroys a queue pair and drops its rings. Elements that had no completion yet get none, and completions that
    /// found no room are dropped; what TCP has of its stream goes out, with FIN behind it, and data that still come
    /// then are answered with a reset, but not before the peer of a fault has had the time to read the Terminate.
    DestroyQueuePair {
        /// Its number.
        queue_pair: u32,
        /// Receives a message when the engine has removed it.
        done: Option<Sender<()>>,
    },
    /// Takes a queue pair away at once: nothing of it completes any more, and completions that have no room in their
    /// lanes yet are dropped. Its connection closes behind what was sent, or is reset if a message is half sent.
    AbandonQueuePair {
        /// Its number.
        queue_pair: u32,
        /// Its rings, with what was posted; `None` if the engine does not know it, or has dropped them because a
        /// connection is left to TCP. The answer comes when the connection
        /// has closed in order, or the peer is silent, and the device has the last frames. So a process that waits for
        /// it may end at once.
        reply: Sender<Option<Abandoned>>,
    },
    /// Starts an active open for an idle queue pair. The outcome is a [`ConnectionEvent`].
    Connect(Box<ConnectParameters>),
    /// Answers a connection request with an idle queue pair. The outcome is a [`ConnectionEvent`].
    Accept(Box<AcceptParameters>),
    /// Rejects a connection request.
    Reject {
        /// Which.
        request: RequestId,
        /// Private data of the reply: at most 512 octets, 508 with revision 2.
        private_data: Vec<u8>,
    },
    /// Graceful end: work posted so far is finished, then FIN; later work is flushed.
    Disconnect {
        /// Which queue pair.
        queue_pair: u32,
    },
    /// Moves a queue pair to the error state: outstanding work is flushed and the connection is reset. If the peer does
    /// not have all that was sent yet, and no message is half sent, the connection closes behind that instead. A queue
    /// pair without a connection goes there too, and hears [`ConnectionEvent::Disconnected`] as any other.
    Abort {
        /// Which queue pair.
        queue_pair: u32,
    },
    /// Ends the attempt of a queue pair to connect, and connects it no more. It stays as one whose peer has gone (see
    /// [`Rules::outlives_peer`]). Nothing happens to one that is connected, or in the error state.
    GiveUpPeer {
        /// Which queue pair.
        queue_pair: u32,
    },
    /// Changes what the peer of a queue pair may do.
    SetAccess {
        /// Which queue pair.
        queue_pair: u32,
        /// As in [`QueuePairSetup::access`].
        access: Access,
        /// Receives a message when nothing is placed, read or changed any more that is refused now.
        done: Sender<()>,
    },
    /// Changes the rules of a queue pair.
    SetRules {
        /// Which queue pair.
        queue_pair: u32,
        /// As in [`QueuePairSetup::rules`].
        rules: Rules,
        /// Receives a message when messages that are posted from now on go by them.
        done: Sender<()>,
    },
    /// Makes an idle queue pair one of unreliable datagrams (RoCE v2), or gives it another key: it receives from now
    /// on, and sends what is posted.
    BeginDatagrams {
        /// Which queue pair.
        queue_pair: u32,
        /// Its number on the network, 24 bits, which no other queue pair of its addresses has.
        number: u32,
        /// What datagrams for it have to name.
        key: u32,
        /// Receives a message when it does.
        done: Sender<()>,
    },
    /// Listens on a TCP port.
    Listen {
        /// Number of the new listener.
        listener: ListenerId,
        /// The own address to listen on; all of them if there is none.
        address: Option<IpAddr>,
        /// TCP port, not 0.
        port: u16,
        /// Most connections that wait for accept; further SYNs are ignored, and the peer retransmits them.
        backlog: u32,
        /// Where requests go.
        requests: EventSink<ConnectionRequest>,
        /// Where they go instead, once it is set.
        watch: Watch,
        /// Told whether the port was free on this engine.
        reply: Sender<Result<(), ControlError>>,
    },
    /// Listens on a TCP port for plain streams.
    ListenStreams {
        /// Number of the new listener.
        listener: ListenerId,
        /// TCP port, not 0.
        port: u16,
        /// Most connections that wait to be taken, those in their handshake included; further SYNs are ignored.
        backlog: u32,
        /// Streams that wait to be taken, on all engines of the listener. Those in `incoming` count themselves here.
        waiting: Arc<AtomicU32>,
        /// Options of the streams.
        options: StreamOptions,
        /// Where streams go.
        incoming: EventSink<IncomingStream>,
        /// Receives whether the port was free on this engine.
        reply: Sender<Result<(), ControlError>>,
    },
    /// Opens a plain stream actively. The outcome appears in the state shared with the application.
    ConnectStream(Box<ConnectStreamParameters>),
    /// Converts a plain stream into an RDMA stream.
    ConvertStream(Box<ConversionParameters>),
    /// Turns Nagle of a plain stream on or off.
    SetNagle {
        /// The stream. It has no handle yet if the command to open it waits in front of this one.
        stream: Arc<StreamShared>,
        /// Whether small segments are delayed.
        nagle: bool,
    },
    /// Makes urgent what was written to a plain stream so far, and the octets that its application writes next. It must
    /// precede those octets: once sent without the announcement, they cannot become urgent.
    SendUrgent {
        /// The stream's handle.
        handle: u64,
        /// Octets that are written next.
        octets: u64,
        /// Receives a message when that is done.
        reply: Sender<()>,
    },
    /// Asks for the state of a plain stream's connection.
    StreamInfo {
        /// The stream's handle.
        handle: u64,
        /// Receives the state; `None` when the connection is over.
        reply: Sender<Option<TcpInfo>>,
    },
    /// Stops listening; requests that were not answered are reset.
    StopListening {
        /// Which listener.
        listener: ListenerId,
    },
    /// Asks for a snapshot of counters, pools, connections and queue pairs.
    Stats {
        /// Receives the snapshot.
        reply: Sender<Box<EngineStats>>,
    },
    /// Asks for the state of one connection, like the kernel's TCP_INFO.
    TcpInfo {
        /// Queue pair of the connection.
        queue_pair: u32,
        /// Receives the state; `None` without a connection.
        reply: Sender<Option<TcpInfo>>,
    },
    /// Gives the engine other own addresses, which it shares with others behind one station. Connections of one that is
    /// gone end by their time-outs.
    SetAddresses {
        /// All of them, at least one.
        addresses: Vec<crate::api::config::InterfaceAddress>,
        /// What others have behind the station.
        others: Vec<std::net::IpAddr>,
        /// The station's MAC address. No other neighbours are fixed from then on.
        station: [u8; 6],
    },
    /// Sets or clears deliberate faults of the port.
    SetFaults {
        /// Rates and seed; `None` ends the faults.
        faults: Option<FaultRates>,
    },
    /// Starts to write every frame to a file in the pcapng format, at the latest 100 ms after it was sent or received.
    StartCapture {
        /// The file, replaced if there. `%p` in its name is the number of the process. If another capture is written to
        /// the file, the number goes behind the name: `NAME-PID.EXTENSION`.
        path: PathBuf,
        /// Receives whether the file could be opened.
        reply: Sender<Result<(), ControlError>>,
    },
    /// Ends the capture and completes the file.
    StopCapture,
    /// Refuses new work and lets connections close in order for at most `linger`, then resets those whose peers have
    /// not acknowledged data and FIN.
    Shutdown {
        /// Longest wait.
        linger: Duration,
        /// Receives the report when the engine has no connection left.
        done: Sender<ShutdownReport>,
    },
    /// Ends everything at once, as [`Engine::fail`](crate::Engine::fail) does.
    Fail {
        /// Why.
        cause: String,
    },
}

/// How a shutdown ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShutdownReport {
    /// Connections whose peers had not acknowledged everything after the linger time, and which were reset.
    pub reset: usize,
    /// Their octets that the peers had not acknowledged.
    pub octets_not_acknowledged: u64,
}

/// Counts a queue pair in its protection domain while it exists. Peers may invalidate an STag of the whole domain only
/// while the domain has a single queue pair (RFC 5040 §8.1.1).
#[derive(Debug)]
pub struct Membership(Arc<AtomicU32>);

impl Membership {
    /// One more queue pair of the domain that has this count.
    pub fn new(members: &Arc<AtomicU32>) -> Self {
        members.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(members))
    }

    /// Whether the domain has others.
    pub fn is_shared(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 1
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a queue pair waits for receives where both ends have agreed on [`Features::infiniband`]. The waiting is the
/// receiver's: it knows whether it has delivered the message when it says that it has not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NotReady {
    /// How often a message of this side may find no receive before it fails with `Status::ReceiverNotReady`.
    pub retries: NotReadyRetries,
    /// How long the peer's messages wait each time that they find none here.
    pub pause: Duration,
}

/// What a queue pair has of those of InfiniBand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// When the peer closes, resets or falls silent, nothing is flushed or reported as long as no request is posted.
    /// Receives stay where they are. The first request fails with [`Status::PeerGone`], and then the queue pair goes to
    /// the error state. But one that has accepted and has not heard anything from the initiator is idle again: its
    /// connection counts as an attempt that has failed, although it was reported as established.
    ///
    /// [`Status::PeerGone`]: crate::work::Status::PeerGone
    pub outlives_peer: bool,
    /// How it waits for receives.
    pub not_ready: NotReady,
    /// It begins with no request, and finishes those that it has begun. [`AsyncEvent::SendQueueDrained`] follows.
    pub holds_sends: bool,
}

/// A queue pair for an engine.
#[derive(Debug)]
pub struct QueuePairSetup {
    /// Its number: unique in the context, below the engine's `limits.queue_pairs`, and its index in the doorbells.
    /// Reused when the queue pair is gone.
    pub number: u32,
    /// Its stream, for the scope of memory regions. Never reused, so regions of a destroyed queue pair are out of reach
    /// of the next one with its number.
    pub stream: u32,
    /// Protection domain of the memory that it may use.
    pub domain: u32,
    /// Counts it in its protection domain.
    pub membership: Membership,
    /// Send queue.
    pub send_queue: Consumer<Slot>,
    /// Receive queue.
    pub receive_queue: Consumer<Slot>,
    /// Completion queue of the send queue.
    pub send_completions: CompletionQueueId,
    /// Completion queue of the receive queue.
    pub receive_completions: CompletionQueueId,
    /// Where receives are taken from instead of the receive queue.
    pub shared_receives: Option<Arc<SharedReceives>>,
    /// Signal every element.
    pub signal_all: bool,
    /// What the peer may do: of `REMOTE_WRITE`, `REMOTE_READ` and `REMOTE_ATOMIC`, what a region has to allow besides.
    pub access: Access,
    /// Every Send and Write completes only when acknowledged by the peer's TCP. In return an acknowledgment of ours
    /// says that octets are placed: that of an FPDU that waits for a receive, or is refused, is withheld.
    pub complete_on_ack: bool,
    /// What it has of InfiniBand's queue pairs.
    pub rules: Rules,
    /// Set when its stream is in full operation, before anything says so or completes.
    pub established: Arc<AtomicBool>,
    /// Where events of its connection go.
    pub events: EventSink<ConnectionEvent>,
    /// Where they go, too, once it is set.
    pub watch: Watch,
}

/// What is left of a queue pair that was taken away.
#[derive(Debug)]
pub struct Abandoned {
    /// Send queue.
    pub send_queue: Consumer<Slot>,
    /// Receive queue.
    pub receive_queue: Consumer<Slot>,
    /// Counts it in its protection domain.
    pub membership: Membership,
}

/// MPA start-up options, either role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupOptions {
    /// Private data for the peer: at most 512 octets, 508 with revision 2.
    pub private_data: Vec<u8>,
    /// Inbound Read Requests that we serve at a time, bounded by the engine's configuration.
    pub ird: u16,
    /// Outstanding Reads that we want, bounded by the peer's IRD.
    pub ord: u16,
    /// MPA revision of a Request, 1 or 2. A Reply uses that of the Request.
    pub revision: u8,
    /// Least outstanding Reads that we accept: if the peer's IRD is below it, the connection fails.
    pub minimum_ord: u16,
    /// Whether an initiator's Request contains IRD and ORD. If not, they are left to the applications (0x3FFF, RFC 6581
    /// §9.1).
    pub negotiate_reads: bool,
    /// Initiator: either side may speak first; the stream opens with a ready-to-receive indication (RFC 6581 §9.2).
    pub peer_to_peer: bool,
    /// Initiator: goes on as client-server with a peer that does not know peer-to-peer.
    pub fall_back: bool,
    /// The indications that this side offers or understands in a peer-to-peer start-up. At least one.
    pub ready_to_receive: ReadyToReceiveKinds,
    /// The optional operations that the applications of both sides have agreed to use.
    pub features: Features,
    /// Ask the peer to send markers (RFC 5044 §4.3). Markers that the peer asks for are always sent.
    pub markers: bool,
    /// Ask for CRCs. They are off only if neither side asks.
    pub crc: bool,
    /// Limit on the whole start-up: TCP handshake and MPA frames.
    pub timeout: Duration,
    /// Initiator: limit on the wait for the peer's Reply, from when TCP is open. `None`: what `timeout` leaves.
    pub reply_timeout: Option<Duration>,
    /// Pause of an initiator between the peer's Reply and its first FPDU, for peers that lose an early one.
    pub first_fpdu_delay: Duration,
}

impl Default for StartupOptions {
    fn default() -> Self {
        StartupOptions {
            private_data: Vec::new(),
            ird: 16,
            ord: 16,
            revision: 2,
            minimum_ord: 0,
            negotiate_reads: true,
            peer_to_peer: false,
            fall_back: false,
            ready_to_receive: ReadyToReceiveKinds::ALL,
            features: Features::default(),
            markers: false,
            crc: true,
            timeout: Duration::from_secs(10),
            reply_timeout: None,
            first_fpdu_delay: Duration::ZERO,
        }
    }
}

/// An active open.
#[derive(Debug)]
pub struct ConnectParameters {
    /// The idle queue pair.
    pub queue_pair: u32,
    /// Where to.
    pub remote: SocketAddr,
    /// The own address to connect from, or one that the engine picks.
    pub local_address: Option<IpAddr>,
    /// Local TCP port, or one that the engine picks.
    pub local_port: Option<u16>,
    /// Options of the start-up.
    pub options: StartupOptions,
    /// Wishes about a second attempt, on a new TCP connection, if the peer ends the first before its Reply. Its time
    /// limit counts anew.
    pub retry: Option<Box<StartupOptions>>,
}

/// An active open of a plain stream.
#[derive(Debug)]
pub struct ConnectStreamParameters {
    /// Where to.
    pub remote: SocketAddr,
    /// Local TCP port; `None`: the engine chooses.
    pub local_port: Option<u16>,
    /// Options of the stream.
    pub options: StreamOptions,
    /// Time limit of the handshake.
    pub timeout: Duration,
    /// The engine's half of the stream.
    pub setup: StreamSetup,
}

/// The conversion of a plain stream into an RDMA stream.
#[derive(Debug)]
pub struct ConversionParameters {
    /// The stream's handle.
    pub handle: u64,
    /// The application's half. What was written leaves first; unread octets belong to MPA.
    pub ends: StreamEnds,
    /// Receives the half if the conversion does not start, or after a rejection; otherwise it is dropped.
    pub returned: Sender<StreamEnds>,
    /// This side's role.
    pub role: ConversionRole,
}

/// A side's role in the MPA start-up of a plain stream.
#[derive(Debug)]
pub enum ConversionRole {
    /// Sends the Request. The outcome is a [`ConnectionEvent`] of the queue pair.
    Initiator {
        /// The idle queue pair.
        queue_pair: u32,
        /// Options of the start-up.
        options: StartupOptions,
    },
    /// Waits for the Request.
    Responder {
        /// Receives the Request, which is accepted or rejected like any other.
        requests: EventSink<ConnectionRequest>,
        /// Longest wait for it.
        timeout: Duration,
    },
}

/// An answer to a connection request.
#[derive(Debug)]
pub struct AcceptParameters {
    /// Which request.
    pub request: RequestId,
    /// The idle queue pair, bound to the engine of the request.
    pub queue_pair: u32,
    /// Options of the start-up.
    pub options: StartupOptions,
}
