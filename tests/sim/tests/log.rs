//! The replicated log over whole engines: writers and targets die at random, on a network that loses frames, over
//! stores that lose unsynced writes. The remaining ones find what was acknowledged, and no head is without its record.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{Command, ConnectionEvent, ConnectionRequest, Features};
use uwarp_engine::work::{CompletionOpcode, SendElement, SendFlags, SendOpcode, Sge, Status};
use uwarp_log::layout::{Geometry, Identity};
use uwarp_log::message::{ToClient, ToTarget, Window};
use uwarp_log::record::Kind;
use uwarp_log::target::{self, Verdict};
use uwarp_log::writer::{Action, Options, Writer};
use uwarp_memory::{Access, Committer, DomainId, Registration, Scope, Store, TaggedBase};
use uwarp_sim_tests::pairs::{PORT, element, sge, with};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

const FEATURES: Features = Features { atomics: false, immediate: true, commit: true, infiniband: false };
const SEGMENT: u32 = 4096;
const MESSAGE: usize = 1024;
const MESSAGES: usize = 8;
/// Octets of a writer's ring buffer for its work on one target.
const STAGING: usize = 1 << 18;
/// Work under way at a target.
const POSTED: usize = 8;

/// Synced data, and data that was only written.
#[derive(Default)]
struct Disk {
    safe: Vec<u8>,
    cache: Vec<(usize, Vec<u8>)>,
    /// Syncs report success without syncing.
    lies: bool,
    /// Decides during which syncs the power fails.
    chance: fastrand::Rng,
    /// It has failed, in the middle of one.
    out: bool,
}

impl Disk {
    /// The contents after a power failure: any part of the unsynced data, in units of eight octets.
    fn after_power_loss(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut store = self.safe.clone();
        for (offset, octets) in &self.cache {
            let share = random.u32(..=4);
            for (number, word) in octets.chunks(8).enumerate() {
                if random.u32(..4) < share {
                    store[offset + number * 8..][..word.len()].copy_from_slice(word);
                }
            }
        }
        store
    }
}

#[derive(Clone, Default)]
struct Shadow(Arc<Mutex<Disk>>);

impl Store for Shadow {
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
        self.0.lock().expect("not poisoned").cache.push((offset as usize, octets.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.0.lock().expect("not poisoned");
        disk.out = disk.chance.u32(..100) == 0;
        if disk.out {
            return Err(io::Error::other("the power is gone"));
        }
        if !disk.lies {
            for (offset, octets) in std::mem::take(&mut disk.cache) {
                disk.safe[offset..][..octets.len()].copy_from_slice(&octets);
            }
        }
        Ok(())
    }
}

/// A queue pair with memory for messages: receives in front, Sends behind.
struct Wire {
    pair: Pair,
    memory: Registration,
    sent: usize,
    /// At a target: its claim was the last.
    admitted: bool,
}

impl Wire {
    fn new(world: &mut World, host: usize) -> Wire {
        let options = PairOptions { send_depth: 1024, receive_depth: 64, completions: 1024, complete_on_ack: false };
        let mut pair = world.hosts[host].pair(options);
        let memory = world.hosts[host].register(vec![0; 2 * MESSAGES * MESSAGE], Access::LOCAL_WRITE);
        for slot in 0..MESSAGES {
            assert!(pair.post_receive(slot as u64, &[sge(&memory, (slot * MESSAGE) as u64, MESSAGE as u32)]));
        }
        Wire { pair, memory, sent: 0, admitted: false }
    }

    fn send(&mut self, octets: &[u8]) {
        let at = (MESSAGES + self.sent % MESSAGES) * MESSAGE;
        self.sent += 1;
        self.memory.write(at, octets).expect("in range");
        let source = sge(&self.memory, at as u64, octets.len() as u32);
        let element = SendElement {
            flags: SendFlags::empty(),
            length: source.length,
            entries: 1,
            ..element(1 << 40, SendOpcode::Send)
        };
        assert!(self.pair.post(element, &[source], &[]));
    }

