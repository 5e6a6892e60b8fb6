//! Whole frames: classifying a received one, and building the headers of one to send.

mod build;
#[cfg(test)]
mod tests;

pub use build::{
    Path, TcpChecksum, emit_datagram, emit_fragment, emit_icmp, emit_icmp6, emit_packet, prepend_tcp, tcp_headers_len,
};

use crate::WireError;
use crate::address::{FlowKey, IpAddress};
use crate::arp::ArpPacket;
use crate::checksum::{self, PartialSum};
use crate::ethernet::{self, EtherType, EthernetAddress, EthernetHeader, VlanTag};
use crate::fixed::{self, PLAIN, TAGGED, V4, V6};
use crate::icmp::{self, IcmpMessage};
use crate::icmp6::{self, Icmp6Message};
use crate::ipv4::{self, Ipv4Header};
use crate::ipv6::{self, Ipv6Header, Walked};
use crate::tcp::{self, TcpHeader, TcpOptions};

/// A received frame, classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A TCP segment; its checksum is not verified yet.
    Tcp(TcpFrame),
    /// An ICMP message over IPv4, its checksum verified.
    Icmp(IcmpFrame<'a>),
    /// An ICMPv6 message, its checksum verified.
    Icmp6(Icmp6Frame<'a>),
    /// An ARP request or reply.
    Arp(ArpFrame),
    /// A part of a fragmented IP packet.
    Fragment(FragmentFrame),
    /// An IP packet with contents that this stack does not handle.
    Refused(RefusedFrame),
    /// Another EtherType.
    Other(EtherType),
}

/// Source and destination of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Sender.
    pub source: IpAddress,
    /// Receiver.
    pub destination: IpAddress,
    /// Sender on the link.
    pub source_mac: EthernetAddress,
    /// Receiver on the link.
    pub destination_mac: EthernetAddress,
    /// VLAN tag.
    pub vlan: Option<VlanTag>,
    /// Where the IP header begins in the frame.
    pub ip_offset: usize,
    /// Octets of the IP packet, headers included.
    pub ip_len: usize,
}

/// A part of a fragmented packet, of either version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentFrame {
    /// The packet's addresses.
    pub route: Route,
    /// What the fragments of one packet share (16 bits in IPv4).
    pub identification: u32,
    /// Protocol of the whole packet; for IPv6, the header that its fragmentable part begins with.
    pub protocol: u8,
    /// Differentiated services code point and ECN bits.
    pub traffic_class: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Offset in the whole packet, in octets.
    pub offset: usize,
    /// Further fragments follow.
    pub more: bool,
    /// Where the fragment's octets begin in the frame.
    pub payload_offset: usize,
    /// How many they are.
    pub payload_len: usize,
}

/// An IP packet that this stack does not handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedFrame {
    /// The packet's addresses.
    pub route: Route,
    /// Why.
    pub refusal: Refusal,
}

/// Why an IP packet is not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It carries this protocol.
    Protocol {
        /// The protocol's number.
        protocol: u8,
        /// Offset of the octet that names it, from the start of an IPv6 header; meaningless for IPv4.
        named_at: usize,
    },
    /// An IPv6 extension header demands an ICMPv6 Parameter Problem.
    Header {
        /// The answer's code.
        code: u8,
        /// The octet at fault, from the start of the IPv6 header.
        pointer: usize,
        /// Answer even if the packet was multicast.
        even_multicast: bool,
    },
    /// Drop without an answer: the packet is empty, or an extension header asks for that.
    Silent,
}

/// A received TCP segment. Offsets count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFrame {
    /// The connection.
    pub flow: FlowKey,
    /// The TCP header.
    pub header: TcpHeader,
    /// Where the IP header begins.
    pub ip_offset: usize,
    /// Where the TCP header begins.
    pub l4_offset: usize,
    /// Where the payload begins.
    pub payload_offset: usize,
    /// Octets of payload by the IP total length, so without padding of the frame.
    pub payload_len: usize,
    /// The ECN bits of the IP header, see [`crate::ipv4::ecn`].
    pub ecn: u8,
    /// Sender on the link.
    pub source_mac: EthernetAddress,
    /// Receiver on the link.
    pub destination_mac: EthernetAddress,
    /// VLAN tag.
    pub vlan: Option<VlanTag>,
}

