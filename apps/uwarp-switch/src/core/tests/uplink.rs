//! Frames between clients and other hosts.

use super::*;
use crate::core::frame::{Kind, parse};

/// The uplink's hardware address, and that of a host beyond it.
pub(super) const UPLINK: [u8; 6] = [2, 0x76, 0, 0, 0, 1];
pub(super) const HOST: [u8; 6] = [2, 0x77, 0, 0, 0, 1];
const HOST4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const HOST6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

/// A switch with clients and an uplink.
pub(super) fn joined(clients: usize) -> Switch {
    let mut switch = switch(clients);
    switch.open_uplink(UPLINK);
    switch
}

pub(super) fn arrive(switch: &mut Switch, mut frame: Vec<u8>) -> (Verdict, Vec<u8>) {
    let verdict = switch.judge(ClientId::UPLINK, &mut frame);
    (verdict, frame)
}

/// A frame from the uplink is dropped; it is counted for a reason, or not at all.
#[track_caller]
fn refused(switch: &mut Switch, frame: Vec<u8>, reason: Option<DropReason>) {
    let count = |switch: &Switch| DropReason::ALL.map(|reason| switch.counters(ClientId::UPLINK).dropped(reason));
    let mut expected = count(switch);
    let (verdict, after) = arrive(switch, frame.clone());
    assert_eq!((verdict, after), (Verdict::Drop, frame));
    if let Some(reason) = reason {
        expected[reason as usize] += 1;
    }
    assert_eq!(count(switch), expected);
}

pub(super) fn destined(mut frame: Vec<u8>, mac: [u8; 6]) -> Vec<u8> {
    frame[..6].copy_from_slice(&mac);
    frame
}

/// From a client to the host, as it has learned the host's hardware address.
pub(super) fn leaving(from: usize, ports: (u16, u16)) -> Segment {
    Segment { destination: HOST4, ..Segment::new(from, ports) }
}

/// From the host to the shared address.
pub(super) fn arriving(ports: (u16, u16)) -> Segment {
    Segment { mac: HOST, source: HOST4, ..Segment::new(0, ports) }
}

fn arp(packet: &ArpPacket) -> Vec<u8> {
    let mut frame = vec![0; 64];
    let length = packet.emit_frame(&mut frame).unwrap();
    frame.truncate(length);
    frame
}

fn discovery(path: &Path, message: &Icmp6Message<'_>) -> Vec<u8> {
    let path = Path { hop_limit: NEIGHBOUR_HOP_LIMIT, ..*path };
    let mut frame = vec![0; 128];
    let length = emit_icmp6(&mut frame, &path, message).unwrap();
    frame.truncate(length);
    frame
}

fn v4(address: IpAddr) -> Ipv4Addr {
    let IpAddr::V4(address) = address else { panic!("{address}") };
    address
}

fn v6(address: IpAddr) -> Ipv6Addr {
    let IpAddr::V6(address) = address else { panic!("{address}") };
    address
}

#[test]
fn segments_pass_between_a_client_and_a_host_under_the_uplinks_hardware_address() {
    let mut switch = joined(2);
    switch.reserve(client(1), 7471, None).unwrap();
    let own = first_port(&switch, 0);
    for (shared, host) in [(V4, HOST4), (V6, HOST6)] {
        let ip_len = if host.is_ipv4() { 20 } else { 40 };
        let out = Segment { source: shared, destination: host, ..Segment::new(0, (own, 9)) }.build();
        let out = destined(out, HOST);
        let within = Segment { mac: HOST, source: host, destination: shared, ..Segment::new(0, (9, 7471)) }.build();
        let within = destined(within, UPLINK);
        // The first is looked up, the second remembered.
        for _ in 0..2 {
            let (verdict, got) = judge(&mut switch, 0, out.clone());
            assert_eq!(verdict, Verdict::Forward { to: ClientId::UPLINK, ip_len, tcp_len: 20 });
            assert_eq!((&got[..6], &got[6..12], &got[12..]), (&HOST[..], &UPLINK[..], &out[12..]));
            let (verdict, got) = arrive(&mut switch, within.clone());
            assert_eq!(verdict, Verdict::Forward { to: client(1), ip_len, tcp_len: 20 });
            assert_eq!((&got[..6], &got[6..12], &got[12..]), (&mac(client(1))[..], &HOST[..], &within[12..]));
        }
    }
}

