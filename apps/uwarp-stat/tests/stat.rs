//! The tool shows a context in this process.

use std::process::{Command, Output};
use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, Config, ConnectError, ConnectOptions, Context, DeviceConfig, Error, ListenOptions,
    QueuePairOptions, ReceiveRequest, SendRequest, StatsSnapshot, Status,
};

/// Far longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(40);

fn stat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uwarp-stat")).args(arguments).output().unwrap()
}

#[test]
fn a_running_context_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("monitor.sock");
    let mut config = uwarp_middlebox::behind(Config::without_device("10.0.0.1/24").unwrap().threaded(2));
    config.monitor.socket = Some(socket.clone());
    let context = Context::open(config).unwrap();
    let domain = context.allocate_domain();
    let _region = domain.register(vec![0; 4096], uwarp::Access::REMOTE_READ).unwrap();
    let path = socket.to_str().unwrap();

    let output = stat(&[path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for expected in ["10.0.0.1/24", "threaded", "regions 1 of", "registered 4096 of"] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }

    let output = stat(&[path, "--json", "--once"]);
    let snapshot: StatsSnapshot = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(snapshot.pid, std::process::id());
    assert_eq!(snapshot.engines.len(), 2);
    context.close().unwrap();

    // Closed: the socket is gone.
    assert_eq!(stat(&[path]).status.code(), Some(2));
}

/// Two contexts of this process, connected by a pair of rings, and a connection between them.
#[test]
fn a_connection_is_shown_and_what_was_dropped() {
    let config = |address| {
        let device = DeviceConfig::Ring { name: "pair".to_owned(), loopback: false };
        uwarp_middlebox::behind(Config::new(device, address).unwrap().threaded(1))
    };
    // The sockets have default paths, so the tool finds them by the process's number.
    let server = Context::open(config("10.0.0.1/24")).unwrap();
    let client = Context::open(config("10.0.0.2/24")).unwrap();
    let mut listener = server.listen(7471, ListenOptions::default()).unwrap();
    let (domain, mut queue) = (server.allocate_domain(), server.create_completion_queue(8).unwrap());
    let mut accepted = domain.create_queue_pair(&QueuePairOptions::new(&queue).depth(4, 4).signal_all()).unwrap();
    let region = domain.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
    accepted.receive.post(&[ReceiveRequest::new(1, &[region.sge(..).unwrap()])]).unwrap();
    let (domain, mut completions) = (client.allocate_domain(), client.create_completion_queue(8).unwrap());
    let mut connected =
        domain.create_queue_pair(&QueuePairOptions::new(&completions).depth(4, 4).signal_all()).unwrap();
    let peer = "10.0.0.1:7471".parse().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next(PATIENCE).unwrap().expect("a request comes");
            request.accept(&mut accepted.control, AcceptOptions::default()).unwrap();
        });
        client.connect(&mut connected.control, peer, ConnectOptions::default()).unwrap();
    });
    connected.send.post(&[SendRequest::send_inline(2, b"hello")]).unwrap();
    assert_eq!(completions.next(PATIENCE).unwrap().expect("it is sent").status, Status::Success);
    assert_eq!(queue.next(PATIENCE).unwrap().expect("it comes").length, 5);

    // A segment of a resolved neighbour to a port without a listener is dropped and refused.
    let closed = "10.0.0.1:7472".parse().unwrap();
    let mut refused = domain.create_queue_pair(&QueuePairOptions::new(&completions).depth(4, 4)).unwrap();
    let error = client.connect(&mut refused.control, closed, ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Connect { reason: ConnectError::Refused, .. }), "{error}");
    drop(refused);

    let pid = std::process::id().to_string();
    let output = stat(&[&pid, "--json", "--once"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let both: Vec<StatsSnapshot> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [there, here] = both.as_slice() else { panic!("one line for each context: {lines}") };
    assert_eq!((there.address.as_str(), here.address.as_str()), ("10.0.0.1/24", "10.0.0.2/24"));
    for (snapshot, queue_pair) in [(there, &accepted), (here, &connected)] {
        let port = snapshot.port.as_ref().expect("a device");
        assert!(port.driver == "net_ring" && port.link_up && port.rx_packets > 3 && port.tx_packets > 3, "{port:?}");
        let [engine] = snapshot.engines.as_slice() else { panic!("one engine: {snapshot:?}") };
        let [connection] = engine.connections.as_slice() else { panic!("one connection: {engine:?}") };
        assert_eq!((connection.tcp.state.name(), connection.phase.as_str()), ("ESTABLISHED", "running"));
        // 1500 octets less the headers of IPv4 and TCP, and less timestamps if both ends use them.
        assert!([1460, 1448].contains(&connection.tcp.effective_mss), "{connection:?}");
        assert_eq!(connection.queue_pair, Some(queue_pair.control.number()));
        let [shown] = engine.queue_pairs.as_slice() else { panic!("one queue pair: {engine:?}") };
        assert_eq!((shown.number, shown.state.as_str()), (queue_pair.control.number(), "rts"));
        let pools = engine.pools;
        // The rings hold the other side's buffers; none of ours wait for frames.
        assert!(0 < pools.receive_free && pools.receive_free <= pools.receive_total, "{pools:?}");
        assert!(0 < pools.transmit_free && pools.transmit_free <= pools.transmit_total, "{pools:?}");
    }
    assert_eq!(
        (there.engines[0].queue_pairs[0].receives_completed, here.engines[0].queue_pairs[0].sends_completed),
        (1, 1)
    );
    assert_eq!(there.engines[0].drops["no-connection"], 1, "{:?}", there.engines[0].drops);

    // The same as tables.
    let output = stat(&[&pid]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let connection = &there.engines[0].connections[0];
    let pools = there.engines[0].pools;
    for expected in [
        "net_ring".to_owned(),
        format!("{} → {}", connection.local, connection.remote),
        "ESTABLISHED".to_owned(),
        connection.tcp.effective_mss.to_string(),
        "rts".to_owned(),
        "engine 0 drops: ".to_owned(),
        "no-connection 1".to_owned(),
        format!("/{}", pools.receive_total),
        format!("/{}", pools.transmit_total),
    ] {
        assert!(text.contains(&expected), "{expected} is not in\n{text}");
    }
    drop((connected, accepted));
    client.close().unwrap();
    server.close().unwrap();
}

#[test]
fn bad_command_lines_get_one_sentence() {
    for (arguments, status) in [
        (&["nonsense"][..], 2),
        (&["1", "--interval", "soon"], 2),
        (&["1", "--interval", "1ns"], 2),
        (&["--unknown"], 2),
        // No process has this number.
        (&["4294967295"], 1),
    ] {
        let output = stat(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.starts_with("uwarp-stat: "), "{text}");
    }
}
