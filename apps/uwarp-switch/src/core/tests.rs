mod floods;
mod random;
mod uplink;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uwarp_wire::WireError;
use uwarp_wire::arp::{ArpOperation, ArpPacket};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, emit_datagram, emit_icmp, emit_icmp6, prepend_tcp};
use uwarp_wire::icmp::{IcmpMessage, unreachable};
use uwarp_wire::icmp6::{Icmp6Message, NEIGHBOUR_HOP_LIMIT};
use uwarp_wire::ipv6;
use uwarp_wire::roce::Header;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use super::*;

const SWITCH: [u8; 6] = [2, 0x75, 0, 0, 0, 0xff];
const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));

fn mac(client: ClientId) -> [u8; 6] {
    [2, 0x76, 0, 0, 0, client.place() as u8]
}

fn client(place: usize) -> ClientId {
    ClientId::new(place).expect("a place")
}

/// A switch with so many clients.
fn switch(clients: usize) -> Switch {
    let mut switch = Switch::new(SWITCH, 1500, &[V4, V6]).expect("addresses of a host");
    for place in 0..clients {
        switch.enter(client(place), NetworkId::OWN, mac(client(place))).expect("the place is free");
    }
    switch
}

fn first_port(switch: &Switch, place: usize) -> u16 {
    *switch.networks().block(client(place)).expect("it has entered").start()
}

/// A segment as a client would send it.
#[derive(Clone)]
struct Segment {
    mac: [u8; 6],
    source: IpAddr,
    destination: IpAddr,
    ports: (u16, u16),
    flags: TcpFlags,
    payload: usize,
}

impl Segment {
    fn new(from: usize, ports: (u16, u16)) -> Segment {
        let mac = mac(client(from));
        Segment { mac, source: V4, destination: V4, ports, flags: TcpFlags::ACK, payload: 100 }
    }

    fn flags(mut self, flags: TcpFlags) -> Segment {
        self.flags = flags;
        self
    }

    fn build(&self) -> Vec<u8> {
        let mut header = TcpHeader::new(self.flags);
        (header.source_port, header.destination_port) = self.ports;
        (header.sequence, header.acknowledgment) = (SeqNumber(1000), SeqNumber(77));
        let path =
            Path::new(EthernetAddress(self.mac), EthernetAddress(SWITCH), self.source.into(), self.destination.into());
        let mut room = [0; 128];
        let checksum = TcpChecksum::Full { payload_sum: 0 };
        let length = prepend_tcp(&mut room, &path, &header, 0, self.payload, checksum).expect("room");
        let mut frame = room[128 - length..].to_vec();
        frame.resize(length + self.payload, 0);
        frame
    }
}

fn judge(switch: &mut Switch, from: usize, mut frame: Vec<u8>) -> (Verdict, Vec<u8>) {
    let verdict = switch.judge(client(from), &mut frame);
    (verdict, frame)
}

fn dropped(switch: &mut Switch, from: usize, frame: Vec<u8>, reason: DropReason) {
    let before = switch.counters(client(from)).dropped(reason);
    let (verdict, _) = judge(switch, from, frame);
    assert_eq!(verdict, Verdict::Drop, "{reason:?}");
    assert_eq!(switch.counters(client(from)).dropped(reason), before + 1, "{reason:?}");
}

fn answer_is_reset(switch: &Switch, sequence: u32) {
    let answer = switch.answer();
    let Ok(Frame::Tcp(reset)) = classify(answer, answer.len()) else { panic!("no segment: {answer:?}") };
    assert!(reset.header.flags.contains(TcpFlags::RST) && reset.checksum_is_good(answer, uwarp_wire::checksum::sum));
    assert_eq!(reset.header.sequence.0, sequence);
}

