use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use uwarp_engine::port::{Batch, Buffer, Port};
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, prepend_tcp};
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use super::*;
use crate::core::NetworkId;

const SWITCH: [u8; 6] = [2, 0x75, 0, 0, 0, 0xff];
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// Frames that a client's device holds before it takes no more.
const RING: usize = 8;

/// The switch, and the clients' ends with their first ports.
fn rig(clients: usize, checksums: bool) -> (Forwarder<LoopPort>, Vec<(LoopPort, u16)>) {
    let mut forwarder = Forwarder::new(Switch::new(SWITCH, 1500, &[HOST]).unwrap());
    let ends = (0..clients).map(|place| {
        let (near, far) = LoopPort::pair(LoopOptions { queue: RING, buffers: 64, checksums, ..LoopOptions::default() });
        let client = ClientId::new(place).unwrap();
        let block = forwarder.switch_mut().enter(client, NetworkId::OWN, mac(place)).unwrap();
        forwarder.attach(client, near);
        (far, *block.start())
    });
    let ends = ends.collect();
    (forwarder, ends)
}

fn mac(place: usize) -> [u8; 6] {
    [2, 0x75, 0, 0, 0, place as u8]
}

/// Sends a segment with one octet; gives whether the port took it.
fn send(end: &mut LoopPort, from: usize, ports: (u16, u16), octet: u8) -> bool {
    let mut header = TcpHeader::new(TcpFlags::ACK);
    (header.source_port, header.destination_port) = ports;
    let path = Path::new(EthernetAddress(mac(from)), EthernetAddress(SWITCH), HOST.into(), HOST.into());
    let mut frame = end.alloc().expect("a buffer");
    let start = frame.start();
    let storage = frame.storage_mut().unwrap();
    let payload_sum = u32::from(octet) << 8;
    let length = prepend_tcp(&mut storage[..start], &path, &header, 0, 1, TcpChecksum::Full { payload_sum }).unwrap();
    storage[start] = octet;
    frame.set_range(start - length, length + 1);
    end.tx_burst(&mut VecDeque::from([frame])) == 1
}

/// The last octets of all frames that wait.
fn receive(end: &mut LoopPort) -> Vec<u8> {
    let mut octets = Vec::new();
    loop {
        let mut batch = Batch::new();
        if end.rx_burst(&mut batch) == 0 {
            return octets;
        }
        octets.extend(batch.iter().map(|frame| *frame.data().last().unwrap()));
    }
}

fn client(place: usize) -> ClientId {
    ClientId::new(place).unwrap()
}

#[test]
fn frames_arrive_in_order_at_the_owner_of_their_port() {
    let (mut forwarder, mut ends) = rig(3, true);
    let (zero, one, two) = (ends[0].1, ends[1].1, ends[2].1);
    for octet in 1..=3 {
        assert!(send(&mut ends[0].0, 0, (zero, one), octet));
        assert!(send(&mut ends[1].0, 1, (one, two), 10 + octet));
    }
    assert_eq!(forwarder.turn(), 6);
    assert_eq!(receive(&mut ends[1].0), [1, 2, 3]);
    assert_eq!(receive(&mut ends[2].0), [11, 12, 13]);
    assert!(receive(&mut ends[0].0).is_empty());
    let counters = forwarder.switch().counters(client(1));
    assert_eq!((counters.received, counters.sent), (3, 3));
    assert_eq!(forwarder.turn(), 0);
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let (mut forwarder, mut ends) = rig(3, true);
    let (zero, one, two) = (ends[0].1, ends[1].1, ends[2].1);
    for round in 0..20 {
        // The first never reads; the second does.
        assert!(send(&mut ends[2].0, 2, (two, zero), round));
        assert!(send(&mut ends[2].0, 2, (two, one), round));
        forwarder.turn();
        assert_eq!(receive(&mut ends[1].0), [round]);
    }
    let counters = forwarder.switch().counters(client(0));
    assert_eq!((counters.sent, counters.dropped(DropReason::RingFull)), (RING as u64, 20 - RING as u64));
    assert_eq!(forwarder.switch().counters(client(2)).dropped(DropReason::RingFull), 0);
    assert_eq!(receive(&mut ends[0].0).len(), RING);
}

#[test]
fn a_checksum_that_was_left_out_is_announced_to_the_receiver() {
    // Without checksums both sides of a pair say that their device computes them.
    for (checksums, left_out) in [(true, false), (false, true)] {
        let (mut forwarder, mut ends) = rig(2, checksums);
        let ports = (ends[0].1, ends[1].1);
        assert!(send(&mut ends[0].0, 0, ports, 7));
        forwarder.turn();
        let mut batch = Batch::new();
        assert_eq!(ends[1].0.rx_burst(&mut batch), 1);
        let asked = batch[0].transmit_checksums();
        let lengths = if left_out { (14, 20, 20) } else { (0, 0, 0) };
        assert_eq!(asked.tcp, left_out);
        assert_eq!((asked.link_length, asked.ip_length, asked.tcp_length), lengths);
    }
}

#[test]
fn a_client_that_is_gone_is_reset_at_its_peers() {
    let (mut forwarder, mut ends) = rig(2, true);
    let (zero, one) = (ends[0].1, ends[1].1);
    assert!(forwarder.detach(client(1)).is_some());
    assert!(send(&mut ends[0].0, 0, (zero, one), 1));
    forwarder.turn();
    // The reset has no payload: its last octets are the urgent pointer.
    assert_eq!(receive(&mut ends[0].0), [0]);
    let counters = forwarder.switch().counters(client(0));
    assert_eq!((counters.answered, counters.sent), (1, 1));
}

