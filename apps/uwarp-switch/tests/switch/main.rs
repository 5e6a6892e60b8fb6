//! Programs on a real switch, each a process or a context of its own.

mod abuse;
mod endurance;
mod host;
mod hostile;
mod raw;
mod rig;
mod run;
mod uplink;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rig::{LENGTH, REGION, Role, Switch, Task, config, connect_to, is_peer, server, status, wait_for};
use uwarp::switch::protocol::{Answer, Refusal, Request, VERSION, connect, receive, send};
use uwarp::{
    AsyncEvent, ConnectError, ConnectOptions, Context, DisconnectReason, Error, ListenOptions, TcpListener, TcpStream,
};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, answer, exchange, prepare_answer};
use uwarp_vdev_tests::peer::Peer;

#[test]
fn a_killed_program_is_noticed_by_its_peer_at_once_and_its_ports_are_free() {
    const NAME: &str = "a_killed_program_is_noticed_by_its_peer_at_once_and_its_ports_are_free";
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    let server = server(NAME, &switch);
    let context = Context::open(config(&switch.socket)).unwrap();
    let mut endpoint = Endpoint::new(&context, REGION);
    endpoint.connect(&context);
    exchange(&mut endpoint, 7, LENGTH);
    assert_eq!(server.told(), "answered");
    let victim = switch.listener_on(PORT);
    assert_eq!((victim.uid, switch.status().clients.len()), (rustix::process::getuid().as_raw(), 2));
    assert!(victim.received > 0 && victim.sent > 0 && victim.drops.is_empty(), "{victim:?}");

    let own = || switch.status().clients.into_iter().find(|client| client.place != victim.place).expect("we are there");
    let mut before = own();
    wait_for("the end of the exchange", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = own();
        std::mem::replace(&mut before, now.clone()) == now
    });
    server.kill();
    // Nothing is under way, and no keep-alive probe is sent.
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap(), "the peer's death is not noticed");
    let after = own();
    // The switch has asked, and then reset: nobody had to send something first.
    assert_eq!((after.sent - before.sent, after.answered - before.answered), (2, 1), "{after:?}");
    assert_eq!(endpoint.queue_pair.control.disconnect_reason(), Some(DisconnectReason::Reset));
    wait_for("the end of the victim's place", || switch.status().clients.len() == 1);
    let listener = context.listen(PORT, ListenOptions::default()).expect("the victim's port is free");
    assert_eq!(listener.port(), PORT);
}

#[test]
fn a_port_has_one_listener_and_nobodys_port_refuses() {
    let switch = Switch::start();
    let [a, b] = [(); 2].map(|()| Context::open(config(&switch.socket)).unwrap());
    let listener = a.listen(PORT, ListenOptions::default()).unwrap();
    for context in [&a, &b] {
        let error = context.listen(PORT, ListenOptions::default()).unwrap_err();
        assert!(matches!(error, Error::PortTaken(PORT)), "{error}");
    }
    let error = TcpListener::bind(&b, PORT).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
    drop(listener);
    let listener = b.listen(PORT, ListenOptions::default()).expect("its owner has given it back");
    // The switch chooses.
    let chosen = [a.listen(0, ListenOptions::default()).unwrap(), a.listen(0, ListenOptions::default()).unwrap()];
    assert!(chosen[0].port() > 0 && chosen[0].port() != chosen[1].port());
    drop((listener, chosen));

    let refused = |peer: &str| {
        let mut endpoint = Endpoint::new(&a, REGION);
        let options = ConnectOptions::default().timeout(PATIENCE);
        match a.connect(&mut endpoint.queue_pair.control, peer.parse().unwrap(), options) {
            Err(Error::Connect { reason, .. }) => reason,
            other => panic!("{peer}: {other:?}"),
        }
    };
    for nobody in ["10.0.0.1:7471", "127.0.0.1:7471", "[fd00::1]:7471", "[::1]:7471"] {
        assert!(matches!(refused(nobody), ConnectError::Refused), "{nobody}");
    }
    for beyond in ["10.0.0.2:7471", "192.0.2.1:7471", "[fd00::2]:7471"] {
        assert!(matches!(refused(beyond), ConnectError::Unreachable), "{beyond}");
    }
}

