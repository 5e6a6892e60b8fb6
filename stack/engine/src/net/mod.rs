//! The engine as a host of its network: own addresses, neighbours, ICMP, path MTUs, fragments.

use std::time::Duration;

use uwarp_tcp::Instant;

use crate::api::command::{AsyncEvent, EventSink};
use crate::net::addresses::Addresses;
use crate::net::error_limit::ErrorLimit;
use crate::net::neighbours::Neighbours;
use crate::net::path::Paths;
use crate::net::reassembly::Reassembly;

pub(crate) mod addresses;
pub(crate) mod discovery;
pub(crate) mod error_limit;
pub(crate) mod fragments;
pub(crate) mod icmp;
pub(crate) mod neighbours;
pub(crate) mod path;
pub(crate) mod reassembly;
mod resolution;

/// Time between two announcements (ANNOUNCE_INTERVAL of RFC 5227 §1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) addresses: Addresses,
    /// Where conflicts about our addresses are reported.
    pub(crate) events: EventSink<AsyncEvent>,
    pub(crate) random: fastrand::Rng,
    pub(crate) neighbours: Neighbours,
    /// Connections that wait for a hardware address.
    pub(crate) unresolved: Vec<u32>,
    /// Epoch of the neighbour table when `unresolved` was last processed.
    pub(crate) known_epoch: u32,
    pub(crate) paths: Paths,
    pub(crate) reassembly: Reassembly,
    /// Limits the ICMP errors sent.
    pub(crate) icmp_errors: ErrorLimit,
    /// Whether our addresses have been announced.
    pub(crate) announced: bool,
    /// When our addresses are announced again.
    pub(crate) announce_at: Option<Instant>,
    /// When an address of ours was last defended, or never.
    pub(crate) defended_at: Option<Instant>,
    /// When rare work is due: addresses, announcements.
    pub(crate) chores_at: Option<Instant>,
}
