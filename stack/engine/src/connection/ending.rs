//! The end of streams: orderly closes, resets, time limits, and what the application is told.

use uwarp_iwarp::qp::Event;
use uwarp_memory::Turn;
use uwarp_tcp::{Events, Instant, State, TimeWait};
use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::TcpHeader;

use std::time::Duration;

use crate::api::command::{AsyncEvent, ConnectFailure, ConnectionEvent, DisconnectReason};
use crate::connection::phase::{Closing, Kind, Phase, Reader, StreamLimit};
use crate::connection::shutdown::has_everything;
use crate::connection::{Connection, Connections};
use crate::core::Core;
use crate::link::handoff::Handoff;
use crate::link::port::{Buffer, Port};
use crate::rdma::queue_pair::{QueuePair, Stage};
use crate::rdma::running::{Ending, Limit};

/// How long TCP may continue alone when the application has left.
pub(crate) const CLOSING_LIMIT: Duration = Duration::from_secs(30);

impl<B: Buffer> Connections<B> {
    /// Puts a connection back that was taken out for a while, with its timer. True: it is over, and the end of the step ends
    /// it, see [`Connections::ending`].
    #[inline]
    pub(crate) fn put_back(&mut self, index: u32, mut connection: Box<Connection>) -> bool {
        let ends = connection.gone || connection.has_told_all() || connection.time_wait_left().is_some();
        if ends {
            self.ending.push((index, None));
        } else if let Some(deadline) = connection.next_deadline() {
            self.wheel.arm(index, deadline);
        }
        self.table.put(index, connection);
        ends
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
        // For a connection that leaves TIME-WAIT early: no reset is sent.
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
}

impl Connection {
    /// Whether both sides have all data, so nothing can come of the stream any more. Only TCP still waits for the acknowledgment
    /// of our FIN: a peer that leaves at once would otherwise make the application wait for a user time-out.
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
}

impl<P: Port> Core<P> {
    /// The stream is over: flushes everything left, and tells the application.
    pub(crate) fn stream_over(&mut self, connection: &mut Connection) {
        let mut phase = connection.phase.end();
        Self::plain_stream_over(connection);
        let Some(number) = connection.queue_pair.take() else { return };
        let Some(queue_pair) = self.rdma.queue_pairs.get_mut(number as usize).and_then(Option::as_mut) else { return };
        queue_pair.connection = None;
        if !matches!(phase, Phase::Running(_)) {
            queue_pair.stage = Stage::Idle;
            if connection.end == Some(DisconnectReason::Reset)
                && connection.tcp.octets_pushed() > 0
                && self.try_again(&mut phase)
            {
                return;
            }
            let Some(queue_pair) = self.rdma.queue_pair(number) else { return };
            let reason = match connection.end {
                Some(DisconnectReason::TimedOut) => ConnectFailure::TimedOut,
                // Only the answer to a SYN is a refusal. After the handshake, the Request waits or is in flight.
                Some(DisconnectReason::Reset)
                    if matches!(phase, Phase::Initiating(_))
                        && connection.startup_frame.is_none()
                        && connection.tcp.octets_pushed() == 0 =>
                {
                    ConnectFailure::Refused
                }
                Some(DisconnectReason::Reset) => ConnectFailure::Reset,
                _ => ConnectFailure::Closed,
            };
            queue_pair.tell(ConnectionEvent::Failed { queue_pair: number, reason });
            return;
        }
        let reason = connection.end.unwrap_or(DisconnectReason::Local);
        let left = connection.tcp.octets_pushed().saturating_sub(connection.tcp.octets_acknowledged());
        let lost = matches!(
            reason,
            DisconnectReason::Reset
                | DisconnectReason::TimedOut
                | DisconnectReason::PeerTerminated(_)
                | DisconnectReason::PeerClosedEarly
        );
        if left > 0 && lost {
            self.control.events.send(AsyncEvent::OctetsNotAcknowledged { queue_pair: number, octets: left });
        }
        if let Some(mut queue_pair) = self.queue_pairs_take(Some(number)) {
            self.retire(connection, &mut queue_pair);
            self.flush_with(&mut queue_pair, None, None);
            self.give_queue_pair(Some(queue_pair));
        }
        if let Some(queue_pair) = self.rdma.queue_pair(number) {
            queue_pair.tell(ConnectionEvent::Disconnected { queue_pair: number, reason });
        }
        self.rdma.sweep_soon(number, self.now);
    }

