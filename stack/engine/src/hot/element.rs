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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
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
        }
    }
}
