//! Plain TCP streams: octet streams like a socket's, over the same engines as RDMA.

mod lent;
mod listener;
mod options;
mod urgent;

pub(crate) use lent::Lent;
pub use listener::{TcpAcceptOptions, TcpListener};
pub use options::TcpStreamOptions;

use crate::runtime::context::{Context, Shared};
use crate::runtime::driver::{Backoff, inline};
use crossbeam::channel::bounded;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_engine::command::{Command, ConnectStreamParameters};
use uwarp_engine::stats::TcpInfo;
use uwarp_engine::stream::{Interest, StreamEnds, StreamFailure, stream};
use uwarp_ring::Notifier;

/// Longest single sleep of a waiting call, after which it checks that the engine lives.
const SLICE: Duration = Duration::from_secs(1);
/// Extra time that a blocking open waits beyond the engine's own time limit.
const GRACE: Duration = Duration::from_secs(2);
/// Fruitless calls in non-blocking mode before the core is yielded.
const CALLS_BEFORE_YIELD: u32 = 256;

/// A TCP connection as a stream of octets.
///
/// It reads and writes like [`std::net::TcpStream`], blocking unless [`set_nonblocking`](Self::set_nonblocking) says
/// otherwise. One thread owns it at a time (`Send`, not `Sync`). On an inline context, each read or write of the
/// opening thread turns the engine once, and waiting turns it continuously; nothing happens between such calls.
///
/// What was written before the drop is still sent: the context lingers for it, as for queue pairs. Unread octets are
/// lost. A peer that sent any gets a reset once it has what was written (RFC 9293 §3.6.1).
///
/// Small writes leave at once, and share segments only while the network is busy. Nagle is off unless
/// [`set_nodelay`](Self::set_nodelay) turns it on.
#[derive(Debug)]
pub struct TcpStream {
    ends: StreamEnds,
    rest: Rest,
}

/// A stream without its rings.
#[derive(Debug)]
pub(crate) struct Rest {
    notifier: Arc<Notifier>,
    engine: usize,
    /// Whether an engine thread may sleep.
    threaded: bool,
    nonblocking: bool,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    fruitless: u32,
    peer: SocketAddr,
    shared: Arc<Shared>,
}

impl TcpStream {
    /// Opens a connection with default options, and waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionRefused`] if no listener has the port, [`ErrorKind::TimedOut`] if the peer does not
    /// answer, [`ErrorKind::HostUnreachable`] if the next hop does not, [`ErrorKind::AddrNotAvailable`] if no local
    /// port is free.
    pub fn connect(context: &Context, peer: SocketAddr) -> io::Result<TcpStream> {
        Self::connect_with(context, peer, &TcpStreamOptions::default())
    }

    /// Opens a connection with options, and waits for it; otherwise like [`connect`](Self::connect).
    pub fn connect_with(context: &Context, peer: SocketAddr, options: &TcpStreamOptions) -> io::Result<TcpStream> {
        let mut stream = Self::start_connect(context, peer, options)?;
        let deadline = Instant::now().checked_add(options.connect_timeout.saturating_add(GRACE));
        if stream.wait_for(Interest::WRITABLE, deadline, |stream| stream.check_connected())?.is_none() {
            stream.abort();
            return Err(failed(StreamFailure::TimedOut));
        }
        Ok(stream)
    }

    /// Starts to open a connection and returns at once; see [`check_connected`](Self::check_connected). Until it is
    /// open, reads and writes wait, or return [`ErrorKind::WouldBlock`] in non-blocking mode.
    pub fn start_connect(context: &Context, peer: SocketAddr, options: &TcpStreamOptions) -> io::Result<TcpStream> {
        let shared = context.shared();
        let peer = shared.reachable(peer);
        options.check()?;
        shared.start().map_err(other)?;
        let engine = shared.pick_engine();
        let handle = &shared.engines[engine];
        let notifier = Arc::new(Notifier::new()?);
        let (ends, setup) = stream(&options.engine_options(), Arc::clone(handle.doorbells()));
        let stream = Self::new(shared, ends, notifier, engine, peer);
        handle.command(Command::ConnectStream(Box::new(ConnectStreamParameters {
            remote: peer,
            local_port: options.local_port,
            options: options.engine_options(),
            timeout: options.connect_timeout,
            setup,
        })));
        Ok(stream)
    }

    pub(crate) fn new(
        shared: &Arc<Shared>,
        mut ends: StreamEnds,
        notifier: Arc<Notifier>,
        engine: usize,
        peer: SocketAddr,
    ) -> TcpStream {
        ends.set_notifier(Arc::clone(&notifier));
        if !shared.is_inline() {
            ends.set_waker(Arc::clone(shared.engines[engine].wake()));
        }
        let rest = Rest {
            notifier,
            engine,
            threaded: !shared.is_inline(),
            nonblocking: false,
            read_timeout: None,
            write_timeout: None,
            fruitless: 0,
            peer,
            shared: Arc::clone(shared),
        };
        TcpStream { ends, rest }
    }

