//! The single-producer single-consumer ring.
//!
//! It has two free-running cursors, each on its own cache line: the producer publishes `tail`, the consumer publishes
//! `head`. Each end keeps its own cursor in a plain field, and a copy of the other's, which it refreshes only when the
//! copy does not suffice. So in steady state a cursor's line moves between the cores once per batch, not once per
//! element.

#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Release};

use crossbeam::utils::CachePadded;

use crate::sync::{Arc, AtomicBool, AtomicUsize, UnsafeCell};

struct Shared<T> {
    /// Elements released so far, modulo 2^64. Written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Elements published so far, modulo 2^64. Written by the producer.
    tail: CachePadded<AtomicUsize>,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
    /// A power of two in number. Cell `i & mask` belongs to the consumer while `head <= i < tail`, else to the
    /// producer.
    cells: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a cell is accessed by one end at a time, as the cursors say, and each end has one owner; so sharing the
// structure only ever moves values of `T` from one thread to another.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    #[inline(always)]
    fn cell(&self, cursor: usize) -> &UnsafeCell<MaybeUninit<T>> {
        let index = cursor & (self.cells.len() - 1);
        // SAFETY: the length is a power of two, so the mask keeps the index below it.
        unsafe { self.cells.get_unchecked(index) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if !std::mem::needs_drop::<T>() {
            return;
        }
        let (mut head, tail) = (self.head.load(Acquire), self.tail.load(Acquire));
        while head != tail {
            // SAFETY: published and not taken, so initialised; both ends are gone, so nobody else touches it.
            self.cell(head).with_mut(|cell| unsafe { (*cell).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// Creates a ring of at least `capacity` elements (rounded up to a power of two, at least 1) and returns its two ends.
///
/// Elements that are still in it are dropped with its last end or gauge.
///
/// # Panics
/// If `capacity` is above 2^31.
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    ring_from(capacity, 0)
}

/// A ring whose cursors begin at `start`.
fn ring_from<T: Send>(capacity: usize, start: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity <= 1 << 31, "a ring of {capacity} elements");
    let capacity = capacity.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicUsize::new(start)),
        tail: CachePadded::new(AtomicUsize::new(start)),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
        cells: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    let producer = Producer { shared: shared.clone(), tail: start, known_head: start, one_thread: PhantomData };
    let consumer = Consumer { shared, head: start, known_tail: start, one_thread: PhantomData };
    (producer, consumer)
}

/// The producing end of a ring. `Send`, not `Sync`:
///
/// ```compile_fail
/// fn shared<T: Sync>(_: T) {}
/// shared(uwarp_ring::ring::<u64>(1).0);
/// ```
pub struct Producer<T: Send> {
    shared: Arc<Shared<T>>,
    tail: usize,
    known_head: usize,
    one_thread: PhantomData<Cell<()>>,
}

impl<T: Send> Producer<T> {
    /// The number of elements that the ring holds when full: a power of two.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.cells.len()
    }

    /// How many elements can be pushed now. It only grows until the next [`push`](Self::push) or
    /// [`reserve`](Self::reserve).
    #[inline]
    pub fn free(&mut self) -> usize {
        self.known_head = self.shared.head.load(Acquire);
        self.known_free()
    }

    /// Whether every element has been released by the consumer.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.free() == self.capacity()
    }

    #[inline(always)]
    fn known_free(&self) -> usize {
        self.capacity() - self.tail.wrapping_sub(self.known_head)
    }

    /// Pushes one element and publishes it.
    ///
    /// # Errors
    /// Returns the element if the ring is full.
    #[inline]
    pub fn push(&mut self, element: T) -> Result<(), T> {
        if self.known_free() == 0 && self.free() == 0 {
            return Err(element);
        }
        self.put(self.tail, element);
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.store(self.tail, Release);
        Ok(())
    }

    /// Whether the consumer has been dropped: further elements will not be read.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.consumer_gone.load(Acquire)
    }

    /// Writes the cell of a cursor within `tail..known_head + capacity`.
    #[inline(always)]
    fn put(&self, cursor: usize, element: T) {
        // SAFETY: the callers stay within the free cells. The consumer gave them back with a release store of `head`
        // that our acquire load saw, and does not touch them until `tail` passes them.
        self.shared.cell(cursor).with_mut(|cell| unsafe { (*cell).write(element) });
    }
}

