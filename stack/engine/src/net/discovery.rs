//! Address resolution on the link: ARP (RFC 826, with announcements and conflicts by RFC 5227), Neighbor Discovery (RFC
//! 4861) and the check of our own IPv6 addresses (RFC 4862 §5.4). Routers are configured; their advertisements and
//! redirects are ignored.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use uwarp_wire::address::IpAddress;
use uwarp_wire::arp::{ArpOperation, ArpPacket};
use uwarp_wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use uwarp_wire::frame::{ArpFrame, Icmp6Frame, Path, emit_icmp6};
use uwarp_wire::icmp6::{Icmp6Message, NEIGHBOUR_HOP_LIMIT};
use uwarp_wire::ipv6;

use crate::api::command::AsyncEvent;
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::link::Link;
use crate::link::port::Port;
use crate::net::addresses::Check;
use crate::net::neighbours::{Advertisement, Request};
use crate::net::{ANNOUNCE_INTERVAL, Net};

/// Least time between two defences of an address (DEFEND_INTERVAL of RFC 5227 §1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// A received Neighbor Solicitation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Solicitation {
    pub(crate) target: Ipv6Addr,
    pub(crate) source_mac: Option<EthernetAddress>,
    pub(crate) nonce: Option<[u8; 6]>,
}

impl Net {
    /// Rare work: the check of our addresses, the second announcement, ageing of fragments.
    #[cold]
    pub(crate) fn run_chores<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) {
        while let Some(check) = self.addresses.poll_check(common.now) {
            match check {
                Check::Solicit(address, nonce) => send_check(link, &mut common.counters, address, nonce),
                Check::Assigned(address) => {
                    advertise(link, &mut common.counters, address);
                    // Connections that wait for the address continue.
                    self.neighbours.touch();
                }
            }
        }
        if self.announce_at.is_some_and(|at| at <= common.now) {
            self.announce_at = None;
            self.announce(link, &mut common.counters);
        }
        self.expire_fragments(link, common);
        let next = [self.addresses.deadline(), self.announce_at, self.paths.deadline(), self.reassembly.deadline()];
        self.chores_at = next.into_iter().flatten().min();
    }

    /// Announces our addresses to the link.
    fn announce<P: Port>(&self, link: &mut Link<P>, counters: &mut Counters) {
        for address in self.addresses.assigned() {
            match (address.to_ipv4(), address.to_ipv6()) {
                (Some(address), _) => {
                    let packet = ArpPacket::announcement(link.own_mac, address);
                    send_arp(link, counters, &packet, EthernetAddress::BROADCAST);
                }
                (_, Some(address)) => advertise(link, counters, address),
                _ => {}
            }
        }
    }

    /// Announces now and once more later, since the first announcement may be lost.
    pub(crate) fn announce_twice<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) {
        self.announce(link, &mut common.counters);
        let at = common.now + ANNOUNCE_INTERVAL;
        self.announce_at = Some(at);
        self.chores_at = Some(self.chores_at.map_or(at, |known| known.min(at)));
    }

    /// Sends the solicitations that are due.
    pub(crate) fn flush_requests<P: Port>(&mut self, link: &mut Link<P>, counters: &mut Counters) {
        while let Some(request) = self.neighbours.poll_request() {
            self.send_solicitation(link, counters, request);
        }
    }

    /// Asks for a neighbour's hardware address.
    fn send_solicitation<P: Port>(&self, link: &mut Link<P>, counters: &mut Counters, request: Request) {
        // Other hosts may have all our addresses. Then TCP gives up, as with a host that does not answer.
        let Some(source) = self.addresses.source_for(request.target) else { return };
        let target = match (source.to_ip_addr(), request.target.to_ip_addr()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let packet = ArpPacket::request(link.own_mac, source, target);
                let destination = request.mac.map_or(EthernetAddress::BROADCAST, EthernetAddress);
                return send_arp(link, counters, &packet, destination);
            }
            (IpAddr::V6(_), IpAddr::V6(target)) => target,
            _ => return counters.cannot_be("a source has another family than its destination"),
        };
        // Nothing leaves from such an address (RFC 4862 §5.4); whoever waits asks again.
        if self.addresses.is_tentative(source) {
            return;
        }
        let message = Icmp6Message::NeighbourSolicitation { target, source_mac: Some(link.own_mac), nonce: None };
        match request.mac {
            Some(mac) => send_discovery(link, counters, EthernetAddress(mac), (source, target), &message),
            None => {
                let group = ipv6::solicited_node(target);
                send_discovery(link, counters, ipv6::multicast_mac(group), (source, group), &message);
            }
        }
    }

    pub(crate) fn receive_arp<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common, frame: &ArpFrame) {
        let packet = &frame.packet;
        if frame.destination_mac != link.own_mac && frame.destination_mac != EthernetAddress::BROADCAST {
            return common.counters.count_drop(DropReason::NotForUs);
        }
        // The link may reflect our own announcement.
        if packet.sender_mac == link.own_mac {
            return;
        }
        if !packet.sender_mac.is_unicast() {
            return common.counters.count_drop(DropReason::BadDiscovery);
        }
        let sender = packet.sender_address.into();
        let for_us = self.addresses.is_own(packet.target_address.into());
        if self.addresses.is_own(sender) {
            return self.on_conflict(link, common, sender);
        }
        if !packet.is_probe() {
            let answers_us = packet.operation == ArpOperation::Reply && frame.destination_mac == link.own_mac && for_us;
            if answers_us {
                let said = Advertisement { mac: Some(packet.sender_mac.0), solicited: true, overrides: true };
                self.neighbours.advertised(common.now, sender, said);
            } else {
                let asks_us = for_us && packet.operation == ArpOperation::Request;
                self.neighbours.observe(common.now, sender, packet.sender_mac.0, asks_us);
            }
        }
        if for_us && packet.operation == ArpOperation::Request && !link.is_second_hand() {
            let reply = packet.reply(link.own_mac);
            send_arp(link, &mut common.counters, &reply, packet.sender_mac);
        }
    }

    /// Another host claims an address of ours: defends it, at a limited rate (RFC 5227 §2.4 (c)).
    #[cold]
    fn on_conflict<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common, address: IpAddress) {
        common.counters.address_conflicts += 1;
        if self.defended_at.is_some_and(|at| common.now < at + DEFEND_INTERVAL) {
            return;
        }
        self.defended_at = Some(common.now);
        if link.is_second_hand() {
            return;
        }
        self.events.send(AsyncEvent::AddressConflict { address: address.to_ip_addr() });
        self.announce(link, &mut common.counters);
    }

    pub(crate) fn receive_solicitation<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        frame: &Icmp6Frame<'_>,
        Solicitation { target, source_mac, nonce }: Solicitation,
    ) {
        let (source, asked) = (frame.route.source, IpAddress::from(target));
        let checks = source.is_unspecified();
        // RFC 4861 §7.1.1: a check for duplicates goes to the solicited-node group and carries no hardware address.
        let to_group = frame.route.destination == ipv6::solicited_node(target).into();
        if frame.hop_limit != NEIGHBOUR_HOP_LIMIT || checks && (!to_group || source_mac.is_some()) {
            return common.counters.count_drop(DropReason::BadDiscovery);
        }
        if frame.route.source_mac == link.own_mac {
            return;
        }
        if self.addresses.is_tentative(asked) {
            // RFC 4862 §5.4.3: a check means that another host wants the same address. A mere question gets no answer
            // yet.
            if checks {
                self.lose(&mut common.counters, asked, nonce);
            }
            return;
        }
        if !self.addresses.is_own(asked) {
            return;
        }
        if checks {
            if !link.is_second_hand() {
                advertise(link, &mut common.counters, target);
            }
            return;
        }
        let Some(source6) = source.to_ipv6() else {
            return common.counters.cannot_be("Neighbor Discovery comes over IPv4");
        };
        if let Some(mac) = source_mac.filter(EthernetAddress::is_unicast) {
            self.neighbours.observe(common.now, source, mac.0, true);
        }
        if link.is_second_hand() {
            return;
        }
        // Without the option, the frame's source is the address to answer to.
        let mac = source_mac.unwrap_or(frame.route.source_mac);
        let message = advertisement(link, target, true);
        send_discovery(link, &mut common.counters, mac, (asked, source6), &message);
    }

    pub(crate) fn receive_advertisement<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        frame: &Icmp6Frame<'_>,
        target: Ipv6Addr,
        said: Advertisement,
    ) {
        // RFC 4861 §7.1.2.
        let bad = frame.hop_limit != NEIGHBOUR_HOP_LIMIT || frame.route.destination.is_multicast() && said.solicited;
        if bad || said.mac.is_some_and(|mac| mac[0] & 1 == 1) {
            return common.counters.count_drop(DropReason::BadDiscovery);
        }
        if frame.route.source_mac == link.own_mac {
            return;
        }
        let address = IpAddress::from(target);
        if self.addresses.is_tentative(address) {
            return self.lose(&mut common.counters, address, None);
        }
        if self.addresses.is_own(address) {
            // RFC 4862 §5.4.4 does not cover an assigned address: defend it once more.
            return self.on_conflict(link, common, address);
        }
        self.neighbours.advertised(common.now, address, said);
    }

    /// Another host has an address that we were checking (RFC 4862 §5.4.5).
    fn lose(&mut self, counters: &mut Counters, address: IpAddress, nonce: Option<[u8; 6]>) {
        // The message may be our own, which came back.
        let Some(lost) = self.addresses.conflict(address, nonce) else { return };
        counters.address_conflicts += 1;
        self.events.send(AsyncEvent::AddressConflict { address: lost });
        self.neighbours.give_up(address);
    }
}

