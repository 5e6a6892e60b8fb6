//! Connects a client's TCP stream over uwarp to one of the server's: for MOUNT, which does not use RDMA, and for
//! clients without RDMA.

use crate::clients::Idle;
use crate::connecting::Connecting;
use crate::records::Marks;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as KernelStream};
use std::time::{Duration, Instant};
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
    /// The sink knows of the source's end.
    told: bool,
    /// Of what has come from the source.
    marks: Marks,
    /// Octets from the source plus octets to the sink.
    moved: u64,
}

impl Way {
    fn new() -> Self {
        Self { room: vec![0; ROOM], from: 0, to: 0, ended: false, told: false, marks: Marks::default(), moved: 0 }
    }

    /// Moves what can be moved, at most `most` octets from the source; true if it moved any.
    fn step(&mut self, source: &mut impl Read, sink: &mut impl Write, most: usize) -> io::Result<bool> {
        let mut busy = false;
        if self.from == self.to && !self.ended && most > 0 {
            (self.from, self.to) = (0, 0);
            match source.read(&mut self.room[..most.min(ROOM)]) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.marks.pass(&self.room[..count]);
                    self.to = count;
                    self.moved += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while self.from < self.to {
            match sink.write(&self.room[self.from..self.to]) {
                Ok(count) => {
                    self.from += count;
                    self.moved += count as u64;
                    busy = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(busy)
    }

    /// Whether only whole records have been received, and all of them were passed on.
    fn is_idle(&self) -> bool {
        self.from == self.to && self.marks.is_between()
    }

    /// Whether to end the sink's stream now, because the source has ended.
    fn ends(&mut self) -> bool {
        let ends = self.ended && self.from == self.to && !self.told;
        self.told |= ends;
        ends
    }
}

/// The server's side.
#[derive(Debug)]
enum Server {
    /// `None` while it is polled.
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
    /// Calls are still accepted.
    takes: bool,
    idle: Idle,
}

impl Relay {
    /// Starts to connect to the server for a client.
    ///
    /// # Errors
    /// The server is absent; the client's stream is then closed.
    pub fn new(mut client: TcpStream, server: SocketAddr) -> io::Result<Self> {
        let server = Server::Connecting(Some(Connecting::start(server, None)?));
        client.set_nodelay(true);
        client.set_nonblocking(true);
        Ok(Self { client, server, to_server: Way::new(), to_client: Way::new(), takes: true, idle: Idle::new() })
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.client.peer_addr()
    }

    /// Accepts no more calls of the client. Those that have begun to arrive are still answered; then both streams end.
    pub fn stop_taking(&mut self) {
        self.takes = false;
    }

    /// How long there was no traffic, and no call that the server has not answered.
    pub(crate) fn idle(&mut self, now: Instant) -> Duration {
        let (there, back) = (&self.to_server, &self.to_client);
        let calls = there.marks.records().saturating_sub(back.marks.records());
        self.idle.time(there.moved + back.moved, usize::try_from(calls).unwrap_or(usize::MAX), now)
    }

    /// Continues without waiting; returns whether it moved anything. `None` once both sides have ended.
    ///
    /// # Errors
    /// One of the streams was lost, or the server is absent.
    pub fn step(&mut self) -> io::Result<Option<bool>> {
        if !self.takes && self.has_answered_all() {
            self.client.shutdown_write();
            return Ok(None);
        }
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
        let most = match self.takes {
            true => ROOM,
            // To the end of the record.
            false if self.to_server.marks.is_between() => 0,
            false => self.to_server.marks.wanted(),
        };
        let there = self.to_server.step(&mut self.client, server, most)?;
        if self.to_server.ends() {
            server.shutdown(Shutdown::Write)?;
        }
        let back = self.to_client.step(server, &mut self.client, ROOM)?;
        if self.to_client.ends() {
            self.client.shutdown_write();
        }
        let over = self.to_server.told && self.to_client.told;
        Ok((!over).then_some(there || back))
    }

    /// Whether nothing is under way: as many replies have passed as calls.
    fn has_answered_all(&self) -> bool {
        let (calls, replies) = (&self.to_server, &self.to_client);
        calls.is_idle() && replies.is_idle() && replies.marks.records() >= calls.marks.records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};
    use uwarp::{Config, Context};

    /// A client's stream, the relay behind it, and the server's end, all nonblocking.
    struct Rig {
        here: Context,
        there: Context,
        client: TcpStream,
        relay: Relay,
        server: std::net::TcpStream,
    }

    impl Rig {
        fn new() -> Self {
            let config =
                |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
            let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
            let mut listener = uwarp::TcpListener::bind(&there, 2049).unwrap();
            let backend = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(&here, there.socket_address(2049)).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let relay = Relay::new(stream, backend.local_addr().unwrap()).unwrap();
            let (server, _) = backend.accept().unwrap();
            server.set_nonblocking(true).unwrap();
            client.set_nonblocking(true);
            Self { here, there, client, relay, server }
        }
    }

    #[test]
    fn calls_that_were_begun_are_answered_before_the_end() {
        let Rig { here, there, mut client, mut relay, mut server } = Rig::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        let calls = b"\x80\0\0\x05first\x80\0\0\x06second\x80\0\0\x05third";
        let ends = [9, 19];
        let mut got = Vec::new();
        // One and a half calls are sent before, the remainder after.
        let mut pass = |relay: &mut Relay, client: &mut TcpStream, calls: &[u8], up_to: usize| {
            assert_eq!(client.write(calls).unwrap(), calls.len());
            while got.len() < up_to {
                assert!(relay.step().unwrap().is_some());
                here.poll();
                let mut room = [0; 100];
                if let Ok(count) = server.read(&mut room) {
                    got.extend_from_slice(&room[..count]);
                }
                assert!(Instant::now() < deadline);
            }
            got.len()
        };
        pass(&mut relay, &mut client, &calls[..13], 13);
        relay.stop_taking();
        assert_eq!(pass(&mut relay, &mut client, &calls[13..], ends[1]), ends[1]);
        let mut replies = Vec::new();
        let mut room = [0; 100];
        for reply in [b"\x80\0\0\x03one", b"\x80\0\0\x03two"] {
            // Replies to both are still due.
            for _ in 0..100 {
                assert!(relay.step().unwrap().is_some());
            }
            server.write_all(reply).unwrap();
            while !replies.ends_with(reply) {
                relay.step().unwrap();
                there.poll();
                if let Ok(count) = client.read(&mut room) {
                    replies.extend_from_slice(&room[..count]);
                }
                assert!(Instant::now() < deadline);
            }
        }
        assert_eq!(relay.step().unwrap(), None);
        drop(relay);
        // The stream ends properly, and nothing of the third call was passed on.
        while client.read(&mut room).ok() != Some(0) {
            there.poll();
            assert!(Instant::now() < deadline);
        }
        server.set_nonblocking(false).unwrap();
        assert_eq!(server.read(&mut room).unwrap_or(0), 0);
    }

    #[test]
    fn octets_and_ends_go_both_ways() {
        let Rig { here: _here, there, mut client, mut relay, mut server } = Rig::new();
        // More than the buffers on the way hold.
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
            // Data that the relay has handed over is sent when the engine is turned, normally by the server's main
            // loop.
            there.poll();
            assert!(Instant::now() < deadline, "{sent} {} {returned} {}", echoed.len(), back.len());
        }
        assert!(back == data);
        assert_eq!(relay.step().unwrap(), None);
    }
}
