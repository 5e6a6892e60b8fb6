//! A simulated network in virtual time: every frame lost, repeated, delayed or damaged by a seeded generator.
//!
//! Ports of one network live on one thread. Time is what the engines are told; a frame sent at one time arrives when
//! its delay is over. The same seed gives the same run.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use uwarp_iwarp::framing::{Framed, deframe};
use uwarp_memory::kernels;
use uwarp_tcp::Instant;
use uwarp_wire::address::FlowKey;
use uwarp_wire::checksum::fold;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, classify, emit_icmp, emit_icmp6};
use uwarp_wire::icmp::{IcmpMessage, unreachable};
use uwarp_wire::icmp6::Icmp6Message;
use uwarp_wire::mpa::{CRC_LEN, crc_to_octets};
use uwarp_wire::tcp::{CHECKSUM_OFFSET, SeqNumber, TcpFlags};

use crate::offload;
use uwarp_engine::port::{Batch, Buffer, Capabilities, ChecksumStatus, LinkState, PoolLevels, Port, ReceivedChecksums};
use uwarp_engine::ports::heap::{HeapBuffer, HeapPool, capabilities};
use uwarp_engine::steering::Steering;

/// Hardware address of the router that `path_mtu` stands for.
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0xff, 0xff];

/// How frames are spread over the queues of a port that has several. What is no TCP segment comes to the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// By chance, as if the device chose by something of its own.
    Any,
    /// By the Toeplitz hash under [`RSS_KEY`] and a table that names the queues in turn.
    Rss,
}

/// The key of [`Spread::Rss`]: that of Microsoft's verification suite.
pub const RSS_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// What the network does to frames. Probabilities are from 0 to 1 and per frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimOptions {
    /// Time from sender to receiver.
    pub delay: Duration,
    /// The frame disappears.
    pub loss: f64,
    /// The frame comes twice.
    pub duplication: f64,
    /// The frame is held back by up to eight times the delay, so that later ones overtake it.
    pub reordering: f64,
    /// A bit of the IP packet flips: a checksum finds it.
    pub corruption: f64,
    /// A bit behind the TCP header flips and the receiving device claims that the checksum was right: only the CRC
    /// finds it.
    pub hidden_corruption: f64,
    /// TCP checksums are left unfinished, and the receiving device vouches for them, as virtual devices within one
    /// machine do.
    pub unfinished_checksums: bool,
    /// Largest IP packet that the network passes on; the sender of a larger one is told (RFC 1191 §4, RFC 4443 §3.2).
    pub path_mtu: u16,
    /// It is not told: a black hole.
    pub silent: bool,
    /// Queue of a port with several that a frame for it goes to.
    pub spread: Spread,
    /// Frames that wait at a receiver that does not take them; more are dropped.
    pub receive_ring: usize,
    /// What is broken on purpose.
    pub sabotage: Sabotage,
}

/// Rules broken on purpose, for tests that show that they notice. The network breaks them, not the engines: nothing of
/// this is compiled into one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// Nothing comes a second time: segments whose octets their sender has sent before are dropped.
    pub no_retransmission: bool,
    /// The CRC finds nothing: where [`SimOptions::hidden_corruption`] hits a whole FPDU, its CRC is made to fit.
    pub no_crc_check: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions {
            delay: Duration::from_micros(5),
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            corruption: 0.0,
            hidden_corruption: 0.0,
            unfinished_checksums: false,
            path_mtu: u16::MAX,
            silent: false,
            spread: Spread::Any,
            receive_ring: 512,
            sabotage: Sabotage::default(),
        }
    }
}

