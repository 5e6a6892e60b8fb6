//! What the switch knows and decides, without any I/O: who owns which TCP port, and what becomes of a frame.

mod counters;
mod flows;
mod frame;
mod networks;
mod outside;
mod places;
mod ports;
mod replies;
mod switch;
#[cfg(test)]
mod tests;

pub use counters::{Counters, DropReason};
pub(crate) use frame::complete_checksum;
pub use networks::{ForeignAddress, MAX_ADDRESSES, MAX_NETWORKS, NetworkId, Networks};
pub use outside::Probe;
pub use places::{ClientId, MAX_CLIENTS, PLACES, Places};
pub use ports::{EPHEMERAL, LEAST_BLOCK, MAX_RESERVED, MOST_BLOCK, ReserveError};
pub use switch::{Switch, Verdict};
