//! A network of two hosts, each a process: the two ends of a socket device, or a veth pair or two taps on a bridge in a
//! separate network namespace.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uwarp::config::KeepAlive;
use uwarp::{Config, DeviceConfig, MemifRole};
use uwarp_netns::{self as netns, End, Namespace, Queues};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// vhost on the server's side, virtio-user on the client's.
    Virtio,
    /// memif, copying.
    Memif,
    /// A veth pair and packet sockets.
    AfPacket,
    /// Two taps on a bridge.
    Tap,
}

/// Which of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// 10.0.0.1, the end that listens on the socket.
    Server,
    /// 10.0.0.2.
    Client,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

/// What both processes need to know of a network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wire {
    /// The kind of both devices.
    pub device: Device,
    /// The socket, or the namespace.
    place: String,
}

impl Wire {
    fn device(&self, side: Side) -> DeviceConfig {
        let socket = || PathBuf::from(&self.place);
        match (self.device, side) {
            (Device::Virtio, Side::Server) => DeviceConfig::Vhost { socket: socket(), client: false, tso: true },
            (Device::Virtio, Side::Client) => {
                DeviceConfig::VirtioUser { socket: socket(), server: false, packed: false, queue_size: None, mac: None }
            }
            (Device::Memif, _) => DeviceConfig::Memif {
                role: if side == Side::Server { MemifRole::Server } else { MemifRole::Client },
                socket: socket(),
                zero_copy: false,
                ring_size: None,
                buffer_size: None,
            },
            (Device::AfPacket, _) => DeviceConfig::AfPacket {
                interface: interface(side).to_owned(),
                netns: Some(self.place.clone()),
                frame_count: None,
            },
            (Device::Tap, _) => {
                DeviceConfig::Tap { name: interface(side).to_owned(), mac: None, netns: Some(self.place.clone()) }
            }
        }
    }

    /// The configuration of one side. A lost peer is detected after six seconds (a shared machine may stop a processor
    /// for two), and the ports of a closed connection are soon free again.
    pub fn config(&self, side: Side) -> Config {
        configure(Config::new(self.device(side), address(side)).expect("a good address"))
    }
}

/// The settings of all these tests.
pub fn configure(mut config: Config) -> Config {
    config.wait_for_peer = crate::PATIENCE;
    config.tcp.user_timeout = Some(Duration::from_secs(6));
    config.tcp.time_wait = Duration::from_millis(20);
    config.tcp.rto_initial = Duration::from_millis(100);
    config.tcp.keep_alive =
        KeepAlive { enabled: true, idle: Duration::from_secs(2), interval: Duration::from_secs(1), probes: 4 };
    config.buffers.receive = 4096;
    config.buffers.transmit = 4096;
    config.buffers.descriptors = 512;
    uwarp_middlebox::behind(config.without_monitor())
}

/// Address and prefix of a side.
pub fn address(side: Side) -> &'static str {
    match side {
        Side::Server => "10.0.0.1/24",
        Side::Client => "10.0.0.2/24",
    }
}

fn interface(side: Side) -> &'static str {
    match side {
        Side::Server => "server",
        Side::Client => "client",
    }
}

/// A network, which is removed on drop.
#[derive(Debug)]
pub struct Network {
    /// The description for the other process.
    pub wire: Wire,
    namespace: Option<Namespace>,
    /// Held for its removal.
    _folder: Option<tempfile::TempDir>,
}

impl Network {
    /// Creates a network. Returns `None`, and leaves a note, if the test has to be left out: af_packet and tap need
    /// root, for a network namespace.
    pub fn new(device: Device) -> Option<Self> {
        if matches!(device, Device::AfPacket | Device::Tap) {
            if uwarp_notes::lacks_root("a network namespace") {
                return None;
            }
            let namespace = Namespace::new("vdev").expect("a network namespace");
            let ends = [Side::Server, Side::Client].map(|side| End::silent(interface(side)).of(&namespace));
            if device == Device::AfPacket {
                netns::veth(9000, ends).expect("a veth pair");
            } else {
                netns::taps(ends.map(|end| (end, Queues::Several))).expect("two taps on a bridge");
            }
            let wire = Wire { device, place: namespace.name().to_owned() };
            return Some(Self { wire, namespace: Some(namespace), _folder: None });
        }
        // A short name: the path of a socket has at most 107 octets.
        let folder = tempfile::Builder::new().prefix("uw").tempdir().expect("a temporary directory");
        let place = folder.path().join("s").to_str().expect("a plain path").to_owned();
        Some(Self { wire: Wire { device, place }, namespace: None, _folder: Some(folder) })
    }
    /// The namespace in which both ends of the device are.
    ///
    /// # Panics
    /// A socket device has none.
    pub fn namespace(&self) -> &Namespace {
        self.namespace.as_ref().expect("a device with interfaces")
    }
}
