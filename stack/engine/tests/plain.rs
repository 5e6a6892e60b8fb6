//! Plain streams over a simulated network: engines, rings and virtual time.

mod common;

use common::{PORT, SECOND, pattern};
use std::time::Duration;
use uwarp_engine::stream::{StreamEnds, StreamFailure, StreamOptions};
use uwarp_testkit::rig::{HostOptions, World, is_skipped};
use uwarp_testkit::sim::SimOptions;

/// Two hosts with one stream between them.
fn joined(world: &mut World, options: &StreamOptions) -> (StreamEnds, StreamEnds) {
    let incoming = world.hosts[1].listen_streams(PORT, 128, options.clone());
    let client = world.hosts[0].connect_stream((world.hosts[1].address, PORT), options.clone());
    let mut server = None;
    assert!(world.run_until(SECOND * 60, |_| {
        server = incoming.try_recv().ok();
        server.is_some()
    }));
    (client, server.and_then(|incoming| incoming.take()).expect("it came"))
}

/// Sends all of `sent[n]` by stream n and ends its half; gives what each received until the end.
fn exchange(world: &mut World, streams: [&mut StreamEnds; 2], sent: [&[u8]; 2]) -> [Vec<u8>; 2] {
    let mut at = [0; 2];
    let mut received = [Vec::new(), Vec::new()];
    let mut ended = [false; 2];
    let mut room = vec![0; 70_000];
    let [a, b] = streams;
    let over = world.run_until(SECOND * 600, |_| {
        for (index, stream) in [&mut *a, &mut *b].into_iter().enumerate() {
            at[index] += stream.write(&sent[index][at[index]..]);
            if at[index] == sent[index].len() {
                stream.finish();
            }
            let count = stream.read(&mut room);
            received[index].extend_from_slice(&room[..count]);
            ended[index] = stream.is_at_end();
        }
        ended[0] && ended[1]
    });
    assert!(over, "sent {at:?}, received {} and {}", received[0].len(), received[1].len());
    assert_eq!((a.failure(), b.failure()), (None, None));
    received
}

#[test]
fn two_directions_and_two_ends() {
    let mut world = World::two();
    let (mut client, mut server) = joined(&mut world, &StreamOptions::default());
    let (up, down) = (pattern(3 << 20, 1), pattern(1 << 20, 2));
    let [at_client, at_server] = exchange(&mut world, [&mut client, &mut server], [&up, &down]);
    assert!(at_server == up && at_client == down);
    drop((client, server));
    world.run(SECOND * 5);
    common::nothing_left(&mut world);
}

#[test]
fn small_buffers_and_a_window_that_shuts_again_and_again() {
    let mut world = World::two();
    let options = StreamOptions { send_buffer: 4096, receive_buffer: 4096, ..StreamOptions::default() };
    let (mut client, mut server) = joined(&mut world, &options);
    let (up, down) = (pattern(100_000, 3), pattern(50_000, 4));
    let [at_client, at_server] = exchange(&mut world, [&mut client, &mut server], [&up, &down]);
    assert!(at_server == up && at_client == down);
}

#[test]
fn small_writes_run_together_while_the_network_is_busy() {
    let mut world = World::two();
    let (mut client, mut server) = joined(&mut world, &StreamOptions { nagle: true, ..StreamOptions::default() });
    let sent = pattern(20_000, 5);
    let mut received = Vec::new();
    let mut at = 0;
    let mut room = vec![0; 30_000];
    assert!(world.run_until(SECOND, |_| {
        // Ten octets a microsecond: far more writes than round trips.
        at += client.write(&sent[at..sent.len().min(at + 10)]);
        let count = server.read(&mut room);
        received.extend_from_slice(&room[..count]);
        received.len() == sent.len()
    }));
    assert!(received == sent);
    let stats = world.hosts[0].engine.as_ref().expect("it lives").stats();
    let segments = stats.connections[0].tcp.traffic.segments_sent;
    assert!(segments < 200, "{segments} segments for 2,000 writes");
}

