//! A device that cannot be started, and objects of it, for tests.

use crate::abi::*;
use crate::exports::*;
use crate::misuse::{configure, do_not_wait};
use std::ptr::null_mut;

/// An open device and a domain of it.
pub(crate) struct Device {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

impl Device {
    /// Nobody waits for its events.
    pub(crate) fn open() -> Device {
        configure();
        // SAFETY: as a program does it.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            do_not_wait((*context).async_fd);
            Device { context, pd: ibv_alloc_pd(context) }
        }
    }

    pub(crate) fn queue(&self, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: the test's own objects.
        let queue = unsafe { ibv_create_cq(self.context, 16, null_mut(), channel, 0) };
        assert!(!queue.is_null());
        queue
    }

    pub(crate) fn queue_pair(&self, queue: *mut ibv_cq) -> *mut ibv_qp {
        let cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let mut wanted = ibv_qp_init_attr {
            send_cq: queue,
            recv_cq: queue,
            cap,
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: the test's own objects.
        let qp = unsafe { ibv_create_qp(self.pd, &raw mut wanted) };
        assert!(!qp.is_null());
        qp
    }
}

/// The error number of the last call.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}
