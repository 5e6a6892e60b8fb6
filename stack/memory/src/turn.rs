//! Access to registered memory within an engine's turn.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::marker::PhantomData;

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::access::{Access, AccessError, Association, BindError, InvalidateError};
use crate::atomics::{self, AtomicError, CompareSwap};
use crate::durable::Durable;
use crate::epoch::EngineState;
use crate::mapping;
use crate::shared_bytes;
use crate::slot::{Flags, Identity, Slot, SlotState};
use crate::table::{Reached, RegionTable};
use crate::window::{BindPiece, Run};

/// An engine's registration with a [`RegionTable`], which revocations wait for. It may move to another thread between
/// turns.
pub struct EngineEpoch {
    table: Arc<RegionTable>,
    state: Arc<EngineState>,
    /// Not `Sync`.
    one_thread: PhantomData<Cell<()>>,
}

impl EngineEpoch {
    pub(crate) fn new(table: Arc<RegionTable>) -> EngineEpoch {
        let state = table.engines().join();
        EngineEpoch { table, state, one_thread: PhantomData }
    }

    /// Begins a turn. Revocations wait until the [`Turn`] is dropped, so a turn must never wait.
    #[inline]
    pub fn enter(&mut self) -> Turn<'_> {
        self.table.engines().enter(&self.state);
        Turn::new(&self.table, &self.state)
    }

    /// The table.
    pub fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn state(&self) -> &EngineState {
        &self.state
    }
}

impl Drop for EngineEpoch {
    fn drop(&mut self) {
        self.state.leave();
        self.table.engines().leave(&self.state);
    }
}

impl fmt::Debug for EngineEpoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EngineEpoch").field("turns", &self.state.turns()).finish_non_exhaustive()
    }
}

impl RegionTable {
    /// Registers an engine with the table.
    pub fn engine(self: &Arc<Self>) -> EngineEpoch {
        EngineEpoch::new(self.clone())
    }
}

/// A turn of an engine, from [`EngineEpoch::enter`](crate::EngineEpoch::enter) until it is dropped.
///
/// STags and offsets may come straight from the wire: each function checks them before it touches memory. Each segment
/// is checked anew, so revoking an STag stops a message midway. Nothing that is resolved outlives the call.
pub struct Turn<'a> {
    table: &'a RegionTable,
    engine: &'a EngineState,
    /// Neither `Send` nor `Sync`: the turn is the thread's.
    one_thread: PhantomData<*const ()>,
}

