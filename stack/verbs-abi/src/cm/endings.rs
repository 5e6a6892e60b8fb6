//! Ends of connections, which are reported when the program has read the completions that succeeded before them.
//!
//! Many programs destroy the queue pair as soon as they hear of the end, and whatever completion they have not read by
//! then is gone. Over a network the end comes so long after the last acknowledgment that a program that polls has read
//! them. Here both come in the same moment.

use std::time::{Duration, Instant};

/// How long an end is held back at most: some programs read no completion before the end is reported.
const LIMIT: Duration = Duration::from_millis(50);
/// How often the completion queues are looked at meanwhile.
const INTERVAL: Duration = Duration::from_millis(1);

/// The ends that are held back, by the keys of their identifiers.
#[derive(Default)]
pub(crate) struct Endings {
    held: Vec<(u64, Instant)>,
}

impl Endings {
    /// A connection has ended now.
    pub(crate) fn hold(&mut self, key: u64, now: Instant) {
        self.held.push((key, now + LIMIT));
    }

    /// How long to wait for something else before the next look.
    pub(crate) fn patience(&self) -> Duration {
        if self.held.is_empty() { Duration::MAX } else { INTERVAL }
    }

    /// Takes out, in the order in which they came, those that are to be reported now.
    pub(crate) fn ripe(&mut self, now: Instant, mut has_unread: impl FnMut(u64) -> bool) -> Vec<u64> {
        self.held.extract_if(.., |(key, until)| now >= *until || !has_unread(*key)).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_when_what_succeeded_was_read_and_at_last_in_any_case() {
        let mut endings = Endings::default();
        let start = Instant::now();
        assert_eq!(endings.patience(), Duration::MAX);
        for key in [1, 2, 3] {
            endings.hold(key, start);
        }
        assert_eq!(endings.ripe(start, |key| key != 2), [2]);
        assert!(endings.patience() < LIMIT);
        assert_eq!(endings.ripe(start + LIMIT / 2, |_| true), [0; 0]);
        assert_eq!(endings.ripe(start + LIMIT / 2, |key| key == 1), [3]);
        assert_eq!(endings.ripe(start + LIMIT, |_| true), [1]);
        assert_eq!(endings.patience(), Duration::MAX);
    }
}
