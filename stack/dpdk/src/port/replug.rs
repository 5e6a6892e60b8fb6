//! Recreating a virtio-user device for its next peer: its driver connects only when the device is created.

use std::ptr::NonNull;

use dpdk_sys::{self as sys, rte_mempool};

use super::description::PortOptions;
use super::device::{Features, add, close_device, configure, on_bus, port_of, set_up_queue, start_once};
use crate::gate;
use crate::maintenance::Replug;
use crate::plan::Plan;

/// Everything needed to recreate the device as it was.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) plan: Plan,
    pub(crate) options: PortOptions,
    pub(crate) node: i32,
    pub(crate) features: Features,
    /// The receive pool of each queue. The port keeps the pools while this is in use.
    pub(crate) rx_pools: Vec<NonNull<rte_mempool>>,
}

// SAFETY: pools belong to no thread.
unsafe impl Send for Recipe {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Recipe {}

impl Replug for Recipe {
    fn replug(&self, old: Option<u16>) -> Option<u16> {
        on_bus(|| {
            if let Some(port) = old {
                // Querying the link may just have deferred, by an alarm, the driver's handling of a lost peer.
                gate::settle();
                gate::exclusive(|| close_device(&self.plan, port));
            }
            if !self.plan.socket.as_ref().is_some_and(|socket| socket.path.exists()) || add(&self.plan) != 0 {
                return None;
            }
            let port = port_of(&self.plan)?;
            if self.start(port) {
                return Some(port);
            }
            gate::settle();
            gate::exclusive(|| close_device(&self.plan, port));
            None
        })
    }
}

impl Recipe {
    fn start(&self, port: u16) -> bool {
        let mut limits = sys::rte_eth_dev_info::default();
        // SAFETY: the port is open; the structure is filled in.
        if unsafe { sys::rte_eth_dev_info_get(port, &mut limits) } != 0 {
            return false;
        }
        match configure(port, &self.plan, &self.options, &limits) {
            // The layers above rely on the features of the first device.
            Ok(features) if features == self.features => {}
            _ => {
                let name = &self.plan.name;
                tracing::warn!(
                    "the new peer of {name} offers other features than the previous one (the tso of a vhost, for example): give it \
                     the same, or start this end anew"
                );
                return false;
            }
        }
        let made = self.rx_pools.iter().zip(0..).all(|(pool, queue)| {
            // SAFETY: the port is configured for this queue and stopped.
            unsafe { set_up_queue(port, queue, &self.plan, &limits, self.node, self.features, pool.as_ptr()) }.is_ok()
        });
        made && start_once(port) == 0
    }
}