#[test]
fn connections_outlive_their_listener_and_keep_its_port() {
    let switch = Switch::start();
    let [a, b] = [(); 2].map(|()| Context::open(config(&switch.socket)).unwrap());
    let is_kept = |port| matches!(b.listen(port, ListenOptions::default()), Err(Error::PortTaken(_)));
    let mut listener = a.listen(PORT, ListenOptions::default()).unwrap();
    let [mut there, mut here] = [&a, &b].map(|context| Endpoint::new(context, REGION));
    prepare_answer(&mut there);
    std::thread::scope(|scope| {
        scope.spawn(|| there.accept(&a, &mut listener));
        here.connect(&b);
    });
    drop(listener);
    for round in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&mut there, LENGTH));
            exchange(&mut here, round, LENGTH);
        });
        assert!(is_kept(PORT));
        // The program itself may listen there again.
        drop(a.listen(PORT, ListenOptions::default()).unwrap());
    }
    here.disconnect();
    drop((here, there));
    wait_for("the end of the connection", || !is_kept(PORT));

    let mut listener = TcpListener::bind(&a, PORT).unwrap();
    let mut client = TcpStream::connect(&b, ([10, 0, 0, 1], PORT).into()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    drop(listener);
    client.write_all(b"still there").unwrap();
    server.read_exact(&mut [0; 11]).unwrap();
    // More than the windows take: the rest is sent when nobody holds the stream.
    server.write_all(&vec![7; 400_000]).unwrap();
    drop(server);
    assert!(is_kept(PORT));
    let mut octets = Vec::new();
    assert_eq!(client.read_to_end(&mut octets).unwrap(), 400_000);
    drop(client);
    wait_for("the end of the stream", || !is_kept(PORT));
}

#[test]
fn every_own_address_leads_to_the_listener_also_in_the_same_program() {
    let switch = Switch::start();
    let [a, b] = [(); 2].map(|()| Context::open(config(&switch.socket)).unwrap());
    let mut listener = TcpListener::bind(&a, PORT).unwrap();
    for address in ["10.0.0.1:7471", "127.0.0.1:7471", "127.1.2.3:7471", "[fd00::1]:7471", "[::1]:7471"] {
        let address: SocketAddr = address.parse().unwrap();
        for client in [&a, &b] {
            let _stream = TcpStream::connect(client, address).unwrap();
            let (_accepted, peer) = listener.accept().unwrap();
            assert!(client.config().addresses().any(|own| own.address == peer.ip()), "{peer}");
        }
    }
}

#[test]
fn many_programs_talk_at_once_and_one_beyond_all_places_is_refused() {
    const NAME: &str = "many_programs_talk_at_once_and_one_beyond_all_places_is_refused";
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    let task = |port| Task { role: Role::OneOfMany, socket: switch.socket.clone(), port };
    let listening = 7000..7030_u16;
    let mut peers: Vec<Peer> = listening.clone().map(|port| Peer::start(NAME, &task(port))).collect();
    for peer in &peers {
        assert_eq!(peer.told(), "ready");
    }
    // The other places are taken by clients that are silent.
    let silent: Vec<_> = (30..256).map(|_| raw::join(&switch.socket).0).collect();
    let clients = switch.status().clients;
    assert!(clients.len() == 256 && clients.is_sorted_by_key(|client| client.place));
    let ports: std::collections::BTreeSet<_> = clients.iter().map(|client| client.ports.0).collect();
    assert_eq!(ports.len(), 256);
    let error = Context::open(config(&switch.socket)).unwrap_err().to_string();
    assert!(error.contains("it has 256 clients, and can have no more"), "{error}");
    for (peer, port) in peers.iter_mut().zip(listening) {
        let next = if port == 7029 { 7000 } else { port + 1 };
        peer.say(&next.to_string());
    }
    for peer in &peers {
        assert_eq!(peer.told(), "done");
    }
    let talked = switch.status().clients.into_iter().filter(|client| client.received > 0 && client.sent > 0);
    assert_eq!(talked.count(), peers.len());
    drop(silent);
    for peer in peers {
        assert!(peer.end(|| {}).success());
    }
    wait_for("the end of all places", || switch.status().clients.is_empty());
}

