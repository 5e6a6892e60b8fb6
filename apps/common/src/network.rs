//! The flags for the device and the addresses: the same for every tool, merged with a configuration file.
//!
//! A flag overrides the file, and the file overrides the defaults. With the defaults, two processes of one machine find
//! each other: the server is 10.77.0.1 and the client 10.77.0.2, or fd77::1 and fd77::2 with `--ipv6`, connected by the
//! default socket.

use crate::outcome::usage;
use crate::units::{name_of, parse_duration, parse_percent};
use clap::{Args, ValueEnum};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use uwarp::config::{DeviceConfig, EngineMode, FaultOptions, InterfaceAddress, MacAddress, Neighbour};
use uwarp_dpdk::MemifRole;

/// A server's address on port 0, unless the user chooses another.
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of a client, unless the user chooses another.
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Prefix of both.
const PREFIX: u8 = 24;
/// IPv6 address of a server, unless the user chooses another.
pub const SERVER_ADDRESS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// IPv6 address of a client, unless the user chooses another.
pub const CLIENT_ADDRESS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Prefix of both.
const PREFIX6: u8 = 64;

/// The role of a process. It determines its end of a socket device, and its default address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Waits for connections.
    Server,
    /// Connects.
    Client,
}

/// A kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// virtio-user on the client, vhost on the server.
    Virtio,
    /// Shared-memory packet interface.
    Memif,
    /// A kernel interface through a packet socket.
    AfPacket,
    /// A kernel interface made by DPDK.
    Tap,
    /// A NIC by its PCI address.
    Pci(String),
    /// A place in a switch, which gives the addresses, too.
    Switch,
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "virtio" => Self::Virtio,
            "memif" => Self::Memif,
            "af_packet" | "af-packet" => Self::AfPacket,
            "tap" => Self::Tap,
            "switch" => Self::Switch,
            _ => match text.strip_prefix("pci:") {
                Some(address) if !address.is_empty() => Self::Pci(address.to_owned()),
                _ => {
                    return Err("choose virtio, memif, af_packet, tap, switch or pci:ADDRESS".to_owned());
                }
            },
        })
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Virtio => formatter.write_str("virtio"),
            Self::Memif => formatter.write_str("memif"),
            Self::AfPacket => formatter.write_str("af_packet"),
            Self::Tap => formatter.write_str("tap"),
            Self::Pci(address) => write!(formatter, "pci:{address}"),
            Self::Switch => formatter.write_str("switch"),
        }
    }
}

/// Which thread turns the engine, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// The tool's own thread: lowest latency.
    Inline,
    /// A thread of its own.
    Threaded,
}

/// The flags.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Device and network")]
pub struct NetworkFlags {
    /// Configuration file (TOML); flags given as well win over it
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,

    /// virtio (virtio-user and vhost), memif, af_packet, tap, switch (uwarp-switch), or pci:ADDRESS. If the
    /// configuration file has the same kind, its settings apply, at this side's end [default: the file's device, or
    /// virtio]
    #[arg(long, value_name = "KIND", global = true)]
    pub device: Option<DeviceKind>,

    /// Socket that joins the two processes of virtio and memif, or the switch's [default: uwarp-KIND.sock in
    /// $XDG_RUNTIME_DIR, or else in the temporary directory; the first switch that is found]
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,

    /// Kernel interface: an existing one for af_packet, the name of the new one for tap [default for tap: uwarp0]
    #[arg(long, value_name = "NAME", global = true)]
    pub interface: Option<String>,

    /// Own address and prefix [default: 10.77.0.1/24 as server, 10.77.0.2/24 as client]
    #[arg(long, value_name = "ADDRESS/PREFIX", global = true)]
    pub address: Option<InterfaceAddress>,

    /// Further own address and prefix; may be repeated
    #[arg(long, value_name = "ADDRESS/PREFIX", global = true)]
    pub another_address: Vec<InterfaceAddress>,

    /// IPv6 addresses where none are chosen: fd77::1/64 as server, fd77::2/64 as client
    #[arg(long, global = true)]
    pub ipv6: bool,

    /// Router for hosts outside of the subnet; may be repeated, once for each version of IP
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub gateway: Vec<IpAddr>,

    /// VLAN that all frames belong to, 1 to 4094 [default: none, frames have no tag]
    #[arg(long, value_name = "NUMBER", global = true)]
    pub vlan: Option<u16>,

