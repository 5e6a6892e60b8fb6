//! Mapped files as regions for reading. A file that becomes shorter meanwhile fails the accesses, not the process.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use thiserror::Error;

use crate::access::{Access, Scope};
use crate::buffer::RegionBuffer;
use crate::mapping::{MAPPINGS, MappedFile, MappingError, is_caught, is_whole};
use crate::options::{RegisterError, TaggedBase};
use crate::registration::{RangeError, Registration};
use crate::shared_bytes;
use crate::table::RegionTable;

/// Why a file was not registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The process does not take SIGBUS.
    #[error("files are registered only after catch_truncated_files, since a truncated file would end the process")]
    NotCaught,
    /// The rights include more than reading.
    #[error("a file is registered for reading only, and not with the rights {0:?}")]
    Access(Access),
    /// The file is shorter.
    #[error("the file has {length} octets, and not {end}")]
    EndOfFile {
        /// The end of the range.
        end: u64,
        /// The file's length.
        length: u64,
    },
    /// Too many files.
    #[error("{MAPPINGS} files are registered: deregister some")]
    Full,
    /// The region could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<MappingError> for MapError {
    fn from(error: MappingError) -> MapError {
        match error {
            MappingError::EndOfFile { end, length } => MapError::EndOfFile { end, length },
            MappingError::Full => MapError::Full,
            MappingError::System(error) => MapError::System(error),
        }
    }
}

/// Octets of a file could not be read: it was truncated while it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MappedReadError {
    /// It goes beyond the end of the region.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The file was truncated, or its disk failed.
    #[error("the file was truncated or became unreadable while it was registered: register it again")]
    Lost,
}

impl RegionTable {
    /// Registers `length` octets of a file from `offset` on for reading, without a copy: engines read the system's
    /// cache of the file. The rights are `LOCAL_READ` and `REMOTE_READ` at most.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn register_file(
        self: &Arc<Self>,
        file: &impl AsFd,
        offset: u64,
        length: usize,
        access: Access,
        scope: Scope,
        base: TaggedBase,
    ) -> Result<MappedRegistration, MapError> {
        if !is_caught() {
            return Err(MapError::NotCaught);
        }
        if !Access::REMOTE_READ.contains(access) {
            return Err(MapError::Access(access));
        }
        let buffer = RegionBuffer::mapped(MappedFile::new(file, offset, length)?);
        Ok(MappedRegistration(self.register_mapped(buffer, access, scope, base)?))
    }
}

/// A part of a file that is registered for reading. Dropping it deregisters it.
///
/// Others may change the file meanwhile, as a peer may change a region: each octet that is read is an old or a new one.
/// If the file is truncated, or its disk fails, every access that needs the pages fails, and every one after that.
pub struct MappedRegistration(Registration);

impl MappedRegistration {
    /// The STag.
    pub fn stag(&self) -> u32 {
        self.0.stag()
    }

    /// The tagged offset of the first octet.
    pub fn base_offset(&self) -> u64 {
        self.0.base_offset()
    }

    /// The rights.
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// Octets in the region.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the region has no octets.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the STag is valid: no peer has invalidated it.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// Whether an access has found the file truncated or unreadable: no octets can be read any more.
    pub fn is_lost(&self) -> bool {
        !is_whole(self.0.address().addr())
    }

    /// Copies octets out, as many as `out` holds.
    ///
    /// # Errors
    /// The range is not inside the region, or the file was truncated. The contents of `out` mean nothing then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), MappedReadError> {
        let source = self.0.locate(offset, out.len())?;
        // SAFETY: within the region, which is there as long as `self`.
        unsafe { shared_bytes::load(source, out) };
        if self.is_lost() { Err(MappedReadError::Lost) } else { Ok(()) }
    }
}

impl fmt::Debug for MappedRegistration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
