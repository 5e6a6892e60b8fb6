//! The clock of all engines of this process: nanoseconds since its first use.
//!
//! It is read once a turn, so it must be cheap: the time stamp counter if the kernel itself uses that (then it is
//! constant, does not stop, and is the same on all cores), else the system's monotonic clock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uwarp_memory::cycles;
use uwarp_tcp::Instant;

/// Start well above zero, where subtractions would saturate.
const START: u64 = 1_000_000_000;
/// How long the counter is compared with the system's clock, which gives its rate to about 20 parts in a million.
const CALIBRATION: Duration = Duration::from_millis(5);

/// Readings of both clocks, of which one is used.
const READINGS_OF_BOTH: usize = 16;

/// The clock that all engines share, so their time stamps are comparable.
static CLOCK: OnceLock<Clock> = OnceLock::new();
/// How often a [`Clock::Stepped`] was read.
static READINGS: AtomicU64 = AtomicU64::new(0);

/// A source of [`Instant`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The time stamp counter.
    Counter(Counter),
    /// The system's monotonic clock, from this moment on.
    System(std::time::Instant),
    /// So many nanoseconds pass from one reading to the next, whichever engine reads.
    Stepped(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    origin: u64,
    /// Nanoseconds per cycle, times 2^32.
    scale: u64,
}

impl Clock {
    /// The process's clock. The first call takes some milliseconds.
    pub(crate) fn get() -> Self {
        *CLOCK.get_or_init(|| calibrate().map_or_else(|| Clock::System(std::time::Instant::now()), Clock::Counter))
    }

    /// Time since the first use.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        let nanoseconds = match self {
            // Calibration has shown that cycles can be read.
            Clock::Counter(counter) => counter.nanoseconds(cycles().unwrap_or_default()),
            Clock::System(origin) => origin.elapsed().as_nanos() as u64,
            Clock::Stepped(step) => step * READINGS.fetch_add(1, Ordering::Relaxed),
        };
        Instant::from_nanos(START + nanoseconds)
    }
}

/// As [`crate::measure::step_clock`] says.
pub(crate) fn step(by: Duration) -> bool {
    CLOCK.set(Clock::Stepped(by.as_nanos() as u64)).is_ok()
}

impl Counter {
    #[inline]
    fn nanoseconds(&self, now: u64) -> u64 {
        // The counters of two cores may differ by a few cycles; never return a time before the origin.
        let elapsed = now.saturating_sub(self.origin);
        ((u128::from(elapsed) * u128::from(self.scale)) >> 32) as u64
    }
}

fn calibrate() -> Option<Counter> {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    if source.ok()?.trim() != "tsc" {
        return None;
    }
    let (origin, started) = both()?;
    std::thread::sleep(CALIBRATION);
    let (end, ended) = both()?;
    let elapsed = ended - started;
    let scale = (elapsed.as_nanos() << 32).checked_div(u128::from(end.checked_sub(origin)?))?;
    Some(Counter { origin, scale: u64::try_from(scale).ok().filter(|&scale| scale > 0)? })
}

/// Both clocks at one moment: of several readings the one that took the shortest. A thread that loses its core between
/// the two clocks would make one of them several times as fast as the other.
fn both() -> Option<(u64, std::time::Instant)> {
    let read = || {
        let before = cycles()?;
        let system = std::time::Instant::now();
        Some((cycles()?.saturating_sub(before), before, system))
    };
    let (_, counter, system) = (0..READINGS_OF_BOTH).filter_map(|_| read()).min_by_key(|(took, ..)| *took)?;
    Some((counter, system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_scaled_without_overflow() {
        // 2.5 GHz for a hundred years.
        let counter = Counter { origin: 1_000, scale: (1 << 32) * 2 / 5 };
        let years = 100 * 365 * 86_400_u64;
        let nanoseconds = counter.nanoseconds(1_000 + years * 2_500_000_000);
        assert_eq!(nanoseconds / 1_000_000_000, years - 1);
        assert_eq!(counter.nanoseconds(0), 0);
    }

    #[test]
    fn a_stepped_clock_moves_when_it_is_read() {
        let clock = Clock::Stepped(100);
        let first = clock.now();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(clock.now().as_nanos() - first.as_nanos(), 100);
    }

    #[test]
    fn the_clock_follows_the_systems() {
        let clock = Clock::get();
        let (before, started) = (clock.now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (after, elapsed) = (clock.now(), started.elapsed().as_nanos() as f64);
        let measured = (after.as_nanos() - before.as_nanos()) as f64;
        // A coarse bound: only a wrong unit or rate fails it.
        assert!((0.5..2.0).contains(&(measured / elapsed)), "{measured} of {elapsed}");
    }
}