    /// Neighbour with a fixed Ethernet address, instead of ARP or Neighbor Discovery; may be repeated
    #[arg(long, value_name = "ADDRESS=MAC", value_parser = parse_neighbour, global = true)]
    pub neighbour: Vec<Neighbour>,

    /// Largest IP packet, 576 to 9000 octets, over tap 1500 at most; the same on both sides [default: 1500]
    #[arg(long, value_name = "OCTETS", global = true)]
    pub mtu: Option<u16>,

    /// Do not ask for CRC32C on FPDUs (left out only if the peer does not ask either)
    #[arg(long, global = true)]
    pub no_crc: bool,

    /// Who turns the engine: this tool's own thread, or a thread of its own
    #[arg(long, value_name = "KIND", global = true)]
    pub engine: Option<EngineKind>,

    /// CPUs of the engines, one each; for an inline engine, the CPU of the thread that turns it. For `pair`, the
    /// server's and the client's CPU [default: the file's, or the system's choice; for `pair` the first two that it may
    /// use]
    #[arg(long, value_name = "CPU,...", value_delimiter = ',', global = true)]
    pub cpus: Vec<usize>,

    /// How long to wait for the device's other end, where this one has to connect to it [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, global = true)]
    pub wait: Option<Duration>,

    /// Take DPDK's memory from hugepages, which must be reserved
    #[arg(long, global = true)]
    pub hugepages: bool,

    /// Write all frames to a capture file; %p in its name is this process's number. If another process writes to
    /// FILE.pcapng, this one writes to FILE-PID.pcapng
    #[arg(long, value_name = "FILE", global = true)]
    pub pcap: Option<PathBuf>,

    /// Zero-copy memif on the side that is memif's client (each server that dies costs it the buffers in its rings)
    #[arg(long, global = true)]
    pub zero_copy: bool,

    /// Split virtqueues instead of packed ones
    #[arg(long, global = true)]
    pub split: bool,

    /// Exchange the ends of virtio or memif, which differ in cost: the server becomes virtio-user or memif's client,
    /// the client vhost or memif's server. Both processes need this option; `pair` passes it to both
    #[arg(long, global = true)]
    pub exchange_ends: bool,

    /// Drop this share of sent frames, such as 0.5%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, global = true)]
    pub loss: Option<f64>,

    /// Send this share of frames twice
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, global = true)]
    pub duplicate: Option<f64>,

    /// Let later frames overtake this share of sent frames
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, global = true)]
    pub reorder: Option<f64>,

    /// Flip a bit in this share of sent frames
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, global = true)]
    pub corrupt: Option<f64>,

    /// Cut this share of TCP segments into pieces, and join the same share of received ones with their successors, as a
    /// middlebox may
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, env = "UWARP_RECUT", global = true)]
    pub recut: Option<f64>,

    /// Cut no sent segments: for a peer that takes a piece for a fault, as Linux siw does an FPDU's CRC in two segments
    #[arg(long, env = "UWARP_RECUT_RECEIVED_ONLY", global = true)]
    pub recut_received_only: bool,

    /// Seed of these faults, so that a run can be repeated
    #[arg(long, value_name = "NUMBER", global = true)]
    pub fault_seed: Option<u64>,
}

/// Where a client finds its server.
#[derive(Args, Clone, Debug)]
pub struct ServerFlag {
    /// Address of the server [default: 10.77.0.1, or fd77::1 with --ipv6]
    #[arg(long, value_name = "ADDRESS")]
    server: Option<IpAddr>,
}

impl ServerFlag {
    /// The address and port of the server.
    pub fn address(&self, network: &NetworkFlags, port: u16) -> SocketAddr {
        (self.server.unwrap_or_else(|| network.default_address(Role::Server)), port).into()
    }
}

fn parse_neighbour(text: &str) -> Result<Neighbour, String> {
    let explain = || format!("'{text}' is not a neighbour; write it like 10.0.0.2=02:00:00:00:00:01");
    let (address, mac) = text.split_once('=').ok_or_else(explain)?;
    Ok(Neighbour {
        address: address.parse().map_err(|_| explain())?,
        mac: mac.parse::<MacAddress>().map_err(|_| explain())?,
    })
}

