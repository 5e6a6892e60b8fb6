//! An independent peer: smoltcp's TCP, over a channel that loses, reorders and duplicates packets, in virtual time. The
//! contents are compared octet by octet.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as PeerInstant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, TcpPacket};
use uwarp_tcp::{BufferToken, Config, Connection, Instant, Payload, State};
use uwarp_wire::tcp::{SeqNumber, TcpHeader};

const OURS: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const PEERS: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const OUR_PORT: u16 = 4000;
const PEERS_PORT: u16 = 5000;
const IP_HEADER: usize = 20;
/// smoltcp computes its SACK blocks in signed numbers and overflows from 2^31 on.
const OUR_ISN: SeqNumber = SeqNumber(0x1000_0000);

/// The octet at a position of a stream.
fn octet(position: usize) -> u8 {
    (position.wrapping_mul(0x9e37_79b1) >> 16) as u8
}

#[derive(Default)]
struct Queues {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Sent<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let result = fill(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: PeerInstant) -> Option<(Received, Sent<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _: PeerInstant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

/// Arrival time, order, whether it travels to the peer, and the packet.
type Travelling = (Instant, u64, bool, Vec<u8>);

#[derive(Clone, Copy)]
struct Faults {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    seed: u64,
}

struct World {
    now: Instant,
    connection: Connection,
    records: HashMap<u32, (usize, usize)>,
    held: HashMap<u32, Vec<u8>>,
    next_token: u32,
    pushed: usize,
    to_push: usize,
    taken: usize,
    interface: Interface,
    device: Queues,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    peer_sent: usize,
    peer_to_send: usize,
    peer_taken: usize,
    wire: BinaryHeap<Reverse<Travelling>>,
    order: u64,
    random: fastrand::Rng,
    faults: Faults,
}

fn peer_time(now: Instant) -> PeerInstant {
    PeerInstant::from_micros((now.as_nanos() / 1000) as i64)
}

impl World {
    /// `active`: we open the connection.
    fn new(config: &Config, faults: Faults, active: bool, timestamps: bool, ours: usize, peers: usize) -> World {
        let now = Instant::from_nanos(1_000_000_000);
        let mut device = Queues::default();
        let mut interface = Interface::new(InterfaceConfig::new(HardwareAddress::Ip), &mut device, peer_time(now));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(PEERS.into(), 24)).unwrap();
        });
        let mut socket =
            tcp::Socket::new(tcp::SocketBuffer::new(vec![0; 100_000]), tcp::SocketBuffer::new(vec![0; 100_000]));
        if timestamps {
            socket.set_tsval_generator(Some(|| 77));
        }
        let mut sockets = SocketSet::new(Vec::new());
        let mut wire = BinaryHeap::new();
        let connection = if active {
            socket.listen(PEERS_PORT).unwrap();
            Connection::connect(config, OUR_ISN, now)
        } else {
            socket.connect(interface.context(), (OURS, OUR_PORT), PEERS_PORT).unwrap();
            wire.clear();
            // Replaced when the SYN arrives.
            Connection::connect(config, SeqNumber(0), now)
        };
        let socket = sockets.add(socket);
        let mut world = World {
            now,
            connection,
            records: HashMap::new(),
            held: HashMap::new(),
            next_token: 0,
            pushed: 0,
            to_push: ours,
            taken: 0,
            interface,
            device,
            sockets,
            socket,
            peer_sent: 0,
            peer_to_send: peers,
            peer_taken: 0,
            wire,
            order: 0,
            random: fastrand::Rng::with_seed(faults.seed),
            faults,
        };
        if !active {
            // The listener is not part of this crate: accept the first SYN by hand.
            world.interface.poll(peer_time(now), &mut world.device, &mut world.sockets);
            let packet = world.device.sent.pop_front().expect("a SYN");
            let (syn, _) = TcpHeader::parse(&packet[IP_HEADER..]).expect("a header");
            world.connection = Connection::accept(config, &syn, OUR_ISN, now);
        }
        world
    }

    fn carry(&mut self, to_peer: bool, packet: Vec<u8>) {
        let copies = 1 + usize::from(self.random.f64() < self.faults.duplicate);
        for _ in 0..copies {
            if self.random.f64() < self.faults.loss {
                continue;
            }
            let mut delay = Duration::from_micros(200);
            if self.random.f64() < self.faults.reorder {
                delay += Duration::from_micros(self.random.u64(0..400));
            }
            self.order += 1;
            self.wire.push(Reverse((self.now + delay, self.order, to_peer, packet.clone())));
        }
    }

    /// Our turn: push, transmit.
    fn our_turn(&mut self) {
        while self.to_push > 0 && self.connection.send_space() > 0 {
            let len = self.random.usize(1..3000).min(self.to_push);
            self.records.insert(self.next_token, (self.pushed, len));
            self.connection.push(BufferToken(self.next_token), len as u32);
            self.next_token += 1;
            self.pushed += len;
            self.to_push -= len;
        }
        if self.to_push == 0 && matches!(self.connection.state(), State::Established | State::CloseWait) {
            self.connection.close(self.now);
        }
        while let Some(transmit) = self.connection.poll_transmit(self.now) {
            let mut header = transmit.header;
            header.source_port = OUR_PORT;
            header.destination_port = PEERS_PORT;
            let payload: Vec<u8> = transmit.payload.map_or(Vec::new(), |slice| {
                let (start, _) = self.records[&slice.token.0];
                let start = start + slice.offset as usize;
                (start..start + slice.len as usize).map(octet).collect()
            });
            let header_len = header.emit_len();
            let mut packet = vec![0; IP_HEADER + header_len + payload.len()];
            let ip = Ipv4Repr {
                src_addr: OURS,
                dst_addr: PEERS,
                next_header: IpProtocol::Tcp,
                payload_len: header_len + payload.len(),
                hop_limit: 64,
            };
            ip.emit(&mut Ipv4Packet::new_unchecked(&mut packet[..]), &Default::default());
            header.emit(&mut packet[IP_HEADER..]);
            packet[IP_HEADER + header_len..].copy_from_slice(&payload);
            TcpPacket::new_unchecked(&mut packet[IP_HEADER..]).fill_checksum(&OURS.into(), &PEERS.into());
            assert!(packet.len() <= 1500);
            self.carry(true, packet);
        }
        while let Some(token) = self.connection.pop_acknowledged() {
            self.records.remove(&token.0).expect("a record");
        }
        self.connection.check();
    }

    fn our_segment(&mut self, packet: &[u8]) {
        let ip = Ipv4Packet::new_checked(packet).expect("a packet");
        let segment = ip.payload();
        let (header, header_len) = TcpHeader::parse(segment).expect("a header");
        let payload = segment[header_len..].to_vec();
        let token = self.next_token;
        self.next_token += 1;
        let received = self.connection.on_segment(self.now, &header, payload.len() as u32, 0, BufferToken(token));
        match received.payload {
            Payload::InOrder { skip, len } => self.take(&payload, skip, len),
            Payload::Held => {
                self.held.insert(token, payload);
            }
            Payload::None | Payload::Discarded => {}
        }
        while let Some(held) = self.connection.take_in_order() {
            let payload = self.held.remove(&held.token.0).expect("a buffer");
            self.take(&payload, held.skip, held.len);
        }
        while let Some(token) = self.connection.drain_discarded() {
            self.held.remove(&token.0).expect("a buffer");
        }
        self.connection.check();
    }

    fn take(&mut self, payload: &[u8], skip: u32, len: u32) {
        for &value in &payload[skip as usize..(skip + len) as usize] {
            assert_eq!(value, octet(self.taken), "at {}", self.taken);
            self.taken += 1;
        }
    }

    fn peers_turn(&mut self) {
        self.interface.poll(peer_time(self.now), &mut self.device, &mut self.sockets);
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        while socket.can_recv() {
            let from = self.peer_taken;
            let len = socket
                .recv(|octets| {
                    for (index, value) in octets.iter().enumerate() {
                        assert_eq!(*value, octet(from + index));
                    }
                    (octets.len(), octets.len())
                })
                .unwrap();
            self.peer_taken += len;
        }
        while socket.can_send() && self.peer_sent < self.peer_to_send {
            let chunk: Vec<u8> = (self.peer_sent..(self.peer_sent + 5000).min(self.peer_to_send)).map(octet).collect();
            let len = socket.send_slice(&chunk).unwrap();
            if len == 0 {
                break;
            }
            self.peer_sent += len;
        }
        if self.peer_sent == self.peer_to_send && socket.may_send() {
            socket.close();
        }
        self.interface.poll(peer_time(self.now), &mut self.device, &mut self.sockets);
        while let Some(packet) = self.device.sent.pop_front() {
            self.carry(false, packet);
        }
    }

    fn run(&mut self, ours: usize, peers: usize) {
        let limit = self.now + Duration::from_secs(600);
        loop {
            self.our_turn();
            self.peers_turn();
            let finished = matches!(self.connection.state(), State::TimeWait | State::Closed);
            if self.taken == peers && self.peer_taken == ours && finished {
                return;
            }
            let arrival = self.wire.peek().map(|Reverse((at, ..))| *at);
            let ours_next = self.connection.deadline();
            let peers_next = self
                .interface
                .poll_delay(peer_time(self.now), &self.sockets)
                .map(|delay| self.now + Duration::from_micros(delay.total_micros().max(1)));
            let next = arrival.into_iter().chain(ours_next).chain(peers_next).min();
            self.now = self.now.max(next.unwrap_or_else(|| panic!("stuck: {:?}", self.connection.info())));
            assert!(
                self.now < limit,
                "no end: {} of {peers} and {} of {ours}, {:?}",
                self.taken,
                self.peer_taken,
                self.connection.info()
            );
            if self.connection.deadline().is_some_and(|deadline| deadline <= self.now) {
                self.connection.on_deadline(self.now);
            }
            while let Some(Reverse((at, ..))) = self.wire.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, to_peer, packet))) = self.wire.pop() else { break };
                if to_peer {
                    self.device.received.push_back(packet);
                } else {
                    self.our_segment(&packet);
                }
            }
        }
    }
}