impl TcpFrame {
    /// Octets of TCP header and payload.
    #[inline]
    pub const fn l4_len(&self) -> usize {
        self.payload_offset - self.l4_offset + self.payload_len
    }

    /// The partial sum of the pseudo-header.
    #[inline]
    pub const fn pseudo_header_sum(&self) -> u32 {
        checksum::pseudo_header(self.flow.remote, self.flow.local, tcp::PROTOCOL, self.l4_len())
    }

    /// Verifies the TCP checksum over a contiguous frame. `false` also if the frame ends too early.
    #[inline]
    pub fn checksum_is_good(&self, frame: &[u8], sum: PartialSum) -> bool {
        let end = self.l4_offset + self.l4_len();
        // Behind an IPv4 header without options, the addresses of the pseudo-header directly precede the octets to sum.
        let (start, pseudo_header) = if self.l4_offset - self.ip_offset == ipv4::HEADER_LEN {
            (self.l4_offset - 8, u32::from(tcp::PROTOCOL) + self.l4_len() as u32)
        } else {
            (self.l4_offset, self.pseudo_header_sum())
        };
        match frame.get(start..end) {
            Some(octets) => checksum::fold(checksum::combine(pseudo_header, sum(octets))) == 0xffff,
            None => false,
        }
    }

    /// Verifies the TCP checksum over a frame in several parts of any length, which begin with the Ethernet header.
    /// `false` also if they end too early.
    pub fn checksum_is_good_chained<'s>(&self, pieces: impl IntoIterator<Item = &'s [u8]>, sum: PartialSum) -> bool {
        let mut partial = self.pseudo_header_sum();
        let mut to_skip = self.l4_offset;
        let mut summed = 0;
        for piece in pieces {
            let skipped = to_skip.min(piece.len());
            to_skip -= skipped;
            let wanted = (self.l4_len() - summed).min(piece.len() - skipped);
            let octets = &piece[skipped..skipped + wanted];
            partial = checksum::append(partial, summed, sum(octets));
            summed += wanted;
        }
        summed == self.l4_len() && checksum::fold(partial) == 0xffff
    }
}

/// A received ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpFrame<'a> {
    /// The packet's addresses.
    pub route: Route,
    /// The message.
    pub message: IcmpMessage<'a>,
}

/// A received ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp6Frame<'a> {
    /// The packet's addresses.
    pub route: Route,
    /// Hop limit on arrival: 255 shows that no router has forwarded it.
    pub hop_limit: u8,
    /// The message.
    pub message: Icmp6Message<'a>,
}

/// A received ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpFrame {
    /// Receiver on the link.
    pub destination_mac: EthernetAddress,
    /// VLAN tag.
    pub vlan: Option<VlanTag>,
    /// The packet.
    pub packet: ArpPacket,
}

/// Classifies a received frame. `frame` is its first contiguous part, which must hold all headers; `total_len` is the
/// length of all parts (never taken as less than that of `frame`).
///
/// Destination addresses are not compared with our own: the caller does that.
///
/// # Errors
/// Any of the reasons of [`EthernetHeader::parse`], [`Ipv4Header::parse`], [`TcpHeader::parse`],
/// [`IcmpMessage::parse`] and [`ArpPacket::parse`], [`WireError::SourceAddress`], and
/// [`WireError::NotContiguous`], after which a copy in one piece can be tried.
#[inline]
pub fn classify(frame: &[u8], total_len: usize) -> Result<Frame<'_>, WireError> {
    match usual_tcp(frame, total_len) {
        Some(segment) => Ok(Frame::Tcp(segment)),
        None => classify_any(frame, total_len),
    }
}

