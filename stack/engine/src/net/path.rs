//! Path MTU discovery (RFC 1191, RFC 8201), with the checks against forged messages (RFC 5927 §4 and §7).
//!
//! A message counts only if it quotes octets of ours that are in flight. If it claims less than what has arrived
//! recently, it is *doubted*: it takes effect once a retransmission time-out finds the quoted octets still missing (RFC
//! 5927 §7.2). Only age raises an MTU again.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;
use uwarp_wire::icmp::QuotedTcp;
use uwarp_wire::ipv6;
use uwarp_wire::tcp::SeqNumber;

use crate::api::stats::DropReason;
use crate::connection::Connection;
use crate::connection::IPV6_AND_TCP;
use crate::connection::flow::KeyedHash;
use crate::core::Core;
use crate::link::port::Port;

/// How long a lower MTU is used before a larger one is tried (RFC 1191 §6.3, RFC 8201 §5.3).
const BELIEVED: Duration = Duration::from_secs(600);
/// Most destinations that are remembered. A peer can cause an entry only for its own address.
const MOST_PATHS: usize = 1024;
/// The least MTU that a message may cause with IPv4: what every host takes (RFC 1122 §3.3.3), less room for a tunnel.
const MINIMUM_IPV4: u16 = 552;
/// How long other connections to a destination may keep a larger MTU. Finding them takes a walk over all connections,
/// which is made once for all changes of this time.
const FIT_AFTER: Duration = Duration::from_millis(10);
/// Octets of the headers of IPv4 and TCP without options.
const IPV4_AND_TCP: u16 = 40;
/// The plateaus of RFC 1191 §7.1, for routers that do not report an MTU.
const PLATEAUS: [u16; 6] = [8166, 4352, 2002, 1492, 1006, 552];

/// A lower MTU that a message reported.
#[derive(Debug)]
struct Known {
    mtu: u16,
    until: Instant,
}

/// A doubted message.
#[derive(Debug)]
struct Doubt {
    mtu: u16,
    /// The first octet that it quoted.
    sequence: SeqNumber,
    /// Retransmission time-outs before it arrived.
    timeouts: u32,
}

/// All known path MTUs.
#[derive(Debug)]
pub(crate) struct Paths {
    known: HashMap<IpAddress, Known, KeyedHash>,
    /// By index of the connection.
    doubts: HashMap<u32, Doubt>,
    /// Destinations with a changed MTU that some connections do not use yet.
    unfitted: HashSet<IpAddress, KeyedHash>,
    /// When those connections are adjusted, if there are any.
    fit_at: Instant,
}

impl Paths {
    pub(crate) fn new(hash: KeyedHash) -> Paths {
        Paths {
            known: HashMap::with_hasher(hash),
            doubts: HashMap::new(),
            unfitted: HashSet::with_hasher(hash),
            fit_at: Instant::ZERO,
        }
    }

    #[inline]
    pub(crate) fn is_doubting(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// The MTU towards a destination, where it is less than the port's.
    pub(crate) fn mtu(&self, destination: IpAddress) -> Option<u16> {
        self.known.get(&destination).map(|known| known.mtu)
    }

    /// Every destination with an MTU of its own.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpAddress, u16)> {
        self.known.iter().map(|(destination, known)| (*destination, known.mtu))
    }

    /// When the next entry expires, or connections are to be adjusted.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let old = self.known.values().map(|known| known.until).min();
        let fit = (!self.unfitted.is_empty()).then_some(self.fit_at);
        old.into_iter().chain(fit).min()
    }

    /// Removes what is stored for a connection that is gone.
    pub(crate) fn forget(&mut self, index: u32) {
        self.doubts.remove(&index);
    }
}

/// Octets of the IP and TCP headers towards a destination.
fn headers(destination: IpAddress) -> u16 {
    if destination.is_ipv4() { IPV4_AND_TCP } else { IPV6_AND_TCP }
}

/// The next smaller plateau, when the router reports no MTU (RFC 1191 §5).
fn plateau_below(packet_len: usize) -> u16 {
    PLATEAUS.into_iter().find(|plateau| usize::from(*plateau) < packet_len).unwrap_or(MINIMUM_IPV4)
}

impl<P: Port> Core<P> {
    /// A packet of ours did not fit. `claimed` is the MTU that would, 0 if the router does not report it.
    #[cold]
    pub(crate) fn on_too_big(&mut self, quoted: Option<QuotedTcp>, claimed: u32) {
        let found = quoted.and_then(|quoted| Some((quoted, self.find(&quoted.flow)?)));
        let Some((quoted, index)) = found else { return self.count_drop(DropReason::IcmpForged) };
        let Some(mut connection) = self.connections.table.take(index) else { return };
        if connection.tcp.is_in_flight(quoted.sequence) {
            self.judge_claim(index, &mut connection, &quoted, claimed);
        } else {
            self.count_drop(DropReason::IcmpForged);
        }
        self.put_back(index, connection);
    }

