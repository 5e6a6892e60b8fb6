//! Snapshots of an engine's state.

use std::time::Duration;

use crate::api::counters::Counters;
use crate::api::stats::{ConnectionStats, DropReason, EngineStats, QueuePairStats, TcpInfo, Work};
use crate::connection::phase::Phase;
use crate::connection::startup::endpoints;
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::net::Net;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::{QueuePair, Stage};

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn tcp_info(connection: &Connection) -> TcpInfo {
    let info = connection.tcp.info();
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

/// TCP's figures for a queue pair's connection.
pub(crate) fn queue_pair_tcp_info<B: Buffer>(
    connections: &Connections<B>,
    rdma: &Rdma,
    queue_pair: u32,
) -> Option<TcpInfo> {
    let index = rdma.queue_pairs.get(queue_pair as usize)?.as_ref()?.connection?;
    connections.table.get(index).map(tcp_info)
}

/// The work that peers have caused so far.
pub(crate) fn work_done<B: Buffer>(counters: &Counters, connections: &Connections<B>) -> Work {
    Work {
        frames_received: counters.frames_received,
        octets_received: counters.octets_received,
        frames_sent: counters.frames_sent,
        octets_sent: counters.octets_sent,
        connections_scanned: counters.connections_scanned,
        visits_without_room: counters.visits_without_room,
        neighbour_lookups: counters.neighbour_lookups,
        octets_gathered: counters.octets_gathered,
        flow_probes: connections.flows.probes() + connections.time_wait.probes(),
        sack_segments_walked: counters.sack_segments_walked
            + connections.table.iter().map(|(_, one)| one.tcp.sack_segments_walked()).sum::<u64>(),
    }
}

impl Counters {
    /// Statistics with the counters; the rooms add theirs.
    pub(crate) fn stats(&self) -> EngineStats {
        let drops = DropReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), self.drops[*reason as usize]))
            .filter(|(_, count)| *count > 0)
            .collect();
        EngineStats {
            hot_received: self.hot_received,
            hot_sent: self.hot_sent,
            turns: self.turns,
            busy_turns: self.busy_turns,
            wakeups: self.wakeups,
            frames_received: self.frames_received,
            octets_received: self.octets_received,
            frames_sent: self.frames_sent,
            octets_sent: self.octets_sent,
            fpdus_received: self.fpdus_received,
            fpdus_gathered: self.fpdus_gathered,
            fpdus_sent: self.fpdus_sent,
            receive_waits: self.receive_waits,
            receive_waits_expired: self.receive_waits_expired,
            crc_errors: self.crc_errors,
            retransmissions: self.retransmissions,
            retransmission_copies: self.retransmission_copies,
            connections_timed_out: self.connections_timed_out,
            pure_acknowledgments: self.pure_acknowledgments,
            frames_to_be_cut: self.frames_to_be_cut,
            cookies_sent: self.cookies_sent,
            cookies_accepted: self.cookies_accepted,
            cookies_wrong: self.cookies_wrong,
            cookies_not_compared: self.cookies_not_compared,
            resets_sent: self.resets_sent,
            icmp_errors_sent: self.icmp_errors_sent,
            icmp_errors_suppressed: self.icmp_errors_suppressed,
            handed_off: self.handed_off,
            taken_over: self.taken_over,
            path_mtu_changes: self.path_mtu_changes,
            path_mtu_doubts: self.path_mtu_doubts,
            reassembled: self.reassembled,
            echoes: self.echoes,
            address_conflicts: self.address_conflicts,
            nudges_sent: self.nudges_sent,
            terminates_sent: self.terminates_sent,
            terminates_received: self.terminates_received,
            connections_opened: self.connections_opened,
            connections_closed: self.connections_closed,
            evicted: self.evicted,
            completion_overflows: self.completion_overflows,
            internal_faults: self.internal_faults.count(),
            drops,
            ..EngineStats::default()
        }
    }
}

impl<P: Port> Link<P> {
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        stats.link_up = self.is_up;
        stats.faults = self.port.fault_counts();
        stats.pools = self.port.pool_levels();
    }
}

impl Net {
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        stats.path_mtus = self.paths.iter().map(|(address, mtu)| (address.to_string(), mtu)).collect();
        stats.fragment_octets = self.reassembly.used() as u64;
        stats.fragments = self.reassembly.pieces() as u64;
        stats.neighbours = self.neighbours.len() as u64;
    }
}

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
            tcp: tcp_info(self),
        }
    }
}

impl Rdma {
    pub(crate) fn describe<B: Buffer>(&self, connections: &Connections<B>, stats: &mut EngineStats) {
        stats.commit_octets = self.commits.octets_written();
        stats.internal_faults += self.commits.faults();
        let all = self.queue_pairs.iter().flatten();
        let connection = |queue_pair: &QueuePair| connections.table.get(queue_pair.connection?);
        stats.queue_pairs = all.map(|queue_pair| queue_pair.stats(connection(queue_pair))).collect();
    }
}

impl QueuePair {
    fn stats(&self, connection: Option<&Connection>) -> QueuePairStats {
        let stream = match connection.map(|connection| &connection.phase) {
            Some(Phase::Running(running)) => Some(&running.stream),
            _ => None,
        };
        let state = match (stream, self.stage) {
            (_, Stage::Error) => "error",
            (Some(_), _) => "rts",
            (None, Stage::Connected) => "connecting",
            (None, Stage::Idle) => "idle",
        };
        QueuePairStats {
            number: self.number,
            state: state.to_owned(),
            sends_completed: self.send.completed,
            receives_completed: self.receive.completed,
            reads_outstanding: stream.map_or(0, |stream| stream.reads_outstanding() as u32),
            reads_inbound: stream.map_or(0, |stream| stream.inbound_reads() as u32),
        }
    }
}
