//! Queue pairs: making, changing, asking and destroying.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number, pointer};
use crate::event_fd::Unacknowledged;
use crate::handle::Handle;
use crate::locks::{Lock, Owned, Rank};
use crate::process;
use crate::verbs::builder::Builder;
use crate::verbs::completion::Queue;
use crate::verbs::context::{self, MOST_READS, next_handle, public_number};
use crate::verbs::domain::Domain;
use crate::verbs::pair::{Pair, PairId, Sender, by_number, set_state, state};
use crate::verbs::send_queue::SendQueue;
use crate::verbs::shared_receives::SharedQueue;
use crate::verbs::work_builder;
use libc::c_int;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use uwarp::QueuePairOptions;

/// Octets of inline data that every queue pair takes: two slots of the queue for each request, which is what an atomic
/// with its sink, a bind and a Write with immediate data may need.
const LEAST_INLINE: usize = 96;

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
        if wanted.qp_type != IBV_QPT_RC {
            tracing::warn!(kind = wanted.qp_type, "only reliable connections (RC) work over iWARP");
            return Err(EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(EINVAL);
        }
        let with_builder = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        if with_builder && wanted.send_ops_flags & !BUILDER_OPERATIONS != 0 {
            return Err(EOPNOTSUPP);
        }
        let domain = Handle::<Domain>::get(wanted.pd)?;
        let send_cq = Handle::<Queue>::get(wanted.send_cq.cast())?;
        let receive_cq = Handle::<Queue>::get(wanted.recv_cq.cast())?;
        let shared = if wanted.srq.is_null() { None } else { Some(Handle::<SharedQueue>::get(wanted.srq)?) };
        let cap = wanted.cap;
        let limits = &process::process()?.context.config().limits;
        let most_entries = uwarp::MAX_SGE as u32;
        if cap.max_send_sge > most_entries || cap.max_recv_sge > most_entries {
            return Err(EINVAL);
        }
        if cap.max_inline_data as usize > uwarp::MAX_INLINE {
            return Err(EINVAL);
        }
        if cap.max_send_wr as usize > limits.queue_depth || cap.max_recv_wr as usize > limits.queue_depth {
            return Err(EINVAL);
        }
        // Both limits of a request are one in uwarp.
        let entries = cap.max_send_sge.max(cap.max_recv_sge).max(1);
        let inline = (cap.max_inline_data as usize).max(LEAST_INLINE);
        let queue_pair = {
            let shared_queue = shared.map(|queue| queue.lock());
            let options = QueuePairOptions {
                send_cq: &send_cq.target,
                receive_cq: &receive_cq.target,
                send_depth: cap.max_send_wr.max(1) as usize,
                receive_depth: cap.max_recv_wr.max(1) as usize,
                max_sge: entries as usize,
                max_inline: inline,
                signal_all: wanted.sq_sig_all != 0,
                complete_when_acknowledged: false,
                shared_receives: shared_queue.as_deref(),
            };
            domain.domain.create_queue_pair(&options)?
        };
        wanted.cap.max_send_sge = entries;
        wanted.cap.max_recv_sge = entries;
        wanted.cap.max_inline_data = inline as u32;
        let number = queue_pair.number();
        let (control, send, receive) = queue_pair.into_halves();
        let taken = process::process()?.taken.of(number);
        let queue = SendQueue::new(send, cap.max_send_wr.max(1), wanted.sq_sig_all != 0, taken);
        let id = PairId { number, handle: next_handle() };
        let base = ibv_qp {
            context,
            qp_context: wanted.qp_context,
            pd: wanted.pd,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            handle: id.handle,
            qp_num: public_number(number),
            state: IBV_QPS_RESET,
            qp_type: IBV_QPT_RC,
            ..ibv_qp::default()
        };
        let mut public = ibv_qp_ex { qp_base: base, ..ibv_qp_ex::default() };
        if with_builder {
            work_builder::set_functions(&mut public);
        }
        let handle = Handle::create(
            public,
            Pair {
                id,
                control: Lock::new(Rank::Control, control),
                send: Owned::new(Rank::Section, Sender { queue, builder: Builder::default() }),
                receive: Owned::new(Rank::Receives, receive),
                has_builder: with_builder,
                asynchronous: Unacknowledged::default(),
                caps: wanted.cap,
                signal_all: wanted.sq_sig_all != 0,
                reads: AtomicU32::new(0),
                timeout: AtomicU8::new(0),
                identifiers: AtomicUsize::new(0),
            },
        );
        for users in [&domain.users, &send_cq.users, &receive_cq.users] {
            users.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(shared) = shared {
            shared.users.fetch_add(1, Ordering::AcqRel);
        }
        open.objects.fetch_add(1, Ordering::AcqRel);
        by_number().insert(number, handle.expose_provenance());
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
        let pair = unsafe { Handle::<Pair>::get(qp.cast())? };
        if pair.has_builder { Ok(pair.public()) } else { Err(EOPNOTSUPP) }
    })
}

