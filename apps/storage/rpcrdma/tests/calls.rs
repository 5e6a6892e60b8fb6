//! Calls between a requester and a responder: every way in which data can travel.

mod common;

use common::*;
use std::sync::Arc;
use uwarp::Context;
use uwarp_rpcrdma::binding::Greatest;
use uwarp_rpcrdma::plan::PlanError;
use uwarp_rpcrdma::requester::{Call, CallError, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, ResponderOptions};
use uwarp_rpcrdma::rpc::{OwnedAuth, RPCSEC_GSS, Status};
use uwarp_rpcrdma::walk::Part;

const SIZES: [usize; 11] = [0, 1, 3, 4, 5, 900, 1000, 4050, 5001, 65_536, 1_000_003];

fn sweep(requester: RequesterOptions, responder: ResponderOptions) {
    for registration in BOTH {
        let requester = RequesterOptions { registration, ..requester.clone() };
        let mut rig = Rig::new(requester, responder.clone());
        assert_eq!(rig.results(call(NULL, vec![])), []);
        for (index, size) in SIZES.into_iter().enumerate() {
            let data = pattern(index as u64, size);
            if size <= ECHO_MAX {
                let mut octets = Vec::new();
                uwarp_rpcrdma::xdr::put_opaque(&mut octets, &data);
                assert_eq!(rig.results(echo(&data)), [Part::Octets(octets)], "echo of {size}");
            }
            let call = put(data.clone());
            let finished = rig.call(call.clone());
            assert_eq!(finished.outcome.unwrap().results, put_results(&data), "put of {size}");
            assert_eq!(finished.arguments, call.arguments, "what was lent comes back");
            let room = vec![0xee; size];
            assert_eq!(rig.results(get(size, vec![room])), get_results(size), "get of {size}");
            assert_eq!(rig.results(get(size, vec![])), get_results(size), "get of {size} without a room");
            assert_eq!(rig.results(get(size, vec![vec![]])), get_results(size), "get of {size} inline");
            let small = size.min(50_000);
            assert_eq!(
                rig.results(put_two(data[..small].to_vec(), data[..small / 2].to_vec())),
                put_two_results(&data[..small], &data[..small / 2]),
                "two of {size}"
            );
            for (first, second) in [(size, size), (size, 0), (0, size), (7, size)] {
                let room = first.max(second);
                for rooms in [vec![room, second], vec![room], vec![0, second], vec![room, 0]] {
                    let rooms = rooms.into_iter().map(|length| vec![0; length]).collect();
                    assert_eq!(rig.results(get_two(first, second, rooms)), get_two_results(first, second));
                }
            }
        }
        assert_eq!(rig.client.stats().discarded, 0);
        assert_eq!(rig.server.responders[0].stats().discarded, 0);
        assert_eq!(rig.client.stats().connections, 1);
    }
}

#[test]
fn data_of_every_size_travels_both_ways() {
    sweep(RequesterOptions::default(), ResponderOptions::default());
}

#[test]
fn thresholds_may_be_small_and_differ_by_direction() {
    let requester = RequesterOptions { send_size: 1024, receive_size: 2048, ..RequesterOptions::default() };
    sweep(requester, ResponderOptions { receive_size: 16_384, ..ResponderOptions::default() });
    let requester = RequesterOptions { send_size: 8192, receive_size: 1024, ..RequesterOptions::default() };
    sweep(requester, ResponderOptions { credits: 1, ..ResponderOptions::default() });
}

#[test]
fn chunks_may_have_many_segments_and_more_than_reads_at_once() {
    let requester = RequesterOptions { segment: 20_001, reads: 1, ..RequesterOptions::default() };
    sweep(requester, ResponderOptions { reads: 1, ..ResponderOptions::default() });
}

