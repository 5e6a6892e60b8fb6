//! What is known of queue pairs where completions are polled: the number that programs know one by, and how many of its
//! send completions they have polled.

use std::sync::atomic::{AtomicU32, Ordering};
use uwarp::{Completion, CompletionOpcode};

/// What is known of each queue pair, by uwarp's number.
#[derive(Debug)]
pub(crate) struct Polls(Box<[Polled]>);

#[derive(Debug, Default)]
struct Polled {
    /// The send completions that the program has polled. It wraps around.
    taken: AtomicU32,
    /// The number that the program knows it by.
    public: AtomicU32,
}

impl Polls {
    /// For queue pairs whose numbers are below `count`.
    pub(crate) fn new(count: usize) -> Polls {
        Polls((0..count.next_power_of_two()).map(|_| Polled::default()).collect())
    }

    #[inline]
    fn of(&self, number: u32) -> &Polled {
        &self.0[number as usize & (self.0.len() - 1)]
    }

    /// The counter of the queue pair with this number.
    #[inline]
    pub(crate) fn taken(&self, number: u32) -> &AtomicU32 {
        &self.of(number).taken
    }

    /// Gives the queue pair with this number the one that programs see.
    pub(crate) fn name(&self, number: u32, public: u32) {
        self.of(number).public.store(public, Ordering::Release);
    }

    /// Counts a completion that the program gets, and gives the number that it knows the queue pair by. The caller
    /// holds the lock of its completion queue, so a counter has one writer at a time.
    #[inline]
    pub(crate) fn count(&self, completion: &Completion) -> u32 {
        let Polled { taken, public } = self.of(completion.queue_pair);
        if completion.opcode != CompletionOpcode::Receive {
            taken.store(taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
        public.load(Ordering::Relaxed)
    }
}
