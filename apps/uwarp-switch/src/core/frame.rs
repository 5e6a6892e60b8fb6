//! What the switch reads of a frame: no more than it needs to say whose it is.

use std::ops::Range;

use uwarp_wire::address::IpAddress;
use uwarp_wire::ethernet::EtherType;
use uwarp_wire::fixed::{self, PLAIN, Packet, V4, V6};
use uwarp_wire::tcp::TcpFlags;
use uwarp_wire::{checksum, icmp, icmp6, ipv4, roce, tcp};

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
    pub(super) flags: TcpFlags,
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
        let at = PLAIN + usize::from(self.ip_len) + at;
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

/// The headers of a segment over IPv4 without options.
pub(super) type Usual<'a> = fixed::Segment<'a, PLAIN, V4>;
/// Octets of that IP header.
pub(super) const IPV4_LEN: u8 = V4 as u8;

/// The headers of a segment over IPv4 without options, if the frame is one. EtherType, version and addresses are for
/// the caller to compare.
#[inline(always)]
pub(super) fn usual(frame: &[u8]) -> Option<Usual<'_>> {
    let head = Usual::of(frame)?;
    let (ip, tcp_len) = (head.packet(), head.tcp_len());
    let is_usual = ip.protocol() == tcp::PROTOCOL
        && !ip.is_fragment()
        && PLAIN + ip.total_len() <= frame.len()
        && tcp_len >= tcp::HEADER_LEN
        && V4 + tcp_len <= ip.total_len();
    is_usual.then_some(head)
}

/// Where the TCP header of a segment begins, where its packet ends, and where the addresses are.
#[inline(always)]
fn extent<const IP: usize>(frame: &[u8]) -> (usize, usize, Range<usize>) {
    let end = Packet::<PLAIN, IP>::of(frame).map_or(0, |packet| PLAIN + packet.total_len());
    (PLAIN + IP, end, Packet::<PLAIN, IP>::addresses())
}

/// Computes the TCP checksum of a segment that [`parse`] has accepted: its sender has left that to its device.
#[inline(never)]
pub(crate) fn complete_checksum(frame: &mut [u8], ip_len: u8) {
    let (tcp, end, addresses) = if ip_len == IPV4_LEN { extent::<V4>(frame) } else { extent::<V6>(frame) };
    let sum = checksum::sum(&frame[addresses]);
    let field = tcp + tcp::CHECKSUM_OFFSET..tcp + tcp::CHECKSUM_OFFSET + 2;
    frame[field.clone()].fill(0);
    let Some(segment) = frame.get(tcp..end) else { return };
    // The rest of the pseudo-header: protocol and length.
    let rest = u32::from(tcp::PROTOCOL) + segment.len() as u32;
    let sum = checksum::combine(checksum::combine(sum, rest), checksum::sum(segment));
    let filled = checksum::finish(sum).to_be_bytes();
    frame[field].copy_from_slice(&filled);
}

/// Turns an echo request into the answer, but for the hardware addresses. False if it has options or extension headers.
pub(super) fn make_echo_reply(frame: &mut [u8]) -> bool {
    match fixed::ether_type::<PLAIN>(frame) {
        Some(EtherType::IPV4) => answer_echo::<V4>(frame, icmp::PROTOCOL, (8, 0)),
        _ => answer_echo::<V6>(frame, icmp6::PROTOCOL, (128, 129)),
    }
}

/// The same over this version of IP, with its protocol and the types of request and reply.
fn answer_echo<const IP: usize>(frame: &mut [u8], protocol: u8, (request, reply): (u16, u16)) -> bool {
    const HOPS: u8 = 64;
    let message = PLAIN + IP;
    let is_usual = |ip: Packet<'_, PLAIN, IP>| ip.has_version() && ip.protocol() == protocol;
    if frame.len() < message + 8 || !Packet::of(frame).is_some_and(is_usual) {
        return false;
    }
    let addresses = &mut frame[Packet::<PLAIN, IP>::addresses()];
    let (sources, destinations) = addresses.split_at_mut(addresses.len() / 2);
    sources.swap_with_slice(destinations);
    frame[Packet::<PLAIN, IP>::HOP_LIMIT] = HOPS;
    if IP == V4 {
        let field = PLAIN + ipv4::CHECKSUM_OFFSET..PLAIN + ipv4::CHECKSUM_OFFSET + 2;
        frame[field.clone()].fill(0);
        let sum = checksum::finish(checksum::sum(&frame[PLAIN..message])).to_be_bytes();
        frame[field].copy_from_slice(&sum);
    }
    // RFC 1624: only the type changes, by the same in every sum that contains it.
    let before = u16::from_be_bytes([frame[message + 2], frame[message + 3]]);
    frame[message] = reply as u8;
    let old = u32::from(!before) + u32::from(!(request << 8)) + u32::from(reply << 8);
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
    match fixed::ether_type::<PLAIN>(frame).ok_or(DropReason::Malformed)? {
        EtherType::IPV4 => packet::<V4>(frame, icmp::PROTOCOL),
        EtherType::IPV6 => packet::<V6>(frame, icmp6::PROTOCOL),
        EtherType::ARP => Ok(Kind::Control),
        _ => Err(DropReason::Unsupported),
    }
}

/// Reads a frame of this version of IP, whose control messages have the protocol `icmp`.
#[inline(always)]
fn packet<const IP: usize>(frame: &[u8], icmp: u8) -> Result<Kind, DropReason> {
    let ip = Packet::<PLAIN, IP>::of(frame).ok_or(DropReason::Malformed)?;
    if !ip.has_version() {
        return Err(if IP == V4 { DropReason::Unsupported } else { DropReason::Malformed });
    }
    if ip.is_fragment() {
        return Err(DropReason::Unsupported);
    }
    match ip.protocol() {
        tcp::PROTOCOL => segment(fixed::Segment::<PLAIN, IP>::of(frame).ok_or(DropReason::Malformed)?, frame.len()),
        roce::PROTOCOL => datagram(frame),
        protocol if protocol == icmp => Ok(Kind::Control),
        _ => Err(DropReason::Unsupported),
    }
}

/// Reads a frame of UDP. The lengths are the receiver's to verify.
#[cold]
fn datagram(frame: &[u8]) -> Result<Kind, DropReason> {
    let packet = frame.get(PLAIN..).unwrap_or(&[]);
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
fn segment<const IP: usize>(head: fixed::Segment<'_, PLAIN, IP>, length: usize) -> Result<Kind, DropReason> {
    let (ip, tcp_len) = (head.packet(), head.tcp_len());
    let (source, destination) = (ip.source(), ip.destination());
    // An IPv4 address in IPv6 form must not pass for the address itself.
    let mixed = IP == V6 && (source.is_ipv4() || destination.is_ipv4());
    if tcp_len < tcp::HEADER_LEN || IP + tcp_len > ip.total_len() || PLAIN + ip.total_len() > length || mixed {
        return Err(DropReason::Malformed);
    }
    Ok(Kind::Tcp(Segment {
        source,
        destination,
        source_port: head.source_port(),
        destination_port: head.destination_port(),
        flags: head.flags(),
        ip_len: IP as u8,
        tcp_len: tcp_len as u8,
    }))
}
