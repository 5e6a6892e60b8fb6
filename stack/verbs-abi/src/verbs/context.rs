//! Open devices: attributes, ports, and the functions that headers call through the context.

use crate::abi::*;
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, minus_one, number};
use crate::event_fd::EventCounter;
use crate::process;
use crate::verbs::events::EventQueue;
use crate::verbs::{completion, device, events, post, queue_pair, shared_receives, window};
use libc::{c_char, c_int, size_t};
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What an open device is, with the structures that C sees. Never moved.
#[repr(C)]
pub(crate) struct OpenDevice {
    /// `context` is its last field, which C holds a pointer to.
    public: verbs_context,
    pub(crate) events: Arc<EventQueue>,
    /// Objects that were made from it and still are.
    pub(crate) objects: AtomicUsize,
}

/// The devices that are open, by the addresses that C holds.
static OPEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Memory of devices that were closed. It stays mapped, as that of all objects: a stray pointer into it may be looked at.
static CLOSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn open_devices() -> std::sync::MutexGuard<'static, Vec<usize>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open device behind a pointer from C.
///
/// # Safety
/// The device is not closed while the reference is used.
pub(crate) unsafe fn get<'a>(context: *mut ibv_context) -> Result<&'a OpenDevice, Errno> {
    if context.is_null() || !open_devices().contains(&context.addr()) {
        return Err(EINVAL);
    }
    let outer = context.wrapping_byte_sub(offset_of!(OpenDevice, public) + offset_of!(verbs_context, context));
    // SAFETY: one of ours, and open.
    Ok(unsafe { &*outer.cast::<OpenDevice>() })
}

/// Puts an event of the device or its port into the queues of all that have it open.
pub(crate) fn push_to_all(event: events::Event) {
    for address in open_devices().iter() {
        let context: *mut ibv_context = std::ptr::with_exposed_provenance_mut(*address);
        let outer = context.wrapping_byte_sub(offset_of!(OpenDevice, public) + offset_of!(verbs_context, context));
        // SAFETY: in the list, which is locked, so open.
        unsafe { (*outer.cast::<OpenDevice>()).events.push(event) };
    }
}

/// A number for the structures that have one and do not use it.
pub(crate) fn next_handle() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn open() -> Result<*mut ibv_context, Errno> {
    process::process()?;
    let events = Arc::new(EventQueue::new(EventCounter::new()?));
    // SAFETY: a structure of C: integers, pointers and optional functions, for which zeroes are valid.
    let mut public: verbs_context = unsafe { MaybeUninit::zeroed().assume_init() };
    public.sz = size_of::<verbs_context>();
    public.query_port = Some(query_port);
    public.query_device_ex = Some(query_device_ex);
    public.create_cq_ex = Some(completion::create_cq_ex);
    public.create_qp_ex = Some(queue_pair::create_qp_ex);
    public.create_srq_ex = Some(shared_receives::create_srq_ex);
    public.get_srq_num = Some(shared_receives::get_srq_num);
    public.query_rt_values = Some(query_rt_values);
    public.context = ibv_context {
        device: device::device(),
        cmd_fd: -1,
        async_fd: events.fd(),
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
    let former = CLOSED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let memory: *mut OpenDevice = match former {
        Some(address) => std::ptr::with_exposed_provenance_mut(address),
        None => Box::leak(Box::new_uninit()).as_mut_ptr(),
    };
    // SAFETY: memory of this size that nobody else uses: new, or of a device that was closed.
    let context = unsafe {
        memory.write(OpenDevice { public, events, objects: AtomicUsize::new(0) });
        &raw mut (*memory).public.context
    };
    open_devices().push(context.expose_provenance());
    Ok(context)
}

/// # Safety
/// No other call uses the device any more.
pub(crate) unsafe fn close(context: *mut ibv_context) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let open = unsafe { get(context)? };
    if open.objects.load(Ordering::Acquire) > 0 {
        return Err(EBUSY);
    }
    open_devices().retain(|address| *address != context.addr());
    let outer = (&raw const *open).cast_mut();
    // SAFETY: initialised by `open`, and not in the list any more.
    unsafe { outer.drop_in_place() };
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner).push(outer.expose_provenance());
    Ok(())
}

/// The verbs' number of an MTU: the largest message of one packet that they have a number for.
fn mtu_number(mtu: u16) -> ibv_mtu {
    match mtu {
        4096.. => IBV_MTU_4096,
        2048.. => IBV_MTU_2048,
        1024.. => IBV_MTU_1024,
        _ => IBV_MTU_512,
    }
}

/// The most Reads and atomics at once that rdma_cm's octet and the engines take.
pub(crate) const MOST_READS: c_int = 128;

