//! The vectors, faulty headers and their answers, and a model of the chunk lists.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

/// A message as the words of its XDR, written from RFC 8166 §4.1.2 and §4.7 without the code under test.
#[derive(Clone, Debug, Default)]
struct Words(Vec<u32>);

impl Words {
    fn new(fixed: [u32; 4]) -> Self {
        Self(fixed.to_vec())
    }

    fn put(mut self, words: &[u32]) -> Self {
        self.0.extend_from_slice(words);
        self
    }

    /// HLOO.
    fn plain(self, segment: &Segment) -> Self {
        self.put(&[segment.handle, segment.length, (segment.offset >> 32) as u32, segment.offset as u32])
    }

    /// "1 PHLOO 1 PHLOO ... 0".
    fn read_list(self, reads: &[ReadSegment]) -> Self {
        reads.iter().fold(self, |words, read| words.put(&[1, read.position]).plain(&read.segment)).put(&[0])
    }

    fn array(self, segments: &[Segment]) -> Self {
        segments.iter().fold(self.put(&[segments.len() as u32]), |words, segment| words.plain(segment))
    }

    /// "1 N HLOO ... 1 N HLOO ... 0".
    fn write_list(self, writes: &[Vec<Segment>]) -> Self {
        writes.iter().fold(self, |words, segments| words.put(&[1]).array(segments)).put(&[0])
    }

    /// "1 N HLOO ..." or "0".
    fn reply_chunk(self, reply: Option<&Vec<Segment>>) -> Self {
        match reply {
            None => self.put(&[0]),
            Some(segments) => self.put(&[1]).array(segments),
        }
    }

    fn lists(self, chunks: &Chunks) -> Self {
        self.read_list(&chunks.reads).write_list(&chunks.writes).reply_chunk(chunks.reply.as_ref())
    }

