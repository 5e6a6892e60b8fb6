//! What programs of InfiniBand expect of queue pairs that they connect themselves, by a program of our own in C
//! (`c/infiniband.c`) on a device of RoCE.

use uwarp_verbs_tests::{Host, ROCE};

/// Runs tests of the program, with `faults` on the network.
fn run(name: &str, tests: &[&str], faults: &str) {
    Host::new(name).run_tests(&[ROCE, ("UWARP_FAULTS", faults)], "infiniband", tests, &[]);
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

#[test]
fn a_send_queue_that_is_drained_holds_requests() {
    run("drained", &["drained"], "");
    run("drained-bad", &["drained"], "loss=1%,reorder=1%");
}
