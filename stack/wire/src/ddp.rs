//! DDP segment headers (RFC 5041 §4; use of the ULP's fields: RFC 5040 §4.1).

mod numbers;
mod spare;
#[cfg(test)]
mod tests;

pub use numbers::{MessageSequenceNumber, QueueNumber, Stag, TaggedOffset};
pub use spare::NotReadyRetries;

use crate::WireError;
use crate::octets::{put_u32, put_u64, u32_at, u64_at};
use crate::rdmap::Control;

/// Octets of a tagged header.
pub const TAGGED_HEADER_LEN: usize = 14;
/// Octets of an untagged header.
pub const UNTAGGED_HEADER_LEN: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 0x01;

/// The header of a tagged segment: the payload is placed in a named buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// This is the last segment of its message.
    pub last: bool,
    /// The RDMAP control octet (RsvdULP).
    pub control: Control,
    /// The buffer of the data sink.
    pub stag: Stag,
    /// The offset of the segment's first octet in that buffer.
    pub offset: TaggedOffset,
}

impl TaggedHeader {
    /// The header's octets.
    #[inline]
    pub fn to_octets(&self) -> [u8; TAGGED_HEADER_LEN] {
        let mut octets = [0; TAGGED_HEADER_LEN];
        octets[0] = TAGGED | if self.last { LAST } else { 0 } | VERSION;
        octets[1] = self.control.0;
        put_u32(&mut octets, 2, self.stag.0);
        put_u64(&mut octets, 6, self.offset.0);
        octets
    }

    /// Writes the header and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`TAGGED_HEADER_LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[..TAGGED_HEADER_LEN].copy_from_slice(&self.to_octets());
        TAGGED_HEADER_LEN
    }
}

/// The header of an untagged segment: the payload is placed in the next buffer of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// This is the last segment of its message.
    pub last: bool,
    /// The RDMAP control octet (first octet of RsvdULP).
    pub control: Control,
    /// The other four octets of RsvdULP: the STag to invalidate in a Send with Invalidate, or what a Send has of
    /// [immediate data](Control::with_immediate), otherwise 0.
    pub invalidate_stag: Stag,
    /// The queue.
    pub queue: QueueNumber,
    /// The message's number on the queue.
    pub message_sequence_number: MessageSequenceNumber,
    /// Octets of the message before this segment.
    pub message_offset: u32,
}

impl UntaggedHeader {
    /// The header's octets.
    #[inline]
    pub fn to_octets(&self) -> [u8; UNTAGGED_HEADER_LEN] {
        let mut octets = [0; UNTAGGED_HEADER_LEN];
        octets[0] = if self.last { LAST } else { 0 } | VERSION;
        octets[1] = self.control.0;
        put_u32(&mut octets, 2, self.invalidate_stag.0);
        put_u32(&mut octets, 6, self.queue.0);
        put_u32(&mut octets, 10, self.message_sequence_number.0);
        put_u32(&mut octets, 14, self.message_offset);
        octets
    }

    /// Writes the header and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`UNTAGGED_HEADER_LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[..UNTAGGED_HEADER_LEN].copy_from_slice(&self.to_octets());
        UNTAGGED_HEADER_LEN
    }
}

/// The header of a segment of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// With the T bit.
    Tagged(TaggedHeader),
    /// Without the T bit.
    Untagged(UntaggedHeader),
}

impl Header {
    /// Reads the header at the start of a segment. The payload begins [`Header::len`] octets in.
    ///
    /// Reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::DdpVersionTagged`] or [`WireError::DdpVersionUntagged`].
    #[inline(always)]
    pub fn parse(segment: &[u8]) -> Result<Header, WireError> {
        let ddp_control = *segment.first().ok_or(WireError::Truncated)?;
        let last = ddp_control & LAST != 0;
        let version = ddp_control & VERSION_MASK;
        if ddp_control & TAGGED != 0 {
            let octets: &[u8; TAGGED_HEADER_LEN] = segment.first_chunk().ok_or(WireError::Truncated)?;
            if version != VERSION {
                return Err(WireError::DdpVersionTagged);
            }
            Ok(Header::Tagged(TaggedHeader {
                last,
                control: Control(octets[1]),
                stag: Stag(u32_at(octets, 2)),
                offset: TaggedOffset(u64_at(octets, 6)),
            }))
        } else {
            let octets: &[u8; UNTAGGED_HEADER_LEN] = segment.first_chunk().ok_or(WireError::Truncated)?;
            if version != VERSION {
                return Err(WireError::DdpVersionUntagged);
            }
            Ok(Header::Untagged(UntaggedHeader {
                last,
                control: Control(octets[1]),
                invalidate_stag: Stag(u32_at(octets, 2)),
                queue: QueueNumber(u32_at(octets, 6)),
                message_sequence_number: MessageSequenceNumber(u32_at(octets, 10)),
                message_offset: u32_at(octets, 14),
            }))
        }
    }

    /// Octets of the header: 14 or 18.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Header::Tagged(_) => TAGGED_HEADER_LEN,
            Header::Untagged(_) => UNTAGGED_HEADER_LEN,
        }
    }

    /// Always `false`: a header has octets. Clippy expects this beside [`Header::len`].
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The RDMAP control octet.
    #[inline]
    pub const fn control(&self) -> Control {
        match self {
            Header::Tagged(header) => header.control,
            Header::Untagged(header) => header.control,
        }
    }

    /// Whether this is the last segment of its message.
    #[inline]
    pub const fn last(&self) -> bool {
        match self {
            Header::Tagged(header) => header.last,
            Header::Untagged(header) => header.last,
        }
    }

    /// Writes the header and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Header::len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match self {
            Header::Tagged(header) => header.emit(out),
            Header::Untagged(header) => header.emit(out),
        }
    }
}

/// Length in octets of a segment's header, by the T bit of its first octet. The version is not checked.
#[inline]
pub const fn header_len(ddp_control: u8) -> usize {
    if ddp_control & TAGGED != 0 { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN }
}