    fn judge_claim(&mut self, index: u32, connection: &mut Connection, quoted: &QuotedTcp, claimed: u32) {
        let destination = connection.flow.remote;
        let current = self.net.paths.mtu(destination).unwrap_or(self.link.port.capabilities().mtu);
        let v4 = destination.is_ipv4();
        let mtu = match u16::try_from(claimed).unwrap_or(u16::MAX) {
            0 if v4 => plateau_below(quoted.packet_len.min(usize::from(current))),
            claimed if v4 => claimed.max(MINIMUM_IPV4),
            claimed => claimed,
        };
        // RFC 8201 §4: less than 1280 is not allowed. RFC 5927 §7.1 and RFC 8201 §5.2: no message raises an MTU.
        if mtu >= current || !v4 && mtu < ipv6::MINIMUM_MTU {
            return self.count_drop(DropReason::IcmpStale);
        }
        if connection.confirmed + u32::from(headers(destination)) <= u32::from(mtu) {
            return self.lower_path_mtu(index, connection, mtu);
        }
        let timeouts = connection.tcp.info().timeouts;
        self.net.paths.doubts.insert(index, Doubt { mtu, sequence: quoted.sequence, timeouts });
        self.counters.path_mtu_doubts += 1;
    }

    /// A timer of the connection has expired, which may confirm or refute its doubted message.
    #[cold]
    pub(crate) fn review_doubt(&mut self, index: u32, connection: &mut Connection) {
        let Some(doubt) = self.net.paths.doubts.get(&index) else { return };
        let (mtu, timeouts) = (doubt.mtu, doubt.timeouts);
        if !connection.tcp.is_in_flight(doubt.sequence) {
            self.net.paths.doubts.remove(&index);
        } else if connection.tcp.info().timeouts > timeouts {
            self.net.paths.doubts.remove(&index);
            self.lower_path_mtu(index, connection, mtu);
        }
    }

    /// Uses the MTU for this connection and all others to the same destination.
    fn lower_path_mtu(&mut self, index: u32, connection: &mut Connection, mtu: u16) {
        let destination = connection.flow.remote;
        self.counters.path_mtu_changes += 1;
        if self.net.paths.known.len() >= MOST_PATHS {
            let oldest = self.net.paths.known.iter().min_by_key(|(_, known)| known.until).map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                self.net.paths.known.remove(&oldest);
            }
        }
        self.net.paths.known.insert(destination, Known { mtu, until: self.now + BELIEVED });
        self.fit(connection);
        Self::schedule(&mut self.connections.ready, index, connection);
        if self.net.paths.unfitted.is_empty() {
            self.net.paths.fit_at = self.now + FIT_AFTER;
        }
        self.net.paths.unfitted.insert(destination);
        let at = self.net.paths.fit_at;
        self.net.chores_at = Some(self.net.chores_at.map_or(at, |known| known.min(at)));
    }

    /// Adjusts a connection's segment size to its path.
    pub(crate) fn fit(&mut self, connection: &mut Connection) {
        let destination = connection.flow.remote;
        let mtu = self.net.paths.mtu(destination).unwrap_or(self.link.port.capabilities().mtu);
        connection.tcp.set_path_mss(mtu - headers(destination));
        connection.confirmed = connection.confirmed.min(u32::from(mtu - headers(destination)));
    }

    /// Adjusts the connections whose path MTUs have changed.
    fn fit_all(&mut self) {
        let none = HashSet::with_hasher(*self.net.paths.unfitted.hasher());
        let unfitted = std::mem::replace(&mut self.net.paths.unfitted, none);
        for index in self.connections.table.indexes() {
            self.counters.connections_scanned += 1;
            if self.connections.table.get(index).is_none_or(|connection| !unfitted.contains(&connection.flow.remote)) {
                continue;
            }
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            self.fit(&mut connection);
            Self::schedule(&mut self.connections.ready, index, &mut connection);
            self.put_back(index, connection);
        }
    }

    /// Expires old entries, so larger packets are tried again, and adjusts connections after changes.
    pub(crate) fn age_paths(&mut self) {
        let (now, unfitted) = (self.now, &mut self.net.paths.unfitted);
        let mut fit = !unfitted.is_empty() && self.net.paths.fit_at <= now;
        self.net.paths.known.retain(|destination, known| {
            let is_old = known.until <= now;
            if is_old {
                unfitted.insert(*destination);
            }
            fit |= is_old;
            !is_old
        });
        if fit {
            self.fit_all();
        }
    }
}
