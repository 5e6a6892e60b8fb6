//! Translates a device's configuration for DPDK: names, driver arguments, sockets.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::alarm::Announcement;
use crate::{DeviceConfig, Error, HEADROOM, MemifRole, PortOptions};

/// The longest path of a socket.
const SOCKET_PATH_MAX: usize = 107;

/// Octets that Linux puts in front of a frame in the ring of a packet socket (TPACKET_V2), including the alignment of
/// the Ethernet header.
const PACKET_SOCKET_HEADER: u32 = 66;

/// The tap driver sends no longer frames, whatever the interface's MTU is.
const TAP_MTU_MAX: u16 = 1500;

/// A socket that a device uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    pub(crate) kind: SocketType,
    /// Whether this end binds it.
    pub(crate) listens: bool,
}

/// A device as DPDK is told to make it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// `vdev` or `pci`.
    pub(crate) bus: &'static str,
    /// The device's name on the bus.
    pub(crate) name: String,
    /// Driver arguments.
    pub(crate) arguments: String,
    pub(crate) socket: Option<Socket>,
    /// Storage of a receive and of a transmit buffer, headroom included.
    pub(crate) rx_room: u16,
    pub(crate) tx_room: u16,
    /// The device may be given frames that it cuts into segments. Drivers differ in the checksum that they want in such
    /// a frame; virtio's is the one we write.
    pub(crate) cuts: bool,
    /// virtio-user: short frames are copied, see `copies`, and receive buffers are shifted.
    pub(crate) virtio: bool,
    /// Descriptors, as the pools allow them.
    pub(crate) rx_descriptors: u16,
    pub(crate) tx_descriptors: u16,
    /// Bursts must be kept apart from the interrupt thread.
    pub(crate) gated: bool,
    /// Stops and starts must be kept apart from it, too; they reconnect a connecting end.
    pub(crate) restarts: bool,
    /// The driver sends EAL's own memory descriptors to the peer, and closes them.
    pub(crate) shares_memory: bool,
    /// How it announces packets.
    pub(crate) announcement: Announcement,
    /// The kernel interface whose MTU must be set.
    pub(crate) tells_mtu: Option<String>,
    pub(crate) netns: Option<String>,
}

/// Octets of a buffer for frames that are cut into segments ([`Offloads::tso`](crate::Offloads)): virtio-user's
/// transmit buffers, and the receive buffers of a vhost with `tso`, so that such a frame is in one piece. Six segments
/// of 1460 octets.
pub const CUT_ROOM: u16 = 9216;

/// The peer writes virtio's header of 12 octets directly in front of the frame, which begins at [`HEADROOM`]. The
/// receiver reads the one and then the other: with this shift from the same cache line of another core, not from two.
const VIRTIO_SHIFT: u16 = 16;

/// Octets of a frame buffer: the MTU, an Ethernet header and two VLAN tags, rounded up, and at least the usual size for
/// drivers.
fn frame_room(mtu: u16) -> u16 {
    (usize::from(mtu) + 22).next_multiple_of(512).max(2048) as u16
}

/// The wanted number of descriptors, as a power of two of at most half of the pool: otherwise a driver that frees sent
/// packets late could have all buffers in its ring.
fn descriptors(wanted: u16, buffers: u32) -> u16 {
    let most = u32::from(wanted).min(buffers / 2).max(2);
    let power = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    power.min(32_768) as u16
}

fn bad(message: String) -> Error {
    Error::Configuration(message)
}

fn plain<'a>(what: &str, text: &'a str) -> Result<&'a str, Error> {
    if text.is_empty() || text.contains([',', '=', '[', ']', '"', '\0']) || text.chars().any(char::is_whitespace) {
        return Err(bad(format!("{what} \"{text}\" is empty or contains white space or one of , = [ ] \"")));
    }
    Ok(text)
}

