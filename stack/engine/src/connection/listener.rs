//! Listeners, and the answers to SYNs.

mod syn;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hashbrown::HashMap;
use uwarp_wire::address::IpAddress;

use crate::api::command::{ConnectionRequest, EventSink, ListenerId, Watch};
use crate::api::ends::{IncomingStream, StreamOptions};
use crate::connection::shares::Silent;
use crate::link::hash::KeyedHash;

/// Time limit of a plain stream's handshake: a little longer than Linux retransmits its SYN-ACK (`tcp_synack_retries`,
/// 63 s). If the peer's ACK is lost and the peer stays silent, it considers the connection open and does not retry;
/// further SYN-ACKs find out. The number of retransmissions cannot be the limit, since repeated SYNs delay them.
const STREAM_OPENING: Duration = Duration::from_secs(64);

/// A listening TCP port.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    /// The own address that it listens on, if not all; an unspecified one stands for all of its version of IP.
    pub(crate) address: Option<IpAddress>,
    pub(crate) backlog: u32,
    /// Connections not yet accepted or rejected; with plain streams, those in their handshake.
    pub(crate) pending: u32,
    /// Those of them in their handshake.
    pub(crate) half_open: u32,
    /// The peers whose connections hold places of the backlog.
    pub(crate) silent: Silent,
    pub(crate) requests: Requests,
}

/// The kind of a listener, and where its connections go.
#[derive(Debug)]
pub(crate) enum Requests {
    /// RDMA streams, once their MPA Request has come.
    Rdma {
        requests: EventSink<ConnectionRequest>,
        /// Where they go instead, once it is set.
        watch: Watch,
    },
    /// Plain streams, once TCP is open.
    Streams {
        incoming: EventSink<IncomingStream>,
        options: StreamOptions,
        /// Streams that wait to be taken, on all engines.
        waiting: Arc<AtomicU32>,
    },
}

/// The listeners, by port: one for each address, and for all.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_port: HashMap<u16, Vec<Listener>>,
    count: usize,
}

impl Listeners {
    /// The listener that takes what comes to an own address: the one that names it goes before those of all addresses.
    pub(crate) fn at(&self, address: IpAddress, port: u16) -> Option<&Listener> {
        let candidates = self.by_port.get(&port)?.iter().filter(|listener| listener.is_at(address));
        candidates.max_by_key(|listener| listener.precedence())
    }

    /// The same, to be changed.
    pub(crate) fn at_mut(&mut self, address: IpAddress, port: u16) -> Option<&mut Listener> {
        let candidates = self.by_port.get_mut(&port)?.iter_mut().filter(|listener| listener.is_at(address));
        candidates.max_by_key(|listener| listener.precedence())
    }

    /// A listener of a port.
    pub(crate) fn get(&self, port: u16, id: ListenerId) -> Option<&Listener> {
        self.by_port.get(&port)?.iter().find(|listener| listener.id == id)
    }

    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self, port: u16, id: ListenerId) -> Option<&mut Listener> {
        self.by_port.get_mut(&port)?.iter_mut().find(|listener| listener.id == id)
    }

    /// Whether somebody listens on a port, at whatever address.
    pub(crate) fn has(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds a listener. False: there is one of the same address and port.
    fn insert(&mut self, port: u16, listener: Listener) -> bool {
        let others = self.by_port.entry(port).or_default();
        let is_new = others.iter().all(|other| other.address != listener.address);
        if is_new {
            others.push(listener);
            self.count += 1;
        }
        is_new
    }

    pub(crate) fn remove(&mut self, id: ListenerId) {
        self.by_port.retain(|_, listeners| {
            listeners.retain(|listener| listener.id != id);
            !listeners.is_empty()
        });
        self.count = self.by_port.values().map(Vec::len).sum();
    }
}

impl Listener {
    /// One without connections, on one own address, on all of a version of IP, or on all. `secret`: see
    /// [`KeyedHash::new`].
    pub(crate) fn new(
        id: ListenerId,
        address: Option<IpAddr>,
        backlog: u32,
        requests: Requests,
        secret: [u64; 2],
    ) -> Listener {
        let (address, silent) = (address.map(IpAddress::from), Silent::new(KeyedHash::new(secret)));
        Listener { id, address, backlog: backlog.max(1), pending: 0, half_open: 0, silent, requests }
    }

    /// Whether it takes what comes to an own address.
    fn is_at(&self, address: IpAddress) -> bool {
        self.address.is_none_or(|own| own == address || (own.is_unspecified() && own.is_ipv4() == address.is_ipv4()))
    }

    /// Which of several listeners takes a connection: that of one address, then that of a version of IP.
    fn precedence(&self) -> u8 {
        match self.address {
            None => 0,
            Some(own) if own.is_unspecified() => 1,
            Some(_) => 2,
        }
    }

    /// How many connections wait for the application.
    fn waiting(&self) -> u32 {
        let streams = match &self.requests {
            Requests::Rdma { .. } => 0,
            Requests::Streams { waiting, .. } => waiting.load(Relaxed),
        };
        self.pending.saturating_sub(self.half_open).saturating_add(streams)
    }
}