/// What happened in the network, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimCounters {
    /// Frames sent.
    pub sent: u64,
    /// A digest of them all: octets, times and order.
    pub digest: u64,
    /// Frames handed to a receiver.
    pub delivered: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames damaged where a checksum finds it.
    pub corrupted: u64,
    /// Frames damaged where only the CRC finds it.
    pub hidden_corrupted: u64,
    /// Frames with a packet larger than the path's MTU.
    pub too_big: u64,
    /// Segments dropped by [`Sabotage::no_retransmission`].
    pub sabotaged: u64,
    /// Frames dropped since the receiver's ring was full.
    pub overflowed: u64,
    /// Frames for a hardware address that no port has, or whose port is gone.
    pub unreachable: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    at: Instant,
    order: u64,
    frame: Vec<u8>,
    claim_good: bool,
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug)]
struct Node {
    mac: [u8; 6],
    arrivals: BinaryHeap<Reverse<Arrival>>,
    /// The last frame that it sent.
    last_sent: Vec<u8>,
    alive: bool,
}

#[derive(Debug)]
struct Network {
    options: SimOptions,
    random: fastrand::Rng,
    counters: SimCounters,
    nodes: Vec<Node>,
    order: u64,
    spare: Vec<Vec<u8>>,
    /// The sequence number behind what was sent of each flow; kept for [`Sabotage::no_retransmission`].
    sent_until: HashMap<FlowKey, SeqNumber>,
}

/// What [`Spread::Rss`] does, as a device with so many queues tells it.
pub fn rss(queues: usize) -> Steering {
    let table = (0..128).map(|entry| (entry % queues.max(1)) as u16).collect();
    Steering { key: RSS_KEY.to_vec(), table, queue: 0 }
}

/// The network.
#[derive(Debug, Clone)]
pub struct SimNetwork {
    inner: Rc<RefCell<Network>>,
}

impl SimNetwork {
    /// An empty network.
    pub fn new(seed: u64, options: SimOptions) -> SimNetwork {
        let network = Network {
            options,
            random: fastrand::Rng::with_seed(seed),
            counters: SimCounters::default(),
            nodes: Vec::new(),
            order: 0,
            spare: Vec::new(),
            sent_until: HashMap::new(),
        };
        SimNetwork { inner: Rc::new(RefCell::new(network)) }
    }

    /// A new port, with pools of the given numbers of buffers. Hardware addresses count up from 02:00:00:00:00:01.
    pub fn port(&self, mtu: u16, receive_buffers: usize, transmit_buffers: usize) -> SimPort {
        let node = self.inner.borrow().nodes.len();
        self.queue_of_port(mtu, receive_buffers, transmit_buffers, node)
    }

    /// A new port with several queues, one after the other.
    pub fn queues(&self, mtu: u16, receive_buffers: usize, transmit_buffers: usize, count: usize) -> Vec<SimPort> {
        let first = self.inner.borrow().nodes.len();
        (0..count).map(|_| self.queue_of_port(mtu, receive_buffers, transmit_buffers, first)).collect()
    }

    fn queue_of_port(&self, mtu: u16, receive_buffers: usize, transmit_buffers: usize, first: usize) -> SimPort {
        let mut network = self.inner.borrow_mut();
        let node = network.nodes.len();
        let mac = [2, 0, 0, 0, (first >> 8) as u8, first as u8 + 1];
        network.nodes.push(Node { mac, arrivals: BinaryHeap::new(), last_sent: Vec::new(), alive: true });
        let capabilities = capabilities(mac, mtu, false);
        SimPort {
            network: Rc::clone(&self.inner),
            node,
            receive_pool: HeapPool::new(receive_buffers, capabilities.data_room, capabilities.headroom),
            transmit_pool: HeapPool::new(transmit_buffers, capabilities.data_room, capabilities.headroom),
            now: Instant::from_nanos(0),
            capabilities,
            sent: VecDeque::new(),
            holds: 0,
        }
    }

    /// Changes what the network does from now on.
    pub fn set_options(&self, options: SimOptions) {
        self.inner.borrow_mut().options = options;
    }

    /// What happened so far.
    pub fn counters(&self) -> SimCounters {
        self.inner.borrow().counters
    }

    /// Sends any octets as a frame, as if a port had: for peers that are not engines.
    pub fn inject(&self, now: Instant, frame: &[u8]) {
        self.inner.borrow_mut().send(now, usize::MAX, frame);
    }

