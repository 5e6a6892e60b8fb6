//! Work queue elements and completions, as they are in the rings between an application thread and an engine.
//!
//! A ring holds slots of one cache line. An element takes one slot, and extension slots directly behind it when it
//! has more scatter/gather entries or inline octets than fit:
//!
//! | slot | send element | receive element |
//! |---|---|---|
//! | first | head (4 words), 2 entries or 32 inline octets | head (2 words), 3 entries |
//! | each further | 4 entries or 64 inline octets | 4 entries |
//!
//! The ring is the list of outstanding work: the engine reads elements in place and releases their slots only when they
//! complete, in posting order. So the depth of a queue, counted in slots, bounds its outstanding work.
//!
//! Everything here is plain data. A malformed element, which only a defect of the poster can produce, decodes to an
//! error value and fails as [`Status::LocalOperation`].

#[cfg(test)]
mod tests;

use uwarp_memory::Access;
use uwarp_ring::Slot;

pub use crate::api::completion::*;

/// Most slots one element may take.
pub const MAX_ELEMENT_SLOTS: usize = 16;
/// Most scatter/gather entries of a send element.
pub const MAX_SEND_ENTRIES: usize = 2 + 4 * (MAX_ELEMENT_SLOTS - 1);
/// Most scatter/gather entries of a receive element.
pub const MAX_RECEIVE_ENTRIES: usize = 3 + 4 * (MAX_ELEMENT_SLOTS - 1);
/// Most inline octets of a send element.
pub const MAX_INLINE: usize = 32 + 64 * (MAX_ELEMENT_SLOTS - 1);

/// Octets of inline data, or of the first entries, that say where a datagram goes.
pub(crate) const DATAGRAM_ADDRESSES: usize = 32;

/// Entries in the first slot of a send element.
const SEND_FIRST: usize = 2;
/// Entries in the first slot of a receive element.
const RECEIVE_FIRST: usize = 3;
/// Entries in each extension slot.
const EXTENSION: usize = 4;

/// One piece of registered memory: a scatter/gather entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// STag of the region.
    pub stag: u32,
    /// Length in octets.
    pub length: u32,
    /// Tagged offset of the first octet.
    pub offset: u64,
}

impl Sge {
    /// An entry that nobody has checked. If it is not in a region with the right that the operation needs, the engine
    /// finds that when it gets there, and ends the connection with [`Status::LocalProtection`].
    pub const fn raw(stag: u32, offset: u64, length: u32) -> Sge {
        Sge { stag, length, offset }
    }
}

/// What a send element asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SendOpcode {
    /// Send (RFC 5040 §4.3), and with a flag Send with Solicited Event.
    Send = 0,
    /// Send with Invalidate, and with a flag Send with Solicited Event and Invalidate.
    SendInvalidate = 1,
    /// RDMA Write (RFC 5040 §4.2).
    Write = 2,
    /// Immediate Data (RFC 7306 §6), and with a flag Immediate Data with Solicited Event. The data is the element's
    /// remote offset.
    Immediate = 3,
    /// An RDMA Write followed by Immediate Data, as one work request. See [`SendElement::immediate_entry`].
    WriteImmediate = 4,
    /// Binds a window, or registers an STag allocated for that, to the element's entries, which are consecutive from
    /// the remote offset on. Nothing is sent. See [`SendElement::rights_entry`].
    Bind = 5,
    /// Invalidates an STag of this side. Nothing is sent.
    LocalInvalidate = 6,
    /// A Send of a queue pair of datagrams, to where its [`DatagramPath`](crate::datagram::DatagramPath) leads.
    Datagram = 7,
    /// Send with immediate data, and with a flag a solicited event: the low 32 bits of the remote offset. Both ends
    /// must have agreed on [`Features::infiniband`](crate::command::Features::infiniband).
    SendImmediate = 8,
    /// RDMA Read (RFC 5040 §4.4): a Read Request, completed by its Read Response.
    Read = 9,
    /// FetchAdd (RFC 7306 §5.1.1), completed by its Atomic Response. Its inline data are [`AtomicOperands`], and behind
    /// them [`AtomicOperands::sink_octets`] if the former value goes to memory.
    FetchAdd = 10,
    /// CmpSwap (RFC 7306 §5.1.2), completed by its Atomic Response. Inline data as for [`SendOpcode::FetchAdd`].
    CompareSwap = 11,
    /// RDMA Commit (draft-talpey-rdma-commit §3.2) of the peer's memory that the entries name, completed by its Commit
    /// Response.
    Commit = 12,
    /// An RDMA Write followed by a Commit of what it wrote, as one work request, completed by the Commit Response.
    WriteCommit = 13,
}

