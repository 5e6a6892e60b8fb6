//! How much of what was sent the program knows to be complete.

use std::sync::atomic::{AtomicU32, Ordering};
use uwarp::{Completion, CompletionOpcode};

/// How many send completions programs have taken, by the queue pair's number.
#[derive(Debug)]
pub(crate) struct TakenCounters(Box<[AtomicU32]>);

impl TakenCounters {
    /// Counters of so many queue pairs.
    pub(crate) fn new(count: usize) -> TakenCounters {
        TakenCounters((0..count.next_power_of_two()).map(|_| AtomicU32::new(0)).collect())
    }

    #[inline]
    pub(crate) fn of(&self, number: u32) -> &AtomicU32 {
        &self.0[number as usize & (self.0.len() - 1)]
    }

    /// Counts a completion, by who has the lock of the queue pair's completion queue.
    #[inline]
    pub(crate) fn count(&self, completion: &Completion) {
        if completion.opcode != CompletionOpcode::Receive {
            let counter = self.of(completion.queue_pair);
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }
}
