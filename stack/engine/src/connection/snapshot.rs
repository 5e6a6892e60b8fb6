//! What the room has to say of itself.

use std::time::Duration;

use crate::api::counters::Counters;
use crate::api::stats::{ConnectionStats, EngineStats, TcpInfo, Work};
use crate::connection::startup::endpoints;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;

impl<B: Buffer> Connections<B> {
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        let all = || self.table.iter().map(|(_, connection)| connection);
        stats.time_wait = self.time_wait.len() as u64;
        stats.time_wait_cut_short = self.time_wait.cut_short;
        stats.internal_faults += self.records.faults() + self.held.faults() + self.flows.faults();
        stats.internal_faults += self.time_wait.faults();
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
            connections_scanned: counters.connections_scanned,
            visits_without_room: counters.visits_without_room,
            neighbour_lookups: counters.neighbour_lookups,
            octets_gathered: counters.octets_gathered,
            flow_probes: self.flows.probes() + self.time_wait.probes(),
            sack_segments_walked: counters.sack_segments_walked
                + self.table.iter().map(|(_, one)| one.tcp.sack_segments_walked()).sum::<u64>(),
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
            tcp: self.tcp_info(),
        }
    }

    /// TCP's figures.
    pub(crate) fn tcp_info(&self) -> TcpInfo {
        let info = self.tcp.info();
        TcpInfo {
            state: info.state.name().to_owned(),
            smoothed_rtt_ns: nanoseconds(info.smoothed_rtt),
            rtt_variation_ns: nanoseconds(info.rtt_variation),
            minimum_rtt_ns: nanoseconds(info.minimum_rtt),
            retransmission_timeout_ns: nanoseconds(info.retransmission_timeout),
            congestion_window: u64::from(info.congestion_window),
            slow_start_threshold: u64::from(info.slow_start_threshold),
            send_window: u64::from(info.send_window),
            receive_window: u64::from(info.receive_window),
            effective_mss: info.effective_mss,
            in_flight: u64::from(info.in_flight),
            unsent: info.unsent,
            selectively_acknowledged: u64::from(info.sacked),
            lost: u64::from(info.lost),
            octets_sent: info.octets_sent,
            octets_retransmitted: info.octets_retransmitted,
            octets_acknowledged: info.octets_acknowledged,
            octets_received: info.octets_received,
            segments_sent: info.segments_sent,
            segments_received: info.segments_received,
            retransmissions: info.segments_retransmitted,
            sack_segments_walked: info.sack_segments_walked,
            timeouts: u64::from(info.timeouts),
            tail_loss_probes: u64::from(info.tail_loss_probes),
            fast_recoveries: u64::from(info.fast_recoveries),
            out_of_order_buffers: u64::from(info.out_of_order_buffers),
            duplicates_reported: u64::from(info.duplicates_reported),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
