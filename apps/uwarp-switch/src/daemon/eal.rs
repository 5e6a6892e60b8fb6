//! DPDK, with memory for the devices of all clients.

use uwarp_dpdk::{DeviceConfig, Eal, EalConfig};

use super::device::{ANSWERS, BUFFERS};
use super::uplink;
use crate::core::MAX_CLIENTS;

/// What DPDK needs for a client beside the buffers: two pools have a cache for each of 128 threads that there could be.
const OF_DPDK_MIB: u32 = 6;

/// Starts DPDK.
pub(super) fn start(mtu: u16, uplink: Option<&DeviceConfig>) -> anyhow::Result<Eal> {
    let buffer = u64::from(mtu).max(2048) + 1024;
    let mib = |buffers: u32| ((buffer * u64::from(buffers)) >> 20) as u32 + 1 + OF_DPDK_MIB;
    let of_uplink = if uplink.is_some() { mib(2 * uplink::BUFFERS) } else { 0 };
    let memory_mib = 64 + (MAX_CLIENTS as u32 + 2) * mib(BUFFERS + ANSWERS) + of_uplink;
    let pci = match uplink {
        Some(DeviceConfig::Pci { address }) => vec![address.clone()],
        _ => Vec::new(),
    };
    // A physical device reads and writes memory that must stay where it is.
    let hugepages = !pci.is_empty();
    Ok(Eal::init(&EalConfig { memory_mib, pci, hugepages, ..EalConfig::default() })?)
}
