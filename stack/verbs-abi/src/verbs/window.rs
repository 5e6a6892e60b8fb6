//! Memory windows of type 2B.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number, pointer};
use crate::handle::{Handle, object};
use crate::locks::{Lock, Locked, Rank};
use crate::verbs::context::next_handle;
use crate::verbs::domain::Domain;
use crate::verbs::region::{self, Region};
use crate::verbs::send_queue::Post;
use crate::verbs::work::post_flagged;
use libc::{c_int, c_uint};
use std::sync::atomic::Ordering;
use uwarp::{Access, MemoryWindow, Sge};

/// A memory window.
pub(crate) struct Window {
    inner: Lock<MemoryWindow>,
}
object!(Window: ibv_mw, b"mw");

impl Window {
    fn lock(&self) -> Locked<'_, MemoryWindow> {
        self.inner.lock()
    }
}

/// A bind that was looked at and can be posted.
pub(crate) struct Bind {
    window: *mut ibv_mw,
    stag: u32,
    part: Sge,
    /// The address that the peer uses for the first octet.
    first: u64,
    access: Access,
}

impl Bind {
    /// Looks at what a program asks for.
    ///
    /// # Safety
    /// The pointers are the caller's.
    pub(crate) unsafe fn of(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<Bind, Errno> {
        // SAFETY: as the caller promises.
        let stag = unsafe {
            Handle::<Region>::get(info.mr)?;
            Handle::<Window>::get(mw)?;
            (*info.mr).lkey
        };
        let first = if info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { info.addr };
        let access = region::rights(info.mw_access_flags | IBV_ACCESS_LOCAL_WRITE)?;
        let access = Access::from_bits_truncate(access.bits() & !Access::LOCAL_WRITE.bits());
        let length = u32::try_from(info.length).map_err(|_| EINVAL)?;
        Ok(Bind { window: mw, stag: rkey, part: Sge { stag, length, offset: info.addr }, first, access })
    }
}

impl Bind {
    /// It is posted: the window has its STag.
    pub(crate) fn is_posted(&self) -> Result<(), Errno> {
        // SAFETY: our own structure.
        unsafe { (*Handle::<Window>::get(self.window)?.public()).rkey = self.stag };
        Ok(())
    }
}

/// Posts a bind.
pub(crate) fn post(queue: &mut impl Post, id: u64, flags: c_uint, bind: &Bind) -> Result<(), Errno> {
    // SAFETY: `Bind::of` has looked at the pointer.
    let window = unsafe { Handle::<Window>::get(bind.window)? };
    let mut inner = window.lock();
    let request = inner.bind_as(id, bind.stag, &bind.part, bind.first, bind.access)?;
    post_flagged(queue, request, flags)
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            let domain = Handle::<Domain>::get(pd)?;
            if kind != IBV_MW_TYPE_2 {
                return Err(EOPNOTSUPP);
            }
            let window = domain.domain.allocate_window_with_owner_keys()?;
            domain.users.fetch_add(1, Ordering::AcqRel);
            let public = ibv_mw {
                context: (*domain.public()).context,
                pd,
                rkey: window.stag(),
                handle: next_handle(),
                type_: kind,
            };
            Ok(Handle::create(public, Window { inner: Lock::new(Rank::Memory, window) }))
        }
    })
}

/// Binds a window of type 1, which there is none of.
pub(crate) unsafe extern "C" fn bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    number(|| Err(EOPNOTSUPP))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            let pd = (*Handle::<Window>::get(mw)?.public()).pd;
            drop(Handle::<Window>::destroy(mw)?);
            if let Ok(domain) = Handle::<Domain>::get(pd) {
                domain.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    })
}
