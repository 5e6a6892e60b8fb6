//! A client over a plain TCP stream.

use crate::clients::Idle;
use crate::metrics::Metrics;
use crate::programs::{MOUNT, PORT_MAPPER};
use crate::records::{Records, record};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::TcpStream;
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::{CallHeader, CallHeaderError, OwnedAuth, RPC_VERSION, ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};

/// Longest record in octets: the longest WRITE with its headers.
const RECORD_MAX: usize = crate::directory::procedures::TRANSFER_MAX as usize + (64 << 10);
/// Longest record of an untrusted client in octets: no harmless call is longer.
const HARMLESS_RECORD_MAX: usize = 4 << 10;
/// Reads and refused calls per [`poll`](StreamClient::poll): a client that sends without end must leave time to others.
const STEPS_MAX: usize = 32;
/// Octets that are read at once.
const ROOM: usize = 64 << 10;
/// Calls of one client that are under way or whose replies it has not accepted. No more are read until then, so a
/// client that accepts none costs no more.
pub const CALLS_MAX: usize = 32;

/// A call as received.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamCall {
    /// Its number.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: OwnedAuth,
    /// The arguments.
    pub arguments: Vec<Part>,
}

impl StreamCall {
    /// Whether every client may make this call, from any port: NULL calls, the port mapper's procedures, and DUMP and
    /// EXPORT of MOUNT. This is the same as in Linux' server.
    fn is_harmless(&self) -> bool {
        let is_told_by_mount = self.program == MOUNT && matches!(self.procedure, 2 | 5);
        self.procedure == 0 || self.program == PORT_MAPPER || is_told_by_mount
    }
}

/// Why a message is not carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not a call: the rest of the stream cannot be parsed.
    NoCall,
    /// This is the answer to it.
    Answer(u32, Answer),
}

impl StreamCall {
    /// Parses a message.
    ///
    /// # Errors
    /// It is not a call, its RPC version is unknown, or its arguments are not those of its procedure (RFC 5531 §9).
    pub fn parse(record: &[u8]) -> Result<Self, Refusal> {
        let (header, at) = CallHeader::parse(record).map_err(|error| match (error, record.first_chunk()) {
            (CallHeaderError::RpcVersion(_), Some(xid)) => {
                let status = Status::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
                Refusal::Answer(u32::from_be_bytes(*xid), Answer::failure(status))
            }
            _ => Refusal::NoCall,
        })?;
        let octets = &record[at..];
        let arguments = if header.program == nfs3::PROGRAM && Nfs3.versions().contains(&header.version) {
            let mut walk = Walk::new(octets, at, Removed::Nothing);
            let walked = Nfs3.arguments(header.version, header.procedure, &mut walk).and_then(|()| walk.finish());
            walked
                .ok()
                .and_then(|items| split(octets, &items, |_| Vec::new()).ok())
                .ok_or_else(|| Refusal::Answer(header.xid, Answer::failure(Status::GarbageArguments)))?
        } else {
            vec![Part::Octets(octets.to_vec())]
        };
        Ok(Self {
            xid: header.xid,
            program: header.program,
            version: header.version,
            procedure: header.procedure,
            credential: header.credential.into(),
            arguments,
        })
    }
}

/// The client.
#[derive(Debug)]
pub struct StreamClient {
    stream: TcpStream,
    records: Records,
    room: Vec<u8>,
    outgoing: VecDeque<Vec<u8>>,
    sent: usize,
    under_way: usize,
    ended: bool,
    /// All calls are accepted, not only harmless ones.
    is_trusted: bool,
    /// A refusal for the port has been logged.
    has_complained: bool,
    metrics: Arc<Metrics>,
    /// Octets received and sent.
    moved: u64,
    idle: Idle,
}

impl StreamClient {
    /// A client on an accepted stream. An untrusted client may only make harmless calls; others are denied.
    pub fn new(mut stream: TcpStream, is_trusted: bool, metrics: Arc<Metrics>) -> Self {
        stream.set_nodelay(true);
        stream.set_nonblocking(true);
        Self {
            stream,
            records: Records::new(if is_trusted { RECORD_MAX } else { HARMLESS_RECORD_MAX }),
            room: vec![0; ROOM],
            outgoing: VecDeque::new(),
            sent: 0,
            under_way: 0,
            ended: false,
            is_trusted,
            has_complained: false,
            metrics,
            moved: 0,
            idle: Idle::new(),
        }
    }

    /// Continues without waiting: returns the next call, if there is one. It may return before everything received is
    /// processed. No call is read while `calls` (at most [`CALLS_MAX`]) are under way or answered by replies that the
    /// client has not accepted.
    ///
    /// # Errors
    /// The stream has ended, or its contents are not RPC.
    pub fn poll(&mut self, calls: usize) -> io::Result<Option<StreamCall>> {
        self.write()?;
        for _ in 0..STEPS_MAX {
            if self.under_way + self.outgoing.len() >= calls.min(CALLS_MAX) {
                return Ok(None);
            }
            if let Some(record) = self.records.take()? {
                match StreamCall::parse(&record) {
                    Ok(call) if self.is_trusted || call.is_harmless() => {
                        self.under_way += 1;
                        return Ok(Some(call));
                    }
                    Ok(call) => self.deny(call.xid),
                    Err(Refusal::Answer(xid, answer)) => self.reply(xid, &answer),
                    Err(Refusal::NoCall) => return Err(ErrorKind::InvalidData.into()),
                }
                self.write()?;
                continue;
            }
            if self.ended {
                // Earlier calls are still answered.
                let idle = self.under_way == 0 && self.outgoing.is_empty();
                return if idle { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
            }
            match self.stream.read(&mut self.room) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.moved += count as u64;
                    self.records.push(&self.room[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads no more calls. Those returned so far are answered, and then the stream ends.
    pub fn stop_taking(&mut self) {
        self.records = Records::new(RECORD_MAX);
        self.ended = true;
    }

    /// Its address.
    pub fn peer(&self) -> std::net::SocketAddr {
        self.stream.peer_addr()
    }

    /// How long there was no traffic from or to it, and no call under way.
    pub(crate) fn idle(&mut self, now: Instant) -> Duration {
        self.idle.time(self.moved, self.under_way, now)
    }

    /// Denies a call because of its source port, as FreeBSD's server does.
    fn deny(&mut self, xid: u32) {
        /// Rejected for security reasons (RFC 5531 §9).
        const AUTH_TOOWEAK: u32 = 5;
        Metrics::count(&self.metrics.refused);
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::warn!(
                "calls of client {} over TCP are denied: its port is not reserved (below 1024). Mount as root and without \
                 noresvport, or take calls from any port with --insecure-ports",
                self.peer()
            );
        }
        self.reply(xid, &Answer::failure(Status::AuthError(AUTH_TOOWEAK)));
    }

    /// Answers one of its calls.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn answer(&mut self, xid: u32, answer: &Answer) -> io::Result<()> {
        self.under_way = self.under_way.saturating_sub(1);
        self.reply(xid, answer);
        self.write()
    }

    fn reply(&mut self, xid: u32, answer: &Answer) {
        let mut header = Vec::new();
        ReplyHeader { xid, verifier: answer.verifier.as_auth(), status: answer.status }.encode(&mut header);
        let pieces = std::iter::once(&header[..]).chain(answer.results.iter().map(Part::octets));
        self.outgoing.push_back(record(pieces));
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(first) = self.outgoing.front() {
            match self.stream.write(&first[self.sent..]) {
                Ok(count) => {
                    self.moved += count as u64;
                    self.sent += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if self.sent == first.len() {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}
