//! Hosts on a simulated network, driven by hand: engines, rings and regions without threads, devices or clocks.
//!
//! A [`World`] holds the network, the hosts and the virtual
//! time; everything happens inside [`World::step`], so a run is decided by its seed alone.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use uwarp_memory::{Access, Association, DomainId, RegionTable, Registration, Scope, StreamId, TaggedBase};
use uwarp_ring::{Consumer, Doorbells, Notifier, Producer, Slot, ring};
use uwarp_tcp::Instant;

use crate::sim::{SimNetwork, SimOptions, SimPort};
use uwarp_engine::command::{
    AcceptParameters, AsyncEvent, Command, CompletionQueueId, ConnectParameters, ConnectStreamParameters,
    ConnectionEvent, ConnectionRequest, EventSink, ListenerId, Membership, QueuePairSetup, Rules, StartupOptions,
    Watch,
};
use uwarp_engine::handoff::Handoff;
use uwarp_engine::port::Port;
use uwarp_engine::ports::decorated::FaultRates;
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::ports::{Decorated, LoopOptions, LoopPort};
use uwarp_engine::stats::Work;
use uwarp_engine::stream::{IncomingStream, StreamEnds, StreamOptions, stream};
use uwarp_engine::work::{Completion, ReceiveElement, SendElement, SendFlags, SendOpcode, Sge};
use uwarp_engine::{Engine, EngineChannels, EngineConfig, InterfaceAddress};

/// Size of a host.
#[derive(Debug, Clone, Copy)]
pub struct HostOptions {
    /// Largest IP packet in octets.
    pub mtu: u16,
    /// Buffers of the receive pool.
    pub receive_buffers: usize,
    /// Buffers of the transmit pool.
    pub transmit_buffers: usize,
    /// Queue pairs at most.
    pub queue_pairs: u32,
    /// Frames sent that the device holds on to, see [`SimPort::hold_sent`].
    pub device_holds: usize,
    /// The device computes checksums and cuts frames of up to so many octets of payload, see [`SimPort::offload`]; 0:
    /// it does neither.
    pub segmentation: usize,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            mtu: 1500,
            receive_buffers: 4096,
            transmit_buffers: 4096,
            queue_pairs: 64,
            device_holds: 0,
            segmentation: 0,
        }
    }
}

/// One host: an engine and what an application has of it.
pub struct Host<P: Port = SimPort> {
    /// The engine; `None` once the host was killed.
    pub engine: Option<Engine<Decorated<P>>>,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its mailbox.
    pub commands: Sender<Command>,
    /// Its asynchronous events.
    pub events: Receiver<AsyncEvent>,
    /// Its memory.
    pub regions: Arc<RegionTable>,
    doorbells: Arc<Doorbells>,
    notifier: Arc<Notifier>,
    domain_queue_pairs: Arc<AtomicU32>,
    next_queue_pair: u32,
    processor: Option<Processor>,
}

/// A processor whose time the engine's work takes: without one, work takes no virtual time.
struct Processor {
    price: Box<dyn FnMut(&Work) -> Duration>,
    charged: Work,
    busy_until: Instant,
}

/// The IPv6 address of host `number`, where a test gives it one: fd00::`number + 1`.
pub fn address6(number: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number as u16 + 1)
}

/// Gives host `number` its IPv6 address beside the other.
pub fn with_ipv6(number: usize) -> impl FnOnce(&mut EngineConfig) {
    move |config| {
        config.addresses.push(InterfaceAddress { address: address6(number).into(), prefix_length: 64 });
    }
}

/// The variable of the environment that puts a middlebox in front of every host here: which percentage of segments it
/// cuts, both ways, and joins with those behind them. Whole suites of tests run so; the tools' `--recut` takes it, too.
pub const MIDDLEBOX: &str = "UWARP_RECUT";

/// What the middlebox does that [`MIDDLEBOX`] asks for; none if nobody asks.
///
/// # Panics
/// If the variable says anything but 0 to 100.
pub fn middlebox() -> Option<Recutting> {
    let text = std::env::var(MIDDLEBOX).ok().filter(|text| !text.is_empty())?;
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    let share = share.unwrap_or_else(|| panic!("{MIDDLEBOX} is '{text}': choose 0 to 100")) / 100.0;
    (share > 0.0).then_some(Recutting { cutting: share, joining: share })
}

