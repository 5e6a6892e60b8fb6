//! The behaviour of a host besides streams: addresses, echoes, resets, and SYNs from unknown hosts.

use std::net::Ipv4Addr;
use std::time::Duration;

use uwarp_engine::stream::StreamOptions;
use uwarp_sim_tests::beside::{Beside, HOST_MAC};
use uwarp_testkit::rig::PairOptions;
use uwarp_wire::arp::{ArpOperation, ArpPacket};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, emit_icmp, emit_packet, prepend_tcp};
use uwarp_wire::icmp::IcmpMessage;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

/// The protocol number of UDP.
const UDP: u8 = 17;
const OUR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn path_from(bench: &Beside, from: Ipv4Addr) -> Path {
    Path::new(bench.mac, HOST_MAC, from.into(), HOST.into())
}

fn tcp(bench: &Beside, from: Ipv4Addr, header: &TcpHeader) -> Vec<u8> {
    let mut frame = vec![0; 128];
    let checksum = TcpChecksum::Full { payload_sum: 0 };
    let length = prepend_tcp(&mut frame, &path_from(bench, from), header, 0, 0, checksum).expect("it fits");
    frame.split_off(128 - length)
}

fn syn(bench: &Beside, from: Ipv4Addr, source_port: u16, port: u16) -> Vec<u8> {
    let mut header = TcpHeader::new(TcpFlags::SYN);
    (header.source_port, header.destination_port) = (source_port, port);
    header.sequence = SeqNumber(1000);
    tcp(bench, from, &header)
}

/// Flags and sequence numbers of the TCP segments among them.
fn segments(frames: &[Vec<u8>]) -> Vec<(TcpFlags, SeqNumber)> {
    frames
        .iter()
        .filter_map(|frame| match classify(frame, frame.len()) {
            Ok(Frame::Tcp(segment)) => Some((segment.header.flags, segment.header.sequence)),
            _ => None,
        })
        .collect()
}

fn arps(frames: &[Vec<u8>]) -> Vec<ArpPacket> {
    frames
        .iter()
        .filter_map(|frame| match classify(frame, frame.len()) {
            Ok(Frame::Arp(arp)) => Some(arp.packet),
            _ => None,
        })
        .collect()
}

#[test]
fn a_host_announces_itself_and_answers_who_asks() {
    let mut bench = Beside::new(|_| {});
    let announced = arps(&bench.receive(Duration::from_millis(1)));
    assert!(announced.iter().any(|packet| packet.is_gratuitous() && packet.sender_address == HOST));
    let mut frame = [0; 64];
    let request = ArpPacket::request(bench.mac, OUR, HOST);
    let length = request.emit_frame(&mut frame).expect("it fits");
    bench.send(&frame[..length]);
    let answers = arps(&bench.receive(Duration::from_millis(1)));
    assert_eq!(answers, [request.reply(HOST_MAC)]);
    // No answer for another host's address.
    let length =
        ArpPacket::request(bench.mac, OUR, Ipv4Addr::new(10, 0, 0, 77)).emit_frame(&mut frame).expect("it fits");
    bench.send(&frame[..length]);
    assert!(arps(&bench.receive(Duration::from_millis(1))).is_empty());
}

#[test]
fn a_host_echoes() {
    let mut bench = Beside::new(|_| {});
    bench.receive(Duration::from_millis(1));
    let mut frame = vec![0; 1500];
    let data: Vec<u8> = (0..1000).map(|at| at as u8).collect();
    let message = IcmpMessage::EchoRequest { identifier: 7, sequence: 9, data: &data };
    let length = emit_icmp(&mut frame, &path_from(&bench, OUR), &message).expect("it fits");
    bench.send(&frame[..length]);
    let answers = bench.receive(Duration::from_millis(1));
    let Ok(Frame::Icmp(answer)) = classify(&answers[0], answers[0].len()) else { panic!("an ICMP message") };
    assert_eq!(answer.message, IcmpMessage::EchoReply { identifier: 7, sequence: 9, data: &data });
    assert_eq!((answer.route.source, answer.route.destination), (HOST.into(), OUR.into()));
}

