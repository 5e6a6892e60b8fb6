//! Many connections: floods of SYNs, cookies, TIME-WAIT, short connections, and what each costs.

mod common;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use common::{PORT, SECOND, nothing_left, pattern};
use crossbeam::channel::Receiver;
use uwarp_engine::port::{BURST, Batch, Buffer};
use uwarp_engine::ports::heap::HeapBuffer;
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_engine::stats::EngineStats;
use uwarp_engine::stream::{IncomingStream, StreamEnds, StreamOptions};
use uwarp_engine::{Engine, EngineConfig, Port};
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{Host, HostOptions, World, is_skipped};
use uwarp_testkit::sim::{SimOptions, SimPort};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Path, TcpChecksum, prepend_tcp};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

fn two(adjust: impl Fn(&mut EngineConfig)) -> World {
    let mut world = World::new(9, SimOptions::default());
    world.add(HostOptions::default(), &adjust);
    world.add(HostOptions::default(), &adjust);
    world
}

fn stats(world: &World, host: usize) -> EngineStats {
    world.hosts[host].engine.as_ref().expect("alive").stats()
}

/// Lets time go by, and no more of it: [`World::run`] ends with the next event.
fn pause(world: &mut World, time: Duration) {
    let end = world.now() + time;
    while world.now() < end {
        world.step_until(Some(end));
    }
}

fn small() -> StreamOptions {
    StreamOptions { send_buffer: 4096, receive_buffer: 4096, ..StreamOptions::default() }
}

/// Opens a stream to host 1.
fn joined(world: &mut World, incoming: &Receiver<IncomingStream>, options: &StreamOptions) -> (StreamEnds, StreamEnds) {
    let client = world.hosts[0].connect_stream((world.hosts[1].address, PORT), options.clone());
    let mut server = None;
    assert!(
        world.run_until(SECOND * 20, |_| {
            server = incoming.try_recv().ok();
            server.is_some()
        }),
        "{:?}",
        client.failure()
    );
    (client, server.and_then(|incoming| incoming.take()).expect("it came"))
}

/// Where all strangers are.
const STRANGERS: EthernetAddress = EthernetAddress([2, 9, 9, 9, 9, 9]);

/// A SYN to host 1, from one of many strangers.
fn syn(number: u32) -> Vec<u8> {
    let from = Ipv4Addr::from(0x0a00_0100 + number % 0x8000);
    let path =
        Path::new(STRANGERS, EthernetAddress([2, 0, 0, 0, 0, 2]), from.into(), Ipv4Addr::new(10, 0, 0, 2).into());
    let mut header = TcpHeader::new(TcpFlags::SYN);
    (header.source_port, header.destination_port) = (1024 + (number % 60_000) as u16, PORT);
    header.sequence = SeqNumber(number.wrapping_mul(2_654_435_761));
    header.window = 65_535;
    header.options.mss = Some(1460);
    let mut frame = vec![0; 128];
    let checksum = TcpChecksum::Full { payload_sum: 0 };
    let length = prepend_tcp(&mut frame, &path, &header, 0, 0, checksum).expect("it fits");
    frame.split_off(128 - length)
}

#[test]
fn a_cookie_opens_a_connection_like_any_other() {
    let mut world = two(|config| config.limits.half_open = 0);
    let incoming = world.hosts[1].listen_streams(PORT, 16, StreamOptions::default());
    let (mut client, mut server) = joined(&mut world, &incoming, &StreamOptions::default());
    let sent = pattern(300_000, 1);
    let (mut at, mut received, mut room) = (0, Vec::new(), vec![0; 70_000]);
    assert!(world.run_until(SECOND * 10, |_| {
        at += client.write(&sent[at..]);
        let count = server.read(&mut room);
        received.extend_from_slice(&room[..count]);
        received.len() == sent.len()
    }));
    assert!(received == sent);
    let stats = stats(&world, 1);
    assert_eq!((stats.counters.cookies_sent, stats.counters.cookies_accepted), (1, 1));
    drop((client, server));
    nothing_left(&mut world);
}

