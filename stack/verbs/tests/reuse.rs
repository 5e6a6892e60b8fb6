//! Queue pairs that are destroyed at once, and queue pairs that are used again.

mod common;

use common::*;
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, Config, ConnectFailure, ConnectOptions, ConnectionChange, Context, DisconnectReason, Error,
    EventChannel, ListenOptions, PostErrorReason, QueuePair, QueuePairOptions, QueuePairState, ReceiveRequest,
    SendRequest, Status,
};

/// A pair in which the first context has room for one queue pair, and a listener of the second.
fn narrow(mode: Mode) -> (Context, Context) {
    let mut narrow = config(1, mode).linger(LONG);
    narrow.limits.queue_pairs = 1;
    Context::pair_in_process(narrow, config(2, mode)).unwrap()
}

/// Replaces a side's queue pair by a new one.
fn another(side: &Side) -> QueuePair {
    side.pd.create_queue_pair(&QueuePairOptions::new(&side.cq).limits(4, 256)).unwrap()
}

#[test]
fn a_destroyed_queue_pair_is_gone_at_once_and_its_peer_sees_its_end() {
    in_both_modes(|mode| {
        let (a, b) = narrow(mode);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        connect(&mut client, &mut server);
        server.qp.receive.post(&[ReceiveRequest::new(3, &[server.mr.sge(..).unwrap()])]).unwrap();
        client.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::send(2, &[client.mr.sge(..).unwrap()]).signalled()]).unwrap();
        let channel = EventChannel::new().unwrap();
        client.qp.control.attach(&channel, 5);
        let started = Instant::now();
        client.qp.control.destroy();
        assert!(started.elapsed() < LONG, "it lingered");
        let end = channel.try_next().expect("its end");
        assert!(matches!(end.change, ConnectionChange::Disconnected(DisconnectReason::Aborted)), "{end:?}");
        assert!(channel.try_next().is_none());
        // Nothing completes any more, and there is room for another.
        while let Some(early) = client.cq.poll_one() {
            assert!(early.status.is_success(), "{early:?}");
        }
        client.qp = client.pd.create_queue_pair(&QueuePairOptions::new(&client.cq).limits(4, 256)).unwrap();
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
        // Only a message that is half sent by then ends with a reset.
        let reason = server.qp.control.disconnect_reason();
        assert!(matches!(reason, Some(DisconnectReason::Reset | DisconnectReason::PeerClosed)), "{reason:?}");
        server.qp = another(&server);
        connect(&mut client, &mut server);
    });
}

/// Programs leave as soon as they have the last message. Its sender must not take it for lost.
#[test]
fn what_a_queue_pair_received_is_acknowledged_before_it_is_destroyed() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::with(&a, |options| QueuePairOptions { complete_when_acknowledged: true, ..options });
        let mut server = Side::new(&b);
        connect(&mut client, &mut server);
        server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..8).unwrap()])]).unwrap();
        client.qp.send.post(&[SendRequest::send_inline(2, &[7; 8]).signalled()]).unwrap();
        // An inline context sends when it is polled.
        until(&[&a, &b], "the message", || server.cq.poll_one().is_some_and(|completion| completion.id == 1));
        server.qp.control.destroy();
        assert!(client.expect(2).status.is_success());
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        assert_eq!(client.qp.control.disconnect_reason(), Some(DisconnectReason::PeerClosed));
    });
}

