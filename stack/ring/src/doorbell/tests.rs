use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed as RelaxedOrder;

use proptest::prelude::*;

use super::*;

fn taken(doorbells: &Doorbells) -> Vec<usize> {
    let mut visited = Vec::new();
    let visits = doorbells.take(|index| visited.push(index));
    assert_eq!(visits, visited.len());
    visited
}

#[test]
fn rung_bells_are_visited_once_in_rising_order() {
    let doorbells = Doorbells::new(10_000);
    assert_eq!(doorbells.count(), 10_000);
    assert!(!doorbells.is_any_rung());
    for index in [9_999, 0, 64, 63, 4_096, 4_095, 0] {
        doorbells.ring(index);
    }
    assert!(doorbells.is_any_rung());
    assert_eq!(taken(&doorbells), [0, 63, 64, 4_095, 4_096, 9_999]);
    assert!(!doorbells.is_any_rung());
    assert_eq!(taken(&doorbells), []);
}

#[test]
fn bell_rung_during_its_visit_rings_again() {
    let doorbells = Doorbells::new(3);
    doorbells.ring(1);
    assert_eq!(doorbells.take(|index| doorbells.ring(index)), 1);
    assert_eq!(taken(&doorbells), [1]);
}

#[test]
#[should_panic(expected = "doorbell 3 of 3")]
fn ringing_a_bell_that_is_not_there_panics() {
    Doorbells::new(3).ring(3);
}

#[test]
fn no_doorbells_at_all() {
    assert_eq!(taken(&Doorbells::new(0)), []);
}

/// Two threads publish counters and ring; the visits account for every one of them.
#[test]
fn visits_see_what_was_published_before_ringing() {
    const BELLS: usize = 130;
    const ROUNDS: usize = 200_000;
    let doorbells = Doorbells::new(BELLS);
    let published: Vec<_> = (0..BELLS).map(|_| AtomicUsize::new(0)).collect();
    let done = AtomicUsize::new(0);
    let mut seen = [0; BELLS];
    std::thread::scope(|scope| {
        for poster in 0..2 {
            let (doorbells, published, done) = (&doorbells, &published, &done);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let index = (round * 7 + poster) % BELLS;
                    published[index].fetch_add(1, RelaxedOrder);
                    doorbells.ring(index);
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Release);
            });
        }
        loop {
            let finished = done.load(Acquire) == 2;
            doorbells.take(|index| seen[index] = published[index].load(RelaxedOrder));
            if finished {
                break;
            }
        }
    });
    assert_eq!(seen.iter().sum::<usize>(), 2 * ROUNDS);
}

proptest! {
    #[test]
    fn doorbells_are_a_set(
        count in 1usize..9_000,
        rounds in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..40), 1..6),
    ) {
        let doorbells = Doorbells::new(count);
        for round in rounds {
            let mut model = BTreeSet::new();
            for index in round {
                let index = index.index(count);
                doorbells.ring(index);
                model.insert(index);
            }
            prop_assert_eq!(doorbells.is_any_rung(), !model.is_empty());
            prop_assert_eq!(taken(&doorbells), model.into_iter().collect::<Vec<_>>());
        }
    }
}