/// Writes make no completions of their own: a reply with more of them than the queue pair holds still completes.
#[test]
fn a_result_may_have_more_segments_than_a_queue_pair_has_room_for() {
    const SEGMENT: usize = 64;
    const SEGMENTS: usize = 700;
    let requester = RequesterOptions {
        segment: SEGMENT as u32,
        send_size: 16_384,
        receive_size: 16_384,
        ..RequesterOptions::default()
    };
    let responder = ResponderOptions { send_size: 16_384, receive_size: 16_384, ..ResponderOptions::default() };
    let mut rig = Rig::new(requester, responder);
    let size = SEGMENT * SEGMENTS;
    for _ in 0..3 {
        assert_eq!(rig.results(get(size, vec![vec![0; size]])), get_results(size));
    }
    assert_eq!(rig.client.stats().connections, 1);
}

#[test]
fn a_responder_may_invalidate_what_a_call_has_one_handle_for() {
    for (here, there, expected) in [(true, true, true), (true, false, false), (false, true, false)] {
        let requester = RequesterOptions { remote_invalidation: here, ..RequesterOptions::default() };
        let mut rig =
            Rig::new(requester, ResponderOptions { remote_invalidation: there, ..ResponderOptions::default() });
        rig.results(call(NULL, vec![]));
        assert_eq!(rig.client.stats().invalidated, 0, "there was nothing to invalidate");
        rig.results(put(vec![1; 10_000]));
        rig.results(get(10_000, vec![vec![0; 10_000]]));
        rig.results(get(10_000, vec![]));
        assert_eq!(rig.client.stats().invalidated, if expected { 3 } else { 0 });
        rig.results(put_two(vec![1; 10_000], vec![1; 10_000]));
        assert_eq!(rig.client.stats().invalidated, if expected { 3 } else { 0 }, "several handles are left alone");
    }
}

#[test]
fn replies_too_long_for_a_send_come_in_the_reply_chunk() {
    let mut rig = Rig::plain();
    rig.results(echo(&[1; 3000]));
    assert_eq!(rig.server.responders[0].stats().long_replies, 0);
    rig.results(echo(&[1; 5000]));
    assert_eq!(rig.server.responders[0].stats().long_replies, 1);
    // The reply might be long, and is not.
    rig.results(put_two(vec![1; 4], vec![1; 4]));
    assert_eq!(rig.server.responders[0].stats().long_replies, 1);
}

#[test]
fn a_result_beyond_its_chunks_is_an_error_and_the_connection_stays() {
    let mut rig = Rig::plain();
    rig.server.answers = false;
    let id = rig.client.start(get(10_000, vec![vec![0; 10_000]])).unwrap();
    rig.until("the call", |rig| {
        rig.client.poll().map_or(rig.server.requests.pop_front(), |_| None).map(|(_, request)| {
            let too_long = vec![words(&[1, 10_001]), Part::Item(vec![0; 10_001]), words(&[2])];
            rig.server.responders[0].answer(request.token, Answer::success(too_long));
        })
    });
    assert!(matches!(rig.finish(id).outcome, Err(CallError::Chunk)));
    let id = rig.client.start(call(NULL, vec![])).unwrap();
    rig.until("the call", |rig| {
        rig.client.poll().map_or(rig.server.requests.pop_front(), |_| None).map(|(_, request)| {
            // No Reply chunk was needed for nothing.
            rig.server.responders[0].answer(request.token, Answer::success(vec![Part::Octets(vec![0; 5000])]));
        })
    });
    assert!(matches!(rig.finish(id).outcome, Err(CallError::Chunk)));
    rig.server.answers = true;
    assert_eq!(rig.results(get(10_000, vec![vec![0; 10_000]])), get_results(10_000));
    assert_eq!(rig.client.stats().connections, 1);
}

/// What a requester hears that asks for 10,000 octets and gets this answer.
fn status_of(answer: Answer) -> Status {
    let mut rig = Rig::plain();
    rig.server.answers = false;
    let id = rig.client.start(get(10_000, vec![vec![0; 10_000]])).unwrap();
    rig.until("the call", |rig| {
        let (_, request) = rig.client.poll().map_or(rig.server.requests.pop_front(), |_| None)?;
        rig.server.responders[0].answer(request.token, answer.clone());
        Some(())
    });
    rig.finish(id).outcome.unwrap().status
}

