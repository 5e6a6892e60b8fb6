//! What there is to ask for.

use crate::config::Config;
use crate::queue_pair::MAX_SGE;
use crate::request::MAX_COMMIT_REGIONS;
use uwarp_engine::IwarpConfig;
use uwarp_engine::command::{Features, ReadyToReceiveKinds};
use uwarp_engine::work::MAX_INLINE;

/// What connections of a context can be asked to do, whatever their peers can.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Optional operations that can be switched on. The peer's side is found out by agreement of the applications or by a
    /// probe: an operation that the peer does not do is answered with a Terminate of layer 0, type 2, code 6.
    pub features: Features,
    /// Against what atomic operations on this side's memory are atomic (RFC 7306 §5.3).
    pub atomicity: Atomicity,
    /// Ready-to-receive indications of peer-to-peer connections (RFC 6581 §9.2).
    pub ready_to_receive: ReadyToReceiveKinds,
    /// The most inbound reads, in addition atomics, and in addition commits, that a queue pair serves at once (IRD).
    pub max_ird: u16,
    /// The most reads, atomics and commits together that a queue pair may have outstanding (ORD).
    pub max_ord: u16,
    /// Most regions of a Commit; with a small MTU fewer fit the one segment that it is sent in.
    pub max_commit_regions: usize,
    /// Most SGEs of a request.
    pub max_sge: usize,
    /// Most octets of inline data.
    pub max_inline: usize,
    /// Most octets of a message.
    pub max_message: u32,
    /// Most queue pairs of the context.
    pub max_queue_pairs: usize,
    /// Most memory regions of the context.
    pub max_regions: usize,
}

/// Against what an atomic operation of a peer is one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Atomicity {
    /// Against atomic operations of all peers on all engines of all contexts of the process, and against atomic accesses of
    /// its threads ([`MemoryRegion::fetch_add_u64`](crate::MemoryRegion::fetch_add_u64) and the like) and of other
    /// processes that share the memory. Not against RDMA Writes to the same word, which RFC 7306 §5 leaves to the
    /// applications.
    Processor,
}

impl Capabilities {
    pub(crate) fn of(config: &Config) -> Self {
        let iwarp = IwarpConfig::default();
        Self {
            features: Features { atomics: true, immediate: true, commit: true },
            atomicity: Atomicity::Processor,
            ready_to_receive: ReadyToReceiveKinds::ALL,
            max_ird: iwarp.max_ird,
            max_ord: iwarp.max_ord,
            max_commit_regions: MAX_COMMIT_REGIONS,
            max_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            max_message: u32::MAX,
            max_queue_pairs: config.limits.queue_pairs,
            max_regions: config.limits.regions,
        }
    }
}