    /// Whether the connection is open; `None` while that is undecided. Turns an inline context's engine first.
    ///
    /// # Errors
    /// Why it could not be opened, as [`connect`](Self::connect).
    pub fn check_connected(&mut self) -> io::Result<Option<()>> {
        self.turn();
        match self.ends.failure() {
            Some(failure) if !self.ends.is_open() => Err(failed(failure)),
            _ => Ok(self.ends.is_open().then_some(())),
        }
    }

    /// The remote address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.rest.peer
    }

    /// The local address.
    ///
    /// # Errors
    /// [`ErrorKind::NotConnected`] until the engine has started to open the connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.ends.endpoints().map(|(local, _)| local).ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// The engine that has the connection.
    pub fn engine(&self) -> usize {
        self.rest.engine
    }

    /// Whether calls return [`ErrorKind::WouldBlock`] instead of waiting.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.rest.nonblocking = nonblocking;
    }

    /// Longest wait of a read, which then returns [`ErrorKind::TimedOut`]; `None` waits without limit. Zero does not
    /// wait.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.rest.read_timeout = timeout;
    }

    /// Longest wait of a write for room, which then returns [`ErrorKind::TimedOut`]; `None` waits without limit. Zero
    /// does not wait.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.rest.write_timeout = timeout;
    }

    /// Whether small segments leave while others are unacknowledged. True by default; `false` is Nagle (RFC 9293
    /// §3.7.4).
    pub fn set_nodelay(&mut self, nodelay: bool) {
        let stream = Arc::clone(self.ends.shared());
        self.rest.shared.engines[self.rest.engine].command(Command::SetNagle { stream, nagle: !nodelay });
    }

    /// Octets that can be read without waiting. Turns an inline context's engine first.
    pub fn readable(&mut self) -> usize {
        self.turn();
        self.ends.readable()
    }

    /// Octets that can be written without waiting.
    pub fn writable(&mut self) -> usize {
        if self.ends.is_open() { self.ends.writable() } else { 0 }
    }

    /// Closes this side: FIN follows what was written (RFC 9293 §3.6). Reading continues.
    pub fn shutdown_write(&mut self) {
        if !self.ends.is_finished() {
            self.ends.finish();
            self.turn();
        }
    }

    /// Aborts the connection at once: unsent octets are lost, and the peer gets a reset.
    pub fn abort(mut self) {
        self.ends.abort();
        self.turn();
    }

    /// The connection as the kernel's TCP_INFO would show it; `None` before it starts and after it ends.
    ///
    /// # Errors
    /// The context is closed, or inline and opened by another thread.
    pub fn tcp_info(&self) -> io::Result<Option<TcpInfo>> {
        let Some(handle) = self.ends.handle() else { return Ok(None) };
        let (reply, answer) = bounded(1);
        self.rest.shared.engines[self.rest.engine].command(Command::StreamInfo { handle, reply });
        self.rest.shared.reply(self.rest.engine, &answer).map_err(other)
    }

    /// Makes the next event of this kind raise the file descriptor of [`as_fd`](AsFd::as_fd). Check once more between
    /// arming and waiting: earlier events do not raise it.
    pub fn arm(&mut self, interest: Interest) {
        self.rest.notifier.drain();
        self.rest.notifier.arm_for(interest.bits());
    }

    /// One attempt to read: `None` if there is nothing yet.
    #[inline]
    fn try_read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let count = self.ends.read(out);
        if count > 0 || out.is_empty() {
            return Ok(Some(count));
        }
        self.read_nothing(out)
    }

    #[cold]
    fn read_nothing(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        // In this order: octets that arrived before the end are read before it is reported.
        let failure = self.ends.failure();
        let closed = self.ends.is_at_end();
        let count = self.ends.read(out);
        match (count, closed, failure) {
            (0, true, Some(failure)) => Err(failed(failure)),
            (0, true, None) => Ok(Some(0)),
            (0, false, Some(failure)) if !self.ends.is_open() => Err(failed(failure)),
            (0, false, _) => Ok(None),
            (count, ..) => Ok(Some(count)),
        }
    }

    /// One attempt to write: `None` if there is no room.
    #[inline]
    fn try_write(&mut self, octets: &[u8]) -> io::Result<Option<usize>> {
        if let Some(failure) = self.ends.failure() {
            return Err(failed(failure));
        }
        if !self.ends.is_open() {
            self.turn();
            return Ok(None);
        }
        if self.ends.is_finished() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = self.ends.write(octets);
        self.turn();
        Ok((count > 0 || octets.is_empty()).then_some(count))
    }

    /// Turns an inline context's engine, if this is its thread.
    #[inline]
    fn turn(&self) {
        if !self.rest.threaded {
            inline::turn(self.rest.shared.id);
        }
    }

    /// A fruitless call in non-blocking mode: with more pollers than cores, the engine may be waiting for this core.
    fn fruitless(&mut self) -> io::Error {
        if self.rest.threaded {
            self.rest.fruitless += 1;
            if self.rest.fruitless >= CALLS_BEFORE_YIELD {
                self.rest.fruitless = 0;
                std::thread::yield_now();
            }
        }
        ErrorKind::WouldBlock.into()
    }

    /// Tries until it succeeds; `None` after the time limit.
    fn wait_for<T>(
        &mut self,
        interest: Interest,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut Self) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        if !self.rest.threaded {
            return self.wait_inline(deadline, attempt);
        }
        loop {
            self.rest.notifier.arm_for(interest.bits());
            if let Some(done) = attempt(self)? {
                self.rest.notifier.disarm();
                return Ok(Some(done));
            }
            self.rest.shared.check_alive().map_err(other)?;
            let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            // A limit on each sleep, so that not even a defect makes it endless.
            self.rest.notifier.wait(Some(left.min(SLICE)))?;
        }
    }

    fn wait_inline<T>(
        &mut self,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut Self) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        self.rest.shared.check_here().map_err(other)?;
        inline::turn_until(Backoff::new(&self.rest.shared.config.engine), deadline, || match attempt(self)? {
            Some(done) => Ok(Some(done)),
            None => self.rest.shared.check_alive().map(|()| None).map_err(other),
        })
    }

    /// Writes by `attempt`, which returns `None` if there is no room; waits for room in blocking mode.
    #[inline]
    fn write_by(&mut self, mut attempt: impl FnMut(&mut Self) -> io::Result<Option<usize>>) -> io::Result<usize> {
        if let Some(count) = attempt(self)? {
            return Ok(count);
        }
        if self.rest.nonblocking {
            return Err(self.fruitless());
        }
        let deadline = deadline(self.rest.write_timeout);
        self.wait_for(Interest::WRITABLE, deadline, attempt)?.ok_or_else(|| ErrorKind::TimedOut.into())
    }
}

