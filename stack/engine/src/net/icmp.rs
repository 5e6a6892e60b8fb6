//! ICMP and ICMPv6: echoes, errors received, errors sent.

use uwarp_wire::address::IpAddress;
use uwarp_wire::frame::{Icmp6Frame, IcmpFrame, Refusal, RefusedFrame, Route, emit_icmp, emit_icmp6};
use uwarp_wire::icmp::{self, IcmpMessage};
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::{ipv4, ipv6};

use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::link::Link;
use crate::link::port::Port;
use crate::net::discovery::Solicitation;
use crate::net::fragments::fits;
use crate::net::neighbours::Advertisement;
use crate::net::{Left, Net};

/// UDP. No UDP port is ever open here.
const UDP: u8 = 17;
/// The longest quotation in an ICMP error, so that the error stays within 576 octets (RFC 1812 §4.3.2.3).
const QUOTED4: usize = 576 - ipv4::HEADER_LEN - icmp::HEADER_LEN;
/// The same for ICMPv6, within 1280 octets (RFC 4443 §2.4 (c)).
const QUOTED6: usize = ipv6::MINIMUM_MTU as usize - ipv6::HEADER_LEN - icmp6::HEADER_LEN;

impl Net {
    pub(crate) fn receive_icmp<P: Port>(
        &mut self,
        link: &mut Link<P>,
        counters: &mut Counters,
        frame: &IcmpFrame<'_>,
    ) -> Option<Left> {
        let route = &frame.route;
        if route.destination_mac != link.own_mac {
            counters.count_drop(DropReason::NotForUs);
            return None;
        }
        if !self.addresses.is_own(route.destination) {
            counters.count_drop(DropReason::WrongAddress);
            return None;
        }
        match frame.message {
            // A broadcast source: all hosts of the subnet would receive the answer.
            IcmpMessage::EchoRequest { .. } if self.addresses.is_subnet_broadcast(route.source) => {
                counters.count_drop(DropReason::WrongAddress);
            }
            IcmpMessage::EchoRequest { identifier, sequence, data } => {
                let reply = IcmpMessage::EchoReply { identifier, sequence, data };
                let path = link.path(route.source_mac, route.destination, route.source);
                counters.echoes += 1;
                if fits(link, &path, reply.emit_len()) {
                    link.send_aside(counters, |room| emit_icmp(room, &path, &reply).ok());
                } else {
                    let mut message = vec![0; reply.emit_len()];
                    match reply.emit(&mut message) {
                        Ok(_) => self.send_in_fragments(link, counters, &path, &message),
                        Err(_) => counters.cannot_be("an answer is longer than it says"),
                    }
                }
            }
            IcmpMessage::DestinationUnreachable {
                code: icmp::unreachable::FRAGMENTATION_NEEDED, next_hop_mtu, ..
            } => {
                return Some(Left::TooBig(frame.message.quoted_tcp(), next_hop_mtu.into()));
            }
            IcmpMessage::DestinationUnreachable { .. } | IcmpMessage::TimeExceeded { .. } => {
                return Some(Left::SoftError(frame.message.quoted_tcp()));
            }
            _ => counters.count_drop(DropReason::UnknownProtocol),
        }
        None
    }

