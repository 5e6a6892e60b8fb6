//! The table of regions, by STag.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, PoisonError};

use crate::access::{Access, AccessError, Association, InvalidateError};
use crate::epoch::{Engines, GracePeriod};
use crate::key::KeyStream;
use crate::options::{ChangeError, RegionChange, RegisterError};
use crate::slot::{Flags, Slot, SlotState};
use crate::sync::{AtomicU32, Mutex, MutexGuard};

/// The regions of a context, found by STag.
///
/// The upper bits of an STag are an index into the table, the lower ones, at least eight, a random key. The index is
/// random too, among the free ones. A slot gets a new key at each use, and is not reused before all turns that may have
/// seen its former region have ended.
pub struct RegionTable {
    entries: Box<[Slot]>,
    /// Width of the key.
    key_bits: u32,
    slots: u32,
    quota: u64,
    engines: Engines,
    /// Number of transparent durable regions.
    pub(crate) transparent: AtomicU32,
    /// Used only to register and deregister.
    allocator: Mutex<Allocator>,
}

struct Allocator {
    free: Vec<u32>,
    /// Freed, but turns under way may have seen them valid.
    retired: Vec<u32>,
    registered_octets: u64,
    keys: KeyStream,
}

/// Slots that are freed together, with one wait for all.
const RETIRED: usize = 64;

/// A durable or persistent region, or a window, cannot be freed within a turn of the same thread.
#[derive(Debug)]
pub(crate) struct InOwnTurn;

impl InOwnTurn {
    /// Call it when the memory has been leaked.
    pub(crate) fn refuse(self) {
        // A second panic would hide the first.
        assert!(std::thread::panicking(), "a durable region or a window was dropped within a turn of the same thread");
    }
}

/// Where an access goes.
pub(crate) enum Reached<'a> {
    /// Octets from here on.
    Memory(NonNull<u8>),
    /// A window or a mapped file, at this distance from its first octet.
    Window(&'a Slot, u64),
}

impl RegionTable {
    /// The largest number of regions in a table: it leaves eight bits for the key.
    pub const MAX_SLOTS: u32 = 1 << 24;

    /// A table for `slots` regions (clamped to 1..=[`MAX_SLOTS`](Self::MAX_SLOTS)) of `quota` octets together. `seed`
    /// decides the STags: take it from the operating system in production.
    pub fn new(slots: u32, quota: u64, seed: u128) -> Arc<RegionTable> {
        RegionTable::with_engines(slots, quota, seed, Engines::new())
    }

    pub(crate) fn with_engines(slots: u32, quota: u64, seed: u128, engines: Engines) -> Arc<RegionTable> {
        let slots = slots.clamp(1, Self::MAX_SLOTS);
        // At least two entries, so that the key is narrower than the STag and the shift below is in range.
        let index_bits = slots.next_power_of_two().trailing_zeros().max(1);
        Arc::new(RegionTable {
            entries: (0..1usize << index_bits).map(|_| Slot::default()).collect(),
            key_bits: 32 - index_bits,
            slots,
            quota,
            engines,
            transparent: AtomicU32::new(0),
            allocator: Mutex::new(Allocator {
                free: (0..slots).collect(),
                retired: Vec::new(),
                registered_octets: 0,
                keys: KeyStream::new(seed),
            }),
        })
    }

    /// Takes a free slot, for `octets` octets of the quota. Gives its index and an STag.
    pub(crate) fn allocate(&self, octets: u64) -> Result<(u32, u32), RegisterError> {
        let allocator = &mut *self.allocator();
        let registered = allocator.registered_octets;
        if self.quota.saturating_sub(registered) < octets {
            return Err(RegisterError::Quota { asked: octets, registered, quota: self.quota });
        }
        if allocator.free.is_empty() {
            self.free_retired(allocator);
        }
        if allocator.free.is_empty() {
            return Err(RegisterError::TableFull { slots: self.slots });
        }
        let candidates = allocator.free.len();
        let position = allocator.keys.below(candidates);
        let index = allocator.free.swap_remove(position);
        allocator.registered_octets += octets;
        Ok((index, self.new_stag(allocator, index)))
    }

    /// An STag with a new key for a slot.
    fn new_stag(&self, allocator: &mut Allocator, index: u32) -> u32 {
        let former = self.entries[index as usize].state.peek().stag();
        loop {
            let key = allocator.keys.next() as u32 & ((1 << self.key_bits) - 1);
            let stag = index << self.key_bits | key;
            // Not the slot's last one, and not 0, which often means "no STag".
            if stag != former && stag != 0 {
                break stag;
            }
        }
    }

