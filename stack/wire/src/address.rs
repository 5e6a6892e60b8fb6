//! IP addresses in one size, and the key of a TCP connection.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// High part of the IPv4-mapped range `::ffff:0:0/96` (RFC 4291 §2.5.5.2).
const MAPPED: u128 = 0xffff_0000_0000;

/// An IPv4 or IPv6 address in 16 octets. IPv4 is stored in its IPv4-mapped form, so tables and keys need no case for
/// each version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpAddress(u128);

impl IpAddress {
    /// `::`, the unspecified address.
    pub const UNSPECIFIED: IpAddress = IpAddress(0);

    /// The IPv4 address with these four octets as a big-endian number.
    #[inline]
    pub const fn from_ipv4_bits(bits: u32) -> IpAddress {
        IpAddress(MAPPED | bits as u128)
    }

    /// The address as a 128-bit number, IPv4 in its mapped form.
    #[inline]
    pub const fn to_bits(self) -> u128 {
        self.0
    }

    /// The inverse of [`IpAddress::to_bits`].
    #[inline]
    pub const fn from_bits(bits: u128) -> IpAddress {
        IpAddress(bits)
    }

    /// Whether this is an IPv4 address.
    #[inline]
    pub const fn is_ipv4(self) -> bool {
        self.0 >> 32 == MAPPED >> 32
    }

    /// The IPv4 address, if it is one.
    #[inline]
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        if self.is_ipv4() { Some(Ipv4Addr::from_bits(self.0 as u32)) } else { None }
    }

    /// The four octets of an IPv4 address as a big-endian number; the low 32 bits of an IPv6 address.
    #[inline]
    pub const fn ipv4_bits(self) -> u32 {
        self.0 as u32
    }

    /// The standard library's type.
    #[inline]
    pub const fn to_ip_addr(self) -> IpAddr {
        match self.to_ipv4() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(Ipv6Addr::from_bits(self.0)),
        }
    }

    /// The IPv6 address, if it is one.
    #[inline]
    pub const fn to_ipv6(self) -> Option<Ipv6Addr> {
        if self.is_ipv4() { None } else { Some(Ipv6Addr::from_bits(self.0)) }
    }

    /// Whether the first `prefix` bits of this address equal those of `other`. Both addresses are of the same version;
    /// `prefix` is 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub const fn shares_prefix(self, other: IpAddress, prefix: u8) -> bool {
        if self.is_ipv4() != other.is_ipv4() {
            return false;
        }
        let bits = if self.is_ipv4() { 96 + prefix as u32 } else { prefix as u32 };
        bits == 0 || (self.0 ^ other.0) >> 128u32.saturating_sub(bits) == 0
    }

    /// Whether this is a link-local IPv6 address (RFC 4291 §2.5.6), which is valid on its link only.
    pub const fn is_link_local(self) -> bool {
        self.0 >> 118 == 0xfe80 >> 6
    }

    /// Whether this is a multicast address of either version, or the IPv4 limited broadcast.
    pub const fn is_multicast(self) -> bool {
        match self.to_ipv4() {
            Some(address) => address.is_multicast() || address.is_broadcast(),
            None => self.0 >> 120 == 0xff,
        }
    }

    /// Whether this is `0.0.0.0` or `::`.
    pub const fn is_unspecified(self) -> bool {
        self.0 == 0 || self.0 == MAPPED
    }
}

impl From<Ipv4Addr> for IpAddress {
    #[inline]
    fn from(address: Ipv4Addr) -> IpAddress {
        IpAddress::from_ipv4_bits(address.to_bits())
    }
}

impl From<Ipv6Addr> for IpAddress {
    #[inline]
    fn from(address: Ipv6Addr) -> IpAddress {
        IpAddress(address.to_bits())
    }
}

impl From<IpAddr> for IpAddress {
    #[inline]
    fn from(address: IpAddr) -> IpAddress {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<IpAddress> for IpAddr {
    #[inline]
    fn from(address: IpAddress) -> IpAddr {
        address.to_ip_addr()
    }
}

impl fmt::Display for IpAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip_addr().fmt(formatter)
    }
}

impl fmt::Debug for IpAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The two endpoints of a TCP connection, as seen from this host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FlowKey {
    /// The peer's address.
    pub remote: IpAddress,
    /// Our address.
    pub local: IpAddress,
    /// The peer's port.
    pub remote_port: u16,
    /// Our port.
    pub local_port: u16,
}

impl FlowKey {
    /// The same connection as the peer sees it.
    pub const fn reversed(self) -> FlowKey {
        FlowKey { remote: self.local, local: self.remote, remote_port: self.local_port, local_port: self.remote_port }
    }
}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Use as few words as possible: each costs a round of the hash function per packet.
        if self.remote.is_ipv4() && self.local.is_ipv4() {
            state.write_u64(u64::from(self.remote.ipv4_bits()) << 32 | u64::from(self.local.ipv4_bits()));
        } else {
            for address in [self.remote.0, self.local.0] {
                state.write_u64((address >> 64) as u64);
                state.write_u64(address as u64);
            }
        }
        state.write_u32((u32::from(self.remote_port) << 16) | u32::from(self.local_port));
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{} <- {}:{}", self.local, self.local_port, self.remote, self.remote_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_shared_up_to_the_first_bit_that_differs() {
        let v4 = |last| IpAddress::from(Ipv4Addr::new(10, 0, 0, last));
        let v6 = |last| IpAddress::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        // 1 and 3 differ in the last bit but one.
        for (a, b, bits) in [(v4(1), v4(3), 32), (v6(1), v6(3), 128)] {
            assert!(a.shares_prefix(b, 0) && a.shares_prefix(b, bits - 2));
            assert!(!a.shares_prefix(b, bits - 1) && !a.shares_prefix(b, bits));
            assert!(a.shares_prefix(a, bits));
        }
        assert!(!v4(1).shares_prefix(v6(1), 0) && !v6(1).shares_prefix(v4(1), 0), "of two versions");
    }
}
