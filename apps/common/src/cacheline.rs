//! How long a cache line takes from one CPU to the other and back. The host of a virtual machine moves its CPUs, which
//! changes every other figure several times over: two results compare only if this one agrees.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Round trips of one measurement.
const ROUNDS: u64 = 100_000;
/// Spins after which the other side is taken to be kept off its CPU.
const SPINS_MAX: u32 = 50_000_000;

#[repr(align(128))]
struct Line(AtomicU64);

/// Median of several measurements between two CPUs, in nanoseconds; none if they are one CPU or cannot be used.
pub fn round_trip(first: usize, second: usize) -> Option<f64> {
    if first == second {
        return None;
    }
    let mut rounds: Vec<f64> = (0..5).filter_map(|_| measure(first, second)).collect();
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied()
}

fn measure(first: usize, second: usize) -> Option<f64> {
    let there = Line(AtomicU64::new(0));
    let back = Line(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            pin(second)
                && (1..=ROUNDS).all(|round| {
                    let seen = wait(&there, round);
                    back.0.store(round, Ordering::Release);
                    seen
                })
        });
        let ask = scope.spawn(|| {
            if !pin(first) {
                return None;
            }
            let mut start = Instant::now();
            for round in 1..=ROUNDS {
                // The first tenth brings both threads to their CPUs.
                if round == ROUNDS / 10 {
                    start = Instant::now();
                }
                there.0.store(round, Ordering::Release);
                if !wait(&back, round) {
                    return None;
                }
            }
            Some(start.elapsed().as_nanos() as f64 / (ROUNDS - ROUNDS / 10) as f64)
        });
        let time = ask.join().ok()?;
        // Whatever stopped the asking side, the other must not wait for ever.
        there.0.store(u64::MAX, Ordering::Release);
        echo.join().ok()?.then_some(time).flatten()
    })
}

fn wait(line: &Line, round: u64) -> bool {
    for _ in 0..SPINS_MAX {
        let value = line.0.load(Ordering::Acquire);
        if value >= round {
            return value != u64::MAX;
        }
        std::hint::spin_loop();
    }
    false
}

/// CPUs that this process may run on.
pub fn usable() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread; false if there is no such CPU or the process may not use it.
pub fn pin(cpu: usize) -> bool {
    core_affinity::get_core_ids()
        .into_iter()
        .flatten()
        .find(|core| core.id == cpu)
        .is_some_and(core_affinity::set_for_current)
}
