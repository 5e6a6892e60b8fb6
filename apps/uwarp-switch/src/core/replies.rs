//! Frames that the switch makes itself.

use std::net::Ipv6Addr;

use uwarp_tcp::reset_for;
use uwarp_wire::WireError;
use uwarp_wire::address::IpAddress;
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::{self, EtherType, EthernetAddress};
use uwarp_wire::frame::{ArpFrame, Icmp6Frame, Path, Route, TcpChecksum, TcpFrame, emit_icmp, emit_icmp6, prepend_tcp};
use uwarp_wire::icmp::{self, IcmpMessage};
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::ipv6;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use super::flows::End;

/// Octets of a quoted packet: its IP header of either version and 8 octets behind it are enough for its sender.
const QUOTED: usize = 48;

/// Where the target's hardware address is in an ARP packet.
const ARP_TARGET: std::ops::Range<usize> = 32..38;

/// Room for any of these frames.
pub(super) const ROOM: usize = 192;

/// A frame that the switch made.
#[derive(Debug)]
pub(super) struct Reply {
    octets: [u8; ROOM],
    start: usize,
    len: usize,
}

impl Default for Reply {
    fn default() -> Self {
        Reply { octets: [0; ROOM], start: 0, len: 0 }
    }
}

impl Reply {
    pub(super) fn octets(&self) -> &[u8] {
        &self.octets[self.start..self.start + self.len]
    }

    /// Directs the frame to another station.
    pub(super) fn readdress(&mut self, mac: [u8; 6]) {
        let Some(frame) = self.octets.get_mut(self.start..self.start + self.len) else { return };
        frame[..6].copy_from_slice(&mac);
        if frame[12..14] == EtherType::ARP.0.to_be_bytes() {
            frame[ARP_TARGET].copy_from_slice(&mac);
        }
    }

    /// Keeps what was written at the start of the room.
    fn written(&mut self, length: Result<usize, WireError>) -> bool {
        (self.start, self.len) = (0, length.unwrap_or(0));
        self.len > 0
    }

    fn segment(&mut self, path: &Path, header: &TcpHeader) -> bool {
        let length = prepend_tcp(&mut self.octets, path, header, 0, 0, TcpChecksum::Full { payload_sum: 0 });
        let length = length.unwrap_or(0);
        (self.start, self.len) = (ROOM - length, length);
        length > 0
    }

    /// The reset for a segment to a port that nobody owns (RFC 9293 §3.10.7.1). False if the segment is a reset.
    pub(super) fn reset(&mut self, mac: [u8; 6], frame: &TcpFrame) -> bool {
        let Some(header) = reset_for(&frame.header, frame.payload_len as u32) else { return false };
        let path = Path::new(EthernetAddress(mac), frame.source_mac, frame.flow.local, frame.flow.remote);
        self.segment(&path, &header)
    }

    /// Asks `to`, which is at this hardware address, whether it still has a connection with `gone`. A SYN is answered
    /// with an acknowledgment whatever its number (RFC 5961 §4.2); that meets a port without an owner, and gets the
    /// reset which fits.
    pub(super) fn probe(&mut self, mac: [u8; 6], at: [u8; 6], gone: End, to: End) -> bool {
        let mut header = TcpHeader::new(TcpFlags::SYN);
        (header.source_port, header.destination_port) = (gone.port, to.port);
        let path = Path::new(EthernetAddress(mac), EthernetAddress(at), gone.address, to.address);
        self.segment(&path, &header)
    }

    /// Says that no host has the destination of a packet. `octets` is the whole frame.
    pub(super) fn unreachable(&mut self, mac: [u8; 6], own: IpAddress, route: &Route, octets: &[u8]) -> bool {
        let packet = octets.get(route.ip_offset..).unwrap_or(&[]);
        let quoted = &packet[..packet.len().min(route.ip_len).min(QUOTED)];
        let path = Path::new(EthernetAddress(mac), route.source_mac, own, route.source);
        let length = if own.is_ipv4() {
            let code = icmp::unreachable::HOST;
            emit_icmp(&mut self.octets, &path, &IcmpMessage::DestinationUnreachable { code, next_hop_mtu: 0, quoted })
        } else {
            let code = icmp6::unreachable::ADDRESS;
            emit_icmp6(&mut self.octets, &path, &Icmp6Message::DestinationUnreachable { code, quoted })
        };
        self.written(length)
    }

    /// Answers an ARP request for any address with the switch's own: what nobody has is answered by ICMP, at once.
    pub(super) fn arp(&mut self, mac: [u8; 6], frame: &ArpFrame) -> bool {
        let ArpPacket { operation, .. } = frame.packet;
        if operation != uwarp_wire::arp::ArpOperation::Request
            || frame.packet.is_gratuitous()
            || frame.packet.is_probe()
        {
            return false;
        }
        self.packet(&frame.packet.reply(EthernetAddress(mac)), None)
    }

    /// Answers a Neighbor Solicitation likewise; a check for duplicates gets no answer.
    pub(super) fn advertisement(&mut self, mac: [u8; 6], frame: &Icmp6Frame<'_>, target: Ipv6Addr) -> bool {
        let Some(_) = frame.route.source.to_ipv6().filter(|source| !source.is_unspecified()) else { return false };
        self.claim6(mac, (frame.route.source_mac, frame.route.source), target, true)
    }

    /// Says that this station has an IPv6 address.
    fn claim6(&mut self, mac: [u8; 6], to: (EthernetAddress, IpAddress), target: Ipv6Addr, solicited: bool) -> bool {
        let target_mac = Some(EthernetAddress(mac));
        let message =
            Icmp6Message::NeighbourAdvertisement { router: false, solicited, overrides: true, target, target_mac };
        self.discovery(&Path::new(EthernetAddress(mac), to.0, target.into(), to.1), &message)
    }

    /// A message of Neighbor Discovery.
    pub(super) fn discovery(&mut self, path: &Path, message: &Icmp6Message<'_>) -> bool {
        let path = Path { hop_limit: icmp6::NEIGHBOUR_HOP_LIMIT, ..*path };
        let length = emit_icmp6(&mut self.octets, &path, message);
        self.written(length)
    }

    /// Tells all stations that this one has an address: an ARP announcement, or an advertisement that nobody has asked
    /// for.
    pub(super) fn announce(&mut self, mac: [u8; 6], address: IpAddress) -> bool {
        match (address.to_ipv4(), address.to_ipv6()) {
            (Some(address), _) => self.packet(&ArpPacket::announcement(EthernetAddress(mac), address), None),
            (_, Some(target)) => {
                let all = ipv6::ALL_NODES;
                self.claim6(mac, (ipv6::multicast_mac(all), all.into()), target, false)
            }
            _ => false,
        }
    }

    /// An ARP packet, to a station or to where such packets go.
    pub(super) fn packet(&mut self, packet: &ArpPacket, to: Option<EthernetAddress>) -> bool {
        let length = packet.emit_frame(&mut self.octets);
        if let Some(to) = to {
            self.octets[..6].copy_from_slice(&to.0);
        }
        self.written(length)
    }
}

// The longest: an ICMPv6 error.
const _: () = assert!(ethernet::HEADER_LEN + ipv6::HEADER_LEN + icmp6::HEADER_LEN + QUOTED <= ROOM);
