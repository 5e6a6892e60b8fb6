use super::*;

/// Read Request of 4096 octets, message 1 of queue 1.
const READ_REQUEST: [u8; 46] = [
    0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 0, 0, 0x20, 0, 0,
    0, 0x10, 0, 1, 2, 3, 4, 0x80, 0, 0, 0, 0, 0, 0x10, 0,
];

fn octets(terminate: &Terminate) -> Vec<u8> {
    let mut out = vec![0; terminate.emit_len()];
    terminate.emit(&mut out);
    out
}

fn read(message: &[u8]) -> ReceivedTerminate {
    ReceivedTerminate::parse(message, true).unwrap()
}

#[test]
fn every_fault_sends_the_parts_of_its_row() {
    let failed = FailedSegment::of(&READ_REQUEST);
    for row in crate::fault::TABLE {
        let octets = octets(&terminate_for(row.fault, failed));
        assert_eq!(octets[..2], [row.layer << 4 | row.error_type, row.code], "{:?}", row.fault);
        let (flags, len) = match row.headers {
            Headers::None => (0x00, 4),
            Headers::Ddp => (0xc0, 24),
            Headers::DdpAndReadRequest => (0xe0, 52),
        };
        assert_eq!((octets[2], octets[3]), (flags, 0), "{:?}", row.fault);
        assert_eq!(octets.len(), len, "{:?}", row.fault);
        if len > 4 {
            assert_eq!(octets[4..6], [0, 46]);
            assert_eq!(octets[6..], READ_REQUEST[..len - 6]);
        }
    }
}

#[test]
fn without_a_segment_no_fault_sends_headers() {
    for row in crate::fault::TABLE {
        assert_eq!(octets(&terminate_for(row.fault, None)).len(), 4);
        assert_eq!(octets(&terminate_for(row.fault, FailedSegment::of(&[0x41]))).len(), 4);
    }
}

#[test]
fn a_tagged_segment_sends_fourteen_octets_of_header() {
    let mut segment = vec![0xc1, 0x40, 0, 1, 2, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe];
    segment.extend_from_slice(b"hello");
    let octets = octets(&terminate_for(Fault::TaggedWrap, FailedSegment::of(&segment)));
    assert_eq!(octets[..6], [0x11, 0x03, 0xc0, 0, 0, 19]);
    assert_eq!(octets[6..], segment[..14]);
}

#[test]
fn what_is_sent_is_read_back() {
    let failed = FailedSegment::of(&READ_REQUEST);
    for row in crate::fault::TABLE {
        let terminate = terminate_for(row.fault, failed);
        let received = read(&octets(&terminate));
        assert_eq!(received, ReceivedTerminate { terminate, siw_bit_order: false });
    }
}

#[test]
fn reserved_bits_are_ignored() {
    let mut message = octets(&terminate_for(Fault::MessageTooLong, FailedSegment::of(&READ_REQUEST)));
    message[2] |= 0x1f;
    message[3] = 0xff;
    let received = read(&message);
    assert_eq!(received.terminate, terminate_for(Fault::MessageTooLong, FailedSegment::of(&READ_REQUEST)));
    // Also if no header follows and the reserved bits look like siw's flags.
    let received = read(&[0x20, 0x06, 0x03, 0]);
    assert_eq!((received.terminate.layer, received.siw_bit_order), (TerminateLayer::Mpa, false));
}

#[test]
fn zeros_behind_a_terminate_without_headers_are_accepted() {
    let mut message = vec![0; 52];
    message[0] = 0x02;
    message[1] = 0x06;
    let received = read(&message);
    assert_eq!(received.terminate, Terminate::new(TerminateLayer::Rdmap, 2, 6));
    assert!(!received.siw_bit_order);
}

#[test]
fn the_bit_order_of_siw_is_put_right() {
    // A Send without a receive: layer 1, type 2, code 2, M and D, then length and header.
    let mut message = vec![0x21, 0x02, 0x03, 0x00, 0, 100];
    message.extend_from_slice(&READ_REQUEST[..18]);
    let received = read(&message);
    assert!(received.siw_bit_order);
    assert_eq!(received.terminate.layer, TerminateLayer::Ddp);
    assert_eq!((received.terminate.error_type, received.terminate.code), (2, 2));
    assert_eq!(received.terminate.segment_length, Some(100));
    assert_eq!(received.terminate.ddp_header.unwrap().as_slice(), &READ_REQUEST[..18]);
    assert_eq!(received.status(), RemoteStatus::RemoteInvalidRequest);
    // "Unexpected opcode" is also a valid code of MPA; the header reveals the order.
    message[0] = 0x20;
    message[1] = 0x06;
    let received = read(&message);
    assert!(received.siw_bit_order);
    assert_eq!(received.terminate.layer, TerminateLayer::Rdmap);
    assert_eq!((received.terminate.error_type, received.terminate.code), (2, 6));
    // A CRC error has no header, but the word is invalid in the documents' order.
    let received = read(&[0x02, 0x02, 0, 0]);
    assert!(received.siw_bit_order);
    assert_eq!((received.terminate.layer, received.terminate.code), (TerminateLayer::Mpa, 2));
    assert_eq!(received.status(), RemoteStatus::LowerLayer);
}

#[test]
fn a_start_up_is_refused_in_the_first_fpdu_of_an_initiator_only() {
    // siw's answer to an atomic, verbatim: no flags, no header.
    for (code, in_rdmap) in [(6, true), (7, true), (5, false), (2, false)] {
        let message = [0x20, code, 0, 0];
        assert_eq!(read(&message).terminate.layer, TerminateLayer::Mpa);
        let later = ReceivedTerminate::parse(&message, false).unwrap();
        assert_eq!(later.siw_bit_order, in_rdmap, "{code}");
        let expected = if in_rdmap { (TerminateLayer::Rdmap, 2) } else { (TerminateLayer::Mpa, 0) };
        assert_eq!(
            (later.terminate.layer, later.terminate.error_type, later.terminate.code),
            (expected.0, expected.1, code)
        );
    }
}

#[test]
fn the_least_is_four_octets() {
    assert_eq!(ReceivedTerminate::parse(&[0x12, 0x05, 0xc0], false), None);
    let received = read(&[0x12, 0x05, 0xc0, 0]);
    assert_eq!(received.terminate.segment_length, None);
    assert_eq!(received.terminate.ddp_header, None);
}

#[test]
fn refusals_of_memory_are_told_from_other_faults() {
    let status = |octets: [u8; 4]| read(&octets).status();
    assert_eq!(status([0x01, 0x00, 0, 0]), RemoteStatus::RemoteAccess);
    assert_eq!(status([0x11, 0x01, 0, 0]), RemoteStatus::RemoteAccess);
    assert_eq!(status([0x02, 0x06, 0, 0]), RemoteStatus::RemoteInvalidRequest);
    assert_eq!(status([0x00, 0x00, 0, 0]), RemoteStatus::RemoteOperation);
    assert_eq!(status([0x20, 0x02, 0, 0]), RemoteStatus::LowerLayer);
}

#[test]
fn only_an_assigned_code_counts_as_the_bit_order_of_siw() {
    // Layer 1, type 1 reads the same in both orders: siw's flags with a header behind them decide, if the code is
    // assigned.
    for (code, of_siw) in [(0, true), (4, true), (5, false)] {
        let message = [&[0x11, code, 0x03, 0, 0, 14][..], &[0xc1; 14]].concat();
        assert_eq!(read(&message).siw_bit_order, of_siw, "{code}");
    }
}
