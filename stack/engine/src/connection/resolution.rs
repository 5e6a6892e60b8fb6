//! Connections that wait for the hardware address of their next hop.

use uwarp_wire::address::IpAddress;

use crate::api::command::{ConnectFailure, DisconnectReason};
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::net::Net;
use crate::net::neighbours::Resolution;

impl Net {
    /// Repeats solicitations, gives up hosts that do not answer, and continues with connections whose next hop is
    /// known.
    pub(crate) fn run_neighbours<P: Port>(
        &mut self,
        link: &mut Link<P>,
        connections: &mut Connections<P::Buffer>,
        common: &mut Common,
    ) {
        self.neighbours.on_deadline(common.now);
        self.flush_requests(link, &mut common.counters);
        while let Some(address) = self.neighbours.poll_unreachable() {
            self.on_unreachable(connections, &mut common.counters, address);
        }
        if self.known_epoch != self.neighbours.epoch() {
            self.known_epoch = self.neighbours.epoch();
            while let Some(index) = self.unresolved.pop() {
                common.counters.work.connections_scanned += 1;
                let Some(connection) = connections.table.disturb(index) else {
                    common.counters.cannot_be("a connection that is gone waits for an address");
                    continue;
                };
                connection.next_hop.unresolved = false;
                connection.schedule(&mut connections.ready);
            }
        }
    }

    /// Makes sure that the next hop's hardware address is known. False: the connection has to wait for it.
    #[inline]
    pub(crate) fn resolve<P: Port>(
        &mut self,
        link: &mut Link<P>,
        connections: &mut Connections<P::Buffer>,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        if connection.next_hop.epoch == self.neighbours.epoch() || connection.next_hop.to_self {
            return true;
        }
        self.resolve_anew(link, connections, common, connection)
    }

    #[cold]
    fn resolve_anew<P: Port>(
        &mut self,
        link: &mut Link<P>,
        connections: &mut Connections<P::Buffer>,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        common.counters.work.neighbour_lookups += 1;
        if self.addresses.is_tentative(connection.flow.local) {
            // RFC 4862 §5.4: nothing leaves from an address before it is known to be ours alone.
            self.wait_for_address(connection);
            return false;
        }
        match self.neighbours.resolve(common.now, self.addresses.next_hop(connection.flow.remote)) {
            Resolution::Known(mac) => {
                if connection.next_hop.mac != mac {
                    connection.next_hop.mac = mac;
                    connection.next_hop.template = None;
                }
                connection.next_hop.epoch = self.neighbours.epoch();
                true
            }
            // A passive connection has the address that its SYN came from.
            Resolution::Pending | Resolution::Full if connection.next_hop.epoch != 0 => {
                self.flush_requests(link, &mut common.counters);
                true
            }
            Resolution::Pending => {
                self.wait_for_address(connection);
                self.flush_requests(link, &mut common.counters);
                false
            }
            Resolution::Full => {
                connection.ends_by(DisconnectReason::TimedOut);
                if connection.is_opening() {
                    connections.fail(connection.index, ConnectFailure::Limit);
                }
                false
            }
        }
    }

    /// The connection is served again when an address has become known.
    fn wait_for_address(&mut self, connection: &mut Connection) {
        if !connection.next_hop.unresolved {
            connection.next_hop.unresolved = true;
            self.unresolved.push(connection.index);
        }
    }

    /// Forgets a connection that is gone.
    pub(crate) fn forget(&mut self, connection: &Connection) {
        self.paths.forget(connection.index);
        if connection.next_hop.unresolved {
            self.unresolved.retain(|other| *other != connection.index);
        }
    }

    /// A next hop did not answer, or an address of ours is another's: attempts to connect that way fail; open
    /// connections go on asking until TCP gives up.
    #[cold]
    fn on_unreachable<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        counters: &mut Counters,
        address: IpAddress,
    ) {
        let Net { addresses, unresolved, .. } = self;
        unresolved.retain(|index| {
            let Some(connection) = connections.table.disturb(*index) else {
                counters.cannot_be("a connection that is gone waits for an address");
                return false;
            };
            if connection.flow.local != address && addresses.next_hop(connection.flow.remote) != address {
                return true;
            }
            connection.next_hop.unresolved = false;
            if connection.is_opening() {
                connections.fail(*index, ConnectFailure::Unreachable);
            } else {
                connection.schedule(&mut connections.ready);
            }
            false
        });
    }
}
