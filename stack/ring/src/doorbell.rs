//! Which queues have new elements: a bitmap that many threads set and one engine reads.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU64, fence};

/// One doorbell for each queue pair of an engine, rung by any thread and answered by the engine.
///
/// It has two levels: a word for every 64 doorbells, and a summary bit for every word. So an idle turn reads one word
/// per 4,096 doorbells. Ringing a doorbell that is already rung writes nothing, so a poster ahead of the engine does
/// not take the cache line away from it.
///
/// Stores before [`ring`](Self::ring) are visible to the visit that answers it. No ring is lost: either the visit under
/// way sees what was published, or another visit follows.
pub struct Doorbells {
    summary: Box<[CachePadded<AtomicU64>]>,
    words: Box<[AtomicU64]>,
    count: usize,
}

impl Doorbells {
    /// Doorbells `0..count`, none of them rung.
    pub fn new(count: usize) -> Doorbells {
        let words = count.div_ceil(64);
        Doorbells {
            summary: (0..words.div_ceil(64)).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
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
        let summary = &self.summary[index / 4096];
        let bit = 1 << (index % 64);
        let summary_bit = 1 << (index / 64 % 64);
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
            // Release: the engine's exchange that takes the bit also takes our element. Acquire: the summary is read
            // below. If the engine exchanged the word before this, it had cleared the summary before that, and we must
            // see so.
            word.fetch_or(bit, AcqRel);
        }
        if summary.load(Relaxed) & summary_bit == 0 {
            summary.fetch_or(summary_bit, AcqRel);
        }
    }

    /// Whether any doorbell is rung. The engine checks this after it armed its notifier and before it sleeps.
    #[inline]
    pub fn is_any_rung(&self) -> bool {
        self.summary.iter().any(|word| word.load(Acquire) != 0)
    }

    /// Visits each rung doorbell in ascending order, and clears it first: one that is rung during the visit is visited
    /// again by the next call. Only the engine calls this. Returns the number of visits.
    #[inline]
    pub fn take(&self, mut visit: impl FnMut(usize)) -> usize {
        let mut visits = 0;
        for (summary_index, summary) in self.summary.iter().enumerate() {
            if summary.load(Relaxed) == 0 {
                continue;
            }
            let mut words = summary.swap(0, AcqRel);
            while words != 0 {
                let word_index = summary_index * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.words[word_index].swap(0, AcqRel);
                // Pairs with the fence in `ring`: the bits are cleared before the queues are read.
                fence(SeqCst);
                while bits != 0 {
                    visits += 1;
                    visit(word_index * 64 + bits.trailing_zeros() as usize);
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
