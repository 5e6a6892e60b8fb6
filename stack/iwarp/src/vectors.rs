//! The byte-exact vectors of `tests/data/test-vectors.json`: decoded through [`crate::Stream::receive`] to their stated
//! fields, and encoded again octet for octet. The vectors of RPC-over-RDMA are tested in another crate.

use std::collections::BTreeMap;

use serde_json::Value;
use uwarp_wire::ddp::{Header, MessageSequenceNumber, QueueNumber, Stag, TaggedOffset};
use uwarp_wire::rdmap::{
    AtomicRequest, AtomicResponse, CommitRequest, CommitResponse, Opcode, ReadRequest, TerminateLayer,
};

use crate::fault::Fault;
use crate::framing::{Framed, Marked, Trailer, deframe, deframe_marked, insert_markers};
use crate::opcode::Features;
use crate::receive::Delivery;
use crate::startup::{
    Initiator, InitiatorOptions, Outcome, ReadLimits, ReadyToReceiveKinds, Responder, ResponderOptions, Revision, Role,
    StartupError,
};
use crate::stream::tests::{initiator, parameters, single};
use crate::stream::{OpenSend, Stream};
use crate::terminate::{FailedSegment, terminate_for};
use crate::transmit::{Message, SendKind};

#[derive(Clone, Debug)]
struct Vector {
    name: String,
    fields: Value,
    octets: Vec<u8>,
    ulpdu: Option<Vec<u8>>,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn vectors(layer: &str) -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/test-vectors.json");
    let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all.iter()
        .filter(|vector| vector["layer"] == layer)
        .map(|vector| Vector {
            name: vector["name"].as_str().unwrap().to_owned(),
            fields: vector["fields"].clone(),
            octets: unhex(vector["hex"].as_str().unwrap()),
            ulpdu: vector["ulpdu"].as_str().map(unhex),
        })
        .collect()
}

/// A number that is written as such or as "0x…".
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
        _ => None,
    }
}

/// The frame around a ULPDU, as a sender writes it.
fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    let mut covered = octets.clone();
    covered.extend_from_slice(Trailer::padding_octets(ulpdu.len()));
    let trailer = Trailer::new(ulpdu.len(), crc.then(|| crc32c::crc32c(&covered)));
    octets.extend_from_slice(trailer.as_bytes());
    octets
}

/// A stream in which this segment's message is next, with the earlier segments of the message already received.
fn stream_before(ulpdu: &[u8]) -> Stream {
    let features = Features { atomics: true, immediate: true, commit: true, infiniband: false };
    let header = Header::parse(ulpdu);
    // MPA's Terminates are an Initiator's, which refuses the contents of the Reply.
    let terminates = matches!(&header, Ok(Header::Untagged(header)) if header.queue == QueueNumber::TERMINATE);
    let role = if terminates { Role::Responder } else { Role::Initiator };
    let mut stream = Stream::new(&parameters(role, 16, 16), features);
    match header {
        Ok(Header::Untagged(header)) => match header.queue {
            QueueNumber::SEND => {
                stream.expected.send = header.message_sequence_number;
                if header.message_offset != 0 {
                    let kind = match header.control.opcode().unwrap() {
                        Opcode::Send => SendKind::Plain,
                        other => panic!("{other:?} has one segment in all vectors"),
                    };
                    stream.open.send = Some(OpenSend { kind, received: header.message_offset });
                }
            }
            QueueNumber::READ_REQUEST => stream.expected.request = header.message_sequence_number,
            QueueNumber::ATOMIC_RESPONSE => {
                // The request that it answers: our identifiers are the sequence numbers.
                let identifier = u32::from_be_bytes(*ulpdu[18..].first_chunk().unwrap());
                stream.set_next_request(identifier);
                if header.control.opcode() == Ok(Opcode::CommitResponse) {
                    stream.try_begin_commit(1).unwrap();
                } else {
                    let request = AtomicRequest::parse(&[0; 52]).unwrap();
                    stream.try_begin_atomic(&request).unwrap();
                }
                stream.expected.response = header.message_sequence_number;
            }
            _ => {}
        },
        Ok(Header::Tagged(header)) if header.control.opcode() == Ok(Opcode::ReadResponse) => {
            let request = ReadRequest {
                sink_stag: header.stag,
                sink_offset: header.offset,
                length: (ulpdu.len() - 14) as u32,
                ..ReadRequest::default()
            };
            stream.try_begin_read(&request).unwrap();
        }
        _ => {}
    }
    stream
}

