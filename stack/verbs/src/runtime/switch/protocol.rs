//! The messages between a switch and its clients: one JSON object in each packet of a SEQPACKET socket.
//!
//! A client sends a [`Request`] and waits for its [`Answer`]. A client that has joined may also get
//! [`Answer::Changed`], [`Answer::Plugged`] and [`Answer::Unplugged`], at any time. Everything that a client holds is
//! freed when its connection ends, or its process.

use crate::config::{InterfaceAddress, MacAddress};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Version of these messages. A switch serves clients of its own version only. Of each version are the fields `request`
/// and `version` of the first request, and [`Answer::Refused`], so that either side learns the other's.
pub const VERSION: u32 = 5;
/// Most octets of a message.
pub const LONGEST: usize = 128 << 10;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "request", deny_unknown_fields)]
pub enum Request {
    /// The addresses and the MTU. Any connection may ask, and gets no place by it.
    Offer {
        /// [`VERSION`].
        version: u32,
    },
    /// A place: a cable to the switch, and a block of ports. Once for each connection.
    Join {
        /// [`VERSION`].
        version: u32,
        /// The program's name, for people.
        program: String,
        /// Of a program in another network namespace than the switch's: the addresses that it wants to have there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<Guest>,
    },
    /// A TCP port outside the client's block, or one that it listens on.
    Reserve {
        /// The port.
        port: u16,
        /// An address of the client's network; none: all.
        address: Option<IpAddr>,
    },
    /// Gives such a port back.
    Release {
        /// The port.
        port: u16,
        /// As it was reserved.
        address: Option<IpAddr>,
    },
    /// Delivers what the client has sent by its cable to the switch. A program that ends at once loses what the switch
    /// has not taken.
    Deliver,
    /// The clients and their counters: as many as fit into a message. [`status`] asks for all.
    Status {
        /// [`VERSION`].
        version: u32,
        /// The first place that is asked for.
        from: u16,
    },
}

/// What the switch says to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answer {
    /// To [`Request::Offer`].
    Offer(Offer),
    /// To [`Request::Join`]. The [`Plug`](uwarp_ring::cable::Plug) of the client's cable to the switch comes along, the
    /// cable's second side, and behind it the file of the [`Owners`](uwarp_ring::cable::Owners) of all ports.
    Welcome(Welcome),
    /// To [`Request::Reserve`].
    Reserved,
    /// To [`Request::Release`].
    Released,
    /// To [`Request::Deliver`].
    Delivered,
    /// To [`Request::Status`].
    Status(Status),
    /// To no request: the addresses on the switch have changed.
    Changed {
        /// What the client is offered now. Only its addresses change.
        offer: Offer,
        /// All addresses on the switch.
        located: Vec<Located>,
    },
    /// To no request: there is a cable to another client. Its [`Plug`](uwarp_ring::cable::Plug) comes along.
    Plugged {
        /// The other client's number.
        peer: u16,
        /// The plug is the cable's first side.
        first: bool,
    },
    /// To no request: a client to which there was a cable has gone.
    Unplugged {
        /// Its number.
        peer: u16,
    },
    /// The request is not granted.
    Refused {
        /// What kind of refusal it is.
        refusal: Refusal,
        /// One sentence with the cause, and the cure where there is one.
        reason: String,
    },
}

/// The version that a request names. Requests of other versions need not be understood otherwise.
#[derive(Deserialize)]
struct Named {
    version: u32,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Switch and client speak different versions, or the request does not fit.
    Protocol,
    /// There are as many clients as the switch can have, or as the user may have.
    Full,
    /// Another network namespace has one of the addresses, or the user may not have it.
    Address,
    /// Somebody owns the port.
    PortTaken,
    /// The client has too many ports, or the port is kept for others.
    PortLimit,
    /// The switch failed.
    Failed,
}

/// A network namespace whose programs join the switch of another one, with their own addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// The namespace.
    pub namespace: Namespace,
    /// Its addresses, at least one.
    pub addresses: Vec<InterfaceAddress>,
}

/// An address on a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The address.
    pub address: IpAddr,
    /// The number of its network in the tables of ports. Clients of one network have the same addresses.
    pub network: u8,
}

/// What all clients of a network have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The network's addresses, at least one.
    pub addresses: Vec<InterfaceAddress>,
    /// Largest IP packet.
    pub mtu: u16,
    /// Router for IPv4 hosts outside of all subnets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
    /// The same for IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway6: Option<Ipv6Addr>,
    /// The network namespace whose addresses these are; `None` if they were chosen for the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
}

/// A network namespace, by the device and the inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace(pub u64, pub u64);