fn socket_path(path: &Path) -> Result<&str, Error> {
    let text = path.to_str().ok_or_else(|| bad(format!("the socket path {} is not UTF-8", path.display())))?;
    if text.len() > SOCKET_PATH_MAX {
        return Err(bad(format!("the socket path {text} is longer than {SOCKET_PATH_MAX} octets: use a shorter one")));
    }
    plain("the socket path", text)
}

/// Another name of the same file.
fn spelled_otherwise(path: &str) -> Result<String, Error> {
    let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
    let spelled = format!("{directory}/./{name}");
    socket_path(Path::new(&spelled))?;
    Ok(spelled)
}

fn file_path(path: &Path) -> Result<&str, Error> {
    plain("the path", path.to_str().ok_or_else(|| bad(format!("the path {} is not UTF-8", path.display())))?)
}

/// Reads `02:00:00:00:00:01`.
fn check_mac(text: &str) -> Result<(), Error> {
    let parts: Vec<&str> = text.split(':').collect();
    // A number may have a sign, an octet may not.
    let is_octet = |part: &str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let octets: Option<Vec<u8>> =
        parts.iter().map(|part| is_octet(part).then(|| u8::from_str_radix(part, 16).ok()).flatten()).collect();
    match octets.as_deref() {
        Some([first, _, _, _, _, _]) if first & 1 == 0 => Ok(()),
        _ => Err(bad(format!("\"{text}\" is not the Ethernet address of one station, like 02:00:00:00:00:01"))),
    }
}

/// A locally administered address that no other port of this machine has: three octets of process number, one of port
/// number.
pub(crate) fn own_address(number: u32) -> [u8; 6] {
    let process = std::process::id().to_be_bytes();
    [0x02, 0x75, process[1], process[2], process[3], number as u8]
}

/// [`own_address`] as drivers read it.
fn own_mac(number: u32) -> String {
    own_address(number).map(|octet| format!("{octet:02x}")).join(":")
}

fn ring_exponent(size: u16) -> Result<u32, Error> {
    if size.is_power_of_two() && (2..=16_384).contains(&size) {
        return Ok(size.ilog2());
    }
    Err(bad(format!("ring-size is {size}: it must be a power of two from 2 to 16384")))
}