#[test]
fn clients_reach_each_other_and_not_the_uplink_by_the_shared_addresses() {
    let mut switch = joined(2);
    let (own, other) = (first_port(&switch, 0), first_port(&switch, 1));
    let (verdict, _) = judge(&mut switch, 0, destined(Segment::new(0, (own, other)).build(), HOST));
    assert!(matches!(verdict, Verdict::Forward { to, .. } if to == client(1)));
    assert_eq!(judge(&mut switch, 0, Segment::new(0, (own, 7471)).build()).0, Verdict::Answer, "nobody owns the port");
}

#[test]
fn a_client_sends_to_hosts_only_in_its_own_name_and_to_one_station() {
    let mut switch = joined(2);
    let own = first_port(&switch, 0);
    let good = leaving(0, (own, 9));
    let send = |segment: Segment| destined(segment.build(), HOST);
    dropped(&mut switch, 0, send(Segment { mac: HOST, ..good.clone() }), DropReason::SourceMac);
    dropped(&mut switch, 0, send(Segment { mac: UPLINK, ..good.clone() }), DropReason::SourceMac);
    dropped(&mut switch, 0, send(Segment { source: HOST4, ..good.clone() }), DropReason::SourceAddress);
    let others = first_port(&switch, 1);
    dropped(&mut switch, 0, send(Segment { ports: (others, 9), ..good.clone() }), DropReason::SourcePort);
    // Once the flow is remembered as well.
    assert!(matches!(judge(&mut switch, 0, send(good.clone())).0, Verdict::Forward { .. }));
    for mac in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], SWITCH] {
        let (before, frame) = (switch.counters(client(0)).dropped(DropReason::Destination), good.build());
        assert_eq!(judge(&mut switch, 0, destined(frame, mac)).0, Verdict::Drop);
        assert_eq!(switch.counters(client(0)).dropped(DropReason::Destination), before + 1, "{mac:x?}");
    }
    for address in ["224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.1"] {
        let destination = address.parse().unwrap();
        dropped(&mut switch, 0, send(Segment { destination, ..good.clone() }), DropReason::Destination);
    }
    let destination = "ff02::1".parse().unwrap();
    dropped(&mut switch, 0, send(Segment { source: V6, destination, ..good }), DropReason::Destination);
}

#[test]
fn what_comes_from_the_uplink_in_a_clients_name_is_dropped_and_counted() {
    let mut switch = joined(2);
    let (own, other) = (first_port(&switch, 0), first_port(&switch, 1));
    let to_us = |segment: Segment| destined(segment.build(), UPLINK);
    assert!(matches!(arrive(&mut switch, to_us(arriving((9, own)))).0, Verdict::Forward { .. }));
    for source in [V4, "127.0.0.1".parse().unwrap(), "224.0.0.1".parse().unwrap(), "255.255.255.255".parse().unwrap()] {
        let forged = Segment { source, ..arriving((other, own)) };
        refused(&mut switch, to_us(forged), Some(DropReason::SourceAddress));
    }
    let forged = Segment { source: V6, destination: V6, ..arriving((other, own)) };
    refused(&mut switch, to_us(forged), Some(DropReason::SourceAddress));
    refused(&mut switch, to_us(Segment { mac: [1; 6], ..arriving((9, own)) }), Some(DropReason::SourceMac));
    // By ARP and Neighbor Discovery.
    let liar = EthernetAddress(HOST);
    refused(&mut switch, arp(&ArpPacket::announcement(liar, v4(V4))), Some(DropReason::SourceAddress));
    let reply = ArpPacket::request(EthernetAddress(UPLINK), v4(V4), v4(V4)).reply(liar);
    refused(&mut switch, arp(&reply), Some(DropReason::SourceAddress));
    let claim = Icmp6Message::NeighbourAdvertisement {
        router: false,
        solicited: true,
        overrides: true,
        target: v6(V6),
        target_mac: Some(liar),
    };
    let path = Path::new(liar, EthernetAddress(UPLINK), HOST6.into(), V6.into());
    refused(&mut switch, discovery(&path, &claim), Some(DropReason::SourceAddress));
    let question = Icmp6Message::NeighbourSolicitation { target: v6(V6), source_mac: Some(liar), nonce: None };
    let path = Path::new(liar, EthernetAddress(UPLINK), V6.into(), V6.into());
    refused(&mut switch, discovery(&path, &question), Some(DropReason::SourceAddress));
}

