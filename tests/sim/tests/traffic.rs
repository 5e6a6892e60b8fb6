//! A thousand seeds of mixed traffic over a bad network, in parts that run concurrently.

use uwarp_engine::ports::middlebox::Recutting;
use uwarp_sim_tests::traffic::{Plan, Tally, run};
use uwarp_testkit::sim::Sabotage;

/// Seeds of one part.
const PART: u64 = 125;

/// One in ten runs also has damage that only the CRC detects; it costs a stream, which is then set up again.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan::default();
    if seed % 10 == 3 {
        plan.network.hidden_corruption = 0.001;
    }
    // Some devices hold on to what they have sent.
    if seed % 10 == 7 {
        plan.host.device_holds = 64;
    }
    // Some compute checksums and cut segments out of longer frames, and some of those hold on to them.
    if seed % 5 == 2 {
        plan.host.segmentation = [4_400, 24_000, 65_000][seed as usize / 5 % 3];
    }
    // A middlebox cuts and joins segments on the way to both.
    if seed % 10 == 1 {
        plan.recutting = Some(Recutting { cutting: 0.2, joining: 0.5 });
    }
    plan
}

fn part(number: u64) {
    let mut total = Tally::default();
    for seed in number * PART..(number + 1) * PART {
        match run(seed, &plan(seed)) {
            Ok(tally) => {
                // In each direction.
                assert!(tally.octets.iter().all(|octets| *octets >= 256 << 10), "seed {seed}: {:?}", tally.octets);
                total.merge(&tally);
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{total:#?}");
    assert_eq!(total.missing(), [""; 0], "kinds that were never met");
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
    seeds_0_to_124 = 0,
    seeds_125_to_249 = 1,
    seeds_250_to_374 = 2,
    seeds_375_to_499 = 3,
    seeds_500_to_624 = 4,
    seeds_625_to_749 = 5,
    seeds_750_to_874 = 6,
    seeds_875_to_999 = 7,
}

#[test]
fn without_retransmission_the_run_fails() {
    let mut plan = Plan::default();
    plan.network.sabotage = Sabotage { no_retransmission: true, ..Sabotage::default() };
    for seed in 0..3 {
        let result = run(seed, &plan);
        assert!(result.is_err(), "seed {seed} did not need retransmission: {result:?}");
    }
}

#[test]
fn without_the_crc_check_wrong_octets_get_through() {
    let mut plan = Plan::default();
    plan.network.hidden_corruption = 0.002;
    // Behind a middlebox there are many frames, and each stream that breaks begins again with new queue pairs.
    plan.host.queue_pairs = 1024;
    let failures = |plan: &Plan| (0..20).filter(|seed| run(*seed, plan).is_err()).count();
    assert_eq!(failures(&plan), 0);
    plan.network.sabotage = Sabotage { no_crc_check: true, ..Sabotage::default() };
    assert!(failures(&plan) >= 10);
}

#[test]
fn every_octet_arrives_with_markers_in_either_direction() {
    for markers in [[true, false], [false, true], [true, true]] {
        for seed in 0..4 {
            let tally =
                run(seed, &Plan { markers, ..Plan::default() }).unwrap_or_else(|error| panic!("{markers:?}: {error}"));
            assert!(tally.octets.iter().all(|octets| *octets > 0), "{markers:?}: {:?}", tally.octets);
        }
    }
}
