//! What a connection costs in memory.

mod channel;

use std::time::Duration;

use channel::{Faults, Pair};
use uwarp_tcp::{Config, Connection, Instant};
use uwarp_wire::tcp::SeqNumber;

/// The most that an idle connection may take, heap included.
const IDLE: usize = 2048;

#[test]
fn idle_connection_is_small() {
    let mut pair = Pair::new(&Config::default(), &Config::default(), Faults::delay(Duration::from_micros(50)));
    pair.run_for(Duration::from_millis(10));
    println!("{} octets, of which {} on the heap", pair.memory(0), pair.memory(0) - size_of::<Connection>());
    assert!(pair.memory(0) <= IDLE && pair.memory(1) <= IDLE, "{} and {}", pair.memory(0), pair.memory(1));
}

/// Cache lines of a connection that a usual segment touches: with many connections, each is a wait for memory.
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
    // A window that is reached soon, so that the state is steady.
    let config = Config { receive_window: 256 << 10, ..Config::default() };
    let mut pair = Pair::new(&config, &config, faults);
    pair.send_bulk(0, 4 << 20, 1448);
    let before = (pair.memory(0), pair.memory(1));
    pair.send_bulk(0, 16 << 20, 1448);
    assert_eq!((pair.memory(0), pair.memory(1)), before);
}