/// A datagram from a queue pair to another one, as a client would send it.
fn datagram(mac: [u8; 6], [source, destination]: [IpAddr; 2], numbers: (u32, u32)) -> Vec<u8> {
    let path = Path::new(EthernetAddress(mac), EthernetAddress(SWITCH), source.into(), destination.into());
    let header =
        Header { destination: numbers.1, source: numbers.0, key: 1, sequence: 0, solicited: false, immediate: None };
    let mut frame = vec![0; 200];
    let length = emit_datagram(&mut frame, &path, &header, 5, |_| Ok::<_, WireError>(())).expect("room");
    frame.truncate(length);
    frame
}

#[test]
fn a_datagram_goes_to_the_place_in_its_number_and_comes_from_the_senders() {
    let mut switch = switch(2);
    let number = |place: u32| (place + 1) << 15 | 7;
    let foreign: IpAddr = Ipv4Addr::new(10, 0, 0, 9).into();
    for address in [V4, V6] {
        for to in 0..2 {
            let sent = datagram(mac(client(0)), [address; 2], (number(0), number(to)));
            let (verdict, got) = judge(&mut switch, 0, sent.clone());
            assert_eq!(verdict, Verdict::Forward { to: client(to as usize), ip_len: 0, tcp_len: 0 });
            assert_eq!((&got[..6], &got[6..12]), (&mac(client(to as usize))[..], &SWITCH[..]));
            assert_eq!(got[12..], sent[12..]);
        }
    }
    // Nobody has that place, or the number of none.
    for to in [number(2), number(29), 0xff_ffff, 7] {
        let (verdict, _) = judge(&mut switch, 0, datagram(mac(client(0)), [V4; 2], (number(0), to)));
        assert_eq!(verdict, Verdict::Drop);
    }
    for (addresses, from, reason) in [
        ([V4, V4], number(1), DropReason::SourcePort),
        ([V4, V4], 7, DropReason::SourcePort),
        ([foreign, V4], number(0), DropReason::SourceAddress),
        ([V4, foreign], number(0), DropReason::Destination),
    ] {
        dropped(&mut switch, 0, datagram(mac(client(0)), addresses, (from, number(1))), reason);
    }
    let mut other_port = datagram(mac(client(0)), [V4; 2], (number(0), number(1)));
    other_port[37] ^= 1;
    dropped(&mut switch, 0, other_port, DropReason::Unsupported);
}

#[test]
fn a_segment_goes_to_the_owner_of_its_port_with_new_hardware_addresses() {
    let mut switch = switch(3);
    assert_eq!(switch.reserve(client(1), 7471, None), Ok(()));
    let from = first_port(&switch, 0);
    for address in [V4, V6] {
        let mut segment = Segment::new(0, (from, 7471));
        (segment.source, segment.destination) = (address, address);
        let sent = segment.build();
        let (verdict, got) = judge(&mut switch, 0, sent.clone());
        let ip_len = if address.is_ipv4() { 20 } else { 40 };
        assert_eq!(verdict, Verdict::Forward { to: client(1), ip_len, tcp_len: 20 });
        assert_eq!((&got[..6], &got[6..12], &got[12..]), (&mac(client(1))[..], &SWITCH[..], &sent[12..]));
    }
    // And back, and to oneself.
    let (back, _) = judge(&mut switch, 1, Segment::new(1, (7471, from)).build());
    assert!(matches!(back, Verdict::Forward { to, .. } if to == client(0)));
    let own = first_port(&switch, 1);
    let (own, _) = judge(&mut switch, 1, Segment::new(1, (own, 7471)).build());
    assert!(matches!(own, Verdict::Forward { to, .. } if to == client(1)));
}

