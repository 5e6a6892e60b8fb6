//! Where both ends complete on acknowledgments, an acknowledgment says that octets are placed.

mod common;

use std::time::Duration;

use common::{PORT, SECOND, completions, contents, end, event, joined_with, nothing_left, pattern, sge};
use crossbeam::channel::Receiver;
use uwarp_engine::command::{Command, ConnectionEvent, ConnectionRequest, DisconnectReason, StartupOptions};
use uwarp_engine::work::{AtomicOperands, Completion, SendElement, SendFlags, SendOpcode, Status};
use uwarp_iwarp::opcode::Features;
use uwarp_memory::{Access, Registration};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

const PLACED: PairOptions = PairOptions { send_depth: 64, receive_depth: 64, completions: 256, complete_on_ack: true };
/// How long messages wait for a receive, where they wait.
const WAIT: Duration = Duration::from_secs(2);
/// No region has it.
const BAD_STAG: u32 = 77;

fn outcomes(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|one| (one.id, one.status)).collect()
}

fn sends(client: &mut Pair, count: u64) {
    for id in 1..=count {
        assert!(client.post_simple(id, SendOpcode::Send, None, (0, 0)));
    }
}

/// A connected pair whose network now loses frames.
fn lossy(seed: u64, loss: f64) -> (World, Pair, Pair, Receiver<ConnectionRequest>) {
    let mut world = World::new(seed, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |_| {});
    let requests = world.hosts[1].listen(PORT);
    let (client, server) = common::join(&mut world, &requests, PLACED);
    world.network.set_options(SimOptions { loss, ..SimOptions::default() });
    (world, client, server, requests)
}

#[test]
fn sends_that_nobody_receives_fail() {
    let (mut world, mut client, server, _) = joined_with(PLACED);
    sends(&mut client, 3);
    assert!(matches!(end(&mut world, &client, SECOND), DisconnectReason::PeerTerminated(_)));
    assert!(matches!(end(&mut world, &server, SECOND), DisconnectReason::LocalTerminated(_)));
    let failed = [(1, Status::RemoteOperation), (2, Status::Flushed), (3, Status::Flushed)];
    assert_eq!(outcomes(&client.poll_all()), failed);
    nothing_left(&mut world);
}

#[test]
fn sends_complete_as_their_receives_are_posted() {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |config| config.iwarp.receive_wait = WAIT);
    let requests = world.hosts[1].listen(PORT);
    let (mut client, mut server) = common::join(&mut world, &requests, PLACED);
    sends(&mut client, 3);
    for id in 1..=3 {
        world.run(WAIT / 2);
        assert_eq!((client.poll(), server.poll()), (None, None), "before receive {id}");
        assert!(server.post_receive(id, &[]));
        assert_eq!(outcomes(&completions(&mut world, &mut client, 1, SECOND)), [(id, Status::Success)]);
        assert_eq!(outcomes(&server.poll_all()), [(id, Status::Success)]);
    }
    // The last one has the end of the stream behind it.
    sends(&mut client, 1);
    world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
    world.run(WAIT / 2);
    assert!(client.poll().is_none() && server.events.is_empty());
    assert!(server.post_receive(4, &[]));
    assert_eq!(end(&mut world, &server, SECOND), DisconnectReason::PeerClosed);
    assert_eq!(end(&mut world, &client, SECOND), DisconnectReason::Local);
    assert_eq!(outcomes(&client.poll_all()), [(1, Status::Success)]);
    nothing_left(&mut world);
}

#[test]
fn of_good_and_bad_writes_the_bad_one_is_blamed() {
    let (mut world, mut client, server, _) = joined_with(PLACED);
    let source = world.hosts[0].register(pattern(3000, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 3000], Access::REMOTE_WRITE);
    for (id, stag) in [(1, target.stag()), (2, BAD_STAG), (3, target.stag())] {
        let offset = 1000 * (id - 1);
        let local = sge(&source, offset, 1000);
        assert!(client.post_simple(id, SendOpcode::Write, Some(local), (stag, target.base_offset() + offset)));
    }
    assert!(matches!(end(&mut world, &client, SECOND), DisconnectReason::PeerTerminated(_)));
    assert!(matches!(end(&mut world, &server, SECOND), DisconnectReason::LocalTerminated(_)));
    let wanted = [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::Flushed)];
    assert_eq!(outcomes(&client.poll_all()), wanted);
    assert!(contents(&target)[..1000] == contents(&source)[..1000]);
    assert!(contents(&target)[1000..].iter().all(|octet| *octet == 0));
    nothing_left(&mut world);
}