    fn received(&mut self, slot: u64, length: u32) -> Vec<u8> {
        let mut octets = vec![0; length as usize];
        self.memory.read(slot as usize * MESSAGE, &mut octets).expect("in range");
        let place = sge(&self.memory, slot * MESSAGE as u64, MESSAGE as u32);
        assert!(self.pair.post_receive(slot, &[place]));
        octets
    }
}

/// A running target.
struct Process {
    host: usize,
    requests: Receiver<ConnectionRequest>,
    region: Option<(Registration, Committer)>,
    wires: Vec<Wire>,
}

struct Target {
    identity: Identity,
    disk: Shadow,
    process: Option<Process>,
}

impl Target {
    fn start(&mut self, world: &mut World) {
        let host = add_host(world);
        let requests = world.hosts[host].listen(PORT);
        self.process = Some(Process { host, requests, region: None, wires: Vec::new() });
        self.register(world);
    }

    fn register(&mut self, world: &World) {
        let Some(process) = &mut self.process else { return };
        process.region = None;
        let length = self.identity.geometry.region() as usize;
        let octets = {
            let disk = self.disk.0.lock().expect("not poisoned");
            let mut octets = disk.safe.clone();
            // The system keeps what was written, synced or not.
            for (offset, written) in &disk.cache {
                octets[*offset..][..written.len()].copy_from_slice(written);
            }
            octets.truncate(length);
            octets
        };
        let scope = Scope::Domain(DomainId(1));
        let store = Box::new(self.disk.clone());
        let region = world.hosts[process.host].regions.register_durable(
            octets,
            Access::ALL,
            scope,
            TaggedBase::Zero,
            store,
            false,
        );
        process.region = Some(region.expect("the table has room"));
    }

    fn die(&mut self, world: &mut World, power: bool, random: &mut fastrand::Rng) {
        let Some(process) = self.process.take() else { return };
        world.hosts[process.host].engine = None;
        if power {
            let mut disk = self.disk.0.lock().expect("not poisoned");
            disk.safe = disk.after_power_loss(random);
            disk.cache.clear();
        }
    }

    fn turn(&mut self, world: &mut World, random: &mut fastrand::Rng) {
        let Some(process) = &mut self.process else { return };
        if random.bool()
            && let Some((_, committer)) = &mut process.region
        {
            committer.work();
            // Before anybody has heard of it.
            if std::mem::take(&mut self.disk.0.lock().expect("not poisoned").out) {
                self.die(world, true, random);
                return;
            }
        }
        while let Ok(request) = process.requests.try_recv() {
            let wire = Wire::new(world, process.host);
            world.hosts[process.host].accept(&wire.pair, &request, with(FEATURES));
            process.wires.push(wire);
        }
        let mut number = 0;
        while let Some(wire) = self.process.as_mut().and_then(|process| process.wires.get_mut(number)) {
            let Some(done) = wire.pair.poll() else {
                number += 1;
                continue;
            };
            if done.opcode == CompletionOpcode::Receive && done.status == Status::Success {
                let octets = wire.received(done.id, done.length);
                let message: ToTarget = serde_json::from_slice(&octets).expect("a message");
                self.hear(world, &mut number, &message);
            }
        }
    }

    fn window(&self) -> Window {
        let region = self.process.as_ref().and_then(|process| process.region.as_ref());
        region.map_or(Window { stag: 0, offset: 0 }, |(region, _)| Window {
            stag: region.stag(),
            offset: region.base_offset(),
        })
    }

