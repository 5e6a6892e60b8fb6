//! What a context supports.

use crate::config::Config;
use crate::rdma::request::{MAX_COMMIT_REGIONS, MAX_SGE};
use uwarp_engine::IwarpConfig;
use uwarp_engine::command::{Features, ReadyToReceiveKinds};
use uwarp_engine::work::MAX_INLINE;

/// What a context's connections can do, whatever their peers support.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Optional operations that can be enabled. Whether the peer supports one must be agreed between the applications
    /// or probed: an unsupported operation is answered with a Terminate of layer 0, type 2, code 6.
    pub features: Features,
    /// What atomic operations on this side's memory are atomic with (RFC 7306 §5.3).
    pub atomicity: Atomicity,
    /// Ready-to-receive indications of peer-to-peer connections (RFC 6581 §9.2).
    pub ready_to_receive: ReadyToReceiveKinds,
    /// Most inbound requests that a queue pair serves at once (IRD): reads, and as many atomics, and as many commits.
    pub max_ird: u16,
    /// Most outstanding reads, atomics and commits of a queue pair, together (ORD).
    pub max_ord: u16,
    /// Most regions of a Commit. Its one segment may hold fewer if the MTU is small.
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

/// What a peer's atomic operation is atomic with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Atomicity {
    /// Atomic operations of all peers on all engines of all contexts of the process, and atomic accesses of its threads
    /// (such as [`MemoryRegion::fetch_add_u64`](crate::MemoryRegion::fetch_add_u64)) and of other processes that share
    /// the memory. RDMA Writes to the same word are not included; RFC 7306 §5 leaves them to the applications.
    Processor,
}

impl Capabilities {
    pub(crate) fn of(config: &Config) -> Self {
        let iwarp = IwarpConfig::default();
        Self {
            features: Features { atomics: true, immediate: true, commit: true, infiniband: true },
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
