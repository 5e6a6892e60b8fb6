//! Asynchronous events that wait in an open device.

use crate::abi::ibv_event_type;
use crate::errno::Errno;
use crate::event_fd::EventCounter;
use crate::locks::{Lock, Rank};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Events that wait to be fetched.
#[derive(Debug)]
pub(crate) struct EventQueue {
    waiting: Lock<VecDeque<Event>>,
    counter: EventCounter,
}

/// An event, with the address of the object that it is about (0: the port's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: ibv_event_type,
    pub(crate) element: usize,
}

impl EventQueue {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { waiting: Lock::new(Rank::Events, VecDeque::new()), counter: EventCounter::new()? })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.counter.raw()
    }

    pub(crate) fn push(&self, event: Event) {
        // Under the lock: who takes the event away lowers the count.
        let mut waiting = self.waiting.lock();
        waiting.push_back(event);
        self.counter.raise();
    }

    /// Takes the next event, if there is one; `is_counted`: the caller has taken it from the counter. `fetched` counts
    /// it while destroyers of its object cannot see it gone.
    pub(crate) fn take(&self, mut is_counted: bool, fetched: impl FnOnce(Event)) -> Result<Option<Event>, Errno> {
        while std::mem::take(&mut is_counted) || self.counter.take()? {
            let mut waiting = self.waiting.lock();
            // An event of an object that was destroyed before it was fetched has gone.
            if let Some(event) = waiting.pop_front() {
                fetched(event);
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Drops what waits about an object that is going.
    pub(crate) fn forget(&self, element: usize) {
        let mut waiting = self.waiting.lock();
        let before = waiting.len();
        waiting.retain(|event| event.element != element);
        // The descriptor must not announce what nobody can fetch: who polls it would wait for good in the call that
        // fetches.
        self.counter.lower(before - waiting.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_EVENT_PORT_ERR;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::BorrowedFd;

    #[test]
    fn the_descriptor_announces_no_event_of_an_object_that_has_gone() {
        let queue = EventQueue::new().unwrap();
        let is_readable = || {
            // SAFETY: open as long as the queue.
            let fd = unsafe { BorrowedFd::borrow_raw(queue.fd()) };
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).unwrap() == 1
        };
        for element in [8, 0, 8] {
            queue.push(Event { kind: IBV_EVENT_PORT_ERR, element });
        }
        queue.forget(8);
        assert!(is_readable());
        assert_eq!(queue.take(false, |_| ()), Ok(Some(Event { kind: IBV_EVENT_PORT_ERR, element: 0 })));
        assert!(!is_readable());
    }

    /// Whoever calls it would ask again for ever.
    #[test]
    fn a_descriptor_that_cannot_be_read_is_an_error_and_not_a_queue_without_events() {
        let unreadable = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let queue =
            EventQueue { waiting: Lock::new(Rank::Events, VecDeque::new()), counter: EventCounter::from(unreadable) };
        assert_eq!(queue.take(false, |_| ()), Err(Errno(libc::EBADF)));
    }
}
