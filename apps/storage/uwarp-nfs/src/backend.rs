//! A connection to an NFS server over the kernel's TCP, with record marking (RFC 5531 §11).

use crate::connecting::Connecting;
use crate::descriptors::cure;
use crate::records::Records;
use crate::server::LONGEST_CALL;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uwarp_app::lock;

/// Longest record that is accepted, in octets. No call that gets here asks for more, except those that only the server
/// can read (RPCSEC_GSS with integrity or privacy).
const RECORD_MAX: usize = LONGEST_CALL as usize;
/// Octets that are read at once.
const ROOM: usize = 256 << 10;
/// Position of a record's XID (RFC 5531 §9), behind the mark.
const XID: std::ops::Range<usize> = 4..8;
/// The first and the longest pause between two attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// How long a lost connection is restored from the same port: Linux' server keeps its replies this long.
pub(crate) const SAME_PORT: Duration = Duration::from_secs(120);
/// How often a lack of descriptors is logged.
const COMPLAINTS: Duration = Duration::from_secs(10);

/// When a lack of descriptors was last logged, for all clients together.
static COMPLAINED: Mutex<Option<Instant>> = Mutex::new(None);

/// The source of a lost connection, and when it was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// Its own address and port.
    pub local: SocketAddr,
    /// When it was lost.
    pub lost: Instant,
}

/// The server.
#[derive(Debug)]
pub struct Backend {
    address: SocketAddr,
    stream: Option<TcpStream>,
    connecting: Option<Connecting>,
    /// A server may recognise repeated calls by their source, as Linux' server does.
    last: Option<Last>,
    /// Octets that the stream has not accepted yet, from here on in the first record.
    outgoing: VecDeque<Arc<Vec<u8>>>,
    sent: usize,
    /// Why the stream accepts no more. What it has already received is still read.
    broken: Option<io::Error>,
    incoming: Records,
    room: Vec<u8>,
    again: Instant,
    pause: Duration,
}

/// The result of polling the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// A record.
    Record(Vec<u8>),
    /// The reply to the call of this XID is longer than allowed; the connection was closed for that.
    TooLong(u32),
    /// Nothing.
    Nothing,
    /// It was connected, for the first time or again: send the calls that have no reply.
    Connected,
}

