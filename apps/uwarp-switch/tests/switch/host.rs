//! A switch on its host: the host's addresses, network namespaces, long paths, and programs of another version.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use uwarp::switch::protocol::{self, VERSION};
use uwarp::{ConnectError, ConnectOptions, Context, Error, TcpListener, TcpStream};
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
        for host in 1..=255 {
            change("add", &format!("10.9.1.{host}/16"));
        }
        wait_for("many addresses", || switch.status().offer.addresses.len() == 256);
        wait_for("all of them", || count(&[&server, &client, &late], 256));
        greet(&client, &mut listener, [10, 9, 1, 255].into());
        assert!(!switch.log().contains("left out"), "{}", switch.log());
        change("add", "10.9.2.1/16");
        wait_for("a word about it", || switch.log().contains("these are left out: 10.9.2.1 "));
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
