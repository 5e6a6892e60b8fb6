//! Both sides as processes over real devices, with every octet checked.

use serde_json::Value;
use std::process::Command;

/// Runs a pair and returns its JSON. Both sides share the available CPUs: nothing here asserts a time.
fn pair(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp-perf"))
        .arg("pair")
        .args(arguments)
        .args(["--verify", "--json", "-"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check_latency(test: &str, device: &str) {
    let result = pair(&[test, "--device", device, "--iterations", "200"]);
    assert_eq!(result["test"], test);
    assert_eq!(result["device"], device);
    let eight = ["atomic-latency", "immediate-latency"].contains(&test);
    assert_eq!(result["size"], if eight { 8 } else { 64 });
    assert_eq!(result["mtu"], 1500);
    assert_eq!(result["iterations"], 200);
    assert!(result["verified"].as_u64().unwrap() > 0);
    let percentile = |name: &str| result["latency_ns"][name].as_u64().unwrap();
    let in_order = ["min", "p50", "p99", "p99_9", "max"].map(percentile);
    assert!(in_order[0] > 0 && in_order.is_sorted(), "{result}");
    let line = &result["cacheline_ns"];
    // With one CPU there is no distance to measure.
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        let measured = |name: &str| line[name].as_f64().is_some_and(|time| time > 0.0);
        assert!(measured("before") && measured("after"), "{result}");
    } else {
        assert!(line.is_null(), "{result}");
    }
}

fn check_bandwidth(test: &str, device: &str, more: &[&str]) {
    let mut arguments = vec![test, "--device", device, "--iterations", "100"];
    arguments.extend(more);
    let result = pair(&arguments);
    assert!(result["iterations"].as_u64().unwrap() > 0, "{result}");
    assert!(result["verified"].as_u64().unwrap() > 0);
    assert!(result["gbit_per_s"].as_f64().unwrap() > 0.0);
    assert!(result["mops"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_configuration_file_decides_on_the_device() {
    let file = std::env::temp_dir().join(format!("uwarp-perf-{}.toml", std::process::id()));
    let text = "address = \"10.1.2.3/16\"\nmtu = 3000\n\
        [device]\nkind = \"memif\"\nrole = \"client\"\nsocket = \"/nonexistent/s\"\nzero-copy = true\n";
    std::fs::write(&file, text).unwrap();
    let result = pair(&["write-latency", "--config", file.to_str().unwrap(), "--iterations", "200"]);
    assert_eq!(result["device"], "memif");
    assert_eq!(result["mtu"], 3000);
    // The file does not say which thread turns the engine, so this tool's own thread does.
    assert_eq!(result["engine"], "inline");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn latency_over_virtio() {
    for test in ["write-latency", "read-latency", "send-latency", "atomic-latency", "raw-latency"] {
        check_latency(test, "virtio");
    }
}

#[test]
fn extensions_over_virtio_and_memif() {
    for device in ["virtio", "memif"] {
        for test in ["immediate-latency", "commit-latency", "connect-rate"] {
            check_latency(test, device);
        }
    }
    let plain = pair(&["commit-latency", "--plain", "--size", "4K", "--iterations", "200"]);
    assert_eq!((plain["size"].as_u64(), plain["verified"].as_u64()), (Some(4096), Some(50)));
    let connections = pair(&["connect-rate", "--iterations", "50"]);
    assert!(connections["connections_per_s"].as_f64().unwrap() > 0.0);
}

/// There are more connections than queue pairs.
#[test]
fn connections_that_have_ended_take_no_queue_pair() {
    let result = pair(&["connect-rate", "--iterations", "17000"]);
    assert_eq!(result["iterations"], 17_000);
}

#[test]
fn latency_over_memif() {
    for test in ["write-latency", "read-latency", "send-latency", "atomic-latency", "raw-latency"] {
        check_latency(test, "memif");
    }
}

#[test]
fn bandwidth_over_virtio() {
    for test in ["write-bandwidth", "read-bandwidth", "send-bandwidth", "write-rate"] {
        check_bandwidth(test, "virtio", &[]);
    }
}

#[test]
fn bandwidth_over_memif() {
    for test in ["write-bandwidth", "read-bandwidth", "send-bandwidth", "write-rate"] {
        check_bandwidth(test, "memif", &[]);
    }
}

/// Its frames are verified while they are measured: a wrong one ends the server.
#[test]
fn the_null_protocol_over_virtio_and_memif() {
    for device in ["virtio", "memif"] {
        let result = pair(&["null-bandwidth", "--device", device, "--size", "64K", "--duration", "100ms"]);
        assert_eq!(result["device"], device);
        assert!(result["gbit_per_s"].as_f64().unwrap() > 0.0);
    }
    let jumbo = pair(&["null-bandwidth", "--mtu", "9000", "--size", "64K", "--duration", "100ms"]);
    assert_eq!(jumbo["mtu"], 9000);
    assert!(jumbo["iterations"].as_u64().unwrap() > 0);
}

#[test]
fn plain_streams_over_virtio_and_memif() {
    for device in ["virtio", "memif"] {
        check_latency("stream-latency", device);
        check_bandwidth("stream-bandwidth", device, &[]);
    }
    check_bandwidth("stream-bandwidth", "virtio", &["--loss", "0.2%", "--size", "4K", "--engine", "threaded"]);
}

#[test]
fn several_queue_pairs_with_jumbo_frames_and_threaded_engines() {
    for test in ["write-bandwidth", "read-bandwidth", "send-bandwidth"] {
        check_bandwidth(test, "virtio", &["--qps", "16", "--depth", "4", "--mtu", "9000", "--engine", "threaded"]);
    }
}

#[test]
fn one_octet_and_one_mebibyte() {
    for size in ["1", "1439", "1440", "1441", "1M"] {
        check_bandwidth("write-bandwidth", "memif", &["--size", size, "--depth", "1"]);
    }
}

#[test]
fn without_crc() {
    let result = pair(&["write-latency", "--no-crc", "--iterations", "200"]);
    assert_eq!(result["crc"], false);
}

#[test]
fn lost_frames_cost_time_and_nothing_else() {
    check_bandwidth("send-bandwidth", "virtio", &["--loss", "1%", "--size", "4K"]);
}

#[test]
fn af_packet_in_a_namespace_of_its_own() {
    check_latency("write-latency", "af_packet");
    check_bandwidth("read-bandwidth", "af_packet", &["--size", "4K"]);
}

#[test]
fn tap_joined_by_a_bridge() {
    check_latency("write-latency", "tap");
}
