//! The device that a port runs on: the part of a configuration file that names it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The role of a port in a memif pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemifRole {
    /// Listens on the socket, and serves one client after another.
    Server,
    /// Connects, owns the shared memory, and reconnects when the server has died.
    Client,
}

/// A device and its settings. In TOML a table with `kind = "memif"` and the fields below, in kebab-case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum DeviceConfig {
    /// Shared-memory packet interface between two processes.
    Memif {
        /// Which end this is.
        role: MemifRole,
        /// The control socket.
        socket: PathBuf,
        /// The client hands over its packet buffers instead of copying into the shared rings; the server always copies.
        /// When a zero-copy client disconnects, the driver never returns the buffers in its rings: each peer that dies
        /// costs up to `ring_size` buffers of either pool. Prefer copying if peers come and go.
        #[serde(default)]
        zero_copy: bool,
        /// Slots per ring, a power of two from 2 to 16384. Default 1024.
        #[serde(default)]
        ring_size: Option<u16>,
        /// Octets per slot, at least a frame. Default: what the MTU requires.
        #[serde(default)]
        buffer_size: Option<u16>,
    },
    /// The guest end of a virtio pair in user space.
    VirtioUser {
        /// The vhost-user socket.
        socket: PathBuf,
        /// Listen on the socket instead of connecting to it. Either end survives its peer's death and serves the next
        /// one.
        #[serde(default)]
        server: bool,
        /// Packed virtqueues instead of split ones.
        #[serde(default)]
        packed: bool,
        /// Descriptors per virtqueue, a power of two. Default 1024.
        #[serde(default)]
        queue_size: Option<u16>,
        /// The Ethernet address, `02:00:00:00:00:01`. Default: one derived from the process and the port.
        #[serde(default)]
        mac: Option<String>,
    },
    /// The host end of a virtio pair.
    Vhost {
        /// The vhost-user socket.
        socket: PathBuf,
        /// Connect to the socket (and reconnect) instead of listening on it.
        #[serde(default)]
        client: bool,
        /// Take TCP packets that are longer than the MTU, which the other end leaves to its device to cut. Default:
        /// yes.
        #[serde(default = "yes")]
        tso: bool,
    },
    /// A kernel network interface that this process creates.
    Tap {
        /// The interface's name, at most 15 characters.
        name: String,
        /// The Ethernet address of the DPDK end. Default: one derived from the process and the port.
        #[serde(default)]
        mac: Option<String>,
        /// The network namespace to create it in (a name of `ip netns`, or a path).
        #[serde(default)]
        netns: Option<String>,
    },
    /// An existing kernel network interface, through a packet socket.
    AfPacket {
        /// The interface's name.
        interface: String,
        /// The network namespace that it is in (a name of `ip netns`, or a path).
        #[serde(default)]
        netns: Option<String>,
        /// Frames in each ring. Default 1024.
        #[serde(default)]
        frame_count: Option<u32>,
    },
    /// Rings in one process: the first port of a name is one end of a pair, the second the other.
    Ring {
        /// The pair's name.
        name: String,
        /// A single port that receives its own frames, instead of a pair.
        #[serde(default)]
        loopback: bool,
    },
    /// Discards every frame sent, and receives frames without end, whose content means nothing.
    Null {
        /// Octets of each frame given.
        #[serde(default)]
        frame_size: Option<u16>,
    },
    /// Reads frames from one capture file, and writes frames to another.
    Pcap {
        /// The file to receive from.
        #[serde(default)]
        receive: Option<PathBuf>,
        /// The file to transmit into.
        #[serde(default)]
        transmit: Option<PathBuf>,
    },
    /// A PCI device, by address. EAL probes only those in its own configuration, once, when it starts: so the first
    /// context of a process must be the one on the PCI device.
    Pci {
        /// The address, `0000:01:00.0`, with driver arguments after a comma if any.
        address: String,
    },
}

fn yes() -> bool {
    true
}

impl DeviceConfig {
    /// The DPDK driver of the device; `None` for a PCI device, whose driver the bus selects.
    pub fn driver(&self) -> Option<&'static str> {
        Some(match self {
            DeviceConfig::Memif { .. } => "net_memif",
            DeviceConfig::VirtioUser { .. } => "net_virtio_user",
            DeviceConfig::Vhost { .. } => "net_vhost",
            DeviceConfig::Tap { .. } => "net_tap",
            DeviceConfig::AfPacket { .. } => "net_af_packet",
            DeviceConfig::Ring { .. } => "net_ring",
            DeviceConfig::Null { .. } => "net_null",
            DeviceConfig::Pcap { .. } => "net_pcap",
            DeviceConfig::Pci { .. } => return None,
        })
    }
}
