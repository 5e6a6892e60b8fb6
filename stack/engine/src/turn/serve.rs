//! Posted work, from the doorbells that rang to the frames of the connections that have some.

use uwarp_memory::Turn;

use crate::api::config::IwarpConfig;
use crate::bytestream::conversion::TextPushed;
use crate::connection::phase::{Closing, Phase};
use crate::connection::running::Limit;
use crate::connection::{Connection, Connections};
use crate::core::Core;
use crate::hot::transmit::{Served, Visit};
use crate::link::port::Port;
use crate::rdma::Rdma;
use crate::rdma::datagrams::Way;
use crate::rdma::packing::{Open, Pulled, Sending};
use crate::rdma::queue_pair::QueuePair;

impl<P: Port> Core<P> {
    #[inline(always)]
    pub(super) fn run_doorbells(&mut self) {
        let rung = &mut self.control.rung;
        if !rung.is_empty() && self.rdma.run_doorbells(&mut self.connections, &mut self.common, rung) {
            self.only_short_ways = false;
        }
    }

    /// Sends posted datagrams. A queue pair with more is visited again in the next turn.
    #[cold]
    pub(super) fn send_datagrams(&mut self, turn: &Turn<'_>) {
        let Core { link, net, rdma, control, common, .. } = self;
        control.rung.extend(rdma.send_datagrams(turn, Way { link, net, common }));
    }

    /// Visits the connections with work.
    #[inline(always)]
    pub(super) fn serve_ready(&mut self, turn: &Turn<'_>) {
        self.run_doorbells();
        for _ in 0..self.connections.ready.len() {
            if !self.link.has_room() {
                self.serve_one_without_room(turn);
                break;
            }
            // A connection that was served may have ended others.
            let Some(index) = self.connections.ready.pop_front() else { break };
            self.serve(turn, index);
        }
    }

    /// Serves a connection: pulls its work, sends what TCP lets out, looks after its timer.
    #[inline(never)]
    pub(super) fn serve(&mut self, turn: &Turn<'_>, index: u32) {
        let mut open = None;
        let is_served = self.common.config.hot
            && (self.visit(turn, index).is_some_and(|visit| visit.serve_lone(&mut open))
                || open.is_none() && self.serve_other(turn, index, &mut open));
        if !is_served {
            self.serve_any(turn, index, open);
        }
    }

    #[inline(never)]
    fn serve_other(&mut self, turn: &Turn<'_>, index: u32, open: &mut Option<Open<P::Buffer>>) -> bool {
        self.visit(turn, index).is_some_and(|visit| visit.serve_several(open))
            || open.is_none() && self.visit(turn, index).is_some_and(|visit| visit.serve_response(open))
    }

