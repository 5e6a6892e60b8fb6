//! Hostile peers: the connection ends with the code that the documents require, other connections continue, and memory
//! stays within its bounds.

mod common;

use common::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing_subscriber::util::SubscriberInitExt;
use uwarp::{Context, DisconnectReason, SendRequest, Status as WorkStatus, TerminateCode};
use uwarp_rpcrdma::header::{Body, Chunks, Header, RdmaError, ReadSegment, Segment, parse_reply};
use uwarp_rpcrdma::private_data::PrivateData;
use uwarp_rpcrdma::requester::{CallError, Registration, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::ResponderOptions;
use uwarp_rpcrdma::walk::Part;

const fn code(layer: u8, error_type: u8, code: u8) -> TerminateCode {
    TerminateCode { layer, error_type, code }
}

/// A Read Request that RDMAP refuses (RFC 5040 §8.2.1), and a Write that DDP refuses (RFC 5041 §8.2).
const READ_INVALID: TerminateCode = code(0, 1, 0);
const READ_BOUNDS: TerminateCode = code(0, 1, 1);
const READ_RIGHTS: TerminateCode = code(0, 1, 2);
const READ_FOREIGN: TerminateCode = code(0, 1, 3);
/// DDP has no code for a missing right.
const WRITE_INVALID: TerminateCode = code(1, 1, 0);
const WRITE_BOUNDS: TerminateCode = code(1, 1, 1);
const WRITE_FOREIGN: TerminateCode = code(1, 1, 2);
/// A Send for which no receive is posted, and one that is longer than its receive.
const NO_RECEIVE: TerminateCode = code(1, 2, 2);
const TOO_LONG: TerminateCode = code(1, 2, 5);

fn registered(context: &Context) -> u64 {
    context.stats().objects.registered_octets
}

fn once() -> RequesterOptions {
    RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() }
}

/// Turns a responder until this many connections have ended, and returns why the last one did.
fn over(raw: &mut Raw, server: &mut Server, count: usize) -> Option<DisconnectReason> {
    let deadline = Instant::now() + LONG;
    while server.over.len() < count {
        raw.context.poll();
        server.step();
        while raw.completion().is_some() {}
        assert!(Instant::now() < deadline, "the connection lives on");
    }
    server.over[count - 1].reason
}

/// Calls with arguments of 10,000 octets in a Read chunk, with results of as many in a Write chunk, and with a reply in
/// a Reply chunk.
fn calls() -> [uwarp_rpcrdma::requester::Call; 3] {
    [put(vec![1; 10_000]), get(10_000, vec![vec![0; 10_000]]), echo(&[1; 10_000])]
}

/// The chunk of the requested kind.
fn chunk(header: &Header, which: usize) -> Segment {
    let chunks = header.chunks().unwrap();
    match which {
        0 => chunks.reads[0].segment,
        1 => chunks.writes[0][0],
        _ => chunks.reply.as_ref().unwrap()[0],
    }
}

/// Reads or writes 100 octets of the other side's memory, and returns how that and the connection ended.
fn touch(raw: &mut Raw, write: bool, handle: u32, offset: u64) -> (WorkStatus, DisconnectReason) {
    let entry = [raw.memory.sge(..100).unwrap()];
    let request = if write {
        SendRequest::write(5, &entry, handle, offset)
    } else {
        SendRequest::read(5, &entry, handle, offset)
    };
    raw.queue_pair.send.post(&[request.signalled()]).unwrap();
    (raw.status(5), raw.reason())
}

/// A refused Read reports it. A Write completes when it is sent.
fn refused(write: bool, code: TerminateCode) -> (WorkStatus, DisconnectReason) {
    let status = if write { WorkStatus::Success } else { WorkStatus::RemoteAccess };
    (status, DisconnectReason::PeerTerminated(code))
}

