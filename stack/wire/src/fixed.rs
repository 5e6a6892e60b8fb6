//! Headers at fixed places: behind an Ethernet header, with or without a VLAN tag, an IP header without options or
//! extension headers, and TCP's.
//!
//! `LINK` is the octets of Ethernet's header and `IP` those of IP's, which also says its version, so all offsets are
//! known when the code is compiled. The views verify nothing but that the octets are there.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::address::{FlowKey, IpAddress};
use crate::ethernet::{self, EtherType};
use crate::octets::{u16_at, u32_at};
use crate::tcp::{self, SeqNumber, TcpFlags};
use crate::{ipv4, ipv6};

/// Octets of an Ethernet header without a VLAN tag, for `LINK`.
pub const PLAIN: usize = ethernet::HEADER_LEN;
/// Octets of an Ethernet header with a VLAN tag, for `LINK`.
pub const TAGGED: usize = ethernet::HEADER_LEN + ethernet::VLAN_TAG_LEN;
/// Octets of an IPv4 header, for `IP`.
pub const V4: usize = ipv4::HEADER_LEN;
/// Octets of an IPv6 header, for `IP`.
pub const V6: usize = ipv6::HEADER_LEN;

/// The EtherType that stands at the end of an Ethernet header of `LINK` octets. `None`: the frame ends before.
#[inline(always)]
pub fn ether_type<const LINK: usize>(frame: &[u8]) -> Option<EtherType> {
    Some(EtherType(u16_at(frame.get(LINK - 2..LINK)?, 0)))
}

/// The headers of Ethernet and IP.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a, const LINK: usize, const IP: usize>(&'a [u8]);

impl<'a, const LINK: usize, const IP: usize> Packet<'a, LINK, IP> {
    const IS_V4: bool = IP == V4;
    /// Where the number of hops left is.
    pub const HOP_LIMIT: usize = LINK + if Self::IS_V4 { 8 } else { 7 };

    /// Those of a frame that is long enough.
    #[inline(always)]
    pub fn of(frame: &'a [u8]) -> Option<Self> {
        frame.get(..LINK + IP).map(Packet)
    }

    /// The IP header.
    #[inline(always)]
    pub fn header(self) -> &'a [u8; IP] {
        // There are as many.
        self.0.last_chunk().unwrap_or(&[0; IP])
    }

    /// Whether the first octet of the IP header is that of this version, for IPv4 without options.
    #[inline(always)]
    pub fn has_version(self) -> bool {
        if Self::IS_V4 { self.0[LINK] == 0x45 } else { self.0[LINK] >> 4 == 6 }
    }

    /// Whether the packet is a fragment, as an IPv4 header says; those of IPv6 have an extension header.
    #[inline(always)]
    pub fn is_fragment(self) -> bool {
        Self::IS_V4 && u16_at(self.0, LINK + 6) & 0x3fff != 0
    }

    /// What follows the IP header.
    #[inline(always)]
    pub fn protocol(self) -> u8 {
        self.0[LINK + if Self::IS_V4 { 9 } else { 6 }]
    }

    /// Whether a TCP header follows in a whole packet of this version, as all of that says.
    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        // EtherType, version and length of the header; then for IPv4 the flags and offset of fragments, and the
        // protocol.
        let start = u32_at(self.0, LINK - 2);
        if Self::IS_V4 {
            start & 0xffff_ff00 == 0x0800_4500 && u32_at(self.0, LINK + 6) & 0x3fff_00ff == u32::from(tcp::PROTOCOL)
        } else {
            start & 0xffff_f000 == 0x86dd_6000 && self.protocol() == tcp::PROTOCOL
        }
    }

    /// The ECN bits.
    #[inline(always)]
    pub fn ecn(self) -> u8 {
        // In IPv6 the traffic class lies across the first two octets (RFC 8200 §3).
        self.0[LINK + 1] >> if Self::IS_V4 { 0 } else { 4 } & 3
    }

    /// Octets of the IP packet with its header, as that says.
    #[inline(always)]
    pub fn total_len(self) -> usize {
        if Self::IS_V4 { u16_at(self.0, LINK + 2).into() } else { IP + usize::from(u16_at(self.0, LINK + 4)) }
    }

    /// Where the addresses are, the source's first: directly in front of TCP's header.
    #[inline(always)]
    pub const fn addresses() -> core::ops::Range<usize> {
        LINK + if Self::IS_V4 { 12 } else { 8 }..LINK + IP
    }

    /// Who sent it.
    #[inline(always)]
    pub fn source(self) -> IpAddress {
        self.address(Self::addresses().start)
    }

    /// Who is to receive it.
    #[inline(always)]
    pub fn destination(self) -> IpAddress {
        let addresses = Self::addresses();
        self.address(usize::midpoint(addresses.start, addresses.end))
    }

    #[inline(always)]
    fn address(self, at: usize) -> IpAddress {
        if Self::IS_V4 {
            return Ipv4Addr::from_bits(u32_at(self.0, at)).into();
        }
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.0[at..at + 16]);
        Ipv6Addr::from(octets).into()
    }
}

