//! Connections that end while calls are under way, and calls that are abandoned.

mod common;

use common::*;
use std::time::Duration;
use uwarp::ConnectOptions;
use uwarp_rpcrdma::requester::{CallError, RequesterOptions};
use uwarp_rpcrdma::responder::{Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::Status;

#[test]
fn calls_are_sent_again_after_the_connection_was_lost() {
    for registration in BOTH {
        let mut rig = Rig::registering(registration);
        rig.results(call(NULL, vec![]));
        for round in 0..5_u64 {
            rig.server.answers = false;
            let data = pattern(round, 50_000);
            let mut open = vec![
                rig.client.start(put(data.clone())).unwrap(),
                rig.client.start(get(70_000, vec![vec![0; 70_000]])).unwrap(),
                rig.client.start(echo(&data[..10_000])).unwrap(),
                rig.client.start(get(60_000, vec![])).unwrap(),
            ];
            let count = round as usize % 4 + 1;
            rig.until("calls", |rig| {
                assert!(rig.client.poll().is_none());
                (rig.server.requests.len() >= count).then_some(())
            });
            // Some were answered; the answers to others are lost.
            for _ in 0..count / 2 {
                rig.server.answer_next();
            }
            let xids: Vec<u32> = rig.server.requests.iter().map(|(_, request)| request.token.xid()).collect();
            rig.server.requests.clear();
            rig.server.responders.clear();
            rig.server.over.clear();
            let mut again = Vec::new();
            while !open.is_empty() {
                let finished = rig.until("the end of a call", |rig| {
                    if let Some((index, request)) = rig.server.requests.pop_front() {
                        again.push(request.token.xid());
                        let answer = serve(&request);
                        rig.server.responders[index].answer(request.token, answer);
                    }
                    rig.client.poll()
                });
                let at = open.iter().position(|id| *id == finished.id).expect("once each");
                open.remove(at);
                let results = finished.outcome.unwrap().results;
                let known = [put_results(&data), get_results(70_000), get_results(60_000), serve_echo(&data[..10_000])];
                assert!(known.contains(&results));
            }
            assert!(xids.iter().all(|xid| again.contains(xid)), "with the same XID, by which a server recognises them");
            rig.server.answers = true;
        }
        assert_eq!(rig.client.stats().connections, 6);
        assert!(rig.client.stats().resent >= 5);
    }
}

fn serve_echo(data: &[u8]) -> Vec<uwarp_rpcrdma::walk::Part> {
    echo(data).arguments
}

#[test]
fn calls_end_when_nobody_takes_the_connection_again() {
    for registration in BOTH {
        let options = RequesterOptions {
            registration,
            reconnect: Duration::from_millis(200),
            connect_timeout: Duration::from_millis(50),
            ..RequesterOptions::default()
        };
        let mut rig = Rig::new(options, ResponderOptions::default());
        rig.results(call(NULL, vec![]));
        rig.server.answers = false;
        let large = put(vec![3; 50_000]);
        let open = [rig.client.start(large.clone()).unwrap(), rig.client.start(call(NULL, vec![])).unwrap()];
        rig.until("the call", |rig| {
            assert!(rig.client.poll().is_none());
            (rig.server.requests.len() == 2).then_some(())
        });
        let Rig { mut client, server, .. } = rig;
        let context = server.context.clone();
        drop(server);
        let mut ended = Vec::new();
        let deadline = std::time::Instant::now() + LONG;
        while ended.len() < 2 {
            context.poll();
            if let Some(finished) = client.poll() {
                assert!(matches!(finished.outcome, Err(CallError::Lost)));
                if finished.id == open[0] {
                    assert_eq!(finished.arguments, large.arguments, "what was lent comes back");
                }
                ended.push(finished.id);
            }
            assert!(std::time::Instant::now() < deadline);
        }
        ended.sort_unstable();
        assert_eq!(ended, open);
        assert!(matches!(client.start(call(NULL, vec![])).unwrap_err().error, CallError::Lost));
    }
}

#[test]
fn a_responder_that_ends_every_connection_is_not_asked_for_ever() {
    let options = RequesterOptions { reconnect: Duration::from_millis(300), ..RequesterOptions::default() };
    let mut rig = Rig::new(options, ResponderOptions::default());
    rig.server.answers = false;
    let id = rig.client.start(echo(&[1; 10])).unwrap();
    let finished = rig.until("the end of the call", |rig| {
        rig.server.responders.iter_mut().for_each(Responder::disconnect);
        rig.client.poll()
    });
    assert_eq!(finished.id, id);
    assert!(matches!(finished.outcome, Err(CallError::Lost)), "{:?}", finished.outcome);
    // After 0, 10, 30, 70, 150 and 310 ms.
    let connections = rig.client.stats().connections;
    assert!((2..=7).contains(&connections), "{connections} connections");
}

#[test]
fn a_cancelled_call_costs_its_connection_and_no_other_call() {
    for registration in BOTH {
        let mut rig = Rig::registering(registration);
        rig.results(call(NULL, vec![]));
        rig.server.answers = false;
        let cancelled = rig.client.start(get(50_000, vec![vec![0; 50_000]])).unwrap();
        let other = rig.client.start(get(40_000, vec![vec![0; 40_000]])).unwrap();
        rig.until("the calls", |rig| {
            assert!(rig.client.poll().is_none());
            (rig.server.requests.len() == 2).then_some(())
        });
        rig.client.cancel(cancelled);
        let end = rig.client.poll().unwrap();
        assert_eq!((end.id, end.rooms), (cancelled, vec![vec![0; 50_000]]));
        // The server writes into memory that is no longer registered.
        rig.server.answer_next();
        rig.server.answer_next();
        rig.server.answers = true;
        let end = rig.finish(other);
        assert_eq!(end.outcome.unwrap().results, get_results(40_000));
        assert_eq!(rig.client.stats().connections, 2);
        assert_eq!(rig.client.outstanding(), 0);
        rig.results(call(NULL, vec![]));
    }
}

#[test]
fn an_abandoned_call_keeps_its_memory_until_its_reply() {
    for registration in BOTH {
        let mut rig = Rig::registering(registration);
        rig.results(call(NULL, vec![]));
        rig.server.answers = false;
        let id = rig.client.start(get(50_000, vec![vec![0; 50_000]])).unwrap();
        rig.until("the call", |rig| {
            assert!(rig.client.poll().is_none());
            (rig.server.requests.len() == 1).then_some(())
        });
        rig.client.abandon(id);
        assert_eq!((rig.client.outstanding(), rig.client.credits().in_flight()), (0, 1));
        rig.server.answer_next();
        rig.server.answers = true;
        rig.until("the reply", |rig| {
            assert!(rig.client.poll().is_none(), "nobody is told");
            (rig.client.credits().in_flight() == 0).then_some(())
        });
        rig.results(call(NULL, vec![]));
        assert_eq!(rig.client.stats().connections, 1);
        assert_eq!(rig.client.stats().replies, 3);
    }
}

#[test]
fn calls_that_wait_for_a_credit_can_be_cancelled_too() {
    let mut rig = Rig::plain();
    let [first, second] = [(); 2].map(|()| rig.client.start(put(vec![1; 10])).unwrap());
    // No connection yet.
    rig.client.cancel(second);
    let end = rig.client.poll().unwrap();
    assert!(end.id == second && matches!(end.outcome, Err(CallError::Cancelled)));
    rig.finish(first).outcome.unwrap();
    assert_eq!(rig.client.stats().sent, 1);
}

#[test]
fn many_calls_share_a_connection() {
    for registration in BOTH {
        let options = ResponderOptions { credits: 16, ..ResponderOptions::default() };
        let mut rig = Rig::new(RequesterOptions { registration, ..RequesterOptions::default() }, options);
        let mut open = std::collections::HashMap::new();
        let mut rng = fastrand::Rng::with_seed(5);
        let mut peak = 0;
        for number in 0..600 {
            while open.len() < 40 && number < 560 {
                let length = [0, 10, 3000, 30_000][rng.usize(..4)];
                let data = pattern(rng.u64(..), length);
                let (call, results) = match rng.usize(..3) {
                    0 => (put(data.clone()), put_results(&data)),
                    1 => (get(length, vec![vec![0; length]]), get_results(length)),
                    _ => (echo(&data), serve_echo(&data)),
                };
                open.insert(rig.client.start(call).unwrap(), results);
            }
            if open.is_empty() {
                break;
            }
            let finished = rig.until("the end of a call", |rig| rig.client.poll());
            peak = peak.max(rig.client.credits().in_flight());
            assert_eq!(finished.outcome.unwrap().results, open.remove(&finished.id).unwrap());
        }
        assert!(peak <= 16 && peak > 1, "{peak}");
        assert_eq!(rig.client.stats().connections, 1);
    }
}

#[test]
fn message_buffers_come_back_whatever_their_number() {
    for registration in BOTH {
        // Not every message says that it has left: the next that does speaks for those before it.
        for credits in [1, 2, 3, 8, 9, 40] {
            let options = RequesterOptions { credits, registration, ..RequesterOptions::default() };
            let mut rig = Rig::new(options, ResponderOptions { credits, ..ResponderOptions::default() });
            for _ in 0..20 {
                let mut open: Vec<_> = (0..credits).map(|_| rig.client.start(call(NULL, vec![])).unwrap()).collect();
                while !open.is_empty() {
                    let finished = rig.until("the end of a call", |rig| rig.client.poll());
                    open.retain(|id| *id != finished.id);
                    finished.outcome.unwrap();
                }
            }
            assert_eq!(rig.client.stats().replies, 20 * u64::from(credits));
        }
    }
}

/// More answers at once than there are buffers: those that wait for one are sent before the connection ends.
#[test]
fn what_was_answered_before_the_end_arrives() {
    const CALLS: usize = 32;
    let requester =
        RequesterOptions { credits: CALLS as u32, reconnect: Duration::ZERO, ..RequesterOptions::default() };
    let mut rig = Rig::new(requester, ResponderOptions::default());
    // Their buffers are not known to be free yet.
    for _ in 0..7 {
        rig.results(call(NULL, Vec::new()));
    }
    rig.server.answers = false;
    let calls: Vec<_> = (0..CALLS).map(|_| rig.client.start(call(NULL, Vec::new())).unwrap()).collect();
    rig.until("the calls", |rig| {
        assert!(rig.client.poll().is_none());
        (rig.server.requests.len() == CALLS).then_some(())
    });
    for _ in 0..CALLS {
        rig.server.answer_next();
    }
    rig.server.responders[0].disconnect();
    for id in calls {
        assert_eq!(rig.finish(id).outcome.unwrap().status, Status::Success);
    }
}

#[test]
fn a_responder_that_cannot_answer_ends_the_connection() {
    let (here, there) = {
        let mut there = config(2);
        // Enough for its messages and a short result, but not for a long one.
        there.limits.registered_octets = 1 << 20;
        uwarp::Context::pair_in_process(config(1), there).unwrap()
    };
    let server = Server::new(&there, ResponderOptions::default());
    let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
    let peer = there.socket_address(PORT);
    let client = uwarp_rpcrdma::requester::Requester::start_connect(&here, peer, bindings(), options).unwrap();
    let mut rig = Rig { client, server, client_context: here };
    assert_eq!(rig.results(get(100_000, vec![vec![0; 100_000]])), get_results(100_000));
    let id = rig.client.start(get(2_000_000, vec![vec![0; 2_000_000]])).unwrap();
    let finished = rig.finish(id);
    assert!(matches!(finished.outcome, Err(CallError::Lost)), "the requester knows that a reply is lost");
    assert_eq!(rig.server.over.len(), 1);
}

/// Nobody reads the responder's memory (RFC 8166 §3.1), so it offers one RDMA Read, or as many as a peer insists on.
#[test]
fn a_responder_offers_no_more_reads_than_a_peer_insists_on() {
    let (here, mut server) = server(ResponderOptions::default());
    for reads in [0, 3] {
        let options = ConnectOptions { ord: reads, ..ConnectOptions::default() };
        let (_raw, established) = Raw::connect_with(&here, &mut server, options);
        assert_eq!(established.peer_ird, Some(reads.max(1)));
    }
}
