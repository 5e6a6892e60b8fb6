//! TCP ports of identifiers, by a program of our own in C (`c/ports.c`), compiled against Debian's headers.

use uwarp_verbs_tests::{ADDRESS, ADDRESS6, Host};

/// So many connections, one behind the other.
#[track_caller]
fn in_a_row(purpose: &str, address: &str, kind: &str, count: u32) {
    let host = Host::new(purpose);
    let (program, count) = (host.compile("ports"), count.to_string());
    let (server, client) = host.pair(&[&program, "server", address, &count], &[&program, kind, address, &count]);
    assert!(server.contains("server: right") && client.contains(&format!("{kind}: right")), "{server}\n{client}");
}

/// More than the client has ports, whichever end closes first; each side knows the ports of both.
#[test]
fn connections_in_a_row_use_their_ports_again() {
    in_a_row("port-row", ADDRESS, "row", 2500);
}

#[test]
fn connections_in_a_row_from_free_ports_that_are_bound_use_them_again() {
    in_a_row("port-bound", ADDRESS6, "bound", 500);
}

/// They are sources of connections: nobody listens there.
#[test]
fn hundreds_of_free_ports_are_bound_at_once() {
    let host = Host::new("port-many");
    let program = host.compile("ports");
    assert!(host.run(&[&program, "many", ADDRESS, "900"]).succeeded().contains("many: right"));
}

#[test]
fn each_address_has_a_listener_of_its_own_on_one_port_also_in_two_processes() {
    let host = Host::new("port-each");
    let program = host.compile("ports");
    let words = [&program, "addresses", ADDRESS, ADDRESS6];
    let mut first = host.start(&words);
    first = Host::wait_until(first, &words, |first| first.printed().contains("at the first address"));
    assert!(host.run(&[&program, "other", ADDRESS, ADDRESS6]).succeeded().contains("other: right"));
    first.kill();
}
