//! Protection domains.

use crate::abi::{ibv_context, ibv_pd};
use crate::errno::{EBUSY, Errno, number, pointer};
use crate::handle::{Handle, object};
use crate::process;
use crate::verbs::context::{self, next_handle};
use libc::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use uwarp::ProtectionDomain;

/// A protection domain.
pub(crate) struct Domain {
    pub(crate) domain: ProtectionDomain,
    /// Regions, windows and queues in it.
    pub(crate) users: AtomicUsize,
}
object!(Domain: ibv_pd, b"pd");

/// Makes a domain of an open device.
pub(crate) fn allocate(context: *mut ibv_context) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: the caller's pointer.
    let open = unsafe { context::get(context)? };
    let domain = process::process()?.context.allocate_domain();
    open.objects.fetch_add(1, Ordering::AcqRel);
    let public = ibv_pd { context, handle: next_handle() };
    Ok(Handle::create(public, Domain { domain, users: AtomicUsize::new(0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| allocate(context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            let domain = Handle::<Domain>::get(pd)?;
            if domain.users.load(Ordering::Acquire) > 0 {
                return Err(EBUSY);
            }
            let context = (*domain.public()).context;
            Handle::<Domain>::destroy(pd)?;
            context::get(context)?.objects.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}
