//! Buffers on the heap, for ports without a device.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Arc, Weak};

use crossbeam::atomic::AtomicCell;
use crossbeam::queue::ArrayQueue;

use crate::link::port::{Buffer, Capabilities, ReceivedChecksums, TransmitChecksums};

#[derive(Debug)]
struct Storage {
    octets: Box<[u8]>,
    /// Where a fresh frame starts.
    headroom: u32,
    /// Where it goes when it is free, unless its pool is gone.
    home: Weak<Freed>,
}

/// Buffers that were freed.
struct Freed {
    /// The last one, which is the next to be used: it takes one exchange to put it here, and one to take it.
    last: AtomicCell<Option<Arc<Storage>>>,
    others: ArrayQueue<Arc<Storage>>,
}

impl fmt::Debug for Freed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Freed").field("others", &self.others.len()).finish_non_exhaustive()
    }
}

impl Freed {
    #[inline]
    fn push(&self, storage: Arc<Storage>) {
        if let Some(before) = self.last.swap(Some(storage)) {
            let _ = self.others.push(before);
        }
    }

    #[inline]
    fn pop(&self) -> Option<Arc<Storage>> {
        match self.last.take() {
            None => self.pop_other(),
            last => last,
        }
    }

    #[inline(never)]
    fn pop_other(&self) -> Option<Arc<Storage>> {
        self.others.pop()
    }

    fn len(&self) -> usize {
        let last = self.last.take();
        let count = self.others.len() + usize::from(last.is_some());
        last.into_iter().for_each(|storage| self.push(storage));
        count
    }
}

/// Capabilities of a port with heap buffers. `offload`: it computes checksums.
pub fn capabilities(mac: [u8; 6], mtu: u16, offload: bool) -> Capabilities {
    let headroom = 128;
    Capabilities {
        mac,
        mtu,
        data_room: headroom + 18 + usize::from(mtu) + 32,
        headroom,
        transmit_ip_checksum: offload,
        transmit_tcp_checksum: offload,
        segmentation: false,
    }
}

/// A fixed number of buffers of one size. Those that were freed before are used first, which are likely still in the
/// caches.
#[derive(Debug)]
pub struct HeapPool {
    /// Buffers that were freed.
    freed: Arc<Freed>,
    /// Buffers that were allocated and never used.
    fresh: RefCell<Vec<Arc<Storage>>>,
    /// Buffers that were not allocated yet.
    missing: Cell<usize>,
    data_room: usize,
    headroom: u32,
}

impl HeapPool {
    /// `count` buffers (at least one) of `data_room` octets, of which `headroom` precede a fresh frame.
    pub fn new(count: usize, data_room: usize, headroom: usize) -> HeapPool {
        let pool = HeapPool::growing(count, data_room, headroom);
        pool.fresh.borrow_mut().extend(std::iter::from_fn(|| pool.make()));
        pool
    }

    /// The same, with each buffer allocated when it is first used.
    pub fn growing(count: usize, data_room: usize, headroom: usize) -> HeapPool {
        let count = count.max(1);
        let freed = Arc::new(Freed { last: AtomicCell::new(None), others: ArrayQueue::new(count) });
        let (fresh, missing) = (RefCell::default(), Cell::new(count));
        HeapPool { freed, fresh, missing, data_room, headroom: headroom.min(data_room) as u32 }
    }

    /// A buffer with an empty frame behind the headroom; `None` if all are in use.
    #[inline(always)]
    pub fn alloc(&self) -> Option<HeapBuffer> {
        let storage = match self.freed.pop() {
            Some(storage) => storage,
            None => self.alloc_fresh()?,
        };
        let start = storage.headroom;
        Some(HeapBuffer {
            storage: Some(storage),
            start,
            length: 0,
            received: ReceivedChecksums::default(),
            transmit: TransmitChecksums::default(),
            tail: None,
        })
    }

    #[cold]
    fn alloc_fresh(&self) -> Option<Arc<Storage>> {
        let fresh = self.fresh.borrow_mut().pop();
        fresh.or_else(|| self.make())
    }

    fn make(&self) -> Option<Arc<Storage>> {
        self.missing.set(self.missing.get().checked_sub(1)?);
        let home = Arc::downgrade(&self.freed);
        Some(Arc::new(Storage { octets: vec![0; self.data_room].into(), headroom: self.headroom, home }))
    }

    /// Free buffers.
    #[inline]
    pub fn free(&self) -> usize {
        self.freed.len() + self.fresh.borrow().len() + self.missing.get()
    }

    /// All buffers.
    pub fn total(&self) -> usize {
        self.freed.others.capacity()
    }
}

/// One reference to a buffer of a [`HeapPool`].
#[derive(Debug)]
pub struct HeapBuffer {
    /// `None` only while the buffer is dropped.
    storage: Option<Arc<Storage>>,
    start: u32,
    length: u32,
    received: ReceivedChecksums,
    transmit: TransmitChecksums,
    /// Further parts of the frame, if any.
    tail: Option<Box<Tail>>,
}

/// The parts of a frame behind the first.
#[derive(Debug)]
struct Tail(Vec<HeapBuffer>);

impl HeapBuffer {
    /// The parts behind the first.
    #[inline]
    fn tail(&self) -> &[HeapBuffer] {
        self.tail.as_ref().map_or(&[], |tail| &tail.0)
    }

