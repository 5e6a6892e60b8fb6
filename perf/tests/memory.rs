//! Holds the memory of an idle connected queue pair.

use std::process::Command;

/// Octets that one with rings of 64 may take.
const BUDGET: u64 = 16 << 10;

#[test]
fn an_idle_connected_queue_pair_takes_no_more_memory_than_its_budget() {
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp-bench"))
        .args(["memory", "--qps", "500", "--depth", "64", "--json"])
        .output()
        .expect("uwarp-bench runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figure: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let each = figure["octets_each"].as_u64().expect("a number");
    // The two rings alone take more than nothing: a figure of 0 would mean that nothing was measured.
    assert!((1 << 10..=BUDGET).contains(&each), "{each} octets, the budget is {BUDGET}");
}