impl Plan {
    pub(crate) fn new(device: &DeviceConfig, options: &PortOptions) -> Result<Plan, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !(576..=9000).contains(&options.mtu) {
            return Err(bad(format!("the MTU is {}: it must be from 576 to 9000", options.mtu)));
        }
        if options.queues == 0 || options.queues > 255 {
            return Err(bad(format!("{} queues: there must be 1 to 255", options.queues)));
        }
        if options.rx_buffers < 16 || options.tx_buffers < 16 {
            return Err(bad("a buffer pool must have at least 16 buffers".to_owned()));
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let room = frame_room(options.mtu);
        let queues = options.queues;
        let rx_descriptors = descriptors(options.rx_descriptors, options.rx_buffers);
        let tx_descriptors = descriptors(options.tx_descriptors, options.tx_buffers);
        let mut plan = Plan {
            bus: "vdev",
            name: format!("{}{number}", device.driver().unwrap_or_default()),
            arguments: String::new(),
            socket: None,
            rx_room: room + HEADROOM as u16,
            tx_room: room + HEADROOM as u16,
            cuts: false,
            virtio: false,
            rx_descriptors,
            tx_descriptors,
            gated: false,
            restarts: false,
            shares_memory: false,
            announcement: Announcement::None,
            tells_mtu: None,
            netns: None,
        };
        match device {
            DeviceConfig::Memif { role, socket, zero_copy, ring_size, buffer_size } => {
                let exponent = ring_exponent(ring_size.unwrap_or(tx_descriptors.min(rx_descriptors).clamp(2, 16_384)))?;
                let slot = buffer_size.unwrap_or(room);
                if *zero_copy && slot > room {
                    return Err(bad(format!(
                        "buffer-size {slot} is more than a packet buffer holds with this MTU ({room})"
                    )));
                }
                // The driver of DPDK 22.11 never takes back the mark of a slot whose frame went on in the next one.
                if u32::from(slot) < u32::from(options.mtu) + 22 {
                    return Err(bad(format!(
                        "buffer-size {slot} is less than a frame of this MTU: {} octets at least, or leave it out",
                        options.mtu + 22
                    )));
                }
                let (name, listens) = match role {
                    MemifRole::Server => ("server", true),
                    MemifRole::Client => ("client", false),
                };
                // The driver keeps one listener per path and process, created or not by its first user. A client that
                // spells the path differently leaves a server in the same process its own.
                let socket_argument = match listens {
                    true => socket_path(socket)?.to_owned(),
                    false => spelled_otherwise(socket_path(socket)?)?,
                };
                // The client defines the rings; the server has no say in them.
                plan.arguments = format!(
                    "role={name},id=0,bsize={slot},rsize={exponent},socket={socket_argument},socket-abstract=no,mac={}",
                    own_mac(number)
                );
                if *zero_copy && !listens {
                    plan.arguments.push_str(",zero-copy=yes");
                }
                plan.socket = Some(Socket { path: socket.clone(), kind: SocketType::SEQPACKET, listens });
                plan.gated = true;
                plan.restarts = true;
                plan.shares_memory = !listens && *zero_copy;
            }
            DeviceConfig::VirtioUser { socket, server, packed, queue_size, mac } => {
                let size = queue_size.unwrap_or(rx_descriptors.max(tx_descriptors).min(1024));
                if !size.is_power_of_two() {
                    return Err(bad(format!("queue-size is {size}: it must be a power of two")));
                }
                if let Some(mac) = mac {
                    check_mac(mac)?;
                }
                plan.arguments = format!(
                    "path={},queues={queues},queue_size={size},mac={}",
                    socket_path(socket)?,
                    mac.clone().unwrap_or_else(|| own_mac(number))
                );
                if *server {
                    plan.arguments.push_str(",server=1");
                }
                if *packed {
                    plan.arguments.push_str(",packed_vq=1");
                }
                plan.virtio = true;
                plan.cuts = options.offloads.tso;
                if plan.cuts {
                    plan.tx_room = plan.tx_room.max(CUT_ROOM);
                }
                plan.rx_descriptors = rx_descriptors.min(size);
                plan.tx_descriptors = tx_descriptors.min(size);
                plan.socket = Some(Socket { path: socket.clone(), kind: SocketType::STREAM, listens: *server });
                // The interrupt thread resets packed rings for the next peer; a connecting end is recreated for it.
                plan.gated = *packed || !*server;
                plan.announcement = Announcement::Driver;
            }
            DeviceConfig::Vhost { socket, client, tso } => {
                plan.arguments = format!("iface={},queues={queues}", socket_path(socket)?);
                if *client {
                    plan.arguments.push_str(",client=1");
                }
                if *tso {
                    plan.arguments.push_str(",tso=1");
                    plan.rx_room = room.max(CUT_ROOM) + HEADROOM as u16;
                }
                plan.socket = Some(Socket { path: socket.clone(), kind: SocketType::STREAM, listens: !client });
                plan.announcement = Announcement::Peer;
            }
            DeviceConfig::Tap { name, mac, netns } => {
                if options.mtu > TAP_MTU_MAX {
                    return Err(Error::Unsupported {
                        device: plan.name,
                        reason: format!("carries an MTU of {TAP_MTU_MAX} at most, and {} is asked for", options.mtu),
                    });
                }
                if name.len() > 15 {
                    return Err(bad(format!("the interface name {name} is longer than 15 characters")));
                }
                plan.arguments = format!("iface={}", plain("the interface name", name)?);
                if let Some(mac) = mac {
                    check_mac(mac)?;
                    // The address given to the driver becomes the kernel's; ours differs in the last bit, see
                    // port/open.rs.
                    let (head, last) = mac.split_at(mac.len() - 1);
                    let last = u8::from_str_radix(last, 16).unwrap_or(0) ^ 1;
                    plan.arguments.push_str(&format!(",mac={head}{last:x}"));
                }
                plan.tells_mtu = Some(name.clone());
                plan.announcement = Announcement::Kernel;
                plan.netns.clone_from(netns);
            }
            DeviceConfig::AfPacket { interface, netns, frame_count } => {
                // The kernel's header precedes the frame in the same slot, and the driver needs buffers for a whole
                // slot.
                let slot = (u32::from(options.mtu) + 22 + PACKET_SOCKET_HEADER).next_multiple_of(512).max(2048);
                plan.rx_room = plan.rx_room.max(slot as u16 + HEADROOM as u16);
                let count = frame_count.unwrap_or(u32::from(rx_descriptors)).next_multiple_of(8).max(8);
                plan.arguments = format!(
                    "iface={},qpairs={queues},blocksz={},framesz={slot},framecnt={count},qdisc_bypass=1",
                    plain("the interface name", interface)?,
                    slot * 8
                );
                plan.announcement = Announcement::Socket;
                plan.netns.clone_from(netns);
            }
            DeviceConfig::Ring { name, .. } => {
                if name.len() > 12 {
                    return Err(bad(format!("the ring name {name} is longer than 12 characters")));
                }
                plan.name = format!("net_ring_{}_{number}", plain("the ring name", name)?);
            }
            DeviceConfig::Null { frame_size } => {
                let size = frame_size.unwrap_or(64);
                // The driver does not compare it with its buffers.
                if size > room {
                    return Err(bad(format!(
                        "frame-size {size} is more than a packet buffer holds with this MTU ({room})"
                    )));
                }
                plan.arguments = format!("size={size}");
            }
            DeviceConfig::Pcap { receive, transmit } => {
                let mut arguments = Vec::new();
                if let Some(path) = receive {
                    arguments.push(format!("rx_pcap={}", file_path(path)?));
                }
                match transmit {
                    Some(path) => arguments.push(format!("tx_pcap={}", file_path(path)?)),
                    None => arguments.push("tx_pcap=/dev/null".to_owned()),
                }
                plan.arguments = arguments.join(",");
            }
            DeviceConfig::Pci { address } => {
                let (name, arguments) = address.split_once(',').unwrap_or((address, ""));
                plan.bus = "pci";
                plan.name = plain("the PCI address", name)?.to_owned();
                plan.arguments = arguments.to_owned();
            }
        }
        Ok(plan)
    }

