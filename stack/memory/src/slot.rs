//! A slot of the table of regions, and the word that says what is in it.

use std::ops::BitOr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::access::{Access, Association, DomainId, Scope};
use crate::durable::Durable;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64};

/// A slot: one cache line. All but the state and what binds of windows count are written only while the state is
/// invalid and no turn that saw it valid is under way. So they do not change within a turn that has seen a valid state.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) state: StateWord,
    /// Domain in the upper half, stream in the lower one.
    association: AtomicU64,
    /// Tagged offset of the first octet; `base + length` is at most 2^64.
    pub(crate) base: AtomicU64,
    pub(crate) length: AtomicU64,
    /// The first octet; for a window, its array of `Piece`s.
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

const fn packed(association: Association) -> u64 {
    (association.domain.0 as u64) << 32 | association.stream.0 as u64
}

impl Slot {
    /// Associates the slot with a scope. Gives the flag that belongs to it.
    pub(crate) fn give_to(&self, scope: Scope) -> Flags {
        match scope {
            Scope::Domain(domain) => {
                self.give_to_domain(domain);
                Flags::NONE
            }
            Scope::Stream { domain, stream } => {
                self.give_to_stream(Association { domain, stream });
                Flags::ONE_STREAM
            }
        }
    }

    /// Associates the slot with a whole domain.
    pub(crate) fn give_to_domain(&self, domain: DomainId) {
        self.association.store(u64::from(domain.0) << 32, Relaxed);
    }

    /// Associates the slot with one stream.
    pub(crate) fn give_to_stream(&self, association: Association) {
        self.association.store(packed(association), Relaxed);
    }

    /// Whether the slot is in the domain.
    pub(crate) fn is_in(&self, domain: DomainId) -> bool {
        self.association.load(Relaxed) >> 32 == u64::from(domain.0)
    }

    #[inline(always)]
    pub(crate) fn is_associated(&self, state: SlotState, association: Association) -> bool {
        let difference = self.association.load(Relaxed) ^ packed(association);
        let relevant = if state.has(Flags::ONE_STREAM) { u64::MAX } else { 0xffff_ffff << 32 };
        difference & relevant == 0
    }
}

/// What a slot contains and how it may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u64);

impl Flags {
    pub(crate) const NONE: Flags = Flags(0);
    /// The STag can be used.
    pub(crate) const VALID: Flags = Flags(1 << 32);
    /// It is associated with one stream; otherwise with a whole domain.
    pub(crate) const ONE_STREAM: Flags = Flags(1 << 33);
    /// The slot is a window's: its memory belongs to other regions. Or, with `MAPPED`, a mapped file's.
    pub(crate) const WINDOW: Flags = Flags(1 << 34);
    /// An engine is binding the window.
    pub(crate) const BINDING: Flags = Flags(1 << 35);
    /// Commits of the region go to a committer.
    pub(crate) const DURABLE: Flags = Flags(1 << 36);
    /// Peers' writes there must be durable before their next message is delivered.
    pub(crate) const TRANSPARENT: Flags = Flags(1 << 37);
    /// A commit of the region writes caches back.
    pub(crate) const PERSISTENT: Flags = Flags(1 << 38);
    /// The owner of the window chooses the low eight bits of its STags.
    pub(crate) const OWNER_KEYS: Flags = Flags(1 << 39);
    /// With `WINDOW`, so that usual accesses look at one flag only: not a window, but a region that is a mapped file.
    pub(crate) const MAPPED: Flags = Flags(1 << 44);
    /// Commits of the region have an effect.
    pub(crate) const KEPT: Flags = Flags(Flags::DURABLE.0 | Flags::PERSISTENT.0);
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

const STAG_BITS: u64 = 0xffff_ffff;
const FLAG_BITS: u64 = 0xff << 32 | Flags::MAPPED.0;
const ACCESS_SHIFT: u32 = 40;
const ACCESS_BITS: u64 = (Access::ALL.bits() as u64) << ACCESS_SHIFT;
const GENERATION_SHIFT: u32 = 45;
const GENERATION_BITS: u64 = u64::MAX << GENERATION_SHIFT;

/// The state of a slot: the STag in bits 0..32, then the [`Flags`], the rights in bits 40..44, one more flag, and from
/// bit 45 on the generation, which is how often the slot was freed, or its region changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotState(u64);

/// What distinguishes a region from earlier ones in its slot, even if the STags happen to be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity(u64);

impl Identity {
    pub(crate) const fn from_bits(bits: u64) -> Identity {
        Identity(bits)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn stag(self) -> u32 {
        self.0 as u32
    }
}

impl SlotState {
    #[inline(always)]
    pub(crate) const fn stag(self) -> u32 {
        self.0 as u32
    }

