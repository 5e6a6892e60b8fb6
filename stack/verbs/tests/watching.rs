//! Statistics, the monitor socket, capture, and asynchronous events.

mod common;

use common::*;
use uwarp::stats::TcpState;
use uwarp::{
    AcceptOptions, AsyncEvent, ConnectOptions, Context, DisconnectReason, ListenOptions, QueuePairOptions,
    ReceiveRequest, SendRequest, Status, monitor,
};

#[test]
fn statistics_show_connections_and_traffic() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::send(2, &[]).signalled()]).unwrap();
        client.expect(2);
        server.expect(1);
        let stats = client.context.stats();
        assert_eq!(stats.address, "10.0.0.1/24");
        assert_eq!(stats.pid, std::process::id());
        let [engine] = stats.engines.as_slice() else {
            panic!("{stats:?}");
        };
        assert!(engine.counters.frames_sent >= 3 && engine.counters.frames_received >= 3);
        // The server is silent: on a busy machine it gets Writes of nothing, too.
        assert_eq!(engine.counters.fpdus_sent - engine.counters.nudges_sent, 1);
        assert_eq!(engine.connections.len(), 1);
        assert_eq!(engine.queue_pairs.len(), 1);
        assert_eq!(engine.connections[0].queue_pair, Some(client.qp.control.number()));
        let info = client.qp.control.tcp_info().unwrap().unwrap();
        assert_eq!(info.state, TcpState::Established);
        assert!(info.traffic.octets_sent > 0 && info.effective_mss > 1_000);
        // It survives JSON.
        let text = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<uwarp::StatsSnapshot>(&text).unwrap(), stats);
        // There, counters stand beside what is not counted.
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let engine = &value["engines"][0];
        let tcp = &engine["connections"][0]["tcp"];
        assert_eq!(engine["frames-sent"], stats.engines[0].counters.frames_sent);
        assert_eq!(tcp["octets-sent"], stats.engines[0].connections[0].tcp.traffic.octets_sent);
        assert_eq!((&tcp["timeouts"], &tcp["state"]), (&0.into(), &"ESTABLISHED".into()));
    });
}

#[test]
fn states_of_tcp_have_their_names_in_json() {
    for state in TcpState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.name());
    }
}

#[test]
fn the_monitor_socket_answers_while_the_context_lives() {
    let directory = tempfile::tempdir().unwrap();
    for mode in [Mode::Threaded, Mode::Inline] {
        let path = directory.path().join(format!("{mode:?}.sock"));
        let mut config = config(1, mode);
        config.monitor.enabled = true;
        config.monitor.socket = Some(path.clone());
        let context = Context::open(config).unwrap();
        assert_eq!(context.monitor_socket(), Some(path.as_path()));
        let asked = std::thread::spawn({
            let path = path.clone();
            move || monitor::query(&path).unwrap()
        });
        // An inline engine answers while it is polled.
        until(&[&context], "the answer", || asked.is_finished());
        let stats = asked.join().unwrap();
        assert_eq!((stats.context, stats.engines.len()), (context.id(), 1), "{stats:?}");
        if mode == Mode::Inline {
            // Nobody polls: the answer comes nevertheless, and says so.
            let stats = monitor::query(&path).unwrap();
            assert_eq!((stats.engines.len(), stats.silent_engines.len()), (0, 1));
        }
        // Many lines on one connection.
        if mode == Mode::Threaded {
            use std::io::{BufRead, BufReader, Write};
            let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for _ in 0..3 {
                stream.write_all(b"\n").unwrap();
                let line = lines.next().unwrap().unwrap();
                assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
            }
        }
        context.close().unwrap();
        assert!(!path.exists());
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let mut config = config(1, Mode::Threaded);
    config.monitor.enabled = true;
    config.monitor.socket = Some(path.clone());
    let context = Context::open(config.clone()).unwrap();
    assert!(monitor::query(&path).is_ok());
    let error = Context::open(config.clone()).unwrap_err();
    assert!(error.to_string().contains("monitor socket"), "{error}");
    assert!(monitor::query(&path).is_ok());
    drop(context);
    // What is no socket is somebody's.
    std::fs::write(&path, "precious").unwrap();
    let error = Context::open(config).unwrap_err();
    assert!(error.to_string().contains("monitor socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_client_that_asks_without_end_does_not_keep_a_context_open() {
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.sock");
    let mut config = config(1, Mode::Threaded);
    config.monitor.enabled = true;
    config.monitor.socket = Some(path.clone());
    let context = Context::open(config).unwrap();
    let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let (answered, first) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || {
        let mut room = vec![0; 1 << 16];
        while client.write_all(b"\n").is_ok() && client.read(&mut room).is_ok_and(|count| count > 0) {
            let _ = answered.send(());
        }
    });
    first.recv().unwrap();
    // Would wait for the client, which goes only when it is not answered any more.
    context.close().unwrap();
    asking.join().unwrap();
}

#[test]
fn a_capture_holds_the_frames() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("frames.pcap");
    let (mut client, mut server) = connected(Mode::Threaded);
    client.context.start_capture(&path).unwrap();
    server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..100).unwrap()])]).unwrap();
    client.qp.send.post(&[SendRequest::send_inline(2, b"captured octets")]).unwrap();
    server.expect(1);
    client.context.stop_capture();
    // The mailbox is emptied in order, so the file is complete when the next command is answered.
    client.context.stats();
    let octets = std::fs::read(&path).unwrap();
    assert!(octets.windows(15).any(|window| window == b"captured octets"));
    let missing = directory.path().join("no/such/directory/x.pcap");
    let error = client.context.start_capture(&missing).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
}

