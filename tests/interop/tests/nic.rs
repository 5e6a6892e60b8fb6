//! Drivers of NICs: uwarp in a guest, on NICs that qemu emulates, with uwarp on this machine as the peer.

use std::time::Duration;

use serde_json::Value;
use uwarp_interop_tests::nic::Bench;
use uwarp_netns as netns;

/// The sum of a counter over all engines.
fn total(look: &Value, pointer: &str) -> u64 {
    let engines = look["engines"].as_array().expect("engines");
    engines.iter().map(|engine| engine.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)).sum()
}

/// The counters of frames that were dropped for their checksums.
const DAMAGED: [&str; 2] = ["/drops/ip-checksum", "/drops/l4-checksum"];

fn damaged(look: &Value) -> u64 {
    DAMAGED.iter().map(|pointer| total(look, pointer)).sum()
}

/// Checked Writes on many queue pairs, of which each engine has its share.
fn two_engines(bench: &mut Bench, configuration: &str) {
    let server = bench.serve(configuration);
    bench.measure("write-bandwidth", &["--size", "16K", "--qps", "16", "--depth", "2", "--iterations", "96"]);
    let look = bench.look();
    let received: Vec<u64> = look["engines"]
        .as_array()
        .expect("engines")
        .iter()
        .map(|engine| engine["frames-received"].as_u64().expect("a number"))
        .collect();
    assert_eq!(received.len(), 2);
    // Sixteen queue pairs on one of two queues by chance: once in 32,768 runs.
    assert!(received.iter().all(|&frames| frames > 50), "RSS spreads nothing: {received:?}");
    // The engine that a connection was accepted by is the one whose queue its frames come to. Only frames that belong
    // to no connection are handed on.
    let handed = total(&look, "/handed-off");
    assert!(handed < 64, "{handed} frames of {received:?} came to the wrong engine");
    bench.end(server);
}

/// One frame of fifty is damaged on the way. None of them gets through to the CRC, which would end its connection.
fn damage(bench: &mut Bench, configuration: &str) {
    let server = bench.serve(configuration);
    bench.measure(
        "write-bandwidth",
        &["--size", "16K", "--depth", "2", "--iterations", "64", "--corrupt", "2%", "--fault-seed", "7"],
    );
    let look = bench.look();
    assert!(damaged(&look) > 0, "no damaged frame was counted: {}", look["engines"]);
    assert_eq!(total(&look, "/crc-errors"), 0, "a damaged frame was taken for a good one");
    bench.end(server);
}

/// The cable is out for a second while Writes run. The driver notices, and the connection goes on.
fn cable(bench: &mut Bench, configuration: &str) {
    let server = bench.serve(configuration);
    let writes = bench.start("write-bandwidth", &["--size", "16K", "--depth", "2", "--duration", "5s"]);
    bench.set_cable(0, false);
    std::thread::sleep(Duration::from_secs(1));
    bench.set_cable(0, true);
    Bench::finish(writes);
    bench.end(server);
}

#[test]
fn two_engines_share_the_queues_of_a_nic_and_drop_damaged_frames() {
    netns::test_inside("two_engines_share_the_queues_of_a_nic_and_drop_damaged_frames", || {
        let mut bench = Bench::new(&["igb", "e1000"]);
        let info = bench.run("./uwarp-info");
        assert!(info.contains("0000:00:08.0") && info.contains("net_e1000"), "{info}");
        two_engines(&mut bench, "0-2.toml");
        damage(&mut bench, "0-1.toml");
        cable(&mut bench, "0-1.toml");
        // It offers two queues, and would fill the first alone.
        let refusal = bench.refusal("./uwarp-perf serve --config 1-2.toml");
        assert!(refusal.contains("net_e1000_em") && refusal.contains("one engine"), "{refusal}");
        let refusal = bench.refusal("./uwarp-perf serve --device pci:0000:00:08.0 --address 10.77.0.2/24");
        assert!(refusal.contains("hugepages = true"), "{refusal}");
    });
}

/// Intel 82540EM, 82574L and 82576, and virtio-net: each looks at checksums in a way of its own, or not at all.
#[test]
fn every_emulated_nic_carries_rdma_and_drops_damaged_frames() {
    netns::test_inside("every_emulated_nic_carries_rdma_and_drops_damaged_frames", || {
        let models = ["e1000", "e1000e", "igb", "virtio"];
        let mut bench = Bench::new(&models);
        for number in 0..models.len() {
            damage(&mut bench, &format!("{number}-1.toml"));
        }
    });
}
