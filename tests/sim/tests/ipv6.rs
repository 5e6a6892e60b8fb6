//! Streams over IPv6, and a host's messages about its addresses: Neighbor Discovery, duplicate detection, echoes and
//! errors.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use uwarp_engine::command::{AsyncEvent, ConnectFailure, ConnectionEvent, StartupOptions};
use uwarp_engine::work::{SendOpcode, Sge};
use uwarp_memory::Access;
use uwarp_sim_tests::beside::{Beside, HOST_MAC};
use uwarp_testkit::rig::{HostOptions, PairOptions, World, address6, with_ipv6};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::address::IpAddress;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Icmp6Frame, Path, TcpChecksum, classify, emit_icmp6, emit_packet, prepend_tcp};
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::ipv6;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

const OUR: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A host with both versions of IP, and a port beside it.
fn bench(adjust: impl FnOnce(&mut uwarp_engine::EngineConfig)) -> Beside {
    Beside::new(|config| {
        with_ipv6(0)(config);
        adjust(config);
    })
}

/// A bench whose host has its addresses already.
fn settled() -> Beside {
    let mut bench = bench(|_| {});
    bench.receive(Duration::from_secs(5));
    bench
}

fn path_to(bench: &Beside, hop_limit: u8) -> Path {
    Path { hop_limit, ..Path::new(bench.mac, HOST_MAC, OUR.into(), address6(0).into()) }
}

fn say(bench: &mut Beside, path: &Path, message: &Icmp6Message<'_>) {
    let mut frame = vec![0; 1600];
    let length = emit_icmp6(&mut frame, path, message).expect("it fits");
    bench.send(&frame[..length]);
}

/// Lets the host know where we are.
fn introduce(bench: &mut Beside) {
    let (path, ask) = (path_to(bench, 255), solicitation(address6(0), Some(bench.mac)));
    say(bench, &path, &ask);
    bench.receive(MILLISECOND);
}

fn solicitation(target: Ipv6Addr, source_mac: Option<EthernetAddress>) -> Icmp6Message<'static> {
    Icmp6Message::NeighbourSolicitation { target, source_mac, nonce: None }
}

fn icmp(frames: &[Vec<u8>]) -> Vec<Icmp6Frame<'_>> {
    let found = frames.iter().filter_map(|frame| match classify(frame, frame.len()) {
        Ok(Frame::Icmp6(icmp)) => Some(icmp),
        _ => None,
    });
    found.collect()
}

fn link_local() -> Ipv6Addr {
    ipv6::link_local(HOST_MAC.0)
}