/// What [`classify`] returns for the usual segment: IPv4 without IP options or VLAN tag, and no TCP option but
/// timestamps. `None` for any other frame, which [`classify`] then has to judge.
///
/// Each field goes from the frame directly into the result. Going through the single headers would write it to memory
/// two or three times and read it back in other sizes, which defeats store forwarding.
#[inline(always)]
pub fn usual_tcp(frame: &[u8], total_len: usize) -> Option<TcpFrame> {
    type Usual<'a> = fixed::Segment<'a, PLAIN, V4>;
    let head = Usual::of(frame)?;
    let ip = head.packet();
    let (header_len, ip_len) = (head.tcp_len(), ip.total_len());
    if !ip.is_tcp()
        || ip_len < ipv4::HEADER_LEN + header_len
        || ip_len > total_len.max(frame.len()) - ethernet::HEADER_LEN
        || header_len < tcp::HEADER_LEN
        || !checksum::is_good_ipv4_header(ip.header())
        || !is_host(ip.source().ipv4_bits())
    {
        return None;
    }
    let payload_offset = Usual::TCP + header_len;
    let timestamps = TcpOptions::parse_usual(frame.get(Usual::OPTIONS..payload_offset)?)?;
    Some(TcpFrame {
        flow: head.flow(),
        header: TcpHeader {
            source_port: head.source_port(),
            destination_port: head.destination_port(),
            sequence: head.sequence(),
            acknowledgment: head.acknowledgment(),
            flags: head.flags(),
            window: head.window(),
            urgent: head.urgent(),
            options: TcpOptions { timestamps, ..TcpOptions::NONE },
        },
        ip_offset: ethernet::HEADER_LEN,
        l4_offset: Usual::TCP,
        payload_offset,
        payload_len: ip_len - ipv4::HEADER_LEN - header_len,
        ecn: ip.ecn(),
        source_mac: EthernetAddress([frame[6], frame[7], frame[8], frame[9], frame[10], frame[11]]),
        destination_mac: EthernetAddress([frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]]),
        vlan: None,
    })
}

/// [`classify`] for any frame.
#[inline(never)]
fn classify_any(frame: &[u8], total_len: usize) -> Result<Frame<'_>, WireError> {
    let total_len = total_len.max(frame.len());
    let ethernet = EthernetHeader::parse(frame)?;
    let ip_offset = ethernet.len();
    if ethernet.ether_type != EtherType::IPV4 {
        return classify_other(ethernet, frame, total_len);
    }
    let ip = Ipv4Header::parse(&frame[ip_offset..], total_len - ip_offset)?;
    if !is_host(ip.source.to_bits()) {
        return Err(WireError::SourceAddress);
    }
    if ip.is_fragment() {
        return Ok(Frame::Fragment(ipv4_fragment(&ethernet, &ip)));
    }
    let l4_offset = ip_offset + ip.header_len;
    let l4 = &frame[l4_offset..frame.len().min(ip_offset + ip.total_len)];
    if ip.protocol != tcp::PROTOCOL {
        return classify_icmp(ethernet, ip, l4);
    }
    // A usual header goes from registers into the result. Sharing the other path, or a function that builds the header,
    // would build the options in memory and copy them, which doubles the time of this whole function.
    match TcpHeader::parse_fixed(l4) {
        Ok((header, header_len, Some(timestamps))) => Ok(Frame::Tcp(TcpFrame {
            header: TcpHeader { options: TcpOptions { timestamps, ..TcpOptions::NONE }, ..header },
            ..tcp_frame(ethernet, ip, ip_offset, header, header_len)
        })),
        _ => classify_unusual_tcp(ethernet, ip, ip_offset, l4),
    }
}

/// The connection that a frame seems to belong to, for prefetching. Nothing in the frame is verified, so [`classify`]
/// may come to another result. `None` if the TCP ports are not where the usual packet has them: IPv4 or IPv6 without
/// options, with or without a VLAN tag.
#[inline]
pub fn peek_flow(frame: &[u8]) -> Option<FlowKey> {
    fn peek<const LINK: usize, const IP: usize>(frame: &[u8]) -> Option<FlowKey> {
        fixed::Segment::<LINK, IP>::of(frame).filter(|head| head.packet().is_tcp()).map(fixed::Segment::flow)
    }
    match fixed::ether_type::<PLAIN>(frame)? {
        EtherType::IPV4 => peek::<PLAIN, V4>(frame),
        EtherType::VLAN => peek::<TAGGED, V4>(frame).or_else(|| peek::<TAGGED, V6>(frame)),
        _ => peek::<PLAIN, V6>(frame),
    }
}