    /// Changes a region of `octets` octets in place, and waits until no engine uses it as it was. Gives its STag and
    /// base.
    pub(crate) fn change(&self, index: u32, octets: u64, change: &RegionChange) -> Result<(u32, u64), ChangeError> {
        let entry = &self.entries[index as usize];
        if entry.state.load().has_any(Flags::KEPT) {
            return Err(ChangeError::Durable);
        }
        let memory = match &change.memory {
            Some((buffer, base)) => Some((buffer, base.of(buffer)?)),
            None => None,
        };
        if entry.bound.load(Acquire) != 0 {
            return Err(ChangeError::Bound);
        }
        let asked = memory.map_or(octets, |(buffer, _)| buffer.len() as u64);
        self.exchange_octets(octets, asked)?;
        let before = entry.state.invalidate();
        self.grace_period().wait();
        // Nobody binds a window to it any more.
        if entry.bound.load(Acquire) != 0 {
            entry.state.restore(before);
            let mut allocator = self.allocator();
            allocator.registered_octets = allocator.registered_octets - asked + octets;
            return Err(ChangeError::Bound);
        }
        // What was opened before must not take an STag that comes again for its own.
        let mut state = before.with(Flags::VALID).in_next_generation();
        if memory.is_some() || change.scope.is_some() || !before.has(Flags::VALID) {
            state = state.with_stag(self.new_stag(&mut self.allocator(), index));
        }
        if let Some(scope) = change.scope {
            state = state.without(Flags::ONE_STREAM).with(entry.give_to(scope));
        }
        if let Some((buffer, base)) = memory {
            entry.base.store(base, Relaxed);
            entry.length.store(buffer.len() as u64, Relaxed);
            entry.start.store(buffer.start().as_ptr(), Relaxed);
        }
        if let Some(access) = change.access {
            state = state.with_access(access);
        }
        entry.state.publish(state);
        Ok((state.stag(), entry.base.load(Relaxed)))
    }

    /// Counts `asked` octets instead of `octets` in the quota.
    fn exchange_octets(&self, octets: u64, asked: u64) -> Result<(), RegisterError> {
        let mut allocator = self.allocator();
        let registered = allocator.registered_octets - octets;
        if asked > octets && self.quota.saturating_sub(registered) < asked {
            return Err(RegisterError::Quota { asked, registered, quota: self.quota });
        }
        allocator.registered_octets = registered + asked;
        Ok(())
    }

    /// Removes a region and waits until nothing uses it.
    ///
    /// There is no wait if the region belongs to one stream and its STag is invalid already: the stream's engine, which
    /// alone could use the memory, has invalidated it between two accesses. Another engine may still be about to look
    /// at the slot for a stranger who guesses STags, so the slot is not reused before the turns under way have ended. A
    /// durable region is always waited for, since its octets are kept without its STag.
    ///
    /// # Errors
    /// The calling thread is in a turn itself. It may hold the way to the committer, persistent memory or a window's
    /// pieces, which must not be freed. The slot stays in use.
    pub(crate) fn deregister(&self, index: u32, octets: u64) -> Result<(), InOwnTurn> {
        let entry = &self.entries[index as usize];
        // In one step, so that an engine that is binding the window finds that it is too late.
        let before = entry.state.free();
        let is_unused = before.has(Flags::ONE_STREAM) && !before.has_any(Flags::VALID | Flags::WINDOW | Flags::KEPT);
        if !is_unused {
            let grace_period = self.grace_period();
            if grace_period.in_own_turn && (before.is_window() || before.has_any(Flags::KEPT)) {
                return Err(InOwnTurn);
            }
            grace_period.wait();
        }
        let mut allocator = self.allocator();
        if before.has(Flags::TRANSPARENT) {
            self.transparent.fetch_sub(1, Relaxed);
        }
        if before.has(Flags::VALID) && before.is_window() {
            // Under the lock: a region of the window may be removed at the same time.
            self.unbind(entry);
        }
        allocator.registered_octets -= octets;
        if !is_unused {
            self.free(&mut allocator, index);
            return Ok(());
        }
        allocator.retired.push(index);
        if allocator.retired.len() == RETIRED {
            self.free_retired(&mut allocator);
        }
        Ok(())
    }

    /// Frees retired slots if no turn is under way that may look at them. The lock is held meanwhile, so others see
    /// them in one of the lists; no turn takes it.
    fn free_retired(&self, allocator: &mut Allocator) {
        if allocator.retired.is_empty() {
            return;
        }
        self.grace_period().wait();
        for index in std::mem::take(&mut allocator.retired) {
            self.free(allocator, index);
        }
    }

    fn free(&self, allocator: &mut Allocator, index: u32) {
        let entry = &self.entries[index as usize];
        entry.most_pieces.store(0, Relaxed);
        entry.bound.store(0, Relaxed);
        allocator.free.push(index);
    }

    /// Invalidates a region's STag and waits until nothing uses it. The slot stays in use. Gives its state before.
    pub(crate) fn revoke(&self, index: u32) -> SlotState {
        let before = self.entries[index as usize].state.invalidate();
        self.grace_period().wait();
        before
    }

