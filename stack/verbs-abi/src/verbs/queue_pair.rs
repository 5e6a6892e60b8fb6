//! Queue pairs: making and destroying.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number, pointer};
use crate::event_fd::Unacknowledged;
use crate::handle::Handle;
use crate::locks::{Lock, Owned, Rank};
use crate::process;
use crate::verbs::attributes;
use crate::verbs::builder::Builder;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::context::{self, next_handle};
use crate::verbs::datagrams;
use crate::verbs::domain::Domain;
use crate::verbs::link::Link;
use crate::verbs::pair::{self, PairId, QueuePair, Sender, purge};
use crate::verbs::send_queue::{Limits, SendQueue};
use crate::verbs::shared_receives::SharedQueue;
use crate::verbs::work_builder;
use libc::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use uwarp::{DatagramPath, QueuePairOptions};

/// Octets of inline data that every queue pair takes: two slots of the queue for each request, which is what an atomic
/// with its sink, a bind and a Write with immediate data may need.
const LEAST_INLINE: usize = 96;

/// What a peer may be allowed.
pub(crate) const REMOTE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Operations of `ibv_wr_*` that there are.
const BUILDER_OPERATIONS: u64 = (IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV) as u64;

/// The same for queue pairs of datagrams.
const DATAGRAM_OPERATIONS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

/// The attributes of a new queue pair.
pub(crate) fn initial(cap: ibv_qp_cap) -> ibv_qp_attr {
    ibv_qp_attr {
        path_mtu: IBV_MTU_1024,
        qp_access_flags: REMOTE | IBV_ACCESS_LOCAL_WRITE,
        cap,
        port_num: 1,
        ..ibv_qp_attr::default()
    }
}

/// Makes a queue pair of an open device.
pub(crate) fn create(context: *mut ibv_context, wanted: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let open = context::get(context)?;
        let mask = wanted.comp_mask;
        let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
        if mask & !known != 0 || (mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && wanted.create_flags != 0) {
            return Err(EOPNOTSUPP);
        }
        let is_of_datagrams = wanted.qp_type == IBV_QPT_UD;
        if wanted.qp_type != IBV_QPT_RC && !(is_of_datagrams && process::is_roce()) {
            tracing::warn!(
                kind = wanted.qp_type,
                "only reliable connections (RC) work, and on a device of RoCE unreliable datagrams (UD)"
            );
            return Err(EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(EINVAL);
        }
        let with_builder = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let operations = if is_of_datagrams { DATAGRAM_OPERATIONS } else { BUILDER_OPERATIONS };
        if with_builder && wanted.send_ops_flags & !operations != 0 {
            return Err(EOPNOTSUPP);
        }
        let domain = Handle::<Domain>::get(wanted.pd)?;
        let send_cq = Handle::<CompletionQueue>::get(wanted.send_cq.cast())?;
        let receive_cq = Handle::<CompletionQueue>::get(wanted.recv_cq.cast())?;
        let shared = if wanted.srq.is_null() { None } else { Some(Handle::<SharedQueue>::get(wanted.srq)?) };
        let cap = wanted.cap;
        let limits = &process::process()?.context.config().limits;
        let (most_entries, most_inline) = match is_of_datagrams {
            true => (context::MOST_DATAGRAM_ENTRIES, datagrams::MOST_INLINE),
            false => (uwarp::MAX_SGE, uwarp::MAX_INLINE),
        };
        if cap.max_send_sge as usize > most_entries || cap.max_recv_sge as usize > most_entries {
            return Err(EINVAL);
        }
        if cap.max_inline_data as usize > most_inline {
            return Err(EINVAL);
        }
        if cap.max_send_wr as usize > limits.queue_depth || cap.max_recv_wr as usize > limits.queue_depth {
            return Err(EINVAL);
        }
        // Both limits of a request are one in uwarp.
        let entries = cap.max_send_sge.max(cap.max_recv_sge).max(1);
        let inline = (cap.max_inline_data as usize).max(LEAST_INLINE);
        // In uwarp the addresses of a datagram count.
        let more = if is_of_datagrams { (DatagramPath::ENTRIES, DatagramPath::BLOCK_LEN) } else { (0, 0) };
        let queue_pair = {
            let shared_queue = shared.map(|queue| queue.lock());
            let options = QueuePairOptions {
                send_cq: &send_cq.target,
                receive_cq: &receive_cq.target,
                send_depth: cap.max_send_wr.max(1) as usize,
                receive_depth: cap.max_recv_wr.max(1) as usize,
                max_sge: entries as usize + more.0,
                max_inline: inline + more.1,
                signal_all: wanted.sq_sig_all != 0,
                complete_when_acknowledged: false,
                shared_receives: shared_queue.as_deref(),
            };
            domain.domain.create_queue_pair(&options)?
        };
        wanted.cap.max_send_sge = entries;
        wanted.cap.max_recv_sge = entries;
        wanted.cap.max_inline_data = inline as u32;
        let uwarp::QueuePair { control, send, receive } = queue_pair;
        let number = control.number();
        let polls = &process::process()?.polls;
        let public_number = pair::new_public_number(number)?;
        polls.name(number, public_number);
        let mut queue = SendQueue::new(send, cap.max_send_wr.max(1), wanted.sq_sig_all != 0, polls.taken(number));
        if is_of_datagrams {
            queue.datagrams = Some(Limits { key: 0, octets: attributes::most_octets_of_packet(process::process()?) });
            queue.close();
        }
        let id = PairId { number, handle: next_handle() };
        let base = ibv_qp {
            context,
            qp_context: wanted.qp_context,
            pd: wanted.pd,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            handle: id.handle,
            qp_num: public_number,
            state: IBV_QPS_RESET,
            qp_type: wanted.qp_type,
            ..ibv_qp::default()
        };
        let mut public = ibv_qp_ex { qp_base: base, ..ibv_qp_ex::default() };
        if with_builder {
            work_builder::set_functions(&mut public);
        }
        let handle = Handle::create(
            public,
            QueuePair {
                id,
                control: Lock::new(Rank::Control, control),
                send: Owned::new(Rank::Section, Sender { queue, builder: Builder::default() }),
                receive: Owned::new(Rank::Receives, receive),
                has_builder: with_builder,
                asynchronous: Unacknowledged::default(),
                attributes: Lock::new(Rank::Attributes, initial(wanted.cap)),
                signal_all: wanted.sq_sig_all != 0,
                is_of_datagrams,
                identifiers: AtomicUsize::new(0),
                link: Lock::new(Rank::Link, None),
            },
        );
        for users in [&domain.users, &send_cq.users, &receive_cq.users] {
            users.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(shared) = shared {
            shared.users.fetch_add(1, Ordering::AcqRel);
        }
        open.objects.fetch_add(1, Ordering::AcqRel);
        pair::enter(Handle::get(handle)?, public_number);
        Ok(handle.cast())
    }
}

/// The attributes of the plain call as those of the extended one.
pub(crate) fn extended(wanted: &ibv_qp_init_attr, pd: *mut ibv_pd) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: wanted.qp_context,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: wanted.srq,
        cap: wanted.cap,
        qp_type: wanted.qp_type,
        sq_sig_all: wanted.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..ibv_qp_init_attr_ex::default()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let context = (*Handle::<Domain>::get(pd)?.public()).context;
            let wanted = wanted.as_mut().ok_or(EINVAL)?;
            let mut extended = extended(wanted, pd);
            let made = create(context, &mut extended)?;
            wanted.cap = extended.cap;
            Ok(made)
        }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    wanted: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's pointer.
    pointer(|| create(context, unsafe { wanted.as_mut().ok_or(EINVAL)? }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        // SAFETY: the caller's pointer.
        let pair = unsafe { Handle::<QueuePair>::get(qp.cast())? };
        if pair.has_builder { Ok(pair.public()) } else { Err(EOPNOTSUPP) }
    })
}

