//! The receive queue: where a peer's messages are placed.

use crate::api::shared::{NoReceive, SHARED_SLOTS, SharedReceiveQueueId, SharedReceives, Taken};
use crate::api::work::{Completion, CompletionFlags, CompletionOpcode, ReceiveElement, Sge, Status, entry_at};
use std::sync::Arc;
use uwarp_ring::{Consumer, Slot};

/// The receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    ring: Consumer<Slot>,
    /// The queue that elements come from instead of the ring,
    shared: Option<Arc<SharedReceives>>,
    /// and the element taken from there.
    taken: [Slot; SHARED_SLOTS],
    /// An event that taking it caused.
    news: Option<SharedReceiveEvent>,
    /// The element of the open message.
    current: Option<CurrentReceive>,
    /// Elements completed.
    pub(crate) completed: u64,
}

#[derive(Debug, Clone, Copy)]
struct CurrentReceive {
    element: ReceiveElement,
    entry: usize,
    /// Octets of the message before `entry`.
    before: u32,
}

/// Events for the owner of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedReceiveEvent {
    /// It runs low.
    Low,
    /// The queue pair has used up its share.
    Share,
}

/// Why a part of a Send cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScatterError<E> {
    /// The message is longer than the element.
    TooLong,
    /// One of the entries could not be written.
    Entry(E),
}

impl ReceiveQueue {
    /// A queue over a ring, or over a shared receive queue.
    pub(crate) fn new(ring: Consumer<Slot>, shared: Option<Arc<SharedReceives>>) -> ReceiveQueue {
        ReceiveQueue { ring, shared, taken: [Slot::default(); SHARED_SLOTS], news: None, current: None, completed: 0 }
    }

    /// The ring, with what has not completed.
    pub(crate) fn into_ring(self) -> Consumer<Slot> {
        self.ring
    }

    /// Takes the oldest element for a new message of the queue pair with this number; false if none is posted.
    #[inline]
    pub(crate) fn begin(&mut self, number: u32) -> bool {
        if self.shared.is_some() {
            return self.begin_shared(number);
        }
        if self.ring.known() == 0 && self.ring.available() == 0 {
            return false;
        }
        let decoded = self.ring.peek(0).and_then(|slot| ReceiveElement::decode(slot).ok());
        let element = decoded.filter(|element| element.slots() <= self.ring.known());
        // A malformed element has no room: any payload is too long for it.
        let element = element.unwrap_or(ReceiveElement { id: 0, length: 0, entries: 0 });
        self.current = Some(CurrentReceive { element, entry: 0, before: 0 });
        true
    }

    /// Octets that the element of the open message can take.
    pub(crate) fn room(&self) -> u32 {
        self.current.map_or(0, |current| current.element.length)
    }

    /// Whether a message is open in an element.
    #[inline]
    pub(crate) fn is_begun(&self) -> bool {
        self.current.is_some()
    }

    /// As [`ReceiveQueue::begin`], unless elements come from a shared queue, where one cannot be put back.
    #[inline]
    pub(crate) fn begin_own(&mut self, number: u32) -> bool {
        self.shared.is_none() && self.begin(number)
    }

    /// Takes back [`ReceiveQueue::begin_own`], or [`ReceiveQueue::begin`] of a queue of its own.
    #[cold]
    pub(crate) fn put_back(&mut self) {
        self.current = None;
    }

    fn begin_shared(&mut self, number: u32) -> bool {
        let Some(shared) = &self.shared else { return false };
        match shared.take(number) {
            Ok(Taken { slots, is_low }) => {
                self.taken = slots;
                self.news = is_low.then_some(SharedReceiveEvent::Low);
                let nothing = ReceiveElement { id: 0, length: 0, entries: 0 };
                let element = ReceiveElement::decode(&self.taken[0]).unwrap_or(nothing);
                self.current = Some(CurrentReceive { element, entry: 0, before: 0 });
                true
            }
            Err(NoReceive::Share) => {
                self.news = Some(SharedReceiveEvent::Share);
                false
            }
            Err(NoReceive::Empty) => false,
        }
    }

    /// Whether a new message of the queue pair with this number would find an element.
    pub(crate) fn has_element(&mut self, number: u32) -> bool {
        match &self.shared {
            Some(shared) => shared.has_one_for(number),
            None => self.ring.known() > 0 || self.ring.available() > 0,
        }
    }

    /// The event for the owner of the shared queue, returned once.
    #[inline]
    pub(crate) fn take_event(&mut self) -> Option<(SharedReceiveQueueId, SharedReceiveEvent)> {
        let shared = self.shared.as_ref()?;
        Some((shared.id(), self.news.take()?))
    }

    /// The shared queue that elements come from, if they do.
    pub(crate) fn shared_queue(&self) -> Option<SharedReceiveQueueId> {
        self.shared.as_ref().map(|shared| shared.id())
    }

    /// The queue pair is gone, or begins.
    pub(crate) fn forget_share(&self, number: u32) {
        if let Some(shared) = &self.shared {
            shared.forget(number);
        }
    }

    /// Slot `index` of the element of the open message.
    #[inline]
    fn slot(&self, index: usize) -> Option<&Slot> {
        if self.shared.is_some() { self.taken.get(index) } else { self.ring.peek(index) }
    }

    /// Calls `place` with the pieces of registered memory for the open message's octets from `offset` on.
    #[inline]
    pub(crate) fn scatter<E>(
        &mut self,
        offset: u32,
        payload: &[u8],
        mut place: impl FnMut(Sge, &[u8]) -> Result<(), E>,
    ) -> Result<(), ScatterError<E>> {
        let Some(mut current) = self.current else { return Err(ScatterError::TooLong) };
        if u64::from(offset) + payload.len() as u64 > u64::from(current.element.length) {
            return Err(ScatterError::TooLong);
        }
        let (mut offset, mut rest) = (offset, payload);
        while !rest.is_empty() {
            if current.entry >= usize::from(current.element.entries) {
                return Err(ScatterError::TooLong);
            }
            let (slot, place_in_slot) = ReceiveElement::entry_place(current.entry);
            let Some(slot) = self.slot(slot) else { return Err(ScatterError::TooLong) };
            let entry = entry_at(slot, place_in_slot);
            let skip = offset - current.before;
            if skip >= entry.length {
                current.entry += 1;
                current.before += entry.length;
                continue;
            }
            let (part, behind) = rest.split_at(rest.len().min((entry.length - skip) as usize));
            let target =
                Sge { stag: entry.stag, length: part.len() as u32, offset: entry.offset.wrapping_add(u64::from(skip)) };
            place(target, part).map_err(ScatterError::Entry)?;
            offset += part.len() as u32;
            rest = behind;
        }
        self.current = Some(current);
        Ok(())
    }

    /// Completes the element of the open message.
    #[inline]
    pub(crate) fn complete(&mut self, number: u32, length: u32, status: Status) -> Option<Completion> {
        let current = self.current.take()?;
        if self.shared.is_none() {
            self.ring.release(current.element.slots());
        }
        self.completed += 1;
        Some(Completion {
            id: current.element.id,
            queue_pair: number,
            length,
            invalidated: 0,
            opcode: CompletionOpcode::Receive,
            status,
            flags: CompletionFlags::default(),
            immediate: 0,
        })
    }

    /// Takes the oldest element out unused; `None` when the queue is empty.
    pub(crate) fn flush_one(&mut self, number: u32, status: Status) -> Option<Completion> {
        // The elements of a shared queue are for others.
        if self.current.is_none() && (self.shared.is_some() || !self.begin(number)) {
            return None;
        }
        self.complete(number, 0, status)
    }
}