#[test]
fn a_segment_for_nobody_is_answered_by_a_reset() {
    let mut bench = Beside::new(|_| {});
    bench.receive(Duration::from_millis(1));
    let frame = syn(&bench, OUR, 1234, 80);
    bench.send(&frame);
    let answers = bench.receive(Duration::from_millis(1));
    let Ok(Frame::Tcp(answer)) = classify(&answers[0], answers[0].len()) else { panic!("a segment") };
    assert!(answer.header.flags.contains(TcpFlags::RST));
    assert_eq!(answer.header.acknowledgment, SeqNumber(1001));
    // A reset is not answered by one.
    let mut header = TcpHeader::new(TcpFlags::RST);
    (header.source_port, header.destination_port) = (1234, 80);
    let frame = tcp(&bench, OUR, &header);
    bench.send(&frame);
    assert!(bench.receive(Duration::from_millis(1)).is_empty());
    let stats = bench.stats();
    assert_eq!((stats.counters.resets_sent, stats.drops["no-connection"]), (1, 2));
}

/// A burst asks for more answers than the device's queue has room for: each is sent or counted.
#[test]
fn an_answer_that_is_not_sent_is_counted() {
    const ROOM: u32 = 8;
    const ASKED: u64 = 24;
    let mut bench = Beside::new(|config| config.budgets.transmit_backlog = ROOM);
    bench.receive(Duration::from_millis(1));
    let segment = syn(&bench, OUR, 1234, 80);
    let mut echo = vec![0; 128];
    let message = IcmpMessage::EchoRequest { identifier: 7, sequence: 9, data: &[1; 8] };
    let length = emit_icmp(&mut echo, &path_from(&bench, OUR), &message).expect("it fits");
    for frame in [&segment, &echo[..length]] {
        let before = bench.stats().drops.get("no-transmit-buffer").copied().unwrap_or(0);
        (0..ASKED).for_each(|_| bench.send(frame));
        let sent = bench.receive(Duration::from_millis(1)).len() as u64;
        let dropped = bench.stats().drops.get("no-transmit-buffer").copied().unwrap_or(0) - before;
        assert!(sent >= u64::from(ROOM) && dropped > 0, "{sent} were sent, {dropped} dropped");
        assert_eq!(sent + dropped, ASKED);
    }
}

#[test]
fn a_listener_resets_what_acknowledges_nothing_and_drops_what_does_not_ask_to_open() {
    let mut bench = Beside::new(|_| {});
    let _requests = bench.world.hosts[0].listen(7471);
    bench.receive(Duration::from_millis(1));
    let mut answers = |flags: TcpFlags| {
        let mut header = TcpHeader::new(flags);
        (header.source_port, header.destination_port) = (1234, 7471);
        (header.sequence, header.acknowledgment) = (SeqNumber(1000), SeqNumber(77));
        let frame = tcp(&bench, OUR, &header);
        bench.send(&frame);
        segments(&bench.receive(Duration::from_millis(1)))
    };
    // RFC 9293 §3.10.7.2, first, fourth; and a SYN with a FIN, which is not a valid request.
    for flags in
        [TcpFlags::RST, TcpFlags::RST | TcpFlags::ACK, TcpFlags::FIN, TcpFlags::PSH, TcpFlags::SYN | TcpFlags::FIN]
    {
        assert_eq!(answers(flags), [], "{flags:?}");
    }
    // Second.
    for flags in [TcpFlags::ACK, TcpFlags::SYN | TcpFlags::ACK, TcpFlags::FIN | TcpFlags::ACK] {
        assert_eq!(answers(flags), [(TcpFlags::RST, SeqNumber(77))], "{flags:?}");
    }
    // Third.
    assert!(matches!(answers(TcpFlags::SYN)[..], [(flags, _)] if flags == TcpFlags::SYN | TcpFlags::ACK));
    let stats = bench.stats();
    assert_eq!((stats.counters.resets_sent, stats.drops["no-connection"], stats.flows), (3, 8, 1));
}

