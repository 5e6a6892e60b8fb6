//! The short ways of `hot/` against the general code: the same frames at the same times, the same completions, the same
//! state.

use std::time::Duration;

use uwarp_sim_tests::traffic::{Plan, Tally, is_stuck, run};

/// Tests that run side by side, each over as many seeds.
const PARTS: u64 = 8;

/// Seeds of all parts together.
fn seeds() -> u64 {
    let is_long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    if is_long { 100_000 } else { 1_000 }
}

/// Messages that fit into a segment, several of them, and longer ones, over a network with every fault.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan { streams: 2, octets: 16 << 10, longest: 2048, source: 4096, ..Plan::default() };
    if seed % 8 == 3 && seed % 10 != 9 {
        // Long enough for a train of segments that differ in little. Not with a device that cuts frames: of long
        // messages the two ways make different ones.
        (plan.octets, plan.longest, plan.source) = (64 << 10, 16 << 10, 32 << 10);
    }
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
        plan.host.segmentation = [4_400, 24_000][seed as usize / 10 % 2];
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

/// Runs a seed either way; gives what the short ways did, or how they differ. `None`: both got stuck behind a fault.
fn compare(seed: u64) -> Result<Option<Tally>, String> {
    let plan = plan(seed);
    let general = Plan { hot: false, ..plan };
    let (hot, general) = match (run(seed, &plan), run(seed, &general)) {
        (Ok(hot), Ok(general)) => (hot, general),
        // If TCP's checksum misses a fault in the length of an FPDU, the receiver waits for octets that nobody sends.
        (Err(hot), Err(general)) if plan.network.hidden_corruption > 0.0 && is_stuck(&hot) && is_stuck(&general) => {
            return Ok(None);
        }
        (hot, general) => return Err(format!("short ways: {:?}, general code: {:?}", hot.err(), general.err())),
    };
    assert_eq!(general.frames[1..], [0, 0], "seed {seed}: the general code alone");
    let differs = hot.trace.iter().zip(&general.trace).find(|(hot, general)| hot != general);
    match differs {
        Some((hot, general)) => Err(format!("short ways:\n  {hot}\n general code:\n  {general}")),
        None if hot.trace.len() != general.trace.len() => Err("one trace goes on".to_owned()),
        // Timers that the short ways leave alone fire in vain more or less often.
        None if hot.turns.abs_diff(general.turns) > general.turns / 50 => {
            Err(format!("short ways: {} turns, general code: {}", hot.turns, general.turns))
        }
        None => Ok(Some(hot)),
    }
}

fn part(number: u64) {
    let (mut total, mut stuck, mut differences) = (Tally::default(), 0, Vec::new());
    let each = seeds() / PARTS;
    for seed in number * each..(number + 1) * each {
        match compare(seed) {
            Ok(Some(hot)) => total.merge(&hot),
            Ok(None) => stuck += 1,
            Err(difference) => differences.push(format!("seed {seed}: {difference}")),
        }
    }
    println!("{total:#?}\n{stuck} seeds got stuck behind faults that TCP's checksum missed");
    assert!(stuck <= each / 1_000, "{stuck} of {each} seeds get stuck");
    assert!(differences.is_empty(), "{} seeds differ:\n{}", differences.len(), differences.join("\n"));
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
    part_1_of_8_does_the_same_either_way = 0,
    part_2_of_8_does_the_same_either_way = 1,
    part_3_of_8_does_the_same_either_way = 2,
    part_4_of_8_does_the_same_either_way = 3,
    part_5_of_8_does_the_same_either_way = 4,
    part_6_of_8_does_the_same_either_way = 5,
    part_7_of_8_does_the_same_either_way = 6,
    part_8_of_8_does_the_same_either_way = 7,
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
