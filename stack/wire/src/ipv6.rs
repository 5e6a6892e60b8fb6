//! IPv6 headers and extension headers (RFC 8200), and the addresses that a link needs.

#[cfg(test)]
mod tests;

use core::net::Ipv6Addr;

use crate::WireError;
use crate::ethernet::EthernetAddress;
use crate::octets::{put_u16, put_u32, u16_at, u32_at};

/// Octets of a header without extension headers.
pub const HEADER_LEN: usize = 40;
/// Octets of a Fragment header (RFC 8200 §4.5).
pub const FRAGMENT_HEADER_LEN: usize = 8;
/// The smallest MTU that a link may have, in octets (RFC 8200 §5).
pub const MINIMUM_MTU: u16 = 1280;

/// The most extension headers that a packet may have (RFC 8504 §5.3 allows a limit).
const MOST_EXTENSIONS: usize = 8;

/// The number that names a Fragment header.
pub const FRAGMENT_PROTOCOL: u8 = 44;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = FRAGMENT_PROTOCOL;
const AUTHENTICATION: u8 = 51;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;

/// `ff02::1`, all nodes of the link (RFC 4291 §2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node multicast address of an address (RFC 4291 §2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let low = address.to_bits() & 0x00ff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// The Ethernet address of an IPv6 multicast address (RFC 2464 §7).
pub const fn multicast_mac(address: Ipv6Addr) -> EthernetAddress {
    let [a, b, c, d] = (address.to_bits() as u32).to_be_bytes();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

/// The link-local address of an interface (RFC 4291 §2.5.6, with the interface identifier of RFC 2464 §4).
pub const fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from_bits(u128::from_be_bytes([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
}

/// An IPv6 header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Differentiated services code point and ECN bits in one octet.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Octets behind this header.
    pub payload_len: usize,
    /// The header behind this one.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Sender.
    pub source: Ipv6Addr,
    /// Receiver.
    pub destination: Ipv6Addr,
}

impl Ipv6Header {
    /// Reads the header at the start of `packet`. `available` is the number of octets in the frame from there on, which
    /// exceeds `packet.len()` in a chained buffer.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::NotContiguous`], [`WireError::IpVersion`], [`WireError::TotalLength`].
    /// [`WireError::SourceAddress`] if either address is IPv4-mapped or the loopback address. Mapped addresses never
    /// appear in packets (RFC 4291 §2.5.5.2) and would be taken for IPv4 here; the loopback address never leaves its
    /// host (§2.5.3).
    #[inline]
    pub fn parse(packet: &[u8], available: usize) -> Result<Ipv6Header, WireError> {
        let Some(fixed) = packet.first_chunk::<HEADER_LEN>() else {
            return Err(if available >= HEADER_LEN { WireError::NotContiguous } else { WireError::Truncated });
        };
        let first = u32_at(fixed, 0);
        if first >> 28 != 6 {
            return Err(WireError::IpVersion);
        }
        let payload_len = usize::from(u16_at(fixed, 4));
        if HEADER_LEN + payload_len > available {
            return Err(WireError::TotalLength);
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&fixed[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        let header = Ipv6Header {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len,
            next_header: fixed[6],
            hop_limit: fixed[7],
            source: address(8),
            destination: address(24),
        };
        let mapped = |address: Ipv6Addr| address.to_bits() >> 32 == 0xffff;
        let foreign = |address: Ipv6Addr| mapped(address) || address == Ipv6Addr::LOCALHOST;
        if header.source.is_multicast() || foreign(header.source) || foreign(header.destination) {
            return Err(WireError::SourceAddress);
        }
        Ok(header)
    }

    /// The ECN bits.
    #[inline]
    pub const fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }

    /// Writes the header.
    ///
    /// # Errors
    /// [`WireError::NoRoom`]; [`WireError::TotalLength`] if the payload exceeds 65535 octets (jumbograms are not sent).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = out.first_chunk_mut::<HEADER_LEN>().ok_or(WireError::NoRoom)?;
        let payload_len = u16::try_from(self.payload_len).map_err(|_| WireError::TotalLength)?;
        put_u32(out, 0, 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff);
        put_u16(out, 4, payload_len);
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..40].copy_from_slice(&self.destination.octets());
        Ok(HEADER_LEN)
    }
}

/// A Fragment header (RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Protocol of the first header of the fragmentable part.
    pub next_header: u8,
    /// Offset of the fragment in octets, a multiple of 8.
    pub offset: usize,
    /// Further fragments follow.
    pub more: bool,
    /// Identifies the fragments of one packet.
    pub identification: u32,
}

impl FragmentHeader {
    fn parse(octets: &[u8]) -> Option<FragmentHeader> {
        let fixed = octets.first_chunk::<FRAGMENT_HEADER_LEN>()?;
        let place = u16_at(fixed, 2);
        Some(FragmentHeader {
            next_header: fixed[0],
            offset: usize::from(place & 0xfff8),
            more: place & 1 != 0,
            identification: u32_at(fixed, 4),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; FRAGMENT_HEADER_LEN]) {
        out[0] = self.next_header;
        out[1] = 0;
        put_u16(out, 2, (self.offset as u16 & 0xfff8) | u16::from(self.more));
        put_u32(out, 4, self.identification);
    }
}

/// What follows the extension headers of a packet. Offsets count from the start of the IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// An upper-layer header.
    Upper {
        /// Its protocol.
        protocol: u8,
        /// Where it begins.
        offset: usize,
        /// Offset of the octet that names the protocol.
        named_at: usize,
    },
    /// A fragment. A Fragment header around a whole packet (RFC 6946) does not make one.
    Fragment {
        /// The header.
        header: FragmentHeader,
        /// Where the fragment's octets begin.
        offset: usize,
    },
    /// Nothing follows (RFC 8200 §4.7).
    Nothing,
    /// An extension header that requires dropping the packet without an answer.
    Discard,
    /// An extension header that requires dropping the packet and sending an ICMPv6 Parameter Problem.
    Problem {
        /// The answer's code (RFC 4443 §3.4).
        code: u8,
        /// The octet that is at fault.
        pointer: usize,
        /// Answer even if the packet was multicast (RFC 8200 §4.2, option types that begin with 10).
        even_multicast: bool,
    },
}

