//! Memory that a responder keeps for reuse.

use crate::pool::Pool;

/// The most items that wait to be reclaimed.
const SPENT: usize = 16;

/// Memory of calls and replies that have ended.
#[derive(Debug)]
pub(super) struct Spare {
    pool: Pool,
    /// Items of replies that have been sent.
    spent: Vec<Vec<u8>>,
    /// The most of them.
    spent_max: usize,
}

impl Spare {
    /// Nothing, until there is a [limit](Self::limit).
    pub(super) fn new() -> Self {
        Self { pool: Pool::new(0), spent: Vec::new(), spent_max: 0 }
    }

    /// Keeps at most this many items, and octets beside them.
    pub(super) fn limit(&mut self, items: usize, octets: usize) {
        self.spent_max = items.min(SPENT);
        self.spent.truncate(items);
        self.pool.limit(octets);
    }

    /// Memory of this length, with arbitrary contents.
    pub(super) fn take(&mut self, length: usize) -> Vec<u8> {
        self.pool.take(length)
    }

    /// As [`take`](Self::take); unclaimed items are reused as well.
    pub(super) fn buffer(&mut self, length: usize) -> Vec<u8> {
        for memory in self.spent.drain(..) {
            self.pool.put(memory);
        }
        self.pool.take(length)
    }

    /// An item of a reply that has been sent.
    pub(super) fn reclaim(&mut self) -> Option<Vec<u8>> {
        self.spent.pop()
    }

    pub(super) fn put(&mut self, memory: Vec<u8>) {
        self.pool.put(memory);
    }

    /// Keeps an item of a reply that has been sent, for [`reclaim`](Self::reclaim) if there is room.
    pub(super) fn put_item(&mut self, memory: Vec<u8>) {
        if self.spent.len() < self.spent_max {
            self.spent.push(memory);
        } else {
            self.pool.put(memory);
        }
    }
}
