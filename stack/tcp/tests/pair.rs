//! Two connections over a channel that loses, delays, reorders and duplicates, in virtual time: every octet arrives
//! once and in order, and every connection ends.

mod channel;

use std::time::Duration;

use channel::{Faults, Pair};
use proptest::prelude::*;
use uwarp_tcp::{Config, Congestion, Events, KeepAlive, State};

fn config(congestion: Congestion, sack: bool, timestamps: bool, window: u32, mss: u16) -> Config {
    Config {
        congestion,
        sack,
        timestamps,
        receive_window: window,
        mss,
        rto_initial: Duration::from_millis(200),
        keep_alive: None,
        user_timeout: None,
        syn_retries: 30,
        rto_max: Duration::from_secs(2),
        // Longer than any run: an end in TIME-WAIT must remain to answer, however many segments the other end loses.
        time_wait: Duration::from_secs(7200),
        ..Config::default()
    }
}

fn congestion() -> impl Strategy<Value = Congestion> {
    prop_oneof![Just(Congestion::Reno), Just(Congestion::Cubic)]
}

prop_compose! {
    fn settings()(
        congestion in congestion(),
        sack in any::<bool>(),
        timestamps in any::<bool>(),
        window in prop_oneof![200u32..3000, 3000u32..100_000, Just(1u32 << 20)],
        mss in prop_oneof![100u16..1500, Just(1460u16), Just(8960u16)],
        budget in prop_oneof![1u32..8, Just(512u32)],
        nagle in any::<bool>(),
    ) -> Config {
        Config { out_of_order_budget: budget, nagle, ..config(congestion, sack, timestamps, window, mss) }
    }
}

