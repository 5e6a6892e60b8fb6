//! Peer-to-peer start-up, Immediate Data, atomics and markers through the public interface.

mod common;

use common::*;
use std::io::{Read, Write};
use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, Atomicity, CompareSwap, CompletionFlags, CompletionOpcode, Config, ConnectOptions, Context,
    Features, ListenOptions, PostErrorReason, QueuePairOptions, ReadyToReceiveKinds, ReceiveRequest, SendRequest,
    Status, TcpListener, TcpStream,
};

const ALL: Features = Features { atomics: true, immediate: true, commit: true, infiniband: false };

/// A connected pair: (client, server).
fn connected_with(mode: Mode, connect: ConnectOptions, accept: AcceptOptions) -> (Side, Side) {
    let (a, b) = pair(mode);
    let (mut client, mut server) = (Side::new(&a), Side::new(&b));
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), connect).unwrap();
    let request = listener.next(LONG).unwrap().expect("a connection request");
    let accepting = request.start_accept(&mut server.qp.control, accept).unwrap();
    client.established = Some(connecting.wait(&mut client.qp.control).unwrap());
    server.established = Some(accepting.wait(&mut server.qp.control).unwrap());
    (client, server)
}

fn extended(mode: Mode) -> (Side, Side) {
    connected_with(mode, ConnectOptions::default().features(ALL), AcceptOptions::default().features(ALL))
}

#[test]
fn the_responder_speaks_first_when_peer_to_peer() {
    in_both_modes(|mode| {
        let connect = ConnectOptions::default().peer_to_peer(ReadyToReceiveKinds::ALL);
        let (mut client, mut server) = connected_with(mode, connect, AcceptOptions::default());
        assert!([&client, &server].iter().all(|side| side.established.as_ref().is_some_and(|it| it.peer_to_peer)));
        client.qp.receive.post(&[ReceiveRequest::new(1, &[client.mr.sge(..16).unwrap()])]).unwrap();
        server.qp.send.post(&[SendRequest::send_inline(2, b"first").signalled()]).unwrap();
        assert_eq!(client.expect(1).length, 5);
        server.expect(2);
        assert_eq!(client.octets(0, 5), b"first");
    });
}

/// The octets of an MPA frame or FPDU that begins with `head` octets, of which two at `at` say how many follow.
fn read_frame(stream: &mut TcpStream, head: usize, at: usize) -> Vec<u8> {
    let mut frame = vec![0; head];
    stream.read_exact(&mut frame).unwrap();
    let length = usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    frame.resize(head + length, 0);
    stream.read_exact(&mut frame[head..]).unwrap();
    frame
}

/// Peers of three kinds: one that knows it, one that answers without the flag, and one that knows RFC 5044 alone.
#[test]
fn a_preference_for_peer_to_peer_falls_back_to_client_server() {
    in_both_modes(|mode| {
        let prefer = ConnectOptions {
            retry_without_enhancement: true,
            ..ConnectOptions::default().prefer_peer_to_peer(ReadyToReceiveKinds::ALL)
        };
        let (client, server) = connected_with(mode, prefer.clone(), AcceptOptions::default());
        assert!([&client, &server].iter().all(|side| side.established.as_ref().is_some_and(|it| it.peer_to_peer)));
        for old in [false, true] {
            let (a, b) = pair(mode);
            let mut client = Side::new(&a);
            let mut listener = TcpListener::bind(&b, PORT).unwrap();
            let mut connecting =
                a.start_connect(&mut client.qp.control, listener.local_addr(), prefer.clone()).unwrap();
            let mut accept = || {
                let (mut stream, _) = listener.accept_timeout(LONG).unwrap().expect("an attempt");
                let request = read_frame(&mut stream, 20, 18);
                (stream, request)
            };
            let (mut stream, request) = accept();
            // Revision 2, with the enhancement's flag, and A of its data.
            assert_eq!((request[16] & 0x10, request[17], request[20] & 0x80), (0x10, 2, 0x80));
            if old {
                drop(stream);
                let (again, request) = accept();
                assert_eq!((request[16] & 0x10, request[17], request.len()), (0, 1, 20));
                stream = again;
                stream.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
            } else {
                stream.write_all(b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\0\x04").unwrap();
            }
            let mut established = None;
            until(&[&a, &b], "the client is connected", || {
                established = connecting.poll(&mut client.qp.control).unwrap();
                established.is_some()
            });
            assert!(established.is_some_and(|it| !it.peer_to_peer));
            // There is no indication in front of the first message.
            client.qp.send.post(&[SendRequest::send_inline(1, b"hello")]).unwrap();
            assert!(read_frame(&mut stream, 2, 0).ends_with(b"hello"));
        }
    });
}

#[test]
fn a_peer_without_peer_to_peer_is_refused_where_it_is_required() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::new(&a);
        let mut listener = TcpListener::bind(&b, PORT).unwrap();
        let require = ConnectOptions::default().peer_to_peer(ReadyToReceiveKinds::ALL);
        let connecting = a.start_connect(&mut client.qp.control, listener.local_addr(), require).unwrap();
        let (mut stream, _) = listener.accept_timeout(LONG).unwrap().unwrap();
        read_frame(&mut stream, 20, 18);
        stream.write_all(b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\0\x04").unwrap();
        let error = connecting.wait(&mut client.qp.control).unwrap_err();
        assert!(error.to_string().contains("ready-to-receive"), "{error}");
    });
}

