//! The table of regions, by STag.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

use crate::access::{Access, AccessError, Association, DomainId, InvalidateError, Scope};
use crate::buffer::RegionBuffer;
use crate::durable::{Committer, Durable, Store, durable};
use crate::epoch::{EngineEpoch, Engines, GracePeriod};
use crate::key::KeyStream;
pub use crate::options::{ChangeError, RegionChange, RegisterError, TaggedBase, Unregistered};
use crate::registration::Registration;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, MutexGuard};
use crate::window::{Piece, Window};

/// The regions of a context, found by STag.
///
/// The upper bits of an STag are an index into the table, the lower ones, at least eight, a random key. The index is
/// random too, among the free ones. A slot gets a new key at each use, and is not reused before all turns that may have
/// seen its former region have ended.
pub struct RegionTable {
    entries: Box<[Entry]>,
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

/// A slot: one cache line. All but the state are written only while the state is invalid and no turn that saw it valid
/// is under way. So they do not change within a turn that has seen a valid state.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Entry {
    /// STag in bits 0..32, then [`VALID`] and the other flags, the rights from bit [`ACCESS_SHIFT`] on, and from bit
    /// [`GENERATION_SHIFT`] on how often the slot was freed.
    pub(crate) state: AtomicU64,
    /// Domain in the upper half, stream in the lower one.
    pub(crate) association: AtomicU64,
    /// Tagged offset of the first octet; `base + length` is at most 2^64.
    pub(crate) base: AtomicU64,
    pub(crate) length: AtomicU64,
    /// The first octet; for a window, its array of [`Piece`]s.
    pub(crate) start: AtomicPtr<u8>,
    /// For a window: the number of pieces in use.
    pub(crate) pieces: AtomicU32,
    /// For a window: the STag of the next bind.
    pub(crate) expected: AtomicU32,
    /// For a window: the number of pieces allocated.
    pub(crate) most_pieces: AtomicU32,
    /// Pieces of windows that are bound to the region.
    pub(crate) bound: AtomicU32,
    /// For a durable region: the way to its committer.
    pub(crate) durable: AtomicPtr<Durable>,
}

/// The STag can be used.
pub(crate) const VALID: u64 = 1 << 32;
/// It is associated with one stream; otherwise with a whole domain.
pub(crate) const ONE_STREAM: u64 = 1 << 33;
/// The slot is a window's: its memory belongs to other regions.
pub(crate) const WINDOW: u64 = 1 << 34;
/// An engine is binding the window.
pub(crate) const BINDING: u64 = 1 << 35;
/// Commits of the region go to a committer.
pub(crate) const DURABLE: u64 = 1 << 36;
/// A commit of the region writes caches back.
pub(crate) const PERSISTENT: u64 = 1 << 38;
/// Peers' writes there must be durable before their next message is delivered.
pub(crate) const TRANSPARENT: u64 = 1 << 37;
/// The owner of the window chooses the low eight bits of its STags.
pub(crate) const OWNER_KEYS: u64 = 1 << 39;
pub(crate) const ACCESS_SHIFT: u32 = 40;
pub(crate) const GENERATION_SHIFT: u32 = 44;
/// What distinguishes a region from earlier ones in its slot, even if the STags happen to be equal.
pub(crate) const IDENTITY: u64 = 0xffff_ffff | u64::MAX << GENERATION_SHIFT;

/// Slots that are freed together, with one wait for all.
const RETIRED: usize = 64;

/// How a region is made durable, and whether messages wait for that.
enum Keeping {
    Plain,
    Persistent(bool),
    Store(Box<Durable>, bool),
}

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

/// The association and the flag of a scope.
fn association_of(scope: Scope) -> (u64, u64) {
    match scope {
        Scope::Domain(domain) => (u64::from(domain.0) << 32, 0),
        Scope::Stream { domain, stream } => (packed(Association { domain, stream }), ONE_STREAM),
    }
}

/// Where an access goes.
pub(crate) enum Reached<'a> {
    /// Octets from here on.
    Memory(NonNull<u8>),
    /// A window, at this distance from its first octet.
    Window(&'a Entry, u64),
}

