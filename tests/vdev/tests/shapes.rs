//! Contexts and engines in other arrangements than one of each per process.

use serde::{Deserialize, Serialize};
use uwarp::{Config, Context, DeviceConfig, ListenOptions};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, answer, exchange, prepare_answer};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire, address, configure};
use uwarp_vdev_tests::peer::{self, Peer};

const LENGTH: usize = 200_000;

/// Both ends of a pair of rings: client and server in one process, each with an engine thread.
#[test]
fn client_and_server_over_rings_in_one_process() {
    let config = |side| {
        let device = DeviceConfig::Ring { name: "pair".to_owned(), loopback: false };
        configure(Config::new(device, address(side)).unwrap()).threaded(1)
    };
    let there = Context::open(config(Side::Server)).unwrap();
    let here = Context::open(config(Side::Client)).unwrap();
    let mut listener = there.listen(PORT, ListenOptions::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                let mut endpoint = Endpoint::new(&there, 64 + 2 * LENGTH);
                prepare_answer(&mut endpoint);
                endpoint.accept(&there, &mut listener);
                answer(&mut endpoint, LENGTH);
                assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
            }
        });
        for seed in 0..4 {
            let mut endpoint = Endpoint::new(&here, 64 + 2 * LENGTH);
            endpoint.connect(&here);
            exchange(&mut endpoint, seed, LENGTH);
            endpoint.disconnect();
        }
    });
    here.close().unwrap();
    there.close().unwrap();
}

#[derive(Serialize, Deserialize)]
struct Task {
    wire: Wire,
}

/// Connections of the test with two engines per side.
const CONNECTIONS: usize = 8;

/// Two engines on two queues each, and connections spread over them that are all busy at once.
fn two_engines(name: &str, device: Device) {
    if let Some(task) = peer::task::<Task>() {
        let context = Context::open(task.wire.config(Side::Server).threaded(2)).unwrap();
        let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
        peer::tell("open");
        let mut endpoints = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut endpoint = Endpoint::new(&context, 64 + 2 * LENGTH);
            prepare_answer(&mut endpoint);
            endpoint.accept(&context, &mut listener);
            endpoints.push(endpoint);
        }
        std::thread::scope(|scope| {
            for mut endpoint in endpoints {
                scope.spawn(move || {
                    answer(&mut endpoint, LENGTH);
                    answer(&mut endpoint, LENGTH);
                    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
                });
            }
        });
        return report("server", &context);
    }
    let Some(network) = Network::new(device) else { return };
    let peer = Peer::start(name, &Task { wire: network.wire.clone() });
    assert_eq!(peer.told(), "open");
    let context = Context::open(network.wire.config(Side::Client).threaded(2)).unwrap();
    let endpoints: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut endpoint = Endpoint::new(&context, 64 + 2 * LENGTH);
            endpoint.connect(&context);
            endpoint
        })
        .collect();
    std::thread::scope(|scope| {
        for (seed, mut endpoint) in endpoints.into_iter().enumerate() {
            scope.spawn(move || {
                exchange(&mut endpoint, 2 * seed as u64, LENGTH);
                exchange(&mut endpoint, 2 * seed as u64 + 1, LENGTH);
                endpoint.disconnect();
            });
        }
    });
    report("client", &context);
    assert!(peer.end(|| {}).success());
}

/// The connections were spread: connecting queue pairs are assigned to the engines in turn, and the device's queues
/// have the same order on both sides.
fn report(name: &str, context: &Context) {
    let opened: Vec<u64> = context.stats().engines.iter().map(|engine| engine.counters.connections_opened).collect();
    eprintln!("{name}: connections of each engine: {opened:?}");
    assert_eq!(opened.len(), 2);
    assert!(opened.iter().sum::<u64>() >= CONNECTIONS as u64, "{opened:?}");
    assert!(opened.iter().all(|&count| count > 0), "an engine did nothing: {opened:?}");
}

#[test]
fn two_engines_over_memif() {
    two_engines("two_engines_over_memif", Device::Memif);
}

#[test]
fn two_engines_over_virtio() {
    two_engines("two_engines_over_virtio", Device::Virtio);
}
