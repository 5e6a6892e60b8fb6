//! Listening for plain streams.

use super::{TcpStream, TcpStreamOptions, other};
use crate::error::Error;
use crate::runtime::context::{Context, Shared};
use crate::runtime::core::{NoReply, Origin};
use crate::runtime::reservation::PortReservation;
use crossbeam::channel::{Receiver, TryRecvError, bounded, unbounded};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
use uwarp_engine::command::{Command, ControlError, EventSink, ListenerId};
use uwarp_engine::stream::IncomingStream;
use uwarp_ring::Notifier;

/// Options of a [`TcpListener`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpAcceptOptions {
    /// Connections that may wait to be accepted; on each engine, including those in their handshake. Further SYNs are
    /// ignored, and the peer retransmits them.
    pub backlog: usize,
    /// Options of the streams.
    pub stream: TcpStreamOptions,
}

impl Default for TcpAcceptOptions {
    fn default() -> Self {
        Self { backlog: 128, stream: TcpStreamOptions::default() }
    }
}

/// Accepts plain streams on a TCP port of the context.
///
/// Connections are established, and may have octets to read, before they are accepted. Dropping the listener resets
/// those that were not accepted.
#[derive(Debug)]
pub struct TcpListener {
    id: ListenerId,
    reservation: PortReservation,
    incoming: Receiver<IncomingStream>,
    notifier: Arc<Notifier>,
    nonblocking: bool,
    shared: Arc<Shared>,
}

impl TcpListener {
    /// Listens on a port, on all engines of the context, with the usual options; port 0 is a free one.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if the context has a listener there or the port is reserved.
    pub fn bind(context: &Context, port: u16) -> io::Result<TcpListener> {
        Self::bind_with(context, port, &TcpAcceptOptions::default())
    }

    /// Listens on a port with options; otherwise like [`bind`](Self::bind).
    pub fn bind_with(context: &Context, port: u16, options: &TcpAcceptOptions) -> io::Result<TcpListener> {
        let shared = context.shared();
        shared.check_here().map_err(other)?;
        shared.start().map_err(other)?;
        options.stream.check()?;
        let most = shared.config.limits.backlog;
        if !(1..=most).contains(&options.backlog) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("the backlog is {}: choose 1 to {most} (limits.backlog)", options.backlog),
            ));
        }
        let reservation = PortReservation::new(shared, None, (port != 0).then_some(port));
        let reservation = reservation.and_then(|kept| kept.listens().map(|()| kept)).map_err(|error| match error {
            Error::PortTaken(_) | Error::NoPort { .. } | Error::PortLimit { .. } => {
                io::Error::new(ErrorKind::AddrInUse, error)
            }
            error => other(error),
        })?;
        let port = reservation.port();
        let notifier = Arc::new(Notifier::new()?);
        shared.waiters.add(&notifier);
        let id = ListenerId(shared.objects.next());
        let (sender, incoming) = unbounded();
        // Created first, so that a failure half-way stops what was started.
        let listener = TcpListener {
            id,
            reservation,
            incoming,
            notifier: Arc::clone(&notifier),
            nonblocking: false,
            shared: Arc::clone(shared),
        };
        let sink = EventSink::new(sender, Some(notifier));
        let waiting = Arc::new(AtomicU32::new(0));
        for (index, engine) in shared.engines.iter().enumerate() {
            let (reply, answer) = bounded(1);
            engine.command(Command::ListenStreams {
                listener: id,
                port,
                backlog: options.backlog as u32,
                waiting: Arc::clone(&waiting),
                options: options.stream.engine_options(),
                incoming: sink.clone(),
                reply,
            });
            shared.reply(index, &answer).map_err(other)?.map_err(refused)?;
        }
        Ok(listener)
    }

    /// The address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        SocketAddr::from((self.shared.config.address.address, self.reservation.port()))
    }

    /// Whether [`accept`](Self::accept) returns [`ErrorKind::WouldBlock`] instead of waiting.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.nonblocking = nonblocking;
    }

    /// The next connection, with the peer's address. Waits for one, unless non-blocking.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] in non-blocking mode; the system's error if no file descriptor is left (the connection
    /// is reset); an error if the context is closed.
    pub fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        if self.nonblocking {
            return self.try_accept()?.ok_or_else(|| ErrorKind::WouldBlock.into());
        }
        self.receive(None)?.ok_or_else(|| ErrorKind::TimedOut.into())
    }

    /// The next connection; `None` after the time limit.
    pub fn accept_timeout(&mut self, timeout: Duration) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        self.receive(Instant::now().checked_add(timeout))
    }

    fn receive(&mut self, deadline: Option<Instant>) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match self.shared.receive(&self.incoming, Origin::All, deadline) {
            Ok(incoming) => self.wrap(incoming).map(Some),
            Err(NoReply::TimedOut) => Ok(None),
            Err(NoReply::WrongThread) => Err(other(Error::WrongThread)),
            Err(NoReply::Gone) => Err(self.gone()),
        }
    }

    fn try_accept(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        self.shared.turn();
        match self.incoming.try_recv() {
            Ok(incoming) => self.wrap(incoming).map(Some),
            Err(TryRecvError::Empty) => self.shared.check_open().map(|()| None).map_err(other),
            Err(TryRecvError::Disconnected) => Err(self.gone()),
        }
    }

    fn gone(&self) -> io::Error {
        match self.shared.check_open() {
            Err(error) => other(error),
            Ok(()) => other(Error::ContextClosed),
        }
    }

    fn wrap(&self, incoming: IncomingStream) -> io::Result<(TcpStream, SocketAddr)> {
        let (engine, peer) = (usize::from(incoming.engine), incoming.peer);
        let notifier = Arc::new(Notifier::new()?);
        let ends = incoming.take().ok_or(ErrorKind::ConnectionAborted)?;
        Ok((TcpStream::new(&self.shared, ends, notifier, engine, peer), peer))
    }

    /// Makes the next connection raise the file descriptor of [`as_fd`](AsFd::as_fd). Check once more after arming.
    pub fn arm(&mut self) {
        self.notifier.drain();
        self.notifier.arm();
    }
}

fn refused(error: ControlError) -> io::Error {
    let kind = match error {
        ControlError::PortInUse(_) => ErrorKind::AddrInUse,
        ControlError::BadPort => ErrorKind::InvalidInput,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl AsFd for TcpListener {
    /// Readable after a connection arrived since [`arm`](TcpListener::arm). Do not read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        for engine in &self.shared.engines {
            engine.command(Command::StopListening { listener: self.id });
        }
    }
}
