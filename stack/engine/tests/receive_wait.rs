//! Messages that find no posted receive: they wait for one, in order with all that follows them, and not for ever.

mod common;

use std::time::Duration;

use common::{PORT, SECOND, completions, contents, end, event, nothing_left, pattern, sge};
use crossbeam::channel::Receiver;
use uwarp_engine::command::{
    Command, ConnectionEvent, ConnectionRequest, DisconnectReason, StartupOptions, TerminateCode,
};
use uwarp_engine::stats::EngineStats;
use uwarp_engine::work::{SendOpcode, Status};
use uwarp_memory::Access;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World, is_skipped};
use uwarp_testkit::sim::SimOptions;

/// How long the server's messages wait.
const WAIT: Duration = Duration::from_secs(2);

/// A client, and a server whose peers' messages wait.
fn two(seed: u64, network: SimOptions, server: HostOptions) -> (World, Receiver<ConnectionRequest>) {
    let mut world = World::new(seed, network);
    world.add(HostOptions::default(), |_| {});
    world.add(server, |config| config.iwarp.receive_wait = WAIT);
    let requests = world.hosts[1].listen(PORT);
    (world, requests)
}

fn joined() -> (World, Pair, Pair) {
    let (mut world, requests) = two(1, SimOptions::default(), HostOptions::default());
    let (client, server) = common::join(&mut world, &requests, PairOptions::default());
    (world, client, server)
}

fn stats(world: &World) -> EngineStats {
    world.hosts[1].engine.as_ref().expect("alive").stats()
}

/// Messages that waited, and those of them that waited in vain.
fn waits(world: &World) -> (u64, u64) {
    let stats = stats(world);
    (stats.counters.receive_waits, stats.counters.receive_waits_expired)
}

#[test]
fn messages_are_delivered_when_their_receives_are_posted_late() {
    const LENGTHS: [u32; 4] = [64, 5000, 0, 200_000];
    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(pattern(200_000, 1), Access::LOCAL_READ);
    let inbox = world.hosts[1].register(vec![0; 4 * 200_000], Access::LOCAL_WRITE);
    for (id, length) in LENGTHS.into_iter().enumerate() {
        client.post_simple(id as u64, SendOpcode::Send, Some(sge(&source, 0, length)), (0, 0));
    }
    world.run(WAIT / 2);
    assert_eq!((server.poll(), server.events.len()), (None, 0));
    assert_eq!(waits(&world), (1, 0));
    for (id, length) in LENGTHS.into_iter().enumerate() {
        assert!(server.post_receive(id as u64, &[sge(&inbox, 200_000 * id as u64, length)]));
        let done = completions(&mut world, &mut server, 1, SECOND);
        let done: Vec<_> = done.iter().map(|one| (one.id, one.status, one.length)).collect();
        assert_eq!(done, [(id as u64, Status::Success, length)]);
        // The next one begins a wait of its own.
        world.run(WAIT * 3 / 4);
    }
    let octets = contents(&inbox);
    for (id, length) in LENGTHS.into_iter().enumerate() {
        let at = 200_000 * id;
        assert!(octets[at..at + length as usize] == contents(&source)[..length as usize], "message {id}");
    }
    assert_eq!(waits(&world), (4, 0));
    // Nothing waits any more, and the window is open.
    let before = stats(&world);
    for id in 10..20 {
        assert!(server.post_receive(id, &[sge(&inbox, 0, 200_000)]));
        client.post_simple(id, SendOpcode::Send, Some(sge(&source, 0, 200_000)), (0, 0));
    }
    let done = completions(&mut world, &mut server, 10, SECOND);
    assert!(done.len() == 10 && done.iter().all(|one| one.status == Status::Success), "{done:?}");
    let after = stats(&world);
    assert_eq!(after.counters.receive_waits, before.counters.receive_waits);
    assert!(after.connections.iter().all(|one| !one.awaits_receive && one.tcp.out_of_order_buffers == 0));
    world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
    drop(server.poll_all());
    nothing_left(&mut world);
}

#[test]
fn a_wait_in_vain_ends_with_the_terminate_of_a_missing_receive() {
    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(pattern(64, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 64], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Send, Some(sge(&source, 0, 64)), (0, 0));
    client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, 64)), (target.stag(), 0));
    let begun = world.now();
    world.run(WAIT * 9 / 10);
    assert!(server.events.is_empty() && client.events.is_empty());
    let code = TerminateCode { layer: 1, error_type: 2, code: 2 };
    assert_eq!(end(&mut world, &client, 4 * WAIT), DisconnectReason::PeerTerminated(code));
    assert!(world.now() >= begun + WAIT);
    assert_eq!(end(&mut world, &server, 4 * WAIT), DisconnectReason::LocalTerminated(code));
    assert_eq!(waits(&world), (1, 1));
    assert_eq!((stats(&world).counters.terminates_sent, server.poll()), (1, None));
    assert!(contents(&target).iter().all(|octet| *octet == 0), "nothing behind the message is placed");
    nothing_left(&mut world);
}

