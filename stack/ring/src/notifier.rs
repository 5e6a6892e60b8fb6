//! Waking a sleeping thread, at no cost while it is awake.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::time::Duration;

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU8, fence};

/// An eventfd with flags that say whether a thread is waiting, and for what.
///
/// The sleeper calls [`arm`](Self::arm), checks once more for what it waits for, and calls [`wait`](Self::wait) only if
/// there is nothing. The waker publishes, then calls [`fire_if_armed`](Self::fire_if_armed). Then either the sleeper's
/// last check sees what was published, or the waker sees the notifier armed, so no wake-up is lost. One firing serves
/// one arming. Spurious wake-ups are possible: a firing that crosses a time-out is left for the next wait.
///
/// One thread waits at a time; any thread may fire. A sleeper that waits for certain things only names them by
/// [`arm_for`](Self::arm_for), and is not woken for others.
///
/// Many notifiers may share what they wake: each rings a [`Bell`] then, in place of an eventfd of its own.
pub struct Notifier {
    /// One bit per thing that the sleeper waits for.
    armed: CachePadded<AtomicU8>,
    target: Target,
}

/// What firing reaches.
enum Target {
    Own(Event),
    Bell(Arc<dyn Bell>),
}

/// What a notifier without an eventfd of its own rings when it fires, on the thread that fires it: an engine's, too, so
/// it must neither wait nor panic.
pub trait Bell: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// The notifier has fired: once for each time that it was armed.
    fn ring(&self);
}

impl Notifier {
    /// A notifier that is not armed.
    ///
    /// # Errors
    /// Those of eventfd(2): no descriptors or no memory left.
    pub fn new() -> io::Result<Notifier> {
        Ok(Notifier { armed: CachePadded::new(AtomicU8::new(0)), target: Target::Own(Event::new()?) })
    }

    /// A notifier that is not armed and has no eventfd: it rings the bell. Nobody can wait for it here.
    pub fn with_bell(bell: Arc<dyn Bell>) -> Notifier {
        Notifier { armed: CachePadded::new(AtomicU8::new(0)), target: Target::Bell(bell) }
    }

    fn signal(&self) {
        match &self.target {
            Target::Own(event) => event.signal(),
            Target::Bell(bell) => bell.ring(),
        }
    }

    /// Requests the next firing. Before it sleeps, the caller must check again for what it waits for. Arming twice is
    /// arming once.
    #[inline]
    pub fn arm(&self) {
        self.arm_for(u8::MAX);
    }

    /// As [`arm`](Self::arm), for the things whose bits are set in `bits`. They replace those armed before.
    #[inline]
    pub fn arm_for(&self, bits: u8) {
        self.armed.store(bits, Relaxed);
        // Pairs with the fence in `fire_if_armed`: at least one of the two sides, sleeper or waker, sees what the other
        // stored before its fence.
        fence(SeqCst);
    }

    /// As [`arm_for`](Self::arm_for), but what was armed before stays armed.
    pub fn arm_also(&self, bits: u8) {
        self.armed.fetch_or(bits, Relaxed);
        // As in `arm_for`.
        fence(SeqCst);
    }

