//! Programs whose network, or whose peer, goes away.

use std::time::Duration;

use uwarp_netns::Namespace;
use uwarp_verbs_tests::{ADDRESS, Host};

/// More pings than any test waits for.
const ENDLESS: &str = "100000000";

#[test]
fn a_killed_switch_ends_its_programs_and_a_new_one_serves_others() {
    let mut host = Host::new("switch-killed");
    let idle = host.serve(&["rping", "-s", "-p", "7175"]);
    let server = host.serve(&["rping", "-s", "-C", ENDLESS]);
    let client = host.start(&["rping", "-c", "-a", ADDRESS, "-C", ENDLESS]);
    std::thread::sleep(Duration::from_secs(1));
    host.kill_switch();
    // It waits for a connection, and has nothing else that could fail.
    let idle = idle.wait();
    assert!(idle.output.contains("the switch has ended") && idle.output.contains("device removal"), "{}", idle.output);
    for program in [server, client] {
        // How it says so depends on which of the events it looks at first.
        program.wait();
    }
    host.restart_switch();
    host.pair(&["rping", "-s", "-C", "3"], &["rping", "-c", "-a", ADDRESS, "-C", "3"]);
}

#[test]
fn two_containers_share_a_switch_by_its_socket_alone() {
    let host = Host::new("containers");
    let networks = ["one", "two"].map(|name| Namespace::new(name).expect("root may make a namespace"));
    let words = ["rping", "-s", "-v", "-C", "5"];
    let server = host.await_listener(host.start_contained(&networks[0], &words), &words);
    let client = host.start_contained(&networks[1], &["rping", "-c", "-a", ADDRESS, "-v", "-C", "5"]).wait();
    assert!(client.succeeded().contains("ping data: rdma-ping-4"), "{}", client.output);
    server.wait().succeeded();
}
