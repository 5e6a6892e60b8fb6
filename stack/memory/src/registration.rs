//! A registered region, for its owner.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;

use crate::access::{Access, Scope};
use crate::atomics::{self, CompareSwap};
use crate::buffer::RegionBuffer;
use crate::durable::{Committer, Durable, Store, durable};
use crate::options::{ChangeError, RegionChange, RegisterError, TaggedBase, Unregistered};
use crate::shared_bytes;
use crate::slot::{Flags, SlotState};
use crate::table::RegionTable;

/// An access of the owner that the region cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// It goes beyond the end.
    #[error("beyond the end of the region")]
    Bounds,
    /// The address is not a multiple of the value's size.
    #[error("not aligned to the size of the value")]
    Misaligned,
}

/// How a region is made durable, and whether messages wait for that.
enum Keeping {
    Plain,
    Persistent(bool),
    Store(Box<Durable>, bool),
    /// A mapped file, which is read only.
    Mapped,
}

impl RegionTable {
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

    /// Registers pages of a file, which the rights `access` let nobody write.
    pub(crate) fn register_mapped(
        self: &Arc<Self>,
        buffer: RegionBuffer,
        access: Access,
        scope: Scope,
        base: TaggedBase,
    ) -> Result<Registration, RegisterError> {
        Ok(self.register_as(buffer, access, scope, base, Keeping::Mapped)?)
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
        let entry = self.entry(index);
        let one_stream = entry.give_to(scope);
        entry.base.store(base, Relaxed);
        entry.length.store(buffer.len() as u64, Relaxed);
        entry.start.store(buffer.start().as_ptr(), Relaxed);
        let (durable, mut flags, transparent) = match keeping {
            Keeping::Plain => (None, Flags::VALID, false),
            Keeping::Mapped => (None, Flags::VALID | Flags::WINDOW | Flags::MAPPED, false),
            Keeping::Persistent(transparent) => (None, Flags::VALID | Flags::PERSISTENT, transparent),
            Keeping::Store(durable, transparent) => (Some(durable), Flags::VALID | Flags::DURABLE, transparent),
        };
        if transparent {
            self.transparent.fetch_add(1, Relaxed);
            flags = flags | Flags::TRANSPARENT;
        }
        let way = durable.as_deref().map_or(std::ptr::null(), std::ptr::from_ref);
        entry.durable.store(way.cast_mut(), Relaxed);
        entry.state.publish(entry.state.peek().replaced_by(stag, flags | one_stream, access));
        Ok(Registration::new(self.clone(), index, stag, base, buffer, durable))
    }
}

/// A registered buffer. Peers and engines may change its octets at any time, so it is read and written by copying.
/// Dropping it deregisters and frees the buffer.
///
/// Deregistering a durable or persistent region within a [`Turn`](crate::Turn) of the same thread panics, and the
/// memory is leaked.
///
/// Offsets here count from the first octet of the region, whatever its tagged offset is.
pub struct Registration {
    table: Arc<RegionTable>,
    index: u32,
    stag: u32,
    base: u64,
    /// `None` once deregistered.
    buffer: Option<RegionBuffer>,
    /// The way to the committer of a durable region. Dropped after deregistration, which ends the committer's work.
    durable: Option<Box<Durable>>,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a registration is a buffer (`Send`) and a handle of a table that any thread may use.
unsafe impl Send for Registration {}
// SAFETY: all accesses through a shared reference are those of `shared_bytes`, which may race with each other and with
// those of engines.
unsafe impl Sync for Registration {}

impl Registration {
    pub(crate) fn new(
        table: Arc<RegionTable>,
        index: u32,
        stag: u32,
        base: u64,
        buffer: RegionBuffer,
        durable: Option<Box<Durable>>,
    ) -> Registration {
        let (start, length) = (buffer.start(), buffer.len());
        Registration { table, index, stag, base, start, length, buffer: Some(buffer), durable }
    }

    /// The STag.
    #[inline]
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// The tagged offset of the first octet.
    #[inline]
    pub fn base_offset(&self) -> u64 {
        self.base
    }

    /// The rights.
    pub fn access(&self) -> Access {
        self.table.access(self.index)
    }