#[test]
fn peer_to_peer_options_that_cannot_work_are_refused() {
    let (a, _b) = pair(Mode::Inline);
    let mut side = Side::new(&a);
    for options in [
        ConnectOptions::default().peer_to_peer(ReadyToReceiveKinds::NONE),
        ConnectOptions::default().prefer_peer_to_peer(ReadyToReceiveKinds::NONE),
        ConnectOptions { mpa_revision: 1, ..ConnectOptions::default().prefer_peer_to_peer(ReadyToReceiveKinds::ALL) },
        ConnectOptions { mpa_revision: 1, ..ConnectOptions::default().peer_to_peer(ReadyToReceiveKinds::ALL) },
    ] {
        let refused = a.start_connect(&mut side.qp.control, "10.0.0.2:1".parse().unwrap(), options);
        assert!(matches!(refused, Err(uwarp::Error::Argument { .. })), "{refused:?}");
    }
}

#[test]
fn immediate_data_comes_with_the_completion() {
    in_both_modes(|mode| {
        let (mut client, mut server) = extended(mode);
        for id in 0..3 {
            server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        }
        let octets = pattern(1, 5000);
        client.mr.write(0, &octets).unwrap();
        let source = [client.mr.sge(..5000).unwrap()];
        let (stag, offset) = (server.mr.stag(), server.mr.remote_offset());
        let posted = client.qp.send.post(&[
            SendRequest::immediate(10, 1).solicited().signalled(),
            SendRequest::write(11, &source, stag, offset).with_immediate(2).signalled(),
            SendRequest::write_inline(12, b"inline", stag, offset + 8000).with_immediate(u64::MAX).signalled(),
        ]);
        assert_eq!(posted, Ok(3));
        for (id, data) in [(0, 1), (1, 2), (2, u64::MAX)] {
            let received = server.expect(id);
            assert_eq!((received.opcode, received.length), (CompletionOpcode::Receive, 0));
            assert_eq!(received.immediate_data(), Some(data));
            assert_eq!(received.immediate_data_32(), Some(data as u32));
            assert_eq!(received.flags.contains(CompletionFlags::SOLICITED), id == 0);
        }
        assert_eq!(server.octets(0, 5000), octets);
        assert_eq!(server.octets(8000, 6), b"inline");
        assert_eq!(client.expect(10).opcode, CompletionOpcode::Immediate);
        assert_eq!(client.expect(11).length, 5000);
        assert_eq!(client.expect(12).length, 6);
    });
}