/// The headers of Ethernet, IP and TCP, without TCP's options.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a, const LINK: usize, const IP: usize>(&'a [u8]);

impl<'a, const LINK: usize, const IP: usize> Segment<'a, LINK, IP> {
    /// Where the TCP header begins.
    pub const TCP: usize = LINK + IP;
    /// Where TCP's options begin.
    pub const OPTIONS: usize = Self::TCP + tcp::HEADER_LEN;

    /// Those of a frame that is long enough.
    #[inline(always)]
    pub fn of(frame: &'a [u8]) -> Option<Self> {
        frame.get(..Self::OPTIONS).map(Segment)
    }

    /// Their octets.
    #[inline(always)]
    pub fn octets(self) -> &'a [u8] {
        self.0
    }

    /// The headers of Ethernet and IP.
    #[inline(always)]
    pub fn packet(self) -> Packet<'a, LINK, IP> {
        Packet(&self.0[..Self::TCP])
    }

    /// The sender's port.
    #[inline(always)]
    pub fn source_port(self) -> u16 {
        u16_at(self.0, Self::TCP)
    }

    /// The receiver's port.
    #[inline(always)]
    pub fn destination_port(self) -> u16 {
        u16_at(self.0, Self::TCP + 2)
    }

    /// The connection, as its receiver calls it.
    #[inline(always)]
    pub fn flow(self) -> FlowKey {
        FlowKey {
            remote: self.packet().source(),
            local: self.packet().destination(),
            remote_port: self.source_port(),
            local_port: self.destination_port(),
        }
    }

    /// The sequence number.
    #[inline(always)]
    pub fn sequence(self) -> SeqNumber {
        SeqNumber(u32_at(self.0, Self::TCP + 4))
    }

    /// The acknowledgment number.
    #[inline(always)]
    pub fn acknowledgment(self) -> SeqNumber {
        SeqNumber(u32_at(self.0, Self::TCP + 8))
    }

    /// Octets of the TCP header, as that says.
    #[inline(always)]
    pub fn tcp_len(self) -> usize {
        usize::from(self.0[Self::TCP + 12] >> 4) * 4
    }

    /// The word with the length of the TCP header and the flags.
    #[inline(always)]
    pub fn control(self) -> u16 {
        u16_at(self.0, Self::TCP + 12)
    }

    /// The flags.
    #[inline(always)]
    pub fn flags(self) -> TcpFlags {
        TcpFlags::from_bits(self.control())
    }

    /// The window, not scaled.
    #[inline(always)]
    pub fn window(self) -> u16 {
        u16_at(self.0, Self::TCP + 14)
    }

    /// The urgent pointer.
    #[inline(always)]
    pub fn urgent(self) -> u16 {
        u16_at(self.0, Self::TCP + 18)
    }
}
