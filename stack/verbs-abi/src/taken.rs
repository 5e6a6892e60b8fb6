//! Counts the send completions that the program has polled.

use std::sync::atomic::{AtomicU32, Ordering};
use uwarp::{Completion, CompletionOpcode};

/// One counter for each queue pair: the send completions that the program has polled. They wrap around.
#[derive(Debug)]
pub(crate) struct TakenCounters(Box<[AtomicU32]>);

impl TakenCounters {
    /// Counters for queue pairs whose numbers are below `count`.
    pub(crate) fn new(count: usize) -> TakenCounters {
        TakenCounters((0..count.next_power_of_two()).map(|_| AtomicU32::new(0)).collect())
    }

    /// The counter of the queue pair with this number.
    #[inline]
    pub(crate) fn of(&self, number: u32) -> &AtomicU32 {
        &self.0[number as usize & (self.0.len() - 1)]
    }

    /// Counts a completion that the program gets. The caller holds the lock of its completion queue, so a counter has
    /// one writer at a time.
    #[inline]
    pub(crate) fn count(&self, completion: &Completion) {
        if completion.opcode != CompletionOpcode::Receive {
            let counter = self.of(completion.queue_pair);
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }
}
