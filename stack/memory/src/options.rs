//! How a region is registered, and why it is not.

use thiserror::Error;

use crate::access::{Access, Scope};
use crate::buffer::RegionBuffer;

/// What the tagged offset of a region's first octet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaggedBase {
    /// Its address in this process.
    #[default]
    Virtual,
    /// Zero.
    Zero,
    /// One of the owner's choice.
    At(u64),
}

impl TaggedBase {
    /// The tagged offset of the first octet of `buffer`.
    pub(crate) fn of(self, buffer: &RegionBuffer) -> Result<u64, RegisterError> {
        let base = match self {
            TaggedBase::Virtual => buffer.start().addr().get() as u64,
            TaggedBase::Zero => 0,
            TaggedBase::At(base) => base,
        };
        let length = buffer.len() as u64;
        match base.checked_add(length.saturating_sub(1)) {
            Some(_) => Ok(base),
            None => Err(RegisterError::Wrap { base, length }),
        }
    }
}

/// Why a buffer was not registered. The buffer comes back with it.
#[derive(Debug)]
pub struct Unregistered {
    /// The buffer.
    pub buffer: RegionBuffer,
    /// The reason.
    pub error: RegisterError,
}

/// Why a buffer cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// Every slot of the table is taken.
    #[error("all {slots} memory regions are in use: deregister some or raise the limit of regions")]
    TableFull {
        /// The table's size.
        slots: u32,
    },
    /// The quota of registered octets would be exceeded.
    #[error(
        "{asked} octets more than the {registered} registered would exceed the quota of {quota}: \
         deregister some or raise the limit of registered octets"
    )]
    Quota {
        /// The buffer's length.
        asked: u64,
        /// Octets registered now.
        registered: u64,
        /// The limit.
        quota: u64,
    },
    /// The last octet's tagged offset would be beyond 2^64.
    #[error("{length} octets from tagged offset {base:#x} on go beyond 2^64: choose a lower base")]
    Wrap {
        /// The first octet's tagged offset.
        base: u64,
        /// The buffer's length.
        length: u64,
    },
}

/// Why a registration was not changed. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Windows are bound to the region.
    #[error("windows are bound to the region: invalidate them first")]
    Bound,
    /// The region can be made durable: its store or its persistent memory was registered with it.
    #[error("a durable or persistent region cannot be changed: deregister it")]
    Durable,
    /// It could not be registered like that.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// What [`Registration::change`](crate::Registration::change) changes. What is left out stays.
#[derive(Debug, Default)]
pub struct RegionChange {
    /// The rights.
    pub access: Option<Access>,
    /// The streams.
    pub scope: Option<Scope>,
    /// The memory, and the tagged offset of its first octet.
    pub memory: Option<(RegionBuffer, TaggedBase)>,
}

impl From<Unregistered> for RegisterError {
    fn from(unregistered: Unregistered) -> RegisterError {
        unregistered.error
    }
}
