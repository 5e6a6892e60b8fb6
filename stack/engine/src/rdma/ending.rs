//! The end of streams with a queue pair: orderly closes, time limits, and what the application is told.

use uwarp_iwarp::qp::Event;
use uwarp_tcp::Instant;

use crate::api::command::{AsyncEvent, ConnectFailure, ConnectionEvent, DisconnectReason};
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::work::Status;
use crate::connection::ending::CLOSING_LIMIT;
use crate::connection::phase::{Phase, StreamLimit};
use crate::connection::running::{Ending, Limit};
use crate::connection::{Connection, Connections, Opening};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::rdma::Rdma;
use crate::rdma::queue_pair::{QueuePair, Stage};

impl<B: Buffer> Connections<B> {
    /// Closes a connection in order.
    pub(crate) fn disconnect<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
        index: u32,
    ) {
        let Some(mut connection) = self.take(&mut common.counters, index) else { return };
        connection.disconnect(link, rdma, common);
        connection.schedule(&mut self.ready);
        self.put_back(connection);
    }

    /// Closes all connections in order.
    pub(crate) fn disconnect_all<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
    ) {
        for index in self.table.indexes() {
            self.disconnect(link, rdma, common, index);
        }
    }
}

impl Connection {
    /// Closes the connection in order.
    fn disconnect<P: Port>(&mut self, link: &mut Link<P>, rdma: &mut Rdma, common: &mut Common) {
        match &mut self.phase {
            Phase::Initiating(_) => self.fail_startup(link, rdma, common, ConnectFailure::Closed),
            Phase::Running(running) => {
                if let Some(queue_pair) = self.queue_pair.and_then(|number| rdma.queue_pair(number))
                    && running.ending.is_open()
                {
                    self.end.get_or_insert(DisconnectReason::Local);
                    let is_held = running.ending != Ending::No;
                    let until = if is_held { queue_pair.send.position() } else { queue_pair.send.end() };
                    running.ending = Ending::Finishing { until };
                    if common.config.iwarp.switch_timeout.is_some() {
                        // Who leaves does not wait for a peer on the switch that is stopped.
                        self.tcp.set_patience(common.config.tcp.user_timeout, common.config.tcp.keep_alive, common.now);
                    }
                    if !running.stream.may_transmit() && running.limit == Limit::None {
                        // Posted work waits for the peer's first FPDU, normally without limit, but not while a
                        // disconnect waits too.
                        running.limit = Limit::FirstFpdu(common.now + common.config.iwarp.startup_timeout);
                    }
                    self.close_if_finished(queue_pair, common.now);
                }
            }
            Phase::Stream(_) => {
                if !self.end_writes() {
                    self.fail_startup(link, rdma, common, ConnectFailure::ShuttingDown);
                }
            }
            Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => self.abort(link, common),
            Phase::Closing(_) => {}
        }
    }

    /// The stream is over: flushes everything left, and tells the application.
    pub(crate) fn stream_over(&mut self, opening: &mut Opening, rdma: &mut Rdma, common: &mut Common) {
        let mut phase = self.phase.end();
        self.plain_stream_over();
        // It is a plain stream, the end is told, or the queue pair is gone.
        let Some(number) = self.queue_pair.take() else { return };
        let Rdma { queue_pairs, lanes, commits, events, .. } = rdma;
        let Some(Some(queue_pair)) = queue_pairs.get_mut(number as usize) else {
            return common.counters.cannot_be("the queue pair of a connection is gone");
        };
        queue_pair.connection = None;
        // An initiator that leaves before its first message may come again.
        let is_unheard = matches!(&phase, Phase::Running(running) if !running.stream.may_transmit());
        if !matches!(phase, Phase::Running(_)) {
            queue_pair.stage = Stage::Idle;
            if self.end == Some(DisconnectReason::Reset)
                && self.tcp.octets_pushed() > 0
                && opening.try_again(&mut phase)
            {
                return;
            }
            let reason = match self.end {
                Some(DisconnectReason::TimedOut) => ConnectFailure::TimedOut,
                // Only the answer to a SYN is a refusal. After the handshake, the Request waits or is in flight.
                Some(DisconnectReason::Reset)
                    if matches!(phase, Phase::Initiating(_))
                        && self.startup_frame.is_none()
                        && self.tcp.octets_pushed() == 0 =>
                {
                    ConnectFailure::Refused
                }
                Some(DisconnectReason::Reset) => ConnectFailure::Reset,
                _ => ConnectFailure::Closed,
            };
            queue_pair.report(ConnectionEvent::Failed(reason));
            return;
        }
        let reason = self.end.unwrap_or(DisconnectReason::Local);
        let left = self.tcp.octets_pushed().saturating_sub(self.tcp.octets_acknowledged());
        let lost = matches!(
            reason,
            DisconnectReason::Reset
                | DisconnectReason::TimedOut
                | DisconnectReason::PeerTerminated(_)
                | DisconnectReason::PeerClosedEarly
        );
        if left > 0 && lost {
            events.send(AsyncEvent::OctetsNotAcknowledged { queue_pair: number, octets: left });
        }
        queue_pair.retire(lanes, self.tcp.octets_acknowledged());
        // Whatever ends by a Terminate and has to fail is flushed, and no longer connected.
        let by_peer =
            !matches!(reason, DisconnectReason::Local | DisconnectReason::Aborted | DisconnectReason::LocalError(_));
        if by_peer && queue_pair.outlives_peer() && queue_pair.stage == Stage::Connected {
            if is_unheard {
                queue_pair.stage = Stage::Idle;
                return queue_pair.report(ConnectionEvent::Failed(ConnectFailure::Closed));
            }
            return rdma.desert(common, number, reason);
        }
        queue_pair.flush(lanes, commits, events, &mut common.counters, None, None);
        // Who hears of the end may take it for all: what waits for completions is woken first.
        lanes.settle();
        queue_pair.report(ConnectionEvent::Disconnected(reason));
        rdma.sweep_soon(number, common.now);
    }