/// smoltcp does not subtract the timestamp option from the MSS that it is given: with 1460, its full segments would
/// exceed the MTU, and it would drop them itself.
fn config() -> Config {
    Config { mss: 1400, user_timeout: None, keep_alive: None, time_wait: Duration::from_secs(30), ..Config::default() }
}

#[test]
fn clean_path_both_ways_and_both_roles() {
    for active in [false, true] {
        for timestamps in [false, true] {
            let faults = Faults { loss: 0.0, duplicate: 0.0, reorder: 0.0, seed: 1 };
            let mut world = World::new(&config(), faults, active, timestamps, 300_000, 300_000);
            world.run(300_000, 300_000);
            let info = world.connection.info();
            assert_eq!(info.timestamps, timestamps);
            assert_eq!((info.counters.timeouts, info.octets_acknowledged), (0, 300_000), "{info:?}");
        }
    }
}

#[test]
fn losses_reordering_and_duplicates_both_ways() {
    for seed in 0..12 {
        let loss = [0.01, 0.05, 0.1][seed as usize % 3];
        let faults = Faults { loss, duplicate: 0.02, reorder: 0.1, seed };
        let mut world = World::new(&config(), faults, seed % 2 == 0, seed % 4 < 2, 200_000, 200_000);
        world.run(200_000, 200_000);
        assert_eq!(world.connection.info().octets_acknowledged, 200_000);
    }
}