    /// Whether a region's STag is valid: not invalidated by a peer or by its owner.
    pub(crate) fn is_valid(&self, index: u32) -> bool {
        self.entries[index as usize].state.load().has(Flags::VALID)
    }

    /// The turns under way in other threads that may still use an STag that was just invalidated. An engine must see
    /// their end before it reports an invalidation by a peer, if other engines may use the STag.
    pub fn grace_period(&self) -> GracePeriod {
        self.engines.grace_period()
    }

    /// Most regions.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Most registered octets.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Registered regions.
    pub fn regions(&self) -> u32 {
        let allocator = self.allocator();
        self.slots - (allocator.free.len() + allocator.retired.len()) as u32
    }

    /// Registered octets.
    pub fn registered_octets(&self) -> u64 {
        self.allocator().registered_octets
    }

    pub(crate) fn engines(&self) -> &Engines {
        &self.engines
    }

    /// A seed that cannot be guessed.
    pub(crate) fn seed(&self) -> u128 {
        let mut allocator = self.allocator();
        u128::from(allocator.keys.next()) << 64 | u128::from(allocator.keys.next())
    }

    /// Width of an STag's key.
    pub(crate) fn key_bits(&self) -> u32 {
        self.key_bits
    }

    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        // No holder of the lock panics midway.
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rights to a region.
    pub(crate) fn access(&self, index: u32) -> Access {
        self.entries[index as usize].state.load().access()
    }

    /// The entry of a valid STag and its state. To be used within a turn.
    #[inline(always)]
    pub(crate) fn find(&self, stag: u32) -> Option<(&Slot, SlotState)> {
        let entry = self.entries.get((stag >> self.key_bits) as usize)?;
        let state = entry.state.load();
        state.is_valid_as(stag).then_some((entry, state))
    }

    /// The slot that an STag names, whatever it contains. Call it within a turn.
    pub(crate) fn slot(&self, stag: u32) -> Option<&Slot> {
        self.entries.get((stag >> self.key_bits) as usize)
    }

    /// The entry at the caller's own index.
    pub(crate) fn entry(&self, index: u32) -> &Slot {
        &self.entries[index as usize]
    }

    /// The octets of an access that must be contiguous.
    #[inline]
    pub(crate) fn resolve(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        length: usize,
        need: Access,
    ) -> Result<NonNull<u8>, AccessError> {
        match self.reach(association, stag, offset, length, need)? {
            Reached::Memory(start) => Ok(start),
            Reached::Window(window, distance) => self.one_run(window, distance, length),
        }
    }

    /// The octets of an access. A pointer is valid for them until the end of the caller's turn.
    ///
    /// An access of no octets needs neither offset nor bounds (RFC 5041 §5.2).
    #[inline(always)]
    pub(crate) fn reach(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        length: usize,
        need: Access,
    ) -> Result<Reached<'_>, AccessError> {
        let (entry, state) = self.find(stag).ok_or(AccessError::InvalidStag)?;
        if !entry.is_associated(state, association) {
            return Err(association.refusal());
        }
        if !state.access().contains(need) {
            return Err(AccessError::Rights);
        }
        if length == 0 {
            return Ok(Reached::Memory(NonNull::dangling()));
        }
        let length = length as u64;
        if offset.checked_add(length - 1).is_none() {
            return Err(AccessError::Wrap);
        }
        // Below the base this is at least the region's length, as base + length is at most 2^64.
        let distance = offset.wrapping_sub(entry.base.load(Relaxed));
        let region_length = entry.length.load(Relaxed);
        if distance >= region_length || region_length - distance < length {
            return Err(AccessError::Bounds);
        }
        if state.has(Flags::WINDOW) {
            return Ok(Reached::Window(entry, distance));
        }
        let start = entry.start.load(Relaxed).wrapping_add(distance as usize);
        // Never null, since it is within a region.
        NonNull::new(start).map(Reached::Memory).ok_or(AccessError::InvalidStag)
    }

    /// Revokes an STag for a peer. Call it within a turn.
    pub(crate) fn invalidate(
        &self,
        association: Association,
        stag: u32,
        domain_is_shared: bool,
    ) -> Result<(), InvalidateError> {
        let (entry, state) = self.find(stag).ok_or(InvalidateError::InvalidStag)?;
        if !entry.is_associated(state, association) {
            return Err(InvalidateError::NotAssociated);
        }
        if !state.has(Flags::ONE_STREAM) && domain_is_shared {
            return Err(InvalidateError::Shared);
        }
        if entry.bound.load(Acquire) != 0 {
            return Err(InvalidateError::Bound);
        }
        // Clear only the flag: the slot may have a new owner by now.
        if !entry.state.invalidate_as(state) {
            // Its owner or another engine was faster.
            return Err(InvalidateError::InvalidStag);
        }
        if state.has(Flags::WINDOW) {
            self.unbind(entry);
        }
        Ok(())
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RegionTable")
            .field("slots", &self.slots)
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}