#[test]
fn a_peers_terminate_is_an_event() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        client.qp.send.post(&[SendRequest::write_inline(1, b"x", 0xdead_beef, 0)]).unwrap();
        let _ = &server;
        let events = client.context.events();
        let code = loop {
            match events.wait(LONG).unwrap().expect("an event") {
                AsyncEvent::PeerTerminated { queue_pair, code } => {
                    assert_eq!(queue_pair, client.qp.control.number());
                    break code;
                }
                _ => continue,
            }
        };
        // An invalid STag in a tagged message is found by DDP: layer 1, tagged buffer, invalid STag (RFC 5041 §7.1).
        assert_eq!((code.layer, code.error_type, code.code), (1, 1, 0));
    });
}

#[test]
fn a_completion_queue_that_overflows_is_an_event_and_loses_nothing() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut few = a.create_completion_queue(2).unwrap();
        let domain = a.allocate_domain();
        let mut client = domain.create_queue_pair(&QueuePairOptions::new(&few).signal_all()).unwrap();
        let mut server = Side::new(&b);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let connecting =
            a.start_connect(&mut client.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().expect("a connection request");
        let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
        connecting.wait(&mut client.control).unwrap();
        accepting.wait(&mut server.qp.control).unwrap();
        let writes: Vec<_> = (0..20).map(|id| SendRequest::write(id, &[], 1, 0)).collect();
        client.send.post(&writes).unwrap();
        let events = a.events();
        loop {
            if let AsyncEvent::CompletionQueueOverflow { queue_pair, .. } =
                events.wait(LONG).unwrap().expect("an event")
            {
                assert_eq!(queue_pair, client.control.number());
                break;
            }
        }
        // What had completed has done so, the rest is flushed, in order.
        for id in 0..20 {
            let completion = few.next(LONG).unwrap().expect("a completion");
            assert_eq!(completion.id, id);
            assert!(matches!(completion.status, Status::Success | Status::Flushed | Status::CompletionQueueOverflow));
        }
        assert!(client.control.wait_disconnected(LONG).unwrap());
        let reason = DisconnectReason::LocalError(Status::CompletionQueueOverflow);
        assert_eq!(client.control.disconnect_reason(), Some(reason));
    });
}

#[test]
fn the_monitor_waits_for_a_client_that_asks_late() {
    use std::io::{BufRead, BufReader, Write};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("late.sock");
    let mut config = config(1, Mode::Threaded);
    config.monitor.enabled = true;
    config.monitor.socket = Some(path.clone());
    let context = Context::open(config).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    // Longer than the monitor looks at one client without looking whether it is to stop.
    std::thread::sleep(std::time::Duration::from_millis(300));
    stream.write_all(b"stats\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(serde_json::from_str::<uwarp::StatsSnapshot>(&line).unwrap().context, context.id());
}
