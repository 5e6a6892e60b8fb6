//! A process that posts work, reaps its completion and returns from `main` has delivered every octet, even at 5 % loss.

use std::process::Command;
use std::time::Duration;

use uwarp::{Context, DisconnectReason, FaultOptions, ListenOptions};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, pattern};
use uwarp_vdev_tests::network::{Device, Network, Side};
use uwarp_vdev_tests::peer::Peer;

const LENGTH: usize = 1 << 20;

fn deliver(device: Device, mode: &str, seed: u64) {
    let Some(network) = Network::new(device) else { return };
    let mut config = network.wire.config(Side::Server);
    config.tcp.user_timeout = Some(Duration::from_secs(30));
    config = if mode == "inline" { config.inline() } else { config.threaded(1) };
    config = config.faults(FaultOptions { loss: 5.0, seed: !seed, ..uwarp_middlebox::faults() });
    let context = Context::open(config).unwrap();
    let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
    // The message's place is behind the data.
    let mut endpoint = Endpoint::new(&context, LENGTH + 64);
    endpoint.post_receive(1, LENGTH..LENGTH + 64);

    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-deliver"));
    command.args([&serde_json::to_string(&network.wire).unwrap(), mode, &seed.to_string()]);
    let sender = Peer::spawn(command);
    endpoint.accept(&context, &mut listener);
    let received = endpoint.success();
    assert_eq!((received.id, received.length), (1, 12));
    assert!(endpoint.region.to_vec(0, LENGTH).unwrap() == pattern(seed, LENGTH), "every octet of the Write");
    assert_eq!(endpoint.region.to_vec(LENGTH, 12).unwrap(), b"that was all");
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
    assert_eq!(endpoint.queue_pair.control.disconnect_reason(), Some(DisconnectReason::PeerClosed));
    let status = sender.end(|| {
        context.poll();
    });
    assert!(status.success(), "{status}");
}

#[test]
fn by_processes_with_inline_engines() {
    for seed in 1..5 {
        deliver(Device::Virtio, "inline", seed);
    }
}

#[test]
fn by_processes_with_threaded_engines() {
    for seed in 11..15 {
        deliver(Device::Virtio, "threaded", seed);
    }
}

/// The client owns the buffers of both directions, and they disappear with it.
#[test]
fn over_memif() {
    for (mode, seed) in [("inline", 21), ("threaded", 22)] {
        deliver(Device::Memif, mode, seed);
    }
}