    /// Whether it has all of `flags`.
    #[inline(always)]
    pub(crate) const fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether the slot is a window's.
    pub(crate) const fn is_window(self) -> bool {
        self.has(Flags::WINDOW) && !self.has(Flags::MAPPED)
    }

    /// Whether it has some of `flags`.
    #[inline(always)]
    pub(crate) const fn has_any(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    /// Whether `stag` is the slot's, and valid.
    #[inline(always)]
    pub(crate) fn is_valid_as(self, stag: u32) -> bool {
        self.0 & (Flags::VALID.0 | STAG_BITS) == Flags::VALID.0 | stag as u64
    }

    #[inline(always)]
    pub(crate) const fn access(self) -> Access {
        Access::from_bits_truncate((self.0 >> ACCESS_SHIFT) as u8)
    }

    #[inline(always)]
    pub(crate) const fn identity(self) -> Identity {
        Identity(self.0 & (STAG_BITS | GENERATION_BITS))
    }

    /// How often the slot was freed, or its region changed.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    /// The same generation with another content.
    pub(crate) const fn replaced_by(self, stag: u32, flags: Flags, access: Access) -> SlotState {
        SlotState(self.0 & GENERATION_BITS | stag as u64 | flags.0 | (access.bits() as u64) << ACCESS_SHIFT)
    }

    /// The next generation: nothing is left but STag, stream and rights, which mean nothing any more.
    fn freed(self) -> SlotState {
        SlotState(self.0 & !(FLAG_BITS & !Flags::ONE_STREAM.0)).in_next_generation()
    }

    /// The same content in the next generation.
    pub(crate) const fn in_next_generation(self) -> SlotState {
        SlotState(self.0.wrapping_add(1 << GENERATION_SHIFT))
    }

    pub(crate) const fn with(self, flags: Flags) -> SlotState {
        SlotState(self.0 | flags.0)
    }

    pub(crate) const fn without(self, flags: Flags) -> SlotState {
        SlotState(self.0 & !flags.0)
    }

    pub(crate) const fn with_stag(self, stag: u32) -> SlotState {
        SlotState(self.0 & !STAG_BITS | stag as u64)
    }

    pub(crate) const fn with_access(self, access: Access) -> SlotState {
        SlotState(self.0 & !ACCESS_BITS | (access.bits() as u64) << ACCESS_SHIFT)
    }

    /// Which of `flags` it has.
    pub(crate) const fn of(self, flags: Flags) -> Flags {
        Flags(self.0 & flags.0)
    }
}

/// The word with a slot's [`SlotState`], which engines, owners and peers change at the same time.
#[derive(Default)]
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// The state. What was written to the slot before it was published is visible.
    #[inline(always)]
    pub(crate) fn load(&self) -> SlotState {
        SlotState(self.0.load(Acquire))
    }

    /// The state, where nothing else of the slot is read.
    pub(crate) fn peek(&self) -> SlotState {
        SlotState(self.0.load(Relaxed))
    }

    /// Publishes what was written to the slot.
    pub(crate) fn publish(&self, state: SlotState) {
        self.0.store(state.0, Release);
    }

    /// Makes the STag invalid. Gives the state before.
    pub(crate) fn invalidate(&self) -> SlotState {
        SlotState(self.0.fetch_and(!Flags::VALID.0, AcqRel))
    }

    /// Makes the STag invalid, unless that was done or the slot has another owner than in `seen`. False then.
    pub(crate) fn invalidate_as(&self, seen: SlotState) -> bool {
        let revoke = |now: u64| {
            let now = SlotState(now);
            (now.identity() == seen.identity() && now.has(Flags::VALID)).then_some(now.without(Flags::VALID).0)
        };
        self.0.fetch_update(AcqRel, Acquire, revoke).is_ok()
    }

    /// Makes the STag valid again if it was in `before`.
    pub(crate) fn restore(&self, before: SlotState) {
        self.0.fetch_or(before.of(Flags::VALID).0, AcqRel);
    }

    /// Begins the next generation, in one step. Gives the state before.
    pub(crate) fn free(&self) -> SlotState {
        let before = self.0.fetch_update(AcqRel, Acquire, |state| Some(SlotState(state).freed().0));
        SlotState(before.unwrap_or_default())
    }

    /// Replaces `seen`. False if the state is another by now.
    pub(crate) fn exchange(&self, seen: SlotState, next: SlotState) -> bool {
        self.0.compare_exchange(seen.0, next.0, AcqRel, Relaxed).is_ok()
    }
}
