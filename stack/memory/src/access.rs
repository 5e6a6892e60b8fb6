//! Access rights of regions.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use thiserror::Error;

/// Rights to a region. Reading it locally, as the source of a Send or a Write, is always allowed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// No right beyond local reading; as a need: that of an access that only reads for the local side.
    pub const LOCAL_READ: Access = Access(0);
    /// The local side may have data placed in it: receive buffers, and sinks of RDMA Reads.
    pub const LOCAL_WRITE: Access = Access(1 << 0);
    /// Peers may read it by RDMA Read.
    pub const REMOTE_READ: Access = Access(1 << 1);
    /// Peers may write it by RDMA Write.
    pub const REMOTE_WRITE: Access = Access(1 << 2);
    /// Peers may read and change its aligned words of eight octets by atomic operations. It needs no other right.
    pub const REMOTE_ATOMIC: Access = Access(1 << 3);
    /// All rights.
    pub const ALL: Access = Access(0b1111);

    const NAMES: [(Access, &'static str); 4] = [
        (Access::LOCAL_WRITE, "LOCAL_WRITE"),
        (Access::REMOTE_READ, "REMOTE_READ"),
        (Access::REMOTE_WRITE, "REMOTE_WRITE"),
        (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
    ];

    /// Whether it contains all of `other`.
    #[inline]
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights as bits: `LOCAL_WRITE` is bit 0, `REMOTE_READ` 1, `REMOTE_WRITE` 2, `REMOTE_ATOMIC` 3.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The rights from their [`bits`](Self::bits); unknown bits are dropped.
    #[inline]
    pub const fn from_bits_truncate(bits: u8) -> Access {
        Access(bits & Access::ALL.0)
    }
}

impl BitOr for Access {
    type Output = Access;

    #[inline]
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    #[inline]
    fn bitor_assign(&mut self, other: Access) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LOCAL_READ")?;
        for (access, name) in Access::NAMES {
            if self.contains(access) {
                write!(formatter, " | {name}")?;
            }
        }
        Ok(())
    }
}

/// A protection domain of a context (RFC 5040 §8.1.1, RFC 5042 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(pub u32);

/// An RDMA stream of a context: the number of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u32);

/// Which streams an STag is associated with (RFC 5040 §8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All streams of a protection domain.
    Domain(DomainId),
    /// One stream.
    Stream {
        /// The stream's domain.
        domain: DomainId,
        /// The stream.
        stream: StreamId,
    },
}

/// The accessor of memory: a stream and its protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Association {
    /// The stream's domain.
    pub domain: DomainId,
    /// The stream.
    pub stream: StreamId,
}

impl Association {
    /// Whoever has no right at all: every access is refused with [`AccessError::Rights`]. Neither a domain nor a stream
    /// has this number.
    pub const NOBODY: Association = Association { domain: DomainId(u32::MAX), stream: StreamId(u32::MAX) };

    /// Why an STag of others is refused.
    pub(crate) fn refusal(self) -> AccessError {
        if self == Association::NOBODY { AccessError::Rights } else { AccessError::NotAssociated }
    }
}

/// Why an access to registered memory was refused, in the order of the checks. The names are those of the error codes
/// of DDP (RFC 5041 §7.1) and RDMAP (RFC 5040 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum AccessError {
    /// No region has this STag, or no longer.
    #[error("invalid STag")]
    InvalidStag,
    /// The STag belongs to another protection domain or stream.
    #[error("STag not associated with the stream")]
    NotAssociated,
    /// The region was not registered for this kind of access.
    #[error("access rights violation")]
    Rights,
    /// Offset and length go beyond 2^64.
    #[error("tagged offset wrap")]
    Wrap,
    /// Offset and length are not within the region.
    #[error("base or bounds violation")]
    Bounds,
}

/// Why an STag was not invalidated for a peer (RFC 5040 §5.3, §8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum InvalidateError {
    /// No region has this STag, or no longer.
    #[error("invalid STag")]
    InvalidStag,
    /// The STag belongs to another protection domain or stream.
    #[error("STag not associated with the stream")]
    NotAssociated,
    /// Several streams share the STag, so no peer may invalidate it (RFC 5040 §8.1.1).
    #[error("STag is shared by several streams")]
    Shared,
    /// Windows are bound to the region.
    #[error("windows are bound to the region")]
    Bound,
}

/// Why a window was not bound. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum BindError {
    /// No window waits for a bind with this STag: it is bound already (invalidate it first), was freed, or waits for a
    /// later bind.
    #[error("the window is bound already, or gone")]
    NotFree,
    /// The window belongs to another protection domain.
    #[error("the window is of another protection domain")]
    NotAssociated,
    /// More pieces than it was allocated for.
    #[error("more pieces than the window was allocated for")]
    TooManyPieces,
    /// A piece is not in a region that the stream may use, or is in a window.
    #[error("a piece of the window: {0}")]
    Piece(AccessError),
    /// The last octet's tagged offset would be beyond 2^64.
    #[error("tagged offset wrap")]
    Wrap,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_add_up_and_show_their_names() {
        let mut access = Access::from_bits_truncate(0xf0);
        assert_eq!((access.bits(), format!("{access:?}")), (0, "LOCAL_READ".into()));
        access |= Access::REMOTE_READ;
        access |= Access::REMOTE_WRITE;
        assert_eq!(access, Access::REMOTE_READ | Access::REMOTE_WRITE);
        assert_eq!(format!("{access:?}"), "LOCAL_READ | REMOTE_READ | REMOTE_WRITE");
        assert!(access.contains(Access::REMOTE_READ) && !access.contains(Access::REMOTE_READ | Access::REMOTE_ATOMIC));
    }
}
