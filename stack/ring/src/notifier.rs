//! Waking a thread that sleeps, at no cost while it does not.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::time::Duration;

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU8, fence};

/// An eventfd with flags that say whether anybody wants it written, and for what.
///
/// The sleeper: [`arm`](Self::arm), look once more for what it waits for, and only if there is nothing
/// [`wait`](Self::wait). The waker: publish, then [`fire_if_armed`](Self::fire_if_armed). Then either the sleeper's last
/// look sees what was published, or the waker sees the notifier armed; no wake-up is lost. One firing serves one arming.
/// Wake-ups without a cause can occur (a firing that crosses a time-out leaves its mark for the next wait).
///
/// One thread waits at a time; any thread fires. Where a sleeper waits for one of several things, it says which by
/// [`arm_for`](Self::arm_for), and is not woken for the others.
pub struct Notifier {
    /// A bit for each thing that is waited for.
    armed: CachePadded<AtomicU8>,
    event: Event,
}

impl Notifier {
    /// A notifier that is not armed.
    ///
    /// # Errors
    /// What eventfd(2) says: no descriptors or no memory left.
    pub fn new() -> io::Result<Notifier> {
        Ok(Notifier { armed: CachePadded::new(AtomicU8::new(0)), event: Event::new()? })
    }

    /// Asks for the next firing. The caller must look for what it waits for after this and before it sleeps. Arming
    /// twice is arming once.
    #[inline]
    pub fn arm(&self) {
        self.arm_for(u8::MAX);
    }

    /// As [`arm`](Self::arm), for the things of which `bits` has a bit; they take the place of those armed for before.
    #[inline]
    pub fn arm_for(&self, bits: u8) {
        self.armed.store(bits, Relaxed);
        // The partner of the fence in `fire_if_armed`: of the sleeper's look and the waker's look at least one sees
        // what the other side stored before its fence.
        fence(SeqCst);
    }

    /// Takes back the arming. Gives whether it still stood; if not, the notifier has fired or is about to.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.armed.load(Relaxed) != 0 && self.armed.swap(0, AcqRel) != 0
    }

    /// Whether the notifier is armed, as a hint.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Relaxed) != 0
    }

    /// Wakes the sleeper if it has armed the notifier: to be called after what it waits for has been published. A fence
    /// and a load when it is not armed. Gives whether it fired.
    #[inline]
    pub fn fire_if_armed(&self) -> bool {
        self.fire_if_armed_for(u8::MAX)
    }

    /// As [`fire_if_armed`](Self::fire_if_armed), if the sleeper waits for one of the things of which `bits` has a bit.
    #[inline]
    pub fn fire_if_armed_for(&self, bits: u8) -> bool {
        fence(SeqCst);
        if self.armed.load(Relaxed) & bits == 0 {
            return false;
        }
        self.fire_once()
    }

    #[cold]
    fn fire_once(&self) -> bool {
        // Of several wakers one spends the system call.
        let armed = self.armed.swap(0, AcqRel) != 0;
        if armed {
            self.event.signal();
        }
        armed
    }

    /// Wakes the sleeper whether the notifier is armed or not: for shutting down.
    pub fn fire(&self) {
        self.armed.swap(0, AcqRel);
        self.event.signal();
    }

    /// Sleeps until the notifier has fired, at most for `timeout` (`None`: without limit), and takes the mark of the
    /// firing away. `false` means that the time is over; the notifier stays armed then. With a time-out of zero
    /// it only looks.
    ///
    /// # Errors
    /// What poll(2) says. Being interrupted by a signal is not an error.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.event.wait(timeout)
    }

    /// Takes the mark of a firing away without waiting, and gives whether there was one: for those who wait on the
    /// descriptor by their own means.
    pub fn drain(&self) -> bool {
        self.event.take()
    }
}

#[cfg(not(loom))]
impl std::os::fd::AsFd for Notifier {
    /// The descriptor, readable once the notifier has fired and until [`drain`](Notifier::drain). Not to be read directly.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.0.as_fd()
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
            // The only failure that a valid eventfd has is a counter at its maximum: then it is readable already.
            while let Err(Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
        }

        pub(super) fn take(&self) -> bool {
            let mut count = [0; 8];
            loop {
                match rustix::io::read(&self.0, &mut count) {
                    Ok(_) => return true,
                    Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
        }

        pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
            // A time-out beyond what the clock can express is none.
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            loop {
                if self.take() {
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

/// The eventfd as loom sees it: a flag under a lock, on which one can wait.
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

    fn take(&self) -> bool {
        std::mem::take(&mut *self.signalled.lock().unwrap())
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