#[test]
fn results_that_the_binding_does_not_name_are_not_reduced() {
    let item = |length| Part::Item(vec![0; length]);
    let early = vec![words(&[1]), item(10_000), words(&[2, 3])];
    assert_eq!(status_of(Answer::success(early.clone())), Status::SystemError);
    let one_more = vec![words(&[1, 9000]), item(9000), words(&[2]), item(8)];
    assert_eq!(status_of(Answer::success(one_more)), Status::SystemError, "an item behind all that the binding names");
    let short = vec![words(&[1, 9004]), item(9000), words(&[2])];
    assert_eq!(status_of(Answer::success(short)), Status::SystemError, "an item that is not as long as its count");
    // A failure has no results, whatever the application left there.
    let failure = Answer { results: early, ..Answer::failure(Status::GarbageArguments) };
    assert_eq!(status_of(failure), Status::GarbageArguments);
}

#[test]
fn results_are_reduced_by_the_binding_of_their_program() {
    let mut rig = Rig::plain();
    rig.server.bindings = Arc::new([Arc::new(Program(PROGRAM)), Arc::new(Ineligible(ANOTHER))]);
    let room = || vec![vec![0; 10_000]];
    assert_eq!(rig.results(get(10_000, room())), get_results(10_000));
    let reply = rig.call(Call { program: ANOTHER, ..get(10_000, room()) }).outcome.unwrap();
    assert_eq!(reply.status, Status::SystemError);
}

#[test]
fn a_responder_counts_the_octets_that_it_reads() {
    let mut rig = Rig::plain();
    let data = pattern(1, 50_000);
    for calls in 1..=2 {
        assert_eq!(rig.results(put(data.clone())), put_results(&data));
        assert_eq!(rig.server.responders[0].stats().read, calls * 50_000);
    }
}

#[test]
fn two_programs_share_a_connection() {
    let mut rig = Rig::plain();
    // Until a first reply there is one credit.
    assert_eq!(rig.results(call(NULL, vec![])), []);
    rig.server.answers = false;
    let data = pattern(1, 20_000);
    let calls = [put(data.clone()), Call { program: ANOTHER, ..put(data.clone()) }, get(9000, vec![vec![0; 9000]])];
    let ids = calls.map(|call| rig.client.start(call).unwrap());
    rig.until("all calls", |rig| {
        assert!(rig.client.poll().is_none());
        (rig.server.requests.len() == 3).then_some(())
    });
    let mut programs: Vec<u32> = rig.server.requests.iter().map(|(_, request)| request.program).collect();
    programs.sort();
    assert_eq!(programs, [PROGRAM, PROGRAM, ANOTHER]);
    for _ in 0..3 {
        rig.server.answer_next();
    }
    let mut expected: Vec<_> =
        ids.into_iter().zip([put_results(&data), put_results(&data), get_results(9000)]).collect();
    while !expected.is_empty() {
        let finished = rig.until("the end of a call", |rig| rig.client.poll());
        let at = expected.iter().position(|(id, _)| *id == finished.id).expect("one of them, once");
        assert_eq!(finished.outcome.unwrap().results, expected.swap_remove(at).1);
    }
    assert_eq!((rig.server.responders.len(), rig.client.stats().connections), (1, 1));
}

