//! Shared receive queues.

use crate::error::{Error, PostError, PostErrorReason};
use crate::rdma::domain::ProtectionDomain;
use crate::rdma::request::ReceiveRequest;
use crate::runtime::context::Shared;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use uwarp_engine::shared::{MAX_SHARED_ENTRIES, SharedReceiveQueueId, SharedReceives};

/// Options of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveOptions {
    /// Receives that it holds, at least.
    pub depth: usize,
    /// Most receives that one queue pair may have taken and the application not returned
    /// ([`SharedReceiveQueue::give_back`]). A peer that sends more loses its connection, and
    /// [`AsyncEvent::SharedReceivesExceeded`](crate::AsyncEvent::SharedReceivesExceeded) reports it. `None`: no bound,
    /// and nothing needs to be returned.
    pub share: Option<u32>,
}

impl Default for SharedReceiveOptions {
    fn default() -> Self {
        Self { depth: 256, share: None }
    }
}

/// A receive queue for several queue pairs of a protection domain. Connections that do not all receive at once share
/// its memory.
///
/// A receive completes to the receive completion queue of the queue pair whose message took it, in the order of that
/// queue pair's messages. A message that finds none ends its connection, as on a queue of its own: set a limit
/// ([`set_limit`](Self::set_limit)) for an early warning. Unused receives are not flushed when a connection ends.
///
/// [`AsyncEvent::LastReceiveReached`](crate::AsyncEvent::LastReceiveReached) says when a queue pair takes no more from
/// it.
///
/// One thread owns it at a time (`Send`, not `Sync`). Dropping it drops the receives that nobody has taken, once the
/// last queue pair that uses it is gone.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    receives: Arc<SharedReceives>,
    domain: u32,
    shared: Arc<Shared>,
    one_thread: PhantomData<Cell<()>>,
}

impl ProtectionDomain {
    /// A new shared receive queue of this domain.
    pub fn create_shared_receive_queue(&self, options: SharedReceiveOptions) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::create(self.shared(), self.number(), options)
    }
}

impl SharedReceiveQueue {
    pub(crate) fn create(shared: &Arc<Shared>, domain: u32, options: SharedReceiveOptions) -> Result<Self, Error> {
        shared.check_open()?;
        let most = shared.config.limits.queue_depth;
        if !(1..=most).contains(&options.depth) {
            let choose = format!("choose 1 to {most} (limits.queue-depth)");
            return Err(Error::argument("the shared receive queue's depth", options.depth, choose));
        }
        if options.share == Some(0) {
            return Err(Error::argument("the share of a queue pair", 0, "choose at least 1"));
        }
        let id = SharedReceiveQueueId(shared.objects.next());
        let share = options.share.unwrap_or(u32::MAX);
        let queue_pairs = shared.config.limits.queue_pairs as u32;
        let receives = Arc::new(SharedReceives::new(id, options.depth, share, queue_pairs));
        Ok(Self { receives, domain, shared: Arc::clone(shared), one_thread: PhantomData })
    }

    pub(crate) fn receives(&self) -> &Arc<SharedReceives> {
        &self.receives
    }

    pub(crate) fn is_for(&self, context: u64, domain: u32) -> bool {
        self.shared.id == context && self.domain == domain
    }

    /// Its number, for events.
    pub fn id(&self) -> SharedReceiveQueueId {
        self.receives.id()
    }

    /// Posts receives in order and returns their number. Each has at most [`MAX_SHARED_SGE`](crate::MAX_SHARED_SGE)
    /// SGEs.
    ///
    /// # Errors
    /// One does not fit. The error says how many were posted before it; nothing is lost.
    pub fn post_receive(&mut self, requests: &[ReceiveRequest<'_>]) -> Result<usize, PostError> {
        for (posted, request) in requests.iter().enumerate() {
            let (element, entries) =
                request.element(MAX_SHARED_ENTRIES).map_err(|reason| PostError { posted, reason })?;
            self.receives.post(&element, entries).map_err(|_| PostError { posted, reason: PostErrorReason::Full })?;
        }
        Ok(requests.len())
    }

    /// Returns `count` receives, whose messages came through the queue pair with this number
    /// ([`Completion::queue_pair`](crate::Completion#structfield.queue_pair)): they no longer count in its share.
    pub fn give_back(&self, queue_pair: u32, count: u32) {
        self.receives.give_back(queue_pair, count);
    }

    /// Receives that a queue pair has taken and the application not returned.
    pub fn taken_by(&self, queue_pair: u32) -> u32 {
        self.receives.taken_by(queue_pair)
    }

    /// Raises [`AsyncEvent::SharedReceivesLow`](crate::AsyncEvent::SharedReceivesLow) once, when a message leaves fewer
    /// than `limit` receives; 0 cancels that.
    pub fn set_limit(&self, limit: usize) {
        self.receives.set_limit(limit);
    }

    /// The limit that is set and has not been reached.
    pub fn limit(&self) -> usize {
        self.receives.limit()
    }

    /// Unused receives.
    pub fn len(&self) -> usize {
        self.receives.len()
    }

    /// Whether there are no unused receives.
    pub fn is_empty(&self) -> bool {
        self.receives.is_empty()
    }

    /// Most receives that it holds.
    pub fn depth(&self) -> usize {
        self.receives.capacity()
    }
}
