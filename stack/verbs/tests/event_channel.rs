//! Connection requests, outcomes and ends behind one descriptor.

mod common;

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::Duration;
use uwarp::{
    AcceptOptions, ConnectFailure, ConnectOptions, ConnectRequest, ConnectionChange, Context, DisconnectReason, Error,
    EventChannel, ListenOptions, Listener, QueuePairState, ReceiveRequest, SendRequest, Status,
};

const LISTENER: u64 = u64::MAX;
const CLIENT: u64 = 7;
const SERVER: u64 = 8;

/// Long enough for anything that would still come.
const SHORT: Duration = Duration::from_millis(50);

fn next(channel: &EventChannel) -> (u64, ConnectionChange) {
    let event = channel.next(LONG).unwrap().expect("an event");
    (event.key, event.change)
}

fn next_request(channel: &EventChannel) -> ConnectRequest {
    match next(channel) {
        (LISTENER, ConnectionChange::Request(request)) => *request,
        other => panic!("{other:?}"),
    }
}

fn is_readable(fd: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// A channel with a listener, a client and a server.
struct Watched {
    channel: EventChannel,
    listener: Listener,
    client: Side,
    server: Side,
}

impl Watched {
    fn new(mode: Mode) -> Self {
        let (a, b) = pair(mode);
        let channel = EventChannel::new().unwrap();
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        listener.attach(&channel, LISTENER);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        client.qp.control.attach(&channel, CLIENT);
        server.qp.control.attach(&channel, SERVER);
        Self { channel, listener, client, server }
    }

    fn start(&mut self, options: ConnectOptions) {
        let peer = self.server.context.socket_address(self.listener.port());
        // Nobody waits for what this returns.
        let _ = self.client.context.start_connect(&mut self.client.qp.control, peer, options).unwrap();
    }

    fn connect(&mut self) {
        self.start(ConnectOptions::default().private_data(b"hello".as_slice()));
        let request = next_request(&self.channel);
        assert_eq!(request.private_data(), b"hello");
        let _ = request
            .start_accept(&mut self.server.qp.control, AcceptOptions::default().private_data(b"welcome".as_slice()))
            .unwrap();
        let mut keys = Vec::new();
        for _ in 0..2 {
            match next(&self.channel) {
                (key, ConnectionChange::Established(established)) => {
                    assert_eq!(established.private_data, if key == CLIENT { &b"welcome"[..] } else { &b"hello"[..] });
                    keys.push(key);
                }
                other => panic!("{other:?}"),
            }
        }
        keys.sort_unstable();
        assert_eq!(keys, [CLIENT, SERVER]);
    }

    fn failure(&self) -> ConnectFailure {
        match next(&self.channel) {
            (CLIENT, ConnectionChange::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// The reasons of both ends, the client's first.
    fn ends(&self) -> [DisconnectReason; 2] {
        let mut ends = Vec::new();
        for _ in 0..2 {
            match next(&self.channel) {
                (key, ConnectionChange::Disconnected(reason)) => ends.push((key, reason)),
                other => panic!("{other:?}"),
            }
        }
        ends.sort_by_key(|(key, _)| *key);
        assert_eq!((ends[0].0, ends[1].0), (CLIENT, SERVER));
        [ends[0].1, ends[1].1]
    }

    fn nothing_more(&self) {
        assert!(self.channel.next(SHORT).unwrap().is_none());
    }
}

#[test]
fn a_connections_life_comes_as_events_under_the_keys() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.nothing_more();
        watched.connect();
        // The queue pairs know, too, and take work at once.
        assert_eq!(watched.client.qp.control.state(), QueuePairState::Connected);
        watched.server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        watched.client.qp.send.post(&[SendRequest::send(2, &[]).signalled()]).unwrap();
        watched.server.expect(1);
        watched.client.expect(2);
        watched.client.qp.control.disconnect();
        assert_eq!(watched.ends(), [DisconnectReason::Local, DisconnectReason::PeerClosed]);
        assert_eq!(watched.server.qp.control.state(), QueuePairState::Disconnected);
        watched.nothing_more();
    });
}

#[test]
fn the_end_comes_once_also_when_the_queue_pair_is_gone() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.connect();
        let Watched { channel, listener, client, server } = watched;
        let (mut client, context) = (client, server.context.clone());
        // The end of the server's connection is known to nobody but the channel.
        drop(server);
        let mut ends = Vec::new();
        while ends.len() < 2 {
            match next(&channel) {
                (key, ConnectionChange::Disconnected(_)) => ends.push(key),
                other => panic!("{other:?}"),
            }
        }
        ends.sort_unstable();
        assert_eq!(ends, [CLIENT, SERVER]);
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        drop((client, listener, context));
        assert!(channel.next(SHORT).unwrap().is_none());
    });
}

