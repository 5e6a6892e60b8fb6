//! Doorbells that rang, and queue pairs in the error state, whose work is flushed.

use uwarp_tcp::Instant;

use super::SWEEP_INTERVAL;
use crate::api::counters::Counters;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::Stage;

impl Rdma {
    /// The connection of the queue pair whose doorbell alone is among those that rang.
    #[inline(always)]
    pub(crate) fn lone_rung(&self, rung: &[u32]) -> Option<u32> {
        let &[number] = rung else { return None };
        self.queue_pairs.get(number as usize)?.as_ref()?.connection
    }
}

impl<P: Port> Core<P> {
    #[inline(always)]
    pub(crate) fn run_doorbells(&mut self) {
        if !self.control.rung.is_empty() {
            self.run_rung();
        }
    }

    #[inline(never)]
    fn run_rung(&mut self) {
        while let Some(number) = self.control.rung.pop() {
            if let Some(index) = number.checked_sub(self.config.limits.queue_pairs) {
                self.connections.schedule_index(index);
                continue;
            }
            let Some(queue_pair) = self.rdma.queue_pair(number) else { continue };
            match queue_pair.connection {
                Some(index) => self.connections.schedule_index(index),
                None if queue_pair.stage == Stage::Error => {
                    self.was_usual = false;
                    self.rdma.flush(&mut self.counters, number);
                }
                None => {}
            }
        }
    }
}

impl Rdma {
    /// Flushes what was posted to queue pairs in the error state without a doorbell.
    pub(crate) fn sweep(&mut self, counters: &mut Counters, now: Instant) {
        let mut failed = std::mem::take(&mut self.failed);
        failed.retain(|number| {
            let in_error = self.queue_pair(*number).is_some_and(|queue_pair| queue_pair.stage == Stage::Error);
            if in_error {
                self.flush(counters, *number);
            }
            in_error
        });
        self.sweep_at = (!failed.is_empty()).then(|| now + SWEEP_INTERVAL);
        self.failed = failed;
    }
}
