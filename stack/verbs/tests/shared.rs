//! Shared receive queues, and what can be asked of and changed in a queue pair.

mod common;

use common::*;
use uwarp::{
    AcceptOptions, Access, AsyncEvent, ConnectOptions, Context, ListenOptions, MemoryRegion, PostErrorReason,
    QueuePair, QueuePairChange, QueuePairOptions, QueuePairState, ReceiveRequest, SendRequest, SharedReceiveOptions,
    SharedReceiveQueue, Status,
};

/// A server with a shared receive queue, and clients of it.
struct Hall {
    a: Context,
    b: Context,
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
    cq: uwarp::CompletionQueue,
    servers: Vec<QueuePair>,
    clients: Vec<Side>,
}

/// Octets of each receive.
const EACH: usize = 64;

fn hall(a: Context, b: Context, clients: usize, options: SharedReceiveOptions) -> Hall {
    let domain = b.allocate_domain();
    let srq = domain.create_shared_receive_queue(options).unwrap();
    let memory = domain.register(vec![0; options.depth * EACH], Access::LOCAL_WRITE).unwrap();
    let cq = b.create_completion_queue(1024).unwrap();
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let mut hall = Hall { a, b, srq, memory, cq, servers: Vec::new(), clients: Vec::new() };
    for _ in 0..clients {
        let mut client = Side::new(&hall.a);
        let options = QueuePairOptions::new(&hall.cq).shared_receives(&hall.srq);
        let mut server = domain.create_queue_pair(&options).unwrap();
        let connecting = hall
            .a
            .start_connect(&mut client.qp.control, hall.b.socket_address(PORT), ConnectOptions::default())
            .unwrap();
        let request = listener.next(LONG).unwrap().expect("a connection request");
        let accepting = request.start_accept(&mut server.control, AcceptOptions::default()).unwrap();
        connecting.wait(&mut client.qp.control).unwrap();
        accepting.wait(&mut server.control).unwrap();
        hall.clients.push(client);
        hall.servers.push(server);
    }
    hall
}

impl Hall {
    fn post(&mut self, slots: std::ops::Range<usize>) {
        for slot in slots {
            let entry = [self.memory.sge(slot * EACH..(slot + 1) * EACH).unwrap()];
            self.srq.post_receive(&[ReceiveRequest::new(slot as u64, &entry)]).unwrap();
        }
    }

    fn received(&mut self) -> uwarp::Completion {
        match self.cq.next(LONG).unwrap() {
            Some(completion) => completion,
            None => panic!("nothing came: {:#?}", self.b.stats()),
        }
    }

    /// The next event of the server that `wanted` likes.
    fn event(&self, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
        let events = self.b.events();
        loop {
            let event = events.wait(LONG).unwrap().expect("an event");
            if wanted(&event) {
                return event;
            }
        }
    }
}

#[test]
fn messages_of_several_connections_take_from_one_queue() {
    for engines in [None, Some(1), Some(2)] {
        let (a, b) = match engines {
            None => pair(Mode::Inline),
            Some(count) => {
                let two = |host| config(host, Mode::Threaded).threaded(count);
                Context::pair_in_process(two(1), two(2)).unwrap()
            }
        };
        let mut hall = hall(a, b, 4, SharedReceiveOptions { depth: 64, share: None });
        hall.post(0..64);
        let mut next = [0u8; 4];
        for round in 0..200u32 {
            let who = (round * 7 % 4) as usize;
            let message = [who as u8, next[who], 3];
            next[who] += 1;
            hall.clients[who].qp.send.post(&[SendRequest::send_inline(1, &message).signalled()]).unwrap();
            let received = hall.received();
            assert_eq!((received.status, received.length), (Status::Success, 3));
            assert_eq!(received.queue_pair, hall.servers[who].control.number());
            let slot = received.id as usize;
            assert_eq!(hall.memory.to_vec(slot * EACH, 3).unwrap(), message);
            hall.clients[who].expect(1);
            hall.post(slot..slot + 1);
        }
        assert_eq!(hall.srq.len(), 64);
        // A connection that ends leaves the queue to the others.
        hall.clients[0].qp.control.abort();
        assert!(hall.servers[0].control.wait_disconnected(LONG).unwrap());
        hall.clients[1].qp.send.post(&[SendRequest::send_inline(1, b"still")]).unwrap();
        assert_eq!(hall.received().length, 5);
        assert_eq!(hall.srq.len(), 63);
        assert!(hall.cq.poll_one().is_none(), "nothing was flushed");
    }
}

