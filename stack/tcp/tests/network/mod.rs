//! Flows through one bottleneck, in virtual time: a link of a given rate behind a queue, then a delay, losses and
//! reordering. Acknowledgments return after a delay and are never lost.

#![allow(dead_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use uwarp_tcp::{BufferToken, Config, Connection, Info, Instant, State};
use uwarp_wire::tcp::{SeqNumber, TcpHeader};

/// Octets of a full segment beside its payload: Ethernet with preamble and gap, IPv4 and TCP without options.
pub const OVERHEAD: u64 = 38 + 40;
/// Payload of a full segment.
pub const SEGMENT: u32 = 1460;

/// A path, the same for all flows.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bits a second.
    pub rate: u64,
    /// Round-trip time without queueing.
    pub rtt: Duration,
    /// Octets that the queue can hold.
    pub queue: u64,
    /// Queue length in octets from which on packets are marked, as DCTCP expects (RFC 8257 §3.1).
    pub mark: Option<u64>,
    pub loss: f64,
    /// Fraction of the packets that arrive later, by up to `late`.
    pub reorder: f64,
    pub late: Duration,
    pub seed: u64,
}

impl Path {
    pub fn new(rate: u64, rtt: Duration) -> Path {
        let mut path = Path { rate, rtt, queue: 0, mark: None, loss: 0.0, reorder: 0.0, late: Duration::ZERO, seed: 1 };
        path.queue = path.product().max(20 * (u64::from(SEGMENT) + OVERHEAD));
        path
    }

    /// Rate times round-trip time, in octets.
    pub fn product(&self) -> u64 {
        (u128::from(self.rate) * self.rtt.as_nanos() / 8_000_000_000) as u64
    }

    /// The most payload that the link carries, in bits per second.
    pub fn capacity(&self) -> f64 {
        self.rate as f64 * f64::from(SEGMENT) / (u64::from(SEGMENT) + OVERHEAD) as f64
    }
}

struct Flow {
    sender: Connection,
    receiver: Connection,
    /// When it begins to send.
    start: Instant,
    next_token: u32,
    received: u64,
}

#[derive(Clone, Copy)]
struct Packet {
    flow: usize,
    to_receiver: bool,
    header: TcpHeader,
    len: u32,
    ecn: u8,
}

pub struct Network {
    path: Path,
    flows: Vec<Flow>,
    now: Instant,
    random: fastrand::Rng,
    /// When the link will have sent everything in its queue.
    free: Instant,
    arrivals: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    packets: Vec<Packet>,
    unused: Vec<usize>,
    order: u64,
    pub dropped: u64,
    pub marked: u64,
    pub sent: u64,
}

impl Network {
    /// `count` flows with the same settings that begin at slightly different times.
    pub fn new(config: &Config, count: usize, path: Path) -> Network {
        let now = Instant::from_nanos(1_000_000_000);
        let mut random = fastrand::Rng::with_seed(path.seed);
        let flows = (0..count)
            .map(|_| {
                let mut sender = Connection::connect(config, SeqNumber(random.u32(..)), now);
                let syn = sender.poll_transmit(now).expect("a SYN").header;
                let receiver = Connection::accept(config, &syn, SeqNumber(random.u32(..)), now);
                let start = now + Duration::from_nanos(random.u64(0..20_000_000) * u64::from(count > 1));
                Flow { sender, receiver, start, next_token: 0, received: 0 }
            })
            .collect();
        let mut network = Network {
            path,
            flows,
            now,
            random,
            free: now,
            arrivals: BinaryHeap::new(),
            packets: Vec::new(),
            unused: Vec::new(),
            order: 0,
            dropped: 0,
            marked: 0,
            sent: 0,
        };
        // The handshakes are not measured, so nothing is lost in them.
        let faults = std::mem::replace(&mut network.path, Path { loss: 0.0, reorder: 0.0, ..path });
        for flow in 0..count {
            network.transmit(flow, true);
        }
        let opened = network.now + path.rtt * 3;
        network.run_until(opened, false);
        assert!(network.flows.iter().all(|flow| flow.sender.state() == State::Established));
        network.path = faults;
        for flow in &mut network.flows {
            flow.start = network.now + (flow.start - now);
        }
        network
    }