/// The expected fault of a negative vector, or of an opcode that is disabled.
fn expected_fault(name: &str) -> Option<Fault> {
    Some(match name {
        "opcode-e-BAD" => Fault::UnexpectedOpcode,
        "rv-2-BAD" => Fault::RdmapVersion,
        "write-to-wrap-BAD" => Fault::TaggedWrap,
        "dv-0-BAD" => Fault::UntaggedVersion,
        "atomic-swap-req-RESERVED" => Fault::UnexpectedOpcode,
        // Alignment is that of the address, which is checked with the memory.
        "atomic-misaligned-BAD" => return None,
        name => {
            assert!(!name.ends_with("BAD") && !name.ends_with("RESERVED"), "{name}: what is expected?");
            return None;
        }
    })
}

/// Checks one delivery against the stated fields and returns the message that encodes the segment again.
fn check(vector: &Vector, ulpdu: &[u8], delivery: Delivery<'_>) -> (Message, Vec<u8>) {
    let name = &vector.name;
    let field = |key: &str| number(&vector.fields[key]);
    let is = |key: &str, value: u64| {
        if let Some(stated) = field(key) {
            assert_eq!(value, stated, "{name}: {key}");
        }
    };
    match delivery {
        Delivery::Write { stag, offset, payload, last } => {
            is("opcode", 0);
            is("STag", u64::from(stag.0));
            is("TO", offset.0);
            is("L", u64::from(last));
            is("payload", payload.len() as u64);
            (Message::write(stag, offset, payload.len() as u32 + u32::from(!last)), payload.to_vec())
        }
        Delivery::ReadResponse { sink_stag, sink_offset, payload, completes } => {
            is("opcode", 2);
            is("STag", u64::from(sink_stag.0));
            is("TO", sink_offset.0);
            assert!(completes, "{name}");
            (Message::read_response(sink_stag, sink_offset, payload.len() as u32), payload.to_vec())
        }
        Delivery::Send { first, kind, message_offset, payload, last } => {
            is("MO", u64::from(message_offset));
            is("L", u64::from(last));
            assert_eq!(first, message_offset == 0, "{name}");
            let number = MessageSequenceNumber(u32::from_be_bytes(ulpdu[10..14].try_into().unwrap()));
            is("MSN", u64::from(number.0));
            let length = message_offset + payload.len() as u32;
            is("opcode", u64::from(kind.opcode().code()));
            is("InvSTag", u64::from(kind.word().0));
            let mut message = Message::send(kind, number, length + u32::from(!last));
            if message_offset != 0 {
                message.cut_segment(message_offset);
            }
            (message, payload.to_vec())
        }
        Delivery::ReadRequest(inbound) => {
            let request = inbound.request;
            is("opcode", 1);
            is("SinkSTag", u64::from(request.sink_stag.0));
            is("SinkTO", request.sink_offset.0);
            is("RDMARDSZ", u64::from(request.length));
            is("SrcSTag", u64::from(request.source_stag.0));
            is("SrcTO", request.source_offset.0);
            (Message::read_request(&request, MessageSequenceNumber(field("MSN").unwrap_or(1) as u32)), Vec::new())
        }
        Delivery::Immediate { data, solicited } => {
            is("opcode", 8 + u64::from(solicited));
            let number = MessageSequenceNumber(field("MSN").unwrap() as u32);
            (Message::immediate(data, solicited, number), Vec::new())
        }
        Delivery::AtomicRequest(inbound) => {
            let request = inbound.request;
            is("opcode", 10);
            is("AOpCode", u64::from(request.operation));
            is("ReqId", u64::from(request.request_identifier));
            is("RemoteSTag", u64::from(request.stag.0));
            is("RemoteTO", request.offset.0);
            (Message::atomic_request(&request, MessageSequenceNumber(field("MSN").unwrap() as u32)), Vec::new())
        }
        Delivery::AtomicResponse { original_value } => {
            is("opcode", 11);
            let identifier = u32::from_be_bytes(*ulpdu[18..].first_chunk().unwrap());
            is("OrigReqId", u64::from(identifier));
            is("OrigValue", original_value);
            let response = AtomicResponse { request_identifier: identifier, original_value };
            (Message::atomic_response(&response, MessageSequenceNumber(field("MSN").unwrap() as u32)), Vec::new())
        }
        Delivery::CommitRequest(commit) => {
            is("opcode", 12);
            is("ReqId", u64::from(commit.head.request_identifier));
            let stated = vector.fields["regions"].as_array().unwrap();
            let regions: Vec<_> = commit.regions().collect();
            assert_eq!(regions.len(), stated.len(), "{name}");
            for (region, stated) in regions.iter().zip(stated) {
                assert_eq!(Some(u64::from(region.stag.0)), number(&stated["STag"]), "{name}");
                assert_eq!(Some(u64::from(region.length)), number(&stated["Length"]), "{name}");
                assert_eq!(Some(region.offset.0), number(&stated["TO"]), "{name}");
            }
            let mut payload = vec![0; CommitRequest::emit_len(regions.len())];
            CommitRequest::emit(commit.head.request_identifier, &regions, &mut payload);
            let sequence_number = MessageSequenceNumber(field("MSN").unwrap() as u32);
            // The two forms in which it can be sent.
            let one = Message::commit_of(&regions[0], commit.head.request_identifier, sequence_number);
            assert_eq!(single(one, &[]), ulpdu, "{name}");
            (Message::commit_request(regions.len() as u32, sequence_number), payload)
        }
        Delivery::CommitResponse { status } => {
            is("opcode", 13);
            let request_identifier = u32::from_be_bytes(*ulpdu[18..].first_chunk().unwrap());
            is("OrigReqId", u64::from(request_identifier));
            is("Status", u64::from(status));
            let response = CommitResponse { request_identifier, status };
            (Message::commit_response(&response, MessageSequenceNumber(field("MSN").unwrap() as u32)), Vec::new())
        }
        Delivery::Terminate(received) => {
            assert!(!received.siw_bit_order, "{name}");
            let terminate = received.terminate;
            is("layer", u64::from(terminate.layer.code()));
            is("etype", u64::from(terminate.error_type));
            is("ecode", u64::from(terminate.code));
            is("M", u64::from(terminate.segment_length.is_some()));
            is("D", u64::from(terminate.ddp_header.is_some()));
            is("R", u64::from(terminate.read_request.is_some()));
            is("seglen", u64::from(terminate.segment_length.unwrap_or(0)));
            (Message::terminate(&terminate), Vec::new())
        }
        Delivery::CommitPart { .. } | Delivery::ReadyToReceive { .. } | Delivery::Ignored => {
            panic!("{name}: {delivery:?}")
        }
    }
}

