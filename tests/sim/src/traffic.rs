//! A seeded mix of Sends, Writes and Reads in both directions over several streams, with every octet checked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{Command, ConnectionEvent, ConnectionRequest, StartupOptions};
use uwarp_engine::ports::decorated::FaultRates;
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::work::{CompletionOpcode, SendOpcode, Sge};
use uwarp_memory::{Access, Registration};
use uwarp_tcp::{Instant, KeepAlive};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World, address6, middlebox, with_ipv6};
use uwarp_testkit::sim::SimOptions;

const PORT: u16 = 7471;

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Faults of the network.
    pub network: SimOptions,
    /// Both hosts.
    pub host: HostOptions,
    /// Streams between the two hosts.
    pub streams: usize,
    /// The fewest octets that each end of a stream moves, half of them in each direction.
    pub octets: usize,
    /// Longest message: some have this length, and some have none.
    pub longest: usize,
    /// Octets of random data that each end sends from; not below `longest`.
    pub source: usize,
    /// Virtual time after which a run counts as stuck.
    pub limit: Duration,
    /// Markers in what the first host receives, and in what the second receives.
    pub markers: [bool; 2],
    /// What a middlebox in front of both hosts does to segments.
    pub recutting: Option<Recutting>,
    /// Usual messages take the short ways.
    pub hot: bool,
    /// The hosts use IPv6.
    pub ipv6: bool,
    /// TCP offers selective acknowledgments.
    pub sack: bool,
    /// Nobody gives a stream up for want of answers within a minute.
    pub patient: bool,
    /// The tag of all frames.
    pub vlan: Option<u16>,
    /// Sends and Writes complete when they are acknowledged.
    pub complete_on_ack: bool,
    /// Most operations of an end that are posted and not completed.
    pub outstanding: usize,
}

impl Default for Plan {
    /// Four streams, 256 KiB in each direction in total, 1 % of every fault.
    fn default() -> Plan {
        Plan {
            network: SimOptions {
                delay: Duration::from_micros(10),
                loss: 0.01,
                duplication: 0.01,
                reordering: 0.01,
                corruption: 0.01,
                hidden_corruption: 0.0,
                ..SimOptions::default()
            },
            host: HostOptions::default(),
            streams: 4,
            octets: 64 << 10,
            longest: 256 << 10,
            source: 320 << 10,
            limit: Duration::from_secs(300),
            markers: [false; 2],
            recutting: middlebox(),
            hot: true,
            ipv6: false,
            sack: true,
            patient: false,
            vlan: None,
            complete_on_ack: false,
            outstanding: usize::MAX,
        }
    }
}

/// Faults and recoveries by kind.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// How often each kind was met.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Octets that arrived intact, by the host that they came from.
    pub octets: [u64; 2],
    /// Virtual time that it took.
    pub time: Duration,
    /// Frames sent, and segments that took the short ways when they were received and sent.
    pub frames: [u64; 3],
    /// Turns of all engines.
    pub turns: u64,
    /// All that a run did: a digest of its frames, the completions in their order, the final state of both engines.
    pub trace: Vec<String>,
}

impl Tally {
    fn add(&mut self, kind: &'static str, count: u64) {
        *self.kinds.entry(kind).or_default() += count;
    }

    /// Takes in another run.
    pub fn merge(&mut self, other: &Tally) {
        for (kind, count) in &other.kinds {
            self.add(kind, *count);
        }
        for (own, others) in self.octets.iter_mut().zip(other.octets) {
            *own += others;
        }
        self.time += other.time;
        self.turns += other.turns;
        for (own, others) in self.frames.iter_mut().zip(other.frames) {
            *own += others;
        }
    }

    /// The kinds that were never met.
    pub fn missing(&self) -> Vec<&'static str> {
        self.kinds.iter().filter(|(_, count)| **count == 0).map(|(kind, _)| *kind).collect()
    }
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    opcode: SendOpcode,
    /// Offset in the sender's source, or for a read in the peer's.
    from: usize,
    /// Offset in the peer's target or inbox, or for a read in our own sink.
    to: usize,
    length: usize,
}

/// One end of a stream.
#[derive(Debug)]
struct End {
    host: usize,
    pair: Pair,
    operations: Vec<Operation>,
    octets: Vec<u8>,
    source: Registration,
    target: Registration,
    inbox: Registration,
    sink: Registration,
    posted: usize,
    completed: usize,
    received: usize,
    established: bool,
}

