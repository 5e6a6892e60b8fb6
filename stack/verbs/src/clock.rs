//! The clock of all engines of this process: nanoseconds since it was first asked.

use std::sync::OnceLock;
use uwarp_tcp::Instant;

/// A source of [`Instant`]s that is the same for every engine, so that their time stamps compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// The process's clock.
    pub(crate) fn get() -> Self {
        static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
        Self {
            origin: *ORIGIN.get_or_init(std::time::Instant::now),
        }
    }

    /// Time since the first use, plus one second so that no engine meets an instant near zero.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(1_000_000_000 + self.origin.elapsed().as_nanos() as u64)
    }
}
