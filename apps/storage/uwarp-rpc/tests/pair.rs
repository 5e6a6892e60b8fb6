//! Both sides as processes over real devices, over each transport, with every octet checked.

use serde_json::Value;
use std::process::Command;

/// Runs a pair and returns its list of results. Both sides share the available CPUs: nothing here asserts a time.
fn pair(arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp-rpc"))
        .arg("pair")
        .args(arguments)
        .args(["--verify", "--json", "-", "--wait", "60s"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check(device: &str, test: &str, size: &str, calls: u64, more: &[&str]) {
    let iterations = calls.to_string();
    let mut arguments = vec![test, "--device", device, "--iterations", &iterations];
    if test != "null" {
        arguments.extend(["--size", size]);
    }
    arguments.extend(more);
    let results = pair(&arguments);
    let transports: Vec<_> = results.iter().map(|result| result["transport"].as_str().unwrap()).collect();
    assert_eq!(transports, ["rdma", "tcp"]);
    for result in results {
        assert_eq!(result["test"], test);
        assert_eq!(result["device"], device);
        assert_eq!(result["calls"], calls);
        assert!(result["verified"].as_u64().unwrap() >= 2, "{result}");
        let percentile = |name: &str| result["latency_ns"][name].as_u64().unwrap();
        let in_order = ["min", "p50", "p99", "p99_9", "max"].map(percentile);
        assert!(in_order[0] > 0 && in_order.is_sorted(), "{result}");
        assert!(result["calls_per_s"].as_f64().unwrap() > 0.0);
        let has_data = result["size"] != 0;
        assert_eq!(result["gbit_per_s"].is_null(), !has_data, "{result}");
        for side in ["client", "server"] {
            assert!(result["cpu_us_per_call"][side].as_f64().unwrap() > 0.0, "{result}");
            assert_eq!(result["cpu_ms_per_mib"][side].as_f64().is_some(), has_data, "{result}");
        }
    }
}

#[test]
fn calls_of_every_kind_over_virtio() {
    check("virtio", "null", "", 200, &[]);
    check("virtio", "echo", "64", 200, &[]);
    check("virtio", "echo", "64K", 20, &[]);
    check("virtio", "put", "0", 50, &[]);
    // The longest blob that fits into a message, and one octet more.
    check("virtio", "put", "3981", 50, &["--depth", "16"]);
    check("virtio", "get", "100001", 50, &["--depth", "7"]);
}

#[test]
fn calls_of_every_kind_over_memif() {
    check("memif", "null", "", 200, &[]);
    check("memif", "echo", "0", 50, &[]);
    check("memif", "echo", "5000", 50, &[]);
    check("memif", "get", "0", 50, &[]);
    check("memif", "put", "1M", 20, &["--depth", "4"]);
    check("memif", "get", "1M", 20, &["--engine", "threaded"]);
}

#[test]
fn the_longest_blobs() {
    for test in ["echo", "put", "get"] {
        check("virtio", test, "64M", 1, &[]);
    }
}

#[test]
fn registration_is_the_users_and_is_told() {
    for (more, expected) in [(&[][..], "each"), (&["--registration", "together"], "together")] {
        for (device, engine) in [("virtio", "inline"), ("memif", "threaded")] {
            let mut arguments = vec!["get", "--size", "100001", "--iterations", "50", "--depth", "7"];
            arguments.extend(["--device", device, "--engine", engine]);
            arguments.extend(more);
            let results = pair(&arguments);
            assert_eq!(results[0]["registration"], expected);
            assert!(results[1]["registration"].is_null(), "TCP registers nothing");
        }
    }
}

#[test]
fn thresholds_and_invalidation_are_the_users() {
    for more in [&["--inline", "1K"][..], &["--inline", "64K"], &["--no-invalidation"]] {
        let mut arguments = vec!["put", "--size", "20000", "--iterations", "20", "--transport", "rdma"];
        arguments.extend(more);
        let results = pair(&arguments);
        assert_eq!((results.len(), &results[0]["transport"]), (1, &"rdma".into()));
    }
}

#[test]
fn a_client_over_ipv6_looks_for_the_servers_default_address() {
    let socket = std::env::temp_dir().join(format!("uwarp-rpc-{}.sock", std::process::id()));
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-rpc"));
        command.args(arguments).args(["--ipv6", "--socket"]).arg(&socket);
        command
    };
    let mut server = command(&["serve", "--once"]).spawn().unwrap();
    let client = command(&["run", "null", "--iterations", "50", "--wait", "60s", "--json", "-"]).output();
    let _ = server.kill();
    server.wait().unwrap();
    let client = client.unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let _ = std::fs::remove_file(&socket);
}

#[test]
fn mistakes_of_the_command_line_end_with_two() {
    for arguments in [
        &["pair", "null", "--socket", "/tmp/x"][..],
        &["pair", "null", "--device", "af_packet"],
        &["pair", "put", "--size", "65M"],
        &["pair", "put", "--cpus", "0"],
        &["serve", "--inline", "1000"],
        &["run", "echo", "--depth", "2"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_uwarp-rpc")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
}
