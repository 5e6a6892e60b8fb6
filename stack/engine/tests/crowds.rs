//! Many connections: floods of SYNs, cookies, TIME-WAIT, short connections, and what each costs.

mod common;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use common::{PORT, SECOND, nothing_left, pattern};
use uwarp_engine::port::Batch;
use uwarp_engine::ports::sim::SimOptions;
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_engine::rig::{Host, HostOptions, World};
use uwarp_engine::stats::EngineStats;
use uwarp_engine::stream::{StreamEnds, StreamOptions};
use uwarp_engine::{EngineConfig, Port};
use uwarp_tcp::Instant;
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

fn small() -> StreamOptions {
    StreamOptions { send_buffer: 4096, receive_buffer: 4096, ..StreamOptions::default() }
}

/// Opens a stream to host 1.
fn joined(
    world: &mut World,
    incoming: &crossbeam::channel::Receiver<uwarp_engine::stream::IncomingStream>,
    options: &StreamOptions,
) -> (StreamEnds, StreamEnds) {
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

/// A SYN to host 1, from one of many strangers.
fn syn(number: u32) -> Vec<u8> {
    let from = Ipv4Addr::from(0x0a00_0100 + number % 0x8000);
    let path = Path::new(
        EthernetAddress([2, 9, 9, 9, 9, 9]),
        EthernetAddress([2, 0, 0, 0, 0, 2]),
        from.into(),
        Ipv4Addr::new(10, 0, 0, 2).into(),
    );
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
    assert_eq!((stats.cookies_sent, stats.cookies_accepted), (1, 1));
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
    let path = Path::new(
        EthernetAddress([2, 9, 9, 9, 9, 9]),
        EthernetAddress([2, 0, 0, 0, 0, 2]),
        Ipv4Addr::new(10, 0, 1, 1).into(),
        Ipv4Addr::new(10, 0, 0, 2).into(),
    );
    for number in 0..1000 {
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.source_port, header.destination_port) = (5000, PORT);
        (header.sequence, header.acknowledgment) = (SeqNumber(7), SeqNumber(number * 4_000_000));
        let mut frame = vec![0; 128];
        let checksum = TcpChecksum::Full { payload_sum: 0 };
        let length = prepend_tcp(&mut frame, &path, &header, 0, 0, checksum).expect("it fits");
        world.network.inject(world.now(), &frame[128 - length..]);
        world.run(Duration::from_micros(20));
    }
    assert!(incoming.try_recv().is_err());
    let stats = stats(&world, 1);
    assert_eq!((stats.flows, stats.cookies_accepted, stats.resets_sent), (0, 0, 1000));
}

#[test]
fn nine_syns_for_each_segment_cost_an_open_stream_nothing() {
    let mut world = two(|config| config.limits.half_open = 64);
    let incoming = world.hosts[1].listen_streams(PORT, 128, StreamOptions::default());
    let (mut client, mut server) = joined(&mut world, &incoming, &StreamOptions::default());
    let sent = pattern(3_000 * 1448, 2);
    let (mut at, mut number, mut received, mut room) = (0, 0, Vec::new(), vec![0; 70_000]);
    while received.len() < sent.len() && number < 60_000 {
        at += client.write(&sent[at..sent.len().min(at + 1448)]);
        for _ in 0..9 {
            world.network.inject(world.now(), &syn(number));
            number += 1;
        }
        world.step();
        let count = server.read(&mut room);
        received.extend_from_slice(&room[..count]);
    }
    assert!(received == sent, "{} of {} after {number} SYNs", received.len(), sent.len());
    assert_eq!(stats(&world, 0).retransmissions, 0, "a segment was lost");
    let stats = stats(&world, 1);
    assert!(stats.cookies_sent > u64::from(number) * 9 / 10, "{} cookies for {number} SYNs", stats.cookies_sent);
    assert_eq!(stats.flows, 64 + 1);
    // And a newcomer gets through.
    let (_late, _) = joined(&mut world, &incoming, &StreamOptions::default());
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
    let mut flood = |frames: &[Vec<u8>]| {
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
    flood(&frames[..100]);
    let info = allocation_counter::measure(|| flood(&frames[100..]));
    assert_eq!(info.count_total, 0, "{info:?}");
    let stats = engine.stats();
    assert_eq!((stats.cookies_sent, stats.flows), (400 - 8, 8), "{:?}", stats.drops);
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
    assert_eq!(use_ports_again(None).cookies_sent, 0);
}

#[test]
fn a_cookie_lets_the_next_connection_in_while_the_last_one_waits() {
    let stats = use_ports_again(Some(0));
    assert_eq!((stats.cookies_sent, stats.cookies_accepted), (5, 5));
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
    assert_eq!(stats(&world, 1).connections_opened, 10_000);
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
