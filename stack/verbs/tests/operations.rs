//! Every operation between two contexts in one process, with inline and threaded engines.

mod common;

use common::*;
use uwarp::{
    Access, CompletionOpcode, MemoryRegion, PostErrorReason, ReceiveRequest, RegionOptions, RegionScope, SendRequest,
    Status,
};

#[test]
fn a_send_fills_the_peers_receive() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let octets = pattern(1, 10_000);
        client.mr.write(0, &octets).unwrap();
        // Both are made of several pieces that do not match.
        server
            .qp
            .receive
            .post(&[ReceiveRequest::new(
                7,
                &[server.mr.sge(100..4_100).unwrap(), server.mr.sge(50_000..60_000).unwrap()],
            )])
            .unwrap();
        client
            .qp
            .send
            .post(&[SendRequest::send(
                8,
                &[
                    client.mr.sge(0..1).unwrap(),
                    client.mr.sge(1..3_000).unwrap(),
                    client.mr.sge(3_000..10_000).unwrap(),
                ],
            )
            .signalled()])
            .unwrap();
        let received = server.expect(7);
        assert_eq!(received.opcode, CompletionOpcode::Receive);
        assert_eq!(received.length, 10_000);
        assert_eq!(received.queue_pair, server.qp.control.number());
        assert_eq!(server.octets(100, 4_000), octets[..4_000]);
        assert_eq!(server.octets(50_000, 6_000), octets[4_000..]);
        assert_eq!(client.expect(8).opcode, CompletionOpcode::Send);
    });
}

#[test]
fn a_write_arrives_without_the_peers_help() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        for length in [1, 63, 64, 1_400, 1_460, 9_000, 300_000] {
            let mut octets = pattern(length as u64, length);
            // The last octet tells that all are there.
            octets[length - 1] = 1;
            server.mr.fill(0..REGION, 0).unwrap();
            client.mr.write(0, &octets).unwrap();
            client
                .qp
                .send
                .post(&[SendRequest::write(
                    9,
                    &[client.mr.sge(..length).unwrap()],
                    server.mr.stag(),
                    server.mr.remote_offset() + 5,
                )
                .signalled()])
                .unwrap();
            let done = client.expect(9);
            assert_eq!((done.opcode, done.length), (CompletionOpcode::Write, length as u32));
            server.await_octet(5 + length - 1, 1);
            assert_eq!(server.octets(5, length), octets);
            assert_eq!(server.octets(0, 5), [0; 5]);
            assert_eq!(server.octets(5 + length, 5), [0; 5]);
        }
    });
}

#[test]
fn a_read_fetches_the_peers_memory() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        for length in [1, 64, 1_460, 100_000, 1_000_000] {
            let octets = pattern(length as u64, length);
            server.mr.write(0, &octets).unwrap();
            client
                .qp
                .send
                .post(&[SendRequest::read(
                    3,
                    &[client.mr.sge(..length).unwrap()],
                    server.mr.stag(),
                    server.mr.remote_offset(),
                )
                .signalled()])
                .unwrap();
            // The server's engine answers by itself, in its own thread or while the client waits in the same.
            assert_eq!(client.expect(3).opcode, CompletionOpcode::Read);
            assert_eq!(client.octets(0, length), octets);
        }
    });
}

#[test]
fn reads_beyond_the_peers_limit_wait_their_turn() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        let octets = pattern(5, 64_000);
        server.mr.write(0, &octets).unwrap();
        let (stag, offset) = (server.mr.stag(), server.mr.remote_offset());
        for index in 0..64_usize {
            let sink = [client.mr.sge(index * 1_000..(index + 1) * 1_000).unwrap()];
            client
                .qp
                .send
                .post(&[SendRequest::read(index as u64, &sink, stag, offset + 1_000 * index as u64).signalled()])
                .unwrap();
        }
        for index in 0..64 {
            client.expect(index);
        }
        assert_eq!(client.octets(0, 64_000), octets);
    });
}

