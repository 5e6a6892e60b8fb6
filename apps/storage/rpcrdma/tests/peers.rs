//! A requester and a responder against peers that send arbitrary messages.

mod common;

use common::*;
use std::sync::Arc;
use std::time::Instant;
use uwarp_rpcrdma::header::{Body, Chunks, DiscardReason, Header, RdmaError, ReadSegment, Segment, parse_reply};
use uwarp_rpcrdma::private_data::PrivateData;
use uwarp_rpcrdma::requester::{CallError, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, Common, ResponderOptions};
use uwarp_rpcrdma::rpc::{ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, WalkError};

#[test]
fn wrong_calls_are_answered_or_dropped_as_the_document_says() {
    let (here, mut server) = server(ResponderOptions { credits: 3, ..ResponderOptions::default() });
    let mut raw = Raw::connect(&here, &mut server, b"");
    let none = Chunks::default();
    let right = call_message(none.clone(), NULL, &[]);
    let with_word = |at: usize, word: u32| {
        let mut octets = right.clone();
        octets[4 * at..4 * at + 4].copy_from_slice(&word.to_be_bytes());
        octets
    };
    let read = |position, handle, length| Chunks {
        reads: vec![ReadSegment { position, segment: Segment { handle, length, offset: 0 } }],
        ..Chunks::default()
    };
    let overlapping = |position| Chunks {
        reads: [read(position, 1, 12), read(position + 8, 2, 12)].into_iter().flat_map(|chunks| chunks.reads).collect(),
        ..Chunks::default()
    };
    let chunk = Some(Body::Error { version: 1, error: RdmaError::Chunk });
    let rows: Vec<(&str, Vec<u8>, Option<Body>)> = vec![
        ("27 octets", right[..27].to_vec(), None),
        ("nothing at all", vec![], None),
        ("version 2", with_word(1, 2), Some(Body::Error { version: 2, error: RdmaError::Version { low: 1, high: 1 } })),
        ("RDMA_MSGP", with_word(3, 2), chunk.clone()),
        ("RDMA_DONE", with_word(3, 3), None),
        ("RDMA_ERROR", with_word(3, 4), None),
        ("procedure 7", with_word(3, 7), chunk.clone()),
        ("another XID in the message", with_word(7, XID + 1), chunk.clone()),
        ("a reply", with_word(8, 1), chunk.clone()),
        ("an RPC header that ends early", right[..60].to_vec(), chunk.clone()),
        ("RDMA_NOMSG without lists", with_word(3, 1)[..28].to_vec(), chunk.clone()),
        ("something reduced that is not eligible", call_message(read(40, 1, 8), ECHO, &[8]), chunk.clone()),
        ("something reduced where nothing is", call_message(read(40, 1, 8), NULL, &[]), chunk.clone()),
        ("chunks that overlap", call_message(overlapping(48), PUT, &[7, 20, 9]), chunk.clone()),
        ("a position inside of a word", call_message(read(50, 1, 8), PUT, &[7, 8, 9]), chunk.clone()),
        ("segments that are not there", [&right[..20], &1_u32.to_be_bytes(), &[0xff; 40]].concat(), chunk.clone()),
        // 64 MiB of data are served, but not 4 GiB.
        (
            "an unreasonable chunk",
            call_message(read(48, 1, u32::MAX - 1000), PUT, &[7, u32::MAX - 1000, 9]),
            chunk.clone(),
        ),
        ("the last Write list without an end", [&right[..24], &1_u32.to_be_bytes(), &[0; 4]].concat(), chunk),
    ];
    for (index, (what, octets, expected)) in rows.into_iter().enumerate() {
        raw.send(&octets);
        received(&raw, &mut server, 2 * index as u64 + 1);
        if let Some(body) = expected {
            let octets = said(&mut raw, &mut server);
            let (header, length) = parse_reply(&octets).unwrap();
            assert_eq!((header.xid, header.body, length), (XID, body, octets.len()), "{what}");
            assert_eq!(header.credits, 3, "the grant");
        }
        // The next call is served, so no other answer was sent, and no receive was lost.
        raw.send(&right);
        let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
        assert!(matches!(header.body, Body::Message(_)), "{what}");
        assert_eq!(header.credits, 3);
    }
    assert_eq!(server.responders[0].stats().discarded, 4);
}