/// RFC 9293 §3.6.1: a reset shows that data was lost, behind all that was written; an end in order shows that none was.
#[test]
fn a_dropped_stream_resets_a_peer_whose_octets_it_has_not_read() {
    // Octets of ten that are read before the drop, whether the stream was finished before, and whether its peer was.
    for read in [0, 9, 10] {
        for (finished, peer_finished) in [(false, false), (true, false), (false, true)] {
            let mut world = World::two();
            let (mut client, mut server) = joined(&mut world, &StreamOptions::default());
            server.write(b"ten octets");
            if peer_finished {
                server.finish();
            }
            world.run(SECOND);
            assert_eq!(client.read(&mut vec![0; read]), read);
            let sent = pattern(100_000, 6);
            assert_eq!(client.write(&sent), sent.len());
            if finished {
                client.finish();
                world.run(SECOND);
            }
            drop(client);
            let mut received = Vec::new();
            let mut room = vec![0; 70_000];
            assert!(world.run_until(SECOND * 10, |_| {
                let count = server.read(&mut room);
                received.extend_from_slice(&room[..count]);
                server.is_at_end()
            }));
            assert!(received == sent, "{} octets", received.len());
            world.run(SECOND);
            let reset = (read < 10).then_some(StreamFailure::Reset);
            assert_eq!(server.failure(), reset, "{read} {finished} {peer_finished}");
            drop(server);
            world.run(SECOND * 5);
            common::nothing_left(&mut world);
        }
    }
}

/// RFC 9293 §3.6.1: so do octets that come after the drop, whether they cross its FIN or answer it.
#[test]
fn octets_for_a_stream_that_was_dropped_are_answered_by_a_reset() {
    for wait in [std::time::Duration::ZERO, SECOND] {
        let mut world = World::two();
        let (mut client, mut server) = joined(&mut world, &StreamOptions::default());
        client.write(b"last words");
        drop(client);
        world.run(wait);
        server.write(b"too late");
        world.run(SECOND);
        let mut room = [0; 32];
        assert_eq!((server.read(&mut room), &room[..10]), (10, &b"last words"[..]));
        assert_eq!(server.failure(), Some(StreamFailure::Reset), "{wait:?}");
    }
}

#[test]
fn an_engine_that_fails_tells_its_streams() {
    let mut world = World::two();
    let (mut client, mut server) = joined(&mut world, &StreamOptions::default());
    server.write(b"before");
    world.run(SECOND);
    world.hosts[0].engine.as_mut().expect("it lives").fail("a test");
    let mut room = [0; 10];
    assert_eq!(client.read(&mut room), 6);
    assert!(client.is_at_end());
    assert_eq!(client.failure(), Some(StreamFailure::Fatal));
    world.hosts[0].engine = None;
    world.run(SECOND * 30);
    assert_eq!(server.failure(), Some(StreamFailure::TimedOut));
}

#[test]
fn a_peer_that_is_given_up_hears_a_reset_if_it_hears_again() {
    let mut world = World::new(1, SimOptions::default());
    for _ in 0..2 {
        // The one that waits does not ask.
        world.add(HostOptions::default(), |config| config.tcp.keep_alive = None);
    }
    let (mut client, server) = joined(&mut world, &StreamOptions::default());
    world.run(SECOND);
    world.network.set_options(SimOptions { loss: 1.0, ..SimOptions::default() });
    client.write(b"lost");
    // Between the last retransmission and the end of the user time-out.
    world.run(SECOND * 8);
    world.network.set_options(SimOptions::default());
    assert!(world.run_until(SECOND * 4, |_| client.failure().is_some()));
    assert_eq!(client.failure(), Some(StreamFailure::TimedOut));
    world.run(SECOND / 10);
    assert_eq!(server.failure(), Some(StreamFailure::Reset));
}

#[test]
fn an_open_that_nobody_answers_fails() {
    let mut world = World::two();
    world.add(HostOptions::default(), |_| {});
    let client = world.hosts[0].connect_stream((world.hosts[2].address, PORT), StreamOptions::default());
    world.run(SECOND);
    assert_eq!(client.failure(), Some(StreamFailure::Refused));
    world.hosts[2].engine = None;
    let client = world.hosts[0].connect_stream((world.hosts[2].address, PORT), StreamOptions::default());
    world.run(SECOND * 20);
    assert_eq!(client.failure(), Some(StreamFailure::TimedOut));
    assert!(!client.is_open());
}

