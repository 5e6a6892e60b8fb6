//! Queue pairs that outlive their peers, take requests before they are connected, or are their own peers.

mod common;

use common::*;
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, ConnectOptions, Features, ListenOptions, QueuePairChange, QueuePairState, ReadyToReceiveKinds,
    ReceiveRequest, SendRequest, Status,
};

const OUTLIVING: QueuePairChange = QueuePairChange {
    signal_all: None,
    complete_when_acknowledged: None,
    outlives_peer: Some(true),
    access: None,
    not_ready: None,
    holds_sends: None,
    end: false,
};

/// For a while, both contexts do what they have to do, and nothing completes.
fn stays_silent(side: &mut Side, other: &Side) {
    let end = Instant::now() + Duration::from_millis(100);
    while Instant::now() < end {
        other.context.poll();
        assert_eq!(side.cq.poll_one(), None);
        std::thread::yield_now();
    }
}

fn receive(side: &mut Side, id: u64) {
    side.qp.receive.post(&[ReceiveRequest::new(id, &[side.mr.sge(..64).unwrap()])]).unwrap();
}

/// The end of a queue pair whose peer has gone: its first request fails, and all else is flushed.
fn fails(side: &mut Side, receive: u64) {
    let statuses = [side.complete(), side.complete(), side.complete()].map(|done| (done.id, done.status));
    assert_eq!(statuses, [(8, Status::PeerGone), (9, Status::Flushed), (receive, Status::Flushed)]);
    assert!(side.qp.control.wait_disconnected(LONG).unwrap());
    // It is idle for a moment behind an attempt that is ended.
    let context = side.context.clone();
    until(&[&context], "its end", || side.qp.control.state() == QueuePairState::Disconnected);
}

#[test]
fn a_peers_end_is_told_by_the_next_request_alone() {
    in_both_modes(|mode| {
        for aborts in [false, true] {
            let (a, b) = pair(mode);
            let (mut client, mut server) = (Side::new(&a), Side::new(&b));
            client.qp.control.modify(OUTLIVING).unwrap();
            connect(&mut client, &mut server);
            client.speak_first(&server);
            receive(&mut client, 1);
            if aborts {
                server.qp.control.abort();
            } else {
                server.qp.control.disconnect();
            }
            stays_silent(&mut client, &server);
            assert_eq!(client.qp.control.state(), QueuePairState::Connected);
            let work = [8, 9].map(|id| SendRequest::send_inline(id, &[7]).signalled());
            client.qp.send.post(&work).unwrap();
            fails(&mut client, 1);
            // It is like any other that has failed.
            receive(&mut client, 2);
            assert_eq!(client.complete().status, Status::Flushed);
            client.qp.control.reset(&mut client.qp.send).unwrap();
            assert_eq!(client.qp.control.state(), QueuePairState::Idle);
        }
    });
}

#[test]
fn a_queue_pair_without_its_peer_can_be_flushed() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        client.qp.control.modify(OUTLIVING).unwrap();
        connect(&mut client, &mut server);
        receive(&mut client, 1);
        server.qp.control.abort();
        stays_silent(&mut client, &server);
        client.qp.control.flush().unwrap();
        let flushed = client.complete();
        assert_eq!((flushed.id, flushed.status), (1, Status::Flushed));
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
    });
}

#[test]
fn requests_that_come_early_wait_for_the_connection() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        for side in [&mut client, &mut server] {
            side.qp.control.take_requests_early(Features::default()).unwrap();
            side.qp.control.take_requests_early(Features::default()).unwrap();
            receive(side, 1);
            side.qp.send.post(&[SendRequest::send_inline(2, &[7]).signalled()]).unwrap();
        }
        stays_silent(&mut client, &server);
        // An attempt that fails leaves them alone.
        let options = || ConnectOptions::default().peer_to_peer(ReadyToReceiveKinds::ALL);
        assert!(a.connect(&mut client.qp.control, b.socket_address(9), options()).is_err());
        stays_silent(&mut client, &server);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
        connecting.wait(&mut client.qp.control).unwrap();
        accepting.wait(&mut server.qp.control).unwrap();
        for side in [&mut client, &mut server] {
            let mut done = [0, 0];
            until(&[&a, &b], "both completions", || {
                for one in std::iter::from_fn(|| side.cq.poll_one()) {
                    assert!(one.status.is_success(), "{one:?}");
                    done[one.id as usize - 1] += 1;
                }
                done == [1, 1]
            });
        }
    });
}

#[test]
fn a_peer_that_is_given_up_fails_what_was_posted_and_what_will_be() {
    in_both_modes(|mode| {
        for is_posted_before in [true, false] {
            let (a, b) = pair(mode);
            let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
            let mut client = Side::new(&a);
            client.qp.control.modify(OUTLIVING).unwrap();
            client.qp.control.take_requests_early(Features::default()).unwrap();
            let _ = a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
            // It is asked, and does not answer.
            let request = listener.next(LONG).unwrap().unwrap();
            receive(&mut client, 1);
            let work = [8, 9].map(|id| SendRequest::send_inline(id, &[7]).signalled());
            if is_posted_before {
                client.qp.send.post(&work).unwrap();
                client.qp.control.give_up_peer();
            } else {
                client.qp.control.give_up_peer();
                stays_silent(&mut client, &Side::new(&b));
                client.qp.send.post(&work).unwrap();
            }
            fails(&mut client, 1);
            drop(request);
        }
    });
}

#[test]
fn a_queue_pair_is_connected_to_itself_over_a_second_one() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut one = Side::new(&a);
        let options = uwarp::QueuePairOptions::new(&one.cq);
        let mut shadow = one.pd.create_queue_pair(&options).unwrap();
        one.qp.control.exchange_receives(&mut shadow.control).unwrap();
        let mut listener = a.listen(PORT, ListenOptions::default()).unwrap();
        receive(&mut one, 1);
        let connecting =
            a.start_connect(&mut one.qp.control, a.socket_address(PORT), ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        let accepting = request.start_accept(&mut shadow.control, AcceptOptions::default()).unwrap();
        connecting.wait(&mut one.qp.control).unwrap();
        accepting.wait(&mut shadow.control).unwrap();
        assert!(one.qp.control.exchange_receives(&mut shadow.control).is_err(), "engines have them");
        one.qp.send.post(&[SendRequest::send_inline(2, &[7; 8]).signalled()]).unwrap();
        let (mut sent, mut received) = (0, 0);
        until(&[&a, &b], "the message", || {
            for done in std::iter::from_fn(|| one.cq.poll_one()) {
                assert!(done.status.is_success(), "{done:?}");
                let expected = if done.id == 1 { &mut received } else { &mut sent };
                *expected = done.queue_pair + 1;
            }
            sent > 0 && received > 0
        });
        assert_eq!((sent - 1, received - 1), (one.qp.control.number(), shadow.control.number()));
        assert_eq!(one.octets(0, 8), [7; 8]);
    });
}
