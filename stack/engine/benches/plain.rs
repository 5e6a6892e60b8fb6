//! What a segment of a plain stream costs the engine: two engines back to back, 64 octets there and back. A round trip
//! is a segment received and answered on each side, so half of it is the cost of receive and reply, the application's
//! two copies and doorbells included. `cargo bench -p uwarp-engine --bench plain`.

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_engine::stream::{StreamEnds, StreamOptions};
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{Host, World};

const PORT: u16 = 7;
const BURST: usize = 32;

struct Bench {
    hosts: Vec<Host<LoopPort>>,
    clients: Vec<StreamEnds>,
    servers: Vec<StreamEnds>,
    now: Instant,
    next: usize,
}

impl Bench {
    fn new(count: usize) -> Bench {
        let loop_options = LoopOptions { buffers: 16_384, ..LoopOptions::default() };
        let mut world: World<LoopPort> = World::back_to_back(loop_options, 16);
        let options = StreamOptions { send_buffer: 4096, receive_buffer: 4096, ..StreamOptions::default() };
        let incoming = world.hosts[1].listen_streams(PORT, 1024, options.clone());
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        while servers.len() < count {
            let more = (count - servers.len()).min(BURST);
            for _ in 0..more {
                clients.push(world.hosts[0].connect_stream((world.hosts[1].address, PORT), options.clone()));
            }
            let goal = servers.len() + more;
            assert!(world.run_until(Duration::from_secs(10), |_| {
                servers.extend(incoming.try_recv().ok().and_then(|incoming| incoming.take()));
                servers.len() == goal
            }));
        }
        // The server's streams came in some order; each finds its client by the ports.
        clients.sort_by_key(|client| client.endpoints().map(|(local, _)| local.port()));
        servers.sort_by_key(|server| server.endpoints().map(|(_, peer)| peer.port()));
        let now = world.now();
        Bench { hosts: world.hosts, clients, servers, now, next: 0 }
    }

    fn turn(&mut self, host: usize) {
        self.now += Duration::from_nanos(500);
        self.hosts[host].engine.as_mut().expect("alive").turn(self.now);
    }

    /// A round trip of each of the next `burst` connections.
    fn round(&mut self, burst: usize) {
        let range = self.next..self.next + burst;
        self.next = if range.end + burst > self.clients.len() { 0 } else { range.end };
        let mut octets = [7; 64];
        for client in &mut self.clients[range.clone()] {
            client.write(&octets);
        }
        self.turn(0);
        self.turn(1);
        for index in range.clone() {
            // Probes of idle connections may fill a burst: then the segment comes in the next one.
            while self.servers[index].read(&mut octets) == 0 {
                self.turn(0);
                self.turn(1);
            }
            self.servers[index].write(black_box(&octets));
        }
        self.turn(1);
        self.turn(0);
        for index in range {
            while self.clients[index].read(&mut octets) == 0 {
                self.turn(1);
                self.turn(0);
            }
        }
    }
}

fn segments(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive_and_reply_64");
    for (name, count, burst) in [("1_connection", 1, 1), ("10000_connections_bursts_of_32", 10_000, BURST)] {
        let mut bench = Bench::new(count);
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|segments| {
                // Each round answers two segments a connection, one on each side.
                let rounds = segments.div_ceil(2 * burst as u64);
                let start = Clock::now();
                for _ in 0..rounds {
                    bench.round(burst);
                }
                start.elapsed().mul_f64(segments as f64 / (rounds * 2 * burst as u64) as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, segments);
criterion_main!(benches);