#[test]
fn what_is_not_for_us_is_counted_and_not_answered() {
    // Without room for fragments they are counted at once.
    let mut bench = Beside::new(|config| config.limits.reassembly_octets = 0);
    bench.receive(Duration::from_millis(1));
    let good = syn(&bench, OUR, 1, 80);
    let damage = |place: usize, bit: u8| {
        let mut frame = good.clone();
        frame[place] ^= bit;
        frame
    };
    let mut fragment = good.clone();
    fragment[20] |= 0x20;
    // Corrects the header checksum of the fragment.
    let sum = !u16::from_be_bytes([fragment[24], fragment[25]]);
    let sum = u32::from(sum) + 0x2000;
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    for frame in [damage(30, 1), damage(40, 1), damage(13, 1), good[..20].to_vec(), fragment] {
        bench.send(&frame);
    }
    assert!(bench.receive(Duration::from_millis(1)).is_empty());
    let drops = bench.stats().drops;
    for reason in ["ip-checksum", "l4-checksum", "unknown-protocol", "malformed", "fragment"] {
        assert_eq!(drops.get(reason), Some(&1), "{reason}: {drops:?}");
    }
}

/// RFC 9293 §3.9.2.3, MUST-63 and MUST-46.
#[test]
fn a_subnets_broadcast_address_neither_opens_nor_is_opened() {
    let mut bench = Beside::new(|config| config.addresses[0].prefix_length = 24);
    let _requests = bench.world.hosts[0].listen(7471);
    bench.receive(Duration::from_millis(1));
    let all = Ipv4Addr::new(10, 0, 0, 255);
    for port in [7471, 80] {
        let frame = syn(&bench, all, 1234, port);
        bench.send(&frame);
    }
    assert!(bench.receive(Duration::from_millis(1)).is_empty(), "neither a SYN nor a reset");
    let stats = bench.stats();
    assert_eq!((stats.flows, stats.counters.resets_sent, stats.drops.get("wrong-address")), (0, 0, Some(&2)));
    // Nor does it get echoes, nor errors (RFC 1122 §3.2.2): a datagram to a port without a socket.
    let mut frame = vec![0; 128];
    let echo = IcmpMessage::EchoRequest { identifier: 7, sequence: 9, data: &[1; 8] };
    let length = emit_icmp(&mut frame, &path_from(&bench, all), &echo).expect("it fits");
    bench.send(&frame[..length]);
    for (from, answers) in [(all, 0), (OUR, 1)] {
        let length = emit_packet(&mut frame, &path_from(&bench, from), 0, UDP, &[0, 7, 0, 9, 0, 8, 0, 0]);
        bench.send(&frame[..length.expect("it fits")]);
        let came = bench.receive(Duration::from_millis(1));
        assert_eq!(came.len() - arps(&came).len(), answers, "from {from}: {came:02x?}");
    }
    let pair = bench.world.hosts[0].pair(PairOptions::default());
    bench.world.hosts[0].connect(&pair, (all, 80), Default::default());
    let frames = bench.receive(Duration::from_millis(1));
    assert!(!arps(&frames).iter().any(|packet| packet.target_address == all));
    let event = pair.events.try_recv();
    use uwarp_engine::command::{ConnectFailure, ConnectionEvent};
    assert!(matches!(event, Ok(ConnectionEvent::Failed(ConnectFailure::Address))), "{event:?}");
}

/// RFC 1122 §3.2.2: a source address that is not one host's gets no ICMP error, nor does a packet that was for many.
#[test]
fn errors_go_to_one_host_about_what_was_for_one_host() {
    let mut bench = Beside::new(|config| config.addresses[0].prefix_length = 24);
    bench.receive(Duration::from_millis(1));
    let good = path_from(&bench, OUR);
    let from = |address: [u8; 4]| Path { source: Ipv4Addr::from(address).into(), ..good };
    let to = |address: [u8; 4], mac: [u8; 6]| Path {
        destination: Ipv4Addr::from(address).into(),
        destination_mac: EthernetAddress(mac),
        ..good
    };
    for (path, errors) in [
        (good, 1),
        (from([0, 0, 0, 0]), 0),
        (from([0, 0, 0, 9]), 0),
        (from([127, 0, 0, 1]), 0),
        (from([224, 0, 0, 1]), 0),
        (from([240, 0, 0, 1]), 0),
        (from([255, 255, 255, 255]), 0),
        (from([10, 0, 0, 255]), 0),
        (Path { source_mac: EthernetAddress([0xff; 6]), ..good }, 0),
        (to([10, 0, 0, 1], [0xff; 6]), 0),
        (to([10, 0, 0, 255], [0xff; 6]), 0),
        (to([10, 0, 0, 255], HOST_MAC.0), 0),
        (to([255, 255, 255, 255], [0xff; 6]), 0),
        (to([224, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]), 0),
    ] {
        let before = bench.stats().counters.icmp_errors_sent;
        let mut frame = vec![0; 64];
        let length = emit_packet(&mut frame, &path, 0, UDP, &[0; 8]).expect("it fits");
        bench.send(&frame[..length]);
        bench.receive(Duration::from_millis(1));
        let sent = bench.stats().counters.icmp_errors_sent - before;
        assert_eq!(sent, errors, "from {:?} to {:?}", path.source.to_ip_addr(), path.destination.to_ip_addr());
    }
}

