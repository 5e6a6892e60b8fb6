//! Memory of the other side, as one side describes it to the other.

use uwarp_memory::Access;

/// Octets of a peer's memory: what an RDMA operation needs to know of them, and what the peer lets it do.
///
/// Its owner makes it ([`MemoryRegion::remote`](crate::MemoryRegion::remote)) and sends it by whatever way both sides
/// agree on: private data, a Send, a file. On the wire it has [`LEN`](Self::LEN) octets:
///
/// | octets | meaning |
/// |---|---|
/// | 0 | version of this form: 1 |
/// | 1 | rights: 2 to read, 4 to write, 8 for atomics, or sums of them |
/// | 2, 3 | 0 |
/// | 4 to 7 | STag |
/// | 8 to 15 | tagged offset of the first octet |
/// | 16 to 23 | number of octets |
///
/// Numbers are big-endian. The rights are a statement: what the peer's engine allows is decided there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The STag.
    pub stag: u32,
    /// Tagged offset of the first octet.
    pub offset: u64,
    /// Octets.
    pub length: u64,
    /// What peers may do: of [`Access`], the remote rights.
    pub access: Access,
}

/// Octets that describe no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteMemoryError {
    /// There are too few.
    #[error("a description of remote memory has {len} octets, and here are {0}", len = RemoteMemory::LEN)]
    TooShort(usize),
    /// It is of another version.
    #[error(
        "the description of remote memory has version {0}, and this side knows 1: use the same release on both sides"
    )]
    Version(u8),
    /// Unknown rights, or octets that must be 0 and are not.
    #[error("the description of remote memory has unknown rights, or octets that are not 0 as they must be")]
    Unknown,
    /// The last octet's tagged offset would be beyond 2^64.
    #[error("the remote memory goes beyond tagged offset 2^64")]
    Wrap,
}

const VERSION: u8 = 1;
const REMOTE: u8 = Access::REMOTE_READ.bits() | Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();

impl RemoteMemory {
    /// Octets on the wire.
    pub const LEN: usize = 24;

    /// The octets for the wire.
    pub fn to_octets(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[0] = VERSION;
        octets[1] = self.access.bits() & REMOTE;
        octets[4..8].copy_from_slice(&self.stag.to_be_bytes());
        octets[8..16].copy_from_slice(&self.offset.to_be_bytes());
        octets[16..].copy_from_slice(&self.length.to_be_bytes());
        octets
    }

    /// Reads the first [`LEN`](Self::LEN) octets; what lies behind them is the caller's.
    ///
    /// # Errors
    /// [`RemoteMemoryError`]: the peer is something else, or another release.
    pub fn from_octets(octets: &[u8]) -> Result<Self, RemoteMemoryError> {
        let whole: &[u8; Self::LEN] = octets.first_chunk().ok_or(RemoteMemoryError::TooShort(octets.len()))?;
        let ([head, offset, length], _) = whole.as_chunks::<8>() else {
            return Err(RemoteMemoryError::TooShort(octets.len()));
        };
        let [version, rights, zero @ .., a, b, c, d] = *head;
        if version != VERSION {
            return Err(RemoteMemoryError::Version(version));
        }
        if rights & !REMOTE != 0 || zero != [0, 0] {
            return Err(RemoteMemoryError::Unknown);
        }
        let (offset, length) = (u64::from_be_bytes(*offset), u64::from_be_bytes(*length));
        if length > 0 && offset.checked_add(length - 1).is_none() {
            return Err(RemoteMemoryError::Wrap);
        }
        Ok(Self { stag: u32::from_be_bytes([a, b, c, d]), offset, length, access: Access::from_bits_truncate(rights) })
    }

    /// The `length` octets that begin `from` octets behind the first; `None` if they are not all within.
    pub fn part(&self, from: u64, length: u64) -> Option<Self> {
        let end = from.checked_add(length)?;
        (end <= self.length).then(|| Self { offset: self.offset.wrapping_add(from), length, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: RemoteMemory =
        RemoteMemory { stag: 0x0102_0304, offset: 0x1112_1314_1516_1718, length: 0x20, access: Access::REMOTE_READ };

    #[test]
    fn the_wire_form_is_as_written_down() {
        let octets = MEMORY.to_octets();
        let expected =
            [1, 2, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0, 0, 0, 0, 0, 0, 0, 0x20];
        assert_eq!(octets, expected);
        assert_eq!(RemoteMemory::from_octets(&octets), Ok(MEMORY));
        // More octets are the caller's. Local rights are nobody else's business.
        let all = RemoteMemory { access: Access::ALL, ..MEMORY };
        let longer = [&all.to_octets()[..], b"more"].concat();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        assert_eq!(RemoteMemory::from_octets(&longer), Ok(RemoteMemory { access: remote, ..MEMORY }));
    }

    #[test]
    fn octets_of_something_else_are_refused() {
        let octets = MEMORY.to_octets();
        for length in 0..RemoteMemory::LEN {
            assert_eq!(RemoteMemory::from_octets(&octets[..length]), Err(RemoteMemoryError::TooShort(length)));
        }
        let with = |at: usize, value: u8| {
            let mut octets = octets;
            octets[at] = value;
            RemoteMemory::from_octets(&octets)
        };
        for version in [0, 2, 255] {
            assert_eq!(with(0, version), Err(RemoteMemoryError::Version(version)));
        }
        for (at, value) in [(1, 1), (1, 0x12), (2, 1), (3, 0x80)] {
            assert_eq!(with(at, value), Err(RemoteMemoryError::Unknown), "{at}");
        }
        for (offset, length, fits) in
            [(u64::MAX, 1, true), (u64::MAX, 2, false), (u64::MAX, 0, true), (1, u64::MAX, true)]
        {
            let octets = RemoteMemory { offset, length, ..MEMORY }.to_octets();
            assert_eq!(RemoteMemory::from_octets(&octets).is_ok(), fits, "{offset:x} {length:x}");
        }
    }

    #[test]
    fn parts_lie_within() {
        let part = MEMORY.part(0x10, 0x10).unwrap();
        assert_eq!((part.offset, part.length, part.stag), (MEMORY.offset + 0x10, 0x10, MEMORY.stag));
        assert_eq!(MEMORY.part(0x20, 0).unwrap().length, 0);
        for (from, length) in [(0x11, 0x10), (0, 0x21), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(MEMORY.part(from, length), None);
        }
    }
}
