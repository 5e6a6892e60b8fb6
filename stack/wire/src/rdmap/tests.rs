use proptest::prelude::*;

use super::*;

fn any_read_request() -> impl Strategy<Value = ReadRequest> {
    any::<(u32, u64, u32, u32, u64)>().prop_map(|(sink_stag, sink, length, source_stag, source)| ReadRequest {
        sink_stag: Stag(sink_stag),
        sink_offset: TaggedOffset(sink),
        length,
        source_stag: Stag(source_stag),
        source_offset: TaggedOffset(source),
    })
}

fn any_terminate() -> impl Strategy<Value = Terminate> {
    ((0u8..16, 0u8..16, any::<u8>()), any::<u16>(), prop::collection::vec(any::<u8>(), 18), any_read_request(), 0u8..4)
        .prop_map(|((layer, error_type, code), length, segment, request, parts)| {
            let mut terminate = Terminate::new(TerminateLayer::from_code(layer), error_type, code);
            if parts > 0 {
                terminate.segment_length = Some(length);
            }
            if parts > 1 {
                terminate.ddp_header = TerminatedHeader::from_segment(&segment);
            }
            if parts > 2 {
                terminate.read_request = Some(request);
            }
            terminate
        })
}

proptest! {
    #[test]
    fn any_octets_parse_without_panic(octets in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = ReadRequest::parse(&octets);
        let _ = AtomicRequest::parse(&octets);
        let _ = AtomicResponse::parse(&octets);
        let _ = ImmediateData::parse(&octets);
        let _ = CommitResponse::parse(&octets);
        if let Ok(request) = CommitRequest::parse(&octets) {
            prop_assert!(request.regions().len() > 0);
        }
        if let Ok(terminate) = Terminate::parse(&octets) {
            prop_assert!(terminate.emit_len() <= octets.len());
        }
    }

    #[test]
    fn messages_survive_emit_and_parse(
        request in any_read_request(),
        numbers in any::<(u32, u32, u64, u64, u64, u64, u64)>(),
        operation in 0u8..16,
    ) {
        prop_assert_eq!(ReadRequest::parse(&request.to_octets()), Ok(request));
        let atomic = AtomicRequest {
            operation,
            request_identifier: numbers.0,
            stag: Stag(numbers.1),
            offset: TaggedOffset(numbers.2),
            add_swap_data: numbers.3,
            add_swap_mask: numbers.4,
            compare_data: numbers.5,
            compare_mask: numbers.6,
        };
        prop_assert_eq!(AtomicRequest::parse(&atomic.to_octets()), Ok(atomic));
        let response = AtomicResponse { request_identifier: numbers.0, original_value: numbers.2 };
        prop_assert_eq!(AtomicResponse::parse(&response.to_octets()), Ok(response));
        let immediate = ImmediateData(numbers.3);
        prop_assert_eq!(ImmediateData::parse(&immediate.to_octets()), Ok(immediate));
        let commit = CommitResponse { request_identifier: numbers.0, status: numbers.1 };
        prop_assert_eq!(CommitResponse::parse(&commit.to_octets()), Ok(commit));
    }

    #[test]
    fn a_commit_request_survives_emit_and_parse(
        identifier in any::<u32>(), regions in prop::collection::vec(any::<(u32, u32, u64)>(), 1..9),
    ) {
        let regions: Vec<CommitRegion> = regions
            .into_iter()
            .map(|(stag, length, offset)| CommitRegion {
                stag: Stag(stag),
                length,
                offset: TaggedOffset(offset),
            })
            .collect();
        let mut out = vec![0; CommitRequest::emit_len(regions.len())];
        let length = CommitRequest::emit(identifier, &regions, &mut out);
        prop_assert_eq!(length, out.len());
        let request = CommitRequest::parse(&out).unwrap();
        prop_assert_eq!(request.request_identifier, identifier);
        prop_assert_eq!(request.regions().collect::<Vec<_>>(), regions);
    }

    #[test]
    fn a_terminate_survives_emit_and_parse(terminate in any_terminate()) {
        let mut out = [0xaa; MAXIMUM_TERMINATE_LEN];
        let length = terminate.emit(&mut out);
        prop_assert_eq!(length, terminate.emit_len());
        prop_assert_eq!(Terminate::parse(&out[..length]), Ok(terminate));
        // The fault can be read wherever the message is cut off.
        for cut in TERMINATE_CONTROL_LEN..length {
            let short = Terminate::parse(&out[..cut]).unwrap();
            prop_assert_eq!(
                (short.layer, short.error_type, short.code),
                (terminate.layer, terminate.error_type, terminate.code)
            );
        }
    }
}