/// Asks whether another host has an address that we want to use (RFC 4862 §5.4.2).
fn send_check<P: Port>(link: &mut Link<P>, counters: &mut Counters, target: Ipv6Addr, nonce: [u8; 6]) {
    let group = ipv6::solicited_node(target);
    let message = Icmp6Message::NeighbourSolicitation { target, source_mac: None, nonce: Some(nonce) };
    send_discovery(link, counters, ipv6::multicast_mac(group), (IpAddress::UNSPECIFIED, group), &message);
}

/// Announces to all nodes that an address is ours (RFC 4861 §7.2.6).
fn advertise<P: Port>(link: &mut Link<P>, counters: &mut Counters, target: Ipv6Addr) {
    let message = advertisement(link, target, false);
    let all = ipv6::ALL_NODES;
    send_discovery(link, counters, ipv6::multicast_mac(all), (target.into(), all), &message);
}

fn advertisement<P: Port>(link: &Link<P>, target: Ipv6Addr, solicited: bool) -> Icmp6Message<'static> {
    Icmp6Message::NeighbourAdvertisement {
        router: false,
        solicited,
        overrides: true,
        target,
        target_mac: Some(link.own_mac),
    }
}

fn send_discovery<P: Port>(
    link: &mut Link<P>,
    counters: &mut Counters,
    mac: EthernetAddress,
    (source, destination): (IpAddress, Ipv6Addr),
    message: &Icmp6Message<'_>,
) {
    let path = Path { hop_limit: NEIGHBOUR_HOP_LIMIT, ..link.path(mac, source, destination.into()) };
    link.send_aside(counters, |room| emit_icmp6(room, &path, message).ok());
}

fn send_arp<P: Port>(link: &mut Link<P>, counters: &mut Counters, packet: &ArpPacket, destination: EthernetAddress) {
    let header = EthernetHeader { destination, source: link.own_mac, vlan: link.vlan, ether_type: EtherType::ARP };
    link.send_aside(counters, |room| {
        let at = header.emit(room);
        packet.emit(&mut room[at..]).ok().map(|length| at + length)
    });
}
