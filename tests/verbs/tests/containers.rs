//! Programs of containers with addresses of their own, which share the socket of one switch.

use uwarp_netns::{End, Namespace, veth};
use uwarp_verbs_tests::{Host, Running};

const ADDRESSES: [[&str; 2]; 2] = [["10.8.0.1", "fd08::1"], ["10.8.0.2", "fd08::2"]];
/// Has a program see a device of RoCE.
const ROCE: [(&str, &str); 1] = [("UWARP_DEVICE", "roce")];

/// A network namespace for each of two containers, which the kernel joins, and a switch that is in neither.
struct Containers {
    host: Host,
    networks: [Namespace; 2],
}

impl Containers {
    fn new(purpose: &str) -> Containers {
        let host = Host::for_containers(purpose);
        let networks = ["one", "two"].map(|name| Namespace::new(name).expect("root may make a namespace"));
        let prefixed = ADDRESSES.map(|[address, address6]| [format!("{address}/24"), format!("{address6}/64")]);
        let prefixed = prefixed.each_ref().map(|addresses| addresses.each_ref().map(String::as_str));
        let end = |side: usize| End::kernel("eth0", &prefixed[side]).of(&networks[side]);
        veth(1500, [end(0), end(1)]).expect("a veth pair");
        Containers { host, networks }
    }

    fn start(&self, side: usize, variables: &[(&str, &str)], words: &[&str]) -> Running {
        self.host.start_in(&self.networks[side], variables, words)
    }

    /// A server on one side, and a client on the other, which gets the server's address behind its words.
    #[track_caller]
    fn pair(
        &self,
        side: usize,
        variables: &[(&str, &str)],
        [server, client]: [&[&str]; 2],
        is_ready: impl Fn(&Running) -> bool,
    ) -> (String, String) {
        let running = self.start(side, variables, server);
        let running = Host::wait_until(running, server, |server| is_ready(server));
        let client: Vec<&str> = client.iter().copied().chain([ADDRESSES[side][0]]).collect();
        let client = self.start(1 - side, variables, &client).wait().succeeded().to_owned();
        (running.wait().succeeded().to_owned(), client)
    }

    fn listening(&self) -> usize {
        self.host.status().clients.iter().filter(|client| !client.listening.is_empty()).count()
    }
}

#[test]
fn containers_reach_each_other_by_their_own_addresses() {
    let containers = Containers::new("apart");
    let is_listening = |_: &Running| containers.listening() > 0;
    for side in 0..2 {
        let words = [&["rping", "-s", "-v", "-C", "5"][..], &["rping", "-c", "-v", "-C", "5", "-a"]];
        let (_, client) = containers.pair(side, &[], words, is_listening);
        assert!(client.contains("ping data: rdma-ping-4"), "{client}");
        let words = ["ib_write_bw", "-R", "-n", "500", "-F"];
        containers.pair(side, &[], [&words, &words], is_listening);
    }
    // Both listen on the same port, by either version of IP.
    let words = ["rping", "-s", "-a", "::", "-C", "3"];
    let servers = [0, 1].map(|side| containers.start(side, &[], &words));
    let [one, two] = servers;
    let one = Host::wait_until(one, &words, |_| containers.listening() == 2);
    for (from, to) in [(0, 1), (1, 0)] {
        for address in &ADDRESSES[to][1..] {
            let words = ["rping", "-c", "-a", address, "-C", "3"];
            containers.start(from, &[], &words).wait().succeeded();
        }
    }
    one.wait().succeeded();
    two.wait().succeeded();
}

#[test]
fn programs_that_exchange_numbers_over_the_kernels_network_run_between_containers() {
    let containers = Containers::new("exchange");
    let on = |port: u16| move |server: &Running| Host::listens_on_kernels(server, port);
    for words in
        [&["ib_send_bw", "-n", "500", "-F"][..], &["ibv_rc_pingpong", "-g", "0"], &["ibv_ud_pingpong", "-g", "0"]]
    {
        containers.pair(0, &ROCE, [words, words], on(18_515));
    }
    let words = ["fi_pingpong", "-p", "verbs;ofi_rxm", "-e", "rdm", "-I", "50", "-c"];
    let (_, client) = containers.pair(0, &[], [&words, &words], on(47_592));
    assert!(client.lines().any(|line| line.starts_with("1m ")), "{client}");
}

#[test]
fn a_second_container_with_an_address_learns_who_has_it() {
    let containers = Containers::new("claim");
    let words = ["rping", "-s", "-C", "1"];
    let server = Host::wait_until(containers.start(0, &[], &words), &words, |_| containers.listening() == 1);
    let late = Namespace::new("late").expect("root may make a namespace");
    late.ip(&["link", "set", "lo", "up"]).expect("a loop-back interface");
    late.ip(&["addr", "add", "10.8.0.1/24", "dev", "lo"]).expect("an address");
    let refused = containers.host.start_in(&late, &[], &["rping", "-s"]).wait();
    assert!(!refused.status.success(), "{}", refused.output);
    let holder = format!("of rping (process {}", server.id());
    assert!(refused.output.contains("the address 10.8.0.1") && refused.output.contains(&holder), "{}", refused.output);
    containers.start(1, &[], &["rping", "-c", "-a", "10.8.0.1", "-C", "1"]).wait().succeeded();
    server.wait().succeeded();
}