impl<'a> Turn<'a> {
    #[inline]
    pub(crate) fn new(table: &'a RegionTable, engine: &'a EngineState) -> Turn<'a> {
        Turn { table, engine, one_thread: PhantomData }
    }

    /// Whether `association` has the rights `need` to the `length` octets from `offset` on. An access of no octets
    /// needs neither offset nor bounds.
    ///
    /// # Errors
    /// The first of [`AccessError`]'s reasons that applies, in its order.
    #[inline]
    pub fn check(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        length: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        // A length that the address space does not hold is out of every region's bounds.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match self.table.reach(association, stag, offset, length, need)? {
            Reached::Memory(_) => Ok(()),
            Reached::Window(window, distance) => self.table.runs(window, distance, length, |_| ()),
        }
    }

    /// Copies `payload` into a region. The last octets are stored last, with release ordering: a thread that polls the
    /// last octet with acquire ordering and sees it changed also sees all others, and those of earlier placements.
    ///
    /// # Errors
    /// As [`check`](Self::check). Nothing was stored then, unless a region with a bound window was deregistered at this
    /// moment.
    #[inline(always)]
    pub fn place(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        payload: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        match self.table.reach(association, stag, offset, payload.len(), need)? {
            Reached::Memory(target) => {
                // SAFETY: the target is valid for that many octets during this turn.
                unsafe { shared_bytes::store(target, payload) };
                Ok(())
            }
            Reached::Window(window, distance) => self.place_in_window(window, distance, payload, |_| ()),
        }
    }

    #[cold]
    fn place_in_window(
        &self,
        window: &Slot,
        distance: u64,
        payload: &[u8],
        mut stored: impl FnMut(&Run<'_>),
    ) -> Result<(), AccessError> {
        // All of it is there, before anything is stored.
        self.table.runs(window, distance, payload.len(), |_| ())?;
        let mut rest = payload;
        self.table.runs(window, distance, payload.len(), |run| {
            let (now, later) = rest.split_at(run.length.min(rest.len()));
            // SAFETY: the run is valid for its octets during this turn.
            unsafe { shared_bytes::store(run.start, now) };
            rest = later;
            stored(&run);
        })
    }

    /// Copies octets of a region to `out`, as many as it holds.
    ///
    /// # Errors
    /// As [`check`](Self::check); then `out` is unchanged. A mapped file was truncated: then the contents of `out` mean
    /// nothing.
    #[inline(always)]
    pub fn gather(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        out: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        match self.table.reach(association, stag, offset, out.len(), need)? {
            Reached::Memory(source) => {
                // SAFETY: the source is valid for that many octets during this turn.
                unsafe { shared_bytes::load(source, out) };
                Ok(())
            }
            Reached::Window(window, distance) => self.gather_from_window(window, distance, out),
        }
    }

    #[cold]
    fn gather_from_window(&self, window: &Slot, distance: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let (length, mut at, mut is_whole) = (out.len(), 0, true);
        self.table.runs(window, distance, length, |_| ())?;
        self.table.runs(window, distance, length, |run| {
            let end = (at + run.length).min(length);
            // SAFETY: the run is valid for its octets during this turn.
            unsafe { shared_bytes::load(run.start, &mut out[at..end]) };
            is_whole &= !run.state.has(Flags::MAPPED) || mapping::is_whole(run.start.addr().get());
            at = end;
        })?;
        // A file that was truncated has no octets: zeros are in `out`, which nobody must get.
        if is_whole { Ok(()) } else { Err(AccessError::InvalidStag) }
    }

    /// Copies octets of a region to `out`, as many as it holds, and continues the CRC32C register `register` over them
    /// in the same pass (see [`kernels::crc32c_update`](crate::kernels::crc32c_update)). The CRC is that of `out`, even
    /// if a peer changes the region meanwhile.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    #[inline]
    pub fn gather_crc(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        out: &mut [u8],
        register: u32,
        need: Access,
    ) -> Result<u32, AccessError> {
        match self.table.reach(association, stag, offset, out.len(), need)? {
            // SAFETY: the source is valid for that many octets during this turn.
            Reached::Memory(source) => Ok(unsafe { shared_bytes::load_crc32c(source, out, register) }),
            Reached::Window(window, distance) => {
                self.gather_from_window(window, distance, out)?;
                Ok(crate::kernels::crc32c_update(register, out))
            }
        }
    }

    /// The region of an STag that `association` has the rights `need` to, for several accesses. `None` if there is
    /// none, or if it is a window or a mapped file.
    #[inline]
    pub fn open(&self, association: Association, stag: u32, need: Access) -> Option<OpenRegion<'_>> {
        let (slot, state) = self.table.find(stag)?;
        let may = slot.is_associated(state, association) && state.access().contains(need) && !state.has(Flags::WINDOW);
        let (base, length, start) = (slot.base.load(Relaxed), slot.length.load(Relaxed), slot.start.load(Relaxed));
        may.then_some(OpenRegion { slot, state, base, length, start })
    }

    /// Whether a peer may carry out atomic operations on the word of eight octets at `offset`: the region has the right
    /// `REMOTE_ATOMIC`, and the word's address is a multiple of eight.
    ///
    /// RFC 7306 names no right for atomics; RFC 5040 §8.1.1 knows reading and writing only. `REMOTE_ATOMIC` is one of
    /// its own, as in verbs: it includes to read and to write aligned words by atomics (a FetchAdd of 0 reads, a
    /// CmpSwap without mask writes), and neither lets the peer do more of either nor needs `REMOTE_READ` or
    /// `REMOTE_WRITE` beside it. An owner who wants a lock word touched by atomics alone can say so.
    ///
    /// # Errors
    /// The first reason that applies: STag, association, bounds, rights, alignment.
    pub fn check_atomic(&self, association: Association, stag: u32, offset: u64) -> Result<(), AtomicError> {
        self.atomic_target(association, stag, offset).map(|_| ())
    }

    fn atomic_target(&self, association: Association, stag: u32, offset: u64) -> Result<NonNull<u8>, AtomicError> {
        // Bounds are found before rights here, unlike elsewhere.
        self.table.resolve(association, stag, offset, 8, Access::LOCAL_READ)?;
        let target = self.table.resolve(association, stag, offset, 8, Access::REMOTE_ATOMIC)?;
        if !target.cast::<u64>().is_aligned() {
            return Err(AtomicError::Misaligned);
        }
        Ok(target)
    }

    /// Adds `data` to the word at `offset`, in the fields that `mask` marks, and returns the former value (RFC 7306
    /// §5.1.1), in the machine's byte order.
    ///
    /// # Errors
    /// As [`check_atomic`](Self::check_atomic).
    pub fn fetch_add(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        data: u64,
        mask: u64,
    ) -> Result<u64, AtomicError> {
        let target = self.atomic_target(association, stag, offset)?;
        // SAFETY: the target is valid for eight octets during this turn, and aligned.
        Ok(unsafe { atomics::fetch_add(target, data, mask) })
    }

    /// Compares and swaps the word at `offset` and returns the former value (RFC 7306 §5.1.2), in the machine's byte
    /// order.
    ///
    /// # Errors
    /// As [`check_atomic`](Self::check_atomic).
    pub fn compare_swap(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        operands: &CompareSwap,
    ) -> Result<u64, AtomicError> {
        let target = self.atomic_target(association, stag, offset)?;
        // SAFETY: the target is valid for eight octets during this turn, and aligned.
        Ok(unsafe { atomics::compare_swap(target, operands) })
    }

    /// Invalidates an STag for a peer's Send with Invalidate (RFC 5040 §5.3). The memory stays with its owner, and the
    /// slot stays in use until the registration is dropped.
    ///
    /// An STag of one stream can be invalidated by that stream's peer. One of a protection domain is shared by the
    /// domain's streams, and can be invalidated only if there is a single one (RFC 5040 §8.1.1); `domain_is_shared`
    /// says whether there are more.
    ///
    /// The next access finds it invalid. Other engines may have seen it valid in their current turns. If they may use
    /// this STag, [`RegionTable::grace_period`] tells when those turns have ended.
    ///
    /// # Errors
    /// Why it was not invalidated. Nothing has changed then.
    pub fn invalidate(
        &self,
        association: Association,
        stag: u32,
        domain_is_shared: bool,
    ) -> Result<(), InvalidateError> {
        self.table.invalidate(association, stag, domain_is_shared)
    }

    /// Calls `take` with the parts of a range, each with what a commit has to do for it, and with the name by which
    /// [`keep`](Self::keep) finds it later. A range of no octets needs nothing.
    ///
    /// # Errors
    /// As [`check`](Self::check), with the right `REMOTE_WRITE`: nothing has been taken.
    pub fn commit_targets(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        length: u32,
        mut take: impl FnMut(CommitTarget<'_>, KeptRange),
    ) -> Result<(), AccessError> {
        if length == 0 {
            return Ok(());
        }
        let octets = length as usize;
        match self.table.reach(association, stag, offset, octets, Access::REMOTE_WRITE)? {
            Reached::Memory(start) => {
                let (region, state) = self.table.find(stag).ok_or(AccessError::InvalidStag)?;
                let distance = offset.wrapping_sub(region.base.load(Relaxed));
                let run = Run { start, length: octets, region, state, distance };
                take(target(&run), KeptRange::of(&run));
                Ok(())
            }
            Reached::Window(window, distance) => {
                self.table.runs(window, distance, octets, |_| ())?;
                self.table.runs(window, distance, octets, |run| take(target(&run), KeptRange::of(&run)))
            }
        }
    }

    /// Whether any region is one in which writes have to be durable before a later message is told: then
    /// [`place_transparent`](Self::place_transparent) is the way to store them.
    #[inline]
    pub fn has_transparent(&self) -> bool {
        self.table.transparent.load(Relaxed) != 0
    }

    /// As [`place`](Self::place), and calls `take` with the parts of what was placed that have to be durable before a
    /// later message of the stream is told. They are named by their region, not by the STag that was used: that may be
    /// made invalid at any moment, also while this places.
    ///
    /// # Errors
    /// As [`place`](Self::place); `take` has not been called then, unless octets were stored.
    #[cold]
    pub fn place_transparent(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        payload: &[u8],
        need: Access,
        mut take: impl FnMut(KeptRange),
    ) -> Result<(), AccessError> {
        let mut note = |run: &Run<'_>| {
            if run.state.has(Flags::TRANSPARENT) {
                take(KeptRange::of(run));
            }
        };
        match self.table.reach(association, stag, offset, payload.len(), need)? {
            Reached::Memory(target) => {
                // SAFETY: the target is valid for that many octets during this turn.
                unsafe { shared_bytes::store(target, payload) };
                // Valid or not by now; the slot cannot become another region's before the turn is over, and one that
                // was deregistered meanwhile is not to be kept.
                if let Some(region) = self.table.slot(stag) {
                    let distance = offset.wrapping_sub(region.base.load(Relaxed));
                    let state = region.state.load();
                    note(&Run { start: target, length: payload.len(), region, state, distance });
                }
                Ok(())
            }
            Reached::Window(window, distance) => self.place_in_window(window, distance, payload, note),
        }
    }

    /// What is to be done to make a part of a region durable, whether its STag is still valid or not; `None` if the
    /// region was deregistered. The range was given by this table, so it is within the region.
    pub fn keep(&self, range: &KeptRange) -> Option<CommitTarget<'_>> {
        let region = self.table.slot(range.region.stag())?;
        let state = region.state.load();
        if state.identity() != range.region || !state.has_any(Flags::KEPT) {
            return None;
        }
        let start = region.start.load(Relaxed).wrapping_add(range.offset as usize);
        let length = range.length as usize;
        Some(target(&Run { start: NonNull::new(start)?, length, region, state, distance: range.offset }))
    }

    /// Binds a window, which must expect `stag` ([`Window::next_stag`](crate::Window::next_stag)), to pieces of regions
    /// that lie behind each other from tagged offset `base` on, for the stream `association` and with the rights
    /// `access`. Pieces of no octets are skipped; a window of no octets is bound too. To have memory written, each
    /// region needs `LOCAL_WRITE`; a region's own remote rights do not count.
    ///
    /// # Errors
    /// [`BindError`]; the window is as before.
    pub fn bind(
        &self,
        association: Association,
        stag: u32,
        base: u64,
        access: Access,
        pieces: impl Iterator<Item = BindPiece>,
    ) -> Result<(), BindError> {
        self.table.bind(association, stag, base, access, pieces)
    }
}

