//! A switch on its host: the host's addresses, network namespaces, long paths, and programs of another version.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use uwarp::switch::protocol::{self, Answer, Guest, Refusal, Request, VERSION};
use uwarp::{ConnectError, ConnectOptions, Context, Error, TcpListener, TcpStream};
use uwarp_netns::Namespace;
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT};
use uwarp_vdev_tests::peer::Peer;

use crate::rig::{REGION, Role, Switch, Task, config, is_peer, wait_for};

/// An address more, or less, on the only interface.
fn change(what: &str, address: &str) {
    uwarp_netns::ip(["addr", what, address, "dev", "lo"]).unwrap();
}

fn greet(from: &Context, listener: &mut TcpListener, address: IpAddr) {
    let mut client = TcpStream::connect(from, SocketAddr::new(address, PORT)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn the_addresses_are_the_hosts_whenever_they_change() {
    const NAME: &str = "host::the_addresses_are_the_hosts_whenever_they_change";
    uwarp_netns::test_inside(NAME, || {
        uwarp_netns::ip(["link", "set", "lo", "up"]).unwrap();
        change("add", "10.9.0.1/24");
        let (switch, line) = Switch::start_at("s", &[]);
        assert!(line.contains(": 10.9.0.1/24, MTU"), "{line}");
        let [server, client] = [(); 2].map(|()| Context::open(config(&switch.socket)).unwrap());
        let mut listener = TcpListener::bind(&server, PORT).unwrap();
        greet(&client, &mut listener, [10, 9, 0, 1].into());
        // Clients that run serve a new one, and so do clients that come later.
        change("add", "10.9.0.2/24");
        let count = |contexts: &[&Context], count| contexts.iter().all(|context| context.addresses().len() == count);
        wait_for("the new address", || count(&[&server, &client], 2));
        let late = Context::open(config(&switch.socket)).unwrap();
        for from in [&client, &late] {
            greet(from, &mut listener, [10, 9, 0, 2].into());
        }
        // One that is gone is nobody's.
        change("del", "10.9.0.2/24");
        wait_for("the end of the address", || count(&[&server, &client, &late], 1));
        let mut endpoint = Endpoint::new(&client, REGION);
        let options = ConnectOptions::default().timeout(PATIENCE);
        let gone = client.connect(&mut endpoint.queue_pair.control, ([10, 9, 0, 2], PORT).into(), options);
        assert!(matches!(gone, Err(Error::Connect { reason: ConnectError::Unreachable, .. })), "{gone:?}");
        greet(&late, &mut listener, [10, 9, 0, 1].into());
        // Many are served, and too many are named.
        for host in 1..=511 {
            change("add", &format!("10.9.{}.{}/16", 1 + host / 256, host % 256));
        }
        wait_for("many addresses", || switch.status().offer.addresses.len() == 512);
        wait_for("all of them", || count(&[&server, &client, &late], 512));
        greet(&client, &mut listener, [10, 9, 2, 255].into());
        assert!(!switch.log().contains("left out"), "{}", switch.log());
        change("add", "10.9.3.1/16");
        wait_for("a word about it", || switch.log().contains("these are left out: 10.9.3.1 "));
    });
}

#[test]
fn a_switch_of_another_network_is_joined_by_its_name_only() {
    const NAME: &str = "host::a_switch_of_another_network_is_joined_by_its_name_only";
    if is_peer() {
        return;
    }
    uwarp_netns::test_inside(NAME, || {
        uwarp_netns::ip(["link", "set", "lo", "up"]).unwrap();
        change("add", "10.9.0.1/24");
        for chosen in [false, true] {
            let arguments: &[&str] = if chosen { &["--address", "10.9.0.1/24"] } else { &[] };
            // Where programs look for it.
            let (switch, _) = Switch::start_at("uwarp/switch.sock", arguments);
            let found = |apart: bool, named: bool| {
                let exe = std::env::current_exe().unwrap();
                let mut command = Command::new(if apart { "unshare".as_ref() } else { exe.as_os_str() });
                if apart {
                    command.arg("--net").arg("--").arg(&exe);
                }
                command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]);
                let task = Task { role: Role::Environment, socket: "".into(), port: 0 };
                command.env("UWARP_VDEV_TASK", serde_json::to_string(&task).unwrap());
                command
                    .env_remove("UWARP_CONFIG")
                    .env_remove("UWARP_SWITCH")
                    .env("XDG_RUNTIME_DIR", switch.directory());
                if named {
                    command.env("UWARP_SWITCH", &switch.socket);
                }
                Peer::spawn(command).told()
            };
            for (apart, named, is_found) in [(false, false, true), (true, true, true), (true, false, chosen)] {
                let told = found(apart, named);
                assert_eq!(told.starts_with("Some("), is_found, "{chosen} {apart} {named}: {told}");
            }
        }
    });
}

