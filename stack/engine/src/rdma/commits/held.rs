//! What waits for commits.

use crate::api::command::CompletionQueueId;
use crate::api::work::Completion;
use uwarp_iwarp::Stream;
use uwarp_iwarp::stream::CommitTicket;
use uwarp_memory::{CommitStatus, KeptRange};

/// Ranges of writes that a queue pair stores singly. Beyond that they are joined, and more is made durable than
/// necessary.
pub(super) const RANGES: usize = 16;

/// A peer's commit that begins when the atomics before it were executed.
#[derive(Debug)]
pub(crate) struct WaitingCommit {
    pub(super) ticket: CommitTicket,
    pub(super) ranges: Vec<KeptRange>,
    /// What is known already.
    pub(super) status: CommitStatus,
}

/// A received message that waits for a commit, or behind one that does.
#[derive(Debug)]
pub(crate) struct Held {
    pub(super) completion: Completion,
    pub(super) queue: CompletionQueueId,
    /// The commit that it waits for.
    pub(super) waits_for: Option<u64>,
    /// The peer's requests that arrived before it.
    pub(super) requests: u64,
}

impl Held {
    /// Whether the stream's next response belongs to a request that arrived after this message, and so must wait for
    /// its delivery: a response implies that the messages before its request are complete (RFC 5040 appendix B, RFC
    /// 7306 §7).
    pub(crate) fn precedes_response(&self, stream: &Stream) -> bool {
        stream.requests_answered() >= self.requests
    }
}

/// What a peer has written to transparent regions and is not known to be durable.
#[derive(Debug, Default)]
pub(crate) struct WrittenRanges(pub(super) Vec<KeptRange>);

impl WrittenRanges {
    pub(super) fn add(&mut self, range: KeptRange) {
        // Most writes continue the previous one.
        if self.0.iter_mut().rev().any(|earlier| earlier.extend(&range)) {
            return;
        }
        if self.0.len() >= RANGES
            && let Some(earlier) = self.0.iter_mut().find(|earlier| earlier.is_beside(&range))
        {
            return earlier.span(&range);
        }
        self.0.push(range);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Restores ranges that could not be made durable.
    pub(super) fn put_back(&mut self, ranges: WrittenRanges) {
        for range in ranges.0 {
            self.add(range);
        }
    }

    /// Reuses the memory of ranges that are done.
    pub(super) fn reuse(&mut self, mut ranges: WrittenRanges) {
        if self.0.capacity() == 0 {
            ranges.clear();
            *self = ranges;
        }
    }
}

/// What a received message waits for.
pub(crate) enum Hold {
    /// Nothing.
    Free,
    /// Nothing any more, but a commit has failed.
    Failed,
    /// A commit.
    Commit(u64),
}
