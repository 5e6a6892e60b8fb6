//! `rdma_get_cm_event`.

use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::cm::channel::Channel;
use crate::cm::identifier::settle_request;
use crate::errno::{EINVAL, nothing};
use crate::event_fd::{Attempt, fetch, unless_ending};
use crate::handle::Handle;
use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts a thread that asks for events, or one that has stopped.
fn asks(channel: *mut rdma_event_channel, count: impl FnOnce(&AtomicU32)) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        count(unsafe { &Handle::<Channel>::get(channel)?.readers });
        Ok(())
    });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(channel: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> c_int {
    asks(channel, |readers| {
        readers.fetch_add(1, Ordering::AcqRel);
    });
    let result = fetch(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let channel = Handle::<Channel>::get(channel)?;
            let out = out.as_mut().ok_or(EINVAL)?;
            let Some(event) = unless_ending(|| channel.take()) else {
                return Ok(Attempt::Nothing(channel.fd()));
            };
            *out = event;
            settle_request(&*event)?;
        }
        Ok(Attempt::Fetched)
    });
    asks(channel, |readers| {
        readers.fetch_sub(1, Ordering::AcqRel);
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_DEVICE_REMOVAL};
    use crate::cm::channel::{Report, acknowledge, destroy};
    use libc::{c_void, pthread_attr_t, pthread_t};
    use std::sync::Arc;

    unsafe extern "C" {
        fn pthread_create(
            thread: *mut pthread_t,
            attributes: *const pthread_attr_t,
            body: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            argument: *mut c_void,
        ) -> c_int;
        fn pthread_cancel(thread: pthread_t) -> c_int;
        fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int;
    }

    /// A thread that asks for one event.
    extern "C-unwind" fn ask(channel: *mut c_void) -> *mut c_void {
        let mut event = std::ptr::null_mut();
        // SAFETY: the test's channel, and a pointer on the stack.
        unsafe { rdma_get_cm_event(channel.cast(), &raw mut event) };
        std::ptr::null_mut()
    }

    #[test]
    fn a_thread_that_waits_for_an_event_can_be_cancelled() {
        let channel = Channel::create().unwrap();
        // SAFETY: a channel that lives, and threads that are joined.
        unsafe {
            for waits_already in [false, true] {
                let before = Handle::<Channel>::get(channel).unwrap().readers.load(Ordering::Acquire);
                let mut thread: pthread_t = 0;
                assert_eq!(pthread_create(&raw mut thread, std::ptr::null(), ask, channel.cast()), 0);
                while waits_already
                    && Handle::<Channel>::get(channel).unwrap().readers.load(Ordering::Acquire) == before
                {
                    std::thread::yield_now();
                }
                assert_eq!(pthread_cancel(thread), 0);
                let mut value = std::ptr::null_mut();
                assert_eq!(pthread_join(thread, &raw mut value), 0);
                // PTHREAD_CANCELED.
                assert_eq!(value.addr(), usize::MAX);
            }
            destroy(channel).unwrap();
        }
    }

    /// The one that drops an event must not wait for a count that the other has taken.
    #[test]
    fn one_thread_drops_events_while_another_waits_for_them() {
        let channel = Channel::create().unwrap();
        let shared = channel.expose_provenance();
        let waiting = std::thread::spawn(move || {
            let mut event: *mut rdma_cm_event = std::ptr::null_mut();
            loop {
                // SAFETY: a channel that lives, and the event that it has given.
                unsafe {
                    let channel = std::ptr::with_exposed_provenance_mut(shared);
                    assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
                    let kind = (*event).event;
                    acknowledge(event).unwrap();
                    if kind == RDMA_CM_EVENT_DEVICE_REMOVAL {
                        return;
                    }
                }
            }
        });
        // SAFETY: a channel that lives, and events that are out of it.
        unsafe {
            let handle = Handle::<Channel>::get(channel).unwrap();
            let push = |kind| handle.push(Report::plain(std::ptr::null_mut(), kind, 0), &Arc::default());
            for _ in 0..5000 {
                push(RDMA_CM_EVENT_ADDR_RESOLVED);
                handle.forget(std::ptr::null_mut());
            }
            push(RDMA_CM_EVENT_DEVICE_REMOVAL);
            waiting.join().unwrap();
            destroy(channel).unwrap();
        }
    }
}
