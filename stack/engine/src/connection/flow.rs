//! The flow table: finds a segment's connection by its addresses and ports.
//!
//! Open addressing with linear probing over words of (tag, index). The key itself is in the connection, which is needed
//! anyway. The hash is keyed by a secret, so a peer cannot aim at a slot. Removing an entry moves later ones back.
//! There are no tombstones, so the table does not decay as connections come and go.

use std::cell::Cell;
use std::hash::BuildHasher;

use uwarp_memory::kernels::prefetch;
use uwarp_wire::address::FlowKey;

use crate::link::hash::KeyedHash;

const EMPTY: u64 = u64::MAX;

/// The table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    /// Tag (the hash) in the upper half, index of the connection in the lower.
    slots: Vec<u64>,
    count: usize,
    hasher: KeyedHash,
    /// Occupied places passed in all searches so far.
    probes: Cell<u64>,
    /// Flows that were to leave the table and were not in it.
    faults: u64,
}

fn pack(tag: u32, index: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(index)
}

impl FlowTable {
    pub(crate) fn new(hasher: KeyedHash) -> FlowTable {
        FlowTable { slots: vec![EMPTY; 64], count: 0, hasher, probes: Cell::new(0), faults: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Occupied places passed in all searches so far: the work that collisions cause.
    pub(crate) fn probes(&self) -> u64 {
        self.probes.get()
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }

    #[cold]
    fn count_probes(&self, home: usize, place: usize) {
        let passed = place.wrapping_sub(home) & (self.slots.len() - 1);
        self.probes.set(self.probes.get() + passed as u64);
    }

    /// The tag of a key. Combined with any index it differs from the mark of an empty slot.
    #[inline]
    pub(crate) fn tag(&self, key: &FlowKey) -> u32 {
        (self.hasher.hash_one(key) >> 33) as u32
    }

    /// The connection with this tag that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let home = tag as usize & mask;
        let mut place = home;
        let found = loop {
            let slot = self.slots[place];
            if slot == EMPTY {
                break None;
            }
            if (slot >> 32) as u32 == tag && is_it(slot as u32) {
                break Some(slot as u32);
            }
            place = (place + 1) & mask;
        };
        if place != home {
            self.count_probes(home, place);
        }
        found
    }

    /// Prefetches the place where the search for a tag begins.
    #[inline]
    pub(crate) fn prefetch(&self, tag: u32) {
        prefetch(&self.slots[tag as usize & (self.slots.len() - 1)]);
    }

    /// Adds a connection that is not there yet.
    pub(crate) fn insert(&mut self, tag: u32, index: u32) {
        if (self.count + 1) * 2 > self.slots.len() {
            let doubled = vec![EMPTY; self.slots.len() * 2];
            let old = std::mem::replace(&mut self.slots, doubled);
            for slot in old.into_iter().filter(|slot| *slot != EMPTY) {
                self.place(slot);
            }
        }
        self.place(pack(tag, index));
        self.count += 1;
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, tag: u32, index: u32) {
        let mask = self.slots.len() - 1;
        let wanted = pack(tag, index);
        let home = tag as usize & mask;
        let mut hole = home;
        while self.slots[hole] != wanted {
            if self.slots[hole] == EMPTY {
                debug_assert!(false, "a flow leaves the table that is not in it");
                self.faults += 1;
                return;
            }
            hole = (hole + 1) & mask;
        }
        self.count_probes(home, hole);
        self.count -= 1;
        let mut probe = hole;
        loop {
            probe = (probe + 1) & mask;
            let slot = self.slots[probe];
            if slot == EMPTY {
                break;
            }
            let home = (slot >> 32) as usize & mask;
            // The entry may move back unless its home lies behind the hole.
            if (probe.wrapping_sub(home) & mask) >= (probe.wrapping_sub(hole) & mask) {
                self.slots[hole] = slot;
                hole = probe;
            }
        }
        self.slots[hole] = EMPTY;
    }

    fn place(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let home = (slot >> 32) as usize & mask;
        let mut place = home;
        while self.slots[place] != EMPTY {
            place = (place + 1) & mask;
        }
        self.count_probes(home, place);
        self.slots[place] = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Upper halves of IPv6 addresses with which a hash that multiplies by a public constant, whatever its seed, gives
    /// one value for all lower halves.
    const COLLIDING: [u64; 2] = [0x3f53_d648_3683_af22, 0xc0ac_29b7_c97c_50dd];

    /// Flows to one listener from hosts of one network that choose their interface identifiers.
    fn flows_of(network: u64) -> impl Iterator<Item = FlowKey> {
        (0..4096u64).map(move |host| FlowKey {
            remote: Ipv6Addr::from(u128::from(network) << 64 | u128::from(host * host)).into(),
            local: Ipv6Addr::LOCALHOST.into(),
            remote_port: 1024,
            local_port: 7471,
        })
    }

    #[test]
    fn addresses_that_a_peer_chooses_do_not_collide_under_any_secret() {
        for network in COLLIDING {
            for secret in [[0, 0], [1, 2], [u64::MAX, 7], [0x6c62_272e_07bb_0142, 0x62b8_2175_6295_c58d]] {
                let mut table = FlowTable::new(KeyedHash::new(secret));
                let keys: Vec<FlowKey> = flows_of(network).collect();
                let tags: std::collections::HashSet<u32> = keys.iter().map(|key| table.tag(key)).collect();
                assert!(tags.len() >= 4090, "{} tags for 4,096 flows", tags.len());
                for (index, key) in keys.iter().enumerate() {
                    table.insert(table.tag(key), index as u32);
                }
                for (index, key) in keys.iter().enumerate() {
                    let found = table.find(table.tag(key), |other| keys[other as usize] == *key);
                    assert_eq!(found, Some(index as u32));
                }
                for (index, key) in keys.iter().enumerate() {
                    table.remove(table.tag(key), index as u32);
                }
                // Linear probing at half load passes over half a place for each search (Knuth, volume 3, §6.4).
                assert!(table.probes() <= 4 * 4096, "{} probes", table.probes());
                let hash = KeyedHash::new(secret);
                let neighbours: std::collections::HashSet<u64> =
                    keys.iter().map(|key| hash.hash_one(key.remote) >> 32).collect();
                assert!(neighbours.len() >= 4090, "{} hashes for 4,096 neighbours", neighbours.len());
            }
        }
    }

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut table = FlowTable::new(KeyedHash::new([9, 9]));
        let mut model: HashMap<u32, FlowKey> = HashMap::new();
        let mut keys: Vec<Option<FlowKey>> = vec![None; 4096];
        for _ in 0..50_000 {
            let index = random.u32(0..4096);
            if let Some(key) = model.remove(&index) {
                table.remove(table.tag(&key), index);
                keys[index as usize] = None;
            } else {
                let key = FlowKey {
                    remote: Ipv4Addr::from(random.u32(..)).into(),
                    local: Ipv4Addr::new(10, 0, 0, 1).into(),
                    remote_port: random.u16(..),
                    local_port: 7471,
                };
                keys[index as usize] = Some(key);
                table.insert(table.tag(&key), index);
                model.insert(index, key);
            }
            let probe = random.u32(0..4096);
            if let Some(key) = keys[probe as usize] {
                let found = table.find(table.tag(&key), |index| keys[index as usize] == Some(key));
                assert_eq!(found, Some(probe));
            }
            assert_eq!(table.len(), model.len());
        }
        for (index, key) in &model {
            assert_eq!(table.find(table.tag(key), |other| keys[other as usize] == Some(*key)), Some(*index));
        }
    }
}
