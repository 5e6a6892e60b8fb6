//! What passes between the clients and other hosts, over the uplink.
//!
//! The uplink is one station of its network, which has the shared addresses. Clients know other hosts by their own
//! hardware addresses: each asks, and keeps what it learns. The switch passes a question on as the uplink's, and the
//! answer only to those who have asked. So there is no table of neighbours here that one client, or a stranger, could
//! fill or falsify for others.

use std::net::{IpAddr, Ipv6Addr};

use uwarp_wire::address::IpAddress;
use uwarp_wire::arp::{ArpOperation, ArpPacket};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{ArpFrame, Frame, Icmp6Frame, Path, Route, classify};
use uwarp_wire::icmp::IcmpMessage;
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::ipv6;
use uwarp_wire::tcp::TcpFlags;

use super::{RARE, Switch, Verdict, ends};
use crate::core::counters::DropReason;
use crate::core::frame::{self, Kind, Segment};
use crate::core::outside::Uplink;
use crate::core::replies::Reply;
use crate::core::{ClientId, PLACES, Places};

/// Whether a client sends, or is sent to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

/// Whether a host can send from this address, or be sent to.
fn is_host(address: IpAddress) -> bool {
    let is_reserved = match address.to_ip_addr() {
        IpAddr::V4(address) => address.is_loopback() || address.octets()[0] == 0 || address.octets()[0] >= 240,
        IpAddr::V6(address) => address.is_loopback(),
    };
    !is_reserved && !address.is_unspecified() && !address.is_multicast()
}

/// One of the two hardware addresses of a frame that was parsed.
fn station(octets: &[u8], at: usize) -> [u8; 6] {
    octets.get(at..at + 6).and_then(|octets| octets.try_into().ok()).unwrap_or_default()
}

fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

impl Switch {
    /// Joins the clients to other hosts, by a device with this hardware address.
    pub fn open_uplink(&mut self, mac: [u8; 6]) {
        self.last = [None; PLACES];
        self.macs[ClientId::UPLINK.place()] = mac;
        self.uplink = Some(Uplink::new(mac));
    }

    /// The uplink passes frames, or none.
    pub fn set_uplink(&mut self, is_up: bool) {
        self.last = [None; PLACES];
        if let Some(uplink) = &mut self.uplink {
            uplink.is_up = is_up;
        }
    }

    /// Frames that tell the uplink's network where the shared addresses are.
    pub fn announcements(&mut self) -> Vec<Vec<u8>> {
        let Some(Uplink { mac, .. }) = self.uplink else { return Vec::new() };
        let reply = &mut self.reply;
        let mut frames = Vec::new();
        for own in self.networks.own() {
            if reply.announce(mac, own) {
                frames.push(reply.octets().to_vec());
            }
        }
        frames
    }

    /// Whether an address is another host's, to be reached by the uplink.
    pub(super) fn is_outside(&self, address: IpAddress) -> bool {
        self.uplink.is_some() && !self.is_shared(address)
    }

    // --- from a client ---

    /// A client's segment to another host.
    #[cold]
    pub(super) fn send_outside(
        &mut self,
        from: ClientId,
        segment: &Segment,
        octets: &mut [u8],
    ) -> Result<Verdict, DropReason> {
        let destination = station(octets, 0);
        let Some(uplink) = &self.uplink else { return self.answer_unreachable(from, octets) };
        if !uplink.is_up {
            self.count_drops(from, DropReason::LinkDown, 1);
            return self.answer_unreachable(from, octets);
        }
        if is_group(destination) || destination == self.mac || !is_host(segment.destination) {
            return Err(DropReason::Destination);
        }
        if segment.flags.intersects(RARE) {
            self.follow_outside(from, segment, octets, destination, Way::Out);
        } else if let Some(uplink) = &mut self.uplink
            && uplink.flows.has_doubtful(from)
        {
            let (source, destination) = ends(segment);
            uplink.flows.sent(from, source, destination);
        }
        Ok(self.pass(from, ClientId::UPLINK, segment, octets))
    }

