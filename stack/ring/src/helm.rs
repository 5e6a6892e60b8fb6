//! Who turns an engine: a thread of its own, or the threads of the application that poll.

use crossbeam::utils::CachePadded;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{Arc, AtomicU32};
use crate::{BiasedGuard, BiasedLock, Notifier};

/// What turns an engine, in the hands of whoever holds the helm.
///
/// The engine's thread holds it while it turns and while it sleeps in the device. A thread of the application takes it
/// only if it is free ([`try_take`](Self::try_take)), for a few turns, and never waits for it. The engine's thread
/// gives it away while the application polls ([`stand_back`](Self::stand_back)), and sleeps for a bounded time. Who is
/// about to wait for the engine calls the thread back ([`call`](Self::call)); commands fire the notifier themselves.
/// Either the thread sees the call before it stands back, or the call wakes it.
pub struct Helm<T> {
    /// The application's thread that polls is its favourite.
    crew: BiasedLock<T>,
    /// Wakes the engine's thread.
    wake: Arc<Notifier>,
    /// What the application has polled, see [`Helm::count`].
    polled: CachePadded<AtomicU32>,
    /// How often somebody was about to wait for the engine.
    calls: AtomicU32,
}

/// The helm in the hands of its holder.
pub type Held<'a, T> = BiasedGuard<'a, T>;

impl<T> Helm<T> {
    /// Wakes an engine that sleeps: work was posted. A thread that stands back leaves it to the application's next
    /// turn.
    pub const POSTED: u8 = 1;
    /// Wakes an engine that sleeps, and a thread that stands back.
    pub const CALLED: u8 = 2;

    /// A free helm. `wake` wakes the thread of the engine.
    pub fn new(crew: T, wake: Arc<Notifier>) -> Helm<T> {
        Helm {
            crew: BiasedLock::new(crew),
            wake,
            polled: CachePadded::new(AtomicU32::new(0)),
            calls: AtomicU32::new(0),
        }
    }

    /// The helm if it is free. For the application's threads. A panic while it was held ended the engine, which its
    /// holder has noted.
    #[inline]
    pub fn try_take(&self) -> Option<Held<'_, T>> {
        self.crew.try_lock()
    }

    /// The helm if the calling thread takes it all the time, so that taking it costs no atomic operation. The engine's
    /// thread stands back then.
    #[inline]
    pub fn take_as_usual(&self) -> Option<Held<'_, T>> {
        self.crew.lock_as_favourite()
    }

    /// Whether the calling thread holds the helm: in a signal's handler, for example.
    pub fn is_held_here(&self) -> bool {
        self.crew.is_held_here()
    }

    /// Waits for the helm. For the engine's thread: the others hold it for a few turns.
    pub fn take(&self) -> Held<'_, T> {
        self.crew.lock_as_guest()
    }

    /// Counts a poll of the application that wanted the helm, as one, and the frames that a turn of the application
    /// moved: about the microseconds that it took. An estimate: if two threads count at once, one count may be lost,
    /// which spares each poll an atomic addition.
    #[inline]
    pub fn count(&self, polled: u32) {
        self.polled.store(self.polled.load(Relaxed).wrapping_add(polled), Relaxed);
    }

    /// What was counted so far; it wraps around.
    #[inline]
    pub fn polled(&self) -> u32 {
        self.polled.load(Relaxed)
    }

    /// How often [`call`](Self::call) was called; it wraps around.
    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    /// Says that the caller is about to wait for something that the engine does, and not to poll: the engine's thread
    /// takes the helm at once if it stands back, and does not stand back if it is about to. Call it after publishing
    /// what is waited for.
    #[inline]
    pub fn call(&self) {
        self.calls.fetch_add(1, Relaxed);
        self.wake.fire_if_armed_for(Self::CALLED);
    }

    /// The engine's thread gives the helm away, until its notifier fires. `last` runs first, with the notifier armed: a
    /// turn that executes what was announced before. Returns the helm instead if there was a call since there were
    /// `calls` of them.
    ///
    /// # Errors
    /// There was a call: the thread keeps the helm.
    pub fn stand_back<'a>(
        &'a self,
        mut held: Held<'a, T>,
        calls: u32,
        last: impl FnOnce(&mut T),
    ) -> Result<(), Held<'a, T>> {
        self.wake.arm_for(Self::CALLED);
        last(&mut held);
        // After arming, which has the fence: a caller that finds the notifier not armed has counted its call before.
        if self.calls() != calls {
            self.wake.disarm();
            return Err(held);
        }
        Ok(())
    }

    /// Wakes the engine's thread if it sleeps with the helm in its hands. One that stands back is left alone.
    #[cold]
    pub fn wake(&self) {
        self.wake.fire_if_armed_for(Self::POSTED);
    }

    /// Lets a thread that stands back sleep, at most this long. True if it was called.
    #[cfg(not(loom))]
    #[must_use]
    pub fn rest(&self, limit: std::time::Duration) -> bool {
        // A wait that fails counts as a call.
        self.wake.wait(Some(limit)).unwrap_or(true)
    }

    /// Ends what [`stand_back`](Self::stand_back) has begun.
    pub fn come_back(&self) -> Held<'_, T> {
        self.wake.disarm();
        self.wake.drain();
        self.take()
    }
}

impl<T> fmt::Debug for Helm<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Helm")
            .field("polled", &self.polled())
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}