#[test]
fn atomics_change_the_peers_word() {
    in_both_modes(|mode| {
        let (mut client, mut server) = extended(mode);
        let (stag, offset) = (server.mr.stag(), server.mr.remote_offset());
        server.mr.store_release_u64(16, 40).unwrap();
        let masked = CompareSwap { compare: 0x1ff, compare_mask: 0xff, swap: 7, swap_mask: 0xf };
        client
            .qp
            .send
            .post(&[
                SendRequest::fetch_add(1, stag, offset + 16, 2).signalled(),
                SendRequest::compare_swap(2, stag, offset + 16, 42, 0xff).signalled(),
                SendRequest::compare_swap(3, stag, offset + 16, 42, 1).signalled(),
                SendRequest::compare_swap_masked(4, stag, offset + 16, &masked).signalled(),
                SendRequest::fetch_add_masked(5, stag, offset + 16, 0x10, 0x80).signalled(),
            ])
            .unwrap();
        for (id, original) in [(1, 40), (2, 42), (3, 0xff), (4, 0xff), (5, 0xf7)] {
            assert_eq!(client.expect(id).original_value(), Some(original));
        }
        assert_eq!(server.mr.load_acquire_u64(16).unwrap(), 0x07);
        // A FetchAdd of nothing is the harmless probe (RFC 7306 §1.1).
        client.qp.send.post(&[SendRequest::fetch_add(6, stag, offset + 16, 0).signalled()]).unwrap();
        assert_eq!(client.expect(6).original_value(), Some(7));
        assert_eq!(server.mr.fetch_add_u64(16, 1).unwrap(), 7);
        assert_eq!(server.cq.poll_one(), None, "the responder's application is told nothing");
    });
}

#[test]
fn what_was_not_agreed_cannot_be_posted() {
    let (mut client, _server) = connected(Mode::Inline);
    for request in [
        SendRequest::immediate(1, 2),
        SendRequest::fetch_add(1, 2, 0, 4),
        SendRequest::write(1, &[], 1, 0).with_commit(),
    ] {
        let error = client.qp.send.post(&[request]).unwrap_err();
        assert!(matches!(error.reason, PostErrorReason::NotAgreed { .. }), "{error}");
    }
    let capabilities = client.context.capabilities();
    assert_eq!(capabilities.features, Features { infiniband: true, ..ALL });
    assert_eq!(capabilities.atomicity, Atomicity::Processor);
}

#[test]
fn the_owner_has_atomic_accesses_of_its_own() {
    let (a, _b) = Context::pair_in_process(config(1, Mode::Inline), config(2, Mode::Inline)).unwrap();
    let memory = a.allocate_domain().register(vec![0; 64], Access::ALL).unwrap();
    memory.store_release_u8(3, 7).unwrap();
    assert_eq!((memory.load_acquire_u8(3).unwrap(), memory.to_vec(0, 5).unwrap()), (7, vec![0, 0, 0, 7, 0]));
    memory.store_release_u64(8, 40).unwrap();
    assert_eq!(memory.fetch_add_u64(8, 2).unwrap(), 40);
    let swap = |compare| CompareSwap { compare, compare_mask: u64::MAX, swap: 9, swap_mask: u64::MAX };
    assert_eq!(memory.compare_swap_u64(8, &swap(40)).unwrap(), 42);
    assert_eq!(memory.compare_swap_u64(8, &swap(42)).unwrap(), 42);
    assert_eq!(memory.load_acquire_u64(8).unwrap(), 9);
}

#[test]
fn a_lock_in_the_peers_memory_excludes() {
    // Two clients of one server take a lock by CmpSwap and change a word under it by Read and Write.
    let (a, b) = Context::pair_in_process(config(1, Mode::Inline), config(2, Mode::Inline)).unwrap();
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let mut clients = Vec::new();
    let shared_domain = b.allocate_domain();
    let memory = shared_domain.register(vec![0; 64], Access::ALL).unwrap();
    let server_cq = b.create_completion_queue(64).unwrap();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let mut client = Side::new(&a);
        let mut server = shared_domain.create_queue_pair(&QueuePairOptions::new(&server_cq)).unwrap();
        let connect = ConnectOptions::default().features(ALL);
        let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), connect).unwrap();
        let request = listener.next(LONG).unwrap().expect("a request");
        let accepting = request.start_accept(&mut server.control, AcceptOptions::default().features(ALL)).unwrap();
        connecting.wait(&mut client.qp.control).unwrap();
        accepting.wait(&mut server.control).unwrap();
        clients.push(client);
        servers.push(server);
    }
    let (stag, offset) = (memory.stag(), memory.remote_offset());
    // The first takes the lock; the second finds it taken, and gets it when the first has given it back.
    let take = |client: &mut Side, id: u64, from: u64, to: u64| {
        client.qp.send.post(&[SendRequest::compare_swap(id, stag, offset, from, to).signalled()]).unwrap();
        client.expect(id).original_value().unwrap()
    };
    let [first, second] = &mut clients[..] else { panic!("two clients") };
    assert_eq!(take(first, 1, 0, 1), 0);
    assert_eq!(take(second, 2, 0, 2), 1);
    assert_eq!(take(first, 3, 1, 0), 1);
    assert_eq!(take(second, 4, 0, 2), 0);
    assert_eq!(memory.load_acquire_u64(0).unwrap(), 2);
}