/// Ends a queue pair at once: nothing of it comes behind this, neither a completion nor an event.
pub(crate) fn destroy(qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let pair = Handle::<QueuePair>::get(qp.cast())?;
        let base = (*pair.public()).qp_base;
        let open = context::get(base.context)?;
        // From here on no thread of the library finds it, to use it or to report an event of it.
        let number = pair.id.number;
        pair::remove(number, Some(base.qp_num));
        open.events.forget(qp.addr());
        pair.asynchronous.wait();
        let inner = Handle::<QueuePair>::destroy(qp.cast())?;
        let control = inner.control.into_inner();
        let mut link = inner.link.into_inner();
        if let Some(shadow) = link.as_mut().and_then(Link::take_shadow) {
            pair::destroy_shadow(&base, shadow)?;
        }
        // The halves go first: nothing is posted any more.
        drop((inner.send, inner.receive));
        let send_cq = Handle::<CompletionQueue>::get(base.send_cq.cast())?;
        let receive_cq = Handle::<CompletionQueue>::get(base.recv_cq.cast())?;
        control.destroy();
        purge(&base, number)?;
        for users in [&Handle::<Domain>::get(base.pd)?.users, &send_cq.users, &receive_cq.users] {
            users.fetch_sub(1, Ordering::AcqRel);
        }
        if let Ok(shared) = Handle::<SharedQueue>::get(base.srq) {
            shared.users.fetch_sub(1, Ordering::AcqRel);
        }
        open.objects.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    number(|| destroy(qp))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
    // The last octets of a Write are placed last, those before in any order.
    // SAFETY: the caller's pointer.
    number(|| unsafe { Handle::<QueuePair>::get(qp.cast()).map(|_| ()) });
    0
}
