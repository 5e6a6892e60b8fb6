//! STags without memory of their own: memory windows, and regions that are registered by a work request.
//!
//! A window is a slot of the table whose memory belongs to regions. An engine binds it within a turn, to one stream and
//! a list of pieces that are consecutive in the window's tagged offsets. It also invalidates it for the owner or the
//! peer. Each bind brings an STag with a new key. None of this takes a lock or waits.
//!
//! A piece names its region by identity (STag and generation of the slot), and each access checks that the region is
//! still valid. So deregistering a region also ends access through its windows, without a list of them. Windows are
//! only counted, because a peer may not invalidate an STag to which windows are bound.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::access::{Access, AccessError, Association, BindError, DomainId};
use crate::key::KeyStream;
use crate::options::RegisterError;
use crate::slot::{Flags, Identity, Slot, SlotState};
use crate::sync::AtomicU64;
use crate::table::RegionTable;

/// The bits of an STag that the owner of a window may choose: the consumer's key of verbs.
const OWNER_KEY_MASK: u32 = 0xff;

/// An STag that is none of the window's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the window has no such STag: its owner may choose the low eight bits, if it was allocated for that, and not 0 for all"
)]
pub struct ForeignStag;

/// A part of a region that a window is bound to, as its slot has it. Written only while the window is being bound;
/// atomic because a defective application may have two engines look at it at once, and what they get from it is checked
/// again.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// The region's [`Identity`].
    region: AtomicU64,
    /// Distance of the piece from the region's first octet.
    distance: AtomicU64,
    /// Where the piece ends in the window.
    end: AtomicU64,
}

impl Piece {
    fn region(&self) -> Identity {
        Identity::from_bits(self.region.load(Relaxed))
    }
}

/// A part of a region to which a window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindPiece {
    /// STag of the region.
    pub stag: u32,
    /// Tagged offset of the first octet.
    pub offset: u64,
    /// Octets.
    pub length: u64,
}

/// A window, for its owner. Dropping it invalidates the STag and frees the slot; within a [`Turn`](crate::Turn) of the
/// same thread that panics.
pub struct Window {
    table: Arc<RegionTable>,
    index: u32,
    stag: u32,
    keys: KeyStream,
    /// The owner chooses the low eight bits of the STags.
    owner_keys: bool,
    /// The slot's `start` points to them.
    pieces: Box<[Piece]>,
}

impl Window {
    /// The latest STag of [`next_stag`](Self::next_stag); before that, one that was never valid.
    #[inline]
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// Most pieces of a bind.
    pub fn most_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Makes `stag` the one for the next bind, if the owner chooses the low eight bits of the window's STags and all
    /// others are as they were. Binds that were posted with other choices and not carried out yet are not touched: each
    /// is carried out if the window is not bound by then.
    ///
    /// Only the other bits of such an STag cannot be guessed; and who uses a key again makes an STag valid that a peer
    /// may have from before.
    ///
    /// # Errors
    /// [`ForeignStag`]; the window's STag is as it was.
    pub fn choose_stag(&mut self, stag: u32) -> Result<(), ForeignStag> {
        // 0 stands for "no STag" in many places.
        if !self.owner_keys || (stag ^ self.stag) & !OWNER_KEY_MASK != 0 || stag == 0 {
            return Err(ForeignStag);
        }
        self.stag = stag;
        Ok(())
    }

    /// The STag for the next bind. Its key cannot be guessed, and a bind that was posted with an earlier one and not
    /// carried out yet will fail; unless the owner chooses keys: then it is the next in turn.
    pub fn next_stag(&mut self) -> u32 {
        if self.owner_keys {
            let next = |stag: u32| stag & !OWNER_KEY_MASK | stag.wrapping_add(1) & OWNER_KEY_MASK;
            self.stag = next(self.stag);
            if self.stag == 0 {
                self.stag = next(self.stag);
            }
            return self.stag;
        }
        let former = self.stag;
        while self.stag == former || self.stag == 0 {
            let key = self.keys.next() as u32 & ((1 << self.table.key_bits()) - 1);
            self.stag = self.index << self.table.key_bits() | key;
        }
        self.table.entry(self.index).expected.store(self.stag, Release);
        self.stag
    }