/// The kind of a configured device; `None` if no flag names it, such as a ring.
pub fn kind_of(device: &DeviceConfig) -> Option<DeviceKind> {
    Some(match device {
        DeviceConfig::VirtioUser { .. } | DeviceConfig::Vhost { .. } => DeviceKind::Virtio,
        DeviceConfig::Memif { .. } => DeviceKind::Memif,
        DeviceConfig::AfPacket { .. } => DeviceKind::AfPacket,
        DeviceConfig::Tap { .. } => DeviceKind::Tap,
        DeviceConfig::Pci { address } => DeviceKind::Pci(address.clone()),
        DeviceConfig::Ring { .. } | DeviceConfig::Null { .. } | DeviceConfig::Pcap { .. } => return None,
    })
}

/// The name of a configured device in reports: as for `--device`, or the file's `kind`.
pub fn device_name(device: Option<&DeviceConfig>) -> String {
    let Some(device) = device else { return "none".to_owned() };
    let driver = || device.driver().map_or("unknown", |driver| driver.trim_start_matches("net_")).to_owned();
    kind_of(device).map_or_else(driver, |kind| kind.to_string())
}

/// Reads a configuration file. If it does not say which thread turns the engine, `engine` does, unless it has settings
/// for threads.
fn read(file: &Path, engine: EngineMode) -> anyhow::Result<uwarp::Config> {
    let wrong = |what: &dyn fmt::Display| usage(format!("{}: {what}", file.display()));
    // Read once: it may be a pipe.
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    let mut config = uwarp::Config::from_toml_str(&text).map_err(|error| wrong(&error))?;
    let tables: toml::Table = text.parse().map_err(|error| wrong(&error))?;
    let says = tables.get("engine").is_some_and(|table| table.get("mode").is_some());
    if !says && config.engine.count == 1 && config.engine.cpus.is_empty() {
        config.engine.mode = engine;
    }
    Ok(config)
}

/// A role's end of a device, with the settings that both ends share.
fn end_of(device: DeviceConfig, role: Role) -> DeviceConfig {
    match (device, role) {
        (DeviceConfig::Memif { socket, zero_copy, ring_size, buffer_size, .. }, _) => DeviceConfig::Memif {
            role: role.memif(),
            socket,
            zero_copy: zero_copy && role == Role::Client,
            ring_size,
            buffer_size,
        },
        // One of the two listens.
        (DeviceConfig::VirtioUser { socket, server, .. }, Role::Server) => {
            DeviceConfig::Vhost { socket, client: server, tso: true }
        }
        (DeviceConfig::Vhost { socket, client, .. }, Role::Client) => {
            DeviceConfig::VirtioUser { socket, server: client, packed: true, queue_size: None, mac: None }
        }
        (device, _) => device,
    }
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }

    fn memif(self) -> MemifRole {
        match self {
            Self::Server => MemifRole::Server,
            Self::Client => MemifRole::Client,
        }
    }
}

impl NetworkFlags {
    /// The kind of device, where no configuration file decides.
    pub fn kind(&self) -> DeviceKind {
        self.device.clone().unwrap_or(DeviceKind::Virtio)
    }

    /// The kind of device that a flag or the configuration file names; `None` if neither does, or if no flag can name
    /// it.
    ///
    /// # Errors
    /// The file is invalid ([`crate::Usage`]).
    pub fn chosen_kind(&self) -> anyhow::Result<Option<DeviceKind>> {
        match &self.config {
            Some(file) if self.device.is_none() => {
                Ok(read(file, EngineMode::Threaded)?.device.as_ref().and_then(kind_of))
            }
            _ => Ok(Some(self.kind())),
        }
    }