#[test]
fn arguments_that_cannot_be_read_are_garbage_and_another_rpc_version_is_denied() {
    let (here, mut server) = server(ResponderOptions::default());
    let mut raw = Raw::connect(&here, &mut server, b"");
    let mut status = |octets: Vec<u8>| {
        raw.send(&octets);
        let octets = said(&mut raw, &mut server);
        let (header, at) = parse_reply(&octets).unwrap();
        assert!(matches!(header.body, Body::Message(_)), "{header:?}");
        ReplyHeader::parse(&octets[at..]).unwrap().0.status
    };
    let reads = |position, length| Chunks {
        reads: vec![ReadSegment { position, segment: Segment { handle: 1, length, offset: 0 } }],
        ..Chunks::default()
    };
    assert_eq!(status(call_message(Chunks::default(), PUT, &[7])), Status::GarbageArguments);
    // A chunk of another length than its item, and one behind the end of the message.
    assert_eq!(status(call_message(reads(48, 12), PUT, &[7, 100, 9])), Status::GarbageArguments);
    assert_eq!(status(call_message(reads(400, 12), PUT, &[7, 0, 9])), Status::GarbageArguments);
    let mut other = call_message(Chunks::default(), NULL, &[]);
    other[28 + 11] = 3;
    assert_eq!(status(other), Status::RpcMismatch { low: 2, high: 2 });
}

#[test]
fn a_peer_without_private_data_gets_messages_of_1024_octets() {
    let (here, mut server) = server(ResponderOptions::default());
    let mut raw = Raw::connect(&here, &mut server, b"nothing of the kind");
    // 4 octets of count, 1024 in all.
    let fits = 1024 - 28 - 24 - 4;
    for (length, error) in [(fits, false), (fits + 4, true)] {
        let mut arguments = vec![length as u32];
        arguments.extend(vec![0; length / 4]);
        raw.send(&call_message(Chunks::default(), ECHO, &arguments));
        let octets = said(&mut raw, &mut server);
        let (header, _) = parse_reply(&octets).unwrap();
        // There is no Reply chunk that could have taken it.
        assert_eq!(matches!(header.body, Body::Error { error: RdmaError::Chunk, .. }), error);
        assert!(octets.len() <= 1024);
    }
}

/// A call that cannot be answered is not executed: many calls must not be executed twice.
#[test]
fn a_call_whose_chunks_have_no_place_in_its_reply_is_refused_before_it_is_carried_out() {
    let (here, mut server) = server(ResponderOptions::default());
    // Replies have 1024 octets: 28, and a Write chunk in 62 segments is 1000 more.
    let own = PrivateData { remote_invalidation: false, send_size: 4096, receive_size: 1024 };
    let mut raw = Raw::connect(&here, &mut server, &own.to_octets());
    let (handle, offset) = raw.place();
    for (segments, calls) in [(62, 0), (61, 1)] {
        let writes = vec![(0..segments).map(|at| Segment { handle, length: 100, offset: offset + 100 * at }).collect()];
        raw.send(&call_message(Chunks { writes, ..Chunks::default() }, GET, &[5]));
        let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
        assert_eq!(header.body, Body::Error { version: 1, error: RdmaError::Chunk });
        // With one segment less, only the results are too long, which cannot be known before.
        assert_eq!(server.responders[0].stats().calls, calls);
    }
}

