//! DPDK, for the uplink.

use uwarp_dpdk::{DeviceConfig, Eal, EalConfig};

use super::uplink::BUFFERS;

/// What DPDK needs beside the buffers: two pools have a cache for each of 128 threads that there could be.
const OF_DPDK_MIB: u32 = 72;

/// Starts DPDK for a device.
pub(super) fn start(mtu: u16, uplink: &DeviceConfig) -> anyhow::Result<Eal> {
    let buffer = u64::from(mtu).max(2048) + 1024;
    let memory_mib = OF_DPDK_MIB + ((buffer * 2 * u64::from(BUFFERS)) >> 20) as u32;
    let pci = match uplink {
        DeviceConfig::Pci { address } => vec![address.clone()],
        _ => Vec::new(),
    };
    // A physical device reads and writes memory that must stay where it is.
    let hugepages = !pci.is_empty();
    Ok(Eal::init(&EalConfig { memory_mib, pci, hugepages, ..EalConfig::default() })?)
}
