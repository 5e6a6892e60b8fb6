//! What a server's connections have in common.

use super::retries::Retries;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all connections of a server share: the calls that ended connections, and the limit of calls under way.
///
/// Each connection has an equal part of that limit, and at least one call. This many credits are granted, memory for
/// the chunks of this many calls is taken and kept, and no more calls are passed to the application before their
/// replies are sent. So a peer that sends more than it was granted, or accepts no replies, delays nobody else, and a
/// thousand of them do not exhaust the host's memory.
#[derive(Debug)]
pub struct Common {
    pub(super) retries: Retries,
    calls: usize,
    connections: AtomicUsize,
    /// A connection's part. Read for each call, and written when connections are opened or closed.
    part: AtomicUsize,
}

impl Common {
    /// For a server that may have this many calls under way over all its connections.
    pub fn new(calls: usize) -> Self {
        let connections = AtomicUsize::new(0);
        Self { retries: Retries::default(), calls, connections, part: AtomicUsize::new(calls.max(1)) }
    }

    /// Calls that a connection may have under way now.
    #[inline]
    pub(super) fn part(&self) -> usize {
        self.part.load(Ordering::Relaxed)
    }

    pub(super) fn join(&self) {
        self.divide(self.connections.fetch_add(1, Ordering::Relaxed) + 1);
    }

    pub(super) fn leave(&self) {
        self.divide(self.connections.fetch_sub(1, Ordering::Relaxed) - 1);
    }

    // If two connections change at once, the later store may be the older part: one connection off, until the next
    // change.
    fn divide(&self, connections: usize) {
        self.part.store((self.calls / connections.max(1)).max(1), Ordering::Relaxed);
    }
}

impl Default for Common {
    /// No limit beside that of each connection.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_an_equal_part_and_one_call_at_least() {
        let common = Common::new(10);
        let parts: Vec<_> = (0..12)
            .map(|_| {
                common.join();
                common.part()
            })
            .collect();
        assert_eq!(parts, [10, 5, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]);
        (0..11).for_each(|_| common.leave());
        assert_eq!(common.part(), 10);
        common.leave();
        assert_eq!((common.part(), Common::new(0).part(), Common::default().part()), (10, 1, usize::MAX));
    }
}
