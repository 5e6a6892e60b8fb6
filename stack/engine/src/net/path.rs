//! Path MTU discovery (RFC 1191, RFC 8201), with the checks against forged messages (RFC 5927 §4 and §7).
//!
//! A message counts only if it quotes octets of ours that are in flight. If it claims less than what has arrived
//! recently, it is *doubted*: it takes effect once a retransmission time-out finds the quoted octets still missing (RFC
//! 5927 §7.2). Only age raises an MTU again.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;
use uwarp_wire::ipv6;
use uwarp_wire::tcp::SeqNumber;

use crate::link::hash::KeyedHash;

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
/// Octets of the headers of IPv6 and TCP without options.
pub(crate) const IPV6_AND_TCP: u16 = 60;
/// The plateaus of RFC 1191 §7.1, for routers that do not report an MTU.
const PLATEAUS: [u16; 6] = [8166, 4352, 2002, 1492, 1006, 552];

/// A lower MTU that a message reported.
#[derive(Debug)]
struct Known {
    mtu: u16,
    until: Instant,
}

/// A doubted message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doubt {
    pub(crate) mtu: u16,
    /// The first octet that it quoted.
    pub(crate) sequence: SeqNumber,
    /// Retransmission time-outs before it arrived.
    pub(crate) timeouts: u32,
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

    /// The longest segment towards a destination.
    pub(crate) fn mss(&self, destination: IpAddress) -> u16 {
        self.mtu(destination).unwrap_or(self.device_mtu) - headers(destination)
    }

    /// The lower MTU that a router claims towards a destination, 0 if it does not report it: a packet of `packet_len`
    /// octets did not fit. `None`: the claim is refused.
    pub(crate) fn claimed(&self, destination: IpAddress, packet_len: usize, claimed: u32) -> Option<u16> {
        let current = self.mtu(destination).unwrap_or(self.device_mtu);
        let v4 = destination.is_ipv4();
        let mtu = match u16::try_from(claimed).unwrap_or(u16::MAX) {
            0 if v4 => plateau_below(packet_len.min(usize::from(current))),
            claimed if v4 => claimed.max(MINIMUM_IPV4),
            claimed => claimed,
        };
        // RFC 8201 §4: less than 1280 is not allowed. RFC 5927 §7.1 and RFC 8201 §5.2: no message raises an MTU.
        let is_stale = mtu >= current || !v4 && mtu < ipv6::MINIMUM_MTU;
        (!is_stale).then_some(mtu)
    }

    /// Uses an MTU towards a destination. Returns when the connections there are to be adjusted.
    pub(crate) fn lower(&mut self, now: Instant, destination: IpAddress, mtu: u16) -> Instant {
        let is_full = self.known.len() >= MOST_PATHS && !self.known.contains_key(&destination);
        let oldest = || self.known.iter().min_by_key(|(_, known)| known.until).map(|(address, _)| *address);
        // Its connections may send larger packets again.
        let forgotten = if is_full { oldest() } else { None };
        if let Some(oldest) = forgotten {
            self.known.remove(&oldest);
        }
        self.known.insert(destination, Known { mtu, until: now + BELIEVED });
        if self.unfitted.is_empty() {
            self.fit_at = now + FIT_AFTER;
        }
        self.unfitted.insert(destination);
        self.unfitted.extend(forgotten);
        self.fit_at
    }

    /// Expires old entries, so larger packets are tried again. Gives the destinations whose connections are to be
    /// adjusted now, if there are any.
    pub(crate) fn age(&mut self, now: Instant) -> Option<HashSet<IpAddress, KeyedHash>> {
        let unfitted = &mut self.unfitted;
        let mut fit = !unfitted.is_empty() && self.fit_at <= now;
        self.known.retain(|destination, known| {
            let is_old = known.until <= now;
            if is_old {
                unfitted.insert(*destination);
            }
            fit |= is_old;
            !is_old
        });
        let none = HashSet::with_hasher(*unfitted.hasher());
        fit.then(|| std::mem::replace(unfitted, none))
    }

    /// Keeps a message about the connection at `index` in mind.
    pub(crate) fn doubt(&mut self, index: u32, doubt: Doubt) {
        self.doubts.insert(index, doubt);
    }

    /// The doubted message about the connection at `index`.
    pub(crate) fn doubt_about(&self, index: u32) -> Option<Doubt> {
        self.doubts.get(&index).copied()
    }

    /// Removes the doubt about the connection at `index`.
    pub(crate) fn forget(&mut self, index: u32) {
        self.doubts.remove(&index);
    }
}

/// Octets of the IP and TCP headers towards a destination.
pub(crate) fn headers(destination: IpAddress) -> u16 {
    if destination.is_ipv4() { IPV4_AND_TCP } else { IPV6_AND_TCP }
}

/// The next smaller plateau, when the router reports no MTU (RFC 1191 §5).
fn plateau_below(packet_len: usize) -> u16 {
    PLATEAUS.into_iter().find(|plateau| usize::from(*plateau) < packet_len).unwrap_or(MINIMUM_IPV4)
}