/// The refusal itself is lost and comes again; what is sent meanwhile does not acknowledge the Write.
#[test]
fn a_refused_write_fails_although_the_terminate_is_lost() {
    for seed in 0..100 {
        let (mut world, mut client, _server, _) = lossy(seed, 0.3);
        let source = world.hosts[0].register(pattern(3000, 1), Access::LOCAL_READ);
        assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 3000)), (BAD_STAG, 0)));
        end(&mut world, &client, 60 * SECOND);
        let done = client.poll_all();
        assert!(done.len() == 1 && done[0].status != Status::Success, "seed {seed}: {done:?}");
    }
}

#[test]
fn what_comes_for_a_queue_pair_that_is_gone_fails() {
    for seed in 0..100 {
        let (mut world, mut client, mut server, _) = lossy(seed, 0.1);
        assert!(server.post_receive(1, &[]) && server.post_receive(2, &[]));
        world.hosts[1].command(Command::DestroyQueuePair { queue_pair: server.number, done: None });
        sends(&mut client, 2);
        end(&mut world, &client, 60 * SECOND);
        let done = client.poll_all();
        assert!(done.len() == 2 && done.iter().all(|one| one.status != Status::Success), "seed {seed}: {done:?}");
    }
}

/// An operation of the client, and where to look for it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    /// The receive's place is that of the Sends before it.
    Send(u64),
    Add,
}

