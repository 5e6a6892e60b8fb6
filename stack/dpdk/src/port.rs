//! A port: one device, configured, started, and closed when its last user drops it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use crate::plan::Plan;
use crate::{DeviceConfig, Eal, Error, PoolLevels, Queue, signal};

pub(crate) mod description;
mod device;
pub(crate) mod inner;
mod open;
pub(crate) mod replug;

pub use description::{Capabilities, Link, Offloads, PortInfo, PortOptions, Rss, Statistics};
use inner::Inner;

/// An open device. It closes when the port and all queues taken from it are dropped.
#[derive(Debug)]
pub struct Port {
    inner: Arc<Inner>,
}

impl Port {
    /// Opens a device: creates it, configures its queues with their own pools, and starts it.
    ///
    /// A connecting end (memif client, virtio-user without `server`) keeps trying until its peer is there, for at most
    /// `options.wait_for_peer`. So does virtio-user with `server`, whose driver needs its first peer before it works at
    /// all. Any other listening end opens at once. In any case the link may come up later, see [`Port::wait_link_up`].
    ///
    /// The drivers of virtio-user wait without limit for a vhost peer that accepts and then says nothing.
    ///
    /// # Errors
    /// Why the device cannot work, with the remedy.
    pub fn open(eal: &Eal, device: &DeviceConfig, options: &PortOptions) -> Result<Port, Error> {
        let plan = Plan::new(device, options)?;
        if plan.gated
            && let Err(reason) = eal.gate()
        {
            return Err(Error::Unsupported {
                device: plan.name,
                reason: format!("needs a gate before EAL's interrupt thread: {reason}"),
            });
        }
        let inner = signal::aside(|| {
            // The namespace is a property of the thread, and this one ends when the device is open.
            if let Some(name) = &plan.netns {
                enter_namespace(name)?;
            }
            open::open(eal, device, options, &plan)
        })?;
        Ok(Port { inner: Arc::new(inner) })
    }

    /// The port's properties.
    pub fn info(&self) -> &PortInfo {
        &self.inner.info
    }