/// A region that is accessed several times in a turn, from [`Turn::open`]. Each access looks at its state anew, so
/// revoking the STag stops a message midway here too.
///
/// An access that is not possible any more changes nothing; the function of [`Turn`] with the same name tells why.
#[derive(Clone, Copy)]
pub struct OpenRegion<'a> {
    slot: &'a Slot,
    /// When it was opened.
    state: SlotState,
    base: u64,
    length: u64,
    start: *mut u8,
}

impl OpenRegion<'_> {
    #[inline(always)]
    fn reach(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let distance = offset.wrapping_sub(self.base);
        let is_inside = distance < self.length && length as u64 <= self.length - distance;
        if !is_inside || self.slot.state.load() != self.state {
            return None;
        }
        NonNull::new(self.start.wrapping_add(distance as usize))
    }

    /// As [`Turn::place`]. False if it could not be done.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, offset: u64, payload: &[u8]) -> bool {
        let Some(target) = self.reach(offset, payload.len()) else { return false };
        // SAFETY: the slot is valid in the turn that the lifetime belongs to, and the octets are within its region.
        unsafe { shared_bytes::store(target, payload) };
        true
    }

    /// As [`Turn::gather_crc`]. `None` if it could not be done.
    #[inline(always)]
    pub fn gather_crc(&self, offset: u64, out: &mut [u8], register: u32) -> Option<u32> {
        let source = self.reach(offset, out.len())?;
        // SAFETY: as in `place`.
        Some(unsafe { shared_bytes::load_crc32c(source, out, register) })
    }
}