#[test]
fn without_a_wait_a_missing_receive_is_an_error_at_once() {
    let (mut world, mut client, server) = common::joined();
    client.post_simple(1, SendOpcode::Send, None, (0, 0));
    let begun = world.now();
    assert!(matches!(end(&mut world, &server, SECOND), DisconnectReason::LocalTerminated(_)));
    assert!(world.now() < begun + Duration::from_millis(10));
    assert_eq!(waits(&world), (0, 0));
}

#[test]
fn what_follows_a_waiting_message_waits_with_it() {
    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(pattern(3000, 1), Access::LOCAL_READ | Access::REMOTE_READ);
    let sink = world.hosts[0].register(vec![0; 3000], Access::LOCAL_WRITE);
    let target = world.hosts[1].register(vec![0; 3000], Access::REMOTE_WRITE | Access::REMOTE_READ);
    let inbox = world.hosts[1].register(vec![0; 3000], Access::LOCAL_WRITE);
    client.post_simple(1, SendOpcode::Send, Some(sge(&source, 0, 10)), (0, 0));
    client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, 3000)), (target.stag(), 0));
    client.post_simple(3, SendOpcode::Read, Some(sge(&sink, 0, 3000)), (target.stag(), 0));
    world.run(Duration::from_millis(10));
    // Its request arrives, but the response lies behind the message.
    server.post_simple(4, SendOpcode::Read, Some(sge(&inbox, 0, 3000)), (source.stag(), 0));
    world.run(WAIT / 2);
    assert!(contents(&target).iter().all(|octet| *octet == 0));
    assert_eq!(server.poll(), None);
    assert!(client.poll_all().iter().all(|one| one.id != 3), "the Read is answered before the message");
    assert!(server.post_receive(5, &[sge(&inbox, 0, 10)]));
    let done: Vec<_> = completions(&mut world, &mut server, 2, SECOND).iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(5, Status::Success), (4, Status::Success)]);
    let done: Vec<_> = completions(&mut world, &mut client, 1, SECOND).iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(3, Status::Success)]);
    assert!(contents(&sink) == contents(&source) && contents(&inbox) == contents(&source));
    assert_eq!(waits(&world), (1, 0));
}

/// Messages of all lengths cross a bad network, and their receives are posted at random times. `markers`: FPDUs have
/// them.
fn cross(seed: u64, markers: bool) {
    const MESSAGES: u64 = 150;
    const LONGEST: usize = 20_000;
    let network = SimOptions { loss: 0.02, reordering: 0.05, duplication: 0.02, ..SimOptions::default() };
    let (mut world, requests) = two(seed, network, HostOptions::default());
    let mut client = world.hosts[0].pair(PairOptions::default());
    let mut server = world.hosts[1].pair(PairOptions::default());
    let options = StartupOptions { markers, ..StartupOptions::default() };
    world.hosts[0].connect(&client, (world.hosts[1].address, PORT), options.clone());
    let mut request = None;
    assert!(world.run_until(60 * SECOND, |_| {
        request = requests.try_recv().ok();
        request.is_some()
    }));
    world.hosts[1].accept(&server, &request.expect("seen"), options);
    for pair in [&client, &server] {
        assert!(matches!(event(&mut world, pair, 60 * SECOND), Some(ConnectionEvent::Established(_))));
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let source = world.hosts[0].register(pattern(LONGEST, seed), Access::LOCAL_READ);
    let inbox = world.hosts[1].register(vec![0; LONGEST], Access::LOCAL_WRITE);
    let expected = contents(&source);
    let lengths: Vec<u32> =
        (0..MESSAGES).map(|_| if random.bool() { random.u32(0..100) } else { random.u32(0..LONGEST as u32) }).collect();
    let (mut sent, mut posted, mut received) = (0, 0, 0);
    while received < MESSAGES {
        while sent < MESSAGES
            && client.post_simple(sent, SendOpcode::Send, Some(sge(&source, 0, lengths[sent as usize])), (0, 0))
        {
            sent += 1;
        }
        // One receive at a time, so that the inbox has its message alone.
        if posted == received && random.u8(0..3) == 0 {
            assert!(server.post_receive(posted, &[sge(&inbox, 0, LONGEST as u32)]));
            posted += 1;
        }
        world.run(Duration::from_micros(random.u64(1..2000)));
        drop(client.poll_all());
        for one in server.poll_all() {
            let length = lengths[received as usize];
            assert_eq!((one.id, one.status, one.length), (received, Status::Success, length), "seed {seed}");
            assert!(contents(&inbox)[..length as usize] == expected[..length as usize], "seed {seed}: {received}");
            received += 1;
        }
        assert!(server.events.is_empty(), "seed {seed}: {:?}", server.events.try_recv());
    }
    let (waited, expired) = waits(&world);
    assert!(waited > MESSAGES / 2 && expired == 0, "seed {seed}: {waited} waited");
    world.network.set_options(SimOptions::default());
    world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
    assert_eq!(end(&mut world, &server, 60 * SECOND), DisconnectReason::PeerClosed);
    nothing_left(&mut world);
}

#[test]
fn messages_wait_in_order_on_a_network_that_loses_and_reorders() {
    for seed in 1..=10 {
        cross(seed, false);
    }
}

#[test]
fn messages_in_fpdus_with_markers_wait_too() {
    for seed in 1..=3 {
        cross(seed, true);
    }
}

#[test]
fn a_peer_that_has_closed_is_heard_to_the_end() {
    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(pattern(9000, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 9000], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Send, None, (0, 0));
    client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, 9000)), (target.stag(), 0));
    world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
    world.run(WAIT / 2);
    assert!(server.events.is_empty() && server.poll().is_none());
    assert!(server.post_receive(1, &[]));
    let done = completions(&mut world, &mut server, 1, SECOND);
    assert_eq!(done.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(), [(1, Status::Success)]);
    assert_eq!(end(&mut world, &server, SECOND), DisconnectReason::PeerClosed);
    assert_eq!(contents(&target), contents(&source));
    nothing_left(&mut world);
}