/// One stream and the work of both of its ends.
#[derive(Debug)]
struct Stream {
    ends: [End; 2],
    /// How often the stream broke and was set up again.
    restarts: u64,
    markers: [bool; 2],
    complete_on_ack: bool,
    outstanding: usize,
    ipv6: bool,
    /// Its completions, at the times when they were reaped.
    trace: Vec<String>,
}

fn plan_operations(random: &mut fastrand::Rng, plan: &Plan) -> Vec<Operation> {
    let mut operations = Vec::new();
    let (mut target, mut inbox, mut sink) = (0, 0, 0);
    // Writes and Sends go to the peer, Reads come from it.
    while 2 * (target + inbox) < plan.octets || 2 * sink < plan.octets {
        let length = match random.u32(0..8) {
            0 => random.usize(0..=3),
            1 => random.usize(0..=128),
            2 => random.usize(1400..=1460),
            3 => random.usize(0..=8192),
            4 => match random.u32(0..8) {
                0 => plan.longest,
                _ => random.usize(0..=plan.longest),
            },
            _ => random.usize(0..=plan.longest / 16),
        }
        .min(plan.longest);
        let (opcode, place) = match random.u32(0..3) {
            0 => (SendOpcode::Write, &mut target),
            1 => (SendOpcode::Send, &mut inbox),
            _ => (SendOpcode::Read, &mut sink),
        };
        let from = random.usize(0..=plan.source - length);
        operations.push(Operation { opcode, from, to: *place, length });
        *place += length;
    }
    // The final message: everything before it has arrived when it does.
    operations.push(Operation { opcode: SendOpcode::Send, from: 0, to: inbox, length: 0 });
    operations
}

fn extent(operations: &[Operation], opcode: SendOpcode) -> usize {
    operations.iter().filter(|one| one.opcode == opcode).map(|one| one.length).sum()
}

fn part(region: &Registration, offset: usize, length: usize) -> Sge {
    Sge { stag: region.stag(), length: length as u32, offset: region.base_offset() + offset as u64 }
}

fn pair_options(complete_on_ack: bool) -> PairOptions {
    PairOptions { send_depth: 32, receive_depth: 512, completions: 1024, complete_on_ack }
}

impl End {
    fn new(
        world: &mut World,
        host: usize,
        complete_on_ack: bool,
        octets: Vec<u8>,
        own: Vec<Operation>,
        peer: &[Operation],
    ) -> End {
        let pair = world.hosts[host].pair(pair_options(complete_on_ack));
        let register = |octets, access| world.hosts[host].register(octets, access);
        End {
            host,
            source: register(octets.clone(), Access::REMOTE_READ),
            target: register(vec![0; extent(peer, SendOpcode::Write)], Access::REMOTE_WRITE),
            inbox: register(vec![0; extent(peer, SendOpcode::Send)], Access::LOCAL_WRITE),
            sink: register(vec![0; extent(&own, SendOpcode::Read)], Access::LOCAL_WRITE),
            pair,
            operations: own,
            octets,
            posted: 0,
            completed: 0,
            received: 0,
            established: false,
        }
    }

    fn post_receives(&mut self, peer: &[Operation]) {
        for one in peer.iter().filter(|one| one.opcode == SendOpcode::Send) {
            assert!(self.pair.post_receive(one.to as u64, &[part(&self.inbox, one.to, one.length)]));
        }
    }

    fn is_done(&self, peer: &[Operation]) -> bool {
        let sends = peer.iter().filter(|one| one.opcode == SendOpcode::Send).count();
        self.completed == self.operations.len() && self.received == sends
    }
}

impl Stream {
    fn new(world: &mut World, random: &mut fastrand::Rng, plan: &Plan) -> Stream {
        let (first, second) = (plan_operations(random, plan), plan_operations(random, plan));
        let mut octets = || {
            let mut octets = vec![0; plan.source];
            random.fill(&mut octets);
            octets
        };
        let left = End::new(world, 0, plan.complete_on_ack, octets(), first.clone(), &second);
        let right = End::new(world, 1, plan.complete_on_ack, octets(), second, &first);
        let mut stream = Stream {
            ends: [left, right],
            restarts: 0,
            markers: plan.markers,
            complete_on_ack: plan.complete_on_ack,
            outstanding: plan.outstanding,
            ipv6: plan.ipv6,
            trace: Vec::new(),
        };
        stream.start(world);
        stream
    }

