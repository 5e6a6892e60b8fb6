//! A snapshot of a connection for people and tests, similar to Linux's TCP_INFO.

use serde::{Deserialize, Serialize};

use crate::State;

/// Counters that every segment updates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Traffic {
    /// Payload octets sent, retransmissions included.
    pub octets_sent: u64,
    /// Segments sent, including those without payload.
    pub segments_sent: u64,
    /// Segments received.
    pub segments_received: u64,
}

/// Counters of rare events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Counters {
    /// Payload octets retransmitted.
    pub octets_retransmitted: u64,
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Sent segments examined to process SACK blocks and to find losses: the work that a peer's reports cause.
    pub sack_segments_walked: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u32,
    /// Tail loss probes sent (RFC 8985 §7).
    pub tail_loss_probes: u32,
    /// Times that loss recovery was entered without a time-out.
    pub fast_recoveries: u32,
    /// Congestion responses that were undone because nothing had been lost.
    pub undone: u32,
    /// Duplicate segments that the peer reported (RFC 2883).
    pub duplicates_reported: u32,
    /// Responses to marks of the network (RFC 3168 §6.1.2).
    pub ecn_reactions: u32,
    /// Segments with data that arrived with a mark.
    pub ecn_marks: u32,
}

/// The state of a connection. Lengths are in octets unless noted.
///
/// It is also what programs and tools see, so serde gives it the names in JSON. Counters are lines of [`Traffic`] and
/// [`Counters`], which the connection itself counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Info {
    /// The state.
    pub state: State,
    /// Smoothed round-trip time (RFC 6298) in nanoseconds; zero before the first sample.
    pub smoothed_rtt_ns: u64,
    /// Variation of the round-trip time, in nanoseconds.
    pub rtt_variation_ns: u64,
    /// Smallest round-trip time seen lately, in nanoseconds.
    pub minimum_rtt_ns: u64,
    /// Retransmission time-out in nanoseconds, back-off included.
    pub retransmission_timeout_ns: u64,
    /// Consecutive expiries of the retransmission timer.
    pub backoff: u32,
    /// Congestion window.
    pub congestion_window: u32,
    /// Slow-start threshold; `u32::MAX` before the first loss.
    pub slow_start_threshold: u32,
    /// The peer's window, scaled.
    pub send_window: u32,
    /// The window that we offer, scaled.
    pub receive_window: u32,
    /// Payload octets that a data segment carries now.
    pub effective_mss: u32,
    /// In flight: sent, and neither acknowledged, selectively acknowledged nor considered lost.
    pub in_flight: u32,
    /// Selectively acknowledged.
    pub selectively_acknowledged: u32,
    /// Considered lost and not retransmitted yet.
    pub lost: u32,
    /// Pushed and not sent yet.
    pub unsent: u64,
    /// Buffers held out of order.
    pub out_of_order_buffers: u64,
    /// Reordering window of RACK (RFC 8985 §6.2), in nanoseconds.
    pub reordering_window_ns: u64,
    /// Whether the network has reordered segments.
    pub reordering_seen: bool,
    /// Stream octets acknowledged by the peer.
    pub octets_acknowledged: u64,
    /// Stream octets received in order.
    pub octets_received: u64,
    /// Counters that every segment updates.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Counters of rare events.
    #[serde(flatten)]
    pub counters: Counters,
    /// Window scaling is in use.
    pub window_scale: bool,
    /// ECN is in use.
    pub ecn: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// Selective acknowledgments are in use.
    pub sack: bool,
}
