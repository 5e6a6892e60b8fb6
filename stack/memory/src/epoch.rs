//! Memory epochs: when a revoked STag is no longer in use.
//!
//! Each engine has a counter, which only the engine changes: odd during a turn, even outside. A revoker first clears
//! the region's state word and then reads the counters. An engine outside a turn will see the cleared word in its next
//! turn. For an engine inside, the revoker waits until the counter changes.
//!
//! That needs a full barrier on both sides: between the engine's store of the counter and its loads of state words, and
//! between the revoker's clearing and its loads of counters. Engines turn millions of times a second and revocations
//! are rare, so the revoker pays for both if the system permits: membarrier(2) executes a barrier on all cores that run
//! this process, and the engine's barrier is only for the compiler.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::{AtomicU64, AtomicUsize, Mutex, fence};

/// The engines of a table.
pub(crate) struct Engines {
    list: Mutex<Vec<Arc<EngineState>>>,
    /// The revoker executes the engines' barriers.
    asymmetric: bool,
}

/// The part of an engine's state that revokers read.
pub(crate) struct EngineState {
    /// Odd: in a turn.
    turns: CachePadded<AtomicU64>,
    /// The thread of the turn, see [`current_thread`]. Valid only while `turns` is odd.
    thread: AtomicUsize,
}

/// A number that identifies a living thread.
#[cfg(not(loom))]
#[inline]
pub(crate) fn current_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// The same for loom, whose threads share one thread of the system.
#[cfg(loom)]
pub(crate) fn current_thread() -> usize {
    loom::thread_local!(static MARK: Box<u8> = Box::new(0));
    MARK.with(|mark| std::ptr::from_ref(&**mark).addr())
}

impl Engines {
    pub(crate) fn new() -> Engines {
        Engines {
            list: Mutex::new(Vec::new()),
            // A barrier executed from outside cannot be modelled.
            asymmetric: cfg!(not(loom)) && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok(),
        }
    }

    /// Engines with barriers of their own, as without membarrier(2).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn symmetric() -> Engines {
        Engines { list: Mutex::new(Vec::new()), asymmetric: false }
    }

    /// Adds an engine.
    pub(crate) fn join(&self) -> Arc<EngineState> {
        let state = Arc::new(EngineState::new());
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(state.clone());
        state
    }

    /// Removes an engine.
    pub(crate) fn leave(&self, state: &Arc<EngineState>) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, state));
    }

    /// Begins a turn of an engine on this thread.
    #[inline]
    pub(crate) fn enter(&self, state: &EngineState) {
        state.enter(current_thread(), self.asymmetric);
    }

    /// The turns under way that may have begun before the caller's changes were visible.
    pub(crate) fn grace_period(&self) -> GracePeriod {
        fence(SeqCst);
        if self.asymmetric && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // membarrier worked when the table was made, so a system call filter was installed since. A store stays in
            // its core for nanoseconds; no bound is documented, and this one is generous.
            std::thread::sleep(Duration::from_millis(10));
        }
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        // An engine that registers later takes the same lock, and so sees the changes.
        let (mut pending, mut in_own_turn) = (Vec::new(), false);
        for engine in list.iter() {
            match engine.turn() {
                // A thread that is here is not copying anything, whatever its turn.
                Some((_, thread)) if thread == current_thread() => in_own_turn = true,
                Some((turn, _)) => pending.push((engine.clone(), turn)),
                None => {}
            }
        }
        GracePeriod { pending, in_own_turn }
    }
}

/// The turns that must end before something revoked is out of use. Made by
/// [`RegionTable::grace_period`](crate::RegionTable::grace_period).
#[must_use = "nothing is waited for unless asked"]
pub struct GracePeriod {
    pending: Vec<(Arc<EngineState>, u64)>,
    /// The calling thread is in a turn itself, which is not waited for.
    pub(crate) in_own_turn: bool,
}

impl GracePeriod {
    /// Whether all of those turns have ended. Does not wait, so an engine may ask once a turn.
    pub fn is_over(&mut self) -> bool {
        self.pending.retain(|(engine, turn)| engine.is_in(*turn));
        self.pending.is_empty()
    }

    /// Waits until all of those turns have ended. A turn takes microseconds, unless its thread is not running.
    pub fn wait(mut self) {
        let mut looks = 0u32;
        while !self.is_over() {
            looks += 1;
            match looks {
                #[cfg(loom)]
                _ => loom::thread::yield_now(),
                #[cfg(not(loom))]
                ..100 => std::hint::spin_loop(),
                #[cfg(not(loom))]
                100..1000 => std::thread::yield_now(),
                // The engine's thread is not running; do not compete with it.
                #[cfg(not(loom))]
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

impl fmt::Debug for GracePeriod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GracePeriod").field("turns_left", &self.pending.len()).finish()
    }
}

impl EngineState {
    fn new() -> EngineState {
        EngineState { turns: CachePadded::new(AtomicU64::new(0)), thread: AtomicUsize::new(0) }
    }

    /// Begins a turn. State words are loaded after this. Like `leave`, it is called only by the engine.
    #[inline]
    fn enter(&self, thread: usize, asymmetric: bool) {
        // `| 1` makes the number odd even after a leaked turn.
        let turn = self.turns.load(Relaxed).wrapping_add(1) | 1;
        self.thread.store(thread, Relaxed);
        self.turns.store(turn, Release);
        if asymmetric {
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst);
        }
    }

    /// Ends the turn.
    #[inline]
    pub(crate) fn leave(&self) {
        let turn = self.turns.load(Relaxed);
        self.turns.store(turn.wrapping_add(turn & 1), Release);
    }

    /// How many turns have begun.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Relaxed).div_ceil(2)
    }

    /// The turn under way and its thread. Call it after a full barrier.
    fn turn(&self) -> Option<(u64, usize)> {
        let turn = self.turns.load(Acquire);
        (turn % 2 == 1).then(|| (turn, self.thread.load(Relaxed)))
    }

    /// Whether `turn` is still under way.
    fn is_in(&self, turn: u64) -> bool {
        self.turns.load(Acquire) == turn
    }
}
