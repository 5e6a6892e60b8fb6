//! Which connection is evicted when buffers or places of a backlog are short.

use uwarp_wire::address::FlowKey;

use super::{REVIEW, WATCH, Watched, is_silent};
use crate::api::command::DisconnectReason;
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::connection::slab::Handle;
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::port::{Buffer, Port};

impl<B: Buffer> Connections<B> {
    /// The handshake of a passive connection is done; its MPA Request may come.
    pub(crate) fn await_request(&mut self, counters: &mut Counters, connection: &mut Connection) {
        // No listener counts a plain stream that was converted.
        let Some(id) = connection.phase.listener() else { return };
        self.opening.handshake_done(connection, id);
        let (table, listeners) = (&self.table, &mut self.opening.listeners);
        let Some(listener) = listeners.get_mut(connection.flow.local_port, id) else {
            return counters.cannot_be("a connection outlives its listener");
        };
        let order = &mut listener.silent.order;
        // At most a backlog of connections is pending, so the amortised cost for each new one is small.
        if order.len() >= 2 * listener.backlog as usize {
            order.retain(|handle| table.resolve(*handle).and_then(|index| table.get(index)).is_some_and(is_silent));
        }
        order.push_back(table.reserved_handle(connection.index));
    }

    /// Whether a full listener makes room for a connection of this flow: the longest silent connection is evicted,
    /// unless its peer has half of the places already.
    pub(crate) fn make_room<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        flow: &FlowKey,
    ) -> bool {
        let Connections { table, opening, ending, .. } = self;
        let Some(listener) = opening.listeners.at_mut(flow.local, flow.local_port) else { return false };
        if listener.silent.by_source.get(&flow.remote).is_some_and(|count| 2 * count >= listener.backlog) {
            return false;
        }
        while let Some(handle) = listener.silent.order.pop_front() {
            let found = table.disturb_handle(handle).filter(|(_, connection)| is_silent(connection));
            if let Some((index, connection)) = found {
                evict(link, common, connection);
                ending.push((index, None));
                // Its place is another's from now on, although the connection ends only with the step.
                opening.leave_listener(connection);
                connection.phase.end();
                return true;
            }
        }
        false
    }

    /// Some connections get no transmit buffer: ends the one that holds most of those whose peers are too slow (RFC
    /// 6429). A connection is observed for [`WATCH`] before. None is ended while most buffers return within that time.
    #[cold]
    pub(crate) fn relieve<P: Port<Buffer = B>>(&mut self, link: &mut Link<P>, common: &mut Common) {
        let pressure = &mut self.pressure;
        if common.now < pressure.review_at {
            return;
        }
        if common.now > pressure.review_at + 10 * REVIEW {
            // There were enough buffers meanwhile.
            pressure.watched.clear();
            pressure.condemned.clear();
        }
        pressure.review_at = common.now + REVIEW;
        if pressure.watched.is_empty() || common.now >= pressure.watched_since + WATCH {
            self.watch(common);
        }
        while let Some(handle) = self.pressure.condemned.pop() {
            if let Some((index, connection)) = self.table.disturb_handle(handle) {
                evict(link, common, connection);
                return self.end(index);
            }
        }
    }

    /// Finds the connections that were too slow since the last observation, and starts to observe all that hold
    /// buffers.
    fn watch(&mut self, common: &mut Common) {
        let (table, pressure) = (&self.table, &mut self.pressure);
        common.counters.work.connections_scanned += table.len() as u64;
        let elapsed = common.now - pressure.watched_since;
        let least = u64::from(common.config.limits.least_rate) * elapsed.as_secs();
        let mut slow: Vec<(usize, Handle)> = Vec::new();
        let (mut held, mut taken) = (0, 0);
        for watched in pressure.watched.drain(..) {
            held += watched.held();
            let connection = table.resolve(watched.handle).and_then(|index| table.get(index));
            taken += connection.map_or(watched.held(), |connection| watched.taken(connection));
            if let Some(connection) = connection.filter(|connection| watched.is_too_slow(connection, least)) {
                slow.push((connection.tcp.records(), watched.handle));
            }
        }
        if taken > held / 2 {
            // Buffers circulate: they are scarce, but no connection withholds them. A slow connection may just be
            // unlucky.
            slow.clear();
        }
        slow.sort_unstable_by_key(|(records, _)| *records);
        pressure.condemned = slow.into_iter().map(|(_, handle)| handle).collect();
        pressure.watched_since = common.now;
        for (index, connection) in table.iter().filter(|(_, connection)| connection.tcp.records() > 0) {
            let handle = table.reserved_handle(index);
            let (acknowledged, pushed) = (connection.tcp.octets_acknowledged(), connection.tcp.octets_pushed());
            pressure.watched.push(Watched { handle, acknowledged, pushed });
        }
    }
}

/// Resets a connection whose resources others need.
fn evict<P: Port>(link: &mut Link<P>, common: &mut Common, connection: &mut Connection) {
    common.counters.evicted += 1;
    connection.ends_by(DisconnectReason::TimedOut);
    connection.abort(link, common);
}
