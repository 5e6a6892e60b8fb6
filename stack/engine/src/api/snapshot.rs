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
        EngineStats { counters: Counters { drops: Default::default(), ..*self }, drops, ..EngineStats::default() }
    }
}
