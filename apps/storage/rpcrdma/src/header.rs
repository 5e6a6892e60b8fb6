//! The transport header of RPC-over-RDMA version 1 (RFC 8166 §4), at the start of each message.
//!
//! A peer's header is judged here, once: [`parse_call`] for a responder, [`parse_reply`] for a requester. Their errors
//! say what §4.5 requires: silence, or an RDMA_ERROR. Both allocate in proportion to what was received, whatever counts
//! a peer writes.

#[cfg(test)]
mod tests;

use crate::xdr::{self, Reader, XdrError, put_u32, put_u64, put_words};

/// The only supported version (RFC 8166 §4.2.2).
pub const VERSION: u32 = 1;
/// Octets of the four fields that every version begins with (RFC 8166 §7).
pub const FIXED_LEN: usize = 16;
/// Octets of the shortest RDMA_MSG or RDMA_NOMSG; a shorter call is dropped (RFC 8166 §4.5).
pub const HEADER_MIN: usize = 28;
/// Octets of a Read segment in the header, including the word that announces it.
pub const READ_SEGMENT_LEN: usize = 24;
/// Octets that a segment of a Write or Reply chunk takes.
pub const SEGMENT_LEN: usize = 16;

const RDMA_MSG: u32 = 0;
const RDMA_NOMSG: u32 = 1;
const RDMA_MSGP: u32 = 2;
const RDMA_DONE: u32 = 3;
const RDMA_ERROR: u32 = 4;
const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

/// A contiguous part of the requester's memory (RFC 8166 §3.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// STag of its registration.
    pub handle: u32,
    /// Octets. Zero makes it an empty segment.
    pub length: u32,
    /// Tagged offset of its first octet.
    pub offset: u64,
}

/// A part of a Read chunk (RFC 8166 §3.4.5). Those with the same position are one chunk, in the order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadSegment {
    /// The position of the chunk's data in the unreduced Payload stream, in octets.
    pub position: u32,
    /// The memory.
    pub segment: Segment,
}

/// The chunk lists of a message (RFC 8166 §4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chunks {
    /// What the responder reads. Empty in a reply.
    pub reads: Vec<ReadSegment>,
    /// Write chunks: where the responder writes results. One without segments is an empty chunk (§4.3.2.3).
    pub writes: Vec<Vec<Segment>>,
    /// Where the responder writes a reply that is too long for a Send.
    pub reply: Option<Vec<Segment>>,
}

/// Octets of a chunk's segments together.
pub fn chunk_length(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.length)).sum()
}

/// One Read chunk: all segments of one position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadChunk {
    /// The position of its data in the unreduced Payload stream.
    pub position: u32,
    /// Its memory, in the order of its data.
    pub segments: Vec<Segment>,
}

impl Chunks {
    /// Whether all three lists are absent.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }

    /// The Read chunks in ascending order of position; the list itself may have any order.
    pub fn read_chunks(&self) -> Vec<ReadChunk> {
        if self.reads.is_empty() {
            return Vec::new();
        }
        let mut sorted: Vec<_> = self.reads.iter().collect();
        // Stable: segments of one chunk stay in the order of the list.
        sorted.sort_by_key(|read| read.position);
        let mut chunks: Vec<ReadChunk> = Vec::new();
        for read in sorted {
            match chunks.last_mut() {
                Some(chunk) if chunk.position == read.position => chunk.segments.push(read.segment),
                _ => chunks.push(ReadChunk { position: read.position, segments: vec![read.segment] }),
            }
        }
        chunks
    }