/// A random life of a connection with losses: whatever completes is looked for in the peer's memory at that moment.
fn live(seed: u64) -> [usize; 3] {
    const SLOT: u64 = 20_000;
    const SLOTS: u64 = 16;
    let mut random = fastrand::Rng::with_seed(seed);
    let network = SimOptions {
        loss: random.f64() * 0.1,
        duplication: random.f64() * 0.05,
        reordering: random.f64() * 0.2,
        ..SimOptions::default()
    };
    let mut world = World::new(seed, SimOptions::default());
    let sizes = HostOptions { segmentation: if random.bool() { 65_000 } else { 0 }, ..HostOptions::default() };
    let waits = random.u32(0..8) > 0;
    world.add(sizes, |_| {});
    world.add(sizes, |config| config.iwarp.receive_wait = if waits { WAIT } else { Duration::ZERO });
    let requests = world.hosts[1].listen(PORT);
    let (mut client, mut server) = (world.hosts[0].pair(PLACED), world.hosts[1].pair(PLACED));
    let features = Features { atomics: true, ..Features::default() };
    let startup = StartupOptions { features, markers: random.u32(0..4) == 0, ..StartupOptions::default() };
    world.hosts[0].connect(&client, (world.hosts[1].address, PORT), startup.clone());
    assert!(world.run_until(SECOND, |_| !requests.is_empty()));
    world.hosts[1].accept(&server, &requests.try_recv().expect("it is there"), startup);
    for pair in [&client, &server] {
        assert!(matches!(event(&mut world, pair, SECOND), Some(ConnectionEvent::Established(_))));
    }
    world.network.set_options(network);
    let all = (SLOT * SLOTS) as usize;
    let source = world.hosts[0].register(pattern(all, seed), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; all], Access::REMOTE_WRITE);
    let inbox = world.hosts[1].register(vec![0; all], Access::LOCAL_WRITE);
    let word = world.hosts[1].register(vec![0; 8], Access::REMOTE_ATOMIC);
    let place = |region: &Registration, slot: u64, length: u32| {
        let from = (slot * SLOT) as usize;
        contents(region)[from..from + length as usize].to_vec()
    };
    let (mut posted, mut received, mut arrived) = (Vec::new(), 0u64, 0u64);
    let mut found = [0; 3];
    let mut ended = false;
    let mut next = 0;
    while !ended {
        if posted.len() < SLOTS as usize && random.bool() {
            let id = posted.len() as u64;
            let length = random.u32(1..SLOT as u32);
            let local = sge(&source, id * SLOT, length);
            let kind = match random.u32(0..3) {
                0 => Kind::Write,
                1 => Kind::Send(posted.iter().filter(|(kind, _)| matches!(kind, Kind::Send(_))).count() as u64),
                _ => Kind::Add,
            };
            let bad = random.u32(0..60) == 0;
            let stag = if bad { BAD_STAG } else { target.stag() };
            let is_posted = match kind {
                Kind::Write => {
                    let remote = (stag, target.base_offset() + id * SLOT);
                    client.post_simple(id, SendOpcode::Write, Some(local), remote)
                }
                Kind::Send(_) => client.post_simple(id, SendOpcode::Send, Some(local), (0, 0)),
                Kind::Add => add(&mut client, id, (word.stag(), word.base_offset())),
            };
            assert!(is_posted);
            posted.push((kind, length));
        }
        if received < SLOTS && random.u32(0..3) == 0 {
            assert!(server.post_receive(received, &[sge(&inbox, received * SLOT, SLOT as u32)]));
            received += 1;
        }
        let pause = Duration::from_micros(random.u64(1..50));
        world.run_until(pause, |_| {
            arrived += server.poll_all().iter().filter(|one| one.status == Status::Success).count() as u64;
            for one in client.poll_all() {
                assert_eq!(one.id, next, "seed {seed}: in order");
                next += 1;
                let (kind, length) = posted[one.id as usize];
                if one.status != Status::Success {
                    continue;
                }
                match kind {
                    Kind::Write => {
                        let there = place(&target, one.id, length) == place(&source, one.id, length);
                        assert!(there, "seed {seed}: Write {} is not placed", one.id);
                        found[0] += 1;
                    }
                    Kind::Send(number) => {
                        arrived += server.poll_all().iter().filter(|one| one.status == Status::Success).count() as u64;
                        assert!(arrived > number, "seed {seed}: Send {} is not received", one.id);
                        let there = place(&inbox, number, length) == place(&source, one.id, length);
                        assert!(there, "seed {seed}: Send {} is not placed", one.id);
                        found[1] += 1;
                    }
                    Kind::Add => {
                        let added = posted[..=one.id as usize].iter();
                        let added = added.filter(|(kind, _)| matches!(kind, Kind::Add)).count() as u64;
                        let value = u64::from_ne_bytes(contents(&word).try_into().expect("eight octets"));
                        assert!(value >= added, "seed {seed}: atomic {} is not carried out", one.id);
                        found[2] += 1;
                    }
                }
            }
            false
        });
        ended = client.events.try_recv().is_ok();
        if !ended && posted.len() == SLOTS as usize && next == SLOTS {
            world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
        }
    }
    found
}

fn add(client: &mut Pair, id: u64, (stag, remote_offset): (u32, u64)) -> bool {
    let operands = AtomicOperands { add_swap: 1, ..AtomicOperands::default() }.to_octets();
    let element = SendElement {
        id,
        opcode: SendOpcode::FetchAdd,
        flags: SendFlags::SIGNALLED.union(SendFlags::INLINE),
        stag,
        remote_offset,
        length: operands.len() as u32,
        entries: 0,
    };
    client.post(element, &[], &operands)
}

#[test]
fn whatever_completes_is_in_the_peers_memory() {
    let is_long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let mut found = [0; 3];
    for seed in 0..if is_long { 2_000 } else { 150 } {
        found.iter_mut().zip(live(seed)).for_each(|(sum, one)| *sum += one);
    }
    println!("found {} Writes, {} Sends and {} atomics", found[0], found[1], found[2]);
    assert!(found.iter().all(|count| *count > 100), "{found:?}");
}
