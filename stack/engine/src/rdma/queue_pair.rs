//! A queue pair as the engine has it: the two rings and how far they are worked off.
//!
//! The rings are themselves the lists of outstanding work. The send queue has three cursors: everything before `head`
//! has completed and is released; elements from `head` to `begun` have been turned into segments, or into a Read
//! Request whose response is awaited; the element at `begun` is being cut or comes next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use uwarp_memory::{Access, Association, DomainId, StreamId};

use crate::api::command::{
    Abandoned, CompletionQueueId, ConnectFailure, ConnectionEvent, DisconnectReason, EventSink, Membership,
    QueuePairSetup, Rules, Watch, Watched,
};
use crate::api::stats::QueuePairStats;
use crate::api::work::Completion;
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::rdma::commits::{Held, WaitingCommit, WrittenRanges};
use crate::rdma::lanes::Lanes;
use crate::rdma::receive_queue::ReceiveQueue;
use crate::rdma::send_queue::SendQueue;

/// Where a queue pair stands, beyond what its stream says while there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No connection yet.
    Idle,
    /// It has a connection.
    Connected,
    /// The peer has gone, and the queue pair outlives it: the first request that is posted fails.
    Deserted,
    /// It sends and receives datagrams, and never has a connection.
    Datagrams(DatagramEnd),
    /// All work is flushed, now and from now on.
    Error,
}

/// What a queue pair of datagrams is on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramEnd {
    pub(crate) number: u32,
    /// What datagrams for it have to name.
    pub(crate) key: u32,
    /// Of the next one that it sends.
    pub(crate) sequence: u32,
}

/// The queue pairs of datagrams.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// By their numbers on the network.
    by_number: BTreeMap<u32, u32>,
    /// Those whose doorbells rang.
    rung: Vec<u32>,
}

impl Datagrams {
    /// Gives a queue pair its number on the network.
    pub(crate) fn enter(&mut self, number: u32, queue_pair: u32) {
        self.by_number.insert(number, queue_pair);
    }

    /// The queue pair that has this number on the network.
    pub(crate) fn find(&self, number: u32) -> Option<u32> {
        self.by_number.get(&number).copied()
    }

    /// Notes that a doorbell has rung.
    pub(crate) fn ring(&mut self, queue_pair: u32) {
        self.rung.push(queue_pair);
    }

    /// Whether work was posted that nobody has looked at.
    #[inline]
    pub(crate) fn has_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Takes those whose doorbells rang.
    pub(crate) fn take_rung(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.rung)
    }

    /// Whether there is no queue pair of datagrams.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// The queue pair is taken away.
    pub(crate) fn forget(&mut self, queue_pair: u32) {
        self.by_number.retain(|_, known| *known != queue_pair);
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) association: Association,
    pub(crate) peer: Peer,
    membership: Membership,
    pub(crate) stage: Stage,
    /// Index of its connection.
    pub(crate) connection: Option<u32>,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    pub(crate) send_completions: CompletionQueueId,
    pub(crate) receive_completions: CompletionQueueId,
    /// Tells the poster that the stream is in full operation.
    pub(crate) established: Arc<AtomicBool>,
    reports: Reports,
    /// Messages received that are not told yet, since what was written before them is to be durable first.
    pub(crate) held: VecDeque<Held>,
    /// What that is.
    pub(crate) written: WrittenRanges,
    /// Commits of the peer that are not begun yet.
    pub(crate) waiting_commits: VecDeque<WaitingCommit>,
    /// A completion did not fit into its queue; the engine fails the queue pair when it sees this.
    pub(crate) overflowed: Option<CompletionQueueId>,
}

/// As whom the peer's requests access memory: as the stream, or as nobody where the queue pair refuses them. So the
/// check of each access that is made anyway refuses them, with the fault of an STag without the right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) writes: Association,
    pub(crate) reads: Association,
    pub(crate) atomics: Association,
}

impl Peer {
    fn new(stream: Association, access: Access) -> Peer {
        let of = |right| if access.contains(right) { stream } else { Association::NOBODY };
        Peer { writes: of(Access::REMOTE_WRITE), reads: of(Access::REMOTE_READ), atomics: of(Access::REMOTE_ATOMIC) }
    }
}

/// Where the application hears what becomes of the connection.
#[derive(Debug)]
struct Reports {
    events: EventSink<ConnectionEvent>,
    watch: Watch,
    /// What it has of InfiniBand's.
    rules: Rules,
    /// The connection has been in full operation and has not ended.
    was_established: bool,
}

impl QueuePair {
    /// From now on the peer may do what `access` allows, where regions allow it too.
    pub(crate) fn set_access(&mut self, access: Access) {
        self.peer = Peer::new(self.association, access);
    }

    /// Whether it sends and receives datagrams.
    pub(crate) fn is_of_datagrams(&self) -> bool {
        matches!(self.stage, Stage::Datagrams(_))
    }