#[test]
fn a_flow_goes_elsewhere_when_its_port_changes_hands() {
    let mut switch = switch(3);
    let from = first_port(&switch, 0);
    let segment = Segment::new(0, (from, 7471)).build();
    for owner in [1, 2] {
        switch.reserve(client(owner), 7471, None).unwrap();
        // The first is looked up, the second remembered.
        for _ in 0..2 {
            let (verdict, got) = judge(&mut switch, 0, segment.clone());
            assert_eq!(verdict, Verdict::Forward { to: client(owner), ip_len: 20, tcp_len: 20 });
            assert_eq!(got[..6], mac(client(owner)));
        }
        // A remembered flow is of one sender, and its frames are looked at.
        dropped(&mut switch, 1, segment.clone(), DropReason::SourceMac);
        dropped(&mut switch, 0, segment[..100].to_vec(), DropReason::Malformed);
        dropped(&mut switch, 0, [&segment[..], &[0; 1400]].concat(), DropReason::TooLong);
        if owner == 1 {
            switch.release(client(1), 7471, None);
        } else {
            switch.leave(client(2));
        }
        assert_eq!(judge(&mut switch, 0, segment.clone()).0, Verdict::Answer, "nobody owns the port");
    }
}

#[test]
fn what_is_in_anothers_name_is_dropped_and_counted() {
    let mut switch = switch(2);
    switch.reserve(client(1), 7471, None).unwrap();
    let own = first_port(&switch, 0);
    let good = Segment::new(0, (own, 7471));
    dropped(&mut switch, 0, Segment { mac: mac(client(1)), ..good.clone() }.build(), DropReason::SourceMac);
    dropped(&mut switch, 0, Segment { mac: SWITCH, ..good.clone() }.build(), DropReason::SourceMac);
    let stranger = "10.0.0.2".parse().unwrap();
    dropped(&mut switch, 0, Segment { source: stranger, ..good.clone() }.build(), DropReason::SourceAddress);
    for port in [7471, 1, first_port(&switch, 1)] {
        dropped(&mut switch, 0, Segment { ports: (port, 7471), ..good.clone() }.build(), DropReason::SourcePort);
    }
    // An address of version 4 in the form of version 6.
    let mut mapped = Segment { source: V6, destination: V6, ..good.clone() }.build();
    mapped[22..38].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
    dropped(&mut switch, 0, mapped, DropReason::Malformed);
    let (verdict, _) = judge(&mut switch, 0, good.build());
    assert!(matches!(verdict, Verdict::Forward { .. }));
}

#[test]
fn what_the_switch_does_not_carry_is_dropped_and_counted() {
    let mut switch = switch(2);
    let good = Segment::new(0, (first_port(&switch, 0), first_port(&switch, 1)));
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.build();
        edit(&mut frame);
        frame
    };
    for (frame, reason) in [
        (Segment { payload: 1461, ..good.clone() }.build(), DropReason::TooLong),
        (vec![], DropReason::SourceMac),
        (good.build()[..33].to_vec(), DropReason::Malformed),
        (good.build()[..53].to_vec(), DropReason::Malformed),
        // Cut behind the headers: the packet says that it is longer.
        (good.build()[..100].to_vec(), DropReason::Malformed),
        (edited(&|frame| frame[46] = 0x40), DropReason::Malformed),
        (edited(&|frame| frame[12..14].copy_from_slice(&[0x81, 0])), DropReason::Unsupported),
        (edited(&|frame| frame[14] = 0x46), DropReason::Unsupported),
        (edited(&|frame| frame[20] = 0x20), DropReason::Unsupported),
        (edited(&|frame| frame[21] = 1), DropReason::Unsupported),
        (edited(&|frame| frame[23] = 17), DropReason::Unsupported),
    ] {
        dropped(&mut switch, 0, frame, reason);
    }
    let (verdict, _) = judge(&mut switch, 0, Segment { payload: 1460, ..good }.build());
    assert!(matches!(verdict, Verdict::Forward { .. }));
}

#[test]
fn a_segment_to_a_port_that_nobody_owns_is_reset_and_a_reset_is_not() {
    let mut switch = switch(1);
    let own = first_port(&switch, 0);
    let (verdict, _) = judge(&mut switch, 0, Segment::new(0, (own, 7471)).build());
    assert_eq!(verdict, Verdict::Answer);
    answer_is_reset(&switch, 77);
    assert_eq!(&switch.answer()[..6], &mac(client(0)));
    let reset = Segment::new(0, (own, 7471)).flags(TcpFlags::RST);
    assert_eq!(judge(&mut switch, 0, reset.build()).0, Verdict::Drop);
    assert_eq!(switch.counters(client(0)).answered, 1);
}