#[test]
fn a_made_up_acknowledgment_opens_nothing() {
    let mut world = two(|config| config.limits.half_open = 0);
    let incoming = world.hosts[1].listen_streams(PORT, 16, StreamOptions::default());
    // Cookies are about.
    world.network.inject(world.now(), &syn(1));
    world.run(Duration::from_millis(1));
    for number in 0..1000 {
        guess(&mut world, Ipv4Addr::new(10, 0, 1, 1), number * 4_000_000);
    }
    assert!(incoming.try_recv().is_err());
    let stats = stats(&world, 1);
    assert_eq!((stats.flows, stats.counters.cookies_accepted, stats.counters.resets_sent), (0, 0, 1000));
}

/// An acknowledgment to host 1 in the name of somebody else, who sent no SYN.
fn guess(world: &mut World, from: Ipv4Addr, acknowledgment: u32) {
    let path =
        Path::new(STRANGERS, EthernetAddress([2, 0, 0, 0, 0, 2]), from.into(), Ipv4Addr::new(10, 0, 0, 2).into());
    let mut header = TcpHeader::new(TcpFlags::ACK);
    (header.source_port, header.destination_port) = (5000, PORT);
    (header.sequence, header.acknowledgment) = (SeqNumber(7), SeqNumber(acknowledgment));
    let mut frame = vec![0; 128];
    let checksum = TcpChecksum::Full { payload_sum: 0 };
    let length = prepend_tcp(&mut frame, &path, &header, 0, 0, checksum).expect("it fits");
    world.network.inject(world.now(), &frame[128 - length..]);
    pass(world, Duration::from_micros(20));
}

/// Lets just so much time go by, where [`World::run`] goes on to the next timer.
fn pass(world: &mut World<SimPort>, time: Duration) {
    let end = world.now() + time;
    while world.now() < end {
        world.step_until(Some(end));
    }
}

/// Each number compared is one chance in 2^23 to open a connection in the name of another host.
#[test]
fn guesses_at_cookies_in_the_name_of_one_host_are_few_and_shut_no_other_host_out() {
    let mut world = two(|config| config.limits.half_open = 0);
    let incoming = world.hosts[1].listen_streams(PORT, 16, StreamOptions::default());
    world.network.inject(world.now(), &syn(1));
    world.run(Duration::from_millis(1));
    let forged = Ipv4Addr::new(10, 0, 1, 1);
    for number in 0..5000u32 {
        guess(&mut world, forged, number.wrapping_mul(858_993));
    }
    // A thousand at once, and a hundred for each second.
    let during = stats(&world, 1);
    assert!((1000..=1012).contains(&during.counters.cookies_wrong), "{} compared", during.counters.cookies_wrong);
    assert_eq!(during.counters.cookies_wrong + during.counters.cookies_not_compared, 5000);
    assert_eq!((during.counters.resets_sent, during.drops["no-connection"]), (during.counters.cookies_wrong, 5000));
    // Another host's answer is compared, and opens its connection.
    let _open = joined(&mut world, &incoming, &small());
    assert_eq!(stats(&world, 1).counters.cookies_accepted, 1);
    // Later the first host has its chances again.
    pass(&mut world, Duration::from_secs(3));
    let before = stats(&world, 1).counters.cookies_wrong;
    for number in 0..1000 {
        guess(&mut world, forged, number);
    }
    let compared = stats(&world, 1).counters.cookies_wrong - before;
    assert!((290..=310).contains(&compared), "{compared} compared after 3 s");
}

/// A client, a server and between them the test, which composes the bursts that the server takes.
struct Between {
    client: Host<LoopPort>,
    server: Host<LoopPort>,
    to_client: LoopPort,
    to_server: LoopPort,
    now: Instant,
    /// What the client has sent.
    sent: VecDeque<HeapBuffer>,
    /// What is to come to the server's ring, and to the client's.
    waiting: [VecDeque<HeapBuffer>; 2],
    /// Frames that the server has sent to strangers.
    answers: u64,
}

