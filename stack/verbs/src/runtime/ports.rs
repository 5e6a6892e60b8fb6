//! Where the engines' ports come from: the device, or another context of this process.

use crate::config::Config;
use crate::error::Error;
use crate::runtime::driver::PortSeed;
use std::path::PathBuf;
use uwarp_engine::command::{AsyncEvent, EventSink};
use uwarp_engine::ports::{LoopOptions, LoopPort, SwitchedPort};

/// What a context keeps for the start of its engines.
pub(crate) struct Launch {
    /// Where the engines' ports come from; none once the engines run.
    pub(crate) ports: Option<Ports>,
    /// The capture that the configuration asks for, until it has begun.
    pub(crate) capture: Option<PathBuf>,
    pub(crate) events: EventSink<AsyncEvent>,
}

/// Where the engines' ports come from.
pub(crate) enum Ports {
    /// The configured device, or the switch.
    Device,
    /// Nobody is at the other end: frames to the own address never leave the engine, others find no neighbour.
    Alone,
    /// They are there, for one attempt.
    Made(Vec<PortSeed>),
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Launch").field("is_over", &self.ports.is_none()).finish_non_exhaustive()
    }
}

impl Launch {
    pub(crate) fn new(ports: Ports, capture: Option<PathBuf>, events: EventSink<AsyncEvent>) -> Self {
        Self { ports: Some(ports), capture, events }
    }
}

impl Ports {
    /// The ports of two contexts that are joined back to back.
    pub(crate) fn pair(config: &Config) -> (Self, Self) {
        let ends = (0..config.engine.count).map(|_| loop_pair(config));
        let (here, there) = ends.map(|(here, there)| (PortSeed::Loop(here), PortSeed::Loop(there))).unzip();
        (Self::Made(here), Self::Made(there))
    }

    /// Opens the device, if there is one, and gives each engine its port. A client of a switch has one engine, and its
    /// port already.
    pub(crate) fn open(
        &mut self,
        config: &Config,
        switched: Option<SwitchedPort>,
    ) -> Result<(Option<uwarp_dpdk::Port>, Vec<PortSeed>), Error> {
        if let Some(port) = switched {
            return Ok((None, vec![PortSeed::Switched(Box::new(port))]));
        }
        match (self, &config.device) {
            (Self::Made(ports), _) => Ok((None, std::mem::take(ports))),
            (Self::Device, Some(device)) => {
                let (port, ports) = open_device(config, device)?;
                Ok((Some(port), ports))
            }
            (Self::Alone | Self::Device, _) => {
                Ok((None, (0..config.engine.count).map(|_| PortSeed::Loop(loop_pair(config).0)).collect()))
            }
        }
    }
}

fn open_device(
    config: &Config,
    device: &crate::config::DeviceConfig,
) -> Result<(uwarp_dpdk::Port, Vec<PortSeed>), Error> {
    let eal = match uwarp_dpdk::Eal::get() {
        Some(eal) => eal,
        None => uwarp_dpdk::Eal::init(&eal_config(config))?,
    };
    let options = uwarp_dpdk::PortOptions {
        mtu: config.mtu,
        queues: config.engine.count as u16,
        rx_buffers: config.buffers.receive,
        tx_buffers: config.buffers.transmit,
        rx_descriptors: config.buffers.descriptors,
        tx_descriptors: config.buffers.descriptors,
        wait_for_peer: config.wait_for_peer,
        offloads: uwarp_dpdk::Offloads { tso: config.tcp.segmentation_offload, ..uwarp_dpdk::Offloads::default() },
        ..uwarp_dpdk::PortOptions::default()
    };
    let port = uwarp_dpdk::Port::open(&eal, device, &options)?;
    let mut ports = Vec::new();
    for index in 0..options.queues {
        let queue = port.take_queue(index).ok_or_else(|| {
            Error::argument(
                "engine.count",
                options.queues,
                format!("the device has {} queues only", port.queue_count()),
            )
        })?;
        ports.push(PortSeed::Device { queue, eal: eal.clone() });
    }
    Ok((port, ports))
}

pub(crate) fn loop_pair(config: &Config) -> (LoopPort, LoopPort) {
    LoopPort::pair(LoopOptions {
        mtu: config.mtu,
        buffers: config.buffers.transmit as usize,
        queue: usize::from(config.buffers.descriptors),
        checksums: true,
    })
}

fn eal_config(config: &Config) -> uwarp_dpdk::EalConfig {
    let options = &config.eal;
    uwarp_dpdk::EalConfig {
        hugepages: options.hugepages,
        memory_mib: options.memory_mib.unwrap_or_else(|| needed_mib(config)),
        file_prefix: options.file_prefix.clone(),
        pci: match &config.device {
            Some(crate::config::DeviceConfig::Pci { address }) => vec![address.clone()],
            _ => Vec::new(),
        },
        extra: options.extra.clone(),
        ..uwarp_dpdk::EalConfig::default()
    }
}

/// Memory for the pools, twice for DPDK's own needs and a second context, and for its rings.
fn needed_mib(config: &Config) -> u32 {
    use crate::config::DeviceConfig::{Vhost, VirtioUser};
    let buffer = |cut: bool| u64::from(config.mtu.max(if cut { uwarp_dpdk::CUT_ROOM } else { 1536 })) + 1024;
    let receive = buffer(matches!(config.device, Some(Vhost { tso: true, .. })));
    let transmit = buffer(config.tcp.segmentation_offload && matches!(config.device, Some(VirtioUser { .. })));
    let each = receive * u64::from(config.buffers.receive) + transmit * u64::from(config.buffers.transmit);
    let pools = (each * config.engine.count as u64) >> 20;
    u32::try_from(128 + 2 * pools).unwrap_or(u32::MAX).max(384)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::without_device("10.0.0.1/24").unwrap()
    }

    #[test]
    fn memory_is_asked_for_by_buffers_and_engines() {
        assert_eq!(needed_mib(&config()), 384);
        let mut config = config().threaded(2);
        (config.buffers.receive, config.buffers.transmit) = (1 << 16, 1 << 16);
        // 2560 octets a buffer: 640 MiB of pools, twice, and 128 MiB.
        assert_eq!(needed_mib(&config), 1408);
    }
}
