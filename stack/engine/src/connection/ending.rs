//! The end of streams: orderly closes, resets, time limits, and what the application is told.

use std::time::Duration;

use uwarp_iwarp::qp::Event;
use uwarp_tcp::{Events, Instant, State, TimeWait};
use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::TcpHeader;

use crate::api::command::{ConnectFailure, DisconnectReason, ListenerId};
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::phase::{Closing, Kind, Phase, Reader};
use crate::connection::shutdown::has_everything;
use crate::connection::slab::Lent;
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::handoff::Handoff;
use crate::link::port::{Buffer, Port};

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
    pub(crate) fn dismantle(&mut self, connection: &mut Connection, now: Instant) {
        self.flows.remove(self.flows.tag(&connection.flow), connection.index);
        self.wheel.disarm(connection.index);
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
            self.ready.retain(|other| *other != connection.index);
        }
    }

    /// Stops a listener: requests that nobody has answered are reset.
    pub(crate) fn stop_listening<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        listener: ListenerId,
    ) {
        for (index, connection) in self.table.disturb_all() {
            if connection.phase.listener() == Some(listener) {
                connection.abort(link, common);
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

    /// Resets the connection. It is removed when it is put back.
    pub(crate) fn abort<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) {
        let mut reset = self.tcp.abort(common.now);
        while let Some(transmit) = reset {
            self.send_last(link, &mut common.counters, transmit.header);
            reset = self.tcp.poll_transmit(common.now);
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

    /// Takes TCP's events about the end of the connection that need no more than itself. False: it was reset.
    pub(crate) fn take_end<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common, events: Events) -> bool {
        if events.contains(Events::FIN_ACKED) {
            self.finished = true;
            if matches!(self.phase, Phase::Closing(Closing { reader: Reader::Unsatisfied, .. }))
                && self.tcp.state() == State::FinWait2
            {
                // The peer has all that was written; what it has sent meanwhile is discarded (RFC 9293 §3.6.1).
                self.ends_by(DisconnectReason::Aborted);
                self.abort(link, common);
                return false;
            }
        }
        if events.intersects(Events::RESET) {
            self.ends_by(DisconnectReason::Reset);
            self.mark_lost(&mut common.counters);
        }
        if events.intersects(Events::TIMED_OUT) {
            common.counters.connections_timed_out += 1;
            self.ends_by(DisconnectReason::TimedOut);
            self.mark_lost(&mut common.counters);
        }
        true
    }

    /// Octets arrive that nobody reads.
    pub(crate) fn discard_octets<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) {
        if let Phase::Closing(closing) = &mut self.phase {
            closing.reader.missed();
        }
        common.counters.count_drop(DropReason::StreamEnded);
        if self.finished && self.queue_pair.is_none() {
            // Our side has finished: the peer must learn that its data are discarded.
            self.ends_by(DisconnectReason::Aborted);
            self.abort(link, common);
        }
    }
}

/// Releases the flow, so other engines may claim it.
pub(crate) fn release(handoff: Option<&Handoff>, flow: &FlowKey) {
    if let Some(handoff) = handoff {
        handoff.release(flow);
    }
}
