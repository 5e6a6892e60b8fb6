//! The ring of octets: a single-producer single-consumer ring that is written and read in runs.
//!
//! The cursors are those of the ring of elements: free-running, each on a cache line of its own, with a copy of the other
//! end's that is read again only when it does not suffice. A run is copied with at most two copies, and published once.

#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Release};

use crossbeam::utils::CachePadded;

use crate::sync::{Arc, AtomicBool, AtomicUsize, Octets};

struct Shared {
    /// Octets released so far, modulo 2^64. Written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Octets published so far, modulo 2^64. Written by the producer.
    tail: CachePadded<AtomicUsize>,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
    /// A power of two of them. Octet `i & mask` belongs to the consumer while `head <= i < tail`, else to the producer.
    octets: Octets,
}

// SAFETY: an octet is accessed by one end at a time, as the cursors say, and each end has one owner.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl Send for Shared {}

impl Shared {
    /// The run of `count` octets from a cursor on, as places in the ring: it wraps at most once.
    #[inline(always)]
    fn places(&self, cursor: usize, count: usize) -> (usize, usize) {
        let at = cursor & (self.octets.len() - 1);
        (at, count.min(self.octets.len() - at))
    }
}

/// Makes a ring of at least `capacity` octets (rounded up to a power of two, at least 1) and gives its two ends. Its memory
/// is taken from the system page by page as octets first come to lie there.
///
/// # Panics
/// If `capacity` is above 2^30.
pub fn byte_ring(capacity: usize) -> (ByteProducer, ByteConsumer) {
    byte_ring_from(capacity, 0)
}

/// A ring whose cursors begin at `start`.
fn byte_ring_from(capacity: usize, start: usize) -> (ByteProducer, ByteConsumer) {
    assert!(capacity <= 1 << 30, "a ring of {capacity} octets");
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicUsize::new(start)),
        tail: CachePadded::new(AtomicUsize::new(start)),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
        octets: Octets::zeroed(capacity.max(1).next_power_of_two()),
    });
    let producer = ByteProducer { shared: shared.clone(), tail: start, known_head: start, one_thread: PhantomData };
    let consumer = ByteConsumer { shared, head: start, known_tail: start, one_thread: PhantomData };
    (producer, consumer)
}

/// The end of a ring that octets are put into. `Send`, not `Sync`:
///
/// ```compile_fail
/// fn shared<T: Sync>(_: T) {}
/// shared(uwarp_ring::byte_ring(1).0);
/// ```
pub struct ByteProducer {
    shared: Arc<Shared>,
    tail: usize,
    known_head: usize,
    one_thread: PhantomData<Cell<()>>,
}

impl ByteProducer {
    /// The number of octets that the ring holds when full: a power of two.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.octets.len()
    }

    /// Octets put in so far, modulo the range of the type: the place of the one that comes next.
    #[inline]
    pub fn position(&self) -> usize {
        self.tail
    }

    /// How many octets can be put in now. It only grows until the next [`write`](Self::write).
    #[inline]
    pub fn free(&mut self) -> usize {
        self.known_head = self.shared.head.load(Acquire);
        self.known_free()
    }

    /// How many octets could be put in at the last look at the other end's cursor: at most what [`free`](Self::free) would
    /// say.
    #[inline]
    pub fn known_free(&self) -> usize {
        self.capacity() - self.tail.wrapping_sub(self.known_head)
    }

    /// Puts octets in and publishes them; gives how many there was room for.
    #[inline]
    pub fn write(&mut self, octets: &[u8]) -> usize {
        if self.known_free() < octets.len() {
            self.free();
        }
        let count = octets.len().min(self.known_free());
        if count == 0 {
            return 0;
        }
        let (at, first) = self.shared.places(self.tail, count);
        // SAFETY: `tail .. tail + count` lies within the free octets. The consumer gave them back with a release store of
        // `head` that our acquire load saw, and does not touch them until `tail` passes them.
        unsafe {
            self.shared.octets.write(at, &octets[..first]);
            self.shared.octets.write(0, &octets[first..count]);
        }
        self.tail = self.tail.wrapping_add(count);
        self.shared.tail.store(self.tail, Release);
        count
    }

    /// Addresses of what the next [`write`](Self::write) touches: the cursor, and the place of the octet that comes next. For
    /// whoever wants to have them near by then.
    #[inline]
    pub fn places(&self) -> [usize; 2] {
        let shared = &*self.shared;
        [std::ptr::from_ref(&shared.tail).addr(), shared.octets.address(self.tail & (shared.octets.len() - 1))]
    }

    /// Says that nothing more will be put in, as dropping the end does. What is in the ring can still be read.
    pub fn close(&mut self) {
        self.shared.producer_gone.store(true, Release);
    }

    /// Whether the consumer has been dropped or closed: nothing that is put in will be read.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.consumer_gone.load(Acquire)
    }
}

