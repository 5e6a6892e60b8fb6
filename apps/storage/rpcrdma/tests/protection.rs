//! Neither side reduces what RPCSEC_GSS wraps (RFC 8166 §8.2.2).

mod common;

use common::*;
use uwarp_rpcrdma::binding::Greatest;
use uwarp_rpcrdma::header::{Body, Chunks, Header, RdmaError, ReadSegment, Segment, parse_reply};
use uwarp_rpcrdma::requester::{Call, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, ResponderOptions};
use uwarp_rpcrdma::rpc::{OwnedAuth, RPCSEC_GSS};
use uwarp_rpcrdma::walk::parts_len;

/// It needs three octets of padding in a message, and none in a chunk.
const LENGTH: usize = 10_001;
/// rpc_gss_svc_none, -integrity and -privacy (RFC 2203 §5), and whether it wraps.
const SERVICES: [(u32, bool); 3] = [(1, false), (2, true), (3, true)];

/// Version 1, RPCSEC_GSS_DATA, a sequence number, the service, and a handle of no octets.
fn credential(service: u32) -> [u32; 5] {
    [1, 0, 42, service, 0]
}

fn octets(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An item among the arguments and a buffer for a result: both have their own chunks, unless they are wrapped.
#[test]
fn a_wrapped_call_lends_all_of_itself_in_one_chunk_and_room_for_all_of_its_reply_in_another() {
    for (service, wraps) in SERVICES {
        let (mut client, mut raw) = requester(RequesterOptions::default());
        let call = Call {
            credential: OwnedAuth { flavor: RPCSEC_GSS, body: octets(&credential(service)) },
            greatest: Some(Greatest::with_item(12, LENGTH as u32)),
            rooms: vec![vec![0; LENGTH]],
            ..put(vec![1; LENGTH])
        };
        // Six words, the credential, the empty verifier, the arguments.
        let whole = 24 + 8 + 20 + 8 + parts_len(&call.arguments);
        client.start(call).unwrap();
        let (Header { body, .. }, payload) = asked(&mut client, &mut raw);
        let lent = |chunks: &Chunks| chunks.reads.iter().map(|read| read.segment.length as usize).sum::<usize>();
        match body {
            Body::NoMessage(chunks) if wraps => {
                assert!(chunks.reads.iter().all(|read| read.position == 0), "{:?}", chunks.reads);
                assert_eq!((lent(&chunks), payload.len()), (whole, 0));
                assert!(chunks.writes.is_empty());
                let room: u32 = chunks.reply.expect("a Reply chunk").iter().map(|segment| segment.length).sum();
                assert!(room as usize > LENGTH);
            }
            Body::Message(chunks) if !wraps => {
                assert!(chunks.reads.iter().all(|read| read.position > 0), "{:?}", chunks.reads);
                assert_eq!((lent(&chunks), payload.len()), (LENGTH, whole - LENGTH.next_multiple_of(4)));
                assert_eq!((chunks.writes.len(), chunks.reply), (1, None));
            }
            other => panic!("service {service}: {other:?}"),
        }
    }
}

/// A call of a raw peer, with this credential: a transport header, six words, the credential, no verifier, the
/// arguments.
fn protected(service: u32, procedure: u32, chunks: Chunks, arguments: &[u32]) -> Vec<u8> {
    let mut words = vec![XID, 0, 2, PROGRAM, VERSION, procedure, RPCSEC_GSS, 20];
    words.extend(credential(service));
    words.extend([0, 0]);
    words.extend(arguments);
    encode(&Header { xid: XID, credits: 4, body: Body::Message(chunks) }, &octets(&words))
}

#[test]
fn a_wrapped_call_with_something_reduced_is_refused() {
    for (service, wraps) in SERVICES {
        let (here, mut server) = server(ResponderOptions::default());
        let mut raw = Raw::connect(&here, &mut server, b"");
        let (handle, offset) = raw.place();
        // Behind the RPC header and two words of a PUT's arguments.
        let position = 24 + 8 + 20 + 8 + 8;
        let reads = vec![ReadSegment { position, segment: Segment { handle, length: 8, offset } }];
        raw.send(&protected(service, PUT, Chunks { reads, ..Chunks::default() }, &[7, 8, 9]));
        let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
        let refused = header.body == Body::Error { version: 1, error: RdmaError::Chunk };
        assert_eq!(refused, wraps, "service {service}: {header:?}");
    }
}

#[test]
fn wrapped_results_leave_write_chunks_unused() {
    for (service, wraps) in SERVICES {
        let (here, mut server) = server(ResponderOptions::default());
        server.answers = false;
        let mut raw = Raw::connect(&here, &mut server, b"");
        let (handle, offset) = raw.place();
        raw.fill(0, &[0xaa; 2 * LENGTH]);
        let segment = |at: usize, length: usize| Segment { handle, length: length as u32, offset: offset + at as u64 };
        let chunks = Chunks {
            writes: vec![vec![segment(0, LENGTH)]],
            reply: Some(vec![segment(LENGTH, 2 * LENGTH)]),
            ..Chunks::default()
        };
        raw.send(&protected(service, GET, chunks, &[LENGTH as u32]));
        received(&raw, &mut server, 1);
        while server.requests.is_empty() {
            server.step();
        }
        let (_, request) = server.requests.pop_front().unwrap();
        let results = get_results(LENGTH);
        let length = parts_len(&results);
        server.responders[0].answer(request.token, Answer::success(results));
        let (header, _) = parse_reply(&said(&mut raw, &mut server)).unwrap();
        match header.body {
            Body::NoMessage(returned) if wraps => {
                assert_eq!(returned.writes, [vec![segment(0, 0)]]);
                let filled: u32 = returned.reply.expect("the Reply chunk").iter().map(|segment| segment.length).sum();
                assert_eq!(filled as usize, 24 + length, "the whole reply");
                assert_eq!(raw.octets(0, LENGTH), [0xaa; LENGTH], "nothing was written there");
            }
            Body::Message(returned) if !wraps => {
                assert_eq!(returned.writes, [vec![segment(0, LENGTH)]]);
                assert_ne!(raw.octets(0, LENGTH), [0xaa; LENGTH]);
            }
            other => panic!("service {service}: {other:?}"),
        }
    }
}