#[test]
fn what_is_for_other_stations_is_ignored_and_what_is_broken_is_counted() {
    let mut switch = joined(1);
    let own = first_port(&switch, 0);
    let good = arriving((9, own));
    // The switch's own address is none of the uplink's network.
    for mac in [HOST, SWITCH, mac(client(0)), [0xff; 6]] {
        refused(&mut switch, destined(good.build(), mac), None);
    }
    refused(&mut switch, destined(Segment { mac: UPLINK, ..good.clone() }.build(), UPLINK), None);
    let destination = "10.0.0.3".parse().unwrap();
    refused(&mut switch, destined(Segment { destination, ..good.clone() }.build(), UPLINK), None);
    let to_us = destined(good.build(), UPLINK);
    let edited = |at: usize, octet: u8| {
        let mut frame = to_us.clone();
        frame[at] = octet;
        frame
    };
    refused(&mut switch, edited(46, 0x40), Some(DropReason::Malformed));
    refused(&mut switch, edited(23, 17), Some(DropReason::Unsupported));
    refused(&mut switch, edited(20, 0x20), Some(DropReason::Unsupported));
    refused(&mut switch, destined(edited(23, 17), [0xff; 6]), None);
    refused(&mut switch, to_us[..40].to_vec(), Some(DropReason::Malformed));
    refused(&mut switch, to_us[..5].to_vec(), None);
    refused(&mut switch, [&to_us[..], &[0; 1400]].concat(), Some(DropReason::TooLong));
}

#[test]
fn a_port_that_nobody_owns_resets_hosts_and_a_host_is_told_of_a_clients_death() {
    let mut switch = joined(2);
    let own = first_port(&switch, 0);
    let (verdict, _) = arrive(&mut switch, destined(arriving((9, 7471)).build(), UPLINK));
    assert_eq!(verdict, Verdict::Answer);
    answer_is_reset(&switch, 77);
    assert_eq!((&switch.answer()[..6], &switch.answer()[6..12]), (&HOST[..], &UPLINK[..]));

    // The host accepts one connection, the client two, of which it resets one. The host's ports have the numbers of the
    // client's own: that is what two switches give out.
    let other = first_port(&switch, 1);
    let ask = |switch: &mut Switch, from: usize, ports| {
        judge(switch, from, destined(leaving(from, ports).flags(TcpFlags::SYN).build(), HOST));
    };
    ask(&mut switch, 0, (own, own));
    let accepted = arriving((own, own)).flags(TcpFlags::SYN | TcpFlags::ACK);
    arrive(&mut switch, destined(accepted.build(), UPLINK));
    for port in [own + 1, own + 2] {
        let accepted = leaving(0, (own, port)).flags(TcpFlags::SYN | TcpFlags::ACK);
        judge(&mut switch, 0, destined(accepted.build(), HOST));
    }
    ask(&mut switch, 1, (other, own));
    arrive(&mut switch, destined(arriving((own, other)).flags(TcpFlags::SYN | TcpFlags::ACK).build(), UPLINK));
    assert_eq!((switch.followed_outside(), switch.followed()), (4, 0));
    judge(&mut switch, 0, destined(leaving(0, (own, own + 2)).flags(TcpFlags::RST).build(), HOST));
    assert_eq!(switch.followed_outside(), 3);
    let probes = switch.leave(client(0));
    let mut ports = Vec::new();
    for Probe { to, frame } in probes {
        assert_eq!((to, &frame[..6], &frame[6..12]), (ClientId::UPLINK, &HOST[..], &UPLINK[..]));
        let Ok(Frame::Tcp(probe)) = classify(&frame, frame.len()) else { panic!("no segment") };
        assert!(probe.header.flags.contains(TcpFlags::SYN));
        assert_eq!((probe.flow.remote, probe.flow.remote_port), (V4.into(), own));
        ports.push(probe.flow.local_port);
    }
    ports.sort_unstable();
    assert_eq!(ports, [own, own + 1]);
    assert_eq!(switch.followed_outside(), 1, "that of the other client");
    assert_eq!(switch.leave(client(1)).len(), 1);
}