#[test]
fn a_read_chunk_with_its_padding_and_one_in_pieces_are_taken() {
    let (here, mut server) = server(ResponderOptions::default());
    let mut raw = Raw::connect(&here, &mut server, b"");
    let (handle, offset) = raw.place();
    raw.fill(0, b"hello___");
    let segment =
        |at: u64, length| ReadSegment { position: 48, segment: Segment { handle, length, offset: offset + at } };
    for reads in [
        vec![segment(0, 5)],
        vec![segment(0, 8)],
        vec![segment(0, 2), segment(0, 0), segment(2, 3)],
        vec![segment(0, 2), segment(2, 5), segment(7, 1)],
    ] {
        // With and without chunks to return: the Read list is not returned (§4.3.1).
        for reply in [None, Some(vec![Segment { handle, length: 100, offset: offset + 100 }])] {
            let chunks = Chunks { reads: reads.clone(), reply, ..Chunks::default() };
            raw.send(&call_message(chunks, PUT, &[7, 5, 9]));
            let octets = said(&mut raw, &mut server);
            let (header, at) = parse_reply(&octets).unwrap();
            assert!(header.chunks().unwrap().reads.is_empty());
            let sum: u32 = b"hello".iter().map(|&octet| u32::from(octet)).sum();
            assert_eq!(octets[at + 24..], [5_u32.to_be_bytes(), sum.to_be_bytes()].concat());
        }
    }
}

#[test]
fn results_fill_write_chunks_in_order_without_padding_and_chunks_come_back() {
    let (here, mut server) = server(ResponderOptions::default());
    let mut raw = Raw::connect(&here, &mut server, b"");
    let (handle, offset) = raw.place();
    let segment = |at: u64, length| Segment { handle, length, offset: offset + at };
    raw.fill(0, &[0xaa; 400]);
    let writes = vec![vec![segment(0, 3), segment(100, 4)], vec![], vec![segment(200, 50)]];
    let chunks = Chunks { writes, reply: Some(vec![segment(300, 100)]), ..Chunks::default() };
    raw.send(&call_message(chunks, GET_TWO, &[5, 6]));
    let octets = said(&mut raw, &mut server);
    let (header, at) = parse_reply(&octets).unwrap();
    let Body::Message(returned) = header.body else { panic!("{header:?}") };
    assert!(returned.reads.is_empty());
    // The first is filled, the empty one has its result inline, the third has no result; the Reply chunk was not
    // needed.
    assert_eq!(returned.writes, [vec![segment(0, 3), segment(100, 2)], vec![], vec![segment(200, 0)]]);
    assert_eq!(returned.reply, Some(vec![segment(300, 0)]));
    let [first, second] = get_two_results(5, 6)
        .into_iter()
        .filter_map(|part| match part {
            Part::Item(data) => Some(data),
            Part::Octets(_) => None,
        })
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let mut payload: Vec<u8> = [5_u32, 3, 6].into_iter().flat_map(u32::to_be_bytes).collect();
    payload.extend(&second);
    payload.extend([0; 2]);
    assert_eq!(octets[at + 24..], payload);
    assert_eq!(raw.octets(0, 4), [&first[..3], &[0xaa]].concat());
    assert_eq!(raw.octets(100, 5), [&first[3..], &[0xaa; 3]].concat(), "no padding was written");
    assert_eq!(raw.octets(200, 200), [0xaa; 200]);
}

