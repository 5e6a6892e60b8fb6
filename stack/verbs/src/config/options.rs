//! The tables of a configuration file below the top level.

use super::units;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use uwarp_wire::address::IpAddress;

/// DPDK's environment abstraction layer (EAL). There is one in a process: the first context that opens a device
/// decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EalOptions {
    /// Take memory from hugepages, which must be reserved beforehand. Off by default: virtual devices are as fast
    /// without.
    pub hugepages: bool,
    /// Memory for packet buffers and rings of all contexts of the process, in MiB. Left out: enough for this
    /// configuration.
    pub memory_mib: Option<u32>,
    /// Name for EAL's run-time files. Left out: a name with the process id in it.
    pub file_prefix: Option<String>,
    /// Further arguments for EAL, passed unchanged, such as `["--log-level=*:debug"]`.
    pub extra: Vec<String>,
}

/// Who turns the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineMode {
    /// A thread for each engine. The application is free to do anything.
    #[default]
    Threaded,
    /// The thread that opened the context, inside `poll` and `wait`: the lowest latency, but not polling means no
    /// acknowledgments and no timers.
    Inline,
}

/// What a threaded engine does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Poll for ever: the lowest latency, and one core per engine all the time.
    Spin,
    /// Poll for a while, then sleep until the device announces a frame, the application posts something, or a timer is
    /// due.
    #[default]
    Backoff,
}

/// The engines: how many, where, and who turns them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EngineOptions {
    /// Who turns the engine.
    pub mode: EngineMode,
    /// Number of engines, each with its own device queues. An inline context has one.
    pub count: usize,
    /// CPUs to pin the engine threads to, one each; empty leaves them to the scheduler.
    pub cpus: Vec<usize>,
    /// What to do when idle.
    pub idle: Idle,
    /// How long an idle engine polls before it sleeps. A longer time saves the wake-up, 5 to 50 µs, after a longer
    /// pause, and costs as much processor time after every frame.
    #[serde(with = "units::duration")]
    pub spin: Duration,
    /// Longest nap of an idle engine whose device announces no frames (memif, and physical devices): a frame may wait
    /// as long. A nap lasts an eighth of the time since the last frame, up to this.
    #[serde(with = "units::duration")]
    pub nap: Duration,
    /// Whether polling an empty completion queue, and the first `turn_after_post` behind that, turn a threaded engine.
    /// A poll right behind a completion does so only if work waits. Its thread stands back while the application polls,
    /// and looks again at least once a millisecond. The lowest latency for programs that poll and have no core to spare
    /// for a thread. Without a choice it is on for programs of libibverbs, and off for others, whose engine threads
    /// have cores of their own.
    pub poll_turns: Option<bool>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            mode: EngineMode::Threaded,
            count: 1,
            cpus: Vec::new(),
            idle: Idle::Backoff,
            spin: Duration::from_micros(200),
            nap: Duration::from_millis(50),
            poll_turns: None,
        }
    }
}

/// Congestion control of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
    /// RFC 8257: for a network that marks early, with DCTCP at both ends. Asks for ECN.
    Dctcp,
}

/// Explicit congestion notification (RFC 3168) of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ecn {
    /// Neither requested nor granted.
    Off,
    /// Granted to a peer that requests it.
    #[default]
    Accept,
    /// Requested, and granted.
    Offer,
}

/// Keep-alive probes (RFC 9293 §3.8.4). They are on by default, since a peer that only receives would otherwise never
/// detect that the other side has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KeepAlive {
    /// Whether probes are sent at all.
    pub enabled: bool,
    /// Silence before the first probe.
    #[serde(with = "units::duration")]
    pub idle: Duration,
    /// Time between probes.
    #[serde(with = "units::duration")]
    pub interval: Duration,
    /// Probes without an answer after which the connection is lost.
    pub probes: u32,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { enabled: true, idle: Duration::from_secs(5), interval: Duration::from_secs(1), probes: 5 }
    }
}