#[test]
fn fpdu_vectors_decode_and_encode() {
    let mut seen = 0;
    for vector in vectors("FPDU") {
        let name = vector.name.as_str();
        // Streams with markers have a test of their own.
        if vector.fields.get("stream_offset").is_some() {
            continue;
        }
        seen += 1;
        let crc = name != "write-5-nocrc";
        let framed = deframe(&vector.octets, crc.then_some(crc32c::crc32c as fn(&[u8]) -> u32));
        if name == "write-5-badcrc-BAD" {
            assert_eq!(framed, Framed::BadCrc { fpdu_len: vector.octets.len() });
            continue;
        }
        let Framed::Fpdu { ulpdu, fpdu_len } = framed else { panic!("{name}: {framed:?}") };
        assert_eq!(fpdu_len, vector.octets.len(), "{name}");
        let ulpdu = &vector.octets[ulpdu];
        if let Some(stated) = &vector.ulpdu {
            assert_eq!(ulpdu, stated, "{name}");
        }
        if let Some(length) = number(&vector.fields["ulpdu_length"]) {
            assert_eq!(ulpdu.len() as u64, length, "{name}");
        }
        assert_eq!(fpdu(ulpdu, crc), vector.octets, "{name}");

        let mut stream = stream_before(ulpdu);
        let received = stream.receive(ulpdu);
        if let Some(fault) = expected_fault(name) {
            assert_eq!(received, Err(fault), "{name}");
            continue;
        }
        let (mut message, payload) = check(&vector, ulpdu, received.unwrap_or_else(|fault| panic!("{name}: {fault}")));
        let segment = message.cut_segment(payload.len() as u32);
        let written = [segment.header(), &payload].concat();
        assert_eq!(fpdu(&written, crc), vector.octets, "{name}");
    }
    assert_eq!(seen, 48, "vectors without markers");
}

