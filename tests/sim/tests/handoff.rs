//! Two engines with a queue each behind one address: packets reach the right one, by the device's hash or by hand-off.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use uwarp_engine::EngineConfig;
use uwarp_engine::command::{Command, ConnectFailure, ConnectParameters, ConnectionEvent};
use uwarp_engine::handoff::{FlowOwners, Handoff};
use uwarp_engine::stats::EngineStats;
use uwarp_engine::steering::Steering;
use uwarp_engine::stream::StreamOptions;
use uwarp_engine::work::{SendOpcode, Sge};
use uwarp_memory::Access;
use uwarp_testkit::rig::{Host, HostOptions, Pair, PairOptions, World, with_ipv6};
use uwarp_testkit::sim::{SimOptions, Spread, rss};
use uwarp_wire::address::FlowKey;

const PORT: u16 = 7471;
const LENGTH: u32 = 50_000;

/// Hosts 0 and 1 are the engines of 10.0.0.1; host 2 is 10.0.0.3.
fn world(options: SimOptions, steered: bool) -> World {
    world_with_owners(options, steered).0
}

/// The same, and the table of which engine has which flow.
fn world_with_owners(options: SimOptions, steered: bool) -> (World, Arc<FlowOwners>) {
    world_for_flows(options, steered, 1000, |_| {})
}

/// The same, with a table of this size.
fn world_for_flows(
    options: SimOptions,
    steered: bool,
    flows: usize,
    adjust: impl Fn(&mut EngineConfig),
) -> (World, Arc<FlowOwners>) {
    let mut world = World::new(11, options);
    let parts = Handoff::between(2, 256, flows, [5, 6]);
    let owners = Arc::clone(parts[0].owners());
    let ports = world.network.queues(1500, 2048, 2048, 2);
    for ((index, port), part) in ports.into_iter().enumerate().zip(parts) {
        let host = Host::with_handoff(port, 0, 64, 7, Some(part), |config| {
            with_ipv6(0)(config);
            config.index = index as u16;
            config.seed = index as u64;
            config.secret[0] ^= index as u64;
            config.steering = steered.then(|| Steering { queue: index as u16, ..rss(2) });
            adjust(config);
        });
        world.hosts.push(host);
    }
    world.add(HostOptions::default(), with_ipv6(2));
    (world, owners)
}

fn stats(world: &World, host: usize) -> EngineStats {
    world.hosts[host].engine.as_ref().expect("alive").stats()
}

/// Streams from both engines to host 2, or the other way, each with a Write that must arrive.
fn run(world: &mut World, outwards: bool) {
    let mut requests = Vec::new();
    if outwards {
        requests.push(world.hosts[2].listen(PORT));
    } else {
        requests.extend([0, 1].map(|engine| world.hosts[engine].listen(PORT)));
    }
    let mut streams: Vec<(Pair, Pair, _, _)> = Vec::new();
    for number in 0..12 {
        let (from, to) = if outwards { (number % 2, 2) } else { (2, 0) };
        let mut client = world.hosts[from].pair(PairOptions::default());
        let address = if outwards { Ipv4Addr::new(10, 0, 0, 3) } else { Ipv4Addr::new(10, 0, 0, 1) };
        world.hosts[from].connect(&client, (address, PORT), Default::default());
        // The engine that received the SYN has it.
        let mut asked = None;
        assert!(world.run_until(Duration::from_secs(30), |_| {
            asked = requests.iter().enumerate().find_map(|(at, requests)| Some((at, requests.try_recv().ok()?)));
            asked.is_some()
        }));
        let (at, request) = asked.expect("a request");
        let to = if outwards { to } else { at };
        let server = world.hosts[to].pair(PairOptions::default());
        world.hosts[to].accept(&server, &request, Default::default());
        for pair in [&client, &server] {
            assert!(world.run_until(Duration::from_secs(30), |_| pair.events.try_recv().is_ok()));
        }
        let source = world.hosts[from].register((0..LENGTH).map(|at| at as u8).collect(), Access::LOCAL_WRITE);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let sink = world.hosts[to].register(vec![0; LENGTH as usize], rights);
        let local = Sge { stag: source.stag(), length: LENGTH, offset: source.base_offset() };
        assert!(client.post_simple(1, SendOpcode::Write, Some(local), (sink.stag(), sink.base_offset())));
        streams.push((client, server, source, sink));
    }
    let arrived = world.run_until(Duration::from_secs(60), |_| {
        streams.iter().all(|(_, _, source, sink)| {
            let (mut sent, mut received) = (vec![0; LENGTH as usize], vec![0; LENGTH as usize]);
            source.read(0, &mut sent).expect("in range");
            sink.read(0, &mut received).expect("in range");
            sent == received
        })
    });
    assert!(arrived, "{:#?}", [0, 1].map(|host| stats(world, host)));
}