    /// A client's connection with another host begins or ends. It is on the client's account, whoever accepts it:
    /// otherwise others could fill the list.
    fn follow_outside(&mut self, client: ClientId, segment: &Segment, octets: &[u8], host: [u8; 6], way: Way) {
        let Some(uplink) = &mut self.uplink else { return };
        let (source, destination) = ends(segment);
        let flags = segment.flags;
        if flags.intersects(TcpFlags::FIN | TcpFlags::RST) {
            // Whether a host's segment is in the window, only the client's TCP knows: it answers a FIN by its own, and
            // falls silent behind a reset.
            if way == Way::Out {
                uplink.flows.ended((client, source), (client, destination));
            } else if flags.contains(TcpFlags::RST) && uplink.flows.may_have_ended(client, destination, source) {
                // Its next segment is looked at.
                self.last[client.place()] = None;
            }
        } else if !flags.contains(TcpFlags::ACK) {
            if way == Way::Out {
                // As many as the client has ports.
                uplink.asked.insert((client, source.port), destination);
            }
        } else if way == Way::Out {
            let number = segment.sequence(octets).wrapping_add(1);
            uplink.flows.accepted(client, source, destination, host, Some(number));
        } else if uplink.asked.get(&(client, destination.port)) == Some(&source) {
            uplink.flows.accepted(client, source, destination, host, None);
        }
    }

    /// A client asks for the hardware address of another host, which has to be up for the answer.
    fn ask(
        &mut self,
        from: ClientId,
        target: IpAddress,
        write: impl FnOnce(&mut Reply, [u8; 6]) -> bool,
    ) -> Result<Verdict, DropReason> {
        let Some(uplink) = self.uplink.as_mut().filter(|uplink| uplink.is_up) else { return Err(DropReason::LinkDown) };
        if !is_host(target) || !write(&mut self.reply, uplink.mac) {
            return Err(DropReason::Destination);
        }
        uplink.asks(from, target);
        self.relayed_to = Places::from_iter([ClientId::UPLINK]);
        Ok(Verdict::Relay)
    }

    /// The same by ARP. The caller has checked the sender.
    pub(super) fn ask_by_arp(&mut self, from: ClientId, arp: &ArpFrame) -> Result<Verdict, DropReason> {
        let ArpPacket { operation, sender_address, target_address, .. } = arp.packet;
        if operation != ArpOperation::Request || arp.packet.is_probe() {
            return Ok(Verdict::Drop);
        }
        // A host that was found before is asked by itself.
        let to = Some(arp.destination_mac).filter(EthernetAddress::is_unicast);
        self.ask(from, target_address.into(), |reply, mac| {
            reply.packet(&ArpPacket::request(EthernetAddress(mac), sender_address, target_address), to)
        })
    }

    /// The same by Neighbor Discovery. The answer is for the uplink's station, so the question is from a shared
    /// address, also if the client asks from its link-local one.
    pub(super) fn ask_by_solicitation(
        &mut self,
        from: ClientId,
        icmp: &Icmp6Frame<'_>,
        target: Ipv6Addr,
    ) -> Result<Verdict, DropReason> {
        let route = &icmp.route;
        let own = self.networks.first(from, false);
        let Some(own) = own.filter(|_| !route.source.is_unspecified()) else { return Ok(Verdict::Drop) };
        let (to, destination) = match route.destination_mac.is_unicast() {
            true => (route.destination_mac, target),
            false => {
                let group = ipv6::solicited_node(target);
                (ipv6::multicast_mac(group), group)
            }
        };
        self.ask(from, target.into(), |reply, mac| {
            let mac = EthernetAddress(mac);
            let message = Icmp6Message::NeighbourSolicitation { target, source_mac: Some(mac), nonce: None };
            reply.discovery(&Path::new(mac, to, own, destination.into()), &message)
        })
    }

    // --- from the uplink ---

