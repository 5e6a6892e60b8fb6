//! Queue pairs: from work requests to FPDUs, from FPDUs to registered memory, and completions.

use std::time::Duration;

use uwarp_tcp::Instant;

use crate::rdma::commits::Commits;
use crate::rdma::gathers::Gathers;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::QueuePair;

pub(crate) mod choose;
pub(crate) mod commits;
pub(crate) mod cutting;
mod doorbells;
pub(crate) mod failure;
pub(crate) mod fpdu;
pub(crate) mod gathers;
pub(crate) mod lanes;
pub(crate) mod operations;
pub(crate) mod packing;
pub(crate) mod queue_pair;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod receive_wait;
pub(crate) mod running;
pub(crate) mod send;
pub(crate) mod send_queue;
pub mod shared;

/// How often queue pairs in the error state are checked for receives posted late.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Rdma {
    /// By number.
    pub(crate) queue_pairs: Vec<Option<Box<QueuePair>>>,
    /// Completion queues.
    pub(crate) lanes: Lanes,
    pub(crate) commits: Commits,
    /// Memory for incomplete FPDUs.
    pub(crate) gathers: Gathers,
    /// When the queue pairs of `failed` are checked next.
    pub(crate) sweep_at: Option<Instant>,
    /// Queue pairs in the error state.
    failed: Vec<u32>,
}

impl Rdma {
    pub(crate) fn new(queue_pairs: u32, commits: Commits) -> Rdma {
        Rdma {
            queue_pairs: (0..queue_pairs).map(|_| None).collect(),
            lanes: Lanes::default(),
            commits,
            gathers: Gathers::default(),
            sweep_at: None,
            failed: Vec::new(),
        }
    }

    /// The queue pair with this number.
    pub(crate) fn queue_pair(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.queue_pairs.get_mut(number as usize)?.as_deref_mut()
    }

    /// Checks a queue pair in the error state from now on, periodically.
    pub(crate) fn sweep_soon(&mut self, number: u32, now: Instant) {
        if !self.failed.contains(&number) {
            self.failed.push(number);
        }
        if self.sweep_at.is_none() {
            self.sweep_at = Some(now + SWEEP_INTERVAL);
        }
    }
}
