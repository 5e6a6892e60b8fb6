//! Calls whose buffers share one STag per direction.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::time::Duration;
use uwarp::{Context, DisconnectReason, SendRequest, Status as WorkStatus, TerminateCode};
use uwarp_rpcrdma::binding::Greatest;
use uwarp_rpcrdma::header::{Chunks, Segment};
use uwarp_rpcrdma::requester::{Call, CallError, Registration, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::ResponderOptions;
use uwarp_rpcrdma::walk::Part;

/// Most buffers that share an STag.
const MOST: usize = 13;

fn together() -> RequesterOptions {
    RequesterOptions { registration: Registration::Together, reconnect: Duration::ZERO, ..RequesterOptions::default() }
}

/// The STags that the responder may read, and those that it may write.
fn handles(chunks: &Chunks) -> [BTreeSet<u32>; 2] {
    let written = chunks.writes.iter().chain(&chunks.reply).flatten();
    [chunks.reads.iter().map(|read| read.segment.handle).collect(), written.map(|segment| segment.handle).collect()]
}

/// A call whose arguments have `count` items of `length` octets.
fn items(count: usize, length: usize) -> Call {
    let item = |index| [words(&[length as u32]), Part::Item(pattern(index as u64, length))];
    call(PUT_TWO, (0..count).flat_map(item).collect())
}

/// Two rooms of 10,000 octets.
fn two_rooms() -> Call {
    get_two(10_000, 10_000, vec![vec![0; 10_000]; 2])
}

/// Sends an empty message that invalidates an STag of the requester.
fn invalidate(raw: &mut Raw, octets: &[u8], stag: u32) {
    raw.memory.write(0, octets).unwrap();
    let entry = [raw.memory.sge(..octets.len()).unwrap()];
    raw.queue_pair.send.post(&[SendRequest::send(5, &entry).invalidate(stag).signalled()]).unwrap();
    assert_eq!(raw.status(5), WorkStatus::Success);
}

#[test]
fn a_call_has_one_stag_for_each_direction() {
    for registration in BOTH {
        let (mut client, mut raw) = requester(RequesterOptions { registration, ..together() });
        let mut seen = BTreeSet::new();
        let is_joint = registration == Registration::Together;
        // PUT_TWO may have a long reply, for which there is a Reply chunk.
        for (call, each) in [(items(3, 2000), [3, 1]), (two_rooms(), [0, 2]), (echo(&[1; 10_000]), [1, 1])] {
            client.start(call).unwrap();
            let (header, _) = asked(&mut client, &mut raw);
            let chunks = header.chunks().unwrap();
            let handles = handles(chunks);
            let expected = if is_joint { each.map(|count| count.min(1)) } else { each };
            assert_eq!(handles.each_ref().map(BTreeSet::len), expected, "{registration:?}");
            for handle in handles.into_iter().flatten() {
                assert!(seen.insert(handle), "a fresh STag each time");
            }
            raw.send(&reply(header.xid, 4, unused(chunks), &[]));
            let _ = finished(&mut client, &raw).outcome;
        }
        assert_eq!((client.stats().connections, client.stats().replies), (1, 3));
    }
}

/// The chunks of a reply that puts nothing into them.
fn unused(offered: &Chunks) -> Chunks {
    let none = |segments: &Vec<Segment>| segments.iter().map(|segment| Segment { length: 0, ..*segment }).collect();
    Chunks { reads: vec![], writes: offered.writes.iter().map(none).collect(), reply: offered.reply.as_ref().map(none) }
}

#[test]
fn buffers_lie_behind_each_other_in_their_direction() {
    let options = RequesterOptions { segment: 6000, ..together() };
    let (mut client, mut raw) = requester(options);
    // The second of the two items ends in a segment of its own.
    client.start(put_two(pattern(1, 6000), pattern(2, 7001))).unwrap();
    let (header, _) = asked(&mut client, &mut raw);
    let reads: Vec<Segment> = header.chunks().unwrap().reads.iter().map(|read| read.segment).collect();
    let first = reads[0];
    let segment = |at, length| Segment { handle: first.handle, length, offset: first.offset + at };
    assert_eq!(reads, [segment(0, 6000), segment(6000, 6000), segment(12_000, 1001)]);
    let (handle, offset) = (first.handle, first.offset);
    let sink = [raw.memory.sge(..13_001).unwrap()];
    raw.queue_pair.send.post(&[SendRequest::read(5, &sink, handle, offset).signalled()]).unwrap();
    assert_eq!(raw.status(5), WorkStatus::Success);
    assert_eq!(raw.memory.to_vec(0, 13_001).unwrap(), [pattern(1, 6000), pattern(2, 7001)].concat());
    // Nothing lies behind them.
    raw.queue_pair.send.post(&[SendRequest::read(6, &sink, handle, offset + 1).signalled()]).unwrap();
    assert_eq!(raw.status(6), WorkStatus::RemoteAccess);
}

#[test]
fn a_reply_takes_a_whole_direction_back() {
    for registration in BOTH {
        let mut rig = Rig::registering(registration);
        for round in 1..=5 {
            rig.results(two_rooms());
            let expected = if registration == Registration::Together { round } else { 0 };
            assert_eq!(rig.client.stats().invalidated, expected);
        }
        assert_eq!(rig.client.stats().connections, 1);
    }
}

/// A region is registered again whether the peer has invalidated it or not, and its former STags are invalid: for the
/// memory that they were for, and for that of the call that now uses the region.
#[test]
fn former_stags_are_refused() {
    for case in 0..16 {
        let [remote_invalidation, cancelled, is_used, is_latest] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let (mut client, mut raw) = requester(RequesterOptions { remote_invalidation, ..together() });
        let call = items(2, 5000);
        let mut former = Vec::new();
        for _ in 0..4 {
            let id = client.start(call.clone()).unwrap();
            let (header, _) = asked(&mut client, &mut raw);
            let chunks = header.chunks().unwrap();
            let segment = chunks.reads[0].segment;
            if cancelled {
                client.cancel(id);
                assert_eq!(client.poll().unwrap().arguments, call.arguments);
            }
            let octets = reply(header.xid, 4, unused(chunks), &[0, 0]);
            let replies = client.stats().replies;
            if remote_invalidation {
                invalidate(&mut raw, &octets, segment.handle);
            } else {
                raw.send(&octets);
            }
            raw.until(|raw| {
                raw.turn();
                client.poll();
                client.stats().replies > replies
            });
            former.push(segment);
        }
        if is_used {
            client.start(call.clone()).unwrap();
            asked(&mut client, &mut raw);
        }
        let expected = if remote_invalidation { 4 } else { 0 };
        assert_eq!((client.stats().invalidated, client.stats().connections), (expected, 1), "{case:#b}");
        let sink = [raw.memory.sge(..100).unwrap()];
        let Segment { handle, offset, .. } = former[if is_latest { 3 } else { 0 }];
        raw.queue_pair.send.post(&[SendRequest::read(7, &sink, handle, offset).signalled()]).unwrap();
        assert_eq!(raw.status(7), WorkStatus::RemoteAccess);
        // Invalid STag (RFC 5040 §4.8).
        let code = TerminateCode { layer: 0, error_type: 1, code: 0 };
        assert_eq!(raw.reason(), DisconnectReason::PeerTerminated(code), "{case:#b}");
    }
}

/// The regions of a context, including those of its connections' messages.
fn regions(context: &Context) -> usize {
    context.stats().objects.regions
}

#[test]
fn fast_regions_serve_one_call_after_the_other_and_go_with_the_connection() {
    let mut options = together();
    options.reconnect = LONG;
    let mut rig = Rig::new(options, ResponderOptions::default());
    rig.results(call(NULL, vec![]));
    let context = rig.client_context.clone();
    let bare = regions(&context);
    for _ in 0..10 {
        rig.results(put_two(pattern(1, 9000), pattern(2, 9000)));
    }
    assert_eq!(regions(&context), bare + 2, "one for each direction");
    rig.server.responders.clear();
    assert_eq!(rig.results(put(pattern(3, 9000))), put_results(&pattern(3, 9000)));
    assert_eq!((regions(&context), rig.client.stats().connections), (bare + 1, 2));
}

#[test]
fn more_buffers_than_a_fast_region_takes_are_registered_each() {
    for count in [MOST, MOST + 1] {
        let (mut client, mut raw) = requester(together());
        let call = items(count, 1000);
        client.start(call.clone()).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        let [reads, writes] = handles(header.chunks().unwrap());
        assert_eq!((reads.len(), writes.len()), (if count > MOST { count } else { 1 }, 1));
        let sink = [raw.memory.sge(..1000).unwrap()];
        for (index, read) in header.chunks().unwrap().reads.iter().enumerate() {
            let Segment { handle, offset, .. } = read.segment;
            raw.queue_pair.send.post(&[SendRequest::read(5, &sink, handle, offset).signalled()]).unwrap();
            assert_eq!(raw.status(5), WorkStatus::Success);
            assert_eq!(raw.memory.to_vec(0, 1000).unwrap(), pattern(index as u64, 1000));
        }
        raw.send(&reply(header.xid, 4, unused(header.chunks().unwrap()), &[0, 0]));
        let end = finished(&mut client, &raw);
        assert_eq!(end.arguments, call.arguments);
        // The next one is registered together again.
        client.start(items(2, 3000)).unwrap();
        let (header, _) = asked(&mut client, &mut raw);
        assert_eq!(handles(header.chunks().unwrap())[0].len(), 1);
    }
}

/// As many calls at once as there are credits, each with two registrations: their requests have room in the send queue,
/// and those of a cancelled call take none from others.
#[test]
fn a_full_send_queue_holds_calls_back_and_loses_none() {
    for credits in [1, 8, 100] {
        let options = RequesterOptions { credits, registration: Registration::Together, ..RequesterOptions::default() };
        let mut rig = Rig::new(options, ResponderOptions { credits, ..ResponderOptions::default() });
        let (first, second) = (pattern(1, 1500), pattern(2, 1600));
        rig.results(call(NULL, vec![]));
        for _ in 0..3 {
            // Nothing is turned meanwhile: all of them are posted before the engine processes any.
            let mut open: Vec<_> =
                (0..2 * credits).map(|_| rig.client.start(put_two(first.clone(), second.clone())).unwrap()).collect();
            while !open.is_empty() {
                let finished = rig.until("the end of a call", |rig| rig.client.poll());
                open.retain(|id| *id != finished.id);
                assert_eq!(finished.outcome.unwrap().results, put_two_results(&first, &second));
            }
        }
        assert_eq!(rig.client.stats().connections, 1);
    }
}

/// Each call has the largest number of pieces. All of them are posted before the engine processes any.
#[test]
fn the_send_queue_has_room_for_all_that_the_credits_allow() {
    // The queue is rounded up to a power of two, which leaves the least room with this number.
    const CREDITS: u32 = 384;
    let (mut client, mut raw) = requester(RequesterOptions { credits: CREDITS, ..together() });
    let call = Call { greatest: Some(Greatest::of(5000)), ..items(MOST, 400) };
    client.start(call.clone()).unwrap();
    let (header, _) = asked(&mut client, &mut raw);
    raw.send(&reply(header.xid, CREDITS, unused(header.chunks().unwrap()), &[0, 0]));
    let _ = finished(&mut client, &raw).outcome;
    for _ in 0..CREDITS {
        client.start(call.clone()).unwrap();
    }
    // The first one's message is not known to be sent.
    assert_eq!((client.stats().sent, client.outstanding()), (u64::from(CREDITS), CREDITS as usize));
}

#[test]
fn what_has_no_room_for_its_fast_region_is_given_back() {
    let mut small = config(1);
    // The two of the connection's messages, a result buffer and a Reply chunk.
    small.limits.regions = 3;
    let (here, there) = Context::pair_in_process(small, config(2)).unwrap();
    let server = Server::new(&there, ResponderOptions::default());
    let client = Requester::start_connect(&here, there.socket_address(PORT), bindings(), together()).unwrap();
    let mut rig = Rig { client, server, client_context: here };
    let get = get(60_000, vec![pattern(3, 60_000)]);
    let finished = rig.call(get.clone());
    assert!(matches!(finished.outcome, Err(CallError::Verbs(_))), "{:?}", finished.outcome);
    assert_eq!(finished.rooms, get.rooms);
    assert_eq!(rig.results(call(NULL, vec![])), []);
    assert_eq!(rig.client.stats().connections, 1);
}

/// Nothing remains to be registered of a call that is cancelled before the engine has seen it. The requester
/// reconnects, and sends the other calls again.
#[test]
fn a_call_that_is_cancelled_at_once_harms_no_other() {
    let mut rig = Rig::registering(Registration::Together);
    rig.results(call(NULL, vec![]));
    for _ in 0..3 {
        let cancelled = rig.client.start(two_rooms()).unwrap();
        let other = rig.client.start(get(9000, vec![vec![0; 9000]])).unwrap();
        rig.client.cancel(cancelled);
        let end = rig.client.poll().unwrap();
        assert_eq!((end.id, end.rooms), (cancelled, vec![vec![0; 10_000]; 2]));
        assert_eq!(rig.finish(other).outcome.unwrap().results, get_results(9000));
    }
}