impl Namespace {
    /// The calling thread's; `None` if /proc does not say it.
    pub fn own() -> Option<Namespace> {
        let file = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
        Some(Namespace(file.dev(), file.ino()))
    }
}

/// A client's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Addresses and MTU.
    pub offer: Offer,
    /// The number of the client's network.
    pub network: u8,
    /// All addresses on the switch.
    pub located: Vec<Located>,
    /// Number of the place.
    pub place: u16,
    /// The client's number in the table of ports. Later clients at the same place have others.
    pub number: u16,
    /// The client's hardware address.
    pub mac: MacAddress,
    /// The switch's, to which every frame goes.
    pub switch_mac: MacAddress,
    /// First and last port of its block.
    pub ports: (u16, u16),
}

/// A switch and its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The switch's process.
    pub pid: u32,
    /// Addresses and MTU.
    pub offer: Offer,
    /// Most clients.
    pub most_clients: usize,
    /// The clients, by place.
    pub clients: Vec<ClientStatus>,
    /// The place of the next client that did not fit into the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u16>,
    /// What leads to other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkStatus>,
}

/// The uplink and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// DPDK's name of the device.
    pub device: String,
    /// The hardware address that stands for all clients.
    pub mac: MacAddress,
    /// Its link passes frames.
    pub up: bool,
    /// Frames from other hosts.
    pub received: u64,
    /// Their octets.
    pub received_octets: u64,
    /// Frames that the device took.
    pub sent: u64,
    /// Frames of these that the switch made: resets, and answers to ARP, Neighbor Discovery and pings.
    pub answered: u64,
    /// Dropped frames by reason.
    pub drops: std::collections::BTreeMap<String, u64>,
}

/// A client and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Number of the place.
    pub place: u16,
    /// The process, 0 if the switch cannot see it.
    pub pid: u32,
    /// The user.
    pub uid: u32,
    /// The program's name, as it says.
    pub program: String,
    /// The addresses of its network, if that is another one than the switch's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// First and last port of its block.
    pub ports: (u16, u16),
    /// The ports that it has reserved: those that it listens on, and those outside its block.
    pub listening: Vec<u16>,
    /// Frames from the client.
    pub received: u64,
    /// Their octets.
    pub received_octets: u64,
    /// Frames that the client was given.
    pub sent: u64,
    /// Frames of these that the switch made: resets, ICMP errors, answers to ARP and Neighbor Discovery.
    pub answered: u64,
    /// Dropped frames by reason.
    pub drops: std::collections::BTreeMap<String, u64>,
}

/// The address of a socket, however long its path is, and what has to stay open until the address was used.
///
/// # Errors
/// There is no such directory, or it is no path for a socket.
pub fn address(path: &Path) -> io::Result<(SocketAddrUnix, Option<OwnedFd>)> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return Ok((address, None));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL.into()) };
    let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((SocketAddrUnix::new(&short)?, Some(directory)))
}

/// A connected socket.
///
/// # Errors
/// Nobody listens there, or may not be connected to.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (address, _directory) = address(path)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// The most descriptors that come along with a message.
const DESCRIPTORS: usize = 4;

/// Sends a message, with at most four descriptors.
///
/// # Errors
/// The other end is gone, or (on a socket that does not block) does not read.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let octets = serde_json::to_vec(message).map_err(io::Error::other)?;
    if octets.len() > LONGEST {
        return Err(io::Error::other(format!("a message of {} octets, of {LONGEST} at most", octets.len())));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(&octets)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message and the descriptors that came along; `None` at the end.
///
/// # Errors
/// The message is none of this type, or too long; on a socket that does not block, that none waits.
pub fn receive<Message: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut octets = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut octets)];
        match recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    // Without room for all descriptors in this process, those that did not come are missed where they are needed.
    Ok(Some((parse(&octets[..received.bytes])?, descriptors)))
}

