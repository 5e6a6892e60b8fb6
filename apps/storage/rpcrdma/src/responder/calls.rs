//! The calls of a connection that are not answered yet.

use super::call::{Incoming, Pull, Request, Stage};
use std::collections::VecDeque;

/// Received calls, what they wait for, and the memory that they take.
#[derive(Debug)]
pub(super) struct Calls {
    /// By their receive: a call occupies its receive's slot until it is answered.
    slots: Vec<Option<Incoming>>,
    /// Calls whose chunks wait for memory, in order.
    stalled: VecDeque<usize>,
    /// Calls of which nothing is missing, for the application.
    ready: VecDeque<Request>,
    /// Calls that the application has.
    given: usize,
    /// Octets of memory reserved for chunks.
    memory: u64,
}

impl Calls {
    /// None, with room for one in each receive.
    pub(super) fn new(receives: usize) -> Self {
        Self {
            slots: (0..receives).map(|_| None).collect(),
            stalled: VecDeque::new(),
            ready: VecDeque::new(),
            given: 0,
            memory: 0,
        }
    }

    /// Calls that the application has.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// Octets of memory reserved for chunks.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Incoming> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Incoming> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(super) fn insert(&mut self, slot: usize, call: Incoming) {
        self.slots[slot] = Some(call);
    }

    /// A call is answered: its memory is free for others.
    pub(super) fn remove(&mut self, slot: usize) -> Option<Incoming> {
        let call = self.slots.get_mut(slot)?.take()?;
        self.memory -= call.memory;
        self.given -= usize::from(call.is_given);
        Some(call)
    }

    /// Nothing of a call is missing.
    pub(super) fn complete(&mut self, request: Request) {
        self.ready.push_back(request);
    }

    /// The next call for the application.
    pub(super) fn give(&mut self) -> Option<Request> {
        let request = self.ready.pop_front()?;
        self.given += 1;
        if let Some(call) = self.get_mut(request.token.slot) {
            call.is_given = true;
        }
        Some(request)
    }

    /// Whether the chunks of a call may be read now, with memory for this many octets. A call that needs memory waits
    /// behind the others that do, or small ones would keep a large one waiting for ever. A call that needs no more
    /// proceeds: the others may be waiting for it.
    pub(super) fn may_read(&self, slot: usize, limit: u64) -> bool {
        let is_served = self.get(slot).is_some_and(|call| call.octets == call.memory);
        is_served || self.stalled.is_empty() && self.has_room(slot, limit)
    }

    /// Whether there is memory for the chunks of a call: for all at once, since calls with memory for only their first
    /// chunks could wait for each other for ever.
    fn has_room(&self, slot: usize, limit: u64) -> bool {
        let Some(call) = self.get(slot) else { return true };
        // A single call always proceeds: its chunks together are within the limit.
        self.memory + (call.octets - call.memory) <= limit || self.memory == call.memory
    }

    /// Reserves memory for all chunks of a call.
    pub(super) fn reserve(&mut self, slot: usize) {
        let Some(call) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        self.memory += call.octets - call.memory;
        call.memory = call.octets;
    }

    /// A call waits for memory.
    pub(super) fn stall(&mut self, slot: usize, pull: Pull) {
        if let Some(call) = self.get_mut(slot) {
            call.stage = Stage::Stalled(pull);
            self.stalled.push_back(slot);
        }
    }

    /// The next call that waited for memory, if there is some for it, and what is to be read.
    pub(super) fn resume(&mut self, limit: u64) -> Option<(usize, Pull)> {
        while let Some(&slot) = self.stalled.front()
            && self.has_room(slot, limit)
        {
            self.stalled.pop_front();
            let Some(call) = self.get_mut(slot) else { continue };
            match std::mem::replace(&mut call.stage, Stage::Called) {
                Stage::Stalled(pull) => return Some((slot, pull)),
                other => call.stage = other,
            }
        }
        None
    }
}
