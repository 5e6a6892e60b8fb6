//! The protocol between a turn and a revocation in every interleaving, engines paying for their own barrier. What
//! membarrier(2) adds cannot be modelled: it is that barrier, executed from outside.

use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::EngineState;

const ENGINE: usize = 1;

/// A region as small as can be: a state word and a payload, of which loom reports accesses at the same time.
struct Region {
    valid: AtomicU64,
    payload: UnsafeCell<u64>,
}

#[test]
fn nothing_is_placed_after_a_revocation() {
    loom::model(|| {
        let region = Arc::new(Region { valid: AtomicU64::new(1), payload: UnsafeCell::new(0) });
        let state = Arc::new(EngineState::new());
        let engine = {
            let (region, state) = (region.clone(), state.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    state.enter(ENGINE, false);
                    if region.valid.load(Acquire) == 1 {
                        // SAFETY: loom checks that this is the only access.
                        region.payload.with_mut(|payload| unsafe { *payload += 1 });
                    }
                    state.leave();
                }
            })
        };
        region.valid.fetch_and(0, AcqRel);
        fence(SeqCst);
        if let Some((turn, _)) = state.turn() {
            while state.is_in(turn) {
                thread::yield_now();
            }
        }
        // SAFETY: as above.
        region.payload.with_mut(|payload| unsafe { *payload = 0 });
        engine.join().unwrap();
        // SAFETY: as above.
        region.payload.with(|payload| assert_eq!(unsafe { *payload }, 0));
    });
}
