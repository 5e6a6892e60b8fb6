//! The counters of an engine.

use crate::api::stats::{DROP_REASONS, DropReason, Wakeups};

/// Counters since the engine was created.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) wakeups: Wakeups,
    pub(crate) frames_received: u64,
    pub(crate) octets_received: u64,
    pub(crate) hot_received: u64,
    pub(crate) frames_sent: u64,
    pub(crate) octets_sent: u64,
    pub(crate) hot_sent: u64,
    pub(crate) fpdus_received: u64,
    pub(crate) fpdus_gathered: u64,
    pub(crate) fpdus_sent: u64,
    pub(crate) receive_waits: u64,
    pub(crate) receive_waits_expired: u64,
    pub(crate) crc_errors: u64,
    pub(crate) retransmissions: u64,
    pub(crate) retransmission_copies: u64,
    /// For connections that are gone; live ones count for themselves.
    pub(crate) sack_segments_walked: u64,
    pub(crate) connections_timed_out: u64,
    pub(crate) pure_acknowledgments: u64,
    pub(crate) frames_to_be_cut: u64,
    pub(crate) resets_sent: u64,
    pub(crate) icmp_errors_sent: u64,
    pub(crate) icmp_errors_suppressed: u64,
    pub(crate) handed_off: u64,
    pub(crate) taken_over: u64,
    pub(crate) path_mtu_changes: u64,
    pub(crate) path_mtu_doubts: u64,
    pub(crate) reassembled: u64,
    pub(crate) echoes: u64,
    pub(crate) address_conflicts: u64,
    pub(crate) cookies_sent: u64,
    pub(crate) cookies_accepted: u64,
    pub(crate) cookies_wrong: u64,
    pub(crate) cookies_not_compared: u64,
    pub(crate) nudges_sent: u64,
    pub(crate) terminates_sent: u64,
    pub(crate) terminates_received: u64,
    pub(crate) connections_opened: u64,
    pub(crate) connections_closed: u64,
    pub(crate) evicted: u64,
    pub(crate) completion_overflows: u64,
    pub(crate) internal_faults: Faults,
    pub(crate) connections_scanned: u64,
    pub(crate) visits_without_room: u64,
    pub(crate) neighbour_lookups: u64,
    pub(crate) octets_gathered: u64,
    pub(crate) drops: [u64; DROP_REASONS],
}

impl Counters {
    /// Counts what goes no further.
    #[inline]
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Counts what cannot happen, and leaves undone what it prevents. Tests notice it at once.
    #[cold]
    pub(crate) fn cannot_be(&mut self, what: &str) {
        self.internal_faults.note(what);
    }
}

/// What cannot happen, and did. A table has a count of its own, since its functions are called where the counters are
/// not at hand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults(u64);

impl Faults {
    /// Counts one. Tests notice it at once.
    #[cold]
    pub(crate) fn note(&mut self, what: &str) {
        debug_assert!(false, "{what}");
        self.0 += 1;
    }

    pub(crate) fn count(self) -> u64 {
        self.0
    }
}