pub(crate) const fn packed(association: Association) -> u64 {
    (association.domain.0 as u64) << 32 | association.stream.0 as u64
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
            entries: (0..1usize << index_bits).map(|_| Entry::default()).collect(),
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

    /// Registers `buffer` with the rights `access` for the streams in `scope`, which gives it an STag.
    ///
    /// # Errors
    /// The table is full or the quota would be exceeded. The error contains the buffer.
    pub fn register(
        self: &Arc<Self>,
        buffer: impl Into<RegionBuffer>,
        access: Access,
        scope: Scope,
        base: TaggedBase,
    ) -> Result<Registration, Unregistered> {
        self.register_as(buffer.into(), access, scope, base, Keeping::Plain)
    }

    /// Registers persistent memory ([`RegionBuffer::persistent`]): a commit writes back the caches of its octets, in
    /// the engine's turns. `transparent` as for [`register_durable`](Self::register_durable).
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_persistent(
        self: &Arc<Self>,
        buffer: RegionBuffer,
        access: Access,
        scope: Scope,
        base: TaggedBase,
        transparent: bool,
    ) -> Result<Registration, Unregistered> {
        self.register_as(buffer, access, scope, base, Keeping::Persistent(transparent))
    }

    /// Registers `buffer` as a durable region: a commit makes its octets durable in `store`. The caller sees to it that
    /// both begin with the same contents. With `transparent`, a peer's message is delivered only when what the peer
    /// wrote there before is durable.
    ///
    /// The committer must run, or commits are never answered.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_durable(
        self: &Arc<Self>,
        buffer: impl Into<RegionBuffer>,
        access: Access,
        scope: Scope,
        base: TaggedBase,
        store: Box<dyn Store>,
        transparent: bool,
    ) -> Result<(Registration, Committer), Unregistered> {
        let memory = Arc::new(buffer.into());
        let (durable, committer) = durable(Arc::clone(&memory), store);
        let durable = Box::new(durable);
        match self.register_as(RegionBuffer::shared(memory), access, scope, base, Keeping::Store(durable, transparent))
        {
            Ok(registration) => Ok((registration, committer)),
            Err(Unregistered { buffer, error }) => {
                drop(committer);
                Err(Unregistered { buffer: buffer.unshared(), error })
            }
        }
    }

    fn register_as(
        self: &Arc<Self>,
        buffer: RegionBuffer,
        access: Access,
        scope: Scope,
        base: TaggedBase,
        keeping: Keeping,
    ) -> Result<Registration, Unregistered> {
        let allocated = base.of(&buffer).and_then(|base| Ok((base, self.allocate(buffer.len() as u64)?)));
        let (base, (index, stag)) = match allocated {
            Ok(allocated) => allocated,
            Err(error) => return Err(Unregistered { buffer, error }),
        };
        let (association, one_stream) = association_of(scope);
        let entry = &self.entries[index as usize];
        entry.association.store(association, Relaxed);
        entry.base.store(base, Relaxed);
        entry.length.store(buffer.len() as u64, Relaxed);
        entry.start.store(buffer.start().as_ptr(), Relaxed);
        let access = u64::from(access.bits()) << ACCESS_SHIFT;
        let generation = entry.state.load(Relaxed) & (u64::MAX << GENERATION_SHIFT);
        let (durable, kind, transparent) = match keeping {
            Keeping::Plain => (None, 0, false),
            Keeping::Persistent(transparent) => (None, PERSISTENT, transparent),
            Keeping::Store(durable, transparent) => (Some(durable), DURABLE, transparent),
        };
        let kind = if transparent {
            self.transparent.fetch_add(1, Relaxed);
            kind | TRANSPARENT
        } else {
            kind
        };
        let way = durable.as_deref().map_or(std::ptr::null(), std::ptr::from_ref);
        entry.durable.store(way.cast_mut(), Relaxed);
        entry.state.store(u64::from(stag) | VALID | one_stream | kind | access | generation, Release);
        Ok(Registration::new(self.clone(), index, stag, base, buffer, durable))
    }

    /// Allocates a window of at most `pieces` pieces (at least one) in a protection domain. It uses nothing of the
    /// quota, since its memory belongs to regions.
    ///
    /// # Errors
    /// The table is full.
    pub fn allocate_window(self: &Arc<Self>, domain: DomainId, pieces: usize) -> Result<Window, RegisterError> {
        self.allocate_window_as(domain, pieces, 0)
    }

    /// As [`allocate_window`](Self::allocate_window), for a window whose owner chooses the low eight bits of its STags
    /// ([`Window::choose_stag`]), as verbs let him; the other bits stay.
    ///
    /// # Errors
    /// The table is full.
    pub fn allocate_window_with_owner_keys(
        self: &Arc<Self>,
        domain: DomainId,
        pieces: usize,
    ) -> Result<Window, RegisterError> {
        self.allocate_window_as(domain, pieces, OWNER_KEYS)
    }

    fn allocate_window_as(
        self: &Arc<Self>,
        domain: DomainId,
        pieces: usize,
        keys: u64,
    ) -> Result<Window, RegisterError> {
        let (index, stag) = self.allocate(0)?;
        let pieces: Box<[Piece]> = (0..pieces.max(1)).map(|_| Piece::default()).collect();
        let entry = &self.entries[index as usize];
        entry.association.store(u64::from(domain.0) << 32, Relaxed);
        entry.start.store(pieces.as_ptr().cast::<u8>().cast_mut(), Relaxed);
        entry.pieces.store(0, Relaxed);
        entry.most_pieces.store(pieces.len() as u32, Relaxed);
        entry.expected.store(if keys == OWNER_KEYS { stag } else { 0 }, Relaxed);
        let generation = entry.state.load(Relaxed) & (u64::MAX << GENERATION_SHIFT);
        entry.state.store(u64::from(stag) | WINDOW | keys | generation, Release);
        let seed = {
            let mut allocator = self.allocator();
            u128::from(allocator.keys.next()) << 64 | u128::from(allocator.keys.next())
        };
        Ok(Window::new(self.clone(), index, stag, self.key_bits, seed, pieces, keys == OWNER_KEYS))
    }

    fn allocate(&self, octets: u64) -> Result<(u32, u32), RegisterError> {
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
        let former = self.entries[index as usize].state.load(Relaxed) as u32;
        loop {
            let key = allocator.keys.next() as u32 & ((1 << self.key_bits) - 1);
            let stag = index << self.key_bits | key;
            // Not the slot's last one, and not 0, which often means "no STag".
            if stag != former && stag != 0 {
                break stag;
            }
        }
    }

    /// Changes a region of `octets` octets in place, and waits until no engine uses it as it was. Gives its STag and base.
    pub(crate) fn change(&self, index: u32, octets: u64, change: &RegionChange) -> Result<(u32, u64), ChangeError> {
        let entry = &self.entries[index as usize];
        if entry.state.load(Acquire) & (DURABLE | PERSISTENT) != 0 {
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
        let before = entry.state.fetch_and(!VALID, AcqRel);
        self.grace_period().wait();
        // Nobody binds a window to it any more.
        if entry.bound.load(Acquire) != 0 {
            entry.state.fetch_or(before & VALID, AcqRel);
            let mut allocator = self.allocator();
            allocator.registered_octets = allocator.registered_octets - asked + octets;
            return Err(ChangeError::Bound);
        }
        let mut state = before & !VALID;
        if memory.is_some() || change.scope.is_some() || before & VALID == 0 {
            state = state & !0xffff_ffff | u64::from(self.new_stag(&mut self.allocator(), index));
        }
        if let Some(scope) = change.scope {
            let (association, one_stream) = association_of(scope);
            entry.association.store(association, Relaxed);
            state = state & !ONE_STREAM | one_stream;
        }
        if let Some((buffer, base)) = memory {
            entry.base.store(base, Relaxed);
            entry.length.store(buffer.len() as u64, Relaxed);
            entry.start.store(buffer.start().as_ptr(), Relaxed);
        }
        if let Some(access) = change.access {
            state = state & !(u64::from(Access::ALL.bits()) << ACCESS_SHIFT) | u64::from(access.bits()) << ACCESS_SHIFT;
        }
        entry.state.store(state | VALID, Release);
        Ok((state as u32, entry.base.load(Relaxed)))
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
        let kind = VALID | WINDOW | BINDING | DURABLE | PERSISTENT | TRANSPARENT | OWNER_KEYS;
        let gone = |state: u64| Some((state & !kind).wrapping_add(1 << GENERATION_SHIFT));
        let before = entry.state.fetch_update(AcqRel, Acquire, gone).unwrap_or_default();
        let is_unused = before & (VALID | ONE_STREAM | WINDOW | DURABLE | PERSISTENT) == ONE_STREAM;
        if !is_unused {
            let grace_period = self.grace_period();
            if grace_period.in_own_turn && before & (WINDOW | DURABLE | PERSISTENT) != 0 {
                return Err(InOwnTurn);
            }
            grace_period.wait();
        }
        let mut allocator = self.allocator();
        if before & TRANSPARENT != 0 {
            self.transparent.fetch_sub(1, Relaxed);
        }
        if before & (VALID | WINDOW) == VALID | WINDOW {
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

    /// Invalidates a region's STag and waits until nothing uses it. The slot stays in use.
    pub(crate) fn revoke(&self, index: u32) {
        self.entries[index as usize].state.fetch_and(!VALID, AcqRel);
        self.grace_period().wait();
    }

    /// Whether a region's STag is valid: not invalidated by a peer or by its owner.
    pub(crate) fn is_valid(&self, index: u32) -> bool {
        self.entries[index as usize].state.load(Acquire) & VALID != 0
    }

    /// Registers an engine with the table.
    pub fn engine(self: &Arc<Self>) -> EngineEpoch {
        EngineEpoch::new(self.clone())
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

    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        // No holder of the lock panics midway.
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rights to a region.
    pub(crate) fn access(&self, index: u32) -> Access {
        Access::from_bits_truncate((self.entries[index as usize].state.load(Acquire) >> ACCESS_SHIFT) as u8)
    }

    /// The entry of a valid STag and its state. To be used within a turn.
    #[inline(always)]
    pub(crate) fn find(&self, stag: u32) -> Option<(&Entry, u64)> {
        let entry = self.entries.get((stag >> self.key_bits) as usize)?;
        let state = entry.state.load(Acquire);
        (state & (VALID | 0xffff_ffff) == VALID | u64::from(stag)).then_some((entry, state))
    }

    /// The slot that an STag names, whatever it contains. Call it within a turn.
    pub(crate) fn slot(&self, stag: u32) -> Option<&Entry> {
        self.entries.get((stag >> self.key_bits) as usize)
    }

    /// The entry at the caller's own index.
    pub(crate) fn entry(&self, index: u32) -> &Entry {
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
    #[inline]
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
            return Err(AccessError::NotAssociated);
        }
        if !Access::from_bits_truncate((state >> ACCESS_SHIFT) as u8).contains(need) {
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
        if state & WINDOW != 0 {
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
        if state & ONE_STREAM == 0 && domain_is_shared {
            return Err(InvalidateError::Shared);
        }
        if entry.bound.load(Acquire) != 0 {
            return Err(InvalidateError::Bound);
        }
        // Clear only the flag: the slot may have a new owner by now.
        let identity = state & IDENTITY;
        let revoke = |now: u64| (now & (IDENTITY | VALID) == identity | VALID).then_some(now & !VALID);
        if entry.state.fetch_update(AcqRel, Acquire, revoke).is_err() {
            // Its owner or another engine was faster.
            return Err(InvalidateError::InvalidStag);
        }
        if state & WINDOW != 0 {
            self.unbind(entry);
        }
        Ok(())
    }
}

impl Entry {
    #[inline(always)]
    pub(crate) fn is_associated(&self, state: u64, association: Association) -> bool {
        let difference = self.association.load(Relaxed) ^ packed(association);
        let relevant = if state & ONE_STREAM == 0 { 0xffff_ffff << 32 } else { u64::MAX };
        difference & relevant == 0
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