#[test]
fn messages_wait_for_receives_of_an_empty_shared_queue() {
    in_both_modes(|mode| {
        let mut server = config(2, mode);
        server.limits.receive_wait = Some(LONG);
        let (a, b) = Context::pair_in_process(config(1, mode), server).unwrap();
        let mut hall = hall(a, b, 3, SharedReceiveOptions { depth: 64, share: Some(2) });
        for client in &mut hall.clients {
            for message in [b"a", b"b", b"c"] {
                client.qp.send.post(&[SendRequest::send_inline(1, message)]).unwrap();
            }
        }
        let waits = |hall: &Hall| hall.b.stats().engines[0].counters.receive_waits;
        until(&[&hall.a, &hall.b], "all three wait", || waits(&hall) == 3);
        assert_eq!((hall.cq.poll_one(), hall.b.events().try_next()), (None, None));
        // Each takes its share, and what remains is for nobody.
        hall.post(0..20);
        let mut received: Vec<_> = (0..6).map(|_| hall.received()).collect();
        assert!(received.iter().all(|one| one.status == Status::Success));
        for server in &hall.servers {
            assert_eq!(received.iter().filter(|one| one.queue_pair == server.control.number()).count(), 2);
            let event = hall.event(|event| matches!(event, AsyncEvent::SharedReceivesExceeded { .. }));
            assert!(matches!(event, AsyncEvent::SharedReceivesExceeded { queue, .. } if queue == hall.srq.id()));
        }
        until(&[&hall.a, &hall.b], "the third messages wait", || waits(&hall) == 6);
        assert_eq!((hall.srq.len(), hall.cq.poll_one()), (14, None));
        // Receives that are given back end the wait.
        for one in received.drain(..) {
            hall.srq.give_back(one.queue_pair, 1);
        }
        for _ in 0..3 {
            assert_eq!(hall.received().length, 1);
        }
        assert_eq!(hall.b.events().try_next(), None);
    });
}

#[test]
fn a_queue_that_runs_low_says_so_once() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut hall = hall(a, b, 2, SharedReceiveOptions { depth: 16, share: None });
        hall.post(0..16);
        hall.srq.set_limit(10);
        for sent in 0..10 {
            hall.clients[sent % 2].qp.send.post(&[SendRequest::send_inline(1, b"x")]).unwrap();
            hall.received();
            // The seventh leaves nine.
            assert_eq!(hall.srq.limit(), if sent < 6 { 10 } else { 0 }, "{sent}");
        }
        let low = hall.event(|event| matches!(event, AsyncEvent::SharedReceivesLow { .. }));
        assert_eq!(low, AsyncEvent::SharedReceivesLow { queue: hall.srq.id() });
        assert_eq!(hall.b.events().try_next(), None);
    });
}

#[test]
fn a_peer_that_takes_more_than_its_share_ends_its_own_connection() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut hall = hall(a, b, 2, SharedReceiveOptions { depth: 16, share: Some(4) });
        hall.post(0..16);
        let (greedy, modest) = (hall.servers[0].control.number(), hall.servers[1].control.number());
        for _ in 0..4 {
            hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, b"x")]).unwrap();
            assert_eq!(hall.received().queue_pair, greedy);
        }
        assert_eq!((hall.srq.taken_by(greedy), hall.srq.taken_by(modest)), (4, 0));
        // What is given back may be taken again.
        hall.srq.give_back(greedy, 1);
        hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, b"x")]).unwrap();
        hall.received();
        hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, b"too much")]).unwrap();
        let exceeded = hall.event(|event| matches!(event, AsyncEvent::SharedReceivesExceeded { .. }));
        assert_eq!(exceeded, AsyncEvent::SharedReceivesExceeded { queue: hall.srq.id(), queue_pair: greedy });
        assert!(hall.servers[0].control.wait_disconnected(LONG).unwrap());
        assert_eq!(hall.srq.len(), 11);
        // The other one does not notice.
        for _ in 0..4 {
            hall.clients[1].qp.send.post(&[SendRequest::send_inline(1, b"y")]).unwrap();
            assert_eq!(hall.received().queue_pair, modest);
        }
    });
}

