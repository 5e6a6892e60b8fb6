//! The rules that an application gives a queue pair while it works, and the send queue that it has hold its requests
//! (InfiniBand's state "send queue drain").
//!
//! A queue pair that holds is out of the short ways, as one that ends is, so the others pay nothing for it. What the
//! peer asks for is answered as before.

use uwarp_tcp::Instant;

use crate::api::command::{AsyncEvent, DisconnectReason, Rules};
use crate::api::common::Common;
use crate::connection::phase::Phase;
use crate::connection::running::Ending;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::{QueuePair, Stage};

impl Rdma {
    /// Gives a queue pair other rules. What it has begun to send goes by those before.
    pub(crate) fn set_rules<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        common: &mut Common,
        number: u32,
        rules: Rules,
    ) {
        let Some(queue_pair) = self.queue_pair(number) else { return };
        let before = std::mem::replace(queue_pair.rules(), rules);
        let (index, is_deserted) = (queue_pair.connection, queue_pair.stage == Stage::Deserted);
        let connection = index.and_then(|index| connections.table.disturb(index));
        if let Some(Connection { phase: Phase::Running(running), .. }) = connection {
            running.stream.say_retries(rules.not_ready.retries);
            running.ending = running.ending.held(rules.holds_sends);
            return connections.schedule_index(index.unwrap_or_default());
        }
        // There is no stream, so nothing was begun.
        if rules.holds_sends && !before.holds_sends {
            self.events.send(AsyncEvent::SendQueueDrained { queue_pair: number });
        }
        if before.holds_sends && is_deserted {
            self.desert(common, number, DisconnectReason::TimedOut);
        }
    }

    /// A stream has nothing to send: closes it if that was awaited, and reports the end of what a held queue had begun.
    #[inline]
    pub(crate) fn on_dry(&self, connection: &mut Connection, queue_pair: &mut QueuePair, now: Instant) {
        let Phase::Running(running) = &mut connection.phase else { return };
        match &mut running.ending {
            Ending::No | Ending::Closed | Ending::Held { is_drained: true } => {}
            Ending::Finishing { .. } => connection.close_if_finished(queue_pair, now),
            Ending::Held { is_drained } => {
                *is_drained = queue_pair.send.begun() == 0 && !queue_pair.send.is_cutting();
                if *is_drained {
                    self.events.send(AsyncEvent::SendQueueDrained { queue_pair: queue_pair.number });
                }
            }
        }
    }
}
