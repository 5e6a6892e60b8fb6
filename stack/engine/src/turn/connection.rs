//! Steps of one connection that concern several rooms.

use uwarp_memory::Turn;
use uwarp_tcp::{Events, TimeWait};

use crate::api::command::{ConnectFailure, ConnectParameters};
use crate::connection::Connection;
use crate::connection::ending::release;
use crate::connection::phase::Phase;
use crate::connection::slab::Lent;
use crate::connection::startup::Startup;
use crate::core::Core;
use crate::link::port::Port;

impl<P: Port> Core<P> {
    /// Sends what TCP has to send, once the next hop is known. True: there is more.
    #[inline]
    pub(crate) fn transmit(&mut self, connection: &mut Connection) -> bool {
        let Core { net, link, connections, common, .. } = self;
        connection.tcp.wants_transmit()
            && net.resolve(link, connections, common, connection)
            && link.transmit(connections, common, connection)
    }

    /// Opens a connection for a queue pair.
    pub(super) fn connect(&mut self, parameters: ConnectParameters) {
        let Core { connections, link, net, rdma, common, .. } = self;
        let number = parameters.queue_pair;
        let opened = rdma.idle(number).and_then(|queue_pair| {
            queue_pair.bind(connections.open(link, net, common, parameters)?);
            Ok(())
        });
        if let Err(reason) = opened {
            rdma.connect_failed(number, reason);
        }
    }

    /// TCP is open.
    fn on_established(&mut self, connection: &mut Connection) {
        let Core { connections, link, streams, control, common, .. } = self;
        match &mut connection.phase {
            Phase::Initiating(initiating) => {
                connection.startup_frame = Some(initiating.machine.request().to_vec());
                if let Some(limit) = initiating.reply_timeout {
                    initiating.until = common.now + limit;
                }
            }
            Phase::Responding(_) => connections.await_request(&mut common.counters, connection),
            Phase::Stream(_) => streams.on_open(connection),
            Phase::Incoming(_) => {
                if !connections.accept_stream(&control.doorbells, &common.config, connection) {
                    connection.abort(link, common);
                }
            }
            Phase::Requested(_) | Phase::Running(_) | Phase::Closing(_) => {}
        }
    }

    /// Takes octets of the start-up exchange. Returns how many it used; the rest are FPDUs.
    pub(super) fn on_startup_octets(&mut self, connection: &mut Connection, octets: &[u8]) -> usize {
        let Core { connections, link, net, rdma, common, .. } = self;
        match connection.take_startup(&mut common.counters, octets) {
            Startup::More => {}
            Startup::Request => connections.on_request(common, connection),
            Startup::Reply(outcome, used) => {
                rdma.on_reply(common, &connections.tcp_config, connection, outcome);
                connection.be_patient(net, common);
                return used;
            }
            Startup::Failed => connection.fail_startup(link, rdma, common, ConnectFailure::Startup),
        }
        octets.len()
    }

    /// Takes the octets that a stream had received before it was converted.
    pub(super) fn on_early_octets(&mut self, index: u32, octets: &[u8]) {
        let Some(mut connection) = self.connections.take(&mut self.common.counters, index) else { return };
        let mut rest = octets;
        // There is no Reply before our Request, and no FPDU before our Reply.
        while let Phase::Initiating(_) | Phase::Responding(_) | Phase::Requested(_) = connection.phase
            && !rest.is_empty()
            && !connection.gone
        {
            let used = self.on_startup_octets(&mut connection, rest);
            rest = &rest[used.min(rest.len())..];
        }
        self.put_back(connection);
    }

    /// Handles TCP's events that come before the octets of their segment.
    #[cold]
    pub(super) fn on_tcp_start(&mut self, connection: &mut Connection, events: Events) {
        if events.contains(Events::ESTABLISHED) {
            self.on_established(connection);
        }
        if events.contains(Events::URGENT) {
            self.streams.on_urgent(connection);
        }
    }

    /// Handles TCP's events about the end of the connection.
    #[cold]
    pub(super) fn on_tcp_end(&mut self, connection: &mut Connection, events: Events) {
        if !connection.take_end(&mut self.link, &mut self.common, events) {
            return;
        }
        if events.contains(Events::PEER_FIN) && !connection.awaits_receive() {
            self.on_peer_fin(connection);
        }
        if events.contains(Events::TIME_WAIT) {
            connection.finished = true;
            connection.stream_over(&mut self.connections.opening, &mut self.rdma, &mut self.common);
            connection.phase.forget_deadline();
            self.rdma.discard_waiting(&mut self.common.counters, &mut self.connections.held, connection);
        }
        if events.contains(Events::CLOSED) {
            connection.gone = true;
        }
    }