#[test]
fn eight_queue_pairs_on_two_engines_and_a_thread_lose_no_addition() {
    const QUEUE_PAIRS: u64 = 8;
    const ENTRIES: usize = 1024;
    let rounds: u64 = 1_000_000 / QUEUE_PAIRS;
    let two = |host: u8| -> Config { config(host, Mode::Threaded).threaded(2) };
    let (a, b) = Context::pair_in_process(two(1), two(2)).unwrap();
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let domain = b.allocate_domain();
    let memory = domain.register(vec![0; 64], Access::ALL).unwrap();
    let server_cq = b.create_completion_queue(64).unwrap();
    let mut cq = a.create_completion_queue(ENTRIES).unwrap();
    let client_domain = a.allocate_domain();
    let (mut clients, mut servers, mut engines) = (Vec::new(), Vec::new(), std::collections::BTreeSet::new());
    for _ in 0..QUEUE_PAIRS {
        let mut client = client_domain.create_queue_pair(&QueuePairOptions::new(&cq).depth(32, 1)).unwrap();
        let mut server = domain.create_queue_pair(&QueuePairOptions::new(&server_cq).depth(1, 1)).unwrap();
        let connect = ConnectOptions::default().features(ALL);
        let connecting = a.start_connect(&mut client.control, b.socket_address(PORT), connect).unwrap();
        let request = listener.next(LONG).unwrap().expect("a request");
        engines.insert(request.engine());
        let accepting = request.start_accept(&mut server.control, AcceptOptions::default().features(ALL)).unwrap();
        connecting.wait(&mut client.control).unwrap();
        accepting.wait(&mut server.control).unwrap();
        clients.push(client);
        servers.push(server);
    }
    assert_eq!(engines.len(), 2, "both engines serve the word");
    let (stag, offset) = (memory.stag(), memory.remote_offset());
    let mut seen = vec![0u64; QUEUE_PAIRS as usize];
    let local_rounds = rounds;
    std::thread::scope(|scope| {
        // The machine's own additions take part, too.
        let local = scope.spawn(|| {
            for round in 0..local_rounds {
                memory.fetch_add_u64(8, 1).unwrap();
                if round % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(10));
                }
            }
        });
        let mut posted = vec![0u64; clients.len()];
        let (mut done, mut under_way) = (0, 0u64);
        let deadline = std::time::Instant::now() + 10 * LONG;
        while done < QUEUE_PAIRS * rounds {
            for (client, posted) in clients.iter_mut().zip(&mut posted) {
                // What has completed is in the queue, which overflows otherwise, until it is taken.
                while *posted < rounds && under_way < ENTRIES as u64 {
                    // Every other one by the masked way, whose one field is the whole word.
                    let mask = if *posted % 2 == 0 { 0 } else { 1 << 63 };
                    let request = SendRequest::fetch_add_masked(*posted, stag, offset + 8, 1, mask).signalled();
                    match client.send.post(&[request]) {
                        Ok(_) => (*posted, under_way) = (*posted + 1, under_way + 1),
                        Err(error) if error.is_full() => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            let Some(one) = cq.next(LONG).unwrap() else { panic!("nothing completes: {:#?}", b.stats()) };
            assert_eq!(one.status, Status::Success);
            let place =
                clients.iter().position(|client| client.control.number() == one.queue_pair).expect("one of ours");
            // What one queue pair finds only grows.
            let original = one.original_value().unwrap();
            assert!(one.id == 0 || original > seen[place], "{original} after {}", seen[place]);
            seen[place] = original;
            (done, under_way) = (done + 1, under_way - 1);
            assert!(std::time::Instant::now() < deadline, "{done} done");
        }
        local.join().unwrap();
    });
    assert_eq!(memory.load_acquire_u64(8).unwrap(), QUEUE_PAIRS * rounds + local_rounds);
}

#[test]
fn a_stream_with_markers_carries_every_operation() {
    in_both_modes(|mode| {
        for (here, there) in [(true, false), (false, true), (true, true)] {
            let connect = ConnectOptions { markers: here, ..ConnectOptions::default().features(ALL) };
            let accept = AcceptOptions { markers: there, ..AcceptOptions::default().features(ALL) };
            let (mut client, mut server) = connected_with(mode, connect, accept);
            let established = client.established.as_ref().unwrap();
            assert_eq!((established.receive_markers, established.transmit_markers), (here, there));
            let octets = pattern(9, 100_000);
            client.mr.write(0, &octets).unwrap();
            server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(200_000..300_000).unwrap()])]).unwrap();
            server.qp.receive.post(&[ReceiveRequest::new(2, &[])]).unwrap();
            let source = [client.mr.sge(..100_000).unwrap()];
            let sink = [client.mr.sge(500_000..600_000).unwrap()];
            let (stag, offset) = (server.mr.stag(), server.mr.remote_offset());
            client
                .qp
                .send
                .post(&[
                    SendRequest::send(1, &source).signalled(),
                    SendRequest::write(2, &source, stag, offset).with_immediate(77).signalled(),
                    SendRequest::read(3, &sink, stag, offset).signalled(),
                    SendRequest::fetch_add(4, stag, offset + 400_000, 3).signalled(),
                ])
                .unwrap();
            assert_eq!(server.expect(1).length, 100_000);
            assert_eq!(server.expect(2).immediate_data(), Some(77));
            for id in 1..=4 {
                client.expect(id);
            }
            assert_eq!(server.octets(200_000, 100_000), octets);
            assert_eq!(client.octets(500_000, 100_000), octets);
            assert_eq!(server.mr.load_acquire_u64(400_000).unwrap(), 3);
        }
    });
}

