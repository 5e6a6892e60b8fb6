//! Which peers a server serves: `--allow ADDRESS[/PREFIX]`.
//!
//! An address does not prove an identity: anyone who can send from an allowed address is served.

use clap::Args;
pub use ipnet::IpNet;
use ipnet::Ipv6Net;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use uwarp::Config;

/// Link-local addresses (RFC 4291 §2.5.6), which no router forwards.
const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// The flags of a server that does not serve everybody.
#[derive(Args, Clone, Debug, Default)]
pub struct AllowFlags {
    /// Serve this address or subnet only; may be repeated [default: the subnets of this side's own addresses]
    #[arg(long, value_name = "ADDRESS[/PREFIX]", value_parser = parse)]
    pub allow: Vec<IpNet>,
}

/// The addresses that a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow(Vec<IpNet>);

impl AllowFlags {
    /// The allowed subnets. Without any flag, those of the configured addresses, and the link-local addresses if one of
    /// those is IPv6: then nobody behind a router is served.
    pub fn resolve(&self, config: &Config) -> Allow {
        if !self.allow.is_empty() {
            return Allow(self.allow.clone());
        }
        let subnets = config.addresses().filter_map(|own| IpNet::new(own.address, own.prefix).ok());
        let mut subnets: Vec<IpNet> = subnets.map(|subnet| subnet.trunc()).collect();
        if subnets.iter().any(|subnet| matches!(subnet, IpNet::V6(_))) {
            subnets.push(LINK_LOCAL.into());
        }
        Allow(subnets)
    }
}

impl Allow {
    /// Whether a peer with this address is served.
    pub fn permits(&self, peer: IpAddr) -> bool {
        // An IPv4 address is the same in its IPv6 form (RFC 4291 §2.5.5.2).
        let peer = peer.to_canonical();
        self.0.iter().any(|subnet| subnet.contains(&peer))
    }

    /// The message for a peer that is not served, short enough for the private data of a rejection.
    pub fn refusal(peer: IpAddr) -> String {
        format!("this server does not serve {peer}: its --allow has to name that address")
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, subnet) in self.0.iter().enumerate() {
            write!(formatter, "{}{subnet}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Reads an address, or a subnet given by one of its addresses and the length of its prefix.
///
/// # Errors
/// One sentence that says what is accepted.
pub fn parse(text: &str) -> Result<IpNet, String> {
    let subnet = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let subnet = subnet.map_err(|_| {
        format!("'{text}' is not an address or a subnet; write it like 10.0.0.2, 10.0.0.0/24 or fd00::/64")
    })?;
    Ok(subnet.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(addresses: &[&str]) -> Config {
        let mut config = Config::without_device(addresses[0]).unwrap();
        for address in &addresses[1..] {
            config = config.another_address(address.parse().unwrap());
        }
        config
    }

    fn flags(texts: &[&str]) -> AllowFlags {
        AllowFlags { allow: texts.iter().map(|text| parse(text).unwrap()).collect() }
    }

    fn permits(allow: &Allow, peer: &str) -> bool {
        allow.permits(peer.parse().unwrap())
    }

    #[test]
    fn without_flags_the_own_subnets_are_served() {
        let allow = AllowFlags::default().resolve(&config(&["10.77.0.1/24", "fd77::1/64"]));
        for peer in ["10.77.0.2", "10.77.0.255", "::ffff:10.77.0.2", "fd77::2", "fe80::1"] {
            assert!(permits(&allow, peer), "{peer}");
        }
        for peer in ["10.77.1.2", "fd77:0:0:1::2", "127.0.0.1", "::1"] {
            assert!(!permits(&allow, peer), "{peer}");
        }
        assert_eq!(allow.to_string(), "10.77.0.0/24, fd77::/64, fe80::/10");
        let only_ipv4 = AllowFlags::default().resolve(&config(&["10.77.0.1/24"]));
        assert!(!permits(&only_ipv4, "fe80::1"));
    }

    #[test]
    fn flags_take_the_place_of_the_own_subnets() {
        let allow = flags(&["10.1.0.7", "192.168.3.9/16", "fd00::5/64"]).resolve(&config(&["10.77.0.1/24"]));
        for peer in ["10.1.0.7", "192.168.255.1", "fd00::1:2"] {
            assert!(permits(&allow, peer), "{peer}");
        }
        for peer in ["10.77.0.2", "10.1.0.8", "192.169.0.1", "fd00:0:0:1::1"] {
            assert!(!permits(&allow, peer), "{peer}");
        }
        let everybody = flags(&["0.0.0.0/0"]).resolve(&config(&["10.77.0.1/24"]));
        assert!(permits(&everybody, "8.8.8.8") && !permits(&everybody, "fd77::1"));
    }

    #[test]
    fn what_is_neither_address_nor_subnet_is_an_error_that_says_how_to_write_it() {
        for wrong in ["", "host", "10.0.0", "10.0.0.1/33", "fd00::/129", "10.0.0.1/", "/24", "10.0.0.1:80"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(&format!("'{wrong}'")) && error.contains("10.0.0.0/24"), "{error}");
        }
    }

    #[test]
    fn a_refusal_fits_into_the_private_data_of_a_rejection() {
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".parse().unwrap();
        assert!(Allow::refusal(longest).len() < 200, "{}", Allow::refusal(longest));
    }
}