#[test]
fn a_list_is_posted_in_order_and_only_the_signalled_complete() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let octets = pattern(2, 64);
        client.mr.write(0, &octets).unwrap();
        let pieces: Vec<_> = (0..64).map(|index| [client.mr.sge(index..=index).unwrap()]).collect();
        let mut list: Vec<_> = pieces
            .iter()
            .enumerate()
            .map(|(index, piece)| {
                SendRequest::write(index as u64, piece, server.mr.stag(), server.mr.remote_offset() + index as u64)
            })
            .collect();
        list.push(SendRequest::send(99, &[]).signalled());
        server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        assert_eq!(client.qp.send.post(&list), Ok(65));
        client.expect(99);
        // The Send comes behind the Writes.
        assert_eq!(server.expect(1).length, 0);
        assert_eq!(server.octets(0, 64), octets);
        assert_eq!(client.cq.poll_one(), None);
    });
}

#[test]
fn inline_octets_are_free_at_once() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        for length in [0, 1, 31, 32, 33, 96, 97, 256] {
            server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..1_000).unwrap()])]).unwrap();
            let mut octets = pattern(length as u64, length);
            let expected = octets.clone();
            client.qp.send.post(&[SendRequest::send_inline(2, &octets).signalled()]).unwrap();
            octets.fill(0);
            assert_eq!(server.expect(1).length, length as u32);
            assert_eq!(server.octets(0, length), expected);
            client.expect(2);
        }
        let error = client.qp.send.post(&[SendRequest::send_inline(3, &[0; 257])]).unwrap_err();
        assert_eq!(error.reason, PostErrorReason::InlineTooLong { limit: 256 });
    });
}

#[test]
fn work_on_many_queue_pairs_and_from_another_thread_waits_for_the_next_turn() {
    let (a, b) = pair(Mode::Inline);
    let mut listener = b.listen(PORT, uwarp::ListenOptions::default()).unwrap();
    // More than an engine keeps in mind without its doorbells.
    let mut pairs: Vec<_> = (0..70)
        .map(|_| {
            let (mut client, mut server) = (Side::new(&a), Side::new(&b));
            connect_by(&mut listener, &mut client, &mut server);
            server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..8).unwrap()])]).unwrap();
            (client, server)
        })
        .collect();
    for (number, (client, _)) in pairs.iter_mut().enumerate() {
        client.qp.send.post(&[SendRequest::send_inline(0, &number.to_le_bytes())]).unwrap();
    }
    for (number, (_, server)) in pairs.iter_mut().enumerate() {
        server.expect(1);
        assert_eq!(server.octets(0, 8), number.to_le_bytes());
    }
    // The engine is on this thread, who posts is not.
    let (client, server) = &mut pairs[0];
    server.qp.receive.post(&[ReceiveRequest::new(2, &[server.mr.sge(..8).unwrap()])]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| client.qp.send.post(&[SendRequest::send_inline(0, b"elsewhen")]).unwrap());
    });
    server.expect(2);
    assert_eq!(server.octets(0, 8), b"elsewhen");
}

#[test]
fn a_full_queue_takes_what_fits_and_loses_nothing() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::with(&a, |options| options.depth(16, 16));
        let mut server = Side::with(&b, |options| options.depth(16, 16));
        // Not connected: receives pile up until the queue is full.
        let sge = [server.mr.sge(..4).unwrap()];
        let list: Vec<_> = (0..100).map(|id| ReceiveRequest::new(id, &sge)).collect();
        let error = server.qp.receive.post(&list).unwrap_err();
        assert!(error.is_full());
        assert!((16..100).contains(&error.posted), "{}", error.posted);
        let posted = error.posted as u64;
        let error = client.qp.send.post(&[SendRequest::send_inline(0, b"early")]).unwrap_err();
        assert_eq!(error.reason, PostErrorReason::NotConnected);
        connect(&mut client, &mut server);
        let (mut next_send, mut next_receive) = (0_u32, posted);
        // Everything gets through in order although the queues are full most of the time.
        for expected in 0..100_u32 {
            while next_send < 100 && u64::from(next_send) < next_receive {
                let octets = next_send.to_le_bytes();
                let request = SendRequest::send_inline(u64::from(next_send), &octets);
                match client.qp.send.post(&[request]) {
                    Ok(_) => next_send += 1,
                    Err(error) if error.is_full() => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let received = server.expect(u64::from(expected));
            assert_eq!(received.length, 4);
            server.qp.receive.post(&[ReceiveRequest::new(next_receive, &sge)]).unwrap();
            next_receive += 1;
        }
    });
}