    /// The last frame that a port sent, for tests that forge what the network might say of it. Ports count up from 0.
    pub fn last_sent(&self, port: usize) -> Vec<u8> {
        self.inner.borrow().nodes.get(port).map(|node| node.last_sent.clone()).unwrap_or_default()
    }

    /// When the next frame arrives anywhere.
    pub fn next_arrival(&self) -> Option<Instant> {
        let network = self.inner.borrow();
        network.nodes.iter().filter_map(|node| node.arrivals.peek().map(|Reverse(arrival)| arrival.at)).min()
    }
}

impl Network {
    fn send(&mut self, now: Instant, from: usize, frame: &[u8]) {
        self.counters.sent += 1;
        let frame_digest = u64::from(uwarp_memory::kernels::crc32c(frame)) << 32 | from as u64;
        let digest = self.counters.digest.rotate_left(5) ^ frame_digest ^ now.as_nanos();
        self.counters.digest = digest.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let Some(destination) = frame.first_chunk::<6>() else { return };
        if let Some(node) = self.nodes.get_mut(from) {
            node.last_sent.clear();
            node.last_sent.extend_from_slice(frame);
        }
        if self.options.sabotage.no_retransmission && self.is_repeated(frame) {
            self.counters.sabotaged += 1;
            return;
        }
        if self.options.path_mtu < u16::MAX && from < self.nodes.len() && self.is_too_big(now, from, frame) {
            return;
        }
        if destination[0] & 1 == 1 {
            for node in 0..self.nodes.len() {
                // A port does not hear itself, and its first queue is the one that hears the others.
                let first = node == 0 || self.nodes[node - 1].mac != self.nodes[node].mac;
                if first && self.nodes.get(from).is_none_or(|from| from.mac != self.nodes[node].mac) {
                    self.deliver(now, node, frame);
                }
            }
        } else if let Some(node) = self.nodes.iter().position(|node| node.mac == *destination && node.alive) {
            let node = self.queue(node, frame);
            self.deliver(now, node, frame);
        } else {
            self.counters.unreachable += 1;
        }
    }

    /// Whether all that a segment brings was sent before.
    fn is_repeated(&mut self, frame: &[u8]) -> bool {
        let Ok(Frame::Tcp(segment)) = classify(frame, frame.len()) else { return false };
        let control = segment.header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
        let length = segment.payload_len as u32 + u32::from(control);
        if length == 0 {
            return false;
        }
        let end = segment.header.sequence + length;
        // A SYN begins a connection; where it was sent before, it has the same number.
        let known = self.sent_until.get(&segment.flow).copied();
        let is_new = known.is_none_or(|known| known.lt(end));
        if is_new {
            self.sent_until.insert(segment.flow, end);
        }
        !is_new
    }

    /// The router's part: drops a TCP segment in too large a packet, and tells its sender.
    fn is_too_big(&mut self, now: Instant, from: usize, frame: &[u8]) -> bool {
        let Ok(Frame::Tcp(segment)) = classify(frame, frame.len()) else { return false };
        let packet = &frame[segment.ip_offset..];
        let mtu = self.options.path_mtu;
        if packet.len() <= usize::from(mtu) {
            return false;
        }
        self.counters.too_big += 1;
        if self.options.silent {
            return true;
        }
        let mac = EthernetAddress(ROUTER_MAC);
        let path = Path::new(mac, segment.source_mac, segment.flow.local, segment.flow.remote);
        let mut out = [0; 1400];
        let length = if segment.flow.local.is_ipv4() {
            let code = unreachable::FRAGMENTATION_NEEDED;
            // No more than RFC 792 asks of a router.
            let message = IcmpMessage::DestinationUnreachable { code, next_hop_mtu: mtu, quoted: &packet[..28] };
            emit_icmp(&mut out, &path, &message)
        } else {
            let message = Icmp6Message::PacketTooBig { mtu: mtu.into(), quoted: &packet[..packet.len().min(1232)] };
            emit_icmp6(&mut out, &path, &message)
        };
        if let Ok(length) = length {
            self.deliver(now, from, &out[..length]);
        }
        true
    }

