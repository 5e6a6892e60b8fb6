//! The addresses of the host, or of the container, that a program runs in.

use crate::config::InterfaceAddress;
use std::io;
use std::net::IpAddr;

/// The addresses of this network namespace's interfaces, without loopback and link-local ones.
///
/// # Errors
/// The system does not tell them.
pub fn host_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut found: Vec<InterfaceAddress> = Vec::new();
    for interface in if_addrs::get_if_addrs()? {
        let (address, prefix) = match &interface.addr {
            if_addrs::IfAddr::V4(found) => (IpAddr::V4(found.ip), found.prefixlen),
            if_addrs::IfAddr::V6(found) => (IpAddr::V6(found.ip), found.prefixlen),
        };
        if is_of_use(address) && !found.iter().any(|own| own.address == address) {
            found.push(InterfaceAddress { address, prefix: prefix.max(1) });
        }
    }
    Ok(found)
}

fn is_of_use(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(_) => false,
        // One on each interface, and nobody says on which.
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !is_link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_interface_only_are_left_out() {
        for (address, of_use) in
            [("127.0.0.1", false), ("::1", false), ("fe80::1", false), ("192.0.2.1", true), ("2001:db8::1", true)]
        {
            assert_eq!(is_of_use(address.parse().unwrap()), of_use, "{address}");
        }
    }
}
