//! FPDUs to RDMAP: a stream in full operation receives octets as TCP would deliver them.

use uwarp_iwarp::framing::{Framed, deframe};
use uwarp_iwarp::opcode::{COMMIT_REGION_LIMIT, Features};
use uwarp_iwarp::startup::{Initiator, InitiatorOptions, Outcome, Parameters, ReadLimits, Responder, ResponderOptions};
use uwarp_iwarp::{Delivery, Message, Stream};
use uwarp_wire::ddp::{Header, TaggedHeader};
use uwarp_wire::mpa::{FrameKind, StartupFrame};
use uwarp_wire::rdmap::{
    AtomicRequest, AtomicResponse, CommitRequest, CommitResponse, ImmediateData, Opcode, ReadRequest, Terminate,
};

/// Parameters of both sides of a start-up with the default options.
fn parameters() -> (Parameters, Parameters) {
    let mut initiator = Initiator::new(InitiatorOptions::default(), b"fuzz").expect("default options are valid");
    let mut responder = Responder::new(ResponderOptions::default());
    responder.receive(initiator.request()).expect("our own Request is valid");
    let (reply, of_responder) = responder.accept(&ReadLimits::default(), b"").expect("default limits can be accepted");
    match initiator.receive(&reply) {
        Ok(Some((Outcome::Established(of_initiator), _))) => (of_initiator, of_responder),
        other => panic!("our own Reply is not accepted: {other:?}"),
    }
}

/// Uses `octets` as the start of a stream: a start-up frame or FPDUs.
pub fn receive(octets: &[u8]) {
    let mut rest = octets;
    for kind in [FrameKind::Request, FrameKind::Reply] {
        if let Ok(Some((_, length))) = StartupFrame::parse(kind, rest) {
            rest = &rest[length..];
        }
    }
    let (of_initiator, of_responder) = parameters();
    run(Stream::new(&of_initiator, Features::default()), rest);
    let all = Features { atomics: true, immediate: true, commit: true, infiniband: true };
    run(Stream::new(&of_responder, all), rest);
}

fn run(mut stream: Stream, octets: &[u8]) {
    let mut at = 0;
    let mut position = 0;
    let mut ended = false;
    loop {
        let rest = &octets[at..];
        let (ulpdu, length) = match deframe(rest, None) {
            Framed::Fpdu { ulpdu, fpdu_len } => (ulpdu, fpdu_len),
            Framed::Incomplete { needed } => {
                assert!(needed.is_none_or(|needed| needed > rest.len()));
                let _ = stream.end_of_stream(rest.len());
                return;
            }
            Framed::BadCrc { .. } => panic!("no CRC was asked for"),
        };
        // The CRC changes only the verdict; an FPDU is not found before it is complete.
        match deframe(rest, Some(crc32c::crc32c)) {
            Framed::Fpdu { ulpdu: again, fpdu_len } => assert_eq!((again, fpdu_len), (ulpdu.clone(), length)),
            Framed::BadCrc { fpdu_len } => assert_eq!(fpdu_len, length),
            Framed::Incomplete { needed } => panic!("{needed:?} octets are needed of {length}"),
        }
        assert_eq!(deframe(&rest[..length - 1], None), Framed::Incomplete { needed: (length > 2).then_some(length) });
        at += length;
        let ulpdu = &rest[ulpdu];
        parse_messages(ulpdu);
        expect_response(&mut stream, ulpdu);
        match stream.inspect(ulpdu) {
            Ok(delivery) => {
                stream.commit(&delivery);
                assert!(!ended || matches!(delivery, Delivery::Ignored), "delivered after the end: {delivery:?}");
                ended |= matches!(delivery, Delivery::Terminate(_));
                handle(&mut stream, delivery, ulpdu, &mut position);
            }
            Err(fault) => {
                assert!(!ended, "a fault after the end: {fault:?}");
                ended = true;
                if let Some(message) = stream.fail(fault, Some(ulpdu)) {
                    check_terminate(message, ulpdu);
                }
                assert!(stream.fail(fault, Some(ulpdu)).is_none(), "two Terminates");
            }
        }
    }
}

/// Every message codec accepts every message, and emits again what it parses.
fn parse_messages(ulpdu: &[u8]) {
    let Ok(header) = Header::parse(ulpdu) else { return };
    let body = &ulpdu[header.len()..];
    if let Ok(request) = ReadRequest::parse(body) {
        assert_eq!(request.to_octets(), body);
    }
    if let Ok(request) = AtomicRequest::parse(body) {
        assert_eq!(AtomicRequest::parse(&request.to_octets()), Ok(request));
    }
    if let Ok(response) = AtomicResponse::parse(body) {
        assert_eq!(response.to_octets(), body);
    }
    if let Ok(data) = ImmediateData::parse(body) {
        assert_eq!(data.to_octets(), body);
    }
    if let Ok(response) = CommitResponse::parse(body) {
        assert_eq!(response.to_octets(), body);
    }
    if let Ok(request) = CommitRequest::parse(body) {
        assert_eq!(CommitRequest::emit_len(request.regions().count()), body.len());
    }
    if let Ok(terminate) = Terminate::parse(body) {
        let mut out = [0; 64];
        let length = terminate.emit(&mut out);
        assert!(length <= body.len());
        assert_eq!(Terminate::parse(&out[..length]), Ok(terminate));
    }
}