#[test]
fn a_queue_pair_can_be_destroyed_in_every_state() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let (mut client, channel) = (Side::new(&a), EventChannel::new().unwrap());
        let replace = |client: &mut Side| {
            let mut fresh = another(client);
            fresh.control.attach(&channel, 1);
            std::mem::replace(&mut client.qp, fresh).control.destroy();
            assert_eq!(a.stats().objects.queue_pairs, 1);
        };
        // Never connected.
        replace(&mut client);
        assert!(channel.try_next().is_none());
        // Connecting.
        let _ = a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        replace(&mut client);
        let failed = channel.try_next().unwrap();
        assert!(matches!(failed.change, ConnectionChange::Failed(ConnectFailure::Closed)), "{failed:?}");
        drop(request);
        // Failed.
        let _ = a.start_connect(&mut client.qp.control, b.socket_address(9), ConnectOptions::default()).unwrap();
        let failed = channel.next(LONG).unwrap().unwrap();
        assert!(matches!(failed.change, ConnectionChange::Failed(ConnectFailure::Refused)), "{failed:?}");
        replace(&mut client);
        // Ended.
        let mut server = Side::new(&b);
        connect_by(&mut listener, &mut client, &mut server);
        drop(server);
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        replace(&mut client);
        let changes: Vec<_> = std::iter::from_fn(|| channel.try_next()).map(|event| event.change).collect();
        assert!(
            matches!(&changes[..], [ConnectionChange::Established(_), ConnectionChange::Disconnected(_)]),
            "{changes:?}"
        );
    });
}

#[test]
fn a_queue_pair_that_has_ended_is_like_new_after_a_reset() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        let numbers = (client.qp.control.number(), server.qp.control.number());
        for round in 0..5_u64 {
            connect_by(&mut listener, &mut client, &mut server);
            let refused = client.qp.control.reset(&mut client.qp.send).unwrap_err();
            assert!(matches!(refused, Error::State { state: "connected", .. }), "{refused}");
            server.qp.receive.post(&[ReceiveRequest::new(round, &[server.mr.sge(..8).unwrap()])]).unwrap();
            client.qp.send.post(&[SendRequest::send_inline(round, &round.to_be_bytes()).signalled()]).unwrap();
            client.expect(round);
            server.expect(round);
            assert_eq!(server.octets(0, 8), round.to_be_bytes());
            client.qp.control.abort();
            for side in [&mut client, &mut server] {
                assert!(side.qp.control.wait_disconnected(LONG).unwrap());
                // What is posted now would be flushed; a reset takes it away.
                side.qp.control.reset(&mut side.qp.send).unwrap();
                assert_eq!(
                    (side.qp.control.state(), side.qp.control.disconnect_reason()),
                    (QueuePairState::Idle, None)
                );
                let refused = side.qp.send.post(&[SendRequest::send(9, &[])]).unwrap_err();
                assert_eq!(refused.reason, PostErrorReason::NotConnected);
                side.qp.receive.post(&[ReceiveRequest::new(99, &[])]).unwrap();
                side.qp.control.reset(&mut side.qp.send).unwrap();
                let attributes = side.qp.control.query();
                assert_eq!((attributes.engine, attributes.reads), (None, None));
                assert_eq!(side.qp.receive.slots_free(), attributes.receive_slots);
                assert_eq!(side.cq.poll_one(), None);
            }
        }
        assert_eq!((client.qp.control.number(), server.qp.control.number()), numbers);
    });
}

#[test]
fn parts_of_a_queue_pair_are_reset_together() {
    let (client, mut server) = connected(Mode::Threaded);
    let other = another(&client);
    let uwarp::QueuePair { mut control, mut send, .. } = client.qp;
    let mut foreign = other.send;
    control.abort();
    assert!(control.wait_disconnected(LONG).unwrap());
    let refused = control.reset(&mut foreign).unwrap_err();
    assert!(matches!(refused, Error::Argument { .. }), "{refused}");
    control.reset(&mut send).unwrap();
    let mut listener = server.context.listen(PORT, ListenOptions::default()).unwrap();
    server.qp.control.wait_disconnected(LONG).unwrap();
    server.qp.control.reset(&mut server.qp.send).unwrap();
    let peer = server.context.socket_address(PORT);
    let connecting = client.context.start_connect(&mut control, peer, ConnectOptions::default()).unwrap();
    let request = listener.next(LONG).unwrap().unwrap();
    request.accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
    connecting.wait(&mut control).unwrap();
    send.post(&[SendRequest::send(1, &[])]).unwrap();
}

