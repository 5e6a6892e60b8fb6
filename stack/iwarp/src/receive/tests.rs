use uwarp_wire::ddp::MessageSequenceNumber;

use super::*;
use crate::opcode::TABLE;
use crate::stream::tests::{initiator, read, responder, single};
use crate::transmit::{Message, SendKind};

const FIRST: MessageSequenceNumber = MessageSequenceNumber::FIRST;

fn tagged(opcode: Opcode, last: bool, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let control = Control::new(opcode);
    let header = TaggedHeader { last, control, stag: Stag(stag), offset: TaggedOffset(offset) };
    [&header.to_octets(), payload].concat()
}

/// An untagged segment, which the caller can change before it is encoded.
fn untagged(opcode: Opcode, queue: u32, payload: &[u8], change: impl FnOnce(&mut UntaggedHeader)) -> Vec<u8> {
    let mut header = UntaggedHeader {
        last: true,
        control: Control::new(opcode),
        invalidate_stag: Stag(0),
        queue: QueueNumber(queue),
        message_sequence_number: FIRST,
        message_offset: 0,
    };
    change(&mut header);
    [&header.to_octets(), payload].concat()
}

fn request() -> [u8; 28] {
    read(4096).to_octets()
}

/// Every fault of this layer, each caused by a segment on a stream with two outstanding reads of 8 octets and room for
/// one inbound read.
#[test]
fn each_error_row_is_found() {
    use Fault as F;
    use Opcode as O;
    let send = |change: fn(&mut UntaggedHeader)| untagged(O::Send, 0, b"abc", change);
    let read_request = |change: fn(&mut UntaggedHeader)| untagged(O::ReadRequest, 1, &request(), change);
    let terminate = |change: fn(&mut UntaggedHeader)| untagged(O::Terminate, 2, &[0x12, 5, 0, 0], change);
    let response = |last, stag, offset, len: usize| tagged(O::ReadResponse, last, stag, offset, &vec![0; len]);
    let (stag, offset) = (0x0a0b_0c0d, 0x2000);
    let mut wrapping_read = request();
    wrapping_read[20..28].fill(0xff);
    let with_first_octets = |mut ulpdu: Vec<u8>, first: u8, second: u8| {
        ulpdu[0] = first;
        ulpdu[1] = second;
        ulpdu
    };
    let write = tagged(O::Write, true, 1, 0, b"abc");

    let cases: Vec<(&str, Vec<u8>, Result<(), Fault>)> = vec![
        // A ULPDU without a DDP header.
        ("empty ULPDU", vec![], Err(F::SegmentTooShort)),
        ("13 octets, tagged", write[..13].to_vec(), Err(F::SegmentTooShort)),
        ("17 octets, untagged", send(|_| ())[..17].to_vec(), Err(F::SegmentTooShort)),
        // DDP-4.1: version, reserved bits.
        ("tagged, DV 0", with_first_octets(write.clone(), 0xc0, 0x40), Err(F::TaggedVersion)),
        ("tagged, DV 3", with_first_octets(write.clone(), 0xc3, 0x40), Err(F::TaggedVersion)),
        ("untagged, DV 2", with_first_octets(send(|_| ()), 0x42, 0x43), Err(F::UntaggedVersion)),
        ("DDP reserved bits", with_first_octets(write.clone(), 0xfd, 0x40), Ok(())),
        ("RDMAP reserved bits", with_first_octets(write.clone(), 0xc1, 0x70), Ok(())),
        // DDP-7.1, tagged.
        ("wrap by one octet", tagged(O::Write, true, 1, u64::MAX - 1, b"abc"), Err(F::TaggedWrap)),
        ("up to the last octet", tagged(O::Write, true, 1, u64::MAX - 2, b"abc"), Ok(())),
        ("nothing at the end", tagged(O::Write, true, 0, u64::MAX, b""), Ok(())),
        // DDP-7.1, untagged.
        ("queue 3 without its features", untagged(O::AtomicResponse, 3, &[0; 12], |_| ()), Err(F::InvalidQueue)),
        ("queue 7", untagged(O::Send, 7, b"", |_| ()), Err(F::InvalidQueue)),
        ("queue 2^32-1", untagged(O::Send, u32::MAX, b"", |_| ()), Err(F::InvalidQueue)),
        ("Send 0", send(|h| h.message_sequence_number.0 = 0), Err(F::InvalidMessageSequenceNumber)),
        ("Send 2 first", send(|h| h.message_sequence_number.0 = 2), Err(F::InvalidMessageSequenceNumber)),
        ("Read 2 first", read_request(|h| h.message_sequence_number.0 = 2), Err(F::InvalidMessageSequenceNumber)),
        ("Terminate 2", terminate(|h| h.message_sequence_number.0 = 2), Err(F::InvalidMessageSequenceNumber)),
        ("Send at offset 1", send(|h| h.message_offset = 1), Err(F::InvalidMessageOffset)),
        ("Read at offset 4", read_request(|h| h.message_offset = 4), Err(F::InvalidMessageOffset)),
        ("Terminate at offset 4", terminate(|h| h.message_offset = 4), Err(F::InvalidMessageOffset)),
        ("largest request", untagged(O::ReadRequest, 1, &[0; 1044], |_| ()), Err(F::WrongLength)),
        ("larger request", untagged(O::ReadRequest, 1, &[0; 1045], |_| ()), Err(F::MessageTooLong)),
        ("Terminate of 53 octets", untagged(O::Terminate, 2, &[0; 53], |_| ()), Err(F::MessageTooLong)),
        // RDMAP-7.2: version and opcode.
        ("RV 0", with_first_octets(write.clone(), 0xc1, 0x00), Err(F::RdmapVersion)),
        ("RV 2", with_first_octets(send(|_| ()), 0x41, 0x83), Err(F::RdmapVersion)),
        ("RV 3, unknown opcode", with_first_octets(send(|_| ()), 0x41, 0xcf), Err(F::RdmapVersion)),
        ("opcode E", with_first_octets(send(|_| ()), 0x41, 0x4e), Err(F::UnexpectedOpcode)),
        ("opcode F, tagged", with_first_octets(write.clone(), 0xc1, 0x4f), Err(F::UnexpectedOpcode)),
        ("tagged Send", tagged(O::Send, true, 1, 0, b""), Err(F::UnexpectedOpcode)),
        ("tagged Read Request", tagged(O::ReadRequest, true, 1, 0, &request()), Err(F::UnexpectedOpcode)),
        ("untagged Write", untagged(O::Write, 0, b"", |_| ()), Err(F::UnexpectedOpcode)),
        ("untagged Read Response", untagged(O::ReadResponse, 1, b"", |_| ()), Err(F::UnexpectedOpcode)),
        ("Immediate Data", untagged(O::Immediate, 0, &[0; 8], |_| ()), Err(F::UnexpectedOpcode)),
        ("Atomic Request", untagged(O::AtomicRequest, 1, &[0; 52], |_| ()), Err(F::UnexpectedOpcode)),
        ("Commit Request", untagged(O::CommitRequest, 1, &[0; 20], |_| ()), Err(F::UnexpectedOpcode)),
        ("Send on queue 1", untagged(O::Send, 1, b"", |_| ()), Err(F::InvalidQueue)),
        ("Send on queue 2", untagged(O::Send, 2, b"", |_| ()), Err(F::InvalidQueue)),
        ("Read Request on queue 0", untagged(O::ReadRequest, 0, &request(), |_| ()), Err(F::InvalidQueue)),
        ("Terminate on queue 1", untagged(O::Terminate, 1, &[0; 4], |_| ()), Err(F::InvalidQueue)),
        // Messages of one segment and fixed length.
        ("Read Request, L 0", read_request(|h| h.last = false), Err(F::NotOneSegment)),
        ("Terminate, L 0", terminate(|h| h.last = false), Err(F::NotOneSegment)),
        ("Read Request of 27", untagged(O::ReadRequest, 1, &[0; 27], |_| ()), Err(F::WrongLength)),
        ("Read Request of 29", untagged(O::ReadRequest, 1, &[0; 29], |_| ()), Err(F::WrongLength)),
        ("Terminate of 3", untagged(O::Terminate, 2, &[0; 3], |_| ()), Err(F::WrongLength)),
        ("wrapping Read Request", untagged(O::ReadRequest, 1, &wrapping_read, |_| ()), Err(F::ReadWrap)),
        // Read Responses against the oldest read, which is for 8 octets to 0x0a0b0c0d at 0x2000.
        ("response", response(true, stag, offset, 8), Ok(())),
        ("part of a response", response(false, stag, offset, 8), Ok(())),
        ("response to another STag", response(true, stag + 1, offset, 8), Err(F::ResponseStag)),
        ("response elsewhere", response(true, stag, offset + 1, 8), Err(F::ResponseBounds)),
        ("response too long", response(true, stag, offset, 9), Err(F::ResponseBounds)),
        ("part too long", response(false, stag, offset, 9), Err(F::ResponseBounds)),
        ("response too short", response(true, stag, offset, 7), Err(F::ResponseBounds)),
        ("empty response", response(true, stag, offset, 0), Err(F::ResponseBounds)),
        // Valid segments.
        ("Send", send(|_| ()), Ok(())),
        ("Send with a word that has no meaning", send(|h| h.invalidate_stag.0 = 0xdead), Ok(())),
        ("Read Request likewise", read_request(|h| h.invalidate_stag.0 = 0xdead), Ok(())),
        ("Terminate likewise", terminate(|h| h.invalidate_stag.0 = 0xdead), Ok(())),
    ];
    for (name, ulpdu, expected) in cases {
        let mut stream = initiator(1, 2);
        for _ in 0..2 {
            stream.try_begin_read(&read(8)).unwrap();
        }
        let found = stream.receive(&ulpdu).map(drop);
        assert_eq!(found, expected, "{name}");
        if let Err(fault) = found {
            let terminate = single(stream.fail(fault, Some(&ulpdu)).unwrap(), &[]);
            assert_eq!(stream.receive(&send(|_| ())), Ok(Delivery::Ignored), "{name}: nothing is delivered behind it");
            assert_eq!(terminate[18..20], [fault.row().layer << 4 | fault.row().error_type, fault.row().code]);
        }
    }
}

