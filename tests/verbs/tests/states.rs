//! States and attributes of queue pairs, by a program of our own in C (`c/states.c`).

use uwarp_verbs_tests::{ADDRESS, Host};

#[test]
fn states_and_attributes_are_as_the_manual_pages_say() {
    let tests = ["unconnected", "failed", "fence", "attributes", "length", "reads", "places", "gids", "close"];
    Host::new("states").run_tests(&[], "states", &tests, &[ADDRESS]);
}