#[test]
fn what_no_client_has_asked_for_is_not_followed() {
    let mut switch = joined(1);
    let own = first_port(&switch, 0);
    let accept = |switch: &mut Switch, ports| {
        let accepted = arriving(ports).flags(TcpFlags::SYN | TcpFlags::ACK);
        arrive(switch, destined(accepted.build(), UPLINK));
    };
    for port in 1..=5000 {
        accept(&mut switch, (port, own));
    }
    // A host's own SYN is no question of the client's either.
    arrive(&mut switch, destined(arriving((9, own)).flags(TcpFlags::SYN).build(), UPLINK));
    accept(&mut switch, (9, own));
    assert_eq!(switch.followed_outside(), 0);
    judge(&mut switch, 0, destined(leaving(0, (own, 7)).flags(TcpFlags::SYN).build(), HOST));
    accept(&mut switch, (8, own));
    accept(&mut switch, (7, own));
    assert_eq!(switch.followed_outside(), 1);
    assert_eq!(switch.leave(client(0)).len(), 1);
    // The next one in this place has asked for nothing.
    switch.enter(client(0), NetworkId::OWN, mac(client(0))).expect("the place is free");
    let own = first_port(&switch, 0);
    accept(&mut switch, (7, own));
    assert_eq!(switch.followed_outside(), 0);
}

#[test]
fn a_client_cannot_fill_the_list_of_connections_of_others() {
    let mut switch = joined(2);
    let (zero, one) = (first_port(&switch, 0), first_port(&switch, 1));
    for port in 1..=5000 {
        let accepted = leaving(0, (zero, port)).flags(TcpFlags::SYN | TcpFlags::ACK);
        judge(&mut switch, 0, destined(accepted.build(), HOST));
    }
    assert_eq!(switch.followed_outside(), 4096);
    let accepted = leaving(1, (one, 9)).flags(TcpFlags::SYN | TcpFlags::ACK);
    judge(&mut switch, 1, destined(accepted.build(), HOST));
    assert_eq!(switch.leave(client(1)).len(), 1);
}

