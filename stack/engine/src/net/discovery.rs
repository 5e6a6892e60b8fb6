//! Address resolution on the link: ARP (RFC 826, with announcements and conflicts by RFC 5227), Neighbor Discovery (RFC
//! 4861) and the check of our own IPv6 addresses (RFC 4862 §5.4). Routers are configured; their advertisements and
//! redirects are ignored.

use std::net::Ipv6Addr;
use std::time::Duration;

use uwarp_wire::address::IpAddress;
use uwarp_wire::arp::{ArpOperation, ArpPacket};
use uwarp_wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use uwarp_wire::frame::{ArpFrame, Icmp6Frame, Path, emit_icmp6};
use uwarp_wire::icmp6::{Icmp6Message, NEIGHBOUR_HOP_LIMIT};
use uwarp_wire::ipv6;

use crate::api::command::AsyncEvent;
use crate::api::stats::DropReason;
use crate::core::Core;
use crate::link::port::Port;
use crate::net::ANNOUNCE_INTERVAL;
use crate::net::addresses::Check;
use crate::net::neighbours::{Advertisement, Request};

/// Least time between two defences of an address (DEFEND_INTERVAL of RFC 5227 §1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

impl<P: Port> Core<P> {
    /// Rare work: the check of our addresses, the second announcement, ageing of paths and fragments.
    #[cold]
    pub(crate) fn run_chores(&mut self) {
        while let Some(check) = self.net.addresses.poll_check(self.now) {
            match check {
                Check::Solicit(address, nonce) => self.send_check(address, nonce),
                Check::Assigned(address) => {
                    self.advertise(address);
                    // Connections that wait for the address continue.
                    self.net.neighbours.touch();
                }
            }
        }
        if self.net.announce_at.is_some_and(|at| at <= self.now) {
            self.net.announce_at = None;
            self.announce();
        }
        self.age_paths();
        self.expire_fragments();
        let next = [
            self.net.addresses.deadline(),
            self.net.announce_at,
            self.net.paths.deadline(),
            self.net.reassembly.deadline(),
        ];
        self.net.chores_at = next.into_iter().flatten().min();
    }

    /// Announces our addresses to the link.
    pub(crate) fn announce(&mut self) {
        let addresses: Vec<IpAddress> = self.net.addresses.assigned().collect();
        for address in addresses {
            match (address.to_ipv4(), address.to_ipv6()) {
                (Some(address), _) => {
                    let packet = ArpPacket::announcement(self.link.own_mac, address);
                    self.send_arp(&packet, EthernetAddress::BROADCAST);
                }
                (_, Some(address)) => self.advertise(address),
                _ => {}
            }
        }
    }

    /// Announces now and once more later, since the first announcement may be lost.
    pub(crate) fn announce_twice(&mut self) {
        self.announce();
        let at = self.now + ANNOUNCE_INTERVAL;
        self.net.announce_at = Some(at);
        self.net.chores_at = Some(self.net.chores_at.map_or(at, |known| known.min(at)));
    }

    /// Asks for a neighbour's hardware address.
    pub(crate) fn send_solicitation(&mut self, request: Request) {
        let Some(source) = self.net.addresses.source_for(request.target) else { return };
        if let (Some(source), Some(target)) = (source.to_ipv4(), request.target.to_ipv4()) {
            let packet = ArpPacket::request(self.link.own_mac, source, target);
            let destination = request.mac.map_or(EthernetAddress::BROADCAST, EthernetAddress);
            return self.send_arp(&packet, destination);
        }
        let Some(target) = request.target.to_ipv6() else { return };
        if self.net.addresses.is_tentative(source) {
            return;
        }
        let message = Icmp6Message::NeighbourSolicitation { target, source_mac: Some(self.link.own_mac), nonce: None };
        match request.mac {
            Some(mac) => self.send_discovery(EthernetAddress(mac), source, target, &message),
            None => {
                let group = ipv6::solicited_node(target);
                self.send_discovery(ipv6::multicast_mac(group), source, group, &message);
            }
        }
    }

    /// Asks whether another host has an address that we want to use (RFC 4862 §5.4.2).
    fn send_check(&mut self, target: Ipv6Addr, nonce: [u8; 6]) {
        let group = ipv6::solicited_node(target);
        let message = Icmp6Message::NeighbourSolicitation { target, source_mac: None, nonce: Some(nonce) };
        self.send_discovery(ipv6::multicast_mac(group), IpAddress::UNSPECIFIED, group, &message);
    }

    /// Announces to all nodes that an address is ours (RFC 4861 §7.2.6).
    fn advertise(&mut self, target: Ipv6Addr) {
        let message = self.advertisement(target, false);
        let all = ipv6::ALL_NODES;
        self.send_discovery(ipv6::multicast_mac(all), target.into(), all, &message);
    }