#[test]
fn a_half_closed_stream_hears_its_peer_however_late() {
    let mut world = World::new(1, Default::default());
    for _ in 0..2 {
        // A limit that is meant for those who do not listen any more.
        world.add(HostOptions::default(), |config| config.tcp.fin_wait_2 = Some(SECOND * 5));
    }
    let (mut client, mut server) = joined(&mut world, &StreamOptions::default());
    client.write(b"my last word");
    client.finish();
    world.run(SECOND * 120);
    let mut room = [0; 32];
    assert_eq!((server.read(&mut room), server.is_at_end(), client.failure()), (12, true, None));
    server.write(b"not mine");
    world.run(SECOND * 120);
    assert_eq!((client.read(&mut room), &room[..8], client.failure()), (8, &b"not mine"[..], None));
    // Whom nobody listens to is not waited for.
    drop(client);
    world.run(SECOND * 40);
    assert_eq!(world.hosts[0].engine.as_ref().expect("alive").stats().connections.len(), 0);
    assert_eq!(server.failure(), Some(StreamFailure::Reset));
}

#[test]
fn a_dropped_stream_does_not_wait_for_ever_for_a_peer_that_does_not_read() {
    let mut world = World::two();
    let options = StreamOptions { send_buffer: 4096, receive_buffer: 4096, ..StreamOptions::default() };
    let (mut client, server) = joined(&mut world, &options);
    world.run(SECOND);
    for _ in 0..4 {
        client.write(&[1; 4096]);
        world.run(SECOND);
    }
    drop(client);
    world.run(SECOND * 10);
    let open = |world: &World| world.hosts[0].engine.as_ref().expect("alive").stats().connections.len();
    assert_eq!(open(&world), 1, "it still tries");
    world.run(SECOND * 30);
    assert_eq!(open(&world), 0);
    assert_eq!(server.failure(), Some(StreamFailure::Reset));
}

#[test]
fn a_slow_peer_gets_all_octets_of_a_dropped_stream() {
    let mut world = World::two();
    let options = StreamOptions { send_buffer: 64 << 10, receive_buffer: 4096, ..StreamOptions::default() };
    let (mut client, mut server) = joined(&mut world, &options);
    let sent = pattern(60_000, 1);
    assert_eq!(client.write(&sent), sent.len());
    drop(client);
    let (mut received, mut room) = (Vec::new(), [0; 1000]);
    for _ in 0..90 {
        world.run(SECOND);
        let count = server.read(&mut room);
        received.extend_from_slice(&room[..count]);
        if received.len() == sent.len() {
            break;
        }
    }
    assert!(received == sent, "{} octets, {:?}", received.len(), server.failure());
    assert_eq!(server.failure(), None);
}

/// Whoever is answered waits for the flight of two segments and for nothing else; no acknowledgment travels alone.
#[test]
fn delayed_acknowledgments_cost_a_ping_pong_nothing() {
    if is_skipped("of a message in two pieces the first may be acknowledged before there is an answer") {
        return;
    }
    const FLIGHT: Duration = Duration::from_micros(50);
    const ROUNDS: u32 = 1000;
    for nagle in [false, true] {
        let mut world = World::new(1, SimOptions { delay: FLIGHT, ..SimOptions::default() });
        for _ in 0..2 {
            world.add(HostOptions::default(), |_| {});
        }
        let options = StreamOptions { nagle, ..StreamOptions::default() };
        let (mut client, mut server) = joined(&mut world, &options);
        world.run(SECOND);
        let alone = |world: &World| -> u64 {
            world
                .hosts
                .iter()
                .flat_map(|host| &host.engine)
                .map(|engine| engine.stats().counters.pure_acknowledgments)
                .sum()
        };
        let mut room = [0; 64];
        let mut rounds = |world: &mut World, count: u32| {
            for _ in 0..count {
                assert_eq!(client.write(&[1; 64]), 64);
                assert!(world.run_until(SECOND, |_| server.read(&mut room) == 64));
                assert_eq!(server.write(&room), 64);
                assert!(world.run_until(SECOND, |_| client.read(&mut room) == 64));
            }
        };
        // What the first of all brings may be acknowledged at once.
        rounds(&mut world, 10);
        let (before, begin) = (alone(&world), world.now());
        rounds(&mut world, ROUNDS);
        let took = world.now() - begin;
        assert_eq!(alone(&world) - before, 0, "Nagle's rule: {nagle}");
        // Virtual time: a turn takes some of it.
        assert!(took < 2 * FLIGHT * ROUNDS * 21 / 20, "{took:?} for {ROUNDS} rounds of two flights of {FLIGHT:?}");
    }
}
