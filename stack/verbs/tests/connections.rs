//! Making and ending connections between two contexts in one process.

mod common;

use common::*;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, Config, ConnectError, ConnectOptions, Context, DisconnectReason, Error, ListenOptions,
    PostErrorReason, QueuePairState, ReadyToReceiveKinds, ReceiveRequest, SendRequest, Status, TcpListener,
};

#[test]
fn both_sides_learn_of_each_other() {
    in_both_modes(|mode| {
        let (client, server) = connected(mode);
        let (a, b) = (client.established.as_ref().unwrap(), server.established.as_ref().unwrap());
        assert_eq!(a.peer, server.context.socket_address(PORT));
        assert_eq!(b.local, a.peer);
        assert_eq!(b.peer, a.local);
        assert_eq!((a.private_data.as_slice(), b.private_data.as_slice()), (&b"welcome"[..], &b"hello"[..]));
        assert!(a.crc && b.crc);
        assert!(a.ird > 0 && a.ord > 0 && b.ird >= a.ord && a.ird >= b.ord);
    });
}

/// For peers that lose an early one. A slow machine only makes it later.
#[test]
fn the_first_fpdu_waits_as_long_as_the_configuration_says() {
    in_both_modes(|mode| {
        const DELAY: Duration = Duration::from_millis(100);
        let mut patient = config(1, mode);
        patient.mpa.first_fpdu_delay = DELAY;
        let (a, b) = Context::pair_in_process(patient, config(2, mode)).unwrap();
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        let start = Instant::now();
        connect(&mut client, &mut server);
        client.speak_first(&server);
        assert!(start.elapsed() >= DELAY, "{:?}", start.elapsed());
    });
}

#[test]
fn a_peer_can_reject_with_private_data() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let peer = b.socket_address(PORT);
        let connecting = a.start_connect(&mut client.qp.control, peer, ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        assert_eq!(request.peer().ip(), a.socket_address(0).ip());
        request.reject(b"not you").unwrap();
        let error = connecting.wait(&mut client.qp.control).unwrap_err();
        assert_eq!(error.rejection(), Some(&b"not you"[..]));
        assert_eq!(client.qp.control.state(), QueuePairState::Idle);
        // The same queue pair may try again.
        connect_by(&mut listener, &mut client, &mut server);
    });
}

/// 512 octets (RFC 5044 §7.1.1), of which revision 2 takes four for itself (RFC 6581 §5).
#[test]
fn private_data_may_be_as_long_as_the_frame_allows() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        for (mpa_revision, most) in [(1, 512), (2, 508)] {
            let of = |length: usize| (0..length).map(|at| (at * 7) as u8).collect::<Vec<_>>();
            let wishes = || ConnectOptions { mpa_revision, ..ConnectOptions::default() };
            let (mut client, mut server) = (Side::new(&a), Side::new(&b));
            let ask = |client: &mut Side, length| {
                a.start_connect(&mut client.qp.control, b.socket_address(PORT), wishes().private_data(of(length)))
            };
            let said = ask(&mut client, most + 1).err().map(|error| error.to_string());
            assert!(said.is_some_and(|text| text.contains(&format!("at most {most} octets"))));

            let connecting = ask(&mut client, most).unwrap();
            let request = listener.next(LONG).unwrap().unwrap();
            assert_eq!(request.private_data(), of(most));
            let error = request.reject(&of(most + 1)).unwrap_err();
            assert!(error.to_string().contains(&format!("at most {most} octets")), "{error}");
            assert_eq!(connecting.wait(&mut client.qp.control).unwrap_err().rejection(), Some(&b""[..]));

            let connecting = ask(&mut client, most).unwrap();
            listener.next(LONG).unwrap().unwrap().reject(&of(most)).unwrap();
            assert_eq!(connecting.wait(&mut client.qp.control).unwrap_err().rejection(), Some(&of(most)[..]));

            let connecting = ask(&mut client, 1).unwrap();
            let request = listener.next(LONG).unwrap().unwrap();
            let accepting = request
                .start_accept(
                    &mut server.qp.control,
                    AcceptOptions { private_data: of(most), ..AcceptOptions::default() },
                )
                .unwrap();
            assert_eq!(connecting.wait(&mut client.qp.control).unwrap().private_data, of(most));
            // The initiator speaks first, if only by its end.
            client.qp.control.disconnect();
            drop(accepting);
        }
    });
}

