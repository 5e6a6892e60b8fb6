//! The host's addresses.

use std::net::IpAddr;

use anyhow::Context as _;
use uwarp::config::InterfaceAddress;

/// The most addresses that are taken from the host.
const MOST: usize = 16;
/// What programs get on a host without any address: they reach each other by it, and by 127.0.0.1 and ::1.
const ALONE: [&str; 2] = ["10.77.0.1/24", "fd77::1/64"];

fn is_of_use(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(_) => false,
        // One on each interface, and nobody says on which.
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !is_link_local
}

/// The addresses of the host's interfaces that are up, without loopback and link-local ones.
pub(super) fn of_host() -> anyhow::Result<Vec<InterfaceAddress>> {
    let interfaces = if_addrs::get_if_addrs().context("the host's addresses cannot be read")?;
    let mut addresses = Vec::new();
    for interface in interfaces {
        let (address, prefix) = match &interface.addr {
            if_addrs::IfAddr::V4(found) => (IpAddr::V4(found.ip), found.prefixlen),
            if_addrs::IfAddr::V6(found) => (IpAddr::V6(found.ip), found.prefixlen),
        };
        let own = InterfaceAddress { address, prefix: prefix.max(1) };
        if is_of_use(address) && !addresses.contains(&own) && addresses.len() < MOST {
            addresses.push(own);
        }
    }
    if addresses.is_empty() {
        addresses = ALONE.iter().filter_map(|text| text.parse().ok()).collect();
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_an_address_that_clients_can_have() {
        let addresses = of_host().unwrap();
        assert!(!addresses.is_empty());
        // As a configuration would accept it.
        assert!(addresses.iter().all(|own| own.to_string().parse::<InterfaceAddress>().is_ok()), "{addresses:?}");
    }

    #[test]
    fn addresses_of_one_interface_only_are_left_out() {
        for (address, of_use) in
            [("127.0.0.1", false), ("::1", false), ("fe80::1", false), ("192.0.2.1", true), ("2001:db8::1", true)]
        {
            assert_eq!(is_of_use(address.parse().unwrap()), of_use, "{address}");
        }
    }
}
