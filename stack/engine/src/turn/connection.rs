//! Steps of one connection that concern several rooms.

use uwarp_tcp::TimeWait;

use crate::connection::Connection;
use crate::connection::ending::release;
use crate::core::Core;
use crate::link::port::Port;

impl<P: Port> Core<P> {
    /// Sends what TCP has to send, once the next hop is known. True: there is more.
    #[inline]
    pub(crate) fn transmit(&mut self, index: u32, connection: &mut Connection) -> bool {
        let Core { net, link, connections, counters, config, now, .. } = self;
        connection.tcp.wants_transmit(*now)
            && net.resolve(link, connections, counters, *now, index, connection)
            && link.transmit(connections, counters, config.hot, *now, connection)
    }

    /// Puts a connection back that was taken out for a while, and ends it if it is over.
    #[inline]
    pub(crate) fn put_back(&mut self, index: u32, connection: Box<Connection>) {
        self.connections.put_back(index, connection);
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
                let (link, rdma, counters) = (&mut self.link, &mut self.rdma, &mut self.counters);
                connection.fail_startup(link, rdma, counters, self.now, reason);
            }
            if connection.gone {
                release(self.link.handoff.as_ref(), &connection.flow);
                self.dismantle(index, connection);
                continue;
            }
            if connection.has_told_all() {
                connection.stream_over(&mut self.connections.opening, &mut self.rdma, &mut self.counters, self.now);
            }
            if let Some(wait) = connection.time_wait_left() {
                self.enter_time_wait(index, connection, wait);
                continue;
            }
            if let Some(deadline) = connection.next_deadline() {
                self.connections.wheel.arm(index, deadline);
            }
            self.connections.table.put(index, connection);
        }
        while let Some(retry) = self.connections.opening.retries.pop() {
            self.connect(retry);
        }
    }

    /// Moves a connection to the TIME-WAIT table. The flow stays this engine's.
    #[cold]
    pub(crate) fn enter_time_wait(&mut self, index: u32, connection: Box<Connection>, wait: TimeWait) {
        let flow = connection.flow;
        self.dismantle(index, connection);
        let handoff = self.link.handoff.as_ref();
        self.connections.time_wait.insert(flow, wait, |gone| release(handoff, gone));
    }

    /// Frees what a connection holds.
    fn dismantle(&mut self, index: u32, mut connection: Box<Connection>) {
        self.connections.opening.leave_listener(&mut connection);
        connection.stream_over(&mut self.connections.opening, &mut self.rdma, &mut self.counters, self.now);
        self.connections.dismantle(index, &mut connection, self.now);
        self.net.forget(index, &connection);
        let gather = self.rdma.gathers.resume(&mut connection);
        self.rdma.gathers.give(gather);
        // Its port may be given back to a switch now, which drops what comes from there later.
        self.flush();
        self.counters.sack_segments_walked += connection.tcp.info().sack_segments_walked;
        self.connections.table.release(index);
        self.counters.connections_closed += 1;
        self.connections.opening.reserved.disconnected(connection.flow.local_port);
    }
}
