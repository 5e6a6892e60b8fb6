//! The cost of a small call after others.

mod common;

use common::*;
use uwarp_rpcrdma::requester::RequesterOptions;
use uwarp_rpcrdma::responder::ResponderOptions;
use uwarp_rpcrdma::rpc::Status;

/// Many calls without arguments and results.
fn nulls(rig: &mut Rig, count: usize, depth: usize) {
    let (mut started, mut ended) = (0, 0);
    while ended < count {
        while started < count && started - ended < depth {
            rig.client.start(call(NULL, Vec::new())).unwrap();
            started += 1;
        }
        for responder in &mut rig.server.responders {
            while let Some(request) = responder.poll().unwrap() {
                let answer = serve(&request);
                responder.answer(request.token, answer);
            }
        }
        while let Some(finished) = rig.client.poll() {
            assert_eq!(finished.outcome.unwrap().status, Status::Success);
            ended += 1;
        }
    }
}

/// Periods of a thousand calls, of which one must be free of allocations.
const PERIODS: usize = 5;

#[test]
fn a_null_call_allocates_nothing() {
    if uwarp_middlebox::is_skipped("pieces of segments in process are on the heap") {
        return;
    }
    for depth in [1, 8] {
        let requester = RequesterOptions { credits: depth, ..RequesterOptions::default() };
        let mut rig = Rig::new(requester, ResponderOptions::default());
        rig.results(call(NULL, Vec::new()));
        nulls(&mut rig, 1000, depth as usize);
        // A thread that is not scheduled for milliseconds retransmits, which may set a new high-water mark. Code that
        // allocates for each call would have no period without.
        let mut periods = Vec::new();
        let is_clean = (0..PERIODS).any(|_| {
            periods.push(allocation_counter::measure(|| nulls(&mut rig, 1000, depth as usize)).count_total);
            periods.last() == Some(&0)
        });
        assert!(is_clean, "{periods:?} with {depth} at once");
        assert_eq!(rig.client.stats().connections, 1);
    }
}