    fn octets(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

struct Vector {
    name: String,
    fields: Value,
    octets: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/test-vectors.json");
    let list: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    list.iter()
        .filter(|entry| entry["layer"] == "RPC")
        .map(|entry| {
            let hex = entry["hex"].as_str().unwrap();
            let octet = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            Vector {
                name: entry["name"].as_str().unwrap().to_owned(),
                fields: entry["fields"].clone(),
                octets: (0..hex.len()).step_by(2).map(octet).collect(),
            }
        })
        .collect()
}

impl Vector {
    fn check(&self, field: &str, value: impl Into<u64>) {
        let Some(expected) = self.fields.get(field) else { return };
        let expected = match expected {
            Value::String(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
            other => other.as_u64().unwrap(),
        };
        assert_eq!(value.into(), expected, "{}: {field}", self.name);
    }
}

#[test]
fn vectors_are_read_and_written() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 6);
    for vector in &vectors {
        let is_reply = vector.name.ends_with("reply") || vector.name.contains("error");
        let (header, length) =
            if is_reply { parse_reply(&vector.octets).unwrap() } else { parse_call(&vector.octets).unwrap() };
        vector.check("xid", header.xid);
        vector.check("credit", header.credits);
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!(out.len(), header.encoded_len(), "{}", vector.name);
        assert_eq!(out, vector.octets[..length], "{}", vector.name);
        let none = Chunks::default();
        let chunks = header.chunks().unwrap_or(&none);
        if let Some(counts) = vector.fields.get("write_chunks") {
            let found: Vec<usize> = chunks.writes.iter().map(Vec::len).collect();
            assert_eq!(serde_json::to_value(found).unwrap(), *counts, "{}", vector.name);
        }
        vector.check("read_segments", chunks.reads.len() as u64);
        vector.check("reply_segments", chunks.reply.as_ref().map_or(0, Vec::len) as u64);
        if let Some(lengths) = vector.fields.get("reply_lengths") {
            let found: Vec<u32> = chunks.reply.iter().flatten().map(|segment| segment.length).collect();
            assert_eq!(serde_json::to_value(found).unwrap(), *lengths, "{}", vector.name);
        }
        for read in &chunks.reads {
            vector.check("position", read.position);
        }
        match &header.body {
            Body::Message(_) => vector.check("proc", 0_u32),
            Body::NoMessage(_) => {
                vector.check("proc", 1_u32);
                assert_eq!(length, vector.octets.len());
            }
            Body::Error { version, error } => {
                vector.check("proc", 4_u32);
                vector.check("vers", *version);
                match error {
                    RdmaError::Version { low, high } => {
                        vector.check("err", 1_u32);
                        vector.check("low", *low);
                        vector.check("high", *high);
                    }
                    RdmaError::Chunk => vector.check("err", 2_u32),
                }
            }
        }
        // The same octets are invalid for the other role: it does not answer errors, and replies have no Read list.
        if vector.name.contains("error") {
            assert!(matches!(parse_call(&vector.octets), Err(CallFault::Discard(_))), "{}", vector.name);
        } else if !chunks.reads.is_empty() {
            assert_eq!(parse_reply(&vector.octets), Err(DiscardReason::Header), "{}", vector.name);
        }
        for cut in 0..length {
            assert!(parse_call(&vector.octets[..cut]).is_err(), "{} cut at {cut}", vector.name);
            // Without its version fields, an error of 28 octets is still complete.
            assert!(parse_reply(&vector.octets[..cut]).is_err(), "{} cut at {cut}", vector.name);
        }
    }
}

const XID: u32 = 0x5250_4301;

fn plain(length: u32) -> Segment {
    Segment { handle: 0x1001, length, offset: 0x1_0000_0000 }
}

fn read(position: u32, length: u32) -> ReadSegment {
    ReadSegment { position, segment: plain(length) }
}

/// A call with these lists; `words` follow.
fn call(procedure: u32, chunks: &Chunks, words: &[u32]) -> Vec<u8> {
    Words::new([XID, 1, 32, procedure]).lists(chunks).put(words).octets()
}

fn reads(reads: &[ReadSegment]) -> Chunks {
    Chunks { reads: reads.to_vec(), ..Chunks::default() }
}

const CHUNK: CallFault = CallFault::Answer { xid: XID, version: 1, error: RdmaError::Chunk };

#[test]
fn a_call_of_another_version_is_answered_with_those_that_are_spoken() {
    for version in [0, 2, u32::MAX] {
        // The octets behind the fixed fields do not matter: another version may lay them out differently.
        let octets = Words::new([XID, version, 32, 77]).put(&[9; 3]).octets();
        let error = RdmaError::Version { low: 1, high: 1 };
        assert_eq!(parse_call(&octets), Err(CallFault::Answer { xid: XID, version, error }));
        let mut answer = Vec::new();
        Header { xid: XID, credits: 8, body: Body::Error { version, error } }.encode(&mut answer);
        assert_eq!(answer, Words::new([XID, version, 8, 4]).put(&[1, 1, 1]).octets());
        // A requester of an unsupported version understands this answer.
        let (header, _) = parse_reply(&answer).unwrap();
        assert_eq!(header.body, Body::Error { version, error });
    }
}

#[test]
fn calls_that_are_wrong_are_met_as_the_document_says() {
    use CallFault::Discard;
    let none = Chunks::default();
    let whole = call(0, &none, &[XID, 0]);
    assert!(parse_call(&whole).is_ok());
    let write = |count: u32| Words::new([XID, 1, 32, 0]).put(&[0, 1, count]).put(&[0; 5]).octets();
    let rows: Vec<(&str, Vec<u8>, CallFault)> = vec![
        ("27 octets", whole[..27].to_vec(), Discard(DiscardReason::Short)),
        ("nothing", Vec::new(), Discard(DiscardReason::Short)),
        ("RDMA_DONE of its own length", Words::new([XID, 1, 32, 3]).octets(), Discard(DiscardReason::Short)),
        ("RDMA_DONE, longer", call(3, &none, &[]), Discard(DiscardReason::Done)),
        ("RDMA_MSGP", Words::new([XID, 1, 32, 2]).put(&[4, 8, 0, 0, 0, XID]).octets(), CHUNK),
        ("an unknown procedure", call(7, &none, &[XID]), CHUNK),
        (
            "RDMA_ERROR",
            Words::new([XID, 1, 32, 4]).put(&[1, 1, 1]).octets(),
            Discard(DiscardReason::ErrorFromRequester),
        ),
        (
            "RDMA_ERROR of another version",
            Words::new([XID, 2, 32, 4]).put(&[1, 1, 1]).octets(),
            Discard(DiscardReason::ErrorFromRequester),
        ),
        ("another XID in the message", call(0, &none, &[XID + 1]), CHUNK),
        ("no message", call(0, &none, &[]), CHUNK),
        ("RDMA_NOMSG without lists", call(1, &none, &[]), CHUNK),
        ("RDMA_NOMSG without a call", call(1, &reads(&[read(8, 4)]), &[]), CHUNK),
        ("RDMA_NOMSG with an empty call", call(1, &reads(&[read(0, 0)]), &[]), CHUNK),
        ("RDMA_MSG with a Position Zero chunk", call(0, &reads(&[read(0, 100)]), &[XID]), CHUNK),
        ("a position of half a word", call(0, &reads(&[read(42, 4)]), &[XID]), CHUNK),
        ("chunks that overlap", call(0, &reads(&[read(40, 9), read(48, 4)]), &[XID]), CHUNK),
        (
            "chunks that overlap in their padding",
            call(0, &reads(&[read(48, 4), read(40, 5), read(40, 4)]), &[XID]),
            CHUNK,
        ),
        ("a chunk beyond all positions", call(0, &reads(&[read(40, u32::MAX)]), &[XID]), CHUNK),
        ("neither present nor absent", Words::new([XID, 1, 32, 0]).put(&[2, 0, 0, XID]).octets(), CHUNK),
        ("a Read list that ends early", Words::new([XID, 1, 32, 0]).put(&[1, 40, 7, 8]).octets(), CHUNK),
        ("more segments than octets", write(2), CHUNK),
        ("as many segments as there are numbers", write(u32::MAX), CHUNK),
    ];
    for (what, octets, fault) in rows {
        assert_eq!(parse_call(&octets), Err(fault), "{what}");
    }
    let right: Vec<(&str, Vec<u8>)> = vec![
        ("chunks next to each other", call(0, &reads(&[read(40, 5), read(48, 4)]), &[XID])),
        ("chunks in any order", call(0, &reads(&[read(48, 4), read(40, 4)]), &[XID])),
        ("a long call with reduced items", call(1, &reads(&[read(44, 100), read(0, 2048)]), &[])),
        ("an empty Write chunk", call(0, &Chunks { writes: vec![vec![]], ..none.clone() }, &[XID])),
        ("RDMA_NOMSG with something behind it", call(1, &reads(&[read(0, 4)]), &[5])),
    ];
    for (what, octets) in right {
        assert!(parse_call(&octets).is_ok(), "{what}");
    }
}

#[test]
fn replies_that_are_wrong_are_dropped() {
    let none = Chunks::default();
    let reply = Chunks { reply: Some(vec![plain(64)]), ..Chunks::default() };
    let error = |words: &[u32]| Words::new([XID, 1, 32, 4]).put(words).octets();
    let rows: Vec<(&str, Vec<u8>, DiscardReason)> = vec![
        ("15 octets", call(0, &none, &[XID])[..15].to_vec(), DiscardReason::Short),
        ("27 octets", call(0, &none, &[XID])[..27].to_vec(), DiscardReason::Short),
        ("version 2", Words::new([XID, 2, 32, 0]).put(&[0, 0, 0, XID]).octets(), DiscardReason::Version),
        ("RDMA_DONE", Words::new([XID, 1, 32, 3]).octets(), DiscardReason::Done),
        ("RDMA_MSGP", Words::new([XID, 1, 32, 2]).put(&[4, 8, 0, 0, 0, XID]).octets(), DiscardReason::Procedure),
        ("an unknown procedure", call(9, &none, &[XID]), DiscardReason::Procedure),
        ("a Read list", call(0, &reads(&[read(40, 4)]), &[XID]), DiscardReason::Header),
        ("another XID in the message", call(0, &none, &[XID + 1]), DiscardReason::Header),
        ("no message", call(0, &none, &[]), DiscardReason::Header),
        ("RDMA_NOMSG without a Reply chunk", call(1, &none, &[]), DiscardReason::Header),
        ("an unknown error", error(&[3, 0, 0]), DiscardReason::Header),
        ("an error without its kind", error(&[]), DiscardReason::Header),
        ("ERR_VERS without versions", error(&[1, 1]), DiscardReason::Header),
    ];
    for (what, octets, reason) in rows {
        assert_eq!(parse_reply(&octets), Err(reason), "{what}");
    }
    assert!(parse_reply(&call(1, &reply, &[])).is_ok());
    // 20 octets, less than the minimum of other messages.
    let (header, length) = parse_reply(&error(&[2])).unwrap();
    assert_eq!((header.body, length), (Body::Error { version: 1, error: RdmaError::Chunk }, 20));
}

#[test]
fn chunks_are_filled_from_their_beginning() {
    let offered = [10, 0, 20, 30].map(plain);
    let lengths = |returned: Vec<Segment>| returned.iter().map(|segment| segment.length).collect::<Vec<_>>();
    for (length, expected) in
        [(0, [0, 0, 0, 0]), (9, [9, 0, 0, 0]), (10, [10, 0, 0, 0]), (31, [10, 0, 20, 1]), (60, [10, 0, 20, 30])]
    {
        let returned = fill(&offered, length).unwrap();
        assert_eq!(filled(&offered, &returned), Some(length));
        assert_eq!(lengths(returned), expected);
    }
    assert_eq!(fill(&offered, 61), None);
    assert_eq!(fill(&[], 0), Some(vec![]));
    let returned = |lengths: [u32; 4]| lengths.map(plain);
    assert_eq!(filled(&offered, &returned([11, 0, 0, 0])), None, "more than there was room for");
    assert_eq!(filled(&offered, &returned([9, 0, 1, 0])), None, "a gap");
    assert_eq!(filled(&offered, &offered[..3]), None, "a segment less");
}

#[test]
fn a_read_chunk_may_bring_its_padding() {
    assert!(holds(5, 5) && holds(8, 5) && holds(0, 0) && holds(u64::from(u32::MAX), u32::MAX));
    assert!(!holds(4, 5) && !holds(6, 5) && !holds(9, 5) && !holds(4, 0));
}

prop_compose! {
    fn any_segment()(handle: u32, length: u32, offset: u64) -> Segment {
        Segment { handle, length, offset }
    }
}

prop_compose! {
    /// Read chunks that a call may have, in any order, and whether one of them is at position zero.
    fn any_reads()(
        long: bool,
        gaps in prop::collection::vec((0_u32..40, 1_usize..4), 0..5),
        segments in prop::collection::vec((any::<u32>(), 0_u32..5000, any::<u64>()), 20),
        order in any::<prop::sample::Index>(),
    ) -> (bool, Vec<ReadSegment>) {
        let mut segments = segments.into_iter().map(|(handle, length, offset)| Segment { handle, length, offset });
        let mut chunks: Vec<Vec<ReadSegment>> = Vec::new();
        if long {
            let call = Segment { length: 77, ..segments.next().unwrap() };
            chunks.push(vec![ReadSegment { position: 0, segment: call }]);
        }
        let mut position = 4;
        for (gap, count) in gaps {
            position += 4 * gap;
            let chunk: Vec<_> =
                segments.by_ref().take(count).map(|segment| ReadSegment { position, segment }).collect();
            let length: u32 = chunk.iter().map(|read| read.segment.length).sum();
            // An empty chunk ends where it begins, but two chunks at one position are one.
            position += length.next_multiple_of(4).max(4);
            chunks.push(chunk);
        }
        if !chunks.is_empty() {
            let at = order.index(chunks.len());
            chunks.rotate_left(at);
        }
        (long, chunks.concat())
    }
}

fn any_writes() -> impl Strategy<Value = Vec<Vec<Segment>>> {
    prop::collection::vec(prop::collection::vec(any_segment(), 0..4), 0..4)
}

proptest! {
    #[test]
    fn chunk_lists_are_those_of_the_model(
        (long, reads) in any_reads(),
        writes in any_writes(),
        reply in prop::option::of(prop::collection::vec(any_segment(), 0..4)),
        xid: u32,
        credits: u32,
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let chunks = Chunks { reads, writes, reply };
        let model = Words::new([xid, 1, credits, u32::from(long)]).lists(&chunks).octets();
        let body = if long { Body::NoMessage(chunks.clone()) } else { Body::Message(chunks.clone()) };
        let header = Header { xid, credits, body };
        let mut octets = Vec::new();
        header.encode(&mut octets);
        prop_assert_eq!(&octets, &model);
        prop_assert_eq!(header.encoded_len(), model.len());
        if !long {
            octets.extend(xid.to_be_bytes());
            octets.extend(payload);
        }
        prop_assert_eq!(parse_call(&octets), Ok((header, model.len())));

        // The chunks by position, by a slower way.
        let mut positions: Vec<u32> = chunks.reads.iter().map(|read| read.position).collect();
        positions.sort_unstable();
        positions.dedup();
        let expected: Vec<ReadChunk> = positions
            .into_iter()
            .map(|position| ReadChunk {
                position,
                segments: chunks.reads.iter().filter(|read| read.position == position).map(|read| read.segment).collect(),
            })
            .collect();
        prop_assert_eq!(chunks.read_chunks(), expected);
    }

    #[test]
    fn replies_are_those_of_the_model(
        writes in any_writes(),
        reply in prop::option::of(prop::collection::vec(any_segment(), 0..4)),
        xid: u32,
        credits: u32,
    ) {
        let chunks = Chunks { reads: vec![], writes, reply };
        let long = chunks.reply.is_some();
        let body = if long { Body::NoMessage(chunks.clone()) } else { Body::Message(chunks.clone()) };
        let header = Header { xid, credits, body };
        let model = Words::new([xid, 1, credits, u32::from(long)]).lists(&chunks);
        let octets = if long { model.octets() } else { model.clone().put(&[xid]).octets() };
        prop_assert_eq!(parse_reply(&octets), Ok((header, model.octets().len())));
    }

    #[test]
    fn any_words_get_an_answer(words in prop::collection::vec(prop_oneof![0_u32..5, any::<u32>()], 0..64), cut in 0_usize..4) {
        let mut octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        octets.truncate(octets.len().saturating_sub(cut));
        for parsed in [parse_call(&octets).ok(), parse_reply(&octets).ok()].into_iter().flatten() {
            let (header, length) = parsed;
            let mut out = Vec::new();
            header.encode(&mut out);
            prop_assert_eq!(&out[..], &octets[..length]);
        }
    }

    #[test]
    fn what_was_put_into_a_chunk_is_what_is_found_in_it(
        offered in prop::collection::vec(any_segment(), 0..5),
        part in any::<prop::sample::Index>(),
    ) {
        let room = chunk_length(&offered);
        let length = part.index(usize::try_from(room).unwrap() + 1) as u64;
        let returned = fill(&offered, length).unwrap();
        prop_assert_eq!(filled(&offered, &returned), Some(length));
        prop_assert_eq!(fill(&offered, room + 1), None);
    }
}