#[test]
fn an_empty_shared_queue_ends_the_connection_that_finds_it_so() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut hall = hall(a, b, 2, SharedReceiveOptions { depth: 1, share: None });
        hall.post(0..1);
        hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, b"x")]).unwrap();
        hall.received();
        hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, b"x")]).unwrap();
        assert!(hall.servers[0].control.wait_disconnected(LONG).unwrap());
        assert_eq!(hall.servers[1].control.state(), QueuePairState::Connected);
    });
}

#[test]
fn receives_are_posted_where_they_belong() {
    let (a, b) = pair(Mode::Inline);
    let mut hall = hall(a, b, 1, SharedReceiveOptions { depth: 2, share: None });
    let refused = hall.servers[0].receive.post(&[ReceiveRequest::new(1, &[])]).unwrap_err();
    assert_eq!(refused.reason, PostErrorReason::SharedReceives);
    let pieces = vec![hall.memory.sge(..1).unwrap(); uwarp::MAX_SHARED_SGE + 1];
    let refused = hall.srq.post_receive(&[ReceiveRequest::new(1, &pieces)]).unwrap_err();
    assert_eq!(refused.reason, PostErrorReason::TooManySges { limit: uwarp::MAX_SHARED_SGE });
    let list = [ReceiveRequest::new(1, &pieces[1..]), ReceiveRequest::new(2, &[]), ReceiveRequest::new(3, &[])];
    let full = hall.srq.post_receive(&list).unwrap_err();
    assert_eq!((full.posted, full.is_full()), (2, true));
    let elsewhere = hall.b.allocate_domain();
    let options = QueuePairOptions::new(&hall.cq).shared_receives(&hall.srq);
    assert!(matches!(elsewhere.create_queue_pair(&options), Err(uwarp::Error::Argument { .. })));
    // All pieces of an element are used.
    let octets: Vec<u8> = (0..uwarp::MAX_SHARED_SGE as u8).collect();
    hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, &octets)]).unwrap();
    assert_eq!(hall.received().length as usize, uwarp::MAX_SHARED_SGE);
}

#[test]
fn a_queue_pair_tells_what_it_is_and_changes_while_it_may() {
    let (a, b) = pair(Mode::Inline);
    let (mut client, mut server) = (Side::new(&a), Side::new(&b));
    let before = client.qp.control.query();
    assert_eq!((before.state, before.engine, before.reads), (QueuePairState::Idle, None, None));
    assert!(!before.signal_all && before.max_sge == 4 && before.max_inline == 256);
    client.qp.control.modify(QueuePairChange { signal_all: Some(true), ..QueuePairChange::default() }).unwrap();
    connect(&mut client, &mut server);
    let during = client.qp.control.query();
    assert_eq!((during.state, during.engine), (QueuePairState::Connected, Some(0)));
    assert!(during.signal_all && during.reads.is_some_and(|(ird, ord)| ird > 0 && ord > 0));
    assert_eq!(during.send_slots, client.qp.send.slots_free());
    server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
    client.qp.send.post(&[SendRequest::send(7, &[])]).unwrap();
    client.expect(7);
    let refused = client.qp.control.modify(QueuePairChange { signal_all: Some(false), ..QueuePairChange::default() });
    assert!(matches!(refused, Err(uwarp::Error::State { .. })), "{refused:?}");
    client.qp.control.modify(QueuePairChange { end: true, ..QueuePairChange::default() }).unwrap();
    assert!(client.qp.control.wait_disconnected(LONG).unwrap());
    let after = client.qp.control.query();
    assert_eq!(after.disconnect_reason, Some(uwarp::DisconnectReason::Aborted));
}

