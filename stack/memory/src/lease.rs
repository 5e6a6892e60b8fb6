//! Registered memory as an ordinary slice, while nobody else may write it.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::{Deref, DerefMut};

use thiserror::Error;

use crate::access::Access;
use crate::registration::Registration;
use crate::slot::SlotState;

/// Why a region's memory cannot be borrowed. The region is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LendError {
    /// Others than the owner may write to it.
    #[error(
        "others may write to a region with the rights {access:?}: lend it, or register it with LOCAL_READ and \
         REMOTE_READ alone"
    )]
    Writable {
        /// The region's rights.
        access: Access,
    },
    /// The committer of a durable region reads it at any time.
    #[error("the store of a durable region reads its memory at any time: deregister it, or copy")]
    Durable,
}

/// The rights by which others than the owner write to a region.
const WRITES: Access =
    Access::from_bits_truncate(Access::LOCAL_WRITE.bits() | Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits());

/// The memory of a region that is lent to one thread. Its STag is invalid meanwhile, and valid again after the drop,
/// unless it was invalid before.
///
/// Whatever engines or peers do with the region meanwhile fails. Lend it while no work that was posted uses it, and
/// while peers have nothing to do with it.
///
/// A lease that is leaked (`mem::forget`) leaves the STag invalid.
pub struct Lease<'a> {
    registration: &'a mut Registration,
    /// The slot's state before.
    before: SlotState,
}

impl Registration {
    /// The region's octets, if its rights let nobody but the owner write to them. It costs nothing, and engines and
    /// peers go on reading.
    ///
    /// # Errors
    /// [`LendError::Writable`].
    pub fn as_slice(&mut self) -> Result<&[u8], LendError> {
        let access = self.access();
        if access.bits() & WRITES.bits() != 0 {
            return Err(LendError::Writable { access });
        }
        let (start, length) = self.memory();
        // SAFETY: the memory is initialised and stays as long as `self`. Nobody writes to it while the slice lives:
        // the owner's methods and a change of the rights need `self`, which is borrowed exclusively. Engines place only
        // where they find one of the rights in `WRITES`, and a window that gives such a right binds only to a region
        // with `LOCAL_WRITE`. A committer only reads. The caller of `RegionBuffer::raw` has promised the same of
        // others.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), length) })
    }

    /// Lends the memory to the calling thread: revokes the STag, waits until no engine uses it any more, and gives an
    /// ordinary slice. The cost is that of [`invalidate`](Self::invalidate), about a microsecond.
    ///
    /// # Errors
    /// [`LendError::Durable`].
    pub fn lend(&mut self) -> Result<Lease<'_>, LendError> {
        if self.is_durable() {
            return Err(LendError::Durable);
        }
        let before = self.revoke();
        Ok(Lease { registration: self, before })
    }
}

impl Deref for Lease<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, length) = self.registration.memory();
        // SAFETY: the memory is initialised and stays as long as the registration. Nobody else accesses it while the
        // lease lives: the STag is invalid and all turns that saw it valid are over, and each access of an engine,
        // through a window too, looks at the state before it touches memory. The owner's methods need the registration,
        // which is borrowed exclusively, and only `drop` makes the STag valid. There is no committer.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, length) = self.registration.memory();
        // SAFETY: as in `deref`, and the lease is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.registration.restore(self.before);
    }
}

impl fmt::Debug for Lease<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("registration", &self.registration).finish_non_exhaustive()
    }
}