impl SendOpcode {
    /// Whether it is a Send or Write, the common operations.
    #[inline]
    pub const fn is_send_or_write(self) -> bool {
        self as u8 <= SendOpcode::Write as u8
    }

    /// Whether it completes with a response of the peer.
    #[inline]
    pub const fn awaits_response(self) -> bool {
        self as u8 >= SendOpcode::Read as u8
    }

    /// Whether it is executed locally, and nothing is sent.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, SendOpcode::Bind | SendOpcode::LocalInvalidate)
    }

    fn from_octet(octet: u8) -> Option<SendOpcode> {
        Some(match octet {
            0 => SendOpcode::Send,
            1 => SendOpcode::SendInvalidate,
            2 => SendOpcode::Write,
            3 => SendOpcode::Immediate,
            4 => SendOpcode::WriteImmediate,
            5 => SendOpcode::Bind,
            6 => SendOpcode::LocalInvalidate,
            7 => SendOpcode::Datagram,
            8 => SendOpcode::SendImmediate,
            9 => SendOpcode::Read,
            10 => SendOpcode::FetchAdd,
            11 => SendOpcode::CompareSwap,
            12 => SendOpcode::Commit,
            13 => SendOpcode::WriteCommit,
            _ => return None,
        })
    }
}

/// Flags of a send element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags(pub(crate) u8);

impl SendFlags {
    /// Generate a completion on success too. A failure always generates one.
    pub const SIGNALLED: SendFlags = SendFlags(1);
    /// The payload lies in the element itself.
    pub const INLINE: SendFlags = SendFlags(2);
    /// Read fence: wait until all earlier reads of the queue pair have completed.
    pub const FENCE: SendFlags = SendFlags(4);
    /// Ask for a solicited event at the peer (sends only).
    pub const SOLICITED: SendFlags = SendFlags(8);
    /// Complete when the peer's TCP has acknowledged the last octet, not when the last segment is built.
    pub const COMPLETE_ON_ACK: SendFlags = SendFlags(16);

    /// No flag.
    pub const fn empty() -> SendFlags {
        SendFlags(0)
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: SendFlags) -> SendFlags {
        SendFlags(self.0 | other.0)
    }

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: SendFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The head of a send element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendElement {
    /// The poster's identifier, returned in the completion.
    pub id: u64,
    /// The operation.
    pub opcode: SendOpcode,
    /// Flags.
    pub flags: SendFlags,
    /// Remote STag of a Write or Read; the peer's STag that a [`SendOpcode::SendInvalidate`] invalidates; this side's
    /// STag for a local operation.
    pub stag: u32,
    /// Remote tagged offset of a Write or Read; tagged offset of a window's first octet.
    pub remote_offset: u64,
    /// Octets of the message: the sum of the entries' lengths, or of the inline data.
    pub length: u32,
    /// Number of entries (0 with inline data).
    pub entries: u8,
}

/// Operands of an atomic operation, as the inline data of its element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtomicOperands {
    /// The value to add or swap in.
    pub add_swap: u64,
    /// Add mask or swap mask.
    pub add_swap_mask: u64,
    /// The value to compare with.
    pub compare: u64,
    /// The bits that are compared.
    pub compare_mask: u64,
}

impl AtomicOperands {
    /// Octets of inline data.
    pub const LEN: usize = 32;

    /// The inline data.
    pub fn to_octets(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        for (place, word) in
            octets.chunks_exact_mut(8).zip([self.add_swap, self.add_swap_mask, self.compare, self.compare_mask])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        octets
    }

    /// Reads inline data.
    pub fn from_octets(octets: &[u8; Self::LEN]) -> AtomicOperands {
        let (words, _) = octets.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        AtomicOperands { add_swap: word(0), add_swap_mask: word(1), compare: word(2), compare_mask: word(3) }
    }

    /// Octets of inline data behind the operands that say where the former value goes.
    pub const SINK_LEN: usize = 16;

    /// The octets behind the operands: the former value goes to the eight octets of `sink`.
    pub fn sink_octets(sink: Sge) -> [u8; Self::SINK_LEN] {
        (u128::from(sink.stag) | u128::from(sink.length) << 32 | u128::from(sink.offset) << 64).to_le_bytes()
    }

