//! Queue pairs that are removed, and what becomes of their connections.

use crate::api::command::{Abandoned, DisconnectReason};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::Limit;

impl<P: Port> Core<P> {
    /// Removes a queue pair. What TCP has still leaves, followed by FIN.
    pub(crate) fn destroy_queue_pair(&mut self, number: u32) {
        let Some(mut queue_pair) = self.queue_pairs_take(Some(number)) else { return };
        queue_pair.receive.forget_share(number);
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.connections.table.take(index)
        {
            connection.queue_pair = None;
            queue_pair.tell_end(connection.end.unwrap_or(DisconnectReason::Local));
            self.leave_to_tcp(&mut connection);
            connection.schedule(&mut self.connections.ready, index);
            self.put_back(index, connection);
        }
    }

    /// The queue pair of a connection is gone.
    fn leave_to_tcp(&mut self, connection: &mut Connection) {
        match &connection.phase {
            Phase::Running(running) if running.terminate.is_some() || matches!(running.limit, Limit::Close(_)) => {
                // A Terminate is still to be sent, or the peer may not have read it: a reset, the answer to unwanted
                // data, could overtake it. Its own time limit runs.
            }
            Phase::Running(_) | Phase::Closing(_) => {
                let discarded = self.rdma.gathers.resume(connection);
                self.rdma.gathers.give(discarded);
                self.finish_tcp(connection);
            }
            Phase::Initiating(_)
            | Phase::Responding(_)
            | Phase::Requested(_)
            | Phase::Incoming(_)
            | Phase::Stream(_) => self.abort(connection),
        }
    }

    /// Takes a queue pair away at once, and gives back its rings.
    pub(crate) fn abandon_queue_pair(&mut self, number: u32) -> Option<Abandoned> {
        let mut queue_pair = self.queue_pairs_take(Some(number))?;
        queue_pair.receive.forget_share(number);
        self.rdma.commits.abandon(number);
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.connections.table.take(index)
        {
            connection.queue_pair = None;
            connection.ends_by(DisconnectReason::Aborted);
            queue_pair.tell_end(DisconnectReason::Aborted);
            if has_said_all(&connection, &mut queue_pair) {
                // A reset could overtake the acknowledgment of messages that have completed here, and the peer's would
                // fail.
                self.leave_to_tcp(&mut connection);
                connection.schedule(&mut self.connections.ready, index);
            } else {
                // Messages that were delivered are not lost for their sender because this side leaves.
                if let Some(acknowledgment) = connection.tcp.poll_owed_acknowledgment(self.now) {
                    self.send_last(&connection, acknowledgment.header);
                }
                self.abort(&mut connection);
            }
            self.put_back(index, connection);
        }
        self.rdma.lanes.forget(number);
        Some(queue_pair.abandon())
    }
}

/// Whether the peer has all that was posted.
fn has_said_all(connection: &Connection, queue_pair: &mut QueuePair) -> bool {
    matches!(&connection.phase, Phase::Running(running) if running.outgoing.is_none())
        && queue_pair.send.position() == queue_pair.send.end()
        && connection.tcp.octets_acknowledged() == connection.tcp.octets_pushed()
}
