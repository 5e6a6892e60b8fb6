//! The attacks, by kind.

mod handshakes;
mod link;
mod rdma;
mod shares;
mod tcp;

use super::Attack;

/// Makes an attack that has not begun.
pub type Maker = fn() -> Box<dyn Attack>;

/// Every attack by name.
pub fn all() -> Vec<(&'static str, Maker)> {
    [tcp::ATTACKS, rdma::ATTACKS, handshakes::ATTACKS, link::ATTACKS, shares::ATTACKS].concat()
}

/// The attack of this name.
///
/// # Panics
/// There is none.
pub fn by_name(name: &str) -> Box<dyn Attack> {
    all().iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no attack '{name}'")).1()
}
