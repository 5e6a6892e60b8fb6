//! Memory regions.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one, number, pointer};
use crate::handle::{Handle, object};
use crate::locks::{Lock, Rank};
use crate::verbs::context::next_handle;
use crate::verbs::domain::Domain;
use crate::verbs::mapped;
use libc::{c_int, c_uint, c_void, size_t};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use uwarp::{Access, MemoryRegion, RegionBuffer, RegionChange, RegionOptions, TaggedBase};

/// Registered memory, which the program owns. It may free it before it deregisters: then what a peer does there is as
/// undefined as with a device that has pinned the pages.
pub(crate) struct Region {
    registered: Lock<Registered>,
}

struct Registered {
    region: MemoryRegion,
    flags: c_uint,
}
object!(Region: ibv_mr, b"mr");

/// Flags that a device may leave aside (IBV_ACCESS_OPTIONAL_RANGE, which bindgen does not see).
pub(crate) const OPTIONAL: c_uint = 0x3ff0_0000;

/// The rights of the verbs as those of uwarp.
pub(crate) fn rights(flags: c_uint) -> Result<Access, Errno> {
    let known = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_HUGETLB
        | OPTIONAL;
    if flags & !known != 0 {
        return Err(if flags & IBV_ACCESS_ON_DEMAND != 0 { EOPNOTSUPP } else { EINVAL });
    }
    // Who lets a peer write must be able to write (the verbs say so, and the kernel checks it).
    if flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0 && flags & IBV_ACCESS_LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    Ok([
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .fold(Access::LOCAL_READ, |rights, (_, right)| rights | right))
}

/// Flags with which the kernel wants memory that can be written.
const WRITTEN: c_uint =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

/// Checks that memory can be used as these flags say.
fn usable(address: *mut c_void, length: size_t, flags: c_uint) -> Result<(), Errno> {
    mapped::check(address.addr(), length, flags & WRITTEN != 0)
}

/// The program's memory.
///
/// # Safety
/// The verbs' contract: it stays mapped until it is deregistered, or nobody uses the region.
unsafe fn buffer(address: *mut c_void, length: size_t, flags: c_uint) -> Result<RegionBuffer, Errno> {
    let start = NonNull::new(address.cast::<u8>()).ok_or(EINVAL)?;
    if address.addr().checked_add(length).is_none() {
        return Err(EINVAL);
    }
    usable(address, length, flags)?;
    // SAFETY: as the caller promises.
    Ok(unsafe { RegionBuffer::raw(start, length) })
}

fn export(pd: *mut ibv_pd, address: *mut c_void, length: size_t, first: u64, flags: c_uint) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let domain = Handle::<Domain>::get(pd)?;
            let first = if flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { first };
            let options = RegionOptions::new(rights(flags)?).base(TaggedBase::At(first));
            let registered = domain.domain.register(buffer(address, length, flags)?, options);
            let region = registered.map_err(|unregistered| Errno::from(unregistered.error))?;
            domain.users.fetch_add(1, Ordering::AcqRel);
            let stag = region.stag();
            let public = ibv_mr {
                context: (*domain.public()).context,
                pd,
                addr: address,
                length,
                handle: next_handle(),
                lkey: stag,
                rkey: stag,
            };
            let registered = Lock::new(Rank::Memory, Registered { region, flags });
            Ok(Handle::create(public, Region { registered }))
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: size_t, flags: c_int) -> *mut ibv_mr {
    export(pd, address, length, address.addr() as u64, flags as c_uint)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: size_t,
    first: u64,
    flags: c_int,
) -> *mut ibv_mr {
    export(pd, address, length, first, flags as c_uint)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: size_t,
    first: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    export(pd, address, length, first, flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let pd = (*Handle::<Region>::get(mr)?.public()).pd;
            // Waits until no engine uses it.
            drop(Handle::<Region>::destroy(mr)?);
            if let Ok(domain) = Handle::<Domain>::get(pd) {
                domain.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    })
}

/// Changes what the flags name; the keys change with the memory or the domain. On failure the region is as it was,
/// which the verbs express by -1 (IBV_REREG_MR_ERR_INPUT).
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    changes: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let region = Handle::<Region>::get(mr)?;
            let changes = changes as c_uint;
            if changes == 0 || changes & !(IBV_REREG_MR_FLAGS_SUPPORTED as c_uint) != 0 {
                return Err(EINVAL);
            }
            let mut now = region.registered.lock();
            let public = &mut *region.public();
            let changes_access = changes & IBV_REREG_MR_CHANGE_ACCESS != 0;
            let flags = if changes_access { access as c_uint } else { now.flags };
            let rights = if changes_access { Some(rights(flags)?) } else { None };
            let memory = if changes & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                Some((buffer(address, length, flags)?, TaggedBase::At(address.addr() as u64)))
            } else {
                if changes_access {
                    usable(public.addr, public.length, flags)?;
                }
                None
            };
            let domain = if changes & IBV_REREG_MR_CHANGE_PD != 0 { Some(Handle::<Domain>::get(pd)?) } else { None };
            let change = RegionChange { access: rights, domain: domain.map(|domain| &domain.domain), memory };
            now.region.change(change).map_err(|unchanged| Errno::from(unchanged.error))?;
            now.flags = flags;
            if let Some(domain) = domain {
                domain.users.fetch_add(1, Ordering::AcqRel);
                if let Ok(former) = Handle::<Domain>::get(public.pd) {
                    former.users.fetch_sub(1, Ordering::AcqRel);
                }
                public.pd = pd;
            }
            if changes & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                (public.addr, public.length) = (address, length);
            }
            (public.lkey, public.rkey) = (now.region.stag(), now.region.stag());
        }
        Ok(0)
    })
}
