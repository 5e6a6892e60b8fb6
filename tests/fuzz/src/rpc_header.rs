//! What a peer sends on an RPC-over-RDMA connection: the transport header in both roles, the RPC message behind it, and
//! the private data at start-up.

use uwarp_rpcrdma::header::{
    Body, CallFault, Chunks, Header, SEGMENT_LEN, chunk_length, fill, filled, parse_call, parse_reply,
};
use uwarp_rpcrdma::private_data::{MAX_INLINE_THRESHOLD, PrivateData};
use uwarp_rpcrdma::rpc::{CallHeader, ReplyHeader};

/// Takes `data` as a received message.
pub fn rpc_header(data: &[u8]) {
    match parse_call(data) {
        Ok((header, at)) => {
            check(&header, at, data);
            assert!(!matches!(header.body, Body::Error { .. }));
            let chunks = header.chunks().expect("a call is no error");
            check_reads(chunks);
            answer(&header, chunks);
            rpc_message(&data[at..]);
        }
        Err(CallFault::Answer { xid, version, error }) => {
            assert!(data.len() >= 28);
            assert_eq!((xid.to_be_bytes(), version.to_be_bytes()), (word(data, 0), word(data, 4)));
            let answer = Header { xid, credits: 1, body: Body::Error { version, error } };
            let mut out = Vec::new();
            answer.encode(&mut out);
            assert_eq!(parse_reply(&out), Ok((answer, out.len())));
            // Two responders would not answer each other.
            assert!(matches!(parse_call(&out), Err(CallFault::Discard(_))));
        }
        Err(CallFault::Discard(_)) => {}
    }
    if let Ok((header, at)) = parse_reply(data) {
        check(&header, at, data);
        assert!(header.chunks().is_none_or(|chunks| chunks.reads.is_empty()));
        rpc_message(&data[at..]);
    }
    if let Some(agreement) = PrivateData::parse(data) {
        assert_eq!(PrivateData::parse(&agreement.to_octets()), Some(agreement));
        let both = agreement.agree(Some(agreement));
        assert!((1024..=MAX_INLINE_THRESHOLD).contains(&both.send) && both.send == both.receive);
    }
    rpc_message(data);
}

fn word(data: &[u8], at: usize) -> [u8; 4] {
    data[at..at + 4].try_into().expect("four octets")
}

/// A parsed header is emitted again unchanged, and nothing is invented.
fn check(header: &Header, at: usize, data: &[u8]) {
    let mut out = Vec::new();
    header.encode(&mut out);
    assert_eq!(out, data[..at]);
    assert_eq!(header.encoded_len(), at);
    if let Some(chunks) = header.chunks() {
        let segments = chunks.reads.len() + chunks.writes.iter().chain(&chunks.reply).map(Vec::len).sum::<usize>();
        assert!(segments * SEGMENT_LEN <= data.len());
    }
}

/// The positions of a call ascend, and no chunk overlaps the next.
fn check_reads(chunks: &Chunks) {
    let mut end = 0;
    for chunk in chunks.read_chunks() {
        assert!(!chunk.segments.is_empty());
        if chunk.position == 0 {
            continue;
        }
        assert!(chunk.position.is_multiple_of(4) && u64::from(chunk.position) >= end);
        end = u64::from(chunk.position) + chunk_length(&chunk.segments);
    }
}

/// A reply that half fills the call's chunks is recognised as such.
fn answer(call: &Header, offered: &Chunks) {
    let half = |segments: &Vec<_>| fill(segments, chunk_length(segments) / 2).expect("half of it fits");
    let returned = Chunks {
        reads: Vec::new(),
        writes: offered.writes.iter().map(half).collect(),
        reply: offered.reply.as_ref().map(half),
    };
    for (offered, returned) in
        offered.writes.iter().chain(&offered.reply).zip(returned.writes.iter().chain(&returned.reply))
    {
        assert_eq!(filled(offered, returned), Some(chunk_length(offered) / 2));
    }
    let long = returned.reply.is_some();
    let body = if long { Body::NoMessage(returned) } else { Body::Message(returned) };
    let reply = Header { body, ..call.clone() };
    let mut out = Vec::new();
    reply.encode(&mut out);
    let length = out.len();
    if !long {
        out.extend(call.xid.to_be_bytes());
    }
    assert_eq!(parse_reply(&out), Ok((reply, length)));
}

fn rpc_message(octets: &[u8]) {
    if let Ok((header, length)) = CallHeader::parse(octets) {
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!(out.len(), length);
        assert_eq!(CallHeader::parse(&out), Ok((header, length)));
        let _ = header.credential.protection();
    }
    if let Ok((header, length)) = ReplyHeader::parse(octets) {
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!(out.len(), length);
        assert_eq!(ReplyHeader::parse(&out), Ok((header, length)));
    }
}
