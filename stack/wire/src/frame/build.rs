//! The headers of frames to be sent.

use crate::WireError;
use crate::address::IpAddress;
use crate::checksum;
use crate::ethernet::{self, EtherType, EthernetAddress, EthernetHeader, VlanTag};
use crate::icmp::{self, IcmpMessage};
use crate::ipv4::{self, Ipv4Header};
use crate::octets::put_u16;
use crate::tcp::{self, TcpHeader};

/// From whom to whom, over which next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our hardware address.
    pub source_mac: EthernetAddress,
    /// Hardware address of the peer or of the gateway.
    pub destination_mac: EthernetAddress,
    /// VLAN tag to be put on.
    pub vlan: Option<VlanTag>,
    /// Our address.
    pub source: IpAddress,
    /// The peer's address.
    pub destination: IpAddress,
    /// Hops that packets may take.
    pub hop_limit: u8,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
}

impl Path {
    /// A path without VLAN tag, with the default of 64 hops and of service.
    pub const fn new(
        source_mac: EthernetAddress,
        destination_mac: EthernetAddress,
        source: IpAddress,
        destination: IpAddress,
    ) -> Path {
        Path { source_mac, destination_mac, vlan: None, source, destination, hop_limit: 64, dscp: 0 }
    }

    /// Octets in front of the TCP or ICMP header.
    #[inline]
    pub const fn headers_len(&self) -> usize {
        let vlan = if self.vlan.is_some() { ethernet::VLAN_TAG_LEN } else { 0 };
        ethernet::HEADER_LEN + vlan + ipv4::HEADER_LEN
    }

    /// Writes the Ethernet and IPv4 headers of a packet that must not be fragmented.
    #[inline]
    fn emit(&self, out: &mut [u8], ecn: u8, protocol: u8, l4_len: usize) -> Result<(), WireError> {
        let (Some(source), Some(destination)) = (self.source.to_ipv4(), self.destination.to_ipv4()) else {
            return Err(WireError::AddressFamily);
        };
        let ethernet = EthernetHeader {
            destination: self.destination_mac,
            source: self.source_mac,
            vlan: self.vlan,
            ether_type: EtherType::IPV4,
        };
        let at = ethernet.emit(out);
        let ip = Ipv4Header {
            header_len: ipv4::HEADER_LEN,
            total_len: ipv4::HEADER_LEN + l4_len,
            traffic_class: (self.dscp << 2) | (ecn & 3),
            // Of no meaning with DF (RFC 6864 §4.1).
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            hop_limit: self.hop_limit,
            protocol,
            source,
            destination,
        };
        ip.emit(&mut out[at..])?;
        Ok(())
    }
}

/// Who computes the TCP checksum of a frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpChecksum {
    /// We do; this is the partial sum of the payload (0 without payload).
    Full {
        /// As a [`checksum::PartialSum`] function returns it.
        payload_sum: u32,
    },
    /// The device does: the field gets the sum of the pseudo-header, as devices expect it.
    PseudoHeaderOnly,
}

/// Octets of the Ethernet, IP and TCP headers that [`prepend_tcp`] writes.
#[inline]
pub fn tcp_headers_len(path: &Path, header: &TcpHeader) -> usize {
    path.headers_len() + header.emit_len()
}

/// Writes the Ethernet, IPv4 and TCP headers of a segment into the end of `headroom`, so that they stand
/// directly in front of a payload that follows it, and returns their length. The packet is sent with DF.
///
/// # Errors
/// [`WireError::NoRoom`] if `headroom` is shorter than [`tcp_headers_len`], [`WireError::AddressFamily`] if
/// the addresses are not IPv4, [`WireError::TotalLength`] if the packet exceeds 65535 octets.
#[inline]
pub fn prepend_tcp(
    headroom: &mut [u8],
    path: &Path,
    header: &TcpHeader,
    ecn: u8,
    payload_len: usize,
    checksum: TcpChecksum,
) -> Result<usize, WireError> {
    let l4_offset = path.headers_len();
    let header_len = header.emit_len();
    let length = l4_offset + header_len;
    let start = headroom.len().checked_sub(length).ok_or(WireError::NoRoom)?;
    let out = &mut headroom[start..];
    let l4_len = header_len + payload_len;
    path.emit(out, ecn, tcp::PROTOCOL, l4_len)?;
    let l4 = &mut out[l4_offset..];
    header.emit(l4);
    let pseudo = checksum::pseudo_header(path.source, path.destination, tcp::PROTOCOL, l4_len);
    let value = match checksum {
        TcpChecksum::Full { payload_sum } => {
            let headers = checksum::combine(pseudo, checksum::sum(l4));
            checksum::finish(checksum::combine(headers, payload_sum))
        }
        TcpChecksum::PseudoHeaderOnly => checksum::fold(pseudo),
    };
    put_u16(l4, tcp::CHECKSUM_OFFSET, value);
    Ok(length)
}

/// Writes a whole frame with an ICMP message to the start of `out` and returns its length.
///
/// # Errors
/// [`WireError::NoRoom`], [`WireError::AddressFamily`], [`WireError::TotalLength`].
pub fn emit_icmp(out: &mut [u8], path: &Path, message: &IcmpMessage<'_>) -> Result<usize, WireError> {
    let l4_offset = path.headers_len();
    let l4_len = message.emit_len();
    let out = out.get_mut(..l4_offset + l4_len).ok_or(WireError::NoRoom)?;
    path.emit(out, ipv4::ecn::NOT_CAPABLE, icmp::PROTOCOL, l4_len)?;
    message.emit(&mut out[l4_offset..])?;
    Ok(l4_offset + l4_len)
}