#[test]
fn a_request_that_is_dropped_is_rejected() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::new(&a);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let connecting =
            a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
        drop(listener.next(LONG).unwrap().unwrap());
        let error = connecting.wait(&mut client.qp.control).unwrap_err();
        assert_eq!(error.rejection(), Some(&b""[..]));
    });
}

#[test]
fn connecting_to_nobody_fails_with_the_reason() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::new(&a);
        // A host without a listener.
        let connecting =
            a.start_connect(&mut client.qp.control, b.socket_address(9), ConnectOptions::default()).unwrap();
        // Inline, both engines turn while this waits.
        match connecting.wait(&mut client.qp.control).unwrap_err() {
            Error::Connect { reason, .. } => assert_eq!(reason, ConnectError::Refused),
            other => panic!("{other}"),
        }
        // No host.
        let options = ConnectOptions::default().timeout(Duration::from_millis(500));
        let error = a.connect(&mut client.qp.control, "10.0.0.77:9".parse().unwrap(), options).unwrap_err();
        match error {
            Error::Connect { reason: ConnectError::Unreachable | ConnectError::TimedOut(_), .. } => {}
            other => panic!("{other}"),
        }
        // A listener that never answers.
        let _listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let options = ConnectOptions::default().timeout(Duration::from_millis(200));
        let error = a.connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        assert_eq!(client.qp.control.state(), QueuePairState::Idle);
    });
}

#[test]
fn either_side_can_disconnect() {
    in_both_modes(|mode| {
        for client_first in [true, false] {
            let (mut client, mut server) = connected(mode);
            // A responder may send only after the initiator has (RFC 5044 §7.1.2).
            client.speak_first(&server);
            client.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
            server.qp.receive.post(&[ReceiveRequest::new(2, &[])]).unwrap();
            let (first, second) = if client_first { (&mut client, &mut server) } else { (&mut server, &mut client) };
            // What was posted before is delivered.
            first
                .qp
                .send
                .post(&[SendRequest::write_inline(3, b"bye", second.mr.stag(), second.mr.remote_offset()).signalled()])
                .unwrap();
            first.qp.control.disconnect();
            assert_eq!(first.expect(3).id, 3);
            assert!(second.qp.control.wait_disconnected(LONG).unwrap());
            assert_eq!(second.octets(0, 3), b"bye");
            assert_eq!(second.qp.control.disconnect_reason(), Some(DisconnectReason::PeerClosed));
            second.qp.control.disconnect();
            assert!(first.qp.control.wait_disconnected(LONG).unwrap());
            assert_eq!(first.qp.control.disconnect_reason(), Some(DisconnectReason::Local));
            for (side, id) in [(&mut client, 1), (&mut server, 2)] {
                let flushed = side.complete();
                assert_eq!((flushed.id, flushed.status), (id, Status::Flushed));
                assert_eq!(side.qp.control.state(), QueuePairState::Disconnected);
                // Later work is flushed, too.
                side.qp.send.post(&[SendRequest::send_inline(8, b"late")]).unwrap();
                let flushed = side.complete();
                assert_eq!((flushed.id, flushed.status), (8, Status::Flushed));
                side.qp.receive.post(&[ReceiveRequest::new(9, &[])]).unwrap();
                let flushed = side.complete();
                assert_eq!((flushed.id, flushed.status), (9, Status::Flushed));
            }
        }
    });
}