    /// Closes TCP on our side once the queue is worked off, if that is wanted.
    #[inline]
    pub(crate) fn close_if_finished(&mut self, queue_pair: &mut QueuePair, now: Instant) {
        let Phase::Running(running) = &mut self.phase else { return };
        let Ending::Finishing { until } = running.ending else { return };
        if self.startup_frame.is_some() {
            // The peer learns from it that there was a stream; behind FIN it could not be sent.
            return;
        }
        // The indication is owed even if there is nothing else to say: without it the responder could not speak.
        // A message that waits for a commit came whole, and is told before the end.
        let idle = running.outgoing.is_none()
            && queue_pair.held.is_empty()
            && !running.stream.owes_response()
            && !running.stream.owes_ready_to_receive();
        let reads_left = running.stream.reads_outstanding() > 0 && !running.peer_closed;
        if idle && !reads_left && queue_pair.send.position() >= until {
            running.ending = Ending::Closed;
            // That of start-up, if it is not over: from here on it would mean the end of a Terminate's wait.
            running.limit = Limit::None;
            // A stream that is lost meanwhile stays so.
            let _ = running.stream.advance(Event::LocalClose);
            self.close_tcp(now);
        }
    }

    /// The time limit of the phase is over.
    pub(crate) fn on_phase_deadline<P: Port>(&mut self, link: &mut Link<P>, rdma: &mut Rdma, common: &mut Common) {
        let is_taken = self.was_taken_since_last(common.config.limits.least_rate);
        match &mut self.phase {
            Phase::Stream(limit @ StreamLimit::Abandoned(_)) if is_taken => {
                *limit = StreamLimit::Abandoned(common.now + CLOSING_LIMIT);
            }
            Phase::Initiating(_) | Phase::Stream(_) => {
                self.fail_startup(link, rdma, common, ConnectFailure::TimedOut);
            }
            Phase::Responding(_) | Phase::Incoming(_) | Phase::Closing(_) => self.abort(link, common),
            Phase::Requested(_) => {}
            Phase::Running(running) => match std::mem::replace(&mut running.limit, Limit::None) {
                Limit::Close(_) => self.abort(link, common),
                Limit::FirstFpdu(_) if !running.stream.may_transmit() => {
                    // The peer is silent although it owes a ready-to-receive indication, or delays the end of the
                    // connection.
                    self.ends_by(DisconnectReason::TimedOut);
                    self.abort(link, common);
                }
                Limit::Pause(_) => running.limit = Limit::silence(common.now, common.config.iwarp.nudge_after, 0),
                Limit::Silence(_) if !running.stream.has_heard() => {
                    running.silences += 1;
                    running.limit = Limit::silence(common.now, common.config.iwarp.nudge_after, running.silences);
                    self.nudge(&mut common.counters);
                }
                Limit::FirstFpdu(_) | Limit::Silence(_) | Limit::None => {}
            },
        }
    }

    /// The peer is silent. If its TCP has all that we have sent, and that is something, a Write of nothing follows.
    fn nudge(&mut self, counters: &mut Counters) {
        let Phase::Running(running) = &mut self.phase else { return };
        let pushed = self.tcp.octets_pushed();
        let is_taken = pushed > running.transmit_start && self.tcp.octets_acknowledged() == pushed;
        if is_taken
            && running.outgoing.is_none()
            && running.ending != Ending::Closed
            && running.stream.owe_write_of_nothing()
        {
            counters.nudges_sent += 1;
        }
    }

