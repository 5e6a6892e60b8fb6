//! The short ways of `hot/` against the general code: the same frames at the same times, the same completions, the same
//! state.

use std::time::Duration;

use uwarp_sim_tests::traffic::{Plan, Tally, run};

/// Seeds of one part.
const PART: u64 = 125;

/// Messages that fit into a segment, several of them, and longer ones, over a network with every fault.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan { streams: 2, octets: 16 << 10, longest: 2048, source: 4096, ..Plan::default() };
    // Without losses most segments take the short ways, with many they are left in the middle.
    let faults = [0.0, 0.001, 0.01, 0.03][seed as usize % 4];
    (plan.network.loss, plan.network.duplication) = (faults, faults);
    (plan.network.reordering, plan.network.corruption) = (faults, faults);
    if seed % 10 == 3 {
        plan.network.hidden_corruption = 0.001;
    }
    if seed % 10 == 7 {
        plan.host.device_holds = 64;
    }
    if seed % 10 == 9 {
        plan.host.segmentation_parts = [2, 17][seed as usize / 10 % 2];
    }
    plan.complete_on_ack = seed % 3 == 1;
    // One after the other leaves at once, a few share a segment, and a full queue is cut by the general code.
    plan.outstanding = [1, 2, 4, usize::MAX][seed as usize / 4 % 4];
    plan.markers = [seed % 16 == 5, seed % 16 == 11];
    plan.ipv6 = seed % 7 == 2 || seed % 7 == 5;
    plan.vlan = (seed % 5 == 4).then_some(100);
    plan.sack = seed % 11 != 6;
    plan
}

fn part(number: u64) {
    let mut total = Tally::default();
    for seed in number * PART..(number + 1) * PART {
        let hot = run(seed, &plan(seed)).unwrap_or_else(|error| panic!("{error}"));
        let general = run(seed, &Plan { hot: false, ..plan(seed) }).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(general.frames[1..], [0, 0], "seed {seed}: the general code alone");
        let differs = hot.trace.iter().zip(&general.trace).find(|(hot, general)| hot != general);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(hot.trace.len(), general.trace.len(), "seed {seed}");
        total.merge(&hot);
    }
    println!("{total:#?}");
    let [frames, received, sent] = total.frames;
    // A middlebox that cuts and joins leaves fewer segments as predicted.
    assert!(received * 4 > frames && sent * 10 > frames, "the short ways are hardly taken: {:?}", total.frames);
}

macro_rules! parts {
    ($($name:ident = $number:literal,)*) => {
        $(#[test]
        fn $name() {
            part($number);
        })*
    };
}

parts! {
    seeds_0_to_124_do_the_same_either_way = 0,
    seeds_125_to_249_do_the_same_either_way = 1,
    seeds_250_to_374_do_the_same_either_way = 2,
    seeds_375_to_499_do_the_same_either_way = 3,
    seeds_500_to_624_do_the_same_either_way = 4,
    seeds_625_to_749_do_the_same_either_way = 5,
    seeds_750_to_874_do_the_same_either_way = 6,
    seeds_875_to_999_do_the_same_either_way = 7,
}

/// Work that was posted while the window was full was not looked at, and the connection counted as idle: it stood still
/// until something else happened.
#[test]
fn work_that_is_posted_while_the_window_is_full_leaves_when_there_is_room() {
    for hot in [true, false] {
        let tally = run(71, &Plan { hot, ..plan(71) }).unwrap_or_else(|error| panic!("{error}"));
        assert!(tally.time < Duration::from_secs(1), "hot {hot}: {:?}", tally.time);
    }
}
