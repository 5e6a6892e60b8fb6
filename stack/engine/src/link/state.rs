//! The state of the device's link.

use uwarp_tcp::Instant;

use super::LINK_INTERVAL;
use crate::link::Link;
use crate::link::port::{LinkState, Port};

impl<P: Port> Link<P> {
    /// Reads the link's state. Returns whether it is up, if that has changed.
    pub(crate) fn check(&mut self, now: Instant) -> Option<bool> {
        self.check_at = now + LINK_INTERVAL;
        let up = self.port.link() == LinkState::Up;
        (std::mem::replace(&mut self.is_up, up) != up).then_some(up)
    }
}