impl Between {
    /// The server's ring has room for `ring` frames.
    fn new(ring: usize, adjust: impl FnOnce(&mut EngineConfig)) -> Between {
        let (client, to_client) = LoopPort::pair(LoopOptions::default());
        let (to_server, server) = LoopPort::pair(LoopOptions { queue: ring, ..LoopOptions::default() });
        Between {
            client: Host::new(client, 0, 16, 1, |_| {}),
            server: Host::new(server, 1, 16, 1, adjust),
            to_client,
            to_server,
            now: Instant::from_nanos(1_000_000),
            sent: VecDeque::with_capacity(1024),
            waiting: [VecDeque::with_capacity(1024), VecDeque::with_capacity(1024)],
            answers: 0,
        }
    }

    fn turn_client(&mut self) {
        self.now += Duration::from_micros(1);
        self.client.engine.as_mut().expect("alive").turn(self.now);
        let mut batch = Batch::new();
        while self.to_client.rx_burst(&mut batch) > 0 {
            self.sent.extend(batch.drain(..));
        }
    }

    fn turn_server(&mut self) {
        self.now += Duration::from_micros(1);
        self.server.engine.as_mut().expect("alive").turn(self.now);
        let [_, to_client] = &mut self.waiting;
        let mut batch = Batch::new();
        while self.to_server.rx_burst(&mut batch) > 0 {
            let is_answer = |frame: &HeapBuffer| frame.data()[..6] == STRANGERS.0;
            self.answers += batch.iter().filter(|frame| is_answer(frame)).count() as u64;
            to_client.extend(batch.drain(..).filter(|frame| !is_answer(frame)));
            self.to_client.tx_burst(to_client);
        }
    }

    /// Both, with nothing else on the wire.
    fn turn_both(&mut self) {
        self.turn_client();
        let [to_server, _] = &mut self.waiting;
        to_server.append(&mut self.sent);
        self.to_server.tx_burst(to_server);
        self.turn_server();
    }

    /// Opens a stream.
    fn joined(&mut self, incoming: &Receiver<IncomingStream>) -> (StreamEnds, StreamEnds) {
        let client = self.client.connect_stream((self.server.address, PORT), StreamOptions::default());
        for _ in 0..1000 {
            self.turn_both();
            if let Some(server) = incoming.try_recv().ok().and_then(|incoming| incoming.take()) {
                return (client, server);
            }
        }
        panic!("{:?}", client.failure());
    }

    fn server_stats(&self) -> EngineStats {
        self.server.engine.as_ref().expect("alive").stats()
    }
}