#[test]
fn packets_find_their_engine_wherever_they_arrive() {
    for outwards in [true, false] {
        let options = SimOptions { loss: 0.005, spread: Spread::Any, ..SimOptions::default() };
        let mut world = world(options, false);
        run(&mut world, outwards);
        world.run(Duration::from_secs(1));
        for (here, there) in [(0, 1), (1, 0)] {
            let (here, there) = (stats(&world, here), stats(&world, there));
            // Only acknowledgments in one direction, all segments in the other.
            assert!(here.counters.handed_off > 10, "{}", here.counters.handed_off);
            assert_eq!(here.counters.handed_off, there.counters.taken_over);
            // No packet was in the wrong place, which would cause a reset, or a segment without a connection.
            assert_eq!((here.counters.resets_sent, here.drops.get("no-connection")), (0, None));
        }
    }
}

/// An acknowledgment that another engine hands over is copied, though data has left only the reserve of the pool: it
/// is what frees the rest.
#[test]
fn acknowledgments_are_taken_over_when_data_fills_the_pool() {
    let options = SimOptions { spread: Spread::Any, ..SimOptions::default() };
    let (mut world, _) = world_for_flows(options, false, 1000, |config| config.budgets.transmit_reserve = Some(2044));
    run(&mut world, true);
    for engine in [0, 1] {
        let stats = stats(&world, engine);
        assert!(stats.counters.taken_over > 10, "{}", stats.counters.taken_over);
        assert_eq!(stats.drops.get("no-transmit-buffer"), None, "{:?}", stats.drops);
    }
}

#[test]
fn segments_that_the_device_vouches_for_are_handed_on_without_their_checksum() {
    let options = SimOptions { unfinished_checksums: true, spread: Spread::Any, ..SimOptions::default() };
    let mut world = world(options, false);
    run(&mut world, false);
    for engine in [0, 1] {
        let stats = stats(&world, engine);
        assert!(stats.counters.taken_over > 10, "{}", stats.counters.taken_over);
        assert_eq!(stats.drops.get("l4-checksum"), None, "{:?}", stats.drops);
    }
}

#[test]
fn active_opens_choose_ports_that_the_device_steers_home() {
    let options = SimOptions { spread: Spread::Rss, ..SimOptions::default() };
    for (steered, stray) in [(true, false), (false, true)] {
        let mut world = world(options, steered);
        run(&mut world, true);
        // Neighbour messages are shared; segments do not need that.
        for engine in [0, 1] {
            let stats = stats(&world, engine);
            assert_eq!(stats.connections.len(), 6);
        }
        let handed: u64 = [0, 1].map(|engine| stats(&world, engine).counters.handed_off).iter().sum();
        assert_eq!(handed > 20, stray, "{handed}");
    }
}

#[test]
fn ports_are_taken_once_by_all_engines_together() {
    let mut world = world(SimOptions::default(), false);
    let _requests = world.hosts[2].listen(PORT);
    for engine in [0, 1] {
        let pair = world.hosts[engine].pair(PairOptions::default());
        let remote = (Ipv4Addr::new(10, 0, 0, 3), PORT).into();
        let parameters = ConnectParameters {
            queue_pair: pair.number,
            remote,
            local_address: None,
            local_port: Some(5000),
            options: Default::default(),
            retry: None,
        };
        world.hosts[engine].command(Command::Connect(Box::new(parameters)));
        world.run(Duration::from_millis(10));
        let event = pair.events.try_recv();
        let refused = matches!(event, Ok(ConnectionEvent::Failed(ConnectFailure::AddressInUse)));
        assert_eq!(refused, engine == 1, "{event:?}");
    }
}