/// Ends a queue pair at once: nothing of it comes behind this, neither a completion nor an event.
pub(crate) fn destroy(qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let pair = Handle::<Pair>::get(qp.cast())?;
        let base = (*pair.public()).qp_base;
        let open = context::get(base.context)?;
        // From here on no thread of the library finds it, to use it or to report an event of it.
        let number = pair.id.number;
        by_number().remove(&number);
        open.events.forget(qp.addr());
        pair.asynchronous.wait();
        let inner = Handle::<Pair>::destroy(qp.cast())?;
        let control = inner.control.into_inner();
        // The halves go first: nothing is posted any more.
        drop((inner.send, inner.receive));
        let send_cq = Handle::<Queue>::get(base.send_cq.cast())?;
        let receive_cq = Handle::<Queue>::get(base.recv_cq.cast())?;
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

/// Takes a queue pair's completions out of its queues. Nothing of it completes any more.
fn purge(base: &ibv_qp, number: u32) -> Result<(), Errno> {
    for queue in [base.send_cq, base.recv_cq] {
        // SAFETY: a queue is not destroyed before its queue pairs.
        unsafe { Handle::<Queue>::get(queue.cast())? }.lock().purge(number);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    number(|| destroy(qp))
}

/// Makes a queue pair like new.
fn reset(pair: &Handle<Pair>) -> Result<(), Errno> {
    {
        // In this order: a program may have a section of the send queue open.
        let mut sender = pair.send.lock();
        pair.control().reset_with(&mut sender.queue.half)?;
    }
    // As drivers of hardware do. Nothing is locked here: who has a section of a completion queue may post in it.
    // SAFETY: our own structure.
    purge(unsafe { &(*pair.public()).qp_base }, pair.id.number)?;
    pair.send.lock().queue.reset();
    set_state(pair, IBV_QPS_RESET);
    Ok(())
}

/// What names a peer to a queue pair or counts its packets: InfiniBand's way to connect one.
const PEER: u32 = IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN;

/// The program moves its queue pair to "ready to receive" or "ready to send".
///
/// In iWARP a stream is what moves it there, and rdma_cm makes streams. A server that moves its queue pair by
/// `rdma_init_qp_attr` does so before it accepts, when rdma_cm does not know the queue pair yet: that is allowed as
/// long as no peer is named.
fn move_up(pair: &Handle<Pair>, now: ibv_qp_state, wanted: ibv_qp_state, mask: u32) -> Result<(), Errno> {
    let is_next = matches!((now, wanted), (IBV_QPS_INIT | IBV_QPS_RTR, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS));
    if pair.identifiers.load(Ordering::Acquire) == 0 && (mask & PEER != 0 || !is_next) {
        tracing::warn!("a queue pair of iWARP is connected by rdma_cm alone: use the program's option for it (-R)");
        return Err(EINVAL);
    }
    // Its stream may have moved it further.
    if !matches!(now, IBV_QPS_RTS | IBV_QPS_ERR) {
        set_state(pair, wanted);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        let (pair, wanted) = unsafe { (Handle::<Pair>::get(qp.cast())?, wanted.as_ref().ok_or(EINVAL)?) };
        if mask as u32 & IBV_QP_STATE == 0 {
            return Ok(());
        }
        let now = state(pair);
        match wanted.qp_state {
            IBV_QPS_RESET => {
                reset(pair)?;
            }
            IBV_QPS_INIT if matches!(now, IBV_QPS_RESET | IBV_QPS_INIT) => set_state(pair, IBV_QPS_INIT),
            IBV_QPS_RTR | IBV_QPS_RTS => move_up(pair, now, wanted.qp_state, mask as u32)?,
            IBV_QPS_SQD => {
                pair.control().disconnect();
                if now == IBV_QPS_RTS {
                    set_state(pair, IBV_QPS_SQD);
                }
            }
            IBV_QPS_ERR => {
                pair.control().abort();
                set_state(pair, IBV_QPS_ERR);
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    out: *mut ibv_qp_attr,
    _mask: c_int,
    out_made: *mut ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let pair = Handle::<Pair>::get(qp.cast())?;
            let base = (*pair.public()).qp_base;
            let reads = pair.reads.load(Ordering::Relaxed);
            // A queue pair of iWARP has no state before this one: it takes receives as soon as it is made.
            let state = if base.state == IBV_QPS_RESET { IBV_QPS_INIT } else { base.state };
            *out.as_mut().ok_or(EINVAL)? = ibv_qp_attr {
                qp_state: state,
                cur_qp_state: state,
                path_mtu: IBV_MTU_1024,
                cap: pair.caps,
                port_num: 1,
                max_rd_atomic: (reads & 0xffff).min(MOST_READS as u32) as u8,
                max_dest_rd_atomic: (reads >> 16).min(MOST_READS as u32) as u8,
                timeout: pair.timeout.load(Ordering::Relaxed),
                ..ibv_qp_attr::default()
            };
            *out_made.as_mut().ok_or(EINVAL)? = ibv_qp_init_attr {
                qp_context: base.qp_context,
                send_cq: base.send_cq,
                recv_cq: base.recv_cq,
                srq: base.srq,
                cap: pair.caps,
                qp_type: IBV_QPT_RC,
                sq_sig_all: c_int::from(pair.signal_all),
            };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
    // The last octets of a Write are placed last, those before in any order.
    // SAFETY: the caller's pointer.
    number(|| unsafe { Handle::<Pair>::get(qp.cast()).map(|_| ()) });
    0
}
