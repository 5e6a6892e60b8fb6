//! Echo requests sent by the kernel, through its own ICMP sockets.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

/// A socket that sends echo requests to one address. The kernel fills in identifier and checksum, fragments what is too
/// long for its interface, and returns only the answers.
pub struct Echo {
    socket: UdpSocket,
    request: u8,
    reply: u8,
    sequence: u16,
}

impl Echo {
    /// To this address. The namespace must belong to the test, because this permits such sockets for its user's group
    /// in it.
    pub fn to(address: IpAddr) -> io::Result<Self> {
        let group = rustix::process::getegid().as_raw();
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"))?;
        let (family, protocol, request, reply) = match address {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
        };
        let socket = UdpSocket::from(socket(family, SocketType::DGRAM, Some(protocol))?);
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        socket.connect((address, 0))?;
        Ok(Self { socket, request, reply, sequence: 0 })
    }

    /// Sends `size` octets and waits, at most a second, for them to return unchanged.
    pub fn once(&mut self, size: usize) -> io::Result<()> {
        self.sequence += 1;
        let data = (0..size).map(|at| (at * 7 + usize::from(self.sequence)) as u8);
        let mut message = vec![self.request, 0, 0, 0, 0, 0];
        message.extend(self.sequence.to_be_bytes());
        message.extend(data);
        self.socket.send(&message)?;
        let mut answer = vec![0; 70_000];
        loop {
            let length = self.socket.recv(&mut answer)?;
            let answer = &answer[..length];
            // An answer to an earlier request may come late.
            if answer[6..8] == message[6..8] {
                let same = answer[0] == self.reply && answer[8..] == message[8..];
                return if same { Ok(()) } else { Err(io::Error::other("the echo is not what was sent")) };
            }
        }
    }

    /// Retries until an answer comes, for at most 20 s: for addresses that are still being checked.
    pub fn until_answered(&mut self) -> io::Result<()> {
        let mut last = Ok(());
        for _ in 0..20 {
            last = self.once(56);
            if last.is_ok() {
                break;
            }
        }
        last
    }
}