    /// A frame from the uplink. What is for other stations, or nobody's business here, is dropped without being
    /// counted.
    pub(super) fn inspect_outside(&mut self, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        let own = self.macs[ClientId::UPLINK.place()];
        let (destination, source) = (station(octets, 0), station(octets, 6));
        let to_all = is_group(destination);
        // A switch may reflect our own frames.
        if source == own || destination != own && !to_all {
            return Ok(Verdict::Drop);
        }
        if is_group(source) {
            return Err(DropReason::SourceMac);
        }
        match frame::parse(octets) {
            Ok(Kind::Tcp(segment)) if !to_all => self.receive_segment(&segment, octets),
            Ok(Kind::Control) => self.receive_control(to_all, octets),
            Ok(Kind::Datagram(_)) if !to_all => Err(DropReason::Unsupported),
            Err(reason) if !to_all => Err(reason),
            // The network's own talk: spanning trees, names, DHCP.
            _ => Ok(Verdict::Drop),
        }
    }

    #[inline]
    fn receive_segment(&mut self, segment: &Segment, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        if self.is_shared(segment.source) || !is_host(segment.source) {
            return Err(DropReason::SourceAddress);
        }
        if !self.is_shared(segment.destination) {
            return Ok(Verdict::Drop);
        }
        let Some(to) = self.networks.owner(segment.destination, segment.destination_port) else {
            return self.reset_outside(octets);
        };
        if segment.flags.intersects(RARE) {
            self.follow_outside(to, segment, octets, station(octets, 6), Way::In);
        } else if let Some(uplink) = &mut self.uplink
            && uplink.flows.has_doubtful(to)
        {
            let (source, destination) = ends(segment);
            uplink.flows.acknowledged(to, destination, source, segment.acknowledgment(octets));
        }
        Ok(self.pass(ClientId::UPLINK, to, segment, octets))
    }

    #[cold]
    fn reset_outside(&mut self, octets: &[u8]) -> Result<Verdict, DropReason> {
        let (mac, segment) = (self.macs[ClientId::UPLINK.place()], self.whole_segment(octets)?);
        Ok(self.answered_as(ClientId::UPLINK, mac, |reply, mac| reply.reset(mac, &segment)))
    }

    #[cold]
    fn receive_control(&mut self, to_all: bool, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        match classify(octets, octets.len()) {
            Ok(Frame::Arp(arp)) => self.receive_arp(to_all, &arp.packet),
            Ok(Frame::Icmp6(icmp)) => match icmp.message {
                Icmp6Message::NeighbourSolicitation { target, .. } => self.receive_solicitation(&icmp, target),
                Icmp6Message::NeighbourAdvertisement { target, .. } => self.receive_advertisement(&icmp, target),
                _ if to_all => Ok(Verdict::Drop),
                Icmp6Message::EchoRequest { .. } => self.echo(&icmp.route.clone(), octets),
                message => {
                    let flow = message.quoted_tcp().map(|quoted| quoted.flow);
                    self.receive_error(&icmp.route.clone(), flow, octets)
                }
            },
            _ if to_all => Ok(Verdict::Drop),
            Ok(Frame::Icmp(icmp)) => match icmp.message {
                IcmpMessage::EchoRequest { .. } => self.echo(&icmp.route.clone(), octets),
                message => {
                    let flow = message.quoted_tcp().map(|quoted| quoted.flow);
                    self.receive_error(&icmp.route.clone(), flow, octets)
                }
            },
            Ok(_) => Err(DropReason::Unsupported),
            Err(_) => Err(DropReason::Malformed),
        }
    }

    fn receive_arp(&mut self, to_all: bool, packet: &ArpPacket) -> Result<Verdict, DropReason> {
        let sender = IpAddress::from(packet.sender_address);
        let is_for_us = self.is_shared(packet.target_address.into());
        if self.is_shared(sender) {
            return Err(DropReason::SourceAddress);
        }
        if !packet.sender_mac.is_unicast() {
            return Err(DropReason::SourceMac);
        }
        match packet.operation {
            // A check for duplicates (RFC 5227 §2.1.1) as well: the address is taken.
            ArpOperation::Request if is_for_us => {
                let mac = self.macs[ClientId::UPLINK.place()];
                let answer = packet.reply(EthernetAddress(mac));
                Ok(self.answered_as(ClientId::UPLINK, mac, |reply, _| reply.packet(&answer, None)))
            }
            ArpOperation::Reply if is_for_us && !to_all => {
                let answer = *packet;
                self.relay(sender, |reply| reply.packet(&answer, None))
            }
            _ => Ok(Verdict::Drop),
        }
    }