    /// How far behind the start of a cache line the storage of a receive buffer begins.
    pub(crate) fn rx_shift(&self) -> u16 {
        if self.virtio { VIRTIO_SHIFT } else { 0 }
    }
}

/// What exists at the path of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Stale,
    InUse,
}

fn look(socket: &Socket) -> Result<Found, Error> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => Error::Permission {
            what: format!("the socket {}", socket.path.display()),
            cure: "choose a directory that this user may write to".to_owned(),
        },
        _ => Error::System { what: format!("the socket {}", socket.path.display()), reason: error.to_string() },
    };
    match std::fs::symlink_metadata(&socket.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(bad(format!(
                "{} exists and is not a socket: remove it or choose another path",
                socket.path.display()
            )));
        }
        Ok(_) => {}
    }
    let address = SocketAddrUnix::new(&socket.path).map_err(|error| failed(error.into()))?;
    let probe =
        rustix::net::socket_with(AddressFamily::UNIX, socket.kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(|error| failed(error.into()))?;
    match rustix::net::connect(&probe, &address) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(Found::Stale),
        Err(rustix::io::Errno::NOENT) => Ok(Found::Nothing),
        // EAGAIN: the queue of connections is full. EPROTOTYPE: a socket of another type. Either way, a process
        // listens.
        Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::PROTOTYPE) => Ok(Found::InUse),
        Err(error) => Err(failed(error.into())),
    }
}