    fn hear(&mut self, world: &mut World, number: &mut usize, message: &ToTarget) {
        let answer = match message {
            ToTarget::Hello { .. } => {
                let Identity { log, epoch, geometry, .. } = self.identity;
                ToClient::Welcome { log, epoch, geometry }
            }
            ToTarget::Claim { epoch, .. } => match target::judge(&self.identity, message) {
                Verdict::Refuse(reason) => ToClient::Refused { reason, epoch: self.identity.epoch },
                Verdict::Admit(identity) => {
                    self.identity = identity;
                    let mut is_new = false;
                    if let Some(process) = &mut self.process {
                        let mut own = process.wires.swap_remove(*number);
                        is_new = !std::mem::replace(&mut own.admitted, true);
                        let others = std::mem::replace(&mut process.wires, vec![own]);
                        *number = 0;
                        for wire in &others {
                            world.hosts[process.host].command(Command::Abort { queue_pair: wire.pair.number });
                        }
                        let mut over = 0;
                        world.run_until(Duration::from_millis(1), |_| {
                            let events = others.iter().flat_map(|wire| wire.pair.events.try_iter());
                            over += events.filter(|event| matches!(event, ConnectionEvent::Disconnected(_))).count();
                            over >= others.len()
                        });
                    }
                    if is_new {
                        self.register(world);
                    }
                    let Identity { geometry, .. } = identity;
                    ToClient::Claimed { epoch: *epoch, geometry, window: self.window() }
                }
            },
            ToTarget::Joined { log, replicas } => {
                (self.identity.log, self.identity.replicas) = (*log, *replicas);
                return;
            }
            ToTarget::Shrunk { slots } => {
                self.identity.geometry = Geometry { slots: *slots, ..self.identity.geometry };
                self.register(world);
                ToClient::Region { geometry: self.identity.geometry, window: self.window() }
            }
        };
        let octets = serde_json::to_vec(&answer).expect("JSON");
        if let Some(wire) = self.process.as_mut().and_then(|process| process.wires.get_mut(*number)) {
            wire.send(&octets);
        }
    }
}

fn add_host(world: &mut World) -> usize {
    world.add(
        HostOptions { receive_buffers: 1024, transmit_buffers: 1024, queue_pairs: 1024, ..HostOptions::default() },
        |config| {
            config.tcp.rto_initial = Duration::from_millis(5);
            config.tcp.rto_min = Duration::from_millis(2);
            config.tcp.user_timeout = Some(Duration::from_millis(40));
            config.tcp.time_wait = Duration::from_millis(1);
        },
    )
}

/// A writer's connection to a target.
struct Link {
    wire: Wire,
    up: bool,
    window: Window,
    staging: Registration,
    next: usize,
    wanted: VecDeque<Action>,
    /// Work under way: where the octets of a Read arrive.
    posted: VecDeque<Option<(usize, usize)>>,
}

struct Client {
    host: usize,
    writer: Writer,
    links: Vec<Option<Link>>,
}

impl Client {
    fn start(world: &mut World, targets: usize, overwrite: bool, random: &mut fastrand::Rng) -> Client {
        let options = Options {
            head_every: random.u64(1..10_000),
            window: random.u64(2000..20_000),
            // Parts end anywhere in a record, and are shorter than many records or longer than all.
            chunk: random.u64(2000..8000) << random.u32(..4),
            overwrite,
            notify: false,
            ..Options::new(targets, 77)
        };
        Client { host: add_host(world), writer: Writer::new(options), links: (0..targets).map(|_| None).collect() }
    }

    fn turn(&mut self, world: &mut World, targets: &[Target]) {
        for (number, target) in targets.iter().enumerate() {
            if self.links[number].is_none()
                && let Some(process) = &target.process
            {
                let wire = Wire::new(world, self.host);
                let staging = world.hosts[self.host].register(vec![0; STAGING], Access::LOCAL_WRITE);
                let address = world.hosts[process.host].address;
                world.hosts[self.host].connect(&wire.pair, (address, PORT), with(FEATURES));
                let window = Window { stag: 0, offset: 0 };
                self.links[number] = Some(Link {
                    wire,
                    up: false,
                    window,
                    staging,
                    next: 0,
                    wanted: VecDeque::new(),
                    posted: VecDeque::new(),
                });
            }
            self.hear(number);
        }
        while let Some((number, action)) = self.writer.next_action() {
            if action == Action::Reconnect {
                self.hang_up(world, number);
            } else if let Some(link) = &mut self.links[number] {
                link.wanted.push_back(action);
            }
        }
        self.links.iter_mut().flatten().for_each(Link::post);
    }