#[test]
fn operation_codes_are_those_of_the_registry() {
    for (code, opcode) in (0..).zip(Opcode::ALL) {
        assert_eq!(opcode.code(), code);
        assert_eq!(Opcode::from_code(code), Ok(opcode));
        assert_eq!(Control::new(opcode).0, 0x40 | code);
        // Reserved bits are ignored.
        assert_eq!(Control(0x70 | code).parse(), Ok(opcode));
        assert_eq!(Control(0x80 | code).parse(), Err(WireError::RdmapVersion));
        assert_eq!(Control(0x80 | code).opcode(), Ok(opcode));
    }
    assert_eq!(Control(0x4e).parse(), Err(WireError::Opcode));
    assert_eq!(Control(0x4f).parse(), Err(WireError::Opcode));
    assert_eq!(Opcode::from_code(0x10), Err(WireError::Opcode));
}

#[test]
fn messages_of_a_wrong_length_are_refused() {
    let octets = [0; 80];
    let bad = Err(WireError::MessageLength);
    assert_eq!(ReadRequest::parse(&octets[..27]).map(drop), bad);
    assert_eq!(ReadRequest::parse(&octets[..29]).map(drop), bad);
    assert_eq!(AtomicRequest::parse(&octets[..51]).map(drop), bad);
    assert_eq!(AtomicResponse::parse(&octets[..32]).map(drop), bad);
    assert_eq!(ImmediateData::parse(&octets[..9]).map(drop), bad);
    assert_eq!(CommitResponse::parse(&octets[..9]).map(drop), bad);
    for length in [0, 3, 4, 19, 21, 35] {
        assert_eq!(CommitRequest::parse(&octets[..length]).map(drop), bad, "{length}");
    }
    assert_eq!(Terminate::parse(&octets[..3]).map(drop), bad);
}

#[test]
fn only_the_registered_atomic_operations_have_a_name() {
    assert_eq!(AtomicOperation::from_code(0), Ok(AtomicOperation::FetchAdd));
    assert_eq!(AtomicOperation::from_code(1), Err(WireError::Opcode));
    assert_eq!(AtomicOperation::from_code(2), Ok(AtomicOperation::CompareSwap));
    assert_eq!(AtomicOperation::from_code(3), Err(WireError::Opcode));
}

#[test]
fn a_terminate_part_needs_the_one_before_it() {
    let mut terminate = Terminate::new(TerminateLayer::Rdmap, 1, 0);
    terminate.read_request = Some(ReadRequest::default());
    assert_eq!(terminate.emit_len(), 4);
    terminate.ddp_header = TerminatedHeader::from_segment(&[0; 18]);
    assert_eq!(terminate.emit_len(), 4);
    terminate.segment_length = Some(46);
    assert_eq!(terminate.emit_len(), MAXIMUM_TERMINATE_LEN);
    let header = terminate.ddp_header.unwrap();
    assert_eq!(header.parse(), Err(WireError::DdpVersionUntagged));
    assert_eq!(TerminatedHeader::from_segment(&[]), None);
    assert_eq!(TerminatedHeader::from_segment(&[0xc1; 13]), None);
    assert!(TerminatedHeader::from_segment(&[0xc1; 14]).is_some());
}

#[test]
fn terminates_that_announce_more_than_they_carry_are_read() {
    // M, D and R announced with a Send with Invalidate: no Read Request can follow.
    let mut octets = vec![0x01, 0x09, 0xe0, 0x00, 0x00, 0x16, 0x41, 0x44];
    octets.resize(4 + 2 + 18, 0);
    let terminate = Terminate::parse(&octets).unwrap();
    assert_eq!(terminate.segment_length, Some(0x16));
    assert!(terminate.ddp_header.is_some());
    assert_eq!(terminate.read_request, None);
    // D without M: RFC 5040 calls the length "present" then.
    octets[2] = 0x40;
    assert_eq!(Terminate::parse(&octets).unwrap().segment_length, Some(0x16));
    // Zeros instead of parts that are not announced.
    assert_eq!(Terminate::parse(&[0x20, 0x02, 0, 0, 0, 0, 0, 0]), Ok(Terminate::new(TerminateLayer::Mpa, 0, 2)));
    assert_eq!(TerminateLayer::from_code(9).code(), 9);
}
