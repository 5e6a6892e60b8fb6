use super::*;

fn segments(mut message: Message, mulpdu: u16) -> Vec<Segment> {
    let mut all = Vec::new();
    loop {
        let announced = message.next_ulpdu_len(mulpdu);
        let Some(segment) = message.next_segment(mulpdu) else {
            assert_eq!(announced, 0);
            return all;
        };
        assert_eq!(announced as usize, segment.ulpdu_len());
        all.push(segment);
    }
}

#[test]
fn a_message_is_cut_into_full_segments_and_a_rest() {
    let cut = segments(Message::write(Stag(1), TaggedOffset(10), 3000), 1442);
    let parts: Vec<_> = cut.iter().map(|s| (s.payload_offset, s.payload_len, s.last, s.ulpdu_len())).collect();
    assert_eq!(parts, [(0, 1428, false, 1442), (1428, 1428, false, 1442), (2856, 144, true, 158)]);
    assert_eq!(cut[1].header()[..2], [0x81, 0x40]);
    assert_eq!(cut[1].header()[6..14], (10 + 1428u64).to_be_bytes());
    assert_eq!(cut[2].header()[..2], [0xc1, 0x40]);

    let cut = segments(Message::send(SendKind::Plain, MessageSequenceNumber(7), 1424 + 1), 1442);
    let parts: Vec<_> = cut.iter().map(|s| (s.payload_offset, s.payload_len, s.last)).collect();
    assert_eq!(parts, [(0, 1424, false), (1424, 1, true)]);
    for (segment, offset) in cut.iter().zip([0u32, 1424]) {
        assert_eq!(segment.header()[10..14], 7u32.to_be_bytes(), "every segment carries the message's number");
        assert_eq!(segment.header()[14..18], offset.to_be_bytes());
    }
}

#[test]
fn the_header_of_a_tagged_segment_is_the_same_by_value_and_in_place() {
    let mut given = Message::write(Stag(0x0102_0304), TaggedOffset(u64::MAX - 2000), 3000);
    let mut written = given.clone();
    loop {
        let mut place = [0xee; LONGEST_HEADER];
        let by_value = given.cut_tagged(1442);
        assert_eq!(by_value.map(|(_, cut)| cut), written.cut_into(1442, &mut place));
        let Some((header, _)) = by_value else { break };
        assert_eq!(header, place[..TAGGED_HEADER_LEN]);
    }
    assert!(given.is_finished() && written.is_finished());
    let mut untagged = Message::send(SendKind::Plain, MessageSequenceNumber(7), 3000);
    assert_eq!(untagged.cut_tagged(1442), None);
    assert_eq!(untagged.octets_cut(), 0, "it is left as it was");
}

#[test]
fn a_message_that_just_fits_is_one_segment() {
    for (len, parts) in [(0, 1), (1, 1), (1427, 1), (1428, 1), (1429, 2)] {
        assert_eq!(segments(Message::write(Stag(1), TaggedOffset(0), len), 1442).len(), parts, "{len}");
    }
}

#[test]
fn each_segment_is_cut_to_the_limit_of_its_moment() {
    let mut message = Message::write(Stag(1), TaggedOffset(0), 4000);
    assert_eq!(message.next_segment(1442).unwrap().payload_len, 1428);
    assert_eq!(message.octets_cut(), 1428);
    assert_eq!(message.next_segment(500).unwrap().payload_len, 486);
    let last = message.next_segment(8942).unwrap();
    assert_eq!((last.payload_offset, last.payload_len, last.last), (1914, 2086, true));
    assert!(message.is_finished());
}

#[test]
fn limits_outside_of_the_documents_are_brought_inside() {
    assert_eq!(segments(Message::write(Stag(1), TaggedOffset(0), 1000), 0)[0].ulpdu_len(), 128);
    assert_eq!(segments(Message::write(Stag(1), TaggedOffset(0), 100_000), u16::MAX)[0].ulpdu_len(), 64768);
}