/// Whether a test is left out because a middlebox makes false what it asserts; it says so, and why.
pub fn is_skipped(why: &str) -> bool {
    let skipped = middlebox().is_some();
    if skipped {
        eprintln!("SKIPPED behind the middlebox: {why}");
    }
    skipped
}

/// One queue pair as an application has it, with a completion queue of its own.
#[derive(Debug)]
pub struct Pair {
    /// Its number.
    pub number: u32,
    send: Producer<Slot>,
    receive: Producer<Slot>,
    completions: Consumer<Completion>,
    /// Events of its connection.
    pub events: Receiver<ConnectionEvent>,
    doorbells: Arc<Doorbells>,
}

/// Sizes of a queue pair, in elements.
#[derive(Debug, Clone, Copy)]
pub struct PairOptions {
    /// Send queue slots.
    pub send_depth: usize,
    /// Receive queue slots.
    pub receive_depth: usize,
    /// Completion queue entries.
    pub completions: usize,
    /// Complete sends and writes when acknowledged.
    pub complete_on_ack: bool,
}

impl Default for PairOptions {
    fn default() -> Self {
        PairOptions { send_depth: 64, receive_depth: 64, completions: 256, complete_on_ack: false }
    }
}

impl<P: Port> Host<P> {
    /// A host on a port: host `number` has the address 10.0.0.`number + 1`.
    ///
    /// # Panics
    /// If the settings are refused.
    pub fn new(port: P, number: usize, queue_pairs: u32, seed: u64, adjust: impl FnOnce(&mut EngineConfig)) -> Host<P> {
        Host::with_handoff(port, number, queue_pairs, seed, None, adjust)
    }

    /// A host that is one engine of several, with its part of their hand-off.
    ///
    /// # Panics
    /// If the settings are refused.
    pub fn with_handoff(
        port: P,
        number: usize,
        queue_pairs: u32,
        seed: u64,
        handoff: Option<Handoff>,
        adjust: impl FnOnce(&mut EngineConfig),
    ) -> Host<P> {
        let address = Ipv4Addr::new(10, 0, 0, number as u8 + 1);
        let mut config = EngineConfig::new(0, address, 24);
        config.seed = seed ^ (number as u64) << 32;
        config.limits.queue_pairs = queue_pairs;
        adjust(&mut config);
        let (commands, command_receiver) = unbounded();
        let (events, event_receiver) = unbounded();
        let regions = RegionTable::new(4096, u64::MAX, u128::from(seed) << 8 | number as u128);
        let doorbells = Arc::new(Doorbells::new(config.limits.doorbells()));
        let channels = EngineChannels {
            regions: Arc::clone(&regions),
            ports: Arc::default(),
            doorbells: Arc::clone(&doorbells),
            commands: command_receiver,
            events: EventSink::new(events, None),
            waker: None,
            handoff,
        };
        let mut port = Decorated::new(port);
        port.set_faults(middlebox().map(|recutting| FaultRates { seed, recutting, ..FaultRates::default() }));
        let engine = Engine::new(config, port, channels).expect("the settings are right");
        Host {
            engine: Some(engine),
            address,
            commands,
            events: event_receiver,
            regions,
            doorbells,
            notifier: Arc::new(Notifier::new().expect("an eventfd")),
            domain_queue_pairs: Arc::new(AtomicU32::new(0)),
            next_queue_pair: 0,
            processor: None,
        }
    }

    /// From now on the engine's work takes virtual time, `price` of what it did in a turn: the next turn comes no
    /// sooner.
    pub fn charge(&mut self, price: impl FnMut(&Work) -> Duration + 'static) {
        let charged = self.engine.as_ref().map_or_else(Work::default, Engine::work);
        let price = Box::new(price);
        self.processor = Some(Processor { price, charged, busy_until: Instant::ZERO });
    }

    /// Registers memory for all queue pairs of the host.
    ///
    /// # Panics
    /// If the table is full.
    pub fn register(&self, octets: Vec<u8>, access: Access) -> Registration {
        let scope = Scope::Domain(DomainId(1));
        self.regions.register(octets, access, scope, TaggedBase::Zero).expect("the table has room")
    }