/// However many calls one of two peers sends, and whether it accepts the replies or not, it gets half of the server's
/// limit. The other one is served, and what it does not use is available to the first.
#[test]
fn connections_have_equal_parts_of_what_a_server_has_room_for() {
    const LENGTH: usize = 50_000;
    let options = ResponderOptions { credits: 8, ..ResponderOptions::default() };
    let (here, mut server) = server(options);
    server.common = Arc::new(Common::new(4));
    server.answers = false;
    let mut greedy = Raw::connect(&here, &mut server, b"");
    let mut good = Raw::connect(&here, &mut server, b"");
    let (handle, offset) = greedy.place();
    let segment = Segment { handle, length: LENGTH as u32, offset };
    let get = call_message(Chunks { writes: vec![vec![segment]], ..Chunks::default() }, GET, &[LENGTH as u32]);
    for _ in 0..8 {
        greedy.send(&get);
    }
    received(&greedy, &mut server, 8);
    let settle = |server: &mut Server, peer: Option<&Raw>| {
        for _ in 0..200 {
            if let Some(raw) = peer {
                raw.context.poll();
            }
            server.step();
        }
        server.requests.len()
    };
    assert_eq!(settle(&mut server, Some(&greedy)), 2);
    // Answered, but the replies are not accepted: the peer's engine does not run.
    (0..2).for_each(|_| server.answer_next());
    assert_eq!(settle(&mut server, None), 0);
    assert_eq!(settle(&mut server, Some(&greedy)), 2, "the replies have left");
    good.send(&call_message(Chunks::default(), NULL, &[]));
    assert_eq!(settle(&mut server, Some(&good)), 3);
    let (connection, request) = server.requests.pop_back().unwrap();
    assert_eq!(connection, 1);
    server.responders[1].answer(request.token, Answer::success(vec![]));
    // Replies to the other come first, to the same queues of the context.
    let mut granted = |raw: &mut Raw| parse_reply(&said(raw, &mut server)).unwrap().0.credits;
    assert_eq!(granted(&mut good), 2);
    assert_eq!((granted(&mut greedy), granted(&mut greedy)), (2, 2));
    server.responders.pop();
    assert_eq!(settle(&mut server, Some(&greedy)), 4);
    server.answer_next();
    let mut granted = |raw: &mut Raw| parse_reply(&said(raw, &mut server)).unwrap().0.credits;
    assert_eq!(granted(&mut greedy), 4);
    let Part::Item(item) = &get_results(LENGTH)[1] else { panic!("the results of a GET") };
    assert_eq!(&greedy.octets(0, LENGTH), item);
}

#[test]
fn chunks_of_many_calls_stay_within_the_memory_for_them() {
    let options =
        ResponderOptions { credits: 8, longest_call: 100_000, memory: 250_000, ..ResponderOptions::default() };
    let mut rig = Rig::new(RequesterOptions::default(), options);
    rig.results(call(NULL, vec![]));
    rig.server.answers = false;
    let calls: Vec<_> = (0..8).map(|_| rig.client.start(put(vec![1; 99_000])).unwrap()).collect();
    for _ in 0..8 {
        rig.until("a call", |rig| {
            assert!(rig.client.poll().is_none());
            assert!(rig.server.requests.len() <= 2, "two fit into the memory");
            (!rig.server.requests.is_empty()).then_some(())
        });
        // Time for more of them to arrive, if they could.
        for _ in 0..200 {
            rig.server.step();
            assert!(rig.client.poll().is_none() && rig.server.requests.len() <= 2);
        }
        rig.server.answer_next();
        let finished = rig.until("an answer", |rig| rig.client.poll());
        assert!(calls.contains(&finished.id));
    }
    assert_eq!(rig.server.responders[0].stats().memory_peak, 198_000);
    // More than a call may have is refused before anything is read.
    rig.server.answers = true;
    assert!(matches!(rig.call(put(vec![1; 100_001])).outcome, Err(CallError::Chunk)));
}

/// Long calls with several chunks reserve memory for all of them before the first is read: none waits for memory that
/// others keep.
#[test]
fn long_calls_do_not_wait_for_each_others_memory() {
    let options =
        ResponderOptions { credits: 8, longest_call: 101_000, memory: 130_000, ..ResponderOptions::default() };
    let mut rig = Rig::new(RequesterOptions::default(), options);
    rig.results(call(NULL, vec![]));
    rig.server.answers = false;
    // 40,000 octets that are not eligible are a Position Zero Read chunk, of which three would fit at once.
    let rest = Part::Octets(vec![9; 40_000]);
    let arguments = vec![words(&[7, 60_000]), Part::Item(pattern(3, 60_000)), rest];
    for _ in 0..3 {
        rig.client.start(call(PUT, arguments.clone())).unwrap();
    }
    for _ in 0..3 {
        let (connection, request) = rig.until("a call", |rig| {
            assert!(rig.client.poll().is_none());
            rig.server.requests.pop_front()
        });
        assert_eq!(request.arguments, arguments);
        rig.server.responders[connection].answer(request.token, Answer::success(put_results(&[])));
        rig.until("an answer", |rig| rig.client.poll()).outcome.unwrap();
    }
    assert_eq!(rig.server.responders[0].stats().memory_peak, 40 + 8 + 40_000 + 60_000);
}

