//! The end of streams: orderly closes, resets, time limits, and what the application is told.

use uwarp_iwarp::qp::Event;
use uwarp_tcp::{Events, Instant, State, TimeWait};
use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::TcpHeader;

use std::time::Duration;

use crate::api::command::{AsyncEvent, ConnectFailure, ConnectionEvent, DisconnectReason, ListenerId};
use crate::api::config::EngineConfig;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::phase::{Closing, Kind, Phase, Reader, StreamLimit};
use crate::connection::shutdown::has_everything;
use crate::connection::slab::Lent;
use crate::connection::{Connection, Connections, Opening};
use crate::link::Link;
use crate::link::handoff::Handoff;
use crate::link::port::{Buffer, Port};
use crate::rdma::Rdma;
use crate::rdma::queue_pair::{QueuePair, Stage};
use crate::rdma::running::{Ending, Limit};

/// How long TCP may continue alone when the application has left.
pub(crate) const CLOSING_LIMIT: Duration = Duration::from_secs(30);

impl<B: Buffer> Connections<B> {
    /// Puts a connection back that was taken out for a while, with its timer. If it is over, the end of the step ends
    /// it, see [`Connections::ending`].
    #[inline]
    pub(crate) fn put_back(&mut self, mut connection: Lent<Connection>) {
        let index = connection.index();
        if connection.gone || connection.has_told_all() || connection.time_wait_left().is_some() {
            self.end(index);
        } else if let Some(deadline) = connection.next_deadline() {
            self.wheel.arm(index, deadline);
        }
        self.table.put(connection);
    }

    /// Takes a connection out that somebody names, so it is there.
    pub(crate) fn take(&mut self, counters: &mut Counters, index: u32) -> Option<Lent<Connection>> {
        let connection = self.table.take(index);
        if connection.is_none() {
            counters.cannot_be("a connection that is named is gone");
        }
        connection
    }

    /// A connection that was reset ends at the end of the step.
    pub(crate) fn end(&mut self, index: u32) {
        self.ending.push((index, None));
    }

    /// The start-up of a connection fails at the end of the step.
    pub(crate) fn fail(&mut self, index: u32, reason: ConnectFailure) {
        self.ending.push((index, Some(reason)));
    }

    /// Removes connections whose TIME-WAIT is over.
    pub(crate) fn run_time_wait(&mut self, handoff: Option<&Handoff>, now: Instant) {
        self.time_wait.expire(now, |gone| release(handoff, gone));
    }

    /// Frees what a connection holds here.
    pub(crate) fn dismantle(&mut self, index: u32, connection: &mut Connection, now: Instant) {
        self.flows.remove(connection.tag, index);
        self.wheel.disarm(index);
        // For a connection that leaves TIME-WAIT early: no reset is sent. What the stores lack they count.
        let _ = connection.tcp.abort(now);
        while let Some(token) = connection.tcp.pop_any() {
            self.records.remove(token);
        }
        while let Some(held) = connection.tcp.take_in_order() {
            self.held.remove(held.token);
        }
        while let Some(token) = connection.tcp.drain_discarded() {
            self.held.remove(token);
        }
        if connection.scheduled {
            self.ready.retain(|other| *other != index);
        }
    }

    /// Closes a connection in order.
    pub(crate) fn disconnect<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        counters: &mut Counters,
        config: &EngineConfig,
        now: Instant,
        index: u32,
    ) {
        let Some(mut connection) = self.take(counters, index) else { return };
        connection.disconnect(link, rdma, counters, config, now);
        connection.schedule(&mut self.ready, index);
        self.put_back(connection);
    }

    /// Closes all connections in order.
    pub(crate) fn disconnect_all<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        counters: &mut Counters,
        config: &EngineConfig,
        now: Instant,
    ) {
        for index in self.table.indexes() {
            self.disconnect(link, rdma, counters, config, now, index);
        }
    }

    /// Stops a listener: requests that nobody has answered are reset.
    pub(crate) fn stop_listening<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        counters: &mut Counters,
        now: Instant,
        listener: ListenerId,
    ) {
        for (index, connection) in self.table.iter_mut() {
            if connection.phase.listener() == Some(listener) {
                connection.abort(link, counters, now);
                self.ending.push((index, None));
            }
        }
        self.opening.listeners.remove(listener);
    }
}

impl Connection {
    /// Whether both sides have all data, so nothing can come of the stream any more. Only TCP still waits for the
    /// acknowledgment of our FIN: a peer that leaves at once would otherwise make the application wait for a user
    /// time-out.
    #[inline]
    pub(crate) fn has_told_all(&self) -> bool {
        self.queue_pair.is_some() && matches!(self.phase, Phase::Running(_)) && has_everything(self)
    }

    /// What remains of the connection in TIME-WAIT: only late segments need an answer now, which takes tens of octets.
    #[inline]
    pub(crate) fn time_wait_left(&mut self) -> Option<TimeWait> {
        if self.finished && self.tcp.state() == State::TimeWait && !self.scheduled {
            self.tcp.time_wait()
        } else {
            None
        }
    }

