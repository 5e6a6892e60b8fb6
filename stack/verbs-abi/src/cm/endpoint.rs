//! Identifiers with queue pairs: those of requests, `rdma_create_ep`, and the queue pair that an identifier makes.

use crate::abi::*;
use crate::cm::address::{self, End};
use crate::cm::identifier::{self, Identifier, Known, Stage, State, Template};
use crate::cm::resolve;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one, nothing};
use crate::handle::Handle;
use crate::process;
use crate::verbs::{channel, completion, queue_pair, shared_receives};
use libc::c_int;
use uwarp::ConnectRequest;

/// The identifier of a connection that a peer wants. It reports to the listener's channel.
pub(crate) fn child(
    known: &mut Known,
    listener: &rdma_cm_id,
    request: ConnectRequest,
) -> Result<*mut rdma_cm_id, Errno> {
    // First: an identifier that was made would have to be unmade. The request is rejected when it is dropped.
    let device = resolve::common_device()?;
    let (local, peer) = (request.local(), request.peer());
    let state =
        State { local: Some(local), peer: Some(peer), stage: Stage::Requested(Box::new(request)), ..State::default() };
    let id = identifier::create(known, listener.channel, listener.context, listener.ps, state)?;
    // SAFETY: just made.
    unsafe {
        address::write(&mut (*id).route.addr, End::Source, local);
        address::write(&mut (*id).route.addr, End::Destination, peer);
    }
    device.give_to(id);
    Ok(id)
}

/// Makes the queues that an identifier is to have of its own.
fn create_queues(public: &mut rdma_cm_id, send: c_int, receive: c_int) -> Result<(), Errno> {
    let user = (&raw mut *public).cast();
    if receive > 0 {
        public.recv_cq_channel = channel::create(public.verbs)?;
        public.recv_cq = completion::create_in(public.verbs, receive as usize, user, public.recv_cq_channel)?;
    }
    if send > 0 {
        public.send_cq_channel = channel::create(public.verbs)?;
        public.send_cq = completion::create_in(public.verbs, send as usize, user, public.send_cq_channel)?;
    }
    Ok(())
}

fn destroy_queues(public: &mut rdma_cm_id) {
    for cq in [
        std::mem::replace(&mut public.recv_cq, std::ptr::null_mut()),
        std::mem::replace(&mut public.send_cq, std::ptr::null_mut()),
    ] {
        if !cq.is_null() {
            let _ = completion::destroy(cq);
        }
    }
    for made in [
        std::mem::replace(&mut public.recv_cq_channel, std::ptr::null_mut()),
        std::mem::replace(&mut public.send_cq_channel, std::ptr::null_mut()),
    ] {
        if !made.is_null() {
            let _ = channel::destroy(made);
        }
    }
}

/// Makes an identifier's queue pair, and the completion queues that the program does not bring.
fn create_extended(id: *mut rdma_cm_id, wanted: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    let public = unsafe {
        Handle::<Identifier>::get(id)?;
        &mut *id
    };
    if !public.qp.is_null() || public.verbs.is_null() || wanted.qp_type == IBV_QPT_UD {
        return Err(EINVAL);
    }
    if wanted.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || wanted.pd.is_null() {
        wanted.comp_mask |= IBV_QP_INIT_ATTR_PD;
        wanted.pd = public.pd;
    }
    if (!public.recv_cq.is_null() && !wanted.recv_cq.is_null() && public.recv_cq != wanted.recv_cq)
        || (!public.send_cq.is_null() && !wanted.send_cq.is_null() && public.send_cq != wanted.send_cq)
    {
        return Err(EINVAL);
    }
    let missing = |given: *mut ibv_cq, own: *mut ibv_cq, depth: u32| {
        if given.is_null() && own.is_null() { depth.max(1) as c_int } else { 0 }
    };
    let send = missing(wanted.send_cq, public.send_cq, wanted.cap.max_send_wr);
    let receive = missing(wanted.recv_cq, public.recv_cq, wanted.cap.max_recv_wr);
    let made = create_queues(public, send, receive).and_then(|()| {
        if wanted.send_cq.is_null() {
            wanted.send_cq = public.send_cq;
        }
        if wanted.recv_cq.is_null() {
            wanted.recv_cq = public.recv_cq;
        }
        if !public.srq.is_null() && wanted.srq.is_null() {
            wanted.srq = public.srq;
        }
        queue_pair::create(public.verbs, wanted)
    });
    match made {
        Ok(qp) => {
            // SAFETY: just made.
            unsafe {
                (*qp).state = IBV_QPS_INIT;
                public.pd = (*qp).pd;
            }
            public.qp = qp;
            Ok(())
        }
        Err(errno) => {
            destroy_queues(public);
            Err(errno)
        }
    }
}

