//! A single-producer single-consumer ring of octets that is written and read in runs.
//!
//! The cursors work as in the ring of elements: free-running, each on its own cache line. Each end keeps a copy of the
//! other's cursor, and reads the cursor again only when the copy does not suffice. A run takes at most two copies and
//! is published once.

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
    /// A power of two in number. Octet `i & mask` belongs to the consumer while `head <= i < tail`, else to the
    /// producer.
    octets: Octets,
}

// SAFETY: an octet is accessed by one end at a time, as the cursors say, and each end has one owner.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl Send for Shared {}

impl Shared {
    /// The start of a run of `count` octets from a cursor on, and the length of its first part: it wraps at most once.
    #[inline(always)]
    fn places(&self, cursor: usize, count: usize) -> (usize, usize) {
        let at = cursor & (self.octets.len() - 1);
        (at, count.min(self.octets.len() - at))
    }
}

/// Creates a ring of at least `capacity` octets (rounded up to a power of two, at least 1) and returns its two ends.
/// The system provides its memory page by page, when octets are first written there.
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

/// The writing end of a ring. `Send`, not `Sync`:
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

    /// Octets written so far, modulo the range of the type: the position of the next one.
    #[inline]
    pub fn position(&self) -> usize {
        self.tail
    }

    /// How many octets can be written now. It only grows until the next [`write`](Self::write).
    #[inline]
    pub fn free(&mut self) -> usize {
        self.known_head = self.shared.head.load(Acquire);
        self.known_free()
    }

    /// How many octets could be written when the other end's cursor was last read: at most what [`free`](Self::free)
    /// would return.
    #[inline]
    pub fn known_free(&self) -> usize {
        self.capacity() - self.tail.wrapping_sub(self.known_head)
    }

    /// Writes and publishes octets; returns how many fitted.
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
        // SAFETY: `tail .. tail + count` lies within the free octets. The consumer gave them back with a release store
        // of `head` that our acquire load saw, and does not touch them until `tail` passes them.
        unsafe {
            self.shared.octets.write(at, &octets[..first]);
            self.shared.octets.write(0, &octets[first..count]);
        }
        self.tail = self.tail.wrapping_add(count);
        self.shared.tail.store(self.tail, Release);
        count
    }

    /// Addresses that the next [`write`](Self::write) touches, for prefetching: the cursor, and the slot of the next
    /// octet.
    #[inline]
    pub fn places(&self) -> [usize; 2] {
        let shared = &*self.shared;
        [std::ptr::from_ref(&shared.tail).addr(), shared.octets.address(self.tail & (shared.octets.len() - 1))]
    }

    /// Ends writing, as dropping this end does. Octets in the ring can still be read.
    pub fn close(&mut self) {
        self.shared.producer_gone.store(true, Release);
    }

    /// Whether the consumer has been dropped or closed: further octets will not be read.
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

/// The reading end of a ring. `Send`, not `Sync`:
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

    /// Addresses that the next [`read`](Self::read) touches, for prefetching: both cursors, and the slot of the next
    /// octet.
    #[inline]
    pub fn places(&self) -> [usize; 3] {
        let shared = &*self.shared;
        let cursors = [&shared.tail, &shared.head].map(|cursor| std::ptr::from_ref(cursor).addr());
        [cursors[0], cursors[1], shared.octets.address(self.head & (shared.octets.len() - 1))]
    }

    /// Octets read so far, modulo the range of the type: the position of the next one, counted as
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

    /// How many octets there were when the other end's cursor was last read: at most what
    /// [`available`](Self::available) would return.
    #[inline]
    pub fn known(&self) -> usize {
        self.known_tail.wrapping_sub(self.head)
    }

    /// Reads the oldest octets, as many as there are and fit into `out`, and returns their number.
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
        // SAFETY: `head .. head + count` lies within the published octets: written before the release store of `tail`
        // that our acquire load saw, and not written again until `head` passes them.
        unsafe {
            self.shared.octets.read(at, &mut out[..first]);
            self.shared.octets.read(0, &mut out[first..count]);
        }
        self.head = self.head.wrapping_add(count);
        self.shared.head.store(self.head, Release);
        count
    }

    /// Ends reading, as dropping this end does.
    pub fn close(&mut self) {
        self.shared.consumer_gone.store(true, Release);
    }

    /// Whether the producer has been dropped or closed. If so, [`available`](Self::available) counts everything ever
    /// published. Call this first, then look for octets, to know that no more will come.
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
