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

use crate::access::{Access, AccessError, Association, BindError};
use crate::key::KeyStream;
use crate::sync::AtomicU64;
use crate::table::{
    ACCESS_SHIFT, BINDING, Entry, GENERATION_SHIFT, IDENTITY, ONE_STREAM, OWNER_KEYS, RegionTable, VALID, WINDOW,
    packed,
};

/// The bits of an STag that the owner of a window may choose: the consumer's key of verbs.
const OWNER_KEY_MASK: u32 = 0xff;

/// An STag that is none of the window's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the window has no such STag: its owner may choose the low eight bits, if it was allocated for that, and not 0 for all"
)]
pub struct ForeignStag;

/// A part of a region that a window is bound to, as its slot has it. Written only while the window is being bound; atomic
/// because a defective application may have two engines look at it at once, and what they get from it is checked again.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// The [`IDENTITY`] bits of the region's state.
    region: AtomicU64,
    /// Distance of the piece from the region's first octet.
    distance: AtomicU64,
    /// Where the piece ends in the window.
    end: AtomicU64,
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
    key_bits: u32,
    keys: KeyStream,
    /// The owner chooses the low eight bits of the STags.
    owner_keys: bool,
    /// The slot's `start` points to them.
    pieces: Box<[Piece]>,
}

impl Window {
    pub(crate) fn new(
        table: Arc<RegionTable>,
        index: u32,
        stag: u32,
        key_bits: u32,
        seed: u128,
        pieces: Box<[Piece]>,
        owner_keys: bool,
    ) -> Window {
        Window { table, index, stag, key_bits, keys: KeyStream::new(seed), owner_keys, pieces }
    }

    /// The latest STag of [`next_stag`](Self::next_stag); before that, one that was never valid.
    #[inline]
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// Most pieces of a bind.
    pub fn most_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Makes `stag` the one for the next bind, if the owner chooses the low eight bits of the window's STags and all others are
    /// as they were. Binds that were posted with other choices and not carried out yet are not touched: each is carried out if
    /// the window is not bound by then.
    ///
    /// Only the other bits of such an STag cannot be guessed; and who uses a key again makes an STag valid that a peer may
    /// have from before.
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

    /// The STag for the next bind. Its key cannot be guessed, and a bind that was posted with an earlier one and not carried
    /// out yet will fail; unless the owner chooses keys: then it is the next in turn.
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
            let key = self.keys.next() as u32 & ((1 << self.key_bits) - 1);
            self.stag = self.index << self.key_bits | key;
        }
        self.table.entry(self.index).expected.store(self.stag, Release);
        self.stag
    }

    /// Whether the window is bound with its latest STag.
    pub fn is_valid(&self) -> bool {
        let state = self.table.entry(self.index).state.load(Acquire);
        state & (VALID | 0xffff_ffff) == VALID | u64::from(self.stag)
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
    pub(crate) region: &'a Entry,
    pub(crate) state: u64,
    /// and how far behind the region's first octet it begins.
    pub(crate) distance: u64,
}

