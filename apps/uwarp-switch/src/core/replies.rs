//! Frames that the switch makes itself.

use std::net::{IpAddr, Ipv6Addr};

use uwarp_tcp::reset_for;
use uwarp_wire::WireError;
use uwarp_wire::address::IpAddress;
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::{self, EthernetAddress};
use uwarp_wire::frame::{ArpFrame, Icmp6Frame, Path, Route, TcpChecksum, TcpFrame, emit_icmp, emit_icmp6, prepend_tcp};
use uwarp_wire::icmp::{self, IcmpMessage};
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::ipv6;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use super::flows::End;

/// Octets of a quoted packet: its IP header of either version and 8 octets behind it are enough for its sender.
const QUOTED: usize = 48;

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

    /// Asks `to`, which belongs to a client with this hardware address, whether it still has a connection with `gone`. A SYN
    /// is answered with an acknowledgment whatever its number (RFC 5961 §4.2); that meets a port without an owner, and gets
    /// the reset which fits.
    pub(super) fn probe(&mut self, mac: [u8; 6], client: [u8; 6], gone: End, to: End) -> bool {
        let mut header = TcpHeader::new(TcpFlags::SYN);
        (header.source_port, header.destination_port) = (gone.port, to.port);
        let path = Path::new(EthernetAddress(mac), EthernetAddress(client), gone.address, to.address);
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
        let length = frame.packet.reply(EthernetAddress(mac)).emit_frame(&mut self.octets);
        self.written(length)
    }

    /// Answers a Neighbor Solicitation likewise; a check for duplicates gets no answer.
    pub(super) fn advertisement(&mut self, mac: [u8; 6], frame: &Icmp6Frame<'_>, target: Ipv6Addr) -> bool {
        let Some(_) = frame.route.source.to_ipv6().filter(|source| !source.is_unspecified()) else { return false };
        let message = Icmp6Message::NeighbourAdvertisement {
            router: false,
            solicited: true,
            overrides: true,
            target,
            target_mac: Some(EthernetAddress(mac)),
        };
        let source = IpAddress::from(IpAddr::V6(target));
        let path = Path {
            hop_limit: icmp6::NEIGHBOUR_HOP_LIMIT,
            ..Path::new(EthernetAddress(mac), frame.route.source_mac, source, frame.route.source)
        };
        let length = emit_icmp6(&mut self.octets, &path, &message);
        self.written(length)
    }
}

// The longest: an ICMPv6 error.
const _: () = assert!(ethernet::HEADER_LEN + ipv6::HEADER_LEN + icmp6::HEADER_LEN + QUOTED <= ROOM);
