//! What an engine does with registered memory during a turn.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::marker::PhantomData;

use std::ptr::NonNull;

use crate::access::{Access, AccessError, Association, InvalidateError};
use crate::atomics::{self, AtomicError, CompareSwap};
use crate::epoch::EngineState;
use crate::shared_bytes;
use crate::table::RegionTable;

/// A turn of an engine, from [`EngineEpoch::enter`](crate::EngineEpoch::enter) until it is dropped.
///
/// STags and offsets may come straight from the wire: each function checks them before it touches memory, and each
/// segment anew, so that a revoked STag stops a message in its middle. Nothing that is resolved survives the call.
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

    /// Whether `association` has the rights `need` to the `length` octets from `offset` on. An access of no octets needs
    /// neither offset nor bounds.
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
        self.table.resolve(association, stag, offset, length, need).map(|_| ())
    }

    /// Copies `payload` into a region. Its last octets are stored last, with release ordering: who polls the last octet
    /// with acquire ordering and finds it changed sees all the others, and those of earlier placements.
    ///
    /// # Errors
    /// As [`check`](Self::check); then nothing has been stored.
    #[inline]
    pub fn place(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        payload: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let target = self.table.resolve(association, stag, offset, payload.len(), need)?;
        // SAFETY: the target is valid for that many octets during this turn.
        unsafe { shared_bytes::store(target, payload) };
        Ok(())
    }

    /// Copies octets of a region to `out`, as many as it holds.
    ///
    /// # Errors
    /// As [`check`](Self::check); then `out` is unchanged.
    #[inline]
    pub fn gather(
        &self,
        association: Association,
        stag: u32,
        offset: u64,
        out: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let source = self.table.resolve(association, stag, offset, out.len(), need)?;
        // SAFETY: the source is valid for that many octets during this turn.
        unsafe { shared_bytes::load(source, out) };
        Ok(())
    }

    /// Copies octets of a region to `out`, as many as it holds, and continues the CRC32C register `register` over them
    /// in the same pass (see [`kernels::crc32c_update`](crate::kernels::crc32c_update)). The result is the CRC of what
    /// is in `out`, even if a peer changes the region meanwhile.
    ///
    /// # Errors
    /// As [`check`](Self::check); then `out` is unchanged.
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
        let source = self.table.resolve(association, stag, offset, out.len(), need)?;
        // SAFETY: the source is valid for that many octets during this turn.
        Ok(unsafe { shared_bytes::load_crc32c(source, out, register) })
    }

    /// Whether a peer may carry out atomic operations on the word of eight octets at `offset`: the region has all of
    /// `REMOTE_READ`, `REMOTE_WRITE` and `REMOTE_ATOMIC`, and the word's address is a multiple of eight.
    ///
    /// # Errors
    /// The first reason that applies: STag, association, bounds, rights, alignment.
    pub fn check_atomic(&self, association: Association, stag: u32, offset: u64) -> Result<(), AtomicError> {
        self.atomic_target(association, stag, offset).map(|_| ())
    }

    fn atomic_target(&self, association: Association, stag: u32, offset: u64) -> Result<NonNull<u8>, AtomicError> {
        const NEED: Access = Access::from_bits_truncate(
            Access::REMOTE_READ.bits() | Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits(),
        );
        // Bounds are found before rights here, unlike elsewhere.
        self.table.resolve(association, stag, offset, 8, Access::LOCAL_READ)?;
        let target = self.table.resolve(association, stag, offset, 8, NEED)?;
        if !target.cast::<u64>().is_aligned() {
            return Err(AtomicError::Misaligned);
        }
        Ok(target)
    }

    /// Adds `data` to the word at `offset`, in the fields that `mask` marks, and gives the former value (RFC 7306 section
    /// 5.1.1), in the machine's byte order.
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

    /// Compares and swaps the word at `offset` and gives the former value (RFC 7306 section 5.1.2), in the machine's byte
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

    /// Invalidates an STag because a peer asked for it by a Send with Invalidate (RFC 5040 §5.3). The memory stays with
    /// its owner; the slot is taken until the registration is dropped.
    ///
    /// An STag of one stream can be invalidated by the peer of this stream. One of a protection domain is shared by the
    /// streams of the domain and can be invalidated only if the domain has a single one (RFC 5040 §8.1.1):
    /// `domain_is_shared` says whether it has more.
    ///
    /// From the next access on it is invalid. Turns of other engines that are under way may have looked before; if they
    /// may use this STag, [`RegionTable::grace_period`] tells when they have ended.
    ///
    /// # Errors
    /// Why it was not invalidated; it is as before then.
    pub fn invalidate(
        &self,
        association: Association,
        stag: u32,
        domain_is_shared: bool,
    ) -> Result<(), InvalidateError> {
        self.table.invalidate(association, stag, domain_is_shared)
    }
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
