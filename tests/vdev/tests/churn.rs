//! Connections that are opened, carry data and are closed, one after another, leave nothing behind.
//!
//! Two processes: twice 300 connections; in the long run twice 10,000, with a comparison of resident memory in between.
//! The pair in one process: twice 1,000, or 10,000.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use uwarp::{Config, Context, ListenOptions, Listener};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, answer, exchange, prepare_answer};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire, configure};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, count, resident_kib};

/// Octets in each direction of a connection: several segments.
const LENGTH: usize = 10_000;
/// KiB that resident memory may grow between the two halves, because an allocator does not return everything at once.
const NOISE_KIB: u64 = 1024;

#[derive(Serialize, Deserialize)]
struct Task {
    wire: Wire,
    connections: usize,
}

/// The resources that an idle process has in use.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Rest {
    flows: u64,
    connections: usize,
    held: u64,
    queue_pairs: usize,
    regions: usize,
    completion_queues: usize,
}

const NOTHING: Rest = Rest { flows: 0, connections: 0, held: 0, queue_pairs: 0, regions: 0, completion_queues: 0 };

/// Waits until TIME-WAIT is over and nothing is left. Returns the number of buffers in use.
fn rest(context: &Context) -> (u32, u32) {
    let start = Instant::now();
    loop {
        context.poll();
        let stats = context.stats();
        let engine = &stats.engines[0];
        let rest = Rest {
            flows: engine.flows,
            connections: engine.connections.len(),
            held: engine.buffers_held,
            queue_pairs: stats.objects.queue_pairs,
            regions: stats.objects.regions,
            completion_queues: stats.objects.completion_queues,
        };
        if rest == NOTHING {
            let pools = engine.pools;
            return (pools.receive_total - pools.receive_free, pools.transmit_total - pools.transmit_free);
        }
        assert!(start.elapsed() < PATIENCE, "something is left: {rest:?}\n{stats:#?}");
        std::thread::yield_now();
    }
}

fn client(context: &Context, connections: usize) {
    for seed in 0..connections as u64 {
        let mut endpoint = Endpoint::new(context, 64 + 2 * LENGTH);
        endpoint.connect(context);
        exchange(&mut endpoint, seed, LENGTH);
        endpoint.disconnect();
    }
}

fn listen(context: &Context) -> Listener {
    context.listen(PORT, ListenOptions::default()).expect("a free port")
}

fn server(context: &Context, mut listener: Listener, connections: usize) {
    for _ in 0..connections {
        let mut endpoint = Endpoint::new(context, 64 + 2 * LENGTH);
        prepare_answer(&mut endpoint);
        endpoint.accept(context, &mut listener);
        answer(&mut endpoint, LENGTH);
        assert!(
            endpoint.queue_pair.control.wait_disconnected(PATIENCE).expect("waiting works"),
            "the peer disconnects"
        );
    }
}

/// Runs one half after another and compares.
fn halves(name: &str, context: &Context, mut half: impl FnMut(usize)) {
    // The first connections fill caches of the allocators.
    let mut levels = Vec::new();
    for part in 0..3 {
        half(part);
        let (receive, transmit) = rest(context);
        levels.push((receive, transmit, resident_kib()));
    }
    eprintln!("{name}: (receive buffers out, transmit buffers out, KiB resident) {levels:?}");
    let [_, (receive, transmit, resident), (receive_after, transmit_after, resident_after)] = levels[..] else {
        unreachable!("three parts");
    };
    // A device keeps some sent buffers until it sends more: up to one ring, however many connections there were.
    let ring = 1024 + 128;
    assert!(receive_after <= receive.max(ring) && transmit_after <= transmit.max(ring), "buffers: {levels:?}");
    assert!(resident_after <= resident + NOISE_KIB, "resident memory: {levels:?}");
}

/// The parts: a warm-up, then two equal halves.
fn sizes(connections: usize) -> [usize; 3] {
    [connections / 10, connections, connections]
}

fn two_processes(name: &str, device: Device, connections: usize) {
    if let Some(task) = peer::task::<Task>() {
        let context = Context::open(task.wire.config(Side::Server).threaded(1)).expect("the context opens");
        let sizes = sizes(task.connections);
        return halves("server", &context, |part| {
            let listener = listen(&context);
            peer::tell("open");
            server(&context, listener, sizes[part]);
        });
    }
    let Some(network) = Network::new(device) else { return };
    let mut peer = Peer::start(name, &Task { wire: network.wire.clone(), connections });
    assert_eq!(peer.told(), "open");
    let context = Context::open(network.wire.config(Side::Client).inline()).expect("the context opens");
    let sizes = sizes(connections);
    halves("client", &context, |part| {
        if part > 0 {
            peer.await_word("open", || {
                context.poll();
            });
        }
        client(&context, sizes[part]);
    });
    assert!(
        peer.end(|| {
            context.poll();
        })
        .success()
    );
}

#[test]
fn over_memif() {
    two_processes("over_memif", Device::Memif, count(300, 10_000));
}

#[test]
fn over_virtio() {
    two_processes("over_virtio", Device::Virtio, count(300, 10_000));
}

#[test]
fn in_one_process() {
    let config = |address| configure(Config::without_device(address).unwrap()).threaded(1);
    let (here, there) = Context::pair_in_process(config("10.0.0.2/24"), config("10.0.0.1/24")).unwrap();
    let sizes = sizes(count(1_000, 10_000));
    halves("pair", &here, |part| {
        let listener = listen(&there);
        std::thread::scope(|scope| {
            scope.spawn(|| server(&there, listener, sizes[part]));
            client(&here, sizes[part]);
        });
        rest(&there);
    });
}
