//! When to connect again.

use std::time::{Duration, Instant};

/// The first pause after a failed attempt to connect; it doubles.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause. A connection that lasted this long counts as one, whatever it carried.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What became of the last connection, and the pause before the next attempt.
pub(super) struct Attempts {
    /// When the connection was made.
    up_at: Instant,
    /// A reply has arrived over it.
    pub(super) is_answered: bool,
    /// Messages that were dropped on it.
    pub(super) wrong: u64,
    /// When the last useful connection ended.
    lost_at: Instant,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { up_at: now, is_answered: false, wrong: 0, lost_at: now, pause: PAUSE }
    }

    /// A connection is established.
    pub(super) fn succeeded(&mut self) {
        (self.up_at, self.is_answered, self.wrong) = (Instant::now(), false, 0);
    }

    /// It has ended. Returns whether it was of use: a responder that ends each connection at once must not be contacted
    /// again without a pause, or for ever.
    pub(super) fn lost(&mut self, now: Instant) -> bool {
        let was_of_use = self.is_answered || now.duration_since(self.up_at) >= PAUSE_MAX;
        if was_of_use {
            (self.lost_at, self.pause) = (now, PAUSE);
        }
        was_of_use
    }

    /// When to try again; `None` if the last useful connection ended `patience` ago.
    pub(super) fn next(&mut self, patience: Duration) -> Option<Instant> {
        if self.lost_at.elapsed() >= patience {
            return None;
        }
        let again = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        Some(again)
    }
}