    /// Registers memory for one queue pair.
    ///
    /// # Panics
    /// If the table is full.
    pub fn register_for(&self, pair: &Pair, octets: Vec<u8>, access: Access) -> Registration {
        let Association { domain, stream } = Association { domain: DomainId(1), stream: StreamId(pair.number) };
        let scope = Scope::Stream { domain, stream };
        self.regions.register(octets, access, scope, TaggedBase::Zero).expect("the table has room")
    }

    /// Makes a queue pair.
    ///
    /// # Panics
    /// If the engine is gone.
    pub fn pair(&mut self, options: PairOptions) -> Pair {
        let number = self.next_queue_pair;
        self.next_queue_pair += 1;
        self.pair_with_number(number, options)
    }

    /// Makes a queue pair with a number of one's choice, that of one destroyed before for instance.
    ///
    /// # Panics
    /// If the engine is gone.
    pub fn pair_with_number(&mut self, number: u32, options: PairOptions) -> Pair {
        let notifier = Arc::clone(&self.notifier);
        self.pair_with(number, options, notifier, |_| {})
    }

    /// Makes a queue pair with a number and a notifier of one's choice, and whatever else `adjust` changes of it.
    ///
    /// # Panics
    /// If the engine is gone.
    pub fn pair_with(
        &mut self,
        number: u32,
        options: PairOptions,
        notifier: Arc<Notifier>,
        adjust: impl FnOnce(&mut QueuePairSetup),
    ) -> Pair {
        let (send, send_queue) = ring(options.send_depth);
        let (receive, receive_queue) = ring(options.receive_depth);
        let (lane, completions) = ring(options.completions);
        let (events, event_receiver) = unbounded();
        let queue = CompletionQueueId(number);
        self.command(Command::AddCompletionQueue { queue, lane, notifier });
        let mut setup = Box::new(QueuePairSetup {
            number,
            stream: number,
            domain: 1,
            membership: Membership::new(&self.domain_queue_pairs),
            send_queue,
            receive_queue,
            shared_receives: None,
            access: Access::ALL,
            send_completions: queue,
            receive_completions: queue,
            signal_all: false,
            complete_on_ack: options.complete_on_ack,
            rules: Rules::default(),
            established: Arc::default(),
            events: EventSink::new(events, None),
            watch: Watch::default(),
        });
        adjust(&mut setup);
        self.command(Command::CreateQueuePair(setup));
        let doorbells = Arc::clone(&self.doorbells);
        Pair { number, send, receive, completions, events: event_receiver, doorbells }
    }

    /// Puts a command into the mailbox.
    ///
    /// # Panics
    /// If the engine is gone.
    pub fn command(&self, command: Command) {
        self.commands.send(command).expect("the engine is there");
        self.doorbells.ring_mailbox();
    }

    /// Listens on a port; gives the channel of requests.
    pub fn listen(&self, port: u16) -> Receiver<ConnectionRequest> {
        let (requests, receiver) = unbounded();
        let (reply, _) = unbounded();
        let listener = ListenerId(u32::from(port));
        let requests = EventSink::new(requests, None);
        self.command(Command::Listen {
            listener,
            address: None,
            port,
            backlog: 2048,
            requests,
            watch: Watch::default(),
            reply,
        });
        receiver
    }

    /// Listens on a port for plain streams; gives the channel of them.
    pub fn listen_streams(&self, port: u16, backlog: u32, options: StreamOptions) -> Receiver<IncomingStream> {
        let (incoming, receiver) = unbounded();
        let (reply, _) = unbounded();
        let listener = ListenerId(u32::from(port));
        let incoming = EventSink::new(incoming, None);
        let waiting = Arc::new(AtomicU32::new(0));
        self.command(Command::ListenStreams { listener, port, backlog, waiting, options, incoming, reply });
        receiver
    }

    /// Starts an active open of a plain stream.
    pub fn connect_stream(&self, remote: impl Into<SocketAddr>, options: StreamOptions) -> StreamEnds {
        let (ends, setup) = stream(&options, Arc::clone(&self.doorbells));
        let timeout = Duration::from_secs(10);
        let remote = remote.into();
        let parameters = ConnectStreamParameters { remote, local_port: None, options, timeout, setup };
        self.command(Command::ConnectStream(Box::new(parameters)));
        ends
    }

