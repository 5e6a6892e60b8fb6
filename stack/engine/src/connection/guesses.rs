//! A limit on guesses at SYN cookies.
//!
//! A cookie has 23 bits that only its receiver knows. An attacker who sends acknowledgments with random numbers in
//! another host's name opens a connection in that name after 2^23 attempts on average, and a million attempts a second
//! are easy to send. So segments that match no cookie are counted by source address, and segments from an address with
//! too many of them are not compared for a while. An honest host sends cookies that match; it is shut out only while
//! somebody guesses in its name.

use std::hash::BuildHasher;
use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;

use crate::link::hash::KeyedHash;

/// Groups in which addresses are counted, by a keyed hash. A group takes 8 octets.
const GROUPS: usize = 4096;
/// Wrong acknowledgments that a group may send at once. Honest ones are late segments, and data whose beginning was
/// lost.
const BURST: u32 = 1000;
/// Time that each of them costs, so 100 a second pass.
const COST: Duration = Duration::from_millis(10);

/// Counts wrong acknowledgments by source address.
#[derive(Debug)]
pub(crate) struct Guesses {
    hash: KeyedHash,
    /// For each group, when its wrong acknowledgments are paid off. Empty until the first one.
    settled_at: Vec<Instant>,
}

impl Guesses {
    pub(crate) fn new(hash: KeyedHash) -> Guesses {
        Guesses { hash, settled_at: Vec::new() }
    }

    /// All addresses of an IPv6 network count as one, since a host may use any of them (RFC 4291 §2.5.1).
    fn group(&self, remote: IpAddress) -> usize {
        let host = if remote.is_ipv4() { remote.to_bits() } else { remote.to_bits() >> 64 };
        self.hash.hash_one(host) as usize % GROUPS
    }

    /// Whether a segment from this address may be compared with cookies.
    pub(crate) fn admits(&self, now: Instant, remote: IpAddress) -> bool {
        self.settled_at.get(self.group(remote)).is_none_or(|settled_at| *settled_at < now + BURST * COST)
    }

    /// A segment from this address matched no cookie.
    pub(crate) fn was_wrong(&mut self, now: Instant, remote: IpAddress) {
        let group = self.group(remote);
        if self.settled_at.is_empty() {
            self.settled_at = vec![Instant::ZERO; GROUPS];
        }
        let settled_at = &mut self.settled_at[group];
        *settled_at = (*settled_at).max(now) + COST;
    }
}