    /// The port's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        &self.inner.info.capabilities
    }

    /// How many queues the port has.
    pub fn queue_count(&self) -> u16 {
        self.inner.queues.len() as u16
    }

    /// Takes queue `index`; `None` if it does not exist or is taken. A dropped queue can be taken again.
    pub fn take_queue(&self, index: u16) -> Option<Queue> {
        let queue = self.inner.queues.get(usize::from(index))?;
        if queue.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Queue::new(Arc::clone(&self.inner), index))
    }

    /// The link's state. May make a system call.
    pub fn link(&self) -> Link {
        self.inner.link()
    }

    /// Whether packets can pass. May make a system call.
    pub fn link_up(&self) -> bool {
        self.link().up
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// [`Error::LinkDown`] if it is not up after `limit`.
    pub fn wait_link_up(&self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        while !self.link_up() {
            if start.elapsed() >= limit {
                return Err(Error::LinkDown { device: self.inner.info.device.clone(), waited: limit });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The port's counters. Those of a connecting virtio-user device restart with each peer.
    pub fn statistics(&self) -> Statistics {
        let mut raw = sys::rte_eth_stats::default();
        // SAFETY: the port is open; the structure is filled in.
        self.inner.ask(|port| unsafe { sys::rte_eth_stats_get(port, &mut raw) });
        Statistics {
            rx_packets: raw.ipackets,
            tx_packets: raw.opackets,
            rx_octets: raw.ibytes,
            tx_octets: raw.obytes,
            rx_missed: raw.imissed,
            rx_errors: raw.ierrors,
            tx_errors: raw.oerrors,
            rx_no_buffer: raw.rx_nombuf,
        }
    }

    /// The driver's own counters, by name.
    pub fn extended_statistics(&self) -> Vec<(String, u64)> {
        self.inner.ask(extended_statistics).unwrap_or_default()
    }

    /// The key of the receive-side scaling hash and the queue of each entry of its redirection table, if the device has
    /// one and hashes the ports of TCP segments. A device that does so for one version of IP only puts the connections
    /// of the other version into arbitrary queues; their packets are handed over between engines.
    pub fn rss(&self) -> Option<Rss> {
        let capabilities = self.capabilities();
        if !capabilities.rss {
            return None;
        }
        let port = self.inner.port_id();
        let mut key = vec![0u8; usize::from(capabilities.rss_key_len)];
        let mut hash = sys::rte_eth_rss_conf {
            rss_key: key.as_mut_ptr(),
            rss_key_len: capabilities.rss_key_len,
            ..Default::default()
        };
        // SAFETY: the key has the device's length.
        if unsafe { sys::rte_eth_dev_rss_hash_conf_get(port, &mut hash) } != 0 {
            return None;
        }
        // A device that hashes only addresses puts all ports of a peer into one queue, so no choice of port reaches
        // another queue.
        if hash.rss_hf & (sys::UWARP_ETH_RSS_TCP4 | sys::UWARP_ETH_RSS_TCP6) == 0 {
            return None;
        }
        let groups = usize::from(capabilities.rss_table_len).div_ceil(64);
        let mut entries = vec![sys::rte_eth_rss_reta_entry64 { mask: u64::MAX, reta: [0; 64] }; groups];
        // SAFETY: there are as many groups of 64 as the table's length needs.
        if unsafe { sys::rte_eth_dev_rss_reta_query(port, entries.as_mut_ptr(), capabilities.rss_table_len) } != 0 {
            return None;
        }
        let table = entries.iter().flat_map(|group| group.reta).take(usize::from(capabilities.rss_table_len)).collect();
        Some(Rss { key, table })
    }

    /// The levels of all queues' pools together. It counts every thread's cache: do not call it on a packet's path.
    pub fn pool_levels(&self) -> PoolLevels {
        self.inner.queues.iter().fold(PoolLevels::default(), |sum, queue| PoolLevels {
            rx_free: sum.rx_free + queue.rx_pool.free(),
            rx_total: sum.rx_total + queue.rx_pool.total(),
            tx_free: sum.tx_free + queue.tx_pool.free(),
            tx_total: sum.tx_total + queue.tx_pool.total(),
        })
    }

    /// Periodic maintenance of a connecting port; a no-op for others. A memif client or a virtio-user device without
    /// `server` reconnects if its link is down.
    ///
    /// A thread of this crate calls it for the ports that need it when their link may have changed, and every 20 ms
    /// while one is down, so no caller has to. It may run beside bursts on any thread; they find no packets meanwhile.
    pub fn maintain(&self) {
        if let Some(reconnector) = &self.inner.reconnector {
            signal::aside(|| reconnector.maintain());
        }
    }
}

/// The counters of an open port's driver.
fn extended_statistics(port: u16) -> Vec<(String, u64)> {
    // SAFETY: without room, the calls only count; otherwise they fill in at most as many entries as there is room for.
    unsafe {
        let Ok(count) = u32::try_from(sys::rte_eth_xstats_get(port, std::ptr::null_mut(), 0)) else {
            return Vec::new();
        };
        let mut values = vec![sys::rte_eth_xstat::default(); count as usize];
        let mut names = vec![sys::rte_eth_xstat_name { name: [0; 64] }; count as usize];
        let filled = sys::rte_eth_xstats_get(port, values.as_mut_ptr(), count).min(sys::rte_eth_xstats_get_names(
            port,
            names.as_mut_ptr(),
            count,
        ));
        let filled = usize::try_from(filled).unwrap_or(0).min(count as usize);
        values[..filled]
            .iter()
            .filter_map(|value| {
                let name = names.get(usize::try_from(value.id).ok()?)?;
                let octets: Vec<u8> = name.name.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
                Some((String::from_utf8_lossy(&octets).into_owned(), value.value))
            })
            .collect()
    }
}

fn enter_namespace(name: &str) -> Result<(), Error> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("/var/run/netns").join(name) };
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Error::Permission {
            what: format!("the network namespace {name}"),
            cure: "run as root, or with CAP_SYS_ADMIN".to_owned(),
        },
        std::io::ErrorKind::NotFound => {
            Error::Configuration(format!("there is no network namespace {name}: create it with ip netns add"))
        }
        _ => Error::System { what: format!("the network namespace {name}"), reason: error.to_string() },
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network))
        .map_err(|error| failed(error.into()))
}
