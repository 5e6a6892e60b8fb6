//! A client's TCP stream over uwarp, joined to one of the server's: for MOUNT, which is not for RDMA, and for clients without it.

use crate::connecting::Connecting;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as KernelStream};
use uwarp::TcpStream;

/// Octets on their way in each direction.
const ROOM: usize = 64 << 10;

/// One direction.
#[derive(Debug)]
struct Way {
    room: Vec<u8>,
    from: usize,
    to: usize,
    /// The source has ended.
    ended: bool,
    /// The sink has been told.
    told: bool,
}

impl Way {
    fn new() -> Self {
        Self { room: vec![0; ROOM], from: 0, to: 0, ended: false, told: false }
    }

    /// Moves what can be moved; true if that was something.
    fn step(&mut self, source: &mut impl Read, sink: &mut impl Write) -> io::Result<bool> {
        let mut busy = false;
        if self.from == self.to && !self.ended {
            (self.from, self.to) = (0, 0);
            match source.read(&mut self.room) {
                Ok(0) => self.ended = true,
                Ok(count) => self.to = count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while self.from < self.to {
            match sink.write(&self.room[self.from..self.to]) {
                Ok(count) => {
                    self.from += count;
                    busy = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(busy)
    }

    /// Whether the end of the source is to be told to the sink now.
    fn ends(&mut self) -> bool {
        let ends = self.ended && self.from == self.to && !self.told;
        self.told |= ends;
        ends
    }
}

/// The server's side.
#[derive(Debug)]
enum Server {
    /// None while it is looked at.
    Connecting(Option<Connecting>),
    Up(KernelStream),
}

/// Two streams, joined.
#[derive(Debug)]
pub struct Relay {
    client: TcpStream,
    server: Server,
    to_server: Way,
    to_client: Way,
}

impl Relay {
    /// Begins to connect to the server for a client.
    ///
    /// # Errors
    /// The server is not there; the client's stream is closed by that.
    pub fn new(mut client: TcpStream, server: SocketAddr) -> io::Result<Self> {
        let server = Server::Connecting(Some(Connecting::start(server, None)?));
        client.set_nodelay(true);
        client.set_nonblocking(true);
        Ok(Self { client, server, to_server: Way::new(), to_client: Way::new() })
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.client.peer_addr()
    }

    /// Goes on without waiting; whether something was moved. `None` once both sides have ended.
    ///
    /// # Errors
    /// One of the streams was lost, or the server is not there.
    pub fn step(&mut self) -> io::Result<Option<bool>> {
        let server = match &mut self.server {
            Server::Up(stream) => stream,
            Server::Connecting(connecting) => {
                let Some(attempt) = connecting.take() else { return Err(ErrorKind::NotConnected.into()) };
                self.server = match attempt.poll()? {
                    Ok(stream) => Server::Up(stream),
                    Err(attempt) => Server::Connecting(Some(attempt)),
                };
                return Ok(Some(matches!(self.server, Server::Up(_))));
            }
        };
        let there = self.to_server.step(&mut self.client, server)?;
        if self.to_server.ends() {
            server.shutdown(Shutdown::Write)?;
        }
        let back = self.to_client.step(server, &mut self.client)?;
        if self.to_client.ends() {
            self.client.shutdown_write();
        }
        let over = self.to_server.told && self.to_client.told;
        Ok((!over).then_some(there || back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};
    use uwarp::{Config, Context};

    #[test]
    fn octets_and_ends_go_both_ways() {
        let config =
            |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
        let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
        let mut listener = uwarp::TcpListener::bind(&there, 2049).unwrap();
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(&here, there.socket_address(2049)).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut relay = Relay::new(stream, backend.local_addr().unwrap()).unwrap();
        let (mut server, _) = backend.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        client.set_nonblocking(true);
        // More than any buffer on the way holds.
        let data: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 7) as u8).collect();
        let (mut sent, mut echoed, mut back) = (0, Vec::new(), Vec::new());
        let (mut returned, mut server_ended, mut client_ended) = (0, false, false);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut room = vec![0; 10_000];
        while !client_ended {
            if sent < data.len() {
                sent += client.write(&data[sent..]).unwrap_or(0);
                if sent == data.len() {
                    client.shutdown_write();
                }
            }
            match server.read(&mut room) {
                Ok(0) => server_ended = true,
                Ok(count) => echoed.extend_from_slice(&room[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if returned < echoed.len() {
                returned += server.write(&echoed[returned..]).unwrap_or(0);
            } else if server_ended {
                let _ = server.shutdown(Shutdown::Write);
            }
            match client.read(&mut room) {
                Ok(0) => client_ended = true,
                Ok(count) => back.extend_from_slice(&room[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let _ = relay.step().unwrap();
            // What the relay has handed over leaves when somebody turns the engine, who is the server's main loop otherwise.
            there.poll();
            assert!(Instant::now() < deadline, "{sent} {} {returned} {}", echoed.len(), back.len());
        }
        assert!(back == data);
        assert_eq!(relay.step().unwrap(), None);
    }
}