    /// The visit of a short way to a connection, if that has a queue pair.
    #[inline(always)]
    fn visit<'a>(&'a mut self, turn: &'a Turn<'_>, index: u32) -> Option<Visit<'a, P>> {
        let epoch = self.net.neighbours.epoch();
        let Core { link, connections, rdma, common, .. } = self;
        let Connections { table, records, wheel, ready, .. } = connections;
        let Rdma { queue_pairs, lanes, config: IwarpConfig { max_ulpdu, .. }, .. } = rdma;
        let (connection, known_usual) = table.get_with_mark(index)?;
        let number = connection.queue_pair.map_or(usize::MAX, |number| number as usize);
        let queue_pair = queue_pairs.get_mut(number)?.as_deref_mut()?;
        let served = Served { turn, connection, queue_pair, lanes, counters: &mut common.counters };
        Some(Visit { served, known_usual, now: common.now, epoch, link, records, wheel, ready, max_ulpdu: *max_ulpdu })
    }

    /// Visits one ready connection while the device is full, since it may have work that needs no frame. Each turn
    /// takes the next one. The others keep their places: a visit to thousands takes longer than the device needs.
    #[inline(never)]
    fn serve_one_without_room(&mut self, turn: &Turn<'_>) {
        let place = self.common.counters.work.visits_without_room as usize % self.connections.ready.len().max(1);
        self.common.counters.work.visits_without_room += 1;
        // Connections that were served before may have ended all others.
        let Some(index) = self.connections.ready.remove(place) else { return };
        self.serve(turn, index);
        if self.connections.ready.back() == Some(&index) {
            self.connections.ready.pop_back();
            self.connections.ready.insert(place, index);
        }
    }

    /// Serves a connection by the general code, which goes on with the record that a short way has begun.
    #[inline(never)]
    fn serve_any(&mut self, turn: &Turn<'_>, index: u32, mut open: Option<Open<P::Buffer>>) {
        self.only_short_ways = false;
        let Some(mut connection) = self.connections.take(&mut self.common.counters, index) else { return };
        connection.scheduled = false;
        let mut more = false;
        if !connection.gone {
            let mut queue_pair = self.rdma.take(connection.queue_pair);
            more = self.feed(turn, &mut connection, queue_pair.as_deref_mut(), &mut open);
            self.rdma.give(queue_pair);
            more |= self.transmit(&mut connection);
            if self.connections.ready.is_empty() {
                // Nobody else has anything to send: what is left of the turn need not be waited for.
                self.flush();
            }
        }
        if open.is_some() {
            self.common.counters.cannot_be("a record is begun on a connection that may not send");
        }
        if more && !connection.gone {
            connection.schedule(&mut self.connections.ready);
        }
        self.put_back(connection);
    }

    /// Hands TCP what there is to send, the record in `open` first. True: there is more.
    #[inline]
    fn feed(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        open: &mut Option<Open<P::Buffer>>,
    ) -> bool {
        let now = self.common.now;
        connection.quiet = false;
        if let Phase::Stream(_) = connection.phase {
            let Core { connections, link, streams, common, .. } = self;
            return connections.feed_stream(link, streams, common, connection);
        }
        if connection.stream.is_some() {
            // What was written before MPA took over comes before anything of MPA's.
            let Core { connections, link, streams, common, .. } = self;
            match connections.push_text(link, streams, common, connection) {
                TextPushed::All => {}
                TextPushed::TimeWaits => return false,
                TextPushed::More => return true,
            }
        }
        if connection.startup_frame.is_some() {
            if !self.connections.push_startup_frame(&mut self.link, &mut self.common.counters, connection) {
                return true;
            }
            if let Phase::Running(_) = connection.phase
                && connection.startup_frame.is_none()
            {
                connection.leave_stream(&self.connections.tcp_config);
            }
        }
        if let Phase::Closing(Closing { close_when_sent: true, .. }) = connection.phase {
            connection.close_tcp(now);
            return false;
        }
        let Phase::Running(running) = &mut connection.phase else { return false };
        if running.terminate.is_some() {
            return self.connections.push_terminate(&mut self.link, &mut self.common, connection);
        }
        let Some(queue_pair) = queue_pair else { return false };
        if !running.stream.may_send_messages() {
            if running.stream.state().flushes() && !queue_pair.survives_stream() {
                self.rdma.flush_with(&mut self.common.counters, queue_pair, None, None);
            } else {
                connection.close_if_finished(queue_pair, now);
            }
            return false;
        }
        if let Limit::Pause(at) = running.limit {
            if at > now {
                return false;
            }
            running.limit = Limit::silence(now, self.common.config.iwarp.nudge_after, 0);
        }
        let pulled = self.pull(turn, connection, queue_pair, open.take());
        if queue_pair.send.begun() > 0 {
            queue_pair.retire(&mut self.rdma.lanes, connection.tcp.octets_acknowledged());
        }
        if queue_pair.overflowed.is_some() {
            self.rdma.on_overflow(&mut self.common, connection, queue_pair);
        }
        match pulled {
            Pulled::Dry => {
                self.rdma.on_dry(connection, queue_pair, now);
                connection.quiet = connection.is_quiet(queue_pair);
                false
            }
            Pulled::More => true,
            Pulled::Starved => {
                self.connections.note_starved();
                true
            }
            Pulled::Held => false,
        }
    }

    /// Builds FPDUs while TCP takes them, and hands it the last record.
    #[inline]
    fn pull(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        open: Option<Open<P::Buffer>>,
    ) -> Pulled {
        let epoch = self.net.neighbours.epoch();
        let Core { link, connections, rdma, common, .. } = self;
        let records = &mut connections.records;
        let mut sending = Sending { turn, link, records, rdma, common, connection, queue_pair, open };
        match sending.pull() {
            Ok(Pulled::Dry) => {
                if !(sending.common.config.hot && sending.send_open(epoch)) {
                    sending.push_open();
                }
                Pulled::Dry
            }
            Ok(pulled) => {
                sending.push_open();
                pulled
            }
            Err(refused) => {
                sending.push_open();
                self.rdma.fail_refused(&mut self.common, connection, queue_pair, refused);
                // A Terminate is now queued; serve again to send it.
                Pulled::More
            }
        }
    }
}
