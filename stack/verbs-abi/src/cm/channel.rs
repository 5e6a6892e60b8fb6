//! Event channels, and the events that wait in them.

use crate::abi::{rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use crate::cm::identifier::Identifier;
use crate::errno::{EBUSY, EINVAL, Errno, minus_one, nothing, pointer};
use crate::event_fd::{Attempt, EventCounter, fetch, unless_ending};
use crate::handle::{Handle, object};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a thread that has acknowledged an event may take to ask for the next one before its channel is destroyed.
const RETURN_TIME: Duration = Duration::from_millis(20);

/// Which thread acknowledged an event last, and when.
static LAST_ACKNOWLEDGED: Mutex<Option<(ThreadId, Instant)>> = Mutex::new(None);

/// An event channel.
pub(crate) struct Channel {
    /// Addresses of events.
    waiting: Mutex<VecDeque<usize>>,
    counter: EventCounter,
    /// Threads that wait for an event.
    readers: AtomicU32,
}
object!(Channel: rdma_event_channel, b"ec");

/// What stands behind an event that the program sees.
pub(crate) struct Event {
    /// What `param.conn.private_data` points to.
    _private_data: Box<[u8]>,
}
object!(Event: rdma_cm_event, b"ev");

/// An event that is to be delivered.
pub(crate) struct Report<'a> {
    pub(crate) id: *mut rdma_cm_id,
    /// Of a request: the listener.
    pub(crate) listener: *mut rdma_cm_id,
    pub(crate) kind: rdma_cm_event_type,
    /// 0, or a negative error number.
    pub(crate) status: c_int,
    pub(crate) private_data: &'a [u8],
    /// Reads that this side serves, and that it may have outstanding.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Report<'_> {
    /// An event without anything along.
    pub(crate) fn plain(id: *mut rdma_cm_id, kind: rdma_cm_event_type, status: c_int) -> Self {
        Report {
            id,
            listener: std::ptr::null_mut(),
            kind,
            status,
            private_data: &[],
            responder_resources: 0,
            initiator_depth: 0,
        }
    }

    fn into_event(self) -> *mut rdma_cm_event {
        // The field has eight bits.
        let private_data: Box<[u8]> = self.private_data[..self.private_data.len().min(255)].into();
        let mut public = rdma_cm_event {
            id: self.id,
            listen_id: self.listener,
            event: self.kind,
            status: self.status,
            ..rdma_cm_event::default()
        };
        public.param.conn = rdma_conn_param {
            private_data: if private_data.is_empty() { std::ptr::null() } else { private_data.as_ptr().cast() },
            private_data_len: private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            ..rdma_conn_param::default()
        };
        Handle::create(public, Event { _private_data: private_data })
    }
}

/// The identifier that has to see an event acknowledged before it goes: a request's is the listener.
fn owner(event: &rdma_cm_event) -> *mut rdma_cm_id {
    if event.listen_id.is_null() { event.id } else { event.listen_id }
}

