//! Flow control of a requester (RFC 8166 §3.3).

/// Calls that may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    requested: u32,
    granted: u32,
    in_flight: u32,
}

impl Credits {
    /// The credits of a new connection that requests `requested`, at least one. Until the first reply grants more, one
    /// call may be under way (§3.3.3).
    pub fn new(requested: u32) -> Self {
        Self { requested: requested.max(1), granted: 1, in_flight: 0 }
    }

    /// What each call asks for.
    pub const fn requested(&self) -> u32 {
        self.requested
    }

    /// Calls under way: sent and unanswered. An abandoned call still counts, since its answer takes a receive.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Calls that may be sent now.
    pub fn available(&self) -> u32 {
        self.requested.min(self.granted).saturating_sub(self.in_flight)
    }

    /// A call is sent.
    pub fn sent(&mut self) {
        self.in_flight += 1;
    }

    /// A valid reply arrived and granted this many credits. Zero is forbidden (§3.3.1), as it would stop all calls, and
    /// counts as one.
    pub fn replied(&mut self, granted: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.granted = granted.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_goes_first_and_then_as_many_as_both_sides_like() {
        let mut credits = Credits::new(10);
        assert_eq!(credits.available(), 1);
        credits.sent();
        assert_eq!(credits.available(), 0);
        credits.replied(2);
        assert_eq!(credits.available(), 2, "the grant");
        credits.replied(32);
        assert_eq!(credits.available(), 10, "what was asked for");
        for _ in 0..10 {
            credits.sent();
        }
        assert_eq!(credits.available(), 0);
        credits.replied(3);
        assert_eq!((credits.available(), credits.in_flight()), (0, 9), "a smaller grant lets the surplus drain");
        credits.replied(0);
        assert_eq!(credits.available(), 0);
        for _ in 0..8 {
            credits.replied(0);
        }
        assert_eq!((credits.available(), credits.in_flight()), (1, 0), "zero is one");
    }
}