#[test]
fn closing_a_context_ends_what_is_attached() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.connect();
        watched.client.context.clone().close().unwrap();
        let ends = watched.ends();
        assert_eq!(ends[1], DisconnectReason::PeerClosed, "{ends:?}");
        watched.nothing_more();
    });
}

#[test]
fn a_rejection_comes_with_its_private_data_and_the_queue_pair_may_try_again() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.start(ConnectOptions::default());
        next_request(&watched.channel).reject(b"not you").unwrap();
        match next(&watched.channel) {
            (CLIENT, ConnectionChange::Rejected { private_data, .. }) => assert_eq!(private_data, b"not you"),
            other => panic!("{other:?}"),
        }
        assert_eq!(watched.client.qp.control.state(), QueuePairState::Idle);
        watched.connect();
        watched.nothing_more();
    });
}

#[test]
fn failures_keep_their_kind() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        let (context, peer) = (watched.client.context.clone(), watched.server.context.socket_address(9));
        let mut fails = |peer, options| {
            let _ = context.start_connect(&mut watched.client.qp.control, peer, options).unwrap();
            match next(&watched.channel) {
                (CLIENT, ConnectionChange::Failed(reason)) => reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(fails(peer, ConnectOptions::default()), ConnectFailure::Refused);
        let soon = ConnectOptions::default().timeout(Duration::from_millis(200));
        let nobody = fails("10.0.0.77:9".parse().unwrap(), soon.clone());
        assert!(matches!(nobody, ConnectFailure::Unreachable | ConnectFailure::TimedOut), "{nobody:?}");
        let other_version = fails("[2001:db8::1]:9".parse().unwrap(), soon.clone());
        assert_eq!(other_version, ConnectFailure::Address);
        // A request that nobody answers.
        watched.start(soon);
        let request = next_request(&watched.channel);
        assert_eq!(watched.failure(), ConnectFailure::TimedOut);
        // The peer is gone: accepting fails, and that is an event of the server's.
        let context = watched.server.context.clone();
        until(&[&context, &watched.client.context], "the connection is gone", || {
            context.stats().engines[0].connections.is_empty()
        });
        let _ = request.start_accept(&mut watched.server.qp.control, AcceptOptions::default()).unwrap();
        match next(&watched.channel) {
            (SERVER, ConnectionChange::Failed(reason)) => assert_eq!(reason, ConnectFailure::RequestGone),
            other => panic!("{other:?}"),
        }
        // A peer that resets during the start-up.
        watched.start(ConnectOptions::default());
        let request = next_request(&watched.channel);
        let Watched { channel, listener, client, .. } = watched;
        drop(listener);
        match next(&channel) {
            (CLIENT, ConnectionChange::Failed(reason)) => assert_eq!(reason, ConnectFailure::Reset),
            other => panic!("{other:?}"),
        }
        drop((request, client));
    });
}

#[test]
fn requests_that_wait_come_to_the_channel_that_is_attached_later() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let mut clients = [Side::new(&a), Side::new(&a)];
        for client in &mut clients {
            let _ = a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
        }
        until(&[&a, &b], "two requests wait", || {
            let engine = &b.stats().engines[0];
            engine.connections.iter().filter(|connection| connection.phase == "requested").count() == 2
        });
        let channel = EventChannel::new().unwrap();
        listener.attach(&channel, LISTENER);
        drop((next_request(&channel), next_request(&channel)));
        assert!(listener.try_next().unwrap().is_none());
    });
}

#[test]
fn arming_announces_what_waits_already() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let channel = EventChannel::new().unwrap();
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        channel.arm();
        listener.arm();
        let mut clients = [Side::new(&a), Side::new(&a)];
        let connect = |client: &mut Side, options| {
            let _ = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
        };
        connect(&mut clients[0], ConnectOptions::default());
        until(&[&a, &b], "the request is announced", || is_readable(&listener));
        listener.arm();
        assert!(is_readable(&listener), "arming again lost a request");
        listener.attach(&channel, LISTENER);
        assert!(is_readable(&channel));
        channel.arm();
        assert!(is_readable(&channel), "arming again lost an event");
        drop(next_request(&channel));
        channel.arm();
        assert!(!is_readable(&channel));
        // The asynchronous events of a context likewise.
        let events = b.events();
        let server = b.allocate_domain();
        let small = b.create_completion_queue(1).unwrap();
        let mut queue_pair = server.create_queue_pair(&uwarp::QueuePairOptions::new(&small)).unwrap();
        events.arm();
        connect(&mut clients[1], ConnectOptions::default());
        until(&[&a, &b], "another request", || is_readable(&channel));
        let _ = next_request(&channel).start_accept(&mut queue_pair.control, AcceptOptions::default()).unwrap();
        queue_pair.receive.post(&[1, 2, 3].map(|id| ReceiveRequest::new(id, &[]))).unwrap();
        until(&[&a, &b], "the client is connected", || {
            clients[1].qp.send.post(&[4, 5, 6].map(|id| SendRequest::send(id, &[]))).is_ok()
        });
        until(&[&a, &b], "the overflow is announced", || is_readable(&events));
        events.arm();
        assert!(is_readable(&events), "arming again lost an event");
        assert!(events.try_next().is_some());
    });
}