fn attributes() -> Result<ibv_device_attr, Errno> {
    let context = &process::process()?.context;
    let limits = &context.config().limits;
    let int = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    let guid = device::guid(context.config().address.address).to_be();
    let mut attributes = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits.registered_octets,
        page_size_cap: 4096,
        // Not one that programs know, and not zero.
        vendor_id: 0x75_77_61,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: int(limits.queue_pairs),
        max_qp_wr: int(limits.queue_depth),
        device_cap_flags: IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_CURR_QP_STATE_MOD,
        max_sge: int(uwarp::MAX_SGE),
        max_sge_rd: 1,
        max_cq: int(limits.completion_queues),
        max_cqe: int(limits.completion_depth),
        max_mr: int(limits.regions),
        max_pd: 1 << 16,
        max_qp_rd_atom: MOST_READS,
        max_res_rd_atom: MOST_READS.saturating_mul(int(limits.queue_pairs)),
        max_qp_init_rd_atom: MOST_READS,
        // By the processor's own atomic instructions.
        atomic_cap: IBV_ATOMIC_GLOB,
        max_mw: int(limits.regions),
        max_srq: 1 << 10,
        max_srq_wr: int(limits.queue_depth),
        max_srq_sge: int(uwarp::MAX_SHARED_SGE),
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    for (to, from) in attributes.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as c_char;
    }
    Ok(attributes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            out.as_mut().ok_or(EINVAL)?.clone_from(&attributes()?);
        }
        Ok(())
    })
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    out: *mut ibv_device_attr_ex,
    size: size_t,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers; `size` octets of `out` are the caller's.
        unsafe {
            get(context)?;
            if input.as_ref().is_some_and(|input| input.comp_mask != 0) {
                return Err(EINVAL);
            }
            if out.is_null() || size < size_of::<ibv_device_attr>() {
                return Err(EINVAL);
            }
            let attributes =
                ibv_device_attr_ex { orig_attr: attributes()?, phys_port_cnt_ex: 1, ..ibv_device_attr_ex::default() };
            // A program of another release of the verbs has a shorter or a longer structure.
            out.cast::<u8>().write_bytes(0, size);
            let octets = size.min(size_of::<ibv_device_attr_ex>());
            out.cast::<u8>().copy_from_nonoverlapping((&raw const attributes).cast(), octets);
        }
        Ok(())
    })
}

fn port_attributes(port: u8) -> Result<ibv_port_attr, Errno> {
    if port != 1 {
        return Err(EINVAL);
    }
    let mtu = process::process()?.context.config().mtu;
    Ok(ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: mtu_number(mtu),
        gid_tbl_len: 1,
        port_cap_flags: IBV_PORT_CM_SUP,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // One lane of 25 Gbit/s: the verbs want numbers, and software has none.
        active_width: 1,
        active_speed: 32,
        // LinkUp.
        phys_state: 5,
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        ..ibv_port_attr::default()
    })
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, out: *mut ibv_port_attr, size: size_t) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers; `size` octets of `out` are the caller's.
        unsafe {
            get(context)?;
            let attributes = port_attributes(port)?;
            if out.is_null() {
                return Err(EINVAL);
            }
            out.cast::<u8>().write_bytes(0, size);
            let octets = size.min(size_of::<ibv_port_attr>());
            out.cast::<u8>().copy_from_nonoverlapping((&raw const attributes).cast(), octets);
        }
        Ok(())
    })
}

/// The structure of programs that were compiled before the port's second flags: it ends behind `flags`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, out: *mut _compat_ibv_port_attr) -> c_int {
    // SAFETY: the caller's pointers.
    unsafe { query_port(context, port, out.cast(), offset_of!(ibv_port_attr, port_cap_flags2)) }
}

unsafe extern "C" fn query_rt_values(context: *mut ibv_context, _: *mut ibv_values_ex) -> c_int {
    // SAFETY: the caller's pointer. No clock is sold as the device's.
    number(|| unsafe { get(context).and(Err(EOPNOTSUPP)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, out: *mut ibv_gid) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            if port != 1 || index != 0 {
                return Err(EINVAL);
            }
            *out.as_mut().ok_or(EINVAL)? = device::gid(process::process()?.context.config().address.address);
        }
        Ok(0)
    })
}

fn gid_entry() -> Result<ibv_gid_entry, Errno> {
    Ok(ibv_gid_entry {
        gid: device::gid(process::process()?.context.config().address.address),
        gid_index: 0,
        port_num: 1,
        gid_type: IBV_GID_TYPE_IB,
        ndev_ifindex: 0,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: size_t,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            if port != 1 || index != 0 || flags != 0 || out.is_null() {
                return Err(EINVAL);
            }
            let entry = gid_entry()?;
            let octets = size.min(size_of::<ibv_gid_entry>());
            out.cast::<u8>().copy_from_nonoverlapping((&raw const entry).cast(), octets);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    most: size_t,
    flags: u32,
    size: size_t,
) -> isize {
    let mut count = 0;
    // Not by -1 and errno, as elsewhere: the caller looks for the number in the result.
    let errno = number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            if flags != 0 || out.is_null() || most == 0 {
                return Err(EINVAL);
            }
            let entry = gid_entry()?;
            let octets = size.min(size_of::<ibv_gid_entry>());
            out.cast::<u8>().copy_from_nonoverlapping((&raw const entry).cast(), octets);
        }
        count = 1;
        Ok(())
    });
    if errno == 0 { count } else { -(errno as isize) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: u32, out: *mut u32) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            if port != 1 || index != 0 {
                return Err(EINVAL);
            }
            *out.as_mut().ok_or(EINVAL)? = IBV_GID_TYPE_IB;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, out: *mut u16) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            if port != 1 || index != 0 {
                return Err(EINVAL);
            }
            // iWARP has none; this is the one that everybody has elsewhere.
            *out.as_mut().ok_or(EINVAL)? = 0xffff;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        unsafe { get(context)? };
        if port == 1 && (key == 0xffff || key == 0) { Ok(0) } else { Err(EINVAL) }
    })
}