/// When a wait that begins now ends.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

impl Read for TcpStream {
    /// Reads what has arrived: at least one octet, or 0 after the peer has closed and all was read.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] in non-blocking mode, [`ErrorKind::TimedOut`] after the time limit; the reason why the
    /// connection is over, such as [`ErrorKind::ConnectionReset`], once everything that arrived before was read.
    #[inline]
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.turn();
        if let Some(count) = self.try_read(out)? {
            return Ok(count);
        }
        if self.rest.nonblocking {
            return Err(self.fruitless());
        }
        let deadline = deadline(self.rest.read_timeout);
        self.wait_for(Interest::READABLE, deadline, |stream| stream.try_read(out))?
            .ok_or_else(|| ErrorKind::TimedOut.into())
    }
}

impl Write for TcpStream {
    /// Writes octets to be sent: as many as there is room for, at least one.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] in non-blocking mode, [`ErrorKind::TimedOut`] after the time limit,
    /// [`ErrorKind::BrokenPipe`] after [`TcpStream::shutdown_write`], and the reason why the connection is over.
    #[inline]
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.write_by(|stream| stream.try_write(octets))
    }

    /// Does nothing: this side of the engine buffers nothing.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TcpStream {
    /// Readable after an armed event ([`arm`](TcpStream::arm)), in either direction. Do not read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rest.notifier.as_fd()
    }
}

/// The failure as an error of the standard library.
fn failed(failure: StreamFailure) -> io::Error {
    let kind = match failure {
        StreamFailure::Refused => ErrorKind::ConnectionRefused,
        StreamFailure::TimedOut => ErrorKind::TimedOut,
        StreamFailure::Unreachable => ErrorKind::HostUnreachable,
        StreamFailure::NoPort => ErrorKind::AddrNotAvailable,
        StreamFailure::AddressInUse => ErrorKind::AddrInUse,
        StreamFailure::Address => ErrorKind::InvalidInput,
        StreamFailure::Reset => ErrorKind::ConnectionReset,
        StreamFailure::Aborted | StreamFailure::ShuttingDown => ErrorKind::ConnectionAborted,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, failure)
}

fn other(error: crate::error::Error) -> io::Error {
    io::Error::other(error)
}