#[test]
fn a_clients_question_goes_out_as_the_uplinks_and_the_answer_to_those_who_asked() {
    let mut switch = joined(3);
    let ask = |from: usize| arp(&ArpPacket::request(EthernetAddress(mac(client(from))), v4(V4), v4(HOST4)));
    for from in [0, 2, 2] {
        assert_eq!(judge(&mut switch, from, ask(from)).0, Verdict::Relay);
        assert_eq!(switch.relayed_to(), Places::from_iter([ClientId::UPLINK]));
        let question = switch.answer_to(ClientId::UPLINK).to_vec();
        assert_eq!((&question[..6], &question[6..12]), (&[0xff; 6][..], &UPLINK[..]));
        let Ok(Frame::Arp(asked)) = classify(&question, question.len()) else { panic!("no ARP") };
        assert_eq!(asked.packet, ArpPacket::request(EthernetAddress(UPLINK), v4(V4), v4(HOST4)));
    }
    let reply = ArpPacket::request(EthernetAddress(UPLINK), v4(V4), v4(HOST4)).reply(EthernetAddress(HOST));
    assert_eq!(arrive(&mut switch, arp(&reply)).0, Verdict::Relay);
    assert_eq!(switch.relayed_to(), Places::from_iter([client(0), client(2)]));
    for to in [client(0), client(2)] {
        let answer = switch.answer_to(to).to_vec();
        assert_eq!((&answer[..6], &answer[6..12]), (&mac(to)[..], &HOST[..]));
        let Ok(Frame::Arp(got)) = classify(&answer, answer.len()) else { panic!("no ARP") };
        assert_eq!((got.packet.sender_mac.0, got.packet.sender_address), (HOST, v4(HOST4)));
        assert_eq!((got.packet.target_mac.0, got.packet.target_address), (mac(to), v4(V4)));
    }
    // Once, and nothing that nobody has asked for.
    refused(&mut switch, arp(&reply), Some(DropReason::Unasked));
    let announcement = ArpPacket::announcement(EthernetAddress(HOST), v4(HOST4));
    refused(&mut switch, arp(&announcement), None);
    // A client that asks for too much loses its own questions.
    judge(&mut switch, 1, ask(1));
    for last in 100..108 {
        let other = Ipv4Addr::new(10, 0, 0, last);
        judge(&mut switch, 0, arp(&ArpPacket::request(EthernetAddress(mac(client(0))), v4(V4), other)));
    }
    assert_eq!(arrive(&mut switch, arp(&reply)).0, Verdict::Relay);
    assert_eq!(switch.relayed_to(), Places::from_iter([client(1)]));
    // A unicast poll stays one, and nobody asks the whole network by a group of its choice.
    assert_eq!(judge(&mut switch, 0, destined(ask(0), HOST)).0, Verdict::Relay);
    assert_eq!(switch.answer()[..6], HOST);
    judge(&mut switch, 0, destined(ask(0), [1, 0, 0x5e, 0, 0, 1]));
    assert_eq!(switch.answer()[..6], [0xff; 6]);
}

#[test]
fn the_same_by_neighbor_discovery_from_a_shared_address() {
    let mut switch = joined(2);
    let own = EthernetAddress(mac(client(0)));
    let group = ipv6::solicited_node(v6(HOST6));
    let link_local: IpAddr = "fe80::75".parse().unwrap();
    let question = Icmp6Message::NeighbourSolicitation { target: v6(HOST6), source_mac: Some(own), nonce: None };
    for source in [V6, link_local] {
        let path = Path::new(own, ipv6::multicast_mac(group), source.into(), group.into());
        let (verdict, _) = judge(&mut switch, 0, discovery(&path, &question));
        assert_eq!((verdict, switch.relayed_to()), (Verdict::Relay, Places::from_iter([ClientId::UPLINK])));
        let asked = switch.answer().to_vec();
        let Ok(Frame::Icmp6(asked)) = classify(&asked, asked.len()) else { panic!("no ICMPv6") };
        assert_eq!((asked.route.source_mac.0, asked.route.source), (UPLINK, V6.into()));
        assert_eq!((asked.route.destination_mac, asked.hop_limit), (ipv6::multicast_mac(group), NEIGHBOUR_HOP_LIMIT));
        let Icmp6Message::NeighbourSolicitation { target, source_mac, .. } = asked.message else { panic!() };
        assert_eq!((target, source_mac), (v6(HOST6), Some(EthernetAddress(UPLINK))));
    }
    let answer = Icmp6Message::NeighbourAdvertisement {
        router: false,
        solicited: true,
        overrides: true,
        target: v6(HOST6),
        target_mac: Some(EthernetAddress(HOST)),
    };
    let path = Path::new(EthernetAddress(HOST), EthernetAddress(UPLINK), HOST6.into(), V6.into());
    let mut far = discovery(&path, &answer);
    far[21] = 254;
    refused(&mut switch, far, Some(DropReason::Malformed));
    assert_eq!(arrive(&mut switch, discovery(&path, &answer)).0, Verdict::Relay);
    assert_eq!(switch.relayed_to(), Places::from_iter([client(0)]));
    let got = switch.answer_to(client(0)).to_vec();
    assert_eq!((&got[..6], &got[6..12]), (&mac(client(0))[..], &HOST[..]));
    let Ok(Frame::Icmp6(got)) = classify(&got, got.len()) else { panic!("no ICMPv6") };
    assert_eq!(got.message, answer);
    refused(&mut switch, discovery(&path, &answer), Some(DropReason::Unasked));
}

