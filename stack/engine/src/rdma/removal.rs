//! Queue pairs that are aborted or removed, and what becomes of their connections.

use uwarp_wire::address::FlowKey;

use crate::api::command::{Abandoned, ConnectFailure, ConnectionEvent, DisconnectReason};
use crate::api::common::Common;
use crate::connection::phase::Phase;
use crate::connection::running::Limit;
use crate::connection::slab::Lent;
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::rdma::Rdma;
use crate::rdma::queue_pair::{QueuePair, Stage};

impl Connection {
    /// The queue pair of the connection is gone.
    fn leave_to_tcp<P: Port>(&mut self, link: &mut Link<P>, rdma: &mut Rdma, common: &mut Common) {
        match &self.phase {
            Phase::Running(running) if running.terminate.is_some() || matches!(running.limit, Limit::Close(_)) => {
                // A Terminate is still to be sent, or the peer may not have read it: a reset, the answer to unwanted
                // data, could overtake it. Its own time limit runs.
            }
            Phase::Running(_) | Phase::Closing(_) => {
                rdma.gathers.discard(self);
                self.finish_tcp(common.now);
            }
            Phase::Initiating(_)
            | Phase::Responding(_)
            | Phase::Requested(_)
            | Phase::Incoming(_)
            | Phase::Stream(_) => self.abort(link, common),
        }
    }
}

impl<B: Buffer> Connections<B> {
    /// Removes a queue pair. What TCP has still leaves, followed by FIN.
    pub(crate) fn destroy_queue_pair<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
        number: u32,
    ) {
        // The application may have taken it away before.
        let Some(mut queue_pair) = rdma.take(Some(number)).map(Lent::leave) else { return };
        queue_pair.receive.forget_share(number);
        rdma.commits.abandon(number);
        rdma.datagrams.forget(number);
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.take(&mut common.counters, index)
        {
            connection.queue_pair = None;
            queue_pair.report_end(connection.end.unwrap_or(DisconnectReason::Local));
            connection.leave_to_tcp(link, rdma, common);
            connection.schedule(&mut self.ready);
            self.put_back(connection);
        }
    }

    /// Moves a queue pair to the error state, and resets its connection. If no message is half sent and the peer does
    /// not have all yet, some of which may have completed, the connection is left to TCP instead.
    pub(crate) fn abort_queue_pair<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
        number: u32,
    ) {
        // The application may have given it up before.
        let Some(queue_pair) = rdma.queue_pair(number) else { return };
        let was_over = queue_pair.stage == Stage::Error;
        let mut left_for = None;
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.take(&mut common.counters, index)
        {
            connection.ends_by(DisconnectReason::Aborted);
            if let Phase::Initiating(_) = connection.phase {
                connection.fail_startup(link, rdma, common, ConnectFailure::Closed);
            } else if connection.tcp.octets_acknowledged() < connection.tcp.octets_pushed()
                && let Some(queue_pair) = rdma.queue_pair(number)
                && is_between_messages(&connection, queue_pair)
            {
                (connection.queue_pair, queue_pair.connection) = (None, None);
                left_for = Some(connection.end.unwrap_or(DisconnectReason::Aborted));
                connection.leave_to_tcp(link, rdma, common);
                connection.schedule(&mut self.ready);
            } else {
                connection.abort(link, common);
            }
            self.put_back(connection);
        }
        rdma.flush(&mut common.counters, number);
        // Who hears of the end may take it for all: what waits for completions is woken first.
        rdma.lanes.settle();
        if let Some(queue_pair) = rdma.queue_pair(number) {
            match left_for {
                Some(reason) => queue_pair.report_end(reason),
                // There was no connection, or an attempt to make one has failed above.
                None if queue_pair.connection.is_none() && !was_over => {
                    queue_pair.report(ConnectionEvent::Disconnected(DisconnectReason::Aborted));
                }
                None => {}
            }
        }
        rdma.sweep_soon(number, common.now);
    }

    /// Ends a queue pair's attempt to connect, and connects it no more. One that is connected meanwhile stays so.
    pub(crate) fn give_up_peer<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
        number: u32,
    ) {
        let Some(queue_pair) = rdma.queue_pair(number) else { return };
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.take(&mut common.counters, index)
        {
            if let Phase::Initiating(_) = connection.phase {
                connection.fail_startup(link, rdma, common, ConnectFailure::TimedOut);
            }
            self.put_back(connection);
        }
        if rdma.queue_pair(number).is_some_and(|queue_pair| queue_pair.stage == Stage::Idle) {
            rdma.desert(common, number, DisconnectReason::TimedOut);
        }
    }

    /// Takes a queue pair away at once, and gives back its rings, with the flow of the connection that TCP is to close.
    pub(crate) fn abandon_queue_pair<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
        number: u32,
    ) -> (Option<Abandoned>, Option<FlowKey>) {
        let Some(queue_pair) = rdma.take(Some(number)) else { return (None, None) };
        let mut queue_pair = queue_pair.leave();
        queue_pair.receive.forget_share(number);
        rdma.commits.abandon(number);
        rdma.datagrams.forget(number);
        let mut left = None;
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.take(&mut common.counters, index)
        {
            connection.queue_pair = None;
            connection.ends_by(DisconnectReason::Aborted);
            queue_pair.report_end(DisconnectReason::Aborted);
            if is_between_messages(&connection, &queue_pair) {
                // A reset would take back messages that have completed and are not acknowledged. It could also overtake
                // the acknowledgment of the peer's messages, which would then fail there.
                connection.leave_to_tcp(link, rdma, common);
                connection.schedule(&mut self.ready);
                left = Some(connection.flow);
            } else {
                // Messages that were delivered are not lost for their sender because this side leaves.
                if let Some(acknowledgment) = connection.tcp.poll_owed_acknowledgment(common.now) {
                    connection.send_last(link, &mut common.counters, acknowledgment.header);
                }
                connection.abort(link, common);
            }
            self.put_back(connection);
        }
        rdma.lanes.forget(number);
        (Some(queue_pair.abandon()), left)
    }
}

/// Whether no message is half sent, so that the stream may end here.
fn is_between_messages(connection: &Connection, queue_pair: &QueuePair) -> bool {
    matches!(&connection.phase, Phase::Running(running) if running.outgoing.is_none()) && !queue_pair.send.is_cutting()
}