/// As `rdma_create_qp`.
pub(crate) fn create_queue_pair(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    mut wanted: ibv_qp_init_attr,
) -> Result<ibv_qp_init_attr, Errno> {
    let mut extended = queue_pair::extended(&wanted, pd);
    create_extended(id, &mut extended)?;
    wanted.cap = extended.cap;
    wanted.send_cq = extended.send_cq;
    wanted.recv_cq = extended.recv_cq;
    Ok(wanted)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let wanted = unsafe { wanted.as_mut().ok_or(EINVAL)? };
        *wanted = create_queue_pair(id, pd, *wanted)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, wanted: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the caller's pointer.
    minus_one(|| create_extended(id, unsafe { wanted.as_mut().ok_or(EINVAL)? }).map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        let public = unsafe {
            Handle::<Identifier>::get(id)?;
            &mut *id
        };
        let qp = std::mem::replace(&mut public.qp, std::ptr::null_mut());
        let destroyed = queue_pair::destroy(qp);
        destroy_queues(public);
        destroyed
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            Handle::<Identifier>::get(id)?;
            let wanted = wanted.as_mut().ok_or(EINVAL)?;
            let pd = if pd.is_null() { (*id).pd } else { pd };
            (*id).srq = shared_receives::create(pd, wanted.srq_context, &mut wanted.attr)?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, wanted: *mut ibv_srq_init_attr_ex) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            Handle::<Identifier>::get(id)?;
            let wanted = wanted.as_mut().ok_or(EINVAL)?;
            if wanted.pd.is_null() {
                wanted.pd = (*id).pd;
                wanted.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            }
            let srq = shared_receives::create_srq_ex((*id).verbs, wanted);
            if srq.is_null() {
                return Err(Errno(*libc::__errno_location()));
            }
            (*id).srq = srq;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        let public = unsafe {
            Handle::<Identifier>::get(id)?;
            &mut *id
        };
        let srq = std::mem::replace(&mut public.srq, std::ptr::null_mut());
        shared_receives::destroy(srq)
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    out: *mut *mut rdma_cm_id,
    addresses: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        process::process()?;
        // SAFETY: the caller's pointers.
        unsafe {
            let (out, addresses) = (out.as_mut().ok_or(EINVAL)?, addresses.as_ref().ok_or(EINVAL)?);
            if ![0, RDMA_PS_TCP as c_int].contains(&addresses.ai_port_space)
                || ![0, IBV_QPT_RC as c_int].contains(&addresses.ai_qp_type)
            {
                return Err(EOPNOTSUPP);
            }
            let id = identifier::create(
                &mut identifier::known(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                RDMA_PS_TCP,
                State::default(),
            )?;
            let made = prepare_endpoint(id, addresses, pd, wanted);
            match made {
                Ok(()) => *out = id,
                Err(errno) => {
                    let _ = identifier::destroy(id);
                    return Err(errno);
                }
            }
        }
        Ok(0)
    })
}

/// # Safety
/// The pointers are the caller's.
unsafe fn prepare_endpoint(
    id: *mut rdma_cm_id,
    addresses: &rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        if addresses.ai_flags as u32 & RAI_PASSIVE != 0 {
            resolve::bind(handle, address::read(addresses.ai_src_addr)?)?;
            if let Some(wanted) = wanted.as_mut() {
                wanted.qp_type = IBV_QPT_RC;
                handle.lock().template = Some(Template { pd, queue_pair: *wanted });
            }
            return Ok(());
        }
        for step in [
            resolve::rdma_resolve_addr(id, addresses.ai_src_addr, addresses.ai_dst_addr, 2000),
            resolve::rdma_resolve_route(id, 2000),
        ] {
            if step != 0 {
                return Err(Errno(*libc::__errno_location()));
            }
        }
        if let Some(wanted) = wanted.as_mut() {
            wanted.qp_type = IBV_QPT_RC;
            *wanted = create_queue_pair(id, pd, *wanted)?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            Handle::<Identifier>::get(id)?;
            if !(*id).qp.is_null() {
                rdma_destroy_qp(id);
            }
            if !(*id).srq.is_null() {
                rdma_destroy_srq(id);
            }
        }
        identifier::destroy(id)
    });
}
