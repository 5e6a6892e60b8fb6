//! A packet socket that carries the frames of attackers: they come from an interface beside whoever else uses it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket, sockopt,
};
use uwarp_sim_tests::hostile::den::Carrier;
use uwarp_tcp::Instant;

/// Octets that the kernel keeps: a target's whole flight, each frame with the kernel's own bookkeeping.
const ROOM: usize = 64 << 20;
/// More than a frame has.
const FRAME: usize = 16 << 10;

/// The socket.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// On an interface of this thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, or this is not root.
    pub fn open(interface: &str) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        setsockopt(&socket, sockopt::RcvBufForce, &ROOM)?;
        let link = getifaddrs()?
            .filter(|one| one.interface_name == interface)
            .find_map(|one| one.address?.as_link_addr().copied())
            .ok_or(io::ErrorKind::NotFound)?;
        bind(socket.as_raw_fd(), &link)?;
        Ok(Self(socket))
    }
}

impl Carrier for PacketSocket {
    fn send(&mut self, _now: Instant, frame: &[u8]) {
        match send(self.0.as_raw_fd(), frame, MsgFlags::empty()) {
            // Without room in the queue the frame is lost, as on any network.
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => {}
            Err(error) => panic!("a frame of {} octets: {error}", frame.len()),
        }
    }

    fn receive(&mut self, _now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut room = vec![0; FRAME];
        // Not for ever: the attack has its own time to keep.
        while frames.len() < 256 {
            match recv(self.0.as_raw_fd(), &mut room, MsgFlags::empty()) {
                Ok(length) => frames.push(room[..length].to_vec()),
                Err(Errno::EAGAIN) => break,
                Err(error) => panic!("the interface is there as long as the network: {error}"),
            }
        }
        frames
    }
}
