//! The headers of frames to be sent.

use crate::WireError;
use crate::address::IpAddress;
use crate::checksum;
use crate::ethernet::{self, EtherType, EthernetAddress, EthernetHeader, VlanTag};
use crate::icmp::{self, IcmpMessage};
use crate::icmp6::{self, Icmp6Message};
use crate::ipv4::{self, Ipv4Header};
use crate::ipv6::{self, FRAGMENT_HEADER_LEN, FragmentHeader, Ipv6Header};
use crate::octets::put_u16;
use crate::roce;
use crate::tcp::{self, TcpHeader};

/// The addresses of a packet at both layers, and its VLAN.
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
    /// A path without VLAN tag, with a hop limit of 64 and the default service class.
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
        let ip = if self.source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        ethernet::HEADER_LEN + vlan + ip
    }

    /// Writes the Ethernet header.
    #[inline]
    fn emit_ethernet(&self, out: &mut [u8], ether_type: EtherType) -> usize {
        let ethernet =
            EthernetHeader { destination: self.destination_mac, source: self.source_mac, vlan: self.vlan, ether_type };
        ethernet.emit(out)
    }

    /// Writes the Ethernet and IP headers of a packet that must not be fragmented.
    #[inline]
    fn emit(&self, out: &mut [u8], ecn: u8, protocol: u8, l4_len: usize) -> Result<(), WireError> {
        let (Some(source), Some(destination)) = (self.source.to_ipv4(), self.destination.to_ipv4()) else {
            return self.emit6(out, ecn, protocol, l4_len);
        };
        let at = self.emit_ethernet(out, EtherType::IPV4);
        let ip = Ipv4Header {
            header_len: ipv4::HEADER_LEN,
            total_len: ipv4::HEADER_LEN + l4_len,
            traffic_class: (self.dscp << 2) | (ecn & 3),
            // Meaningless with DF (RFC 6864 §4.1).
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

    fn emit6(&self, out: &mut [u8], ecn: u8, protocol: u8, l4_len: usize) -> Result<(), WireError> {
        let (Some(source), Some(destination)) = (self.source.to_ipv6(), self.destination.to_ipv6()) else {
            return Err(WireError::AddressFamily);
        };
        let at = self.emit_ethernet(out, EtherType::IPV6);
        let ip = Ipv6Header {
            traffic_class: (self.dscp << 2) | (ecn & 3),
            // RFC 6437 §3 lets a source that makes no labels send 0.
            flow_label: 0,
            payload_len: l4_len,
            next_header: protocol,
            hop_limit: self.hop_limit,
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
    /// The stack does; this is the partial sum of the payload (0 without payload).
    Full {
        /// As a [`checksum::PartialSum`] function returns it.
        payload_sum: u32,
    },
    /// The device does: the field holds the sum of the pseudo-header, as devices expect it.
    PseudoHeaderOnly,
}

/// Octets of the Ethernet, IP and TCP headers that [`prepend_tcp`] writes.
#[inline]
pub fn tcp_headers_len(path: &Path, header: &TcpHeader) -> usize {
    path.headers_len() + header.emit_len()
}

/// Writes the Ethernet, IP and TCP headers of a segment to the end of `headroom`, directly in front of a payload that
/// follows it, and returns their length. An IPv4 packet is sent with DF.
///
/// # Errors
/// [`WireError::NoRoom`] if `headroom` is shorter than [`tcp_headers_len`], [`WireError::AddressFamily`] if
/// the addresses are of two versions, [`WireError::TotalLength`] if the packet exceeds 65535 octets.
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

/// Writes a whole frame with an ICMPv6 message to the start of `out` and returns its length.
///
/// # Errors
/// [`WireError::NoRoom`], [`WireError::AddressFamily`], [`WireError::TotalLength`].
pub fn emit_icmp6(out: &mut [u8], path: &Path, message: &Icmp6Message<'_>) -> Result<usize, WireError> {
    let l4_offset = path.headers_len();
    let l4_len = message.emit_len();
    let out = out.get_mut(..l4_offset + l4_len).ok_or(WireError::NoRoom)?;
    path.emit6(out, ipv4::ecn::NOT_CAPABLE, icmp6::PROTOCOL, l4_len)?;
    message.emit(&mut out[l4_offset..], path.source, path.destination)?;
    Ok(l4_offset + l4_len)
}

/// Writes a whole frame with a reassembled upper-layer packet of any protocol to the start of `out` and returns the
/// frame's length. The packet's checksum is left unchanged.
///
/// # Errors
/// [`WireError::NoRoom`], [`WireError::AddressFamily`], [`WireError::TotalLength`].
pub fn emit_packet(out: &mut [u8], path: &Path, ecn: u8, protocol: u8, payload: &[u8]) -> Result<usize, WireError> {
    let at = path.headers_len();
    let out = out.get_mut(..at + payload.len()).ok_or(WireError::NoRoom)?;
    path.emit(out, ecn, protocol, payload.len())?;
    out[at..].copy_from_slice(payload);
    Ok(at + payload.len())
}

/// Writes a whole frame with a datagram of RoCE v2 to the start of `out` and returns its length. `fill` writes the
/// payload, which has `payload_len` octets.
///
/// # Errors
/// [`WireError::NoRoom`], [`WireError::AddressFamily`], [`WireError::TotalLength`], or what `fill` fails with.
pub fn emit_datagram<E: From<WireError>>(
    out: &mut [u8],
    path: &Path,
    header: &roce::Header,
    payload_len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let at = path.headers_len();
    let length = header.datagram_len(payload_len);
    let out = out.get_mut(..at + length).ok_or(WireError::NoRoom)?;
    path.emit(out, ipv4::ecn::NOT_CAPABLE, roce::PROTOCOL, length)?;
    header.emit(&mut out[at..], payload_len);
    let payload_at = at + header.payload_at();
    fill(&mut out[payload_at..payload_at + payload_len])?;
    let ip = if path.source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    roce::seal(&mut out[at - ip..]);
    Ok(at + length)
}

/// Writes a whole frame with one fragment of an upper-layer packet (RFC 791 §3.2, RFC 8200 §4.5) and returns its
/// length. `offset` is a multiple of 8; so is the length of every fragment but the last.
///
/// # Errors
/// [`WireError::NoRoom`], [`WireError::AddressFamily`], [`WireError::TotalLength`].
pub fn emit_fragment(
    out: &mut [u8],
    path: &Path,
    protocol: u8,
    identification: u32,
    (offset, more): (usize, bool),
    payload: &[u8],
) -> Result<usize, WireError> {
    let at = path.headers_len();
    let Some((source, destination)) = path.source.to_ipv4().zip(path.destination.to_ipv4()) else {
        let header = FragmentHeader { next_header: protocol, offset, more, identification };
        let start = at + FRAGMENT_HEADER_LEN;
        let out = out.get_mut(..start + payload.len()).ok_or(WireError::NoRoom)?;
        path.emit6(out, ipv4::ecn::NOT_CAPABLE, ipv6::FRAGMENT_PROTOCOL, FRAGMENT_HEADER_LEN + payload.len())?;
        let place = out[at..].first_chunk_mut().ok_or(WireError::NoRoom)?;
        header.emit(place);
        out[start..].copy_from_slice(payload);
        return Ok(start + payload.len());
    };
    let out = out.get_mut(..at + payload.len()).ok_or(WireError::NoRoom)?;
    let link = path.emit_ethernet(out, EtherType::IPV4);
    let ip = Ipv4Header {
        header_len: ipv4::HEADER_LEN,
        total_len: ipv4::HEADER_LEN + payload.len(),
        traffic_class: path.dscp << 2,
        identification: identification as u16,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: (offset / 8) as u16,
        hop_limit: path.hop_limit,
        protocol,
        source,
        destination,
    };
    ip.emit(&mut out[link..])?;
    out[at..].copy_from_slice(payload);
    Ok(at + payload.len())
}
