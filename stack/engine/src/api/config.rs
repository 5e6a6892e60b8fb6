//! Settings of one engine, as plain values. The crate above parses files and flags.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::api::steering::Steering;

/// All settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Index of the engine in its context.
    pub index: u16,
    /// Own addresses, at least one, IPv4 or IPv6. A link-local address is added if there are IPv6 addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Frames to an own address stay in the engine. Without, they leave by the port: other processes have the same
    /// addresses, and what is behind the port tells them apart.
    pub loop_back: bool,
    /// Addresses that others have behind the same switch, beside the own ones. They count only without `loop_back`.
    pub switch_addresses: Vec<IpAddr>,
    /// Next hop for IPv4 addresses outside of all prefixes.
    pub gateway: Option<Ipv4Addr>,
    /// Next hop for IPv6 addresses outside of all prefixes.
    pub gateway6: Option<Ipv6Addr>,
    /// Neighbours with configured hardware addresses, which are never resolved or forgotten.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Solicitations, one a second, that check whether another host has an IPv6 address before it is used
    /// (DupAddrDetectTransmits of RFC 4862 §5.1). 0 uses it at once.
    pub duplicate_address_detection: u8,
    /// Tag control information (number and priority) of the VLAN of all frames; other frames are dropped. `None`:
    /// frames have no tag.
    pub vlan: Option<u16>,
    /// Settings of every TCP connection. `mss` is lowered to fit the port's MTU.
    pub tcp: uwarp_tcp::Config,
    /// Settings of the MPA layer and above.
    pub iwarp: IwarpConfig,
    /// Limits on objects.
    pub limits: Limits,
    /// Budgets in buffers.
    pub budgets: Budgets,
    /// How the device distributes packets over its queues, if known: active opens choose a port whose packets arrive at
    /// our queue.
    pub steering: Option<Steering>,
    /// First and last TCP port for active opens.
    pub ephemeral_ports: (u16, u16),
    /// Usual messages take the short ways of `hot/`. Tests compare them with the general code.
    pub hot: bool,
    /// Seed of every random choice except sequence numbers.
    pub seed: u64,
    /// Secret of the initial sequence numbers (RFC 6528) and of the flow table's hash.
    pub secret: [u64; 2],
    /// Secret of the SYN cookies, the same for all engines of a context, since another one may get the answer. The same
    /// holds for `tcp.timestamp_offset`.
    pub cookie_secret: [u64; 2],
}

/// An own address and the prefix of its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of the network prefix in bits, 0 to 32 or to 128.
    pub prefix_length: u8,
}

/// Settings of the iWARP layers.
#[derive(Debug, Clone)]
pub struct IwarpConfig {
    /// Most inbound Read Requests that a queue pair serves at a time.
    pub max_ird: u16,
    /// Most reads that a queue pair may have outstanding.
    pub max_ord: u16,
    /// Ask for CRCs as Responder. They are off only if neither side asks.
    pub crc: bool,
    /// Ask for CRCs also where the peer is another program behind the same switch ([`EngineConfig::loop_back`] is off):
    /// nothing but memory is between the two.
    pub crc_within_host: bool,
    /// Time limit of a passive start-up: from SYN to the MPA Request; and, if it is peer-to-peer, from accept to the
    /// ready-to-receive indication. Otherwise a Responder waits for its peer's first FPDU without limit, until it
    /// disconnects with posted work: then this limit starts.
    pub startup_timeout: Duration,
    /// How long a peer that we have connected to may be silent before it gets a Write of nothing, which makes it read
    /// on where it has left our first FPDU unread. It gets up to five, each after four times as long as the one
    /// before. Zero: none.
    pub nudge_after: Duration,
    /// How long input is read after a Terminate before the connection is reset.
    pub terminate_drain: Duration,
    /// How long a message of the peer that finds no posted receive may wait for one. Its stream stands still meanwhile:
    /// what the peer sends behind it is held, and the TCP window closes. Then the stream ends as it does at once with
    /// zero: RFC 5041 §7.2 makes a missing buffer an error, and iWARP has no message that asks the peer to try again.
    pub receive_wait: Duration,
    /// How long a peer that has an own address, and is another program behind the same switch
    /// ([`EngineConfig::loop_back`] is off), may be silent in full operation, in place of TCP's user time-out and
    /// keep-alive. The switch reports the end of a program, so a silent one was only stopped. Keep-alive goes on, for
    /// the case that the report is lost. `None`: as for other peers.
    pub switch_timeout: Option<Duration>,
    /// Most octets of a sent ULPDU. Usually the segment size is the smaller limit.
    pub max_ulpdu: u16,
    /// Longest wait for the store of a durable region before a commit fails with a status of its own. It starts again
    /// whenever the stream's oldest commit makes progress.
    pub commit_timeout: Duration,
    /// Most octets of one stream's commits at the stores at a time, at least a page (4 KiB). The rest of a commit, and
    /// later commits, wait. Each share is synced.
    pub commit_share: u64,
    /// Answer the commit of a region that is not durable with a status of its own. The document asks for success, which
    /// promises nothing in that case (draft-talpey-rdma-commit §2.1).
    pub strict_commit: bool,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        IwarpConfig {
            max_ird: 128,
            max_ord: 128,
            crc: true,
            crc_within_host: true,
            startup_timeout: Duration::from_secs(10),
            nudge_after: Duration::ZERO,
            terminate_drain: Duration::from_secs(2),
            receive_wait: Duration::ZERO,
            switch_timeout: None,
            max_ulpdu: 64_768,
            commit_timeout: Duration::from_secs(30),
            commit_share: 1 << 20,
            strict_commit: false,
        }
    }
}

