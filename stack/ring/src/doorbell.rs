//! Which queues have new elements: a bitmap that many threads set and one engine reads.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicBool, AtomicU64, fence};

/// One doorbell for each queue pair of an engine, rung by any thread and answered by the engine, and one for its
/// mailbox.
///
/// It has two levels: a word for every 64 doorbells, and one summary word with a bit for every group of words. So an
/// idle turn reads one cache line, however many doorbells there are. Ringing a doorbell that is already rung writes
/// nothing, so a poster ahead of the engine does not take the cache line away from it.
///
/// Stores before [`ring`](Self::ring) are visible to the visit that answers it. No ring is lost: either the visit under
/// way sees what was published, or another visit follows.
pub struct Doorbells {
    first: CachePadded<Summary>,
    words: Box<[AtomicU64]>,
    /// Words of a group, as a power of two.
    group_shift: u32,
    count: usize,
}

/// What the engine looks at in each turn.
struct Summary {
    /// Bit `i`: some word of group `i` has a bit.
    groups: AtomicU64,
    /// The mailbox has commands.
    mailbox: AtomicBool,
}

impl Doorbells {
    /// Doorbells `0..count`, none of them rung.
    pub fn new(count: usize) -> Doorbells {
        let words = count.div_ceil(64);
        Doorbells {
            first: CachePadded::new(Summary { groups: AtomicU64::new(0), mailbox: AtomicBool::new(false) }),
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            group_shift: words.div_ceil(64).max(1).next_power_of_two().trailing_zeros(),
            count,
        }
    }

    /// How many doorbells there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rings doorbell `index`. Call it after publishing the elements.
    ///
    /// # Panics
    /// If there is no such doorbell.
    #[inline]
    pub fn ring(&self, index: usize) {
        assert!(index < self.count, "doorbell {index} of {}", self.count);
        let word = &self.words[index / 64];
        let groups = &self.first.groups;
        let bit = 1 << (index % 64);
        let group = 1 << ((index / 64) >> self.group_shift);
        let mut rung = word.load(Relaxed) & bit != 0;
        if rung {
            // The doorbell was already rung, and the engine may be answering it. It may have looked at the ring before
            // our element was there. The fence orders our element before the second look at the bit: if the bit is
            // still set then, the engine clears it later, and looks at the ring later still (`take` has the matching
            // fence).
            fence(SeqCst);
            rung = word.load(Relaxed) & bit != 0;
        }
        if !rung {
            // Release: the engine's exchange that takes the bit also takes our element.
            word.fetch_or(bit, AcqRel);
            // Even if the group's bit is set: the engine's exchange of the summary must see our word.
            groups.fetch_or(group, AcqRel);
        } else if groups.load(Relaxed) & group == 0 {
            groups.fetch_or(group, AcqRel);
        }
    }

    /// Announces a command. Call it after putting the command into the mailbox.
    #[inline]
    pub fn ring_mailbox(&self) {
        // Unconditionally: the engine may have cleared the flag and looked into the mailbox before our command was
        // there.
        self.first.mailbox.swap(true, AcqRel);
    }

    /// Whether the mailbox was announced since the last call. The engine looks into it afterwards. Only the engine
    /// calls this.
    #[inline]
    pub fn take_mailbox(&self) -> bool {
        self.first.mailbox.load(Relaxed) && self.first.mailbox.swap(false, AcqRel)
    }

    /// Whether any doorbell is rung. The engine checks this after it armed its notifier and before it sleeps.
    #[inline]
    pub fn is_any_rung(&self) -> bool {
        self.first.groups.load(Acquire) != 0
    }

    /// Visits each rung doorbell in ascending order, and clears it first: one that is rung during the visit is visited
    /// again by the next call. Only the engine calls this. Returns the number of visits.
    #[inline]
    pub fn take(&self, visit: impl FnMut(usize)) -> usize {
        if self.first.groups.load(Relaxed) == 0 { 0 } else { self.take_groups(visit) }
    }

    fn take_groups(&self, mut visit: impl FnMut(usize)) -> usize {
        let mut visits = 0;
        let mut groups = self.first.groups.swap(0, AcqRel);
        while groups != 0 {
            let first = (groups.trailing_zeros() as usize) << self.group_shift;
            groups &= groups - 1;
            let end = self.words.len().min(first + (1 << self.group_shift));
            for (word, bits) in self.words[first..end].iter().enumerate() {
                if bits.load(Relaxed) == 0 {
                    continue;
                }
                let mut bits = bits.swap(0, AcqRel);
                // Pairs with the fence in `ring`: the bits are cleared before the queues are read.
                fence(SeqCst);
                while bits != 0 {
                    visits += 1;
                    visit((first + word) * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
        }
        visits
    }
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Doorbells").field("count", &self.count).finish_non_exhaustive()
    }
}