    /// The queue of a port that a frame goes to; `first` is the port's first one.
    fn queue(&mut self, first: usize, frame: &[u8]) -> usize {
        let mac = self.nodes[first].mac;
        let count = self.nodes[first..].iter().take_while(|node| node.mac == mac).count();
        if count == 1 {
            return first;
        }
        let Ok(Frame::Tcp(segment)) = classify(frame, frame.len()) else { return first };
        first
            + match self.options.spread {
                Spread::Any => self.random.usize(0..count),
                Spread::Rss => usize::from(rss(count).queue_of(&segment.flow)),
            }
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }

    fn deliver(&mut self, now: Instant, node: usize, frame: &[u8]) {
        let options = self.options;
        if self.chance(options.loss) {
            self.counters.lost += 1;
            return;
        }
        let mut copies = 1;
        if self.chance(options.duplication) {
            self.counters.duplicated += 1;
            copies = 2;
        }
        for _ in 0..copies {
            if self.nodes[node].arrivals.len() >= options.receive_ring {
                self.counters.overflowed += 1;
                return;
            }
            let mut octets = self.spare.pop().unwrap_or_default();
            octets.clear();
            octets.extend_from_slice(frame);
            let mut delay = options.delay;
            if self.chance(options.reordering) {
                self.counters.reordered += 1;
                delay += options.delay.mul_f64(8.0 * self.random.f64());
            }
            // An Ethernet frame check sequence would find damage in ARP: only IP packets are hurt.
            let is_ip = matches!(octets.get(12..14), Some([8, 0] | [0x86, 0xdd]));
            let mut claim_good = false;
            if is_ip && self.chance(options.corruption) {
                self.counters.corrupted += 1;
                self.flip(&mut octets, 14);
            } else if is_ip && octets.len() > 14 + 40 + 60 && self.chance(options.hidden_corruption) {
                self.counters.hidden_corrupted += 1;
                // Either the checksum does not notice it, or the device does not.
                let forges = options.sabotage.no_crc_check;
                if forges || self.random.bool() || !self.exchange(&mut octets, 14 + 40 + 60) {
                    self.flip(&mut octets, 14 + 40 + 60);
                    claim_good = true;
                }
                if forges {
                    forge_crcs(frame, &mut octets);
                }
            } else if options.unfinished_checksums
                && let Ok(Frame::Tcp(segment)) = classify(frame, frame.len())
            {
                let field = segment.l4_offset + CHECKSUM_OFFSET;
                octets[field..field + 2].copy_from_slice(&fold(segment.pseudo_header_sum()).to_be_bytes());
                claim_good = true;
            }
            self.order += 1;
            let arrival = Arrival { at: now + delay, order: self.order, frame: octets, claim_good };
            // A broadcast goes to everybody; a port that is gone would never take it.
            if self.nodes[node].alive {
                self.nodes[node].arrivals.push(Reverse(arrival));
            }
        }
    }

    /// Exchanges two words of 16 bits, which no sum notices. False if they are the same.
    fn exchange(&mut self, octets: &mut [u8], from: usize) -> bool {
        let words = (octets.len() - from) / 2;
        if words < 2 {
            return false;
        }
        let [one, other] = [(); 2].map(|()| from + 2 * self.random.usize(..words));
        (0..2).for_each(|octet| octets.swap(one + octet, other + octet));
        octets[one..one + 2] != octets[other..other + 2]
    }

    fn flip(&mut self, octets: &mut [u8], from: usize) {
        if octets.len() > from {
            let place = self.random.usize(from..octets.len());
            octets[place] ^= 1 << self.random.u32(0..8);
        }
    }
}

/// Makes the CRCs of those FPDUs in `damaged` fit that are whole and right in `frame`, the same segment before it was
/// damaged.
fn forge_crcs(frame: &[u8], damaged: &mut [u8]) {
    let Ok(Frame::Tcp(segment)) = classify(frame, frame.len()) else { return };
    let mut at = segment.payload_offset;
    let end = at + segment.payload_len;
    while let Framed::Fpdu { fpdu_len, .. } = deframe(&frame[at..end], Some(kernels::crc32c)) {
        let (covered, field) = damaged[at..at + fpdu_len].split_at_mut(fpdu_len - CRC_LEN);
        field.copy_from_slice(&crc_to_octets(kernels::crc32c(covered)));
        at += fpdu_len;
    }
}

