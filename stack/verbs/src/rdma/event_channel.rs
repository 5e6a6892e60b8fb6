//! Events of many connections behind one descriptor.

use crate::error::Error;
use crate::rdma::connection::ConnectRequest;
use crate::rdma::listener::Listener;
use crate::rdma::queue_pair::QueuePairControl;
use crate::runtime::context::Shared;
use crate::runtime::driver::{Backoff, inline};
use crate::runtime::lock::lock;
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use uwarp_engine::command::{
    ConnectFailure, ConnectionEvent, DisconnectReason, Established, EventSink, Watched, WatchedEvent, Watcher,
};
use uwarp_ring::Notifier;

/// Brings the connection requests of listeners, and the outcomes and ends of queue pairs' connections, to one place
/// with one pollable descriptor.
///
/// Listeners and queue pairs of any context are attached under keys that the application chooses:
/// [`Listener::attach`](crate::Listener::attach), [`QueuePairControl::attach`](crate::QueuePairControl::attach). Each
/// attempt to connect or accept brings exactly one of [`Established`](ConnectionChange::Established),
/// [`Rejected`](ConnectionChange::Rejected) and [`Failed`](ConnectionChange::Failed); each established connection
/// brings exactly one [`Disconnected`](ConnectionChange::Disconnected), also if its queue pair is dropped meanwhile.
/// Events of one connection come in order. An attempt that is refused at once, by an error of the call, brings nothing.
///
/// A clone is the same channel; several threads may take events from it.
///
/// ```
/// # use uwarp::{AcceptOptions, Config, ConnectOptions, ConnectionChange, Context, EventChannel, ListenOptions};
/// # use uwarp::QueuePairOptions;
/// # use std::time::Duration;
/// # const LIMIT: Duration = Duration::from_secs(10);
/// # let (here, there) =
/// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
/// # let (cq_a, cq_b) = (here.create_completion_queue(16)?, there.create_completion_queue(16)?);
/// # let (domain_a, domain_b) = (here.allocate_domain(), there.allocate_domain());
/// # let mut client = domain_a.create_queue_pair(&QueuePairOptions::new(&cq_a))?;
/// # let mut server = domain_b.create_queue_pair(&QueuePairOptions::new(&cq_b))?;
/// let channel = EventChannel::new()?;
/// let mut listener = there.listen(7471, ListenOptions::default())?;
/// listener.attach(&channel, 1);
/// client.control.attach(&channel, 2);
/// server.control.attach(&channel, 3);
/// let _ = here.start_connect(&mut client.control, there.socket_address(7471), ConnectOptions::default())?;
/// let mut established = 0;
/// while established < 2 {
///     let event = channel.next(LIMIT)?.expect("something happens");
///     match event.change {
///         ConnectionChange::Request(request) => {
///             let _ = request.start_accept(&mut server.control, AcceptOptions::default())?;
///         }
///         ConnectionChange::Established(_) => established += 1,
///         other => panic!("{other:?} of {}", event.key),
///     }
/// }
/// # Ok::<(), uwarp::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sender: Sender<WatchedEvent>,
    events: Receiver<WatchedEvent>,
    notifier: Arc<Notifier>,
    /// The contexts of what is attached, by number. The channel does not keep a context open.
    contexts: Mutex<HashMap<u64, Weak<Shared>>>,
}

/// What an [`EventChannel`] brings.
#[derive(Debug)]
#[non_exhaustive]
pub struct ChannelEvent {
    /// The key under which the listener or queue pair is attached.
    pub key: u64,
    /// What happened.
    pub change: ConnectionChange,
}

/// What happened to a listener or a queue pair.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionChange {
    /// A peer wants to connect to the listener. Dropping the request rejects it.
    Request(Box<ConnectRequest>),
    /// The queue pair's stream is in full operation.
    Established(Box<Established>),
    /// The peer said no. The queue pair is idle again.
    Rejected {
        /// What it said along with the no.
        private_data: Vec<u8>,
        /// The IRD that it would have, if it says so (MPA revision 2).
        peer_ird: Option<u16>,
        /// The ORD that it wants, if it says so (MPA revision 2).
        peer_ord: Option<u16>,
    },
    /// No connection was made. The queue pair is idle again.
    Failed(ConnectFailure),
    /// The connection is over; all work of the queue pair has completed or been flushed.
    Disconnected(DisconnectReason),
}

impl Listener {
    /// Has an event channel bring the requests, under the given key: those that wait, and what comes from now on.
    pub fn attach(&mut self, channel: &EventChannel, key: u64) {
        let mut watch = self.watch.lock();
        let watcher = watch.insert(channel.watcher(&self.shared, key));
        for request in self.requests.try_iter() {
            watcher.send(Watched::Request(request));
        }
    }
}

