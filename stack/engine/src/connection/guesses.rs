//! A limit on guesses at SYN cookies.
//!
//! A cookie has 23 bits that nobody knows who did not see it. Whoever sends acknowledgments with random numbers in the name
//! of another host opens a connection in that name after 2^23 attempts on average, and a million attempts a second are no
//! trouble to send. So what fits no cookie is counted by the address in whose name it comes; from an address with too many of
//! them nothing is compared with a cookie for a while. An honest host sends what fits: it is shut out only while somebody
//! guesses in its own name.

use std::hash::BuildHasher;
use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;

use crate::connection::flow::KeyedHash;

/// Addresses are counted in so many groups, by a keyed hash. A group takes 8 octets.
const GROUPS: usize = 4096;
/// Wrong acknowledgments that a group may send at once. Honest ones are late segments, and data behind a lost beginning.
const BURST: u32 = 1000;
/// Time after which it may send one more: 100 a second.
const COST: Duration = Duration::from_millis(10);

/// Counts wrong acknowledgments by address.
#[derive(Debug)]
pub(crate) struct Guesses {
    hash: KeyedHash,
    /// When all that was wrong is made up for, for each group. Empty until something is wrong.
    settled_at: Vec<Instant>,
}

impl Guesses {
    pub(crate) fn new(hash: KeyedHash) -> Guesses {
        Guesses { hash, settled_at: Vec::new() }
    }

    /// An IPv6 host may take any address of its network (RFC 4291 §2.5.1), so all of them are one.
    fn group(&self, remote: IpAddress) -> usize {
        let host = if remote.is_ipv4() { remote.to_bits() } else { remote.to_bits() >> 64 };
        self.hash.hash_one(host) as usize % GROUPS
    }

    /// Whether a segment of this address may be compared with a cookie.
    pub(crate) fn admits(&self, now: Instant, remote: IpAddress) -> bool {
        self.settled_at.get(self.group(remote)).is_none_or(|settled_at| *settled_at < now + BURST * COST)
    }

    /// A segment of this address fitted no cookie.
    pub(crate) fn was_wrong(&mut self, now: Instant, remote: IpAddress) {
        let group = self.group(remote);
        if self.settled_at.is_empty() {
            self.settled_at = vec![Instant::ZERO; GROUPS];
        }
        let settled_at = &mut self.settled_at[group];
        *settled_at = (*settled_at).max(now) + COST;
    }
}