/// A program gives its port back, or leaves, right behind its last segments.
#[test]
fn what_was_sent_before_a_port_is_given_back_or_its_client_leaves_goes_on() {
    let (mut forwarder, mut ends) = rig(2, true);
    let (zero, one) = (ends[0].1, ends[1].1);
    assert!(send(&mut ends[1].0, 1, (one, zero), 4));
    forwarder.deliver(client(1));
    assert_eq!(receive(&mut ends[0].0), [4]);
    assert_eq!(forwarder.switch_mut().reserve(client(1), 7471, None), Ok(()));
    assert!(send(&mut ends[1].0, 1, (7471, zero), 5));
    forwarder.release(client(1), 7471, None);
    assert_eq!(receive(&mut ends[0].0), [5]);
    assert!(send(&mut ends[1].0, 1, (one, zero), 6));
    assert!(forwarder.detach(client(1)).is_some());
    assert_eq!(receive(&mut ends[0].0), [6]);
}

/// A host beyond the uplink: its end, and a segment with one octet from the client to it and back.
fn join(forwarder: &mut Forwarder<LoopPort>, checksums: bool) -> LoopPort {
    let (near, far) = LoopPort::pair(LoopOptions { checksums, ..LoopOptions::default() });
    forwarder.attach_uplink(near, true);
    far
}

const BEYOND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const HOST_MAC: [u8; 6] = [2, 0x76, 0, 0, 0, 9];

/// As a client sends it whose device computes checksums.
fn send_beyond(end: &mut LoopPort, port: u16, payload: &[u8]) {
    let mut header = TcpHeader::new(TcpFlags::ACK);
    (header.source_port, header.destination_port) = (port, 9);
    let path = Path::new(EthernetAddress(mac(0)), EthernetAddress(HOST_MAC), HOST.into(), BEYOND.into());
    let mut frame = end.alloc().expect("a buffer");
    let start = frame.start();
    let storage = frame.storage_mut().unwrap();
    let checksum = TcpChecksum::PseudoHeaderOnly;
    let length = prepend_tcp(&mut storage[..start], &path, &header, 0, payload.len(), checksum).unwrap();
    storage[start..start + payload.len()].copy_from_slice(payload);
    frame.set_range(start - length, length + payload.len());
    assert_eq!(end.tx_burst(&mut VecDeque::from([frame])), 1);
}

#[test]
fn a_checksum_that_was_left_out_is_computed_for_an_uplink_that_cannot() {
    for sums in [true, false] {
        let (mut forwarder, mut ends) = rig(1, false);
        let mut beyond = join(&mut forwarder, !sums);
        let mut batch = Batch::new();
        assert_eq!(beyond.rx_burst(&mut batch), 1, "the announcement of the address");
        for payload in [&b"odd"[..], b"even", b""] {
            let from = ends[0].1;
            send_beyond(&mut ends[0].0, from, payload);
            forwarder.turn();
            let mut batch = Batch::new();
            assert_eq!(beyond.rx_burst(&mut batch), 1);
            let frame = batch[0].data();
            assert_eq!(batch[0].transmit_checksums().tcp, sums);
            let Ok(Frame::Tcp(segment)) = classify(frame, frame.len()) else { panic!("no segment") };
            assert_eq!(segment.checksum_is_good(frame, uwarp_wire::checksum::sum), !sums);
            assert!(frame.ends_with(payload));
        }
    }
}

#[test]
fn an_answer_from_the_uplink_reaches_the_client_that_asked_alone() {
    let (mut forwarder, mut ends) = rig(2, true);
    let mut beyond = join(&mut forwarder, true);
    let receive = |end: &mut LoopPort| {
        let mut batch = Batch::new();
        end.rx_burst(&mut batch);
        batch.iter().map(|frame| frame.data().to_vec()).collect::<Vec<_>>()
    };
    let put = |end: &mut LoopPort, packet: &ArpPacket| {
        let mut frame = end.alloc().unwrap();
        let start = frame.start();
        let length = packet.emit_frame(&mut frame.storage_mut().unwrap()[start..]).unwrap();
        frame.set_range(start, length);
        assert_eq!(end.tx_burst(&mut VecDeque::from([frame])), 1);
    };
    receive(&mut beyond);
    let (own, other) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    put(&mut ends[0].0, &ArpPacket::request(EthernetAddress(mac(0)), own, other));
    forwarder.turn();
    let asked = receive(&mut beyond);
    let Ok(Frame::Arp(question)) = classify(&asked[0], asked[0].len()) else { panic!("no ARP") };
    put(&mut beyond, &question.packet.reply(EthernetAddress(HOST_MAC)));
    forwarder.turn();
    let answers = receive(&mut ends[0].0);
    let Ok(Frame::Arp(answer)) = classify(&answers[0], answers[0].len()) else { panic!("no ARP") };
    assert_eq!((answer.packet.sender_mac.0, answer.packet.target_mac.0), (HOST_MAC, mac(0)));
    assert!(receive(&mut ends[1].0).is_empty());
    // The link returns: hosts learn where the address is.
    forwarder.set_uplink(false);
    forwarder.set_uplink(true);
    let announced = receive(&mut beyond);
    let Ok(Frame::Arp(announced)) = classify(&announced[0], announced[0].len()) else { panic!("no ARP") };
    assert!(announced.packet.is_gratuitous() && announced.packet.sender_address == own);
}
