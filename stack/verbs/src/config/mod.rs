//! Configuration of a context: a TOML file, or the same fields set in code.
//!
//! Every field except the device and the address has a default that suits a first try. A mistake gives one sentence
//! that names the field and says what to write instead.

mod options;
pub mod units;

pub use options::{
    Buffers, CommitOptions, Congestion, EalOptions, Ecn, EngineMode, EngineOptions, FaultOptions, Idle,
    InterfaceAddress, KeepAlive, Limits, MacAddress, MonitorOptions, MpaOptions, Neighbour, TcpOptions, Vlan,
};
pub use uwarp_dpdk::device::DeviceConfig;

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uwarp_memory::RegionTable;

/// Smallest MTU: every IPv4 host must take this much (RFC 791 §3.2), and an FPDU needs room.
pub const MTU_MIN: u16 = 576;
/// Largest MTU.
pub const MTU_MAX: u16 = 9000;

/// An invalid configuration. The text is one sentence that says where the mistake is and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// The configuration of a [`Context`](crate::Context).
///
/// ```
/// let config = uwarp::Config::from_toml_str(r#"
///     address = "10.0.0.1/24"
///     [device]
///     kind = "memif"
///     role = "server"
///     socket = "/tmp/uwarp-demo.sock"
/// "#)?;
/// assert_eq!(config.mtu, 1500);
/// # Ok::<(), uwarp::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The context's address and prefix, of either version of IP. A switch gives its own.
    #[serde(default = "InterfaceAddress::unset", skip_serializing_if = "InterfaceAddress::is_unset")]
    pub address: InterfaceAddress,
    /// Further addresses of the context. A link-local address is added if there are IPv6 addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_addresses: Vec<InterfaceAddress>,
    /// Router for IPv4 hosts outside of all subnets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
    /// Router for IPv6 hosts outside of all subnets: its link-local address, or one in a subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway6: Option<Ipv6Addr>,
    /// Solicitations, one a second, that check whether another host has an IPv6 address before it is used (RFC 4862
    /// §5.4). 0 uses it at once.
    #[serde(default = "default_duplicate_address_detection")]
    pub duplicate_address_detection: u8,
    /// The VLAN of all frames (IEEE 802.1Q). Left out: frames have no tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Largest IP packet, 576 to 9000 octets. Both ends of a virtual device need the same.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// How long closing a context, and destroying a queue pair at once, wait until the peer has delivered everything
    /// and closed. A destroy waits for a second at least.
    #[serde(default = "default_linger", with = "units::duration")]
    pub linger: Duration,
    /// How long opening waits for the device's peer, if the device needs one to open: a memif client, and both kinds of
    /// virtio-user.
    #[serde(default = "default_wait", with = "units::duration")]
    pub wait_for_peer: Duration,
    /// File for a capture of all frames in the pcapng format, for tshark or Wireshark; see
    /// [`Context::start_capture`](crate::Context::start_capture).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,
    /// The DPDK device. `None`, which is possible only in code, is a context that can reach only itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceConfig>,
    /// The socket of a switch (`uwarp-switch`), which gives the context its device, addresses, MTU and TCP ports,
    /// instead of all of these here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<PathBuf>,
    /// EAL.
    #[serde(default)]
    pub eal: EalOptions,
    /// Engines.
    #[serde(default)]
    pub engine: EngineOptions,
    /// TCP.
    #[serde(default)]
    pub tcp: TcpOptions,
    /// MPA.
    #[serde(default)]
    pub mpa: MpaOptions,
    /// Commits of peers.
    #[serde(default)]
    pub commit: CommitOptions,
    /// Limits on objects and resources.
    #[serde(default)]
    pub limits: Limits,
    /// Packet buffers.
    #[serde(default)]
    pub buffers: Buffers,
    /// Monitor socket.
    #[serde(default)]
    pub monitor: MonitorOptions,
    /// Deliberate faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultOptions>,
    /// Neighbours with fixed Ethernet addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<Neighbour>,
}

fn default_mtu() -> u16 {
    1500
}

fn default_duplicate_address_detection() -> u8 {
    1
}

