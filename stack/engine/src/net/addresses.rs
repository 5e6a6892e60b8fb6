//! Our own addresses: which we have, whether they may be used yet, their source address selection and next hops.
//!
//! IPv6 addresses are checked for duplicates before use (RFC 4862 §5.4). The check begins at once, without the random
//! delay of §5.4.2, which is for many hosts that start together on one link. Solicitations carry a nonce, so one that
//! the link reflects is not mistaken for another host's (RFC 7527).

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;
use uwarp_wire::ipv6;

use crate::api::config::{EngineConfig, InterfaceAddress};

/// RETRANS_TIMER of RFC 4861 §10: the wait between solicitations of RFC 4862 §5.4.
const RETRANSMIT: Duration = Duration::from_secs(1);

/// What may be done with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Any use.
    Assigned,
    /// No use yet: `left` solicitations are still to be sent; the next one, or the verdict, is due at `next`.
    Tentative { left: u8, next: Instant, nonce: [u8; 6] },
    /// No use: another host has it.
    Duplicate,
}

#[derive(Debug)]
struct Own {
    address: IpAddress,
    prefix: u8,
    standing: Standing,
}

/// All own addresses.
#[derive(Debug)]
pub(crate) struct Addresses {
    all: Vec<Own>,
    mac: [u8; 6],
    loop_back: bool,
    /// What others have behind our switch.
    others: Vec<IpAddress>,
    gateway: Option<IpAddress>,
    gateway6: Option<IpAddress>,
}

/// The next action of duplicate address detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Ask whether anybody has the address.
    Solicit(Ipv6Addr, [u8; 6]),
    /// Nobody answered: it is ours.
    Assigned(Ipv6Addr),
}

/// Addresses that this station can have, with their prefixes, and a link-local one if there are IPv6 addresses but none
/// of that kind (RFC 4291 §2.8).
fn checked(mut given: Vec<InterfaceAddress>, mac: [u8; 6]) -> Result<Vec<(IpAddress, u8)>, &'static str> {
    let is_link_local = |given: &InterfaceAddress| IpAddress::from(given.address).is_link_local();
    if given.iter().any(|given| given.address.is_ipv6()) && !given.iter().any(is_link_local) {
        given.push(InterfaceAddress { address: ipv6::link_local(mac).into(), prefix_length: 64 });
    }
    if given.is_empty() {
        return Err("there is no own address");
    }
    let mut all = Vec::with_capacity(given.len());
    for InterfaceAddress { address, prefix_length } in given {
        let own = IpAddress::from(address);
        if own.is_unspecified() || own.is_multicast() || address.is_loopback() {
            return Err("an own address must be a unicast address of the link");
        }
        if prefix_length > if own.is_ipv4() { 32 } else { 128 } {
            return Err("a prefix length must be 0 to 32 for IPv4 and 0 to 128 for IPv6");
        }
        all.push((own, prefix_length));
    }
    Ok(all)
}

fn plain(addresses: &[IpAddr]) -> Vec<IpAddress> {
    addresses.iter().map(|address| IpAddress::from(*address)).collect()
}