    /// Passes an answer on to the clients that have asked.
    fn relay(&mut self, target: IpAddress, write: impl FnOnce(&mut Reply) -> bool) -> Result<Verdict, DropReason> {
        let askers = self.uplink.as_mut().map_or_else(Places::default, |uplink| uplink.take_askers(target));
        if askers == Places::default() {
            return Err(DropReason::Unasked);
        }
        self.relayed_to = askers;
        Ok(if write(&mut self.reply) { Verdict::Relay } else { Verdict::Drop })
    }

    fn receive_solicitation(&mut self, icmp: &Icmp6Frame<'_>, target: Ipv6Addr) -> Result<Verdict, DropReason> {
        let source = icmp.route.source;
        if self.is_shared(source) {
            return Err(DropReason::SourceAddress);
        }
        if icmp.hop_limit != icmp6::NEIGHBOUR_HOP_LIMIT {
            return Err(DropReason::Malformed);
        }
        if !self.is_shared(target.into()) {
            return Ok(Verdict::Drop);
        }
        let mac = self.macs[ClientId::UPLINK.place()];
        Ok(self.answered_as(ClientId::UPLINK, mac, |reply, mac| match source.is_unspecified() {
            // A check for duplicates (RFC 4862 §5.4.3): all shall know that the address is taken.
            true => reply.announce(mac, target.into()),
            false => reply.advertisement(mac, icmp, target),
        }))
    }

    fn receive_advertisement(&mut self, icmp: &Icmp6Frame<'_>, target: Ipv6Addr) -> Result<Verdict, DropReason> {
        let (route, asked) = (&icmp.route, IpAddress::from(target));
        if self.is_shared(asked) || self.is_shared(route.source) {
            return Err(DropReason::SourceAddress);
        }
        if icmp.hop_limit != icmp6::NEIGHBOUR_HOP_LIMIT {
            return Err(DropReason::Malformed);
        }
        if !self.is_shared(route.destination) {
            return Err(DropReason::Unasked);
        }
        let path = Path::new(route.source_mac, route.destination_mac, route.source, route.destination);
        self.relay(asked, |reply| reply.discovery(&path, &icmp.message))
    }

    /// An ICMP error goes to the sender of the segment that it quotes.
    fn receive_error(
        &mut self,
        route: &Route,
        quoted: Option<uwarp_wire::address::FlowKey>,
        octets: &mut [u8],
    ) -> Result<Verdict, DropReason> {
        let flow = quoted.ok_or(DropReason::Unsupported)?;
        if self.is_shared(route.source) || !is_host(route.source) {
            return Err(DropReason::SourceAddress);
        }
        match self.networks.owner(flow.local, flow.local_port) {
            Some(to)
                if self.is_shared(flow.local) && flow.local == route.destination && !self.is_shared(flow.remote) =>
            {
                Ok(self.pass_control(ClientId::UPLINK, to, octets))
            }
            _ => Err(DropReason::ForgedIcmp),
        }
    }

    /// Answers a ping for all clients, in the frame itself.
    fn echo(&mut self, route: &Route, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        if self.is_shared(route.source) || !is_host(route.source) {
            return Err(DropReason::SourceAddress);
        }
        if !self.is_shared(route.destination) {
            return Ok(Verdict::Drop);
        }
        if !frame::make_echo_reply(octets) {
            return Err(DropReason::Unsupported);
        }
        self.counters[ClientId::UPLINK.place()].answered += 1;
        octets.copy_within(6..12, 0);
        octets[6..12].copy_from_slice(&self.macs[ClientId::UPLINK.place()]);
        Ok(Verdict::Forward { to: ClientId::UPLINK, ip_len: 0, tcp_len: 0 })
    }

    #[cfg(test)]
    pub(in crate::core) fn followed_outside(&self) -> usize {
        self.uplink.as_ref().map_or(0, |uplink| uplink.flows.len())
    }
}