    /// The stream is over: flushes everything left, and tells the application.
    pub(crate) fn stream_over(
        &mut self,
        opening: &mut Opening,
        rdma: &mut Rdma,
        counters: &mut Counters,
        now: Instant,
    ) {
        let mut phase = self.phase.end();
        self.plain_stream_over();
        // It is a plain stream, the end is told, or the queue pair is gone.
        let Some(number) = self.queue_pair.take() else { return };
        let Rdma { queue_pairs, lanes, commits, events, .. } = rdma;
        let Some(Some(queue_pair)) = queue_pairs.get_mut(number as usize) else {
            return counters.cannot_be("the queue pair of a connection is gone");
        };
        queue_pair.connection = None;
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
        queue_pair.flush(lanes, commits, events, counters, None, None);
        // Who hears of the end may take it for all: what waits for completions is woken first.
        lanes.settle();
        queue_pair.report(ConnectionEvent::Disconnected(reason));
        rdma.sweep_soon(number, now);
    }

    fn mark_lost(&mut self, counters: &mut Counters) {
        if let Phase::Running(running) = &mut self.phase
            && running.stream.advance(Event::Lost).is_err()
        {
            counters.cannot_be("a stream in full operation cannot be lost");
        }
        self.gone = true;
    }

    /// Closes our side of TCP: what TCP has still leaves, then FIN.
    pub(crate) fn close_tcp(&mut self, now: Instant) {
        if let Phase::Closing(closing) = &mut self.phase {
            closing.close_when_sent = false;
        }
        self.quiet = false;
        self.tcp.close(now);
    }

