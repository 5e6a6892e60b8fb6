//! Path MTU discovery (RFC 1191, RFC 8201): a router with a smaller MTU, a path that shrinks, and forged messages.

use std::net::SocketAddr;
use std::time::Duration;

use uwarp_engine::command::ConnectionRequest;
use uwarp_engine::stats::EngineStats;
use uwarp_engine::stream::StreamOptions;
use uwarp_engine::work::{SendOpcode, Sge};
use uwarp_memory::{Access, Registration};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World, address6, is_skipped, with_ipv6};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, emit_icmp, emit_icmp6, prepend_tcp};
use uwarp_wire::icmp::{IcmpMessage, unreachable};
use uwarp_wire::icmp6::Icmp6Message;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

const PORT: u16 = 7471;
const LENGTH: u32 = 300_000;

/// Two hosts with a stream between them, over one version of IP.
struct Bench {
    world: World,
    client: Pair,
    server: Pair,
    source: Registration,
    sink: Registration,
    v6: bool,
    _requests: crossbeam::channel::Receiver<ConnectionRequest>,
}

fn bench(v6: bool, options: SimOptions) -> Bench {
    let mut world = World::new(9, options);
    for host in 0..2 {
        world.add(HostOptions::default(), with_ipv6(host));
    }
    let requests = world.hosts[1].listen(PORT);
    let client = world.hosts[0].pair(PairOptions::default());
    let server = world.hosts[1].pair(PairOptions::default());
    let remote: SocketAddr = if v6 { (address6(1), PORT).into() } else { (world.hosts[1].address, PORT).into() };
    world.join_at((0, &client), (1, &server), &requests, remote);
    let source = world.hosts[0].register((0..LENGTH).map(|at| (at / 3) as u8).collect(), Access::LOCAL_WRITE);
    let sink = world.hosts[1].register(vec![0; LENGTH as usize], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    Bench { world, client, server, source, sink, v6, _requests: requests }
}

impl Bench {
    fn post(&mut self, length: u32) {
        let local = Sge { stag: self.source.stag(), length, offset: self.source.base_offset() };
        let remote = (self.sink.stag(), self.sink.base_offset());
        assert!(self.client.post_simple(1, SendOpcode::Write, Some(local), remote));
    }

    /// Writes `length` octets and waits until all have arrived.
    fn write(&mut self, length: u32, limit: Duration) {
        self.sink.write(0, &vec![0; LENGTH as usize]).expect("in range");
        self.post(length);
        let mut wanted = vec![0; length as usize];
        self.source.read(0, &mut wanted).expect("in range");
        let sink = &self.sink;
        let arrived = self.world.run_until(limit, |_| {
            let mut found = vec![0; length as usize];
            sink.read(0, &mut found).expect("in range");
            found == wanted
        });
        assert!(arrived, "{:#?}", self.stats(0));
    }

    fn stats(&self, host: usize) -> EngineStats {
        self.world.hosts[host].engine.as_ref().expect("alive").stats()
    }

    fn effective_mss(&self) -> u32 {
        self.stats(0).connections[0].tcp.effective_mss
    }

    /// The payload of a full segment at this MTU: less IP and TCP headers and timestamps.
    fn payload_at(&self, mtu: u32) -> u32 {
        mtu - if self.v6 { 60 } else { 40 } - 12
    }

    fn drops(&self, reason: &str) -> u64 {
        self.stats(0).drops.get(reason).copied().unwrap_or(0)
    }

    /// Sends a message that the packet with this sequence number was too big for `mtu`.
    fn claim(&mut self, mtu: u32, sequence: SeqNumber, quoted_len: u16) {
        let stats = self.stats(0);
        let connection = &stats.connections[0];
        let (local, remote) = (connection.local, connection.remote);
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.source_port, header.destination_port) = (local.port(), remote.port());
        header.sequence = sequence;
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let liar = EthernetAddress([2, 0, 0, 0, 0, 77]);
        let path = Path::new(mac, liar, local.ip().into(), remote.ip().into());
        let mut quoted = vec![0; 128];
        let checksum = TcpChecksum::Full { payload_sum: 0 };
        let payload = usize::from(quoted_len) - if self.v6 { 60 } else { 40 };
        let length = prepend_tcp(&mut quoted, &path, &header, 0, payload, checksum).expect("it fits");
        let quoted = &quoted[128 - length + 14..];
        let back = Path::new(liar, mac, remote.ip().into(), local.ip().into());
        let mut frame = vec![0; 1400];
        let length = if self.v6 {
            emit_icmp6(&mut frame, &back, &Icmp6Message::PacketTooBig { mtu, quoted })
        } else {
            let code = unreachable::FRAGMENTATION_NEEDED;
            let next_hop_mtu = u16::try_from(mtu).expect("an IPv4 MTU");
            emit_icmp(&mut frame, &back, &IcmpMessage::DestinationUnreachable { code, next_hop_mtu, quoted })
        };
        let now = self.world.now();
        self.world.network.inject(now, &frame[..length.expect("it fits")]);
    }

    /// The last segment that the first host sent: its sequence number and octets, as an eavesdropper knows them.
    fn last_sent(&self) -> (SeqNumber, u32) {
        let frame = self.world.network.last_sent(0);
        let Ok(Frame::Tcp(segment)) = classify(&frame, frame.len()) else { panic!("a segment") };
        (segment.header.sequence, segment.payload_len as u32)
    }

    /// Sends into a network that loses everything, so that octets stay in flight.
    fn stall(&mut self, options: SimOptions) -> SeqNumber {
        self.world.network.set_options(SimOptions { loss: 1.0, ..options });
        self.post(1000);
        self.world.run(Duration::from_micros(50));
        self.world.network.set_options(options);
        self.last_sent().0
    }
}