/// Clears the path for a device that will listen: removes a socket file that a dead process left behind.
pub(crate) fn clear_stale(socket: &Socket) -> Result<(), Error> {
    if let Some(directory) = socket.path.parent().filter(|directory| !directory.as_os_str().is_empty())
        && !directory.is_dir()
    {
        return Err(bad(format!("the directory of the socket {} does not exist: create it", socket.path.display())));
    }
    match look(socket)? {
        Found::Nothing => Ok(()),
        Found::Stale => std::fs::remove_file(&socket.path).map_err(|error| Error::System {
            what: format!("removing the stale socket {}", socket.path.display()),
            reason: error.to_string(),
        }),
        Found::InUse => Err(bad(format!(
            "another process listens on {}: choose another path or end that process",
            socket.path.display()
        ))),
    }
}

/// Makes a listening call that waits for a peer return: connects to it and closes the connection.
pub(crate) fn poke(socket: &Socket) {
    if let Ok(address) = SocketAddrUnix::new(&socket.path)
        && let Ok(probe) = rustix::net::socket_with(AddressFamily::UNIX, socket.kind, SocketFlags::CLOEXEC, None)
    {
        let _ = rustix::net::connect(&probe, &address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jumbo_frame_fits_one_buffer() {
        assert_eq!(frame_room(1500), 2048);
        assert!(usize::from(frame_room(9000)) >= 9000 + 18);
    }

    #[test]
    fn descriptors_leave_half_of_the_pool() {
        assert_eq!(descriptors(1024, 4096), 1024);
        assert_eq!(descriptors(1024, 400), 128);
        assert_eq!(descriptors(1000, 4096), 512);
    }

    #[test]
    fn a_memif_slot_holds_a_whole_frame() {
        let plan = |buffer_size| {
            let socket = "/tmp/m".into();
            let role = MemifRole::Server;
            let device = DeviceConfig::Memif { role, socket, zero_copy: false, ring_size: None, buffer_size };
            Plan::new(&device, &PortOptions { mtu: 1500, ..PortOptions::default() })
        };
        assert!(plan(None).is_ok() && plan(Some(1522)).is_ok() && plan(Some(9216)).is_ok());
        let error = plan(Some(1521)).expect_err("too short").to_string();
        assert!(error.contains("1522 octets at least"), "{error}");
    }

    #[test]
    fn arguments_that_would_be_misread_are_refused() {
        let options = PortOptions::default();
        for socket in ["", "/tmp/a,b", "/tmp/a=b", "/tmp/a b"] {
            let device = DeviceConfig::Vhost { socket: socket.into(), client: false, tso: false };
            assert!(matches!(Plan::new(&device, &options), Err(Error::Configuration(_))), "{socket}");
        }
        let device = DeviceConfig::Vhost { socket: "x".repeat(108).into(), client: false, tso: false };
        assert!(Plan::new(&device, &options).is_err());
        for mac in [
            "",
            "01:00:00:00:00:01",
            "02:00:00:00:01",
            "2:0:0:0:0:1",
            "xx:00:00:00:00:01",
            "+2:00:00:00:00:01",
            "02:00:00:00:00:+1",
        ] {
            assert!(check_mac(mac).is_err(), "{mac}");
        }
        assert!(check_mac("02:00:00:00:00:01").is_ok());
    }

    #[test]
    fn a_stale_socket_is_told_from_a_live_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = Socket { path: path.clone(), kind: SocketType::STREAM, listens: true };
        assert_eq!(look(&socket).unwrap(), Found::Nothing);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(look(&socket).unwrap(), Found::InUse);
        assert!(clear_stale(&socket).is_err());
        drop(listener);
        assert_eq!(look(&socket).unwrap(), Found::Stale);
        clear_stale(&socket).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        assert!(matches!(clear_stale(&socket), Err(Error::Configuration(_))), "a file of somebody's is left alone");
        assert!(path.exists());
    }
}