/// Each burst of 32 that the server takes is three segments of a stream and 29 SYNs, and its ring is always full.
#[test]
fn nine_syns_for_each_segment_cost_an_open_stream_nothing() {
    if is_skipped("it says what each burst consists of") {
        return;
    }
    const SEGMENTS: usize = 3;
    const SYNS: usize = BURST - SEGMENTS;
    const { assert!(SYNS >= 9 * SEGMENTS) };
    const BURSTS: usize = 1000;
    const HALF_OPEN: usize = 64;
    let mut between = Between::new(2 * BURST, |config| config.limits.half_open = HALF_OPEN as u32);
    let incoming = between.server.listen_streams(PORT, 128, StreamOptions::default());
    let (mut client, mut server) = between.joined(&incoming);
    // The timers of the handshake run out, for which memory is taken once.
    for _ in 0..20 {
        between.now += Duration::from_millis(100);
        between.turn_both();
    }
    let before = between.server_stats();

    let octets = pattern(BURSTS * SEGMENTS * 1448 + (1 << 20), 2);
    let strangers: Vec<Vec<u8>> = (0..(BURSTS * SYNS) as u32).map(syn).collect();
    let mut syns = strangers.iter();
    let (mut at, mut received, mut room) = (0, Vec::with_capacity(octets.len()), vec![0; 70_000]);
    let mut compose = |between: &mut Between| {
        for _ in 0..100 {
            if between.sent.len() >= SEGMENTS {
                break;
            }
            at += client.write(&octets[at..]);
            between.turn_client();
        }
        for place in 0..BURST {
            let frame = if place % 10 == 0 && place < 10 * SEGMENTS {
                let frame = between.sent.pop_front().expect("the stream's window is larger than the ring");
                assert!(frame.data().len() > 14 + 20 + 32, "a segment without octets");
                frame
            } else {
                let mut frame = between.to_server.alloc().expect("free");
                frame.fill(syns.next().expect("enough"));
                frame
            };
            between.waiting[0].push_back(frame);
        }
    };
    let mut read = || {
        let count = server.read(&mut room);
        received.extend_from_slice(&room[..count]);
        received.len()
    };
    // The ring takes two bursts, and one is always ready.
    compose(&mut between);
    compose(&mut between);
    assert_eq!(between.to_server.tx_burst(&mut between.waiting[0]), 2 * BURST);
    compose(&mut between);
    let mut flood = |bursts: usize| {
        for _ in 0..bursts {
            assert_eq!((between.waiting[0].len(), between.to_server.tx_burst(&mut between.waiting[0])), (BURST, 0));
            // When we have read something the engine may look at that first, for one turn.
            let taken = (0..2).find_map(|_| {
                between.turn_server();
                Some(between.to_server.tx_burst(&mut between.waiting[0])).filter(|taken| *taken > 0)
            });
            assert_eq!(taken, Some(BURST), "as much as a burst can be");
            read();
            compose(&mut between);
        }
    };
    // Half-open connections and sent records take memory once.
    flood(100);
    let info = allocation_counter::measure(|| flood(BURSTS - 103));
    assert_eq!(info.count_total, 0, "{info:?}");
    assert!(syns.next().is_none());
    // The rest of the stream, after the flood.
    let arrived = (0..10_000).any(|_| {
        between.turn_both();
        read() == at
    });
    assert!(arrived && received == octets[..at] && at > BURSTS * SEGMENTS * 1400, "{} of {at}", received.len());
    let client_stats = between.client.engine.as_ref().expect("alive").stats();
    assert_eq!(client_stats.counters.retransmissions, 0, "a segment was lost");

    let after = between.server_stats();
    let all = BURSTS * SYNS;
    // One frame is the work for a SYN: no entry, no timer, no second answer.
    assert_eq!(between.answers, all as u64);
    assert_eq!(after.counters.cookies_sent - before.counters.cookies_sent, (all - HALF_OPEN) as u64);
    assert_eq!((after.flows, after.counters.retransmissions), (HALF_OPEN as u64 + 1, 0));
    assert_eq!(after.drops, before.drops);
    let acknowledgments = after.counters.pure_acknowledgments - before.counters.pure_acknowledgments;
    assert_eq!(after.counters.frames_sent - before.counters.frames_sent, between.answers + acknowledgments);
    // And a newcomer gets through.
    let _late = between.joined(&incoming);
}

#[test]
fn a_syn_beyond_the_limit_allocates_nothing() {
    let (mut port, host_port) = LoopPort::pair(LoopOptions::default());
    let mut host = Host::new(host_port, 1, 16, 1, |config| config.limits.half_open = 8);
    let _incoming = host.listen_streams(PORT, 128, StreamOptions::default());
    let engine = host.engine.as_mut().expect("alive");
    let mac = EthernetAddress(engine_mac(&port));
    let mut now = Instant::from_nanos(1_000_000);
    let mut frames: Vec<Vec<u8>> = (0..400).map(syn).collect();
    for frame in &mut frames {
        frame[..6].copy_from_slice(&mac.0);
    }
    let mut out = VecDeque::with_capacity(16);
    let mut batch = Batch::new();
    let mut flood = |engine: &mut Engine<_>, frames: &[Vec<u8>]| {
        for frames in frames.chunks(10) {
            for frame in frames {
                let mut buffer = port.alloc().expect("free");
                buffer.fill(frame);
                out.push_back(buffer);
            }
            port.tx_burst(&mut out);
            now += Duration::from_micros(1);
            engine.turn(now);
            while port.rx_burst(&mut batch) > 0 {
                batch.clear();
            }
        }
    };
    flood(engine, &frames[..100]);
    let deadline = engine.next_deadline();
    let info = allocation_counter::measure(|| flood(engine, &frames[100..]));
    assert_eq!(info.count_total, 0, "{info:?}");
    assert_eq!(engine.next_deadline(), deadline, "no timer was set");
    let stats = engine.stats();
    assert_eq!((stats.counters.cookies_sent, stats.flows), (400 - 8, 8), "{:?}", stats.drops);
}