#[test]
fn a_response_without_a_read_is_unexpected() {
    let mut stream = initiator(1, 1);
    let response = tagged(Opcode::ReadResponse, true, 1, 0, b"x");
    assert_eq!(stream.receive(&response), Err(Fault::ResponseUnexpected));
}

#[test]
fn more_reads_than_agreed_find_no_buffer() {
    let mut stream = initiator(0, 0);
    let ulpdu = untagged(Opcode::ReadRequest, 1, &request(), |_| ());
    assert_eq!(stream.receive(&ulpdu), Err(Fault::NoBuffer));
    // A probe for an extension still learns that it is absent.
    let mut stream = initiator(0, 0);
    let probe = untagged(Opcode::AtomicRequest, 1, &[0; 52], |_| ());
    assert_eq!(stream.receive(&probe), Err(Fault::UnexpectedOpcode));
}

#[test]
fn more_atomics_than_agreed_find_no_buffer() {
    let features = crate::opcode::Features { atomics: true, ..Default::default() };
    let mut stream = Stream::new(&crate::stream::tests::parameters(crate::startup::Role::Initiator, 1, 0), features);
    let atomic = |number| {
        untagged(Opcode::AtomicRequest, 1, &[0; 52], |h| {
            h.message_sequence_number.0 = number;
        })
    };
    assert!(matches!(stream.receive(&atomic(1)), Ok(Delivery::AtomicRequest(_))), "the first has a slot");
    // A read has a slot of its own.
    let also = untagged(Opcode::ReadRequest, 1, &request(), |h| h.message_sequence_number.0 = 2);
    assert!(matches!(stream.receive(&also), Ok(Delivery::ReadRequest(_))), "the read has a slot");
    assert_eq!(stream.receive(&atomic(3)), Err(Fault::NoBuffer));
}

