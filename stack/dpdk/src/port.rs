//! A port: one device, configured, started, and closed when nobody holds it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{DeviceConfig, Eal, Error, PoolLevels, Queue};

/// Which offloads are wanted; a port has those of them that its device offers, see [`Capabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Offloads {
    /// Check the checksums of received packets.
    pub rx_checksum: bool,
    /// Fill in the checksums of transmitted packets that ask for it.
    pub tx_checksum: bool,
    /// Cut large TCP packets into segments.
    pub tso: bool,
    /// Deliver several TCP segments as one packet.
    pub lro: bool,
}

impl Default for Offloads {
    fn default() -> Self {
        Offloads {
            rx_checksum: true,
            tx_checksum: true,
            tso: false,
            lro: false,
        }
    }
}

/// How a port is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// The largest IP packet, in octets: 576 to 9000.
    pub mtu: u16,
    /// Receive and transmit queue pairs.
    pub queues: u16,
    /// Buffers in each queue's receive pool. At least the descriptors and some more for packets that the stack holds.
    pub rx_buffers: u32,
    /// Buffers in each queue's transmit pool.
    pub tx_buffers: u32,
    /// Receive descriptors per queue; adjusted to what the device can do.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue; adjusted to what the device can do.
    pub tx_descriptors: u16,
    /// How long to try when the device is the connecting end and its peer is not there yet. Zero: one attempt.
    pub wait_for_peer: Duration,
    /// Which offloads are wanted.
    pub offloads: Offloads,
    /// The key of the receive-side scaling hash, if the device has one; its length is the device's (`Capabilities::rss_key_len`).
    pub rss_key: Option<Vec<u8>>,
    /// The NUMA node for buffers and rings; `None` is the device's.
    pub numa_node: Option<u32>,
}

impl Default for PortOptions {
    fn default() -> Self {
        PortOptions {
            mtu: 1500,
            queues: 1,
            rx_buffers: 4096,
            tx_buffers: 4096,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            wait_for_peer: Duration::from_secs(5),
            offloads: Offloads::default(),
            rss_key: None,
            numa_node: None,
        }
    }
}

/// What a port can do, with the offloads that are switched on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The Ethernet address.
    pub mac: [u8; 6],
    /// The largest IP packet, in octets.
    pub mtu: u16,
    /// The largest frame, in octets, with the Ethernet header and without the frame check sequence.
    pub max_frame: u32,
    /// Octets in front of a received packet, and the start of a fresh transmit buffer.
    pub headroom: u16,
    /// Octets of storage in one transmit buffer, headroom included.
    pub data_room: u32,
    /// Received packets carry a verdict on their IPv4 header checksum.
    pub rx_ipv4_checksum: bool,
    /// Received packets carry a verdict on their TCP checksum.
    pub rx_tcp_checksum: bool,
    /// The device fills in IPv4 header checksums.
    pub tx_ipv4_checksum: bool,
    /// The device fills in TCP checksums; the checksum field must hold the pseudo-header's sum.
    pub tx_tcp_checksum: bool,
    /// Packets of several segments can be transmitted.
    pub tx_multi_segment: bool,
    /// The most segments of a transmitted packet.
    pub tx_max_segments: u16,
    /// Received packets may have several segments.
    pub rx_scatter: bool,
    /// The device cuts large TCP packets.
    pub tso: bool,
    /// The device joins received TCP segments.
    pub lro: bool,
    /// Received packets are spread over the queues by a hash.
    pub rss: bool,
    /// Octets of the hash's key; 0 without one.
    pub rss_key_len: u8,
    /// Entries of the redirection table; 0 without one.
    pub rss_table_len: u16,
    /// The most queue pairs that the device can have.
    pub max_queues: u16,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Packets can pass.
    pub up: bool,
    /// Mbit/s as the driver says it; virtual devices say anything.
    pub speed: u32,
}

/// A port's counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets transmitted.
    pub tx_packets: u64,
    /// Octets received.
    pub rx_octets: u64,
    /// Octets transmitted.
    pub tx_octets: u64,
    /// Packets that the device dropped because no descriptor was free.
    pub rx_missed: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that failed to be transmitted.
    pub tx_errors: u64,
    /// Packets lost because the receive pool was empty.
    pub rx_no_buffer: u64,
}

/// What is known of an open port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortInfo {
    /// DPDK's name of the device.
    pub device: String,
    /// The driver.
    pub driver: String,
    /// DPDK's number of the port.
    pub port_id: u16,
    /// The NUMA node, if the device has one.
    pub numa_node: Option<u32>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// An open device. It closes when the port and all queues taken from it are dropped.
#[derive(Debug)]
pub struct Port {
    _private: (),
}

impl Port {
    /// Opens a device: makes it, configures its queues with pools of their own, and starts it.
    ///
    /// A connecting end (memif client, virtio-user without `server`) is tried until its peer is there, for at most
    /// `options.wait_for_peer`. A listening end opens at once and its link comes up with the peer, see [`Port::wait_link_up`].
    ///
    /// # Errors
    /// What keeps the device from working, with the cure.
    pub fn open(eal: &Eal, device: &DeviceConfig, options: &PortOptions) -> Result<Port, Error> {
        let _ = (eal, device, options);
        todo!()
    }

    /// What is known of the port.
    pub fn info(&self) -> &PortInfo {
        todo!()
    }

    /// What the port can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.info().capabilities
    }

    /// How many queues the port has.
    pub fn queue_count(&self) -> u16 {
        todo!()
    }

    /// Takes queue `index`; `None` if there is no such queue or somebody has it. A dropped queue can be taken again.
    pub fn take_queue(&self, index: u16) -> Option<Queue> {
        let _ = index;
        todo!()
    }

    /// The link's state. May make a system call.
    pub fn link(&self) -> Link {
        todo!()
    }

    /// Whether packets can pass. May make a system call.
    pub fn link_up(&self) -> bool {
        self.link().up
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// [`Error::LinkDown`] when it is not after `limit`.
    pub fn wait_link_up(&self, limit: Duration) -> Result<(), Error> {
        let _ = limit;
        todo!()
    }

    /// The port's counters.
    pub fn statistics(&self) -> Statistics {
        todo!()
    }

    /// The driver's own counters, by name.
    pub fn extended_statistics(&self) -> Vec<(String, u64)> {
        todo!()
    }

    /// The levels of all queues' pools together. Counts every thread's cache: not for the path of a packet.
    pub fn pool_levels(&self) -> PoolLevels {
        todo!()
    }

    /// What the port's peer needs from time to time; a no-op for most devices. A memif client whose link is down connects again.
    ///
    /// A thread of this crate calls it every 50 ms for the ports that need it, so nobody has to. It may run beside
    /// bursts on any thread: those find no packets meanwhile.
    pub fn maintain(&self) {
        todo!()
    }
}
