//! The extent of a measurement: the warm-up, the timed part, the progress bar.

use crate::cli::{Amount, Plan};
use crate::samples::Samples;
use std::time::{Duration, Instant};
use uwarp_app::output::Progress;
use uwarp_app::signals;

/// The fewest messages of a latency test's warm-up.
const WARM_UP_MESSAGES: u64 = 200;
/// Length of a warm-up, at most.
const WARM_UP_MAX: Duration = Duration::from_millis(500);

/// Fails if the user has interrupted the tool.
///
/// # Errors
/// The user has.
pub fn check_interrupted() -> anyhow::Result<()> {
    if signals::interrupted() {
        anyhow::bail!("interrupted");
    }
    Ok(())
}

/// Where a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// After this many messages.
    Messages(u64),
    /// After so long.
    Time(Duration),
}

impl Goal {
    /// The end of the timed part.
    pub fn of(amount: Amount) -> Self {
        match amount {
            Amount::Iterations(iterations) => Self::Messages(iterations),
            Amount::Duration(duration) => Self::Time(duration),
        }
    }

    /// The end of the warm-up: a tenth of the timed part.
    pub fn warm_up(amount: Amount) -> Self {
        match amount {
            Amount::Iterations(iterations) => Self::Messages(iterations / 10),
            Amount::Duration(duration) => Self::Time((duration / 10).min(WARM_UP_MAX)),
        }
    }

    /// Whether it is reached. Reads the clock if necessary.
    #[inline]
    pub fn reached(self, messages: u64, begin: Instant) -> bool {
        match self {
            Self::Messages(total) => messages >= total,
            Self::Time(duration) => begin.elapsed() >= duration,
        }
    }

    /// How many of the next `most` messages may still be started.
    #[inline]
    pub fn left(self, messages: u64, most: u64) -> u64 {
        match self {
            Self::Messages(total) => total.saturating_sub(messages).min(most),
            Self::Time(_) => most,
        }
    }
}

/// The progress bar of a timed part.
pub struct Bar {
    bar: Progress,
    goal: Goal,
}

impl Bar {
    /// A bar for this run.
    pub fn new(plan: &Plan) -> Self {
        let goal = Goal::of(plan.amount);
        let total = match goal {
            Goal::Messages(total) => total,
            // Milliseconds: fine enough for a bar.
            Goal::Time(duration) => duration.as_millis() as u64,
        };
        Self { bar: Progress::parts(plan.test.name(), total), goal }
    }

    /// Shows how far the run is.
    pub fn show(&mut self, messages: u64, begin: Instant) {
        self.bar.set(match self.goal {
            Goal::Messages(_) => messages,
            Goal::Time(_) => begin.elapsed().as_millis() as u64,
        });
    }
}

/// Runs one message after another and times each. `once` runs the message with the given number and says whether it was
/// answered; an unanswered one makes no sample.
///
/// The clock is read once per message: the end of one is the start of the next.
///
/// # Errors
/// Those of `once`, or the user's interrupt.
pub fn round_trips(
    plan: &Plan,
    mut once: impl FnMut(u64) -> anyhow::Result<bool>,
) -> anyhow::Result<(Samples, Duration)> {
    let mut samples = Samples::new()?;
    let mut message = 0_u64;
    let warm_up = Goal::warm_up(plan.amount);
    let begin = Instant::now();
    while message < WARM_UP_MESSAGES || !warm_up.reached(message, begin) {
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
    let goal = Goal::of(plan.amount);
    let mut bar = Bar::new(plan);
    let mut timed = 0_u64;
    let begin = Instant::now();
    let mut start = begin;
    loop {
        let answered = once(message)?;
        let end = Instant::now();
        message += 1;
        let mut pause = !answered;
        if answered {
            timed += 1;
            pause |= samples.push(end.duration_since(start).as_nanos() as u64);
        }
        let reached = match goal {
            Goal::Messages(total) => timed >= total,
            Goal::Time(duration) => end.duration_since(begin) >= duration,
        };
        if reached {
            samples.flush();
            return Ok((samples, end.duration_since(begin)));
        }
        start = end;
        if pause {
            samples.flush();
            check_interrupted()?;
            bar.show(timed, begin);
            start = Instant::now();
        }
    }
}
