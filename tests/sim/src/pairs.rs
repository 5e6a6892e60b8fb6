//! Two engines with connected queue pairs, and helpers for them.

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{ConnectionEvent, ConnectionRequest, DisconnectReason, Features, StartupOptions};
use uwarp_engine::work::{Completion, SendElement, SendFlags, SendOpcode, Sge};
use uwarp_memory::Registration;
use uwarp_testkit::rig::{Pair, PairOptions, World};

/// Where host 1 listens.
pub const PORT: u16 = 7471;
/// Longer than anything takes that needs no outside event.
pub const SECOND: Duration = Duration::from_secs(1);

/// Start-up options with these features.
pub fn with(features: Features) -> StartupOptions {
    StartupOptions { features, ..StartupOptions::default() }
}

/// Two hosts with one connected pair of queue pairs; the features of each side.
pub fn joined(client_side: Features, server_side: Features) -> (World, Pair, Pair, Receiver<ConnectionRequest>) {
    joined_with(with(client_side), with(server_side))
}

/// Two hosts with one connected pair of queue pairs.
pub fn joined_with(
    connect: StartupOptions,
    accept: StartupOptions,
) -> (World, Pair, Pair, Receiver<ConnectionRequest>) {
    let mut world = World::two();
    let (client, server, requests) = join_two(&mut world, connect, accept);
    (world, client, server, requests)
}

/// A queue pair of host 0 connected to one of host 1.
pub fn join_two(
    world: &mut World,
    connect: StartupOptions,
    accept: StartupOptions,
) -> (Pair, Pair, Receiver<ConnectionRequest>) {
    let requests = world.hosts[1].listen(PORT);
    let client = world.hosts[0].pair(PairOptions::default());
    let server = world.hosts[1].pair(PairOptions::default());
    join_with(world, &client, &server, &requests, connect, accept);
    (client, server, requests)
}

/// Connects a queue pair of host 0 to one of host 1, which listens.
///
/// # Panics
/// It takes more than ten seconds.
pub fn join_with(
    world: &mut World,
    client: &Pair,
    server: &Pair,
    requests: &Receiver<ConnectionRequest>,
    connect: StartupOptions,
    accept: StartupOptions,
) {
    world.hosts[0].connect(client, (world.hosts[1].address, PORT), connect);
    let mut established = 0;
    assert!(world.run_until(10 * SECOND, |world| {
        if let Ok(request) = requests.try_recv() {
            world.hosts[1].accept(server, &request, accept.clone());
        }
        for pair in [client, server] {
            established += u32::from(matches!(pair.events.try_recv(), Ok(ConnectionEvent::Established(_))));
        }
        established == 2
    }));
}

/// A part of a region.
pub fn sge(region: &Registration, offset: u64, length: u32) -> Sge {
    Sge { stag: region.stag(), length, offset: region.base_offset() + offset }
}

/// A signalled element of nothing.
pub fn element(id: u64, opcode: SendOpcode) -> SendElement {
    SendElement { id, opcode, flags: SendFlags::SIGNALLED, stag: 0, remote_offset: 0, length: 0, entries: 0 }
}

/// The completions within a second, at least `count` of them.
pub fn completions(world: &mut World, pair: &mut Pair, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    world.run_until(SECOND, |_| {
        all.extend(pair.poll_all());
        all.len() >= count
    });
    all
}

/// The reason for the end of the connection, which must end.
///
/// # Panics
/// It does not end.
pub fn ends(world: &mut World, pair: &Pair) -> DisconnectReason {
    let mut end = None;
    world.run_until(10 * SECOND, |_| {
        end = pair.events.try_recv().ok();
        end.is_some()
    });
    match end {
        Some(ConnectionEvent::Disconnected(reason)) => reason,
        other => panic!("the stream did not end: {other:?}"),
    }
}

/// Frames that a host has sent.
pub fn frames_sent(world: &World, host: usize) -> u64 {
    world.hosts[host].engine.as_ref().map_or(0, |engine| engine.stats().counters.frames_sent)
}
