//! What the switch reads of a frame: no more than it needs to say whose it is.

use uwarp_wire::address::IpAddress;
use uwarp_wire::{checksum, ethernet, ipv4, ipv6, roce, tcp};

use super::counters::DropReason;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A TCP segment.
    Tcp(Segment),
    /// A datagram of RoCE v2.
    Datagram(Datagram),
    /// ARP, ICMP or ICMPv6, which `uwarp_wire::frame::classify` reads.
    Control,
}

/// The addresses and ports of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) source: IpAddress,
    pub(super) destination: IpAddress,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    /// The lowest eight flags.
    pub(super) flags: u8,
    /// Octets of the IP header.
    pub(super) ip_len: u8,
    /// Octets of the TCP header, as the segment says.
    pub(super) tcp_len: u8,
}

impl Segment {
    /// The sequence number, in the frame that it was read from.
    pub(super) fn sequence(&self, frame: &[u8]) -> u32 {
        self.word(frame, 4)
    }

    /// The acknowledgment number.
    pub(super) fn acknowledgment(&self, frame: &[u8]) -> u32 {
        self.word(frame, 8)
    }

    fn word(&self, frame: &[u8], at: usize) -> u32 {
        let at = ethernet::HEADER_LEN + usize::from(self.ip_len) + at;
        frame.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_be_bytes(*word))
    }
}

/// The addresses of a datagram, and the numbers of its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) source: IpAddress,
    pub(super) destination: IpAddress,
    pub(super) source_number: u32,
    pub(super) destination_number: u32,
}

const V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + tcp::HEADER_LEN;
const V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + tcp::HEADER_LEN;
/// Octets of the headers of a segment over IPv4 without options.
pub(super) const USUAL: usize = V4;
/// Where the flags are in these.
pub(super) const FLAGS: usize = 47;
/// Octets of that IP header.
pub(super) const IPV4_LEN: u8 = ipv4::HEADER_LEN as u8;
/// More fragments, and the offset.
const FRAGMENT: u16 = 0x3fff;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

#[inline(always)]
fn word(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

/// The length of the TCP header of a segment over IPv4 without options, in a frame of `length` octets; `None` if it is
/// not such a segment. EtherType, version and addresses are for the caller to compare.
#[inline(always)]
pub(super) fn usual(start: &[u8; USUAL], length: usize) -> Option<u8> {
    let total = usize::from(word(start, 16));
    let tcp_len = usize::from(start[46] >> 4) * 4;
    let is_usual = start[23] == tcp::PROTOCOL
        && word(start, 20) & FRAGMENT == 0
        && total <= length - ethernet::HEADER_LEN
        && tcp_len >= tcp::HEADER_LEN
        && ipv4::HEADER_LEN + tcp_len <= total;
    is_usual.then_some(tcp_len as u8)
}

/// Computes the TCP checksum of a segment that [`parse`] has accepted: its sender has left that to its device.
#[inline(never)]
pub(crate) fn complete_checksum(frame: &mut [u8], ip_len: u8) {
    let tcp = ethernet::HEADER_LEN + usize::from(ip_len);
    let (end, sum) = if ip_len == IPV4_LEN {
        let end = ethernet::HEADER_LEN + usize::from(word(frame, 16));
        (end, checksum::sum(&frame[26..34]))
    } else {
        (tcp + usize::from(word(frame, 18)), checksum::sum(&frame[22..54]))
    };
    frame[tcp + 16..tcp + 18].fill(0);
    let Some(segment) = frame.get(tcp..end) else { return };
    // The rest of the pseudo-header: protocol and length.
    let rest = u32::from(tcp::PROTOCOL) + segment.len() as u32;
    let sum = checksum::combine(checksum::combine(sum, rest), checksum::sum(segment));
    let filled = checksum::finish(sum).to_be_bytes();
    frame[tcp + 16..tcp + 18].copy_from_slice(&filled);
}

/// Turns an echo request into the answer, but for the hardware addresses. False if it has options or extension headers.
pub(super) fn make_echo_reply(frame: &mut [u8]) -> bool {
    const HOPS: u8 = 64;
    let is_v4 = frame.len() > 14 && frame[14] == 0x45;
    let (protocol, addresses, message) = if is_v4 { (ICMP, 26, 34) } else { (ICMP6, 22, 54) };
    let at = if is_v4 { 23 } else { 20 };
    if frame.len() < message + 8 || frame[at] != protocol {
        return false;
    }
    let (sources, destinations) = frame[addresses..message].split_at_mut((message - addresses) / 2);
    sources.swap_with_slice(destinations);
    if is_v4 {
        frame[22] = HOPS;
        frame[24..26].fill(0);
        let sum = checksum::finish(checksum::sum(&frame[14..34])).to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
    } else {
        frame[21] = HOPS;
    }
    // RFC 1624: only the type changes, by the same in every sum that contains it.
    let (request, reply): (u16, u16) = if is_v4 { (8, 0) } else { (128, 129) };
    frame[message] = reply as u8;
    let old = u32::from(!word(frame, message + 2)) + u32::from(!(request << 8)) + u32::from(reply << 8);
    frame[message + 2..message + 4].copy_from_slice(&checksum::finish(old).to_be_bytes());
    true
}

/// Reads a frame. Its checksums are the receiver's to verify.
///
/// # Errors
/// Why it is dropped: fragments, VLAN tags, IP options and protocols other than TCP, ICMP and RoCE v2 are
/// [`DropReason::Unsupported`].
#[inline]
pub(super) fn parse(frame: &[u8]) -> Result<Kind, DropReason> {
    let Some(start) = frame.first_chunk::<{ ethernet::HEADER_LEN + ipv4::HEADER_LEN }>() else {
        return Err(DropReason::Malformed);
    };
    match word(start, 12) {
        0x0800 => {
            if start[14] != 0x45 || word(start, 20) & FRAGMENT != 0 {
                return Err(DropReason::Unsupported);
            }
            match start[23] {
                tcp::PROTOCOL => {}
                ICMP => return Ok(Kind::Control),
                roce::PROTOCOL => return datagram(frame),
                _ => return Err(DropReason::Unsupported),
            }
            let Some(headers) = frame.first_chunk::<V4>() else { return Err(DropReason::Malformed) };
            let total = usize::from(word(headers, 16));
            if total < V4 - ethernet::HEADER_LEN || total > frame.len() - ethernet::HEADER_LEN {
                return Err(DropReason::Malformed);
            }
            let address = |at: usize| {
                IpAddress::from_ipv4_bits(u32::from_be_bytes([
                    headers[at],
                    headers[at + 1],
                    headers[at + 2],
                    headers[at + 3],
                ]))
            };
            segment(address(26), address(30), &headers[34..], ipv4::HEADER_LEN, total)
        }
        0x86dd => {
            let Some(headers) = frame.first_chunk::<V6>() else {
                // Neighbor Discovery without options is shorter than a TCP segment.
                return if frame.len() >= V6 - tcp::HEADER_LEN && frame[20] == ICMP6 {
                    Ok(Kind::Control)
                } else {
                    Err(DropReason::Malformed)
                };
            };
            match headers[20] {
                tcp::PROTOCOL => {}
                ICMP6 => return Ok(Kind::Control),
                roce::PROTOCOL => return datagram(frame),
                _ => return Err(DropReason::Unsupported),
            }
            let payload = usize::from(word(headers, 18));
            if headers[14] >> 4 != 6
                || payload < tcp::HEADER_LEN
                || payload > frame.len() - ethernet::HEADER_LEN - ipv6::HEADER_LEN
            {
                return Err(DropReason::Malformed);
            }
            let address = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&headers[at..at + 16]);
                IpAddress::from(std::net::Ipv6Addr::from_bits(u128::from_be_bytes(octets)))
            };
            segment(address(22), address(38), &headers[54..], ipv6::HEADER_LEN, ipv6::HEADER_LEN + payload)
        }
        0x0806 => Ok(Kind::Control),
        _ => Err(DropReason::Unsupported),
    }
}

