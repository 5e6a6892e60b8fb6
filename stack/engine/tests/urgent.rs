//! Urgent data of plain streams (RFC 9293 §3.8.5) over a simulated network.

mod common;

use common::{PORT, SECOND, pattern};
use crossbeam::channel::bounded;
use std::time::Duration;
use uwarp_engine::command::Command;
use uwarp_engine::stream::{StreamEnds, StreamOptions};
use uwarp_testkit::rig::{HostOptions, World};
use uwarp_testkit::sim::SimOptions;

/// Two hosts with one stream between them.
fn joined(world: &mut World, options: &StreamOptions) -> (StreamEnds, StreamEnds) {
    let incoming = world.hosts[1].listen_streams(PORT, 128, options.clone());
    let client = world.hosts[0].connect_stream((world.hosts[1].address, PORT), options.clone());
    let mut server = None;
    assert!(world.run_until(SECOND * 60, |_| {
        server = incoming.try_recv().ok();
        server.is_some() && client.is_open()
    }));
    (client, server.and_then(|incoming| incoming.take()).expect("it came"))
}

/// Writes as much of `octets` as there is room for, as urgent data, by the first host.
fn write_urgent(world: &mut World, stream: &mut StreamEnds, octets: &[u8]) -> usize {
    let count = octets.len().min(stream.writable());
    if count == 0 {
        return 0;
    }
    let (reply, answer) = bounded(1);
    let handle = stream.handle().expect("it is open");
    world.hosts[0].command(Command::SendUrgent { handle, octets: count as u64, reply });
    assert!(world.run_until(SECOND, |_| answer.try_recv().is_ok()));
    assert_eq!(stream.write(&octets[..count]), count);
    count
}

/// Octets from the start of the stream to the end of urgent data, for a reader who is at `at`.
fn urgent_end(stream: &mut StreamEnds, at: usize) -> Option<usize> {
    stream.urgent_remaining().map(|ahead| at + ahead.get())
}

/// Writes pieces, some of them urgent, while the other end reads; who looks before each read never passes the end of
/// urgent data without having known of it, and is never told of any end but a piece's.
fn every_end_is_known_before_it_is_read(seed: u64, faults: SimOptions, host: HostOptions, options: &StreamOptions) {
    let mut world = World::new(seed, faults);
    world.add(host, |_| {});
    world.add(host, |_| {});
    let (mut client, mut server) = joined(&mut world, options);
    let sent = pattern(60_000, seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut written, mut received, mut known) = (0, Vec::new(), 0);
    let mut ends = Vec::new();
    let mut room = vec![0; 3000];
    let mut idle = 0;
    while received.len() < sent.len() {
        let piece = &sent[written..sent.len().min(written + random.usize(1..4000))];
        if random.u8(..) < 64 {
            let count = write_urgent(&mut world, &mut client, piece);
            written += count;
            if count > 0 {
                ends.push(written);
            }
        } else {
            written += client.write(piece);
        }
        world.run(Duration::from_micros(random.u64(1..200)));
        for _ in 0..random.usize(0..4) {
            if let Some(end) = urgent_end(&mut server, received.len()) {
                assert!(ends.contains(&end), "told of {end}, and not one of {ends:?}");
                known = end;
            }
            let count = server.read(&mut room);
            received.extend_from_slice(&room[..count]);
            let passed = ends.iter().rev().find(|end| **end <= received.len());
            assert!(passed.is_none_or(|end| *end <= known), "passed {passed:?} and knew of {known}");
            idle = if count == 0 { idle + 1 } else { 0 };
        }
        assert!(idle < 100_000, "{} of {written} received", received.len());
    }
    assert!(received == sent);
    assert_eq!((server.urgent_remaining(), Some(&known)), (None, ends.last()));
}

#[test]
fn a_reader_who_looks_knows_every_end_of_urgent_data() {
    for seed in 0..8 {
        let (faults, host, options) = Default::default();
        every_end_is_known_before_it_is_read(seed, faults, host, &options);
    }
}

#[test]
fn losses_and_a_window_that_shuts_change_nothing() {
    for seed in 0..8 {
        let faults =
            SimOptions { loss: 0.03, duplication: 0.02, reordering: 0.05, corruption: 0.01, ..SimOptions::default() };
        let options = StreamOptions { send_buffer: 4096, receive_buffer: 4096, ..StreamOptions::default() };
        every_end_is_known_before_it_is_read(seed, faults, HostOptions::default(), &options);
    }
}

/// A segment with URG does not travel with others behind one header.
#[test]
fn a_device_that_cuts_segments_changes_nothing() {
    for seed in 0..4 {
        let host = HostOptions { segmentation: 20_000, ..HostOptions::default() };
        every_end_is_known_before_it_is_read(seed, SimOptions::default(), host, &StreamOptions::default());
    }
}

#[test]
fn a_shut_window_does_not_hold_the_word_up() {
    let mut world = World::two();
    let options = StreamOptions { receive_buffer: 4096, ..StreamOptions::default() };
    let (mut client, mut server) = joined(&mut world, &options);
    assert_eq!(client.write(&pattern(6000, 1)), 6000);
    world.run(SECOND * 3);
    assert_eq!((server.readable(), server.urgent_remaining()), (4096, None));
    assert_eq!(write_urgent(&mut world, &mut client, &[7; 10]), 10);
    // Far less than a probe of the window would take.
    world.run(Duration::from_millis(2));
    assert_eq!(urgent_end(&mut server, 0), Some(6010));
    let mut room = [0; 7000];
    let mut received = 0;
    assert!(world.run_until(SECOND, |_| {
        received += server.read(&mut room);
        assert_eq!(urgent_end(&mut server, received), (received < 6010).then_some(6010));
        received == 6010
    }));
}

/// What was announced and never written is not waited for (RFC 9293 §3.8.5: a receiver is robust against such
/// pointers).
#[test]
fn urgent_data_ends_with_the_stream_at_the_latest() {
    let mut world = World::two();
    let (mut client, mut server) = joined(&mut world, &StreamOptions::default());
    let (reply, answer) = bounded(1);
    let handle = client.handle().expect("it is open");
    world.hosts[0].command(Command::SendUrgent { handle, octets: 1000, reply });
    assert!(world.run_until(SECOND, |_| answer.try_recv().is_ok()));
    client.write(&[1; 100]);
    world.run(Duration::from_millis(5));
    assert_eq!(urgent_end(&mut server, 0), Some(1000));
    client.finish();
    world.run(Duration::from_millis(5));
    assert_eq!(urgent_end(&mut server, 0), Some(100));
    assert_eq!(server.read(&mut [0; 200]), 100);
    assert_eq!((server.urgent_remaining(), server.is_at_end()), (None, true));
}
