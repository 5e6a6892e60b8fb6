//! Properties of a whole stream: all input is answered, and messages cut at any limit that arrive in parts of any size
//! are placed as they were sent.

use proptest::collection::vec;
use proptest::prelude::*;
use uwarp_iwarp::framing::{Crc32c, Framed, Trailer, deframe};
use uwarp_iwarp::opcode::Features;
use uwarp_iwarp::startup::{Initiator, InitiatorOptions, Outcome, Parameters, ReadLimits, Responder, ResponderOptions};
use uwarp_iwarp::{Delivery, Fault, Message, SendKind, Stream};
use uwarp_wire::ddp::{Stag, TaggedOffset};
use uwarp_wire::rdmap::ReadRequest;

const CRC: Option<Crc32c> = Some(crc32c::crc32c);

fn agreed(limit: u16) -> (Parameters, Parameters) {
    let limits = ReadLimits::both(limit);
    let mut initiator = Initiator::new(InitiatorOptions { limits, ..InitiatorOptions::default() }, &[]).unwrap();
    let mut responder = Responder::new(ResponderOptions::default());
    responder.receive(initiator.request()).unwrap().unwrap();
    let (reply, server) = responder.accept(&limits, &[]).unwrap();
    match initiator.receive(&reply).unwrap() {
        Some((Outcome::Established(client), _)) => (client, server),
        other => panic!("{other:?}"),
    }
}

fn pair(limit: u16) -> (Stream, Stream) {
    let (client, server) = agreed(limit);
    (Stream::new(&client, Features::default()), Stream::new(&server, Features::default()))
}

/// Takes a segment, if nothing is wrong with it.
fn receive<'a>(stream: &mut Stream, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
    let delivery = stream.inspect(ulpdu)?;
    stream.commit(&delivery);
    Ok(delivery)
}

/// Appends the FPDU of one segment to the octets of a direction.
fn frame(wire: &mut Vec<u8>, header: &[u8], payload: &[u8]) {
    let start = wire.len();
    let len = header.len() + payload.len();
    wire.extend_from_slice(&(len as u16).to_be_bytes());
    wire.extend_from_slice(header);
    wire.extend_from_slice(payload);
    wire.extend_from_slice(Trailer::padding_octets(len));
    let crc = crc32c::crc32c(&wire[start..]);
    wire.truncate(start + 2 + len);
    wire.extend_from_slice(Trailer::new(len, Some(crc)).as_bytes());
}

/// Cuts a whole message, each segment at the next of `limits`, and frames it.
fn send(wire: &mut Vec<u8>, mut message: Message, payload: &[u8], limits: &mut impl Iterator<Item = u16>) {
    assert_eq!(message.length() as usize, payload.len());
    let mut expected = 0;
    while let Some(segment) = message.next_segment(limits.next().unwrap()) {
        assert_eq!(segment.payload_offset, expected);
        expected += segment.payload_len;
        frame(wire, segment.header(), &payload[segment.payload_offset as usize..expected as usize]);
        assert_eq!(segment.last, expected as usize == payload.len() && message.is_finished());
    }
}