fn default_wait() -> Duration {
    Duration::from_secs(30)
}

fn default_linger() -> Duration {
    Duration::from_secs(5)
}

impl Config {
    /// A configuration with defaults for everything except the device and the address, written like `"10.0.0.1/24"`.
    pub fn new(device: DeviceConfig, address: &str) -> Result<Self, ConfigError> {
        let mut config = Self::without_device(address)?;
        config.device = Some(device);
        Ok(config)
    }

    /// A configuration for [`Context::pair_in_process`](crate::Context::pair_in_process), or for a context that
    /// connects only to itself.
    pub fn without_device(address: &str) -> Result<Self, ConfigError> {
        let address = address.parse().map_err(|sentence: String| ConfigError(format!("address: {sentence}")))?;
        Ok(Self::at(address))
    }

    /// A configuration with defaults for everything, on the switch that listens at a socket.
    pub fn on_switch(socket: impl Into<PathBuf>) -> Self {
        Self { switch: Some(socket.into()), ..Self::at(InterfaceAddress::unset()) }
    }

    fn at(address: InterfaceAddress) -> Self {
        Self {
            address,
            more_addresses: Vec::new(),
            gateway: None,
            gateway6: None,
            duplicate_address_detection: default_duplicate_address_detection(),
            vlan: None,
            mtu: default_mtu(),
            linger: default_linger(),
            wait_for_peer: default_wait(),
            pcap: None,
            device: None,
            switch: None,
            eal: EalOptions::default(),
            engine: EngineOptions::default(),
            tcp: TcpOptions::default(),
            mpa: MpaOptions::default(),
            commit: CommitOptions::default(),
            limits: Limits::default(),
            buffers: Buffers::default(),
            monitor: MonitorOptions::default(),
            faults: None,
            neighbours: Vec::new(),
        }
    }