    /// Handles the peer's FIN, behind all data.
    pub(super) fn on_peer_fin(&mut self, connection: &mut Connection) {
        let Core { connections, link, rdma, streams, common, .. } = self;
        match &connection.phase {
            Phase::Running(_) => rdma.on_fin(common, connection),
            Phase::Stream(_) => streams.on_fin(connection),
            _ => connection.on_bare_fin(&mut connections.opening, link, rdma, common),
        }
    }

    /// Handles a timer of a connection, which may not be due yet.
    pub(super) fn on_timer(&mut self, turn: &Turn<'_>, index: u32) {
        // A frame of the same turn may have ended it.
        let Some(mut connection) = self.connections.table.take(index) else { return };
        if connection.tcp.deadline().is_some_and(|at| at <= self.common.now) {
            let events = connection.tcp.on_deadline(self.common.now);
            if self.net.paths.is_doubting() {
                connection.review_doubt(&mut self.net, &mut self.common);
            }
            if events.contains(Events::TIMED_OUT) {
                // Send the reset while there is still a connection.
                self.transmit(&mut connection);
            }
            if !events.is_empty() {
                connection.acknowledged(&mut self.connections.records);
                self.on_tcp_end(&mut connection, events);
            }
            connection.schedule(&mut self.connections.ready);
        }
        if !connection.gone && connection.phase.deadline().is_some_and(|at| at <= self.common.now) {
            connection.on_phase_deadline(&mut self.link, &mut self.rdma, &mut self.common);
            connection.schedule(&mut self.connections.ready);
        }
        if connection.awaits_receive() && !connection.gone {
            self.look_for_receive(turn, &mut connection);
        }
        self.put_back(connection);
    }

    /// Puts a connection back that was taken out for a while, and ends it if it is over.
    #[inline]
    pub(crate) fn put_back(&mut self, connection: Lent<Connection>) {
        self.connections.put_back(connection);
        if !self.connections.ending.is_empty() {
            self.end_connections();
        }
    }

    /// Ends the connections that the last step has left for that.
    #[cold]
    pub(crate) fn end_connections(&mut self) {
        while let Some((index, failure)) = self.connections.ending.pop() {
            // One that was left twice is gone by now.
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            if let Some(reason) = failure {
                connection.fail_startup(&mut self.link, &mut self.rdma, &mut self.common, reason);
            }
            if connection.gone {
                release(self.link.handoff.as_ref(), &connection.flow);
                self.dismantle(connection);
                continue;
            }
            if connection.has_told_all() {
                connection.stream_over(&mut self.connections.opening, &mut self.rdma, &mut self.common);
            }
            if let Some(wait) = connection.time_wait_left() {
                self.enter_time_wait(connection, wait);
                continue;
            }
            if let Some(deadline) = connection.next_deadline() {
                self.connections.wheel.arm(index, deadline);
            }
            self.connections.table.put(connection);
        }
        while let Some(retry) = self.connections.opening.retries.pop() {
            self.connect(retry);
        }
    }

    /// Moves a connection to the TIME-WAIT table. The flow stays this engine's.
    #[cold]
    pub(crate) fn enter_time_wait(&mut self, connection: Lent<Connection>, wait: TimeWait) {
        let flow = connection.flow;
        self.dismantle(connection);
        let handoff = self.link.handoff.as_ref();
        self.connections.time_wait.insert(flow, wait, |gone| release(handoff, gone));
    }

    /// Frees what a connection holds.
    fn dismantle(&mut self, mut connection: Lent<Connection>) {
        let local_port = connection.flow.local_port;
        self.connections.opening.leave_listener(&mut connection);
        connection.stream_over(&mut self.connections.opening, &mut self.rdma, &mut self.common);
        self.connections.dismantle(&mut connection, self.common.now);
        self.net.forget(&connection);
        self.rdma.gathers.discard(&mut connection);
        // Its port may be given back to a switch now, which drops what comes from there later.
        self.flush();
        // Live connections count for themselves.
        self.common.counters.work.sack_segments_walked += connection.tcp.counters().sack_segments_walked;
        self.connections.table.release(connection);
        self.common.counters.connections_closed += 1;
        self.connections.opening.reserved.disconnected(local_port);
    }
}
