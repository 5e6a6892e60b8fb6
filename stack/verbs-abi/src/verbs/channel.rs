//! Completion channels: one descriptor for the events of several completion queues.

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::errno::{EAGAIN, EBUSY, EINVAL, Errno, nothing, number, pointer};
use crate::event_fd::{self, Attempt, fetch, unless_ending};
use crate::handle::{Handle, object};
use crate::verbs::completion::Queue;
use crate::verbs::context;
use libc::{c_int, c_uint, c_void};
use rustix::event::epoll;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A completion channel. Its descriptor is an epoll of the queues' own descriptors: readable while one of them has an event, and
/// nobody has to carry events from here to there.
pub(crate) struct Channel {
    epoll: OwnedFd,
    /// Queues that use it.
    pub(crate) queues: AtomicUsize,
}
object!(Channel: ibv_comp_channel, b"ch");

impl Channel {
    /// Adds a queue's descriptor, which brings the address of the queue.
    pub(crate) fn add(&self, queue: BorrowedFd<'_>, address: usize) -> Result<(), Errno> {
        epoll::add(&self.epoll, queue, epoll::EventData::new_u64(address as u64), epoll::EventFlags::IN)?;
        self.queues.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn remove(&self, queue: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, queue);
        self.queues.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes an event, if there is one.
    fn take(&self) -> Result<Option<*mut ibv_cq>, Errno> {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 1];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        while epoll::wait(&self.epoll, &mut ready[..], Some(&now))? > 0 {
            let public: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(ready[0].data.u64() as usize);
            // SAFETY: the queue is in the set, so it was alive; the word in front of it says whether it still is.
            let Ok(queue) = (unsafe { Handle::<Queue>::get(public.cast()) }) else { continue };
            // Of several threads that wait here, one gets it.
            match queue.take_event() {
                Ok(()) => {
                    queue.events.fetched();
                    return Ok(Some(public));
                }
                Err(EAGAIN) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }
}

/// Makes a channel of an open device.
pub(crate) fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    // SAFETY: the caller's pointer.
    let open = unsafe { context::get(context)? };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let public = ibv_comp_channel { context, fd: epoll.as_raw_fd(), refcnt: 0 };
    open.objects.fetch_add(1, Ordering::AcqRel);
    Ok(Handle::create(public, Channel { epoll, queues: AtomicUsize::new(0) }))
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

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    fetch(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let channel = Handle::<Channel>::get(channel)?;
            if cq.is_null() || cq_context.is_null() {
                return Err(EINVAL);
            }
            let Some(queue) = unless_ending(|| channel.take().transpose()).transpose()? else {
                return Ok(Attempt::Nothing(channel.epoll.as_raw_fd()));
            };
            *cq = queue;
            *cq_context = (*queue).cq_context;
        }
        Ok(Attempt::Fetched)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        let queue = unsafe { Handle::<Queue>::get(cq.cast())? };
        queue.events.acknowledged(u64::from(events));
        Ok(())
    });
}

impl Queue {
    /// Takes one event of those that the descriptor of an armed queue counts.
    fn take_event(&self) -> Result<(), Errno> {
        let events = event_fd::take_all(self.notifier.as_fd())?;
        if events > 1 {
            event_fd::add(self.notifier.as_fd(), events - 1);
        }
        Ok(())
    }
}