impl QueuePairControl {
    /// Has an event channel bring what becomes of this queue pair's connections from now on, under the given key:
    /// whether one is made, and when it ends. See [`EventChannel`]. Nobody has to wait for a
    /// [`Connecting`](crate::Connecting) then.
    pub fn attach(&mut self, channel: &EventChannel, key: u64) {
        *self.watch.lock() = Some(channel.watcher(self.shared(), key));
    }

    /// Takes the queue pair off its event channel. Events that are there already stay.
    pub fn detach(&mut self) {
        self.watch.lock().take();
    }
}

impl EventChannel {
    /// A channel with nothing attached.
    ///
    /// # Errors
    /// [`Error::System`] if the process has no file descriptor left.
    pub fn new() -> Result<Self, Error> {
        let notifier = Notifier::new().map_err(Error::system("no event file descriptor for an event channel"))?;
        let (sender, events) = unbounded();
        let (notifier, contexts) = (Arc::new(notifier), Mutex::default());
        Ok(Self { inner: Arc::new(Inner { sender, events, notifier, contexts }) })
    }

    /// What brings events to the channel under a key.
    pub(crate) fn watcher(&self, shared: &Arc<Shared>, key: u64) -> Watcher {
        let mut contexts = lock(&self.inner.contexts);
        contexts.retain(|_, context| context.strong_count() > 0);
        contexts.insert(shared.id, Arc::downgrade(shared));
        let events = EventSink::new(self.inner.sender.clone(), Some(Arc::clone(&self.inner.notifier)));
        Watcher { events, context: shared.id, key }
    }

    /// The next event, if there is one. Turns the inline engines of the calling thread first.
    pub fn try_next(&self) -> Option<ChannelEvent> {
        inline::turn_all();
        self.take()
    }

    fn take(&self) -> Option<ChannelEvent> {
        self.inner.events.try_iter().find_map(|event| self.wrap(event))
    }

    /// The next event; `None` when the time is over. Turns the inline engines of the calling thread meanwhile.
    ///
    /// # Errors
    /// [`Error::WrongThread`] if something of an inline context is attached that another thread opened.
    pub fn next(&self, timeout: Duration) -> Result<Option<ChannelEvent>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let mut contexts: Vec<_> = lock(&self.inner.contexts).values().filter_map(Weak::upgrade).collect();
        // One that is closed brings nothing more, and no thread turns it.
        contexts.retain(|context| context.is_inline() && context.check_alive().is_ok());
        let here = contexts.iter().position(|context| context.check_here().is_ok()).unwrap_or_default();
        let Some(context) = contexts.into_iter().nth(here) else {
            return Ok(loop {
                let event = match deadline {
                    Some(deadline) => self.inner.events.recv_deadline(deadline).ok(),
                    None => self.inner.events.recv().ok(),
                };
                match event.map(|event| self.wrap(event)) {
                    // Of a context that is gone.
                    Some(None) => {}
                    Some(event) => break event,
                    None => break None,
                }
            });
        };
        context.check_here()?;
        inline::turn_until(Backoff::new(&context.config.engine), deadline, || Ok(self.take()))
    }

    /// Makes the next event raise the file descriptor of [`as_fd`](AsFd::as_fd): at once, if one waits. The descriptor
    /// stays readable until the channel is armed again, and no event is lost by arming.
    pub fn arm(&self) {
        self.inner.notifier.drain();
        self.inner.notifier.arm();
        if !self.inner.events.is_empty() {
            self.inner.notifier.fire_if_armed();
        }
    }

    /// The event for the application. None if it asks something of a context that is gone.
    fn wrap(&self, event: WatchedEvent) -> Option<ChannelEvent> {
        let change = match event.what {
            Watched::Request(request) => {
                let shared = lock(&self.inner.contexts).get(&event.context)?.upgrade()?;
                ConnectionChange::Request(Box::new(ConnectRequest::of_listener(&shared, request)))
            }
            Watched::Connection(ConnectionEvent::Established(established)) => {
                ConnectionChange::Established(established)
            }
            Watched::Connection(ConnectionEvent::Rejected { private_data, peer_ird, peer_ord }) => {
                ConnectionChange::Rejected { private_data, peer_ird, peer_ord }
            }
            Watched::Connection(ConnectionEvent::Failed(reason)) => ConnectionChange::Failed(reason),
            Watched::Connection(ConnectionEvent::Disconnected(reason)) => ConnectionChange::Disconnected(reason),
        };
        Some(ChannelEvent { key: event.key, change })
    }
}

impl AsFd for EventChannel {
    /// Readable when an event came after [`arm`](EventChannel::arm), or was there then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.notifier.as_fd()
    }
}
