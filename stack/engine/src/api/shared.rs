//! Shared receive queues: receives that several queue pairs, on any engine, take from.
//!
//! One thread of the application puts receives in; engines take them by one compare-and-swap, the oldest first, each as
//! a whole. Two things keep a peer from living at the others' expense (RDMAP §8.1.2): a *share*, which is the most
//! receives that one queue pair may have taken and the application not given back, and a *limit*, below which the queue
//! says once that it runs low.

use crossbeam::queue::ArrayQueue;
use uwarp_ring::{Shares, Slot};

use crate::api::work::{ReceiveElement, Sge};

/// Slots of an element of a shared queue, which is copied when it is taken.
pub const SHARED_SLOTS: usize = 2;
/// Most scatter/gather entries of it.
pub const MAX_SHARED_ENTRIES: usize = 7;

const _: () = assert!(ReceiveElement::slots_for_entries(MAX_SHARED_ENTRIES) == SHARED_SLOTS);

/// Number of a shared receive queue, unique in its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedReceiveQueueId(pub u32);

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceives {
    id: SharedReceiveQueueId,
    queue: ArrayQueue<[Slot; SHARED_SLOTS]>,
    /// How many each queue pair has, by its number.
    shares: Shares,
}

/// Why no receive was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoReceive {
    /// There is none.
    Empty,
    /// The queue pair has its share.
    Share,
}

/// A receive that was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) slots: [Slot; SHARED_SLOTS],
    /// Fewer than the limit are left now.
    pub(crate) is_low: bool,
}

impl SharedReceives {
    /// A queue of at most `depth` receives, of which each of `queue_pairs` queue pairs may have `share`.
    pub fn new(id: SharedReceiveQueueId, depth: usize, share: u32, queue_pairs: u32) -> SharedReceives {
        SharedReceives { id, queue: ArrayQueue::new(depth.max(1)), shares: Shares::new(share, queue_pairs) }
    }

    /// Its number.
    pub fn id(&self) -> SharedReceiveQueueId {
        self.id
    }

    /// Puts a receive in.
    ///
    /// # Errors
    /// The queue is full, or there are more entries than [`MAX_SHARED_ENTRIES`].
    pub fn post(&self, element: &ReceiveElement, entries: &[Sge]) -> Result<(), SharedFull> {
        if entries.len() > MAX_SHARED_ENTRIES {
            return Err(SharedFull);
        }
        let slots = std::array::from_fn(|index| element.encode(entries, index));
        self.queue.push(slots).map_err(|_| SharedFull)
    }

    /// Receives that nobody has taken.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Most receives.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Has it told once when fewer than `limit` receives are left; 0 takes that back.
    pub fn set_limit(&self, limit: usize) {
        self.shares.set_limit(limit);
    }

    /// What [`set_limit`](Self::set_limit) asked for and was not told yet; 0 if nothing.
    pub fn limit(&self) -> usize {
        self.shares.limit()
    }

    /// How many receives a queue pair has taken and the application not given back.
    pub fn taken_by(&self, queue_pair: u32) -> u32 {
        self.shares.taken_by(queue_pair)
    }

    /// The application is done with `count` receives that the queue pair took.
    pub fn give_back(&self, queue_pair: u32, count: u32) {
        self.shares.give_back(queue_pair, count);
    }

    /// Takes the oldest receive for a queue pair.
    pub(crate) fn take(&self, queue_pair: u32) -> Result<Taken, NoReceive> {
        if !self.shares.allows(queue_pair) {
            return Err(NoReceive::Share);
        }
        let slots = self.queue.pop().ok_or(NoReceive::Empty)?;
        Ok(Taken { slots, is_low: self.shares.took(queue_pair, || self.queue.len()) })
    }

    /// Whether [`take`](Self::take) would succeed, unless another queue pair is faster.
    pub(crate) fn has_one_for(&self, queue_pair: u32) -> bool {
        !self.queue.is_empty() && self.shares.allows(queue_pair)
    }

    /// A queue pair with this number begins, or is gone.
    pub(crate) fn forget(&self, queue_pair: u32) {
        self.shares.forget(queue_pair);
    }
}

/// A shared receive queue has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shared receive queue is full")]
pub struct SharedFull;