impl Backend {
    /// A server that is not connected yet.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            stream: None,
            connecting: None,
            last: None,
            outgoing: VecDeque::new(),
            sent: 0,
            broken: None,
            incoming: Records::new(RECORD_MAX),
            room: vec![0; ROOM],
            again: Instant::now(),
            pause: PAUSES[0],
        }
    }

    /// The next connection uses the source of this one, if that is free.
    pub fn continue_from(&mut self, last: Option<Last>) {
        self.last = last;
    }

    /// Ends the connection, and returns its source, for sending its calls again later.
    pub fn leave(&mut self) -> Option<Last> {
        self.connecting = None;
        self.lose();
        self.last
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends a call's record, including its mark, as soon as the stream accepts it. If one with the same XID is still
    /// waiting, this one replaces it.
    pub fn send(&mut self, record: Arc<Vec<u8>>) {
        if let Some(xid) = record.get(XID) {
            self.forget(xid);
        }
        self.outgoing.push_back(record);
    }

    /// Removes a waiting call that has its reply, or is sent as another record. So no more records wait than calls are
    /// open, plus one that is half sent. Otherwise a client that repeats one call without end would fill the memory.
    fn forget(&mut self, xid: &[u8]) {
        let mut half = self.sent > 0;
        self.outgoing.retain(|record| std::mem::take(&mut half) || record.get(XID) != Some(xid));
    }

    /// Continues without waiting. A lost connection is restored, with pauses; records to be sent on it are forgotten.
    pub fn poll(&mut self) -> Word {
        if self.stream.is_none() {
            return self.connect();
        }
        match self.go_on() {
            Ok(Some(record)) => {
                // A server that only accepts connections does not count as restored.
                self.pause = PAUSES[0];
                if let Some(xid) = record.get(..4) {
                    self.forget(xid);
                }
                Word::Record(record)
            }
            Ok(None) => Word::Nothing,
            Err(error) => {
                let too_long = error.kind() == ErrorKind::InvalidData;
                let xid = self.incoming.first_word().filter(|_| too_long);
                self.lose();
                xid.map_or(Word::Nothing, Word::TooLong)
            }
        }
    }

    fn connect(&mut self) -> Word {
        let connecting = match self.connecting.take() {
            Some(connecting) => Ok(connecting),
            None if Instant::now() < self.again => return Word::Nothing,
            None => {
                self.last = self.last.filter(|last| last.lost.elapsed() < SAME_PORT);
                match (Connecting::start(self.address, self.last.map(|last| last.local)), self.last) {
                    // Taken, or no longer this machine's: another one is better than none.
                    (Err(error), Some(_))
                        if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) =>
                    {
                        self.last = None;
                        Connecting::start(self.address, None)
                    }
                    (begun, _) => begun,
                }
            }
        };
        match connecting.and_then(Connecting::poll) {
            Ok(Ok(stream)) => {
                self.stream = Some(stream);
                Word::Connected
            }
            Ok(Err(connecting)) => {
                self.connecting = Some(connecting);
                Word::Nothing
            }
            Err(error) => {
                // An absent server returns by itself; descriptors do not.
                if let Some(cure) = cure(&error)
                    && is_time_to_complain(Instant::now())
                {
                    tracing::warn!("no connection to the server {} for a client ({error}): {cure}", self.address);
                }
                self.rest();
                Word::Nothing
            }
        }
    }

    fn rest(&mut self) {
        self.again = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(PAUSES[1]);
    }

    fn lose(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.last = stream.local_addr().ok().map(|local| Last { local, lost: Instant::now() });
            // Its remains must not keep the port.
            let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
        self.outgoing.clear();
        self.incoming.clear();
        self.sent = 0;
        self.broken = None;
        self.rest();
    }

    fn go_on(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        while let Some(first) = self.outgoing.front()
            && self.broken.is_none()
        {
            match stream.write(&first[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Replies may have arrived nevertheless: their calls must not go to a server that has forgotten them.
                Err(error) => {
                    self.broken = Some(error);
                    break;
                }
            }
            if self.sent == first.len() {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
        if let Some(record) = self.take_record()? {
            return Ok(Some(record));
        }
        let Some(stream) = &mut self.stream else { return Ok(None) };
        match stream.read(&mut self.room) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.incoming.push(&self.room[..count]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return self.broken.take().map_or(Ok(None), Err),
            Err(error) => return Err(error),
        }
        self.take_record()
    }

    fn take_record(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.incoming.take() {
            // For one that is too long, the XID is still needed.
            Err(_) if self.incoming.first_word().is_none() => Ok(None),
            other => other,
        }
    }
}

/// Whether the last complaint is long enough ago; if so, records this one.
fn is_time_to_complain(now: Instant) -> bool {
    let mut last = lock(&COMPLAINED);
    let is_time = last.is_none_or(|last| now.duration_since(last) >= COMPLAINTS);
    if is_time {
        *last = Some(now);
    }
    is_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::record;
    use std::net::TcpListener;

    fn until(backend: &mut Backend, what: impl Fn(&Word) -> bool) -> Word {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let word = backend.poll();
            if what(&word) {
                return word;
            }
            assert!(Instant::now() < deadline, "nothing comes");
            std::thread::yield_now();
        }
    }

    #[test]
    fn records_come_in_fragments_and_connections_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut backend = Backend::new(listener.local_addr().unwrap());
        let mut peers = Vec::new();
        for _ in 0..3 {
            until(&mut backend, |word| *word == Word::Connected);
            let (mut server, peer) = listener.accept().unwrap();
            peers.push(peer);
            backend.send(Arc::new(record([&b"call"[..]])));
            assert_eq!(backend.poll(), Word::Nothing);
            let mut got = [0; 8];
            server.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"\x80\0\0\x04call");
            // Two fragments, then a record of one, octet by octet.
            for octet in b"\0\0\0\x02re\x80\0\0\x03ply\x80\0\0\x01x" {
                server.write_all(&[*octet]).unwrap();
            }
            assert_eq!(until(&mut backend, |word| *word != Word::Nothing), Word::Record(b"reply".to_vec()));
            assert_eq!(until(&mut backend, |word| *word != Word::Nothing), Word::Record(b"x".to_vec()));
            // In the middle of a record.
            server.write_all(b"\x80\0\0\x09half").unwrap();
        }
        assert!(
            peers.iter().all(|peer| *peer == peers[0]),
            "by the port, too, the server can know calls again: {peers:?}"
        );
    }

    #[test]
    fn the_port_stays_while_the_server_is_away() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut backend = Backend::new(address);
        until(&mut backend, |word| *word == Word::Connected);
        let (server, first) = listener.accept().unwrap();
        drop((server, listener));
        // Refused, several times.
        let deadline = Instant::now() + Duration::from_secs(20);
        while backend.pause < 8 * PAUSES[0] {
            assert_eq!(backend.poll(), Word::Nothing);
            assert!(Instant::now() < deadline);
        }
        let listener = TcpListener::bind(address).unwrap();
        until(&mut backend, |word| *word == Word::Connected);
        assert_eq!(listener.accept().unwrap().1, first);
    }

    #[test]
    fn replies_that_came_before_the_connection_broke_are_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut backend = Backend::new(listener.local_addr().unwrap());
        until(&mut backend, |word| *word == Word::Connected);
        let (mut server, _) = listener.accept().unwrap();
        server.set_nodelay(true).unwrap();
        // More than the buffers on the way hold.
        backend.send(Arc::new(vec![7; 16 << 20]));
        assert_eq!(backend.poll(), Word::Nothing);
        server.read_exact(&mut [0; 100]).unwrap();
        server.write_all(b"\x80\0\0\x05reply\x80\0\0\x01x\x80\0\0\x09half").unwrap();
        // The server's host resets the connection because it has unread octets: nothing more can be sent.
        drop(server);
        assert_eq!(until(&mut backend, |word| *word != Word::Nothing), Word::Record(b"reply".to_vec()));
        assert_eq!(until(&mut backend, |word| *word != Word::Nothing), Word::Record(b"x".to_vec()));
        until(&mut backend, |word| *word == Word::Connected);
    }

    #[test]
    fn a_call_waits_to_be_sent_once_and_not_at_all_when_it_has_its_reply() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut backend = Backend::new(listener.local_addr().unwrap());
        until(&mut backend, |word| *word == Word::Connected);
        let (mut server, _) = listener.accept().unwrap();
        let call = |xid: &[u8; 4], length| Arc::new(record([&xid[..], &vec![7; length]]));
        // More than the buffers on the way hold, so it is half sent.
        let large = call(b"xid1", 16 << 20);
        backend.send(Arc::clone(&large));
        assert_eq!(backend.poll(), Word::Nothing);
        assert!(backend.sent > 0);
        for length in 1..100 {
            for xid in [b"xid1", b"xid2", b"xid3"] {
                backend.send(call(xid, length));
            }
        }
        assert_eq!(backend.outgoing.len(), 4);
        // Everything but the remainder of a call that has its reply and was half sent.
        for xid in [b"xid1", b"xid2"] {
            server.write_all(&record([&xid[..], b"reply"])).unwrap();
            until(&mut backend, |word| matches!(word, Word::Record(_)));
        }
        assert_eq!(backend.outgoing, [Arc::clone(&large), call(b"xid3", 99)]);
        // Records stay complete.
        server.set_nonblocking(true).unwrap();
        let expected = [&large[..], &call(b"xid3", 99)].concat();
        let (mut got, mut room) = (Vec::new(), vec![0; ROOM]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while got.len() < expected.len() {
            assert_eq!(backend.poll(), Word::Nothing);
            if let Ok(count) = server.read(&mut room) {
                got.extend_from_slice(&room[..count]);
            }
            assert!(Instant::now() < deadline);
        }
        assert!(got == expected);
    }

    /// This is the behaviour of a proxy in front of an absent server, for example.
    #[test]
    fn a_server_that_only_takes_connections_is_asked_less_and_less_often() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut backend = Backend::new(listener.local_addr().unwrap());
        for round in 0..4 {
            assert_eq!(backend.pause, (1 << round) * PAUSES[0]);
            until(&mut backend, |word| *word == Word::Connected);
            drop(listener.accept().unwrap());
            let deadline = Instant::now() + Duration::from_secs(20);
            while backend.is_connected() {
                assert_eq!(backend.poll(), Word::Nothing);
                assert!(Instant::now() < deadline);
            }
        }
        until(&mut backend, |word| *word == Word::Connected);
        listener.accept().unwrap().0.write_all(b"\x80\0\0\x01x").unwrap();
        until(&mut backend, |word| *word == Word::Record(b"x".to_vec()));
        assert_eq!(backend.pause, PAUSES[0]);
    }

    #[test]
    fn a_port_that_is_taken_is_done_without() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut backend = Backend::new(listener.local_addr().unwrap());
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        backend.last = Some(Last { local: other.local_addr().unwrap(), lost: Instant::now() });
        until(&mut backend, |word| *word == Word::Connected);
        assert_ne!(listener.accept().unwrap().1, other.local_addr().unwrap());
    }

    #[test]
    fn a_record_without_end_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut backend = Backend::new(listener.local_addr().unwrap());
        until(&mut backend, |word| *word == Word::Connected);
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&[0x7f, 0xff, 0xff, 0xff, 0, 0]).unwrap();
        for _ in 0..100 {
            assert_eq!(backend.poll(), Word::Nothing);
        }
        server.write_all(&[1, 2]).unwrap();
        assert_eq!(until(&mut backend, |word| *word != Word::Nothing), Word::TooLong(0x102));
        assert!(!backend.is_connected());
    }
}
