//! A shared table of which owner has what. Everybody reads it, and each owner enters its own claims.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::sync::{AtomicU64, fence};

/// Places of a bucket: a cache line.
const BUCKET: usize = if cfg!(loom) { 1 } else { 8 };
/// The bits of a word that hold the owner.
const OWNER: u64 = 0xffff;

/// The result of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The owner has it.
    Granted,
    /// Another owner has it, or claims it at the same moment.
    Taken,
    /// The table has no room for it, so other owners could not see the claim.
    NoRoom,
}

/// Claims of up to 65,534 owners to things that are identified by 64 bits of a keyed hash. It is a shared table of
/// atomic words: owners enter and remove their own claims, and everybody reads.
///
/// A claim is in one of two buckets: the one that had more room when it was entered. While at most half of the slots
/// are taken, no claim is refused. Two things whose hashes have the same upper 48 bits cannot be distinguished, so the
/// second is not entered.
#[derive(Debug)]
pub struct Claims {
    /// A power of two in number.
    buckets: Box<[Bucket]>,
}

/// Entries, each 48 bits of a hash and the owner's number plus one; 0 is an empty slot.
#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; BUCKET]);

impl Bucket {
    fn new() -> Bucket {
        Bucket(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn len(&self) -> usize {
        self.0.iter().filter(|place| place.load(Relaxed) != 0).count()
    }
}

impl Claims {
    /// A table with room for this many claims.
    pub fn new(claims: usize) -> Claims {
        let buckets = (2 * claims).div_ceil(BUCKET).next_power_of_two().max(2);
        Claims { buckets: (0..buckets).map(|_| Bucket::new()).collect() }
    }

    /// The bits of an entry apart from the owner, and the buckets that may hold it.
    fn buckets(&self, hash: u64) -> (u64, [&Bucket; 2]) {
        let mask = self.buckets.len() - 1;
        let first = hash as usize & mask;
        let second = (hash >> 32) as usize & mask;
        // Never the same one twice.
        let second = if second == first { first ^ 1 } else { second };
        (hash & !OWNER, [first, second].map(|bucket| &self.buckets[bucket]))
    }

    /// The owner.
    pub fn find(&self, hash: u64) -> Option<u16> {
        let (tag, buckets) = self.buckets(hash);
        let mut words = buckets.iter().flat_map(|bucket| &bucket.0).map(|place| place.load(Acquire));
        words.find(|word| word & !OWNER == tag && word & OWNER != 0).map(|word| (word & OWNER) as u16 - 1)
    }

    /// Enters a claim. At most one thread at a time may call this for the same owner.
    pub fn claim(&self, hash: u64, owner: u16) -> Claim {
        if let Some(found) = self.find(hash) {
            return if found == owner { Claim::Granted } else { Claim::Taken };
        }
        let (tag, mut buckets) = self.buckets(hash);
        let wanted = tag | (u64::from(owner) + 1);
        buckets.sort_by_key(|bucket| bucket.len());
        for place in buckets.iter().flat_map(|bucket| &bucket.0) {
            if place.compare_exchange(0, wanted, AcqRel, Relaxed).is_ok() {
                // Another owner may have entered the same claim in another slot meanwhile. Each enters first and looks
                // after the fence, so at least one of the two sees the other and gives way.
                fence(SeqCst);
                let rival = buckets.iter().flat_map(|bucket| &bucket.0).any(|place| {
                    let word = place.load(Acquire);
                    word != wanted && word & !OWNER == tag && word & OWNER != 0
                });
                if rival {
                    place.store(0, Release);
                    return Claim::Taken;
                }
                return Claim::Granted;
            }
        }
        Claim::NoRoom
    }

    /// Takes out an owner's claim.
    pub fn release(&self, hash: u64, owner: u16) {
        let (tag, buckets) = self.buckets(hash);
        let wanted = tag | (u64::from(owner) + 1);
        for place in buckets.iter().flat_map(|bucket| &bucket.0) {
            if place.compare_exchange(wanted, 0, AcqRel, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// The number of claims entered. It counts them.
    pub fn len(&self) -> usize {
        self.buckets.iter().map(Bucket::len).sum()
    }

    /// Whether nothing is claimed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