#[test]
fn a_late_segment_of_a_finished_connection_finds_the_engine_that_waits_for_it() {
    let (mut world, owners) = world_with_owners(SimOptions { spread: Spread::Any, ..SimOptions::default() }, false);
    let incoming = world.hosts[2].listen_streams(PORT, 16, StreamOptions::default());
    for engine in [0, 1] {
        let mut client =
            world.hosts[engine].connect_stream((Ipv4Addr::new(10, 0, 0, 3), PORT), StreamOptions::default());
        let mut server = None;
        assert!(world.run_until(Duration::from_secs(5), |_| {
            server = incoming.try_recv().ok().and_then(|incoming| incoming.take());
            server.is_some()
        }));
        client.finish();
        world.run(Duration::from_millis(10));
        drop(server);
        assert!(
            world.run_until(Duration::from_secs(1), |world| stats(world, engine).time_wait == 1),
            "we closed first"
        );
        // The peer's FIN again, as if the acknowledgment had been lost: RFC 9293 §3.10.7.4, eighth check.
        let fin = world.network.last_sent(2);
        let before = [0, 1].map(|engine| stats(&world, engine));
        for _ in 0..40 {
            world.network.inject(world.now(), &fin);
        }
        let sum = |stats: [EngineStats; 2]| stats.iter().map(|stats| stats.counters.pure_acknowledgments).sum::<u64>();
        let wanted = sum(before.clone()) + 40;
        world.run_until(Duration::from_millis(1), |world| sum([0, 1].map(|engine| stats(world, engine))) == wanted);
        let after = [0, 1].map(|engine| stats(&world, engine));
        let (owner, other) = (engine, 1 - engine);
        assert_eq!((after[0].counters.resets_sent, after[1].counters.resets_sent), (0, 0), "nobody is turned away");
        let answered = [0, 1]
            .map(|engine| after[engine].counters.pure_acknowledgments - before[engine].counters.pure_acknowledgments);
        assert_eq!((answered[owner], answered[other]), (40, 0));
        assert!(
            after[other].counters.handed_off > before[other].counters.handed_off + 5,
            "{}",
            after[other].counters.handed_off
        );
        assert_eq!(owners.len(), 1);
        assert!(world.run_until(Duration::from_secs(5), |world| stats(world, engine).time_wait == 0));
        assert!(owners.is_empty(), "nobody has it when the wait is over");
    }
}

/// A flow of a host that does not exist.
fn stranger(number: u16) -> FlowKey {
    FlowKey {
        remote: Ipv4Addr::new(10, 0, 0, 9).into(),
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        remote_port: number,
        local_port: PORT,
    }
}

/// A world whose table is full of other flows.
fn full_world(spread: Spread, adjust: impl Fn(&mut EngineConfig)) -> (World, Arc<FlowOwners>) {
    let (world, owners) = world_for_flows(SimOptions { spread, ..SimOptions::default() }, false, 32, adjust);
    for number in 0..2000 {
        owners.claim(&stranger(number), 0);
    }
    assert_eq!(owners.len(), 64);
    (world, owners)
}

/// If it did not wait, the engine that receives its packets without knowing it would reset the connection.
#[test]
fn a_syn_that_no_engine_could_be_told_of_waits_for_room() {
    let (mut world, owners) = full_world(Spread::Any, |_| {});
    let incoming = [0, 1].map(|engine| world.hosts[engine].listen_streams(PORT, 16, StreamOptions::default()));
    let client = world.hosts[2].connect_stream((Ipv4Addr::new(10, 0, 0, 1), PORT), StreamOptions::default());
    // SYNs at 0, 1 and 3 s.
    world.run(Duration::from_secs(4));
    let engines = [0, 1].map(|engine| stats(&world, engine));
    let refused: u64 = engines.iter().filter_map(|stats| stats.drops.get("not-entered")).sum();
    assert!(refused >= 2, "{refused}");
    assert_eq!(
        engines.map(|stats| (stats.counters.resets_sent, stats.flows)),
        [(0, 0); 2],
        "nothing was begun, nobody refused"
    );
    for number in 0..2000 {
        owners.release(&stranger(number), 0);
    }
    let mut server = None;
    assert!(world.run_until(Duration::from_secs(10), |_| {
        server = incoming.iter().find_map(|incoming| incoming.try_recv().ok()?.take());
        server.is_some()
    }));
    assert_eq!(owners.len(), 1);
    drop((client, server));
    world.run(Duration::from_secs(1));
    assert_eq!([0, 1].map(|engine| stats(&world, engine).counters.resets_sent), [0; 2]);
}