#[test]
fn a_connection_to_a_host_beyond_is_unreachable_at_once() {
    let mut switch = switch(1);
    let own = first_port(&switch, 0);
    for (source, destination) in [(V4, "10.0.0.2"), (V6, "fd00::2")] {
        let destination = destination.parse().unwrap();
        let syn = Segment { source, destination, ..Segment::new(0, (own, 7471)).flags(TcpFlags::SYN) };
        assert_eq!(judge(&mut switch, 0, syn.build()).0, Verdict::Answer);
        let answer = switch.answer();
        let quoted = match classify(answer, answer.len()).expect("a frame") {
            Frame::Icmp(icmp) => icmp.message.quoted_tcp(),
            Frame::Icmp6(icmp) => icmp.message.quoted_tcp(),
            other => panic!("{other:?}"),
        };
        let quoted = quoted.expect("it quotes the SYN");
        assert_eq!((quoted.flow.local_port, quoted.sequence), (own, SeqNumber(1000)));
        let late = Segment { source, destination, ..Segment::new(0, (own, 7471)) };
        assert_eq!(judge(&mut switch, 0, late.build()).0, Verdict::Drop, "only a SYN is answered");
    }
}

#[test]
fn every_question_for_a_neighbour_is_answered_with_the_switch() {
    let mut switch = switch(2);
    let own = EthernetAddress(mac(client(0)));
    let Some(host) = V4.to_canonical().to_string().parse::<Ipv4Addr>().ok() else { panic!() };
    let asked = Ipv4Addr::new(10, 0, 0, 9);
    let mut frame = [0; 64];
    let length = ArpPacket::request(own, host, asked).emit_frame(&mut frame).unwrap();
    assert_eq!(judge(&mut switch, 0, frame[..length].to_vec()).0, Verdict::Answer);
    let Ok(Frame::Arp(answer)) = classify(switch.answer(), switch.answer().len()) else { panic!("no ARP") };
    assert_eq!(answer.packet.operation, ArpOperation::Reply);
    assert_eq!((answer.packet.sender_mac.0, answer.packet.sender_address), (SWITCH, asked));
    let length = ArpPacket::announcement(own, host).emit_frame(&mut frame).unwrap();
    assert_eq!(judge(&mut switch, 0, frame[..length].to_vec()).0, Verdict::Drop, "an announcement");
    let length = ArpPacket::request(own, asked, host).emit_frame(&mut frame).unwrap();
    dropped(&mut switch, 0, frame[..length].to_vec(), DropReason::SourceAddress);
    let length = ArpPacket::request(EthernetAddress(mac(client(1))), host, asked).emit_frame(&mut frame).unwrap();
    frame[6..12].copy_from_slice(&own.0);
    dropped(&mut switch, 0, frame[..length].to_vec(), DropReason::SourceMac);

    let target = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
    let message = Icmp6Message::NeighbourSolicitation { target, source_mac: Some(own), nonce: None };
    let group = ipv6::solicited_node(target);
    let path = Path::new(own, ipv6::multicast_mac(group), V6.into(), group.into());
    let path = Path { hop_limit: NEIGHBOUR_HOP_LIMIT, ..path };
    let mut frame = [0; 128];
    let length = emit_icmp6(&mut frame, &path, &message).unwrap();
    assert_eq!(judge(&mut switch, 0, frame[..length].to_vec()).0, Verdict::Answer);
    let Ok(Frame::Icmp6(answer)) = classify(switch.answer(), switch.answer().len()) else { panic!("no ICMPv6") };
    let Icmp6Message::NeighbourAdvertisement { target: said, target_mac, .. } = answer.message else { panic!() };
    assert_eq!((said, target_mac), (target, Some(EthernetAddress(SWITCH))));
}

