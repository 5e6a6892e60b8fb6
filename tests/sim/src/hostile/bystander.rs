//! The bystander: an honest host with connections to the target. One moves data in both directions; the others play
//! ping-pong.

use std::time::Duration;

use uwarp_engine::command::{ConnectionEvent, StartupOptions};
use uwarp_engine::work::{SendOpcode, Sge, Status};
use uwarp_memory::{Access, Registration};
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{Pair, PairOptions, World};

/// Octets of one Write or Read.
const LENGTH: u32 = 64 << 10;
/// Writes under way, and Reads under way.
const DEPTH: u64 = 2;
/// Octets of a ping.
const PING: u32 = 64;

const WRITTEN: u64 = 1;
const READ: u64 = 2;
const SENT: u64 = 3;
const RECEIVED: u64 = 4;

/// The bystander.
pub struct Bystander {
    bulk: Pair,
    bulk_target: Pair,
    own: Registration,
    remote: Registration,
    writes: u64,
    reads: u64,
    posted: [u64; 2],
    games: Vec<Game>,
    latencies: Vec<u64>,
    failed: Option<Status>,
}

/// A game of ping-pong.
struct Game {
    /// At the bystander, and at the target.
    ends: [Pair; 2],
    memory: [Registration; 2],
    pinged_at: Option<Instant>,
}

/// Its achievement in some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Achieved {
    /// Octets written to the target.
    pub written: u64,
    /// Octets read from it.
    pub read: u64,
    /// The 99th percentile of the round-trip times, in nanoseconds.
    pub p99: u64,
    /// Round trips.
    pub pings: usize,
}

impl Game {
    fn begin(world: &World, ends: [Pair; 2]) -> Game {
        let memory = [0, 1].map(|host: usize| {
            world.hosts[host].register(vec![0; 2 * PING as usize], Access::LOCAL_READ | Access::LOCAL_WRITE)
        });
        let mut game = Game { ends, memory, pinged_at: None };
        for end in [0, 1] {
            for _ in 0..16 {
                game.receive(end);
            }
        }
        game
    }

    fn receive(&mut self, end: usize) {
        let room = Sge { stag: self.memory[end].stag(), length: PING, offset: PING.into() };
        assert!(self.ends[end].post_receive(RECEIVED, &[room]), "the receive queue has room");
    }

    fn send(&mut self, end: usize) {
        let ping = Sge { stag: self.memory[end].stag(), length: PING, offset: 0 };
        self.ends[end].post_simple(SENT, SendOpcode::Send, Some(ping), (0, 0));
    }

    /// Answers and reaps; returns the time of a completed round trip.
    fn turn(&mut self, now: Instant) -> Result<Option<Duration>, Status> {
        while let Some(completion) = self.ends[1].poll() {
            if completion.status == Status::Success && completion.id == RECEIVED {
                self.receive(1);
                self.send(1);
            }
        }
        let mut took = None;
        while let Some(completion) = self.ends[0].poll() {
            match completion.status {
                Status::Success if completion.id == RECEIVED => {
                    self.receive(0);
                    took = self.pinged_at.take().map(|at| now - at);
                }
                Status::Success => {}
                status => return Err(status),
            }
        }
        Ok(took)
    }
}

impl Bystander {
    /// Connects host 0 of the world to host 1, with `pings` connections for ping-pong.
    ///
    /// # Panics
    /// It cannot connect, although nobody is hostile yet.
    pub fn connect(world: &mut World, port: u16, pings: u32) -> Bystander {
        let requests = world.hosts[1].listen(port);
        let options = PairOptions { complete_on_ack: true, ..PairOptions::default() };
        let pair = |world: &mut World| {
            let (here, there) = (world.hosts[0].pair(options), world.hosts[1].pair(options));
            world.join((0, &here), (1, &there), &requests, port);
            [here, there]
        };
        let [bulk, bulk_target] = pair(world);
        let games = (0..pings)
            .map(|_| {
                let ends = pair(world);
                Game::begin(world, ends)
            })
            .collect();
        let length = LENGTH as usize;
        let own = world.hosts[0].register(vec![1; 2 * length], Access::LOCAL_READ | Access::LOCAL_WRITE);
        let remote = world.hosts[1].register(vec![2; 2 * length], Access::REMOTE_READ | Access::REMOTE_WRITE);
        Bystander {
            bulk,
            bulk_target,
            own,
            remote,
            writes: 0,
            reads: 0,
            posted: [0; 2],
            games,
            latencies: Vec::new(),
            failed: None,
        }
    }