#[test]
fn the_uplink_answers_for_the_shared_addresses_and_announces_them() {
    let mut switch = joined(1);
    let host = EthernetAddress(HOST);
    for sender in [v4(HOST4), Ipv4Addr::UNSPECIFIED] {
        assert_eq!(arrive(&mut switch, arp(&ArpPacket::request(host, sender, v4(V4)))).0, Verdict::Answer);
        let answer = switch.answer().to_vec();
        let Ok(Frame::Arp(answer)) = classify(&answer, answer.len()) else { panic!("no ARP") };
        assert_eq!((answer.packet.sender_mac.0, answer.packet.sender_address), (UPLINK, v4(V4)));
        assert_eq!(answer.destination_mac, host);
    }
    refused(&mut switch, arp(&ArpPacket::request(host, v4(HOST4), Ipv4Addr::new(10, 0, 0, 9))), None);
    let group = ipv6::solicited_node(v6(V6));
    let question = |source_mac| Icmp6Message::NeighbourSolicitation { target: v6(V6), source_mac, nonce: None };
    let path = Path::new(host, ipv6::multicast_mac(group), HOST6.into(), group.into());
    assert_eq!(arrive(&mut switch, discovery(&path, &question(Some(host)))).0, Verdict::Answer);
    assert_eq!((&switch.answer()[..6], &switch.answer()[6..12]), (&HOST[..], &UPLINK[..]));
    // A check for duplicates: all nodes hear that the address is taken.
    let path = Path::new(host, ipv6::multicast_mac(group), Ipv6Addr::UNSPECIFIED.into(), group.into());
    assert_eq!(arrive(&mut switch, discovery(&path, &question(None))).0, Verdict::Answer);
    assert_eq!(switch.answer()[..6], ipv6::multicast_mac(ipv6::ALL_NODES).0);
    let announced = switch.announcements();
    assert_eq!(announced.len(), 2);
    assert!(announced.iter().all(|frame| frame[6..12] == UPLINK && frame[0] & 1 == 1));
}

#[test]
fn a_ping_is_answered_by_the_switch() {
    let mut switch = joined(0);
    let path = |from: IpAddr, to: IpAddr| {
        let path = Path::new(EthernetAddress(HOST), EthernetAddress(UPLINK), from.into(), to.into());
        Path { hop_limit: 3, ..path }
    };
    let data: Vec<u8> = (0..=255).collect();
    let mut frame = vec![0; 512];
    let request = IcmpMessage::EchoRequest { identifier: 7, sequence: 9, data: &data };
    let length = emit_icmp(&mut frame, &path(HOST4, V4), &request).unwrap();
    let (verdict, got) = arrive(&mut switch, frame[..length].to_vec());
    assert_eq!(verdict, Verdict::Forward { to: ClientId::UPLINK, ip_len: 0, tcp_len: 0 });
    // It would be an error if a checksum were wrong.
    let Ok(Frame::Icmp(reply)) = classify(&got, got.len()) else { panic!("no ICMP: {got:x?}") };
    assert_eq!(reply.message, IcmpMessage::EchoReply { identifier: 7, sequence: 9, data: &data });
    assert_eq!((reply.route.source, reply.route.destination), (V4.into(), HOST4.into()));
    assert_eq!((reply.route.source_mac.0, reply.route.destination_mac.0, got[22]), (UPLINK, HOST, 64));

    let request = Icmp6Message::EchoRequest { identifier: 7, sequence: 9, data: &data };
    let length = emit_icmp6(&mut frame, &path(HOST6, V6), &request).unwrap();
    let (_, got) = arrive(&mut switch, frame[..length].to_vec());
    let Ok(Frame::Icmp6(reply)) = classify(&got, got.len()) else { panic!("no ICMPv6: {got:x?}") };
    assert_eq!(reply.message, Icmp6Message::EchoReply { identifier: 7, sequence: 9, data: &data });
    assert_eq!((reply.route.destination, reply.hop_limit), (HOST6.into(), 64));
    let length = emit_icmp6(&mut frame, &path(V6, V6), &request).unwrap();
    refused(&mut switch, frame[..length].to_vec(), Some(DropReason::SourceAddress));
}