/// TCP, for all connections of the context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpOptions {
    /// Largest window offered to the peer, in octets. It limits the throughput of long paths.
    #[serde(with = "units::size")]
    pub receive_window: u64,
    /// Retransmission time-out before the first measurement (RFC 6298 §2.1), at most 60 s.
    #[serde(with = "units::duration")]
    pub rto_initial: Duration,
    /// Smallest retransmission time-out.
    #[serde(with = "units::duration")]
    pub rto_min: Duration,
    /// Retransmissions of a SYN before connecting fails, or of a SYN-ACK before the attempt is dropped.
    pub syn_retries: u32,
    /// Longest delay of an acknowledgment (RFC 9293 §3.8.6.3), less than 500 ms.
    #[serde(with = "units::duration")]
    pub delayed_ack: Duration,
    /// How long sent data may stay unacknowledged before the connection ends (RFC 5482), or `"off"`.
    #[serde(with = "units::optional_duration")]
    pub user_timeout: Option<Duration>,
    /// How long a peer on the same switch may be silent before the connection ends, in place of `user_timeout` and
    /// `keep_alive`: it was stopped, by a debugger say, since the switch reports the end of a program. Peers elsewhere,
    /// behind an uplink too, have no more than `user_timeout`.
    ///
    /// Left out, peers on the switch are as others. Programs on uwarp's libibverbs get two hours instead.
    #[serde(with = "units::given_duration", skip_serializing_if = "Option::is_none")]
    pub switch_timeout: Option<Duration>,
    /// How long a closed connection's ports stay reserved (TIME-WAIT of RFC 9293).
    #[serde(with = "units::duration")]
    pub time_wait: Duration,
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Let the device cut frames into several segments (TSO) if it can: virtio-user with a vhost that has `tso`.
    /// Segments of RDMA streams still begin with an FPDU. A capture shows the frames as the device gets them. The
    /// transmit buffers of virtio-user hold 9 KiB then, those of other devices what the MTU takes.
    pub segmentation_offload: bool,
    /// Timestamps in every segment (RFC 7323): 12 octets each, and protection against wrapped sequence numbers. If off,
    /// they are neither offered nor accepted.
    pub timestamps: bool,
    /// Keep-alive probes.
    pub keep_alive: KeepAlive,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            receive_window: 2 << 20,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(10),
            syn_retries: 8,
            delayed_ack: Duration::from_micros(500),
            user_timeout: Some(Duration::from_secs(15)),
            switch_timeout: None,
            time_wait: Duration::from_secs(1),
            congestion: Congestion::Cubic,
            ecn: Ecn::Accept,
            segmentation_offload: true,
            timestamps: false,
            keep_alive: KeepAlive::default(),
        }
    }
}

/// MPA (RFC 5044, RFC 6581), for all connections of the context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MpaOptions {
    /// Ask for CRC32C on every FPDU. It is left out only if neither side asks (RFC 5044 §4.1, §7.1.1).
    pub crc: bool,
    /// Ask for it also between programs on one switch, unless `crc` is off: their frames cross nothing but memory.
    /// [Faults](crate::Config#structfield.faults) do as much.
    pub crc_on_host: bool,
    /// Longest time from the first SYN to the end of the MPA start-up. A disconnect of an accepted connection also
    /// waits this long for the peer's first FPDU, before which no posted work may be sent (RFC 5044 §7.1.2).
    #[serde(with = "units::duration")]
    pub startup_timeout: Duration,
    /// Pause between the peer's Reply and the first FPDU on connections that this side opens, for peers that lose an
    /// early one. Less than `startup_timeout`.
    #[serde(with = "units::duration")]
    pub first_fpdu_delay: Duration,
    /// How long a peer of a connection that this side opens may be silent before it gets a Write of nothing. That makes
    /// it read on where it has left the first FPDU unread, as Linux' siw may. It gets up to five while nothing comes,
    /// each after four times as long as the one before. Zero: none.
    #[serde(with = "units::duration")]
    pub nudge_after: Duration,
}

impl Default for MpaOptions {
    fn default() -> Self {
        Self {
            crc: true,
            crc_on_host: false,
            startup_timeout: Duration::from_secs(10),
            first_fpdu_delay: Duration::ZERO,
            nudge_after: Duration::from_millis(5),
        }
    }
}