    /// Reads what [`sink_octets`](Self::sink_octets) gave.
    pub fn sink_from_octets(octets: &[u8; Self::SINK_LEN]) -> Sge {
        let all = u128::from_le_bytes(*octets);
        Sge { stag: all as u32, length: (all >> 32) as u32, offset: (all >> 64) as u64 }
    }
}

/// An element that this crate never writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed work queue element")]
pub struct MalformedElement;

impl SendElement {
    /// The entry that carries the data of a [`SendOpcode::WriteImmediate`]: one more, without memory, behind those of
    /// the Write. With inline data, the data is in the last eight octets instead, in little-endian order.
    pub const fn immediate_entry(data: u64) -> Sge {
        Sge { stag: 0, length: 0, offset: data }
    }

    /// The entry that carries the rights of a [`SendOpcode::Bind`]: one more, without memory, behind the pieces.
    pub const fn rights_entry(access: Access) -> Sge {
        Sge { stag: 0, length: 0, offset: access.bits() as u64 }
    }

    /// Octets of the message in memory; for a [`SendOpcode::WriteImmediate`], those of the Write.
    #[inline]
    pub const fn payload_len(&self) -> u32 {
        match self.opcode {
            SendOpcode::Send
            | SendOpcode::SendInvalidate
            | SendOpcode::SendImmediate
            | SendOpcode::Write
            | SendOpcode::Read => self.length,
            SendOpcode::WriteImmediate if self.flags.contains(SendFlags::INLINE) => self.length.saturating_sub(8),
            SendOpcode::Datagram if self.flags.contains(SendFlags::INLINE) => {
                self.length.saturating_sub(DATAGRAM_ADDRESSES as u32)
            }
            SendOpcode::WriteImmediate | SendOpcode::WriteCommit | SendOpcode::Datagram => self.length,
            SendOpcode::Immediate | SendOpcode::Bind | SendOpcode::LocalInvalidate | SendOpcode::Commit => 0,
            SendOpcode::FetchAdd | SendOpcode::CompareSwap => 8,
        }
    }

    /// Slots of an element with `entries` scatter/gather entries.
    pub const fn slots_for_entries(entries: usize) -> usize {
        1 + entries.saturating_sub(SEND_FIRST).div_ceil(EXTENSION)
    }

    /// Slots of an element with `length` inline octets.
    pub const fn slots_for_inline(length: usize) -> usize {
        1 + length.saturating_sub(32).div_ceil(64)
    }

    /// Slots that this element takes.
    #[inline]
    pub const fn slots(&self) -> usize {
        if self.flags.contains(SendFlags::INLINE) {
            Self::slots_for_inline(self.length as usize)
        } else {
            Self::slots_for_entries(self.entries as usize)
        }
    }

    /// Slot `index` (0 is the first) of this element with the given entries, or inline data if the flag is set.
    /// `entries` must have the length in the head; missing data is written as zero.
    #[inline]
    pub fn encode(&self, entries: &[Sge], inline: &[u8], index: usize) -> Slot {
        let mut words = [0u64; 8];
        if index == 0 {
            words[0] = u64::from(self.opcode as u8)
                | u64::from(self.flags.0) << 8
                | u64::from(self.entries) << 16
                | u64::from(self.length) << 32;
            words[1] = self.id;
            words[2] = u64::from(self.stag);
            words[3] = self.remote_offset;
        }
        if self.flags.contains(SendFlags::INLINE) {
            let (from, target) =
                if index == 0 { (0, &mut words[4..]) } else { (32 + 64 * (index - 1), &mut words[..]) };
            let rest = inline.get(from..).unwrap_or(&[]);
            for (word, octets) in target.iter_mut().zip(rest.chunks(8)) {
                let mut eight = [0u8; 8];
                eight[..octets.len()].copy_from_slice(octets);
                *word = u64::from_le_bytes(eight);
            }
        } else {
            let (from, target) = entry_window(index, SEND_FIRST, &mut words);
            put_entries(entries.get(from..).unwrap_or(&[]), target);
        }
        Slot(words)
    }

