//! How threads of the program, and the library's own, learn that something has happened to an rsocket.
//!
//! Engines ring a [`Signal`] when there is a completion. It wakes the threads that sleep in a call. If none is in a
//! call of the rsocket, one thread of the process looks after it, so that its descriptor says what there is.

use crate::errno::Errno;
use crate::locks::{Lock, Rank};
use crate::process;
use rustix::thread::{Timespec, futex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use uwarp_ring::Bell;

/// What wakes the threads that wait for something of an rsocket.
#[derive(Debug)]
pub(crate) struct Signal {
    /// By which the rsocket is found; never another's.
    pub(crate) key: u64,
    /// Changes with everything that happens. Threads sleep on it.
    count: AtomicU32,
    sleepers: AtomicU32,
    /// Threads that are in a call, and look at everything before they leave.
    inside: AtomicU32,
    /// Completions came since somebody looked last.
    is_rung: AtomicBool,
    /// It waits for the caretaker.
    is_called: AtomicBool,
}

impl Bell for Signal {
    fn ring(&self) {
        self.is_rung.store(true, SeqCst);
        if !self.wake() {
            self.call_if_alone();
        }
    }
}

impl Signal {
    pub(crate) fn new() -> Arc<Signal> {
        Arc::new(Signal {
            key: process::next_key(),
            count: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            inside: AtomicU32::new(0),
            is_rung: AtomicBool::new(false),
            is_called: AtomicBool::new(false),
        })
    }

    /// A number that changes when something happens: for [`sleep`](Self::sleep).
    pub(crate) fn count(&self) -> u32 {
        self.count.load(SeqCst)
    }

    /// Wakes all threads that sleep. False: there are none.
    pub(crate) fn wake(&self) -> bool {
        self.count.fetch_add(1, SeqCst);
        let sleep = self.sleepers.load(SeqCst) > 0;
        if sleep {
            let _ = futex::wake(&self.count, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
        sleep
    }

    /// Sleeps until something has happened since `count` was read, or the time is over. Without a limit, the kernel
    /// goes on behind a signal's handler with SA_RESTART.
    ///
    /// # Errors
    /// EINTR behind other handlers, and behind any if there is a limit: as recv(2) does it.
    pub(crate) fn sleep(&self, count: u32, limit: Option<Duration>) -> Result<(), Errno> {
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
        self.sleepers.fetch_add(1, SeqCst);
        let slept = futex::wait(&self.count, futex::Flags::PRIVATE, count, limit.as_ref());
        self.sleepers.fetch_sub(1, SeqCst);
        match slept {
            Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::TIMEDOUT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether completions came since the last call of this.
    pub(crate) fn take_ring(&self) -> bool {
        self.is_rung.swap(false, SeqCst)
    }

    /// The calling thread looks after the rsocket as long as this lives.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.inside.fetch_add(1, SeqCst);
        Inside(self)
    }

    /// Calls the caretaker if there is something to see and no thread in a call. The engine rings before it looks
    /// whether a thread is inside, and a thread leaves before it looks whether the engine has rung.
    fn call_if_alone(&self) {
        if self.inside.load(SeqCst) == 0 && self.is_rung.load(SeqCst) && !self.is_called.swap(true, SeqCst) {
            CALLS.lock().push_back(self.key);
            CALLED.fetch_add(1, SeqCst);
            let _ = futex::wake(&CALLED, futex::Flags::PRIVATE, 1);
        }
    }

    /// The caretaker is here.
    pub(crate) fn answer(&self) {
        self.is_called.store(false, SeqCst);
    }
}

/// A thread in a call.
pub(crate) struct Inside<'a>(&'a Signal);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
        self.0.call_if_alone();
    }
}

/// Keys of the rsockets that the caretaker is to look after. Engines add some, each once.
static CALLS: Lock<VecDeque<u64>> = Lock::new(Rank::ChannelEvents, VecDeque::new());
/// How many calls there were. The caretaker sleeps on it.
static CALLED: AtomicU32 = AtomicU32::new(0);

/// Makes room for the calls of so many rsockets: the list does not grow in an engine's turn.
pub(crate) fn reserve(rsockets: usize) {
    let mut calls = CALLS.lock();
    let missing = rsockets.saturating_sub(calls.len());
    calls.reserve(missing);
}

/// The caretaker's next call; none when the time is over.
pub(crate) fn next_call(limit: Option<Duration>) -> Option<u64> {
    loop {
        let called = CALLED.load(SeqCst);
        let call = CALLS.lock().pop_front();
        if call.is_some() {
            return call;
        }
        let until = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // It takes no signals, but a debugger may wake it.
        let slept = futex::wait(&CALLED, futex::Flags::PRIVATE, called, until.as_ref());
        if slept == Err(rustix::io::Errno::TIMEDOUT) {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_while_nobody_is_inside_or_while_the_last_one_leaves_calls_the_caretaker_once() {
        let signal = Signal::new();
        let inside = signal.enter();
        signal.ring();
        assert!(CALLS.lock().is_empty());
        drop(inside);
        signal.ring();
        assert_eq!(next_call(Some(Duration::ZERO)), Some(signal.key));
        assert_eq!(next_call(Some(Duration::from_millis(1))), None);
        assert!(signal.take_ring() && !signal.take_ring());
        signal.answer();
        drop(signal.enter());
        assert_eq!(next_call(Some(Duration::from_millis(1))), None, "everything was seen");
    }

    #[test]
    fn what_happened_before_the_sleep_is_not_slept_over() {
        let signal = Signal::new();
        let count = signal.count();
        assert!(!signal.wake());
        assert_eq!(signal.sleep(count, None), Ok(()));
        assert_eq!(signal.sleep(signal.count(), Some(Duration::from_millis(1))), Ok(()));
    }
}
