//! The list of devices, which has one or none.

use crate::abi::{IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_device, ibv_gid};
use crate::errno::{EINVAL, Errno, minus_one, nothing, pointer};
use crate::process::{self, Process, Shape};
use libc::{c_char, c_int};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;
use uwarp::Context;

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
        let (node_type, transport_type) =
            if process::is_roce() { (IBV_NODE_CA, IBV_TRANSPORT_IB) } else { (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP) };
        let mut public = ibv_device { node_type, transport_type, ..ibv_device::default() };
        copy_name(&mut public.name, "uwarp0");
        copy_name(&mut public.dev_name, "uverbs-uwarp0");
        copy_name(&mut public.dev_path, "/sys/class/infiniband_verbs/uverbs-uwarp0");
        copy_name(&mut public.ibdev_path, "/sys/class/infiniband/uwarp0");
        let device = Box::leak(Box::new(Device { front: 0, public, zeroes: [0; 1024] }));
        (&raw mut *device).expose_provenance() + offset_of!(Device, public)
    });
    std::ptr::with_exposed_provenance_mut(address)
}

pub(crate) fn check(device: *mut ibv_device) -> Result<(), Errno> {
    if device.is_null() || device != self::device() { Err(EINVAL) } else { Ok(()) }
}

/// The device's number in the form of an EUI-64, made from its first address: the hardware address is not known before
/// the device is open.
pub(crate) fn guid(address: IpAddr) -> u64 {
    let low = match address {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(address) => (u128::from(address) as u32).into(),
    };
    // Locally administered; "uw" in the middle.
    (0x0275_77ff_fe00_0000 | (low & 0xff_ffff)) ^ (low >> 24 << 40)
}

/// The port's number in a subnet of InfiniBand, where the device is one of RoCE. Programs that use no GIDs name this
/// host by it.
pub(crate) const LID: u16 = 1;

/// The own addresses in the order of their GIDs: those of IPv4 first.
pub(crate) fn addresses(context: &Context) -> Vec<IpAddr> {
    let mut own: Vec<IpAddr> = context.addresses().into_iter().map(|own| own.address).collect();
    own.sort_by_key(IpAddr::is_ipv6);
    own
}

/// The address that a GID names.
pub(crate) fn address_of(gid: &ibv_gid) -> IpAddr {
    // SAFETY: any octets are an address.
    Ipv6Addr::from(unsafe { gid.raw }).to_canonical()
}

/// The port's GIDs, with the address that each is of. Those of the own addresses are how programs find the device that
/// has an address. In front of them, where the device is one of iWARP, are the octets of the hardware's address, as
/// other such devices have them; here of the number.
pub(crate) fn gids(process: &Process) -> impl Iterator<Item = (ibv_gid, Option<IpAddr>)> {
    let mut number = [0; 16];
    number[..8].copy_from_slice(&guid(process.context.config().address.address).to_be_bytes());
    let first = (process.shape == Shape::Iwarp).then_some((ibv_gid { raw: number }, None));
    let own = addresses(&process.context).into_iter().map(|own| {
        let raw = match own {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        (ibv_gid { raw }, Some(own))
    });
    first.into_iter().chain(own)
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
    let guid =
        check(device).and_then(|()| process::process()).map(|process| guid(process.context.config().address.address));
    guid.map_or(0, u64::to_be)
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