#[test]
fn an_icmp_error_reaches_the_sender_of_what_it_quotes_and_only_its_receiver_may_send_it() {
    let mut switch = switch(3);
    let ports = (first_port(&switch, 0), first_port(&switch, 1));
    let quoted = Segment::new(0, ports).build()[14..62].to_vec();
    let error = |from: usize, quoted: &[u8]| {
        let path = Path::new(EthernetAddress(mac(client(from))), EthernetAddress(SWITCH), V4.into(), V4.into());
        let message =
            IcmpMessage::DestinationUnreachable { code: unreachable::FRAGMENTATION_NEEDED, next_hop_mtu: 576, quoted };
        let mut frame = vec![0; 128];
        let length = emit_icmp(&mut frame, &path, &message).unwrap();
        frame.truncate(length);
        frame
    };
    let (verdict, frame) = judge(&mut switch, 1, error(1, &quoted));
    assert_eq!(verdict, Verdict::Forward { to: client(0), ip_len: 0, tcp_len: 0 });
    assert_eq!(&frame[..6], &mac(client(0)));
    dropped(&mut switch, 2, error(2, &quoted), DropReason::ForgedIcmp);
    dropped(&mut switch, 0, error(0, &quoted), DropReason::ForgedIcmp);
    dropped(&mut switch, 1, error(1, &quoted[..20]), DropReason::Unsupported);
}

#[test]
fn the_peers_of_a_client_that_leaves_are_asked_and_then_reset() {
    let mut switch = switch(3);
    switch.reserve(client(0), 7471, None).unwrap();
    let (one, two) = (first_port(&switch, 1), first_port(&switch, 2));
    let mut connect = |from: usize, port: u16| {
        judge(&mut switch, from, Segment::new(from, (port, 7471)).flags(TcpFlags::SYN).build());
        judge(&mut switch, 0, Segment::new(0, (7471, port)).flags(TcpFlags::SYN | TcpFlags::ACK).build());
    };
    connect(1, one);
    connect(1, one + 1);
    connect(1, one + 2);
    connect(2, two);
    assert_eq!(switch.followed(), 4);
    // One ends from either side, and is not asked about.
    judge(&mut switch, 1, Segment::new(1, (one + 1, 7471)).flags(TcpFlags::FIN | TcpFlags::ACK).build());
    judge(&mut switch, 0, Segment::new(0, (7471, one + 2)).flags(TcpFlags::RST).build());
    assert_eq!(switch.followed(), 2);
    let mut probes = switch.leave(client(0));
    probes.sort_by_key(|probe| probe.to);
    assert_eq!(probes.iter().map(|probe| probe.to).collect::<Vec<_>>(), [client(1), client(2)]);
    let Ok(Frame::Tcp(probe)) = classify(&probes[0].frame, probes[0].frame.len()) else { panic!("no segment") };
    assert!(
        probe.header.flags.contains(TcpFlags::SYN)
            && probe.checksum_is_good(&probes[0].frame, uwarp_wire::checksum::sum)
    );
    assert_eq!((probe.flow.remote_port, probe.flow.local_port), (7471, one));
    assert_eq!(switch.followed(), 0);
    // Its answer, an acknowledgment, meets a port without an owner.
    assert_eq!(judge(&mut switch, 1, Segment::new(1, (one, 7471)).build()).0, Verdict::Answer);
    answer_is_reset(&switch, 77);
    // The port is free.
    assert_eq!(switch.reserve(client(1), 7471, None), Ok(()));
}