    /// Does what is due: posts, reaps, answers. `ends`: starts nothing new.
    ///
    /// # Panics
    /// A queue has no room.
    pub fn turn(&mut self, now: Instant, ends: bool) {
        while let Some(completion) = self.bulk.poll() {
            match (completion.status, completion.id) {
                (Status::Success, WRITTEN) => self.writes += 1,
                (Status::Success, _) => self.reads += 1,
                (status, _) => self.failed = Some(status),
            }
        }
        while self.bulk_target.poll().is_some() {}
        for game in &mut self.games {
            match game.turn(now) {
                Ok(took) => self.latencies.extend(took.map(|took| took.as_nanos() as u64)),
                Err(status) => self.failed = Some(status),
            }
        }
        if ends || self.failed.is_some() {
            return;
        }
        let (own, remote) = (self.own.stag(), self.remote.stag());
        let kinds = [(WRITTEN, self.writes, SendOpcode::Write), (READ, self.reads, SendOpcode::Read)];
        for (posted, (id, done, opcode)) in self.posted.iter_mut().zip(kinds) {
            let offset = (id - WRITTEN) * u64::from(LENGTH);
            while *posted - done < DEPTH {
                let local = Sge { stag: own, length: LENGTH, offset };
                assert!(self.bulk.post_simple(id, opcode, Some(local), (remote, offset)), "the send queue has room");
                *posted += 1;
            }
        }
        for game in self.games.iter_mut().filter(|game| game.pinged_at.is_none()) {
            game.pinged_at = Some(now);
            game.send(0);
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        let games = self.games.iter().all(|game| game.pinged_at.is_none());
        self.failed.is_some() || self.posted == [self.writes, self.reads] && games
    }

    /// How one of its connections failed.
    pub fn failure(&self) -> Option<Status> {
        self.failed
    }

    /// Resets the measurement; returns the argument for [`Bystander::achieved`].
    pub fn begin(&mut self) -> (u64, u64) {
        self.latencies.clear();
        (self.writes, self.reads)
    }

    /// The achievement since `begun`. A ping under way counts with its age.
    pub fn achieved(&self, now: Instant, (writes, reads): (u64, u64)) -> Achieved {
        let mut latencies = self.latencies.clone();
        let under_way = self.games.iter().filter_map(|game| game.pinged_at);
        latencies.extend(under_way.map(|at| (now - at).as_nanos() as u64));
        latencies.sort_unstable();
        let p99 = latencies.get(latencies.len() * 99 / 100).or(latencies.last()).copied();
        Achieved {
            written: (self.writes - writes) * u64::from(LENGTH),
            read: (self.reads - reads) * u64::from(LENGTH),
            p99: p99.unwrap_or(u64::MAX),
            pings: latencies.len(),
        }
    }
}

/// An honest newcomer, which connects to the port that is attacked.
pub struct Newcomer {
    pair: Pair,
    target: Pair,
    begun: Instant,
    took: Option<Duration>,
}

impl Newcomer {
    /// Starts to connect host 0 to host 1.
    pub fn connect(world: &mut World, port: u16) -> Newcomer {
        let (pair, target) = (world.hosts[0].pair(PairOptions::default()), world.hosts[1].pair(PairOptions::default()));
        let remote = (world.hosts[1].address, port);
        world.hosts[0].connect(&pair, remote, StartupOptions::default());
        Newcomer { pair, target, begun: world.now(), took: None }
    }

    /// The queue pair at the target, for its request.
    pub fn target(&self) -> &Pair {
        &self.target
    }

    /// How long it took, once it is connected.
    pub fn took(&mut self, now: Instant) -> Option<Duration> {
        if self.took.is_none() && matches!(self.pair.events.try_recv(), Ok(ConnectionEvent::Established(_))) {
            self.took = Some(now - self.begun);
        }
        self.took
    }
}