    /// Starts an active open.
    pub fn connect(&self, pair: &Pair, remote: impl Into<SocketAddr>, options: StartupOptions) {
        let remote = remote.into();
        let queue_pair = pair.number;
        let parameters =
            ConnectParameters { queue_pair, remote, local_address: None, local_port: None, options, retry: None };
        self.command(Command::Connect(Box::new(parameters)));
    }

    /// Accepts a request.
    pub fn accept(&self, pair: &Pair, request: &ConnectionRequest, options: StartupOptions) {
        let parameters = AcceptParameters { request: request.request, queue_pair: pair.number, options };
        self.command(Command::Accept(Box::new(parameters)));
    }
}

impl Pair {
    /// Posts a send element; false if the queue is full.
    pub fn post(&mut self, element: SendElement, entries: &[Sge], inline: &[u8]) -> bool {
        let slots = element.slots();
        let Some(mut reservation) = self.send.reserve(slots) else { return false };
        for index in 0..slots {
            reservation.write(element.encode(entries, inline, index));
        }
        reservation.commit();
        self.doorbells.ring(self.number as usize);
        true
    }

    /// Posts a signalled element with one entry or none.
    pub fn post_simple(&mut self, id: u64, opcode: SendOpcode, local: Option<Sge>, remote: (u32, u64)) -> bool {
        let element = SendElement {
            id,
            opcode,
            flags: SendFlags::SIGNALLED,
            stag: remote.0,
            remote_offset: remote.1,
            length: local.map_or(0, |entry| entry.length),
            entries: u8::from(local.is_some()),
        };
        self.post(element, local.as_slice(), &[])
    }

    /// Posts a receive element; false if the queue is full.
    pub fn post_receive(&mut self, id: u64, entries: &[Sge]) -> bool {
        let length = entries.iter().map(|entry| entry.length).sum();
        let element = ReceiveElement { id, length, entries: entries.len() as u8 };
        let slots = element.slots();
        let Some(mut reservation) = self.receive.reserve(slots) else { return false };
        for index in 0..slots {
            reservation.write(element.encode(entries, index));
        }
        reservation.commit();
        self.doorbells.ring(self.number as usize);
        true
    }

    /// Rings the doorbell, with nothing new in the queues.
    pub fn ring(&self) {
        self.doorbells.ring(self.number as usize);
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    /// Every completion that is there.
    pub fn poll_all(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.completions.pop()).collect()
    }
}

/// A network of hosts and their time.
pub struct World<P: Port = SimPort> {
    /// The network; without ports if the hosts are joined otherwise.
    pub network: SimNetwork,
    /// The hosts: host `n` has the address 10.0.0.`n + 1`.
    pub hosts: Vec<Host<P>>,
    now: Instant,
    seed: u64,
}

impl World<SimPort> {
    /// A network without hosts.
    pub fn new(seed: u64, options: SimOptions) -> World {
        World { network: SimNetwork::new(seed, options), hosts: Vec::new(), now: Instant::from_nanos(1_000_000), seed }
    }

    /// Two hosts of the usual size on a faultless network.
    pub fn two() -> World {
        let mut world = World::new(1, SimOptions::default());
        world.add(HostOptions::default(), |_| {});
        world.add(HostOptions::default(), |_| {});
        world
    }

    /// Adds a host; `adjust` may change its settings.
    ///
    /// # Panics
    /// If the settings are refused.
    pub fn add(&mut self, options: HostOptions, adjust: impl FnOnce(&mut EngineConfig)) -> usize {
        let number = self.hosts.len();
        let mut port = self.network.port(options.mtu, options.receive_buffers, options.transmit_buffers);
        port.hold_sent(options.device_holds);
        if options.segmentation > 0 {
            port.offload(options.segmentation);
        }
        self.hosts.push(Host::new(port, number, options.queue_pairs, self.seed, adjust));
        number
    }
}

impl World<LoopPort> {
    /// Two hosts joined back to back, without a network between them.
    pub fn back_to_back(options: LoopOptions, queue_pairs: u32) -> World<LoopPort> {
        let (left, right) = LoopPort::pair(options);
        World::of_ports([left, right], queue_pairs)
    }
}