#[test]
fn a_port_has_one_owner_and_is_free_when_that_leaves() {
    let mut switch = switch(2);
    let (zero, one) = (switch.networks().block(client(0)).unwrap(), switch.networks().block(client(1)).unwrap());
    assert!(zero.end() < one.start());
    assert_eq!(switch.reserve(client(0), 7471, None), Ok(()));
    assert_eq!(switch.reserve(client(0), 7471, None), Ok(()), "what one has is granted again");
    assert_eq!(switch.reserve(client(1), 7471, None), Err(ReserveError::Taken));
    assert_eq!(switch.reserve(client(1), *zero.start(), None), Err(ReserveError::Taken), "in another's block");
    assert_eq!(switch.reserve(client(1), 0, None), Err(ReserveError::Taken), "no port");
    let any = *zero.end();
    assert_eq!(switch.reserve(client(0), any, None), Ok(()));
    switch.release(client(1), 7471, None);
    assert_eq!(switch.networks().owner(V4.into(), 7471), Some(client(0)), "another's release does nothing");
    switch.release(client(0), 7471, None);
    switch.release(client(0), any, None);
    assert_eq!(
        (switch.networks().owner(V4.into(), 7471), switch.networks().owner(V4.into(), any)),
        (None, Some(client(0)))
    );
    switch.reserve(client(0), 7471, None).unwrap();
    switch.leave(client(0));
    assert_eq!((switch.networks().owner(V4.into(), 7471), switch.networks().owner(V4.into(), any)), (None, None));
    assert_eq!(switch.enter(client(0), NetworkId::OWN, mac(client(0))).map(|block| block.contains(&any)), Some(false));
}

#[test]
fn networks_have_addresses_and_ports_of_their_own() {
    let (far, farther): (IpAddr, IpAddr) = (Ipv4Addr::new(10, 8, 0, 2).into(), Ipv4Addr::new(10, 8, 0, 3).into());
    let mut switch = switch(1);
    let table = uwarp_ring::cable::OwnerTable::new().expect("memory");
    let owners = uwarp_ring::cable::Owners::map(&table).expect("it can be mapped");
    switch.publish(table);
    let id = NetworkId::all().nth(3).expect("a number");
    assert_eq!(switch.enter(client(1), id, mac(client(1))), None, "no such network");
    assert_eq!(switch.set_addresses(id, &[far, V4]), Err(ForeignAddress(V4)));
    switch.set_addresses(id, &[far, farther]).expect("addresses of hosts");
    assert_eq!(switch.set_addresses(NetworkId::OWN, &[V4, far]), Err(ForeignAddress(far)));
    for place in 1..3 {
        switch.enter(client(place), id, mac(client(place))).expect("the place is free");
    }
    for (place, granted) in [(0, Ok(())), (1, Ok(())), (2, Err(ReserveError::Taken))] {
        assert_eq!(switch.reserve(client(place), 7471, None), granted, "{place}");
    }
    for (address, owner) in [(V4, 0), (far, 1), (farther, 1)] {
        assert_eq!(switch.networks().owner(address.into(), 7471), Some(client(owner)), "{address}");
        let ports = (first_port(&switch, 0), 7471);
        let sent = Segment { destination: address, ..Segment::new(0, ports) };
        let (verdict, _) = judge(&mut switch, 0, sent.build());
        assert!(matches!(verdict, Verdict::Forward { to, .. } if to == client(owner)), "{address}: {verdict:?}");
        let number = [0, 3].map(|network| owners.get(network, 7471));
        assert!(number.iter().all(|owner| matches!(owner, uwarp_ring::cable::Owner::One(_))) && number[0] != number[1]);
    }
    // Nobody speaks as another network.
    let ports = (first_port(&switch, 1), 7471);
    let claim = |from, source| Segment { source, ..Segment::new(from, ports) };
    dropped(&mut switch, 1, claim(1, V4).build(), DropReason::SourceAddress);
    dropped(&mut switch, 0, claim(0, far).build(), DropReason::SourceAddress);
    dropped(&mut switch, 2, claim(2, far).build(), DropReason::SourcePort);
    let number = |place: u32| (place + 1) << 15 | 7;
    let (verdict, _) = judge(&mut switch, 0, datagram(mac(client(0)), [V4, far], (number(0), number(1))));
    assert_eq!(verdict, Verdict::Forward { to: client(1), ip_len: 0, tcp_len: 0 });
    let (verdict, _) = judge(&mut switch, 0, datagram(mac(client(0)), [V4, V4], (number(0), number(1))));
    assert_eq!(verdict, Verdict::Drop, "it has another address");
    dropped(&mut switch, 1, datagram(mac(client(1)), [V4, far], (number(1), number(2))), DropReason::SourceAddress);
    // When its last client has gone, its ports are nobody's, and then its addresses.
    switch.leave(client(1));
    switch.leave(client(2));
    let sent = Segment { destination: far, ..Segment::new(0, (first_port(&switch, 0), 7471)) };
    assert_eq!(judge(&mut switch, 0, sent.build()).0, Verdict::Answer);
    answer_is_reset(&switch, 77);
    switch.set_addresses(id, &[]).expect("none");
    assert_eq!(switch.networks().network_of(far.into()), None);
    let other = NetworkId::all().nth(1).expect("a number");
    switch.set_addresses(other, &[far]).expect("it is free");
    switch.enter(client(1), other, mac(client(1))).expect("the place is free");
    assert_eq!(switch.networks().network_of(far.into()), Some(other));
}

