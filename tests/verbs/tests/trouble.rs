//! Programs whose network, or whose peer, goes away.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use uwarp_netns::Namespace;
use uwarp_verbs_tests::{ADDRESS, Host, Running};

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

fn signal(program: &Running, signal: Signal) {
    kill_process(Pid::from_raw(program.id() as i32).expect("a process"), signal).expect("it runs");
}

/// A server and its client, which ping each other without an end, and give up silent peers within a second or so.
fn impatient_pair(host: &Host, more: &str) -> [Running; 2] {
    let text = format!(
        "switch = {:?}\n[tcp]\nuser-timeout = \"1s\"\n{more}\n\
         [tcp.keep-alive]\nidle = \"300ms\"\ninterval = \"100ms\"\nprobes = 3\n",
        host.directory().join("switch.sock")
    );
    let file = host.directory().join("impatient.toml");
    std::fs::write(&file, text).expect("the directory is ours");
    let variables = [("UWARP_CONFIG", file.to_str().expect("a path"))];
    let words = ["rping", "-s", "-v", "-C", ENDLESS];
    let server = host.await_listener(host.start_with(&variables, &words), &words);
    let client = host.start_with(&variables, &["rping", "-c", "-a", ADDRESS, "-v", "-C", ENDLESS]);
    [server, await_more(client)]
}

/// Waits until a program has printed more.
fn await_more(program: Running) -> Running {
    let printed = program.printed().len();
    Host::wait_until(program, &["rping"], |program| program.printed().len() > printed + 1000)
}

#[test]
fn a_program_that_is_stopped_for_long_keeps_its_connections_on_a_switch() {
    let host = Host::new("stopped");
    for stopped in [0, 1] {
        let pair = impatient_pair(&host, "");
        signal(&pair[stopped], Signal::STOP);
        std::thread::sleep(Duration::from_secs(4));
        signal(&pair[stopped], Signal::CONT);
        drop(pair.map(await_more));
        host.await_free_ports();
    }
}

#[test]
fn tcp_switch_timeout_says_how_long_a_program_may_be_stopped() {
    let host = Host::new("switch-timeout");
    let [server, client] = impatient_pair(&host, "switch-timeout = \"2s\"");
    signal(&client, Signal::STOP);
    let ended = server.wait();
    assert!(!ended.output.is_empty());
}
