//! Queue pairs: from work requests to FPDUs, from FPDUs to registered memory, and completions.

use std::time::Duration;

use uwarp_tcp::Instant;

use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::commits::Commits;
use crate::rdma::gathers::Gathers;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::{QueuePair, Stage};

pub(crate) mod choose;
pub(crate) mod commits;
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

impl<P: Port> Core<P> {
    pub(crate) fn run_doorbells(&mut self) {
        while let Some(number) = self.control.rung.pop() {
            if let Some(index) = number.checked_sub(self.config.limits.queue_pairs) {
                self.schedule_index(index);
                continue;
            }
            let Some(queue_pair) = self.rdma.queue_pair(number) else { continue };
            match queue_pair.connection {
                Some(index) => self.schedule_index(index),
                None if queue_pair.stage == Stage::Error => {
                    self.flush_queue_pair_number(number);
                }
                None => {}
            }
        }
    }

    /// Flushes what was posted to queue pairs in the error state without a doorbell.
    pub(crate) fn sweep(&mut self) {
        let mut failed = std::mem::take(&mut self.rdma.failed);
        failed.retain(|number| {
            let in_error = self.rdma.queue_pair(*number).is_some_and(|queue_pair| queue_pair.stage == Stage::Error);
            if in_error {
                self.flush_queue_pair_number(*number);
            }
            in_error
        });
        self.rdma.sweep_at = (!failed.is_empty()).then(|| self.now + SWEEP_INTERVAL);
        self.rdma.failed = failed;
    }
}