/// The server's and the client's ends, each while a message and a window's worth of data wait.
#[test]
fn nothing_is_left_of_a_connection_that_ends_while_a_message_waits() {
    type End = fn(&mut World, &Pair, &Pair);
    let ends: [(&str, End); 6] = [
        ("its owner disconnects", |world, _, server| {
            world.hosts[1].command(Command::Disconnect { queue_pair: server.number });
        }),
        ("both disconnect", |world, client, server| {
            world.hosts[1].command(Command::Disconnect { queue_pair: server.number });
            world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
        }),
        ("its owner destroys the queue pair", |world, _, server| {
            world.hosts[1].command(Command::DestroyQueuePair { queue_pair: server.number, done: None });
        }),
        ("its owner aborts", |world, _, server| {
            world.hosts[1].command(Command::Abort { queue_pair: server.number });
        }),
        ("the peer aborts", |world, client, _| {
            world.hosts[0].command(Command::Abort { queue_pair: client.number });
        }),
        ("the peer is killed", |world, _, _| world.hosts[0].engine = None),
    ];
    for (name, ends) in ends {
        for length in [0, 3_000_000] {
            let (mut world, mut client, server) = joined();
            let source = world.hosts[0].register(pattern(3_000_000, 1), Access::LOCAL_READ);
            client.post_simple(1, SendOpcode::Send, Some(sge(&source, 0, length)), (0, 0));
            world.run(WAIT / 4);
            assert_eq!(waits(&world), (1, 0), "{name}");
            ends(&mut world, &client, &server);
            world.run(30 * SECOND);
            println!("{name}, {length} octets");
            nothing_left(&mut world);
        }
    }
}

/// Peers that send to an application that posts nothing: what they may take, and what is left to others.
#[test]
fn waiting_messages_leave_receive_buffers_to_others() {
    if is_skipped("cut segments take more buffers than they need") {
        return;
    }
    const PEERS: u64 = 32;
    let network = SimOptions { loss: 0.01, ..SimOptions::default() };
    let server_options = HostOptions { receive_buffers: 1024, ..HostOptions::default() };
    let (mut world, requests) = two(5, network, server_options);
    let (mut honest, mut honest_server) = common::join(&mut world, &requests, PairOptions::default());
    let mut hostile: Vec<_> = (0..PEERS).map(|_| common::join(&mut world, &requests, PairOptions::default())).collect();
    let source = world.hosts[0].register(pattern(1_000_000, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 1_000_000], Access::REMOTE_WRITE);
    for (client, _) in &mut hostile {
        client.post_simple(1, SendOpcode::Send, Some(sge(&source, 0, 1_000_000)), (0, 0));
    }
    world.run(WAIT / 4);
    let stats_then = stats(&world);
    let held: u64 = stats_then.connections.iter().map(|one| one.tcp.out_of_order_buffers).sum();
    assert_eq!(stats_then.counters.receive_waits, PEERS);
    // Half of the receive pool is for what is held, and half of that for what waits.
    assert!((100..=256).contains(&held), "{held} buffers");
    assert!(stats_then.gather_octets < PEERS * 4096, "{} octets", stats_then.gather_octets);
    // An honest neighbour repairs its losses meanwhile.
    for id in 0..20 {
        honest.post_simple(id, SendOpcode::Write, Some(sge(&source, 0, 1_000_000)), (target.stag(), 0));
    }
    assert!(honest_server.post_receive(1, &[]));
    honest.post_simple(20, SendOpcode::Send, None, (0, 0));
    let done = completions(&mut world, &mut honest_server, 1, WAIT / 2);
    assert_eq!(done.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(), [(1, Status::Success)]);
    assert_eq!(waits(&world), (PEERS, 0), "they still wait");
    world.network.set_options(SimOptions::default());
    world.run(4 * WAIT);
    assert_eq!(waits(&world), (PEERS, PEERS));
    assert_eq!(stats(&world).counters.evicted, 0);
    world.hosts[0].command(Command::Disconnect { queue_pair: honest.number });
    nothing_left(&mut world);
}
