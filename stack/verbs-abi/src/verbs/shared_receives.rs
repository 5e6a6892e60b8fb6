//! Shared receive queues.

use crate::abi::*;
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, number, pointer};
use crate::event_fd::Unacknowledged;
use crate::handle::{Handle, object};
use crate::locks::{Lock, Locked, Rank};
use crate::verbs::context::{self, next_handle};
use crate::verbs::domain::Domain;
use crate::verbs::work::each_receive;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use uwarp::{SharedReceiveOptions, SharedReceiveQueue};

/// A shared receive queue.
pub(crate) struct SharedQueue {
    inner: Lock<SharedReceiveQueue>,
    pub(crate) asynchronous: Unacknowledged,
    /// Queue pairs that use it.
    pub(crate) users: AtomicUsize,
}
object!(SharedQueue: ibv_srq, b"srq");

impl SharedQueue {
    pub(crate) fn lock(&self) -> Locked<'_, SharedReceiveQueue> {
        self.inner.lock()
    }
}

/// The queues that there are, with uwarp's numbers, by which events name them.
static BY_NUMBER: Lock<Vec<(uwarp::SharedReceiveQueueId, usize)>> = Lock::new(Rank::SharedQueues, Vec::new());

fn by_number() -> Locked<'static, Vec<(uwarp::SharedReceiveQueueId, usize)>> {
    BY_NUMBER.lock()
}

/// Does something with the address of the queue that has a number of uwarp's, if there is one; it is not destroyed
/// meanwhile.
pub(crate) fn with(number: uwarp::SharedReceiveQueueId, body: impl FnOnce(usize)) {
    let queues = by_number();
    if let Some((_, address)) = queues.iter().find(|(id, _)| *id == number) {
        body(*address);
    }
}

/// Makes a queue in a domain.
pub(crate) fn create(pd: *mut ibv_pd, user: *mut c_void, wanted: &mut ibv_srq_attr) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let domain = Handle::<Domain>::get(pd)?;
        if wanted.max_wr == 0 || wanted.max_sge as usize > uwarp::MAX_SHARED_SGE {
            return Err(EINVAL);
        }
        let options = SharedReceiveOptions { depth: wanted.max_wr as usize, share: None };
        let queue = domain.domain.create_shared_receive_queue(options)?;
        wanted.max_sge = uwarp::MAX_SHARED_SGE as u32;
        let number = queue.id();
        let context = (*domain.public()).context;
        let public = ibv_srq { context, srq_context: user, pd, handle: next_handle(), ..ibv_srq::default() };
        domain.users.fetch_add(1, Ordering::AcqRel);
        context::get(context)?.objects.fetch_add(1, Ordering::AcqRel);
        let handle = Handle::create(
            public,
            SharedQueue {
                inner: Lock::new(Rank::Receives, queue),
                asynchronous: Unacknowledged::default(),
                users: AtomicUsize::new(0),
            },
        );
        by_number().push((number, handle.expose_provenance()));
        Ok(handle)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller's pointer.
        let wanted = unsafe { wanted.as_mut().ok_or(EINVAL)? };
        create(pd, wanted.srq_context, &mut wanted.attr)
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    wanted: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller's pointers.
        let wanted = unsafe {
            context::get(context)?;
            wanted.as_mut().ok_or(EINVAL)?
        };
        let mask = wanted.comp_mask;
        if mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0
            || (mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && wanted.srq_type != IBV_SRQT_BASIC)
        {
            return Err(EOPNOTSUPP);
        }
        create(wanted.pd, wanted.srq_context, &mut wanted.attr)
    })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, out: *mut u32) -> c_int {
    // SAFETY: the caller's pointer. Only queues of XRC have numbers.
    number(|| unsafe { Handle::<SharedQueue>::get(srq).and(if out.is_null() { Err(EINVAL) } else { Err(EOPNOTSUPP) }) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, wanted: *mut ibv_srq_attr, mask: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        let (queue, wanted) = unsafe { (Handle::<SharedQueue>::get(srq)?, wanted.as_ref().ok_or(EINVAL)?) };
        if mask as u32 & !IBV_SRQ_LIMIT != 0 {
            return Err(EOPNOTSUPP);
        }
        if mask as u32 & IBV_SRQ_LIMIT != 0 {
            let queue = queue.lock();
            if wanted.srq_limit as usize > queue.depth() {
                return Err(EINVAL);
            }
            queue.set_limit(wanted.srq_limit as usize);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let queue = Handle::<SharedQueue>::get(srq)?;
            let queue = queue.lock();
            *out.as_mut().ok_or(EINVAL)? = ibv_srq_attr {
                max_wr: queue.depth() as u32,
                max_sge: uwarp::MAX_SHARED_SGE as u32,
                srq_limit: queue.limit() as u32,
            };
        }
        Ok(())
    })
}

/// Ends a queue that no queue pair uses.
pub(crate) fn destroy(srq: *mut ibv_srq) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let queue = Handle::<SharedQueue>::get(srq)?;
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(EBUSY);
        }
        let (context, pd) = ((*queue.public()).context, (*queue.public()).pd);
        let open = context::get(context)?;
        // From here on no event of it is reported.
        by_number().retain(|(_, address)| *address != srq.addr());
        open.events.forget(srq.addr());
        queue.asynchronous.wait();
        drop(Handle::<SharedQueue>::destroy(srq)?);
        if let Ok(domain) = Handle::<Domain>::get(pd) {
            domain.users.fetch_sub(1, Ordering::AcqRel);
        }
        open.objects.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    number(|| destroy(srq))
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let queue = Handle::<SharedQueue>::get(srq)?;
            let mut queue = queue.lock();
            each_receive(list, bad, |request| {
                queue.post_receive(&[request]).map_err(|error| error.reason)?;
                Ok(())
            })
        }
    })
}