/// The hardware address of the other end.
fn engine_mac(port: &LoopPort) -> [u8; 6] {
    let mut mac = port.capabilities().mac;
    mac[5] ^= 3;
    mac
}

/// The same two ports each time: RFC 6191 lets the next connection in while the last one waits.
fn use_ports_again(half_open: Option<u32>) -> EngineStats {
    let mut world = two(|config| {
        config.ephemeral_ports = (50_000, 50_000);
        config.limits.half_open = half_open.unwrap_or(config.limits.half_open);
    });
    let incoming = world.hosts[1].listen_streams(PORT, 16, StreamOptions::default());
    for round in 0..5 {
        let (client, server) = joined(&mut world, &incoming, &small());
        drop(server);
        world.run(Duration::from_millis(1));
        drop(client);
        world.run(Duration::from_millis(2));
        let stats = stats(&world, 1);
        assert_eq!((stats.time_wait, stats.flows, stats.connections.len()), (1, 1, 0), "round {round}");
    }
    nothing_left(&mut world);
    let stats = stats(&world, 1);
    assert_eq!(stats.time_wait, 0);
    stats
}

#[test]
fn time_wait_is_kept_apart_and_its_ports_are_used_again() {
    assert_eq!(use_ports_again(None).counters.cookies_sent, 0);
}

#[test]
fn a_cookie_lets_the_next_connection_in_while_the_last_one_waits() {
    let stats = use_ports_again(Some(0));
    assert_eq!((stats.counters.cookies_sent, stats.counters.cookies_accepted), (5, 5));
}

/// Segments between the addresses of one host come in order and once, so nobody waits for late ones. The client's first
/// sequence number is not always beyond what the last connection sent.
#[test]
fn a_port_is_used_again_at_once_within_a_host() {
    for server_first in [false, true] {
        let mut world = World::new(9, SimOptions::default());
        world.add(HostOptions::default(), |config| config.ephemeral_ports = (50_000, 50_000));
        let incoming = world.hosts[0].listen_streams(PORT, 16, StreamOptions::default());
        let started = world.now();
        for round in 0..20 {
            let mut client = world.hosts[0].connect_stream((world.hosts[0].address, PORT), StreamOptions::default());
            let mut server = None;
            world.run_until(SECOND, |_| {
                server = incoming.try_recv().ok().and_then(|incoming| incoming.take());
                server.is_some()
            });
            let mut server = server.unwrap_or_else(|| panic!("round {round}: {:?}", client.failure()));
            assert_eq!(client.write(&pattern(2000, round)), 2000);
            assert!(world.run_until(SECOND, |_| server.readable() == 2000), "round {round}");
            assert_eq!(server.read(&mut [0; 2000]), 2000);
            let (first, second) = if server_first { (server, client) } else { (client, server) };
            drop(first);
            pause(&mut world, Duration::from_micros(50));
            drop(second);
            pause(&mut world, Duration::from_micros(50));
            let stats = stats(&world, 0);
            assert_eq!((stats.time_wait, stats.connections.len()), (1, 0), "round {round}");
        }
        assert!(world.now() - started < SECOND, "within one TIME-WAIT: {:?}", world.now() - started);
        nothing_left(&mut world);
    }
}