    /// Handles the peer's FIN before the stream has begun, or when only TCP is left.
    pub(crate) fn on_bare_fin<P: Port>(
        &mut self,
        opening: &mut Opening,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        common: &mut Common,
    ) {
        match &mut self.phase {
            Phase::Initiating(_) => {
                if opening.try_again(&mut self.phase) {
                    // The next attempt has the outcome.
                    let _ = rdma.unbind(&mut common.counters, self);
                    return self.abort(link, common);
                }
                self.fail_startup(link, rdma, common, ConnectFailure::Closed);
            }
            Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => self.abort(link, common),
            Phase::Closing(_) => self.close_tcp(common.now),
            Phase::Stream(_) | Phase::Running(_) => {
                common.counters.cannot_be("the FIN of a stream is taken for that of no stream");
            }
        }
    }

    /// Whether nothing of the queue pair waits for a segment.
    #[inline]
    pub(crate) fn is_quiet(&self, queue_pair: &mut QueuePair) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        running.may_begin() && !running.stream.has_response() && queue_pair.send.is_idle()
    }

    /// Finds out whether the segment that was received has left nothing to do, where work was outstanding before.
    #[inline(never)]
    pub(crate) fn look_for_quiet(&mut self, queue_pairs: &mut [Option<Box<QueuePair>>]) {
        let Phase::Running(running) = &self.phase else { return };
        let number = self.queue_pair.map_or(usize::MAX, |number| number as usize);
        let Some(Some(queue_pair)) = queue_pairs.get_mut(number) else { return };
        let may_be = running.stream.may_send_messages() && self.stream.is_none() && self.startup_frame.is_none();
        self.quiet = may_be && queue_pair.overflowed.is_none() && self.is_quiet(queue_pair);
    }
}

impl Rdma {
    /// Handles the peer's FIN behind a stream in full operation.
    pub(crate) fn on_fin(&mut self, common: &mut Common, connection: &mut Connection) {
        let Phase::Running(running) = &mut connection.phase else {
            return common.counters.cannot_be("a stream ends that is not in full operation");
        };
        let unframed = connection.gather.len();
        running.peer_closed = true;
        let mut queue_pair = self.take(connection.queue_pair);
        match running.stream.end_of_stream(unframed) {
            Ok(()) => match queue_pair.as_deref_mut() {
                Some(queue_pair) => {
                    connection.end.get_or_insert(DisconnectReason::PeerClosed);
                    let until = if running.stream.may_transmit() {
                        // Queued work still leaves, up to the first Read, or to the first fence behind a Read under way
                        // (or behind a ready-to-receive indication): no request can be answered any more.
                        let open = running.stream.fence_is_clear() && !running.stream.owes_ready_to_receive();
                        queue_pair.send.end_unanswered(!open)
                    } else {
                        // The peer has sent nothing and never will, so nothing may be sent.
                        queue_pair.send.position()
                    };
                    running.ending = match running.ending {
                        Ending::No => Ending::Finishing { until },
                        Ending::Held { .. } => Ending::Finishing { until: queue_pair.send.position() },
                        Ending::Finishing { until: wanted } => Ending::Finishing { until: wanted.min(until) },
                        Ending::Closed => Ending::Closed,
                    };
                    connection.close_if_finished(queue_pair, common.now);
                }
                // FIN follows the pending Terminate.
                None if running.terminate.is_some() => {}
                None => connection.close_tcp(common.now),
            },
            Err(fault) => {
                connection.ends_by(DisconnectReason::PeerClosedEarly);
                self.fail_stream(common, connection, queue_pair.as_deref_mut(), fault.into(), None);
            }
        }
        self.give(queue_pair);
    }

    /// Ends all queue pairs at once.
    pub(crate) fn fail(&mut self, counters: &mut Counters) {
        let Rdma { queue_pairs, lanes, commits, events, .. } = self;
        for queue_pair in queue_pairs.iter_mut().flatten() {
            let had_connection = queue_pair.connection.take().is_some();
            let begun = queue_pair.send.outstanding() > 0;
            let send = begun.then_some((0, Status::Fatal));
            queue_pair.flush(lanes, commits, events, counters, send, Some(Status::Fatal));
            if had_connection {
                queue_pair.report_end(DisconnectReason::LocalError(Status::Fatal));
            }
        }
        lanes.settle();
    }
}
