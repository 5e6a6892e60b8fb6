//! Attacks on an engine beside an honest bystander: who suffers, by how much, and the cost of an attacker's octet.
//!
//! Virtual time charges the target's engine for its work (see [`PRICES`]), so an attack that makes the engine work
//! takes time from others. [`measure`] runs attackers and the bystander against one target and returns [`Measured`];
//! [`table`] has the bounds.

pub mod attacks;
pub mod bystander;
pub mod den;
pub mod table;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crossbeam::channel::{Receiver, unbounded};
use uwarp_engine::command::{
    Command, ConnectionEvent, ConnectionRequest, EventSink, ListenerId, StartupOptions, Watch,
};
use uwarp_engine::config::EngineConfig;
use uwarp_engine::ports::decorated::FaultRates;
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::stats::{EngineStats, Work};
use uwarp_engine::stream::{IncomingStream, StreamEnds, StreamOptions};
use uwarp_memory::{Access, Committer, DomainId, Registration, Scope, Store, TaggedBase};
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World, with_ipv6};
use uwarp_testkit::sim::SimOptions;

use crate::durable::COMMIT;
use crate::pairs::with;
use bystander::{Achieved, Bystander, Newcomer};
use den::Den;

/// Where the bystander connects.
const HONEST_PORT: u16 = 7470;
/// Where attackers connect, and an honest newcomer.
pub const PORT: u16 = 7471;
/// Port whose plain streams are accepted, filled and abandoned.
pub const PLAIN_PORT: u16 = 7472;
/// Connections that may wait at [`PORT`].
pub const BACKLOG: u32 = 128;
/// Octets that fragments may take.
pub const FRAGMENTS: u32 = 64 << 10;
/// Octets of the region that attackers may read and write.
pub const REGION: usize = 1 << 20;
/// Octets that the application writes to a plain stream before it leaves.
pub const LEFT_UNREAD: usize = 64 << 10;

/// Time for the bystander's traffic to reach its rate.
const RAMP: Duration = Duration::from_millis(5);
/// How long the bystander is measured.
const WINDOW: Duration = Duration::from_millis(20);
/// The longest wait for a newcomer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long memory may take to be returned: fragments are kept for a minute (RFC 8200 §4.5), and a dead peer is
/// detected within seconds. This is twice the longer of them.
const RETURN: Duration = Duration::from_secs(120);

/// A counter of [`Work`].
pub type Count = fn(&Work) -> u64;

/// The counters, and the price of a unit of each in picoseconds of processor time.
///
/// The prices are those of a core at 3 GHz: a frame costs as much as a segment's path through the stack, an octet of a
/// frame a copy and a CRC, a counted unit a miss of the nearest cache, a copied octet a tenth of a nanosecond.
pub const PRICES: &[(&str, Count, u64)] = &[
    ("frames-received", |work| work.frames_received, 300_000),
    ("frames-sent", |work| work.frames_sent, 300_000),
    ("octets-received", |work| work.octets_received, 60),
    ("octets-sent", |work| work.octets_sent, 60),
    ("connections-scanned", |work| work.connections_scanned, 20_000),
    ("neighbour-lookups", |work| work.neighbour_lookups, 50_000),
    ("flow-probes", |work| work.flow_probes, 2_000),
    ("sack-segments-walked", |work| work.sack_segments_walked, 2_000),
    ("octets-gathered", |work| work.octets_gathered, 100),
];

/// The price of an octet that a commit copies to its store.
const COMMITTED_OCTET: u64 = 100;

fn price(work: &Work) -> u64 {
    PRICES.iter().map(|(_, count, each)| count(work) * each).sum()
}

/// The target's conditions. All attacks with the same scene are compared with the same bystander alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scene {
    /// Transmit buffers of the target.
    pub transmit_buffers: usize,
    /// The bystander's connections that play ping-pong.
    pub pings: u32,
    /// Idle honest connections beside the bystander's.
    pub crowd: u32,
    /// A middlebox cuts one in four segments between the bystander and the target.
    pub recut: bool,
    /// [`uwarp_engine::config::Budgets::gather_octets`].
    pub gather_octets: u64,
    /// [`uwarp_engine::config::Limits::half_open`].
    pub half_open: u32,
    /// Engines execute commits themselves.
    pub commit_in_engine: bool,
    /// [`uwarp_engine::config::IwarpConfig::receive_wait`].
    pub receive_wait: Duration,
}

impl Default for Scene {
    fn default() -> Self {
        Scene {
            transmit_buffers: 4096,
            pings: 1,
            crowd: 0,
            recut: false,
            gather_octets: 1 << 20,
            half_open: 1024,
            commit_in_engine: false,
            receive_wait: Duration::ZERO,
        }
    }
}