    /// Parses and checks a configuration in TOML.
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let sentence = error.message().trim().replace('\n', ", ");
            match error.span() {
                Some(span) => {
                    let line = 1 + text.bytes().take(span.start).filter(|&octet| octet == b'\n').count();
                    ConfigError(format!("line {line}: {sentence}"))
                }
                None => ConfigError(sentence),
            }
        })?;
        if config.switch.is_some() {
            config.validate_switch()?;
        } else if config.address.is_unset() {
            return Err(ConfigError::new("missing field `address`"));
        } else if config.device.is_none() {
            return Err(ConfigError::new(
                "there is no [device] table: add one, for instance with kind = \"memif\" (see the files in config/)",
            ));
        }
        config.validate()?;
        Ok(config)
    }

    /// Reads and checks a configuration from a TOML file. Errors begin with the file's name.
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError(format!("{}: cannot be read: {error}", path.display())))?;
        Self::from_toml_str(&text)
            .map_err(|ConfigError(sentence)| ConfigError(format!("{}: {sentence}", path.display())))
    }

    /// Writes the configuration as TOML that [`from_toml_str`](Self::from_toml_str) reads.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| ConfigError(error.to_string()))
    }

    /// Checks that the fields make sense, by themselves and together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_network()?;
        self.validate_engine()?;
        self.validate_tcp()?;
        self.validate_sizes()?;
        if let Some(faults) = &self.faults {
            faults.validate()?;
        }
        if self.linger > Duration::from_secs(600) {
            return Err(ConfigError::new("linger is longer than 10 min: choose less, or closing may seem to hang"));
        }
        if self.mpa.startup_timeout.is_zero() {
            return Err(ConfigError::new("mpa.startup-timeout is zero: give the peer some time, such as \"10s\""));
        }
        if self.mpa.first_fpdu_delay >= self.mpa.startup_timeout {
            return Err(ConfigError::new(format!(
                "mpa.first-fpdu-delay is {:?}, and peers wait no longer for it than mpa.startup-timeout, {:?}: choose less",
                self.mpa.first_fpdu_delay, self.mpa.startup_timeout
            )));
        }
        if self.mpa.nudge_after > Duration::from_secs(10) {
            return Err(ConfigError::new(
                "mpa.nudge-after is longer than 10 s: choose less, or \"0s\" for no Writes of nothing",
            ));
        }
        if self.commit.timeout.is_zero() {
            return Err(ConfigError::new("commit.timeout is zero: give the store some time, such as \"30s\""));
        }
        if self.commit.share < 4096 {
            return Err(ConfigError::new(
                "commit.share is less than a page of 4 KiB: give each peer some, such as \"1MiB\"",
            ));
        }
        if self.commit.in_engine && !self.commit.cpus.is_empty() {
            return Err(ConfigError::new(
                "commit.cpus is where threads sync, and with commit.in-engine there are none: leave one of the two out",
            ));
        }
        Ok(())
    }

    /// Checks that nothing is set which the switch gives.
    fn validate_switch(&self) -> Result<(), ConfigError> {
        let plain = Self::on_switch("");
        let given = [
            ("device", self.device != plain.device),
            ("address", self.address != plain.address),
            ("more-addresses", self.more_addresses != plain.more_addresses),
            ("mtu", self.mtu != plain.mtu),
            ("gateway", self.gateway != plain.gateway),
            ("gateway6", self.gateway6 != plain.gateway6),
            ("vlan", self.vlan != plain.vlan),
            ("neighbours", self.neighbours != plain.neighbours),
        ];
        match given.iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => {
                Err(ConfigError(format!("{field} is the switch's to give: leave it out, or leave switch out")))
            }
            None => Ok(()),
        }
    }

    fn validate_network(&self) -> Result<(), ConfigError> {
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError(format!("mtu is {}: choose {MTU_MIN} to {MTU_MAX}", self.mtu)));
        }
        let gateways = [self.gateway.map(IpAddr::V4), self.gateway6.map(IpAddr::V6)];
        for gateway in gateways.into_iter().flatten() {
            if !self.is_on_link(gateway) {
                return Err(ConfigError(format!(
                    "gateway {gateway} is outside of the subnet {}: choose a router in it or a shorter prefix",
                    self.subnets()
                )));
            }
            if self.addresses().any(|own| own.address == gateway) {
                return Err(ConfigError(format!(
                    "gateway {gateway} is this host's own address: leave the gateway out or name the router"
                )));
            }
        }
        if self.addresses().any(|own| own.address.is_ipv6()) && self.mtu < 1280 {
            return Err(ConfigError(format!("mtu is {}: IPv6 needs 1280 (RFC 8200 §5)", self.mtu)));
        }
        if self.duplicate_address_detection > 10 {
            return Err(ConfigError(format!(
                "duplicate-address-detection is {}: choose 0 to 10 solicitations, each takes a second",
                self.duplicate_address_detection
            )));
        }
        if let Some(vlan) = self.vlan {
            vlan.validate()?;
        }
        for neighbour in &self.neighbours {
            if !self.is_on_link(neighbour.address) {
                return Err(ConfigError(format!(
                    "neighbour {} is outside of the subnet {}: only hosts of the subnet can be neighbours",
                    neighbour.address,
                    self.subnets()
                )));
            }
            let first = neighbour.mac.0[0];
            if first & 1 != 0 || neighbour.mac.0 == [0; 6] {
                return Err(ConfigError(format!(
                    "neighbour {} has the mac {}, which is not the address of one station: write the peer's own",
                    neighbour.address, neighbour.mac
                )));
            }
        }
        Ok(())
    }

    /// All addresses of the context, starting with [`address`](Self#structfield.address).
    pub fn addresses(&self) -> impl Iterator<Item = InterfaceAddress> {
        std::iter::once(self.address).chain(self.more_addresses.iter().copied())
    }

    /// Whether a host is reached without a router.
    fn is_on_link(&self, host: IpAddr) -> bool {
        uwarp_wire::address::IpAddress::from(host).is_link_local() || self.addresses().any(|own| own.contains(host))
    }

    fn subnets(&self) -> String {
        let subnets: Vec<String> = self.addresses().map(|own| own.to_string()).collect();
        subnets.join(", ")
    }

    fn validate_engine(&self) -> Result<(), ConfigError> {
        let engine = &self.engine;
        if self.switch.is_some() && engine.count != 1 {
            return Err(ConfigError(format!(
                "engine.count is {}: a switch gives each client one queue, so set it to 1",
                engine.count
            )));
        }
        if !(1..=64).contains(&engine.count) {
            return Err(ConfigError(format!("engine.count is {}: choose 1 to 64", engine.count)));
        }
        if engine.mode == EngineMode::Inline {
            if engine.count != 1 {
                return Err(ConfigError(format!(
                    "engine.count is {} but an inline context has one engine: set it to 1 or choose mode = \"threaded\"",
                    engine.count
                )));
            }
            if !engine.cpus.is_empty() {
                return Err(ConfigError::new(
                    "engine.cpus is set but an inline engine runs on the application's thread: pin that thread instead",
                ));
            }
        }
        if !engine.cpus.is_empty() && engine.cpus.len() != engine.count {
            return Err(ConfigError(format!(
                "engine.cpus names {} CPUs for {} engines: name one each, or none",
                engine.cpus.len(),
                engine.count
            )));
        }
        if engine.nap > Duration::from_millis(100) {
            return Err(ConfigError::new(
                "engine.nap is longer than 100 ms: a packet may wait that long, choose for instance \"50ms\"",
            ));
        }
        Ok(())
    }

    fn validate_tcp(&self) -> Result<(), ConfigError> {
        let tcp = &self.tcp;
        // RFC 7323 §2.3: a window of 2^30 octets is the largest that can be scaled.
        if !(4096..=1 << 30).contains(&tcp.receive_window) {
            return Err(ConfigError(format!(
                "tcp.receive-window is {}: choose 4096 octets to 1 GiB",
                tcp.receive_window
            )));
        }
        let longest = uwarp_tcp::Config::default().rto_max;
        if tcp.rto_min.is_zero() || tcp.rto_min > tcp.rto_initial || tcp.rto_initial > longest {
            return Err(ConfigError::new(
                "tcp.rto-min and rto-initial are not in order: they must rise, from more than zero to at most 60 s",
            ));
        }
        // RFC 9293 §3.8.6.3 (MUST-40).
        if tcp.delayed_ack >= Duration::from_millis(500) {
            return Err(ConfigError::new(
                "tcp.delayed-ack is 500 ms or more: TCP demands less, choose for instance \"500us\"",
            ));
        }
        if tcp.user_timeout.is_some_and(|limit| limit < tcp.rto_min) {
            return Err(ConfigError::new(
                "tcp.user-timeout is shorter than tcp.rto-min: no retransmission could save a connection, choose seconds",
            ));
        }
        if tcp.switch_timeout.is_some_and(|limit| limit < tcp.rto_min) {
            return Err(ConfigError::new(
                "tcp.switch-timeout is shorter than tcp.rto-min: choose minutes, so that a debugger may stop a program",
            ));
        }
        let keep_alive = &tcp.keep_alive;
        if keep_alive.enabled && (keep_alive.idle.is_zero() || keep_alive.interval.is_zero() || keep_alive.probes == 0)
        {
            return Err(ConfigError::new(
                "tcp.keep-alive has a zero: give idle, interval and probes values, or set enabled = false",
            ));
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        for (name, value, most) in [
            ("queue-pairs", limits.queue_pairs, 1 << 20),
            ("completion-queues", limits.completion_queues, 1 << 20),
            ("regions", limits.regions, RegionTable::MAX_SLOTS as usize),
            ("queue-depth", limits.queue_depth, 1 << 20),
            ("completion-depth", limits.completion_depth, 1 << 24),
            ("completion-entries", limits.completion_entries, 1 << 32),
            ("backlog", limits.backlog, 1 << 16),
            ("neighbours", limits.neighbours, 1 << 20),
        ] {
            if !(1..=most).contains(&value) {
                return Err(ConfigError(format!("limits.{name} is {value}: choose 1 to {most}")));
            }
        }
        for (name, value, least, most) in [
            ("reassembly-octets", limits.reassembly_octets, 0, 1 << 30),
            // The longest FPDU must fit.
            ("gather-octets", limits.gather_octets, 128 << 10, 1 << 40),
            ("least-rate", limits.least_rate, 0, 1 << 30),
        ] {
            if !(least..=most).contains(&value) {
                return Err(ConfigError(format!("limits.{name} is {value}: choose {least} to {most}")));
            }
        }
        if let Some(wait) = limits.receive_wait.filter(|wait| *wait > Duration::from_secs(60)) {
            let wait = units::format_duration(wait);
            return Err(ConfigError(format!("limits.receive-wait is {wait}: choose 0 to 60s")));
        }
        let buffers = &self.buffers;
        for (name, value) in [("receive", buffers.receive), ("transmit", buffers.transmit)] {
            if !(64..=1 << 20).contains(&value) {
                return Err(ConfigError(format!("buffers.{name} is {value}: choose 64 to {}", 1 << 20)));
            }
        }
        if !(32..=8192).contains(&buffers.descriptors) {
            return Err(ConfigError(format!("buffers.descriptors is {}: choose 32 to 8192", buffers.descriptors)));
        }
        Ok(())
    }
}