impl Channel {
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
        let counter = EventCounter::new()?;
        let public = rdma_event_channel { fd: counter.raw() };
        Ok(Handle::create(
            public,
            Channel { waiting: Mutex::new(VecDeque::new()), counter, readers: AtomicU32::new(0) },
        ))
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is an event.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting().is_empty()
    }

    pub(crate) fn push(&self, report: Report<'_>) {
        let event = report.into_event().expose_provenance();
        // Under the lock: who takes the event away lowers the count.
        let mut waiting = self.waiting();
        waiting.push_back(event);
        self.counter.raise();
    }

    /// Takes the events that `belongs` picks out of the channel.
    fn remove(&self, belongs: impl Fn(&rdma_cm_event) -> bool) -> Vec<usize> {
        let mut waiting = self.waiting();
        let mut removed = Vec::new();
        waiting.retain(|event| {
            let public: *mut rdma_cm_event = std::ptr::with_exposed_provenance_mut(*event);
            // SAFETY: it waits here, so nobody has freed it.
            let takes = belongs(unsafe { &*public });
            if takes {
                removed.push(*event);
            }
            !takes
        });
        self.counter.lower(removed.len());
        removed
    }

    /// Drops what waits for an identifier that is going, and returns the requests among it.
    pub(crate) fn forget(&self, id: *mut rdma_cm_id) -> Vec<*mut rdma_cm_id> {
        let mut requests = Vec::new();
        for event in self.remove(|event| owner(event) == id || event.id == id) {
            let public: *mut rdma_cm_event = std::ptr::with_exposed_provenance_mut(event);
            // SAFETY: it is out of the channel, and nobody else has it.
            unsafe {
                if !(*public).listen_id.is_null() && (*public).id != id {
                    requests.push((*public).id);
                }
                drop(Handle::<Event>::destroy(public));
            }
        }
        requests
    }

    /// Moves what waits for an identifier to another channel.
    pub(crate) fn move_to(&self, other: &Channel, id: *mut rdma_cm_id) {
        for event in self.remove(|event| owner(event) == id) {
            let mut waiting = other.waiting();
            waiting.push_back(event);
            other.counter.raise();
        }
    }

    /// Takes an event, if there is one.
    fn take(&self) -> Option<*mut rdma_cm_event> {
        while self.counter.take().is_ok() {
            let mut waiting = self.waiting();
            if let Some(event) = waiting.pop_front() {
                let public: *mut rdma_cm_event = std::ptr::with_exposed_provenance_mut(event);
                // SAFETY: it waited here. Its identifier counts it before the channel is free again, so that a thread that
                // destroys the identifier either drops the event or waits for its acknowledgment.
                unsafe {
                    if let Ok(id) = Handle::<Identifier>::get(owner(&*public)) {
                        id.events.fetched();
                    }
                }
                return Some(public);
            }
        }
        None
    }

    /// Waits for an event of a channel that no program knows, and takes it.
    pub(crate) fn next(&self) -> Result<*mut rdma_cm_event, Errno> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            // SAFETY: open as long as the channel.
            let fd = unsafe { BorrowedFd::borrow_raw(self.counter.raw()) };
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
        }
    }
}

/// Frees an event that the program has seen.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let owner = owner(&*Handle::<Event>::get(event)?.public());
        drop(Handle::<Event>::destroy(event)?);
        let now = (std::thread::current().id(), Instant::now());
        *LAST_ACKNOWLEDGED.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        if let Ok(id) = Handle::<Identifier>::get(owner) {
            id.events.acknowledged(1);
        }
    }
    Ok(())
}

/// Frees a channel.
///
/// Many programs have a thread that asks for events in a loop and ends the program if that fails, and destroy the channel
/// as soon as the last event is acknowledged. With a device, what is between the two takes milliseconds, and the thread is
/// waiting again by then. It gets as much time here.
pub(crate) fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let handle = Handle::<Channel>::get(channel)?;
        if handle.is_waiting() {
            return Err(EBUSY);
        }
        let acknowledged = *LAST_ACKNOWLEDGED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, at)) = acknowledged.filter(|(thread, _)| *thread != std::thread::current().id()) {
            while at.elapsed() < RETURN_TIME && handle.readers.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(Handle::<Channel>::destroy(channel)?);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| {
        // A program learns here that there is no device.
        crate::process::process()?;
        Channel::create()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    nothing(|| destroy(channel));
}

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
                return Ok(Attempt::Nothing(channel.counter.raw()));
            };
            *out = event;
            crate::cm::identifier::settle_request(&*event)?;
        }
        Ok(Attempt::Fetched)
    });
    asks(channel, |readers| {
        readers.fetch_sub(1, Ordering::AcqRel);
    });
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(|| acknowledge(event).map(|()| 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_DEVICE_REMOVAL};
    use libc::{c_void, pthread_attr_t, pthread_t};

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
            for _ in 0..5000 {
                handle.push(Report::plain(std::ptr::null_mut(), RDMA_CM_EVENT_ADDR_RESOLVED, 0));
                for event in handle.remove(|_| true) {
                    Handle::<Event>::destroy(std::ptr::with_exposed_provenance_mut(event)).unwrap();
                }
            }
            handle.push(Report::plain(std::ptr::null_mut(), RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
            waiting.join().unwrap();
            destroy(channel).unwrap();
        }
    }
}