/// The attackers' knowledge of the target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The region of [`REGION`] octets that may be read and written.
    pub stag: u32,
    /// A durable region of as many.
    pub durable: u32,
}

/// An attack.
pub trait Attack {
    /// Its requirements for the target.
    fn scene(&self) -> Scene {
        Scene::default()
    }

    /// How long it runs before the bystander is measured.
    fn warm_up(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// It requests as much as an honest peer may, so it is due a share like the bystander's.
    fn is_greedy(&self) -> bool {
        false
    }

    /// Does what is due; returns when something is due next. It is also called after every event.
    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant>;

    /// Sends a farewell before the port falls silent.
    fn leave(&mut self, now: Instant, den: &mut Den) {
        let _ = (now, den);
    }

    /// Whether the attack got far enough to hurt. A row whose attack did not shows nothing.
    fn works(&self, stats: &EngineStats, den: &Den) -> bool;

    /// Checks further conditions of the target's state during the attack; returns a sentence if one is violated.
    fn judge(&self, stats: &EngineStats, den: &Den) -> Option<String> {
        let _ = (stats, den);
        None
    }
}

/// The measurements of one row.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// The bystander.
    pub bystander: Achieved,
    /// It failed, or did not finish.
    pub broken: Option<String>,
    /// How long a newcomer took to connect.
    pub opening: Option<Duration>,
    /// Octets that the attackers sent.
    pub attacker_octets: u64,
    /// Work that the attackers caused, by the names of [`PRICES`] and `commit-octets`.
    pub work: Vec<(&'static str, f64)>,
    /// Octets that commits wrote after the attackers had left.
    pub committed_afterwards: u64,
    /// What was not returned long after the attackers had left.
    pub missing: Vec<String>,
    /// The result of [`Attack::judge`].
    pub judged: Vec<String>,
    /// Attacks that did not get far enough, so that the row shows nothing.
    pub fizzled: Vec<String>,
    /// How many attackers requested a share like the bystander's.
    pub greedy: u32,
}

/// A store that discards its data, and counts it.
struct CountingStore(Arc<AtomicU64>);

impl Store for CountingStore {
    fn write(&mut self, _offset: u64, octets: &[u8]) -> io::Result<()> {
        self.0.fetch_add(octets.len() as u64, Relaxed);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The target's application, which accepts every connection.
struct Application {
    requests: Receiver<ConnectionRequest>,
    streams: Receiver<IncomingStream>,
    open_streams: Vec<StreamEnds>,
    accepted: Vec<Pair>,
    free: Vec<u32>,
    region: Registration,
    durable: Registration,
    committer: Option<Committer>,
    /// Until when the device of the durable region is busy.
    device_until: Instant,
    committed: Arc<AtomicU64>,
    charged: u64,
    newcomer: Option<Newcomer>,
}

struct Arena {
    world: World,
    bystander: Bystander,
    application: Application,
    raids: Vec<Raid>,
}

/// A running attack.
struct Raid {
    name: String,
    attack: Box<dyn Attack>,
    den: Den,
    /// When it begins, early enough before the bystander is measured.
    begin: Instant,
}

fn options() -> PairOptions {
    PairOptions { send_depth: 16, receive_depth: 16, completions: 64, complete_on_ack: false }
}

impl Arena {
    fn new(scene: &Scene) -> Arena {
        let network = SimOptions { receive_ring: 16_384, ..SimOptions::default() };
        let mut world = World::new(19, network);
        world.add(HostOptions { queue_pairs: 512, ..HostOptions::default() }, |_| {});
        let host =
            HostOptions { queue_pairs: 1024, transmit_buffers: scene.transmit_buffers, ..HostOptions::default() };
        world.add(host, |config: &mut EngineConfig| {
            config.budgets.gather_octets = scene.gather_octets;
            config.limits.half_open = scene.half_open;
            config.iwarp.receive_wait = scene.receive_wait;
            config.limits.neighbours = 64;
            config.limits.reassembly_octets = FRAGMENTS;
            config.duplicate_address_detection = 0;
            with_ipv6(1)(config);
        });
        let bystander = Bystander::connect(&mut world, HONEST_PORT, scene.pings);
        let application = Application::new(&world, scene);
        let mut arena = Arena { world, bystander, application, raids: Vec::new() };
        if scene.crowd > 0 {
            arena.crowd(scene.crowd);
        }
        if scene.recut {
            let recutting = Recutting { cutting: 0.25, joining: 0.0 };
            let faults = Some(FaultRates { seed: 19, recutting, ..FaultRates::default() });
            arena.world.hosts[0].command(Command::SetFaults { faults });
        }
        let in_engine = scene.commit_in_engine.then(|| Arc::clone(&arena.application.committed));
        let mut charged = 0;
        arena.world.hosts[1].charge(move |work| {
            let committed = in_engine.as_ref().map_or(0, |committed| committed.load(Relaxed));
            let octets = committed - std::mem::replace(&mut charged, committed);
            Duration::from_nanos((price(work) + octets * COMMITTED_OCTET) / 1000)
        });
        arena
    }

    fn crowd(&mut self, count: u32) {
        let requests = self.world.hosts[1].listen(HONEST_PORT + 100);
        for _ in 0..count {
            let (here, there) = (self.world.hosts[0].pair(options()), self.world.hosts[1].pair(options()));
            self.world.join((0, &here), (1, &there), &requests, HONEST_PORT + 100);
            self.application.accepted.push(there);
        }
    }

    fn stats(&self) -> EngineStats {
        self.world.hosts[1].engine.as_ref().map(|engine| engine.stats()).unwrap_or_default()
    }

    fn work(&self) -> Work {
        self.world.hosts[1].engine.as_ref().map(|engine| engine.work()).unwrap_or_default()
    }

    /// Lets everyone continue; `traffic`: the bystander, too.
    fn run(&mut self, time: Duration, traffic: bool, mut done: impl FnMut(&mut Arena) -> bool) {
        let end = self.world.now() + time;
        let target = Target { stag: self.application.region.stag(), durable: self.application.durable.stag() };
        while self.world.now() < end && !done(self) {
            let now = self.world.now();
            let mut wake = Some(end);
            for Raid { attack, den, begin, .. } in &mut self.raids {
                // Before that it only receives what is sent to all.
                den.turn(now);
                if now < *begin {
                    wake = wake.min(Some(*begin));
                    continue;
                }
                let next = attack.turn(now, den, &target);
                wake = [wake, next, den.deadline()].into_iter().flatten().min();
            }
            self.application.turn(&mut self.world);
            self.bystander.turn(now, !traffic);
            self.world.step_until(wake);
        }
    }
}

impl Application {
    fn new(world: &World, scene: &Scene) -> Application {
        let host = &world.hosts[1];
        let (sink, requests) = unbounded();
        let (reply, _) = unbounded();
        let (listener, requests_to) = (ListenerId(u32::from(PORT)), EventSink::new(sink, None));
        host.command(Command::Listen {
            listener,
            address: None,
            port: PORT,
            backlog: BACKLOG,
            requests: requests_to,
            watch: Watch::default(),
            reply,
        });
        let buffers = StreamOptions { send_buffer: LEFT_UNREAD, ..StreamOptions::default() };
        let streams = host.listen_streams(PLAIN_PORT, BACKLOG, buffers);
        let region = host.register(vec![3; REGION], Access::ALL);
        let committed = Arc::new(AtomicU64::new(0));
        let store = Box::new(CountingStore(Arc::clone(&committed)));
        let scope = Scope::Domain(DomainId(1));
        let durable =
            host.regions.register_durable(vec![4; REGION], Access::ALL, scope, TaggedBase::Zero, store, false);
        let (durable, committer) = durable.expect("the table has room");
        let committer = if scene.commit_in_engine {
            durable.commit_in_engines(committer).expect("the region is durable");
            None
        } else {
            Some(committer)
        };
        Application {
            requests,
            streams,
            open_streams: Vec::new(),
            accepted: Vec::new(),
            free: Vec::new(),
            region,
            durable,
            committer,
            device_until: Instant::ZERO,
            committed,
            charged: 0,
            newcomer: None,
        }
    }

    fn turn(&mut self, world: &mut World) {
        let now = world.now();
        while let Ok(request) = self.requests.try_recv() {
            if request.peer.ip() == world.hosts[0].address {
                if let Some(newcomer) = &self.newcomer {
                    world.hosts[1].accept(newcomer.target(), &request, StartupOptions::default());
                }
                continue;
            }
            let mut pair = match self.free.pop() {
                Some(number) => world.hosts[1].pair_with_number(number, options()),
                None => world.hosts[1].pair(options()),
            };
            for id in 0..8 {
                let room = uwarp_engine::work::Sge { stag: self.region.stag(), length: 4096, offset: 0 };
                pair.post_receive(id, &[room]);
            }
            world.hosts[1].accept(&pair, &request, with(COMMIT));
            self.accepted.push(pair);
        }
        let free = &mut self.free;
        self.accepted.retain_mut(|pair| {
            while pair.poll().is_some() {}
            let ended = pair.events.try_iter().any(|event| !matches!(event, ConnectionEvent::Established(_)));
            if ended {
                world.hosts[1].command(Command::DestroyQueuePair { queue_pair: pair.number, done: None });
                free.push(pair.number);
            }
            !ended
        });
        while let Ok(stream) = self.streams.try_recv() {
            self.open_streams.extend(stream.take());
        }
        for mut stream in self.open_streams.drain(..) {
            stream.write(&vec![5; LEFT_UNREAD]);
            stream.leave();
        }
        self.commit(now);
    }

    /// The committer's thread: its copies take its own time only.
    fn commit(&mut self, now: Instant) {
        let Some(committer) = &mut self.committer else { return };
        if self.device_until <= now && committer.work() > 0 {
            let written = self.committed.load(Relaxed) - self.charged;
            self.charged += written;
            self.device_until = now + Duration::from_nanos(written * COMMITTED_OCTET / 1000);
        }
    }
}

/// Runs these attacks at once beside the bystander; with none, the bystander alone.
///
/// # Panics
/// The bystander cannot connect before the attacks.
pub fn measure(scene: &Scene, attacks: Vec<(String, Box<dyn Attack>)>) -> Measured {
    let mut arena = Arena::new(scene);
    let mut measured = Measured::default();
    let warm_up = attacks.iter().map(|(_, attack)| attack.warm_up()).max().unwrap_or_default();
    measured.greedy = attacks.iter().filter(|(_, attack)| attack.is_greedy()).count() as u32;
    arena.run(Duration::from_millis(1), false, |_| false);
    let honest = arena.stats();
    let before = arena.work();
    for (number, (name, attack)) in attacks.into_iter().enumerate() {
        let den = Den::in_world(&arena.world, number as u8, 1);
        let begin = arena.world.now() + (warm_up - attack.warm_up());
        arena.raids.push(Raid { name, attack, den, begin });
    }
    arena.run(warm_up, false, |_| false);
    arena.run(RAMP, true, |_| false);
    let begun = arena.bystander.begin();
    arena.run(WINDOW, true, |_| false);
    measured.bystander = arena.bystander.achieved(arena.world.now(), begun);
    let stats = arena.stats();
    for Raid { name, attack, den, .. } in &arena.raids {
        if !attack.works(&stats, den) {
            measured.fizzled.push(name.clone());
        }
        measured.judged.extend(attack.judge(&stats, den));
    }
    arena.run(PATIENCE, false, |arena| arena.bystander.is_idle());
    arena.application.newcomer = Some(Newcomer::connect(&mut arena.world, PORT));
    arena.run(PATIENCE, false, |arena| {
        let now = arena.world.now();
        arena.application.newcomer.as_mut().is_some_and(|newcomer| newcomer.took(now).is_some())
    });
    measured.opening = arena.application.newcomer.as_mut().and_then(|newcomer| newcomer.took(arena.world.now()));
    settle_account(&arena, &before, &mut measured);
    leave(&mut arena, &honest, &mut measured);
    measured
}

fn settle_account(arena: &Arena, before: &Work, measured: &mut Measured) {
    measured.attacker_octets = arena.raids.iter().map(|raid| raid.den.octets).sum();
    let work = arena.work().since(before);
    measured.work = PRICES.iter().map(|(name, count, _)| (*name, count(&work) as f64)).collect();
    measured.work.push(("commit-octets", arena.application.committed.load(Relaxed) as f64));
    measured.work.push(("attacker-frames", arena.raids.iter().map(|raid| raid.den.frames).sum::<u64>() as f64));
}

/// The attackers leave, and all their resources must be returned.
fn leave(arena: &mut Arena, honest: &EngineStats, measured: &mut Measured) {
    let now = arena.world.now();
    for Raid { attack, den, .. } in &mut arena.raids {
        attack.leave(now, den);
    }
    arena.raids.clear();
    let committed = arena.application.committed.load(Relaxed);
    // The newcomer stays.
    let connections = honest.connections.len() + usize::from(measured.opening.is_some());
    let missing = |stats: &EngineStats| {
        let pools = &stats.pools;
        let mut missing = Vec::new();
        let mut expect = |what: &str, now: u64, before: u64| {
            if now != before {
                missing.push(format!("{what}: {now}, not {before}"));
            }
        };
        expect("transmit buffers", pools.transmit_free.into(), pools.transmit_total.into());
        expect("receive buffers", pools.receive_free.into(), pools.receive_total.into());
        expect("octets of gather buffers", stats.gather_octets, 0);
        expect("octets of fragments", stats.fragment_octets, 0);
        expect("connections", stats.connections.len() as u64, connections as u64);
        missing
    };
    let end = arena.world.now() + RETURN;
    // Checked occasionally: it takes longer than a step.
    while arena.world.now() < end && !missing(&arena.stats()).is_empty() {
        arena.run(RETURN / 1000, false, |_| false);
    }
    measured.missing = missing(&arena.stats());
    measured.committed_afterwards = arena.application.committed.load(Relaxed) - committed;
    if let Some(status) = arena.bystander.failure() {
        measured.broken = Some(format!("its work ended as {status:?}"));
    } else if !arena.bystander.is_idle() {
        measured.broken = Some("its work came to no end".to_owned());
    }
}