impl<P: Port> World<P> {
    /// Hosts on ports that are joined already, without a network between them.
    pub fn of_ports(ports: impl IntoIterator<Item = P>, queue_pairs: u32) -> World<P> {
        let hosts = ports.into_iter().zip(0..).map(|(port, number)| Host::new(port, number, queue_pairs, 1, |_| {}));
        let network = SimNetwork::new(1, SimOptions::default());
        World { network, hosts: hosts.collect(), now: Instant::from_nanos(1_000_000), seed: 1 }
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Turns every engine once, then moves the time on: by a microsecond if anything happened, to the next event
    /// otherwise. False if nothing will ever happen again by itself.
    pub fn step(&mut self) -> bool {
        self.step_until(None)
    }

    /// As [`World::step`], but the time moves on no further than to `wake`, when somebody outside of the hosts has
    /// something to do.
    pub fn step_until(&mut self, wake: Option<Instant>) -> bool {
        let mut busy = false;
        let mut next = wake;
        for host in &mut self.hosts {
            let Some(engine) = &mut host.engine else { continue };
            if let Some(processor) = &host.processor
                && processor.busy_until > self.now
            {
                next = [next, Some(processor.busy_until)].into_iter().flatten().min();
                continue;
            }
            let turned = engine.turn(self.now);
            busy |= turned.busy;
            let mut deadline = engine.next_deadline();
            if let Some(processor) = &mut host.processor {
                let work = engine.work();
                processor.busy_until = self.now + (processor.price)(&work.since(&processor.charged));
                processor.charged = work;
                deadline = deadline.map(|at| at.max(processor.busy_until));
            }
            next = [next, deadline].into_iter().flatten().min();
        }
        next = [next, self.network.next_arrival()].into_iter().flatten().min();
        let soon = self.now + Duration::from_micros(1);
        if busy {
            self.now = soon;
            return true;
        }
        match next {
            Some(at) => {
                self.now = at.max(soon);
                true
            }
            None => false,
        }
    }

    /// Steps until `done` says so or `limit` of virtual time is over; says which.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut World<P>) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            if done(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            if !self.step() {
                // Only a command or a doorbell could change anything now.
                self.now = end;
                for host in &mut self.hosts {
                    if let Some(engine) = &mut host.engine {
                        engine.turn(self.now);
                    }
                }
                return done(self);
            }
        }
    }

    /// Lets `time` go by.
    pub fn run(&mut self, time: Duration) {
        self.run_until(time, |_| false);
        // Time goes by for hosts without timers, too.
    }

    /// Connects a queue pair of host `from` to one of host `to`, where `requests` come in.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn join(
        &mut self,
        from: (usize, &Pair),
        to: (usize, &Pair),
        requests: &Receiver<ConnectionRequest>,
        port: u16,
    ) {
        let address = self.hosts[to.0].address;
        self.join_at(from, to, requests, (address, port).into());
    }

    /// Like [`World::join`], to an address of one's choice.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn join_at(
        &mut self,
        from: (usize, &Pair),
        to: (usize, &Pair),
        requests: &Receiver<ConnectionRequest>,
        remote: SocketAddr,
    ) {
        self.join_by(from, to, requests, remote, [StartupOptions::default(), StartupOptions::default()]);
    }

    /// Like [`World::join_at`], with options of the two sides.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn join_by(
        &mut self,
        from: (usize, &Pair),
        to: (usize, &Pair),
        requests: &Receiver<ConnectionRequest>,
        remote: SocketAddr,
        [connect, accept]: [StartupOptions; 2],
    ) {
        self.hosts[from.0].connect(from.1, remote, connect);
        let minute = Duration::from_secs(60);
        let mut request = None;
        let came = self.run_until(minute, |_| {
            request = requests.try_recv().ok();
            request.is_some()
        });
        assert!(came, "the request comes: {:?}", from.1.events.try_recv());
        if let Some(request) = request {
            self.hosts[to.0].accept(to.1, &request, accept);
        }
        for pair in [from.1, to.1] {
            let mut event = None;
            assert!(self.run_until(minute, |_| {
                event = pair.events.try_recv().ok();
                event.is_some()
            }));
            assert!(matches!(event, Some(ConnectionEvent::Established(_))), "{event:?}");
        }
    }
}