/// A segment with unusual options, or an invalid segment.
#[inline(never)]
fn classify_unusual_tcp(
    ethernet: EthernetHeader,
    ip: Ipv4Header,
    ip_offset: usize,
    l4: &[u8],
) -> Result<Frame<'static>, WireError> {
    match TcpHeader::parse(l4) {
        Ok((header, header_len)) => Ok(Frame::Tcp(tcp_frame(ethernet, ip, ip_offset, header, header_len))),
        Err(error) => Err(split_header(error, l4, ip.payload_len())),
    }
}

#[inline(always)]
fn tcp_frame(
    ethernet: EthernetHeader,
    ip: Ipv4Header,
    ip_offset: usize,
    header: TcpHeader,
    header_len: usize,
) -> TcpFrame {
    let l4_offset = ip_offset + ip.header_len;
    TcpFrame {
        flow: FlowKey {
            remote: ip.source.into(),
            local: ip.destination.into(),
            remote_port: header.source_port,
            local_port: header.destination_port,
        },
        header,
        ip_offset,
        l4_offset,
        payload_offset: l4_offset + header_len,
        payload_len: ip.payload_len() - header_len,
        ecn: ip.ecn(),
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan: ethernet.vlan,
    }
}

/// Whether a host can send from this address over a link (RFC 1122 §3.2.1.3). Excluded are multicast, reserved and
/// limited broadcast addresses, network 0 (used by DHCP clients without an address) and network 127 (loopback).
#[inline]
const fn is_host(address: u32) -> bool {
    address.wrapping_sub(0x0100_0000) < 0xdf00_0000 && address >> 24 != 127
}

/// Everything but IPv4. IPv6 is handled here, in line; the rest goes through cold code.
#[inline(never)]
fn classify_other(ethernet: EthernetHeader, frame: &[u8], total_len: usize) -> Result<Frame<'_>, WireError> {
    match ethernet.ether_type {
        EtherType::IPV6 => classify_ipv6(ethernet, frame, total_len),
        EtherType::ARP => Ok(Frame::Arp(ArpFrame {
            destination_mac: ethernet.destination,
            vlan: ethernet.vlan,
            packet: ArpPacket::parse(&frame[ethernet.len()..])?,
        })),
        other => Ok(Frame::Other(other)),
    }
}

#[inline]
fn classify_ipv6(ethernet: EthernetHeader, frame: &[u8], total_len: usize) -> Result<Frame<'_>, WireError> {
    let ip_offset = ethernet.len();
    let packet = &frame[ip_offset..];
    let ip = Ipv6Header::parse(packet, total_len - ip_offset)?;
    let (protocol, l4_in_packet, named_at) = if ip.next_header == tcp::PROTOCOL {
        (tcp::PROTOCOL, ipv6::HEADER_LEN, 6)
    } else {
        match ipv6::walk(&ip, packet)? {
            Walked::Upper { protocol, offset, named_at } => (protocol, offset, named_at),
            other => return Ok(unusual_ipv6(&ethernet, &ip, other)),
        }
    };
    let end = ipv6::HEADER_LEN + ip.payload_len;
    let (Some(l4), Some(l4_len)) = (packet.get(l4_in_packet..packet.len().min(end)), end.checked_sub(l4_in_packet))
    else {
        return Err(WireError::TotalLength);
    };
    if protocol != tcp::PROTOCOL {
        return classify_upper6(&ethernet, &ip, l4, l4_len, (protocol, named_at));
    }
    // RFC 4291 §2.5.2: `::` cannot be the source of a connection.
    if ip.source.is_unspecified() {
        return Err(WireError::SourceAddress);
    }
    let (header, header_len) = TcpHeader::parse(l4).map_err(|error| split_header(error, l4, l4_len))?;
    let l4_offset = ip_offset + l4_in_packet;
    Ok(Frame::Tcp(TcpFrame {
        flow: FlowKey {
            remote: ip.source.into(),
            local: ip.destination.into(),
            remote_port: header.source_port,
            local_port: header.destination_port,
        },
        header,
        ip_offset,
        l4_offset,
        payload_offset: l4_offset + header_len,
        payload_len: l4_len - header_len,
        ecn: ip.ecn(),
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan: ethernet.vlan,
    }))
}