impl Addresses {
    /// The configured addresses.
    pub(crate) fn new(config: &EngineConfig, mac: [u8; 6], random: &mut fastrand::Rng) -> Result<Self, &'static str> {
        let mut all = Vec::new();
        for (address, prefix) in checked(config.addresses.clone(), mac)? {
            let left = config.duplicate_address_detection;
            let standing = if address.is_ipv4() || left == 0 {
                Standing::Assigned
            } else {
                let nonce = std::array::from_fn(|_| random.u8(..));
                Standing::Tentative { left, next: Instant::ZERO, nonce }
            };
            all.push(Own { address, prefix, standing });
        }
        let (gateway, gateway6) = (config.gateway.map(Into::into), config.gateway6.map(Into::into));
        let others = plain(&config.switch_addresses);
        Ok(Addresses { all, mac, loop_back: config.loop_back, others, gateway, gateway6 })
    }

    /// Replaces the addresses, and those of others behind our switch. New ones are used without a check for duplicates,
    /// since the switch gives them.
    pub(crate) fn replace(&mut self, given: Vec<InterfaceAddress>, others: &[IpAddr]) -> Result<(), &'static str> {
        self.others = plain(others);
        let old = std::mem::take(&mut self.all);
        let standing = |address| {
            let known = old.iter().find(|own| own.address == address);
            known.map_or(Standing::Assigned, |own| own.standing)
        };
        match checked(given, self.mac) {
            Ok(given) => {
                let own = |(address, prefix)| Own { address, prefix, standing: standing(address) };
                self.all = given.into_iter().map(own).collect();
                Ok(())
            }
            Err(error) => {
                self.all = old;
                Err(error)
            }
        }
    }

    /// Whether an address is ours to use.
    #[inline]
    pub(crate) fn is_own(&self, address: IpAddress) -> bool {
        self.all.iter().any(|own| own.address == address && own.standing == Standing::Assigned)
    }

    /// Whether programs behind our switch have an address.
    pub(crate) fn is_on_switch(&self, address: IpAddress) -> bool {
        !self.loop_back && (self.is_own(address) || self.others.contains(&address))
    }

    /// Whether frames to an address stay here.
    #[inline]
    pub(crate) fn loops_back(&self, address: IpAddress) -> bool {
        self.loop_back && self.is_own(address)
    }

    /// Whether an address will be ours if nobody objects.
    pub(crate) fn is_tentative(&self, address: IpAddress) -> bool {
        self.all.iter().any(|own| own.address == address && matches!(own.standing, Standing::Tentative { .. }))
    }

    /// Whether an address is ours, or will be if nobody objects.
    pub(crate) fn may_be_own(&self, address: IpAddress) -> bool {
        self.is_own(address) || self.is_tentative(address)
    }

    /// Whether an address is all hosts of an IPv4 subnet that we are in (RFC 1122 §3.2.1.3): nobody's own.
    pub(crate) fn is_subnet_broadcast(&self, address: IpAddress) -> bool {
        let Some(bits) = address.to_ipv4().map(std::net::Ipv4Addr::to_bits) else { return false };
        self.all.iter().any(|own| {
            let host = u32::MAX.checked_shr(own.prefix.into()).unwrap_or(0);
            // RFC 3021 §2.2: a prefix of 31 bits has two hosts and no broadcast address.
            own.prefix < 31 && own.address.shares_prefix(address, own.prefix) && bits & host == host
        })
    }

    /// Whether a multicast address is one that we listen to: all nodes, and the solicited nodes of our addresses.
    pub(crate) fn listens_to(&self, group: IpAddress) -> bool {
        let Some(group) = group.to_ipv6() else { return false };
        group == ipv6::ALL_NODES
            || self.all.iter().any(|own| own.address.to_ipv6().is_some_and(|own| ipv6::solicited_node(own) == group))
    }

    /// Whether a hardware address is that of a group that we listen to.
    pub(crate) fn listens_to_mac(&self, mac: [u8; 6]) -> bool {
        mac == ipv6::multicast_mac(ipv6::ALL_NODES).0
            || self.all.iter().any(|own| {
                own.address.to_ipv6().is_some_and(|own| ipv6::multicast_mac(ipv6::solicited_node(own)).0 == mac)
            })
    }

    /// Every address that may be used.
    pub(crate) fn assigned(&self) -> impl Iterator<Item = IpAddress> {
        self.all.iter().filter(|own| own.standing == Standing::Assigned).map(|own| own.address)
    }

    /// The next hop towards an address.
    pub(crate) fn next_hop(&self, destination: IpAddress) -> IpAddress {
        if self.is_on_link(destination) {
            return destination;
        }
        let gateway = if destination.is_ipv4() { self.gateway } else { self.gateway6 };
        // Without a gateway, every address counts as on-link.
        gateway.unwrap_or(destination)
    }

    fn is_on_link(&self, destination: IpAddress) -> bool {
        destination.is_link_local() || self.all.iter().any(|own| own.address.shares_prefix(destination, own.prefix))
    }

    /// The source address for a destination (RFC 6724 §5, as far as there is a choice): one with the destination's
    /// prefix, else one of the same scope; never one that another host has.
    pub(crate) fn source_for(&self, destination: IpAddress) -> Option<IpAddress> {
        let usable = |own: &&Own| own.address.is_ipv4() == destination.is_ipv4() && own.standing != Standing::Duplicate;
        self.all
            .iter()
            .filter(usable)
            .min_by_key(|own| {
                let other_scope = own.address.is_link_local() != destination.is_link_local();
                (own.address != destination, other_scope, !own.address.shares_prefix(destination, own.prefix))
            })
            .map(|own| own.address)
    }

    /// Whether there is an IPv6 address.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.all.iter().any(|own| !own.address.is_ipv4())
    }

    /// The next action of duplicate address detection that is due.
    pub(crate) fn poll_check(&mut self, now: Instant) -> Option<Check> {
        for own in &mut self.all {
            // IPv4 addresses are not checked.
            let (Standing::Tentative { left, next, nonce }, Some(address)) = (&mut own.standing, own.address.to_ipv6())
            else {
                continue;
            };
            if *next > now {
                continue;
            }
            if *left > 0 {
                *left -= 1;
                *next = now + RETRANSMIT;
                return Some(Check::Solicit(address, *nonce));
            }
            own.standing = Standing::Assigned;
            return Some(Check::Assigned(address));
        }
        None
    }

    /// When [`Addresses::poll_check`] next has an action.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = |own: &Own| match own.standing {
            Standing::Tentative { next, .. } => Some(next),
            _ => None,
        };
        self.all.iter().filter_map(next).min()
    }

    /// Another host uses or checks an address that we are still checking. Returns the address if we lose it; a nonce of
    /// ours means that the message is our own.
    pub(crate) fn conflict(&mut self, address: IpAddress, said: Option<[u8; 6]>) -> Option<IpAddr> {
        let own = self.all.iter_mut().find(|own| own.address == address)?;
        let Standing::Tentative { nonce, .. } = own.standing else { return None };
        if said == Some(nonce) {
            return None;
        }
        own.standing = Standing::Duplicate;
        Some(address.to_ip_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddress {
        text.parse::<IpAddr>().expect("an address").into()
    }

    fn addresses(list: &[&str]) -> Addresses {
        let mut config = EngineConfig::new(0, std::net::Ipv4Addr::new(10, 0, 0, 1), 24);
        config.addresses.extend(list.iter().map(|text| {
            let (address, length) = text.split_once('/').expect("with a prefix");
            InterfaceAddress {
                address: address.parse().expect("an address"),
                prefix_length: length.parse().expect("a number"),
            }
        }));
        config.gateway = Some(std::net::Ipv4Addr::new(10, 0, 0, 254));
        config.gateway6 = Some("fe80::fe".parse().expect("an address"));
        Addresses::new(&config, [2, 0, 0, 0, 0, 1], &mut fastrand::Rng::with_seed(1)).expect("good")
    }

    #[test]
    fn packets_leave_from_an_address_of_the_destinations_prefix() {
        let own = addresses(&["10.1.0.1/16", "fd00:1::1/64", "fd00:2::1/64"]);
        for (destination, source, hop) in [
            ("10.0.0.7", "10.0.0.1", "10.0.0.7"),
            ("10.1.2.3", "10.1.0.1", "10.1.2.3"),
            ("192.0.2.1", "10.0.0.1", "10.0.0.254"),
            ("fd00:2::7", "fd00:2::1", "fd00:2::7"),
            ("2001:db8::1", "fd00:1::1", "fe80::fe"),
            ("fe80::7", "fe80::ff:fe00:1", "fe80::7"),
            ("fd00:1::1", "fd00:1::1", "fd00:1::1"),
        ] {
            assert_eq!(own.source_for(ip(destination)), Some(ip(source)), "{destination}");
            assert_eq!(own.next_hop(ip(destination)), ip(hop), "{destination}");
        }
    }

    #[test]
    fn other_addresses_take_the_place_of_the_former() {
        let mut own = addresses(&["fd00:1::1/64"]);
        let given = |text: &str, prefix_length| InterfaceAddress { address: text.parse().unwrap(), prefix_length };
        let others = ["10.8.0.1".parse().unwrap()];
        own.replace(vec![given("10.9.0.2", 24), given("fd00:1::1", 64), given("fd00:1::2", 64)], &others).unwrap();
        assert!(own.is_own(ip("10.9.0.2")) && !own.may_be_own(ip("10.0.0.1")));
        // Not checked for duplicates, beside one that still is.
        assert!(own.is_own(ip("fd00:1::2")));
        assert!(own.is_tentative(ip("fd00:1::1")) && own.is_tentative(ip("fe80::ff:fe00:1")));
        assert!(own.replace(Vec::new(), &others).is_err() && own.is_own(ip("10.9.0.2")));
        // Without a switch, there is nobody else behind it.
        assert!(!own.is_on_switch(ip("10.8.0.1")) && !own.is_on_switch(ip("10.9.0.2")));
        own.loop_back = false;
        assert!(own.is_on_switch(ip("10.8.0.1")) && own.is_on_switch(ip("10.9.0.2")) && !own.is_own(ip("10.8.0.1")));
        own.replace(vec![given("10.9.0.2", 24)], &[]).unwrap();
        assert!(!own.is_on_switch(ip("10.8.0.1")) && own.is_on_switch(ip("10.9.0.2")));
    }

    #[test]
    fn the_last_address_of_a_subnet_is_all_of_it() {
        let own = addresses(&["10.1.0.1/16", "10.2.0.0/31", "10.3.0.7/32", "fd00::1/64"]);
        for (address, broadcast) in [
            ("10.0.0.255", true),
            ("10.1.255.255", true),
            ("10.1.0.255", false),
            ("10.0.0.254", false),
            ("10.0.0.0", false),
            ("10.2.0.1", false),
            ("10.3.0.7", false),
            ("10.4.0.255", false),
            ("fd00::ffff:ffff:ffff:ffff", false),
        ] {
            assert_eq!(own.is_subnet_broadcast(ip(address)), broadcast, "{address}");
        }
    }

    #[test]
    fn frames_to_a_shared_address_do_not_stay_here() {
        let mut own = addresses(&[]);
        assert!(own.loops_back(ip("10.0.0.1")) && !own.loops_back(ip("10.0.0.2")));
        own.loop_back = false;
        assert!(own.is_own(ip("10.0.0.1")) && !own.loops_back(ip("10.0.0.1")));
    }

    #[test]
    fn only_checked_addresses_are_own() {
        let mut own = addresses(&["fd00::1/64"]);
        assert!(own.is_own(ip("10.0.0.1")) && !own.is_own(ip("fd00::1")) && own.is_tentative(ip("fd00::1")));
        let Some(Check::Solicit(_, nonce)) = own.poll_check(Instant::ZERO) else { panic!("asked for") };
        assert_eq!(own.conflict(ip("fd00::1"), Some(nonce)), None, "our own solicitation came back");
        let second = Instant::ZERO + RETRANSMIT;
        let Some(Check::Solicit(..)) = own.poll_check(Instant::ZERO) else { panic!("the link-local one") };
        assert_eq!(own.poll_check(Instant::ZERO), None);
        assert_eq!(own.conflict(ip("fd00::1"), None), Some("fd00::1".parse().expect("an address")));
        let Some(Check::Assigned(address)) = own.poll_check(second) else { panic!("nobody objected") };
        assert!(own.is_own(address.into()) && !own.is_own(ip("fd00::1")));
        assert_eq!(own.source_for(ip("fd00::9")), Some(address.into()), "a lost address is not used");
        assert_eq!((own.poll_check(second), own.deadline()), (None, None));
        assert_eq!(own.conflict(ip("10.0.0.1"), None), None);
    }
}
