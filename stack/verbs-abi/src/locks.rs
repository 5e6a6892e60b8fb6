//! The locks of this library, and their order.
//!
//! A thread that has a lock waits only for locks of a later [`Rank`]; so no two threads wait for each other. Two locks
//! of one rank are never held together. Builds with assertions end the program when a thread breaks this.
//!
//! The first rank is that of locks which programs hold as long as they like: `ibv_wr_start` and `ibv_start_poll` begin
//! sections ([`Owned`]), and a program may call anything within them. So nobody waits for such a lock who holds another
//! one, whichever; who may not wait tries. A program's own sections are in no order: two threads that open two of them
//! crosswise wait for each other, as with drivers of hardware.
//!
//! Below these locks are those of uwarp. It calls into this library for one purpose, to add an event to a channel, and
//! whoever holds that lock ([`Rank::ChannelEvents`]) calls nothing of uwarp.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uwarp_ring::{BiasedGuard, BiasedLock};

/// Which locks may be waited for under which: a later one under an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Send queues and completion queues.
    Section,
    /// The identifiers of rdma_cm that there are. Held while an event is delivered.
    Identifiers,
    /// One identifier's state.
    Identifier,
    /// One rsocket's state.
    Rsocket,
    /// The making of what the process has once: rdma_cm's device, and the channel of uwarp's events.
    Making,
    /// The identifiers that were refused and try again.
    Refused,
    /// The rsockets that there are, and those that have been closed.
    Rsockets,
    /// The queue pairs that there are. Held while one that an event names is used.
    QueuePairs,
    /// The same for shared receive queues.
    SharedQueues,
    /// A queue pair's way to the peer that its program has named.
    Link,
    /// Peers' requests that came before their queue pairs were ready.
    Early,
    /// The queue pairs that a thread helps to their peers.
    Unjoined,
    /// The connection and the state of a queue pair.
    Control,
    /// The links of queue pairs.
    Links,
    /// What a queue pair was told.
    Attributes,
    /// A receive queue, a shared one too.
    Receives,
    /// One region or window.
    Memory,
    /// The destruction of channels of rdma_cm.
    Channels,
    /// Completion events that wait in a channel.
    ChannelEvents,
    /// The devices that are open.
    Devices,
    /// Events that wait for the program.
    Events,
    /// How many events of an object are not acknowledged.
    Unacknowledged,
    /// Memory of freed objects.
    Freed,
}

/// A mutex that knows its rank. Poison is ignored: see `errno::run`.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// What a [`Lock`] holds, in the hands of one thread.
pub(crate) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Lock<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        Self { rank, mutex: Mutex::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let held = Held::waiting(self.rank);
        Locked { guard: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    pub(crate) fn into_inner(self) -> T {
        self.mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A biased lock that knows its rank.
pub(crate) struct Owned<T> {
    rank: Rank,
    lock: BiasedLock<T>,
}

/// What an [`Owned`] holds, in the hands of one thread.
pub(crate) struct OwnedGuard<'a, T> {
    guard: BiasedGuard<'a, T>,
    _held: Held,
}

impl<T> Owned<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: BiasedLock::new(value) }
    }

    /// As [`BiasedLock::lock`].
    #[inline]
    pub(crate) fn lock(&self) -> OwnedGuard<'_, T> {
        let held = Held::waiting(self.rank);
        OwnedGuard { guard: self.lock.lock(), _held: held }
    }

    /// As [`BiasedLock::try_lock`]. Who does not wait may hold other locks.
    pub(crate) fn try_lock(&self) -> Option<OwnedGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(OwnedGuard { guard, _held: Held::trying(self.rank) })
    }

    /// As [`BiasedLock::in_section`].
    ///
    /// # Safety
    /// `body` does not take this lock.
    #[inline]
    pub(crate) unsafe fn in_section<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = Held::waiting(self.rank);
        // SAFETY: as the caller promises.
        unsafe { self.lock.in_section(body) }
    }

    /// As [`BiasedLock::close_section`].
    ///
    /// # Safety
    /// `body` does not take this lock.
    #[inline]
    pub(crate) unsafe fn close_section<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = Held::waiting(self.rank);
        // SAFETY: as the caller promises.
        unsafe { self.lock.close_section(body) }
    }

    /// As [`BiasedLock::end_section`].
    #[inline]
    pub(crate) fn end_section(&self) {
        self.lock.end_section();
    }
}

impl<T> OwnedGuard<'_, T> {
    /// As [`BiasedGuard::into_section`]. What the program does then is not held to the order.
    #[inline]
    pub(crate) fn into_section(self) {
        self.guard.into_section();
    }
}

impl<T> Deref for OwnedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OwnedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A lock that the calling thread holds or waits for. It is nothing without assertions.
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
thread_local! {
    /// A bit for each rank of which this thread holds a lock.
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Whether a thread that holds locks of these ranks may wait for one of another.
#[cfg_attr(not(debug_assertions), allow(dead_code))]
const fn may_wait(held: u32, rank: Rank) -> bool {
    held >> rank as u32 == 0
}

impl Held {
    /// The calling thread waits for a lock, and holds it then.
    #[inline(always)]
    pub(crate) fn waiting(rank: Rank) -> Held {
        #[cfg(debug_assertions)]
        if !may_wait(HELD.get(), rank) {
            eprintln!("uwarp: a lock of rank {rank:?} is waited for under a later one (ranks held: {:#b})", HELD.get());
            std::process::abort();
        }
        Held::trying(rank)
    }

    /// The calling thread holds a lock that it did not wait for.
    #[inline(always)]
    pub(crate) fn trying(rank: Rank) -> Held {
        #[cfg(debug_assertions)]
        {
            HELD.set(HELD.get() | 1 << rank as u32);
            Held { rank }
        }
        #[cfg(not(debug_assertions))]
        {
            _ = rank;
            Held {}
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !(1 << self.rank as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_only_for_later_locks() {
        let both = 1 << Rank::Identifier as u32 | 1 << Rank::Control as u32;
        for (rank, may) in [
            (Rank::Section, false),
            (Rank::Identifier, false),
            (Rank::QueuePairs, false),
            (Rank::Control, false),
            (Rank::Receives, true),
            (Rank::Freed, true),
        ] {
            assert_eq!(may_wait(both, rank), may, "{rank:?}");
            assert!(may_wait(0, rank));
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_is_held_until_its_guard_ends() {
        let (control, owned) = (Lock::new(Rank::Control, 1), Owned::new(Rank::Section, 2));
        let held = || HELD.get();
        let (section, controlled) = (1 << Rank::Section as u32, 1 << Rank::Control as u32);
        let first = owned.lock();
        let second = control.lock();
        assert_eq!(held(), section | controlled);
        drop(first);
        assert_eq!(held(), controlled);
        let tried = owned.try_lock().unwrap();
        assert_eq!(held(), section | controlled);
        tried.into_section();
        assert_eq!(held(), controlled);
        drop(second);
        // SAFETY: the body takes no lock.
        assert_eq!(unsafe { owned.in_section(|value| (*value, held())) }, Some((2, section)));
        owned.end_section();
        assert_eq!((held(), control.into_inner()), (0, 1));
    }
}