impl Vlan {
    fn validate(self) -> Result<(), ConfigError> {
        if !(1..=4094).contains(&self.number) {
            return Err(ConfigError(format!("vlan.number is {}: choose 1 to 4094", self.number)));
        }
        if self.priority > 7 {
            return Err(ConfigError(format!("vlan.priority is {}: choose 0 to 7", self.priority)));
        }
        Ok(())
    }
}

impl FaultOptions {
    /// Checks that every rate is a percentage.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("mark", self.mark),
            ("recut", self.recut),
        ] {
            if !(0.0..=100.0).contains(&value) {
                return Err(ConfigError(format!("faults.{name} is {value}: choose a percentage from 0 to 100")));
            }
        }
        Ok(())
    }
}

/// Setters, for code that chains rather than assigns.
impl Config {
    /// Sets the MTU.
    pub fn mtu(mut self, octets: u16) -> Self {
        self.mtu = octets;
        self
    }

    /// Makes the engine inline: the opening thread turns it inside `poll` and `wait`.
    pub fn inline(mut self) -> Self {
        self.engine.mode = EngineMode::Inline;
        self.engine.count = 1;
        self.engine.cpus.clear();
        self
    }

    /// Gives every engine a thread of its own.
    pub fn threaded(mut self, engines: usize) -> Self {
        self.engine.mode = EngineMode::Threaded;
        self.engine.count = engines;
        self
    }

