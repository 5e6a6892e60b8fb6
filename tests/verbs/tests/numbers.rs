//! Numbers that the device promises, and descriptors, by a program of our own in C (`c/numbers.c`).

use uwarp_verbs_tests::{ADDRESS, Host};

#[track_caller]
fn numbers(purpose: &str, test: &str) {
    let host = Host::new(purpose);
    let program = host.compile("numbers");
    let ended = host.run(&[&program, test, ADDRESS]);
    assert!(ended.succeeded().contains(&format!("{test}: right")), "{}", ended.output);
}

#[test]
fn the_promised_numbers_of_objects_are_there_at_the_same_time() {
    numbers("num-held", "held");
}

#[test]
fn an_endpoint_with_queues_of_its_own_takes_two_descriptors() {
    numbers("num-endpoints", "endpoints");
}

#[test]
fn a_program_may_leave_a_queue_behind_for_each_of_many_connections() {
    numbers("num-leak", "leak");
}
