//! Doorbells that rang, and queue pairs in the error state, whose work is flushed.

use super::SWEEP_INTERVAL;
use crate::api::command::DisconnectReason;
use crate::api::common::Common;
use crate::connection::Connections;
use crate::link::port::Buffer;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::Stage;

impl Rdma {
    /// The connection of the queue pair whose doorbell alone is among those that rang.
    #[inline(always)]
    pub(crate) fn lone_rung(&self, rung: &[u32]) -> Option<u32> {
        let &[number] = rung else { return None };
        self.queue_pairs.get(number as usize)?.as_ref()?.connection
    }

    /// Puts the connections on the ready list whose doorbells rang, and flushes queue pairs in the error state, or
    /// whose peer has gone. True: there was one of these, or one that has datagrams to send.
    #[inline(never)]
    pub(crate) fn run_doorbells<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        common: &mut Common,
        rung: &mut Vec<u32>,
    ) -> bool {
        let mut has_flushed = false;
        while let Some(number) = rung.pop() {
            if let Some(index) = number.checked_sub(self.queue_pairs.len() as u32) {
                connections.schedule_index(index);
                continue;
            }
            // The application may have given it up since.
            let Some(queue_pair) = self.queue_pair(number) else { continue };
            match queue_pair.connection {
                Some(index) => connections.schedule_index(index),
                None => match queue_pair.stage {
                    Stage::Error => {
                        has_flushed = true;
                        self.flush(&mut common.counters, number);
                    }
                    Stage::Deserted => {
                        has_flushed = true;
                        self.desert(common, number, DisconnectReason::TimedOut);
                    }
                    Stage::Datagrams(_) => {
                        has_flushed = true;
                        self.datagrams.ring(number);
                    }
                    Stage::Idle | Stage::Connected => {}
                },
            }
        }
        has_flushed
    }

    /// Flushes what was posted to queue pairs in the error state without a doorbell.
    pub(crate) fn sweep(&mut self, common: &mut Common) {
        let mut failed = std::mem::take(&mut self.failed);
        failed.retain(|number| {
            let in_error = self.queue_pair(*number).is_some_and(|queue_pair| queue_pair.stage == Stage::Error);
            if in_error {
                self.flush(&mut common.counters, *number);
            }
            in_error
        });
        self.sweep_at = (!failed.is_empty()).then(|| common.now + SWEEP_INTERVAL);
        self.failed = failed;
    }
}
