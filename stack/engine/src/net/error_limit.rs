//! A limit of the ICMP errors sent.

use std::time::Duration;

use uwarp_tcp::Instant;

/// A token bucket with a rate of errors a second and a burst of a tenth of that.
#[derive(Debug)]
pub(crate) struct ErrorLimit {
    /// Time that one error costs; zero: no errors are sent.
    cost: Duration,
    burst: u32,
    tokens: u32,
    filled_at: Instant,
}

impl ErrorLimit {
    pub(crate) fn new(a_second: u32) -> ErrorLimit {
        let burst = if a_second == 0 { 0 } else { (a_second / 10).max(1) };
        let cost = Duration::from_secs(1).checked_div(a_second).unwrap_or_default();
        ErrorLimit { cost, burst, tokens: burst, filled_at: Instant::ZERO }
    }

    /// Whether an error may be sent now.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.burst == 0 {
            return false;
        }
        while self.tokens < self.burst && self.filled_at + self.cost <= now {
            self.tokens += 1;
            self.filled_at += self.cost;
        }
        if self.tokens == self.burst {
            self.filled_at = now;
        }
        if self.tokens == 0 {
            return false;
        }
        self.tokens -= 1;
        true
    }
}