/// RFC 7323 B.2: with timestamps, a second of TIME-WAIT is enough for the side that opens the next connection.
#[test]
fn this_side_takes_a_port_out_of_time_wait_after_a_second_if_there_are_timestamps() {
    for timestamps in [false, true] {
        let mut world = two(|config| {
            config.ephemeral_ports = (50_000, 50_000);
            config.tcp.time_wait = SECOND * 60;
            config.tcp.timestamps = timestamps;
        });
        let incoming = world.hosts[1].listen_streams(PORT, 16, StreamOptions::default());
        let (client, server) = joined(&mut world, &incoming, &small());
        drop(client);
        pause(&mut world, Duration::from_millis(1));
        drop(server);
        pause(&mut world, Duration::from_millis(1));
        assert_eq!(stats(&world, 0).time_wait, 1);
        let mut later = |wait: Duration| {
            pause(&mut world, wait);
            let client = joined_later(&world);
            pause(&mut world, Duration::from_millis(1));
            client.failure().is_none()
        };
        assert!(!later(Duration::from_millis(900)), "timestamps {timestamps}");
        assert_eq!(later(Duration::from_millis(200)), timestamps);
    }
}

#[test]
fn a_fin_that_comes_again_is_acknowledged_again() {
    let mut world = two(|_| {});
    let incoming = world.hosts[1].listen_streams(PORT, 16, StreamOptions::default());
    let (client, server) = joined(&mut world, &incoming, &small());
    drop(client);
    world.run(Duration::from_millis(1));
    // The acknowledgment of the server's FIN is lost: the FIN comes again, to a connection that is in TIME-WAIT.
    drop(server);
    world.network.set_options(SimOptions { loss: 1.0, ..SimOptions::default() });
    world.run(Duration::from_micros(3));
    world.network.set_options(SimOptions::default());
    world.run(Duration::from_millis(500));
    assert!(stats(&world, 1).connections.is_empty(), "{:?}", stats(&world, 1).connections);
    nothing_left(&mut world);
}

#[test]
fn ten_thousand_short_connections_leave_nothing() {
    let mut world = two(|config| {
        config.tcp.time_wait = Duration::from_millis(20);
        config.limits.time_wait = 300;
    });
    let incoming = world.hosts[1].listen_streams(PORT, 128, small());
    let mut room = [0; 64];
    let mut batch = Vec::new();
    for round in 0..100 {
        for _ in 0..100 {
            batch.push(joined_later(&world));
        }
        let mut served = 0;
        assert!(
            world.run_until(SECOND * 10, |_| {
                while let Some(mut server) = incoming.try_recv().ok().and_then(|incoming| incoming.take()) {
                    server.write(b"hello");
                    served += 1;
                }
                served == 100 && batch.iter_mut().all(|client| client.readable() == 5)
            }),
            "round {round}: {served}"
        );
        for mut client in batch.drain(..) {
            assert_eq!(client.read(&mut room), 5);
        }
    }
    let cut_short = stats(&world, 1).time_wait_cut_short;
    assert!(stats(&world, 1).time_wait <= 300, "{cut_short}");
    nothing_left(&mut world);
    assert_eq!(stats(&world, 1).counters.connections_opened, 10_000);
}

fn joined_later(world: &World) -> StreamEnds {
    world.hosts[0].connect_stream((world.hosts[1].address, PORT), small())
}

/// Heap of both engines and both applications, for each end of a stream, without its rings.
#[test]
fn an_idle_stream_takes_at_most_two_kibibytes_beside_its_rings() {
    let mut world = two(|_| {});
    let incoming = world.hosts[1].listen_streams(PORT, 2000, small());
    let (first, other) = joined(&mut world, &incoming, &small());
    let mut ring = None;
    let ring_octets = allocation_counter::measure(|| ring = Some(uwarp_ring::byte_ring(4096))).bytes_current;
    const COUNT: i64 = 1000;
    let mut clients = Vec::with_capacity(COUNT as usize);
    let mut servers = Vec::with_capacity(COUNT as usize);
    let info = allocation_counter::measure(|| {
        for _ in 0..COUNT {
            clients.push(joined_later(&world));
        }
        // SYNs that the device's ring had no room for come again.
        world.run(SECOND * 4);
        while let Some(server) = incoming.try_recv().ok().and_then(|incoming| incoming.take()) {
            servers.push(server);
        }
    });
    assert_eq!(servers.len(), COUNT as usize);
    let each = info.bytes_current / (2 * COUNT) - 2 * ring_octets;
    println!("{each} octets, and {ring_octets} for each ring of 4096");
    assert!((500..=2048).contains(&each), "{each} octets");
    drop((first, other));
}