#[test]
fn marker_vectors_decode_and_encode() {
    let mut seen = 0;
    for vector in vectors("FPDU") {
        let name = vector.name.as_str();
        let Some(offset) = vector.fields.get("stream_offset").and_then(number) else { continue };
        seen += 1;
        let crc: crate::framing::Crc32c = crc32c::crc32c;
        let mut ulpdu = vec![0xee; 3];
        let marked = deframe_marked(&vector.octets, offset, Some(crc), &mut ulpdu);
        assert_eq!(marked, Marked::Fpdu { len: vector.octets.len() }, "{name}");
        assert_eq!(Some(ulpdu.len() as u64), number(&vector.fields["ulpdu_length"]), "{name}");
        if let Some(stated) = &vector.ulpdu {
            assert_eq!(&ulpdu, stated, "{name}");
        }
        let mut room = fpdu(&ulpdu, true);
        let plain = room.len();
        room.resize(vector.octets.len(), 0);
        assert_eq!(insert_markers(&mut room, plain, offset, Some(crc)), vector.octets.len(), "{name}");
        assert_eq!(room, vector.octets, "{name}");
        for cut in 0..vector.octets.len() {
            let marked = deframe_marked(&vector.octets[..cut], offset, Some(crc), &mut ulpdu);
            assert!(matches!(marked, Marked::Incomplete { .. }), "{name}: {cut} octets");
        }
        // Every octet counts, the markers' too.
        for at in 0..vector.octets.len() {
            let mut damaged = vector.octets.clone();
            damaged[at] ^= 0x04;
            let marked = deframe_marked(&damaged, offset, Some(crc), &mut ulpdu);
            assert!(matches!(marked, Marked::BadCrc | Marked::Incomplete { .. }), "{name}: octet {at}: {marked:?}");
        }
    }
    assert_eq!(seen, 5, "vectors with markers");
}

#[test]
fn faults_of_vectors_give_the_terminate_vectors() {
    let all: BTreeMap<_, _> = vectors("FPDU").into_iter().map(|vector| (vector.name.clone(), vector)).collect();
    let cases = [
        ("term-rdmap-invalid-stag", Fault::ReadInvalidStag, Some("read-request")),
        ("term-rdmap-cant-invalidate", Fault::InvalidateNotAssociated, Some("send-inv-4")),
        ("term-rdmap-opcode", Fault::UnexpectedOpcode, Some("opcode-e-BAD")),
        ("term-rdmap-version", Fault::RdmapVersion, Some("rv-2-BAD")),
        ("term-atomic-misaligned", Fault::AtomicMisaligned, Some("atomic-misaligned-BAD")),
        ("term-rdmap-local", Fault::LocalCatastrophic, None),
        ("term-ddp-tagged-wrap", Fault::TaggedWrap, Some("write-to-wrap-BAD")),
        ("term-ddp-untagged-nobuf", Fault::NoBuffer, Some("send-3")),
        ("term-ddp-untagged-toolong", Fault::MessageTooLong, Some("send-3")),
        ("term-mpa-crc", Fault::Crc, None),
        ("term-mpa-ird", Fault::InsufficientIrd, None),
        ("term-mpa-rtr", Fault::NoMatchingRtr, None),
    ];
    for (name, fault, failing) in cases {
        let failing = failing.map(|failing| all[failing].ulpdu.clone().unwrap());
        let mut stream = initiator(16, 16);
        let message = stream.fail(fault, failing.as_deref()).unwrap();
        assert_eq!(fpdu(&single(message, &[]), true), all[name].octets, "{name}");
        let terminate = terminate_for(fault, failing.as_deref().and_then(FailedSegment::of));
        assert_eq!(terminate.layer, TerminateLayer::from_code(fault.row().layer));
    }
    let terminates = all.keys().filter(|name| name.starts_with("term-")).count();
    assert_eq!(terminates, cases.len());
}

