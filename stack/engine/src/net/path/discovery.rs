//! Path MTU discovery: reports of routers, doubts, and connections that adapt.

use super::{BELIEVED, Doubt, FIT_AFTER, Known, MINIMUM_IPV4, MOST_PATHS, headers, plateau_below};
use crate::api::stats::DropReason;
use crate::connection::Connection;
use crate::core::Core;
use crate::link::port::Port;
use hashbrown::HashSet;
use uwarp_wire::icmp::QuotedTcp;
use uwarp_wire::ipv6;

impl<P: Port> Core<P> {
    /// A packet of ours did not fit. `claimed` is the MTU that would, 0 if the router does not report it.
    #[cold]
    pub(crate) fn on_too_big(&mut self, quoted: Option<QuotedTcp>, claimed: u32) {
        let found = quoted.and_then(|quoted| Some((quoted, self.find(&quoted.flow)?)));
        let Some((quoted, index)) = found else { return self.count_drop(DropReason::IcmpForged) };
        let Some(mut connection) = self.connections.table.take(index) else { return };
        if connection.tcp.is_in_flight(quoted.sequence) {
            self.judge_claim(index, &mut connection, &quoted, claimed);
        } else {
            self.count_drop(DropReason::IcmpForged);
        }
        self.put_back(index, connection);
    }

    fn judge_claim(&mut self, index: u32, connection: &mut Connection, quoted: &QuotedTcp, claimed: u32) {
        let destination = connection.flow.remote;
        let current = self.net.paths.mtu(destination).unwrap_or(self.link.port.capabilities().mtu);
        let v4 = destination.is_ipv4();
        let mtu = match u16::try_from(claimed).unwrap_or(u16::MAX) {
            0 if v4 => plateau_below(quoted.packet_len.min(usize::from(current))),
            claimed if v4 => claimed.max(MINIMUM_IPV4),
            claimed => claimed,
        };
        // RFC 8201 §4: less than 1280 is not allowed. RFC 5927 §7.1 and RFC 8201 §5.2: no message raises an MTU.
        if mtu >= current || !v4 && mtu < ipv6::MINIMUM_MTU {
            return self.count_drop(DropReason::IcmpStale);
        }
        if connection.confirmed + u32::from(headers(destination)) <= u32::from(mtu) {
            return self.lower_path_mtu(index, connection, mtu);
        }
        let timeouts = connection.tcp.info().timeouts;
        self.net.paths.doubts.insert(index, Doubt { mtu, sequence: quoted.sequence, timeouts });
        self.counters.path_mtu_doubts += 1;
    }

    /// A timer of the connection has expired, which may confirm or refute its doubted message.
    #[cold]
    pub(crate) fn review_doubt(&mut self, index: u32, connection: &mut Connection) {
        let Some(doubt) = self.net.paths.doubts.get(&index) else { return };
        let (mtu, timeouts) = (doubt.mtu, doubt.timeouts);
        if !connection.tcp.is_in_flight(doubt.sequence) {
            self.net.paths.doubts.remove(&index);
        } else if connection.tcp.info().timeouts > timeouts {
            self.net.paths.doubts.remove(&index);
            self.lower_path_mtu(index, connection, mtu);
        }
    }

    /// Uses the MTU for this connection and all others to the same destination.
    fn lower_path_mtu(&mut self, index: u32, connection: &mut Connection, mtu: u16) {
        let destination = connection.flow.remote;
        self.counters.path_mtu_changes += 1;
        if self.net.paths.known.len() >= MOST_PATHS {
            let oldest = self.net.paths.known.iter().min_by_key(|(_, known)| known.until).map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                self.net.paths.known.remove(&oldest);
            }
        }
        self.net.paths.known.insert(destination, Known { mtu, until: self.now + BELIEVED });
        self.fit(connection);
        Self::schedule(&mut self.connections.ready, index, connection);
        if self.net.paths.unfitted.is_empty() {
            self.net.paths.fit_at = self.now + FIT_AFTER;
        }
        self.net.paths.unfitted.insert(destination);
        let at = self.net.paths.fit_at;
        self.net.chores_at = Some(self.net.chores_at.map_or(at, |known| known.min(at)));
    }

    /// Adjusts a connection's segment size to its path.
    pub(crate) fn fit(&mut self, connection: &mut Connection) {
        let destination = connection.flow.remote;
        let mtu = self.net.paths.mtu(destination).unwrap_or(self.link.port.capabilities().mtu);
        connection.tcp.set_path_mss(mtu - headers(destination));
        connection.confirmed = connection.confirmed.min(u32::from(mtu - headers(destination)));
    }

    /// Adjusts the connections whose path MTUs have changed.
    fn fit_all(&mut self) {
        let none = HashSet::with_hasher(*self.net.paths.unfitted.hasher());
        let unfitted = std::mem::replace(&mut self.net.paths.unfitted, none);
        for index in self.connections.table.indexes() {
            self.counters.connections_scanned += 1;
            if self.connections.table.get(index).is_none_or(|connection| !unfitted.contains(&connection.flow.remote)) {
                continue;
            }
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            self.fit(&mut connection);
            Self::schedule(&mut self.connections.ready, index, &mut connection);
            self.put_back(index, connection);
        }
    }

    /// Expires old entries, so larger packets are tried again, and adjusts connections after changes.
    pub(crate) fn age_paths(&mut self) {
        let (now, unfitted) = (self.now, &mut self.net.paths.unfitted);
        let mut fit = !unfitted.is_empty() && self.net.paths.fit_at <= now;
        self.net.paths.known.retain(|destination, known| {
            let is_old = known.until <= now;
            if is_old {
                unfitted.insert(*destination);
            }
            fit |= is_old;
            !is_old
        });
        if fit {
            self.fit_all();
        }
    }
}