#[test]
fn a_segment_that_was_only_inspected_has_changed_nothing() {
    let features = crate::opcode::Features { immediate: true, atomics: true, commit: true, infiniband: false };
    let parameters = crate::stream::tests::parameters(crate::startup::Role::Initiator, 2, 1);
    let mut stream = Stream::new(&parameters, features);
    stream.try_begin_read(&read(8)).unwrap();
    let (stag, offset) = (read(8).sink_stag.0, read(8).sink_offset.0);
    let numbered = |opcode, queue, payload: &[u8], number: u32, at: u32, last| {
        untagged(opcode, queue, payload, |h| {
            (h.message_sequence_number.0, h.message_offset, h.last) = (number, at, last);
        })
    };
    let segments = [
        (numbered(Opcode::Send, 0, b"whole", 1, 0, true), Some(1)),
        (numbered(Opcode::SendSolicited, 0, b"first", 2, 0, false), Some(2)),
        (numbered(Opcode::SendSolicited, 0, b"last", 2, 5, true), None),
        (numbered(Opcode::Immediate, 0, &[7; 8], 3, 0, true), Some(3)),
        (tagged(Opcode::Write, false, 1, 0, b"first"), None),
        (tagged(Opcode::Write, true, 1, 5, b"last"), None),
        (tagged(Opcode::ReadResponse, false, stag, offset, b"abcd"), None),
        (tagged(Opcode::ReadResponse, true, stag, offset + 4, b"efgh"), None),
        (numbered(Opcode::ReadRequest, 1, &request(), 1, 0, true), None),
        (numbered(Opcode::AtomicRequest, 1, &[0; 52], 2, 0, true), None),
        (numbered(Opcode::CommitRequest, 1, &[0; 10], 3, 0, false), None),
        (numbered(Opcode::CommitRequest, 1, &[0; 10], 3, 10, true), None),
        (numbered(Opcode::Terminate, 2, &[0x12, 5, 0, 0], 1, 0, true), None),
    ];
    // What came before is not the first FPDU.
    stream.receive(&tagged(Opcode::Write, true, 1, 0, b"")).unwrap();
    for (segment, number) in &segments {
        let before = format!("{stream:?}");
        let first = stream.inspect(segment).unwrap();
        if let Some(number) = number {
            assert_eq!(stream.await_receive(), *number);
        }
        assert_eq!(format!("{stream:?}"), before);
        assert_eq!(stream.receive(segment), Ok(first));
        assert_ne!(format!("{stream:?}"), before);
    }
}