fn no_limits(ird: u16, ord: u16) -> ReadLimits {
    ReadLimits { ird, maximum_ird: ird, ord, minimum_ord: 0, negotiate: true }
}

#[test]
fn request_vectors_decode_and_encode() {
    let mut seen = 0;
    for vector in vectors("MPA").into_iter().filter(|vector| vector.name.starts_with("mpa-req")) {
        seen += 1;
        let name = vector.name.as_str();
        let field = |key: &str| number(&vector.fields[key]);
        let mut responder = Responder::new(ResponderOptions::default());
        let received = responder.receive(&vector.octets);
        if name.ends_with("BAD") {
            assert_eq!(received, Err(StartupError::PrivateDataLength), "{name}");
            continue;
        }
        let request = received.unwrap().unwrap().clone();
        assert_eq!(u64::from(request.revision), field("Rev").unwrap(), "{name}");
        assert_eq!(u64::from(request.crc), field("C").unwrap_or(1), "{name}");
        assert_eq!(u64::from(request.markers), field("M").unwrap_or(0), "{name}");
        assert_eq!(request.enhanced.is_some(), field("S") == Some(1), "{name}");
        let enhanced_len = if request.enhanced.is_some() { 4 } else { 0 };
        assert_eq!(request.private_data.len() + enhanced_len, field("PD_Length").unwrap() as usize, "{name}");
        let mut options = InitiatorOptions {
            revision: Revision::One,
            crc: request.crc,
            markers: request.markers,
            limits: no_limits(1, 1),
            ready_to_receive: ReadyToReceiveKinds::NONE,
        };
        if let Some(data) = request.enhanced {
            assert_eq!(Some(u64::from(data.peer_to_peer)), field("A"), "{name}");
            assert_eq!(Some(u64::from(data.ready_by_send)), field("B"), "{name}");
            assert_eq!(Some(u64::from(data.ready_by_write)), field("C_flag"), "{name}");
            assert_eq!(Some(u64::from(data.ready_by_read)), field("D"), "{name}");
            assert_eq!(request.ird().map(u64::from), field("IRD"), "{name}");
            assert_eq!(request.ord().map(u64::from), field("ORD"), "{name}");
            options.revision = Revision::Two;
            options.limits = no_limits(data.ird, data.ord);
            options.ready_to_receive =
                ReadyToReceiveKinds { send: data.ready_by_send, write: data.ready_by_write, read: data.ready_by_read };
        }
        let initiator = Initiator::new(options, &request.private_data).unwrap();
        assert_eq!(initiator.request(), vector.octets, "{name}");
    }
    assert_eq!(seen, 7);
}

