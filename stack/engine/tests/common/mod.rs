//! What the integration tests share.
#![allow(dead_code)]

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{ConnectionEvent, ConnectionRequest, DisconnectReason};
use uwarp_engine::work::{Completion, Sge};
use uwarp_memory::Registration;
use uwarp_testkit::rig::{Pair, PairOptions, World};

pub const SECOND: Duration = Duration::from_secs(1);
pub const PORT: u16 = 7471;

/// Two hosts with one connected pair of queue pairs.
pub fn joined() -> (World, Pair, Pair) {
    let (world, client, server, _) = joined_with(PairOptions::default());
    (world, client, server)
}

pub fn joined_with(options: PairOptions) -> (World, Pair, Pair, Receiver<ConnectionRequest>) {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let (client, server) = join(&mut world, &requests, options);
    (world, client, server, requests)
}

/// One more connected pair.
pub fn join(world: &mut World, requests: &Receiver<ConnectionRequest>, options: PairOptions) -> (Pair, Pair) {
    let client = world.hosts[0].pair(options);
    let server = world.hosts[1].pair(options);
    world.join((0, &client), (1, &server), requests, PORT);
    (client, server)
}

pub fn sge(region: &Registration, offset: u64, length: u32) -> Sge {
    Sge { stag: region.stag(), length, offset: region.base_offset() + offset }
}

pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

pub fn contents(region: &Registration) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.read(0, &mut out).expect("in range");
    out
}

/// Waits for `count` completions.
pub fn completions(world: &mut World, pair: &mut Pair, count: usize, limit: Duration) -> Vec<Completion> {
    let mut all = Vec::new();
    world.run_until(limit, |_| {
        all.extend(pair.poll_all());
        all.len() >= count
    });
    all
}

/// Waits for the next event of a pair's connection.
pub fn event(world: &mut World, pair: &Pair, limit: Duration) -> Option<ConnectionEvent> {
    let mut event = None;
    world.run_until(limit, |_| {
        event = pair.events.try_recv().ok();
        event.is_some()
    });
    event
}

/// Waits for the end of a pair's connection.
pub fn end(world: &mut World, pair: &Pair, limit: Duration) -> DisconnectReason {
    match event(world, pair, limit) {
        Some(ConnectionEvent::Disconnected(reason)) => reason,
        other => panic!("a disconnect, not {other:?}"),
    }
}

/// Nothing is left of any connection.
pub fn nothing_left(world: &mut World) {
    world.run(Duration::from_secs(5));
    for (number, host) in world.hosts.iter().enumerate() {
        let Some(engine) = &host.engine else { continue };
        let stats = engine.stats();
        assert_eq!(stats.flows, 0, "host {number}: {:?}", stats.connections);
        assert_eq!(engine.buffers_held(), 0, "host {number}");
        assert_eq!(stats.pools.transmit_free, stats.pools.transmit_total, "host {number}");
        assert_eq!(stats.pools.receive_free, stats.pools.receive_total, "host {number}");
    }
}