impl fmt::Debug for OpenRegion<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OpenRegion").field("stag", &self.state.stag()).finish_non_exhaustive()
    }
}

/// What a commit has to see to.
#[derive(Clone, Copy, Debug)]
pub enum CommitTarget<'a> {
    /// Octets of a region that is not durable.
    Plain,
    /// Octets of persistent memory: to be seen to here, by [`PersistentRange::write_back`].
    Persistent(PersistentRange<'a>),
    /// Octets of a durable region.
    Durable {
        /// The way to its committer.
        durable: &'a Durable,
        /// First octet, counted from the region's first one.
        offset: u64,
        /// Octets.
        length: u64,
    },
}

/// Octets of a region that can be kept, for as long as it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRange {
    /// What tells the region from those that were or will be in its slot.
    region: Identity,
    /// First octet, counted from the region's first one.
    offset: u64,
    /// Octets.
    length: u64,
}

impl KeptRange {
    fn of(run: &Run<'_>) -> KeptRange {
        KeptRange { region: run.state.identity(), offset: run.distance, length: run.length as u64 }
    }

    /// Whether both are of one region.
    pub const fn is_beside(&self, other: &KeptRange) -> bool {
        self.region.bits() == other.region.bits()
    }

    /// Takes `next` into this range if it goes on where this ends. False if it does not.
    pub fn extend(&mut self, next: &KeptRange) -> bool {
        let follows = self.region == next.region && self.offset + self.length == next.offset;
        if follows {
            self.length += next.length;
        }
        follows
    }

