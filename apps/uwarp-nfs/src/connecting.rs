//! A connection to a server over the kernel's TCP that is made without waiting for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Limit on each attempt.
const LIMIT: Duration = Duration::from_millis(500);

/// An attempt to connect.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// A socket that is not connected yet.
    stream: TcpStream,
    start: Instant,
}

impl Connecting {
    /// Begins to connect.
    pub(crate) fn start(server: SocketAddr) -> io::Result<Self> {
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self { stream: socket.into(), start: Instant::now() }),
            Err(error) => Err(error.into()),
        }
    }

    /// The stream, which does not block either; itself while there is none.
    pub(crate) fn poll(self) -> io::Result<Result<TcpStream, Self>> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(&now))? == 0 {
            return if self.start.elapsed() < LIMIT { Ok(Err(self)) } else { Err(ErrorKind::TimedOut.into()) };
        }
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        self.stream.set_nodelay(true)?;
        Ok(Ok(self.stream))
    }
}
