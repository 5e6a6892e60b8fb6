//! Formats of Atomic, Immediate and Commit messages.

use crate::WireError;
use crate::ddp::{Stag, TaggedOffset};
use crate::octets::{put_u32, put_u64, u32_at, u64_at};

/// Octets of an Atomic Request behind its DDP header.
pub const ATOMIC_REQUEST_LEN: usize = 52;
/// Octets of an Atomic Response behind its DDP header.
pub const ATOMIC_RESPONSE_LEN: usize = 12;
/// Octets of Immediate Data.
pub const IMMEDIATE_LEN: usize = 8;
/// Octets of a Commit Response behind its DDP header.
pub const COMMIT_RESPONSE_LEN: usize = 8;
/// Octets of one region in a Commit Request.
pub const COMMIT_REGION_LEN: usize = 16;

/// What an Atomic Request asks for (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicOperation {
    /// Add, with a mask that marks where carries end.
    FetchAdd = 0x0,
    /// Compare under a mask and swap under a mask.
    CompareSwap = 0x2,
}

impl AtomicOperation {
    /// The operation with this code; 1 (Swap) is reserved in the registry.
    ///
    /// # Errors
    /// [`WireError::Opcode`] for a code that is reserved or not assigned.
    pub const fn from_code(code: u8) -> Result<AtomicOperation, WireError> {
        match code {
            0x0 => Ok(AtomicOperation::FetchAdd),
            0x2 => Ok(AtomicOperation::CompareSwap),
            _ => Err(WireError::Opcode),
        }
    }
}

/// An Atomic Request (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// AOpCode, 4 bits; [`AtomicOperation::from_code`] gives its meaning.
    pub operation: u8,
    /// Chosen by the requester, echoed by the responder.
    pub request_identifier: u32,
    /// The buffer at the responder.
    pub stag: Stag,
    /// The offset in it.
    pub offset: TaggedOffset,
    /// Add Data or Swap Data.
    pub add_swap_data: u64,
    /// Add Mask or Swap Mask.
    pub add_swap_mask: u64,
    /// Compare Data.
    pub compare_data: u64,
    /// Compare Mask.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// The request's octets.
    pub fn to_octets(&self) -> [u8; ATOMIC_REQUEST_LEN] {
        let mut octets = [0; ATOMIC_REQUEST_LEN];
        octets[3] = self.operation & 0x0f;
        put_u32(&mut octets, 4, self.request_identifier);
        put_u32(&mut octets, 8, self.stag.0);
        put_u64(&mut octets, 12, self.offset.0);
        put_u64(&mut octets, 20, self.add_swap_data);
        put_u64(&mut octets, 28, self.add_swap_mask);
        put_u64(&mut octets, 36, self.compare_data);
        put_u64(&mut octets, 44, self.compare_mask);
        octets
    }

    /// Reads a request; `message` is the whole message behind the DDP header. Reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] if it has not exactly 52 octets.
    pub fn parse(message: &[u8]) -> Result<AtomicRequest, WireError> {
        let octets: &[u8; ATOMIC_REQUEST_LEN] = message.try_into().map_err(|_| WireError::MessageLength)?;
        Ok(AtomicRequest {
            operation: octets[3] & 0x0f,
            request_identifier: u32_at(octets, 4),
            stag: Stag(u32_at(octets, 8)),
            offset: TaggedOffset(u64_at(octets, 12)),
            add_swap_data: u64_at(octets, 20),
            add_swap_mask: u64_at(octets, 28),
            compare_data: u64_at(octets, 36),
            compare_mask: u64_at(octets, 44),
        })
    }
}

/// An Atomic Response (RFC 7306 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub request_identifier: u32,
    /// The value in the buffer before the operation.
    pub original_value: u64,
}

impl AtomicResponse {
    /// The response's octets.
    pub fn to_octets(&self) -> [u8; ATOMIC_RESPONSE_LEN] {
        let mut octets = [0; ATOMIC_RESPONSE_LEN];
        put_u32(&mut octets, 0, self.request_identifier);
        put_u64(&mut octets, 4, self.original_value);
        octets
    }

    /// Reads a response; `message` is the whole message behind the DDP header.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] if it has not exactly 12 octets.
    pub fn parse(message: &[u8]) -> Result<AtomicResponse, WireError> {
        let octets: &[u8; ATOMIC_RESPONSE_LEN] = message.try_into().map_err(|_| WireError::MessageLength)?;
        Ok(AtomicResponse { request_identifier: u32_at(octets, 0), original_value: u64_at(octets, 4) })
    }
}

