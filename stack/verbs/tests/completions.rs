//! Completion queues that change while they are used, and events that are not lost.

mod common;

use common::*;
use std::os::fd::AsFd;
use uwarp::{CompletionQueue, Context, Error, QueuePairOptions, ReceiveRequest, SendRequest, Status};

fn is_readable(cq: &CompletionQueue) -> bool {
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [rustix::event::PollFd::from_borrowed_fd(cq.as_fd(), rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&now)).unwrap() == 1
}

/// The next completion, without arming the queue for it as waiting does.
fn polled(side: &mut Side, other: &Context) -> uwarp::Completion {
    let mut found = None;
    let context = side.context.clone();
    until(&[&context, other], "a completion", || {
        found = side.cq.poll_one();
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_queue_changes_its_depth_under_load() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let there = server.context.clone();
        let mut next = 0;
        // Larger and smaller than what lies in it.
        for (round, depth) in [64, 8, 512, 1, 100].into_iter().enumerate() {
            for at in 0..20 {
                server.qp.receive.post(&[ReceiveRequest::new(at, &[])]).unwrap();
                let id = round as u64 * 20 + at;
                client.qp.send.post(&[SendRequest::send(id, &[]).signalled()]).unwrap();
                if at == 10 {
                    // Half of them were read or not, some come while the engine changes the ring.
                    client.cq.resize(depth.max(64)).unwrap();
                    client.cq.resize(depth.max(32)).unwrap();
                }
            }
            assert_eq!(client.cq.depth(), depth.max(32));
            for _ in 0..10 {
                assert_eq!(polled(&mut client, &there).id, next);
                next += 1;
            }
            for _ in 0..20 {
                server.complete();
            }
        }
        while next < 100 {
            assert_eq!(polled(&mut client, &there).id, next);
            next += 1;
        }
        assert_eq!(client.cq.poll_one(), None);
    });
}

#[test]
fn a_depth_that_cannot_be_leaves_the_queue_as_it_was() {
    let mut small = config(1, Mode::Inline);
    small.limits.completion_entries = 100;
    small.limits.completion_depth = 80;
    let (context, _peer) = Context::pair_in_process(small, config(2, Mode::Inline)).unwrap();
    let mut cq = context.create_completion_queue(40).unwrap();
    let other = context.create_completion_queue(50).unwrap();
    for depth in [0, 81] {
        assert!(matches!(cq.resize(depth), Err(Error::Argument { .. })), "{depth}");
    }
    let refused = cq.resize(51).unwrap_err();
    assert!(matches!(refused, Error::Limit { field: "completion-entries", limit: 100, .. }), "{refused}");
    assert_eq!(cq.depth(), 40);
    // Its own elements count once.
    cq.resize(50).unwrap();
    drop(other);
    cq.resize(80).unwrap();
    drop(cq);
    assert!(context.create_completion_queue(80).is_ok());
}

#[test]
fn arming_swallows_no_event() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let (here, there) = (client.context.clone(), server.context.clone());
        for id in 0..4 {
            server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        }
        server.cq.take_events();
        assert!(!is_readable(&server.cq));
        let say = |client: &mut Side, solicited: bool| {
            let request = SendRequest::send(1, &[]);
            client.qp.send.post(&[if solicited { request.solicited() } else { request }]).unwrap();
        };
        server.cq.arm();
        say(&mut client, false);
        until(&[&here, &there], "an event", || is_readable(&server.cq));
        // Armed again before the event was taken: it is still there, and the next comes beside it.
        server.cq.arm();
        assert!(is_readable(&server.cq));
        assert_eq!(polled(&mut server, &here).id, 0);
        say(&mut client, false);
        assert_eq!(polled(&mut server, &here).id, 1);
        let mut events = 0;
        until(&[&here, &there], "both events", || {
            events += server.cq.take_events();
            events == 2
        });
        assert!(!is_readable(&server.cq));
        // Armed for any completion is not armed for less afterwards.
        server.cq.arm();
        server.cq.arm_solicited();
        say(&mut client, false);
        until(&[&here, &there], "an event", || is_readable(&server.cq));
        assert_eq!(server.cq.take_events(), 1);
        // One arming, one event.
        say(&mut client, true);
        assert_eq!((polled(&mut server, &here).id, polled(&mut server, &here).id), (2, 3));
        assert_eq!(server.cq.take_events(), 0);
    });
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_are_removed() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        let here = client.context.clone();
        let mut doomed = client.pd.create_queue_pair(&QueuePairOptions::new(&client.cq)).unwrap();
        for id in 0..5 {
            doomed.receive.post(&[ReceiveRequest::new(100 + id, &[])]).unwrap();
            client.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        }
        let number = doomed.control.number();
        let mut listener = server.context.listen(PORT + 1, uwarp::ListenOptions::default()).unwrap();
        let address = server.context.socket_address(PORT + 1);
        let connecting = here.start_connect(&mut doomed.control, address, uwarp::ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().expect("a request");
        let mut peer = Side::new(&server.context);
        let accepting = request.start_accept(&mut peer.qp.control, uwarp::AcceptOptions::default()).unwrap();
        connecting.wait(&mut doomed.control).unwrap();
        accepting.wait(&mut peer.qp.control).unwrap();
        doomed.control.abort();
        client.qp.control.abort();
        assert!(doomed.control.wait_disconnected(LONG).unwrap() && client.qp.control.wait_disconnected(LONG).unwrap());
        drop(doomed);
        let removed = client.cq.purge(number);
        assert_eq!((removed, client.cq.purge(number)), (5, 0));
        for id in 0..5 {
            let left = client.cq.poll_one().expect("those of the other queue pair stay");
            assert_eq!((left.id, left.status, left.queue_pair), (id, Status::Flushed, client.qp.control.number()));
        }
        assert_eq!(client.cq.poll_one(), None);
    });
}

#[test]
fn a_number_rests_while_completions_of_its_last_owner_wait() {
    in_both_modes(|mode| {
        let mut small = config(1, mode);
        small.limits.queue_pairs = 1;
        let (a, b) = Context::pair_in_process(small, config(2, mode)).unwrap();
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        for id in 0..3 {
            client.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        }
        connect(&mut client, &mut server);
        let Side { qp, mut cq, pd, mr: _mr, .. } = client;
        let number = qp.control.number();
        drop(qp);
        let again = |cq: &CompletionQueue| pd.create_queue_pair(&QueuePairOptions::new(cq));
        // The engine forgets it at some time, and has flushed its receives then.
        let mut found = Vec::new();
        until(&[&a, &b], "two completions", || {
            assert!(again(&cq).is_err(), "the number is used again while completions wait");
            found.extend(cq.poll_one().filter(|_| found.len() < 2).map(|completion| completion.id));
            found.len() == 2
        });
        for _ in 0..200 {
            a.poll();
            b.poll();
            std::thread::yield_now();
            assert!(again(&cq).is_err(), "the number is used again while a completion waits");
        }
        // A queue that changed meanwhile is no way around it.
        cq.resize(77).unwrap();
        assert!(again(&cq).is_err());
        assert_eq!(cq.purge(number), 1);
        until(&[&a, &b], "the number is free", || again(&cq).is_ok());
    });
}