    /// Decodes the head from an element's first slot.
    #[inline]
    pub fn decode(slot: &Slot) -> Result<SendElement, MalformedElement> {
        let words = &slot.0;
        let element = SendElement {
            opcode: SendOpcode::from_octet(words[0] as u8).ok_or(MalformedElement)?,
            flags: SendFlags((words[0] >> 8) as u8),
            entries: (words[0] >> 16) as u8,
            length: (words[0] >> 32) as u32,
            id: words[1],
            stag: words[2] as u32,
            remote_offset: words[3],
        };
        let too_long = if element.flags.contains(SendFlags::INLINE) {
            element.length as usize > MAX_INLINE
        } else {
            element.entries as usize > MAX_SEND_ENTRIES
        };
        if too_long {
            return Err(MalformedElement);
        }
        Ok(element)
    }

    /// The place of entry `entry`: (slot, place within the slot for [`entry_at`]).
    #[inline]
    pub const fn entry_place(entry: usize) -> (usize, usize) {
        if entry < SEND_FIRST {
            (0, 4 + 2 * entry)
        } else {
            let behind = entry - SEND_FIRST;
            (1 + behind / EXTENSION, 2 * (behind % EXTENSION))
        }
    }

    /// Copies the inline octets of slot `index` to their place in `out`, which has the element's length.
    #[inline]
    pub fn copy_inline(slot: &Slot, index: usize, out: &mut [u8]) {
        let (from, words) = if index == 0 { (0, &slot.0[4..]) } else { (32 + 64 * (index - 1), &slot.0[..]) };
        if let Some(rest) = out.get_mut(from..) {
            for (octets, word) in rest.chunks_mut(8).zip(words) {
                octets.copy_from_slice(&word.to_le_bytes()[..octets.len()]);
            }
        }
    }
}

/// The head of a receive element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveElement {
    /// The poster's identifier, returned in the completion.
    pub id: u64,
    /// Octets that the entries can take together.
    pub length: u32,
    /// Number of entries.
    pub entries: u8,
}

impl ReceiveElement {
    /// Slots of an element with `entries` scatter/gather entries.
    pub const fn slots_for_entries(entries: usize) -> usize {
        1 + entries.saturating_sub(RECEIVE_FIRST).div_ceil(EXTENSION)
    }

    /// Slots that this element takes.
    #[inline]
    pub const fn slots(&self) -> usize {
        Self::slots_for_entries(self.entries as usize)
    }

    /// Slot `index` (0 is the first) of this element with the given entries.
    pub fn encode(&self, entries: &[Sge], index: usize) -> Slot {
        let mut words = [0u64; 8];
        if index == 0 {
            words[0] = u64::from(self.entries) << 16 | u64::from(self.length) << 32;
            words[1] = self.id;
        }
        let (from, target) = entry_window(index, RECEIVE_FIRST, &mut words);
        put_entries(entries.get(from..).unwrap_or(&[]), target);
        Slot(words)
    }

    /// Decodes the head from an element's first slot.
    #[inline]
    pub fn decode(slot: &Slot) -> Result<ReceiveElement, MalformedElement> {
        let words = &slot.0;
        let element = ReceiveElement { entries: (words[0] >> 16) as u8, length: (words[0] >> 32) as u32, id: words[1] };
        if element.entries as usize > MAX_RECEIVE_ENTRIES {
            return Err(MalformedElement);
        }
        Ok(element)
    }

    /// The place of entry `entry`: (slot, place within the slot for [`entry_at`]).
    #[inline]
    pub const fn entry_place(entry: usize) -> (usize, usize) {
        if entry < RECEIVE_FIRST {
            (0, 2 + 2 * entry)
        } else {
            let behind = entry - RECEIVE_FIRST;
            (1 + behind / EXTENSION, 2 * (behind % EXTENSION))
        }
    }
}

/// The entry at a place given by `entry_place` of its element.
#[inline]
pub fn entry_at(slot: &Slot, place: usize) -> Sge {
    let head = slot.0.get(place).copied().unwrap_or(0);
    let offset = slot.0.get(place + 1).copied().unwrap_or(0);
    Sge { stag: head as u32, length: (head >> 32) as u32, offset }
}

fn entry_window(index: usize, first: usize, words: &mut [u64; 8]) -> (usize, &mut [u64]) {
    if index == 0 { (0, &mut words[8 - 2 * first..]) } else { (first + EXTENSION * (index - 1), &mut words[..]) }
}

fn put_entries(entries: &[Sge], words: &mut [u64]) {
    for (pair, entry) in words.chunks_exact_mut(2).zip(entries) {
        pair[0] = u64::from(entry.stag) | u64::from(entry.length) << 32;
        pair[1] = entry.offset;
    }
}
