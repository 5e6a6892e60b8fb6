//! The numbers in DDP headers: of buffers, offsets, messages and queues.

use core::fmt;

/// A Steering Tag: the name of a buffer in a tagged message (RFC 5041 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Stag(
    /// The tag as it stands in a header.
    pub u32,
);

impl fmt::Debug for Stag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#010x}", self.0)
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// A Tagged Offset: an offset into the buffer that a Steering Tag names (RFC 5041 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct TaggedOffset(
    /// The offset as it stands in a header.
    pub u64,
);

impl TaggedOffset {
    /// The offset `octets` further, or `None` past 2^64 (a TO wrap).
    #[inline]
    pub const fn checked_add(self, octets: u64) -> Option<TaggedOffset> {
        match self.0.checked_add(octets) {
            Some(offset) => Some(TaggedOffset(offset)),
            None => None,
        }
    }

    /// The offset `octets` further, modulo 2^64.
    #[inline]
    pub const fn wrapping_add(self, octets: u64) -> TaggedOffset {
        TaggedOffset(self.0.wrapping_add(octets))
    }
}

impl fmt::Debug for TaggedOffset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

impl fmt::Display for TaggedOffset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// The number of an untagged message on its queue, from 1, modulo 2^32 (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageSequenceNumber(
    /// The number as it stands in a header.
    pub u32,
);

impl MessageSequenceNumber {
    /// The number of the first message of a queue.
    pub const FIRST: MessageSequenceNumber = MessageSequenceNumber(1);

    /// The number of the message after this one; 0 follows 2^32 − 1.
    #[inline]
    pub const fn next(self) -> MessageSequenceNumber {
        MessageSequenceNumber(self.0.wrapping_add(1))
    }

    /// The number of the message before this one.
    #[inline]
    pub const fn previous(self) -> MessageSequenceNumber {
        MessageSequenceNumber(self.0.wrapping_sub(1))
    }
}

impl Default for MessageSequenceNumber {
    fn default() -> MessageSequenceNumber {
        MessageSequenceNumber::FIRST
    }
}

/// The number of an untagged buffer queue. Any number can be received; four have a meaning
/// (RFC 5040 §3.1, RFC 7306 §10.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QueueNumber(
    /// The number as it stands in a header.
    pub u32,
);

impl QueueNumber {
    /// Send of all kinds and Immediate Data.
    pub const SEND: QueueNumber = QueueNumber(0);
    /// Read, Atomic and Commit Requests.
    pub const READ_REQUEST: QueueNumber = QueueNumber(1);
    /// Terminate.
    pub const TERMINATE: QueueNumber = QueueNumber(2);
    /// Atomic and Commit Responses.
    pub const ATOMIC_RESPONSE: QueueNumber = QueueNumber(3);
}