/// Small calls that arrive without end must not starve a large one: those that arrive after it wait.
#[test]
fn a_large_call_that_waits_for_memory_is_not_overtaken_for_ever() {
    let options =
        ResponderOptions { credits: 8, longest_call: 100_000, memory: 130_000, ..ResponderOptions::default() };
    let mut rig = Rig::new(RequesterOptions::default(), options);
    rig.results(call(NULL, vec![]));
    rig.server.answers = false;
    let next = |rig: &mut Rig| {
        let (_, request) = rig.until("a call", |rig| {
            assert!(rig.client.poll().is_none());
            rig.server.requests.pop_front()
        });
        let length = request.arguments.get(1).map_or(0, |item| item.octets().len());
        (length, request.token)
    };
    let answer = |rig: &mut Rig, token| {
        rig.server.responders[0].answer(token, Answer::success(put_results(&[])));
        rig.until("an answer", |rig| rig.client.poll()).outcome.unwrap();
    };
    rig.client.start(put(vec![1; 60_000])).unwrap();
    let (_, first) = next(&mut rig);
    rig.client.start(put(vec![1; 90_000])).unwrap();
    // Two of them would fit.
    rig.client.start(put(vec![1; 60_001])).unwrap();
    // It needs no memory, and may pass.
    rig.client.start(call(NULL, vec![])).unwrap();
    let (length, null) = next(&mut rig);
    assert_eq!(length, 0);
    rig.server.responders[0].answer(null, Answer::success(vec![]));
    rig.until("an answer", |rig| rig.client.poll()).outcome.unwrap();
    // Time for the others to arrive, if they could.
    for _ in 0..200 {
        rig.server.step();
        assert!(rig.client.poll().is_none() && rig.server.requests.is_empty());
    }
    answer(&mut rig, first);
    for expected in [90_000, 60_001] {
        let (length, token) = next(&mut rig);
        assert_eq!(length, expected);
        answer(&mut rig, token);
    }
}

#[test]
fn one_call_goes_first_and_then_as_many_as_were_granted() {
    let (mut client, mut raw) = requester(RequesterOptions { credits: 6, ..RequesterOptions::default() });
    for _ in 0..10 {
        client.start(call(NULL, vec![])).unwrap();
    }
    let mut open = vec![asked(&mut client, &mut raw).0];
    // Without a grant there is one credit; then the number in each reply, up to the requested one; zero counts as one.
    for (granted, expected) in [(2, 2), (4, 4), (1, 3), (1, 2), (1, 1), (0, 1), (60, 3)] {
        for _ in 0..300 {
            raw.context.poll();
            assert!(client.poll().is_none());
            assert!(raw.message().is_none(), "more than {} are under way", open.len());
        }
        let Header { xid, credits, .. } = open.remove(0);
        assert_eq!(credits, 6);
        raw.send(&reply(xid, granted, Chunks::default(), &[]));
        finished(&mut client, &raw).outcome.unwrap();
        while open.len() < expected {
            open.push(asked(&mut client, &mut raw).0);
        }
    }
    assert_eq!(client.credits().available(), 3);
    assert_eq!(client.stats().zero_grants, 1, "the counter explains why the calls went one by one");
}