    /// Cancels the arming. Returns whether it was still armed; if not, the notifier has fired or is about to.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.armed.load(Relaxed) != 0 && self.armed.swap(0, AcqRel) != 0
    }

    /// Whether the notifier is armed, as a hint.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Relaxed) != 0
    }

    /// Wakes the sleeper if it has armed the notifier. Call it after publishing what the sleeper waits for. If not
    /// armed, it costs a fence and a load. Returns whether it fired.
    #[inline]
    pub fn fire_if_armed(&self) -> bool {
        self.fire_if_armed_for(u8::MAX)
    }

    /// As [`fire_if_armed`](Self::fire_if_armed), if the sleeper waits for any of the things whose bits are set in
    /// `bits`.
    #[inline]
    pub fn fire_if_armed_for(&self, bits: u8) -> bool {
        Self::order_before_fire();
        self.fire_in_order(bits)
    }

    /// What [`fire_in_order`](Self::fire_in_order) needs between what the caller published and the first of its calls:
    /// a fence, which waits until the core's stores have left it.
    #[inline]
    pub fn order_before_fire() {
        fence(SeqCst);
    }

    /// As [`fire_if_armed_for`](Self::fire_if_armed_for), for one of several notifiers that are fired for what was
    /// published before [`order_before_fire`](Self::order_before_fire).
    #[inline]
    pub fn fire_in_order(&self, bits: u8) -> bool {
        self.armed.load(Relaxed) & bits != 0 && self.fire_once()
    }

    #[cold]
    fn fire_once(&self) -> bool {
        // Of several wakers, only one makes the system call.
        let armed = self.armed.swap(0, AcqRel) != 0;
        if armed {
            self.signal();
        }
        armed
    }

    /// Wakes the sleeper whether the notifier is armed or not: for shutting down.
    pub fn fire(&self) {
        self.armed.swap(0, AcqRel);
        self.signal();
    }

    /// Sleeps until the notifier has fired, at most for `timeout` (`None`: without limit), and consumes the firing.
    /// Returns `false` after a time-out; the notifier then stays armed. A time-out of zero does not sleep.
    ///
    /// # Errors
    /// Those of poll(2). An interruption by a signal is not an error. [`io::ErrorKind::Unsupported`] with a bell.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        match &self.target {
            Target::Own(event) => event.wait(timeout),
            Target::Bell(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Consumes a firing without waiting, and returns whether there was one. For callers that wait on the descriptor
    /// themselves.
    pub fn drain(&self) -> bool {
        self.drain_all() != 0
    }

    /// As [`drain`](Self::drain), and returns how many firings there were since the last time. A bell keeps none.
    pub fn drain_all(&self) -> u64 {
        match &self.target {
            Target::Own(event) => event.take(),
            Target::Bell(_) => 0,
        }
    }
}

#[cfg(not(loom))]
impl std::os::fd::AsFd for Notifier {
    /// The descriptor, readable from a firing until [`drain`](Notifier::drain). Do not read it directly.
    ///
    /// # Panics
    /// It has a [`Bell`].
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match &self.target {
            Target::Own(event) => event.0.as_fd(),
            Target::Bell(_) => panic!("a notifier with a bell has no descriptor"),
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Notifier").field("armed", &self.is_armed()).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
use eventfd::Event;

#[cfg(not(loom))]
mod eventfd {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::io::Errno;

    pub(super) struct Event(pub(super) OwnedFd);

    impl Event {
        pub(super) fn new() -> io::Result<Event> {
            Ok(Event(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(super) fn signal(&self) {
            // A valid eventfd fails only if its counter is at its maximum: then it is readable already.
            while let Err(Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
        }

        pub(super) fn take(&self) -> u64 {
            let mut count = [0; 8];
            loop {
                match rustix::io::read(&self.0, &mut count) {
                    Ok(_) => return u64::from_ne_bytes(count),
                    Err(Errno::INTR) => {}
                    Err(_) => return 0,
                }
            }
        }

        pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
            // A time-out beyond the clock's range is no time-out.
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            loop {
                if self.take() != 0 {
                    return Ok(true);
                }
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    return Ok(false);
                }
                let left = left.and_then(|left| Timespec::try_from(left).ok());
                match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], left.as_ref()) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// The eventfd for loom: a flag under a lock, with a condition variable.
#[cfg(loom)]
struct Event {
    signalled: loom::sync::Mutex<bool>,
    changed: loom::sync::Condvar,
}

#[cfg(loom)]
impl Event {
    fn new() -> io::Result<Event> {
        Ok(Event { signalled: loom::sync::Mutex::new(false), changed: loom::sync::Condvar::new() })
    }

    fn signal(&self) {
        *self.signalled.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn take(&self) -> u64 {
        u64::from(std::mem::take(&mut *self.signalled.lock().unwrap()))
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        assert!(timeout.is_none(), "the models have no time");
        let mut signalled = self.signalled.lock().unwrap();
        while !*signalled {
            signalled = self.changed.wait(signalled).unwrap();
        }
        *signalled = false;
        Ok(true)
    }
}
