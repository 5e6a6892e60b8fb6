//! Programs of two hosts, whose switches are joined by a wire.

use std::time::{Duration, Instant};

use uwarp_netns::{End, Namespace, veth};
use uwarp_verbs_tests::Host;

/// More pings than any test waits for.
const ENDLESS: &str = "100000000";

const ADDRESSES: [[&str; 2]; 2] = [["10.8.0.1/24", "fd00:8::1/64"], ["10.8.0.2/24", "fd00:8::2/64"]];

/// Two hosts; the interface `wire0` of each is one end of a wire.
fn joined() -> [Host; 2] {
    let namespaces = ["left", "right"].map(|name| Namespace::new(name).expect("root may make a namespace"));
    veth(1500, [0, 1].map(|side| End::silent("wire0").of(&namespaces[side]))).expect("a veth pair");
    let [left, right] = namespaces;
    [Host::with_uplink(left, "wire0", ADDRESSES[0], &[]), Host::with_uplink(right, "wire0", ADDRESSES[1], &[])]
}

/// A server of the first host and a client of the second, both of which have to succeed.
#[track_caller]
fn succeed(hosts: &[&Host; 2], server: &[&str], client: &[&str]) -> (String, String) {
    let server = hosts[0].serve(server);
    let client = hosts[1].run(client).succeeded().to_owned();
    (server.wait().succeeded().to_owned(), client)
}

fn await_link(host: &Host, up: bool) {
    let start = Instant::now();
    while host.status().uplink.expect("it has an uplink").up != up {
        assert!(start.elapsed() < Duration::from_secs(60), "the link does not become {up}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until two programs are amid their talk.
fn await_traffic(host: &Host) {
    let start = Instant::now();
    let received = || host.status().uplink.expect("it has an uplink").received;
    let before = received();
    while received() < before + 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_of_two_hosts_reach_each_other_by_either_version_of_ip() {
    let [left, right] = joined();
    for (hosts, address, address6) in
        [([&left, &right], "10.8.0.1", "fd00:8::1"), ([&right, &left], "10.8.0.2", "fd00:8::2")]
    {
        let (server, client) =
            succeed(&hosts, &["rping", "-s", "-v", "-C", "5"], &["rping", "-c", "-a", address, "-v", "-C", "5"]);
        assert!(server.contains("server ping data: rdma-ping-4") && client.contains("ping data: rdma-ping-4"));
        let server = ["rping", "-s", "-a", address6, "-V", "-C", "50", "-S", "9000"];
        succeed(&hosts, &server, &["rping", "-c", "-a", address6, "-V", "-C", "50", "-S", "9000"]);
        succeed(
            &hosts,
            &["ib_write_bw", "-R", "-n", "500", "-F", "-z"],
            &["ib_write_bw", "-R", "-n", "500", "-F", "-z", address],
        );
    }
    // Two programs of one host, while there is an uplink.
    left.pair(&["rping", "-s", "-C", "3"], &["rping", "-c", "-a", "10.8.0.1", "-C", "3"]);
    for host in [&left, &right] {
        let uplink = host.status().uplink.expect("it has an uplink");
        // A host that asks twice is answered twice, and the second answer is unasked by then.
        let is_clean = uplink.drops.keys().all(|reason| reason == "unasked");
        assert!(uplink.received > 1000 && is_clean, "{uplink:?}");
    }
}

#[test]
fn a_program_of_another_host_notices_that_its_peer_was_killed() {
    let [left, right] = joined();
    let server = left.serve(&["rping", "-s", "-C", ENDLESS]);
    let mut client = right.start(&["rping", "-c", "-a", "10.8.0.1", "-C", ENDLESS]);
    await_traffic(&left);
    client.kill();
    // A reset reaches the server, which ends.
    let _ = server.wait();
    succeed(&[&left, &right], &["rping", "-s", "-C", "2"], &["rping", "-c", "-a", "10.8.0.1", "-C", "2"]);
}

#[test]
fn a_connection_outlives_a_link_that_goes_down_and_comes_back() {
    let [left, right] = joined();
    let size = "60000";
    let server = left.serve(&["rping", "-s", "-V", "-C", ENDLESS, "-S", size]);
    let mut client = right.start(&["rping", "-c", "-a", "10.8.0.1", "-V", "-C", ENDLESS, "-S", size]);
    await_traffic(&left);
    left.namespace().ip(&["link", "set", "wire0", "down"]).expect("the interface is there");
    await_link(&left, false);
    await_link(&right, false);
    // Nobody is reached now, and the attempt ends.
    assert!(!left.run(&["rping", "-c", "-a", "10.8.0.2", "-C", "1"]).status.success());
    left.namespace().ip(&["link", "set", "wire0", "up"]).expect("the interface is there");
    await_link(&left, true);
    await_link(&right, true);
    // Both check what they get, and end if it is wrong.
    await_traffic(&left);
    client.kill();
    let _ = server.wait();
}

#[test]
fn linux_pings_the_shared_addresses_and_is_refused_at_ports_that_nobody_owns() {
    let [namespace, other] = ["switch", "linux"].map(|name| Namespace::new(name).expect("root may make a namespace"));
    let linux = End::kernel("wire0", &["10.8.0.2/24", "fd00:8::2/64"]).of(&other);
    veth(1500, [End::silent("wire0").of(&namespace), linux]).expect("a veth pair");
    let routers = ["--gateway", "10.8.0.2", "--gateway", "fd00:8::2"];
    let host = Host::with_uplink(namespace, "wire0", ADDRESSES[0], &routers);
    let server = host.serve_on(&["rping", "-s", "-P"], &[7174]);
    let server6 = host.serve_on(&["rping", "-s", "-P", "-a", "::", "-p", "7176"], &[7176]);
    let connect = |address: &str| {
        other
            .inside(|| std::net::TcpStream::connect(address).map(drop).map_err(|error| error.kind()))
            .expect("a thread")
    };
    for address in ["10.8.0.1:7174", "[fd00:8::1]:7176"] {
        assert_eq!(connect(address), Ok(()), "{address}");
    }
    for address in ["10.8.0.1:7175", "[fd00:8::1]:7175"] {
        assert_eq!(connect(address), Err(std::io::ErrorKind::ConnectionRefused), "{address}");
    }
    // The kernel gives up at a neighbour that does not answer.
    assert_eq!(connect("10.8.0.3:7174"), Err(std::io::ErrorKind::HostUnreachable));
    for address in ["10.8.0.1", "fd00:8::1"] {
        for size in ["8", "1400"] {
            let output =
                other.command("ping").args(["-c", "3", "-i", "0.01", "-W", "20", "-s", size, address]).output();
            let output = output.expect("ping is installed");
            assert!(output.status.success(), "{address}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }
    drop((server, server6));
    // It is the router, too: a host outside of the subnets answers, and has no such server.
    other.ip(&["addr", "add", "192.0.2.7/32", "dev", "lo"]).expect("an address");
    other.ip(&["addr", "add", "2001:db8::7/128", "dev", "lo", "nodad"]).expect("an address");
    for address in ["192.0.2.7", "2001:db8::7"] {
        let output = host.run(&["rping", "-c", "-a", address, "-C", "1"]).output;
        assert!(output.contains("RDMA_CM_EVENT_REJECTED"), "{address}: {output}");
    }
}
