//! Queue pairs, and the end of a connection.

mod halves;
mod options;
mod reuse;

pub use halves::{ReceiveHalf, SendHalf, StagedRequests};
pub use options::QueuePairOptions;

use self::halves::Gate;
use crate::error::Error;
use crate::rdma::completion::{CompletionQueueCore, Unread};
use crate::rdma::domain::ProtectionDomain;
use crate::runtime::context::Shared;
use crate::runtime::core::{Core, Linger, NoReply, Origin};
use crossbeam::channel::{Receiver, TryRecvError, bounded, unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_engine::command::{
    Abandoned, Command, ConnectFailure, ConnectionEvent, DisconnectReason, EventSink, Features, Membership, NotReady,
    QueuePairSetup, Rules, Watch,
};
use uwarp_engine::shared::{SharedReceiveQueueId, SharedReceives};
use uwarp_engine::stats::TcpInfo;
use uwarp_engine::work::{ReceiveElement, SendElement};
use uwarp_memory::Access;
use uwarp_ring::{Consumer, Slot};

/// Where a queue pair is in its life, as far as this side's application has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Not connected. Receives can be posted.
    Idle,
    /// A connection is being made.
    Connecting,
    /// In full operation.
    Connected,
    /// This side has disconnected; what was posted before goes on.
    Disconnecting,
    /// The connection is over. What is posted now is flushed.
    Disconnected,
}

impl QueuePairState {
    /// The state in a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
        }
    }
}

/// What [`QueuePairControl::query`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// Its number.
    pub number: u32,
    /// Where it is in its life.
    pub state: QueuePairState,
    /// The engine that has it, once it has connected or accepted.
    pub engine: Option<usize>,
    /// Slots of its send queue: a request takes one, and more with many SGEs or much inline data.
    pub send_slots: usize,
    /// Slots of its receive queue.
    pub receive_slots: usize,
    /// Most SGEs of a request.
    pub max_sge: usize,
    /// Most octets of inline data.
    pub max_inline: usize,
    /// Every request makes a completion.
    pub signal_all: bool,
    /// Sends and Writes complete when the peer's TCP has acknowledged them.
    pub complete_when_acknowledged: bool,
    /// What the peer may do where regions allow it.
    pub access: Access,
    /// The queue that its receives are taken from, if it has none of its own.
    pub shared_receives: Option<SharedReceiveQueueId>,
    /// Optional operations of its connection.
    pub features: Features,
    /// Limits of reads, atomics and commits of its connection: inbound (IRD) and outbound (ORD); none before.
    pub reads: Option<(u16, u16)>,
    /// Why its connection ended.
    pub disconnect_reason: Option<DisconnectReason>,
}

/// What [`QueuePairControl::modify`] is to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairChange {
    /// Make a completion for every request.
    pub signal_all: Option<bool>,
    /// Complete Sends and Writes when they are acknowledged.
    pub complete_when_acknowledged: Option<bool>,
    /// Let the queue pair outlive its peer, as on InfiniBand. When the peer closes, resets or falls silent, nothing is
    /// flushed or reported as long as no request is posted. The first request fails with [`Status::PeerGone`] and ends
    /// the queue pair. But one that has accepted and has not heard anything from the initiator is idle again, and the
    /// attempt has failed, although the connection was reported as established.
    ///
    /// [`Status::PeerGone`]: crate::Status::PeerGone
    pub outlives_peer: Option<bool>,
    /// What the peer may do: of `REMOTE_WRITE`, `REMOTE_READ` and `REMOTE_ATOMIC`, what regions have to allow besides.
    /// All of it at the beginning. This can be changed at any time, which waits for the engine: when
    /// [`QueuePairControl::modify`] returns, nothing that is refused now reaches memory any more. A peer that tries it
    /// loses the connection, as with an STag without the right.
    pub access: Option<Access>,
    /// How messages wait for receives where a connection has [`Features::infiniband`]: those that are posted from now
    /// on, and those of the peer that find no receive. It can be changed at any time, which waits for the engine.
    pub not_ready: Option<NotReady>,
    /// Begin with no request any more, be it posted already or later, as InfiniBand's "send queue drain" does, or go
    /// on. What was begun is finished; [`AsyncEvent::SendQueueDrained`](crate::AsyncEvent::SendQueueDrained) says when.
    /// It can be changed at any time, which waits for the engine. Datagrams are not held.
    pub holds_sends: Option<bool>,
    /// Flush all work and end the connection, as [`QueuePairControl::abort`] does.
    pub end: bool,
}