    pub(crate) fn receive_icmp6<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        frame: &Icmp6Frame<'_>,
    ) -> Option<Left> {
        let route = &frame.route;
        let to_group = self.addresses.listens_to_mac(route.destination_mac.0);
        if route.destination_mac != link.own_mac && !to_group {
            common.counters.count_drop(DropReason::NotForUs);
            return None;
        }
        let to_us = self.addresses.is_own(route.destination);
        if !to_us && !self.addresses.listens_to(route.destination) && !self.addresses.is_tentative(route.destination) {
            common.counters.count_drop(DropReason::WrongAddress);
            return None;
        }
        match frame.message {
            Icmp6Message::EchoRequest { identifier, sequence, data } => {
                // RFC 4443 §4.2: an echo request to a group is answered from a unicast address of ours.
                let own = if to_us { Some(route.destination) } else { self.addresses.source_for(route.source) };
                let Some(own) = own.filter(|own| self.addresses.is_own(*own)) else {
                    common.counters.count_drop(DropReason::WrongAddress);
                    return None;
                };
                let reply = Icmp6Message::EchoReply { identifier, sequence, data };
                let path = link.path(route.source_mac, own, route.source);
                common.counters.echoes += 1;
                if fits(link, &path, reply.emit_len()) {
                    link.send_aside(&mut common.counters, |room| emit_icmp6(room, &path, &reply).ok());
                } else {
                    let mut message = vec![0; reply.emit_len()];
                    match reply.emit(&mut message, own, route.source) {
                        Ok(_) => self.send_in_fragments(link, &mut common.counters, &path, &message),
                        Err(_) => common.counters.cannot_be("an answer is longer than it says"),
                    }
                }
            }
            Icmp6Message::PacketTooBig { mtu, .. } => {
                return Some(Left::TooBig(frame.message.quoted_tcp(), mtu));
            }
            Icmp6Message::NeighbourSolicitation { target, source_mac, nonce } => {
                let asked = Solicitation { target, source_mac, nonce };
                self.receive_solicitation(link, common, frame, asked);
            }
            Icmp6Message::NeighbourAdvertisement { solicited, overrides, target, target_mac, .. } => {
                let said = Advertisement { mac: target_mac.map(|mac| mac.0), solicited, overrides };
                self.receive_advertisement(link, common, frame, target, said);
            }
            Icmp6Message::DestinationUnreachable { .. }
            | Icmp6Message::TimeExceeded { .. }
            | Icmp6Message::ParameterProblem { .. } => {
                return Some(Left::SoftError(frame.message.quoted_tcp()));
            }
            _ => common.counters.count_drop(DropReason::UnknownProtocol),
        }
        None
    }

    /// Answers an IP packet that no protocol here accepts (RFC 1122 §3.2.2, RFC 4443 §3).
    #[cold]
    pub(crate) fn refuse_packet<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        frame: &RefusedFrame,
        octets: &[u8],
    ) {
        let route = &frame.route;
        let to_us = route.destination_mac == link.own_mac && self.addresses.is_own(route.destination);
        let to_group =
            self.addresses.listens_to_mac(route.destination_mac.0) && self.addresses.listens_to(route.destination);
        common.counters.count_drop(DropReason::UnknownProtocol);
        match frame.refusal {
            _ if !to_us && !to_group => {}
            Refusal::Header { code, pointer, even_multicast } if to_us || even_multicast => {
                self.send_error6(link, common, route, octets, problem(code, pointer));
            }
            Refusal::Protocol { protocol, .. } if to_us && route.destination.is_ipv4() => {
                let code = if protocol == UDP { icmp::unreachable::PORT } else { icmp::unreachable::PROTOCOL };
                let message = |quoted| IcmpMessage::DestinationUnreachable { code, next_hop_mtu: 0, quoted };
                self.send_error4(link, common, route, octets, message);
            }
            Refusal::Protocol { protocol: UDP, .. } if to_us => {
                let code = icmp6::unreachable::PORT;
                let message = |quoted| Icmp6Message::DestinationUnreachable { code, quoted };
                self.send_error6(link, common, route, octets, message);
            }
            Refusal::Protocol { named_at, .. } if to_us => {
                let message = problem(ipv6::UNRECOGNISED_HEADER, named_at);
                self.send_error6(link, common, route, octets, message);
            }
            _ => {}
        }
    }

    /// Whether an error may be sent about a packet (RFC 1122 §3.2.2, RFC 4443 §2.4 (e) and (f)). Callers have checked
    /// the packet's destination.
    fn may_answer(&mut self, common: &mut Common, route: &Route, packet: &[u8]) -> bool {
        let source = route.source;
        let is_of_one =
            !source.is_unspecified() && !source.is_multicast() && !self.addresses.is_subnet_broadcast(source);
        if !is_of_one || !route.source_mac.is_unicast() || icmp::forbids_error(packet) {
            return false;
        }
        if !self.icmp_errors.admits(common.now) {
            common.counters.icmp_errors_suppressed += 1;
            return false;
        }
        true
    }

    /// Sends an ICMP error about a packet; `octets` is its whole frame.
    pub(crate) fn send_error4<'a, P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        route: &Route,
        octets: &'a [u8],
        message: impl FnOnce(&'a [u8]) -> IcmpMessage<'a>,
    ) {
        let Some(packet) = packet_of(route, octets) else {
            return common.counters.cannot_be("a packet begins behind its frame");
        };
        if !self.may_answer(common, route, packet) {
            return;
        }
        let message = message(&packet[..packet.len().min(QUOTED4)]);
        let path = link.path(route.source_mac, route.destination, route.source);
        if link.send_aside(&mut common.counters, |room| emit_icmp(room, &path, &message).ok()) {
            common.counters.icmp_errors_sent += 1;
        }
    }

    /// Sends an ICMPv6 error about a packet; `octets` is its whole frame.
    pub(crate) fn send_error6<'a, P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        route: &Route,
        octets: &'a [u8],
        message: impl FnOnce(&'a [u8]) -> Icmp6Message<'a>,
    ) {
        let Some(packet) = packet_of(route, octets) else {
            return common.counters.cannot_be("a packet begins behind its frame");
        };
        // Without an address of the peer's scope there is no answer. The packet is counted already.
        let source = self.answering_address(route.destination, route.source);
        let Some(source) = source else { return };
        if !self.may_answer(common, route, packet) {
            return;
        }
        let message = message(&packet[..packet.len().min(QUOTED6)]);
        let path = link.path(route.source_mac, source, route.source);
        if link.send_aside(&mut common.counters, |room| emit_icmp6(room, &path, &message).ok()) {
            common.counters.icmp_errors_sent += 1;
        }
    }

    /// RFC 4443 §2.2: the source is the address that the packet was sent to, if that is unicast; otherwise one of ours.
    fn answering_address(&self, asked: IpAddress, peer: IpAddress) -> Option<IpAddress> {
        if self.addresses.is_own(asked) {
            return Some(asked);
        }
        self.addresses.source_for(peer).filter(|own| self.addresses.is_own(*own))
    }
}

/// A frame's IP packet, as far as `octets` contains it.
fn packet_of<'a>(route: &Route, octets: &'a [u8]) -> Option<&'a [u8]> {
    let packet = octets.get(route.ip_offset..)?;
    Some(&packet[..packet.len().min(route.ip_len)])
}

fn problem<'a>(code: u8, pointer: usize) -> impl FnOnce(&'a [u8]) -> Icmp6Message<'a> {
    move |quoted| Icmp6Message::ParameterProblem { code, pointer: pointer as u32, quoted }
}