#[test]
fn a_request_of_many_pieces_takes_several_slots() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::with(&a, |options| options.limits(uwarp::MAX_SGE, 256));
        let mut server = Side::with(&b, |options| options.limits(uwarp::MAX_SGE, 256));
        connect(&mut client, &mut server);
        let octets = pattern(3, uwarp::MAX_SGE * 100);
        client.mr.write(0, &octets).unwrap();
        let from: Vec<_> =
            (0..uwarp::MAX_SGE).map(|index| client.mr.sge(index * 100..(index + 1) * 100).unwrap()).collect();
        let into: Vec<_> =
            (0..uwarp::MAX_SGE).map(|index| server.mr.sge(index * 1_000..index * 1_000 + 100).unwrap()).collect();
        for id in 0..50 {
            server.mr.fill(0..REGION, 0).unwrap();
            server.qp.receive.post(&[ReceiveRequest::new(id, &into)]).unwrap();
            client.qp.send.post(&[SendRequest::send(id, &from).signalled()]).unwrap();
            server.expect(id);
            client.expect(id);
            for index in 0..uwarp::MAX_SGE {
                assert_eq!(server.octets(index * 1_000, 100), octets[index * 100..(index + 1) * 100]);
            }
        }
    });
}

#[test]
fn a_send_with_invalidate_revokes_the_peers_stag() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let window = server
            .pd
            .register(
                vec![0; 4096],
                RegionOptions::new(Access::REMOTE_WRITE).scope(RegionScope::QueuePair(&server.qp.control)),
            )
            .unwrap();
        server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        client
            .qp
            .send
            .post(&[
                SendRequest::write_inline(1, b"before", window.stag(), window.remote_offset()),
                SendRequest::send(2, &[]).invalidate(window.stag()).solicited().signalled(),
            ])
            .unwrap();
        client.expect(2);
        assert_eq!(server.expect(1).invalidated_stag(), Some(window.stag()));
        assert_eq!(window.to_vec(0, 6).unwrap(), b"before");
        // Written once more, it is refused, and that ends the stream.
        client.qp.send.post(&[SendRequest::write_inline(3, b"after", window.stag(), window.remote_offset())]).unwrap();
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        assert_eq!(window.to_vec(0, 6).unwrap(), b"before");
    });
}

#[test]
fn a_write_without_the_right_is_refused_and_costs_its_own_connection_only() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        let (mut client2, mut server2) = (Side::new(&a), Side::new(&b));
        let mut listener = b.listen(PORT, uwarp::ListenOptions::default()).unwrap();
        connect_by(&mut listener, &mut client, &mut server);
        connect_by(&mut listener, &mut client2, &mut server2);
        let secret = server.pd.register(vec![7; 64], Access::REMOTE_READ).unwrap();
        server.qp.receive.post(&[ReceiveRequest::new(5, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::write_inline(1, b"x", secret.stag(), secret.remote_offset())]).unwrap();
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        let flushed = server.complete();
        assert_eq!((flushed.id, flushed.status), (5, Status::Flushed));
        assert!(
            matches!(client.qp.control.disconnect_reason(), Some(uwarp::DisconnectReason::PeerTerminated(_))),
            "{:?}",
            client.qp.control.disconnect_reason()
        );
        assert_eq!(secret.to_vec(0, 1).unwrap(), [7]);
        // The other connection does not notice.
        client2
            .qp
            .send
            .post(&[SendRequest::write_inline(2, b"y", server2.mr.stag(), server2.mr.remote_offset()).signalled()])
            .unwrap();
        client2.expect(2);
        server2.await_octet(0, b'y');
    });
}