/// The rings' other ends, until an engine gets them.
#[derive(Debug)]
struct Unbound {
    send: Consumer<Slot>,
    receive: Consumer<Slot>,
    membership: Membership,
}

/// A pair of work queues and the iWARP stream that carries them out.
///
/// One thread owns each part at a time (`Send`, not `Sync`), and up to three threads share a queue pair that is taken
/// apart, without a lock between them. A program that has locks of its own may keep each part behind one. Dropping a
/// half leaves the other parts alone; dropping the control ends the queue pair.
///
/// It is bound to an engine when it first connects or accepts. Dropping it disconnects in order: what was posted is
/// sent, and the context lingers until the peer has delivered it.
#[derive(Debug)]
pub struct QueuePair {
    /// Its connection, its state, and its end.
    pub control: QueuePairControl,
    /// Its send queue.
    pub send: SendHalf,
    /// Its receive queue.
    pub receive: ReceiveHalf,
}

/// A queue pair without its work queues: its connection, its state, and its end.
///
/// Dropping it is dropping the queue pair, whether its halves are still there or not: see [`QueuePair`]. They refuse
/// work then.
#[derive(Debug)]
pub struct QueuePairControl {
    number: u32,
    /// Never another's, unlike the number.
    stream: u32,
    domain: u32,
    made: Made,
    state: QueuePairState,
    last: LastConnection,
    unbound: Option<Unbound>,
    engine: usize,
    shared_receives: Option<Arc<SharedReceives>>,
    events: Receiver<ConnectionEvent>,
    sink: EventSink<ConnectionEvent>,
    pub(super) watch: Watch,
    /// No engine has it, and its number is given back.
    is_destroyed: bool,
    gate: Arc<Gate>,
    completion_queues: [Arc<CompletionQueueCore>; 2],
    shared: Arc<Shared>,
}

/// What is known of a queue pair's connection, or of its last one.
#[derive(Debug, Default)]
struct LastConnection {
    features: Features,
    /// IRD and ORD.
    reads: Option<(u16, u16)>,
    reason: Option<DisconnectReason>,
}

/// What a queue pair was made with, and changed to.
#[derive(Clone, Copy, Debug)]
struct Made {
    send_slots: usize,
    receive_slots: usize,
    max_sge: usize,
    max_inline: usize,
    signal_all: bool,
    complete_on_ack: bool,
    access: Access,
    rules: Rules,
    /// It sends datagrams, and has no connection.
    is_of_datagrams: bool,
}

impl ProtectionDomain {
    /// A new queue pair of this domain.
    pub fn create_queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, Error> {
        let (shared, domain) = (self.shared(), self.number());
        shared.check_open()?;
        options.validate(shared, domain)?;
        shared.reap_lingering();
        let number = shared.objects.queue_pairs.take().ok_or(Error::Limit {
            what: "queue pair",
            field: "queue-pairs",
            limit: shared.config.limits.queue_pairs,
        })?;
        let send_slots =
            SendElement::slots_for_entries(options.max_sge).max(SendElement::slots_for_inline(options.max_inline));
        let receive_slots = ReceiveElement::slots_for_entries(options.max_sge);
        let (send_ring, send_end) = uwarp_ring::ring(options.send_depth * send_slots);
        let (receive_ring, receive_end) = uwarp_ring::ring(options.receive_depth * receive_slots);
        let (sender, events) = unbounded();
        let gate = Arc::new(Gate::default());
        let made = Made {
            send_slots: send_ring.capacity(),
            receive_slots: receive_ring.capacity(),
            max_sge: options.max_sge,
            max_inline: options.max_inline,
            signal_all: options.signal_all,
            complete_on_ack: options.complete_when_acknowledged,
            access: Access::ALL,
            rules: Rules::default(),
            is_of_datagrams: false,
        };
        let send = SendHalf::new(number, send_ring, options, &gate, shared);
        let receive = ReceiveHalf::new(receive_ring, options);
        let control = QueuePairControl {
            number,
            stream: shared.objects.next(),
            domain,
            made,
            state: QueuePairState::Idle,
            last: LastConnection::default(),
            unbound: Some(Unbound {
                send: send_end,
                receive: receive_end,
                membership: Membership::new(self.queue_pairs()),
            }),
            engine: 0,
            shared_receives: options.shared_receives.map(|queue| Arc::clone(queue.receives())),
            events,
            sink: EventSink::new(sender, None),
            watch: Watch::default(),
            is_destroyed: false,
            gate,
            completion_queues: [options.send_cq, options.receive_cq].map(|queue| Arc::clone(queue.core())),
            shared: Arc::clone(shared),
        };
        Ok(QueuePair { control, send, receive })
    }
}