impl RegionTable {
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
        let state = entry.state.load(Acquire);
        let owners = if state & OWNER_KEYS == 0 { 0 } else { OWNER_KEY_MASK };
        let is_expected = (entry.expected.load(Acquire) ^ stag) & !owners == 0 && stag != 0;
        if state & (WINDOW | VALID | BINDING) != WINDOW || !is_expected {
            return Err(BindError::NotFree);
        }
        if entry.association.load(Relaxed) >> 32 != u64::from(association.domain.0) {
            return Err(BindError::NotAssociated);
        }
        let claimed = state | BINDING;
        entry.state.compare_exchange(state, claimed, AcqRel, Relaxed).map_err(|_| BindError::NotFree)?;
        let bound = self.fill(entry, association, base, access, pieces);
        let generation = state & (u64::MAX << GENERATION_SHIFT);
        let rights = u64::from(access.bits()) << ACCESS_SHIFT;
        let next = match bound {
            Ok(()) => u64::from(stag) | VALID | WINDOW | ONE_STREAM | state & OWNER_KEYS | rights | generation,
            Err(_) => state,
        };
        // Fails if the owner gave the window back meanwhile; then it is not bound.
        let published = entry.state.compare_exchange(claimed, next, AcqRel, Relaxed);
        if bound.is_err() || published.is_err() {
            self.unbind(entry);
        }
        bound.and(published.map(|_| ()).map_err(|_| BindError::NotFree))
    }

    /// Writes the pieces and counts each at its region.
    fn fill(
        &self,
        entry: &Entry,
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
            if state & WINDOW != 0 {
                return Err(BindError::Piece(AccessError::InvalidStag));
            }
            length = length.checked_add(piece.length).ok_or(BindError::Wrap)?;
            place.region.store(state & IDENTITY, Relaxed);
            place.distance.store(piece.offset.wrapping_sub(region.base.load(Relaxed)), Relaxed);
            place.end.store(length, Relaxed);
            region.bound.fetch_add(1, AcqRel);
            count += 1;
            entry.pieces.store(count as u32, Relaxed);
        }
        if length > 0 && base.checked_add(length - 1).is_none() {
            return Err(BindError::Wrap);
        }
        entry.association.store(packed(association), Relaxed);
        entry.base.store(base, Relaxed);
        entry.length.store(length, Relaxed);
        Ok(())
    }

    /// The regions of a window that is not valid any more forget it. To be used within a turn, or with the allocator's lock:
    /// so the slot of a region that still has its identity is not given to another meanwhile.
    pub(crate) fn unbind(&self, entry: &Entry) {
        let count = entry.pieces.swap(0, AcqRel) as usize;
        for piece in self.places(entry).iter().take(count) {
            let identity = piece.region.load(Relaxed);
            if let Some(region) = self.slot(identity as u32)
                && region.state.load(Acquire) & IDENTITY == identity
            {
                region.bound.fetch_sub(1, AcqRel);
            }
        }
    }

    /// A window's pieces, those that are not used included.
    fn places<'a>(&self, entry: &'a Entry) -> &'a [Piece] {
        let start = entry.start.load(Relaxed).cast::<Piece>();
        let most = entry.most_pieces.load(Relaxed) as usize;
        if start.is_null() || most == 0 {
            return &[];
        }
        // SAFETY: the slot is a window's, or was while this turn began: its owner frees the pieces, whose number `length` of
        // the allocation gave, only after the turns under way have ended; `deregister` calls this before they are freed.
        unsafe { std::slice::from_raw_parts(start, most) }
    }

    /// Where octets of a window are that have to lie in one run.
    #[cold]
    pub(crate) fn one_run(&self, entry: &Entry, distance: u64, length: usize) -> Result<NonNull<u8>, AccessError> {
        let (mut start, mut runs) = (None, 0);
        self.runs(entry, distance, length, |run| {
            start.get_or_insert(run.start);
            runs += 1;
        })?;
        start.filter(|_| runs == 1).ok_or(AccessError::Bounds)
    }

    /// Calls `take` with the runs of memory that an access to a window consists of, in order. `length` octets are within the
    /// window.
    ///
    /// # Errors
    /// A region is not there any more; runs before it have been taken.
    #[cold]
    pub(crate) fn runs(
        &self,
        entry: &Entry,
        distance: u64,
        length: usize,
        mut take: impl FnMut(Run<'_>),
    ) -> Result<(), AccessError> {
        let (mut at, end) = (distance, distance + length as u64);
        let mut before = 0;
        let count = entry.pieces.load(Relaxed) as usize;
        for piece in self.places(entry).iter().take(count) {
            let piece_end = piece.end.load(Relaxed);
            if at < piece_end && at < end {
                let identity = piece.region.load(Relaxed);
                let (region, state) = self.find(identity as u32).ok_or(AccessError::InvalidStag)?;
                if state & (IDENTITY | WINDOW) != identity {
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