    /// Whether the peer's end leaves it as it is.
    pub(crate) fn outlives_peer(&self) -> bool {
        self.reports.rules.outlives_peer
    }

    /// What it has of InfiniBand's rules.
    pub(crate) fn rules(&mut self) -> &mut Rules {
        &mut self.reports.rules
    }

    /// Whether the stream has ended or is about to, and the queue pair stays as it is until a request is posted.
    pub(crate) fn survives_stream(&self) -> bool {
        self.outlives_peer() && self.stage != Stage::Error
    }

    /// Whether other queue pairs use the protection domain.
    pub(crate) fn domain_is_shared(&self) -> bool {
        self.membership.is_shared()
    }

    /// Attaches it to the connection at `index`.
    pub(crate) fn bind(&mut self, index: u32) {
        self.stage = Stage::Connected;
        self.connection = Some(index);
    }

    /// Reports what became of the connection: each attempt has one outcome, and each connection in full operation one
    /// end.
    pub(crate) fn report(&mut self, event: ConnectionEvent) {
        self.reports.was_established = matches!(event, ConnectionEvent::Established(_));
        let watch = self.reports.watch.lock();
        // First, so that who hears of it by the channel finds it in the queue pair.
        self.reports.events.send(event.clone());
        if let Some(watcher) = &*watch {
            watcher.send(Watched::Connection(event));
        }
    }

    /// Reports the end of a connection whose queue pair is taken away.
    pub(crate) fn report_end(&mut self, reason: DisconnectReason) {
        self.report(if self.reports.was_established {
            ConnectionEvent::Disconnected(reason)
        } else {
            ConnectionEvent::Failed(ConnectFailure::Closed)
        });
    }

    /// Publishes the completion of a send element, if one is wanted.
    #[inline]
    pub(crate) fn complete_send(&mut self, lanes: &mut Lanes, completion: Option<Completion>) {
        if let Some(completion) = completion
            && !lanes.push(self.send_completions, completion)
        {
            self.overflowed = Some(self.send_completions);
        }
    }

    /// Completes send elements that are done, in posting order. `acknowledged`: octets of the stream that the peer has.
    #[inline]
    pub(crate) fn retire(&mut self, lanes: &mut Lanes, acknowledged: u64) {
        while let Some(completion) = self.send.retire(self.number, acknowledged) {
            self.complete_send(lanes, completion);
        }
    }

    /// Publishes the completion of a receive.
    #[inline]
    pub(crate) fn complete_receive(&mut self, lanes: &mut Lanes, completion: Completion) {
        if !lanes.push(self.receive_completions, completion) {
            self.overflowed = Some(self.receive_completions);
        }
    }

    /// What is left of it for the application.
    pub(crate) fn abandon(self) -> Abandoned {
        let (send_queue, receive_queue) = (self.send.into_ring(), self.receive.into_ring());
        Abandoned { send_queue, receive_queue, membership: self.membership }
    }

    pub(crate) fn new(setup: QueuePairSetup) -> QueuePair {
        let association = Association { domain: DomainId(setup.domain), stream: StreamId(setup.stream) };
        QueuePair {
            number: setup.number,
            association,
            peer: Peer::new(association, setup.access),
            membership: setup.membership,
            stage: Stage::Idle,
            connection: None,
            send: SendQueue::new(setup.send_queue, setup.signal_all, setup.complete_on_ack),
            receive: ReceiveQueue::new(setup.receive_queue, setup.shared_receives),
            send_completions: setup.send_completions,
            receive_completions: setup.receive_completions,
            established: setup.established,
            reports: Reports { events: setup.events, watch: setup.watch, rules: setup.rules, was_established: false },
            held: VecDeque::new(),
            written: WrittenRanges::default(),
            waiting_commits: VecDeque::new(),
            overflowed: None,
        }
    }

    /// Its statistics.
    pub(super) fn stats(&self, connection: Option<&Connection>) -> QueuePairStats {
        let stream = match connection.map(|connection| &connection.phase) {
            Some(Phase::Running(running)) => Some(&running.stream),
            _ => None,
        };
        let state = match (stream, self.stage) {
            (_, Stage::Error) => "error",
            (_, Stage::Deserted) => "deserted",
            (Some(_), _) => "rts",
            (None, Stage::Connected) => "connecting",
            (None, Stage::Datagrams(_)) => "datagrams",
            (None, Stage::Idle) => "idle",
        };
        QueuePairStats {
            number: self.number,
            state: state.to_owned(),
            sends_completed: self.send.completed,
            receives_completed: self.receive.completed,
            reads_outstanding: stream.map_or(0, |stream| stream.reads_outstanding() as u32),
            reads_inbound: stream.map_or(0, |stream| stream.inbound_reads() as u32),
        }
    }
}