impl QueuePairControl {
    /// The number that completions and events name it by, unique in its context.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The state, with what the engine has reported up to now.
    pub fn state(&mut self) -> QueuePairState {
        self.drain_events();
        self.state
    }

    /// Why the connection ended, once the state is [`Disconnected`](QueuePairState::Disconnected).
    pub fn disconnect_reason(&mut self) -> Option<DisconnectReason> {
        self.drain_events();
        self.last.reason
    }

    /// Ends the connection in order: what was posted before is carried out, then TCP closes; what is posted later is
    /// flushed. Does not wait, see [`wait_disconnected`](Self::wait_disconnected). Without a connection it does
    /// nothing.
    pub fn disconnect(&mut self) {
        self.drain_events();
        if matches!(self.state, QueuePairState::Connected | QueuePairState::Connecting) {
            self.state = QueuePairState::Disconnecting;
            self.shared.engines[self.engine].command(Command::Disconnect { queue_pair: self.number });
        }
    }

    /// Ends the connection at once: outstanding work is flushed, and the peer sees a reset. If it does not have all
    /// that was sent yet, and no message is half sent, the connection closes behind that instead.
    pub fn abort(&mut self) {
        self.drain_events();
        if self.unbound.is_none() && self.state != QueuePairState::Idle {
            if self.state == QueuePairState::Connecting {
                self.state = QueuePairState::Disconnecting;
            }
            self.shared.engines[self.engine].command(Command::Abort { queue_pair: self.number });
        }
    }

