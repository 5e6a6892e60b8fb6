//! Path MTU discovery: reports of routers, doubts, and connections that adapt.

use super::{BELIEVED, Doubt, FIT_AFTER, Known, MINIMUM_IPV4, MOST_PATHS, headers, plateau_below};
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;
use crate::net::Net;
use hashbrown::HashSet;
use uwarp_tcp::Instant;
use uwarp_wire::icmp::QuotedTcp;
use uwarp_wire::ipv6;

impl Net {
    /// A packet of ours did not fit. `claimed` is the MTU that would, 0 if the router does not report it.
    #[cold]
    pub(crate) fn on_too_big<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        counters: &mut Counters,
        now: Instant,
        quoted: Option<QuotedTcp>,
        claimed: u32,
    ) {
        let index = quoted.and_then(|quoted| connections.find(&quoted.flow));
        let Connections { table, ready, .. } = connections;
        let found = index.and_then(|index| Some((quoted?, index, table.get_mut(index)?)));
        let Some((quoted, index, connection)) = found else { return counters.count_drop(DropReason::IcmpForged) };
        if !connection.tcp.is_in_flight(quoted.sequence) {
            return counters.count_drop(DropReason::IcmpForged);
        }
        if let Some(mtu) = self.judge_claim(counters, index, connection, &quoted, claimed) {
            self.lower_path_mtu(counters, now, connection, mtu);
            connection.schedule(ready, index);
        }
    }

    /// The lower MTU that the claim proves; `None` if it is refused, or doubted for now.
    fn judge_claim(
        &mut self,
        counters: &mut Counters,
        index: u32,
        connection: &Connection,
        quoted: &QuotedTcp,
        claimed: u32,
    ) -> Option<u16> {
        let destination = connection.flow.remote;
        let current = self.paths.mtu(destination).unwrap_or(self.paths.device_mtu);
        let v4 = destination.is_ipv4();
        let mtu = match u16::try_from(claimed).unwrap_or(u16::MAX) {
            0 if v4 => plateau_below(quoted.packet_len.min(usize::from(current))),
            claimed if v4 => claimed.max(MINIMUM_IPV4),
            claimed => claimed,
        };
        // RFC 8201 §4: less than 1280 is not allowed. RFC 5927 §7.1 and RFC 8201 §5.2: no message raises an MTU.
        if mtu >= current || !v4 && mtu < ipv6::MINIMUM_MTU {
            counters.count_drop(DropReason::IcmpStale);
            return None;
        }
        if connection.confirmed + u32::from(headers(destination)) <= u32::from(mtu) {
            return Some(mtu);
        }
        let timeouts = connection.tcp.info().timeouts;
        self.paths.doubts.insert(index, Doubt { mtu, sequence: quoted.sequence, timeouts });
        counters.path_mtu_doubts += 1;
        None
    }

    /// A timer of the connection has expired, which may confirm or refute its doubted message.
    #[cold]
    pub(crate) fn review_doubt(
        &mut self,
        counters: &mut Counters,
        now: Instant,
        index: u32,
        connection: &mut Connection,
    ) {
        // There are doubts, but perhaps about other connections.
        let Some(doubt) = self.paths.doubts.get(&index) else { return };
        let (mtu, timeouts) = (doubt.mtu, doubt.timeouts);
        if !connection.tcp.is_in_flight(doubt.sequence) {
            self.paths.doubts.remove(&index);
        } else if connection.tcp.info().timeouts > timeouts {
            self.paths.doubts.remove(&index);
            self.lower_path_mtu(counters, now, connection, mtu);
        }
    }

    /// Uses the MTU for this connection and all others to the same destination.
    fn lower_path_mtu(&mut self, counters: &mut Counters, now: Instant, connection: &mut Connection, mtu: u16) {
        let destination = connection.flow.remote;
        counters.path_mtu_changes += 1;
        let is_full = self.paths.known.len() >= MOST_PATHS && !self.paths.known.contains_key(&destination);
        let oldest = || self.paths.known.iter().min_by_key(|(_, known)| known.until).map(|(address, _)| *address);
        // Its connections may send larger packets again.
        let forgotten = if is_full { oldest() } else { None };
        if let Some(oldest) = forgotten {
            self.paths.known.remove(&oldest);
        }
        self.paths.known.insert(destination, Known { mtu, until: now + BELIEVED });
        self.paths.fit(connection);
        if self.paths.unfitted.is_empty() {
            self.paths.fit_at = now + FIT_AFTER;
        }
        self.paths.unfitted.insert(destination);
        self.paths.unfitted.extend(forgotten);
        let at = self.paths.fit_at;
        self.chores_at = Some(self.chores_at.map_or(at, |known| known.min(at)));
    }

    /// Adjusts the connections whose path MTUs have changed.
    fn fit_all<B: Buffer>(&mut self, connections: &mut Connections<B>, counters: &mut Counters) {
        let Connections { table, ready, .. } = connections;
        let none = HashSet::with_hasher(*self.paths.unfitted.hasher());
        let unfitted = std::mem::replace(&mut self.paths.unfitted, none);
        for (index, connection) in table.iter_mut() {
            counters.connections_scanned += 1;
            if unfitted.contains(&connection.flow.remote) {
                self.paths.fit(connection);
                connection.schedule(ready, index);
            }
        }
    }

    /// Expires old entries, so larger packets are tried again, and adjusts connections after changes.
    pub(crate) fn age_paths<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        counters: &mut Counters,
        now: Instant,
    ) {
        let unfitted = &mut self.paths.unfitted;
        let mut fit = !unfitted.is_empty() && self.paths.fit_at <= now;
        self.paths.known.retain(|destination, known| {
            let is_old = known.until <= now;
            if is_old {
                unfitted.insert(*destination);
            }
            fit |= is_old;
            !is_old
        });
        if fit {
            self.fit_all(connections, counters);
        }
    }
}
