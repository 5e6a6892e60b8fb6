//! Statistics of an engine: plain values that can be serialised.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
pub use uwarp_tcp::{Counters as TcpCounters, Info as TcpInfo, State as TcpState, Traffic as TcpTraffic};

pub use crate::api::counters::{Counters, DropReason, Wakeups, Work};

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionStats {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The queue pair, once bound.
    pub queue_pair: Option<u32>,
    /// Phase of the iWARP stream.
    pub phase: String,
    /// Transmit buffers that it holds: unacknowledged records.
    pub transmit_buffers: u64,
    /// Octets of memory for an incomplete FPDU.
    pub gather_octets: u64,
    /// A message of the peer waits for a receive.
    #[serde(default)]
    pub awaits_receive: bool,
    /// Its TCP.
    pub tcp: TcpInfo,
}

/// One queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct QueuePairStats {
    /// Its number.
    pub number: u32,
    /// Its state.
    pub state: String,
    /// Send elements completed, signalled or not.
    pub sends_completed: u64,
    /// Receive elements completed.
    pub receives_completed: u64,
    /// Reads outstanding.
    pub reads_outstanding: u32,
    /// Inbound Read Requests being answered.
    pub reads_inbound: u32,
}

/// Fill levels of the receive and the transmit pool, in buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolLevels {
    /// All receive buffers.
    pub receive_total: u32,
    /// Receive buffers that are free.
    pub receive_free: u32,
    /// All transmit buffers.
    pub transmit_total: u32,
    /// Transmit buffers that are free.
    pub transmit_free: u32,
}

/// Everything about one engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct EngineStats {
    /// Its index in the context.
    pub index: u16,
    /// What it has counted.
    #[serde(flatten)]
    pub counters: Counters,
    /// Whether the link is up.
    pub link_up: bool,
    /// Octets of memory for incomplete FPDUs.
    pub gather_octets: u64,
    /// Connections in TIME-WAIT now.
    pub time_wait: u64,
    /// Connections whose TIME-WAIT was cut short because too many were waiting.
    pub time_wait_cut_short: u64,
    /// MTU of the paths with a smaller one than the port, by destination.
    pub path_mtus: BTreeMap<String, u16>,
    /// Octets of incomplete packets in fragments.
    pub fragment_octets: u64,
    /// Fragments stored. Counted on demand.
    pub fragments: u64,
    /// Octets that commits have written to stores or written back in persistent memory. Octets that several commits of
    /// a region share are counted once.
    pub commit_octets: u64,
    /// Drops by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
    /// Deliberate faults of the port, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Free and total buffers.
    pub pools: PoolLevels,
    /// Buffers held: out-of-order payload and unacknowledged records.
    pub buffers_held: u64,
    /// Connections, including those in TIME-WAIT.
    pub flows: u64,
    /// Octets of memory of connections and what belongs to them, without frame buffers, rings to applications, and
    /// connections in TIME-WAIT. Counted on demand.
    pub connection_octets: u64,
    /// Neighbours in the table.
    pub neighbours: u64,
    /// Connections.
    pub connections: Vec<ConnectionStats>,
    /// Queue pairs.
    pub queue_pairs: Vec<QueuePairStats>,
}

impl EngineStats {
    /// The share of received frames that took the short way, 0 to 1. All received frames count, ARP and SYNs included.
    #[must_use]
    pub fn hot_share_received(&self) -> f64 {
        self.counters.hot_received as f64 / self.counters.frames_received.max(1) as f64
    }

    /// The share of sent frames that took the short way, 0 to 1; pure acknowledgments are left out.
    #[must_use]
    pub fn hot_share_sent(&self) -> f64 {
        let frames = self.counters.frames_sent.saturating_sub(self.counters.pure_acknowledgments);
        self.counters.hot_sent as f64 / frames.max(1) as f64
    }
}