#[test]
fn an_icmp_error_from_the_uplink_reaches_the_sender_of_the_segment_and_nobody_else() {
    let mut switch = joined(2);
    let own = first_port(&switch, 0);
    let router: IpAddr = "10.0.0.254".parse().unwrap();
    let error = |from: IpAddr, quoted: &[u8]| {
        let path = Path::new(EthernetAddress(HOST), EthernetAddress(UPLINK), from.into(), V4.into());
        let code = unreachable::FRAGMENTATION_NEEDED;
        let mut frame = vec![0; 256];
        let message = IcmpMessage::DestinationUnreachable { code, next_hop_mtu: 1400, quoted };
        let length = emit_icmp(&mut frame, &path, &message).unwrap();
        frame.truncate(length);
        frame
    };
    let sent = leaving(0, (own, 9)).build();
    let (verdict, got) = arrive(&mut switch, error(router, &sent[14..]));
    assert_eq!(verdict, Verdict::Forward { to: client(0), ip_len: 0, tcp_len: 0 });
    assert_eq!(got[..6], mac(client(0)));
    // About a segment between clients, from a port that nobody owns, or in a client's name.
    let within = Segment::new(0, (own, first_port(&switch, 1))).build();
    refused(&mut switch, error(router, &within[14..]), Some(DropReason::ForgedIcmp));
    let nobodys = leaving(0, (7471, 9)).build();
    refused(&mut switch, error(router, &nobodys[14..]), Some(DropReason::ForgedIcmp));
    refused(&mut switch, error(V4, &sent[14..]), Some(DropReason::SourceAddress));
}

#[test]
fn without_a_link_new_connections_are_unreachable_and_others_wait() {
    let mut switch = joined(1);
    let own = first_port(&switch, 0);
    let segment = |flags| destined(leaving(0, (own, 9)).flags(flags).build(), HOST);
    assert!(matches!(judge(&mut switch, 0, segment(TcpFlags::ACK)).0, Verdict::Forward { .. }));
    switch.set_uplink(false);
    dropped(&mut switch, 0, segment(TcpFlags::ACK), DropReason::LinkDown);
    assert_eq!(judge(&mut switch, 0, segment(TcpFlags::SYN)).0, Verdict::Answer);
    let answer = switch.answer().to_vec();
    assert!(matches!(classify(&answer, answer.len()), Ok(Frame::Icmp(_))));
    let question = arp(&ArpPacket::request(EthernetAddress(mac(client(0))), v4(V4), v4(HOST4)));
    dropped(&mut switch, 0, question, DropReason::LinkDown);
    switch.set_uplink(true);
    assert!(matches!(judge(&mut switch, 0, segment(TcpFlags::ACK)).0, Verdict::Forward { .. }));
}