#[cfg(test)]
mod tests {
    use super::*;

    fn element(id: u64) -> (ReceiveElement, Vec<Sge>) {
        let entries: Vec<Sge> =
            (0..MAX_SHARED_ENTRIES).map(|at| Sge { stag: at as u32, length: 1, offset: id }).collect();
        (ReceiveElement { id, length: entries.len() as u32, entries: entries.len() as u8 }, entries)
    }

    fn shared(depth: usize, share: u32) -> SharedReceives {
        SharedReceives::new(SharedReceiveQueueId(0), depth, share, 4)
    }

    #[test]
    fn receives_come_out_whole_in_order_and_not_beyond_a_share() {
        let queue = shared(10, 3);
        for id in 0..10 {
            let (element, entries) = element(id);
            assert_eq!(queue.post(&element, &entries), Ok(()));
        }
        let (tenth, entries) = element(10);
        assert_eq!(queue.post(&tenth, &entries), Err(SharedFull));
        for (queue_pair, id) in [(0, 0), (1, 1), (0, 2), (0, 3)] {
            let taken = queue.take(queue_pair).expect("there is one");
            let head = ReceiveElement::decode(&taken.slots[0]).expect("well formed");
            assert_eq!((head, element(id).0), (element(id).0, head));
            for at in 0..MAX_SHARED_ENTRIES {
                let (slot, place) = ReceiveElement::entry_place(at);
                assert_eq!(crate::api::work::entry_at(&taken.slots[slot], place), element(id).1[at]);
            }
        }
        assert_eq!(queue.take(0).map(|_| ()), Err(NoReceive::Share));
        assert_eq!(queue.take(1).map(|_| ()), Ok(()));
        queue.give_back(0, 1);
        assert_eq!(queue.take(0).map(|_| ()), Ok(()));
        assert_eq!((queue.taken_by(0), queue.taken_by(1), queue.len()), (3, 2, 4));
        queue.forget(0);
        queue.give_back(1, 100);
        assert_eq!((queue.taken_by(0), queue.taken_by(1)), (0, 0));
        let many = Sge::default();
        let long = ReceiveElement { id: 0, length: 0, entries: 8 };
        assert_eq!(queue.post(&long, &[many; 8]), Err(SharedFull));
    }

    #[test]
    fn a_low_queue_says_so_once() {
        let queue = shared(10, 10);
        for id in 0..10 {
            let (element, entries) = element(id);
            queue.post(&element, &entries).expect("room");
        }
        queue.set_limit(5);
        let told: Vec<bool> = (0..10).map(|_| queue.take(0).is_ok_and(|taken| taken.is_low)).collect();
        // The sixth leaves four.
        assert_eq!(told.iter().position(|low| *low), Some(5));
        assert_eq!((told.iter().filter(|low| **low).count(), queue.limit()), (1, 0));
        assert_eq!(queue.take(0).map(|_| ()), Err(NoReceive::Share));
        assert_eq!(queue.take(1).map(|_| ()), Err(NoReceive::Empty));
    }

    #[test]
    fn engines_take_each_receive_once() {
        let queue = shared(64, u32::MAX);
        let total = 20_000u64;
        let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..3)
                .map(|number| {
                    let queue = &queue;
                    scope.spawn(move || {
                        let mut seen = Vec::new();
                        while seen.last() != Some(&u64::MAX) {
                            match queue.take(number) {
                                Ok(taken) => {
                                    let head = ReceiveElement::decode(&taken.slots[0]).expect("whole");
                                    let entry = crate::api::work::entry_at(&taken.slots[1], 6);
                                    assert_eq!(entry.offset, head.id, "torn");
                                    seen.push(head.id);
                                }
                                Err(_) => std::thread::yield_now(),
                            }
                        }
                        seen.pop();
                        seen
                    })
                })
                .collect();
            for id in (0..total).chain([u64::MAX; 3]) {
                let (element, entries) = element(id);
                while queue.post(&element, &entries).is_err() {
                    std::thread::yield_now();
                }
            }
            takers.into_iter().map(|taker| taker.join().expect("no panic")).collect()
        });
        assert!(seen.iter().all(|ids| ids.is_sorted()));
        let mut all: Vec<u64> = seen.into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..total).collect::<Vec<_>>());
    }
}