    /// The configuration of one side: defaults, then the file, then the flags. `engine` says which thread turns the
    /// engine if neither the file nor a flag does.
    ///
    /// # Errors
    /// One sentence for the first mistake ([`crate::Usage`]).
    pub fn resolve(&self, role: Role, engine: EngineMode) -> anyhow::Result<uwarp::Config> {
        let mut config = match &self.config {
            _ if self.device == Some(DeviceKind::Switch) => self.on_switch(engine)?,
            Some(file) => {
                let mut config = read(file, engine)?;
                if self.device.is_some() {
                    // The file's switch does not apply to another device.
                    config.switch = None;
                }
                set_switch(&mut config, self.socket.as_ref());
                config.device = match config.device {
                    Some(device) => Some(self.merge_device(role, device)?),
                    None => None,
                };
                config
            }
            None => {
                let own = self.default_address(role);
                let prefix = if own.is_ipv4() { PREFIX } else { PREFIX6 };
                let mut config = uwarp::Config::new(self.device_config(role)?, &format!("{own}/{prefix}"))
                    .map_err(|error| usage(error.to_string()))?;
                config.engine.mode = engine;
                config
            }
        };
        self.check_switch(&config)?;
        if let Some(address) = self.address {
            config.address = address;
        }
        config.more_addresses.extend(&self.another_address);
        for gateway in &self.gateway {
            config = config.gateway(*gateway);
        }
        if let Some(number) = self.vlan {
            config = config.vlan(number);
        }
        if self.ipv6 && self.config.is_none() && self.address.is_none() {
            // Both ends of a pair are known: no other host is on this link.
            config.duplicate_address_detection = 0;
        }
        config.neighbours.extend(&self.neighbour);
        config.mtu = self.mtu.unwrap_or(config.mtu);
        config.wait_for_peer = self.wait.unwrap_or(config.wait_for_peer);
        if self.no_crc {
            config.mpa.crc = false;
        }
        match self.engine {
            Some(EngineKind::Inline) => config = config.inline(),
            Some(EngineKind::Threaded) => config.engine.mode = EngineMode::Threaded,
            None => {}
        }
        // A pair names one CPU for each side, also where a file gives a side several engines: those the system places.
        let is_of_a_pair = crate::side::is_side() && config.engine.count > 1;
        if config.engine.mode == EngineMode::Threaded && !self.cpus.is_empty() && !is_of_a_pair {
            config.engine.cpus.clone_from(&self.cpus);
        }
        if self.hugepages {
            config.eal.hugepages = true;
        }
        if self.pcap.is_some() {
            config.pcap.clone_from(&self.pcap);
        }
        self.merge_faults(&mut config);
        config.validate().map_err(|error| usage(error.to_string()))?;
        Ok(config)
    }

    /// Opens the context; of an inline engine, the calling thread is pinned, which turns it.
    ///
    /// # Errors
    /// The context cannot be opened, or the flags name a CPU that this process may not use.
    pub fn open(&self, config: uwarp::Config) -> anyhow::Result<uwarp::Context> {
        let inline = config.engine.mode == EngineMode::Inline;
        let context = crate::signals::at_once(|| uwarp::Context::open(config))?;
        if inline {
            // Not before: DPDK's own threads would inherit it.
            self.pin()?;
        }
        Ok(context)
    }

    /// Pins the calling thread, if the flags name a CPU.
    ///
    /// # Errors
    /// They name several, or one that this process may not use.
    pub fn pin(&self) -> anyhow::Result<()> {
        match self.cpus[..] {
            [] => Ok(()),
            [cpu] if crate::cacheline::pin(cpu) => Ok(()),
            [cpu] => Err(usage(format!("--cpus names CPU {cpu}, which this process may not use"))),
            _ => Err(usage("--cpus names several CPUs, and an inline engine is turned by one thread: name one")),
        }
    }