#[test]
fn an_engine_that_ends_work_by_itself_is_an_end_like_any_other() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.connect();
        // No right of that kind: the server says so by a Terminate.
        let Watched { channel, client, server, .. } = &mut watched;
        client.qp.send.post(&[SendRequest::write_inline(1, b"x", 0x1234, 0).signalled()]).unwrap();
        let _ = (channel, server);
        let ends = watched.ends();
        assert!(matches!(ends[0], DisconnectReason::PeerTerminated(_)), "{ends:?}");
        assert!(matches!(ends[1], DisconnectReason::LocalTerminated(_)), "{ends:?}");
        watched.nothing_more();
    });
}

#[test]
fn a_detached_queue_pair_brings_nothing_and_can_be_waited_for() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.client.qp.control.detach();
        let peer = watched.server.context.socket_address(PORT);
        let connecting = watched
            .client
            .context
            .start_connect(&mut watched.client.qp.control, peer, ConnectOptions::default())
            .unwrap();
        let _ = next_request(&watched.channel)
            .start_accept(&mut watched.server.qp.control, AcceptOptions::default())
            .unwrap();
        connecting.wait(&mut watched.client.qp.control).unwrap();
        assert!(matches!(next(&watched.channel), (SERVER, ConnectionChange::Established(_))));
        watched.nothing_more();
    });
}

#[test]
fn two_threads_share_one_channel_and_each_event_comes_once() {
    let (a, b) = pair(Mode::Threaded);
    let channel = EventChannel::new().unwrap();
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    listener.attach(&channel, LISTENER);
    let takers: Vec<_> = (0..2)
        .map(|_| {
            let channel = channel.clone();
            std::thread::spawn(move || {
                let mut requests = 0;
                while let Some(event) = channel.next(Duration::from_secs(1)).unwrap() {
                    assert!(matches!(event.change, ConnectionChange::Request(_)));
                    requests += 1;
                }
                requests
            })
        })
        .collect();
    let mut clients: Vec<Side> = (0..20).map(|_| Side::new(&a)).collect();
    let connecting: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap()
        })
        .collect();
    for (connecting, client) in connecting.into_iter().zip(&mut clients) {
        assert!(connecting.wait(&mut client.qp.control).unwrap_err().rejection().is_some());
    }
    assert_eq!(takers.into_iter().map(|taker| taker.join().unwrap()).sum::<u32>(), 20);
}

#[test]
fn an_inline_contexts_events_are_waited_for_by_its_own_thread() {
    let (context, _peer) = pair(Mode::Inline);
    let channel = EventChannel::new().unwrap();
    let mut side = Side::new(&context);
    side.qp.control.attach(&channel, CLIENT);
    let elsewhere = channel.clone();
    let error = std::thread::spawn(move || elsewhere.next(LONG).unwrap_err()).join().unwrap();
    assert!(matches!(error, Error::WrongThread));
    drop((side, context));
    // Nothing is attached any more.
    assert!(channel.next(Duration::ZERO).unwrap().is_none());
}

/// What a client sees of work that the end of its connection flushes comes before the end.
#[test]
fn flushed_work_is_there_when_the_end_is() {
    in_both_modes(|mode| {
        let mut watched = Watched::new(mode);
        watched.connect();
        watched.client.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        watched.client.qp.control.abort();
        assert_eq!(watched.ends()[0], DisconnectReason::Aborted);
        let completion = watched.client.cq.poll_one().expect("flushed before the end was told");
        assert_eq!((completion.id, completion.status), (1, Status::Flushed));
    });
}

/// A listener's context may be gone before its requests are looked at.
#[test]
fn requests_of_a_context_that_is_gone_are_passed_over() {
    let (a, b) = pair(Mode::Threaded);
    let channel = EventChannel::new().unwrap();
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    listener.attach(&channel, LISTENER);
    channel.arm();
    let mut client = Side::new(&a);
    let connecting =
        a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
    until(&[&a], "the request is there", || is_readable(&channel));
    drop((listener, b));
    assert!(channel.next(SHORT).unwrap().is_none());
    assert!(connecting.wait(&mut client.qp.control).is_err());
    let _: Context = a;
}

#[path = "../examples/event_loop.rs"]
mod event_loop;

#[test]
fn the_example_of_one_loop_on_two_threads_ends_well() {
    event_loop::main().unwrap();
}

#[path = "../examples/tokio.rs"]
mod tokio_example;

#[test]
fn the_example_with_tokio_ends_well() {
    tokio_example::main().unwrap();
}
