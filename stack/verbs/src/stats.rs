//! Statistics of a running context.

use serde::{Deserialize, Serialize};
pub use uwarp_engine::stats::{
    ConnectionStats, Counters, EngineStats, QueuePairStats, TcpCounters, TcpInfo, TcpState, TcpTraffic, Wakeups, Work,
};

/// A snapshot of a context, returned by [`Context::stats`](crate::Context::stats) and the monitor socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct StatsSnapshot {
    /// Version and commit of this crate.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Number of the context in its process, from 1.
    pub context: u64,
    /// Nanoseconds since the context was opened.
    pub uptime_ns: u64,
    /// `threaded` or `inline`.
    pub mode: String,
    /// The context's address and prefix.
    pub address: String,
    /// Largest IP packet.
    pub mtu: u16,
    /// The socket of the switch, if the context is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<std::path::PathBuf>,
    /// The device, if there is one.
    pub port: Option<PortSnapshot>,
    /// Engines that answered.
    pub engines: Vec<EngineStats>,
    /// Engines that did not answer in time: inline and not polled, or failed.
    pub silent_engines: Vec<SilentEngine>,
    /// Protection domains, memory and queues.
    pub objects: ObjectCounts,
}

/// An engine that did not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct SilentEngine {
    /// Its index.
    pub index: u16,
    /// The reason, if known.
    pub reason: String,
}

/// The device of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct PortSnapshot {
    /// DPDK's name of the device.
    pub device: String,
    /// DPDK's driver.
    pub driver: String,
    /// Ethernet address.
    pub mac: String,
    /// Whether the link passes packets.
    pub link_up: bool,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets transmitted.
    pub tx_packets: u64,
    /// Octets received.
    pub rx_octets: u64,
    /// Octets transmitted.
    pub tx_octets: u64,
    /// Packets dropped by the device because no descriptor was free.
    pub rx_missed: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that could not be transmitted.
    pub tx_errors: u64,
    /// Packets lost because no buffer was free.
    pub rx_no_buffer: u64,
}

/// Objects of a context and their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ObjectCounts {
    /// Queue pairs, including those with a lingering connection.
    pub queue_pairs: usize,
    /// Most queue pairs.
    pub queue_pairs_limit: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Most completion queues.
    pub completion_queues_limit: usize,
    /// Registered regions.
    pub regions: usize,
    /// Most registered regions.
    pub regions_limit: usize,
    /// Registered octets.
    pub registered_octets: u64,
    /// Most registered octets.
    pub registered_octets_limit: u64,
}
