use proptest::prelude::*;

use super::*;
use crate::rdmap::Opcode;

proptest! {
    #[test]
    fn any_octets_parse_without_panic(octets in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(header) = Header::parse(&octets) {
            prop_assert!(header.len() <= octets.len());
            prop_assert_eq!(header.len(), header_len(octets[0]));
            // Emitting restores the input, except for reserved bits.
            let mut out = [0; UNTAGGED_HEADER_LEN];
            let length = header.emit(&mut out);
            prop_assert_eq!(out[0], octets[0] & !0x3c);
            prop_assert_eq!(&out[1..length], &octets[1..length]);
        }
    }

    #[test]
    fn a_tagged_header_survives_emit_and_parse(
        last in any::<bool>(), control in any::<u8>(), stag in any::<u32>(), offset in any::<u64>(),
    ) {
        let header = TaggedHeader {
            last,
            control: Control(control),
            stag: Stag(stag),
            offset: TaggedOffset(offset),
        };
        let mut out = [0; 20];
        prop_assert_eq!(header.emit(&mut out), TAGGED_HEADER_LEN);
        prop_assert_eq!(Header::parse(&out), Ok(Header::Tagged(header)));
        prop_assert_eq!(Header::parse(&out[..13]), Err(WireError::Truncated));
    }

    #[test]
    fn an_untagged_header_survives_emit_and_parse(
        last in any::<bool>(), control in any::<u8>(), numbers in any::<(u32, u32, u32, u32)>(),
    ) {
        let header = UntaggedHeader {
            last,
            control: Control(control),
            invalidate_stag: Stag(numbers.0),
            queue: QueueNumber(numbers.1),
            message_sequence_number: MessageSequenceNumber(numbers.2),
            message_offset: numbers.3,
        };
        let mut out = [0; 20];
        prop_assert_eq!(header.emit(&mut out), UNTAGGED_HEADER_LEN);
        prop_assert_eq!(Header::parse(&out), Ok(Header::Untagged(header)));
        prop_assert_eq!(Header::parse(&out[..17]), Err(WireError::Truncated));
    }
}

#[test]
fn the_first_two_octets_are_as_in_the_documents() {
    let tagged = |last, opcode: Opcode| TaggedHeader {
        last,
        control: opcode.into(),
        stag: Stag(0x0102_0304),
        offset: TaggedOffset(0x05),
    };
    let octets = tagged(true, Opcode::Write).to_octets();
    assert_eq!(octets, [0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(tagged(false, Opcode::ReadResponse).to_octets()[..2], [0x81, 0x42]);
    let untagged = UntaggedHeader {
        last: true,
        control: Opcode::Terminate.into(),
        invalidate_stag: Stag(0),
        queue: QueueNumber::TERMINATE,
        message_sequence_number: MessageSequenceNumber::FIRST,
        message_offset: 0,
    };
    assert_eq!(untagged.to_octets(), [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    let header = Header::Untagged(untagged);
    assert!(header.last() && !header.is_empty() && header.control() == Opcode::Terminate.into());
}

#[test]
fn other_versions_are_refused_by_kind() {
    for version in [0, 2, 3] {
        let mut octets = [0; 18];
        octets[0] = 0x40 | version;
        assert_eq!(Header::parse(&octets), Err(WireError::DdpVersionUntagged));
        octets[0] |= 0x80;
        assert_eq!(Header::parse(&octets), Err(WireError::DdpVersionTagged));
    }
}

#[test]
fn numbers_wrap_as_the_documents_say() {
    assert_eq!(MessageSequenceNumber(u32::MAX).next(), MessageSequenceNumber(0));
    assert_eq!(MessageSequenceNumber::default().next(), MessageSequenceNumber(2));
    assert_eq!(TaggedOffset(u64::MAX).checked_add(1), None);
    assert_eq!(TaggedOffset(u64::MAX).wrapping_add(2), TaggedOffset(1));
    assert_eq!(TaggedOffset(1).checked_add(2), Some(TaggedOffset(3)));
    assert_eq!(format!("{} {}", Stag(0xab), TaggedOffset(0xcd)), "0x000000ab 0xcd");
}
