//! Opening and closing a device: the only place that knows all functions that headers call through the context.

use crate::abi::{ibv_context, ibv_device, verbs_context};
use crate::errno::{Errno, number, pointer};
use crate::process;
use crate::verbs::{attributes, completion, context, device, post, queue_pair, shared_receives, window};
use libc::c_int;
use std::mem::MaybeUninit;

pub(crate) fn open() -> Result<*mut ibv_context, Errno> {
    process::process()?;
    // SAFETY: a structure of C: integers, pointers and optional functions, for which zeroes are valid.
    let mut public: verbs_context = unsafe { MaybeUninit::zeroed().assume_init() };
    public.sz = size_of::<verbs_context>();
    public.query_port = Some(attributes::query_port);
    public.query_device_ex = Some(attributes::query_device_ex);
    public.create_cq_ex = Some(completion::create_cq_ex);
    public.create_qp_ex = Some(queue_pair::create_qp_ex);
    public.create_srq_ex = Some(shared_receives::create_srq_ex);
    public.get_srq_num = Some(shared_receives::get_srq_num);
    public.query_rt_values = Some(attributes::query_rt_values);
    public.context = ibv_context {
        device: device::device(),
        cmd_fd: -1,
        num_comp_vectors: 1,
        // All ones: the structure in front is there.
        abi_compat: std::ptr::without_provenance_mut(usize::MAX),
        ..ibv_context::default()
    };
    let ops = &mut public.context.ops;
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(shared_receives::post_srq_recv);
    ops.alloc_mw = Some(window::alloc_mw);
    ops.bind_mw = Some(window::bind_mw);
    ops.dealloc_mw = Some(window::dealloc_mw);
    context::open(public)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        device::check(device)?;
        open()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: as the verbs ask of the caller.
    number(|| unsafe { context::close(context) })
}