#[test]
fn programs_versions_and_procedures_that_are_not_there() {
    struct Other;
    impl uwarp_rpcrdma::binding::Binding for Other {
        fn program(&self) -> u32 {
            100_227
        }
        fn versions(&self) -> std::ops::RangeInclusive<u32> {
            0..=u32::MAX
        }
        fn arguments(
            &self,
            _: u32,
            _: u32,
            _: &mut uwarp_rpcrdma::walk::Walk<'_>,
        ) -> Result<(), uwarp_rpcrdma::walk::WalkError> {
            Ok(())
        }
        fn results(
            &self,
            _: u32,
            _: u32,
            _: &mut uwarp_rpcrdma::walk::Walk<'_>,
        ) -> Result<(), uwarp_rpcrdma::walk::WalkError> {
            Ok(())
        }
        fn greatest(&self, _: u32, _: u32, _: &[u8]) -> Option<uwarp_rpcrdma::binding::Greatest> {
            Some(uwarp_rpcrdma::binding::Greatest::of(0))
        }
    }
    let (here, there) = uwarp::Context::pair_in_process(config(1), config(2)).unwrap();
    let server = Server::new(&there, ResponderOptions::default());
    let mut known = bindings();
    known.push(std::sync::Arc::new(Other));
    let peer = there.socket_address(PORT);
    let client =
        uwarp_rpcrdma::requester::Requester::start_connect(&here, peer, known, RequesterOptions::default()).unwrap();
    let mut rig = Rig { client, server, client_context: here };
    let status = |rig: &mut Rig, call: Call| rig.call(call).outcome.unwrap().status;
    // What a client of NFS does to find out about NFS_ACL.
    let probe = Call { program: 100_227, version: 3, ..Call::default() };
    assert_eq!(status(&mut rig, probe), Status::ProgramUnavailable);
    let old = Call { version: 1, ..call(NULL, vec![]) };
    assert_eq!(status(&mut rig, old), Status::ProgramMismatch { low: 2, high: 2 });
    assert_eq!(status(&mut rig, call(99, vec![])), Status::ProcedureUnavailable);
    let cut = call(PUT, vec![words(&[7, 100, 1])]);
    assert_eq!(status(&mut rig, cut), Status::GarbageArguments);
    assert_eq!(status(&mut rig, call(NULL, vec![])), Status::Success);
    let error = rig.client.start(Call { program: 5, ..Call::default() }).unwrap_err().error;
    assert!(matches!(error, CallError::Binding { program: 5, .. }), "{error}");
}

#[test]
fn what_can_never_be_sent_is_given_back_at_once() {
    let requester = RequesterOptions { segment: 64, ..RequesterOptions::default() };
    let mut rig = Rig::new(requester, ResponderOptions::default());
    rig.results(call(NULL, vec![]));
    let large = put(vec![1; 100_000]);
    let refused = rig.client.start(large.clone()).unwrap_err();
    let error = refused.error;
    assert!(matches!(error, CallError::Plan(PlanError::Header { limit: 4096, .. })), "{error}");
    assert_eq!(refused.call, large);
    let credential = OwnedAuth { flavor: RPCSEC_GSS, body: vec![0; 401] };
    let error = rig.client.start(Call { credential, ..call(NULL, vec![]) }).unwrap_err().error;
    assert!(matches!(error, CallError::Credential), "{error}");
    assert_eq!(rig.client.outstanding(), 0);
}

#[test]
fn what_cannot_be_registered_is_given_back() {
    let mut small = config(1);
    // The two of the connection's messages, and one more.
    small.limits.regions = 3;
    let (here, there) = Context::pair_in_process(small, config(2)).unwrap();
    let server = Server::new(&there, ResponderOptions::default());
    let client =
        Requester::start_connect(&here, there.socket_address(PORT), bindings(), RequesterOptions::default()).unwrap();
    let mut rig = Rig { client, server, client_context: here };
    let (first, second) = (pattern(1, 50_000), pattern(2, 60_000));
    let two = put_two(first, second);
    let finished = rig.call(two.clone());
    assert!(matches!(finished.outcome, Err(CallError::Verbs(_))), "{:?}", finished.outcome);
    assert_eq!(finished.arguments, two.arguments);
    let two = get_two(60_000, 50_000, vec![pattern(3, 60_000), pattern(4, 50_000)]);
    let finished = rig.call(two.clone());
    assert!(matches!(finished.outcome, Err(CallError::Verbs(_))), "{:?}", finished.outcome);
    assert_eq!(finished.rooms, two.rooms);
    // One at a time there is room for.
    assert_eq!(rig.results(put(pattern(5, 50_000))), put_results(&pattern(5, 50_000)));
}

fn gss(service: u32) -> OwnedAuth {
    let mut body: Vec<u8> = [1, 0, 42, service].into_iter().flat_map(u32::to_be_bytes).collect();
    // With a handle, as long as a credential may be.
    body.extend(380_u32.to_be_bytes());
    body.extend([7; 380]);
    OwnedAuth { flavor: RPCSEC_GSS, body }
}