/// Commits of peers (draft-talpey-rdma-commit).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CommitOptions {
    /// Longest wait for the store of a durable region. Then the peer gets the status "try again", and the rest of the
    /// commit is dropped. The wait starts again whenever a share of the peer's oldest commit becomes durable.
    #[serde(with = "units::duration")]
    pub timeout: Duration,
    /// Octets of one peer's commits that are written and synced at a time, at least 4 KiB. A larger commit is not
    /// refused: it is written share by share, in turn with those of other peers.
    #[serde(with = "units::size")]
    pub share: u64,
    /// Answer a Commit of memory that is not durable with the status "not supported", not with success, which promises
    /// nothing in that case (§2.1).
    pub strict: bool,
    /// CPUs for the threads of durable regions. Empty: those of the opening thread, minus `engine.cpus` if at least two
    /// others are left. If all CPUs are polled, the engine's own may be best: a thread that waits for a device on a CPU
    /// that never idles wakes up sooner. `uwarp-log bench --store file` measures it.
    pub cpus: Vec<usize>,
    /// Engines write and sync durable regions themselves, instead of a thread for each region. That saves a commit the
    /// wake-up of the thread, and of an engine that sleeps. But all other work of the engine waits for the store
    /// meanwhile: for at most 64 KiB and one sync between two turns. And a CPU that idles during the wait responds to
    /// the device later. Use it for stores that answer in less than a millisecond and engines that do little else, if a
    /// measurement shows that it is faster (`uwarp-log bench --store file`).
    pub in_engine: bool,
}

impl Default for CommitOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), share: 1 << 20, strict: false, cpus: Vec::new(), in_engine: false }
    }
}

/// Limits on objects and resources. A limit costs little in itself; a call that exceeds one fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Registered memory regions, and memory windows.
    pub regions: usize,
    /// Octets registered at a time.
    #[serde(with = "units::size")]
    pub registered_octets: u64,
    /// Largest depth of a queue pair's work queue, in elements.
    pub queue_depth: usize,
    /// Largest depth of a completion queue.
    pub completion_depth: usize,
    /// Elements of all completion queues together, counted for each engine.
    pub completion_entries: usize,
    /// Connections that wait in a listener.
    pub backlog: usize,
    /// Hosts of the local network in the neighbour table.
    pub neighbours: usize,
    /// Octets of incomplete packets in fragments. 0 drops all fragments.
    #[serde(with = "units::size")]
    pub reassembly_octets: u64,
    /// Octets of incomplete FPDUs. Beyond it, the stream that has waited longest for the rest ends.
    #[serde(with = "units::size")]
    pub gather_octets: u64,
    /// Least octets a second that a peer must acknowledge while other connections lack transmit buffers, or if its
    /// stream's application has left. A slower connection ends.
    #[serde(with = "units::size")]
    pub least_rate: u64,
    /// How long a message that finds no posted receive waits for one, at most a minute. Its connection stands still
    /// meanwhile, with a closed TCP window. Then the connection ends, as it does at once with zero.
    ///
    /// Left out, it is zero: a program written for uwarp has its own flow control, and a missing receive is a fault
    /// that should show at once (RFC 5041 §7.2). Programs on uwarp's libibverbs get five seconds instead, since
    /// InfiniBand lets a sender try again and many of them rely on that.
    #[serde(with = "units::given_duration", skip_serializing_if = "Option::is_none")]
    pub receive_wait: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_pairs: 4096,
            // Two for each queue pair, as rdma_create_qp makes them.
            completion_queues: 8192,
            regions: 32_768,
            registered_octets: 1 << 40,
            queue_depth: 16_384,
            completion_depth: 1 << 20,
            completion_entries: 1 << 24,
            backlog: 1024,
            neighbours: 1024,
            reassembly_octets: 1 << 20,
            gather_octets: 64 << 20,
            least_rate: 256,
            receive_wait: None,
        }
    }
}

/// Packet buffers of each engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Buffers {
    /// Buffers for received packets.
    pub receive: u32,
    /// Buffers for sent packets, which are held until acknowledged.
    pub transmit: u32,
    /// Descriptors of each device queue; the device may round them.
    pub descriptors: u16,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { receive: 8192, transmit: 8192, descriptors: 1024 }
    }
}

