//! A connection to a server over the kernel's TCP that is made without waiting for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Limit on each attempt. No test is about it, and a test's machine may stand still for longer.
const LIMIT: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_millis(500) };

/// An attempt to connect.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// A socket that is not connected yet.
    stream: TcpStream,
    start: Instant,
}

impl Connecting {
    /// Begins to connect, from a certain address and port or from any.
    pub(crate) fn start(server: SocketAddr, local: Option<SocketAddr>) -> io::Result<Self> {
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        // Of this one, too, the port must be free for the next.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if let Some(local) = local {
            bind(&socket, &local)?;
        }
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