    /// The configuration on the switch that the flags name, or else on the first that is found.
    fn on_switch(&self, engine: EngineMode) -> anyhow::Result<uwarp::Config> {
        self.check_meaning(Some(&DeviceKind::Switch), "switch")?;
        let mut config = match &self.config {
            Some(file) => read(file, engine)?,
            None => {
                let mut config = uwarp::Config::on_switch(PathBuf::new());
                config.engine.mode = engine;
                config
            }
        };
        let named = self.socket.clone().or_else(|| config.switch.clone().filter(|path| !path.as_os_str().is_empty()));
        let found = named.or_else(|| {
            std::env::var_os(uwarp::switch::SWITCH_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
        });
        let socket = found
            .or_else(uwarp::switch::find)
            .ok_or_else(|| usage("there is no switch: start uwarp-switch serve, or name its --socket"))?;
        (config.switch, config.device) = (Some(socket), None);
        Ok(config)
    }

    /// Checks that no flag sets what a switch gives.
    fn check_switch(&self, config: &uwarp::Config) -> anyhow::Result<()> {
        if config.switch.is_none() {
            return Ok(());
        }
        for (given, flag) in [
            (self.address.is_some(), "--address"),
            (!self.another_address.is_empty(), "--another-address"),
            (!self.gateway.is_empty(), "--gateway"),
            (self.vlan.is_some(), "--vlan"),
            (!self.neighbour.is_empty(), "--neighbour"),
            (self.mtu.is_some(), "--mtu"),
        ] {
            if given {
                return Err(usage(format!("{flag} is the switch's to give: leave it out, or choose another --device")));
            }
        }
        Ok(())
    }

    /// Whether this process joins a switch.
    fn is_on_switch(&self) -> bool {
        match (&self.device, &self.config) {
            (Some(device), _) => *device == DeviceKind::Switch,
            (None, Some(file)) => read(file, EngineMode::Threaded).is_ok_and(|config| config.switch.is_some()),
            (None, None) => false,
        }
    }

    /// The address of one side where nobody chooses another. On a switch, it is the host's own.
    pub fn default_address(&self, role: Role) -> IpAddr {
        match (role, self.ipv6) {
            _ if self.is_on_switch() => {
                if self.ipv6 {
                    Ipv6Addr::LOCALHOST.into()
                } else {
                    Ipv4Addr::LOCALHOST.into()
                }
            }
            (Role::Server, false) => SERVER_ADDRESS.into(),
            (Role::Client, false) => CLIENT_ADDRESS.into(),
            (Role::Server, true) => SERVER_ADDRESS6.into(),
            (Role::Client, true) => CLIENT_ADDRESS6.into(),
        }
    }

    /// The device of a configuration file, with the flags' changes.
    fn merge_device(&self, role: Role, device: DeviceConfig) -> anyhow::Result<DeviceConfig> {
        let kind = kind_of(&device);
        if self.device.is_some() && self.device != kind {
            // The file's settings do not apply to another kind.
            return self.device_config(role);
        }
        self.check_meaning(kind.as_ref(), &device_name(Some(&device)))?;
        if self.exchange_ends && self.device.is_none() {
            return Err(usage(
                "--exchange-ends does not apply to the end that the configuration file names: name a --device as well, or change the file",
            ));
        }
        let mut device = if self.device.is_some() { end_of(device, self.end(role)) } else { device };
        match &mut device {
            DeviceConfig::Memif { role, socket, zero_copy, .. } => {
                set(socket, self.socket.as_ref());
                // The server always copies.
                *zero_copy |= self.zero_copy && *role == MemifRole::Client;
            }
            DeviceConfig::VirtioUser { socket, packed, .. } => {
                set(socket, self.socket.as_ref());
                *packed &= !self.split;
            }
            DeviceConfig::Vhost { socket, .. } => set(socket, self.socket.as_ref()),
            DeviceConfig::AfPacket { interface: name, .. } | DeviceConfig::Tap { name, .. } => {
                set(name, self.interface.as_ref());
            }
            DeviceConfig::Pci { .. }
            | DeviceConfig::Ring { .. }
            | DeviceConfig::Null { .. }
            | DeviceConfig::Pcap { .. } => {}
        }
        Ok(device)
    }

    /// The role whose end of a socket device this role takes.
    fn end(&self, role: Role) -> Role {
        if self.exchange_ends { role.other() } else { role }
    }

    /// Checks that flags for some kinds of device only apply to this one, which is called `name`.
    fn check_meaning(&self, kind: Option<&DeviceKind>, name: &str) -> anyhow::Result<()> {
        let has_ends = matches!(kind, Some(DeviceKind::Virtio | DeviceKind::Memif));
        let takes_socket = has_ends || kind == Some(&DeviceKind::Switch);
        let takes_interface = matches!(kind, Some(DeviceKind::AfPacket | DeviceKind::Tap));
        for (given, taken, flag) in [
            (self.socket.is_some(), takes_socket, "--socket"),
            (self.interface.is_some(), takes_interface, "--interface"),
            (self.zero_copy, kind == Some(&DeviceKind::Memif), "--zero-copy"),
            (self.split, kind == Some(&DeviceKind::Virtio), "--split"),
            (self.exchange_ends, has_ends, "--exchange-ends"),
        ] {
            if given && !taken {
                return Err(usage(format!(
                    "{flag} does not apply to the device {name}: leave it out, or choose another --device"
                )));
            }
        }
        Ok(())
    }

    fn merge_faults(&self, config: &mut uwarp::Config) {
        let shares = [self.loss, self.duplicate, self.reorder, self.corrupt, self.recut];
        if shares.iter().all(Option::is_none) && self.fault_seed.is_none() && !self.recut_received_only {
            return;
        }
        let faults = config.faults.get_or_insert_with(FaultOptions::default);
        let FaultOptions { loss, duplicate, reorder, corrupt, recut, .. } = faults;
        for (share, field) in shares.into_iter().zip([loss, duplicate, reorder, corrupt, recut]) {
            *field = share.unwrap_or(*field);
        }
        faults.seed = self.fault_seed.unwrap_or(faults.seed);
        faults.recut_received_only |= self.recut_received_only;
    }

    /// The device of one side, from the flags alone.
    ///
    /// # Errors
    /// A flag that the device needs is missing, or a flag does not apply to it.
    pub fn device_config(&self, role: Role) -> anyhow::Result<DeviceConfig> {
        let kind = self.kind();
        self.check_meaning(Some(&kind), &kind.to_string())?;
        let socket = || self.socket.clone().unwrap_or_else(|| default_socket(&kind));
        let role = self.end(role);
        Ok(match (&kind, role) {
            (DeviceKind::Virtio, Role::Server) => DeviceConfig::Vhost {
                socket: socket(),
                client: false,
                tso: true,
            },
            (DeviceKind::Virtio, Role::Client) => DeviceConfig::VirtioUser {
                socket: socket(),
                server: false,
                packed: !self.split,
                queue_size: None,
                mac: None,
            },
            (DeviceKind::Memif, _) => DeviceConfig::Memif {
                role: role.memif(),
                socket: socket(),
                zero_copy: self.zero_copy && role == Role::Client,
                ring_size: None,
                buffer_size: None,
            },
            (DeviceKind::AfPacket, _) => DeviceConfig::AfPacket {
                interface: self.interface.clone().ok_or_else(|| {
                    usage("--device af_packet needs an --interface: name a kernel interface that nothing else uses, such as one end of a veth pair")
                })?,
                netns: None,
                frame_count: None,
            },
            (DeviceKind::Tap, _) => DeviceConfig::Tap {
                name: self.interface.clone().unwrap_or_else(|| "uwarp0".to_owned()),
                mac: None,
                netns: None,
            },
            (DeviceKind::Pci(address), _) => DeviceConfig::Pci {
                address: address.clone(),
            },
            (DeviceKind::Switch, _) => return Err(usage("a place in a switch is no device of its own")),
        })
    }

    /// The flags as another process of the same tool takes them. Socket, interface and configuration file are left out:
    /// they differ from side to side, and so do CPUs.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut value = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                arguments.extend([flag.to_owned(), value]);
            }
        };
        value("--device", Some(self.kind().to_string()));
        for gateway in &self.gateway {
            value("--gateway", Some(gateway.to_string()));
        }
        for address in &self.another_address {
            value("--another-address", Some(address.to_string()));
        }
        value("--vlan", self.vlan.map(|it| it.to_string()));
        for neighbour in &self.neighbour {
            value("--neighbour", Some(format!("{}={}", neighbour.address, neighbour.mac)));
        }
        value("--mtu", self.mtu.map(|it| it.to_string()));
        value("--engine", self.engine.map(name_of));
        value("--wait", self.wait.map(|it| format!("{}ns", it.as_nanos())));
        value("--loss", self.loss.map(|it| it.to_string()));
        value("--duplicate", self.duplicate.map(|it| it.to_string()));
        value("--reorder", self.reorder.map(|it| it.to_string()));
        value("--corrupt", self.corrupt.map(|it| it.to_string()));
        value("--recut", self.recut.map(|it| it.to_string()));
        value("--fault-seed", self.fault_seed.map(|it| it.to_string()));
        for (given, flag) in [
            (self.no_crc, "--no-crc"),
            (self.ipv6, "--ipv6"),
            (self.hugepages, "--hugepages"),
            (self.zero_copy, "--zero-copy"),
            (self.split, "--split"),
            (self.exchange_ends, "--exchange-ends"),
            (self.recut_received_only, "--recut-received-only"),
        ] {
            if given {
                arguments.push(flag.to_owned());
            }
        }
        arguments
    }
}

/// Has a file's switch at another socket, if a flag names one.
fn set_switch(config: &mut uwarp::Config, socket: Option<&PathBuf>) {
    if let Some(switch) = &mut config.switch {
        set(switch, socket);
    }
}

/// Sets a field from a flag, if that was given.
fn set<T: Clone>(field: &mut T, flag: Option<&T>) {
    if let Some(value) = flag {
        field.clone_from(value);
    }
}

/// The default socket, by which processes of one user meet.
fn default_socket(kind: &DeviceKind) -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir())
        .unwrap_or_else(std::env::temp_dir);
    folder.join(format!("uwarp-{kind}.sock"))
}

/// Whether a path is short enough for a Unix socket (108 octets including the final zero, unix(7)).
pub fn fits_a_socket(path: &Path) -> bool {
    path.as_os_str().len() < 108
}

#[cfg(test)]
mod tests;