    /// Pins the engine threads, one CPU each.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.engine.cpus = cpus.into_iter().collect();
        self
    }

    /// Sets whether to ask for CRC32C on FPDUs.
    pub fn crc(mut self, wanted: bool) -> Self {
        self.mpa.crc = wanted;
        self
    }

    /// Captures all frames to a file.
    pub fn pcap(mut self, path: impl Into<PathBuf>) -> Self {
        self.pcap = Some(path.into());
        self
    }

    /// Sets deliberate faults.
    pub fn faults(mut self, faults: FaultOptions) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Sets how long closing waits, see [`Config::linger`](Self#structfield.linger).
    pub fn linger(mut self, limit: Duration) -> Self {
        self.linger = limit;
        self
    }

    /// Adds an address.
    pub fn another_address(mut self, address: InterfaceAddress) -> Self {
        self.more_addresses.push(address);
        self
    }

    /// Sets the gateway of its version of IP.
    pub fn gateway(mut self, address: impl Into<IpAddr>) -> Self {
        match address.into() {
            IpAddr::V4(address) => self.gateway = Some(address),
            IpAddr::V6(address) => self.gateway6 = Some(address),
        }
        self
    }

    /// Puts all frames into a VLAN.
    pub fn vlan(mut self, number: u16) -> Self {
        self.vlan = Some(Vlan { number, priority: 0 });
        self
    }

    /// Adds a neighbour with a fixed Ethernet address.
    pub fn neighbour(mut self, address: impl Into<IpAddr>, mac: [u8; 6]) -> Self {
        self.neighbours.push(Neighbour { address: address.into(), mac: MacAddress(mac) });
        self
    }

    /// Switches the monitor socket off.
    pub fn without_monitor(mut self) -> Self {
        self.monitor.enabled = false;
        self
    }
}

#[cfg(test)]
mod tests;