/// Immediate Data (RFC 7306 §6): 8 octets whose meaning the ULPs agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmediateData(
    /// The octets as a big-endian number.
    pub u64,
);

impl ImmediateData {
    /// The message's octets.
    pub const fn to_octets(self) -> [u8; IMMEDIATE_LEN] {
        self.0.to_be_bytes()
    }

    /// Reads the data; `message` is the whole message behind the DDP header.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] if it has not exactly 8 octets.
    pub fn parse(message: &[u8]) -> Result<ImmediateData, WireError> {
        let octets = message.try_into().map_err(|_| WireError::MessageLength)?;
        Ok(ImmediateData(u64::from_be_bytes(octets)))
    }
}

/// A region in a Commit Request. The order of its fields is not that of a Read Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRegion {
    /// The buffer at the responder.
    pub stag: Stag,
    /// Octets to be made durable.
    pub length: u32,
    /// The offset of the first one in the buffer.
    pub offset: TaggedOffset,
}

impl CommitRegion {
    /// The region's octets.
    pub fn to_octets(&self) -> [u8; COMMIT_REGION_LEN] {
        let mut octets = [0; COMMIT_REGION_LEN];
        put_u32(&mut octets, 0, self.stag.0);
        put_u32(&mut octets, 4, self.length);
        put_u64(&mut octets, 8, self.offset.0);
        octets
    }

    fn from_octets(octets: &[u8; COMMIT_REGION_LEN]) -> CommitRegion {
        CommitRegion {
            stag: Stag(u32_at(octets, 0)),
            length: u32_at(octets, 4),
            offset: TaggedOffset(u64_at(octets, 8)),
        }
    }
}

/// A received Commit Request (draft-talpey-rdma-commit-00 §3.2.1): an identifier and at least one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRequest<'a> {
    /// Chosen by the requester, echoed by the responder.
    pub request_identifier: u32,
    regions: &'a [[u8; COMMIT_REGION_LEN]],
}

impl<'a> CommitRequest<'a> {
    /// Octets of a request with this many regions, behind the DDP header.
    pub const fn emit_len(regions: usize) -> usize {
        4 + COMMIT_REGION_LEN * regions
    }

    /// Writes a request and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`CommitRequest::emit_len`].
    pub fn emit(request_identifier: u32, regions: &[CommitRegion], out: &mut [u8]) -> usize {
        let length = CommitRequest::emit_len(regions.len());
        let out = &mut out[..length];
        put_u32(out, 0, request_identifier);
        for (region, place) in regions.iter().zip(out[4..].chunks_exact_mut(COMMIT_REGION_LEN)) {
            place.copy_from_slice(&region.to_octets());
        }
        length
    }

    /// Reads a request; `message` is the whole message behind the DDP headers.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] if it is not 4 octets and one or more regions.
    pub fn parse(message: &'a [u8]) -> Result<CommitRequest<'a>, WireError> {
        let (identifier, rest) = message.split_first_chunk::<4>().ok_or(WireError::MessageLength)?;
        let (regions, odd) = rest.as_chunks::<COMMIT_REGION_LEN>();
        if regions.is_empty() || !odd.is_empty() {
            return Err(WireError::MessageLength);
        }
        Ok(CommitRequest { request_identifier: u32::from_be_bytes(*identifier), regions })
    }

    /// The regions in the order of the request, at least one.
    pub fn regions(self) -> impl ExactSizeIterator<Item = CommitRegion> + 'a {
        self.regions.iter().map(CommitRegion::from_octets)
    }
}

/// A Commit Response (draft-talpey-rdma-commit-00 §3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitResponse {
    /// The identifier of the request.
    pub request_identifier: u32,
    /// 0 for success; other values are not defined by the document.
    pub status: u32,
}

impl CommitResponse {
    /// The response's octets.
    pub fn to_octets(&self) -> [u8; COMMIT_RESPONSE_LEN] {
        let mut octets = [0; COMMIT_RESPONSE_LEN];
        put_u32(&mut octets, 0, self.request_identifier);
        put_u32(&mut octets, 4, self.status);
        octets
    }

    /// Reads a response; `message` is the whole message behind the DDP header.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] if it has not exactly 8 octets.
    pub fn parse(message: &[u8]) -> Result<CommitResponse, WireError> {
        let octets: &[u8; COMMIT_RESPONSE_LEN] = message.try_into().map_err(|_| WireError::MessageLength)?;
        Ok(CommitResponse { request_identifier: u32_at(octets, 0), status: u32_at(octets, 4) })
    }
}