    /// Octets in the region.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the region has no octets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of the first octet, to compare or to print. While the octets are registered, they must not be
    /// accessed through it, except in ways that tolerate changes by others.
    #[inline]
    pub fn address(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Whether the STag is valid: neither a peer nor [`invalidate`](Self::invalidate) has invalidated it.
    pub fn is_valid(&self) -> bool {
        self.table.is_valid(self.index)
    }

    /// The table that the region is in.
    pub fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }

    /// Invalidates the STag and waits until no engine uses it. After that, only calls of the owner change the octets.
    /// If a peer has invalidated the STag already, this only waits.
    pub fn invalidate(&self) {
        self.revoke();
    }

    /// Whether commits of the region make it durable.
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// Leaves a durable region's committer to the engines while the region is registered. The engine that is asked for
    /// a commit executes it between its turns, and its other work waits for the store meanwhile.
    ///
    /// # Errors
    /// Returns the committer if the region is not durable or has one already.
    pub fn commit_in_engines(&self, committer: Committer) -> Result<(), Committer> {
        match &self.durable {
            Some(durable) => durable.own(committer),
            None => Err(committer),
        }
    }

    /// Changes the registration in place: rights, streams, memory, or several of them. Waits until no engine uses it as
    /// it was, and gives the former buffer if it was to be another.
    ///
    /// With other memory or other streams the region gets an STag with a new key, so that nothing that was sent for the
    /// former one reaches it. With other rights only, the STag stays; unless it was invalid, which it is not any more
    /// afterwards. Accesses of peers meanwhile fail: change it while they have nothing to do with it.
    ///
    /// # Errors
    /// [`ChangeError`]; the registration is as it was, and the change comes back with its buffer.
    pub fn change(&mut self, change: RegionChange) -> Result<Option<RegionBuffer>, (RegionChange, ChangeError)> {
        match self.table.change(self.index, self.length as u64, &change) {
            Ok((stag, base)) => (self.stag, self.base) = (stag, base),
            Err(error) => return Err((change, error)),
        }
        let Some((buffer, _)) = change.memory else { return Ok(None) };
        (self.start, self.length) = (buffer.start(), buffer.len());
        Ok(self.buffer.replace(buffer))
    }

    /// Makes the STag invalid, waits until no engine uses it any more, and gives the buffer back; a copy of it if a
    /// committer is still at work on it.
    pub fn deregister(mut self) -> RegionBuffer {
        match self.take() {
            Some(buffer) => buffer,
            // Only `take` empties it, and its callers consume the registration.
            None => unreachable!("deregistered twice"),
        }
    }

    fn take(&mut self) -> Option<RegionBuffer> {
        let buffer = self.buffer.take()?;
        let durable = self.durable.take();
        if let Err(refused) = self.table.deregister(self.index, self.length as u64) {
            std::mem::forget((buffer, durable));
            refused.refuse();
            return None;
        }
        // No engine looks at it any more.
        drop(durable);
        Some(buffer.unshared())
    }

    /// The first octet, and how many there are.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.start, self.length)
    }

    /// Invalidates the STag and waits until no engine uses it. Gives the slot's state before.
    pub(crate) fn revoke(&self) -> SlotState {
        self.table.revoke(self.index)
    }

    /// Makes the STag valid again if it was in `before`.
    pub(crate) fn restore(&self, before: SlotState) {
        self.table.entry(self.index).state.restore(before);
    }

    /// The address of the `length` octets from `offset` on.
    #[inline]
    pub(crate) fn locate(&self, offset: usize, length: usize) -> Result<NonNull<u8>, RangeError> {
        if offset > self.length || self.length - offset < length {
            return Err(RangeError::Bounds);
        }
        // SAFETY: at most the region's length, so within it or just behind.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Copies octets out, as many as `out` holds. They are no snapshot if others write meanwhile. Whatever was
    /// published by octets that a `load_acquire` saw is visible.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RangeError> {
        let source = self.locate(offset, out.len())?;
        // SAFETY: within the region, which is there as long as `self`.
        unsafe { shared_bytes::load(source, out) };
        Ok(())
    }

    /// Copies `octets` in, the last ones last and with release ordering.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    #[inline]
    pub fn write(&self, offset: usize, octets: &[u8]) -> Result<(), RangeError> {
        let target = self.locate(offset, octets.len())?;
        // SAFETY: within the region, which is there as long as `self`.
        unsafe { shared_bytes::store(target, octets) };
        Ok(())
    }