/// Walks through the extension headers of a packet. `packet` begins with its IPv6 header, which `header` is parsed
/// from.
///
/// # Errors
/// [`WireError::NotContiguous`] if they leave the first piece of a chain, [`WireError::HeaderLength`] if they pass the
/// packet's end or are too many.
pub fn walk(header: &Ipv6Header, packet: &[u8]) -> Result<Walked, WireError> {
    let end = HEADER_LEN + header.payload_len;
    let missing = |at: usize| if at <= end { WireError::NotContiguous } else { WireError::HeaderLength };
    let (mut next, mut named_at, mut offset) = (header.next_header, 6, HEADER_LEN);
    for _ in 0..MOST_EXTENSIONS {
        match next {
            HOP_BY_HOP if offset != HEADER_LEN => {
                // RFC 8200 §4.3: only directly behind the IPv6 header.
                return Ok(Walked::Problem { code: UNRECOGNISED_HEADER, pointer: named_at, even_multicast: false });
            }
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {
                let fixed = packet.get(offset..offset + 8).ok_or_else(|| missing(offset + 8))?;
                let length = (usize::from(fixed[1]) + 1) * 8;
                let whole = packet.get(offset..offset + length).ok_or_else(|| missing(offset + length))?;
                if offset + length > end {
                    return Err(WireError::HeaderLength);
                }
                if next == ROUTING {
                    // RFC 8200 §4.4: an unknown routing type (all are unknown here) is skipped if no segments are left.
                    if fixed[3] != 0 {
                        return Ok(Walked::Problem { code: 0, pointer: offset + 2, even_multicast: false });
                    }
                } else if let Some(end) = judge_options(whole, offset) {
                    return Ok(end);
                }
                next = fixed[0];
                named_at = offset;
                offset += length;
            }
            FRAGMENT => {
                let octets = packet.get(offset..).unwrap_or(&[]);
                let fragment = FragmentHeader::parse(octets).ok_or_else(|| missing(offset + FRAGMENT_HEADER_LEN))?;
                if offset + FRAGMENT_HEADER_LEN > end {
                    return Err(WireError::HeaderLength);
                }
                named_at = offset;
                offset += FRAGMENT_HEADER_LEN;
                if fragment.more || fragment.offset != 0 {
                    return Ok(Walked::Fragment { header: fragment, offset });
                }
                next = fragment.next_header;
            }
            NO_NEXT_HEADER => return Ok(Walked::Nothing),
            protocol => return Ok(Walked::Upper { protocol, offset, named_at }),
        }
    }
    Err(WireError::HeaderLength)
}

/// Passes over the extension headers of a packet, or of its beginning, without judging them: gives the upper-layer
/// protocol and the octets from its header on, none in a fragment other than the first. `None` if the protocol cannot
/// be seen: they are too many, are cut short, or continue behind such a fragment.
pub(crate) fn upper_layer(packet: &[u8]) -> Option<(u8, &[u8])> {
    let (fixed, mut rest) = packet.split_first_chunk::<HEADER_LEN>()?;
    let mut next = fixed[6];
    for _ in 0..=MOST_EXTENSIONS {
        let length = match next {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => (usize::from(*rest.get(1)?) + 1) * 8,
            // RFC 4302 §2.2 counts it otherwise.
            AUTHENTICATION => (usize::from(*rest.get(1)?) + 2) * 4,
            FRAGMENT => FRAGMENT_HEADER_LEN,
            protocol => return Some((protocol, rest)),
        };
        let (extension, behind) = rest.split_at_checked(length)?;
        let is_later_fragment = next == FRAGMENT && FragmentHeader::parse(extension)?.offset != 0;
        next = extension[0];
        rest = if is_later_fragment { &[] } else { behind };
    }
    None
}

/// Parameter Problem: unrecognised next header.
pub const UNRECOGNISED_HEADER: u8 = 1;
/// Parameter Problem: unrecognised option.
const UNRECOGNISED_OPTION: u8 = 2;

/// Judges the options of a Hop-by-Hop or Destination Options header (RFC 8200 §4.2). `None`: continue.
fn judge_options(header: &[u8], offset: usize) -> Option<Walked> {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    let mut at = 2;
    while at < header.len() {
        let kind = header[at];
        if kind == PAD1 {
            at += 1;
            continue;
        }
        let Some(length) = header.get(at + 1) else { return Some(Walked::Discard) };
        if kind != PADN && kind != ROUTER_ALERT {
            let problem =
                |even_multicast| Walked::Problem { code: UNRECOGNISED_OPTION, pointer: offset + at, even_multicast };
            match kind >> 6 {
                0 => {}
                1 => return Some(Walked::Discard),
                2 => return Some(problem(true)),
                _ => return Some(problem(false)),
            }
        }
        at += 2 + usize::from(*length);
    }
    // An option that passes the end of its header.
    (at > header.len()).then_some(Walked::Discard)
}
