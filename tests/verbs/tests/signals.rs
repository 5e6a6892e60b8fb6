//! Programs whose signals' handlers end them, by a program of our own in C (`c/signals.c`).

use uwarp_verbs_tests::{ADDRESS, Host};

/// The number behind this word in what a program printed.
#[track_caller]
fn number(printed: &str, word: &str) -> u64 {
    let line = printed.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("{word}: {printed}"));
    line.trim().parse().expect("a number")
}

/// Nothing that had completed may be lost by a handler on this stack.
#[track_caller]
fn loses_nothing(purpose: &str, stack: &str) {
    let host = Host::new(purpose);
    let program = host.compile("signals");
    let (server, client) = host.pair(&[&program, "server", ADDRESS], &[&program, "client", ADDRESS, stack]);
    let (received, completed) = (number(&server, "received"), number(&client, "completed"));
    assert!(completed > 0 && received >= completed, "{received} received of {completed} that had completed");
}

#[test]
fn a_handler_that_ends_the_program_while_it_polls_loses_nothing() {
    loses_nothing("sig-own", "own");
}

#[test]
fn a_handler_on_a_stack_of_its_own_that_ends_the_program_loses_nothing() {
    loses_nothing("sig-other", "other");
}