#[test]
fn aborting_flushes_at_once() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        server.qp.receive.post(&[ReceiveRequest::new(2, &[])]).unwrap();
        server.qp.control.abort();
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
        assert_eq!(server.complete().status, Status::Flushed);
    });
}

#[test]
fn waiting_wakes_for_completions_and_descriptors() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        assert!(!server.cq.wait(Duration::from_millis(5)).unwrap());
        server.qp.receive.post(&[ReceiveRequest::new(1, &[]), ReceiveRequest::new(2, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::send(1, &[])]).unwrap();
        assert!(server.cq.wait(LONG).unwrap());
        server.expect(1);
        // Of the waits.
        server.cq.take_events();
        server.cq.arm();
        assert_eq!(server.cq.poll_one(), None);
        client.qp.send.post(&[SendRequest::send(2, &[])]).unwrap();
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let contexts = [client.context.clone(), server.context.clone()];
        until(&[&contexts[0], &contexts[1]], "the descriptor is readable", || {
            let fd = server.cq.as_fd();
            let mut watched = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut watched, Some(&now)).unwrap() == 1
        });
        server.expect(2);
    });
}

#[test]
fn many_queue_pairs_of_two_engines_share_a_queue() {
    let (a, b) =
        Context::pair_in_process(config(1, Mode::Threaded).threaded(2), config(2, Mode::Threaded).threaded(2)).unwrap();
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let mut server_cq = b.create_completion_queue(1024).unwrap();
    let pd = b.allocate_domain();
    let mut client_cq = a.create_completion_queue(1024).unwrap();
    let client_pd = a.allocate_domain();
    let mut pairs = Vec::new();
    let mut engines = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let mut client = client_pd.create_queue_pair(&uwarp::QueuePairOptions::new(&client_cq)).unwrap();
        let mut server = pd.create_queue_pair(&uwarp::QueuePairOptions::new(&server_cq)).unwrap();
        let connecting =
            a.start_connect(&mut client.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        engines.insert(request.engine());
        let accepting = request.start_accept(&mut server.control, AcceptOptions::default()).unwrap();
        let _ = connecting.wait(&mut client.control).unwrap();
        let _ = accepting.wait(&mut server.control).unwrap();
        pairs.push((client, server));
    }
    assert_eq!(engines.len(), 2, "both engines take connections");
    for round in 0..50_u64 {
        for (index, (client, server)) in pairs.iter_mut().enumerate() {
            server.receive.post(&[ReceiveRequest::new(round, &[])]).unwrap();
            client.send.post(&[SendRequest::send(index as u64, &[]).signalled()]).unwrap();
        }
        let mut seen = vec![0; pairs.len()];
        for _ in 0..pairs.len() {
            let received = server_cq.next(LONG).unwrap().unwrap();
            // In order within a queue pair.
            assert_eq!((received.id, received.status), (round, Status::Success));
            let index = pairs.iter().position(|(_, server)| server.control.number() == received.queue_pair).unwrap();
            seen[index] += 1;
            let sent = client_cq.next(LONG).unwrap().unwrap();
            assert_eq!(sent.status, Status::Success);
        }
        assert!(seen.iter().all(|&count| count == 1), "{seen:?}");
    }
}

#[test]
fn client_and_server_in_one_context() {
    in_both_modes(|mode| {
        let context = Context::open(config(1, mode)).unwrap();
        let (mut client, mut server) = (Side::new(&context), Side::new(&context));
        connect(&mut client, &mut server);
        let octets = pattern(4, 100_000);
        client.mr.write(0, &octets).unwrap();
        client
            .qp
            .send
            .post(&[SendRequest::write(
                1,
                &[client.mr.sge(..100_000).unwrap()],
                server.mr.stag(),
                server.mr.remote_offset(),
            )
            .signalled()])
            .unwrap();
        client.expect(1);
        client
            .qp
            .send
            .post(&[SendRequest::read(
                2,
                &[client.mr.sge(200_000..300_000).unwrap()],
                server.mr.stag(),
                server.mr.remote_offset(),
            )
            .signalled()])
            .unwrap();
        client.expect(2);
        assert_eq!(client.octets(200_000, 100_000), octets);
    });
}