    /// Leaves the connection to TCP, which closes when everything was sent.
    pub(crate) fn finish_tcp(&mut self, now: Instant) {
        let reader = if self.phase.kind() == Kind::Stream { Reader::Satisfied } else { Reader::None };
        let acknowledges_placed = self.acknowledges_placed();
        self.phase.end();
        let until = Some(now + CLOSING_LIMIT);
        self.phase = Phase::Closing(Closing { until, close_when_sent: true, reader, acknowledges_placed });
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

    /// Resets the connection. It is removed when it is put back.
    pub(crate) fn abort<P: Port>(&mut self, link: &mut Link<P>, counters: &mut Counters, now: Instant) {
        let mut reset = self.tcp.abort(now);
        while let Some(transmit) = reset {
            self.send_last(link, counters, transmit.header);
            reset = self.tcp.poll_transmit(now);
        }
        self.gone = true;
    }

    /// Sends a segment without data of a connection that is going, if its neighbour is known.
    pub(crate) fn send_last<P: Port>(&self, link: &mut Link<P>, counters: &mut Counters, mut header: TcpHeader) {
        header.source_port = self.flow.local_port;
        header.destination_port = self.flow.remote_port;
        let mac = uwarp_wire::ethernet::EthernetAddress(self.next_hop.mac);
        if self.next_hop.epoch != 0 || self.next_hop.to_self {
            link.send_bare(counters, &self.flow, mac, self.next_hop.to_self, header);
        }
    }

    /// The time limit of the phase is over.
    pub(crate) fn on_phase_deadline<P: Port>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        counters: &mut Counters,
        config: &EngineConfig,
        now: Instant,
    ) {
        let is_taken = self.was_taken_since_last(config.limits.least_rate);
        match &mut self.phase {
            Phase::Stream(limit @ StreamLimit::Abandoned(_)) if is_taken => {
                *limit = StreamLimit::Abandoned(now + CLOSING_LIMIT);
            }
            Phase::Initiating(_) | Phase::Stream(_) => {
                self.fail_startup(link, rdma, counters, now, ConnectFailure::TimedOut);
            }
            Phase::Responding(_) | Phase::Incoming(_) | Phase::Closing(_) => self.abort(link, counters, now),
            Phase::Requested(_) => {}
            Phase::Running(running) => match std::mem::replace(&mut running.limit, Limit::None) {
                Limit::Close(_) => self.abort(link, counters, now),
                Limit::FirstFpdu(_) if !running.stream.may_transmit() => {
                    // The peer is silent although it owes a ready-to-receive indication, or delays the end of the
                    // connection.
                    self.ends_by(DisconnectReason::TimedOut);
                    self.abort(link, counters, now);
                }
                Limit::Pause(_) => running.limit = Limit::silence(now, config.iwarp.nudge_after, 0),
                Limit::Silence(_) if !running.stream.has_heard() => {
                    running.silences += 1;
                    running.limit = Limit::silence(now, config.iwarp.nudge_after, running.silences);
                    self.nudge(counters);
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

    /// Closes the connection in order.
    fn disconnect<P: Port>(
        &mut self,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        counters: &mut Counters,
        config: &EngineConfig,
        now: Instant,
    ) {
        match &mut self.phase {
            Phase::Initiating(_) => self.fail_startup(link, rdma, counters, now, ConnectFailure::Closed),
            Phase::Running(running) => {
                if let Some(queue_pair) = self.queue_pair.and_then(|number| rdma.queue_pair(number))
                    && running.ending == Ending::No
                {
                    self.end.get_or_insert(DisconnectReason::Local);
                    running.ending = Ending::Finishing { until: queue_pair.send.end() };
                    if config.iwarp.switch_timeout.is_some() {
                        // Who leaves does not wait for a peer on the switch that is stopped.
                        self.tcp.set_patience(config.tcp.user_timeout, config.tcp.keep_alive, now);
                    }
                    if !running.stream.may_transmit() && running.limit == Limit::None {
                        // Posted work waits for the peer's first FPDU, normally without limit, but not while a
                        // disconnect waits too.
                        running.limit = Limit::FirstFpdu(now + config.iwarp.startup_timeout);
                    }
                    self.close_if_finished(queue_pair, now);
                }
            }
            Phase::Stream(_) => {
                if !self.end_writes() {
                    self.fail_startup(link, rdma, counters, now, ConnectFailure::ShuttingDown);
                }
            }
            Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => self.abort(link, counters, now),
            Phase::Closing(_) => {}
        }
    }
}

impl Connection {
    /// Takes TCP's events about the end of the connection that need no more than itself. False: it was reset.
    pub(crate) fn take_end<P: Port>(
        &mut self,
        link: &mut Link<P>,
        counters: &mut Counters,
        now: Instant,
        events: Events,
    ) -> bool {
        if events.contains(Events::FIN_ACKED) {
            self.finished = true;
            if matches!(self.phase, Phase::Closing(Closing { reader: Reader::Unsatisfied, .. }))
                && self.tcp.state() == State::FinWait2
            {
                // The peer has all that was written; what it has sent meanwhile is discarded (RFC 9293 §3.6.1).
                self.ends_by(DisconnectReason::Aborted);
                self.abort(link, counters, now);
                return false;
            }
        }
        if events.intersects(Events::RESET) {
            self.ends_by(DisconnectReason::Reset);
            self.mark_lost(counters);
        }
        if events.intersects(Events::TIMED_OUT) {
            counters.connections_timed_out += 1;
            self.ends_by(DisconnectReason::TimedOut);
            self.mark_lost(counters);
        }
        true
    }

    /// Octets arrive that nobody reads.
    pub(crate) fn discard_octets<P: Port>(&mut self, link: &mut Link<P>, counters: &mut Counters, now: Instant) {
        if let Phase::Closing(closing) = &mut self.phase {
            closing.reader.missed();
        }
        counters.count_drop(DropReason::StreamEnded);
        if self.finished && self.queue_pair.is_none() {
            // Our side has finished: the peer must learn that its data are discarded.
            self.ends_by(DisconnectReason::Aborted);
            self.abort(link, counters, now);
        }
    }

    /// Handles the peer's FIN before the stream has begun, or when only TCP is left.
    pub(crate) fn on_bare_fin<P: Port>(
        &mut self,
        opening: &mut Opening,
        link: &mut Link<P>,
        rdma: &mut Rdma,
        counters: &mut Counters,
        now: Instant,
    ) {
        match &mut self.phase {
            Phase::Initiating(_) => {
                if opening.try_again(&mut self.phase) {
                    // The next attempt has the outcome.
                    let _ = rdma.unbind(counters, self);
                    return self.abort(link, counters, now);
                }
                self.fail_startup(link, rdma, counters, now, ConnectFailure::Closed);
            }
            Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => self.abort(link, counters, now),
            Phase::Closing(_) => self.close_tcp(now),
            Phase::Stream(_) | Phase::Running(_) => {
                counters.cannot_be("the FIN of a stream is taken for that of no stream");
            }
        }
    }
}

impl Rdma {
    /// Handles the peer's FIN behind a stream in full operation.
    pub(crate) fn on_fin(&mut self, counters: &mut Counters, now: Instant, connection: &mut Connection) {
        let Phase::Running(running) = &mut connection.phase else {
            return counters.cannot_be("a stream ends that is not in full operation");
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
                        Ending::Finishing { until: wanted } => Ending::Finishing { until: wanted.min(until) },
                        Ending::Closed => Ending::Closed,
                    };
                    connection.close_if_finished(queue_pair, now);
                }
                // FIN follows the pending Terminate.
                None if running.terminate.is_some() => {}
                None => connection.close_tcp(now),
            },
            Err(fault) => {
                connection.ends_by(DisconnectReason::PeerClosedEarly);
                self.fail_stream(counters, now, connection, queue_pair.as_deref_mut(), fault.into(), None);
            }
        }
        self.give(queue_pair);
    }
}

/// Releases the flow, so other engines may claim it.
pub(crate) fn release(handoff: Option<&Handoff>, flow: &FlowKey) {
    if let Some(handoff) = handoff {
        handoff.release(flow);
    }
}