    fn hang_up(&mut self, world: &World, number: usize) {
        if let Some(link) = self.links[number].take() {
            world.hosts[self.host].command(Command::Abort { queue_pair: link.wire.pair.number });
        }
    }

    fn hear(&mut self, number: usize) {
        let Some(link) = &mut self.links[number] else { return };
        for event in link.wire.pair.events.try_iter() {
            match event {
                ConnectionEvent::Established(_) => {
                    link.up = true;
                    self.writer.connected(number);
                }
                ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed(_) => {
                    self.links[number] = None;
                    return;
                }
                ConnectionEvent::Disconnected(_) => {
                    self.links[number] = None;
                    self.writer.lost(number);
                    return;
                }
            }
        }
        while let Some(done) = link.wire.pair.poll() {
            match (done.opcode, done.status) {
                (_, Status::Flushed) => {}
                (CompletionOpcode::Receive, Status::Success) => {
                    let octets = link.wire.received(done.id, done.length);
                    let message: ToClient = serde_json::from_slice(&octets).expect("a message");
                    if let ToClient::Claimed { window, .. } | ToClient::Region { window, .. } = message {
                        link.window = window;
                    }
                    self.writer.message(number, message);
                }
                (_, status) => {
                    let posted = link.posted.pop_front().expect("work was posted");
                    match posted {
                        Some((at, length)) => {
                            assert_eq!(status, Status::Success);
                            let mut octets = vec![0; length];
                            link.staging.read(at, &mut octets).expect("in range");
                            self.writer.read_done(number, &octets);
                        }
                        None => self.writer.committed(number, (status != Status::Success).then_some("it failed")),
                    }
                }
            }
        }
    }
}

impl Link {
    fn place(&mut self, length: usize) -> usize {
        // Far more than what can be under way: octets that are overwritten are no longer in use.
        if self.next + length > STAGING {
            self.next = 0;
        }
        self.next += length;
        self.next - length
    }

    fn post(&mut self) {
        while self.up && self.posted.len() < POSTED {
            let Some(action) = self.wanted.pop_front() else { return };
            let Window { stag, offset: base } = self.window;
            let unsignalled = SendFlags::empty();
            match action {
                Action::Send(message) => self.wire.send(&serde_json::to_vec(&message).expect("JSON")),
                Action::Read(pieces) => {
                    let length: u64 = pieces.iter().map(|(_, length)| length).sum();
                    let begin = self.place(length as usize);
                    let mut at = begin;
                    for (number, (offset, length)) in pieces.iter().enumerate() {
                        let sink = sge(&self.staging, at as u64, *length as u32);
                        let mut read = SendElement { length: sink.length, entries: 1, ..element(0, SendOpcode::Read) };
                        (read.stag, read.remote_offset) = (stag, base + offset);
                        if number + 1 < pieces.len() {
                            read.flags = unsignalled;
                        }
                        assert!(self.wire.pair.post(read, &[sink], &[]));
                        at += *length as usize;
                    }
                    self.posted.push_back(Some((begin, length as usize)));
                }
                Action::Write(pieces, _) => {
                    for (offset, octets) in &pieces {
                        let at = self.place(octets.len());
                        self.staging.write(at, octets).expect("in range");
                        let source = sge(&self.staging, at as u64, octets.len() as u32);
                        let one = pieces.len() == 1;
                        let opcode = if one { SendOpcode::WriteCommit } else { SendOpcode::Write };
                        let mut write = SendElement { length: source.length, entries: 1, ..element(0, opcode) };
                        (write.stag, write.remote_offset) = (stag, base + offset);
                        if !one {
                            write.flags = unsignalled;
                        }
                        assert!(self.wire.pair.post(write, &[source], &[]));
                    }
                    if pieces.len() > 1 {
                        self.commit(pieces.iter().map(|(offset, octets)| (*offset, octets.len() as u64)));
                    }
                    self.posted.push_back(None);
                }
                Action::Commit(pieces) => {
                    self.commit(pieces.into_iter());
                    self.posted.push_back(None);
                }
                Action::Reconnect => unreachable!("seen to before"),
            }
        }
    }

