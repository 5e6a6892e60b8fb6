//! What a program can ask a device: its attributes, its port, GIDs and keys.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one, number};
use crate::process::{self, Process};
use crate::verbs::context::{MOST_DATAGRAM_ENTRIES, MOST_READS, get, most_queue_pairs};
use crate::verbs::device;
use crate::verbs::interface;
use libc::{c_char, c_int, size_t};
use std::mem::offset_of;
use std::net::IpAddr;
use uwarp::DatagramPath;
use uwarp_verbs_device::{
    LANES, PART, PARTITION_KEY, PHYSICAL_STATE, PORT_CAPABILITIES, PORT_STATE, REVISION, SPEED, Shape, VENDOR,
};

/// How many address handles a device has. Each is a few octets.
const MOST_HANDLES: c_int = 1 << 16;

/// What `ibv_query_gid_type` says, which no public header names.
const IBV_GID_TYPE_SYSFS_IB_ROCE_V1: u32 = 0;
const IBV_GID_TYPE_SYSFS_ROCE_V2: u32 = 1;

/// The verbs' number of the port's MTU: the largest message of one packet that they have a number for.
fn mtu_number(process: &Process) -> ibv_mtu {
    let mtu = process.context.config().mtu;
    match if process.shape == Shape::Roce { mtu.saturating_sub(DatagramPath::MOST_OVERHEAD as u16) } else { mtu } {
        4096.. => IBV_MTU_4096,
        2048.. => IBV_MTU_2048,
        1024.. => IBV_MTU_1024,
        _ => IBV_MTU_512,
    }
}

/// The largest message of one packet, in octets.
pub(crate) fn most_octets_of_packet(process: &Process) -> u64 {
    128 << mtu_number(process)
}

fn attributes() -> Result<ibv_device_attr, Errno> {
    let process = process::process()?;
    let context = &process.context;
    let limits = &context.config().limits;
    let int = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    // They share a table, and each kind is to have what it is promised whatever there is of the other.
    let windows = limits.regions / 4;
    let guid = device::guid(process).to_be();
    let mut attributes = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits.registered_octets,
        page_size_cap: 4096,
        vendor_id: VENDOR,
        vendor_part_id: PART,
        hw_ver: REVISION,
        max_qp: int(most_queue_pairs(process)),
        max_qp_wr: int(limits.queue_depth),
        device_cap_flags: IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_CURR_QP_STATE_MOD,
        max_sge: int(if process.shape == Shape::Roce { MOST_DATAGRAM_ENTRIES } else { uwarp::MAX_SGE }),
        max_sge_rd: 1,
        max_cq: int(limits.completion_queues),
        max_cqe: int(limits.completion_depth),
        max_mr: int(limits.regions - windows),
        max_pd: 1 << 16,
        max_qp_rd_atom: MOST_READS,
        max_res_rd_atom: MOST_READS.saturating_mul(int(limits.queue_pairs)),
        max_qp_init_rd_atom: MOST_READS,
        // By the processor's own atomic instructions.
        atomic_cap: IBV_ATOMIC_GLOB,
        max_mw: int(windows),
        max_srq: 1 << 10,
        max_srq_wr: int(limits.queue_depth),
        max_srq_sge: int(uwarp::MAX_SHARED_SGE),
        max_pkeys: 1,
        max_ah: if process.shape == Shape::Roce { MOST_HANDLES } else { 0 },
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    for (to, from) in attributes.fw_ver.iter_mut().zip(uwarp::VERSION.bytes()) {
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

pub(crate) unsafe extern "C" fn query_device_ex(
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
    let process = process::process()?;
    Ok(ibv_port_attr {
        state: PORT_STATE,
        max_mtu: IBV_MTU_4096,
        active_mtu: mtu_number(process),
        lid: process.shape.lid(),
        gid_tbl_len: device::gids(process).count() as c_int,
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: LANES,
        active_speed: SPEED,
        phys_state: PHYSICAL_STATE,
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        ..ibv_port_attr::default()
    })
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    size: size_t,
) -> c_int {
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

pub(crate) unsafe extern "C" fn query_rt_values(context: *mut ibv_context, _: *mut ibv_values_ex) -> c_int {
    // SAFETY: the caller's pointer. No clock is sold as the device's.
    number(|| unsafe { get(context).and(Err(EOPNOTSUPP)) })
}

/// The speed that [`SPEED`] stands for, in units of 100 Mbit/s.
const HUNDREDS: u64 = 250 * LANES as u64;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port: u32, out: *mut u64) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            get(context)?;
            if port != 1 {
                return Err(EINVAL);
            }
            *out.as_mut().ok_or(EINVAL)? = HUNDREDS;
        }
        Ok(())
    })
}

