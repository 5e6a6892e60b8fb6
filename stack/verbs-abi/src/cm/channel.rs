//! Event channels, and the events that wait in them.

use crate::abi::{rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use crate::errno::{EBUSY, Errno, minus_one, nothing, pointer};
use crate::event_fd::{EventCounter, Unacknowledged, unless_ending};
use crate::handle::{Handle, object};
use crate::locks::{Held, Lock, Locked, Rank};
use libc::c_int;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

/// Held for writing while a channel is destroyed, so that no thread takes an event out of it meanwhile.
static DESTRUCTION: RwLock<()> = RwLock::new(());

thread_local! {
    /// Address of the channel that this thread has last asked for an event, if it was to wait for one.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

/// An event channel.
pub(crate) struct Channel {
    /// Addresses of events.
    waiting: Lock<VecDeque<usize>>,
    counter: EventCounter,
}
object!(Channel: rdma_event_channel, b"ec");

/// What stands behind an event that the program sees.
pub(crate) struct Event {
    /// What `param.conn.private_data` points to.
    _private_data: Box<[u8]>,
    /// Of the identifier that has to see it acknowledged before it goes: a request's is the listener.
    unacknowledged: Arc<Unacknowledged>,
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
    /// Of an event that the program has written: its own number.
    pub(crate) argument: Option<u64>,
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
            argument: None,
        }
    }

    fn into_event(self, unacknowledged: Arc<Unacknowledged>) -> *mut rdma_cm_event {
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
        if let Some(argument) = self.argument {
            public.param.arg = argument;
        }
        Handle::create(public, Event { _private_data: private_data, unacknowledged })
    }
}

/// The identifier that an event is reported to.
fn owner(event: &rdma_cm_event) -> *mut rdma_cm_id {
    if event.listen_id.is_null() { event.id } else { event.listen_id }
}

impl Channel {
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
        let counter = EventCounter::new()?;
        let public = rdma_event_channel { fd: counter.raw() };
        Ok(Handle::create(public, Channel { waiting: Lock::new(Rank::Events, VecDeque::new()), counter }))
    }

    fn waiting(&self) -> Locked<'_, VecDeque<usize>> {
        self.waiting.lock()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.counter.raw()
    }

    /// Whether there is an event.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting().is_empty()
    }

    pub(crate) fn push(&self, report: Report<'_>, unacknowledged: &Arc<Unacknowledged>) {
        let event = report.into_event(Arc::clone(unacknowledged)).expose_provenance();
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

    /// Takes an event, if there is one; `is_counted`: the caller has taken it from the counter.
    pub(crate) fn take(&self, mut is_counted: bool) -> Result<Option<*mut rdma_cm_event>, Errno> {
        while std::mem::take(&mut is_counted) || self.counter.take()? {
            let mut waiting = self.waiting();
            if let Some(event) = waiting.pop_front() {
                let public: *mut rdma_cm_event = std::ptr::with_exposed_provenance_mut(event);
                // Its identifier counts it before the channel is free again, so that a thread that destroys the
                // identifier either drops the event or waits for its acknowledgment. SAFETY: it waited here.
                if let Ok(event) = unsafe { Handle::<Event>::get(public) } {
                    event.unacknowledged.fetched();
                }
                return Ok(Some(public));
            }
        }
        Ok(None)
    }

    /// Waits for an event of a synchronous identifier's channel, and takes it.
    pub(crate) fn next(&self) -> Result<*mut rdma_cm_event, Errno> {
        loop {
            self.counter.wait()?;
            if let Some(event) = self.take(true)? {
                return Ok(event);
            }
        }
    }
}

/// Frees an event that the program has seen.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    let event = unsafe { Handle::<Event>::destroy(event)? };
    event.unacknowledged.acknowledged(1);
    Ok(())
}

/// What the program finds when it asks a channel for an event.
pub(crate) enum Answer {
    Event(*mut rdma_cm_event),
    /// There is none. The descriptor becomes readable when there is.
    Nothing(RawFd),
    /// Another thread has destroyed the channel that this thread waits in. There will be no event.
    Destroyed,
}

/// Takes an event out of the program's channel.
///
/// Many programs have a thread that asks for events in a loop and ends the program if that fails, and destroy the
/// channel as soon as the last event is acknowledged. A thread that is waiting by then waits for ever, as with a
/// device; for one that comes later, the answer is [`Answer::Destroyed`].
///
/// # Errors
/// EINVAL: this is not a channel.
pub(crate) fn ask(channel: *mut rdma_event_channel, is_counted: bool) -> Result<Answer, Errno> {
    let _held = Held::waiting(Rank::Channels);
    let _stays = DESTRUCTION.read().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's pointer, and nobody destroys it while the lock is held.
    let handle = match unsafe { Handle::<Channel>::get(channel) } {
        Ok(handle) => handle,
        Err(_) if !channel.is_null() && ASKED.get() == channel.addr() => return Ok(Answer::Destroyed),
        Err(error) => return Err(error),
    };
    // SAFETY: a call about a number.
    let waits = unsafe { libc::fcntl(handle.fd(), libc::F_GETFL) } & libc::O_NONBLOCK == 0;
    ASKED.set(if waits { channel.addr() } else { 0 });
    Ok(unless_ending(|| handle.take(is_counted))?.map_or(Answer::Nothing(handle.fd()), Answer::Event))
}

/// Frees a channel.
///
/// # Errors
/// EBUSY: events wait in it. EINVAL: this is not a channel.
pub(crate) fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let _held = Held::waiting(Rank::Channels);
    let _alone = DESTRUCTION.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's pointer, and no thread takes an event out of it.
    unsafe {
        if Handle::<Channel>::get(channel)?.is_waiting() {
            return Err(EBUSY);
        }
        drop(Handle::<Channel>::destroy(channel)?);
    }
    // This thread knows, and gets an error if it asks again.
    if ASKED.get() == channel.addr() {
        ASKED.set(0);
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

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(|| acknowledge(event).map(|()| 0))
}