prop_compose! {
    fn faults()(
        loss in prop_oneof![Just(0.0), 0.0..0.2f64],
        duplicate in prop_oneof![Just(0.0), 0.0..0.2f64],
        reorder in prop_oneof![Just(0.0), 0.0..0.4f64],
        delay in 10u64..20_000,
        spacing in 0u64..30,
        seed in any::<u64>(),
    ) -> Faults {
        Faults { loss, duplicate, reorder, delay: Duration::from_micros(delay), spacing: Duration::from_micros(spacing), seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Random records both ways, random settings at both ends, and a small window at one end for a while.
    #[test]
    fn every_octet_arrives_once_and_in_order(
        left in settings(),
        right in settings(),
        faults in faults(),
        records in prop::collection::vec((any::<bool>(), 1u32..5000), 1..120),
        stingy in any::<bool>(),
    ) {
        let mut pair = Pair::new(&left, &right, faults);
        for (index, (from_left, len)) in records.iter().enumerate() {
            pair.push(if *from_left { 0 } else { 1 }, *len);
            if index % 7 == 0 {
                pair.run_for(Duration::from_micros(500));
            }
            if stingy && index % 11 == 0 {
                pair.set_space(1, if index % 22 == 0 { 0 } else { 1 << 20 });
            }
        }
        pair.set_space(1, 1 << 20);
        pair.close(0);
        pair.close(1);
        pair.finish();
        prop_assert_eq!(pair.received(1), pair.pushed(0));
        prop_assert_eq!(pair.received(0), pair.pushed(1));
        for end in 0..2 {
            let state = pair.state(end);
            prop_assert!(matches!(state, State::TimeWait | State::Closed), "{} is {}", end, state);
        }
    }

    /// The same while both ends withhold acknowledgments now and then: `channel` checks that none of what is withheld
    /// is acknowledged or reported.
    #[test]
    fn withheld_octets_are_acknowledged_once_they_are_released(
        left in settings(),
        right in settings(),
        faults in faults(),
        records in prop::collection::vec((any::<bool>(), 1u32..5000), 1..120),
    ) {
        let mut pair = Pair::new(&left, &right, faults);
        pair.withhold(0);
        pair.withhold(1);
        for (index, (from_left, len)) in records.iter().enumerate() {
            pair.push(if *from_left { 0 } else { 1 }, *len);
            if index % 7 == 0 {
                pair.run_for(Duration::from_micros(500));
            }
        }
        pair.close(0);
        pair.close(1);
        pair.finish();
        prop_assert_eq!((pair.received(1), pair.received(0)), (pair.pushed(0), pair.pushed(1)));
    }

    /// The path's MTU shrinks while records are in flight.
    #[test]
    fn path_that_shrinks_loses_nothing(
        faults in faults(),
        sizes in prop::collection::vec(1u32..9000, 1..40),
        mss in 100u16..1400,
    ) {
        let settings = config(Congestion::Cubic, true, true, 1 << 20, 8960);
        let mut pair = Pair::new(&settings, &settings, faults);
        for (index, len) in sizes.iter().enumerate() {
            pair.push(0, *len);
            pair.run_for(Duration::from_millis(1));
            if index == sizes.len() / 2 {
                pair.set_path_mss(0, mss);
            }
        }
        pair.close(0);
        pair.close(1);
        pair.finish();
        prop_assert_eq!(pair.received(1), pair.pushed(0));
    }

    /// Records of urgent data among others, both ways, over a path that loses segments and shrinks. Each segment points
    /// as it must, also when retransmitted or cut anew (`channel` checks each), and the peer learns exactly where the
    /// urgent data ends.
    #[test]
    fn urgent_marks_survive_losses_and_cuts(
        left in settings(),
        right in settings(),
        faults in faults(),
        records in prop::collection::vec((any::<bool>(), 1u32..5000, prop::bool::weighted(0.2)), 1..80),
        mss in 100u16..1400,
        shut in any::<bool>(),
    ) {
        let mut pair = Pair::new(&left, &right, faults);
        for (index, (from_left, len, urgent)) in records.iter().enumerate() {
            let end = if *from_left { 0 } else { 1 };
            if *urgent { pair.push_urgent(end, *len) } else { pair.push(end, *len) }
            if index % 5 == 0 {
                pair.run_for(Duration::from_micros(500));
            }
            if index == records.len() / 2 {
                pair.set_path_mss(0, mss);
                pair.set_space(1, if shut { 0 } else { 1 << 20 });
            }
        }
        pair.run_for(Duration::from_millis(1));
        pair.set_space(1, 1 << 20);
        pair.close(0);
        pair.close(1);
        pair.finish();
        prop_assert_eq!((pair.received(1), pair.received(0)), (pair.pushed(0), pair.pushed(1)));
        for end in 0..2 {
            let (sent, told) = pair.urgent(end);
            prop_assert_eq!(sent, told);
        }
    }
}

/// A clean path: no time-out, no retransmission, and at most one pure acknowledgment per batch.
#[test]
fn clean_path_needs_no_repair() {
    let settings = config(Congestion::Cubic, true, true, 1 << 20, 1460);
    let mut pair = Pair::new(&settings, &settings, Faults::delay(Duration::from_micros(100)));
    pair.send_bulk(0, 4 << 20, 1448);
    pair.close(0);
    pair.close(1);
    pair.finish();
    assert_eq!(pair.received(1), 4 << 20);
    let info = pair.info(0);
    assert_eq!(
        (info.counters.timeouts, info.counters.retransmissions, info.counters.tail_loss_probes),
        (0, 0, 0),
        "{info:?}"
    );
    assert_eq!(info.traffic.octets_sent, 4 << 20);
}

/// Losses anywhere, the tail included, are repaired without waiting for the retransmission timer most of the time.
#[test]
fn one_percent_loss_rarely_costs_a_timeout() {
    let mut timeouts = 0;
    for seed in 0..10 {
        let settings = config(Congestion::Cubic, true, true, 1 << 20, 1460);
        let faults =
            Faults { loss: 0.01, seed, spacing: Duration::from_micros(1), ..Faults::delay(Duration::from_micros(500)) };
        let mut pair = Pair::new(&settings, &settings, faults);
        pair.send_bulk(0, 1 << 20, 1448);
        pair.close(0);
        pair.close(1);
        pair.finish();
        assert_eq!(pair.received(1), 1 << 20);
        timeouts += pair.info(0).counters.timeouts;
    }
    // 7,240 segments, of which 72 are lost.
    assert!(timeouts <= 2, "{timeouts} time-outs");
}

/// Reordering alone is no loss once it has been seen.
#[test]
fn reordering_costs_few_retransmissions() {
    let settings = config(Congestion::Cubic, true, true, 1 << 20, 1460);
    let faults =
        Faults { reorder: 0.1, seed: 7, spacing: Duration::from_micros(1), ..Faults::delay(Duration::from_millis(2)) };
    let mut pair = Pair::new(&settings, &settings, faults);
    pair.send_bulk(0, 4 << 20, 1448);
    pair.close(0);
    pair.close(1);
    pair.finish();
    assert_eq!(pair.received(1), 4 << 20);
    let info = pair.info(0);
    assert!(info.reordering_seen && info.counters.retransmissions < 60, "{info:?}");
}

/// When the receiver's window opens, if ever, relative to a window probe whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opens {
    Never,
    BeforeTheProbe,
    BehindTheProbe,
}

/// The sender cannot know whether the octet of its window probe was accepted, so it aborts with two resets. One of them
/// has the number that the receiver expects; the other one does no harm (RFC 5961 §3.2), whichever arrives first.
#[test]
fn one_of_the_resets_behind_a_window_probe_ends_the_peers_connection() {
    for opens in [Opens::Never, Opens::BeforeTheProbe, Opens::BehindTheProbe] {
        for swapped in [false, true] {
            let window = 3000;
            let settings = config(Congestion::Cubic, true, true, window, 1460);
            let mut pair = Pair::new(&settings, &settings, Faults::delay(Duration::from_micros(100)));
            pair.run_for(Duration::from_millis(10));
            pair.set_space(1, 0);
            pair.push(0, window);
            pair.push(0, 100);
            pair.run_for(Duration::from_millis(10));
            assert_eq!((pair.received(1), pair.info(0).send_window), (u64::from(window), 0));
            pair.deafen(0);
            if opens == Opens::BeforeTheProbe {
                pair.set_space(1, window);
            }
            let sent = pair.info(0).traffic.segments_sent;
            while pair.info(0).traffic.segments_sent == sent {
                pair.run_for(Duration::from_millis(1));
            }
            pair.run_for(Duration::from_millis(1));
            if opens == Opens::BehindTheProbe {
                pair.set_space(1, window);
                pair.run_for(Duration::from_millis(1));
            }
            let taken = u64::from(opens == Opens::BeforeTheProbe);
            assert_eq!((pair.received(1), pair.state(1)), (u64::from(window) + taken, State::Established));
            let mut resets = pair.abort(0);
            if swapped {
                resets.reverse();
            }
            let ends: Vec<bool> = resets.iter().map(|reset| pair.show(1, reset).contains(Events::RESET)).collect();
            let right = ends.len() == 2 && ends.iter().filter(|ends| **ends).count() == 1;
            assert!(right && pair.state(1) == State::Closed, "{opens:?}, swapped: {swapped}: {ends:?}");
        }
    }
}

/// A peer that falls silent: with data in flight, and without.
#[test]
fn patience_says_how_long_a_silent_peer_is_borne() {
    const SECOND: Duration = Duration::from_secs(1);
    let keep_alive = KeepAlive { idle: 5 * SECOND, interval: SECOND, probes: 5 };
    let settings = Config {
        user_timeout: Some(15 * SECOND),
        keep_alive: Some(keep_alive),
        ..config(Congestion::Cubic, true, false, 1 << 20, 1460)
    };
    for octets in [0, 100] {
        // How long the connection lasts, in seconds of silence.
        let lasts = |change: &dyn Fn(&mut Pair)| {
            let mut pair = Pair::new(&settings, &settings, Faults::delay(Duration::from_micros(100)));
            pair.run_for(SECOND);
            change(&mut pair);
            pair.deafen(0);
            pair.deafen(1);
            if octets > 0 {
                pair.push(0, octets);
            }
            (0..20_000).find(|_| {
                pair.run_for(SECOND);
                pair.state(0) == State::Closed
            })
        };
        let patience = 7200 * SECOND;
        let usual = lasts(&|_| {}).expect("it ends");
        assert!((8..=16).contains(&usual), "{octets}: {usual}");
        let extended = lasts(&|pair| pair.extend_patience(0, patience, 30 * SECOND)).expect("it ends");
        assert!((7199..=7240).contains(&extended), "{octets}: {extended}");
        let changed_back = lasts(&|pair| {
            pair.extend_patience(0, patience, 30 * SECOND);
            pair.set_patience(0, &settings);
        });
        assert!(changed_back.is_some_and(|back| (usual..=usual + 1).contains(&back)), "{octets}: {changed_back:?}");
        let short = lasts(&|pair| pair.extend_patience(0, 2 * SECOND, 30 * SECOND)).expect("it ends");
        assert!((1..=10).contains(&short), "{octets}: {short}");
    }
    // Probes go on, so a peer that comes back, or whose place is another's now, is noticed.
    let mut pair = Pair::new(&settings, &settings, Faults::delay(Duration::from_micros(100)));
    pair.run_for(SECOND);
    pair.extend_patience(0, 7200 * SECOND, 30 * SECOND);
    pair.run_for(10 * SECOND);
    pair.deafen(0);
    pair.deafen(1);
    let before = pair.info(0).traffic.segments_sent;
    pair.run_for(600 * SECOND);
    let probes = pair.info(0).traffic.segments_sent - before;
    assert!((18..=22).contains(&probes), "{probes}");
}
