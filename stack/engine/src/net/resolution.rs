//! Connections that wait for the hardware address of their next hop.

use crate::core::Core;
use crate::link::port::Port;

impl<P: Port> Core<P> {
    pub(crate) fn run_neighbours(&mut self) {
        self.net.neighbours.on_deadline(self.now);
        self.flush_requests();
        while let Some(address) = self.net.neighbours.poll_unreachable() {
            self.on_unreachable(address);
        }
        if self.net.known_epoch != self.net.neighbours.epoch() {
            self.net.known_epoch = self.net.neighbours.epoch();
            while let Some(index) = self.net.unresolved.pop() {
                self.counters.connections_scanned += 1;
                if let Some(connection) = self.connections.table.get_mut(index) {
                    connection.unresolved = false;
                    Self::schedule(&mut self.connections.ready, index, connection);
                }
            }
        }
    }
}