#[test]
fn wrapped_arguments_travel_whole_in_long_calls_and_long_replies() {
    for service in [1, 2, 3] {
        let mut rig = Rig::plain();
        rig.server.answers = false;
        let data = pattern(9, 60_000);
        let mut call = get(60_000, vec![vec![0; 60_000]]);
        call.credential = gss(service);
        if service != 1 {
            let error = rig.client.start(call.clone()).unwrap_err().error;
            assert!(matches!(error, CallError::Greatest), "{error}");
            call.greatest = Some(Greatest::with_item(12, 60_000));
        }
        call.arguments.push(Part::Octets(data.clone()));
        let id = rig.client.start(call).unwrap();
        let (_, request) = rig.until("the call", |rig| {
            assert!(rig.client.poll().is_none());
            rig.server.requests.pop_front()
        });
        assert_eq!(request.credential, gss(service));
        let arguments: Vec<u8> = request.arguments.iter().flat_map(|part| part.octets().to_vec()).collect();
        assert_eq!(arguments[4..], data, "one long call");
        // The largest verifier fits too.
        let answer = Answer {
            verifier: OwnedAuth { flavor: RPCSEC_GSS, body: vec![8; 400] },
            ..Answer::success(get_results(60_000))
        };
        rig.server.responders[0].answer(request.token, answer);
        let reply = rig.finish(id).outcome.unwrap();
        assert_eq!(reply.verifier.body, [8; 400]);
        let stats = rig.server.responders[0].stats();
        assert_eq!(stats.long_replies, u64::from(service != 1));
        let whole: Vec<u8> = reply.results.iter().flat_map(|part| part.octets().to_vec()).collect();
        let expected: Vec<u8> = get_results(60_000).iter().flat_map(|part| part.octets().to_vec()).collect();
        assert_eq!(whole, expected);
        let items = reply.results.iter().filter(|part| matches!(part, Part::Item(_))).count();
        assert_eq!(items, usize::from(service == 1), "a wrapped result has no items");
    }
}

/// To the binding, the arguments are noise, and the results are longer than any that it knows.
#[test]
fn what_is_encrypted_travels_by_what_the_caller_says_of_it() {
    let mut rig = Rig::plain();
    rig.server.answers = false;
    let (question, answer) = (pattern(1, 60), pattern(2, 70_000));
    let mut call = call(ECHO, vec![Part::Octets(question.clone())]);
    (call.credential, call.greatest) = (gss(3), Some(Greatest::of(70_000)));
    let id = rig.client.start(call).unwrap();
    let (_, request) = rig.until("the call", |rig| {
        assert!(rig.client.poll().is_none());
        rig.server.requests.pop_front()
    });
    assert_eq!(request.arguments, [Part::Octets(question)]);
    let results = vec![Part::Octets(answer.clone())];
    rig.server.responders[0].answer(request.token, Answer::success(results.clone()));
    assert_eq!(rig.finish(id).outcome.unwrap().results, results);
    assert_eq!(rig.server.responders[0].stats().long_replies, 1);
}

#[test]
fn the_memory_of_results_comes_back_to_the_server() {
    let mut rig = Rig::plain();
    assert_eq!(rig.results(get(10_000, vec![vec![0; 10_000]])), get_results(10_000));
    rig.until("the end of the Send", |rig| (!rig.server.responders[0].is_sending()).then_some(()));
    let responder = &mut rig.server.responders[0];
    let Part::Item(sent) = &get_results(10_000)[1] else { panic!("no item") };
    assert_eq!(responder.reclaim().as_ref(), Some(sent));
    assert_eq!(responder.reclaim(), None);
    // What is not asked for is memory for other results.
    rig.results(get(10_000, vec![vec![0; 10_000]]));
    rig.until("the end of the Send", |rig| (!rig.server.responders[0].is_sending()).then_some(()));
    let responder = &mut rig.server.responders[0];
    assert_eq!(&responder.buffer(10_000), sent);
    assert_eq!(responder.buffer(10_000), [0; 10_000]);
}

#[test]
fn a_look_for_a_finished_call_that_may_take_no_time_returns_at_once() {
    let mut rig = Rig::plain();
    assert!(rig.client.next(std::time::Duration::ZERO).unwrap().is_none());
}
