//! Invalid command lines: one sentence, exit status 2, and nothing started.

use std::process::Command;

fn refused(arguments: &[&str], expected: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp-perf")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    assert!(text.starts_with("uwarp-perf: "), "{text}");
    assert!(text.contains(expected), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn bad_command_lines_get_one_sentence() {
    refused(&[], "no subcommand");
    refused(&["pair"], "<TEST>");
    refused(&["pair", "write-speed"], "write-speed");
    refused(&["pair", "write-latency", "--size", "0"], "--size");
    refused(&["pair", "write-latency", "--size", "many"], "many");
    refused(&["pair", "write-latency", "--mtu", "100"], "mtu");
    refused(&["pair", "write-latency", "--mtu", "70000"], "70000");
    refused(&["pair", "write-latency", "--device", "carrier-pigeon"], "memif");
    refused(&["pair", "write-latency", "--depth", "4"], "--depth");
    refused(&["pair", "write-latency", "--cpus", "0"], "--cpus");
    refused(&["pair", "write-latency", "--cpus", "0,100000"], "100000");
    refused(&["pair", "write-latency", "--socket", "/tmp/x"], "--socket");
    refused(&["pair", "write-latency", "--device", "pci:0000:01:00.0"], "PCI");
    refused(&["pair", "write-latency", "--engine", "none"], "none");
    refused(&["pair", "write-latency", "--config", "/nonexistent.toml"], "/nonexistent.toml");
    refused(&["pair", "write-bandwidth", "--iterations", "5", "--duration", "1s"], "cannot be used with");
    refused(&["pair", "raw-latency", "--qps", "2"], "--qps");
    refused(&["run", "write-latency", "--server", "here"], "here");
    refused(&["serve", "--device", "af_packet"], "--interface");
}

#[test]
fn help_shows_examples() {
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp-perf")).arg("--help").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Examples:") && text.contains("pair write-latency"));
}