    /// Takes in `other`, which is of the same region, and what lies between.
    pub fn span(&mut self, other: &KeptRange) {
        let start = self.offset.min(other.offset);
        let end = (self.offset + self.length).max(other.offset + other.length);
        (self.offset, self.length) = (start, end - start);
    }

    /// Makes ranges that overlap or adjoin one. The order of the others is not kept.
    pub fn merge(ranges: &mut Vec<KeptRange>) {
        ranges.sort_unstable_by_key(|range| (range.region, range.offset));
        ranges.dedup_by(|next, range| {
            let joins = range.region == next.region && next.offset <= range.offset + range.length;
            if joins {
                range.span(next);
            }
            joins
        });
    }

    /// Takes the first `most` octets out of it.
    pub fn split_front(&mut self, most: u64) -> KeptRange {
        let front = KeptRange { length: self.length.min(most), ..*self };
        self.offset += front.length;
        self.length -= front.length;
        front
    }

    /// Octets.
    pub const fn length(&self) -> u64 {
        self.length
    }
}

/// A range of persistent memory, for as long as the turn lasts.
#[derive(Clone, Copy)]
pub struct PersistentRange<'a> {
    start: NonNull<u8>,
    length: usize,
    turn: PhantomData<&'a ()>,
}

impl PersistentRange<'_> {
    /// Writes the caches back: then the octets are durable.
    pub fn write_back(&self) {
        // SAFETY: the range was resolved in this turn, which is not over.
        unsafe { crate::persist::write_back(self.start, self.length) };
    }
}

impl fmt::Debug for PersistentRange<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PersistentRange").field("length", &self.length).finish_non_exhaustive()
    }
}

fn target<'a>(run: &Run<'a>) -> CommitTarget<'a> {
    let (offset, length) = (run.distance, run.length as u64);
    if run.state.has(Flags::PERSISTENT) {
        let range = PersistentRange { start: run.start, length: run.length, turn: PhantomData };
        return CommitTarget::Persistent(range);
    }
    let durable = run.region.durable.load(Relaxed);
    if !run.state.has(Flags::DURABLE) || durable.is_null() {
        return CommitTarget::Plain;
    }
    // SAFETY: the slot was found to be a durable region's in this turn; its owner drops what it points to only after
    // the turns under way have ended.
    let durable = unsafe { &*durable };
    CommitTarget::Durable { durable, offset, length }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.engine.leave();
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Turn").finish_non_exhaustive()
    }
}