    fn commit(&mut self, pieces: impl Iterator<Item = (u64, u64)>) {
        let Window { stag, offset: base } = self.window;
        let regions: Vec<Sge> =
            pieces.map(|(offset, length)| Sge { stag, length: length as u32, offset: base + offset }).collect();
        let commit = SendElement { entries: regions.len() as u8, ..element(0, SendOpcode::Commit) };
        assert!(self.wire.pair.post(commit, &regions, &[]));
    }
}

struct Run {
    world: World,
    random: fastrand::Rng,
    targets: Vec<Target>,
    client: Client,
    overwrite: bool,
    appended: BTreeMap<u64, Vec<u8>>,
    acknowledged: BTreeMap<u64, Vec<u8>>,
}

impl Run {
    fn new(seed: u64, lies: bool) -> Run {
        let mut random = fastrand::Rng::with_seed(seed);
        let rate = if random.bool() { 0.01 } else { 0.0 };
        let network = SimOptions { loss: rate, duplication: rate, reordering: rate, ..SimOptions::default() };
        let mut world = World::new(seed, network);
        let count = if random.u32(..4) == 0 { 1 } else { 3 };
        let overwrite = random.bool();
        let slots = random.u32(5..12);
        let geometry = Geometry { segment: SEGMENT, entries: slots, slots };
        let mut targets: Vec<Target> = Vec::new();
        for _ in 0..count {
            let disk = Disk {
                safe: vec![0; geometry.region() as usize],
                cache: Vec::new(),
                lies,
                chance: random.fork(),
                out: false,
            };
            let disk = Shadow(Arc::new(Mutex::new(disk)));
            let mut target = Target { identity: Identity::new(geometry), disk, process: None };
            target.start(&mut world);
            targets.push(target);
        }
        let client = Client::start(&mut world, count, overwrite, &mut random);
        let (appended, acknowledged) = (BTreeMap::new(), BTreeMap::new());
        Run { world, random, targets, client, overwrite, appended, acknowledged }
    }

    fn kill_writer(&mut self) {
        self.world.hosts[self.client.host].engine = None;
        self.appended.clear();
        self.client = Client::start(&mut self.world, self.targets.len(), self.overwrite, &mut self.random);
    }

    fn turn(&mut self) -> Result<(), String> {
        self.world.run(Duration::from_micros(self.random.u64(..200)));
        for target in &mut self.targets {
            target.turn(&mut self.world, &mut self.random);
        }
        self.client.turn(&mut self.world, &self.targets);
        if self.random.u32(..3) == 0 {
            let length = if self.random.u32(..8) == 0 { self.random.usize(..9000) } else { self.random.usize(..600) };
            let payload: Vec<u8> = (0..length).map(|_| self.random.u8(..)).collect();
            if let Ok(sequence) = self.client.writer.append(&payload) {
                self.appended.insert(sequence, payload);
            }
        }
        let known = self.client.writer.acknowledged();
        while let Some(first) = self.appended.first_entry().filter(|first| *first.key() <= known) {
            let (sequence, payload) = first.remove_entry();
            if self.acknowledged.insert(sequence, payload).is_some() {
                return Err(format!("number {sequence} was acknowledged twice"));
            }
        }
        let honest = self.targets.iter().all(|target| !target.disk.0.lock().expect("not poisoned").lies);
        if honest && let Some(status) = self.client.writer.status().iter().find(|status| status.stage == "useless") {
            return Err(format!("an honest target is left out: {status:?}"));
        }
        if self.client.writer.over().is_some() {
            self.kill_writer();
        }
        Ok(())
    }

