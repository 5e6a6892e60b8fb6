//! Completion channels: one descriptor for the events of several completion queues.

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::errno::{EBUSY, Errno, number, pointer};
use crate::handle::{Handle, object};
use crate::locks::{Lock, Locked, Rank};
use crate::verbs::context;
use libc::c_int;
use rustix::event::epoll;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A completion channel. Its descriptor is an epoll of the queues' own descriptors: readable while one of them has an
/// event, and nobody has to carry events from here to there.
pub(crate) struct Channel {
    epoll: OwnedFd,
    /// Held from when a queue that has an event is found until the event is counted, and while a queue is taken out.
    fetching: Lock<()>,
    /// Queues that use it.
    queues: AtomicUsize,
}
object!(Channel: ibv_comp_channel, b"ch");

impl Channel {
    /// Adds a queue's descriptor, which brings the address of the queue.
    pub(crate) fn add(&self, queue: BorrowedFd<'_>, address: usize) -> Result<(), Errno> {
        epoll::add(&self.epoll, queue, epoll::EventData::new_u64(address as u64), epoll::EventFlags::IN)?;
        self.queues.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Takes a queue out. From here on no thread looks at it to fetch an event, and those that it fetched are counted.
    pub(crate) fn remove(&self, queue: BorrowedFd<'_>) {
        let _alone = self.lock();
        let _ = epoll::delete(&self.epoll, queue);
        self.queues.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Keeps the queues of the channel in it.
    pub(crate) fn lock(&self) -> Locked<'_, ()> {
        self.fetching.lock()
    }

    /// A queue that has an event, if there is one. It is not destroyed while the channel is locked.
    pub(crate) fn ready(&self) -> Result<Option<*mut ibv_cq>, Errno> {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 1];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut ready[..], Some(&now))?;
        Ok((count > 0).then(|| std::ptr::with_exposed_provenance_mut(ready[0].data.u64() as usize)))
    }
}

/// Makes a channel of an open device.
pub(crate) fn create(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    // SAFETY: the caller's pointer.
    let open = unsafe { context::get(context)? };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let public = ibv_comp_channel { context, fd: epoll.as_raw_fd(), refcnt: 0 };
    open.objects.fetch_add(1, Ordering::AcqRel);
    Ok(Handle::create(public, Channel { epoll, fetching: Lock::new(Rank::Fetching, ()), queues: AtomicUsize::new(0) }))
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