    /// Writes back the processor's caches of `length` octets and waits for that. In a region of persistent memory, this
    /// makes the owner's stores durable, as a Commit does for a peer's.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn write_back(&self, offset: usize, length: usize) -> Result<(), RangeError> {
        let start = self.locate(offset, length)?;
        // SAFETY: within the region, which is there as long as `self`.
        unsafe { crate::persist::write_back(start, length) };
        Ok(())
    }

    /// Sets `length` octets to `value`.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn fill(&self, offset: usize, length: usize, value: u8) -> Result<(), RangeError> {
        let target = self.locate(offset, length)?;
        // SAFETY: within the region, which is there as long as `self`.
        unsafe { shared_bytes::fill(target, length, value) };
        Ok(())
    }
}

impl Registration {
    /// Adds to an aligned word of eight octets in the machine's byte order, and returns the former value. Atomic with
    /// other threads, and with peers' atomic operations on the word.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn fetch_add_u64(&self, offset: usize, data: u64) -> Result<u64, RangeError> {
        let target = self.aligned_word(offset)?;
        // SAFETY: within the region and aligned; other accesses are as tolerant of races as this one.
        Ok(unsafe { atomics::fetch_add(target, data, 0) })
    }

    /// Compares and swaps an aligned word of eight octets in the machine's byte order, and returns the former value.
    /// Atomic with other threads, and with peers' atomic operations on the word.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn compare_swap_u64(&self, offset: usize, operands: &CompareSwap) -> Result<u64, RangeError> {
        let target = self.aligned_word(offset)?;
        // SAFETY: within the region and aligned; other accesses are as tolerant of races as this one.
        Ok(unsafe { atomics::compare_swap(target, operands) })
    }

    fn aligned_word(&self, offset: usize) -> Result<NonNull<u8>, RangeError> {
        let target = self.locate(offset, 8)?;
        if target.cast::<u64>().is_aligned() { Ok(target) } else { Err(RangeError::Misaligned) }
    }
}

macro_rules! atomic_accesses {
    ($($integer:ty, $atomic:ty, $load:ident, $store:ident;)*) => {
        impl Registration {
            $(
                #[doc = concat!("Loads a `", stringify!($integer), "` in the machine's byte order, with acquire ordering: \
                    if it was stored last, all that was stored before it is seen from here on.")]
                ///
                /// # Errors
                /// [`RangeError`].
                #[inline]
                pub fn $load(&self, offset: usize) -> Result<$integer, RangeError> {
                    let source = self.locate(offset, size_of::<$integer>())?.cast::<$integer>();
                    if !source.is_aligned() {
                        return Err(RangeError::Misaligned);
                    }
                    // SAFETY: within the region and aligned; other accesses are as tolerant of races as this one.
                    let atomic = unsafe { <$atomic>::from_ptr(source.as_ptr()) };
                    Ok(atomic.load(std::sync::atomic::Ordering::Acquire))
                }

                #[doc = concat!("Stores a `", stringify!($integer), "` in the machine's byte order, with release ordering.")]
                ///
                /// # Errors
                /// [`RangeError`].
                #[inline]
                pub fn $store(&self, offset: usize, value: $integer) -> Result<(), RangeError> {
                    let target = self.locate(offset, size_of::<$integer>())?.cast::<$integer>();
                    if !target.is_aligned() {
                        return Err(RangeError::Misaligned);
                    }
                    // SAFETY: within the region and aligned; other accesses are as tolerant of races as this one.
                    let atomic = unsafe { <$atomic>::from_ptr(target.as_ptr()) };
                    atomic.store(value, std::sync::atomic::Ordering::Release);
                    Ok(())
                }
            )*
        }
    };
}

atomic_accesses! {
    u8, std::sync::atomic::AtomicU8, load_acquire_u8, store_release_u8;
    u16, std::sync::atomic::AtomicU16, load_acquire_u16, store_release_u16;
    u32, std::sync::atomic::AtomicU32, load_acquire_u32, store_release_u32;
    u64, std::sync::atomic::AtomicU64, load_acquire_u64, store_release_u64;
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Registration")
            .field("stag", &format_args!("{:#010x}", self.stag))
            .field("base_offset", &self.base)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