/// A network namespace with these addresses.
fn network(purpose: &str, addresses: &[&str]) -> Namespace {
    let network = Namespace::new(purpose).unwrap();
    network.ip(&["link", "set", "lo", "up"]).unwrap();
    for address in addresses {
        network.ip(&["addr", "add", address, "dev", "lo", "nodad"]).unwrap();
    }
    network
}

#[test]
fn programs_of_other_networks_bring_addresses_of_their_own() {
    const NAME: &str = "host::programs_of_other_networks_bring_addresses_of_their_own";
    if !rustix::process::geteuid().is_root() {
        return uwarp_notes::skipped("no switch was shared by network namespaces: naming these needs root");
    }
    uwarp_netns::test_inside(NAME, || {
        uwarp_netns::ip(["link", "set", "lo", "up"]).unwrap();
        change("add", "10.9.0.1/24");
        let (mut switch, _) = Switch::start_at("s", &[]);
        let open = |network: &Namespace| network.inside(|| Context::open(config(&switch.socket))).unwrap();
        let networks = [network("left", &["10.8.0.1/24", "fd08::1/64"]), network("right", &["10.8.0.2/32"])];
        let [left, right] = networks.each_ref().map(|network| open(network).unwrap());
        let contexts = [Context::open(config(&switch.socket)).unwrap(), left, right];
        let places: [IpAddr; 3] = [[10, 9, 0, 1].into(), [10, 8, 0, 1].into(), [10, 8, 0, 2].into()];
        for (context, place) in contexts.iter().zip(places) {
            assert_eq!(context.addresses()[0].address, place);
            assert!(places.iter().all(|place| context.is_on_switch(*place)));
        }
        assert_eq!(contexts[1].addresses().len(), 2);
        // Each has the port, and all reach all, themselves by the loopback address.
        let mut listeners = contexts.each_ref().map(|context| TcpListener::bind(context, PORT).unwrap());
        for from in &contexts {
            for (listener, place) in listeners.iter_mut().zip(places) {
                greet(from, listener, place);
            }
        }
        for (from, listener) in contexts.iter().zip(&mut listeners) {
            greet(from, listener, [127, 0, 0, 1].into());
        }
        // What they say to each other does not pass the switch.
        let before: u64 = switch.status().clients.iter().map(|client| client.received_octets).sum();
        let mut client = TcpStream::connect(&contexts[1], SocketAddr::new(places[2], PORT)).unwrap();
        let (mut server, _) = listeners[2].accept().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| client.write_all(&[7; 1 << 20]).unwrap());
            server.read_exact(&mut vec![0; 1 << 20]).unwrap();
        });
        let status = switch.status();
        let passed = status.clients.iter().map(|client| client.received_octets).sum::<u64>() - before;
        assert!(passed < 1 << 16, "{passed} octets have passed the switch");
        let told: Vec<&[IpAddr]> = status.clients.iter().map(|client| &client.addresses[..]).collect();
        assert!(told.contains(&&places[2..]) && told.contains(&&[][..]), "{told:?}");

        // An address is one network's at a time, whoever asks: the holder is named.
        for (address, holder) in
            [("10.8.0.2/24", "another network namespace, that of"), ("10.9.0.1/24", "the switch's own")]
        {
            let error = open(&network("late", &[address])).unwrap_err().to_string();
            let named = address.split('/').next().unwrap();
            assert!(error.contains(holder) && error.contains(&format!("the address {named}")), "{error}");
            if holder.ends_with("of") {
                assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
            }
        }
        // The peer of a program that ends is told, and another network may have the address then.
        let [own, left, right] = contexts;
        let [.., listener] = listeners;
        drop((listener, server, right));
        assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0);
        let refused = TcpStream::connect(&left, SocketAddr::new(places[2], PORT)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
        let next = open(&network("next", &["10.8.0.2/24"])).unwrap();
        let mut listener = TcpListener::bind(&next, PORT).unwrap();
        for from in [&own, &left, &next] {
            greet(from, &mut listener, places[2]);
        }
        switch.kill();
    });
}