#[test]
fn limits_of_a_queue_pair_go_up_to_the_greatest() {
    let (a, _b) = pair(Mode::Inline);
    let (domain, cq) = (a.allocate_domain(), a.create_completion_queue(16).unwrap());
    let create = |sges, inline| domain.create_queue_pair(&QueuePairOptions::new(&cq).limits(sges, inline)).is_ok();
    assert!(create(uwarp::MAX_SGE, uwarp::MAX_INLINE));
    assert!(!create(uwarp::MAX_SGE + 1, 0) && !create(1, uwarp::MAX_INLINE + 1));
}

#[test]
fn objects_tell_their_numbers_and_sizes() {
    let (a, _b) = pair(Mode::Inline);
    let (domain, other) = (a.allocate_domain(), a.allocate_domain());
    assert_ne!(domain.number(), other.number());
    let options = SharedReceiveOptions { depth: 16, ..SharedReceiveOptions::default() };
    assert_eq!(domain.create_shared_receive_queue(options).unwrap().depth(), 16);
    let states = [
        QueuePairState::Idle,
        QueuePairState::Connecting,
        QueuePairState::Connected,
        QueuePairState::Disconnecting,
        QueuePairState::Disconnected,
    ];
    for state in states {
        assert_eq!(state.name(), format!("{state:?}").to_lowercase());
    }
}

#[test]
fn a_request_tells_how_many_reads_the_peer_serves_and_wants() {
    let (a, b) = pair(Mode::Threaded);
    let mut client = Side::new(&a);
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let options = ConnectOptions { ird: 3, ord: 5, ..ConnectOptions::default() };
    let _connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
    let request = listener.next(LONG).unwrap().expect("a connection request");
    assert_eq!((request.ird(), request.ord()), (Some(3), Some(5)));
}

#[test]
fn a_queue_pair_says_once_that_it_takes_no_more() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut hall = hall(a, b, 3, SharedReceiveOptions::default());
        hall.post(0..8);
        let queue = hall.srq.id();
        // Each in another way: an end in order, an end from here, a message that does not fit.
        hall.clients[0].qp.send.post(&[SendRequest::send_inline(1, b"last")]).unwrap();
        hall.clients[0].qp.control.disconnect();
        let taken = hall.received();
        assert_eq!((taken.queue_pair, taken.status), (hall.servers[0].control.number(), Status::Success));
        hall.servers[1].control.abort();
        let long = [hall.clients[2].mr.sge(..EACH + 1).unwrap()];
        hall.clients[2].qp.send.post(&[SendRequest::send(1, &long)]).unwrap();
        let failed = hall.received();
        assert_eq!((failed.queue_pair, failed.status), (hall.servers[2].control.number(), Status::LocalLength));
        let mut ended: Vec<u32> = Vec::new();
        for _ in 0..3 {
            let event = hall.event(|event| matches!(event, AsyncEvent::LastReceiveReached { .. }));
            let AsyncEvent::LastReceiveReached { queue: of, queue_pair } = event else { unreachable!() };
            assert_eq!(of, queue);
            ended.push(queue_pair);
        }
        ended.sort_unstable();
        assert_eq!(ended, hall.servers.iter().map(|server| server.control.number()).collect::<Vec<_>>());
        for server in &mut hall.servers {
            assert!(server.control.wait_disconnected(LONG).unwrap());
        }
        // Nothing more, and what nobody took is there for others.
        let events = hall.b.events();
        while let Some(event) = events.try_next() {
            assert!(!matches!(event, AsyncEvent::LastReceiveReached { .. }), "{event:?}");
        }
        assert_eq!(hall.srq.len(), 6);
    });
}