impl<T: Copy + Send> Producer<T> {
    /// Reserves room for `count` elements, to be written one by one and published together; `None` if there is too
    /// little.
    #[inline]
    pub fn reserve(&mut self, count: usize) -> Option<Reservation<'_, T>> {
        if self.known_free() < count && self.free() < count {
            return None;
        }
        Some(Reservation { next: self.tail, end: self.tail.wrapping_add(count), producer: self })
    }
}

impl<T: Send> Drop for Producer<T> {
    fn drop(&mut self) {
        self.shared.producer_gone.store(true, Release);
    }
}

impl<T: Send> fmt::Debug for Producer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Producer")
            .field("capacity", &self.capacity())
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

/// Reserved room in a ring. The consumer sees nothing before [`commit`](Self::commit). Dropping the reservation without
/// it publishes nothing, so an error halfway through a list leaves no partial list in the ring.
#[must_use = "what is written is published by `commit` only"]
pub struct Reservation<'a, T: Copy + Send> {
    producer: &'a mut Producer<T>,
    next: usize,
    end: usize,
}

impl<T: Copy + Send> Reservation<'_, T> {
    /// Writes the next element.
    ///
    /// # Panics
    /// If all reserved room is used.
    #[inline]
    pub fn write(&mut self, element: T) {
        assert!(self.next != self.end, "wrote more elements than were reserved");
        self.producer.put(self.next, element);
        self.next = self.next.wrapping_add(1);
    }

    /// Reserves room for `count` more elements, if there is so much.
    #[inline]
    #[must_use = "without room nothing can be written"]
    pub fn extend(&mut self, count: usize) -> bool {
        let end = self.end.wrapping_add(count);
        let capacity = self.producer.capacity();
        if end.wrapping_sub(self.producer.known_head) > capacity {
            self.producer.free();
            if end.wrapping_sub(self.producer.known_head) > capacity {
                return false;
            }
        }
        self.end = end;
        true
    }

    /// How many elements can still be written.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.end.wrapping_sub(self.next)
    }

    /// Publishes the written elements, all at once, and returns their number. Reserved room that was not written is
    /// free again.
    #[inline]
    pub fn commit(self) -> usize {
        let count = self.next.wrapping_sub(self.producer.tail);
        self.producer.tail = self.next;
        self.producer.shared.tail.store(self.next, Release);
        count
    }
}

impl<T: Copy + Send> fmt::Debug for Reservation<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reservation").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

/// The consuming end of a ring. `Send`, not `Sync`:
///
/// ```compile_fail
/// fn shared<T: Sync>(_: T) {}
/// shared(uwarp_ring::ring::<u64>(1).1);
/// ```
pub struct Consumer<T: Send> {
    shared: Arc<Shared<T>>,
    head: usize,
    known_tail: usize,
    one_thread: PhantomData<Cell<()>>,
}

impl<T: Send> Consumer<T> {
    /// The number of elements that the ring holds when full: a power of two.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.cells.len()
    }

    /// How many elements are in the ring, including those peeked at and not released. It reads the producer's cursor:
    /// [`peek`](Self::peek) reaches exactly the elements counted by the last call.
    #[inline]
    pub fn available(&mut self) -> usize {
        self.known_tail = self.shared.tail.load(Acquire);
        self.known()
    }

    /// How many elements there were when the producer's cursor was last read: at most what
    /// [`available`](Self::available) would return.
    #[inline]
    pub fn known(&self) -> usize {
        self.known_tail.wrapping_sub(self.head)
    }

    /// Element `index` of those not released, 0 being the oldest; `None` if `index` is not below
    /// [`known`](Self::known).
    #[inline]
    pub fn peek(&self, index: usize) -> Option<&T> {
        (index < self.known()).then(|| self.get(self.head.wrapping_add(index)))
    }

    /// Takes the oldest element, reading the producer's cursor if necessary.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.known() == 0 && self.available() == 0 {
            return None;
        }
        // SAFETY: `head` is a published cell, see `get`. It passes the cell right away, so the element is read once.
        let element = self.shared.cell(self.head).with(|cell| unsafe { (*cell).assume_init_read() });
        self.advance(1);
        Some(element)
    }

    /// A view of the cursors for other threads.
    pub fn gauge(&self) -> Gauge<T> {
        Gauge { shared: self.shared.clone() }
    }

    /// Whether the producer has been dropped. If so, [`available`](Self::available) counts everything ever published.
    /// Call this first, then look for elements, to know that no more will come.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.producer_gone.load(Acquire)
    }

    /// Gives the oldest `count` cells to the producer: at most the known ones.
    #[inline(always)]
    fn advance(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count);
        self.shared.head.store(self.head, Release);
    }

    /// Reads the cell of a cursor within `head..known_tail`.
    #[inline(always)]
    fn get(&self, cursor: usize) -> &T {
        // SAFETY: the callers stay within the published cells: initialised before the release store of `tail` that
        // our acquire load saw, and not written again until `head` passes them. `head` moves by `&mut self` only, so
        // the reference, which borrows `self`, ends before that.
        self.shared.cell(cursor).with(|cell| unsafe { (*cell).assume_init_ref() })
    }
}

