//! Numbers for queue pairs and completion queues: small, since they index bitmaps and lists, and reused as late as
//! possible.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
