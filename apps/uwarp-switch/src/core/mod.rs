//! What the switch knows and decides, without any I/O: who owns which TCP port, and what becomes of a frame.

mod flows;
mod frame;
mod ports;
mod replies;
mod switch;
#[cfg(test)]
mod tests;

pub use ports::{BLOCK, EPHEMERAL, MAX_CLIENTS, MAX_LISTENING, PortTable, ReserveError};
pub use switch::{Counters, DropReason, ForeignAddress, Probe, Switch, Verdict};

/// A client's place in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(crate) u8);

impl ClientId {
    /// The client at this place, 0 to [`MAX_CLIENTS`] − 1.
    pub fn new(place: usize) -> Option<ClientId> {
        (place < MAX_CLIENTS).then_some(ClientId(place as u8))
    }

    /// Its place.
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }

    /// Every place.
    pub fn all() -> impl Iterator<Item = ClientId> {
        (0..MAX_CLIENTS).filter_map(ClientId::new)
    }
}