fn parse<Message: DeserializeOwned>(octets: &[u8]) -> io::Result<Message> {
    serde_json::from_slice(octets).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// Asks a switch for its status, on a connection of [`connect`] that has no place.
///
/// # Errors
/// The switch does not answer, or refuses.
pub fn status(socket: impl AsFd) -> io::Result<Status> {
    let mut all: Option<Status> = None;
    loop {
        let from = all.as_ref().and_then(|status| status.next).unwrap_or(0);
        send(&socket, &Request::Status { version: VERSION, from }, &[])?;
        let part = match receive(&socket)? {
            Some((Answer::Status(part), _)) => part,
            Some((Answer::Refused { reason, .. }, _)) => return Err(io::Error::other(reason)),
            Some(_) => return Err(io::Error::other("the switch answers something else")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let is_last = part.next.is_none_or(|next| next <= from);
        match &mut all {
            None => all = Some(part),
            Some(all) => {
                all.next = part.next;
                all.clients.extend(part.clients);
            }
        }
        if let Some(all) = all.take_if(|_| is_last) {
            return Ok(all);
        }
    }
}

/// What a client has sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A request.
    Request(Request),
    /// One of another version.
    OtherVersion(u32),
    /// Descriptors came along, which no request has. They are still on the socket: receiving them would make this
    /// process their last owner, and close them at any cost.
    Descriptors,
    /// The end.
    End,
}

/// Receives a request, from a client whom nobody trusts.
///
/// # Errors
/// It is none, or too long; on a socket that does not block, that none waits.
pub fn receive_request(socket: impl AsFd) -> io::Result<Received> {
    let mut octets = vec![0; LONGEST];
    let look = |buffer: &mut [u8], flags| {
        recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut RecvAncillaryBuffer::default(), flags)
    };
    let seen = look(&mut octets, RecvFlags::PEEK)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::Descriptors);
    }
    // Takes the packet.
    look(&mut [], RecvFlags::empty())?;
    if seen.bytes == 0 {
        return Ok(Received::End);
    }
    if seen.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    let octets = &octets[..seen.bytes];
    match parse::<Named>(octets) {
        Ok(Named { version }) if version != VERSION => Ok(Received::OtherVersion(version)),
        _ => parse(octets).map(Received::Request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn messages_and_descriptors_arrive_one_by_one() {
        let (here, there) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        let offer = Offer {
            addresses: vec!["10.0.0.1/24".parse().unwrap()],
            mtu: 1500,
            gateway: None,
            gateway6: None,
            namespace: None,
        };
        let welcome = Answer::Welcome(Welcome {
            offer,
            network: 0,
            located: vec![Located { address: [10, 0, 0, 1].into(), network: 0 }],
            place: 3,
            number: 7,
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            switch_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            ports: (1024, 2047),
        });
        send(&here, &welcome, &[file.as_fd(), file.as_fd()]).unwrap();
        send(&here, &Answer::Released, &[]).unwrap();
        drop(here);
        let (first, descriptors) = receive::<Answer>(&there).unwrap().unwrap();
        assert_eq!((first, descriptors.len()), (welcome, 2));
        let (second, descriptors) = receive::<Answer>(&there).unwrap().unwrap();
        assert_eq!((second, descriptors.len()), (Answer::Released, 0));
        assert!(receive::<Answer>(&there).unwrap().is_none());
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for text in ["", "{}", "null", "{\"request\":\"reserve\"}", "{\"request\":\"reserve\",\"port\":65536}", "\u{0}"]
        {
            let (here, there) = pair();
            rustix::net::send(&here, text.as_bytes(), SendFlags::empty()).unwrap();
            drop(here);
            // An empty packet is how the end looks.
            let is_end = receive_request(&there).map(|received| received == Received::End);
            assert!(is_end.unwrap_or(!text.is_empty()), "{text}");
        }
        let (here, there) = pair();
        let long = format!("{{\"request\":\"reserve\",\"port\":1{}}}", " ".repeat(LONGEST));
        rustix::net::send(&here, long.as_bytes(), SendFlags::empty()).unwrap();
        assert_eq!(receive_request(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_request_is_received_once_and_without_descriptors() {
        let (here, there) = pair();
        for request in [Request::Reserve { port: 7, address: None }, Request::Status { version: VERSION, from: 0 }] {
            send(&here, &request, &[]).unwrap();
            assert_eq!(receive_request(&there).unwrap(), Received::Request(request));
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&here, &Request::Deliver, &[file.as_fd()]).unwrap();
        let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert_eq!(receive_request(&there).unwrap(), Received::Descriptors);
        assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), before);
    }

    #[test]
    fn a_request_of_another_version_names_it_whatever_else_it_has() {
        for (text, expected) in [
            ("{\"request\":\"offer\",\"version\":1}", Received::OtherVersion(1)),
            ("{\"request\":\"join\",\"version\":99,\"program\":\"p\",\"new\":[1]}", Received::OtherVersion(99)),
            ("{\"request\":\"unheard-of\",\"version\":55}", Received::OtherVersion(55)),
        ] {
            let (here, there) = pair();
            rustix::net::send(&here, text.as_bytes(), SendFlags::empty()).unwrap();
            assert_eq!(receive_request(&there).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_socket_may_have_any_path() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(100));
        std::fs::create_dir(&long).unwrap();
        for path in [directory.path().join("s"), long.join("s")] {
            let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let (address, _directory) = address(&path).unwrap();
            rustix::net::bind(&listener, &address).unwrap();
            rustix::net::listen(&listener, 1).unwrap();
            connect(&path).unwrap();
        }
    }
}
