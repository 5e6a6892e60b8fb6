//! What the room has to say of itself.

use crate::api::counters::Counters;
use crate::api::stats::{ConnectionStats, EngineStats, Work};
use crate::connection::startup::endpoints;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;

impl<B: Buffer> Connections<B> {
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        let all = || self.table.iter().map(|(_, connection)| connection);
        stats.time_wait = self.time_wait.len() as u64;
        stats.time_wait_cut_short = self.time_wait.cut_short;
        stats.counters.internal_faults += self.records.faults() + self.held.faults() + self.flows.faults();
        stats.counters.internal_faults += self.time_wait.faults();
        stats.buffers_held = (self.held.len() + self.records.len()) as u64;
        // The next record uses it as well as one of the pool.
        stats.pools.transmit_free += self.records.spares() as u32;
        stats.flows = (self.flows.len() + self.time_wait.len()) as u64;
        stats.connection_octets = all().map(|connection| connection.memory() as u64).sum();
        // Counted anew, independently of the count for the budget.
        stats.gather_octets = all().map(|connection| connection.gather.capacity() as u64).sum();
        stats.connections = all().map(Connection::stats).collect();
    }

    /// The work that peers have caused so far.
    pub(crate) fn work_done(&self, counters: &Counters) -> Work {
        Work {
            frames_received: counters.frames_received,
            octets_received: counters.octets_received,
            frames_sent: counters.frames_sent,
            octets_sent: counters.octets_sent,
            flow_probes: self.flows.probes() + self.time_wait.probes(),
            sack_segments_walked: counters.work.sack_segments_walked
                + self.table.iter().map(|(_, one)| one.tcp.counters().sack_segments_walked).sum::<u64>(),
            ..counters.work
        }
    }
}

impl Connection {
    fn stats(&self) -> ConnectionStats {
        let (local, remote) = endpoints(&self.flow);
        ConnectionStats {
            local,
            remote,
            queue_pair: self.queue_pair,
            phase: self.phase.name().to_owned(),
            transmit_buffers: self.tcp.records() as u64,
            gather_octets: self.gather.capacity() as u64,
            awaits_receive: self.awaits_receive(),
            tcp: self.tcp.info(),
        }
    }
}
