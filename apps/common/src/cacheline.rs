//! The current condition of a virtual machine's CPUs. The host moves them, and runs others on the second thread of a
//! core. The first changes how long a cache line takes from one CPU to another and back ([`round_trip`]), the second
//! how long a CPU takes for the same arithmetic ([`arithmetic`]). Either can change other figures by half or more, so
//! two results are comparable only if these agree.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Round trips of one measurement.
const ROUNDS: u64 = 10_000;
/// Spins after which the other side is considered to be off its CPU.
const SPINS_MAX: u32 = 50_000_000;

#[repr(align(128))]
struct Line(AtomicU64);

/// Round trip of a cache line between the CPUs of two processes, in nanoseconds. It shows whether the host moved them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheLine {
    /// Before the test.
    pub before: f64,
    /// After it.
    pub after: f64,
}

impl CacheLine {
    /// Runs a test between two measurements; also returns those, if the CPUs are two.
    ///
    /// # Errors
    /// Those of the test.
    pub fn around<Report>(
        [first, second]: [usize; 2],
        test: impl FnOnce() -> anyhow::Result<Report>,
    ) -> anyhow::Result<(Report, Option<Self>)> {
        let before = round_trip(first, second);
        let report = test()?;
        let after = round_trip(first, second);
        Ok((report, before.zip(after).map(|(before, after)| Self { before, after })))
    }
}

impl fmt::Display for CacheLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.0} → {:.0}", self.before, self.after)
    }
}

/// Median of several measurements between two CPUs, in nanoseconds; `None` if they are the same CPU or cannot be used.
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
                // The first tenth settles both threads on their CPUs.
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
        // However this side stopped, the other must not wait for ever.
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

/// Repetitions of one measurement of arithmetic, a few microseconds each.
const REPETITIONS: usize = 400;
/// Steps of one repetition.
const STEPS: u64 = 4_000;

/// Time in nanoseconds of a fixed computation on two CPUs at once: the median of the slower one; `None` if one of them
/// cannot be used. A load on the second thread of one of their cores makes it longer.
pub fn arithmetic(first: usize, second: usize) -> Option<f64> {
    let together = Barrier::new(2);
    let on = |cpu: usize| {
        let pinned = pin(cpu);
        together.wait();
        pinned.then(|| {
            let mut times: Vec<u128> = (0..REPETITIONS).map(|_| calculate()).collect();
            times.sort_unstable();
            times[REPETITIONS / 2] as f64
        })
    };
    std::thread::scope(|scope| {
        let sides = [scope.spawn(|| on(first)), scope.spawn(|| on(second))];
        sides
            .map(|side| side.join().ok().flatten())
            .into_iter()
            .try_fold(0.0, |slowest: f64, time| Some(slowest.max(time?)))
    })
}

/// Four independent chains keep a core's units busy, so that a second thread on it shows.
fn calculate() -> u128 {
    let start = Instant::now();
    let mut chains = black_box([1_u64, 2, 3, 4]);
    for step in 0..STEPS {
        chains[0] = chains[0].wrapping_mul(3).wrapping_add(step);
        chains[1] ^= (chains[1] >> 3).wrapping_add(step);
        chains[2] = chains[2].wrapping_add(chains[2] << 2);
        chains[3] = (chains[3] ^ step).wrapping_add(chains[3]);
    }
    black_box(chains);
    start.elapsed().as_nanos()
}

/// CPUs that this process may run on.
pub fn usable() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread; false if the CPU does not exist or the process may not use it.
pub fn pin(cpu: usize) -> bool {
    core_affinity::get_core_ids()
        .into_iter()
        .flatten()
        .find(|core| core.id == cpu)
        .is_some_and(core_affinity::set_for_current)
}
