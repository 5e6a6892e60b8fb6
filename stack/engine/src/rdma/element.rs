//! The usual work queue element: a Send or Write of one entry.

use uwarp_ring::Slot;

use crate::api::work::{SendElement, SendFlags, SendOpcode, Sge};

impl SendElement {
    /// The slot of an element with one entry, whose octets are the message: what [`encode`](Self::encode) gives for it.
    #[inline]
    pub fn encode_one(opcode: SendOpcode, flags: SendFlags, id: u64, stag: u32, offset: u64, entry: Sge) -> Slot {
        let length = u64::from(entry.length) << 32;
        let head = u64::from(opcode as u8) | u64::from(flags.0) << 8 | 1 << 16 | length;
        Slot([head, id, u64::from(stag), offset, u64::from(entry.stag) | length, entry.offset, 0, 0])
    }
}

/// A usual element as it is in its slot: a Send or Write of one entry, which is the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsualElement<'a>(&'a Slot);

impl<'a> UsualElement<'a> {
    /// Whether a slot has one, of at most `most` octets, which need not wait for others.
    #[inline(always)]
    pub(crate) fn is_in(slot: &Slot, most: u32) -> bool {
        const OTHER: SendFlags = SendFlags::INLINE.union(SendFlags::FENCE);
        const SHAPE: u32 = 0xff << 16 | (OTHER.0 as u32) << 8;
        let head = slot.0[0] as u32;
        let length = slot.0[0] >> 32;
        head & SHAPE == 1 << 16
            && head as u8 <= SendOpcode::Write as u8
            && length <= u64::from(most)
            && length == slot.0[4] >> 32
    }

    /// The one in a slot.
    #[inline(always)]
    pub(crate) fn of(slot: &'a Slot) -> UsualElement<'a> {
        UsualElement(slot)
    }

    #[inline(always)]
    pub(crate) fn is_write(self) -> bool {
        self.0.0[0] as u8 == SendOpcode::Write as u8
    }

    #[inline(always)]
    pub(crate) fn flags(self) -> SendFlags {
        SendFlags((self.0.0[0] >> 8) as u8)
    }

    /// Octets of the message.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        (self.0.0[0] >> 32) as u32
    }

    /// See [`SendElement::stag`].
    #[inline(always)]
    pub(crate) fn stag(self) -> u32 {
        self.0.0[2] as u32
    }

    /// See [`SendElement::remote_offset`].
    #[inline(always)]
    pub(crate) fn remote_offset(self) -> u64 {
        self.0.0[3]
    }

    /// The message in memory.
    #[inline(always)]
    pub(crate) fn entry(self) -> Sge {
        Sge { stag: self.0.0[4] as u32, length: self.length(), offset: self.0.0[5] }
    }

    /// All of it, as the general code has it.
    #[inline]
    pub(crate) fn decode(self) -> Option<SendElement> {
        SendElement::decode(self.0).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn only_sends_and_writes_of_one_entry_are_usual(
            words in any::<[u64; 8]>(), head in any::<[u8; 3]>(), same in any::<bool>(), most in any::<u32>(),
        ) {
            let mut slot = Slot(words);
            // Opcodes and numbers of entries that exist, and few others.
            let head = u64::from(head[0] % 16) | u64::from(head[1]) << 8 | u64::from(head[2] % 4) << 16;
            slot.0[0] = words[0] & !0xff_ffff | head;
            if same {
                slot.0[4] = words[4] & 0xffff_ffff | words[0] >> 32 << 32;
            }
            let wanted = SendElement::decode(&slot).is_ok_and(|element| {
                let waits = element.flags.contains(SendFlags::INLINE) || element.flags.contains(SendFlags::FENCE);
                let agrees = slot.0[4] >> 32 == u64::from(element.length);
                element.opcode.is_send_or_write() && element.entries == 1 && !waits && agrees && element.length <= most
            });
            prop_assert_eq!(UsualElement::is_in(&slot, most), wanted);
        }

        #[test]
        fn one_entry_is_encoded_as_by_the_general_function(
            (id, stag, offset) in any::<(u64, u32, u64)>(), flags in any::<u8>(), opcode in 0usize..3,
            (entry_stag, length, entry_offset) in any::<(u32, u32, u64)>(),
        ) {
            let opcode = [SendOpcode::Send, SendOpcode::SendInvalidate, SendOpcode::Write][opcode];
            let flags = SendFlags(flags & !SendFlags::INLINE.0);
            let entry = Sge { stag: entry_stag, length, offset: entry_offset };
            let element = SendElement { id, opcode, flags, stag, remote_offset: offset, length, entries: 1 };
            let slot = SendElement::encode_one(opcode, flags, id, stag, offset, entry);
            prop_assert_eq!(slot.0, element.encode(&[entry], &[], 0).0);
            prop_assert_eq!(UsualElement::is_in(&slot, length), !flags.contains(SendFlags::FENCE));
            let usual = UsualElement::of(&slot);
            prop_assert_eq!((usual.decode(), usual.entry()), (Some(element), entry));
            prop_assert_eq!((usual.stag(), usual.remote_offset(), usual.length()), (stag, offset, length));
            prop_assert_eq!((usual.is_write(), usual.flags()), (opcode == SendOpcode::Write, flags));
        }
    }
}
