//! Shares: what no connection may keep from the others. Transmit buffers that its peer does not take, and places of a
//! backlog.

mod relief;

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;

use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::connection::slab::Handle;
use crate::link::hash::KeyedHash;

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