#[test]
fn replies_that_are_wrong_are_dropped_and_the_call_goes_on() {
    let (mut client, mut raw) = requester(RequesterOptions::default());
    let id = client.start(get(10_000, vec![vec![0; 10_000]])).unwrap();
    let (header, _) = asked(&mut client, &mut raw);
    let (xid, offered) = (header.xid, header.chunks().unwrap().clone());
    let returned = |lengths: &[u32]| Chunks {
        writes: vec![lengths.iter().map(|&length| Segment { length, ..offered.writes[0][0] }).collect()],
        ..Chunks::default()
    };
    let right = reply(xid, 4, returned(&[10_000]), &[1, 10_000, 2]);
    let other_version = {
        let mut octets = right.clone();
        octets[7] = 2;
        octets
    };
    let done = [&right[..12], &3_u32.to_be_bytes()].concat();
    let reads = Chunks { reads: vec![ReadSegment::default()], ..returned(&[10_000]) };
    let no_message = Header { xid, credits: 4, body: Body::NoMessage(returned(&[10_000])) };
    let reply_chunk = Chunks { reply: Some(vec![]), ..returned(&[10_000]) };
    // A call by the responder (RFC 8167), which is not supported here.
    let backward = encode(
        &Header { xid: xid ^ 1, credits: 4, body: Body::Message(Chunks::default()) },
        &message(xid ^ 1, NULL, &[]),
    );
    let rows: Vec<(&str, Vec<u8>, DiscardReason)> = vec![
        ("nothing", vec![], DiscardReason::Short),
        ("another version", other_version, DiscardReason::Version),
        ("RDMA_DONE", done, DiscardReason::Done),
        ("a Read list", reply(xid, 4, reads, &[1, 10_000, 2]), DiscardReason::Header),
        ("to nothing", reply(xid ^ 2, 4, returned(&[10_000]), &[]), DiscardReason::Unexpected),
        ("a call", backward, DiscardReason::Unexpected),
        ("no Write list", reply(xid, 4, Chunks::default(), &[1, 10_000, 2]), DiscardReason::Unexpected),
        ("more segments", reply(xid, 4, returned(&[5000, 5000]), &[1, 10_000, 2]), DiscardReason::Unexpected),
        ("a longer segment", reply(xid, 4, returned(&[10_001]), &[1, 10_001, 2]), DiscardReason::Unexpected),
        ("a Reply chunk", reply(xid, 4, reply_chunk, &[1, 10_000, 2]), DiscardReason::Unexpected),
        ("RDMA_NOMSG without a Reply chunk", encode(&no_message, &[]), DiscardReason::Header),
    ];
    for (index, (what, octets, reason)) in rows.into_iter().enumerate() {
        raw.send(&octets);
        let deadline = Instant::now() + LONG;
        while client.stats().discarded < index as u64 + 1 {
            raw.context.poll();
            assert!(client.poll().is_none(), "{what}");
            assert!(Instant::now() < deadline, "{what}");
        }
        assert_eq!(client.stats().last_discard, Some(reason), "{what}");
    }
    raw.send(&right);
    let end = finished(&mut client, &raw);
    assert_eq!(end.id, id);
    assert_eq!(end.outcome.unwrap().results[1], Part::Item(vec![0; 10_000]));
}

