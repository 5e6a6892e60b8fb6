//! How an idle poller gives way.

use crate::config::{EngineOptions, Idle};
use std::time::Duration;
use uwarp_tcp::Instant;

/// Idle turns that only spin: about as long as one packet's round trip on a virtual device.
const SPINS: u32 = 64;
/// A nap lasts the idle time so far divided by this: the longer nothing came, the less a late look costs.
const NAP_PART: u32 = 8;
/// Shortest nap: shorter ones take longer than they last.
const LEAST_NAP: Duration = Duration::from_micros(20);

/// How an idle poller gives way: it spins a little, then yields, then says that it may sleep.
pub(crate) struct Backoff {
    idle: Idle,
    spin: Duration,
    nap: Duration,
    turns: u32,
    since: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new(options: &EngineOptions) -> Self {
        Self { idle: options.idle, spin: options.spin, nap: options.nap, turns: 0, since: None }
    }

    /// There was something to do.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// Longest sleep beside a device that announces nothing.
    pub(super) fn nap(&self, now: Instant) -> Duration {
        let idle = self.since.map_or(0, |since| now.as_nanos().saturating_sub(since.as_nanos()));
        (Duration::from_nanos(idle) / NAP_PART).max(LEAST_NAP).min(self.nap)
    }

    /// There was nothing to do. True when it is time to sleep.
    #[inline]
    pub(super) fn idle(&mut self, now: Instant) -> bool {
        self.turns = self.turns.saturating_add(1);
        if self.idle == Idle::Spin || self.turns < SPINS {
            std::hint::spin_loop();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.as_nanos().saturating_sub(since.as_nanos()) < self.spin.as_nanos() as u64 {
            // Costs a fraction of a microsecond when nobody wants the core, and saves a time slice when somebody does,
            // be it a poller of another process, which cannot be counted from here.
            std::thread::yield_now();
            return false;
        }
        true
    }
}