/// A Read Response is processed only if a read is outstanding, so make one that it may match.
fn expect_response(stream: &mut Stream, ulpdu: &[u8]) {
    let Ok(Header::Tagged(TaggedHeader { last, control, stag, offset })) = Header::parse(ulpdu) else { return };
    if control.parse() != Ok(Opcode::ReadResponse) || !stream.fence_is_clear() {
        return;
    }
    let payload = ulpdu.len() as u32 - 14;
    let request = ReadRequest {
        sink_stag: stag,
        sink_offset: offset,
        length: if last { payload } else { payload + 1500 },
        ..ReadRequest::default()
    };
    assert!(stream.try_begin_read(&request).is_some());
}

fn handle(stream: &mut Stream, delivery: Delivery<'_>, ulpdu: &[u8], position: &mut u64) {
    match delivery {
        Delivery::Write { payload, offset, .. } => {
            assert!(payload.len() <= ulpdu.len());
            assert!(payload.is_empty() || offset.checked_add(payload.len() as u64 - 1).is_some());
        }
        Delivery::ReadResponse { payload, .. } => assert!(payload.len() <= ulpdu.len()),
        Delivery::Send { message_offset, payload, first, .. } => {
            assert_eq!(first, message_offset == 0 && first);
            let end = u64::from(message_offset) + payload.len() as u64;
            assert!(end <= u64::from(u32::MAX));
        }
        Delivery::ReadRequest(read) => {
            let length = read.request.length;
            if let Some(response) = stream.next_response() {
                answer(response.message, length, position);
                stream.response_sent(*position);
                // Every other response is acknowledged late.
                if position.is_multiple_of(8) {
                    stream.acknowledged(*position);
                }
            }
        }
        Delivery::AtomicRequest(_) => {
            if stream.next_atomic().is_some() {
                let message = stream.atomic_response(*position).expect("one is being answered");
                assert_eq!(message.opcode(), Opcode::AtomicResponse);
                *position += 36;
                stream.response_sent(*position);
                if position.is_multiple_of(8) {
                    stream.acknowledged(*position);
                }
            }
        }
        Delivery::AtomicResponse { .. } => panic!("no atomic is outstanding"),
        Delivery::Immediate { data, .. } => assert!(ulpdu.ends_with(&data.to_octets())),
        Delivery::CommitRequest(commit) => {
            let regions = commit.regions().count();
            assert!(regions <= COMMIT_REGION_LIMIT as usize && commit.exceeds() == (regions == 0));
            let ticket = stream.accept_commit(commit.head);
            assert!(stream.commit_done(ticket, 0) && !stream.commit_done(ticket, 1), "a commit ends once");
            if stream.next_commit().is_some() {
                let message = stream.commit_response().expect("one is being answered");
                assert_eq!(message.opcode(), Opcode::CommitResponse);
                *position += 32;
                stream.response_sent(*position);
                if position.is_multiple_of(8) {
                    stream.acknowledged(*position);
                }
            }
        }
        Delivery::CommitResponse { .. } => panic!("no commit is outstanding"),
        Delivery::CommitPart { .. } | Delivery::Terminate(_) | Delivery::ReadyToReceive { .. } | Delivery::Ignored => {}
    }
}

/// Cuts a response as far as is reasonable in one run.
fn answer(mut message: Message, length: u32, position: &mut u64) {
    let mut answered = 0;
    for _ in 0..64 {
        let Some(segment) = message.next_segment(u16::MAX) else {
            assert_eq!(answered, length);
            return;
        };
        assert_eq!(segment.payload_offset, answered);
        let header = Header::parse(segment.header()).expect("our own header is valid");
        assert_eq!(header.control().parse(), Ok(Opcode::ReadResponse));
        assert_eq!(header.last(), segment.last);
        answered += segment.payload_len;
        *position += u64::from(segment.payload_len);
    }
}

/// A Terminate is one valid segment that contains the header of the segment at fault.
fn check_terminate(mut message: Message, failed: &[u8]) {
    let segment = message.next_segment(0).expect("a Terminate is a segment");
    assert!(segment.last && message.next_segment(0).is_none());
    let header = Header::parse(segment.header()).expect("our own header is valid");
    assert_eq!(header.control().parse(), Ok(Opcode::Terminate));
    let terminate = Terminate::parse(&segment.header()[header.len()..]).expect("our own Terminate is valid");
    if let Some(quoted) = terminate.ddp_header {
        assert!(failed.starts_with(quoted.as_slice()));
        assert_eq!(terminate.segment_length.map(usize::from), Some(failed.len()));
    }
}