#[test]
fn memory_is_open_only_for_what_the_call_needs_it_for() {
    for registration in BOTH {
        // Arguments can be read but not written, result buffers and Reply chunks written but not read, and nothing
        // beyond its end.
        for (which, write, at, code) in [
            (0, true, 0, WRITE_INVALID),
            (0, false, 9901, READ_BOUNDS),
            (1, false, 0, READ_RIGHTS),
            (1, true, 9901, WRITE_BOUNDS),
            (2, false, 0, READ_RIGHTS),
            (2, true, u64::MAX, WRITE_BOUNDS),
        ] {
            let (mut client, mut raw) = requester(RequesterOptions { registration, ..once() });
            let call = calls()[which].clone();
            client.start(call.clone()).unwrap();
            let segment = chunk(&asked(&mut client, &mut raw).0, which);
            let at = if at == u64::MAX { u64::from(segment.length) - 99 } else { at };
            assert_eq!(touch(&mut raw, write, segment.handle, segment.offset + at), refused(write, code), "{which}");
            let end = finished(&mut client, &raw);
            assert!(matches!(end.outcome, Err(CallError::Lost)));
            assert_eq!((end.arguments, end.rooms), (call.arguments, call.rooms), "nothing was changed");
        }
    }
}

#[test]
fn nothing_reaches_the_memory_of_a_call_that_has_ended() {
    for registration in BOTH {
        for (cancelled, write) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut client, mut raw) = requester(RequesterOptions { registration, ..once() });
            let id = client.start(get(10_000, vec![vec![0x11; 10_000]])).unwrap();
            let (header, _) = asked(&mut client, &mut raw);
            let segment = chunk(&header, 1);
            let end = if cancelled {
                client.cancel(id);
                let end = client.poll().unwrap();
                assert!(matches!(end.outcome, Err(CallError::Cancelled)));
                assert_eq!(end.rooms, [vec![0x11; 10_000]], "the memory is back");
                end
            } else {
                raw.send(&reply(header.xid, 4, header.chunks().unwrap().clone(), &[1, 10_000, 2]));
                finished(&mut client, &raw)
            };
            drop(end);
            // A fast region stays until its next use, and gives access to nothing.
            let read = if registration == Registration::Together { READ_RIGHTS } else { READ_INVALID };
            let code = if write { WRITE_INVALID } else { read };
            assert_eq!(touch(&mut raw, write, segment.handle, segment.offset), refused(write, code));
        }
    }
}

#[test]
fn a_handle_of_one_connection_is_none_on_another() {
    for registration in BOTH {
        for (which, write) in [(0, false), (1, true), (2, true)] {
            let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
            let mut listener = there.listen(PORT, Default::default()).unwrap();
            let own = PrivateData { remote_invalidation: true, send_size: 4096, receive_size: 4096 };
            let mut ends = Vec::new();
            for _ in 0..2 {
                let peer = there.socket_address(PORT);
                let mut client =
                    Requester::start_connect(&here, peer, bindings(), RequesterOptions { registration, ..once() })
                        .unwrap();
                let mut raw = Raw::accept(&there, &mut listener, &mut client, &own.to_octets());
                raw.other = Some(here.clone());
                client.start(calls()[which].clone()).unwrap();
                let segment = chunk(&asked(&mut client, &mut raw).0, which);
                ends.push((client, raw, segment));
            }
            let foreign = ends[0].2;
            let (client, raw, own) = &mut ends[1];
            assert_ne!(foreign.handle, own.handle);
            let code = if write { WRITE_FOREIGN } else { READ_FOREIGN };
            assert_eq!(touch(raw, write, foreign.handle, foreign.offset), refused(write, code));
            assert!(matches!(finished(client, raw).outcome, Err(CallError::Lost)), "the connection has failed");
            // The connection that the handle belongs to has not failed.
            let (client, raw, own) = &mut ends[0];
            let entry = [raw.memory.sge(..100).unwrap()];
            let request = if write {
                SendRequest::write(5, &entry, own.handle, own.offset)
            } else {
                SendRequest::read(5, &entry, own.handle, own.offset)
            };
            raw.queue_pair.send.post(&[request.signalled()]).unwrap();
            assert_eq!(raw.status(5), WorkStatus::Success);
            raw.send(&encode(
                &Header { xid: 0, credits: 1, body: Body::Error { version: 1, error: RdmaError::Chunk } },
                &[],
            ));
            received_wrong(client, raw, 1);
        }
    }
}