    /// Octets of the three lists in a header.
    pub fn encoded_len(&self) -> usize {
        let chunk = |segments: &Vec<Segment>| 4 + SEGMENT_LEN * segments.len();
        12 + READ_SEGMENT_LEN * self.reads.len()
            + self.writes.iter().map(|segments| 4 + chunk(segments)).sum::<usize>()
            + self.reply.as_ref().map_or(0, chunk)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        if self.is_empty() {
            return put_words(out, [0; 3]);
        }
        for read in &self.reads {
            put_u32(out, 1);
            put_u32(out, read.position);
            put_segment(out, &read.segment);
        }
        put_u32(out, 0);
        for segments in &self.writes {
            put_u32(out, 1);
            put_chunk(out, segments);
        }
        put_u32(out, 0);
        match &self.reply {
            None => put_u32(out, 0),
            Some(segments) => {
                put_u32(out, 1);
                put_chunk(out, segments);
            }
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        let mut chunks = Self::default();
        // As in most messages.
        let mut behind = *reader;
        if behind.take(12).is_ok_and(|lists| lists == [0; 12]) {
            *reader = behind;
            return Ok(chunks);
        }
        while reader.boolean()? {
            let position = reader.u32()?;
            chunks.reads.push(ReadSegment { position, segment: segment(reader)? });
        }
        while reader.boolean()? {
            chunks.writes.push(chunk(reader)?);
        }
        if reader.boolean()? {
            chunks.reply = Some(chunk(reader)?);
        }
        Ok(chunks)
    }

    /// Whether a call may have this Read list (RFC 8166 §3.4.5): positions are multiples of four, and no chunk begins
    /// inside another one or ends beyond the largest position. `long`: the chunk at position zero is the call itself
    /// (§3.5.3), whose length belongs to another stream. In other calls nothing can be at position zero, because the
    /// XID is there.
    fn are_positions_right(&self, long: bool) -> bool {
        let mut end = 0;
        for chunk in self.read_chunks() {
            let start = u64::from(chunk.position);
            if start == 0 {
                if !long {
                    return false;
                }
                continue;
            }
            let length = chunk_length(&chunk.segments);
            if !start.is_multiple_of(4) || start < end {
                return false;
            }
            end = start + length.next_multiple_of(4);
            if end > u64::from(u32::MAX) {
                return false;
            }
        }
        true
    }
}

fn put_segment(out: &mut Vec<u8>, segment: &Segment) {
    put_u32(out, segment.handle);
    put_u32(out, segment.length);
    put_u64(out, segment.offset);
}

fn put_chunk(out: &mut Vec<u8>, segments: &[Segment]) {
    // The count fits: memory holds fewer than 2^32 segments of 16 octets for a message of 32-bit length.
    put_u32(out, segments.len() as u32);
    for segment in segments {
        put_segment(out, segment);
    }
}

fn segment(reader: &mut Reader<'_>) -> Result<Segment, XdrError> {
    Ok(Segment { handle: reader.u32()?, length: reader.u32()?, offset: reader.u64()? })
}

fn chunk(reader: &mut Reader<'_>) -> Result<Vec<Segment>, XdrError> {
    let count = reader.u32()? as usize;
    // Before anything is allocated for it.
    if count > reader.left() / SEGMENT_LEN {
        return Err(XdrError);
    }
    (0..count).map(|_| segment(reader)).collect()
}

/// Why a responder refuses a call (RFC 8166 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RdmaError {
    /// ERR_VERS: the header's version is not supported. Contains the lowest and highest supported ones.
    Version {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// ERR_CHUNK: the header or its chunks are unusable.
    Chunk,
}

impl RdmaError {
    /// This stack's answer to other versions.
    pub const VERSIONS: Self = Self::Version { low: VERSION, high: VERSION };
}

/// The kind of a message, and what follows the fixed fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// RDMA_MSG: the (reduced) Payload stream follows the header.
    Message(Chunks),
    /// RDMA_NOMSG: the Payload stream is in a call's Position Zero Read chunk, or in a reply's Reply chunk.
    NoMessage(Chunks),
    /// RDMA_ERROR, which ends the call of that XID.
    Error {
        /// The version of the failed call, which may be an unsupported one.
        version: u32,
        /// Its fault.
        error: RdmaError,
    },
}

/// A whole transport header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// XID of the RPC message (RFC 8166 §4.2.1).
    pub xid: u32,
    /// Credits that a call requests, or that a reply grants (§3.3.1).
    pub credits: u32,
    /// The rest.
    pub body: Body,
}

impl Header {
    /// Its chunk lists; an error has none.
    pub fn chunks(&self) -> Option<&Chunks> {
        match &self.body {
            Body::Message(chunks) | Body::NoMessage(chunks) => Some(chunks),
            Body::Error { .. } => None,
        }
    }

    /// Octets of the header.
    pub fn encoded_len(&self) -> usize {
        FIXED_LEN
            + match &self.body {
                Body::Message(chunks) | Body::NoMessage(chunks) => chunks.encoded_len(),
                Body::Error { error: RdmaError::Version { .. }, .. } => 12,
                Body::Error { error: RdmaError::Chunk, .. } => 4,
            }
    }

