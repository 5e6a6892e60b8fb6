//! Address handles. Programs find out with them which GIDs the port can send from; nothing is sent to one, since there
//! are no datagrams.

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_pd};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number, pointer};
use crate::handle::{Handle, object};
use crate::process;
use crate::verbs::context::next_handle;
use crate::verbs::domain::Domain;
use crate::verbs::peer;
use libc::c_int;
use std::sync::atomic::Ordering;

/// An address handle.
pub(crate) struct AddressHandle;
object!(AddressHandle: ibv_ah, b"ah");

fn create(pd: *mut ibv_pd, wanted: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the caller's pointer.
    let domain = unsafe { Handle::<Domain>::get(pd)? };
    if !process::is_roce() {
        // They belong to datagrams, which iWARP does not have.
        return Err(EOPNOTSUPP);
    }
    peer::addresses(wanted)?;
    domain.users.fetch_add(1, Ordering::AcqRel);
    // SAFETY: our own structure.
    let context = unsafe { (*domain.public()).context };
    Ok(Handle::create(ibv_ah { context, pd, handle: next_handle() }, AddressHandle))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, wanted: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's pointer.
    pointer(|| create(pd, unsafe { wanted.as_ref().ok_or(EINVAL)? }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            let pd = (*Handle::<AddressHandle>::get(ah)?.public()).pd;
            Handle::<AddressHandle>::destroy(ah)?;
            Handle::<Domain>::get(pd)?.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}