#[test]
fn several_contexts_live_side_by_side() {
    in_both_modes(|mode| {
        let (client1, mut server1) = connected(mode);
        let (client2, mut server2) = connected(mode);
        let mut clients = [client1, client2];
        for (client, server) in clients.iter_mut().zip([&mut server1, &mut server2]) {
            server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
            client.qp.send.post(&[SendRequest::send(2, &[]).signalled()]).unwrap();
            server.expect(1);
            client.expect(2);
        }
    });
}

#[test]
fn an_inline_context_belongs_to_its_thread() {
    let (a, b) = pair(Mode::Inline);
    let mut client = Side::new(&a);
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let (a, b) = (&a, &b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!a.poll());
            let error =
                a.connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap_err();
            assert!(matches!(error, Error::WrongThread), "{error}");
            assert!(matches!(client.cq.wait(LONG), Err(Error::WrongThread)));
            assert!(matches!(listener.next(LONG), Err(Error::WrongThread)));
        });
    });
}

#[test]
fn arguments_are_checked() {
    let (a, b) = pair(Mode::Inline);
    let mut client = Side::new(&a);
    let sentence = |error: Error| {
        let text = error.to_string();
        assert!(!text.contains('\n') && text.len() > 20, "{text}");
        text
    };
    assert!(sentence(a.create_completion_queue(0).unwrap_err()).contains("depth is 0"));
    assert!(sentence(a.reserve_port(Some(0)).unwrap_err()).contains("port"));
    assert!(
        sentence(a.listen(1, ListenOptions { backlog: 0, ..ListenOptions::default() }).unwrap_err())
            .contains("backlog is 0")
    );
    let _listener = a.listen(1, ListenOptions::default()).unwrap();
    let _ = sentence(a.listen(1, ListenOptions::default()).unwrap_err());
    let long = ConnectOptions::default().private_data(vec![0; 509]);
    assert!(sentence(a.connect(&mut client.qp.control, b.socket_address(1), long).unwrap_err()).contains("508"));
    let foreign = b.create_completion_queue(1).unwrap();
    assert!(
        sentence(client.pd.create_queue_pair(&uwarp::QueuePairOptions::new(&foreign)).unwrap_err())
            .contains("another context")
    );
    assert!(sentence(client.mr.sge(5..REGION + 1).unwrap_err()).contains("outside"));
    assert!(sentence(client.mr.read(REGION, &mut [0]).unwrap_err()).contains("outside"));
    assert_eq!(client.qp.send.post(&[SendRequest::send(1, &[])]).unwrap_err().reason, PostErrorReason::NotConnected);
    let config = Config::without_device("10.0.0.1/24").unwrap().mtu(1);
    assert!(sentence(Context::open(config).unwrap_err()).contains("mtu is 1"));
}

#[test]
fn limits_are_errors_and_not_the_end() {
    let mut small = config(1, Mode::Inline);
    small.limits.queue_pairs = 2;
    small.limits.completion_queues = 1;
    small.limits.regions = 1;
    small.limits.registered_octets = 100;
    let context = Context::open(small).unwrap();
    let cq = context.create_completion_queue(4).unwrap();
    let error = context.create_completion_queue(4).unwrap_err();
    assert!(error.to_string().contains("limits.completion-queues is 1"), "{error}");
    let pd = context.allocate_domain();
    let options = uwarp::QueuePairOptions::new(&cq);
    let one = pd.create_queue_pair(&options).unwrap();
    let _two = pd.create_queue_pair(&options).unwrap();
    let error = pd.create_queue_pair(&options).unwrap_err();
    assert!(error.to_string().contains("limits.queue-pairs is 2"), "{error}");
    drop(one);
    let _again = pd.create_queue_pair(&options).unwrap();
    assert!(pd.register(vec![0; 101], uwarp::Access::ALL).is_err());
    let region = pd.register(vec![0; 100], uwarp::Access::ALL).unwrap();
    assert!(pd.register(Vec::new(), uwarp::Access::ALL).is_err());
    assert_eq!(region.deregister().len(), 100);
    let _region = pd.register(Vec::new(), uwarp::Access::ALL).unwrap();
}