    /// The power of all targets fails at once. Any deciding set of them must find everything that was acknowledged.
    fn lose_power(&mut self) -> Result<(), String> {
        let mut found = Vec::new();
        for target in &self.targets {
            let store = target.disk.0.lock().expect("not poisoned").after_power_loss(&mut self.random);
            let mut records = BTreeMap::new();
            let read = |offset: u64, out: &mut [u8]| {
                out.copy_from_slice(&store[offset as usize..][..out.len()]);
                Ok::<(), String>(())
            };
            let walk = target::walk(&target.identity.geometry, None, read, |_, record| {
                let payload = if record.kind == Kind::Payload { record.payload } else { b"" };
                records.insert(record.tail.sequence, payload.to_vec());
                Ok(())
            })?;
            if !walk.has_head {
                return Err(format!("a head at {} without its record: {walk:?}", walk.table.head));
            }
            found.push((walk.tail, records, walk.table.start));
        }
        let quorum = self.client.writer.quorum();
        for deciding in 1u32..1 << found.len() {
            if deciding.count_ones() as usize != quorum {
                continue;
            }
            let part =
                || found.iter().enumerate().filter(|(number, _)| deciding & 1 << number != 0).map(|(_, one)| one);
            let Some((tail, records, _)) = part().max_by_key(|(tail, ..)| (tail.epoch, tail.position)) else {
                continue;
            };
            let start = part().map(|(.., start)| *start).max().unwrap_or(0);
            if tail.position < start || start > 0 && !self.overwrite {
                return Err(format!("the log ends at {} and starts at {start}", tail.position));
            }
            let first = if start > 0 { records.keys().next().copied().unwrap_or(u64::MAX) } else { 0 };
            // A copy without any record would have lost none that were not dropped.
            if let Some((last, _)) = self.acknowledged.last_key_value()
                && *last > tail.sequence
            {
                return Err(format!("record {last} is beyond the end that {deciding:b} have: {tail:?}"));
            }
            for (sequence, payload) in self.acknowledged.range(first..) {
                if records.get(sequence) != Some(payload) {
                    return Err(format!("record {sequence} is lost to {deciding:b}, where the log ends at {tail:?}"));
                }
            }
        }
        Ok(())
    }
}

fn live_and_die(seed: u64, lies: bool) -> Result<usize, String> {
    let mut run = Run::new(seed, lies);
    // Each life takes an address of the network.
    let turns = run.random.usize(100..500);
    for _ in 0..turns {
        run.turn()?;
        let number = run.random.usize(..run.targets.len());
        match run.random.u32(..200) {
            0 | 1 => run.kill_writer(),
            2 | 3 => {
                let power = run.random.bool();
                run.targets[number].die(&mut run.world, power, &mut run.random);
            }
            4..12 if run.targets[number].process.is_none() => run.targets[number].start(&mut run.world),
            12 => {
                let slots = run.random.u32(4..8).min(run.targets[number].identity.geometry.slots);
                let octets = serde_json::to_vec(&ToClient::Shrink { slots }).expect("JSON");
                if let Some(wire) = run.targets[number].process.as_mut().and_then(|process| process.wires.first_mut()) {
                    wire.send(&octets);
                }
            }
            13..16 => run.lose_power()?,
            _ => {}
        }
    }
    run.lose_power()?;
    Ok(run.acknowledged.len())
}

#[test]
fn no_acknowledged_record_is_lost_and_no_head_is_without_its_record() {
    let is_long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let seeds = if is_long { 20_000 } else { 1000 };
    eprintln!("{seeds} seeds; UWARP_LONG=1 runs 20,000");
    let mut acknowledged = 0;
    for seed in 0..seeds {
        match live_and_die(seed, false) {
            Ok(count) => acknowledged += count,
            Err(fault) => panic!("seed {seed}: {fault}"),
        }
    }
    assert!(acknowledged > 10_000, "only {acknowledged} records were acknowledged");
}

#[test]
fn a_sync_that_is_left_out_is_found_out() {
    let found = (0..50).filter(|seed| live_and_die(*seed, true).is_err()).count();
    assert!(found > 25, "of 50 runs without syncs {found} were noticed");
}