/// Limits on objects. A new object beyond one is refused.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections, without those in TIME-WAIT.
    pub connections: u32,
    /// Passive connections in their handshake. Further SYNs are answered with cookies (RFC 4987 §3.6), which take no
    /// memory.
    pub half_open: u32,
    /// Connections in TIME-WAIT. Beyond it, those that have waited longest are dropped.
    pub time_wait: u32,
    /// Queue pairs, and the bound of their numbers.
    pub queue_pairs: u32,
    /// Listeners.
    pub listeners: u32,
    /// Entries of the neighbour table.
    pub neighbours: u32,
    /// Octets of incomplete packets in fragments, overhead included; 0 drops every fragment.
    pub reassembly_octets: u32,
    /// ICMP errors sent a second (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)); the burst is a tenth of it.
    pub icmp_errors: u32,
    /// Least octets a second that a peer must acknowledge: of the connection that holds most transmit buffers while
    /// they are short (RFC 6429), and of a plain stream that its application has left. A slower connection ends.
    pub least_rate: u32,
}

impl Limits {
    /// Doorbells that an engine needs: one for each queue pair, and behind them one for each connection.
    pub fn doorbells(&self) -> usize {
        self.queue_pairs as usize + self.connections as usize
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 32_768,
            half_open: 1_024,
            time_wait: 16_384,
            queue_pairs: 16_384,
            listeners: 256,
            neighbours: 1_024,
            reassembly_octets: 1 << 20,
            icmp_errors: 100,
            least_rate: 256,
        }
    }
}

/// Frames that a connection may always send in a turn, however many others want to send.
const LEAST_FRAMES: u32 = 8;

/// Budgets, so that no connection, nor all together, can exhaust a pool.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Most buffers of received frames that all connections together hold out of order. `None`: half of the receive
    /// pool. Frames behind a message that waits for a receive ([`IwarpConfig::receive_wait`]) may use half of it.
    /// Segments that came in fragments or from another engine are copied, and take as many transmit buffers at most,
    /// and no more than an eighth of that pool, or 4.
    pub out_of_order: Option<u32>,
    /// Transmit buffers that records must leave free, for ACK, RST, Terminate and retransmission. `None`: an eighth of
    /// the transmit pool, 8 to 256.
    pub transmit_reserve: Option<u32>,
    /// Frames waiting for the device beyond which no more are made.
    pub transmit_backlog: u32,
    /// Most frames that a connection sends in a turn. Connections that all want more share them, down to 8 each.
    pub frames_per_connection: u32,
    /// Octets of memory for incomplete FPDUs of all connections. A stream that would exceed it ends, or makes an older
    /// one end.
    pub gather_octets: u64,
}

impl Budgets {
    /// Frames that a connection may send in a turn if `greedy` connections had more to send in the last one. Together
    /// they send about as many as one alone could, so a short answer does not wait behind as many long ones as there
    /// are greedy peers.
    #[inline]
    pub(crate) fn frames_each(&self, greedy: u32) -> u32 {
        if greedy < 2 {
            return self.frames_per_connection;
        }
        (self.frames_per_connection / greedy).max(LEAST_FRAMES.min(self.frames_per_connection))
    }
}

impl Default for Budgets {
    fn default() -> Self {
        Budgets {
            out_of_order: None,
            transmit_reserve: None,
            transmit_backlog: 128,
            frames_per_connection: 32,
            gather_octets: 64 << 20,
        }
    }
}

impl EngineConfig {
    /// Settings with defaults for everything except the address.
    pub fn new(index: u16, address: impl Into<IpAddr>, prefix_length: u8) -> EngineConfig {
        EngineConfig {
            index,
            addresses: vec![InterfaceAddress { address: address.into(), prefix_length }],
            loop_back: true,
            switch_addresses: Vec::new(),
            gateway: None,
            gateway6: None,
            neighbours: Vec::new(),
            duplicate_address_detection: 1,
            vlan: None,
            // The port's MTU decides.
            tcp: uwarp_tcp::Config { mss: u16::MAX, ..uwarp_tcp::Config::default() },
            iwarp: IwarpConfig::default(),
            limits: Limits::default(),
            budgets: Budgets::default(),
            steering: None,
            ephemeral_ports: (49_152, 65_535),
            seed: 0,
            secret: [0x6c62_272e_07bb_0142, 0x62b8_2175_6295_c58d],
            hot: true,
            cookie_secret: [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9],
        }
    }
}