#[test]
fn streams_run_over_ipv6_and_ipv4_beside_each_other() {
    let mut world = World::new(3, SimOptions { loss: 0.02, reordering: 0.02, ..SimOptions::default() });
    for host in 0..2 {
        world.add(HostOptions::default(), with_ipv6(host));
    }
    let requests = world.hosts[1].listen(7471);
    let remotes = [(address6(1), 7471).into(), (Ipv4Addr::new(10, 0, 0, 2), 7471).into()];
    let length = 200_000u32;
    let mut ends = Vec::new();
    for remote in remotes {
        let client = world.hosts[0].pair(PairOptions::default());
        let server = world.hosts[1].pair(PairOptions::default());
        world.join_at((0, &client), (1, &server), &requests, remote);
        let source = world.hosts[0].register((0..length).map(|at| at as u8).collect(), Access::LOCAL_WRITE);
        let sink = world.hosts[1].register(vec![0; length as usize], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        ends.push((client, server, source, sink));
    }
    for (client, _, source, sink) in &mut ends {
        let local = Sge { stag: source.stag(), length, offset: source.base_offset() };
        assert!(client.post_simple(1, SendOpcode::Write, Some(local), (sink.stag(), sink.base_offset())));
    }
    world.run(Duration::from_secs(20));
    for (_, _, source, sink) in &ends {
        let (mut sent, mut received) = (vec![0; length as usize], vec![0; length as usize]);
        source.read(0, &mut sent).expect("in range");
        sink.read(0, &mut received).expect("in range");
        assert!(sent == received, "every octet arrives");
    }
    let stats = world.hosts[0].engine.as_ref().expect("alive").stats();
    let remotes: Vec<bool> = stats.connections.iter().map(|connection| connection.remote.is_ipv6()).collect();
    assert_eq!(remotes.len(), 2);
    assert!(remotes.contains(&true) && remotes.contains(&false));
    // 60 octets of headers instead of 40 (RFC 9293 §3.7.1), and 12 of timestamps.
    for connection in &stats.connections {
        let expected = if connection.remote.is_ipv6() { 1428 } else { 1448 };
        assert_eq!(connection.tcp.effective_mss, expected, "{}", connection.remote);
    }
}

#[test]
fn addresses_are_checked_before_they_are_used_and_then_announced() {
    let mut bench = bench(|_| {});
    // RFC 4862 §5.4.2: from the unspecified address to the solicited nodes, without a hardware address.
    let frames = bench.receive(Duration::from_millis(900));
    let mut asked = Vec::new();
    for frame in icmp(&frames) {
        let Icmp6Message::NeighbourSolicitation { target, source_mac: None, nonce: Some(_) } = frame.message else {
            panic!("nothing else is said yet: {frame:?}");
        };
        let group = ipv6::solicited_node(target);
        assert_eq!((frame.route.source, frame.route.destination), (IpAddress::UNSPECIFIED, group.into()));
        assert_eq!((frame.route.destination_mac, frame.hop_limit), (ipv6::multicast_mac(group), 255));
        asked.push(target);
    }
    assert_eq!(asked, [address6(0), link_local()]);
    // RFC 4862 §5.4: a tentative address accepts nothing, and a request for it gets no answer.
    let path = path_to(&bench, 64);
    say(&mut bench, &path, &Icmp6Message::EchoRequest { identifier: 1, sequence: 1, data: b"" });
    let (path, ask) = (path_to(&bench, 255), solicitation(address6(0), Some(bench.mac)));
    say(&mut bench, &path, &ask);
    assert!(icmp(&bench.receive(Duration::from_millis(10))).is_empty());

    let frames = bench.receive(Duration::from_millis(200));
    let said: Vec<_> = icmp(&frames).into_iter().map(|frame| (frame.route.destination, frame.message)).collect();
    let announcement = |target| Icmp6Message::NeighbourAdvertisement {
        router: false,
        solicited: false,
        overrides: true,
        target,
        target_mac: Some(HOST_MAC),
    };
    let all: IpAddress = ipv6::ALL_NODES.into();
    assert_eq!(said, [(all, announcement(address6(0))), (all, announcement(link_local()))]);
}

#[test]
fn an_address_that_another_host_has_is_not_used() {
    // RFC 4862 §5.4.3 and §5.4.4: another host checks it too, or has it.
    for by_advertisement in [false, true] {
        let mut bench = bench(|_| {});
        let _requests = bench.world.hosts[0].listen(7471);
        bench.receive(Duration::from_millis(100));
        let group = ipv6::solicited_node(address6(0));
        let mut path = path_to(&bench, 255);
        path.destination_mac = ipv6::multicast_mac(group);
        path.destination = group.into();
        if by_advertisement {
            path.destination = ipv6::ALL_NODES.into();
            path.destination_mac = ipv6::multicast_mac(ipv6::ALL_NODES);
            let said = Icmp6Message::NeighbourAdvertisement {
                router: false,
                solicited: false,
                overrides: true,
                target: address6(0),
                target_mac: Some(bench.mac),
            };
            say(&mut bench, &path, &said);
        } else {
            path.source = IpAddress::UNSPECIFIED;
            let said = Icmp6Message::NeighbourSolicitation { target: address6(0), source_mac: None, nonce: None };
            say(&mut bench, &path, &said);
        }
        let frames = bench.receive(Duration::from_secs(5));
        let announced: Vec<_> = icmp(&frames).iter().map(|frame| frame.route.source).collect();
        assert!(!announced.contains(&address6(0).into()), "{announced:?}");
        assert!(announced.contains(&link_local().into()));
        let path = path_to(&bench, 64);
        say(&mut bench, &path, &Icmp6Message::EchoRequest { identifier: 1, sequence: 1, data: b"" });
        assert!(icmp(&bench.receive(MILLISECOND)).is_empty());
        let event = bench.world.hosts[0].events.try_recv();
        assert_eq!(event, Ok(AsyncEvent::AddressConflict { address: address6(0).into() }));
        assert_eq!((bench.stats().counters.address_conflicts, bench.stats().drops["wrong-address"]), (1, 1));
    }
}

#[test]
fn a_host_answers_who_asks_for_it() {
    let mut bench = settled();
    let group = ipv6::solicited_node(address6(0));
    let to_group =
        Path { destination_mac: ipv6::multicast_mac(group), destination: group.into(), ..path_to(&bench, 255) };
    let answer = |solicited| Icmp6Message::NeighbourAdvertisement {
        router: false,
        solicited,
        overrides: true,
        target: address6(0),
        target_mac: Some(HOST_MAC),
    };
    // RFC 4861 §7.2.4: solicited to the requester, by multicast or by unicast, and to all nodes if it has no address
    // yet.
    for path in [to_group, path_to(&bench, 255)] {
        let ask = solicitation(address6(0), Some(bench.mac));
        say(&mut bench, &path, &ask);
        let frames = bench.receive(MILLISECOND);
        let [frame] = icmp(&frames)[..] else { panic!("one answer") };
        assert_eq!((frame.message, frame.hop_limit), (answer(true), 255));
        assert_eq!((frame.route.source, frame.route.destination), (address6(0).into(), OUR.into()));
        assert_eq!(frame.route.destination_mac, bench.mac);
    }
    let ask = solicitation(address6(0), None);
    say(&mut bench, &Path { source: IpAddress::UNSPECIFIED, ..to_group }, &ask);
    let frames = bench.receive(MILLISECOND);
    let [frame] = icmp(&frames)[..] else { panic!("one answer") };
    assert_eq!((frame.message, frame.route.destination), (answer(false), ipv6::ALL_NODES.into()));
    // RFC 4861 §7.1.1: messages from beyond the link are ignored, and so are those about another host's address.
    let ask = solicitation(address6(0), Some(bench.mac));
    let beyond = path_to(&bench, 254);
    say(&mut bench, &beyond, &ask);
    let other = solicitation(address6(7), Some(bench.mac));
    let near = path_to(&bench, 255);
    say(&mut bench, &near, &other);
    assert!(icmp(&bench.receive(MILLISECOND)).is_empty());
    assert_eq!(bench.stats().drops["bad-discovery"], 1);
}

#[test]
fn a_host_echoes_over_ipv6() {
    let mut bench = settled();
    let data: Vec<u8> = (0..1000).map(|at| at as u8).collect();
    let all = Path {
        destination: ipv6::ALL_NODES.into(),
        destination_mac: ipv6::multicast_mac(ipv6::ALL_NODES),
        ..path_to(&bench, 64)
    };
    // RFC 4443 §4.2: an echo to a group is answered from a unicast address.
    for path in [path_to(&bench, 64), all] {
        say(&mut bench, &path, &Icmp6Message::EchoRequest { identifier: 7, sequence: 9, data: &data });
        let frames = bench.receive(MILLISECOND);
        let [frame] = icmp(&frames)[..] else { panic!("one answer") };
        assert_eq!(frame.message, Icmp6Message::EchoReply { identifier: 7, sequence: 9, data: &data });
        assert_eq!((frame.route.source, frame.route.destination), (address6(0).into(), OUR.into()));
    }
    assert_eq!(bench.stats().counters.echoes, 2);
}

#[test]
fn packets_that_nobody_takes_are_refused_within_a_limit() {
    let mut bench = settled();
    let mut frame = vec![0; 1600];
    let path = path_to(&bench, 64);
    let length = emit_packet(&mut frame, &path, 0, 17, &[0; 1400]).expect("it fits");
    bench.send(&frame[..length]);
    let frames = bench.receive(MILLISECOND);
    let [answer] = icmp(&frames)[..] else { panic!("one answer") };
    let Icmp6Message::DestinationUnreachable { code: icmp6::unreachable::PORT, quoted } = answer.message else {
        panic!("port unreachable: {answer:?}");
    };
    // As much of the packet as fits into 1280 octets (RFC 4443 §2.4 (c)).
    assert_eq!((quoted, answer.route.ip_len), (&frame_of(&bench, 17, &[0; 1400])[14..14 + 1232], 1280));

    let length = emit_packet(&mut frame, &path, 0, 99, b"what").expect("it fits");
    bench.send(&frame[..length]);
    let frames = bench.receive(MILLISECOND);
    let [answer] = icmp(&frames)[..] else { panic!("one answer") };
    let quoted = &frame[14..length];
    assert_eq!(answer.message, Icmp6Message::ParameterProblem { code: 1, pointer: 6, quoted });

    // To a group and from the unspecified address: silence (RFC 4443 §2.4 (e)). Many at once: ten, then rate-limited.
    let group = Path {
        destination: ipv6::ALL_NODES.into(),
        destination_mac: EthernetAddress([0x33, 0x33, 0, 0, 0, 1]),
        ..path
    };
    for path in [group, Path { source: IpAddress::UNSPECIFIED, ..path }] {
        let length = emit_packet(&mut frame, &path, 0, 17, b"what").expect("it fits");
        bench.send(&frame[..length]);
    }
    assert!(icmp(&bench.receive(Duration::from_secs(1))).is_empty());
    let one = frame_of(&bench, 17, b"what");
    for _ in 0..100 {
        bench.send(&one);
    }
    assert_eq!(icmp(&bench.receive(MILLISECOND)).len(), 10);
    let stats = bench.stats();
    assert_eq!((stats.counters.icmp_errors_sent, stats.counters.icmp_errors_suppressed), (12, 90));
}

/// RFC 4443 §2.4 (e.1), (e.2): two hosts that refuse what the other one says would never stop. Here the extension
/// header in front of a message has an option that nobody knows.
#[test]
fn error_messages_are_not_answered_by_errors() {
    const DESTINATION_OPTIONS: u8 = 60;
    let mut bench = settled();
    let behind_an_option = |kind: u8| [icmp6::PROTOCOL, 0, 0x80, 4, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0];
    for (kind, answers) in [(1, 0), (2, 0), (3, 0), (4, 0), (100, 0), (137, 0), (128, 1), (135, 1)] {
        let frame = frame_of(&bench, DESTINATION_OPTIONS, &behind_an_option(kind));
        bench.send(&frame);
        let frames = bench.receive(MILLISECOND);
        assert_eq!(icmp(&frames).len(), answers, "type {kind}");
        assert!(
            icmp(&frames).iter().all(|frame| matches!(frame.message, Icmp6Message::ParameterProblem { code: 2, .. }))
        );
    }
    assert_eq!(bench.stats().counters.icmp_errors_suppressed, 0, "what is not answered uses up no answers");
}

/// The option's type wants an answer even to a packet for a group (RFC 8200 §4.2), but not to one for another host.
#[test]
fn what_was_for_another_host_is_not_answered() {
    let mut bench = settled();
    let to_all = Path { destination_mac: ipv6::multicast_mac(ipv6::ALL_NODES), ..path_to(&bench, 64) };
    let mut frame = vec![0; 100];
    for (destination, answers) in [(ipv6::ALL_NODES, 1), (address6(7), 0), (OUR, 0)] {
        let path = Path { destination: destination.into(), ..to_all };
        let length = emit_packet(&mut frame, &path, 0, 60, &[17, 0, 0x80, 4, 0, 0, 0, 0]).expect("it fits");
        bench.send(&frame[..length]);
        assert_eq!(icmp(&bench.receive(MILLISECOND)).len(), answers, "{destination}");
    }
}

fn frame_of(bench: &Beside, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 1600];
    let length = emit_packet(&mut frame, &path_to(bench, 64), 0, protocol, payload).expect("it fits");
    frame.truncate(length);
    frame
}

