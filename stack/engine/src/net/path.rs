//! Path MTU discovery (RFC 1191, RFC 8201), with the checks against forged messages (RFC 5927 §4 and §7).
//!
//! A message counts only if it quotes octets of ours that are in flight. If it claims less than what has arrived
//! recently, it is *doubted*: it takes effect once a retransmission time-out finds the quoted octets still missing (RFC
//! 5927 §7.2). Only age raises an MTU again.

mod discovery;

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;
use uwarp_wire::tcp::SeqNumber;

use crate::connection::flow::KeyedHash;
use crate::connection::{Connection, IPV6_AND_TCP};

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
    device_mtu: u16,
    known: HashMap<IpAddress, Known, KeyedHash>,
    /// By index of the connection.
    doubts: HashMap<u32, Doubt>,
    /// Destinations with a changed MTU that some connections do not use yet.
    unfitted: HashSet<IpAddress, KeyedHash>,
    /// When those connections are adjusted, if there are any.
    fit_at: Instant,
}

impl Paths {
    pub(crate) fn new(hash: KeyedHash, device_mtu: u16) -> Paths {
        Paths {
            device_mtu,
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

    /// Adjusts a connection's segment size to its path.
    pub(crate) fn fit(&self, connection: &mut Connection) {
        let destination = connection.flow.remote;
        let mss = self.mtu(destination).unwrap_or(self.device_mtu) - headers(destination);
        connection.tcp.set_path_mss(mss);
        connection.confirmed = connection.confirmed.min(u32::from(mss));
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