    /// Appends it to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (version, procedure) = match &self.body {
            Body::Message(_) => (VERSION, RDMA_MSG),
            Body::NoMessage(_) => (VERSION, RDMA_NOMSG),
            Body::Error { version, .. } => (*version, RDMA_ERROR),
        };
        put_words(out, [self.xid, version, self.credits, procedure]);
        match &self.body {
            Body::Message(chunks) | Body::NoMessage(chunks) => chunks.encode(out),
            Body::Error { error: RdmaError::Version { low, high }, .. } => {
                for word in [ERR_VERS, *low, *high] {
                    put_u32(out, word);
                }
            }
            Body::Error { error: RdmaError::Chunk, .. } => put_u32(out, ERR_CHUNK),
        }
    }
}

/// The fields at the start of every version.
#[derive(Clone, Copy)]
struct Fixed {
    xid: u32,
    version: u32,
    credits: u32,
    procedure: u32,
}

impl Fixed {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(Self { xid: reader.u32()?, version: reader.u32()?, credits: reader.u32()?, procedure: reader.u32()? })
    }
}

/// Why a received message is dropped silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DiscardReason {
    /// Too short to identify its call (RFC 8166 §4.5).
    #[error("shorter than a header")]
    Short,
    /// RDMA_DONE, which nobody needs (§4.6.2).
    #[error("RDMA_DONE")]
    Done,
    /// A requester sent an error (§4.2.4).
    #[error("RDMA_ERROR from a requester")]
    ErrorFromRequester,
    /// A reply with another version than the call's.
    #[error("a reply of another version")]
    Version,
    /// A reply with a reserved or unknown procedure (§4.6.1).
    #[error("a reply by a procedure that is reserved or not known")]
    Procedure,
    /// A reply whose lists are unreadable or not allowed in a reply (§4.5).
    #[error("a reply with a header that is wrong")]
    Header,
    /// A reply to no call, or with chunks that are not the call's.
    #[error("a reply that belongs to no call")]
    Unexpected,
}

/// How a responder answers a message that is not a valid call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFault {
    /// Nothing.
    Discard(DiscardReason),
    /// It answers with an RDMA_ERROR.
    Answer {
        /// XID of the call.
        xid: u32,
        /// Version of its header.
        version: u32,
        /// The answer to send.
        error: RdmaError,
    },
}

/// Parses a message that a responder received. Returns the header, whose body is [`Body::Message`] or
/// [`Body::NoMessage`], and its length: the payload of an RDMA_MSG begins there.
///
/// # Errors
/// The action to take instead (RFC 8166 §4.5). A message of less than 28 octets is dropped unread. So is an RDMA_ERROR
/// of any version, because otherwise two responders would answer each other for ever.
pub fn parse_call(octets: &[u8]) -> Result<(Header, usize), CallFault> {
    use CallFault::Discard;
    if octets.len() < HEADER_MIN {
        return Err(Discard(DiscardReason::Short));
    }
    let mut reader = Reader::new(octets);
    let fixed = Fixed::parse(&mut reader).map_err(|_| Discard(DiscardReason::Short))?;
    let answer = |error| CallFault::Answer { xid: fixed.xid, version: fixed.version, error };
    if fixed.procedure == RDMA_ERROR {
        return Err(Discard(DiscardReason::ErrorFromRequester));
    }
    if fixed.version != VERSION {
        return Err(answer(RdmaError::VERSIONS));
    }
    if fixed.procedure == RDMA_DONE {
        return Err(Discard(DiscardReason::Done));
    }
    let bad = |_: XdrError| answer(RdmaError::Chunk);
    let long = match fixed.procedure {
        RDMA_MSG => false,
        RDMA_NOMSG => true,
        // RDMA_MSGP among others.
        _ => return Err(bad(XdrError)),
    };
    let chunks = Chunks::parse(&mut reader).map_err(bad)?;
    let at = reader.at();
    if !chunks.are_positions_right(long) {
        return Err(bad(XdrError));
    }
    let body = if long {
        // The payload has to be somewhere (§4.2.4).
        if !chunks.reads.iter().any(|read| read.position == 0 && read.segment.length > 0) {
            return Err(bad(XdrError));
        }
        Body::NoMessage(chunks)
    } else {
        // The message's own copy of the XID (§4.5.2).
        if reader.u32().map_err(bad)? != fixed.xid {
            return Err(bad(XdrError));
        }
        Body::Message(chunks)
    };
    Ok((Header { xid: fixed.xid, credits: fixed.credits, body }, at))
}

