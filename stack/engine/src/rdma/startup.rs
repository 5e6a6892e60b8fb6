//! The outcome of a start-up: full operation with a queue pair, or the end.

use std::sync::atomic::Ordering;

use uwarp_iwarp::opcode::Features;
use uwarp_iwarp::startup::{Outcome, Parameters};
use uwarp_iwarp::{Fault, Stream};
use uwarp_tcp::Instant;

use crate::api::command::{ConnectFailure, ConnectionEvent, DisconnectReason, Established};
use crate::api::common::Common;
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::connection::running::{Ending, Limit, Running};
use crate::connection::startup::endpoints;
use crate::link::Link;
use crate::link::port::Port;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::QueuePair;

impl Rdma {
    /// The peer's Reply is complete. `settings` are TCP's.
    pub(crate) fn on_reply(
        &mut self,
        common: &mut Common,
        settings: &uwarp_tcp::Config,
        connection: &mut Connection,
        outcome: Outcome,
    ) {
        let (Phase::Initiating(initiating), Some(number)) = (&connection.phase, connection.queue_pair) else {
            return common.counters.cannot_be("a Reply comes for a connection that waits for none");
        };
        let (delay, features) = (initiating.first_fpdu_delay, initiating.features);
        match outcome {
            Outcome::Established(parameters) => {
                let silence = Limit::silence(common.now, common.config.iwarp.nudge_after, 0);
                let limit = if delay.is_zero() { silence } else { Limit::Pause(common.now + delay) };
                connection.leave_stream(settings);
                let Some(queue_pair) = self.queue_pair(number) else {
                    return common.counters.cannot_be("the queue pair of a connection is gone");
                };
                connection.begin_running(queue_pair, parameters, features, limit);
            }
            Outcome::Rejected(rejection) => {
                if let Some(queue_pair) = self.unbind(&mut common.counters, connection) {
                    queue_pair.report(ConnectionEvent::Rejected {
                        private_data: rejection.private_data,
                        peer_ird: rejection.peer_ird,
                        peer_ord: rejection.peer_ord,
                    });
                }
                if !connection.resume_stream() {
                    connection.finish_tcp(common.now);
                }
            }
            Outcome::Refused(parameters, fault) => {
                if let Some(queue_pair) = self.unbind(&mut common.counters, connection) {
                    let reason = match fault {
                        Fault::NoMatchingRtr => ConnectFailure::ReadyToReceive,
                        _ => ConnectFailure::ReadLimits,
                    };
                    queue_pair.report(ConnectionEvent::Failed(reason));
                }
                connection.refuse(&parameters, fault, common.now + common.config.iwarp.terminate_drain);
            }
        }
    }
}

impl Connection {
    /// Starts full operation for a queue pair.
    pub(crate) fn begin_running(
        &mut self,
        queue_pair: &mut QueuePair,
        parameters: Parameters,
        features: Features,
        limit: Limit,
    ) {
        let acknowledges_placed = queue_pair.send.completes_on_ack();
        let mut running = Running { limit, acknowledges_placed, ..Running::new(self, &parameters, features) };
        running.stream.say_retries(queue_pair.rules().not_ready.retries);
        if queue_pair.rules().holds_sends {
            running.ending = Ending::Held { is_drained: true };
        }
        if acknowledges_placed && features.infiniband {
            self.tcp.expect_withholding();
        }
        self.phase.enter(Phase::Running(Box::new(running)));
        let (local, peer) = endpoints(&self.flow);
        queue_pair.established.store(true, Ordering::Release);
        queue_pair.report(ConnectionEvent::Established(Box::new(Established {
            peer,
            local,
            ird: parameters.ird,
            ord: parameters.ord,
            peer_ird: parameters.peer_ird,
            peer_ord: parameters.peer_ord,
            transmit_markers: parameters.transmit_markers,
            receive_markers: parameters.receive_markers,
            peer_to_peer: parameters.ready_to_receive.is_some() || parameters.expects_ready_to_receive,
            crc: parameters.crc,
            private_data: parameters.private_data,
        })));
    }

    /// The start-up came to nothing: tells the queue pair and resets TCP.
    pub(crate) fn fail_startup<P: Port>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
        reason: ConnectFailure,
    ) {
        if let Some(queue_pair) = rdma.unbind(&mut common.counters, self) {
            queue_pair.report(ConnectionEvent::Failed(reason));
        }
        if let Some(stream) = &self.stream {
            stream.fail(reason.into());
        }
        self.ends_by(DisconnectReason::Aborted);
        self.abort(link, common);
    }

    /// The stream continues only to send its Terminate, until `close_at`.
    fn refuse(&mut self, parameters: &Parameters, fault: Fault, close_at: Instant) {
        let mut running = Running::new(self, parameters, Features::default());
        running.terminate = running.stream.fail(fault, None);
        running.ending = Ending::Closed;
        running.limit = Limit::Close(close_at);
        self.phase.enter(Phase::Running(Box::new(running)));
    }
}

impl Running {
    fn new(connection: &Connection, parameters: &Parameters, features: Features) -> Running {
        // Full operation starts behind our start-up frame, which TCP may not have yet.
        let frame = connection.startup_frame.as_ref().map_or(0, Vec::len) as u64;
        Running {
            stream: Stream::new(parameters, features),
            crc: parameters.crc,
            marker_mask: if parameters.transmit_markers { u32::MAX } else { 0 },
            transmit_start: connection.tcp.octets_pushed() + frame,
            receive_markers: parameters.receive_markers,
            receives_long: parameters.receive_markers || features.infiniband,
            receive_position: 0,
            outgoing: None,
            balance: 0,
            limit: Limit::None,
            silences: 0,
            ending: Ending::No,
            receive_wait: None,
            acknowledges_placed: false,
            peer_closed: false,
            terminate: None,
        }
    }
}
