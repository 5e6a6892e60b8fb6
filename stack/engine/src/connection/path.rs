//! What routers report about connections: path MTUs, and destinations that cannot be reached.

use uwarp_tcp::State;
use uwarp_wire::icmp::QuotedTcp;

use crate::api::command::ConnectFailure;
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;
use crate::net::Net;
use crate::net::path::{Doubt, Paths, headers};

impl<B: Buffer> Connections<B> {
    /// The connection about whose segment in flight a router reports something. `None`: there is none, which is
    /// counted.
    fn reported(&mut self, counters: &mut Counters, quoted: Option<QuotedTcp>) -> Option<(QuotedTcp, u32)> {
        let found = quoted.and_then(|quoted| {
            let index = self.find(&quoted.flow)?;
            self.table.get(index)?.tcp.is_in_flight(quoted.sequence).then_some((quoted, index))
        });
        if found.is_none() {
            counters.count_drop(DropReason::IcmpForged);
        }
        found
    }

    /// A soft error (RFC 5927 §4): it fails an open under way, and affects nothing else.
    pub(crate) fn on_soft_error(&mut self, counters: &mut Counters, quoted: Option<QuotedTcp>) {
        let Some((_, index)) = self.reported(counters, quoted) else { return };
        let is_opening = |connection: &Connection| connection.tcp.state() == State::SynSent && connection.is_opening();
        if self.table.get(index).is_some_and(is_opening) {
            self.fail(index, ConnectFailure::Unreachable);
        }
    }

    /// A packet of ours did not fit. `claimed` is the MTU that would, 0 if the router does not report it.
    #[cold]
    pub(crate) fn on_too_big(&mut self, net: &mut Net, common: &mut Common, quoted: Option<QuotedTcp>, claimed: u32) {
        let Some((quoted, index)) = self.reported(&mut common.counters, quoted) else { return };
        let Some(connection) = self.table.disturb(index) else { return };
        let destination = connection.flow.remote;
        let Some(mtu) = net.paths.claimed(destination, quoted.packet_len, claimed) else {
            return common.counters.count_drop(DropReason::IcmpStale);
        };
        if connection.confirmed + u32::from(headers(destination)) <= u32::from(mtu) {
            connection.lower_path_mtu(net, common, mtu);
            return connection.schedule(&mut self.ready);
        }
        let timeouts = connection.tcp.counters().timeouts;
        net.paths.doubt(index, Doubt { mtu, sequence: quoted.sequence, timeouts });
        common.counters.path_mtu_doubts += 1;
    }

    /// Expires old path MTUs, and adjusts connections after changes.
    pub(crate) fn age_paths(&mut self, net: &mut Net, common: &mut Common) {
        let Some(unfitted) = net.paths.age(common.now) else { return };
        for (_, connection) in self.table.disturb_all() {
            common.counters.work.connections_scanned += 1;
            if unfitted.contains(&connection.flow.remote) {
                connection.fit(&net.paths);
                connection.schedule(&mut self.ready);
            }
        }
    }
}

impl Connection {
    /// A timer of the connection has expired, which may confirm or refute its doubted message.
    #[cold]
    pub(crate) fn review_doubt(&mut self, net: &mut Net, common: &mut Common) {
        // There are doubts, but perhaps about other connections.
        let Some(doubt) = net.paths.doubt_about(self.index) else { return };
        if !self.tcp.is_in_flight(doubt.sequence) {
            net.paths.forget(self.index);
        } else if self.tcp.counters().timeouts > doubt.timeouts {
            net.paths.forget(self.index);
            self.lower_path_mtu(net, common, doubt.mtu);
        }
    }

    /// Uses the MTU for this connection and all others to the same destination.
    fn lower_path_mtu(&mut self, net: &mut Net, common: &mut Common, mtu: u16) {
        common.counters.path_mtu_changes += 1;
        let at = net.paths.lower(common.now, self.flow.remote, mtu);
        self.fit(&net.paths);
        net.chores_at = Some(net.chores_at.map_or(at, |known| known.min(at)));
    }

    /// Adjusts the segment size to the path.
    pub(crate) fn fit(&mut self, paths: &Paths) {
        let mss = paths.mss(self.flow.remote);
        self.tcp.set_path_mss(mss);
        self.confirmed = self.confirmed.min(u32::from(mss));
    }
}