/// Parses a message that a requester received. Returns the header and its length: the payload of an RDMA_MSG begins
/// there.
///
/// An RDMA_ERROR is accepted whatever version it names, since that is the version that failed. It may be shorter than
/// the 28 octets of §4.5: with ERR_CHUNK it has 20.
///
/// # Errors
/// Why it is dropped: all faults of a reply's header are dropped silently (RFC 8166 §4.5).
pub fn parse_reply(octets: &[u8]) -> Result<(Header, usize), DiscardReason> {
    let mut reader = Reader::new(octets);
    let fixed = Fixed::parse(&mut reader).map_err(|_| DiscardReason::Short)?;
    let header = |body| Header { xid: fixed.xid, credits: fixed.credits, body };
    let bad = |_: XdrError| DiscardReason::Header;
    if fixed.procedure == RDMA_ERROR {
        let error = match reader.u32().map_err(bad)? {
            ERR_VERS => RdmaError::Version { low: reader.u32().map_err(bad)?, high: reader.u32().map_err(bad)? },
            ERR_CHUNK => RdmaError::Chunk,
            _ => return Err(DiscardReason::Header),
        };
        return Ok((header(Body::Error { version: fixed.version, error }), reader.at()));
    }
    if fixed.version != VERSION {
        return Err(DiscardReason::Version);
    }
    match fixed.procedure {
        RDMA_DONE => return Err(DiscardReason::Done),
        RDMA_MSGP => return Err(DiscardReason::Procedure),
        RDMA_MSG | RDMA_NOMSG => {}
        _ => return Err(DiscardReason::Procedure),
    }
    if octets.len() < HEADER_MIN {
        return Err(DiscardReason::Short);
    }
    let chunks = Chunks::parse(&mut reader).map_err(bad)?;
    // The Read list of a reply is empty (§4.3.1).
    if !chunks.reads.is_empty() {
        return Err(DiscardReason::Header);
    }
    let at = reader.at();
    if fixed.procedure == RDMA_NOMSG {
        if chunks.reply.is_none() {
            return Err(DiscardReason::Header);
        }
        return Ok((header(Body::NoMessage(chunks)), at));
    }
    if reader.u32().map_err(bad)? != fixed.xid {
        return Err(DiscardReason::Header);
    }
    Ok((header(Body::Message(chunks)), at))
}

/// Octets that a responder has put into a chunk, given what it returned for the chunk. `None` if `returned` is not the
/// `offered` chunk filled in order (RFC 8166 §3.4.6): other segments, more octets than offered, or a gap.
pub fn filled(offered: &[Segment], returned: &[Segment]) -> Option<u64> {
    if offered.len() != returned.len() {
        return None;
    }
    let mut full = true;
    let mut length = 0;
    for (offered, returned) in offered.iter().zip(returned) {
        if returned.length > offered.length || !full && returned.length > 0 {
            return None;
        }
        full &= returned.length == offered.length;
        length += u64::from(returned.length);
    }
    Some(length)
}

/// A chunk as the responder returns it after writing `length` octets into it: from the first segment on, each to its
/// end (RFC 8166 §3.4.6). `None` if it is too small.
pub fn fill(offered: &[Segment], length: u64) -> Option<Vec<Segment>> {
    let mut left = length;
    let returned = offered
        .iter()
        .map(|segment| {
            let part = left.min(u64::from(segment.length));
            left -= part;
            // At most what it was.
            Segment { length: part as u32, ..*segment }
        })
        .collect();
    (left == 0).then_some(returned)
}

/// Whether a chunk of `length` octets holds an item of `item` octets, with or without its roundup padding (RFC 8166
/// §3.4.5.2).
pub fn holds(length: u64, item: u32) -> bool {
    length == u64::from(item) || length == u64::from(item) + xdr::padding(item as usize) as u64
}