#[test]
fn a_queue_pair_without_a_connection_is_flushed_too() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let (mut side, mut server) = (Side::new(&a), Side::new(&b));
        for attempt in ["none", "refused", "unanswered"] {
            side.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
            let mut request = None;
            match attempt {
                "refused" => {
                    assert!(a.connect(&mut side.qp.control, b.socket_address(9), ConnectOptions::default()).is_err());
                }
                "unanswered" => {
                    let peer = b.socket_address(PORT);
                    let _ = a.start_connect(&mut side.qp.control, peer, ConnectOptions::default()).unwrap();
                    request = listener.next(LONG).unwrap();
                }
                _ => {}
            }
            side.qp.control.flush().unwrap();
            let expect = |side: &mut Side, id| {
                let completion = side.complete();
                assert_eq!((completion.id, completion.status), (id, Status::Flushed), "{attempt}");
            };
            expect(&mut side, 1);
            side.qp.receive.post(&[ReceiveRequest::new(2, &[])]).unwrap();
            expect(&mut side, 2);
            side.qp.send.post(&[SendRequest::immediate(3, 7).signalled()]).unwrap();
            expect(&mut side, 3);
            drop(request);
            until(&[&a, &b], "its end", || side.qp.control.state() == QueuePairState::Disconnected);
            assert_eq!(side.qp.control.disconnect_reason(), Some(DisconnectReason::Aborted));
            let refused =
                a.start_connect(&mut side.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap_err();
            assert!(matches!(refused, Error::State { state: "disconnected", .. }), "{refused}");
            // Once more changes nothing.
            side.qp.control.flush().unwrap();
            side.qp.control.reset(&mut side.qp.send).unwrap();
            let refused = side.qp.send.post(&[SendRequest::send(9, &[])]).unwrap_err();
            assert_eq!(refused.reason, PostErrorReason::NotConnected);
        }
        connect_by(&mut listener, &mut side, &mut server);
        // One that is reset or destroyed before its work is flushed.
        side.qp.control.flush().unwrap();
        assert!(side.qp.control.wait_disconnected(LONG).unwrap());
        let mut other = another(&side);
        other.control.flush().unwrap();
        drop(other);
    });
}

/// An attempt binds a queue pair to an engine; a request may come to another one.
#[test]
fn a_queue_pair_goes_to_the_engine_of_the_request() {
    let config = Config::without_device("10.0.0.1/24").unwrap().without_monitor().threaded(2);
    let context = Context::open(config).unwrap();
    let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
    let (mut client, mut server) = (Side::new(&context), Side::new(&context));
    let mut engines = Vec::new();
    for _ in 0..4 {
        // Engines take turns, so that one of two attempts is at the other.
        let refused = context.connect(&mut server.qp.control, context.socket_address(9), ConnectOptions::default());
        assert!(refused.is_err());
        server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..8).unwrap()])]).unwrap();
        let connecting = context
            .start_connect(&mut client.qp.control, context.socket_address(PORT), ConnectOptions::default())
            .unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        engines.push((server.qp.control.query().engine.unwrap(), request.engine()));
        let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
        connecting.wait(&mut client.qp.control).unwrap();
        accepting.wait(&mut server.qp.control).unwrap();
        client.qp.send.post(&[SendRequest::send_inline(2, b"received").signalled()]).unwrap();
        client.expect(2);
        // What was posted before is there.
        server.expect(1);
        client.qp.control.abort();
        for side in [&mut client, &mut server] {
            assert!(side.qp.control.wait_disconnected(LONG).unwrap());
            side.qp.control.reset(&mut side.qp.send).unwrap();
        }
    }
    assert!(engines.iter().any(|(bound, asked)| bound != asked), "{engines:?}");
}

#[test]
fn another_thread_may_destroy_a_queue_pair_of_an_inline_context() {
    let (a, _b) = narrow(Mode::Inline);
    let mut side = Side::new(&a);
    let options = ConnectOptions::default().timeout(Duration::from_millis(20));
    assert!(a.connect(&mut side.qp.control, "10.0.0.9:1".parse().unwrap(), options).is_err());
    let Side { qp, pd, cq, .. } = side;
    std::thread::spawn(move || qp.control.destroy()).join().unwrap();
    let create = || pd.create_queue_pair(&QueuePairOptions::new(&cq));
    until(&[&a], "the engine has forgotten it", || create().is_ok());
}