#[test]
fn clients_may_have_one_port_at_an_address_each() {
    let mut switch = switch(3);
    let from = first_port(&switch, 0);
    let to = |switch: &mut Switch, destination: IpAddr| {
        let segment = Segment { source: destination, destination, ..Segment::new(0, (from, 4420)) };
        // The first is looked up, the second remembered.
        let verdicts = [(); 2].map(|()| judge(switch, 0, segment.build()).0);
        assert_eq!(verdicts[0], verdicts[1]);
        match verdicts[0] {
            Verdict::Forward { to, .. } => Some(to.place()),
            _ => None,
        }
    };
    // One client alone has the port everywhere, and may have it at several addresses.
    assert_eq!(switch.reserve(client(1), 4420, Some(V4)), Ok(()));
    assert_eq!((to(&mut switch, V4), to(&mut switch, V6)), (Some(1), Some(1)));
    assert_eq!(switch.reserve(client(2), 4420, Some(V6)), Ok(()));
    assert_eq!((to(&mut switch, V4), to(&mut switch, V6)), (Some(1), Some(2)));
    for address in [None, Some(V4), Some(V6)] {
        assert_eq!(switch.reserve(client(0), 4420, address), Err(ReserveError::Taken));
    }
    assert_eq!(switch.reserve(client(1), 4420, Some(V6)), Err(ReserveError::Taken));
    assert_eq!(switch.reserve(client(1), 4420, None), Err(ReserveError::Taken));
    // Each sends from its own address only.
    let forged = Segment { source: V6, destination: V6, ..Segment::new(1, (4420, from)) };
    dropped(&mut switch, 1, forged.build(), DropReason::SourcePort);
    switch.release(client(1), 4420, None);
    assert_eq!(to(&mut switch, V4), Some(1), "it was not reserved so");
    switch.release(client(1), 4420, Some(V4));
    assert_eq!((to(&mut switch, V4), to(&mut switch, V6)), (Some(2), Some(2)));
    assert_eq!(switch.reserve(client(1), 4420, Some(V4)), Ok(()));
    switch.leave(client(2));
    assert_eq!(switch.reserve(client(1), 4420, Some(V6)), Ok(()));
    assert_eq!(switch.networks().reserved(client(1)), [4420]);
    assert_eq!((to(&mut switch, V4), to(&mut switch, V6)), (Some(1), Some(1)));
    switch.leave(client(1));
    assert_eq!((to(&mut switch, V4), to(&mut switch, V6)), (None, None));
}