/// Calls `ulpdu` with each ULPDU of `wire`, which arrives in parts of these lengths.
fn arrive(wire: &[u8], pieces: &[usize], mut ulpdu: impl FnMut(&[u8])) {
    let mut held = Vec::new();
    let mut rest = wire;
    for piece in pieces.iter().cycle() {
        let (part, behind) = rest.split_at((*piece).min(rest.len()));
        rest = behind;
        held.extend_from_slice(part);
        loop {
            match deframe(&held, CRC) {
                Framed::Fpdu { ulpdu: range, fpdu_len } => {
                    ulpdu(&held[range]);
                    held.drain(..fpdu_len);
                }
                Framed::Incomplete { .. } => break,
                Framed::BadCrc { .. } => panic!("bad CRC"),
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    assert!(held.is_empty());
}

#[derive(Clone, Debug)]
enum Work {
    Send { len: usize, solicited: bool, invalidate: Option<u32> },
    Write { len: usize, stag: u32, offset: u64 },
    Read { len: usize, offset: u64 },
}

fn work() -> impl Strategy<Value = Work> {
    let len = prop_oneof![Just(0usize), 1usize..300, 1usize..6000];
    prop_oneof![
        (len.clone(), any::<bool>(), proptest::option::of(1u32..))
            .prop_map(|(len, solicited, invalidate)| Work::Send { len, solicited, invalidate }),
        (len.clone(), any::<u32>(), 0..u64::MAX - 10_000).prop_map(|(len, stag, offset)| Work::Write {
            len,
            stag,
            offset
        }),
        (len, 0..u64::MAX - 10_000).prop_map(|(len, offset)| Work::Read { len, offset }),
    ]
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 13 + at / 251) as u8).collect()
}

/// An almost valid segment: a valid header with one field changed, or noise.
fn segment() -> impl Strategy<Value = Vec<u8>> {
    let header =
        (any::<bool>(), any::<bool>(), 0u8..16, 0u32..5, 0u32..4, prop_oneof![Just(0u32), Just(28), any::<u32>()]);
    let near = (header, vec(any::<u8>(), 0..70), any::<proptest::sample::Index>(), any::<u8>(), 0..10u8).prop_map(
        |((tagged, last, opcode, queue, number, offset), payload, at, value, change)| {
            let mut octets = vec![if tagged { 0x80 } else { 0 } | if last { 0x40 } else { 0 } | 1, 0x40 | opcode];
            if tagged {
                octets.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            } else {
                octets.extend_from_slice(&[0; 4]);
                octets.extend_from_slice(&queue.to_be_bytes());
                octets.extend_from_slice(&number.to_be_bytes());
                octets.extend_from_slice(&offset.to_be_bytes());
            }
            octets.extend_from_slice(&payload);
            if change == 0 {
                let at = at.index(octets.len());
                octets[at] = value;
            }
            octets
        },
    );
    prop_oneof![8 => near, 1 => vec(any::<u8>(), 0..100)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_segments_are_answered(segments in vec(segment(), 1..60), limit in 0u16..4) {
        let (_, mut stream) = pair(limit);
        for _ in 0..limit {
            let sink = ReadRequest { sink_stag: Stag(1), length: 40, ..ReadRequest::default() };
            prop_assert!(stream.try_begin_read(&sink).is_some());
        }
        let mut ended = false;
        for ulpdu in &segments {
            match receive(&mut stream, ulpdu) {
                Ok(Delivery::Ignored) => prop_assert!(ended),
                Ok(Delivery::ReadRequest(inbound)) => {
                    prop_assert!(!ended);
                    prop_assert!(stream.inbound_reads() <= usize::from(limit));
                    if inbound.request.length % 2 == 0
                        && let Some(mut response) = stream.next_response()
                    {
                        response.message.next_segment(500);
                        stream.response_sent(u64::from(inbound.request.length));
                        stream.acknowledged(1 << 30);
                    }
                }
                Ok(Delivery::Terminate(_)) => ended = true,
                Ok(_) => prop_assert!(!ended),
                Err(fault) => {
                    prop_assert!(!ended);
                    ended = true;
                    let mut terminate = stream.fail(fault, Some(ulpdu)).expect("the first fault has a Terminate");
                    let segment = terminate.next_segment(128).unwrap();
                    prop_assert!(segment.last && (22..=70).contains(&segment.ulpdu_len()));
                    prop_assert!(stream.fail(fault, Some(ulpdu)).is_none());
                }
            }
            prop_assert!(stream.reads_outstanding() <= usize::from(limit));
        }
        let _ = stream.end_of_stream(0);
    }

    #[test]
    fn what_is_cut_anywhere_is_placed_as_it_was_sent(
        works in vec(work(), 1..12),
        limits in vec(prop_oneof![Just(128u16), 128u16..3000, Just(64768)], 1..20),
        pieces in vec(1usize..5000, 1..10),
    ) {
        let (mut client, mut server) = pair(16);
        let mut limits = limits.into_iter().cycle();
        let mut wire = Vec::new();
        for (at, work) in works.iter().enumerate() {
            match *work {
                Work::Send { len, solicited, invalidate } => {
                    let kind = match (solicited, invalidate) {
                        (false, None) => SendKind::Plain,
                        (true, None) => SendKind::Solicited,
                        (false, Some(stag)) => SendKind::Invalidate(Stag(stag)),
                        (true, Some(stag)) => SendKind::SolicitedInvalidate(Stag(stag)),
                    };
                    let message = client.send(kind, len as u32);
                    send(&mut wire, message, &pattern(len, at), &mut limits);
                }
                Work::Write { len, stag, offset } => {
                    let message = client.write(Stag(stag), TaggedOffset(offset), len as u32);
                    send(&mut wire, message, &pattern(len, at), &mut limits);
                }
                Work::Read { len, offset } => {
                    let request = ReadRequest {
                        sink_stag: Stag(at as u32),
                        sink_offset: TaggedOffset(offset),
                        length: len as u32,
                        source_stag: Stag(99),
                        source_offset: TaggedOffset(at as u64),
                    };
                    let message = client.try_begin_read(&request).unwrap();
                    send(&mut wire, message, &[], &mut limits);
                }
            }
        }

        // At the server: the messages arrive in order, octet for octet; its responses go the other way.
        let mut back = Vec::new();
        let mut next = 0;
        let mut placed: Vec<u8> = Vec::new();
        arrive(&wire, &pieces, |ulpdu| {
            let done = match (receive(&mut server, ulpdu).unwrap(), &works[next]) {
                (
                    Delivery::Send { first, kind, message_offset, payload, last },
                    Work::Send { len, solicited, invalidate },
                ) => {
                    assert_eq!((first, message_offset as usize), (placed.is_empty(), placed.len()));
                    placed.extend_from_slice(payload);
                    if last {
                        assert_eq!(kind.is_solicited(), *solicited);
                        assert_eq!(kind.invalidates(), invalidate.map(Stag));
                        assert_eq!(placed, pattern(*len, next));
                    }
                    last
                }
                (Delivery::Write { stag: to, offset: place, payload, last }, Work::Write { len, stag, offset }) => {
                    assert_eq!((to.0, place.0), (*stag, offset + placed.len() as u64));
                    placed.extend_from_slice(payload);
                    if last {
                        assert_eq!(placed, pattern(*len, next));
                    }
                    last
                }
                (Delivery::ReadRequest(inbound), Work::Read { len, .. }) => {
                    assert_eq!(inbound.request.length as usize, *len);
                    let response = server.next_response().unwrap();
                    assert_eq!((response.source_stag, response.source_offset.0), (Stag(99), next as u64));
                    send(&mut back, response.message, &pattern(*len, next), &mut limits);
                    server.response_sent(back.len() as u64);
                    true
                }
                other => panic!("{other:?}"),
            };
            if done {
                next += 1;
                placed.clear();
            }
        });
        assert_eq!(next, works.len());
        server.acknowledged(back.len() as u64);
        assert_eq!(server.inbound_reads(), 0);

        // Back at the client: the reads complete in the order they were posted.
        let reads: Vec<_> = works
            .iter()
            .enumerate()
            .filter_map(|(at, work)| match work {
                Work::Read { len, offset } => Some((at, *len, *offset)),
                _ => None,
            })
            .collect();
        let mut next = 0;
        let mut placed: Vec<u8> = Vec::new();
        if !back.is_empty() {
            arrive(&back, &pieces, |ulpdu| match receive(&mut client, ulpdu).unwrap() {
                Delivery::ReadResponse { sink_stag, sink_offset, payload, completes } => {
                    let (at, len, offset) = reads[next];
                    assert_eq!(sink_stag.0, at as u32);
                    assert_eq!(sink_offset.0, offset + placed.len() as u64);
                    placed.extend_from_slice(payload);
                    if completes {
                        assert_eq!(placed, pattern(len, at));
                        placed.clear();
                        next += 1;
                    }
                }
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(next, reads.len());
        assert!(client.fence_is_clear());
        assert_eq!((client.end_of_stream(0), server.end_of_stream(0)), (Ok(()), Ok(())));
    }
}