#[test]
fn errors_and_wrong_results_end_a_call() {
    let (mut client, mut raw) = requester(RequesterOptions::default());
    let mut end = |call, answer: &dyn Fn(u32, &Chunks) -> Vec<u8>| {
        client.start(call).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        raw.send(&answer(header.xid, header.chunks().unwrap()));
        finished(&mut client, &raw).outcome
    };
    let error = |error| {
        move |xid, _: &Chunks| encode(&Header { xid, credits: 1, body: Body::Error { version: 1, error } }, &[])
    };
    assert!(matches!(end(call(NULL, vec![]), &error(RdmaError::Chunk)), Err(CallError::Chunk)));
    let versions = error(RdmaError::Version { low: 2, high: 3 });
    assert!(matches!(end(call(NULL, vec![]), &versions), Err(CallError::Version { low: 2, high: 3 })));
    let get = || get(10_000, vec![vec![0; 10_000]]);
    let unused = |xid, offered: &Chunks| {
        let mut chunks = offered.clone();
        chunks.writes[0][0].length = 0;
        // The data is inline, although a chunk was free.
        reply(xid, 1, chunks, &[1, 4, 0, 2])
    };
    assert!(matches!(end(get(), &unused), Err(CallError::Reply(WalkError::NotReduced))));
    let other_length = |xid, offered: &Chunks| reply(xid, 1, offered.clone(), &[1, 5000, 2]);
    assert!(matches!(end(get(), &other_length), Err(CallError::Reply(WalkError::Garbage))));
    let not_rpc = |xid: u32, offered: &Chunks| {
        encode(
            &Header { xid, credits: 1, body: Body::Message(offered.clone()) },
            &[xid.to_be_bytes(), [0, 0, 0, 7]].concat(),
        )
    };
    assert!(matches!(end(get(), &not_rpc), Err(CallError::Reply(WalkError::Garbage))));
    // The connection bears all that.
    let right = |xid, _: &Chunks| reply(xid, 1, Chunks::default(), &[]);
    assert!(end(call(NULL, vec![]), &right).is_ok());
}

/// RFC 8166 §3.3.1: a grant of zero would stop all calls. Not even a server without room for a call sends one.
#[test]
fn a_grant_is_never_zero() {
    for (credits, room, connections) in [(0, usize::MAX, 1), (8, 0, 2), (8, 1, 3)] {
        let (here, mut server) = server(ResponderOptions { credits, ..ResponderOptions::default() });
        server.common = Arc::new(Common::new(room));
        let mut peers: Vec<_> = (0..connections).map(|_| Raw::connect(&here, &mut server, b"")).collect();
        let right = call_message(Chunks::default(), NULL, &[]);
        for raw in &mut peers {
            // A reply, an error, a reply.
            for octets in [&right[..], &right[..60], &right[..]] {
                raw.send(octets);
                let (header, _) = parse_reply(&said(raw, &mut server)).unwrap();
                assert_eq!(header.credits, 1, "{credits} credits, room for {room} calls");
            }
        }
    }
}

/// RFC 8166 §4.3.2.2: a responder may write to a chunk and then not use it.
#[test]
fn memory_of_an_unused_chunk_comes_back_as_it_was_left() {
    let (mut client, mut raw) = requester(RequesterOptions::default());
    for error in [false, true] {
        client.start(get(10_000, vec![vec![0x11; 10_000]])).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        let offered = header.chunks().unwrap().clone();
        let segment = offered.writes[0][0];
        raw.memory.write(0, &[0xaa; 100]).unwrap();
        let entry = [raw.memory.sge(..100).unwrap()];
        let write = uwarp::SendRequest::write(5, &entry, segment.handle, segment.offset);
        raw.queue_pair.send.post(&[write]).unwrap();
        let unused = Chunks { writes: vec![vec![Segment { length: 0, ..segment }]], ..Chunks::default() };
        let xid = header.xid;
        raw.send(&match error {
            false => reply(xid, 4, unused, &[1, 0, 2]),
            true => {
                let body = Body::Error { version: 1, error: RdmaError::Chunk };
                encode(&Header { xid, credits: 4, body }, &[])
            }
        });
        let end = finished(&mut client, &raw);
        match end.outcome {
            // None of the written octets count as a result.
            Ok(reply) => assert_eq!(reply.results, get_results(0)),
            Err(CallError::Chunk) => assert!(error),
            Err(other) => panic!("{other}"),
        }
        if error {
            let expected = [[0xaa; 100].as_slice(), &[0x11; 9_900]].concat();
            assert_eq!(end.rooms, [expected], "changed, and all of it there");
        }
    }
}