impl<T: Copy + Send> Consumer<T> {
    /// Releases the oldest `count` elements, whose room the producer may use again.
    ///
    /// # Panics
    /// If fewer than `count` elements are [`known`](Self::known).
    #[inline(always)]
    pub fn release(&mut self, count: usize) {
        assert!(count <= self.known(), "released more elements than there are");
        self.advance(count);
    }

    /// Takes the oldest elements, as many as there are and fit into `out`, and returns their number.
    #[inline]
    pub fn pop_batch(&mut self, out: &mut [T]) -> usize {
        if self.known() < out.len() {
            self.available();
        }
        let count = self.known().min(out.len());
        if count == 0 {
            return 0;
        }
        for (index, place) in out[..count].iter_mut().enumerate() {
            *place = *self.get(self.head.wrapping_add(index));
        }
        self.release(count);
        count
    }

    /// Removes the elements that `keep` refuses, wherever they are, and returns their number. The others stay in order.
    /// `keep` sees the newest element first.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> usize {
        let count = self.available();
        // The kept ones move towards the newest, so that the room of the others is released at the front.
        let mut first = count;
        for index in (0..count).rev() {
            let element = *self.get(self.head.wrapping_add(index));
            if keep(&element) {
                first -= 1;
                self.put(self.head.wrapping_add(first), element);
            }
        }
        self.release(first);
        first
    }

    /// Writes the cell of a cursor within `head..known_tail`.
    fn put(&mut self, cursor: usize, element: T) {
        // SAFETY: the callers stay within the published cells, which are the consumer's: the producer does not touch
        // them until `head` passes them. `self` is borrowed exclusively, so no reference of `get` is alive.
        self.shared.cell(cursor).with_mut(|cell| unsafe { (*cell).write(element) });
    }
}

impl<T: Send> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.consumer_gone.store(true, Release);
    }
}

impl<T: Send> fmt::Debug for Consumer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Consumer")
            .field("capacity", &self.capacity())
            .field("head", &self.head)
            .field("known", &self.known())
            .finish_non_exhaustive()
    }
}

/// A view of a ring's cursors, for threads that own neither end.
pub struct Gauge<T: Send> {
    shared: Arc<Shared<T>>,
}

impl<T: Send> Gauge<T> {
    /// How many elements have been published so far, modulo 2^64.
    pub fn published(&self) -> usize {
        self.shared.tail.load(Acquire)
    }

    /// Whether the consumer has released every element before `position`, a value of [`published`](Self::published), or
    /// is gone.
    pub fn has_passed(&self, position: usize) -> bool {
        let ahead = self.shared.head.load(Acquire).wrapping_sub(position);
        ahead.cast_signed() >= 0 || self.is_abandoned()
    }

    /// Whether the consumer has been dropped.
    pub fn is_abandoned(&self) -> bool {
        self.shared.consumer_gone.load(Acquire)
    }
}

impl<T: Send> Clone for Gauge<T> {
    fn clone(&self) -> Self {
        Gauge { shared: self.shared.clone() }
    }
}

impl<T: Send> fmt::Debug for Gauge<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Gauge").field("published", &self.published()).finish_non_exhaustive()
    }
}
