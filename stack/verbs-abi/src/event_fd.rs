//! Descriptors that count events, and calls that wait for one.

use crate::errno::{EAGAIN, Errno, minus_one, set_errno};
use crate::lifetime;
use crate::locks::{Held, Rank};
use libc::{c_int, c_void};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll as poll_descriptors};
use rustix::io::{Errno as Os, ReadWriteFlags};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A descriptor that is readable while events wait. It is made without O_NONBLOCK, which is the program's to set.
#[derive(Debug)]
pub(crate) struct EventCounter(OwnedFd);

impl EventCounter {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// One event more.
    pub(crate) fn raise(&self) {
        // Fails only at 2^64 - 2 events.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes back as many events as these, which nobody will fetch any more. Another thread may have taken the count of
    /// some already, and finds nothing then.
    pub(crate) fn lower(&self, events: usize) {
        for _ in 0..events {
            let _ = self.take();
        }
    }

    /// Takes one event, as read(2) does: waits, unless the program has set O_NONBLOCK (EAGAIN). The kernel goes on
    /// behind a signal's handler with SA_RESTART; behind another one this is EINTR.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        rustix::io::read(&self.0, &mut [0; 8])?;
        Ok(())
    }

    /// Takes one event; never waits. False if there is none.
    ///
    /// # Errors
    /// What the system says if it does not read the descriptor so.
    pub(crate) fn take(&self) -> Result<bool, Errno> {
        let mut count = [0; 8];
        // No offset, as for read(2).
        match rustix::io::preadv2(&self.0, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(_) => Ok(true),
            Err(Os::AGAIN) => Ok(false),
            // The kernel that qemu's user mode imitates.
            Err(Os::NOSYS) => self.take_if_readable(),
            Err(other) => Err(other.into()),
        }
    }

    /// As [`take`](Self::take), in two steps: if another thread takes the event in between, this waits for the next.
    fn take_if_readable(&self) -> Result<bool, Errno> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll_descriptors(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&at_once))? == 0 {
            return Ok(false);
        }
        self.wait().map(|()| true)
    }
}

#[cfg(test)]
impl From<std::fs::File> for EventCounter {
    fn from(file: std::fs::File) -> Self {
        Self(file.into())
    }
}

/// Events of an object that the program has fetched and not acknowledged: its destruction waits for them.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u64>,
    none: Condvar,
}

impl Unacknowledged {
    pub(crate) fn fetched(&self) {
        let _held = Held::waiting(Rank::Unacknowledged);
        *self.count() += 1;
    }

    pub(crate) fn acknowledged(&self, events: u64) {
        let _held = Held::waiting(Rank::Unacknowledged);
        let mut count = self.count();
        *count = count.saturating_sub(events);
        if *count == 0 {
            self.none.notify_all();
        }
    }

    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are none. The caller holds no lock.
    pub(crate) fn wait(&self) {
        let _held = Held::waiting(Rank::Section);
        let mut count = self.count();
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes an event, but none while another thread ends the process: it would wait for ever for the acknowledgment before
/// it destroyed the event's object.
pub(crate) fn unless_ending<T>(take: impl FnOnce() -> Result<Option<T>, Errno>) -> Result<Option<T>, Errno> {
    if lifetime::is_ended_by_another() { Ok(None) } else { take() }
}

/// What an attempt to fetch an event has come to.
pub(crate) enum Attempt {
    Fetched,
    /// There is none. This is the descriptor of an [`EventCounter`], which counts the next one.
    Nothing(RawFd),
    /// There will never be one.
    Never,
}

unsafe extern "C-unwind" {
    // Cancellation points: they do not return if the thread is cancelled.
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
    fn read(fd: c_int, to: *mut c_void, room: libc::size_t) -> libc::ssize_t;
}

/// The body of an export that fetches an event. It waits for one unless the program has set O_NONBLOCK; then errno is
/// EAGAIN. `attempt` is told whether this call has taken an event from the counter of the descriptor already.
///
/// It waits by read(2), which the kernel restarts behind a signal's handler with SA_RESTART. Behind another handler
/// the call ends with EINTR. poll(2) would end behind both.
///
/// As with the kernel's drivers, waiting is a cancellation point: programs end threads that wait here by
/// pthread_cancel(3). That unwinds this frame and the export's. So the export is `C-unwind`, neither has destructors,
/// and `attempt`, which may have some, has returned before.
///
/// It does not return while another thread ends the process (with O_NONBLOCK it finds nothing), and if there will never
/// be an event.
#[inline(always)]
pub(crate) fn fetch(mut attempt: impl FnMut(bool) -> Result<Attempt, Errno>) -> c_int {
    let mut is_counted = false;
    loop {
        let mut fd = -1;
        let mut is_never = false;
        let result = minus_one(|| {
            match attempt(is_counted)? {
                Attempt::Fetched => {}
                Attempt::Nothing(empty) => fd = empty,
                Attempt::Never => is_never = true,
            }
            Ok(0)
        });
        let is_empty = result == 0 && fd >= 0;
        // SAFETY: a call about a number.
        let flags = if is_empty { unsafe { libc::fcntl(fd, libc::F_GETFL) } } else { 0 };
        if flags >= 0 && flags & libc::O_NONBLOCK != 0 {
            set_errno(EAGAIN);
            return -1;
        }
        while is_never || lifetime::is_ended_by_another() {
            // SAFETY: no descriptors.
            unsafe { poll(std::ptr::null_mut(), 0, -1) };
        }
        if !is_empty {
            return result;
        }
        let mut count = [0u8; 8];
        // SAFETY: room on the stack.
        let waited = unsafe { read(fd, count.as_mut_ptr().cast(), count.len()) };
        is_counted = waited >= 0;
        // Another thread has destroyed the object since this one asked: the next attempt says what that means.
        if !is_counted && std::io::Error::last_os_error().raw_os_error() != Some(libc::EBADF) {
            return -1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::EINVAL;

    #[test]
    fn what_a_kernel_cannot_take_at_once_is_taken_if_it_is_readable() {
        let counter = EventCounter::new().unwrap();
        assert_eq!(counter.take_if_readable(), Ok(false));
        counter.raise();
        counter.raise();
        assert_eq!(counter.take_if_readable(), Ok(true));
        assert_eq!(counter.take(), Ok(true));
        assert_eq!(counter.take_if_readable(), Ok(false));
    }

    /// rping's thread, whose process then ended with the error, now and then.
    #[test]
    fn a_descriptor_that_is_closed_before_the_wait_begins_is_asked_about_again() {
        const CLOSED: RawFd = RawFd::MAX;
        let mut attempts = vec![];
        let result = fetch(|is_counted| {
            attempts.push(is_counted);
            if attempts.len() == 1 { Ok(Attempt::Nothing(CLOSED)) } else { Err(EINVAL) }
        });
        assert_eq!(result, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(attempts, [false, false]);
    }
}