/// The same if a cookie has answered the SYN: nothing is entered before it returns.
#[test]
fn a_cookie_that_no_engine_could_be_told_of_waits_for_room() {
    let (mut world, owners) = full_world(Spread::Rss, |config| config.limits.half_open = 0);
    let incoming = [0, 1].map(|engine| world.hosts[engine].listen_streams(PORT, 16, StreamOptions::default()));
    let mut client = world.hosts[2].connect_stream((Ipv4Addr::new(10, 0, 0, 1), PORT), StreamOptions::default());
    assert!(world.run_until(Duration::from_secs(1), |_| client.is_open()));
    // What follows the first octets fits no cookie.
    for part in [b"he", b"ll"] {
        assert_eq!(client.write(part), 2);
        world.run(Duration::from_millis(1));
    }
    world.run(Duration::from_secs(1));
    let engines = [0, 1].map(|engine| stats(&world, engine));
    let refused: u64 = engines.iter().filter_map(|stats| stats.drops.get("not-entered")).sum();
    assert!(refused >= 2, "{refused}");
    let begun = engines.map(|stats| (stats.counters.resets_sent, stats.flows, stats.counters.cookies_accepted));
    assert_eq!(begun, [(0, 0, 0); 2], "nothing was begun, nobody refused");
    for number in 0..2000 {
        owners.release(&stranger(number), 0);
    }
    let mut server = None;
    let mut heard = Vec::new();
    assert!(world.run_until(Duration::from_secs(10), |_| {
        server = server.take().or_else(|| incoming.iter().find_map(|incoming| incoming.try_recv().ok()?.take()));
        if let Some(server) = &mut server {
            let mut octets = [0; 8];
            let count = server.read(&mut octets);
            heard.extend_from_slice(&octets[..count]);
        }
        heard.len() == 4
    }));
    assert_eq!((&heard[..], owners.len()), (&b"hell"[..], 1));
}

/// The acknowledgment of a cookie reaches either engine, and opens the connection there.
#[test]
fn a_cookie_comes_back_to_any_engine() {
    let options = SimOptions { spread: Spread::Any, ..SimOptions::default() };
    let (mut world, owners) = world_for_flows(options, false, 1000, |config| config.limits.half_open = 0);
    let incoming = [0, 1].map(|engine| world.hosts[engine].listen_streams(PORT, 64, StreamOptions::default()));
    let mut open = Vec::new();
    for number in 1..=20 {
        let mut client = world.hosts[2].connect_stream((Ipv4Addr::new(10, 0, 0, 1), PORT), StreamOptions::default());
        assert!(world.run_until(Duration::from_secs(1), |_| client.is_open()));
        assert_eq!(client.write(b"hello"), 5);
        let mut server = None;
        let mut heard = [0; 8];
        assert!(
            world.run_until(Duration::from_secs(10), |_| {
                server =
                    server.take().or_else(|| incoming.iter().find_map(|incoming| incoming.try_recv().ok()?.take()));
                server.as_mut().is_some_and(|server| server.read(&mut heard) == 5)
            }),
            "{number}: {:?}",
            [0, 1].map(|engine| stats(&world, engine).counters.resets_sent)
        );
        open.push((client, server));
        assert_eq!(owners.len(), number);
    }
    let engines = [0, 1].map(|engine| stats(&world, engine));
    assert_eq!(engines.each_ref().map(|stats| stats.counters.resets_sent), [0; 2]);
    assert_eq!(engines.iter().map(|stats| stats.counters.cookies_accepted).sum::<u64>(), 20);
    assert_eq!(engines.iter().map(|stats| stats.flows).sum::<u64>(), 20);
}

