//! The state of a call: as it comes in, and its reply on the way out.

use crate::header::{Chunks, ReadChunk};
use crate::rpc::{OwnedAuth, Protection};
use crate::walk::{Item, Part};
use uwarp::MemoryRegion;

/// Which call is answered; of use once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the requester waits for an answer"]
pub struct Token {
    pub(super) slot: usize,
    pub(super) xid: u32,
}

impl Token {
    /// XID of the call, by which a server recognises one that is sent again.
    pub fn xid(&self) -> u32 {
        self.xid
    }
}

/// A call to be carried out.
#[derive(Debug)]
pub struct Request {
    /// To answer with.
    pub token: Token,
    /// Program, one of those that the responder was created with.
    pub program: u32,
    /// Its version, one of the program's.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: OwnedAuth,
    /// What proves it.
    pub verifier: OwnedAuth,
    /// The arguments. Each item is a part of its own, inline or not.
    pub arguments: Vec<Part>,
}

/// A call that was received and is not answered.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) xid: u32,
    /// The chunks that the requester offers for the reply, and the STag that may be invalidated.
    pub(super) chunks: Chunks,
    pub(super) protection: Protection,
    pub(super) procedure: u32,
    pub(super) version: u32,
    pub(super) program: u32,
    pub(super) stage: Stage,
    /// Octets of all its Read chunks.
    pub(super) octets: u64,
    /// Octets of memory reserved for them: all or none.
    pub(super) memory: u64,
    /// The application has it.
    pub(super) is_given: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// There is no memory for its chunks yet.
    Stalled(Pull),
    /// Its chunks are being read.
    Pulling(Pull, Pulling),
    /// Nothing of it is missing.
    Called,
}

/// The chunks to be read.
#[derive(Debug)]
pub(super) enum Pull {
    /// The call itself; other chunks after it.
    Call(ReadChunk),
    /// The items of a call whose header is valid.
    Items { payload: Vec<u8>, header: usize, items: Vec<Item>, chunks: Vec<ReadChunk> },
}

impl Pull {
    pub(super) fn chunks(&self) -> &[ReadChunk] {
        match self {
            Self::Call(chunk) => std::slice::from_ref(chunk),
            Self::Items { chunks, .. } => chunks,
        }
    }
}

#[derive(Debug)]
pub(super) struct Pulling {
    /// A sink for each chunk; an empty chunk has none.
    pub(super) sinks: Vec<Option<MemoryRegion>>,
    /// Reads that are not done.
    pub(super) reads: usize,
}

/// Memory of a reply that is being sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) serial: u64,
    pub(super) regions: Vec<MemoryRegion>,
    /// How many of them are items.
    pub(super) items: usize,
}