fn route6(ethernet: &EthernetHeader, ip: &Ipv6Header) -> Route {
    Route {
        source: ip.source.into(),
        destination: ip.destination.into(),
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan: ethernet.vlan,
        ip_offset: ethernet.len(),
        ip_len: ipv6::HEADER_LEN + ip.payload_len,
    }
}

fn route4(ethernet: &EthernetHeader, ip: &Ipv4Header) -> Route {
    Route {
        source: ip.source.into(),
        destination: ip.destination.into(),
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan: ethernet.vlan,
        ip_offset: ethernet.len(),
        ip_len: ip.total_len,
    }
}

/// Fragments, and packets that their extension headers end.
#[cold]
fn unusual_ipv6<'a>(ethernet: &EthernetHeader, ip: &Ipv6Header, walked: Walked) -> Frame<'a> {
    let route = route6(ethernet, ip);
    let refusal = match walked {
        Walked::Fragment { header, offset } => {
            return Frame::Fragment(FragmentFrame {
                route,
                identification: header.identification,
                protocol: header.next_header,
                traffic_class: ip.traffic_class,
                hop_limit: ip.hop_limit,
                offset: header.offset,
                more: header.more,
                payload_offset: route.ip_offset + offset,
                payload_len: route.ip_len - offset,
            });
        }
        Walked::Problem { code, pointer, even_multicast } => Refusal::Header { code, pointer, even_multicast },
        Walked::Upper { .. } | Walked::Nothing | Walked::Discard => Refusal::Silent,
    };
    Frame::Refused(RefusedFrame { route, refusal })
}

/// ICMPv6, and protocols that are not handled.
#[cold]
fn classify_upper6<'a>(
    ethernet: &EthernetHeader,
    ip: &Ipv6Header,
    l4: &'a [u8],
    l4_len: usize,
    (protocol, named_at): (u8, usize),
) -> Result<Frame<'a>, WireError> {
    let route = route6(ethernet, ip);
    if protocol != icmp6::PROTOCOL {
        return Ok(Frame::Refused(RefusedFrame { route, refusal: Refusal::Protocol { protocol, named_at } }));
    }
    if l4.len() < l4_len {
        return Err(WireError::NotContiguous);
    }
    let message = Icmp6Message::parse(l4, route.source, route.destination)?;
    Ok(Frame::Icmp6(Icmp6Frame { route, hop_limit: ip.hop_limit, message }))
}

#[cold]
fn ipv4_fragment(ethernet: &EthernetHeader, ip: &Ipv4Header) -> FragmentFrame {
    let route = route4(ethernet, ip);
    FragmentFrame {
        route,
        identification: u32::from(ip.identification),
        protocol: ip.protocol,
        traffic_class: ip.traffic_class,
        hop_limit: ip.hop_limit,
        offset: usize::from(ip.fragment_offset) * 8,
        more: ip.more_fragments,
        payload_offset: route.ip_offset + ip.header_len,
        payload_len: ip.payload_len(),
    }
}

#[cold]
fn classify_icmp<'a>(ethernet: EthernetHeader, ip: Ipv4Header, l4: &'a [u8]) -> Result<Frame<'a>, WireError> {
    let route = route4(&ethernet, &ip);
    if ip.protocol != icmp::PROTOCOL {
        let refusal = Refusal::Protocol { protocol: ip.protocol, named_at: 9 };
        return Ok(Frame::Refused(RefusedFrame { route, refusal }));
    }
    if l4.len() < ip.payload_len() {
        return Err(WireError::NotContiguous);
    }
    Ok(Frame::Icmp(IcmpFrame { route, message: IcmpMessage::parse(l4)? }))
}

/// Distinguishes a TCP header that is cut by the end of a buffer segment from an invalid one.
#[cold]
fn split_header(error: WireError, l4: &[u8], payload_len: usize) -> WireError {
    let needed = match l4.get(12) {
        Some(octet) => usize::from(octet >> 4) * 4,
        None => tcp::HEADER_LEN,
    };
    let needed = needed.max(tcp::HEADER_LEN);
    let is_cut = l4.len() < needed && needed <= payload_len;
    match error {
        WireError::Truncated | WireError::HeaderLength if is_cut => WireError::NotContiguous,
        other => other,
    }
}