    fn advertisement(&self, target: Ipv6Addr, solicited: bool) -> Icmp6Message<'static> {
        Icmp6Message::NeighbourAdvertisement {
            router: false,
            solicited,
            overrides: true,
            target,
            target_mac: Some(self.link.own_mac),
        }
    }

    fn send_discovery(
        &mut self,
        mac: EthernetAddress,
        source: IpAddress,
        destination: Ipv6Addr,
        message: &Icmp6Message<'_>,
    ) {
        let path = Path { hop_limit: NEIGHBOUR_HOP_LIMIT, ..self.path(mac, source, destination.into()) };
        self.send_aside(false, |room| emit_icmp6(room, &path, message).ok());
    }

    fn send_arp(&mut self, packet: &ArpPacket, destination: EthernetAddress) {
        let header =
            EthernetHeader { destination, source: self.link.own_mac, vlan: self.link.vlan, ether_type: EtherType::ARP };
        self.send_aside(false, |room| {
            let at = header.emit(room);
            packet.emit(&mut room[at..]).ok().map(|length| at + length)
        });
    }

    pub(crate) fn receive_arp(&mut self, frame: &ArpFrame) {
        let packet = &frame.packet;
        if frame.destination_mac != self.link.own_mac && frame.destination_mac != EthernetAddress::BROADCAST {
            return self.count_drop(DropReason::NotForUs);
        }
        // The link may reflect our own announcement.
        if packet.sender_mac == self.link.own_mac || !packet.sender_mac.is_unicast() {
            return;
        }
        let sender = packet.sender_address.into();
        let for_us = self.net.addresses.is_own(packet.target_address.into());
        if self.net.addresses.is_own(sender) {
            return self.on_conflict(sender);
        }
        if !packet.is_probe() {
            let answers_us =
                packet.operation == ArpOperation::Reply && frame.destination_mac == self.link.own_mac && for_us;
            if answers_us {
                let said = Advertisement { mac: Some(packet.sender_mac.0), solicited: true, overrides: true };
                self.net.neighbours.advertised(self.now, sender, said);
            } else {
                let asks_us = for_us && packet.operation == ArpOperation::Request;
                self.net.neighbours.observe(self.now, sender, packet.sender_mac.0, asks_us);
            }
        }
        if for_us && packet.operation == ArpOperation::Request && !self.is_second_hand() {
            let reply = packet.reply(self.link.own_mac);
            self.send_arp(&reply, packet.sender_mac);
        }
    }

    /// Another host claims an address of ours: defends it, at a limited rate (RFC 5227 §2.4 (c)).
    #[cold]
    fn on_conflict(&mut self, address: IpAddress) {
        self.counters.address_conflicts += 1;
        if self.net.defended_at.is_some_and(|at| self.now < at + DEFEND_INTERVAL) {
            return;
        }
        self.net.defended_at = Some(self.now);
        if self.is_second_hand() {
            return;
        }
        self.control.events.send(AsyncEvent::AddressConflict { address: address.to_ip_addr() });
        self.announce();
    }

    pub(crate) fn receive_solicitation(
        &mut self,
        frame: &Icmp6Frame<'_>,
        target: Ipv6Addr,
        source_mac: Option<EthernetAddress>,
        nonce: Option<[u8; 6]>,
    ) {
        let (source, asked) = (frame.route.source, IpAddress::from(target));
        let checks = source.is_unspecified();
        // RFC 4861 §7.1.1: a check for duplicates goes to the solicited-node group and carries no hardware address.
        let to_group = frame.route.destination == ipv6::solicited_node(target).into();
        if frame.hop_limit != NEIGHBOUR_HOP_LIMIT || checks && (!to_group || source_mac.is_some()) {
            return self.count_drop(DropReason::BadDiscovery);
        }
        if frame.route.source_mac == self.link.own_mac {
            return;
        }
        if self.net.addresses.is_tentative(asked) {
            // RFC 4862 §5.4.3: a check means that another host wants the same address. A mere question gets no answer
            // yet.
            if checks {
                self.lose(asked, nonce);
            }
            return;
        }
        if !self.net.addresses.is_own(asked) {
            return;
        }
        if checks {
            if !self.is_second_hand() {
                self.advertise(target);
            }
            return;
        }
        let Some(source6) = source.to_ipv6() else { return };
        if let Some(mac) = source_mac.filter(EthernetAddress::is_unicast) {
            self.net.neighbours.observe(self.now, source, mac.0, true);
        }
        if self.is_second_hand() {
            return;
        }
        // Without the option, the frame's source is the address to answer to.
        let mac = source_mac.unwrap_or(frame.route.source_mac);
        let message = self.advertisement(target, true);
        self.send_discovery(mac, asked, source6, &message);
    }

    pub(crate) fn receive_advertisement(&mut self, frame: &Icmp6Frame<'_>, target: Ipv6Addr, said: Advertisement) {
        // RFC 4861 §7.1.2.
        let bad = frame.hop_limit != NEIGHBOUR_HOP_LIMIT || frame.route.destination.is_multicast() && said.solicited;
        if bad || said.mac.is_some_and(|mac| mac[0] & 1 == 1) {
            return self.count_drop(DropReason::BadDiscovery);
        }
        if frame.route.source_mac == self.link.own_mac {
            return;
        }
        let address = IpAddress::from(target);
        if self.net.addresses.is_tentative(address) {
            return self.lose(address, None);
        }
        if self.net.addresses.is_own(address) {
            // RFC 4862 §5.4.4 does not cover an assigned address: defend it once more.
            return self.on_conflict(address);
        }
        self.net.neighbours.advertised(self.now, address, said);
    }

    /// Another host has an address that we were checking (RFC 4862 §5.4.5).
    fn lose(&mut self, address: IpAddress, nonce: Option<[u8; 6]>) {
        let Some(lost) = self.net.addresses.conflict(address, nonce) else { return };
        self.counters.address_conflicts += 1;
        self.control.events.send(AsyncEvent::AddressConflict { address: lost });
        self.on_unreachable(address);
    }
}
