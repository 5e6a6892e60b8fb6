//! A connection to a server over the kernel's TCP, established without waiting.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Limit of each attempt. No test depends on it, and a test's machine may stall for longer.
const LIMIT: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_millis(500) };

/// How long a server may be silent before it is probed.
const SILENCE: Duration = Duration::from_secs(5);
/// Unanswered probes after which it is considered dead.
const QUESTIONS: u32 = 3;

/// An attempt to connect.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// A socket that is not connected yet.
    stream: TcpStream,
    start: Instant,
}

impl Connecting {
    /// Starts to connect, from a given address and port or from any.
    pub(crate) fn start(server: SocketAddr, local: Option<SocketAddr>) -> io::Result<Self> {
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        // The port of this connection, too, must be free for the next one.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // A dead host is silent: without probes, a client could wait for it without limit.
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, SILENCE)?;
        sockopt::set_tcp_keepintvl(&socket, SILENCE)?;
        sockopt::set_tcp_keepcnt(&socket, QUESTIONS)?;
        sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32 * (QUESTIONS + 1))?;
        if let Some(local) = local {
            bind(&socket, &local)?;
        }
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self { stream: socket.into(), start: Instant::now() }),
            Err(error) => Err(error.into()),
        }
    }

    /// The stream, which is nonblocking, too; or `self` while there is none.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_that_says_nothing_is_asked_whether_it_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connecting = Connecting::start(listener.local_addr().unwrap(), None).unwrap();
        let stream = loop {
            match connecting.poll().unwrap() {
                Ok(stream) => break stream,
                Err(again) => connecting = again,
            }
        };
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), SILENCE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), SILENCE);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), QUESTIONS);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 20_000);
    }
}
