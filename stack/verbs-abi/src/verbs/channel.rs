//! Completion channels: one descriptor for the events of several completion queues.

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::errno::{EBUSY, Errno, number, pointer};
use crate::event_fd::EventCounter;
use crate::handle::{Handle, object};
use crate::locks::{Lock, Rank};
use crate::verbs::context;
use libc::c_int;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use uwarp_ring::Bell;

/// A completion channel: one descriptor for the events of all its queues, which have none of their own.
pub(crate) struct Channel {
    events: Arc<Events>,
    /// Queues that use it.
    queues: AtomicUsize,
}
object!(Channel: ibv_comp_channel, b"ch");

/// The events of a channel that nobody has fetched yet.
#[derive(Debug)]
struct Events {
    /// The queue of each, oldest first. Whoever holds this waits for nothing: engines add events.
    waiting: Lock<VecDeque<usize>>,
    /// As many as wait.
    counter: EventCounter,
}

/// Adds a queue's events to its channel. Without a channel they are nobody's.
#[derive(Default)]
pub(crate) struct QueueBell {
    /// Engines have bells for a moment longer than there are queues, and the channel's descriptor is to be closed.
    events: Weak<Events>,
    /// Address of the queue; 0 while it is not in the channel. Changed and used with the events locked.
    queue: AtomicUsize,
}

impl Bell for QueueBell {
    fn ring(&self) {
        let Some(events) = self.events.upgrade() else { return };
        let mut waiting = events.waiting.lock();
        let queue = self.queue.load(Ordering::Relaxed);
        if queue != 0 {
            waiting.push_back(queue);
            events.counter.raise();
        }
    }
}

impl Channel {
    /// A bell for a queue that is to be added.
    pub(crate) fn bell(&self) -> QueueBell {
        QueueBell { events: Arc::downgrade(&self.events), queue: AtomicUsize::new(0) }
    }

    /// Adds the queue at an address, which has a bell of this channel.
    pub(crate) fn add(&self, bell: &QueueBell, address: usize) {
        let mut waiting = self.events.waiting.lock();
        let queues = 1 + self.queues.fetch_add(1, Ordering::AcqRel);
        // For an event of each: the list does not grow in an engine's turn.
        waiting.reserve(queues);
        bell.queue.store(address, Ordering::Relaxed);
    }

    /// Takes a queue out, with its events. From here on no thread looks at it to fetch an event, and those that it
    /// fetched are counted.
    pub(crate) fn remove(&self, bell: &QueueBell) {
        let mut waiting = self.events.waiting.lock();
        let address = bell.queue.swap(0, Ordering::Relaxed);
        let before = waiting.len();
        waiting.retain(|queue| *queue != address);
        self.events.counter.lower(before - waiting.len());
        self.queues.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.events.counter.raw()
    }

    /// Takes the oldest event, if there is one; `is_counted`: the caller has taken it from the counter. `fetched`
    /// counts it while its queue cannot be destroyed.
    pub(crate) fn take(
        &self,
        is_counted: bool,
        fetched: impl FnOnce(*mut ibv_cq),
    ) -> Result<Option<*mut ibv_cq>, Errno> {
        let mut waiting = self.events.waiting.lock();
        // The program may have read the descriptor itself, or too little was taken back.
        let is_counted = is_counted || self.events.counter.take()?;
        match waiting.pop_front() {
            Some(address) => {
                let queue = std::ptr::with_exposed_provenance_mut(address);
                fetched(queue);
                Ok(Some(queue))
            }
            None => {
                while is_counted && self.events.counter.take()? {}
                Ok(None)
            }
        }
    }
}

/// Makes a channel of an open device.
pub(crate) fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    // SAFETY: the caller's pointer.
    let open = unsafe { context::get(context)? };
    let events =
        Arc::new(Events { waiting: Lock::new(Rank::ChannelEvents, VecDeque::new()), counter: EventCounter::new()? });
    let public = ibv_comp_channel { context, fd: events.counter.raw(), refcnt: 0 };
    open.objects.fetch_add(1, Ordering::AcqRel);
    Ok(Handle::create(public, Channel { events, queues: AtomicUsize::new(0) }))
}

/// Ends a channel that no queue uses.
pub(crate) fn destroy(channel: *mut ibv_comp_channel) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let handle = Handle::<Channel>::get(channel)?;
        if handle.queues.load(Ordering::Acquire) > 0 {
            return Err(EBUSY);
        }
        let context = (*handle.public()).context;
        drop(Handle::<Channel>::destroy(channel)?);
        context::get(context)?.objects.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| create(context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| destroy(channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_fetched_in_order_and_go_with_their_queue() {
        let events = Arc::new(Events {
            waiting: Lock::new(Rank::ChannelEvents, VecDeque::new()),
            counter: EventCounter::new().unwrap(),
        });
        let channel = Channel { events, queues: AtomicUsize::new(0) };
        let bells = [channel.bell(), channel.bell()];
        let fetch = || channel.take(false, |_| {}).unwrap().map(|queue| queue.addr());
        bells[0].ring();
        assert_eq!(fetch(), None, "it is not in the channel yet");
        channel.add(&bells[0], 16);
        channel.add(&bells[1], 32);
        for index in [0, 1, 0, 0] {
            bells[index].ring();
        }
        assert_eq!((fetch(), fetch()), (Some(16), Some(32)));
        channel.remove(&bells[0]);
        bells[0].ring();
        assert_eq!(fetch(), None);
        bells[1].ring();
        // Too many events in the descriptor would wake those who poll it for nothing.
        channel.events.counter.raise();
        assert_eq!((fetch(), fetch()), (Some(32), None));
        assert!(!channel.events.counter.take().unwrap());
        QueueBell::default().ring();
    }
}
