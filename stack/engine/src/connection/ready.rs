//! The ready list.

use crate::connection::{Connection, IPV6_AND_TCP};
use crate::core::Core;
use crate::link::port::Port;
use std::collections::VecDeque;
use uwarp_wire::address::IpAddress;

impl<P: Port> Core<P> {
    /// Records that a connection waits for a transmit buffer and holds none that an acknowledgment could free. Returns
    /// true: it has more to do.
    #[cold]
    pub(crate) fn is_starved(&mut self) -> bool {
        self.connections.starved = true;
        true
    }

    /// Puts a connection on the ready list.
    #[inline]
    pub(crate) fn schedule(ready: &mut VecDeque<u32>, index: u32, connection: &mut Connection) {
        if !connection.scheduled {
            connection.scheduled = true;
            ready.push_back(index);
        }
    }

    /// Puts the connection at `index` on the ready list.
    pub(crate) fn schedule_index(&mut self, index: u32) {
        if let Some(connection) = self.connections.table.get_mut(index) {
            Self::schedule(&mut self.connections.ready, index, connection);
        }
    }

    /// TCP's settings for a connection to an address. IPv6 has a longer header (RFC 9293 §3.7.1).
    pub(crate) fn tcp_config_for(&self, remote: IpAddress) -> uwarp_tcp::Config {
        let mut config = self.connections.tcp_config;
        if !remote.is_ipv4() {
            config.mss = config.mss.min(self.link.port.capabilities().mtu - IPV6_AND_TCP);
        }
        config
    }
}
