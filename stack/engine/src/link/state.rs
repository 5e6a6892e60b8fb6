//! The state of the device's link.

use uwarp_tcp::Instant;

use super::{LINK_DELAY, LINK_INTERVAL};
use crate::api::stats::EngineStats;
use crate::link::Link;
use crate::link::port::{LinkState, Port};

impl<P: Port> Link<P> {
    /// Puts off a check that is due, once, since there is work: after a long sleep, the check would delay the first
    /// answer by microseconds. False if it was put off already, the link was down, or the device has announced a
    /// change.
    pub(crate) fn put_check_off(&mut self, now: Instant) -> bool {
        if self.check_is_late || !self.is_up || self.check_at == Instant::ZERO {
            return false;
        }
        self.check_is_late = true;
        self.check_at = now + LINK_DELAY;
        true
    }

    /// Reads the link's state. Returns whether it is up, if that has changed.
    pub(crate) fn check(&mut self, now: Instant) -> Option<bool> {
        self.check_at = now + LINK_INTERVAL;
        self.check_is_late = false;
        let up = self.port.link() == LinkState::Up;
        (std::mem::replace(&mut self.is_up, up) != up).then_some(up)
    }

    /// What the room has to say of itself.
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        stats.link_up = self.is_up;
        stats.faults = self.port.fault_counts();
        stats.pools = self.port.pool_levels();
    }
}
