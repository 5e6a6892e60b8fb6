//! Asynchronous events of an open device.

use crate::abi::*;
use crate::errno::{EINVAL, nothing};
use crate::event_fd::{Attempt, EventCounter, fetch, unless_ending};
use crate::handle::Handle;
use crate::verbs::completion::Queue;
use crate::verbs::context;
use crate::verbs::queue_pair::Pair;
use crate::verbs::shared_receives::SharedQueue;
use libc::c_int;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, PoisonError};

/// Events that wait to be fetched.
#[derive(Debug)]
pub(crate) struct EventQueue {
    waiting: Mutex<VecDeque<Event>>,
    counter: EventCounter,
}

/// An event, with the address of the object that it is about (0: the port's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: ibv_event_type,
    pub(crate) element: usize,
}

impl EventQueue {
    pub(crate) fn new(counter: EventCounter) -> Self {
        Self { waiting: Mutex::new(VecDeque::new()), counter }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.counter.raw()
    }

    pub(crate) fn push(&self, event: Event) {
        // Under the lock: who takes the event away lowers the count.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(event);
        self.counter.raise();
    }

    /// Takes the next event, if there is one, and counts it as fetched while destroyers of its object cannot see it gone.
    fn take(&self) -> Option<Event> {
        while self.counter.take().is_ok() {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // An event of an object that was destroyed before it was fetched has gone.
            if let Some(event) = waiting.pop_front() {
                if let Some(fetched) = fetched_of(event) {
                    fetched.fetched();
                }
                return Some(event);
            }
        }
        None
    }

    /// Drops what waits about an object that is going.
    pub(crate) fn forget(&self, element: usize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        waiting.retain(|event| event.element != element);
        // The descriptor must not announce what nobody can fetch: who polls it would wait for good in the call that fetches.
        self.counter.lower(before - waiting.len());
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
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub(crate) fn acknowledged(&self, events: u64) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(events);
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until there are none.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Which kind of object an event is about.
fn fetched_of<'a>(event: Event) -> Option<&'a Unacknowledged> {
    let element = event.element;
    // SAFETY: objects are looked at by the word in front of them, which stays mapped.
    unsafe {
        match event.kind {
            IBV_EVENT_CQ_ERR => Handle::<Queue>::get(std::ptr::with_exposed_provenance_mut(element))
                .ok()
                .map(|queue| &queue.asynchronous),
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                Handle::<Pair>::get(std::ptr::with_exposed_provenance_mut(element)).ok().map(|pair| &pair.asynchronous)
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                Handle::<SharedQueue>::get(std::ptr::with_exposed_provenance_mut(element))
                    .ok()
                    .map(|queue| &queue.asynchronous)
            }
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    fetch(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let open = context::get(context)?;
            if out.is_null() {
                return Err(EINVAL);
            }
            let Some(event) = unless_ending(|| open.events.take()) else {
                return Ok(Attempt::Nothing(open.events.fd()));
            };
            let mut answer = ibv_async_event { event_type: event.kind, ..ibv_async_event::default() };
            if event.element == 0 {
                answer.element.port_num = 1;
            } else {
                answer.element.qp = std::ptr::with_exposed_provenance_mut(event.element);
            }
            *out = answer;
        }
        Ok(Attempt::Fetched)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    nothing(|| {
        // SAFETY: the caller's event, as it was fetched.
        let event = unsafe {
            let event = event.as_ref().ok_or(EINVAL)?;
            Event { kind: event.event_type, element: event.element.qp.addr() }
        };
        if let Some(fetched) = fetched_of(event) {
            fetched.acknowledged(1);
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::BorrowedFd;

    #[test]
    fn the_descriptor_announces_no_event_of_an_object_that_has_gone() {
        let queue = EventQueue::new(EventCounter::new().unwrap());
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
        assert_eq!(queue.take(), Some(Event { kind: IBV_EVENT_PORT_ERR, element: 0 }));
        assert!(!is_readable());
    }
}