#[test]
fn a_segment_for_nobody_is_reset_over_ipv6() {
    let mut bench = settled();
    introduce(&mut bench);
    let mut header = TcpHeader::new(TcpFlags::SYN);
    (header.source_port, header.destination_port) = (1234, 80);
    header.sequence = SeqNumber(1000);
    let mut frame = [0; 128];
    let checksum = TcpChecksum::Full { payload_sum: 0 };
    let length = prepend_tcp(&mut frame, &path_to(&bench, 64), &header, 0, 0, checksum).expect("it fits");
    bench.send(&frame[128 - length..]);
    let answers = bench.receive(MILLISECOND);
    let Ok(Frame::Tcp(answer)) = classify(&answers[0], answers[0].len()) else { panic!("a segment") };
    assert!(answer.header.flags.contains(TcpFlags::RST));
    assert!(answer.checksum_is_good(&answers[0], uwarp_wire::checksum::sum));
    assert_eq!((answer.flow.local, answer.header.acknowledgment), (OUR.into(), SeqNumber(1001)));
}

#[test]
fn an_unreachable_host_ends_an_attempt_and_a_soft_error_must_quote_it() {
    let mut bench = settled();
    let pair = bench.world.hosts[0].pair(PairOptions::default());
    // No answer: three solicitations (RFC 4861 §7.2.2).
    bench.world.hosts[0].connect(&pair, (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 77), 80), StartupOptions::default());
    let frames = bench.receive(Duration::from_secs(5));
    let asked = icmp(&frames);
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0].route.destination, ipv6::solicited_node(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 77)).into());
    let event = pair.events.try_recv();
    assert!(matches!(event, Ok(ConnectionEvent::Failed(ConnectFailure::Unreachable))), "{event:?}");

    introduce(&mut bench);
    bench.world.hosts[0].connect(&pair, (OUR, 80), StartupOptions::default());
    let frames = bench.receive(MILLISECOND);
    let syn = frames.iter().find(|frame| matches!(classify(frame, frame.len()), Ok(Frame::Tcp(_)))).expect("a SYN");
    let path = path_to(&bench, 64);
    for (shift, counted) in [(1, 1), (0, 1)] {
        let mut quoted = syn[14..].to_vec();
        quoted[47] = quoted[47].wrapping_add(shift);
        say(&mut bench, &path, &Icmp6Message::DestinationUnreachable { code: 0, quoted: &quoted });
        bench.receive(MILLISECOND);
        assert_eq!(bench.stats().drops.get("icmp-forged"), Some(&counted));
        assert_eq!(pair.events.try_recv().is_ok(), shift == 0, "only a quotation of what is in flight is believed");
    }
}

#[test]
fn a_neighbour_that_falls_silent_is_probed_and_forgotten() {
    let mut bench = settled();
    introduce(&mut bench);
    let pair = bench.world.hosts[0].pair(PairOptions::default());
    let options = StartupOptions { timeout: Duration::from_secs(100), ..StartupOptions::default() };
    bench.world.hosts[0].connect(&pair, (OUR, 80), options);
    // The neighbour was heard, but never confirmed to hear us: 5 s after the first packet it is solicited, by unicast
    // three times, then by multicast.
    let frames = bench.receive(Duration::from_secs(20));
    let asked: Vec<bool> = icmp(&frames)
        .iter()
        .filter(|frame| matches!(frame.message, Icmp6Message::NeighbourSolicitation { .. }))
        .map(|frame| frame.route.destination.is_multicast())
        .collect();
    assert_eq!(asked[..4], [false, false, false, true], "{asked:?}");
}