impl Drop for ByteProducer {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ByteProducer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ByteProducer")
            .field("capacity", &self.capacity())
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

/// The end of a ring that octets are taken from. `Send`, not `Sync`:
///
/// ```compile_fail
/// fn shared<T: Sync>(_: T) {}
/// shared(uwarp_ring::byte_ring(1).1);
/// ```
pub struct ByteConsumer {
    shared: Arc<Shared>,
    head: usize,
    known_tail: usize,
    one_thread: PhantomData<Cell<()>>,
}

impl ByteConsumer {
    /// The number of octets that the ring holds when full: a power of two.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.octets.len()
    }

    /// Addresses of what the next [`read`](Self::read) touches: both cursors, and the place of the octet that comes next. For
    /// whoever wants to have them near by then.
    #[inline]
    pub fn places(&self) -> [usize; 3] {
        let shared = &*self.shared;
        let cursors = [&shared.tail, &shared.head].map(|cursor| std::ptr::from_ref(cursor).addr());
        [cursors[0], cursors[1], shared.octets.address(self.head & (shared.octets.len() - 1))]
    }

    /// Octets taken so far, modulo the range of the type: the place of the one that comes next, counted as
    /// [`ByteProducer::position`] counts.
    #[inline]
    pub fn position(&self) -> usize {
        self.head
    }

    /// How many octets are in the ring.
    #[inline]
    pub fn available(&mut self) -> usize {
        self.known_tail = self.shared.tail.load(Acquire);
        self.known()
    }

    /// How many octets there were at the last look: at most what [`available`](Self::available) would say.
    #[inline]
    pub fn known(&self) -> usize {
        self.known_tail.wrapping_sub(self.head)
    }

    /// Takes the oldest octets, as many as there are and `out` holds, and gives their number.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        if self.known() < out.len() {
            self.available();
        }
        let count = out.len().min(self.known());
        if count == 0 {
            return 0;
        }
        let (at, first) = self.shared.places(self.head, count);
        // SAFETY: `head .. head + count` lies within the published octets: written before the release store of `tail` that
        // our acquire load saw, and not written again until `head` passes them.
        unsafe {
            self.shared.octets.read(at, &mut out[..first]);
            self.shared.octets.read(0, &mut out[first..count]);
        }
        self.head = self.head.wrapping_add(count);
        self.shared.head.store(self.head, Release);
        count
    }

    /// Says that nothing more will be taken, as dropping the end does.
    pub fn close(&mut self) {
        self.shared.consumer_gone.store(true, Release);
    }

    /// Whether the producer has been dropped or closed. Once it says so, [`available`](Self::available) counts everything
    /// that was ever published: ask this first, then look for octets, to know that there will be no more.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.producer_gone.load(Acquire)
    }
}

impl Drop for ByteConsumer {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ByteConsumer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ByteConsumer")
            .field("capacity", &self.capacity())
            .field("head", &self.head)
            .field("known", &self.known())
            .finish_non_exhaustive()
    }
}