/// A GID of the port, with the address that it is of.
fn gid(index: u32) -> Result<(ibv_gid, Option<IpAddr>), Errno> {
    device::gids(process::process()?).nth(index as usize).ok_or(EINVAL)
}

/// The largest entry of a table of GIDs that a program may ask for, in octets: many times today's.
const LARGEST_ENTRY: size_t = 256;

/// An entry of the port's table as those see it who have `size` octets for it.
///
/// # Safety
/// `out` has room for it.
unsafe fn write_entry(out: *mut ibv_gid_entry, size: size_t, (gid, address): (ibv_gid, Option<IpAddr>), index: u32) {
    let is_roce = process::is_roce();
    let entry = ibv_gid_entry {
        gid,
        gid_index: index,
        port_num: 1,
        gid_type: if is_roce { IBV_GID_TYPE_ROCE_V2 } else { IBV_GID_TYPE_IB },
        ndev_ifindex: address.filter(|_| is_roce).map_or(0, interface::index_of),
    };
    let octets = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: as the caller promises.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping((&raw const entry).cast(), octets) };
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
            if port != 1 || flags != 0 || out.is_null() {
                return Err(EINVAL);
            }
            write_entry(out, size, gid(index)?, index);
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
    let errno = number(|| {
        // SAFETY: the caller's pointers: `most` entries of `size` octets.
        unsafe {
            get(context)?;
            let gids = device::gids(process::process()?);
            if flags != 0 || out.is_null() || size > LARGEST_ENTRY {
                return Err(EINVAL);
            }
            for gid in gids {
                if count == most {
                    return Err(EINVAL);
                }
                write_entry(out.wrapping_byte_add(count * size), size, gid, count as u32);
                count += 1;
            }
        }
        Ok(())
    });
    // Not by -1 and errno, as elsewhere: the caller looks for the number in the result.
    if errno == 0 { count as isize } else { -(errno as isize) }
}

/// Writes an entry of a table of the port.
///
/// # Safety
/// The pointers are the caller's.
unsafe fn entry<T>(
    context: *mut ibv_context,
    port: u8,
    out: *mut T,
    value: impl FnOnce() -> Result<T, Errno>,
) -> c_int {
    minus_one(|| {
        // SAFETY: as the caller promises.
        unsafe {
            get(context)?;
            if port != 1 {
                return Err(EINVAL);
            }
            *out.as_mut().ok_or(EINVAL)? = value()?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, out: *mut ibv_gid) -> c_int {
    // SAFETY: the caller's pointers.
    unsafe { entry(context, port, out, || gid(index as u32).map(|(gid, _)| gid)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: u32, out: *mut u32) -> c_int {
    // As sysfs has it: of InfiniBand and RoCE v1 in one, or RoCE v2.
    let kind = if process::is_roce() { IBV_GID_TYPE_SYSFS_ROCE_V2 } else { IBV_GID_TYPE_SYSFS_IB_ROCE_V1 };
    // SAFETY: the caller's pointers.
    unsafe { entry(context, port, out, || gid(index).map(|_| kind)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, out: *mut u16) -> c_int {
    // iWARP has none; this is the one that everybody has elsewhere.
    // SAFETY: the caller's pointers.
    unsafe { entry(context, port, out, || if index == 0 { Ok(PARTITION_KEY) } else { Err(EINVAL) }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        unsafe { get(context)? };
        if port == 1 && (key == PARTITION_KEY || key == 0) { Ok(0) } else { Err(EINVAL) }
    })
}
