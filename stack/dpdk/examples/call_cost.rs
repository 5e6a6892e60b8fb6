//! Measures the calls on a packet's path beside the same calls in C: an empty receive burst, and taking and returning
//! buffers.
//!
//! ```text
//! cargo run --release -p uwarp-dpdk --example call_cost
//! ```

use std::error::Error;
use std::hint::black_box;

use uwarp_dpdk::measure::{c_alloc_free, c_empty_receive, c_shim_empty_receive, ticks, ticks_per_nanosecond};
use uwarp_dpdk::{DeviceConfig, Eal, EalConfig, Mbuf, Port, PortOptions, Queue};

/// Short enough to fit between two turns of the scheduler.
const ROUNDS: u64 = 16_000;
const REPEATS: usize = 1_000;

/// The minimum of several repetitions, in nanoseconds per round: a busy machine only adds time.
fn best(mut once: impl FnMut() -> u64) -> f64 {
    (0..REPEATS).map(|_| once()).min().unwrap_or(0) as f64 / ROUNDS as f64 / ticks_per_nanosecond()
}

fn empty_receive(queue: &mut Queue, frames: &mut Vec<Mbuf>) -> u64 {
    let start = ticks();
    for _ in 0..ROUNDS {
        black_box(queue.rx_burst(frames));
    }
    ticks() - start
}

fn alloc_free(queue: &mut Queue, frames: &mut Vec<Mbuf>, batch: usize) -> u64 {
    let start = ticks();
    for _ in 0..ROUNDS / 16 {
        for _ in 0..batch {
            frames.extend(queue.alloc());
        }
        frames.clear();
    }
    (ticks() - start) * 16
}

fn round_trip(
    queue: &mut Queue,
    frames: &mut std::collections::VecDeque<Mbuf>,
    received: &mut Vec<Mbuf>,
    batch: usize,
) -> u64 {
    let start = ticks();
    for _ in 0..ROUNDS / 16 {
        for _ in 0..batch {
            frames.extend(queue.alloc());
        }
        queue.tx_burst(frames);
        queue.rx_burst(received);
        received.clear();
    }
    (ticks() - start) * 16
}

fn main() -> Result<(), Box<dyn Error>> {
    let eal = Eal::init(&EalConfig::default())?;
    let _registration = eal.register_thread()?;
    let ring = DeviceConfig::Ring { name: "cost".to_owned(), loopback: true };
    let port = Port::open(&eal, &ring, &PortOptions::default())?;
    let mut queue = port.take_queue(0).ok_or("no queue")?;
    let mut frames: Vec<Mbuf> = Vec::with_capacity(32);

    println!("empty receive burst, net_ring:  C inline {:.2} ns", best(|| c_empty_receive(&queue, ROUNDS)));
    println!("                                C shim   {:.2} ns", best(|| c_shim_empty_receive(&queue, ROUNDS)));
    println!("                                Rust     {:.2} ns", best(|| empty_receive(&mut queue, &mut frames)));
    for batch in [1, 32] {
        println!(
            "alloc and free, {batch:2} at a time:   C inline {:.2} ns a buffer",
            best(|| c_alloc_free(&queue, batch, ROUNDS / 16) * 16) / f64::from(batch)
        );
        println!(
            "                                Rust     {:.2} ns a buffer",
            best(|| alloc_free(&mut queue, &mut frames, batch as usize)) / f64::from(batch)
        );
    }
    let mut pending = std::collections::VecDeque::with_capacity(64);
    for batch in [1, 32] {
        println!(
            "alloc, tx, rx, free, {batch:2}:         Rust     {:.2} ns a packet",
            best(|| round_trip(&mut queue, &mut pending, &mut frames, batch as usize)) / f64::from(batch)
        );
    }
    drop(queue);

    let directory = tempfile::tempdir()?;
    let memif = |role| DeviceConfig::Memif {
        role,
        socket: directory.path().join("m"),
        zero_copy: false,
        ring_size: None,
        buffer_size: None,
    };
    let server = Port::open(&eal, &memif(uwarp_dpdk::MemifRole::Server), &PortOptions::default())?;
    let client = Port::open(&eal, &memif(uwarp_dpdk::MemifRole::Client), &PortOptions::default())?;
    server.wait_link_up(std::time::Duration::from_secs(10))?;
    client.wait_link_up(std::time::Duration::from_secs(10))?;
    let mut queue = server.take_queue(0).ok_or("no queue")?;
    println!(
        "empty receive burst, memif:     C inline {:.2} ns (without gate)",
        best(|| c_empty_receive(&queue, ROUNDS))
    );
    println!("                                Rust     {:.2} ns", best(|| empty_receive(&mut queue, &mut frames)));
    drop((queue, server, client));

    let socket = directory.path().join("v");
    let host = DeviceConfig::Vhost { socket: socket.clone(), client: false, tso: false };
    let guest = DeviceConfig::VirtioUser { socket, server: false, packed: true, queue_size: None, mac: None };
    let host = Port::open(&eal, &host, &PortOptions::default())?;
    let guest = Port::open(&eal, &guest, &PortOptions::default())?;
    for (name, port) in [("vhost", &host), ("virtio", &guest)] {
        port.wait_link_up(std::time::Duration::from_secs(10))?;
        let mut queue = port.take_queue(0).ok_or("no queue")?;
        println!("empty receive burst, {name:6}:    C inline {:.2} ns", best(|| c_empty_receive(&queue, ROUNDS)));
        println!("                                Rust     {:.2} ns", best(|| empty_receive(&mut queue, &mut frames)));
    }
    Ok(())
}