    /// Handles TCP's events about the end of the connection.
    #[cold]
    pub(crate) fn on_tcp_end(&mut self, index: u32, connection: &mut Connection, events: Events) {
        if events.contains(Events::FIN_ACKED) {
            connection.finished = true;
            if matches!(connection.phase, Phase::Closing(Closing { reader: Reader::Unsatisfied, .. }))
                && connection.tcp.state() == State::FinWait2
            {
                // The peer has all that was written; what it has sent meanwhile is discarded (RFC 9293 §3.6.1).
                connection.ends_by(DisconnectReason::Aborted);
                return self.abort(connection);
            }
        }
        if events.intersects(Events::RESET) {
            connection.ends_by(DisconnectReason::Reset);
            self.mark_lost(connection);
        }
        if events.intersects(Events::TIMED_OUT) {
            self.counters.timeouts += 1;
            connection.ends_by(DisconnectReason::TimedOut);
            self.mark_lost(connection);
        }
        if events.contains(Events::PEER_FIN) && !connection.awaits_receive() {
            self.on_peer_fin(index, connection);
        }
        if events.contains(Events::TIME_WAIT) {
            connection.finished = true;
            self.stream_over(connection);
            connection.phase.forget_deadline();
            self.discard_waiting(connection);
        }
        if events.contains(Events::CLOSED) {
            connection.gone = true;
        }
    }

    fn mark_lost(&mut self, connection: &mut Connection) {
        if let Phase::Running(running) = &mut connection.phase {
            let _ = running.stream.advance(Event::Lost);
        }
        connection.gone = true;
    }