/// Whether a descriptor is readable, now or within a while.
fn is_readable(cq: &uwarp::CompletionQueue, within: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec::try_from(within).unwrap();
    poll(&mut [PollFd::new(cq, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// The next completion, without arming the queue for it as waiting does.
fn polled(side: &mut Side) -> uwarp::Completion {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        if let Some(completion) = side.cq.poll_one() {
            return completion;
        }
        assert!(std::time::Instant::now() < deadline, "no completion");
        std::thread::yield_now();
    }
}

#[test]
fn an_armed_queue_may_wait_for_solicited_events_only() {
    let (mut client, mut server) = extended(Mode::Threaded);
    for id in 0..4 {
        server.qp.receive.post(&[ReceiveRequest::new(id, &[server.mr.sge(..16).unwrap()])]).unwrap();
    }
    server.cq.arm_solicited();
    client.qp.send.post(&[SendRequest::send_inline(1, b"quiet")]).unwrap();
    assert_eq!(polled(&mut server).id, 0);
    assert!(!is_readable(&server.cq, Duration::from_millis(50)), "woken by an ordinary Send");
    client.qp.send.post(&[SendRequest::send_inline(1, b"loud").solicited()]).unwrap();
    assert!(is_readable(&server.cq, LONG));
    assert_eq!(server.cq.take_events(), 1);
    assert_eq!(polled(&mut server).id, 1);
    // Immediate Data too.
    server.cq.arm_solicited();
    client.qp.send.post(&[SendRequest::immediate(1, 1), SendRequest::immediate(1, 2).solicited()]).unwrap();
    assert!(is_readable(&server.cq, LONG));
    assert_eq!(server.cq.take_events(), 1);
    assert_eq!(polled(&mut server).id, 2);
    assert_eq!(polled(&mut server).id, 3);
    // And the failure of work.
    server.qp.receive.post(&[ReceiveRequest::new(9, &[])]).unwrap();
    server.cq.arm_solicited();
    client.qp.control.abort();
    assert!(is_readable(&server.cq, LONG));
    assert_eq!(server.cq.take_events(), 1);
    assert_eq!(polled(&mut server).status, Status::Flushed);
}
