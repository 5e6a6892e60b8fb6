use std::sync::atomic::AtomicBool;

use super::*;
use crate::access::{Access, Association, DomainId, Scope, StreamId};
use crate::options::TaggedBase;
use crate::registration::Registration;
use crate::table::RegionTable;
use crate::turn::EngineEpoch;

const WHO: Association = Association { domain: DomainId(1), stream: StreamId(1) };
const SCOPE: Scope = Scope::Domain(DomainId(1));

fn tables() -> [Arc<RegionTable>; 2] {
    [RegionTable::new(64, 1 << 30, 1), RegionTable::with_engines(64, 1 << 30, 1, Engines::symmetric())]
}

fn register(table: &Arc<RegionTable>, octets: Vec<u8>) -> Registration {
    table.register(octets, Access::ALL, SCOPE, TaggedBase::Zero).unwrap()
}

fn engines(table: &RegionTable) -> usize {
    table.engines().list.lock().unwrap().len()
}

#[test]
fn turn_under_way_is_waited_for_and_a_later_one_is_not() {
    for table in tables() {
        let mut epoch = table.engine();
        let mut grace_period = std::thread::scope(|scope| {
            let turn = epoch.enter();
            let mut grace_period = scope.spawn(|| table.grace_period()).join().unwrap();
            assert!(!grace_period.is_over());
            drop(turn);
            assert!(grace_period.is_over());
            let turn = epoch.enter();
            let grace_period = scope.spawn(|| table.grace_period()).join().unwrap();
            drop(turn);
            grace_period
        });
        let _later = epoch.enter();
        assert!(grace_period.is_over());
        grace_period.wait();
    }
}

#[test]
fn engine_outside_of_a_turn_is_not_waited_for() {
    for table in tables() {
        let mut epochs: Vec<_> = (0..3).map(|_| table.engine()).collect();
        for epoch in &mut epochs {
            drop(epoch.enter());
        }
        assert!(table.grace_period().is_over());
        drop(register(&table, vec![0; 1]));
    }
}

#[test]
fn revoking_in_ones_own_turn_does_not_wait_for_oneself() {
    for table in tables() {
        let region = register(&table, vec![0; 8]);
        let stag = region.stag();
        let mut epoch = table.engine();
        let turn = epoch.enter();
        turn.place(WHO, stag, 0, &[1], Access::REMOTE_WRITE).unwrap();
        let buffer = region.deregister();
        assert!(turn.place(WHO, stag, 0, &[2], Access::REMOTE_WRITE).is_err());
        assert_eq!(buffer.as_slice()[0], 1);
    }
}

#[test]
fn engines_come_and_go() {
    let [table, _] = tables();
    let first = table.engine();
    let second = table.engine();
    assert_eq!(engines(&table), 2);
    drop(first);
    assert_eq!(engines(&table), 1);
    assert!(Arc::ptr_eq(second.table(), &table));
    drop(second);
    assert_eq!(engines(&table), 0);
}

#[test]
fn leaked_turn_does_not_turn_inside_into_outside() {
    let [table, _] = tables();
    let mut epoch = table.engine();
    std::mem::forget(epoch.enter());
    let turns = |epoch: &EngineEpoch| epoch.state().turns.load(Relaxed);
    assert_eq!(turns(&epoch) % 2, 1);
    let turn = epoch.enter();
    assert_eq!(turn_parity(&table), [1]);
    drop(turn);
    assert_eq!(turns(&epoch) % 2, 0);
    std::mem::forget(epoch.enter());
    drop(epoch);
    assert_eq!(engines(&table), 0);
    assert!(table.grace_period().is_over());
}

fn turn_parity(table: &RegionTable) -> Vec<u64> {
    table.engines().list.lock().unwrap().iter().map(|engine| engine.turns.load(Relaxed) % 2).collect()
}

#[test]
fn panic_in_a_turn_ends_it() {
    let [table, _] = tables();
    std::thread::scope(|scope| {
        let panicked = scope.spawn(|| {
            let mut epoch = table.engine();
            let _turn = epoch.enter();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err());
    });
    assert_eq!(engines(&table), 0);
    drop(register(&table, vec![0; 1]));
}

/// Ends the loops of other threads, by a failed assertion, too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Engines write streams into regions that are taken from under them: once a buffer is back it does not change. Each
/// engine writes to a part of its own, so that only a late write is a data race to the thread sanitizer.
#[test]
fn buffer_does_not_change_after_deregistration() {
    const LENGTH: usize = 9000;
    const ROUNDS: usize = 150;
    for table in tables() {
        let stop = AtomicBool::new(false);
        let stag = AtomicU64::new(0);
        let placed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for engine in 0..2u8 {
                let (table, stop, stag, placed) = (&table, &stop, &stag, &placed);
                scope.spawn(move || {
                    let mut epoch = table.engine();
                    let mut value = engine;
                    while !stop.load(Relaxed) {
                        value = value.wrapping_add(2);
                        let payload = [value; LENGTH];
                        let turn = epoch.enter();
                        for _ in 0..8 {
                            let stag = stag.load(Relaxed) as u32;
                            let offset = u64::from(engine) * LENGTH as u64;
                            if turn.place(WHO, stag, offset, &payload, Access::REMOTE_WRITE).is_ok() {
                                placed.fetch_add(1, Relaxed);
                            }
                        }
                        drop(turn);
                        // Engines come and go, too.
                        if value.is_multiple_of(64) {
                            epoch = table.engine();
                        }
                    }
                });
            }
            for _ in 0..ROUNDS {
                let before = placed.load(Relaxed);
                let region = register(&table, vec![0; 2 * LENGTH]);
                stag.store(u64::from(region.stag()), Relaxed);
                while placed.load(Relaxed) == before {
                    std::thread::yield_now();
                }
                let buffer = region.deregister();
                let copy = buffer.as_slice().to_vec();
                for _ in 0..10 {
                    std::thread::yield_now();
                    assert!(buffer.as_slice() == copy, "written to after deregistration");
                }
            }
        });
    }
}
