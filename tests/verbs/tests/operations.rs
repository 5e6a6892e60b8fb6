//! What no packaged program does, by a program of our own in C (`c/operations.c`), compiled against Debian's headers.

use uwarp_verbs_tests::{ADDRESS, Host};

/// Both ends of one of the program's tests.
#[track_caller]
fn both_ends(purpose: &str, test: &str) {
    let host = Host::new(purpose);
    let program = host.compile("operations");
    let (server, client) = host.pair(&[&program, test, "server", ADDRESS], &[&program, test, "client", ADDRESS]);
    for printed in [server, client] {
        assert!(printed.contains(&format!("{test}: right")), "{printed}");
    }
}

#[test]
fn every_kind_of_request_can_be_posted_by_ibv_wr() {
    both_ends("op-wr", "wr");
}

#[test]
fn two_queue_pairs_share_receives_and_an_event_says_that_they_run_low() {
    both_ends("op-srq", "srq");
}

#[test]
fn two_threads_use_one_queue_pair_and_one_completion_queue() {
    both_ends("op-threads", "threads");
}

#[test]
fn a_request_holds_its_place_until_its_completion_is_taken() {
    both_ends("op-held", "held");
}

#[test]
fn threads_that_poll_can_be_cancelled_while_another_goes_on() {
    both_ends("op-cancel", "cancel");
}

#[test]
fn children_forked_while_a_thread_polls_get_errors_and_its_traffic_goes_on() {
    both_ends("op-beside", "beside");
}

#[test]
fn a_memory_window_opens_a_part_of_a_region_until_the_peer_invalidates_it() {
    both_ends("op-window", "window");
}

#[test]
fn a_child_forked_between_messages_gets_errors_and_its_parent_goes_on() {
    both_ends("op-fork", "fork");
}

#[test]
fn a_full_completion_queue_raises_its_event_and_every_request_still_completes() {
    both_ends("op-full", "full");
}

#[test]
fn a_program_makes_and_moves_its_queue_pair_itself() {
    both_ends("op-moves", "moves");
}

#[test]
fn a_connection_that_is_refused_is_not_tried_again_when_the_program_has_given_it_up() {
    both_ends("op-refused", "refused");
}

#[test]
fn a_program_that_ends_behind_its_last_completion_loses_nothing() {
    both_ends("op-exit", "exit");
}

#[test]
fn memory_that_is_gone_before_its_region_harms_nobody() {
    both_ends("op-freed", "freed");
}

#[test]
fn a_server_may_post_right_behind_its_acceptance() {
    both_ends("op-early", "early");
}
