//! The list of devices, which has one or none.

use crate::abi::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_device, ibv_gid};
use crate::errno::{EINVAL, Errno, minus_one, nothing, pointer};
use crate::process::{self, Process};
use libc::{c_char, c_int};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;
use uwarp::Context;
use uwarp_verbs_device::{DEFAULT_NAME, DEVICE_CLASS, NODE, NODE_CLASS, Shape};

/// Programs that know drivers look behind the public structure; they find zeroes.
#[repr(C, align(64))]
struct Device {
    /// Where objects have the word that says what they are: a device that is passed as another object is none.
    front: u64,
    public: ibv_device,
    zeroes: [u8; 1024],
}

/// The device's address; never freed.
static DEVICE: OnceLock<usize> = OnceLock::new();

fn copy_name(to: &mut [c_char], name: &str) {
    for (to, from) in to.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
}

/// The one device.
pub(crate) fn device() -> *mut ibv_device {
    let address = *DEVICE.get_or_init(|| {
        let process = process::process().ok();
        let shape = process.map(|process| process.shape).unwrap_or_default();
        let name = process.map_or(DEFAULT_NAME, |process| &process.name);
        let transport_type = match shape {
            Shape::Roce => IBV_TRANSPORT_IB,
            Shape::Iwarp => IBV_TRANSPORT_IWARP,
        };
        let mut public = ibv_device { node_type: shape.node_type(), transport_type, ..ibv_device::default() };
        // `uwarp-run` shows files of these names.
        copy_name(&mut public.name, name);
        copy_name(&mut public.dev_name, NODE);
        copy_name(&mut public.dev_path, &format!("{NODE_CLASS}/{NODE}"));
        copy_name(&mut public.ibdev_path, &format!("{DEVICE_CLASS}/{name}"));
        let device = Box::leak(Box::new(Device { front: 0, public, zeroes: [0; 1024] }));
        (&raw mut *device).expose_provenance() + offset_of!(Device, public)
    });
    std::ptr::with_exposed_provenance_mut(address)
}

pub(crate) fn check(device: *mut ibv_device) -> Result<(), Errno> {
    if device.is_null() || device != self::device() { Err(EINVAL) } else { Ok(()) }
}

/// The device's number.
pub(crate) fn guid(process: &Process) -> u64 {
    uwarp_verbs_device::guid(process.context.config().address.address)
}

/// The own addresses in the order of their GIDs.
pub(crate) fn addresses(context: &Context) -> Vec<IpAddr> {
    uwarp_verbs_device::in_order(context.addresses().into_iter().map(|own| own.address).collect())
}

/// The address that a GID names.
pub(crate) fn address_of(gid: &ibv_gid) -> IpAddr {
    // SAFETY: any octets are an address.
    Ipv6Addr::from(unsafe { gid.raw }).to_canonical()
}

/// The GID of an address.
pub(crate) fn gid_of(address: IpAddr) -> ibv_gid {
    ibv_gid { raw: uwarp_verbs_device::gid_of(address) }
}

/// The port's GIDs, with the address that each is of.
pub(crate) fn gids(process: &Process) -> impl Iterator<Item = (ibv_gid, Option<IpAddr>)> {
    let first = process.context.config().address.address;
    let gids = uwarp_verbs_device::gids(process.shape, first, addresses(&process.context));
    gids.map(|(raw, own)| (ibv_gid { raw }, own))
}

/// A list for C of what there is one or none of. It ends in a null.
///
/// # Safety
/// `count` is null or a place for the number.
pub(crate) unsafe fn list<T>(one: Option<*mut T>, count: *mut c_int) -> *mut *mut T {
    if !count.is_null() {
        // SAFETY: as the caller promises.
        unsafe { count.write(one.is_some().into()) };
    }
    let list: Box<[_]> = one.into_iter().chain([std::ptr::null_mut()]).collect();
    Box::leak(list).as_mut_ptr()
}

/// Frees a list.
///
/// # Safety
/// It is null or one of [`list`]'s.
pub(crate) unsafe fn free<T>(list: *mut *mut T) -> Result<(), Errno> {
    if list.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises.
    unsafe {
        let length = if (*list).is_null() { 1 } else { 2 };
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)));
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        let device = process::process().ok().map(|_| device());
        // SAFETY: the caller's place for the number.
        Ok(unsafe { list(device, count) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: one of `ibv_get_device_list`'s.
    nothing(|| unsafe { free(list) });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    match check(device) {
        // SAFETY: our own device, which is never freed.
        Ok(()) => unsafe { (*device).name.as_ptr() },
        Err(_) => std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // No kernel device, so no number of the kernel's.
    minus_one(|| check(device).and(Ok(-1)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    check(device).and_then(|()| process::process()).map_or(0, |process| guid(process).to_be())
}

/// Engines are threads, and memory is not pinned: a child has its own pages as with any fork.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> crate::abi::ibv_fork_status {
    crate::abi::IBV_FORK_UNNEEDED
}