#[test]
fn the_invalidate_word_of_a_send_without_invalidation_is_not_looked_at() {
    let mut stream = responder();
    let part = |offset: u32, last, word| {
        untagged(Opcode::Send, 0, b"abcd", |h| {
            (h.message_offset, h.last, h.invalidate_stag) = (offset, last, Stag(word));
        })
    };
    for (offset, last, word) in [(0, false, 0xdead), (4, true, 0xbeef)] {
        match stream.receive(&part(offset, last, word)) {
            Ok(Delivery::Send { kind, last: found, .. }) => assert_eq!((kind, found), (SendKind::Plain, last)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn messages_of_one_kind_do_not_interleave() {
    let part = |opcode, stag| tagged(opcode, false, stag, 0x2000, b"abcd");
    let open = |first: &[u8]| {
        let mut stream = initiator(1, 2);
        stream.try_begin_read(&read(8)).unwrap();
        stream.receive(first).unwrap();
        stream
    };
    let (write, response) = (part(Opcode::Write, 5), part(Opcode::ReadResponse, 0x0a0b_0c0d));
    assert_eq!(open(&write).receive(&part(Opcode::Write, 6)), Err(Fault::Interleaved));
    assert_eq!(open(&write).receive(&response), Err(Fault::Interleaved));
    assert_eq!(open(&response).receive(&write), Err(Fault::Interleaved));
    assert!(open(&write).receive(&write).is_ok(), "each segment of a Write is judged by itself");

    let send = untagged(Opcode::SendInvalidate, 0, b"abcd", |h| {
        h.last = false;
        h.invalidate_stag = Stag(9);
    });
    let next = |opcode, number, offset, stag| {
        untagged(opcode, 0, b"ef", |h| {
            h.message_sequence_number.0 = number;
            h.message_offset = offset;
            h.invalidate_stag = Stag(stag);
        })
    };
    let after = |ulpdu: Vec<u8>| open(&send).receive(&ulpdu).map(drop);
    assert_eq!(after(next(Opcode::SendInvalidate, 1, 4, 9)), Ok(()));
    assert_eq!(after(next(Opcode::SendInvalidate, 1, 4, 8)), Err(Fault::Interleaved));
    assert_eq!(after(next(Opcode::Send, 1, 4, 9)), Err(Fault::Interleaved));
    assert_eq!(after(next(Opcode::SendInvalidate, 2, 0, 9)), Err(Fault::Interleaved));
    assert_eq!(after(next(Opcode::SendInvalidate, 3, 0, 9)), Err(Fault::InvalidMessageSequenceNumber));
    assert_eq!(after(next(Opcode::SendInvalidate, 1, 0, 9)), Err(Fault::InvalidMessageOffset));
    assert_eq!(after(next(Opcode::SendInvalidate, 1, 6, 9)), Err(Fault::InvalidMessageOffset));
    // Messages of other kinds may come in between.
    assert_eq!(after(write.clone()), Ok(()));
    assert_eq!(after(untagged(Opcode::ReadRequest, 1, &request(), |_| ())), Ok(()));
    assert_eq!(after(untagged(Opcode::Terminate, 2, &[0x12, 5, 0, 0], |_| ())), Ok(()));
}

#[test]
fn a_send_says_where_it_begins_and_how_it_ends() {
    let kinds = [
        (SendKind::Plain, false, None),
        (SendKind::Solicited, true, None),
        (SendKind::Invalidate(Stag(77)), false, Some(Stag(77))),
        (SendKind::SolicitedInvalidate(Stag(78)), true, Some(Stag(78))),
    ];
    for (kind, is_solicited, invalidates) in kinds {
        assert_eq!((kind.is_solicited(), kind.invalidates()), (is_solicited, invalidates));
    }
    let mut stream = initiator(1, 1);
    let payload: Vec<u8> = (0..200).collect();
    for (number, (kind, ..)) in (1..).zip(kinds) {
        let mut message = Message::send(kind, MessageSequenceNumber(number), 200);
        let mut seen = Vec::new();
        while let Some(segment) = message.next_segment(128) {
            let range = segment.payload_offset as usize..(segment.payload_offset + segment.payload_len) as usize;
            let ulpdu = [segment.header(), &payload[range]].concat();
            match stream.receive(&ulpdu).unwrap() {
                Delivery::Send { first, kind: found, message_offset, payload, last } => {
                    assert_eq!(first, seen.is_empty());
                    assert_eq!(message_offset as usize, seen.len());
                    seen.extend_from_slice(payload);
                    assert_eq!((found, last), (kind, segment.last));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, payload);
    }
}

#[test]
fn numbers_wrap_to_zero() {
    let mut stream = initiator(4, 1);
    stream.expected.send = MessageSequenceNumber(u32::MAX);
    stream.expected.request = MessageSequenceNumber(u32::MAX);
    for number in [u32::MAX, 0, 1] {
        let ulpdu = untagged(Opcode::Send, 0, b"x", |h| h.message_sequence_number.0 = number);
        assert!(stream.receive(&ulpdu).is_ok(), "Send {number}");
        let ulpdu = untagged(Opcode::ReadRequest, 1, &request(), |h| h.message_sequence_number.0 = number);
        assert!(stream.receive(&ulpdu).is_ok(), "Read {number}");
    }
}

#[test]
fn a_send_longer_than_any_message_is_too_long() {
    let mut stream = initiator(1, 1);
    stream.open.send = Some(OpenSend { kind: SendKind::Plain, received: u32::MAX - 2 });
    let part = |len| untagged(Opcode::Send, 0, &vec![0; len], |h| h.message_offset = u32::MAX - 2);
    assert_eq!(stream.clone().receive(&part(3)), Err(Fault::MessageTooLong));
    assert!(matches!(stream.receive(&part(2)), Ok(Delivery::Send { last: true, .. })));
}

#[test]
fn a_read_of_nothing_is_not_checked_on_either_side() {
    let mut stream = initiator(1, 1);
    let mut octets = read(0).to_octets();
    octets[16..].fill(0xff);
    let ulpdu = untagged(Opcode::ReadRequest, 1, &octets, |_| ());
    assert!(matches!(stream.receive(&ulpdu), Ok(Delivery::ReadRequest(_))));

    stream.try_begin_read(&read(0)).unwrap();
    let response = tagged(Opcode::ReadResponse, true, 0xffff_ffff, u64::MAX, b"");
    match stream.receive(&response).unwrap() {
        Delivery::ReadResponse { payload: [], completes: true, .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_comes_in_parts_in_order() {
    let mut stream = initiator(1, 2);
    stream.try_begin_read(&read(8)).unwrap();
    stream.try_begin_read(&read(2)).unwrap();
    let part = |last, offset, payload: &[u8]| tagged(Opcode::ReadResponse, last, 0x0a0b_0c0d, offset, payload);
    let mut step = |ulpdu: Vec<u8>| match stream.receive(&ulpdu) {
        Ok(Delivery::ReadResponse { completes, .. }) => Ok(completes),
        Err(fault) => Err(fault),
        other => panic!("{other:?}"),
    };
    assert_eq!(step(part(false, 0x2000, b"abc")), Ok(false));
    assert_eq!(step(part(false, 0x2003, b"defgh")), Ok(false));
    assert_eq!(step(part(true, 0, b"")), Ok(true), "the last part may be empty");
    assert_eq!(step(part(false, 0x2000, b"i")), Ok(false));
    assert_eq!(step(part(true, 0x2002, b"j")), Err(Fault::ResponseBounds), "a gap");
}

#[test]
fn only_two_opcodes_are_tagged() {
    for row in &TABLE {
        let found = initiator(1, 1).receive(&tagged(row.opcode, true, 1, 0, b"")).map(drop);
        match row.opcode {
            Opcode::Write => assert_eq!(found, Ok(())),
            Opcode::ReadResponse => assert_eq!(found, Err(Fault::ResponseUnexpected)),
            _ => assert_eq!(found, Err(Fault::UnexpectedOpcode), "{}", row.name),
        }
    }
}

#[test]
fn extensions_that_are_on_but_have_nothing_outstanding_find_no_buffer() {
    use crate::opcode::Features;
    use crate::startup::Role;
    let features = Features { atomics: true, ..Features::default() };
    let parameters = crate::stream::tests::parameters(Role::Initiator, 1, 1);
    let mut stream = Stream::new(&parameters, features);
    let ulpdu = untagged(Opcode::AtomicResponse, 3, &[0; 12], |_| ());
    assert_eq!(stream.receive(&ulpdu), Err(Fault::NoBuffer));
}

#[test]
fn a_terminate_may_be_the_first_fpdu() {
    let mut stream = responder();
    let ulpdu = untagged(Opcode::Terminate, 2, &[0x20, 7, 0, 0], |_| ());
    assert!(matches!(stream.receive(&ulpdu), Ok(Delivery::Terminate(_))));
}

/// RFC 5040 §5.4: there is room for a Terminate whatever else waits.
#[test]
fn a_terminate_is_taken_though_every_slot_for_requests_is() {
    let mut stream = initiator(1, 1);
    let first = untagged(Opcode::ReadRequest, 1, &request(), |_| ());
    assert!(matches!(stream.receive(&first), Ok(Delivery::ReadRequest(_))), "there is one slot");
    let second = untagged(Opcode::ReadRequest, 1, &request(), |h| h.message_sequence_number.0 = 2);
    assert_eq!(stream.clone().receive(&second), Err(Fault::NoBuffer));
    assert!(stream.try_begin_read(&read(8)).is_some() && stream.try_begin_read(&read(8)).is_none());
    let terminate = untagged(Opcode::Terminate, 2, &[0x12, 5, 0, 0], |_| ());
    assert!(matches!(stream.receive(&terminate), Ok(Delivery::Terminate(_))));
}

#[test]
fn only_a_responder_takes_its_first_fpdu_for_a_refused_start_up() {
    // MPA's code 6, or what siw sends for an unexpected opcode.
    let ulpdu = untagged(Opcode::Terminate, 2, &[0x20, 6, 0, 0], |_| ());
    let of_siw = |stream: &mut Stream| match stream.receive(&ulpdu) {
        Ok(Delivery::Terminate(received)) => received.siw_bit_order,
        other => panic!("{other:?}"),
    };
    assert!(!of_siw(&mut responder()));
    assert!(of_siw(&mut initiator(1, 1)));
    let mut later = responder();
    later.receive(&tagged(Opcode::Write, true, 1, 0, b"")).unwrap();
    assert!(of_siw(&mut later));
}
