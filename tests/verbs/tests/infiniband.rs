//! What programs of InfiniBand expect of queue pairs that they connect themselves, by a program of our own in C
//! (`c/infiniband.c`) on a device of RoCE.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use uwarp_verbs_tests::{Ended, Host};

/// Has a program see a device of RoCE.
const ROCE: [(&str, &str); 1] = [("UWARP_DEVICE", "roce")];
const LIMIT: Duration = Duration::from_secs(300);

/// Runs tests of the program, with `faults` on the network.
fn run(name: &str, tests: &[&str], faults: &str) {
    let host = Host::new(name);
    let program = host.directory().join("infiniband");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/infiniband.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).args([&program, &source]).arg("-libverbs");
    let compiled = compiler.output().expect("a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let program = program.to_str().expect("a path");
    let variables = [ROCE[0], ("UWARP_FAULTS", faults)];
    for test in tests {
        let Ended { status, output } = host.start_with(&variables, &[program, test]).wait_within(LIMIT);
        assert!(status.success(), "{test}: {status}\n{output}");
    }
}

#[test]
fn receiver_not_ready_0_to_7() {
    run("not-ready", &["retries", "write-immediate", "in-time", "forever", "itself", "kept"], "");
}

#[test]
fn receiver_not_ready_with_shared_receive_queues() {
    run("not-ready-srq", &["shared"], "");
}

#[test]
fn receiver_not_ready_on_a_bad_network() {
    run("not-ready-bad", &["in-time", "kept"], "loss=1%,reorder=1%");
}

#[test]
fn immediates_with_payload() {
    run("immediates", &["immediates"], "");
    run("immediates-bad", &["immediates"], "loss=1%,reorder=1%,recut=20%");
}

#[test]
fn who_is_to_blame_gets_the_status_of_infiniband() {
    run("blame", &["blame", "fault-of-requester", "established"], "");
}