#[test]
fn users_bring_the_addresses_that_are_theirs() {
    const NAME: &str = "host::users_bring_the_addresses_that_are_theirs";
    if !rustix::process::geteuid().is_root() {
        return uwarp_notes::skipped("no user has claimed addresses: that needs root");
    }
    uwarp_netns::test_inside(NAME, || {
        uwarp_netns::ip(["link", "set", "lo", "up"]).unwrap();
        change("add", "10.9.0.1/24");
        const USER: u32 = 65_534;
        let (switch, _) = Switch::start_at("s", &["--allow-uid", "65534", "--allow-address", "65534=10.8.0.0/24"]);
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(switch.directory(), everybody).unwrap();
        let ask = |address: &str| {
            let network = network("user", &[address]);
            let addresses = vec![address.parse().unwrap()];
            network
                .inside(|| {
                    let namespace = protocol::Namespace::own().unwrap();
                    let guest = Some(Guest { namespace, addresses });
                    // This thread alone becomes the user, to the kernel that vouches for it.
                    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(USER)).unwrap();
                    let socket = protocol::connect(&switch.socket).unwrap();
                    let join = Request::Join { version: VERSION, program: "p".to_owned(), guest };
                    protocol::send(&socket, &join, &[]).unwrap();
                    protocol::receive::<Answer>(&socket).unwrap().unwrap().0
                })
                .unwrap()
        };
        assert!(matches!(ask("10.8.0.7/24"), Answer::Welcome(_)));
        let Answer::Refused { refusal: Refusal::Address, reason } = ask("10.7.0.7/24") else { panic!("not refused") };
        assert!(
            reason.contains("may not bring the address 10.7.0.7") && reason.contains("--allow-address"),
            "{reason}"
        );
    });
}

#[test]
fn the_path_of_a_switch_may_be_long() {
    for length in [60, 130] {
        let path = format!("{}/s", "x".repeat(length));
        let (switch, _) = Switch::start_at(&path, &["--address", "10.0.0.1/24"]);
        let [a, b] = [(); 2].map(|()| Context::open(config(&switch.socket)).unwrap());
        let mut listener = TcpListener::bind(&a, PORT).unwrap();
        greet(&b, &mut listener, [10, 0, 0, 1].into());
        assert_eq!(switch.status().clients.len(), 2);
    }
}

#[test]
fn a_program_of_another_version_learns_both() {
    let switch = Switch::start();
    let said = |request: &str| {
        let socket = protocol::connect(&switch.socket).unwrap();
        rustix::net::send(&socket, request.as_bytes(), SendFlags::empty()).unwrap();
        let mut answer = vec![0; 4096];
        let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).unwrap();
        String::from_utf8(answer[..length].to_vec()).unwrap()
    };
    for request in [
        r#"{"request":"offer","version":1}"#,
        r#"{"request":"join","version":1,"program":"p","what-was-there-then":1}"#,
    ] {
        let said = said(request);
        assert!(said.contains(&format!("speaks version {VERSION}, and the program 1")), "{said}");
        // As a program of any version reads it.
        assert!(said.starts_with(r#"{"answer":"refused","refusal":"protocol","#), "{said}");
    }

    // A switch whose answers are others.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listener, &protocol::address(&path).unwrap().0).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    for answer in [r#"{"answer":"offer","what":"else"}"#, r#"{"answer":"released"}"#] {
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let client = rustix::net::accept(&listener).unwrap();
                rustix::net::recv(&client, &mut [0; 4096], RecvFlags::empty()).unwrap();
                rustix::net::send(&client, answer.as_bytes(), SendFlags::empty()).unwrap();
            });
            Context::open(config(&path)).unwrap_err().to_string()
        });
        assert!(error.contains(&format!("This program speaks version {VERSION}")), "{error}");
    }
}
