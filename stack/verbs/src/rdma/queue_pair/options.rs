//! What a queue pair is made of.

use crate::error::Error;
use crate::rdma::completion::CompletionTarget;
use crate::rdma::request::MAX_SGE;
use crate::rdma::shared_receives::SharedReceiveQueue;
use crate::runtime::core::Core;
use uwarp_engine::work::MAX_INLINE;

/// How a queue pair is made.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions<'a> {
    /// Where completions of the send queue go.
    pub send_cq: &'a CompletionTarget,
    /// Where completions of the receive queue go; may be the same.
    pub receive_cq: &'a CompletionTarget,
    /// Requests that the send queue holds at least. An element leaves the queue when it completes, signalled or not.
    pub send_depth: usize,
    /// Requests that the receive queue holds at least.
    pub receive_depth: usize,
    /// Most SGEs of a request, up to [`MAX_SGE`].
    pub max_sge: usize,
    /// Most octets of inline data, up to [`MAX_INLINE`](uwarp_engine::work::MAX_INLINE).
    pub max_inline: usize,
    /// Make a completion for every request, as if each was signalled.
    pub signal_all: bool,
    /// Complete Sends and Writes when the peer's TCP has acknowledged them, not when their memory may be reused. If the
    /// peer's queue pair does so too, success means that they are placed: neither end acknowledges the last octet of a
    /// message that waits for a receive or was refused.
    pub complete_when_acknowledged: bool,
    /// Take receives from this queue of the same domain; the queue pair has none of its own then.
    pub shared_receives: Option<&'a SharedReceiveQueue>,
}

impl<'a> QueuePairOptions<'a> {
    /// Depths of 128, two SGEs, 32 octets inline, and one completion queue for both queues.
    pub fn new(cq: &'a CompletionTarget) -> Self {
        Self {
            send_cq: cq,
            receive_cq: cq,
            send_depth: 128,
            receive_depth: 128,
            max_sge: 2,
            max_inline: 32,
            signal_all: false,
            complete_when_acknowledged: false,
            shared_receives: None,
        }
    }

    /// Takes receives from a shared queue.
    pub fn shared_receives(mut self, queue: &'a SharedReceiveQueue) -> Self {
        self.shared_receives = Some(queue);
        self
    }

    /// Sets both depths.
    pub fn depth(mut self, send: usize, receive: usize) -> Self {
        self.send_depth = send;
        self.receive_depth = receive;
        self
    }

    /// Sets the limits of a request.
    pub fn limits(mut self, max_sge: usize, max_inline: usize) -> Self {
        self.max_sge = max_sge;
        self.max_inline = max_inline;
        self
    }

    /// Sends completions of receives to another queue.
    pub fn receive_cq(mut self, cq: &'a CompletionTarget) -> Self {
        self.receive_cq = cq;
        self
    }

    /// Signals every request.
    pub fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// Completes Sends and Writes when they are acknowledged, and so placed if the peer does the same.
    pub fn complete_when_acknowledged(mut self) -> Self {
        self.complete_when_acknowledged = true;
        self
    }

    pub(super) fn validate(&self, core: &Core, domain: u32) -> Result<(), Error> {
        if self.shared_receives.is_some_and(|queue| !queue.is_for(core.id, domain)) {
            return Err(Error::argument(
                "the shared receive queue",
                "of another protection domain",
                "use one of the queue pair's own domain",
            ));
        }
        let most = core.config.limits.queue_depth;
        for (what, depth) in
            [("the send queue's depth", self.send_depth), ("the receive queue's depth", self.receive_depth)]
        {
            if !(1..=most).contains(&depth) {
                return Err(Error::argument(what, depth, format!("choose 1 to {most} (limits.queue-depth)")));
            }
        }
        if self.max_sge > MAX_SGE {
            return Err(Error::argument("max_sge", self.max_sge, format!("choose at most {MAX_SGE}")));
        }
        if self.max_inline > MAX_INLINE {
            return Err(Error::argument("max_inline", self.max_inline, format!("choose at most {MAX_INLINE}")));
        }
        for cq in [self.send_cq, self.receive_cq] {
            if cq.core().context_id() != core.id {
                return Err(Error::argument(
                    "the completion queue",
                    "of another context",
                    "use one of the same context",
                ));
            }
        }
        Ok(())
    }
}