#[test]
fn an_idle_switch_sleeps_until_a_client_sends() {
    let switch = Switch::start();
    let [a, b] = [(); 2].map(|()| Context::open(config(&switch.socket)).unwrap());
    let mut listener = TcpListener::bind(&a, PORT).unwrap();
    let mut client = TcpStream::connect(&b, ([10, 0, 0, 1], PORT).into()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    // Acknowledgments that are still under way.
    wait_for("silence", || {
        let before = switch.sleeps();
        std::thread::sleep(std::time::Duration::from_millis(500));
        switch.sleeps() - before < 10
    });
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        client.write_all(b"wake up").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
    }
    let before = switch.sleeps();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let sleeps = switch.sleeps() - before;
    assert!(sleeps < 40, "it looked for frames {sleeps} times in vain");
}

#[test]
fn a_killed_switch_ends_its_clients_contexts_with_the_reason() {
    let mut switch = Switch::start();
    let context = Context::open(config(&switch.socket)).unwrap();
    let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
    let mut here = Endpoint::new(&context, REGION);
    let mut there = Endpoint::new(&context, REGION);
    std::thread::scope(|scope| {
        scope.spawn(|| there.accept(&context, &mut listener));
        here.connect(&context);
    });
    let events = context.events();
    let waiting = std::thread::spawn(move || {
        loop {
            match events.wait(PATIENCE).unwrap() {
                // The device's link goes down, too.
                Some(AsyncEvent::Link { .. }) => {}
                event => break event,
            }
        }
    });
    switch.kill();
    let event = waiting.join().unwrap();
    let Some(AsyncEvent::DeviceFatal { cause }) = event else { panic!("{event:?}") };
    assert!(cause.contains("the switch has ended"), "{cause}");
    // Nobody waits for what cannot come.
    let error = listener.next(PATIENCE).unwrap_err();
    assert!(matches!(&error, Error::Switch { .. }), "{error}");
    let error = context.listen(PORT + 1, ListenOptions::default()).unwrap_err().to_string();
    assert!(error.contains(&format!("{}: the switch has ended", switch.socket.display())), "{error}");
    drop((here, there, listener));
    context.close().unwrap();
    let error = Context::open(config(&switch.socket)).unwrap_err().to_string();
    assert!(error.contains("nobody listens there: start uwarp-switch"), "{error}");
}

