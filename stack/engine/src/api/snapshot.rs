//! Snapshots of an engine's state.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::stats::{ConnectionStats, DropReason, EngineStats, QueuePairStats, TcpInfo, Work};
use crate::connection::phase::Phase;
use crate::connection::startup::endpoints;
use crate::connection::{Connection, Connections};
use crate::core::Core;
use crate::link::port::{Buffer, Port};
use crate::rdma::Rdma;
use crate::rdma::queue_pair::Stage;

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

impl<P: Port> Core<P> {
    /// Collects the counters of work.
    pub(crate) fn work_done(&self) -> Work {
        let counters = &self.counters;
        Work {
            frames_received: counters.frames_received,
            octets_received: counters.octets_received,
            frames_sent: counters.frames_sent,
            octets_sent: counters.octets_sent,
            connections_scanned: counters.connections_scanned,
            visits_without_room: counters.visits_without_room,
            neighbour_lookups: counters.neighbour_lookups,
            octets_gathered: counters.octets_gathered,
            flow_probes: self.connections.flows.probes() + self.connections.time_wait.probes(),
            sack_segments_walked: counters.sack_segments_walked
                + self.connections.table.iter().map(|(_, one)| one.tcp.sack_segments_walked()).sum::<u64>(),
        }
    }

    pub(crate) fn snapshot(&self) -> EngineStats {
        let counters = &self.counters;
        let work = self.work_done();
        let drops: BTreeMap<String, u64> = DropReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), counters.drops[*reason as usize]))
            .filter(|(_, count)| *count > 0)
            .collect();
        let connections = self.connections.table.iter().map(|(_, connection)| {
            let (local, remote) = endpoints(&connection.flow);
            ConnectionStats {
                local,
                remote,
                queue_pair: connection.queue_pair,
                phase: connection.phase.name().to_owned(),
                transmit_buffers: connection.tcp.records() as u64,
                gather_octets: connection.gather.capacity() as u64,
                awaits_receive: connection.awaits_receive(),
                tcp: tcp_info(connection),
            }
        });
        let queue_pairs = self.rdma.queue_pairs.iter().flatten().map(|queue_pair| {
            let connection = queue_pair.connection.and_then(|index| self.connections.table.get(index));
            let stream = match connection.map(|connection| &connection.phase) {
                Some(Phase::Running(running)) => Some(&running.stream),
                _ => None,
            };
            let state = match (stream, queue_pair.stage) {
                (_, Stage::Error) => "error",
                (Some(_), _) => "rts",
                (None, Stage::Connected) => "connecting",
                (None, Stage::Idle) => "idle",
            };
            QueuePairStats {
                number: queue_pair.number,
                state: state.to_owned(),
                sends_completed: queue_pair.send.completed,
                receives_completed: queue_pair.receive.completed,
                reads_outstanding: stream.map_or(0, |stream| stream.reads_outstanding() as u32),
                reads_inbound: stream.map_or(0, |stream| stream.inbound_reads() as u32),
            }
        });
        EngineStats {
            index: self.config.index,
            hot_received: counters.hot_received,
            hot_sent: counters.hot_sent,
            turns: counters.turns,
            busy_turns: counters.busy_turns,
            wakeups: counters.wakeups,
            link_up: self.link.is_up,
            frames_received: counters.frames_received,
            octets_received: counters.octets_received,
            frames_sent: counters.frames_sent,
            octets_sent: counters.octets_sent,
            fpdus_received: counters.fpdus_received,
            fpdus_gathered: counters.fpdus_gathered,
            // Counted anew, independently of the count for the budget.
            gather_octets: self.connections.table.iter().map(|(_, one)| one.gather.capacity() as u64).sum(),
            fpdus_sent: counters.fpdus_sent,
            receive_waits: counters.receive_waits,
            receive_waits_expired: counters.receive_waits_expired,
            crc_errors: counters.crc_errors,
            retransmissions: counters.retransmissions,
            retransmission_copies: counters.retransmission_copies,
            timeouts: counters.timeouts,
            pure_acknowledgments: counters.pure_acknowledgments,
            frames_to_be_cut: counters.frames_to_be_cut,
            cookies_sent: counters.cookies_sent,
            cookies_accepted: counters.cookies_accepted,
            cookies_wrong: counters.cookies_wrong,
            cookies_not_compared: counters.cookies_not_compared,
            time_wait: self.connections.time_wait.len() as u64,
            time_wait_cut_short: self.connections.time_wait.cut_short,
            resets_sent: counters.resets_sent,
            icmp_errors_sent: counters.icmp_errors_sent,
            icmp_errors_suppressed: counters.icmp_errors_suppressed,
            handed_off: counters.handed_off,
            taken_over: counters.taken_over,
            path_mtu_changes: counters.path_mtu_changes,
            path_mtu_doubts: counters.path_mtu_doubts,
            path_mtus: self.net.paths.iter().map(|(address, mtu)| (address.to_string(), mtu)).collect(),
            reassembled: counters.reassembled,
            fragment_octets: self.net.reassembly.used() as u64,
            fragments: self.net.reassembly.pieces() as u64,
            echoes: counters.echoes,
            address_conflicts: counters.address_conflicts,
            commit_octets: self.rdma.commits.octets_written(),
            terminates_sent: counters.terminates_sent,
            terminates_received: counters.terminates_received,
            connections_opened: counters.connections_opened,
            connections_closed: counters.connections_closed,
            evicted: counters.evicted,
            completion_overflows: counters.completion_overflows,
            internal_faults: counters.internal_faults,
            work,
            drops,
            faults: self.link.port.fault_counts(),
            pools: self.link.port.pool_levels(),
            buffers_held: (self.connections.held.len() + self.connections.records.len()) as u64,
            flows: (self.connections.flows.len() + self.connections.time_wait.len()) as u64,
            connection_octets: self.connections.table.iter().map(|(_, one)| one.memory() as u64).sum(),
            neighbours: self.net.neighbours.len() as u64,
            connections: connections.collect(),
            queue_pairs: queue_pairs.collect(),
        }
    }
}