#[test]
fn strangers_cannot_fill_the_table() {
    let mut bench = Beside::new(|config| {
        config.limits.half_open = 50;
        config.iwarp.startup_timeout = Duration::from_secs(3);
    });
    let _requests = bench.world.hosts[0].listen(7471);
    bench.receive(Duration::from_millis(1));
    for number in 0..200u16 {
        let frame = syn(&bench, Ipv4Addr::new(10, 0, 1, number as u8), 1000 + number, 7471);
        bench.send(&frame);
    }
    bench.receive(Duration::from_millis(1));
    let stats = bench.stats();
    assert_eq!((stats.flows, stats.counters.cookies_sent), (50, 150));
    // They expire, and there is room for others.
    bench.receive(Duration::from_secs(10));
    assert_eq!(bench.stats().flows, 0);
    let frame = syn(&bench, OUR, 1, 7471);
    bench.send(&frame);
    assert!(!bench.receive(Duration::from_millis(1)).is_empty());
}

/// If its acknowledgment is lost, a peer that only answers considers the connection open, and sends nothing again. So
/// the SYN-ACK must be retransmitted as often as the peer's own SYN would be.
#[test]
fn a_stream_opens_by_the_acknowledgment_of_a_late_syn_ack() {
    let mut bench = Beside::new(|_| {});
    let incoming = bench.world.hosts[0].listen_streams(7, 8, StreamOptions::default());
    bench.receive(Duration::from_millis(1));
    let frame = syn(&bench, OUR, 1, 7);
    bench.send(&frame);
    // At 0, 1, 3, 7, 15 and 31 s.
    let sent = segments(&bench.receive(Duration::from_secs(40)));
    assert_eq!(sent.len(), 6, "{sent:?}");
    let (flags, isn) = (TcpFlags::SYN | TcpFlags::ACK, sent[0].1);
    assert!(sent.iter().all(|segment| *segment == (flags, isn)), "{sent:?}");
    let mut header = TcpHeader::new(TcpFlags::ACK);
    (header.source_port, header.destination_port) = (1, 7);
    (header.sequence, header.acknowledgment) = (SeqNumber(1001), isn + 1);
    let frame = tcp(&bench, OUR, &header);
    bench.send(&frame);
    bench.receive(Duration::from_millis(1));
    assert!(incoming.try_recv().is_ok());
    assert_eq!(bench.stats().counters.resets_sent, 0);
}

#[test]
fn a_stream_whose_syn_ack_nobody_acknowledges_is_given_up() {
    let mut bench = Beside::new(|_| {});
    let _incoming = bench.world.hosts[0].listen_streams(7, 8, StreamOptions::default());
    bench.receive(Duration::from_millis(1));
    let frame = syn(&bench, OUR, 1, 7);
    bench.send(&frame);
    bench.receive(Duration::from_secs(60));
    assert_eq!(bench.stats().flows, 1);
    bench.receive(Duration::from_secs(5));
    assert_eq!(bench.stats().flows, 0);
}