    /// Sets the verdict on the checksums that a receiver sees.
    #[inline]
    pub fn set_received_checksums(&mut self, checksums: ReceivedChecksums) {
        self.received = checksums;
    }

    /// Copies `frame` into the buffer, cut at what fits behind the headroom.
    pub fn fill(&mut self, frame: &[u8]) {
        let start = self.storage.as_ref().map_or(0, |storage| storage.headroom as usize);
        let mut filled = 0;
        if let Some(storage) = self.storage_mut() {
            let room = &mut storage[start..];
            filled = room.len().min(frame.len());
            room[..filled].copy_from_slice(&frame[..filled]);
        }
        self.set_range(start, filled);
    }

    /// References to the parts behind the first.
    #[cold]
    fn share_tail(&self) -> Option<Box<Tail>> {
        self.tail.as_ref().map(|tail| Box::new(Tail(tail.0.iter().map(Buffer::share).collect())))
    }

    #[inline]
    fn octets(&self) -> &[u8] {
        self.storage.as_ref().map_or(&[], |storage| &storage.octets)
    }
}

/// Returns storage without further references to its pool, if that still exists.
#[inline(never)]
fn go_home(storage: Arc<Storage>) {
    if let Some(home) = storage.home.upgrade() {
        home.push(storage);
    }
}

impl Drop for HeapBuffer {
    #[inline]
    fn drop(&mut self) {
        let Some(storage) = self.storage.take() else { return };
        if Arc::strong_count(&storage) == 1 {
            go_home(storage);
        } else if let Some(storage) = Arc::into_inner(storage) {
            // Another thread dropped the other reference at the same time.
            go_home(Arc::new(storage));
        }
    }
}

impl Buffer for HeapBuffer {
    #[inline]
    fn data(&self) -> &[u8] {
        self.octets().get(self.start as usize..(self.start + self.length) as usize).unwrap_or(&[])
    }

    #[inline]
    fn total_len(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.0.iter().map(Buffer::total_len).sum());
        self.length as usize + tail
    }

    #[inline]
    fn segment_count(&self) -> usize {
        1 + self.tail().len()
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.data()).chain(self.tail().iter().map(Buffer::data))
    }

    #[inline]
    fn storage_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(self.storage.as_mut()?).map(|storage| &mut storage.octets[..])
    }

    #[inline]
    fn set_range(&mut self, start: usize, length: usize) {
        let room = self.octets().len();
        self.start = start.min(room) as u32;
        self.length = length.min(room - self.start as usize) as u32;
    }

    #[inline]
    fn start(&self) -> usize {
        self.start as usize
    }

    #[inline(always)]
    fn share(&self) -> HeapBuffer {
        let tail = if self.tail.is_none() { None } else { self.share_tail() };
        HeapBuffer { storage: self.storage.clone(), tail, ..*self }
    }

    #[inline]
    fn is_shared(&self) -> bool {
        self.storage.as_ref().is_some_and(|storage| Arc::strong_count(storage) > 1)
    }

    fn chain(&mut self, mut tail: HeapBuffer) -> Result<(), HeapBuffer> {
        if self.is_shared() {
            return Err(tail);
        }
        let further = tail.tail.take();
        let parts = &mut self.tail.get_or_insert_with(|| Box::new(Tail(Vec::new()))).0;
        parts.push(tail);
        parts.extend(further.into_iter().flat_map(|further| further.0));
        Ok(())
    }

    #[inline]
    fn received_checksums(&self) -> ReceivedChecksums {
        self.received
    }

    #[inline]
    fn set_transmit_checksums(&mut self, checksums: TransmitChecksums) {
        self.transmit = checksums;
    }

    fn transmit_checksums(&self) -> TransmitChecksums {
        self.transmit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_with_its_last_reference() {
        let pool = HeapPool::new(1, 256, 128);
        let mut buffer = pool.alloc().expect("one is free");
        buffer.fill(b"frame");
        assert!(pool.alloc().is_none());
        let second = buffer.share();
        assert!(buffer.is_shared() && buffer.storage_mut().is_none());
        drop(buffer);
        assert_eq!(second.data(), b"frame");
        assert_eq!(pool.free(), 0);
        drop(second);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_buffer_outlives_its_pool_and_goes_with_its_last_reference() {
        let pool = HeapPool::new(2, 256, 128);
        let mut buffer = pool.alloc().expect("one is free");
        buffer.fill(b"frame");
        drop(pool.alloc());
        let storage = buffer.storage.as_ref().map(Arc::downgrade).expect("it has storage");
        drop(pool);
        let second = buffer.share();
        drop(buffer);
        assert_eq!(second.data(), b"frame");
        drop(second);
        assert_eq!(storage.strong_count(), 0);
    }

    #[test]
    fn references_on_two_threads_never_lose_a_buffer() {
        let pool = HeapPool::new(4, 64, 0);
        let (sender, receiver) = crossbeam::channel::bounded::<HeapBuffer>(2);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for buffer in receiver {
                    drop(buffer);
                }
            });
            for _ in 0..10_000 {
                if let Some(buffer) = pool.alloc() {
                    let _ = sender.send(buffer.share());
                }
            }
            drop(sender);
        });
        assert_eq!(pool.free(), 4);
    }
}
