//! A whole frame at once: what a received one is, and the headers of one to be sent.

mod build;
#[cfg(test)]
mod tests;

pub use build::{Path, TcpChecksum, emit_icmp, prepend_tcp, tcp_headers_len};

use crate::WireError;
use crate::address::{FlowKey, IpAddress};
use crate::arp::ArpPacket;
use crate::checksum::{self, PartialSum};
use crate::ethernet::{EtherType, EthernetAddress, EthernetHeader, VlanTag};
use crate::icmp::{self, IcmpMessage};
use crate::ipv4::Ipv4Header;
use crate::tcp::{self, TcpHeader, TcpOptions};

/// What a received frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A TCP segment; its checksum is not verified yet.
    Tcp(TcpFrame),
    /// An ICMP message over IPv4, its checksum verified.
    Icmp(IcmpFrame<'a>),
    /// An ARP request or reply.
    Arp(ArpFrame),
    /// A part of a fragmented IP packet. This stack sends with DF and does not reassemble.
    Fragment,
    /// Nothing that is handled here.
    Other(Other),
}

/// What kind of frame is not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Another EtherType, IPv6 among them.
    EtherType(EtherType),
    /// Another protocol over IPv4.
    Protocol(u8),
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
    /// Octets of payload, by the IP total length: padding of the frame does not count.
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

    /// Verifies the TCP checksum over a frame in one piece. `false` too if the piece ends too early.
    #[inline]
    pub fn checksum_is_good(&self, frame: &[u8], sum: PartialSum) -> bool {
        match frame.get(self.l4_offset..self.l4_offset + self.l4_len()) {
            Some(octets) => {
                let partial = checksum::combine(self.pseudo_header_sum(), sum(octets));
                checksum::fold(partial) == 0xffff
            }
            None => false,
        }
    }

    /// Verifies the TCP checksum over a frame in several pieces, which begin with the Ethernet header and
    /// may each have any length. `false` too if they end too early.
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
    /// The message.
    pub message: IcmpMessage<'a>,
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

/// Says what a received frame is. `frame` is its first contiguous piece, which has to hold all headers;
/// `total_len` is the length of all pieces (never taken as less than that of `frame`).
///
/// Addresses are not compared with anybody's own: that is the caller's part.
///
/// # Errors
/// Any of the reasons of [`EthernetHeader::parse`], [`Ipv4Header::parse`], [`TcpHeader::parse`],
/// [`IcmpMessage::parse`] and [`ArpPacket::parse`], [`WireError::SourceAddress`], and
/// [`WireError::NotContiguous`], after which a copy in one piece can be tried.
#[inline]
pub fn classify(frame: &[u8], total_len: usize) -> Result<Frame<'_>, WireError> {
    let total_len = total_len.max(frame.len());
    let ethernet = EthernetHeader::parse(frame)?;
    let ip_offset = ethernet.len();
    if ethernet.ether_type != EtherType::IPV4 {
        return classify_other(ethernet, &frame[ip_offset..]);
    }
    let ip = Ipv4Header::parse(&frame[ip_offset..], total_len - ip_offset)?;
    if ip.is_fragment() {
        return Ok(Frame::Fragment);
    }
    if !is_host(ip.source.to_bits()) {
        return Err(WireError::SourceAddress);
    }
    let l4_offset = ip_offset + ip.header_len;
    let l4 = &frame[l4_offset..frame.len().min(ip_offset + ip.total_len)];
    if ip.protocol != tcp::PROTOCOL {
        return classify_icmp(ethernet, ip, l4);
    }
    // A usual header goes from registers into the result. Joined with the other way, or built by a function, its
    // options would be built in memory and copied, for twice the time of the whole function.
    match TcpHeader::parse_fixed(l4) {
        Ok((header, header_len, Some(timestamps))) => Ok(Frame::Tcp(TcpFrame {
            header: TcpHeader { options: TcpOptions { timestamps, ..TcpOptions::NONE }, ..header },
            ..tcp_frame(ethernet, ip, ip_offset, header, header_len)
        })),
        _ => classify_unusual_tcp(ethernet, ip, ip_offset, l4),
    }
}

/// A segment with other options than the usual ones, or one that is no segment.
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

/// Whether a host can have the address: not multicast, reserved, or limited broadcast.
#[inline]
const fn is_host(address: u32) -> bool {
    address < 0xe000_0000
}

#[cold]
fn classify_other(ethernet: EthernetHeader, rest: &[u8]) -> Result<Frame<'_>, WireError> {
    match ethernet.ether_type {
        EtherType::ARP => Ok(Frame::Arp(ArpFrame {
            destination_mac: ethernet.destination,
            vlan: ethernet.vlan,
            packet: ArpPacket::parse(rest)?,
        })),
        other => Ok(Frame::Other(Other::EtherType(other))),
    }
}

#[cold]
fn classify_icmp<'a>(ethernet: EthernetHeader, ip: Ipv4Header, l4: &'a [u8]) -> Result<Frame<'a>, WireError> {
    if ip.protocol != icmp::PROTOCOL {
        return Ok(Frame::Other(Other::Protocol(ip.protocol)));
    }
    if l4.len() < ip.payload_len() {
        return Err(WireError::NotContiguous);
    }
    Ok(Frame::Icmp(IcmpFrame {
        source: ip.source.into(),
        destination: ip.destination.into(),
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan: ethernet.vlan,
        message: IcmpMessage::parse(l4)?,
    }))
}

/// Tells a TCP header that is cut by the end of a buffer segment from one that is wrong.
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
