//! What all rooms need.

use uwarp_tcp::Instant;

use crate::api::config::EngineConfig;
use crate::api::counters::Counters;

/// What all rooms need, and no room has for itself: settings, the time, and the counters.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) config: EngineConfig,
    /// Time of the current turn.
    pub(crate) now: Instant,
    pub(crate) counters: Counters,
}
