//! The flow table: from the addresses and ports of a segment to its connection.
//!
//! Open addressing with linear probing over words of (tag, index); the key itself lies in the connection, which is
//! touched anyway. The hash is keyed by a secret, so that a peer cannot aim at one slot. Entries are removed by moving
//! later ones back: no tombstones, so the table does not decay under connects and closes.

use std::hash::BuildHasher;

use uwarp_memory::kernels::prefetch;
use uwarp_wire::address::FlowKey;

const EMPTY: u64 = u64::MAX;

/// The table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    /// Tag (the hash) in the upper half, index of the connection in the lower.
    slots: Vec<u64>,
    count: usize,
    hasher: foldhash::quality::FixedState,
}

fn pack(tag: u32, index: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(index)
}

impl FlowTable {
    pub(crate) fn new(secret: u64) -> FlowTable {
        FlowTable { slots: vec![EMPTY; 64], count: 0, hasher: foldhash::quality::FixedState::with_seed(secret) }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The tag of a key. Never the value that marks an empty slot together with an index.
    #[inline]
    pub(crate) fn tag(&self, key: &FlowKey) -> u32 {
        (self.hasher.hash_one(key) >> 33) as u32
    }

    /// The connection with this tag for which `is_it` says yes.
    #[inline]
    pub(crate) fn find(&self, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut place = tag as usize & mask;
        loop {
            let slot = self.slots[place];
            if slot == EMPTY {
                return None;
            }
            if (slot >> 32) as u32 == tag && is_it(slot as u32) {
                return Some(slot as u32);
            }
            place = (place + 1) & mask;
        }
    }

    /// Asks for the place where the search for a tag begins.
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

    /// Takes a connection out.
    pub(crate) fn remove(&mut self, tag: u32, index: u32) {
        let mask = self.slots.len() - 1;
        let wanted = pack(tag, index);
        let mut hole = tag as usize & mask;
        while self.slots[hole] != wanted {
            if self.slots[hole] == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
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
        let mut place = (slot >> 32) as usize & mask;
        while self.slots[place] != EMPTY {
            place = (place + 1) & mask;
        }
        self.slots[place] = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut table = FlowTable::new(9);
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
