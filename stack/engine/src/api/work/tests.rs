use super::*;
use proptest::prelude::*;

fn sge() -> impl Strategy<Value = Sge> {
    (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(stag, length, offset)| Sge { stag, length, offset })
}

proptest! {
    #[test]
    fn send_elements_come_back_with_every_entry(
        entries in proptest::collection::vec(sge(), 0..=MAX_SEND_ENTRIES),
        id in any::<u64>(), stag in any::<u32>(), remote_offset in any::<u64>(), length in any::<u32>(),
    ) {
        let element = SendElement {
            id, opcode: SendOpcode::Write, flags: SendFlags::SIGNALLED.union(SendFlags::FENCE), stag,
            remote_offset, length, entries: entries.len() as u8,
        };
        let slots: Vec<Slot> = (0..element.slots()).map(|index| element.encode(&entries, &[], index)).collect();
        prop_assert!(slots.len() <= MAX_ELEMENT_SLOTS);
        prop_assert_eq!(SendElement::decode(&slots[0]), Ok(element));
        for (index, entry) in entries.iter().enumerate() {
            let (slot, place) = SendElement::entry_place(index);
            prop_assert_eq!(entry_at(&slots[slot], place), *entry);
        }
    }

    #[test]
    fn inline_octets_come_back(data in proptest::collection::vec(any::<u8>(), 0..=MAX_INLINE)) {
        let element = SendElement {
            id: 7, opcode: SendOpcode::Send, flags: SendFlags::INLINE, stag: 0, remote_offset: 0,
            length: data.len() as u32, entries: 0,
        };
        let slots: Vec<Slot> = (0..element.slots()).map(|index| element.encode(&[], &data, index)).collect();
        prop_assert!(slots.len() <= MAX_ELEMENT_SLOTS);
        prop_assert_eq!(SendElement::decode(&slots[0]), Ok(element));
        let mut out = vec![0; data.len()];
        for (index, slot) in slots.iter().enumerate() {
            SendElement::copy_inline(slot, index, &mut out);
        }
        prop_assert_eq!(out, data);
    }

    #[test]
    fn receive_elements_come_back_with_every_entry(
        entries in proptest::collection::vec(sge(), 0..=MAX_RECEIVE_ENTRIES), id in any::<u64>(), length in any::<u32>(),
    ) {
        let element = ReceiveElement { id, length, entries: entries.len() as u8 };
        let slots: Vec<Slot> = (0..element.slots()).map(|index| element.encode(&entries, index)).collect();
        prop_assert!(slots.len() <= MAX_ELEMENT_SLOTS);
        prop_assert_eq!(ReceiveElement::decode(&slots[0]), Ok(element));
        for (index, entry) in entries.iter().enumerate() {
            let (slot, place) = ReceiveElement::entry_place(index);
            prop_assert_eq!(entry_at(&slots[slot], place), *entry);
        }
    }

    #[test]
    fn any_slot_decodes_without_panic(words in any::<[u64; 8]>()) {
        let _ = SendElement::decode(&Slot(words)).map(|element| element.slots());
        let _ = ReceiveElement::decode(&Slot(words)).map(|element| element.slots());
    }
}