/// Turns a requester until it has dropped this many messages.
fn received_wrong(client: &mut Requester, raw: &Raw, count: u64) {
    let deadline = Instant::now() + LONG;
    while client.stats().discarded < count {
        raw.context.poll();
        assert!(client.poll().is_none());
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_call_that_breaks_the_connection_is_refused_on_the_next() {
    let read = |segment| {
        let reads = vec![ReadSegment { position: 48, segment }];
        call_message(Chunks { reads, ..Chunks::default() }, PUT, &[7, 5000, 9])
    };
    let write = |segment| call_message(Chunks { writes: vec![vec![segment]], ..Chunks::default() }, GET, &[5000]);
    // Without a Write chunk the results are too long for a Send.
    let long = |segment| call_message(Chunks { reply: Some(vec![segment]), ..Chunks::default() }, GET, &[4000]);
    type Form<'a> = &'a dyn Fn(Segment) -> Vec<u8>;
    let forms: [(Form<'_>, [TerminateCode; 3]); 3] = [
        (&read, [READ_INVALID, READ_FOREIGN, READ_BOUNDS]),
        (&write, [WRITE_INVALID, WRITE_FOREIGN, WRITE_BOUNDS]),
        (&long, [WRITE_INVALID, WRITE_FOREIGN, WRITE_BOUNDS]),
    ];
    for (form, codes) in forms {
        for (which, code) in codes.into_iter().enumerate() {
            let (here, mut server) = server(ResponderOptions::default());
            // Another connection of the same peer continues, whatever happens.
            let mut other = Raw::connect(&here, &mut server, b"");
            let before = registered(&server.context);
            // A refused Read identifies its call. A Write does not, so the call must be a suspect twice.
            let read = code.layer == 0;
            let mut octets = Vec::new();
            let last = if read { 1 } else { 2 };
            for connection in 1..=last {
                let mut raw = Raw::connect(&here, &mut server, b"");
                let (handle, offset) = raw.place();
                let segment = match which {
                    0 => Segment { handle: 0xdead_be00, length: 5000, offset: 0 },
                    1 => Segment { handle: other.place().0, length: 5000, offset: other.place().1 },
                    _ => Segment { handle, length: 5000, offset: offset + RAW_MEMORY as u64 - 1000 },
                };
                octets = form(segment);
                raw.send(&octets);
                assert_eq!(over(&mut raw, &mut server, 1 + connection), Some(DisconnectReason::PeerTerminated(code)));
                assert_eq!(raw.reason(), DisconnectReason::LocalTerminated(code));
            }
            // Memory that was read into, or written from, is returned with the connection.
            server.responders.truncate(1);
            server.over.truncate(1);
            assert_eq!(registered(&server.context), before);
            let mut raw = Raw::connect(&here, &mut server, b"");
            raw.send(&octets);
            let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
            assert_eq!(header.body, Body::Error { version: 1, error: RdmaError::Chunk });
            for raw in [&mut raw, &mut other] {
                raw.send(&call_message(Chunks::default(), NULL, &[]));
                let (header, _) = parse_reply(&said(raw, &mut server)).unwrap();
                assert!(matches!(header.body, Body::Message(_)), "that XID is free again");
            }
        }
    }
}

#[test]
fn a_requester_that_ignores_its_credits_or_the_size_of_messages_loses_only_its_own_connection() {
    // One call more than there are receives, and one octet more than a receive has.
    for (count, length, code) in [(3, 28 + 40, NO_RECEIVE), (1, 1025, TOO_LONG)] {
        let options = ResponderOptions { credits: 2, receive_size: 1024, ..ResponderOptions::default() };
        let (here, mut server) = server(options);
        server.answers = false;
        let mut good = Raw::connect(&here, &mut server, b"");
        let mut raw = Raw::connect(&here, &mut server, b"");
        let before = registered(&server.context);
        let mut octets = call_message(Chunks::default(), NULL, &[]);
        octets.resize(length, 0);
        for _ in 0..count {
            raw.send(&octets);
        }
        assert_eq!(over(&mut raw, &mut server, 2), Some(DisconnectReason::LocalTerminated(code)));
        assert_eq!(raw.reason(), DisconnectReason::PeerTerminated(code));
        let calls = server.responders[1].stats().calls;
        assert_eq!(calls, if code == NO_RECEIVE { 2 } else { 0 }, "those that there are receives for");
        assert_eq!(registered(&server.context), before);
        server.answers = true;
        good.send(&call_message(Chunks::default(), NULL, &[]));
        let (header, _) = parse_reply(&said(&mut good, &mut server)).unwrap();
        assert_eq!(header.credits, 2);
    }
}

#[test]
fn a_responder_that_answers_what_was_not_asked_or_at_too_great_length_loses_its_connection() {
    // One reply more than there are receives, and one octet more than a receive has.
    for (count, length, code) in [(3, 28, NO_RECEIVE), (1, 1025, TOO_LONG)] {
        let (mut client, mut raw) = requester(RequesterOptions { credits: 2, receive_size: 1024, ..once() });
        let id = client.start(put(vec![1; 10_000])).unwrap();
        asked(&mut client, &mut raw);
        let mut octets = reply(1, 4, Chunks::default(), &[]);
        octets.resize(length, 0);
        for _ in 0..count {
            raw.send(&octets);
        }
        assert_eq!(raw.reason(), DisconnectReason::PeerTerminated(code));
        let end = finished(&mut client, &raw);
        assert_eq!((end.id, end.arguments), (id, put(vec![1; 10_000]).arguments));
        assert!(matches!(end.outcome, Err(CallError::Lost)));
        // All of the connection's memory is free.
        assert_eq!(registered(raw.other.as_ref().unwrap()), 0);
    }
}

/// The longest possible chunks are a few words, whatever sizes they claim: only what is read or written takes memory
/// here.
#[test]
fn chunks_for_results_take_no_memory_before_there_are_results() {
    const CREDITS: usize = 8;
    let segments = |count: u64| {
        let segment = |at| Segment { handle: 1, length: u32::MAX, offset: at << 32 };
        (0..count).map(segment).collect::<Vec<_>>()
    };
    let offers = [
        Chunks { writes: vec![segments(230)], ..Chunks::default() },
        Chunks { writes: vec![segments(1); 160], ..Chunks::default() },
        Chunks { reply: Some(segments(230)), ..Chunks::default() },
        Chunks { writes: vec![segments(100)], reply: Some(segments(100)), ..Chunks::default() },
    ];
    for offer in offers {
        let (here, mut server) = server(ResponderOptions { credits: CREDITS as u32, ..ResponderOptions::default() });
        server.answers = false;
        let own = PrivateData { remote_invalidation: false, send_size: 4096, receive_size: 4096 };
        let mut raw = Raw::connect(&here, &mut server, &own.to_octets());
        let before = registered(&server.context);
        let octets = call_message(offer, NULL, &[]);
        assert!(octets.len() <= 4096);
        let memory = allocation_counter::measure(|| {
            for count in 1..=CREDITS {
                raw.send(&octets);
                received(&raw, &mut server, count as u64);
            }
            while server.requests.len() < CREDITS {
                server.step();
            }
        });
        if !uwarp_middlebox::is_skipped("pieces of segments in process are on the heap") {
            // In proportion to what was received: the lists of each, and one message.
            assert!(memory.bytes_max < 5 * (CREDITS as u64 + 1) * 4096, "{memory:?}");
        }
        assert_eq!(registered(&server.context), before);
        assert_eq!(server.responders[0].stats().memory_peak, 0);
        for _ in 0..CREDITS {
            server.answer_next();
            let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
            let Body::Message(returned) = header.body else { panic!("{header:?}") };
            let mut all = returned.writes.iter().chain(&returned.reply).flatten();
            assert!(all.all(|segment| segment.length == 0), "all unused");
        }
        assert_eq!(registered(&server.context), before);
    }
}

/// Results that the peer's engine does not accept are kept for as many calls as have credits, and then freed.
#[test]
fn results_that_are_not_taken_stay_within_the_credits() {
    const CREDITS: u64 = 4;
    const LENGTH: usize = 50_000;
    for long in [false, true] {
        let (here, mut server) = server(ResponderOptions { credits: CREDITS as u32, ..ResponderOptions::default() });
        let mut raw = Raw::connect(&here, &mut server, b"");
        let before = registered(&server.context);
        let (handle, offset) = raw.place();
        let segment = Segment { handle, length: 2 * LENGTH as u32, offset };
        let chunks = if long {
            Chunks { reply: Some(vec![segment]), ..Chunks::default() }
        } else {
            Chunks { writes: vec![vec![segment]], ..Chunks::default() }
        };
        let octets = call_message(chunks, GET, &[LENGTH as u32]);
        for _ in 0..CREDITS {
            raw.send(&octets);
        }
        // From here on the peer stands still.
        for _ in 0..2000 {
            server.step();
        }
        let kept = registered(&server.context) - before;
        let most = CREDITS * (LENGTH as u64 + 100);
        assert!(kept > 0 && kept <= most, "{kept} octets");
        for _ in 0..CREDITS {
            let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
            assert_eq!(matches!(header.body, Body::NoMessage(_)), long);
        }
        for _ in 0..200 {
            raw.context.poll();
            server.step();
        }
        assert_eq!(registered(&server.context), before, "the replies have left");
    }
}

/// Whatever a responder sends, and however often, is processed in existing memory.
#[test]
fn wrong_replies_take_no_memory() {
    const ROUNDS: u64 = 200;
    let (mut client, mut raw) = requester(RequesterOptions { credits: 4, ..once() });
    let here = raw.other.clone().unwrap();
    client.start(get(10_000, vec![vec![0; 10_000]])).unwrap();
    let (header, _) = asked(&mut client, &mut raw);
    let before = registered(&here);
    let offered = header.chunks().unwrap().clone();
    let segments = |count| vec![Segment { length: u32::MAX, ..offered.writes[0][0] }; count];
    let replies = [
        // Longer than offered, more than offered, and where nothing was offered.
        reply(header.xid, 9, Chunks { writes: vec![segments(1)], ..Chunks::default() }, &[1, 10_000, 2]),
        reply(header.xid, 9, Chunks { writes: vec![segments(240)], ..Chunks::default() }, &[]),
        reply(header.xid, 9, Chunks { writes: vec![vec![]; 400], ..Chunks::default() }, &[]),
        reply(header.xid, 9, Chunks { reply: Some(segments(240)), ..offered.clone() }, &[1, 10_000, 2]),
        encode(
            &Header {
                xid: header.xid,
                credits: 9,
                body: Body::NoMessage(Chunks { reply: Some(segments(1)), ..offered.clone() }),
            },
            &[],
        ),
        // To nothing.
        reply(header.xid ^ 1, u32::MAX, Chunks { writes: vec![segments(240)], ..Chunks::default() }, &[]),
        // A count that nothing could stand behind.
        [
            &encode(&Header { xid: header.xid, credits: 1, body: Body::Message(Chunks::default()) }, &[])[..20],
            &1_u32.to_be_bytes(),
            &u32::MAX.to_be_bytes(),
        ]
        .concat(),
    ];
    let memory = allocation_counter::measure(|| {
        for round in 0..ROUNDS {
            let octets = &replies[round as usize % replies.len()];
            assert!(octets.len() <= 4096);
            raw.send(octets);
            received_wrong(&mut client, &raw, round + 1);
        }
    });
    if !uwarp_middlebox::is_skipped("pieces of segments in process are on the heap") {
        // A few times the size of a message, however many there are.
        assert!(memory.bytes_max < 8 * 4096, "{memory:?}");
    }
    assert_eq!(registered(&here), before);
    raw.send(&reply(header.xid, 4, offered, &[1, 10_000, 2]));
    assert_eq!(finished(&mut client, &raw).outcome.unwrap().results[1], Part::Item(vec![0; 10_000]));
}

/// Turns a requester for a while, in which nothing may end and no call may arrive.
fn quiet(client: &mut Requester, raw: &mut Raw) {
    for _ in 0..300 {
        raw.turn();
        assert!(client.poll().is_none());
        assert!(raw.message().is_none(), "there is no credit");
    }
}

/// An invalid reply frees no credit. When no credit is left and the application waits for none of their calls, the
/// requester reconnects.
#[test]
fn wrong_replies_do_not_use_up_the_credits_for_good() {
    type Wrong = fn(&Header) -> Vec<u8>;
    let cases: [(&str, Wrong); 4] = [
        ("undecodable", |_| vec![0; 27]),
        ("to nothing", |header| reply(header.xid ^ 1, 4, Chunks::default(), &[])),
        ("to another version", |header| {
            let mut octets = reply(header.xid, 4, header.chunks().unwrap().clone(), &[1, 10_000, 2]);
            octets[7] = 2;
            octets
        }),
        ("other chunks", |header| reply(header.xid, 4, Chunks::default(), &[1, 10_000, 2])),
    ];
    let own = PrivateData { remote_invalidation: true, send_size: 4096, receive_size: 4096 };
    for (index, (what, wrong)) in cases.into_iter().enumerate() {
        let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
        let mut listener = there.listen(PORT, Default::default()).unwrap();
        let peer = there.socket_address(PORT);
        let mut client = Requester::start_connect(&here, peer, bindings(), RequesterOptions::default()).unwrap();
        let mut raw = Raw::accept(&there, &mut listener, &mut client, &own.to_octets());
        // Two credits.
        client.start(call(NULL, vec![])).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        raw.send(&reply(header.xid, 2, Chunks::default(), &[]));
        finished(&mut client, &raw).outcome.unwrap();
        let get = || get(10_000, vec![vec![0x11; 10_000]]);
        let calls = [client.start(get()).unwrap(), client.start(get()).unwrap()];
        let headers = [(); 2].map(|()| asked(&mut client, &mut raw).0);
        let third = client.start(call(NULL, vec![])).unwrap();
        raw.send(&wrong(&headers[0]));
        received_wrong(&mut client, &raw, 1);
        // The application waits for both, then for one.
        quiet(&mut client, &mut raw);
        client.cancel(calls[0]);
        assert!(matches!(client.poll().unwrap().outcome, Err(CallError::Cancelled)));
        quiet(&mut client, &mut raw);
        let is_given_up_last = index >= 2;
        if is_given_up_last {
            raw.send(&wrong(&headers[1]));
            received_wrong(&mut client, &raw, 2);
            quiet(&mut client, &mut raw);
            assert_eq!(client.stats().connections, 1, "{what}");
        }
        match index % 2 {
            0 => client.abandon(calls[1]),
            _ => {
                client.cancel(calls[1]);
                assert!(client.poll().is_some());
            }
        }
        if !is_given_up_last {
            // The application no longer waits, but the second call may still be answered.
            quiet(&mut client, &mut raw);
            assert_eq!(client.stats().connections, 1, "{what}");
            raw.send(&wrong(&headers[1]));
        }
        // Waiting calls are sent on the next connection.
        let mut next = Raw::accept(&there, &mut listener, &mut client, &own.to_octets());
        next.other = Some(here.clone());
        let (header, _) = asked(&mut client, &mut next);
        next.send(&reply(header.xid, 2, Chunks::default(), &[]));
        let end = finished(&mut client, &next);
        assert!(end.id == third && end.outcome.is_ok(), "{what}");
        let stats = client.stats();
        assert_eq!((stats.connections, stats.exhausted, stats.resent, stats.discarded), (2, 1, 0, 2), "{what}");
    }
}

/// Late replies free the credits of abandoned calls without costing the connection.
#[test]
fn calls_that_were_given_up_cost_no_connection_when_their_replies_come() {
    let (mut client, mut raw) = requester(once());
    for given_up in [Requester::cancel, Requester::abandon] {
        let id = client.start(call(NULL, vec![])).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        given_up(&mut client, id);
        while client.poll().is_some() {}
        let second = client.start(call(NULL, vec![])).unwrap();
        quiet(&mut client, &mut raw);
        raw.send(&reply(header.xid, 1, Chunks::default(), &[]));
        let (header, _) = asked(&mut client, &mut raw);
        raw.send(&reply(header.xid, 1, Chunks::default(), &[]));
        assert_eq!(finished(&mut client, &raw).id, second);
    }
    assert_eq!((client.stats().connections, client.stats().exhausted), (1, 0));
}

/// What is logged meanwhile.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_grant_of_nothing_is_logged_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = subscriber.set_default();
    let (mut client, mut raw) = requester(once());
    let peer = raw.context.socket_address(PORT);
    for granted in [1, 0, 0] {
        client.start(call(NULL, vec![])).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        raw.send(&reply(header.xid, granted, Chunks::default(), &[]));
        finished(&mut client, &raw).outcome.unwrap();
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| line.contains("grants no credit")).collect();
        assert_eq!(lines.len(), usize::from(granted == 0), "{text}");
        assert!(lines.iter().all(|line| line.contains("WARN") && line.contains(&format!("peer={peer}"))), "{text}");
    }
    assert_eq!(client.stats().zero_grants, 2);
}

/// Wrong replies end no call, so a peer that sends them without end must not take all of a requester's time.
#[test]
fn one_look_at_a_responder_handles_so_many_of_its_messages_and_no_more() {
    const REPLIES: u32 = 200;
    const MOST: u64 = 128;
    let (mut client, mut raw) = requester(RequesterOptions { credits: 256, ..once() });
    client.start(get(10, Vec::new())).unwrap();
    let (header, _) = asked(&mut client, &mut raw);
    for _ in 0..REPLIES {
        raw.send(&reply(header.xid ^ 1, 256, Chunks::default(), &[]));
        raw.turn();
    }
    assert!(client.poll().is_none());
    let discarded = client.stats().discarded;
    assert!((MOST / 2..=MOST).contains(&discarded), "{discarded}");
}

/// A call that is refused without the application returns its credit at once, so a peer that sends such calls without
/// end must not take all of the server's time.
#[test]
fn one_look_at_a_requester_handles_so_many_of_its_messages_and_no_more() {
    const CALLS: u32 = 400;
    const MOST: u64 = 128;
    let (here, mut server) = server(ResponderOptions { credits: CALLS, ..ResponderOptions::default() });
    let mut raw = Raw::connect(&here, &mut server, &[]);
    for xid in 0..CALLS {
        let header = Header { xid, credits: 4, body: Body::Message(Chunks::default()) };
        let words = [xid, 0, 2, PROGRAM + 100, VERSION, 0, 0, 0, 0, 0];
        raw.send(&encode(&header, &words.map(u32::to_be_bytes).concat()));
        raw.turn();
    }
    assert!(server.responders[0].poll().unwrap().is_none());
    let stats = server.responders[0].stats();
    assert!((1..=MOST).contains(&stats.replies), "{stats:?}");
}
