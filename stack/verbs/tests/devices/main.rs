//! Every operation between two processes, over each kind of device.

mod harness;
mod transfer;

use anyhow::Result;
use harness::{Device, Role, Wire};
use uwarp::FaultOptions;

#[test]
#[ignore = "started by the other tests"]
fn child() {
    harness::child_main();
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Inline,
    Threaded,
}

/// `recut` is the share of segments, in per cent, that a middlebox in front of both sides cuts and joins.
fn run(device: Device, mode: Mode, mtu: u16, (queue_pairs, depth): (u64, u64), largest: u64, recut: f64) -> Result<()> {
    if device == Device::AfPacket && uwarp_notes::lacks_root("network namespaces") {
        return Ok(());
    }
    let wire = Wire::new(device)?;
    let (server, client) = wire.configs()?;
    let prepare = |config: uwarp::Config| {
        let mut config = config.mtu(mtu);
        config.tcp.segmentation_offload = device == Device::VirtioSegmentation;
        if recut > 0.0 {
            config = config.faults(FaultOptions { recut, ..FaultOptions::default() });
        }
        if mode == Mode::Inline { config.inline() } else { config }
    };
    let arguments = [("queue-pairs", queue_pairs), ("depth", depth), ("largest", largest)];
    let mut server = Role::start("transfer-server", &prepare(server), &arguments)?;
    wire.await_server(&mut server)?;
    let client = Role::start("transfer-client", &prepare(client), &arguments)?;
    client.succeed()?;
    server.succeed()
}

macro_rules! transfers {
    ($($name:ident: $device:expr, $mode:ident, $mtu:literal, $queue_pairs:literal x $depth:literal, $largest:expr $(, $recut:literal)?;)*) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                run($device, Mode::$mode, $mtu, ($queue_pairs, $depth), $largest, [$($recut,)? 0.0][0])
            }
        )*
    };
}

const MIB: u64 = 1 << 20;

transfers! {
    virtio_split_inline: Device::Virtio { packed: false }, Inline, 1500, 1 x 1, MIB;
    virtio_split_threaded: Device::Virtio { packed: false }, Threaded, 1500, 4 x 8, 65_536;
    virtio_packed_inline: Device::Virtio { packed: true }, Inline, 1500, 4 x 8, 65_536;
    virtio_split_jumbo: Device::Virtio { packed: false }, Inline, 9000, 2 x 4, MIB;
    virtio_cuts_segments_inline: Device::VirtioSegmentation, Inline, 1500, 4 x 8, 65_536;
    virtio_cuts_segments_threaded: Device::VirtioSegmentation, Threaded, 1500, 1 x 2, MIB;
    virtio_many_queue_pairs: Device::Virtio { packed: false }, Inline, 1500, 16 x 64, 4_096;
    memif_inline: Device::Memif { zero_copy: false }, Inline, 1500, 1 x 1, MIB;
    memif_threaded: Device::Memif { zero_copy: false }, Threaded, 1500, 4 x 8, 65_536;
    memif_jumbo: Device::Memif { zero_copy: false }, Inline, 9000, 2 x 4, MIB;
    memif_zero_copy: Device::Memif { zero_copy: true }, Inline, 1500, 4 x 8, 65_536;
    memif_many_queue_pairs: Device::Memif { zero_copy: false }, Threaded, 1500, 16 x 64, 4_096;
    af_packet_inline: Device::AfPacket, Inline, 1500, 4 x 8, 65_536;
    memif_through_a_middlebox: Device::Memif { zero_copy: false }, Inline, 1500, 4 x 8, 65_536, 20.0;
    af_packet_threaded: Device::AfPacket, Threaded, 1500, 2 x 4, MIB;
}
