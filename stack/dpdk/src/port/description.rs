//! What a port should be, what it is, and how it fares.

use std::time::Duration;

use dpdk_sys as sys;
use serde::{Deserialize, Serialize};

/// The wanted offloads. A port uses those of them that its device offers, see [`Capabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Offloads {
    /// Check the checksums of received packets.
    pub rx_checksum: bool,
    /// Fill in the checksums of transmitted packets that request it.
    pub tx_checksum: bool,
    /// Cut large TCP packets into segments.
    pub tso: bool,
}

impl Default for Offloads {
    fn default() -> Self {
        Offloads { rx_checksum: true, tx_checksum: true, tso: false }
    }
}

/// How a port is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// The largest IP packet, in octets: 576 to 9000.
    pub mtu: u16,
    /// Receive and transmit queue pairs.
    pub queues: u16,
    /// Buffers in each queue's receive pool: more than the descriptors, since the stack holds packets, too.
    pub rx_buffers: u32,
    /// Buffers in each queue's transmit pool.
    pub tx_buffers: u32,
    /// Receive descriptors per queue, adjusted to the device.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, adjusted to the device.
    pub tx_descriptors: u16,
    /// How long to keep trying if the device connects and its peer is not there yet. Zero: one attempt.
    pub wait_for_peer: Duration,
    /// Which offloads are wanted.
    pub offloads: Offloads,
    /// The key of the receive-side scaling hash, if the device has one. Its length must be the device's
    /// (`Capabilities::rss_key_len`).
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

/// The capabilities of a port, with the enabled offloads.
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
    /// The device cuts large TCP packets. Their checksum field must hold the pseudo-header's sum with the length of the
    /// whole.
    pub tso: bool,
    /// Received packets are spread over the queues by a hash.
    pub rss: bool,
    /// Octets of the hash's key; 0 without one.
    pub rss_key_len: u8,
    /// Entries of the redirection table; 0 without one.
    pub rss_table_len: u16,
    /// The most queue pairs that the device can have.
    pub max_queues: u16,
}

/// How received packets are spread over the queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// The Toeplitz hash's key.
    pub key: Vec<u8>,
    /// The queue for each value of the hash modulo the table's length.
    pub table: Vec<u16>,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Packets can pass.
    pub up: bool,
    /// Mbit/s as the driver reports it; virtual devices report arbitrary values.
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

/// The properties of an open port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortInfo {
    /// DPDK's name of the device.
    pub device: String,
    /// The driver.
    pub driver: String,
    /// DPDK's number of the port when it was opened.
    pub port_id: u16,
    /// The NUMA node, if the device has one.
    pub numa_node: Option<u32>,
    /// Its capabilities.
    pub capabilities: Capabilities,
}

/// The link of an open port.
pub(crate) fn link(port: u16) -> Link {
    let mut speed = 0;
    // SAFETY: writes the speed; an unknown port is refused.
    let up = unsafe { sys::uwarp_link_up(port, &mut speed) } != 0;
    Link { up, speed }
}