#[test]
fn segments_fit_a_router_on_the_way() {
    for v6 in [false, true] {
        let mut bench = bench(v6, SimOptions { path_mtu: 1300, ..SimOptions::default() });
        bench.write(LENGTH, Duration::from_secs(10));
        assert_eq!(bench.effective_mss(), bench.payload_at(1300));
        let stats = bench.stats(0);
        assert_eq!((stats.counters.path_mtu_changes, stats.path_mtus.len()), (1, 1), "{:?}", stats.path_mtus);
        // Nothing larger had arrived: the first message is believed, and no time-out was needed.
        assert_eq!((stats.connections[0].tcp.counters.timeouts, stats.counters.path_mtu_doubts), (0, 0));
        // What is known stays known.
        let too_big = bench.world.network.counters().too_big;
        bench.write(LENGTH, Duration::from_secs(10));
        assert_eq!(bench.world.network.counters().too_big, too_big);
        assert_eq!(
            bench.stats(1).connections[0].tcp.effective_mss,
            bench.payload_at(1500),
            "the other way is another path"
        );
        let _ = &bench.server;
    }
}

#[test]
fn a_path_that_shrinks_is_believed_after_a_time_out() {
    // RFC 5927 §7.2: larger segments than that have recently arrived.
    for v6 in [false, true] {
        let mut bench = bench(v6, SimOptions::default());
        bench.write(LENGTH, Duration::from_secs(10));
        bench.world.network.set_options(SimOptions { path_mtu: 1300, ..SimOptions::default() });
        bench.write(LENGTH, Duration::from_secs(10));
        assert_eq!(bench.effective_mss(), bench.payload_at(1300));
        let stats = bench.stats(0);
        assert!(stats.counters.path_mtu_doubts >= 1 && stats.connections[0].tcp.counters.timeouts >= 1, "{stats:#?}");
        assert_eq!(stats.counters.path_mtu_changes, 1);
    }
}

#[test]
fn a_larger_mtu_is_tried_again_when_the_message_is_old() {
    // RFC 1191 §6.3, RFC 8201 §5.3: ten minutes.
    let mut bench = bench(true, SimOptions { path_mtu: 1400, ..SimOptions::default() });
    bench.write(LENGTH, Duration::from_secs(10));
    bench.world.network.set_options(SimOptions::default());
    bench.world.run(Duration::from_secs(580));
    assert_eq!(bench.effective_mss(), bench.payload_at(1400));
    bench.world.run(Duration::from_secs(30));
    assert_eq!(bench.effective_mss(), bench.payload_at(1500));
    assert!(bench.stats(0).path_mtus.is_empty());
    bench.write(LENGTH, Duration::from_secs(10));
}

#[test]
fn messages_about_nothing_in_flight_are_forged() {
    for v6 in [false, true] {
        let mut bench = bench(v6, SimOptions::default());
        let (last, length) = bench.last_sent();
        let idle = last + length;
        for wrong in [idle, SeqNumber(idle.0.wrapping_sub(1)), SeqNumber(idle.0.wrapping_add(1 << 20))] {
            bench.claim(1280, wrong, 1500);
        }
        bench.world.run(Duration::from_millis(1));
        let oldest = bench.stall(SimOptions::default());
        bench.claim(1280, SeqNumber(oldest.0.wrapping_add(5000)), 1500);
        bench.world.run(Duration::from_micros(20));
        assert_eq!((bench.drops("icmp-forged"), bench.stats(0).counters.path_mtu_changes), (4, 0));
        assert_eq!(bench.effective_mss(), bench.payload_at(1500));
    }
}