    fn start(&mut self, world: &mut World) {
        let [left, right] = &mut self.ends;
        left.post_receives(&right.operations);
        right.post_receives(&left.operations);
        let address: IpAddr = match self.ipv6 {
            true => address6(right.host).into(),
            false => world.hosts[right.host].address.into(),
        };
        let number = right.pair.number;
        // The private data identifies the queue pair.
        let private_data = number.to_be_bytes().to_vec();
        let timeout = Duration::from_secs(60);
        let markers = self.markers[0];
        let options = StartupOptions { private_data, timeout, markers, ..StartupOptions::default() };
        world.hosts[left.host].connect(&left.pair, (address, PORT), options);
    }

    fn restart(&mut self, world: &mut World) {
        self.restarts += 1;
        for end in &mut self.ends {
            let queue_pair = end.pair.number;
            world.hosts[end.host].command(Command::Abort { queue_pair });
            world.hosts[end.host].command(Command::DestroyQueuePair { queue_pair, done: None });
            end.pair = world.hosts[end.host].pair(pair_options(self.complete_on_ack));
            (end.posted, end.completed, end.received, end.established) = (0, 0, 0, false);
        }
        self.start(world);
    }

    fn is_done(&self) -> bool {
        let [left, right] = &self.ends;
        left.is_done(&right.operations) && right.is_done(&left.operations)
    }

    /// Posts, reaps and checks for events of both ends. True: the stream broke.
    fn work(&mut self, now: Instant) -> Result<bool, String> {
        let mut broke = false;
        for index in 0..2 {
            let [left, right] = &mut self.ends;
            let (end, peer) = if index == 0 { (left, right) } else { (right, left) };
            if let Ok(event) = end.pair.events.try_recv() {
                match event {
                    ConnectionEvent::Established(_) => end.established = true,
                    ConnectionEvent::Disconnected(_) => broke = true,
                    other => return Err(format!("a stream came to nothing: {other:?}")),
                }
            }
            while let Some(done) = end.pair.poll() {
                self.trace.push(format!("{now:?} {index} {done:?}"));
                if !done.status.is_success() {
                    broke = true;
                } else if done.opcode == CompletionOpcode::Receive {
                    let expected = peer.operations.iter().filter(|one| one.opcode == SendOpcode::Send);
                    let expected = expected.clone().nth(end.received).copied();
                    if expected.is_none_or(|one| one.length != done.length as usize || one.to as u64 != done.id) {
                        return Err(format!("receive {} is {done:?}, not {expected:?}", end.received));
                    }
                    end.received += 1;
                } else {
                    if done.id != end.completed as u64 {
                        return Err(format!("{done:?} instead of number {}", end.completed));
                    }
                    end.completed += 1;
                }
            }
            while end.established && end.posted < end.operations.len() && end.posted - end.completed < self.outstanding
            {
                let one = end.operations[end.posted];
                let local = match one.opcode {
                    SendOpcode::Read => part(&end.sink, one.to, one.length),
                    _ => part(&end.source, one.from, one.length),
                };
                let remote = match one.opcode {
                    SendOpcode::Read => (peer.source.stag(), peer.source.base_offset() + one.from as u64),
                    _ => (peer.target.stag(), peer.target.base_offset() + one.to as u64),
                };
                if !end.pair.post_simple(end.posted as u64, one.opcode, Some(local), remote) {
                    break;
                }
                end.posted += 1;
            }
        }
        Ok(broke)
    }

    /// Compares everything that arrived; returns the number of octets, by the host that they came from.
    fn verify(&self) -> Result<[u64; 2], String> {
        let [left, right] = &self.ends;
        let mut octets = [0; 2];
        for (end, peer) in [(left, right), (right, left)] {
            for one in &end.operations {
                let (region, wanted) = match one.opcode {
                    SendOpcode::Write => (&peer.target, &end.octets),
                    SendOpcode::Read => (&end.sink, &peer.octets),
                    _ => (&peer.inbox, &end.octets),
                };
                let mut found = vec![0; one.length];
                region.read(one.to, &mut found).map_err(|error| error.to_string())?;
                if found != wanted[one.from..one.from + one.length] {
                    let at = found.iter().zip(&wanted[one.from..]).position(|(found, wanted)| found != wanted);
                    return Err(format!("wrong octets at {at:?} of {one:?}"));
                }
                let from = if one.opcode == SendOpcode::Read { peer } else { end };
                octets[from.host] += one.length as u64;
            }
        }
        Ok(octets)
    }
}

/// Runs the plan with a seed.
///
/// # Errors
/// The failure, with the seed.
pub fn run(seed: u64, plan: &Plan) -> Result<Tally, String> {
    try_run(seed, plan).map_err(|error| format!("seed {seed}: {error}"))
}

