//! The raw tests: the same device and the same frames without the stack. They show the cost of the device itself, which
//! limits everything above it. The null protocol adds what every octet costs any stack.

mod client;
mod frames;
mod null;
mod server;

pub use client::run as client;
pub use server::run as server;

use frames::{Addresses, BROADCAST, Header};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use uwarp::Config;
use uwarp_app::signals::check_interrupted;
use uwarp_app::{NetworkFlags, usage};
use uwarp_dpdk::{Eal, EalConfig, MAX_BURST, Mbuf, Offloads, Port, PortOptions, Queue, ThreadRegistration};

/// Longest silence of the other side.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port with one queue and the buffers of its bursts.
struct Line {
    queue: Queue,
    received: Vec<Mbuf>,
    pending: VecDeque<Mbuf>,
    addresses: Addresses,
    // Dropped last, in this order.
    port: Port,
    _registration: ThreadRegistration,
    _eal: Eal,
}

impl Line {
    /// Opens the configuration's device without a stack, and pins the thread.
    fn open(config: &Config, network: &NetworkFlags) -> anyhow::Result<Self> {
        let Some(device) = &config.device else {
            return Err(usage("the configuration names no device"));
        };
        if config.pcap.is_some() {
            return Err(usage(
                "--pcap does not apply to a raw test, which has no packets worth reading: choose another test",
            ));
        }
        let eal = Eal::init(&EalConfig {
            hugepages: config.eal.hugepages,
            memory_mib: config.eal.memory_mib.unwrap_or(256),
            file_prefix: config.eal.file_prefix.clone(),
            pci: match device {
                uwarp::config::DeviceConfig::Pci { address } => vec![address.clone()],
                _ => Vec::new(),
            },
            extra: config.eal.extra.clone(),
            ..EalConfig::default()
        })?;
        let port = Port::open(
            &eal,
            device,
            &PortOptions {
                mtu: config.mtu,
                rx_buffers: 4096,
                tx_buffers: 4096,
                wait_for_peer: config.wait_for_peer,
                offloads: Offloads { rx_checksum: false, tx_checksum: false, ..Offloads::default() },
                ..PortOptions::default()
            },
        )?;
        network.pin()?;
        let registration = eal.register_thread()?;
        let queue = port.take_queue(0).ok_or_else(|| anyhow::anyhow!("the device has no queue 0"))?;
        Ok(Self {
            addresses: Addresses { own: port.capabilities().mac, peer: BROADCAST },
            queue,
            received: Vec::with_capacity(MAX_BURST),
            pending: VecDeque::with_capacity(2 * MAX_BURST),
            port,
            _registration: registration,
            _eal: eal,
        })
    }

    /// Longest frame that one buffer can hold, in octets.
    fn frame_max(&self) -> usize {
        let capabilities = self.port.capabilities();
        (capabilities.max_frame as usize).min(capabilities.data_room as usize - uwarp_dpdk::HEADROOM)
    }

    /// Receives a burst into `received`, which is cleared first.
    #[inline]
    fn receive(&mut self) -> usize {
        self.received.clear();
        self.queue.rx_burst(&mut self.received)
    }

    /// Appends one frame to the pending ones; false while no buffer is free.
    #[inline]
    fn queue_frame(&mut self, header: Header, len: usize, payload: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut buffer) = self.queue.alloc() else {
            return false;
        };
        if frames::write(&mut buffer, &self.addresses, header, len, payload) {
            self.pending.push_back(buffer);
        }
        true
    }

    /// Hands pending frames to the device; true when none is left.
    #[inline]
    fn transmit(&mut self) -> bool {
        if !self.pending.is_empty() {
            self.queue.tx_burst(&mut self.pending);
        }
        self.pending.is_empty()
    }

    /// Hands all pending frames to the device, however long it takes.
    fn transmit_all(&mut self) -> anyhow::Result<()> {
        // Reading the clock would take a tenth of a round trip.
        if self.transmit() {
            return Ok(());
        }
        let start = Instant::now();
        while !self.transmit() {
            if start.elapsed() > PATIENCE {
                anyhow::bail!("the device has accepted no frame for {PATIENCE:?}: is the peer still there?");
            }
            check_interrupted()?;
        }
        Ok(())
    }

    /// Sends a control frame.
    fn control(&mut self, kind: frames::Kind, message: u64, body: &[u8]) -> anyhow::Result<()> {
        let header = Header { kind, index: 0, message };
        let len = frames::FRAME_MIN.max(frames::HEADER + body.len());
        self.queue_frame(header, len, |payload| {
            payload[..body.len()].copy_from_slice(body);
        });
        self.transmit_all()
    }
}