    /// Waits until the connection is over and all its work has completed or been flushed. False when the time is over
    /// first.
    pub fn wait_disconnected(&mut self, timeout: Duration) -> Result<bool, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            self.drain_events();
            if matches!(self.state, QueuePairState::Disconnected | QueuePairState::Idle) {
                return Ok(true);
            }
            match self.shared.receive(&self.events, Origin::One(self.engine), deadline) {
                Ok(event) => {
                    self.take_event(event);
                }
                Err(NoReply::TimedOut) => return Ok(false),
                Err(NoReply::WrongThread) => return Err(Error::WrongThread),
                Err(NoReply::Gone) => {
                    self.state = QueuePairState::Disconnected;
                    return Ok(true);
                }
            }
        }
    }

    /// What the queue pair was made with and has agreed on.
    pub fn query(&mut self) -> QueuePairAttributes {
        self.drain_events();
        QueuePairAttributes {
            number: self.number,
            state: self.state,
            engine: self.unbound.is_none().then_some(self.engine),
            send_slots: self.made.send_slots,
            receive_slots: self.made.receive_slots,
            max_sge: self.made.max_sge,
            max_inline: self.made.max_inline,
            signal_all: self.made.signal_all,
            complete_when_acknowledged: self.made.complete_on_ack,
            access: self.made.access,
            shared_receives: self.shared_receives.as_ref().map(|queue| queue.id()),
            features: self.last.features,
            reads: self.last.reads,
            disconnect_reason: self.last.reason,
        }
    }

    /// Changes what may be changed before the first attempt to connect or accept; and at any time, changes what the
    /// peer may do, how messages wait for receives and whether requests are held, or moves the queue pair to its end,
    /// as [`abort`](Self::abort) does. Fields that are left out stay.
    ///
    /// # Errors
    /// [`Error::State`] if an engine has the queue pair already. Nothing has changed then.
    pub fn modify(&mut self, change: QueuePairChange) -> Result<(), Error> {
        let of_engine = [change.signal_all, change.complete_when_acknowledged, change.outlives_peer];
        if of_engine.iter().any(Option::is_some) {
            if self.unbound.is_none() {
                return Err(Error::State {
                    state: self.state().name(),
                    expected: "this can be changed before the first attempt to connect or accept",
                });
            }
            self.made.signal_all = change.signal_all.unwrap_or(self.made.signal_all);
            self.made.complete_on_ack = change.complete_when_acknowledged.unwrap_or(self.made.complete_on_ack);
            self.made.rules.outlives_peer = change.outlives_peer.unwrap_or(self.made.rules.outlives_peer);
        }
        if let Some(access) = change.access {
            self.set_access(access)?;
        }
        let before = self.made.rules;
        self.set_rules(Rules {
            not_ready: change.not_ready.unwrap_or(before.not_ready),
            holds_sends: change.holds_sends.unwrap_or(before.holds_sends),
            ..before
        })?;
        if change.end {
            self.abort();
        }
        Ok(())
    }

    /// The TCP connection as the kernel's TCP_INFO would show it; `None` without one.
    pub fn tcp_info(&self) -> Result<Option<TcpInfo>, Error> {
        if self.unbound.is_some() {
            return Ok(None);
        }
        let (reply, receiver) = bounded(1);
        self.shared.engines[self.engine].command(Command::TcpInfo { queue_pair: self.number, reply });
        self.shared.reply(self.engine, &receiver)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What regions of its own are registered for.
    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain
    }

    pub(crate) fn engine(&self) -> usize {
        self.engine
    }

    /// Hands the rings to an engine, and checks that a connection may be made there now.
    pub(crate) fn bind(&mut self, engine: Option<usize>) -> Result<(), Error> {
        self.shared.start()?;
        self.drain_events();
        if self.state != QueuePairState::Idle {
            return Err(Error::State {
                state: self.state.name(),
                expected: "only an idle one can connect or accept, so reset it or create a new one",
            });
        }
        let unbound = match self.unbound.take() {
            Some(unbound) => unbound,
            None if engine.is_none_or(|engine| engine == self.engine) => return Ok(()),
            // An earlier attempt has bound it to another engine.
            None => self.take_back()?,
        };
        let index = engine.unwrap_or_else(|| self.shared.pick_engine());
        let engine = &self.shared.engines[index];
        self.engine = index;
        self.gate.bind(engine, self.shared.config.engine.poll_turns == Some(true));
        engine.command(Command::CreateQueuePair(Box::new(QueuePairSetup {
            number: self.number,
            stream: self.stream,
            domain: self.domain,
            membership: unbound.membership,
            send_queue: unbound.send,
            receive_queue: unbound.receive,
            send_completions: self.completion_queues[0].id,
            receive_completions: self.completion_queues[1].id,
            shared_receives: self.shared_receives.clone(),
            signal_all: self.made.signal_all,
            complete_on_ack: self.made.complete_on_ack,
            access: self.made.access,
            rules: self.made.rules,
            established: Arc::clone(self.gate.established()),
            events: self.sink.clone(),
            watch: self.watch.clone(),
        })));
        Ok(())
    }

    /// What is left when the engine has forgotten it.
    fn unread(&self) -> Stage {
        Stage::Unread(self.completion_queues.each_ref().map(|queue| Unread::of(queue, self.engine)))
    }

    fn lingering(&self, stage: Stage) -> Box<Lingering> {
        let (number, engine) = (self.number, self.engine);
        Box::new(Lingering { number, engine, stage, completion_queues: self.completion_queues.clone() })
    }

    pub(crate) fn set_connecting(&mut self, features: Features) {
        self.last.features = features;
        self.gate.set_features(features);
        self.state = QueuePairState::Connecting;
    }

    /// The outcome of connecting, if it is known.
    pub(crate) fn try_outcome(&mut self) -> Result<Option<ConnectionEvent>, NoReply> {
        match self.events.try_recv() {
            Ok(event) => Ok(Some(self.take_event(event))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(NoReply::Gone),
        }
    }

    /// Waits for the outcome of connecting.
    pub(crate) fn outcome(&mut self, deadline: Option<Instant>) -> Result<ConnectionEvent, NoReply> {
        let event = self.shared.receive(&self.events, Origin::One(self.engine), deadline)?;
        Ok(self.take_event(event))
    }

    fn drain_events(&mut self) {
        // While connecting, the outcome belongs to whoever waits for it: nobody if an event channel brings it.
        while self.state != QueuePairState::Connecting || self.watch.lock().is_some() {
            match self.events.try_recv() {
                Ok(event) => {
                    self.take_event(event);
                }
                Err(_) => break,
            }
        }
        let engine_gone = self.unbound.is_none()
            && self.shared.engines[self.engine].health().is_stopped()
            && self.state != QueuePairState::Idle;
        if engine_gone {
            self.state = QueuePairState::Disconnected;
        }
    }

    fn take_event(&mut self, mut event: ConnectionEvent) -> ConnectionEvent {
        match &mut event {
            ConnectionEvent::Established(established) => {
                self.last.reads = Some((established.ird, established.ord));
                if self.state == QueuePairState::Connecting {
                    self.state = QueuePairState::Connected;
                }
            }
            ConnectionEvent::Rejected { .. } => self.state = QueuePairState::Idle,
            ConnectionEvent::Failed(reason) => {
                if self.state == QueuePairState::Disconnecting {
                    // Ended by this side, whatever else went wrong.
                    *reason = ConnectFailure::Closed;
                }
                self.state = QueuePairState::Idle;
            }
            ConnectionEvent::Disconnected(reason) => {
                self.state = QueuePairState::Disconnected;
                self.last.reason = Some(*reason);
            }
        }
        event
    }
}