fn try_run(seed: u64, plan: &Plan) -> Result<Tally, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(random.u64(..), plan.network);
    for number in 0..2 {
        world.add(plan.host, |config| {
            (config.hot, config.vlan, config.tcp.sack) = (plan.hot, plan.vlan, plan.sack);
            if plan.patient {
                let minute = Duration::from_secs(60);
                (config.tcp.user_timeout, config.iwarp.startup_timeout) = (Some(minute), minute);
                config.tcp.keep_alive = config.tcp.keep_alive.map(|usual| KeepAlive { probes: 120, ..usual });
            }
            if plan.ipv6 {
                with_ipv6(number)(config);
            }
        });
    }
    if let Some(recutting) = plan.recutting {
        for host in &world.hosts {
            let faults = Some(FaultRates { seed, recutting, ..FaultRates::default() });
            host.command(Command::SetFaults { faults });
        }
    }
    let requests = world.hosts[1].listen(PORT);
    let mut streams: Vec<Stream> = (0..plan.streams).map(|_| Stream::new(&mut world, &mut random, plan)).collect();
    let begin = world.now();
    // With many streams an application checks a few at a time, as its own loop would.
    let mut first = 0;
    loop {
        accept(&mut world, &streams, &requests);
        let count = streams.len().min(16);
        for step in 0..count {
            let stream = (first + step) % streams.len();
            let stream = &mut streams[stream];
            if stream.work(world.now())? {
                // Only damage that TCP could not detect breaks a stream, at most one per fault.
                if stream.restarts >= world.network.counters().hidden_corrupted {
                    return Err("a stream broke without a reason".to_owned());
                }
                stream.restart(&mut world);
            }
        }
        first = (first + count) % streams.len();
        if first == 0 && streams.iter().all(Stream::is_done) {
            break;
        }
        if world.now() - begin > plan.limit {
            return Err(stuck(&world, &streams));
        }
        if !world.step() && first == 0 {
            return Err(format!("nothing moves any more; {}", stuck(&world, &streams)));
        }
    }
    let mut tally = Tally { time: world.now() - begin, ..Tally::default() };
    let counters = world.network.counters();
    tally.trace.push(format!("{counters:?}"));
    for host in &world.hosts {
        let Some(engine) = &host.engine else { continue };
        let mut stats = engine.stats();
        let frames = [stats.counters.frames_sent, stats.counters.hot_received, stats.counters.hot_sent];
        tally.merge(&Tally { frames, turns: stats.counters.turns, ..Tally::default() });
        // Left out: which way a segment took, and how often an engine was turned, also for timers that fire in vain.
        (stats.counters.hot_received, stats.counters.hot_sent, stats.counters.turns, stats.counters.busy_turns) =
            (0, 0, 0, 0);
        tally.trace.push(format!("{stats:?}"));
    }
    for stream in &mut streams {
        tally.trace.append(&mut stream.trace);
        let octets = stream.verify()?;
        tally.merge(&Tally { octets, ..Tally::default() });
        tally.add("recovered: stream set up anew", stream.restarts);
        for end in &stream.ends {
            count_lengths(&end.operations, plan.longest, &mut tally);
        }
    }
    count(&world, &mut tally, plan);
    end(&mut world, &streams, plan)?;
    Ok(tally)
}

fn accept(world: &mut World, streams: &[Stream], requests: &Receiver<ConnectionRequest>) {
    while let Ok(request) = requests.try_recv() {
        let number = request.private_data.first_chunk().map_or(u32::MAX, |octets| u32::from_be_bytes(*octets));
        match streams.iter().find(|stream| stream.ends[1].pair.number == number) {
            Some(stream) => {
                let options = StartupOptions { markers: stream.markers[1], ..StartupOptions::default() };
                world.hosts[1].accept(&stream.ends[1].pair, &request, options);
            }
            None => world.hosts[1].command(Command::Reject { request: request.request, private_data: Vec::new() }),
        }
    }
}

/// Whether a run failed because it stood still.
pub fn is_stuck(error: &str) -> bool {
    error.contains(STUCK)
}

/// What the text of such a failure contains.
const STUCK: &str = "streams are not done after";

fn stuck(world: &World, streams: &[Stream]) -> String {
    let left = streams.iter().filter(|stream| !stream.is_done()).count();
    let mut text = format!("{left} of {} {STUCK} {:?}", streams.len(), world.now());
    for (number, stream) in streams.iter().enumerate().filter(|(_, stream)| !stream.is_done()).take(2) {
        for end in &stream.ends {
            let (posted, completed, received) = (end.posted, end.completed, end.received);
            let all = end.operations.len();
            text += &format!(
                "\nstream {number}, host {}: {posted} posted, {completed} of {all}, {received} received",
                end.host
            );
            if let Some(engine) = &world.hosts[end.host].engine {
                let stats = engine.stats();
                for connection in &stats.connections {
                    if connection.queue_pair == Some(end.pair.number) {
                        text += &format!(" {connection:?}");
                    }
                }
            }
        }
    }
    for host in &world.hosts {
        if let Some(engine) = &host.engine {
            let mut stats = engine.stats();
            stats.connections.clear();
            stats.queue_pairs.clear();
            text += &format!("\n{stats:?}");
        }
    }
    text
}

