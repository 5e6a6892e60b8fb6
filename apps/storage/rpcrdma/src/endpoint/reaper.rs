//! The completions of an endpoint, reaped several at a time.

use std::time::Duration;
use uwarp::{Completion, CompletionQueue, Error};

/// How long a wait lasts before the connection's state is checked.
const LOOK: Duration = Duration::from_millis(100);
/// Completions that are reaped at once.
pub(super) const BATCH: usize = 32;
/// Fruitless polls after which the connection's state is checked.
const POLLS: u32 = 64;

/// A completion queue, and what was taken out of it.
#[derive(Debug)]
pub(super) struct Reaper {
    completions: CompletionQueue,
    /// Completions that were reaped, and how many of them were processed.
    reaped: [Completion; BATCH],
    taken: usize,
    looked_at: usize,
    /// Fruitless polls since the connection's state was checked.
    fruitless: u32,
}

impl Reaper {
    pub(super) fn new(completions: CompletionQueue) -> Self {
        Self { completions, reaped: [Completion::default(); BATCH], taken: 0, looked_at: 0, fruitless: 0 }
    }

    /// The next completion. It polls only if nothing is left of the last time.
    pub(super) fn next(&mut self) -> Option<Completion> {
        if self.looked_at == self.taken {
            self.looked_at = 0;
            self.taken = self.completions.poll(&mut self.reaped);
            if self.taken == 0 {
                self.fruitless += 1;
                return None;
            }
        }
        let completion = self.reaped[self.looked_at];
        self.looked_at += 1;
        Some(completion)
    }

    /// Whether so many polls were fruitless that the connection's state should be checked. Then the count begins anew.
    pub(super) fn has_polled_in_vain(&mut self) -> bool {
        let is_due = self.fruitless >= POLLS;
        if is_due {
            self.fruitless = 0;
        }
        is_due
    }

    /// Waits for a completion, or until the time-out.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        if self.looked_at < self.taken {
            return Ok(());
        }
        // The end of the connection may make no completion.
        self.taken = self.completions.wait_for(&mut self.reaped, timeout.min(LOOK))?;
        self.looked_at = 0;
        if self.taken == 0 {
            self.fruitless = POLLS;
        }
        Ok(())
    }
}