#[test]
fn reply_vectors_decode_and_encode() {
    let all: BTreeMap<_, _> = vectors("MPA").into_iter().map(|vector| (vector.name.clone(), vector)).collect();
    let kinds = |write, read| ReadyToReceiveKinds { send: false, write, read };
    // The Reply; the Request that it answers; the limits that each side wants; the indications that the Responder
    // knows.
    let cases = [
        ("mpa-rep-r1-accept", "mpa-req-r1-min", no_limits(1, 1), no_limits(1, 1), kinds(true, true)),
        ("mpa-rep-r1-reject", "mpa-req-r1-min", no_limits(1, 1), no_limits(1, 1), kinds(true, true)),
        ("mpa-rep-r2-p2p", "mpa-req-r2-p2p", no_limits(8, 4), no_limits(4, 8), kinds(false, true)),
        ("mpa-rep-r2-p2p-write", "mpa-req-r2-p2p", no_limits(8, 4), no_limits(4, 8), kinds(true, false)),
        ("mpa-rep-r2-cs", "mpa-req-r2-cs", no_limits(16, 16), no_limits(8, 16), kinds(true, true)),
        ("mpa-rep-r2-reject-ird", "mpa-req-r2-cs", no_limits(16, 16), no_limits(16, 32), kinds(true, true)),
    ];
    for (name, request, client_limits, server_limits, own) in cases {
        let vector = &all[name];
        let field = |key: &str| number(&vector.fields[key]);
        let mut responder = Responder::new(ResponderOptions { ready_to_receive: own, ..ResponderOptions::default() });
        responder.receive(&all[request].octets).unwrap().unwrap();
        let private_data = unhex(vector.fields["private_data"].as_str().unwrap_or(""));
        let reply = if field("R") == Some(1) {
            responder.reject(&server_limits, &private_data).unwrap()
        } else {
            responder.accept(&server_limits, &private_data).unwrap().0
        };
        assert_eq!(reply, vector.octets, "{name}");

        let options = InitiatorOptions {
            limits: client_limits,
            ready_to_receive: if request.ends_with("p2p") { kinds(true, true) } else { ReadyToReceiveKinds::NONE },
            ..InitiatorOptions::default()
        };
        let mut initiator = Initiator::new(options, &[]).unwrap();
        let (outcome, used) = initiator.receive(&vector.octets).unwrap().unwrap();
        assert_eq!(used, vector.octets.len());
        let stated = (field("IRD").map(|v| v as u16), field("ORD").map(|v| v as u16));
        match outcome {
            Outcome::Established(parameters) => {
                assert_eq!(field("R").unwrap_or(0), 0, "{name}");
                assert_eq!((parameters.peer_ird, parameters.peer_ord), stated, "{name}");
                assert_eq!(parameters.private_data, private_data, "{name}");
                assert_eq!(parameters.ord, stated.0.unwrap_or(u16::MAX).min(client_limits.ord), "{name}");
            }
            Outcome::Rejected(rejection) => {
                assert_eq!(field("R"), Some(1), "{name}");
                assert_eq!((rejection.peer_ird, rejection.peer_ord), stated, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let mut initiator = Initiator::new(InitiatorOptions::default(), &[]).unwrap();
    match initiator.receive(&all["mpa-rep-r1-accept-markers"].octets) {
        Ok(Some((Outcome::Established(parameters), 20))) => {
            assert!(parameters.transmit_markers && !parameters.receive_markers && parameters.crc);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(all.keys().filter(|name| name.starts_with("mpa-rep")).count(), cases.len() + 1);
}

#[test]
fn indications_are_written_as_their_vectors() {
    let all: BTreeMap<_, _> = vectors("FPDU").into_iter().map(|vector| (vector.name.clone(), vector)).collect();
    use crate::startup::{ReadyToReceive, Role};
    for (name, kind) in [("rtr-write0", ReadyToReceive::Write), ("rtr-read0", ReadyToReceive::Read)] {
        let mut parameters = crate::stream::tests::parameters(Role::Initiator, 0, 0);
        parameters.ready_to_receive = Some(kind);
        let mut stream = Stream::new(&parameters, crate::opcode::Features::default());
        let message = stream.ready_to_receive_message().unwrap();
        assert_eq!(fpdu(&single(message, &[]), true), all[name].octets);
        if kind == ReadyToReceive::Read {
            let response = all["rtr-read0-response"].ulpdu.clone().unwrap();
            assert_eq!(stream.receive(&response), Ok(Delivery::ReadyToReceive { last: true }));
            assert_eq!(
                Message::read_response(Stag(1), TaggedOffset(0), 0).next_segment(128).unwrap().header(),
                response
            );
        }
    }
}
