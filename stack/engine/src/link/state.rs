//! The state of the device's link.

use super::LINK_INTERVAL;
use crate::api::command::AsyncEvent;
use crate::core::Core;
use crate::link::port::{LinkState, Port};

impl<P: Port> Core<P> {
    pub(crate) fn check_link(&mut self) {
        self.link.check_at = self.now + LINK_INTERVAL;
        let up = self.link.port.link() == LinkState::Up;
        if up == self.link.is_up {
            return;
        }
        self.link.is_up = up;
        self.control.events.send(AsyncEvent::Link { up });
        if up {
            self.announce_twice();
            return;
        }
        // Probes show at once whether a peer died, instead of at the next keep-alive.
        let now = self.now;
        for index in self.connections.table.indexes() {
            if let Some(connection) = self.connections.table.get_mut(index) {
                connection.tcp.link_lost(now);
                Self::schedule(&mut self.connections.ready, index, connection);
            }
        }
    }
}