#[test]
fn an_open_that_no_engine_could_be_told_of_takes_another_port_or_fails() {
    let (mut world, owners) = full_world(Spread::Any, |_| {});
    let requests = world.hosts[2].listen(PORT);
    let connect = |world: &mut World, local_port| {
        let pair = world.hosts[1].pair(PairOptions::default());
        let remote = (Ipv4Addr::new(10, 0, 0, 3), PORT).into();
        let parameters = ConnectParameters {
            queue_pair: pair.number,
            remote,
            local_address: None,
            local_port,
            options: Default::default(),
            retry: None,
        };
        world.hosts[1].command(Command::Connect(Box::new(parameters)));
        world.run(Duration::from_secs(2));
        pair.events.try_recv()
    };
    for local_port in [None, Some(5000)] {
        let event = connect(&mut world, local_port);
        let refused = matches!(event, Ok(ConnectionEvent::Failed(ConnectFailure::Limit)));
        assert!(refused, "{local_port:?}: {event:?}");
    }
    let stats = [0, 1].map(|engine| stats(&world, engine));
    assert_eq!(stats.map(|stats| (stats.counters.resets_sent, stats.flows)), [(0, 0); 2], "nothing was begun");
    // With one free slot there are ports whose flow can use it.
    let freed = (0..2000).map(stranger).find(|flow| owners.find(flow).is_some()).expect("it is full");
    owners.release(&freed, 0);
    assert_eq!(owners.len(), 63);
    let client = world.hosts[1].pair(PairOptions::default());
    let peer = Ipv4Addr::new(10, 0, 0, 3);
    world.hosts[1].connect(&client, (peer, PORT), Default::default());
    let mut request = None;
    assert!(world.run_until(Duration::from_secs(5), |_| {
        request = requests.try_recv().ok();
        request.is_some()
    }));
    let (request, server) = (request.expect("it came"), world.hosts[2].pair(PairOptions::default()));
    world.hosts[2].accept(&server, &request, Default::default());
    assert!(world.run_until(Duration::from_secs(5), |_| client.events.try_recv().is_ok()));
    let flow = FlowKey { remote: peer.into(), remote_port: PORT, local_port: request.peer.port(), ..freed };
    assert_eq!((owners.len(), owners.find(&flow)), (64, Some(1)));
}

/// Neighbour messages go to all engines. One that does not run gets what its ring holds; the rest is counted as lost.
#[test]
fn news_for_an_engine_that_takes_none_is_counted() {
    let (mut world, _) = world_with_owners(SimOptions { spread: Spread::Any, ..SimOptions::default() }, false);
    let client = world.hosts[2].pair(PairOptions::default());
    world.hosts[2].connect(&client, (Ipv4Addr::new(10, 0, 0, 1), PORT), Default::default());
    world.step();
    let question = world.network.last_sent(2);
    assert_eq!(question[12..14], [8, 6], "ARP");
    world.hosts[2].engine = None;
    world.run(Duration::from_millis(100));
    let (before, other_before) = (stats(&world, 0), stats(&world, 1));
    assert_eq!(before.drops.get("handoff-full"), None);
    let standing = world.hosts[1].engine.take();
    for _ in 0..100 {
        for _ in 0..100 {
            world.network.inject(world.now(), &question);
        }
        world.run(Duration::from_millis(1));
    }
    let after = stats(&world, 0);
    let received = after.counters.frames_received - before.counters.frames_received;
    let (sent, lost) = (after.counters.handed_off - before.counters.handed_off, after.drops["handoff-full"]);
    assert!(received > 4000 && lost > 1000, "{received} received, {lost} lost");
    assert_eq!(sent + lost, received, "each is one or the other");
    // It continues: nothing that was sent is missing, and there is room again.
    world.hosts[1].engine = standing;
    world.run(Duration::from_millis(100));
    assert!(stats(&world, 1).counters.taken_over - other_before.counters.taken_over >= sent);
    world.network.inject(world.now(), &question);
    world.run(Duration::from_millis(1));
    assert_eq!(stats(&world, 0).drops["handoff-full"], lost);
}