/// Each repeated SYN is answered, and the retransmission timer restarts after the answer.
#[test]
fn a_stream_whose_syn_comes_for_ever_is_given_up_all_the_same() {
    let mut bench = Beside::new(|_| {});
    let _incoming = bench.world.hosts[0].listen_streams(7, 8, StreamOptions::default());
    bench.receive(Duration::from_millis(1));
    let frame = syn(&bench, OUR, 1, 7);
    for _ in 0..7 {
        bench.send(&frame);
        bench.receive(Duration::from_secs(9));
        assert_eq!(bench.stats().flows, 1);
    }
    bench.receive(Duration::from_secs(2));
    assert_eq!(bench.stats().flows, 0);
}

/// The segment that opened a connection by a cookie fits that cookie for some seconds. After the connection has ended,
/// it is nevertheless late.
#[test]
fn a_cookie_opens_one_connection() {
    let mut bench = Beside::new(|config| config.limits.half_open = 0);
    let incoming = bench.world.hosts[0].listen_streams(7, 8, StreamOptions::default());
    bench.receive(Duration::from_millis(1));
    let frame = syn(&bench, OUR, 1, 7);
    bench.send(&frame);
    let (_, isn) = segments(&bench.receive(Duration::from_millis(1)))[0];
    let mut header = TcpHeader::new(TcpFlags::ACK);
    (header.source_port, header.destination_port) = (1, 7);
    (header.sequence, header.acknowledgment) = (SeqNumber(1001), isn + 1);
    let opening = tcp(&bench, OUR, &header);
    bench.send(&opening);
    bench.receive(Duration::from_millis(1));
    drop(incoming.try_recv().expect("open").take());
    bench.receive(Duration::from_millis(1));
    (header.flags, header.acknowledgment) = (TcpFlags::FIN | TcpFlags::ACK, isn + 2);
    let frame = tcp(&bench, OUR, &header);
    bench.send(&frame);
    bench.receive(Duration::from_millis(1));
    assert_eq!(bench.stats().time_wait, 1);
    bench.send(&opening);
    bench.receive(Duration::from_millis(1));
    let stats = bench.stats();
    assert_eq!((stats.counters.cookies_accepted, stats.time_wait, stats.counters.resets_sent), (1, 1, 0));
    assert!(incoming.try_recv().is_err());
}

#[test]
fn a_full_backlog_keeps_newcomers_waiting_and_a_reset_frees_a_place() {
    let mut bench = Beside::new(|config| config.limits.half_open = 3);
    let _requests = bench.world.hosts[0].listen(7471);
    bench.receive(Duration::from_millis(1));
    for port in 1..=4 {
        let frame = syn(&bench, OUR, port, 7471);
        bench.send(&frame);
    }
    bench.receive(Duration::from_millis(1));
    assert_eq!(bench.stats().flows, 3);
    let mut header = TcpHeader::new(TcpFlags::RST);
    (header.source_port, header.destination_port) = (2, 7471);
    header.sequence = SeqNumber(1001);
    let frame = tcp(&bench, OUR, &header);
    bench.send(&frame);
    bench.receive(Duration::from_millis(1));
    assert_eq!(bench.stats().flows, 2);
}

#[test]
fn far_addresses_are_reached_through_the_gateway_and_static_neighbours_are_not_asked_for() {
    let gateway = Ipv4Addr::new(10, 0, 0, 254);
    let mut bench = Beside::new(|config| {
        config.gateway = Some(gateway);
        config.neighbours = vec![(Ipv4Addr::new(10, 0, 0, 50).into(), [2, 0, 0, 0, 0, 2])];
    });
    bench.receive(Duration::from_millis(1));
    let pairs = [0, 1].map(|_| bench.world.hosts[0].pair(PairOptions::default()));
    let options = uwarp_engine::command::StartupOptions::default();
    bench.world.hosts[0].connect(&pairs[0], (Ipv4Addr::new(192, 0, 2, 1), 80), options.clone());
    let asked = arps(&bench.receive(Duration::from_millis(1)));
    assert!(asked.iter().all(|packet| packet.operation == ArpOperation::Request && packet.target_address == gateway));
    assert_eq!(asked.len(), 1);
    bench.world.hosts[0].connect(&pairs[1], (Ipv4Addr::new(10, 0, 0, 50), 80), options);
    let frames = bench.receive(Duration::from_millis(1));
    assert!(arps(&frames).is_empty());
    assert!(frames.iter().any(|frame| matches!(classify(frame, frame.len()), Ok(Frame::Tcp(_)))));
}