/// One port of a [`SimNetwork`].
#[derive(Debug)]
pub struct SimPort {
    network: Rc<RefCell<Network>>,
    node: usize,
    receive_pool: HeapPool,
    transmit_pool: HeapPool,
    now: Instant,
    capabilities: Capabilities,
    /// Frames sent of which the device still has a reference.
    sent: VecDeque<HeapBuffer>,
    holds: usize,
}

impl SimPort {
    /// From now on the device computes checksums, and cuts frames of up to `octets` of payload into segments. To be
    /// called before an engine has the port.
    pub fn offload(&mut self, octets: usize) {
        let Capabilities { headroom, data_room, .. } = self.capabilities;
        self.capabilities.transmit_ip_checksum = true;
        self.capabilities.transmit_tcp_checksum = true;
        self.capabilities.segmentation = true;
        self.capabilities.data_room = data_room.max(headroom + octets);
        self.transmit_pool = HeapPool::new(self.transmit_pool.total(), self.capabilities.data_room, headroom);
    }

    /// From now on the device keeps a reference to the last `frames` frames sent, as devices do that look after their
    /// descriptors only when they need some.
    pub fn hold_sent(&mut self, frames: usize) {
        self.holds = frames;
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        let mut network = self.network.borrow_mut();
        let node = &mut network.nodes[self.node];
        node.alive = false;
        node.arrivals.clear();
    }
}

impl Port for SimPort {
    type Buffer = HeapBuffer;

    fn alloc(&mut self) -> Option<HeapBuffer> {
        self.transmit_pool.alloc()
    }

    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        let network = &mut *self.network.borrow_mut();
        let mut taken = 0;
        while !batch.is_full() {
            let arrivals = &mut network.nodes[self.node].arrivals;
            if arrivals.peek().is_none_or(|Reverse(arrival)| arrival.at > self.now) {
                break;
            }
            let Some(mut buffer) = self.receive_pool.alloc() else { break };
            let Some(Reverse(arrival)) = arrivals.pop() else { break };
            buffer.fill(&arrival.frame);
            if arrival.claim_good {
                let good = ReceivedChecksums { ip: ChecksumStatus::Good, tcp: ChecksumStatus::Good };
                buffer.set_received_checksums(good);
            }
            network.spare.push(arrival.frame);
            network.counters.delivered += 1;
            batch.push(buffer);
            taken += 1;
        }
        taken
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let network = &mut *self.network.borrow_mut();
        let taken = frames.len();
        for frame in frames.drain(..) {
            let work = frame.transmit_checksums();
            if work.tcp {
                let octets: Vec<u8> = frame.segments().flatten().copied().collect();
                for segment in offload::finish(&octets, work) {
                    network.send(self.now, self.node, &segment);
                }
            } else {
                network.send(self.now, self.node, frame.data());
            }
            if self.holds > 0 {
                self.sent.push_back(frame);
                if self.sent.len() > self.holds {
                    self.sent.pop_front();
                }
            }
        }
        taken
    }

    fn link(&mut self) -> LinkState {
        LinkState::Up
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pool_levels(&self) -> PoolLevels {
        PoolLevels {
            receive_total: self.receive_pool.total() as u32,
            receive_free: self.receive_pool.free() as u32,
            transmit_total: self.transmit_pool.total() as u32,
            transmit_free: self.transmit_pool.free() as u32,
        }
    }

    fn transmit_free(&self) -> usize {
        self.transmit_pool.free()
    }

    fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    fn next_arrival(&self) -> Option<Instant> {
        let network = self.network.borrow();
        network.nodes[self.node].arrivals.peek().map(|Reverse(arrival)| arrival.at)
    }
}