    /// Payload that each flow receives in the next `time`, in bits per second.
    pub fn goodput(&mut self, time: Duration) -> Vec<f64> {
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.received).collect();
        self.run_until(self.now + time, true);
        let octets = self.flows.iter().zip(before).map(|(flow, before)| flow.received - before);
        octets.map(|octets| octets as f64 * 8.0 / time.as_secs_f64()).collect()
    }

    pub fn info(&self, flow: usize) -> Info {
        self.flows[flow].sender.info()
    }

    fn run_until(&mut self, until: Instant, sending: bool) {
        loop {
            if sending {
                for flow in 0..self.flows.len() {
                    if self.flows[flow].next_token == 0 && self.flows[flow].start <= self.now {
                        self.transmit(flow, false);
                    }
                }
            }
            let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
            let deadlines = self.flows.iter().flat_map(|flow| {
                let start = (sending && flow.next_token == 0).then_some(flow.start);
                [flow.sender.deadline(), flow.receiver.deadline(), start].into_iter().flatten()
            });
            let Some(next) = deadlines.chain(arrival).min().filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            while let Some(Reverse((at, _, index))) = self.arrivals.peek().copied()
                && at <= self.now
            {
                self.arrivals.pop();
                self.unused.push(index);
                let packet = self.packets[index];
                self.deliver(&packet);
                self.transmit(packet.flow, packet.to_receiver);
            }
            for flow in 0..self.flows.len() {
                for receiver in [false, true] {
                    let connection = self.end(flow, receiver);
                    if connection.deadline().is_some_and(|deadline| deadline <= next) {
                        connection.on_deadline(next);
                        self.transmit(flow, receiver);
                        self.transmit(flow, !receiver);
                    }
                }
            }
        }
        self.now = until;
    }

    fn end(&mut self, flow: usize, receiver: bool) -> &mut Connection {
        let flow = &mut self.flows[flow];
        if receiver { &mut flow.receiver } else { &mut flow.sender }
    }

    fn deliver(&mut self, packet: &Packet) {
        let now = self.now;
        let connection = self.end(packet.flow, packet.to_receiver);
        connection.on_segment(now, &packet.header, packet.len, packet.ecn, BufferToken(0));
        while connection.take_in_order().is_some() {}
        while connection.drain_discarded().is_some() {}
        if packet.to_receiver {
            let received = connection.info().octets_received;
            self.flows[packet.flow].received = received;
        }
    }

    /// Sends everything that one end of a flow has to send.
    fn transmit(&mut self, index: usize, receiver: bool) {
        let now = self.now;
        if !receiver {
            let flow = &mut self.flows[index];
            while flow.start <= now && flow.sender.send_space() > 0 {
                flow.sender.push(BufferToken(flow.next_token), SEGMENT);
                flow.next_token += 1;
            }
        }
        while let Some(transmit) = self.end(index, receiver).poll_transmit(now) {
            let len = transmit.payload.map_or(0, |slice| slice.len);
            let packet =
                Packet { flow: index, to_receiver: !receiver, header: transmit.header, len, ecn: transmit.ecn };
            if receiver || len == 0 {
                self.arrive(now + self.path.rtt / 2, packet);
            } else {
                self.enqueue(packet);
            }
        }
        while self.end(index, receiver).pop_acknowledged().is_some() {}
    }

    fn enqueue(&mut self, mut packet: Packet) {
        let size = u64::from(packet.len) + OVERHEAD;
        let waiting = (self.free - self.now).as_nanos() * u128::from(self.path.rate) / 8_000_000_000;
        self.sent += 1;
        if waiting as u64 + size > self.path.queue {
            self.dropped += 1;
            return;
        }
        if packet.ecn == 2 && self.path.mark.is_some_and(|mark| waiting as u64 > mark) {
            packet.ecn = 3;
            self.marked += 1;
        }
        self.free = self.free.max(self.now) + Duration::from_nanos(size * 8_000_000_000 / self.path.rate);
        if self.random.f64() < self.path.loss {
            return;
        }
        let mut at = self.free + self.path.rtt / 2;
        if self.random.f64() < self.path.reorder {
            at += self.path.late.mul_f64(self.random.f64());
        }
        self.arrive(at, packet);
    }

    fn arrive(&mut self, at: Instant, packet: Packet) {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.packets.push(packet);
            self.packets.len() - 1
        });
        self.packets[index] = packet;
        self.order += 1;
        self.arrivals.push(Reverse((at, self.order, index)));
    }
}
