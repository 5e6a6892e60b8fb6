//! Numbers for queue pairs and completion queues: small, since they index bitmaps and lists, and reused as late as
//! possible.

use crate::config::Limits;
use crate::runtime::lock::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The numbers of a context's objects.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) queue_pairs: Numbers,
    /// Small numbers, used again: every engine keeps a list of its lanes by them.
    pub(crate) completion_queues: Numbers,
    /// Elements of the completion queues that there are.
    pub(crate) completion_entries: AtomicUsize,
    next: AtomicU32,
}

impl Objects {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            queue_pairs: Numbers::new(limits.queue_pairs),
            completion_queues: Numbers::new(limits.completion_queues),
            completion_entries: AtomicUsize::new(0),
            next: AtomicU32::new(1),
        }
    }

    /// A number for an object of which numbers are not scarce.
    pub(crate) fn next(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// An allocator of the numbers below a limit.
#[derive(Debug)]
pub(crate) struct Numbers {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All numbers below this were allocated at some time.
    fresh: u32,
    returned: VecDeque<u32>,
}

impl Numbers {
    /// Numbers 0 up to, not including, `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::new(State { fresh: 0, returned: VecDeque::new() }) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A free number: never-used ones first, then the one freed longest ago, so a late completion does not name a new
    /// object.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut state = self.state();
        if (state.fresh as usize) < self.limit {
            state.fresh += 1;
            Some(state.fresh - 1)
        } else {
            state.returned.pop_front()
        }
    }

    /// Frees a number.
    pub(crate) fn put(&self, number: u32) {
        self.state().returned.push_back(number);
    }

    /// How many are in use.
    pub(crate) fn in_use(&self) -> usize {
        let state = self.state();
        state.fresh as usize - state.returned.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rest_before_they_are_used_again() {
        let numbers = Numbers::new(3);
        assert_eq!(numbers.take(), Some(0));
        assert_eq!(numbers.take(), Some(1));
        numbers.put(0);
        assert_eq!(numbers.in_use(), 1);
        assert_eq!(numbers.take(), Some(2));
        numbers.put(2);
        assert_eq!(numbers.take(), Some(0));
        assert_eq!(numbers.take(), Some(2));
        assert_eq!(numbers.take(), None);
        assert_eq!(numbers.in_use(), 3);
    }
}
