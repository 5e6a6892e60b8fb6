//! Ethernet II headers, with or without one 802.1Q tag.

pub use smoltcp::wire::EthernetAddress;

use crate::WireError;
use crate::octets::{put_u16, u16_at};

/// Octets of a header without a VLAN tag.
pub const HEADER_LEN: usize = 14;
/// Octets of a VLAN tag.
pub const VLAN_TAG_LEN: usize = 4;

/// The type of a frame's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(
    /// The number as it stands in a header.
    pub u16,
);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// A VLAN tag, behind which the real type follows (IEEE 802.1Q).
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
}

/// The tag control information of an 802.1Q tag: priority, drop eligibility, VLAN number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag(
    /// The 16 bits as they stand in the tag.
    pub u16,
);

impl VlanTag {
    /// The VLAN's number, 0 for a tag that carries a priority only.
    pub const fn identifier(self) -> u16 {
        self.0 & 0x0fff
    }

    /// The priority, 0 to 7.
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Who is to receive the frame.
    pub destination: EthernetAddress,
    /// Who sent it.
    pub source: EthernetAddress,
    /// The outermost VLAN tag.
    pub vlan: Option<VlanTag>,
    /// What follows the header; [`EtherType::VLAN`] if that is a second tag.
    pub ether_type: EtherType,
}

impl EthernetHeader {
    /// Octets of the header: 14 or 18.
    #[inline]
    pub const fn len(&self) -> usize {
        HEADER_LEN + if self.vlan.is_some() { VLAN_TAG_LEN } else { 0 }
    }

    /// Always `false`: a header has octets. Clippy expects this beside [`EthernetHeader::len`].
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads the header at the start of a frame.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<EthernetHeader, WireError> {
        let (fixed, rest) = frame.split_first_chunk::<HEADER_LEN>().ok_or(WireError::Truncated)?;
        let mut header = EthernetHeader {
            destination: EthernetAddress([fixed[0], fixed[1], fixed[2], fixed[3], fixed[4], fixed[5]]),
            source: EthernetAddress([fixed[6], fixed[7], fixed[8], fixed[9], fixed[10], fixed[11]]),
            vlan: None,
            ether_type: EtherType(u16_at(fixed, 12)),
        };
        if header.ether_type == EtherType::VLAN {
            let tag = rest.first_chunk::<VLAN_TAG_LEN>().ok_or(WireError::Truncated)?;
            header.vlan = Some(VlanTag(u16_at(tag, 0)));
            header.ether_type = EtherType(u16_at(tag, 2));
        }
        Ok(header)
    }

    /// Writes the header and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`EthernetHeader::len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..self.len()];
        out[..6].copy_from_slice(&self.destination.0);
        out[6..12].copy_from_slice(&self.source.0);
        match self.vlan {
            None => put_u16(out, 12, self.ether_type.0),
            Some(tag) => {
                put_u16(out, 12, EtherType::VLAN.0);
                put_u16(out, 14, tag.0);
                put_u16(out, 16, self.ether_type.0);
            }
        }
        self.len()
    }
}