/// Deliberate faults in this context's frames, for tests and demonstrations. Rates are percentages of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FaultOptions {
    /// Drop this percentage of sent frames.
    #[serde(with = "units::percent")]
    pub loss: f64,
    /// Duplicate this percentage of sent frames.
    #[serde(with = "units::percent")]
    pub duplicate: f64,
    /// Let later frames overtake this percentage of sent frames.
    #[serde(with = "units::percent")]
    pub reorder: f64,
    /// Flip a bit in this percentage of sent frames.
    #[serde(with = "units::percent")]
    pub corrupt: f64,
    /// Mark this percentage of sent ECN-capable packets as having met congestion (RFC 3168 §5).
    #[serde(with = "units::percent")]
    pub mark: f64,
    /// Apply the same rates to received frames.
    pub incoming: bool,
    /// Cut this percentage of TCP segments, sent and received, and join received ones with those behind them, as a
    /// middlebox may do.
    #[serde(with = "units::percent")]
    pub recut: f64,
    /// Do not cut sent segments: for peers that mistake a piece for a fault. Linux siw (6.1) rejects the CRC of an FPDU
    /// if it is split across segments.
    pub recut_received_only: bool,
    /// Seed of the random choices, which makes a run repeatable.
    pub seed: u64,
}

/// The monitor socket, which `uwarp-stat` reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MonitorOptions {
    /// Whether the socket exists.
    pub enabled: bool,
    /// Its path; left out: `uwarp/PID.sock` in the user's run-time directory.
    pub socket: Option<PathBuf>,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self { enabled: true, socket: None }
    }
}

/// A VLAN (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vlan {
    /// Its number, 1 to 4094.
    pub number: u16,
    /// Priority of sent frames, 0 to 7.
    #[serde(default)]
    pub priority: u8,
}

/// A neighbour with a fixed hardware address, which is never resolved by ARP or Neighbor Discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: MacAddress,
}

/// An Ethernet address, written `"02:00:00:00:00:01"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress(pub [u8; 6]);

impl std::str::FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain = || format!("{text:?} is not an Ethernet address: write it like \"02:00:00:00:00:01\"");
        let mut octets = [0_u8; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or_else(explain)?;
            // `from_str_radix` would accept a sign.
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(explain());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| explain())?;
        }
        if parts.next().is_some() {
            return Err(explain());
        }
        Ok(Self(octets))
    }
}

impl TryFrom<String> for MacAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(address: MacAddress) -> Self {
        address.to_string()
    }
}

impl std::fmt::Display for MacAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// An address of the context with the length of its subnet's prefix, written `"10.0.0.1/24"` or `"fd00::1/64"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of the prefix that all hosts of the subnet share, in bits, 1 to 32 or to 128.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// None: a switch gives the address.
    pub(super) const fn unset() -> Self {
        Self { address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), prefix: 0 }
    }

    pub(super) fn is_unset(&self) -> bool {
        *self == Self::unset()
    }

    /// Whether another host is in the same subnet, so that it is reached without the gateway.
    pub fn contains(&self, other: IpAddr) -> bool {
        IpAddress::from(self.address).shares_prefix(other.into(), self.prefix)
    }
}

impl std::str::FromStr for InterfaceAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain =
            || format!("{text:?} is not an address with its prefix: write it like \"10.0.0.1/24\" or \"fd00::1/64\"");
        let (address, prefix) = text.split_once('/').ok_or_else(explain)?;
        let address: IpAddr = address.parse().map_err(|_| explain())?;
        let prefix: u8 = prefix.parse().map_err(|_| explain())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if !(1..=most).contains(&prefix) {
            return Err(format!("the prefix of {text:?} is out of range: it is 1 to {most} bits"));
        }
        let own = IpAddress::from(address);
        if own.is_unspecified() || own.is_multicast() || address.is_loopback() || address.is_ipv6() && own.is_ipv4() {
            return Err(format!("{text:?} cannot be the address of a host: choose a unicast address"));
        }
        Ok(Self { address, prefix })
    }
}

impl TryFrom<String> for InterfaceAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<InterfaceAddress> for String {
    fn from(address: InterfaceAddress) -> Self {
        address.to_string()
    }
}

impl std::fmt::Display for InterfaceAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}