#[test]
fn nobody_hoards_ports_and_every_place_finds_a_block() {
    let mut switch = switch(1);
    let reserved = (1..=65_535).filter(|port| switch.reserve(client(0), *port, None).is_ok()).count();
    assert_eq!(reserved, MAX_RESERVED);
    assert_eq!(switch.reserve(client(0), 65_535, None), Err(ReserveError::Limit));
    // One port in as many blocks as possible.
    let mut switch = super::tests::switch(2);
    let blocks = EPHEMERAL.step_by(LEAST_BLOCK.into());
    let spread: Vec<_> = blocks.map(|port| switch.reserve(client(0), port, None)).collect();
    assert!(spread.contains(&Err(ReserveError::Kept)) && spread.iter().any(Result::is_ok), "{spread:?}");
    for place in 2..MAX_CLIENTS {
        let block = switch.enter(client(place), NetworkId::OWN, mac(client(place))).expect("a block is left");
        assert_eq!(block.len(), usize::from(LEAST_BLOCK));
        assert!(block.clone().all(|port| switch.networks().owner(V4.into(), port) == Some(client(place))));
    }
    assert_eq!(switch.enter(client(1), NetworkId::OWN, mac(client(1))), None, "the place is taken");
}

#[test]
fn the_first_clients_have_the_largest_blocks_and_those_that_left_leave_room() {
    let mut switch = switch(0);
    let enter = |switch: &mut Switch, place| {
        let block = switch.enter(client(place), NetworkId::OWN, mac(client(place))).expect("a block is left");
        assert!(
            EPHEMERAL.contains(block.start())
                && block.clone().all(|port| { switch.networks().owner(V4.into(), port) == Some(client(place)) })
        );
        block.len()
    };
    let sizes: Vec<usize> = (0..MAX_CLIENTS).map(|place| enter(&mut switch, place)).collect();
    assert!(sizes[..16].iter().all(|size| *size == usize::from(MOST_BLOCK)), "{sizes:?}");
    assert!(sizes.is_sorted_by(|earlier, later| earlier >= later), "{sizes:?}");
    assert_eq!(sizes[MAX_CLIENTS - 1], usize::from(LEAST_BLOCK));
    (16..MAX_CLIENTS).for_each(|place| drop(switch.leave(client(place))));
    assert_eq!(enter(&mut switch, 20), usize::from(MOST_BLOCK));
}

#[test]
fn many_addresses_are_shared_and_others_take_their_place() {
    let many: Vec<IpAddr> =
        (0..MAX_ADDRESSES as u32).map(|host| Ipv4Addr::from_bits((10 << 24) + 1 + host).into()).collect();
    let mut switch = Switch::new(SWITCH, 1500, &many).expect("addresses of hosts");
    for place in 0..2 {
        switch.enter(client(place), NetworkId::OWN, mac(client(place))).expect("the place is free");
    }
    assert_eq!(switch.reserve(client(1), 7471, None), Ok(()));
    let from = first_port(&switch, 0);
    let segment = |source, destination| Segment { source, destination, ..Segment::new(0, (from, 7471)) };
    let (first, last) = (many[0], many[MAX_ADDRESSES - 1]);
    let sent = segment(first, last);
    // The second is of a known flow.
    for _ in 0..2 {
        let (verdict, _) = judge(&mut switch, 0, sent.build());
        assert!(matches!(verdict, Verdict::Forward { to, .. } if to == client(1)));
    }
    let too_many: Vec<IpAddr> = many.iter().copied().chain([V6]).collect();
    assert_eq!(switch.set_addresses(NetworkId::OWN, &too_many), Err(ForeignAddress(V6)));
    switch.set_addresses(NetworkId::OWN, &[V6, first]).expect("addresses of hosts");
    let (verdict, _) = judge(&mut switch, 0, sent.clone().flags(TcpFlags::SYN).build());
    assert_eq!(verdict, Verdict::Answer, "unreachable");
    dropped(&mut switch, 0, segment(last, first).build(), DropReason::SourceAddress);
    for address in [V6, first] {
        let (verdict, _) = judge(&mut switch, 0, segment(address, address).build());
        assert!(matches!(verdict, Verdict::Forward { to, .. } if to == client(1)));
    }
}

#[test]
fn an_address_that_is_not_a_hosts_is_refused() {
    for address in ["127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "ff02::1"] {
        let address = address.parse().unwrap();
        assert_eq!(Switch::new(SWITCH, 1500, &[V4, address]).err(), Some(ForeignAddress(address)));
    }
}