#[test]
fn the_longest_message_counts_to_its_end() {
    let mut message = Message::send(SendKind::Plain, MessageSequenceNumber::FIRST, u32::MAX);
    message.cut = u32::MAX - 200;
    let cut = segments(message, 128);
    let parts: Vec<_> = cut.iter().map(|s| (s.payload_offset, s.payload_len, s.last)).collect();
    assert_eq!(parts, [(u32::MAX - 200, 110, false), (u32::MAX - 90, 90, true)]);
}

/// The length of a message and that of its header do not fit into 32 bits together.
#[test]
fn the_longest_messages_are_many_segments_from_their_first_on() {
    for length in u32::MAX - 20..=u32::MAX {
        for mut message in [
            Message::read_response(Stag(1), TaggedOffset(0), length),
            Message::write(Stag(1), TaggedOffset(0), length),
            Message::send(SendKind::Plain, MessageSequenceNumber::FIRST, length),
        ] {
            assert!(message.continues(1442));
            assert_eq!(message.next_ulpdu_len(1442), 1442);
            let first = message.next_segment(1442).unwrap();
            assert_eq!((first.ulpdu_len(), first.last), (1442, false));
        }
    }
}

#[test]
fn a_sink_offset_that_wraps_is_the_peers_business() {
    let cut = segments(Message::read_response(Stag(1), TaggedOffset(u64::MAX), 200), 128);
    assert_eq!(cut[1].header()[6..14], 113u64.to_be_bytes());
}

#[test]
fn every_header_fits_the_smallest_limit() {
    let failed = crate::terminate::FailedSegment::of(&{
        let request = ReadRequest::default();
        let mut message = Message::read_request(&request, MessageSequenceNumber::FIRST);
        message.next_segment(128).unwrap().header().to_vec()
    });
    let terminate = crate::terminate::terminate_for(crate::Fault::ReadAccess, failed);
    let cut = segments(Message::terminate(&terminate), 128);
    assert_eq!((cut.len(), cut[0].header().len(), cut[0].payload_len), (1, LONGEST_HEADER, 0));
    assert_eq!(LONGEST_HEADER, 70);
}

/// RFC 5041 §5.1: the segments of a message differ only in the last flag and the offset. So a Write has one buffer, and
/// a Send one number.
#[test]
fn all_segments_of_a_message_name_the_same_buffer() {
    let number = MessageSequenceNumber(0x1234_5678);
    let messages = [
        Message::write(Stag(0x0a0b_0c0d), TaggedOffset(0x1_0000_0000), 1000),
        Message::read_response(Stag(0x0a0b_0c0d), TaggedOffset(u64::MAX - 500), 1000),
        Message::send(SendKind::Plain, number, 1000),
        Message::send(SendKind::Solicited, number, 1000),
        Message::send(SendKind::Invalidate(Stag(0x0a0b_0c0d)), number, 1000),
        Message::send(SendKind::SolicitedInvalidate(Stag(0x0a0b_0c0d)), number, 1000),
        Message::commit_request(62, number),
    ];
    for message in messages {
        let opcode = message.opcode();
        let cut = segments(message, 128);
        assert!(cut.len() > 5, "{opcode:?}");
        let first = cut[0].header().to_vec();
        let tagged = first[0] & 0x80 != 0;
        assert_eq!(tagged, matches!(opcode, Opcode::Write | Opcode::ReadResponse));
        // STag, or queue and number; RDMAP's fields precede them.
        let same = if tagged { 1..6 } else { 1..14 };
        for segment in &cut {
            let header = segment.header();
            assert_eq!(header[same.clone()], first[same.clone()], "{opcode:?} at {}", segment.payload_offset);
            let flags = if segment.last { first[0] | 0x40 } else { first[0] };
            assert_eq!(header[0], flags, "{opcode:?} at {}", segment.payload_offset);
        }
    }
}