#[test]
fn nobody_raises_an_mtu_or_makes_it_tiny() {
    if is_skipped("pieces of a segment get through where the whole does not, and refute what is claimed") {
        return;
    }
    for v6 in [false, true] {
        let mut bench = bench(v6, SimOptions::default());
        let oldest = bench.stall(SimOptions::default());
        for mtu in [1500, 9000, 65_535] {
            bench.claim(mtu, oldest, 1500);
        }
        bench.world.run(Duration::from_micros(20));
        assert_eq!((bench.drops("icmp-stale"), bench.stats(0).counters.path_mtu_changes), (3, 0));
        if v6 {
            // RFC 8201 §4: an MTU below 1280 must not be accepted.
            bench.claim(1279, oldest, 1500);
            bench.world.run(Duration::from_micros(20));
            assert_eq!((bench.drops("icmp-stale"), bench.effective_mss()), (4, bench.payload_at(1500)));
        } else {
            bench.claim(68, oldest, 1500);
            bench.world.run(Duration::from_micros(20));
            assert_eq!(bench.effective_mss(), bench.payload_at(552));
        }
        bench.write(LENGTH, Duration::from_secs(20));
    }
}

#[test]
fn a_lie_about_segments_that_arrive_comes_to_nothing() {
    // RFC 5927 §7.2: the message waits, and progress refutes it.
    for v6 in [false, true] {
        let mut bench = bench(v6, SimOptions::default());
        bench.write(LENGTH, Duration::from_secs(10));
        let delayed = SimOptions { delay: Duration::from_millis(2), ..SimOptions::default() };
        bench.world.network.set_options(delayed);
        bench.post(LENGTH);
        bench.world.run(Duration::from_micros(100));
        let (oldest, _) = bench.last_sent();
        bench.world.network.set_options(SimOptions::default());
        bench.claim(1280, oldest, 1500);
        bench.world.run(Duration::from_secs(30));
        let stats = bench.stats(0);
        assert_eq!((stats.counters.path_mtu_doubts, stats.counters.path_mtu_changes), (1, 0));
        assert_eq!(bench.effective_mss(), bench.payload_at(1500));
    }
}

#[test]
fn routers_that_tell_no_mtu_are_understood() {
    if is_skipped("pieces of a segment get through where the whole does not, and refute what is claimed") {
        return;
    }
    // RFC 1191 §5 and §7.1: the next plateau below what was sent.
    let mut bench = bench(false, SimOptions::default());
    let oldest = bench.stall(SimOptions::default());
    bench.claim(0, oldest, 1500);
    bench.world.run(Duration::from_micros(20));
    assert_eq!(bench.effective_mss(), bench.payload_at(1492));
    // A quoted length beyond anything that we can have sent is limited to that.
    bench.claim(0, oldest, 60_000);
    bench.world.run(Duration::from_micros(20));
    assert_eq!(bench.effective_mss(), bench.payload_at(1006));
}

/// Every message lowers the MTU by an octet, and is believed. There may be thousands of other connections.
#[test]
fn messages_by_the_hundred_do_not_look_at_all_connections_each() {
    const OTHERS: u64 = 40;
    if is_skipped("pieces of a segment get through where the whole does not, and refute what is claimed") {
        return;
    }
    for v6 in [false, true] {
        let mut bench = bench(v6, SimOptions::default());
        let incoming = bench.world.hosts[1].listen_streams(9, 64, StreamOptions::default());
        let to: SocketAddr = if v6 { (address6(1), 9).into() } else { (bench.world.hosts[1].address, 9).into() };
        let _clients: Vec<_> =
            (0..OTHERS).map(|_| bench.world.hosts[0].connect_stream(to, StreamOptions::default())).collect();
        bench.world.run(Duration::from_millis(10));
        assert_eq!((incoming.len() as u64, bench.stats(0).connections.len() as u64), (OTHERS, OTHERS + 1));
        let oldest = bench.stall(SimOptions::default());
        for claims in 0..10 {
            for mtu in 0..20 {
                bench.claim(1499 - claims * 20 - mtu, oldest, 1500);
            }
            bench.world.run(Duration::from_micros(5));
        }
        bench.world.run(Duration::from_millis(20));
        let stats = bench.stats(0);
        assert_eq!(
            (stats.counters.path_mtu_changes, bench.effective_mss()),
            (200, bench.payload_at(1300)),
            "{:?}",
            stats.drops
        );
        // Twice: a scan takes 50 us, and may begin before such a moment and end behind it.
        assert!(
            stats.counters.work.connections_scanned <= 2 * (OTHERS + 1),
            "{} looks",
            stats.counters.work.connections_scanned
        );
        for connection in stats.connections.iter().filter(|connection| connection.remote.is_ipv6() == v6) {
            assert_eq!(connection.tcp.effective_mss, bench.payload_at(1300), "each fits");
        }
    }
}
