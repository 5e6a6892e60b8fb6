use uwarp_wire::tcp::SeqNumber;

use super::*;

const SEGMENT: u32 = 1000;
const RTT: u64 = 10_000_000;

fn controller(congestion: Congestion) -> Controller {
    Controller::new(&Config { congestion, ..Config::default() }, SEGMENT, start())
}

fn start() -> Position {
    Position::first(SeqNumber(0))
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// Acknowledges a full window per round trip of 10 ms; returns the window after each.
fn rounds(controller: &mut Controller, start: u64, count: u64) -> Vec<u32> {
    rounds_of(controller, start, count, 10)
}

fn rounds_of(controller: &mut Controller, start: u64, count: u64, millis: u64) -> Vec<u32> {
    (0..count)
        .map(|round| {
            let window = controller.window();
            controller.sent(window);
            for _ in 0..window / SEGMENT {
                controller.acknowledged(at(start + round * millis), SEGMENT, millis * 1_000_000);
            }
            controller.window()
        })
        .collect()
}

#[test]
fn initial_window_is_ten_segments_bounded_in_octets() {
    assert_eq!(controller(Congestion::Reno).window(), 10_000); // RFC 6928 §2
    let jumbo = Controller::new(&Config::default(), 8948, start());
    assert_eq!(jumbo.window(), 2 * 8948); // RFC 6928 §2: max(2 MSS, 14600)
}

#[test]
fn slow_start_doubles_each_round_trip() {
    let mut reno = controller(Congestion::Reno);
    assert_eq!(rounds(&mut reno, 0, 3), [20_000, 40_000, 80_000]); // RFC 5681 §3.1
}

#[test]
fn unused_window_does_not_grow() {
    let mut reno = controller(Congestion::Reno);
    reno.sent(3000);
    reno.acknowledged(at(0), 1000, RTT);
    assert_eq!(reno.window(), 10_000); // RFC 7661 §4.3 and §4.4
}

/// The next frame waits until it leaves whole.
#[test]
fn a_window_with_less_than_a_frame_free_is_full() {
    let mut reno = controller(Congestion::Reno);
    reno.set_window(20_000);
    reno.reduce(20_000);
    reno.recovered();
    reno.set_frame(6000);
    // Twelve segments' worth of acknowledgments are more than a window.
    for (in_flight, grown) in [(10_000, true), (4000, false), (6000, true)] {
        let before = reno.window();
        (0..12).for_each(|_| {
            reno.sent(in_flight);
            reno.acknowledged(at(0), SEGMENT, RTT);
        });
        assert_eq!(reno.window() > before, grown, "{in_flight} in flight, a window of {before}");
    }
}

#[test]
fn reno_halves_and_then_adds_one_segment_a_round_trip() {
    let mut reno = controller(Congestion::Reno);
    reno.set_window(100_000);
    reno.reduce(100_000);
    reno.recovered();
    assert_eq!((reno.window(), reno.threshold()), (50_000, 50_000)); // RFC 5681 §3.2
    assert_eq!(rounds(&mut reno, 0, 3), [51_000, 52_000, 53_000]); // RFC 5681 §3.1
}

/// When a path takes large segments again after small ones, that is no reason to send more octets.
#[test]
fn another_segment_size_does_not_change_how_many_octets_cubic_sends() {
    for (size, then) in [(64, 8960), (8960, 64)] {
        let config = Config::default();
        let mut cubic = Controller::new(&config, size, start());
        cubic.set_window(1_000_000);
        cubic.timeout(1_000_000, true);
        cubic.recovered();
        let send = |cubic: &mut Controller, millis, segment| {
            cubic.sent(cubic.window());
            cubic.acknowledged(at(millis), segment, RTT);
        };
        // The window follows Reno's at first (RFC 9438 §4.3).
        for _ in 0..100 {
            send(&mut cubic, 0, size);
        }
        let before = cubic.window();
        cubic.set_segment(&config, then, false);
        send(&mut cubic, 10, then);
        let grown = cubic.window() - before;
        assert!(grown <= then, "{size}, then {then}: {grown} octets for one segment");
    }
}

#[test]
fn cubic_cuts_to_seven_tenths_and_is_back_at_its_maximum_after_k() {
    let mut cubic = controller(Congestion::Cubic);
    cubic.set_window(1_000_000);
    cubic.reduce(1_000_000);
    cubic.recovered();
    assert_eq!(cubic.window(), 700_000); // RFC 9438 §4.6
    // K = cbrt(1000 * 0.3 / 0.4) = 9.0856 s (RFC 9438 §4.2, equation 2): concave until then, flat around it. Round
    // trips take 100 ms: with shorter ones Reno would be faster, and CUBIC would follow it (RFC 9438 §4.3).
    let windows = rounds_of(&mut cubic, 0, 120, 100);
    let near = |round: usize, expected: u32| {
        assert!(windows[round].abs_diff(expected) < 12_000, "round {round}: {}, expected {expected}", windows[round]);
    };
    // W(t) = 0.4 (t - K)^3 + 1000 at t = 2, 5, 9 and 12 s.
    near(19, 857_700);
    near(49, 973_000);
    near(89, 1_000_000);
    near(119, 1_010_000);
}

/// RFC 9438 §4.3: by 3 (1 - 0.7) / (1 + 0.7) = 0.53 segments per round trip, and by one above the window before the
/// loss.
#[test]
fn cubic_keeps_up_with_reno_where_round_trips_are_short() {
    let mut cubic = controller(Congestion::Cubic);
    cubic.set_window(100_000);
    cubic.reduce(100_000);
    cubic.recovered();
    let windows = rounds(&mut cubic, 0, 80);
    let near = |round: usize, expected: u32| {
        assert!(windows[round].abs_diff(expected) < 1000, "round {round}: {}, expected {expected}", windows[round]);
    };
    near(9, 75_300);
    near(39, 91_200);
    near(79, 123_300);
}

/// RFC 9438 §4.2 and §5.8: time in which the window is not full is not part of t.
#[test]
fn cubic_goes_on_where_it_was_when_the_window_is_used_again() {
    const PAUSE: u64 = 60_000;
    let cut = || {
        let mut cubic = controller(Congestion::Cubic);
        cubic.set_window(1_000_000);
        cubic.reduce(1_000_000);
        cubic.recovered();
        rounds_of(&mut cubic, 0, 20, 100);
        cubic
    };
    let expected = rounds_of(&mut cut(), 2000, 20, 100);
    // Nothing is sent at all.
    let mut idle = cut();
    assert_eq!(rounds_of(&mut idle, 2000 + PAUSE, 20, 100), expected);
    // A tenth of the window is.
    let mut limited = cut();
    for millis in (2000..2000 + PAUSE).step_by(100) {
        limited.sent(limited.window() / 10);
        limited.acknowledged(at(millis), limited.window() / 10, 100_000_000);
    }
    assert_eq!(rounds_of(&mut limited, 2000 + PAUSE, 20, 100), expected);
    // The window is full in every second round trip.
    let mut half = cut();
    let windows: Vec<_> = (0..20).flat_map(|round| rounds_of(&mut half, 2000 + 200 * round, 1, 100)).collect();
    assert_eq!(windows, expected);
}

#[test]
fn cubic_is_no_slower_than_reno_where_windows_are_small() {
    let mut cubic = controller(Congestion::Cubic);
    cubic.set_window(20_000);
    cubic.reduce(20_000);
    cubic.recovered();
    let windows = rounds(&mut cubic, 0, 30);
    // RFC 9438 §4.3: 0.53 segments per round trip up to the window before the loss (11.3 rounds), then one.
    assert!(windows[11] >= 19_000 && windows[29] >= 34_000, "{windows:?}");
}

#[test]
fn fast_convergence_leaves_room() {
    let mut cubic = controller(Congestion::Cubic);
    cubic.set_window(100_000);
    cubic.reduce(100_000);
    cubic.recovered();
    cubic.reduce(70_000);
    let Algorithm::Cubic(inner) = cubic.rare.algorithm else { unreachable!() };
    // RFC 9438 §4.7: W_max = cwnd * (1 + 0.7) / 2.
    assert!(format!("{inner:?}").contains("maximum: 59.5"), "{inner:?}");
}

#[test]
fn timeout_leaves_one_segment_and_cuts_the_threshold_once() {
    for kind in [Congestion::Reno, Congestion::Cubic] {
        let mut controller = controller(kind);
        controller.set_window(40_000);
        controller.timeout(40_000, true);
        let threshold = controller.threshold();
        assert_eq!(controller.window(), SEGMENT); // RFC 5681 §3.1
        assert_eq!(threshold, if kind == Congestion::Reno { 20_000 } else { 28_000 });
        controller.timeout(1000, false);
        assert_eq!(controller.threshold(), threshold); // RFC 5681 §3.1: held for a repeated time-out
        assert!(controller.undo());
        assert_eq!((controller.window(), controller.threshold()), (40_000, u32::MAX)); // RFC 4015 §3
        assert!(!controller.undo());
    }
}

#[test]
fn idle_restarts_with_the_initial_window() {
    let mut reno = controller(Congestion::Reno);
    reno.set_window(80_000);
    reno.restart();
    assert_eq!(reno.window(), 10_000); // RFC 5681 §4.1
}

#[test]
fn mark_cuts_as_a_loss_does_and_is_not_taken_back() {
    for (kind, expected) in [(Congestion::Reno, 40_000), (Congestion::Cubic, 56_000), (Congestion::Dctcp, 40_000)] {
        let mut controller = controller(kind);
        controller.set_window(80_000);
        controller.marked(80_000);
        // RFC 3168 §6.1.2, RFC 9438 §4.6, RFC 8257 §3.3 (alpha begins with 1).
        assert_eq!((controller.window(), controller.threshold()), (expected, expected));
        assert!(!controller.undo());
    }
}

#[test]
fn dctcp_grows_and_takes_losses_as_reno_does() {
    let mut dctcp = controller(Congestion::Dctcp);
    dctcp.set_window(100_000);
    dctcp.reduce(100_000);
    dctcp.recovered();
    assert_eq!((dctcp.window(), dctcp.threshold()), (50_000, 50_000)); // RFC 8257 §3.5
    assert_eq!(rounds(&mut dctcp, 0, 3), [51_000, 52_000, 53_000]); // RFC 8257 §3.4: growth is untouched
}

#[test]
fn dctcp_cuts_by_what_was_marked() {
    let mut dctcp = controller(Congestion::Dctcp);
    dctcp.set_window(100_000);
    let mut at = start();
    for _ in 0..200 {
        dctcp.count_marks(10_000, true, at, at);
        dctcp.count_marks(90_000, false, at + 1, at + 100_000);
        at = at + 100_000;
    }
    dctcp.marked(100_000);
    // RFC 8257 §3.3: a tenth was marked, so the window falls by a twentieth.
    assert!((94_900..95_100).contains(&dctcp.window()), "{}", dctcp.window());
}