/// Counts the shortest and the longest messages, except the final one, which is always empty.
fn count_lengths(operations: &[Operation], longest: usize, tally: &mut Tally) {
    let Some((_, operations)) = operations.split_last() else { return };
    for (opcode, empty, whole) in [
        (SendOpcode::Write, "message: Write of 0 octets", "message: Write of the greatest length"),
        (SendOpcode::Send, "message: Send of 0 octets", "message: Send of the greatest length"),
        (SendOpcode::Read, "message: Read of 0 octets", "message: Read of the greatest length"),
    ] {
        for (length, kind) in [(0, empty), (longest, whole)] {
            let count = operations.iter().filter(|one| one.opcode == opcode && one.length == length).count();
            tally.add(kind, count as u64);
        }
    }
}

fn count(world: &World, tally: &mut Tally, plan: &Plan) {
    let counters = world.network.counters();
    tally.add("fault: lost", counters.lost);
    tally.add("fault: duplicated", counters.duplicated);
    tally.add("fault: reordered", counters.reordered);
    tally.add("fault: corrupted", counters.corrupted);
    if plan.network.hidden_corruption > 0.0 {
        tally.add("fault: corrupted behind the checksum", counters.hidden_corrupted);
    }
    for host in &world.hosts {
        let Some(engine) = &host.engine else { continue };
        let stats = engine.stats();
        let dropped = |reason: &str| stats.drops.get(reason).copied().unwrap_or(0);
        tally.add("recovered: retransmission", stats.counters.retransmissions);
        if plan.recutting.is_some() {
            for (kind, name) in [("receive-cut", "middlebox: cut"), ("receive-joined", "middlebox: joined")] {
                tally.add(name, stats.faults.get(kind).copied().unwrap_or(0));
            }
        }
        if plan.host.segmentation > 0 {
            tally.add("segmentation: frames left to the device", stats.counters.frames_to_be_cut);
        }
        if plan.host.device_holds > 0 {
            tally.add("recovered: retransmission of what the device held", stats.counters.retransmission_copies);
        }
        tally.add("recovered: duplicate dropped", dropped("duplicate"));
        tally.add("recovered: bad TCP checksum dropped", dropped("l4-checksum"));
        tally.add("recovered: bad IP checksum dropped", dropped("ip-checksum"));
        if plan.network.hidden_corruption > 0.0 {
            tally.add("recovered: bad CRC found", stats.counters.crc_errors);
        }
        for connection in &stats.connections {
            tally.add("recovered: by fast recovery", u64::from(connection.tcp.counters.fast_recoveries));
            tally.add("recovered: by retransmission time-out", u64::from(connection.tcp.counters.timeouts));
            tally.add("recovered: by tail loss probe", u64::from(connection.tcp.counters.tail_loss_probes));
        }
    }
    if plan.network.hidden_corruption == 0.0 {
        tally.kinds.remove("recovered: stream set up anew");
    }
}

/// Closes everything and checks that every buffer is returned.
fn end(world: &mut World, streams: &[Stream], plan: &Plan) -> Result<(), String> {
    for stream in streams {
        let end = &stream.ends[0];
        world.hosts[end.host].command(Command::Disconnect { queue_pair: end.pair.number });
    }
    let over = world.run_until(Duration::from_secs(120), |world| {
        world.hosts.iter().all(|host| host.engine.as_ref().is_none_or(|engine| engine.flow_count() == 0))
    });
    if !over {
        return Err(format!("connections stay: {:?}", world.hosts[0].engine.as_ref().map(|engine| engine.stats())));
    }
    world.run(Duration::from_millis(10));
    for host in &world.hosts {
        let Some(engine) = &host.engine else { continue };
        let stats = engine.stats();
        let pools = stats.pools;
        // The device keeps its last frames.
        if engine.buffers_held() != 0
            || pools.transmit_free + (plan.host.device_holds as u32) < pools.transmit_total
            || pools.receive_free != pools.receive_total
        {
            return Err(format!("buffers are missing: {stats:?}"));
        }
    }
    Ok(())
}
