//! What the switch knows and decides, without any I/O: who owns which TCP port, and what becomes of a frame.

mod counters;
mod flows;
mod frame;
mod networks;
mod outside;
mod ports;
mod replies;
mod switch;
#[cfg(test)]
mod tests;

pub use counters::{Counters, DropReason};
pub(crate) use frame::complete_checksum;
pub use networks::{ForeignAddress, MAX_ADDRESSES, NetworkId, Networks};
pub use outside::Probe;
pub use ports::{BLOCK, EPHEMERAL, MAX_CLIENTS, MAX_RESERVED, ReserveError};
pub use switch::{Switch, Verdict};

/// The places of all clients, and that of the uplink.
pub const PLACES: usize = MAX_CLIENTS + 1;

/// A client's place in the switch, or the uplink's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(crate) u8);

impl ClientId {
    /// The place of the uplink, which leads to other hosts. It is no client, and owns no port.
    pub const UPLINK: ClientId = ClientId(MAX_CLIENTS as u8);

    /// The client at this place, 0 to [`MAX_CLIENTS`] − 1.
    pub fn new(place: usize) -> Option<ClientId> {
        (place < MAX_CLIENTS).then_some(ClientId(place as u8))
    }

    /// Its place.
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }

    /// Every client's place.
    pub fn all() -> impl Iterator<Item = ClientId> {
        (0..MAX_CLIENTS).filter_map(ClientId::new)
    }

    /// Every place, the uplink's among them.
    pub fn all_and_uplink() -> impl Iterator<Item = ClientId> {
        (0..PLACES as u8).map(ClientId)
    }

    /// This place as a bit of a set.
    #[inline]
    pub fn bit(self) -> u32 {
        1 << self.0
    }
}