#[test]
fn nobody_has_to_read_the_status_to_its_end() {
    let switch = Switch::start();
    for format in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-switch"));
        let output = command.args(["status", "--socket"]).arg(&switch.socket).args(format).stdout(writer).output();
        let output = output.unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_prepared_context_knows_its_addresses_and_takes_no_place() {
    let switch = Switch::start();
    let context = Context::prepare(config(&switch.socket)).unwrap();
    assert_eq!(context.config().address.to_string(), "10.0.0.1/24");
    assert!(switch.status().clients.is_empty());
    context.start().unwrap();
    assert_eq!(switch.status().clients.len(), 1);
    context.close().unwrap();
    wait_for("the end of the place", || switch.status().clients.is_empty());
}

#[test]
fn what_does_not_fit_the_protocol_is_refused_and_harms_nobody() {
    let switch = Switch::start();
    let ask = |socket: &std::os::fd::OwnedFd, request: &Request| {
        send(socket, request, &[]).unwrap();
        receive::<Answer>(socket).unwrap().map(|(answer, _)| answer)
    };
    let socket = connect(&switch.socket).unwrap();
    let Some(Answer::Refused { refusal: Refusal::Protocol, reason }) =
        ask(&socket, &Request::Join { version: VERSION + 1, program: String::new(), guest: None })
    else {
        panic!("another version is let in");
    };
    assert!(reason.contains(&format!("speaks version {VERSION}, ")), "{reason}");
    let reserve = ask(&socket, &Request::Reserve { port: 7000, address: None });
    assert!(matches!(reserve, Some(Answer::Refused { refusal: Refusal::Protocol, .. })), "{reserve:?}");
    for text in ["", "{", "{\"request\":\"reserve\",\"port\":-1}", "\0\0\0"] {
        let socket = connect(&switch.socket).unwrap();
        rustix::net::send(&socket, text.as_bytes(), rustix::net::SendFlags::empty()).unwrap();
        if let Ok(Some((answer, _))) = receive::<Answer>(&socket) {
            assert!(matches!(answer, Answer::Refused { .. }), "{text}: {answer:?}");
        }
    }
    // More connections than are kept; one that never reads its answers.
    let silent: Vec<_> = (0..100).map(|_| connect(&switch.socket)).collect();
    let deaf = connect(&switch.socket).unwrap();
    rustix::io::ioctl_fionbio(&deaf, true).unwrap();
    while send(&deaf, &Request::Status { version: VERSION, from: 0 }, &[]).is_ok() {}
    let context = Context::open(config(&switch.socket)).unwrap();
    let joined = switch.status().clients;
    assert_eq!(joined.len(), 1, "{joined:?}");
    drop((silent, deaf, context));
}

#[test]
fn a_user_who_is_allowed_is_served_and_another_one_is_not() {
    const NAME: &str = "a_user_who_is_allowed_is_served_and_another_one_is_not";
    if is_peer() {
        return;
    }
    if !rustix::process::getuid().is_root() {
        return uwarp_notes::skipped("the switch was not tried with other users: that needs root");
    }
    if uwarp_notes::is_closed_to_others(&std::env::current_exe().unwrap(), "the switch was not tried with other users")
    {
        return;
    }
    let switch = Switch::start_with(&["--allow-uid", "65534"]);
    let directory = switch.socket.parent().unwrap();
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (user, expected) in [(65_534, "ready"), (65_533, "it has closed the connection")] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]);
        let task = Task { role: Role::Server, socket: switch.socket.clone(), port: PORT };
        command.env("UWARP_VDEV_TASK", serde_json::to_string(&task).unwrap());
        command.env_remove("XDG_RUNTIME_DIR").uid(user).gid(user);
        let peer = Peer::spawn(command);
        let told = peer.told();
        assert!(told.contains(expected), "user {user}: {told}");
        if expected == "ready" {
            // A client of another user, over a device that has no name.
            let context = Context::open(config(&switch.socket)).unwrap();
            let mut endpoint = Endpoint::new(&context, REGION);
            connect_to(&mut endpoint, &context, ([127, 0, 0, 1], PORT).into());
            exchange(&mut endpoint, 3, LENGTH);
            assert_eq!(switch.listener_on(PORT).uid, 65_534);
            peer.kill();
        }
    }
}

#[test]
fn the_environment_says_where_the_network_is() {
    const NAME: &str = "the_environment_says_where_the_network_is";
    if is_peer() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.toml");
    std::fs::write(&file, "switch = \"/in/the/file\"").unwrap();
    let found = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]);
        let task = Task { role: Role::Environment, socket: "".into(), port: 0 };
        command.env("UWARP_VDEV_TASK", serde_json::to_string(&task).unwrap());
        command.env_remove("UWARP_SWITCH").env_remove("UWARP_CONFIG").env("XDG_RUNTIME_DIR", directory.path());
        Peer::spawn({
            command.envs(variables.iter().copied());
            command
        })
        .told()
    };
    let file = file.to_str().unwrap();
    assert_eq!(found(&[("UWARP_SWITCH", "/a/b"), ("UWARP_CONFIG", file)]), "Some(\"/in/the/file\") false");
    assert_eq!(found(&[("UWARP_SWITCH", "/a/b"), ("UWARP_CONFIG", "")]), "Some(\"/a/b\") false");
    let nothing = found(&[]);
    assert!(nothing.starts_with("there is no network: start uwarp-switch"), "{nothing}");
}