/// Reads a frame of UDP. The lengths are the receiver's to verify.
#[cold]
fn datagram(frame: &[u8]) -> Result<Kind, DropReason> {
    let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    let (source_number, destination_number) = roce::ends(packet).ok_or(DropReason::Unsupported)?;
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let addresses = if is_v4 { packet.get(12..20) } else { packet.get(8..40) }.ok_or(DropReason::Malformed)?;
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let address = |octets: &[u8]| match (<[u8; 4]>::try_from(octets), <[u8; 16]>::try_from(octets)) {
        (Ok(v4), _) => Ok(IpAddress::from(std::net::Ipv4Addr::from(v4))),
        (_, Ok(v6)) => Ok(IpAddress::from(std::net::Ipv6Addr::from(v6))),
        _ => Err(DropReason::Malformed),
    };
    let (source, destination) = (address(source)?, address(destination)?);
    // An IPv4 address in IPv6 form must not pass for the address itself.
    if !is_v4 && (source.is_ipv4() || destination.is_ipv4()) {
        return Err(DropReason::Malformed);
    }
    Ok(Kind::Datagram(Datagram { source, destination, source_number, destination_number }))
}

#[inline(always)]
fn segment(
    source: IpAddress,
    destination: IpAddress,
    header: &[u8],
    ip_len: usize,
    packet_len: usize,
) -> Result<Kind, DropReason> {
    let tcp_len = usize::from(header[12] >> 4) * 4;
    // An IPv4 address in IPv6 form must not pass for the address itself.
    let mixed = ip_len == ipv6::HEADER_LEN && (source.is_ipv4() || destination.is_ipv4());
    if tcp_len < tcp::HEADER_LEN || ip_len + tcp_len > packet_len || mixed {
        return Err(DropReason::Malformed);
    }
    Ok(Kind::Tcp(Segment {
        source,
        destination,
        source_port: word(header, 0),
        destination_port: word(header, 2),
        flags: header[13],
        ip_len: ip_len as u8,
        tcp_len: tcp_len as u8,
    }))
}