    /// Handles the peer's FIN, behind all data.
    pub(crate) fn on_peer_fin(&mut self, index: u32, connection: &mut Connection) {
        match &mut connection.phase {
            Phase::Initiating(_) => {
                if self.try_again(&mut connection.phase) {
                    let _ = self.unbind(connection);
                    return self.abort(connection);
                }
                self.startup_failed(connection, ConnectFailure::Closed);
            }
            Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => self.abort(connection),
            Phase::Stream(_) => self.on_stream_fin(index, connection),
            Phase::Closing(_) => self.close_tcp(connection),
            Phase::Running(running) => {
                let unframed = connection.gather.len();
                running.peer_closed = true;
                let mut queue_pair = self.queue_pairs_take(connection.queue_pair);
                match running.stream.end_of_stream(unframed) {
                    Ok(()) => match queue_pair.as_deref_mut() {
                        Some(queue_pair) => {
                            connection.end.get_or_insert(DisconnectReason::PeerClosed);
                            let until = if running.stream.may_transmit() {
                                // Queued work still leaves, up to the first Read, or to the first fence behind a Read
                                // under way (or behind a ready-to-receive indication): no request can be answered any
                                // more.
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
                            self.close_if_finished(connection, queue_pair);
                        }
                        // FIN follows the pending Terminate.
                        None if running.terminate.is_some() => {}
                        None => self.close_tcp(connection),
                    },
                    Err(fault) => {
                        connection.ends_by(DisconnectReason::PeerClosedEarly);
                        self.fail_stream(connection, queue_pair.as_deref_mut(), fault.into(), None);
                    }
                }
                self.give_queue_pair(queue_pair);
            }
        }
    }

    pub(crate) fn queue_pairs_take(&mut self, number: Option<u32>) -> Option<Box<QueuePair>> {
        self.rdma.queue_pairs.get_mut(number? as usize)?.take()
    }

    /// Closes our side of TCP: what TCP has still leaves, then FIN.
    pub(crate) fn close_tcp(&mut self, connection: &mut Connection) {
        if let Phase::Closing(closing) = &mut connection.phase {
            closing.close_when_sent = false;
        }
        connection.quiet = false;
        connection.tcp.close(self.now);
    }

    /// Leaves the connection to TCP, which closes when everything was sent.
    pub(crate) fn finish_tcp(&mut self, connection: &mut Connection) {
        let reader = if connection.phase.kind() == Kind::Stream { Reader::Satisfied } else { Reader::None };
        connection.phase.end();
        let until = Some(self.now + CLOSING_LIMIT);
        connection.phase = Phase::Closing(Closing { until, close_when_sent: true, reader });
    }

    /// Resets a connection. It is removed when it is put back.
    pub(crate) fn abort(&mut self, connection: &mut Connection) {
        let mut reset = connection.tcp.abort(self.now);
        while let Some(transmit) = reset {
            self.send_last(connection, transmit.header);
            reset = connection.tcp.poll_transmit(self.now);
        }
        connection.gone = true;
    }

    /// Sends a segment without data of a connection that is going, if its neighbour is known.
    pub(crate) fn send_last(&mut self, connection: &Connection, mut header: TcpHeader) {
        header.source_port = connection.flow.local_port;
        header.destination_port = connection.flow.remote_port;
        let mac = uwarp_wire::ethernet::EthernetAddress(connection.mac);
        if connection.epoch != 0 || connection.to_self {
            self.link.send_bare(&mut self.counters, &connection.flow, mac, connection.to_self, header);
        }
    }

    /// Handles a timer of a connection, which may not be due yet.
    pub(crate) fn on_timer(&mut self, turn: &Turn<'_>, index: u32) {
        let Some(mut connection) = self.connections.table.take(index) else { return };
        if is_due(connection.tcp.deadline(), self.now) {
            let events = connection.tcp.on_deadline(self.now);
            if self.net.paths.is_doubting() {
                self.net.review_doubt(&mut self.counters, self.now, index, &mut connection);
            }
            if events.contains(Events::TIMED_OUT) {
                // Send the reset while there is still a connection.
                self.transmit(index, &mut connection);
            }
            if !events.is_empty() {
                connection.acknowledged(&mut self.connections.records);
                self.on_tcp_end(index, &mut connection, events);
            }
            connection.schedule(&mut self.connections.ready, index);
        }
        if !connection.gone && is_due(connection.phase.deadline(), self.now) {
            self.on_phase_deadline(&mut connection);
            connection.schedule(&mut self.connections.ready, index);
        }
        if connection.awaits_receive() && !connection.gone {
            self.look_for_receive(turn, index, &mut connection);
        }
        self.put_back(index, connection);
    }

    fn on_phase_deadline(&mut self, connection: &mut Connection) {
        let is_taken = self.is_being_taken(connection);
        match &mut connection.phase {
            Phase::Initiating(_) => self.startup_failed(connection, ConnectFailure::TimedOut),
            Phase::Stream(limit @ StreamLimit::Abandoned(_)) if is_taken => {
                *limit = StreamLimit::Abandoned(self.now + CLOSING_LIMIT);
            }
            Phase::Stream(_) => self.startup_failed(connection, ConnectFailure::TimedOut),
            Phase::Responding(_) | Phase::Incoming(_) | Phase::Closing(_) => self.abort(connection),
            Phase::Requested(_) => {}
            Phase::Running(running) => match std::mem::replace(&mut running.limit, Limit::None) {
                Limit::Close(_) => self.abort(connection),
                Limit::FirstFpdu(_) if !running.stream.may_transmit() => {
                    // The peer is silent although it owes a ready-to-receive indication, or delays the end of the
                    // connection.
                    connection.ends_by(DisconnectReason::TimedOut);
                    self.abort(connection);
                }
                Limit::FirstFpdu(_) | Limit::Pause(_) | Limit::None => {}
            },
        }
    }

    /// Closes a queue pair's connection in order.
    pub(crate) fn disconnect(&mut self, number: u32) {
        let Some(index) = self.rdma.queue_pair(number).and_then(|queue_pair| queue_pair.connection) else { return };
        let Some(mut connection) = self.connections.table.take(index) else { return };
        self.disconnect_connection(&mut connection);
        connection.schedule(&mut self.connections.ready, index);
        self.put_back(index, connection);
    }

    pub(crate) fn disconnect_connection(&mut self, connection: &mut Connection) {
        match &mut connection.phase {
            Phase::Initiating(_) => self.startup_failed(connection, ConnectFailure::Closed),
            Phase::Running(running) => {
                let mut queue_pair = self.queue_pairs_take(connection.queue_pair);
                if let Some(queue_pair) = queue_pair.as_deref_mut()
                    && running.ending == Ending::No
                {
                    connection.end.get_or_insert(DisconnectReason::Local);
                    running.ending = Ending::Finishing { until: queue_pair.send.end() };
                    if !running.stream.may_transmit() && running.limit == Limit::None {
                        // Posted work waits for the peer's first FPDU, normally without limit, but not while a
                        // disconnect waits too.
                        running.limit = Limit::FirstFpdu(self.now + self.config.iwarp.startup_timeout);
                    }
                    self.close_if_finished(connection, queue_pair);
                }
                self.give_queue_pair(queue_pair);
            }
            Phase::Stream(_) => self.disconnect_stream(connection),
            Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => self.abort(connection),
            Phase::Closing(_) => {}
        }
    }

    /// Resets a queue pair's connection and moves the queue pair to the error state.
    pub(crate) fn abort_queue_pair(&mut self, number: u32) {
        let Some(queue_pair) = self.rdma.queue_pair(number) else { return };
        if let Some(index) = queue_pair.connection
            && let Some(mut connection) = self.connections.table.take(index)
        {
            connection.ends_by(DisconnectReason::Aborted);
            if let Phase::Initiating(_) = connection.phase {
                self.startup_failed(&mut connection, ConnectFailure::Closed);
            } else {
                self.abort(&mut connection);
            }
            self.put_back(index, connection);
        }
        self.flush_queue_pair_number(number);
        self.rdma.sweep_soon(number, self.now);
    }

    /// Stops a listener: requests that nobody has answered are reset.
    pub(crate) fn stop_listening(&mut self, listener: crate::api::command::ListenerId) {
        for index in self.connections.table.indexes() {
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            if connection.phase.listener() == Some(listener) {
                self.abort(&mut connection);
            }
            self.put_back(index, connection);
        }
        self.connections.opening.listeners.retain(|_, candidate| candidate.id != listener);
    }
}

/// Releases the flow, so other engines may claim it.
pub(crate) fn release(handoff: Option<&Handoff>, flow: &FlowKey) {
    if let Some(handoff) = handoff {
        handoff.release(flow);
    }
}

/// Whether a time has come.
#[inline]
pub(crate) fn is_due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| at <= now)
}