    /// Whether the window is bound with its latest STag.
    pub fn is_valid(&self) -> bool {
        self.table.entry(self.index).state.load().is_valid_as(self.stag)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Waits for turns that may look at the pieces, which are then freed.
        if let Err(refused) = self.table.deregister(self.index, 0) {
            std::mem::forget(std::mem::take(&mut self.pieces));
            refused.refuse();
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Window")
            .field("stag", &format_args!("{:#010x}", self.stag))
            .field("most_pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}

/// A run of memory within an access.
pub(crate) struct Run<'a> {
    pub(crate) start: NonNull<u8>,
    pub(crate) length: usize,
    /// The region that it is in, as its state was,
    pub(crate) region: &'a Slot,
    pub(crate) state: SlotState,
    /// and how far behind the region's first octet it begins.
    pub(crate) distance: u64,
}

impl RegionTable {
    /// Allocates a window of at most `pieces` pieces (at least one) in a protection domain. It uses nothing of the
    /// quota, since its memory belongs to regions.
    ///
    /// # Errors
    /// The table is full.
    pub fn allocate_window(self: &Arc<Self>, domain: DomainId, pieces: usize) -> Result<Window, RegisterError> {
        self.allocate_window_as(domain, pieces, Flags::NONE)
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
        self.allocate_window_as(domain, pieces, Flags::OWNER_KEYS)
    }

    fn allocate_window_as(
        self: &Arc<Self>,
        domain: DomainId,
        pieces: usize,
        keys: Flags,
    ) -> Result<Window, RegisterError> {
        let (index, stag) = self.allocate(0)?;
        let pieces: Box<[Piece]> = (0..pieces.max(1)).map(|_| Piece::default()).collect();
        let entry = self.entry(index);
        entry.give_to_domain(domain);
        entry.start.store(pieces.as_ptr().cast::<u8>().cast_mut(), Relaxed);
        entry.pieces.store(0, Relaxed);
        entry.most_pieces.store(pieces.len() as u32, Relaxed);
        let owner_keys = keys == Flags::OWNER_KEYS;
        entry.expected.store(if owner_keys { stag } else { 0 }, Relaxed);
        let state = entry.state.peek().replaced_by(stag, Flags::WINDOW | keys, Access::LOCAL_READ);
        entry.state.publish(state);
        let keys = KeyStream::new(self.seed());
        Ok(Window { table: self.clone(), index, stag, keys, owner_keys, pieces })
    }

    /// Binds the window that expects `stag`. To be used within a turn of the stream's engine.
    pub(crate) fn bind(
        &self,
        association: Association,
        stag: u32,
        base: u64,
        access: Access,
        pieces: impl Iterator<Item = BindPiece>,
    ) -> Result<(), BindError> {
        let entry = self.slot(stag).ok_or(BindError::NotFree)?;
        let state = entry.state.load();
        let owners = if state.has(Flags::OWNER_KEYS) { OWNER_KEY_MASK } else { 0 };
        let is_expected = (entry.expected.load(Acquire) ^ stag) & !owners == 0 && stag != 0;
        if !state.is_window() || state.has_any(Flags::VALID | Flags::BINDING) || !is_expected {
            return Err(BindError::NotFree);
        }
        if !entry.is_in(association.domain) {
            return Err(BindError::NotAssociated);
        }
        let claimed = state.with(Flags::BINDING);
        if !entry.state.exchange(state, claimed) {
            return Err(BindError::NotFree);
        }
        let bound = self.fill(entry, association, base, access, pieces);
        let flags = Flags::VALID | Flags::WINDOW | Flags::ONE_STREAM | state.of(Flags::OWNER_KEYS);
        let next = if bound.is_ok() { state.replaced_by(stag, flags, access) } else { state };
        // Fails if the owner gave the window back meanwhile; then it is not bound.
        let is_published = entry.state.exchange(claimed, next);
        if bound.is_err() || !is_published {
            self.unbind(entry);
        }
        if is_published { bound } else { bound.and(Err(BindError::NotFree)) }
    }

    /// Writes the pieces and counts each at its region.
    fn fill(
        &self,
        entry: &Slot,
        association: Association,
        base: u64,
        access: Access,
        pieces: impl Iterator<Item = BindPiece>,
    ) -> Result<(), BindError> {
        entry.pieces.store(0, Relaxed);
        // Whoever writes has to be allowed to have it written.
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let need = if access.bits() & writes.bits() == 0 { Access::LOCAL_READ } else { Access::LOCAL_WRITE };
        let mut length = 0u64;
        let (places, mut count) = (self.places(entry), 0);
        for piece in pieces.filter(|piece| piece.length > 0) {
            let place = places.get(count).ok_or(BindError::TooManyPieces)?;
            let octets = usize::try_from(piece.length).unwrap_or(usize::MAX);
            self.resolve(association, piece.stag, piece.offset, octets, need).map_err(BindError::Piece)?;
            let (region, state) = self.find(piece.stag).ok_or(BindError::Piece(AccessError::InvalidStag))?;
            if state.is_window() {
                return Err(BindError::Piece(AccessError::InvalidStag));
            }
            length = length.checked_add(piece.length).ok_or(BindError::Wrap)?;
            place.region.store(state.identity().bits(), Relaxed);
            place.distance.store(piece.offset.wrapping_sub(region.base.load(Relaxed)), Relaxed);
            place.end.store(length, Relaxed);
            region.bound.fetch_add(1, AcqRel);
            count += 1;
            entry.pieces.store(count as u32, Relaxed);
        }
        if length > 0 && base.checked_add(length - 1).is_none() {
            return Err(BindError::Wrap);
        }
        entry.give_to_stream(association);
        entry.base.store(base, Relaxed);
        entry.length.store(length, Relaxed);
        Ok(())
    }

    /// The regions of a window that is not valid any more forget it. To be used within a turn, or with the allocator's
    /// lock: so the slot of a region that still has its identity is not given to another meanwhile.
    pub(crate) fn unbind(&self, entry: &Slot) {
        let count = entry.pieces.swap(0, AcqRel) as usize;
        for piece in self.places(entry).iter().take(count) {
            let identity = piece.region();
            if let Some(region) = self.slot(identity.stag())
                && region.state.load().identity() == identity
            {
                region.bound.fetch_sub(1, AcqRel);
            }
        }
    }

    /// A window's pieces, those that are not used included.
    fn places<'a>(&self, entry: &'a Slot) -> &'a [Piece] {
        let start = entry.start.load(Relaxed).cast::<Piece>();
        let most = entry.most_pieces.load(Relaxed) as usize;
        if start.is_null() || most == 0 {
            return &[];
        }
        // SAFETY: the slot is a window's, or was while this turn began: its owner frees the pieces, of which there are
        // `most_pieces`, only after the turns under way have ended; `deregister` calls this before
        // they are freed.
        unsafe { std::slice::from_raw_parts(start, most) }
    }

    /// Where octets of a window are that have to lie in one run.
    #[cold]
    pub(crate) fn one_run(&self, entry: &Slot, distance: u64, length: usize) -> Result<NonNull<u8>, AccessError> {
        let (mut start, mut runs) = (None, 0);
        self.runs(entry, distance, length, |run| {
            start.get_or_insert(run.start);
            runs += 1;
        })?;
        start.filter(|_| runs == 1).ok_or(AccessError::Bounds)
    }

    /// Calls `take` with the runs of memory that an access to a window consists of, in order; that to a mapped file is
    /// one run. `length` octets are within the window.
    ///
    /// # Errors
    /// A region is not there any more; runs before it have been taken.
    #[cold]
    pub(crate) fn runs(
        &self,
        entry: &Slot,
        distance: u64,
        length: usize,
        mut take: impl FnMut(Run<'_>),
    ) -> Result<(), AccessError> {
        let state = entry.state.load();
        if state.has(Flags::MAPPED) {
            let start = NonNull::new(entry.start.load(Relaxed).wrapping_add(distance as usize));
            let start = start.ok_or(AccessError::InvalidStag)?;
            take(Run { start, length, region: entry, state, distance });
            return Ok(());
        }
        let (mut at, end) = (distance, distance + length as u64);
        let mut before = 0;
        let count = entry.pieces.load(Relaxed) as usize;
        for piece in self.places(entry).iter().take(count) {
            let piece_end = piece.end.load(Relaxed);
            if at < piece_end && at < end {
                let identity = piece.region();
                let (region, state) = self.find(identity.stag()).ok_or(AccessError::InvalidStag)?;
                if state.identity() != identity || state.is_window() {
                    return Err(AccessError::InvalidStag);
                }
                let part = piece_end.min(end) - at;
                let within = piece.distance.load(Relaxed).wrapping_add(at - before);
                let region_length = region.length.load(Relaxed);
                if within > region_length || region_length - within < part {
                    return Err(AccessError::Bounds);
                }
                let start = region.start.load(Relaxed).wrapping_add(within as usize);
                let start = NonNull::new(start).ok_or(AccessError::InvalidStag)?;
                take(Run { start, length: part as usize, region, state, distance: within });
                at += part;
            }
            before = piece_end;
        }
        if at == end { Ok(()) } else { Err(AccessError::InvalidStag) }
    }
}
