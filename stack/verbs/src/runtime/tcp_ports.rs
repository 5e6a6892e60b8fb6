//! The TCP ports that a context's listeners and reservations hold, and those to choose from.

use crate::error::Error;
use crate::runtime::lock::lock;
use crate::runtime::switch::{Link, ReservedPort};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, Weak};
use uwarp_engine::ReservedPorts;

/// Ports that are chosen from when nobody asks for one: the dynamic ports of RFC 6335 §6.
const CHOSEN: RangeInclusive<u16> = 49_152..=u16::MAX;

/// The ports of a context.
#[derive(Debug, Default)]
pub(crate) struct TcpPorts {
    /// What the engines know of them.
    pub(crate) reserved: Arc<ReservedPorts>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    holders: BTreeMap<u16, Vec<Holder>>,
    /// The ports to choose from, in the order in which they come: at random at first, and then the one that was given
    /// back last comes last, since its connections may be in TIME-WAIT.
    free: VecDeque<u16>,
    /// How many ports there are to choose from.
    choice: usize,
}

#[derive(Debug)]
struct Holder {
    address: Option<IpAddr>,
    /// The switch's word for it.
    in_switch: Weak<ReservedPort>,
}

/// A port that is held; it is given back by [`TcpPorts::release`].
#[derive(Debug)]
pub(crate) struct HeldPort {
    pub(crate) port: u16,
    pub(crate) address: Option<IpAddr>,
    was_chosen: bool,
    /// The switch's word for it, where one shares the ports out and this one is not in the context's block.
    in_switch: Option<Arc<ReservedPort>>,
}

/// Whether two holders of a port would get the same connections. `None` is every address, and an unspecified one all of
/// its version of IP.
fn overlap(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    let is_any = one.is_unspecified() || other.is_unspecified();
    one == other || (is_any && one.is_ipv4() == other.is_ipv4())
}

impl TcpPorts {
    /// Takes a port, or chooses a free one, at one address or at all.
    pub(crate) fn hold(
        &self,
        link: Option<&Arc<Link>>,
        address: Option<IpAddr>,
        wanted: Option<u16>,
    ) -> Result<HeldPort, Error> {
        let mut table = lock(&self.table);
        let port = match wanted {
            Some(port) if table.is_taken(port, address) => return Err(Error::PortTaken(port)),
            Some(port) => port,
            None => table.choose(&self.reserved, link.map_or(CHOSEN, |link| link.block()))?,
        };
        let in_switch = match link.filter(|link| !link.block().contains(&port)) {
            Some(link) => Some(table.reserve(link, port, address)?),
            None => None,
        };
        let holder = Holder { address, in_switch: in_switch.as_ref().map(Arc::downgrade).unwrap_or_default() };
        table.holders.entry(port).or_default().push(holder);
        self.reserved.reserve(port);
        Ok(HeldPort { port, address, was_chosen: wanted.is_none(), in_switch })
    }

    /// Gives a port back.
    pub(crate) fn release(&self, held: &mut HeldPort) {
        let mut table = lock(&self.table);
        // The switch first, while nobody else can ask it for the port.
        held.in_switch.take();
        let Some(holders) = table.holders.get_mut(&held.port) else { return };
        holders.retain(|holder| holder.address != held.address);
        if holders.is_empty() {
            table.holders.remove(&held.port);
            self.reserved.release(held.port);
        }
        if held.was_chosen {
            table.free.push_back(held.port);
        }
    }
}

impl Table {
    fn is_taken(&self, port: u16, address: Option<IpAddr>) -> bool {
        let mut holders = self.holders.get(&port).into_iter().flatten();
        holders.any(|holder| overlap(holder.address, address))
    }

    /// Takes a port out of those that nobody holds; one that connections have only if there is no other.
    fn choose(&mut self, reserved: &ReservedPorts, range: RangeInclusive<u16>) -> Result<u16, Error> {
        if self.choice == 0 {
            let mut ports: Vec<u16> = range.collect();
            fastrand::shuffle(&mut ports);
            self.choice = ports.len();
            self.free = ports.into();
        }
        let is_free = |port: &u16| !self.holders.contains_key(port);
        let unused = self.free.iter().position(|port| is_free(port) && !reserved.has_connections(*port));
        let place = unused.or_else(|| self.free.iter().position(is_free));
        place.and_then(|place| self.free.remove(place)).ok_or(Error::NoPort { limit: self.choice })
    }

    /// The switch's word for a port, which may be there for another holder.
    fn reserve(&self, link: &Arc<Link>, port: u16, address: Option<IpAddr>) -> Result<Arc<ReservedPort>, Error> {
        let address = address.filter(|address| !address.is_unspecified());
        let holders = self.holders.get(&port).into_iter().flatten();
        let mut known = holders.filter_map(|holder| holder.in_switch.upgrade());
        match known.find(|known| known.address() == address) {
            Some(known) => Ok(known),
            None => link.reserve(port, address).map(Arc::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_port_is_held_at_each_address_once_and_at_all_of_a_version_alone() {
        let ports = TcpPorts::default();
        let hold = |address| ports.hold(None, address, Some(4420));
        let mut held = vec![hold(at("10.0.0.1")).unwrap(), hold(at("10.0.0.2")).unwrap(), hold(at("::")).unwrap()];
        for address in [at("10.0.0.1"), at("0.0.0.0"), at("fd00::1"), at("::"), None] {
            assert!(matches!(hold(address), Err(Error::PortTaken(4420))), "{address:?}");
        }
        ports.release(&mut held.remove(0));
        assert!(ports.reserved.contains(4420) && hold(at("0.0.0.0")).is_err());
        held.push(hold(at("10.0.0.1")).unwrap());
        held.iter_mut().for_each(|held| ports.release(held));
        assert!(!ports.reserved.contains(4420));
        let mut any = hold(at("0.0.0.0")).unwrap();
        assert!(hold(at("10.0.0.1")).is_err() && hold(None).is_err());
        ports.release(&mut any);
        let _all = hold(None).unwrap();
        assert!(hold(at("10.0.0.1")).is_err() && hold(at("::")).is_err());
    }

    #[test]
    fn a_chosen_port_comes_again_when_all_others_had_their_turn() {
        let ports = TcpPorts::default();
        let choose = || ports.hold(None, None, None).unwrap();
        let mut first = choose();
        let _taken = ports.hold(None, None, Some(50_000)).unwrap();
        let given: Vec<u16> = (0..CHOSEN.len() - 2)
            .map(|_| {
                let mut held = choose();
                ports.release(&mut held);
                held.port
            })
            .collect();
        let mut sorted = given.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "none came twice");
        assert!(!sorted.contains(&first.port) && !sorted.contains(&50_000) && given != sorted, "at random");
        ports.release(&mut first);
        assert_eq!((choose().port, choose().port), (given[0], given[1]));
    }
}
