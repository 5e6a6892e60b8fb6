use uwarp_wire::tcp::SeqNumber;

use super::*;

fn at(offset: u32) -> Position {
    Position::first(SeqNumber(0)) + offset
}

/// Offers a payload whose token is its first octet.
fn offer(reassembly: &mut Reassembly, start: u32, end: u32) -> Offered {
    let offered = reassembly.offer(at(start), at(end), 0, BufferToken(start), 100);
    reassembly.check(at(0));
    offered
}

fn runs(reassembly: &Reassembly) -> Vec<(u64, u64)> {
    reassembly.runs().iter().map(|run| (run.start.since(at(0)), run.end.since(at(0)))).collect()
}

/// Delivers octets up to `next` by another path and takes what follows: (token, skip, len).
fn take(reassembly: &mut Reassembly, next: u32) -> Vec<(u32, u32, u32)> {
    reassembly.drop_before(at(next));
    let reached = reassembly.reach(at(next));
    let taken =
        std::iter::from_fn(|| reassembly.take(reached)).map(|held| (held.token.0, held.skip, held.len)).collect();
    reassembly.check(reached);
    taken
}

fn discarded(reassembly: &mut Reassembly) -> Vec<u32> {
    let mut tokens: Vec<u32> = std::iter::from_fn(|| reassembly.pop_discarded()).map(|token| token.0).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn neighbours_join_and_the_latest_run_comes_first() {
    let mut reassembly = Reassembly::default();
    offer(&mut reassembly, 100, 200);
    offer(&mut reassembly, 300, 400);
    assert_eq!(runs(&reassembly), [(300, 400), (100, 200)]); // RFC 2018 §4
    offer(&mut reassembly, 200, 250);
    assert_eq!(runs(&reassembly), [(100, 250), (300, 400)]);
    offer(&mut reassembly, 250, 300);
    assert_eq!(runs(&reassembly), [(100, 400)]);
    assert_eq!(take(&mut reassembly, 100), [(100, 0, 100), (200, 0, 50), (250, 0, 50), (300, 0, 100)]);
    assert!(reassembly.is_empty() && runs(&reassembly).is_empty());
}

#[test]
fn overlaps_are_cut_from_what_came_later() {
    let mut reassembly = Reassembly::default();
    offer(&mut reassembly, 100, 200);
    assert_eq!(offer(&mut reassembly, 150, 250), Offered::Held);
    assert_eq!(offer(&mut reassembly, 50, 150), Offered::Held);
    assert_eq!(offer(&mut reassembly, 60, 240), Offered::Duplicate);
    assert_eq!(take(&mut reassembly, 50), [(50, 0, 50), (100, 0, 100), (150, 50, 50)]);
}

#[test]
fn payload_that_covers_others_replaces_them() {
    let mut reassembly = Reassembly::default();
    offer(&mut reassembly, 100, 110);
    offer(&mut reassembly, 120, 130);
    offer(&mut reassembly, 140, 250);
    assert_eq!(offer(&mut reassembly, 90, 200), Offered::Held);
    assert_eq!(discarded(&mut reassembly), [100, 120]);
    assert_eq!(take(&mut reassembly, 90), [(90, 0, 50), (140, 0, 110)]);
}

/// What is in order is held whatever the budget is while its owner does not take it.
#[test]
fn payload_that_covers_others_is_held_beyond_the_budget() {
    let mut reassembly = Reassembly::default();
    for start in [0, 10, 20] {
        assert_eq!(reassembly.offer(at(start), at(start + 10), 0, BufferToken(start), u32::MAX), Offered::Held);
    }
    assert_eq!(reassembly.reach(at(0)), at(30));
    let ahead = |reassembly: &mut Reassembly, start, end, budget| {
        let offered = reassembly.offer(at(start), at(end), 0, BufferToken(start), budget);
        reassembly.check(at(30));
        (offered, runs(reassembly))
    };
    assert_eq!(ahead(&mut reassembly, 50, 60, 3), (Offered::OverBudget, vec![]));
    assert_eq!(ahead(&mut reassembly, 50, 60, 4), (Offered::Held, vec![(50, 60)]));
    assert_eq!(ahead(&mut reassembly, 40, 70, 3), (Offered::Held, vec![(40, 70)]));
    assert_eq!(ahead(&mut reassembly, 80, 90, 3), (Offered::OverBudget, vec![(40, 70)]));
    assert_eq!(discarded(&mut reassembly), [50]);
}

#[test]
fn octets_that_arrive_otherwise_are_skipped() {
    let mut reassembly = Reassembly::default();
    offer(&mut reassembly, 100, 200);
    offer(&mut reassembly, 200, 300);
    assert_eq!(take(&mut reassembly, 250), [(200, 50, 50)]);
    assert_eq!(discarded(&mut reassembly), [100]);
}

#[test]
fn budget_keeps_what_is_nearest_to_the_gap() {
    let mut reassembly = Reassembly::default();
    let mut offer = |start: u32| reassembly.offer(at(start), at(start + 10), 0, BufferToken(start), 2);
    assert_eq!(offer(200), Offered::Held);
    assert_eq!(offer(300), Offered::Held);
    assert_eq!(offer(400), Offered::OverBudget);
    assert_eq!(offer(100), Offered::Held);
    assert_eq!(runs(&reassembly), [(100, 110), (200, 210)]);
    assert_eq!(discarded(&mut reassembly), [300]);
}

#[test]
fn end_of_the_stream_cuts() {
    let mut reassembly = Reassembly::default();
    offer(&mut reassembly, 100, 200);
    offer(&mut reassembly, 200, 300);
    reassembly.end_at(at(150));
    reassembly.check(at(0));
    assert_eq!(discarded(&mut reassembly), [200]);
    assert_eq!(take(&mut reassembly, 100), [(100, 0, 50)]);
}

#[test]
fn shrinking_loses_no_buffer_and_no_report() {
    let mut reassembly = Reassembly::default();
    offer(&mut reassembly, 100, 200);
    reassembly.clear();
    assert!(reassembly.is_plain() && !reassembly.is_drained());
    reassembly.shrink();
    assert_eq!(discarded(&mut reassembly), [100]);

    let duplicate = Run { start: at(5), end: at(9) };
    reassembly.note_duplicate(duplicate);
    assert!(!reassembly.is_plain() && reassembly.is_drained());
    reassembly.shrink();
    assert_eq!(reassembly.take_duplicate(), Some(duplicate));
    reassembly.shrink();
    assert_eq!(reassembly.heap(), 0);
}

#[test]
fn data_in_order_is_held_for_an_owner_that_takes_nothing() {
    let mut reassembly = Reassembly::default();
    assert!(reassembly.is_plain() && reassembly.is_empty() && !reassembly.has_deliverable(at(100)));
    reassembly.set_holding(true);
    // The next octets are to be offered.
    assert!(!reassembly.is_plain() && !reassembly.is_empty() && reassembly.has_deliverable(at(100)));
    assert!(!reassembly.reports());
    offer(&mut reassembly, 100, 200);
    assert_eq!(reassembly.reach(at(100)), at(200));
    assert_eq!(reassembly.offer(at(300), at(400), 0, BufferToken(300), 100), Offered::Held);
    reassembly.check(at(200));
    assert_eq!(reassembly.take(at(200)), None);
    reassembly.set_holding(false);
    assert_eq!(reassembly.take(at(200)).map(|held| (held.token.0, held.len)), Some((100, 100)));
    assert_eq!(reassembly.take(at(200)), None);
    assert!(!reassembly.is_empty() && reassembly.reports());
    // The end gives everything back.
    reassembly.set_holding(true);
    reassembly.clear();
    assert_eq!(discarded(&mut reassembly), [300]);
    assert!(reassembly.is_plain());
}
