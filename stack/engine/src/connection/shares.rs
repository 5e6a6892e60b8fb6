//! Shares: what no connection may keep from the others. Transmit buffers that its peer does not take, and places of a
//! backlog.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;

use crate::api::command::DisconnectReason;
use crate::connection::Connection;
use crate::connection::flow::KeyedHash;
use crate::connection::phase::Phase;
use crate::connection::slab::Handle;
use crate::core::Core;
use crate::link::port::Port;

/// How often connections are examined while some get no transmit buffer.
const REVIEW: Duration = Duration::from_millis(100);
/// How long peers are observed before they count as too slow: a slow one opens its window one segment at a time.
const WATCH: Duration = Duration::from_secs(10);

/// What is known about connections while some get no transmit buffer.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    review_at: Instant,
    /// Connections that held buffers when the observation began.
    watched: Vec<Watched>,
    watched_since: Instant,
    /// Connections that were too slow; the one that holds most is last.
    condemned: Vec<Handle>,
}

#[derive(Debug)]
struct Watched {
    handle: Handle,
    /// Octets acknowledged when the observation began.
    acknowledged: u64,
    /// Octets given to TCP by then.
    pushed: u64,
}

impl Watched {
    /// Octets that were unacknowledged when the observation began.
    fn held(&self) -> u64 {
        self.pushed - self.acknowledged
    }

    /// How many of them have been acknowledged since.
    fn taken(&self, connection: &Connection) -> u64 {
        connection.tcp.octets_acknowledged().min(self.pushed) - self.acknowledged
    }

    /// Whether the peer has acknowledged fewer than `least` octets since, and could have acknowledged more.
    fn is_too_slow(&self, connection: &Connection, least: u64) -> bool {
        let acknowledged = connection.tcp.octets_acknowledged();
        acknowledged < self.pushed && acknowledged - self.acknowledged < least
    }
}

/// The places in a listener's backlog of connections whose peers have not sent their MPA Request.
#[derive(Debug)]
pub(crate) struct Silent {
    /// In the order of their handshakes, including some that are no longer silent.
    order: VecDeque<Handle>,
    /// Places of all pending connections, by the peer's address.
    by_source: HashMap<IpAddress, u32, KeyedHash>,
}

impl Silent {
    pub(crate) fn new(hash: KeyedHash) -> Silent {
        Silent { order: VecDeque::new(), by_source: HashMap::with_hasher(hash) }
    }

    /// A connection from `source` takes a place.
    pub(crate) fn enter(&mut self, source: IpAddress) {
        *self.by_source.entry(source).or_default() += 1;
    }

    /// A connection from `source` gives up its place.
    pub(crate) fn leave(&mut self, source: IpAddress) {
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
    }
}

/// Whether TCP is open and the MPA Request has not arrived.
fn is_silent(connection: &Connection) -> bool {
    matches!(&connection.phase, Phase::Responding(responding) if !responding.half_open)
}

impl<P: Port> Core<P> {
    /// The handshake of a passive connection is done; its MPA Request may come.
    pub(crate) fn await_request(&mut self, index: u32, port: u16) {
        let table = &self.connections.table;
        let (Some(handle), Some(listener)) =
            (table.reserved_handle(index), self.connections.opening.listeners.get_mut(&port))
        else {
            return;
        };
        let order = &mut listener.silent.order;
        // At most a backlog of connections is pending, so the amortised cost for each new one is small.
        if order.len() >= 2 * listener.backlog as usize {
            order.retain(|handle| table.resolve(*handle).and_then(|index| table.get(index)).is_some_and(is_silent));
        }
        order.push_back(handle);
    }

    /// Whether a full listener makes room for a connection from `source`: the longest silent connection is evicted,
    /// unless `source` has half of the places already.
    pub(crate) fn make_room(&mut self, port: u16, source: IpAddress) -> bool {
        let Some(listener) = self.connections.opening.listeners.get_mut(&port) else { return false };
        if listener.silent.by_source.get(&source).is_some_and(|count| 2 * count >= listener.backlog) {
            return false;
        }
        let table = &self.connections.table;
        while let Some(handle) = listener.silent.order.pop_front() {
            let index = table.resolve(handle);
            if let Some(index) = index.filter(|index| table.get(*index).is_some_and(is_silent)) {
                self.evict(index);
                return true;
            }
        }
        false
    }

    /// Some connections get no transmit buffer: ends the one that holds most of those whose peers are too slow (RFC
    /// 6429). A connection is observed for [`WATCH`] before. None is ended while most buffers return within that time.
    #[cold]
    pub(crate) fn relieve(&mut self) {
        let pressure = &mut self.connections.pressure;
        if self.now < pressure.review_at {
            return;
        }
        if self.now > pressure.review_at + 10 * REVIEW {
            // There were enough buffers meanwhile.
            pressure.watched.clear();
            pressure.condemned.clear();
        }
        pressure.review_at = self.now + REVIEW;
        if pressure.watched.is_empty() || self.now >= pressure.watched_since + WATCH {
            self.watch();
        }
        while let Some(handle) = self.connections.pressure.condemned.pop() {
            if let Some(index) = self.connections.table.resolve(handle) {
                return self.evict(index);
            }
        }
    }

    /// Finds the connections that were too slow since the last observation, and starts to observe all that hold
    /// buffers.
    fn watch(&mut self) {
        let (table, pressure) = (&self.connections.table, &mut self.connections.pressure);
        self.counters.connections_scanned += table.len() as u64;
        let elapsed = self.now - pressure.watched_since;
        let least = u64::from(self.config.limits.least_rate) * elapsed.as_secs();
        let mut slow: Vec<(usize, Handle)> = Vec::new();
        let (mut held, mut taken) = (0, 0);
        for watched in pressure.watched.drain(..) {
            held += watched.held();
            let connection = table.resolve(watched.handle).and_then(|index| table.get(index));
            taken += connection.map_or(watched.held(), |connection| watched.taken(connection));
            if let Some(connection) = connection.filter(|connection| watched.is_too_slow(connection, least)) {
                slow.push((connection.tcp.records(), watched.handle));
            }
        }
        if taken > held / 2 {
            // Buffers circulate: they are scarce, but no connection withholds them. A slow connection may just be
            // unlucky.
            slow.clear();
        }
        slow.sort_unstable_by_key(|(records, _)| *records);
        pressure.condemned = slow.into_iter().map(|(_, handle)| handle).collect();
        pressure.watched_since = self.now;
        for (index, connection) in table.iter().filter(|(_, connection)| connection.tcp.records() > 0) {
            let Some(handle) = table.reserved_handle(index) else { continue };
            let (acknowledged, pushed) = (connection.tcp.octets_acknowledged(), connection.tcp.octets_pushed());
            pressure.watched.push(Watched { handle, acknowledged, pushed });
        }
    }

    /// Ends a connection whose resources others need.
    fn evict(&mut self, index: u32) {
        let Some(mut connection) = self.connections.table.take(index) else { return };
        self.counters.evicted += 1;
        connection.ends_by(DisconnectReason::TimedOut);
        self.abort(&mut connection);
        self.put_back(index, connection);
    }
}