#[test]
fn a_send_longer_than_the_receive_fails_both_sides() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..4).unwrap()])]).unwrap();
        client.qp.send.post(&[SendRequest::send_inline(2, b"too long")]).unwrap();
        let failed = server.complete();
        assert_eq!((failed.id, failed.status), (1, Status::LocalLength));
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
    });
}

#[test]
fn local_memory_without_the_right_fails_the_request() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        let read_only = client.pd.register(vec![0; 64], Access::LOCAL_READ).unwrap();
        client
            .qp
            .send
            .post(&[SendRequest::read(4, &[read_only.sge(..).unwrap()], server.mr.stag(), server.mr.remote_offset())])
            .unwrap();
        let failed = client.complete();
        assert_eq!((failed.id, failed.status), (4, Status::LocalProtection));
    });
}

#[test]
fn completing_when_acknowledged_waits_for_the_peer() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut client = Side::with(&a, |options| options.complete_when_acknowledged());
        let mut server = Side::new(&b);
        connect(&mut client, &mut server);
        let everything_lost = uwarp::FaultOptions { loss: 100.0, ..uwarp::FaultOptions::default() };
        a.set_faults(Some(everything_lost)).unwrap();
        client
            .qp
            .send
            .post(&[SendRequest::write_inline(1, b"z", server.mr.stag(), server.mr.remote_offset()).signalled()])
            .unwrap();
        let early = client.cq.next(std::time::Duration::from_millis(30)).unwrap();
        assert_eq!(early, None, "completed although nothing can arrive");
        a.set_faults(uwarp_middlebox::standing()).unwrap();
        client.expect(1);
        server.await_octet(0, b'z');
    });
}

/// 64 MiB and an octet; in the long run the longest message that there is, 2^32 − 1 octets (RFC 5040 §3.1), for which
/// this needs 4 GiB of memory.
#[test]
fn messages_may_be_as_long_as_their_length_can_say() {
    let is_long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let length = if is_long { u32::MAX as usize } else { (64 << 20) + 1 };
    let (mut client, mut server) = connected(Mode::Threaded);
    // Mostly zeros, which take no memory at the source; marks at both ends, around the middle, and where a mask may be
    // short.
    let source = client.pd.register(vec![0; length], Access::REMOTE_READ).unwrap();
    let marked = [0, 1, (1 << 16) - 1, 1 << 24, length / 2 - 1, length / 2, length / 2 + 1, length - 2, length - 1];
    for (number, at) in marked.into_iter().enumerate() {
        source.write(at, &[1 + number as u8]).unwrap();
    }
    let sink = server.pd.register(vec![0; length], Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let arrived = |sink: &MemoryRegion| {
        for (number, at) in marked.into_iter().enumerate() {
            assert_eq!(sink.to_vec(at, 1).unwrap(), [1 + number as u8], "octet {at}");
            sink.write(at, &[0]).unwrap();
        }
        assert_eq!(sink.to_vec(2, 1000).unwrap(), [0; 1000]);
    };
    let finish = |side: &mut Side, id: u64| {
        let completion = side.cq.next(10 * LONG).unwrap().expect("it ends");
        assert_eq!((completion.id, completion.status, completion.length as usize), (id, Status::Success, length));
    };
    server.qp.receive.post(&[ReceiveRequest::new(1, &[sink.sge(..).unwrap()])]).unwrap();
    let all = [source.sge(..).unwrap()];
    client.qp.send.post(&[SendRequest::send(2, &all).signalled()]).unwrap();
    finish(&mut server, 1);
    finish(&mut client, 2);
    arrived(&sink);

    client.qp.send.post(&[SendRequest::write(3, &all, sink.stag(), sink.remote_offset()).signalled()]).unwrap();
    finish(&mut client, 3);
    let deadline = std::time::Instant::now() + LONG;
    while sink.load_acquire_u8(length - 1).unwrap() == 0 {
        assert!(std::time::Instant::now() < deadline, "the last octet never came");
        std::thread::yield_now();
    }
    arrived(&sink);

    let into = [sink.sge(..).unwrap()];
    server.qp.send.post(&[SendRequest::read(4, &into, source.stag(), source.remote_offset()).signalled()]).unwrap();
    finish(&mut server, 4);
    arrived(&sink);
}