/// Any frame of those that matter: a segment, ARP or Neighbor Discovery, right but for a few octets.
fn any_frame(random: &mut fastrand::Rng, switch: &Switch) -> Vec<u8> {
    let macs = [mac(client(0)), mac(client(1)), SWITCH, UPLINK, HOST, [0xff; 6]];
    let mut any_mac = || macs[random.usize(..macs.len())];
    let (from, to) = (any_mac(), any_mac());
    let any_address = |random: &mut fastrand::Rng, is_v4: bool| match (is_v4, random.bool()) {
        (true, true) => V4,
        (true, false) => HOST4,
        (false, true) => V6,
        (false, false) => HOST6,
    };
    let is_v4 = random.bool();
    let (source, destination) = (any_address(random, is_v4), any_address(random, is_v4));
    let mut frame = match random.u8(..4) {
        0 if is_v4 => {
            let question = ArpPacket::request(EthernetAddress(from), v4(source), v4(destination));
            arp(&if random.bool() { question } else { question.reply(EthernetAddress(HOST)) })
        }
        0 => {
            let target = v6(any_address(random, false));
            let source_mac = Some(EthernetAddress(from));
            let message = if random.bool() {
                Icmp6Message::NeighbourSolicitation { target, source_mac, nonce: None }
            } else {
                let (router, solicited, overrides) = (false, true, true);
                Icmp6Message::NeighbourAdvertisement { router, solicited, overrides, target, target_mac: source_mac }
            };
            let path = Path::new(EthernetAddress(from), EthernetAddress(to), source.into(), destination.into());
            discovery(&path, &message)
        }
        _ => {
            let any_port = |random: &mut fastrand::Rng| match random.u8(..4) {
                0 => 7471,
                1 => 9,
                place => first_port(switch, usize::from(place) - 2),
            };
            let ports = (any_port(random), any_port(random));
            let flags = TcpFlags::from_bits(random.u16(..));
            Segment { mac: from, source, destination, ports, flags, payload: random.usize(..40) }.build()
        }
    };
    if random.bool() {
        frame[..6].copy_from_slice(&to);
    }
    if random.u8(..4) == 0 {
        let at = random.usize(..frame.len());
        frame[at] = random.u8(..);
    }
    frame
}

#[test]
fn nothing_passes_the_uplink_in_anothers_name_whatever_comes() {
    let [mut out, mut within, mut relayed, mut answered] = [0; 4];
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut switch = joined(2);
        switch.reserve(client(1), 7471, None).unwrap();
        for _ in 0..300 {
            let from = if random.bool() { ClientId::UPLINK } else { client(random.usize(..2)) };
            let mut frame = any_frame(&mut random, &switch);
            let before = frame.clone();
            let verdict = switch.judge(from, &mut frame);
            // Checksums are for the receiver to verify.
            let segment = match parse(&before) {
                Ok(Kind::Tcp(segment)) => Some(segment),
                _ => None,
            };
            match verdict {
                Verdict::Forward { to: ClientId::UPLINK, .. } => {
                    out += 1;
                    let segment = segment.expect("only segments leave, where nobody pings");
                    assert_eq!((&before[6..12], &frame[6..12]), (&mac(from)[..], &UPLINK[..]));
                    assert!(frame[0] & 1 == 0 && frame[..6] == before[..6]);
                    assert_eq!(switch.networks().owner(V4.into(), segment.source_port), Some(from));
                    assert!([V4.into(), V6.into()].contains(&segment.source));
                }
                Verdict::Forward { to, .. } if from == ClientId::UPLINK => {
                    within += 1;
                    let segment = segment.expect("no ICMP errors are made");
                    assert_eq!((&before[..6], &frame[..6]), (&UPLINK[..], &mac(to)[..]));
                    assert_eq!(switch.networks().owner(V4.into(), segment.destination_port), Some(to));
                    assert!(![V4.into(), V6.into()].contains(&segment.source));
                    assert_eq!(frame[6..], before[6..]);
                }
                Verdict::Forward { .. } => {}
                Verdict::Relay => {
                    relayed += 1;
                    let to = switch.relayed_to();
                    assert_eq!(to == Places::from_iter([ClientId::UPLINK]), from != ClientId::UPLINK);
                    for place in to {
                        let made = switch.answer_to(place).to_vec();
                        assert!(classify(&made, made.len()).is_ok());
                        assert!(from == ClientId::UPLINK || made[6..12] == UPLINK);
                    }
                    assert_eq!(frame, before);
                }
                Verdict::Answer => {
                    answered += 1;
                    let made = switch.answer().to_vec();
                    assert!(classify(&made, made.len()).is_ok());
                    assert_eq!(made[6..12], if from == ClientId::UPLINK { UPLINK } else { SWITCH });
                    assert_eq!(frame, before);
                }
                Verdict::Drop => assert_eq!(frame, before),
            }
        }
    }
    // Otherwise nothing was tried.
    assert!(out > 100 && within > 100 && relayed > 100 && answered > 100, "{out} {within} {relayed} {answered}");
}
