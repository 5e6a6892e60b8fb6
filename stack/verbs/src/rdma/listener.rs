//! Listeners, which take connection requests.

use crate::error::Error;
use crate::rdma::connection::ConnectRequest;
use crate::runtime::context::{Context, Shared};
use crate::runtime::core::{NoReply, Origin};
use crate::runtime::reservation::PortReservation;
use crossbeam::channel::{Receiver, TryRecvError, bounded, unbounded};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_engine::command::{Command, ConnectionRequest, ControlError, EventSink, ListenerId, Watch};
use uwarp_ring::Notifier;

/// How a listener is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may wait to be answered. Further SYNs are ignored, and the peer retransmits them.
    pub backlog: usize,
    /// The own address to listen on; `None` is all of them, and an unspecified one all of its version of IP. Each
    /// address may have a listener of its own on one port.
    pub address: Option<IpAddr>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 128, address: None }
    }
}

impl ListenOptions {
    /// Listens on one own address.
    pub fn address(mut self, address: impl Into<IpAddr>) -> Self {
        self.address = Some(address.into());
        self
    }
}

impl Context {
    /// Takes connection requests on a TCP port; with port 0 on a free one, which [`Listener::port`] tells.
    ///
    /// # Errors
    /// [`Error::PortTaken`] if the port has a listener or is reserved, [`Error::Argument`] for options out of bounds,
    /// and what [`start`](Self::start) fails with.
    pub fn listen(&self, port: u16, options: ListenOptions) -> Result<Listener, Error> {
        let reservation = PortReservation::new(self.shared(), options.address, (port != 0).then_some(port))?;
        Listener::create(self.shared(), reservation, &options)
    }

    /// Takes connection requests on a port that was reserved, at the address that the options name. Without one, it
    /// takes what no other listener of the port takes.
    ///
    /// # Errors
    /// Those of [`listen`](Self::listen).
    pub fn listen_on(&self, reservation: &PortReservation, options: ListenOptions) -> Result<Listener, Error> {
        if !reservation.is_of(self.shared()) {
            return Err(Error::argument("the reservation", "of another context", "reserve a port of this context"));
        }
        Listener::create(self.shared(), reservation.clone(), &options)
    }
}

/// Takes connection requests on a TCP port of the context's addresses.
#[derive(Debug)]
pub struct Listener {
    id: ListenerId,
    reservation: PortReservation,
    pub(super) requests: Receiver<ConnectionRequest>,
    notifier: Arc<Notifier>,
    pub(super) watch: Watch,
    pub(super) shared: Arc<Shared>,
}

impl Listener {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        reservation: PortReservation,
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        shared.check_here()?;
        shared.start()?;
        let most = shared.config.limits.backlog;
        if !(1..=most).contains(&options.backlog) {
            return Err(Error::argument(
                "the backlog",
                options.backlog,
                format!("choose 1 to {most} (limits.backlog)"),
            ));
        }
        reservation.listens()?;
        let port = reservation.port();
        let notifier = Arc::new(Notifier::new().map_err(Error::system("no event file descriptor for a listener"))?);
        shared.waiters.add(&notifier);
        let id = ListenerId(shared.objects.next());
        let (sender, requests) = unbounded();
        // Made first, so that a failure half-way stops what was begun.
        let watch = Watch::default();
        let listener = Self {
            id,
            reservation,
            requests,
            notifier: Arc::clone(&notifier),
            watch: watch.clone(),
            shared: Arc::clone(shared),
        };
        let sink = EventSink::new(sender, Some(notifier));
        for (index, engine) in shared.engines.iter().enumerate() {
            let (reply, answer) = bounded(1);
            engine.command(Command::Listen {
                listener: id,
                address: options.address,
                port,
                backlog: options.backlog as u32,
                requests: sink.clone(),
                watch: watch.clone(),
                reply,
            });
            match shared.reply(index, &answer)? {
                Ok(()) => {}
                Err(ControlError::PortInUse(port)) => return Err(Error::PortTaken(port)),
                Err(other) => {
                    return Err(Error::Control(other));
                }
            }
        }
        Ok(listener)
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.reservation.port()
    }

    /// The next request, if one waits. An inline context's engine is turned first.
    pub fn try_next(&mut self) -> Result<Option<ConnectRequest>, Error> {
        self.shared.turn();
        match self.requests.try_recv() {
            Ok(request) => Ok(Some(self.wrap(request))),
            Err(TryRecvError::Empty) => self.shared.check_open().map(|()| None),
            Err(TryRecvError::Disconnected) => self.shared.check_open().and(Err(Error::ContextClosed)),
        }
    }

    /// Waits for the next request; `None` when the time is over.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<ConnectRequest>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        match self.shared.receive(&self.requests, Origin::All, deadline) {
            Ok(request) => Ok(Some(self.wrap(request))),
            Err(NoReply::TimedOut) => Ok(None),
            Err(NoReply::WrongThread) => Err(Error::WrongThread),
            Err(NoReply::Gone) => self.shared.check_open().and(Err(Error::ContextClosed)),
        }
    }

    /// Makes the next request raise the file descriptor of [`as_fd`](AsFd::as_fd): at once, if one waits.
    pub fn arm(&mut self) {
        self.notifier.drain();
        self.notifier.arm();
        if !self.requests.is_empty() {
            self.notifier.fire_if_armed();
        }
    }

    fn wrap(&self, request: ConnectionRequest) -> ConnectRequest {
        ConnectRequest::of_listener(&self.shared, request)
    }
}

impl AsFd for Listener {
    /// Readable when a request came after [`arm`](Listener::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for engine in &self.shared.engines {
            engine.command(Command::StopListening { listener: self.id });
        }
    }
}
