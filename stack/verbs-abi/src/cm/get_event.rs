//! `rdma_get_cm_event`.

use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::cm::channel::{Answer, ask};
use crate::cm::identifier::settle_request;
use crate::errno::EINVAL;
use crate::event_fd::{Attempt, fetch};
use libc::c_int;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(channel: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> c_int {
    fetch(|is_counted| {
        // SAFETY: the caller's pointer.
        let out = unsafe { out.as_mut().ok_or(EINVAL)? };
        let event = match ask(channel, is_counted)? {
            Answer::Event(event) => event,
            Answer::Nothing(fd) => return Ok(Attempt::Nothing(fd)),
            Answer::Destroyed => return Ok(Attempt::Never),
        };
        *out = event;
        // SAFETY: an event that was just taken.
        settle_request(unsafe { &*event })?;
        Ok(Attempt::Fetched)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_DEVICE_REMOVAL};
    use crate::cm::channel::{Channel, Report, acknowledge, destroy};
    use crate::handle::Handle;
    use libc::{c_void, pthread_attr_t, pthread_t};
    use std::ptr::null_mut;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

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

    /// What a test and its thread share.
    struct Shared {
        channel: *mut rdma_event_channel,
        /// The thread's number, as soon as it asks for the event that it waits for.
        thread: AtomicI32,
        /// 1 as soon as the test wants it to ask.
        go: AtomicI32,
    }

    impl Shared {
        fn new(channel: *mut rdma_event_channel, go: i32) -> Self {
            Shared { channel, thread: AtomicI32::new(0), go: AtomicI32::new(go) }
        }

        /// Returns when the thread sleeps in its call.
        fn wait_until_it_waits(&self) {
            loop {
                let thread = self.thread.load(Ordering::Acquire);
                if thread != 0 {
                    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
                    let stat = stat.expect("the thread has not returned from its call");
                    if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')) {
                        return;
                    }
                }
                std::thread::yield_now();
            }
        }

        /// Starts a thread with `body`.
        fn start(&self, body: extern "C-unwind" fn(*mut c_void) -> *mut c_void) -> pthread_t {
            let mut thread = 0;
            // SAFETY: what the test shares outlives the thread, which it joins.
            let error = unsafe {
                pthread_create(&raw mut thread, std::ptr::null(), body, (&raw const *self).cast_mut().cast())
            };
            assert_eq!(error, 0);
            thread
        }
    }

    /// Cancels a thread, which has not returned from its call.
    fn cancel(thread: pthread_t) {
        let mut value = null_mut();
        // SAFETY: a thread that was not joined.
        unsafe {
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(pthread_join(thread, &raw mut value), 0);
        }
        // PTHREAD_CANCELED.
        assert_eq!(value.addr(), usize::MAX);
    }

    /// A thread that asks for one event.
    extern "C-unwind" fn ask_once(shared: *mut c_void) -> *mut c_void {
        let mut event = null_mut();
        // SAFETY: what the test shares, and a pointer on the stack.
        unsafe {
            let shared = &*shared.cast::<Shared>();
            shared.thread.store(libc::gettid(), Ordering::Release);
            rdma_get_cm_event(shared.channel, &raw mut event);
        }
        null_mut()
    }

    /// A thread that fetches an event, and asks for the next one when the test says so.
    extern "C-unwind" fn ask_twice(shared: *mut c_void) -> *mut c_void {
        let mut event = null_mut();
        // SAFETY: as above.
        unsafe {
            let shared = &*shared.cast::<Shared>();
            assert_eq!(rdma_get_cm_event(shared.channel, &raw mut event), 0);
            acknowledge(event).unwrap();
            shared.thread.store(libc::gettid(), Ordering::Release);
            while shared.go.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
            rdma_get_cm_event(shared.channel, &raw mut event);
        }
        null_mut()
    }

    #[test]
    fn a_thread_that_waits_for_an_event_can_be_cancelled() {
        let channel = Channel::create().unwrap();
        for waits_already in [false, true] {
            let shared = Shared::new(channel, 1);
            let thread = shared.start(ask_once);
            if waits_already {
                shared.wait_until_it_waits();
            }
            cancel(thread);
        }
        destroy(channel).unwrap();
    }

    /// Programs end if the call fails, and destroy the channel while their thread is between two calls.
    #[test]
    fn a_thread_waits_in_a_channel_that_was_destroyed_before_it_asked_again() {
        for asks_in_time in [true, false] {
            let channel = Channel::create().unwrap();
            let shared = Shared::new(channel, asks_in_time.into());
            // SAFETY: a channel that lives.
            let handle = unsafe { Handle::<Channel>::get(channel).unwrap() };
            handle.push(Report::plain(null_mut(), RDMA_CM_EVENT_ADDR_RESOLVED, 0), &Arc::default());
            let thread = shared.start(ask_twice);
            while shared.thread.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            if asks_in_time {
                shared.wait_until_it_waits();
            }
            destroy(channel).unwrap();
            shared.go.store(1, Ordering::Release);
            shared.wait_until_it_waits();
            cancel(thread);
        }
    }

    #[test]
    fn a_thread_that_has_destroyed_its_channel_gets_an_error() {
        let channel = Channel::create().unwrap();
        let mut event = null_mut();
        // SAFETY: a channel that lives, and then its address alone.
        unsafe {
            let handle = Handle::<Channel>::get(channel).unwrap();
            handle.push(Report::plain(null_mut(), RDMA_CM_EVENT_ADDR_RESOLVED, 0), &Arc::default());
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
            acknowledge(event).unwrap();
            destroy(channel).unwrap();
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), -1);
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    }

    /// The one that drops an event must not wait for a count that the other has taken.
    #[test]
    fn one_thread_drops_events_while_another_waits_for_them() {
        let channel = Channel::create().unwrap();
        let shared = channel.expose_provenance();
        let waiting = std::thread::spawn(move || {
            let mut event: *mut rdma_cm_event = null_mut();
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
            let push = |kind| handle.push(Report::plain(null_mut(), kind, 0), &Arc::default());
            for _ in 0..5000 {
                push(RDMA_CM_EVENT_ADDR_RESOLVED);
                handle.forget(null_mut());
            }
            push(RDMA_CM_EVENT_DEVICE_REMOVAL);
            waiting.join().unwrap();
            destroy(channel).unwrap();
        }
    }
}