#[test]
fn the_libraries_are_found_beside_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("uwarp-run");
    std::fs::copy(env!("CARGO_BIN_EXE_uwarp-run"), &program).unwrap();
    let libraries = directory.path().join("verbs");
    std::fs::create_dir(&libraries).unwrap();
    let run = || {
        let mut command = Command::new(&program);
        // With a device of its own, it needs no switch.
        command.env("UWARP_CONFIG", "/a/file").env_remove("LD_LIBRARY_PATH");
        command.args(["sh", "-c", "echo $LD_LIBRARY_PATH"]).output().unwrap()
    };
    let refused = run();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("/verbs nor in ") && error.contains("build them with scripts/verbs-lib"), "{error}");
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(libraries.join(library), "").unwrap();
    }
    let found = run();
    assert_eq!(String::from_utf8(found.stdout).unwrap(), format!("{}\n", libraries.display()));
}

#[test]
fn a_program_is_run_with_the_libraries_and_a_switch() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-run"));
        command.env_remove("UWARP_SWITCH").env_remove("UWARP_CONFIG").env("XDG_RUNTIME_DIR", directory.path());
        let output = command.env("LD_LIBRARY_PATH", "/others").args(arguments).output().unwrap();
        let text = |octets| String::from_utf8(octets).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let libraries = directory.path().join("lib");
    std::fs::create_dir(&libraries).unwrap();
    let named = ["--library-dir", libraries.to_str().unwrap()];
    let (code, _, error) = run(&[named[0], named[1], "true"]);
    assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("libibverbs.so.1 and librdmacm.so.1 are not in"), "{error}");

    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(libraries.join(library), "").unwrap();
    }
    let script = "echo $LD_LIBRARY_PATH $UWARP_SWITCH; exit 7";
    let socket = directory.path().join("uwarp/switch.sock");
    let expected = format!("{}:/others {}\n", libraries.display(), socket.display());
    // The first starts a switch, the second finds it.
    let mut switches = Vec::new();
    for _ in 0..2 {
        let (code, said, error) = run(&[named[0], named[1], "sh", "-c", script]);
        assert_eq!((code, said.as_str()), (Some(7), expected.as_str()), "{error}");
        switches.push(status(&socket).pid);
    }
    let pid = rustix::process::Pid::from_raw(switches[0] as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(switches[0], switches[1]);
    wait_for("the end of the switch", || !socket.exists());
    let (code, _, error) = run(&[named[0], named[1], "/no/such/program"]);
    let pid = rustix::process::Pid::from_raw(status(&socket).pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("/no/such/program cannot be run"), "{error}");
    wait_for("the end of the second switch", || !socket.exists());
}

#[test]
fn a_switch_that_was_started_for_a_program_outlives_its_own_messages() {
    let directory = tempfile::tempdir().unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(directory.path().join(library), "").unwrap();
    }
    let run = |socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-run"));
        command.env_remove("UWARP_CONFIG").env("UWARP_SWITCH", socket).env("UWARP_LOG", "info");
        command.arg("--library-dir").arg(directory.path()).arg("true").output().unwrap()
    };
    let socket = directory.path().join("new/s");
    let output = run(&socket);
    assert!(output.status.success(), "{output:?}");
    let pid = status(&socket).pid;
    // Nobody reads what it says, and it says something of both.
    drop(Context::open(config(&socket)).unwrap());
    wait_for("the end of the place", || status(&socket).clients.is_empty());
    assert_eq!(status(&socket).pid, pid);
    let log = || std::fs::read_to_string(directory.path().join("new/s.log")).unwrap();
    let said = log();
    assert!(said.contains("INFO"), "{said:?}");
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), rustix::process::Signal::TERM)
        .unwrap();
    wait_for("the end of the switch", || !socket.exists());

    // What the log has of earlier switches is not the reason why another one does not start.
    std::fs::write(&socket, "no socket").unwrap();
    let output = run(&socket);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("exists and is not a socket"), "{error}");
    assert!(log().starts_with(&said));
}