#[test]
fn an_old_responder_is_asked_again_without_enhancement() {
    in_both_modes(|mode| {
        for retries in [true, false] {
            let (a, b) = pair(mode);
            let mut client = Side::new(&a);
            let mut listener = TcpListener::bind(&b, PORT).unwrap();
            let options = ConnectOptions {
                retry_without_enhancement: retries,
                private_data: b"hello".to_vec(),
                ..ConnectOptions::default()
            };
            let mut connecting = a.start_connect(&mut client.qp.control, listener.local_addr(), options).unwrap();
            let mut revisions = Vec::new();
            let mut streams = Vec::new();
            let outcome = loop {
                match connecting.poll(&mut client.qp.control) {
                    Ok(None) => {}
                    Ok(Some(established)) => break Ok(established),
                    Err(error) => break Err(error),
                }
                let Some((mut stream, _)) = listener.accept_timeout(Duration::from_millis(1)).unwrap() else {
                    continue;
                };
                let mut request = [0; 20];
                stream.read_exact(&mut request).unwrap();
                let mut private_data = vec![0; usize::from(u16::from_be_bytes([request[18], request[19]]))];
                stream.read_exact(&mut private_data).unwrap();
                assert!(private_data.ends_with(b"hello"));
                revisions.push(request[17]);
                // One that knows RFC 5044 only closes when it sees a revision above its own.
                if request[17] == 1 {
                    stream.write_all(b"MPA ID Rep Frame\x40\x01\x00\x03yes").unwrap();
                    streams.push(stream);
                }
            };
            if retries {
                let established = outcome.unwrap();
                assert_eq!((established.peer_ird, &established.private_data[..]), (None, &b"yes"[..]));
                assert_eq!(revisions, [2, 1]);
            } else {
                let reason = outcome.unwrap_err();
                assert!(matches!(reason, Error::Connect { reason: ConnectError::Closed, .. }), "{reason}");
                assert_eq!(revisions, [2]);
            }
        }
        // Not if this side itself has ended the attempt.
        for abort in [true, false] {
            let (a, b) = pair(mode);
            let mut client = Side::new(&a);
            let mut listener = TcpListener::bind(&b, PORT).unwrap();
            let options = ConnectOptions { retry_without_enhancement: true, ..ConnectOptions::default() };
            let connecting = a.start_connect(&mut client.qp.control, listener.local_addr(), options).unwrap();
            let _stream = listener.accept_timeout(Duration::from_secs(10)).unwrap().expect("the first attempt");
            if abort {
                client.qp.control.abort();
            } else {
                client.qp.control.disconnect();
            }
            let reason = connecting.wait(&mut client.qp.control).unwrap_err();
            assert!(matches!(reason, Error::Connect { reason: ConnectError::Closed, .. }), "{reason}");
            assert!(listener.accept_timeout(Duration::from_millis(50)).unwrap().is_none(), "a second attempt");
        }
        let (a, _b) = pair(mode);
        let mut side = Side::new(&a);
        for options in [
            ConnectOptions { mpa_revision: 1, ..ConnectOptions::default() },
            ConnectOptions::default().peer_to_peer(ReadyToReceiveKinds::ALL),
        ] {
            let options = ConnectOptions { retry_without_enhancement: true, ..options };
            let refused = a.start_connect(&mut side.qp.control, "10.0.0.2:1".parse().unwrap(), options);
            assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        }
    });
}
