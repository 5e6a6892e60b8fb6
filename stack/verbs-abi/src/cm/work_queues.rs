//! `rdma_init_qp_attr`: what a program that moves its queue pair itself has to give to `ibv_modify_qp`.

use crate::abi::*;
use crate::cm::identifier::Identifier;
use crate::errno::{EINVAL, minus_one};
use crate::handle::Handle;
use crate::process;
use libc::c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, attributes: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            Handle::<Identifier>::get(id)?;
            let (attributes, mask) = (attributes.as_mut().ok_or(EINVAL)?, mask.as_mut().ok_or(EINVAL)?);
            let wanted = attributes.qp_state;
            *mask = match wanted {
                // Which others than iWARP's ask for.
                IBV_QPS_INIT if process::is_roce() => {
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
                }
                IBV_QPS_INIT | IBV_QPS_RTR => IBV_QP_STATE | IBV_QP_ACCESS_FLAGS,
                IBV_QPS_RTS => IBV_QP_STATE,
                _ => return Err(EINVAL),
            } as c_int;
            *attributes = ibv_qp_attr {
                qp_state: wanted,
                qp_access_flags: IBV_ACCESS_LOCAL_WRITE
                    | IBV_ACCESS_REMOTE_WRITE
                    | IBV_ACCESS_REMOTE_READ
                    | IBV_ACCESS_REMOTE_ATOMIC,
                port_num: 1,
                ..ibv_qp_attr::default()
            };
        }
        Ok(0)
    })
}
