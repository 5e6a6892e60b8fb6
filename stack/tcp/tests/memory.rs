//! The memory of a connection.

mod channel;

use std::time::Duration;

use channel::{Faults, Pair};
use uwarp_tcp::{BufferToken, Config, Congestion, Connection, Instant};
use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader};

/// The most octets that an idle connection may take, heap included.
const IDLE: usize = 2048;

#[test]
fn idle_connection_is_small() {
    let mut pair = Pair::new(&Config::default(), &Config::default(), Faults::delay(Duration::from_micros(50)));
    pair.run_for(Duration::from_millis(10));
    println!("{} octets, of which {} on the heap", pair.memory(0), pair.memory(0) - size_of::<Connection>());
    assert!(pair.memory(0) <= IDLE && pair.memory(1) <= IDLE, "{} and {}", pair.memory(0), pair.memory(1));
}

/// Cache lines of a connection that a usual segment touches. With many connections, each is a cache miss.
const LINES: usize = 9;

#[test]
fn what_a_segment_touches_lies_side_by_side() {
    let connection = Connection::connect(&Config::default(), SeqNumber(1), Instant::ZERO);
    let (places, further) = (connection.places(), connection.further_places());
    println!("{} octets, and {} for timestamps", places.len(), further.len());
    assert!(places.start % 64 == 0 && places.len().div_ceil(64) <= LINES, "{} octets", places.len());
    assert!(further.end.div_ceil(64) - further.start / 64 == 1, "{further:?}");
    let config = Config { timestamps: false, ..Config::default() };
    assert!(Connection::connect(&config, SeqNumber(1), Instant::ZERO).further_places().is_empty());
}

#[test]
fn busy_connection_is_small_again_once_it_is_idle() {
    let faults = Faults { loss: 0.02, spacing: Duration::from_micros(1), ..Faults::delay(Duration::from_micros(50)) };
    let mut pair = Pair::new(&Config::default(), &Config::default(), faults);
    pair.send_bulk(0, 4 << 20, 1448);
    pair.run_for(Duration::from_secs(1));
    // The first keep-alive comes after two seconds of silence.
    pair.run_for(Duration::from_secs(3));
    assert!(pair.memory(0) <= IDLE && pair.memory(1) <= IDLE, "{} and {}", pair.memory(0), pair.memory(1));
}

#[test]
fn urgent_data_costs_memory_only_while_it_is_pending() {
    let mut pair = Pair::new(&Config::default(), &Config::default(), Faults::delay(Duration::from_micros(50)));
    pair.run_for(Duration::from_millis(10));
    let idle = [pair.memory(0), pair.memory(1)];
    pair.push_urgent(0, 1000);
    pair.run_for(Duration::from_micros(70));
    assert!(pair.urgent(0) == (1000, 1000) && pair.memory(0) > idle[0] && pair.memory(1) > idle[1]);
    // The first keep-alive comes after two seconds of silence.
    pair.run_for(Duration::from_secs(3));
    assert_eq!([pair.memory(0), pair.memory(1)], idle);
}

#[test]
fn steady_stream_does_not_allocate() {
    let faults = Faults { spacing: Duration::from_micros(1), ..Faults::delay(Duration::from_micros(50)) };
    // A window that fills soon, so that the state is steady.
    let config = Config { receive_window: 256 << 10, ..Config::default() };
    let mut pair = Pair::new(&config, &config, faults);
    pair.send_bulk(0, 4 << 20, 1448);
    let before = (pair.memory(0), pair.memory(1));
    pair.send_bulk(0, 16 << 20, 1448);
    assert_eq!((pair.memory(0), pair.memory(1)), before);
}

/// A connection that uses each of its rare parts: unacknowledged records and SACK blocks, retransmissions, data out of
/// order, delayed echoes of ECN, and urgent data.
fn connection_in_trouble() -> Connection {
    let now = Instant::from_nanos(1_000_000_000);
    let config = Config { congestion: Congestion::Dctcp, timestamps: false, ..Config::default() };
    let mut syn = TcpHeader::new(TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR);
    (syn.sequence, syn.window) = (SeqNumber(1000), 60_000);
    (syn.options.mss, syn.options.sack_permitted) = (Some(1000), true);
    let mut connection = Connection::accept(&config, &syn, SeqNumber(0), now);
    let send_all = |connection: &mut Connection| while connection.poll_transmit(now).is_some() {};
    send_all(&mut connection);

    let segment = |offset: u32, acknowledgment: u32| {
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.sequence, header.acknowledgment) = (SeqNumber(1001 + offset), SeqNumber(1 + acknowledgment));
        header.window = 60_000;
        header
    };
    connection.on_segment(now, &segment(0, 0), 0, 0, BufferToken(0));
    for token in 0..9 {
        connection.push(BufferToken(token), 1000);
    }
    connection.send_urgent_until(9000);
    send_all(&mut connection);
    // The first segment is lost, and so is the fourth; then the first arrives.
    for (left, right) in [(1000, 3000), (4000, 8000)] {
        let mut report = segment(0, 0);
        report.options.sack.push(SackBlock { left: SeqNumber(1 + left), right: SeqNumber(1 + right) });
        connection.on_segment(now, &report, 0, 0, BufferToken(0));
        send_all(&mut connection);
    }
    // Data with and without a mark, and three stretches out of order.
    for (token, offset, ecn) in [(20, 0, 2), (21, 100, 3), (22, 200, 2), (23, 400, 2), (24, 600, 2), (25, 800, 2)] {
        connection.on_segment(now, &segment(offset, 0), 100, ecn, BufferToken(token));
    }
    connection
}

#[test]
fn memory_is_what_the_allocator_gave() {
    let mut connection = None;
    let taken = allocation_counter::measure(|| connection = Some(connection_in_trouble()));
    let connection = connection.unwrap();
    let info = connection.info();
    assert!(
        info.selectively_acknowledged > 0 && info.counters.retransmissions > 0 && info.out_of_order_buffers == 3,
        "{info:?}"
    );
    assert_eq!((connection.memory() - size_of::<Connection>()) as i64, taken.bytes_current);
}