impl Drop for QueuePairControl {
    fn drop(&mut self) {
        if self.is_destroyed {
            return;
        }
        self.drain_events();
        if self.unbound.is_some() {
            // No engine knows it.
            self.shared.objects.queue_pairs.put(self.number);
            return;
        }
        let connected = matches!(self.state, QueuePairState::Connected | QueuePairState::Connecting);
        if connected {
            self.shared.engines[self.engine].command(Command::Disconnect { queue_pair: self.number });
        }
        let over = matches!(self.state, QueuePairState::Idle | QueuePairState::Disconnected);
        let deadline = Instant::now() + self.shared.config.linger;
        self.shared.linger(self.lingering(Stage::Ending { events: self.events.clone(), over, deadline }));
    }
}

/// A dropped queue pair whose connection has not ended yet.
#[derive(Debug)]
struct Lingering {
    number: u32,
    engine: usize,
    stage: Stage,
    /// Its last completions still go there.
    completion_queues: [Arc<CompletionQueueCore>; 2],
}

#[derive(Debug)]
enum Stage {
    /// The connection is being closed.
    Ending { events: Receiver<ConnectionEvent>, over: bool, deadline: Instant },
    /// The engine was told to forget it.
    Destroying { done: Receiver<()> },
    /// The engine has forgotten it. Completions that were not read would be taken for those of the number's next owner.
    Unread([Unread; 2]),
    /// The engine was told to give it back.
    Abandoned { abandoned: Receiver<Option<Abandoned>> },
}

impl Linger for Lingering {
    fn number(&self) -> u32 {
        self.number
    }

    /// Goes on as far as possible without waiting; true when the engine has forgotten the queue pair and the
    /// application has read its completions, or dropped their queues.
    fn is_gone(&mut self, core: &Core) -> bool {
        if let Stage::Ending { events, over, deadline } = &mut self.stage {
            loop {
                match events.try_recv() {
                    Ok(ConnectionEvent::Established(_)) => {}
                    Ok(_) | Err(TryRecvError::Disconnected) => *over = true,
                    Err(TryRecvError::Empty) => break,
                }
                if *over {
                    break;
                }
            }
            if !*over && Instant::now() < *deadline {
                return false;
            }
            let (sender, done) = bounded(1);
            core.engines[self.engine]
                .command(Command::DestroyQueuePair { queue_pair: self.number, done: Some(sender) });
            self.stage = Stage::Destroying { done };
        }
        let is_forgotten = match &self.stage {
            Stage::Destroying { done } => !matches!(done.try_recv(), Err(TryRecvError::Empty)),
            Stage::Abandoned { abandoned } => !matches!(abandoned.try_recv(), Err(TryRecvError::Empty)),
            Stage::Ending { .. } | Stage::Unread(_) => false,
        };
        if is_forgotten {
            self.stage = Stage::Unread(self.completion_queues.each_ref().map(|queue| Unread::of(queue, self.engine)));
        }
        match &mut self.stage {
            Stage::Unread(unread) => !unread.iter_mut().any(Unread::remain),
            Stage::Ending { .. } | Stage::Destroying { .. } | Stage::Abandoned { .. } => false,
        }
    }
}
