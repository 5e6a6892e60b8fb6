//! What the tools that measure share: how much to measure, the warm-up, the samples, and the progress bar.

use crate::output::Progress;
use crate::signals::check_interrupted;
use crate::units::{parse_count, parse_duration};
use crate::usage;
use clap::Args;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The fewest messages of the warm-up of [`round_trips`].
const WARM_UP_MESSAGES: u64 = 200;
/// Length of a warm-up, at most.
const WARM_UP_MAX: Duration = Duration::from_millis(500);
/// Samples per update of the histogram: few enough to stay in the first-level cache.
const CHUNK: usize = 2048;

/// How much a test measures, on the command line.
#[derive(Args, Clone, Debug)]
pub struct AmountFlags {
    /// Number of timed messages or calls, in all queue pairs together (10000, 10k, 2M)
    #[arg(long, value_parser = parse_count, conflicts_with = "duration")]
    iterations: Option<u64>,

    /// How long to measure [default: 2s]
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
}

impl AmountFlags {
    /// What the flags name, or two seconds.
    ///
    /// # Errors
    /// One sentence for a flag that is out of range.
    pub fn amount(&self) -> anyhow::Result<Amount> {
        match (self.iterations, self.duration.unwrap_or(Duration::from_secs(2))) {
            (Some(0), _) => Err(usage("--iterations is 0: choose at least 1")),
            (Some(iterations), _) => Ok(Amount::Iterations(iterations)),
            (None, duration) if (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&duration) => {
                Ok(Amount::Duration(duration))
            }
            _ => Err(usage("--duration is out of range: choose 1ms to one day")),
        }
    }
}

/// How much to measure: where a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// After so many messages or calls.
    Iterations(u64),
    /// After so long.
    Duration(Duration),
}

impl Amount {
    /// The warm-up before it: a tenth, and half a second at most.
    pub fn warm_up(self) -> Self {
        match self {
            Self::Iterations(iterations) => Self::Iterations(iterations / 10),
            Self::Duration(duration) => Self::Duration((duration / 10).min(WARM_UP_MAX)),
        }
    }

    /// Whether it is reached by `done` messages in the time that `passed` returns, which is asked only if it matters.
    #[inline]
    pub fn is_reached(self, done: u64, passed: impl FnOnce() -> Duration) -> bool {
        match self {
            Self::Iterations(iterations) => done >= iterations,
            Self::Duration(duration) => passed() >= duration,
        }
    }

    /// How many of the next `most` messages may still be started after `done`.
    #[inline]
    pub fn left(self, done: u64, most: u64) -> u64 {
        match self {
            Self::Iterations(iterations) => iterations.saturating_sub(done).min(most),
            Self::Duration(_) => most,
        }
    }

    /// The flag and its value, for another process of the same tool.
    pub fn to_arguments(self) -> [String; 2] {
        match self {
            Self::Iterations(iterations) => ["--iterations".to_owned(), iterations.to_string()],
            Self::Duration(duration) => ["--duration".to_owned(), format!("{}ns", duration.as_nanos())],
        }
    }
}

/// Percentiles of a latency, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The shortest.
    pub min: u64,
    /// The median.
    pub p50: u64,
    /// 99 of 100 are shorter.
    pub p99: u64,
    /// 999 of 1000 are shorter.
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
}

/// The times of messages in nanoseconds: stored in a list while the clock runs, and moved to a histogram while it does
/// not.
pub struct Samples {
    chunk: Vec<u64>,
    histogram: Histogram<u64>,
}

impl Samples {
    /// An empty collection.
    ///
    /// # Errors
    /// The histogram refuses its bounds (it does not).
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            chunk: Vec::with_capacity(CHUNK),
            // Three digits from 1 ns to a minute; longer ones count as a minute.
            histogram: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
        })
    }

    /// Adds one sample; true if that took a time of its own, which belongs to no message.
    #[inline]
    #[must_use]
    pub fn push(&mut self, time: Duration) -> bool {
        self.chunk.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let is_full = self.chunk.len() == CHUNK;
        if is_full {
            self.flush();
        }
        is_full
    }

    fn flush(&mut self) {
        for sample in self.chunk.drain(..) {
            self.histogram.saturating_record(sample);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len() + self.chunk.len() as u64
    }

    /// Their mean, in nanoseconds.
    pub fn mean(&mut self) -> f64 {
        self.flush();
        self.histogram.mean()
    }

    /// The percentiles.
    pub fn latency(&mut self) -> Latency {
        self.flush();
        let histogram = &self.histogram;
        Latency {
            min: histogram.min(),
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p99_9: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// The progress bar of a timed part.
pub struct Bar {
    bar: Progress,
    amount: Amount,
}

impl Bar {
    /// A bar for this much, with the name of the test.
    pub fn new(test: &str, amount: Amount) -> Self {
        let total = match amount {
            Amount::Iterations(total) => total,
            // Milliseconds: fine enough for a bar.
            Amount::Duration(duration) => duration.as_millis() as u64,
        };
        Self { bar: Progress::parts(test, total), amount }
    }

    /// Shows how far the run is.
    pub fn show(&mut self, done: u64, begin: Instant) {
        self.bar.set(match self.amount {
            Amount::Iterations(_) => done,
            Amount::Duration(_) => begin.elapsed().as_millis() as u64,
        });
    }
}

/// What [`round_trips`] has timed.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// The time of each message.
    pub latency: Latency,
    /// How many there were.
    pub count: u64,
    /// How long they took together, in seconds.
    pub seconds: f64,
}

/// Runs one message after another and times each. `once` runs the message with the given number and says whether it was
/// answered; an unanswered one makes no sample. The numbers of the warm-up's messages come first.
///
/// The clock is read once per message: the end of one is the start of the next.
///
/// # Errors
/// Those of `once`, or the user's interrupt.
pub fn round_trips(
    test: &str,
    amount: Amount,
    mut once: impl FnMut(u64) -> anyhow::Result<bool>,
) -> anyhow::Result<Timed> {
    let mut samples = Samples::new()?;
    let mut message = 0_u64;
    let warm_up = amount.warm_up();
    let begin = Instant::now();
    while message < WARM_UP_MESSAGES || !warm_up.is_reached(message, || begin.elapsed()) {
        once(message)?;
        message += 1;
        // On a device with round trips of milliseconds, the minimum would take longer than the test.
        if message.is_multiple_of(16) {
            check_interrupted()?;
            if begin.elapsed() > 2 * WARM_UP_MAX {
                break;
            }
        }
    }
    let mut bar = Bar::new(test, amount);
    let begin = Instant::now();
    let mut start = begin;
    loop {
        let answered = once(message)?;
        let end = Instant::now();
        message += 1;
        let pause = !answered || samples.push(end.duration_since(start));
        let time = end.duration_since(begin);
        if amount.is_reached(samples.count(), || time) {
            return Ok(Timed { latency: samples.latency(), count: samples.count(), seconds: time.as_secs_f64() });
        }
        start = end;
        if pause {
            check_interrupted()?;
            bar.show(samples.count(), begin);
            start = Instant::now();
        }
    }
}

/// A rate of `octets` in 10^9 bit/s.
pub fn gbit_per_s(octets: f64, seconds: f64) -> f64 {
    octets * 8e-9 / seconds
}
