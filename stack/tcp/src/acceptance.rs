//! Which segments are acceptable, and how many of the others are challenged (RFC 9293 §3.10.7.4, RFC 5961).

use crate::Config;
use crate::instant::Instant;
use crate::position::Position;

/// One second in ns, the period of the limit on challenges.
const SECOND: u64 = 1_000_000_000;

/// How many challenges may still be sent in this second (RFC 5961 §7).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenges {
    second: Instant,
    sent: u32,
    limit: u32,
}

impl Challenges {
    pub(crate) fn new(config: &Config, now: Instant) -> Challenges {
        Challenges { second: now, sent: 0, limit: config.challenge_acks }
    }

    /// Whether one more may be sent now; counts it.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        if now.nanos_since(self.second) >= SECOND {
            self.second = now;
            self.sent = 0;
        }
        let admitted = self.sent < self.limit;
        self.sent += u32::from(admitted);
        admitted
    }
}

/// RFC 9293 §3.10.7.4, table 6, extended: a segment that overlaps the window is accepted as far as it lies inside. A
/// segment without text may also begin right behind the window, which is the position of a peer that has filled it.
#[inline]
pub(crate) fn is_acceptable(next: Position, edge: Position, start: Position, end: Position) -> bool {
    let edge = edge.max(next);
    if start == end { next <= start && start <= edge } else { end > next && (start < edge || start == next) }
}
