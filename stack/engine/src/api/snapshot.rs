//! The counters among the statistics.

use crate::api::counters::Counters;
use crate::api::stats::{DropReason, EngineStats};

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
