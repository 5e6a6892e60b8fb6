//! What a segment costs TCP and its owner: 64 octets received, 64 octets sent back with the acknowledgment, from frame
//! to frame. Checksums are verified and computed, the connection is found by a hash, and the payload is copied once in
//! and once out, as an application would. smoltcp does the same beside it, in the same run.
//!
//! `one_by_one` answers each segment of one connection before it sees the next. `bursts_of_32` takes 32 segments of as
//! many connections and then answers them, going through all connections in a random order, so that nothing of a
//! connection is near the core when its turn comes; the burst is looked through ahead of the work, much as the engine
//! does (`lookahead.rs`), and without that in `taken_at_once`. `cargo bench -p uwarp-engine --bench segment`.

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as PeerInstant;
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};
use uwarp_memory::kernels::{checksum_sum, prefetch, prefetch_range};
use uwarp_tcp::{BufferToken, Config, Connection, Instant, Payload};
use uwarp_wire::address::FlowKey;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, peek_flow, prepend_tcp};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

/// The engine's own, which it shows to nobody else.
#[allow(dead_code, unused_imports)]
#[path = "../src/connection"]
mod connection {
    pub(crate) mod flow;
}

/// The same.
#[allow(dead_code, unused_imports)]
#[path = "../src/link"]
mod link {
    pub(crate) mod hash;
    pub(crate) mod template;
}

use connection::flow::FlowTable;
use link::hash::KeyedHash;
use link::template::Template;

const BURST: usize = 32;
/// Frames by which the look is ahead of the work.
const DISTANCE: usize = 4;
const LENGTH: usize = 64;
const ETHERNET: usize = 14;
/// Room for headers in front of a payload, and what the usual ones take of it.
const HEADROOM: usize = 128;
const HEADERS: usize = ETHERNET + 40;
const PORT: u16 = 7;
const US: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const THEM: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const OUR_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const THEIR_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);

/// A frame with room in front, aligned as those of a device are.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Storage([u8; HEADROOM + LENGTH]);

/// The far end of a connection, as far as it has to be one: what it sends next, and what it expects.
#[derive(Clone, Copy)]
struct Far {
    port: u16,
    sequence: SeqNumber,
    acknowledgment: SeqNumber,
}

impl Far {
    fn new(index: usize) -> Far {
        Far { port: 1024 + index as u16, sequence: SeqNumber(index as u32), acknowledgment: SeqNumber(0) }
    }

    /// Its next segment, as an Ethernet frame.
    fn frame(&mut self, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let mut header = TcpHeader::new(flags);
        (header.source_port, header.destination_port) = (self.port, PORT);
        (header.sequence, header.acknowledgment, header.window) = (self.sequence, self.acknowledgment, 60_000);
        if flags.contains(TcpFlags::SYN) {
            header.options.mss = Some(1460);
        }
        self.sequence += flags.sequence_len() + payload.len() as u32;
        let path = Path::new(THEIR_MAC, OUR_MAC, THEM.into(), US.into());
        let mut storage = vec![0; HEADROOM + payload.len()];
        storage[HEADROOM..].copy_from_slice(payload);
        let checksum = TcpChecksum::Full { payload_sum: checksum_sum(payload) };
        let headers = prepend_tcp(&mut storage[..HEADROOM], &path, &header, 0, payload.len(), checksum).expect("room");
        storage.split_off(HEADROOM - headers)
    }

    /// Its next 64 octets, with which it acknowledges everything that was sent back until now.
    fn question(&mut self) -> Vec<u8> {
        let frame = self.frame(TcpFlags::ACK | TcpFlags::PSH, &[self.port as u8; LENGTH]);
        self.acknowledgment += LENGTH as u32;
        frame
    }
}

/// A stack with connections that are open.
trait Stack {
    /// Puts `frames` where the device would, which is not part of the time.
    fn load(&mut self, frames: &[Vec<u8>]);
    /// Takes those frames, which are of the connections with these numbers, and then answers each.
    fn turn(&mut self, numbers: &[usize]);
    /// Answers that left, ever.
    fn answers(&self) -> u64;
}

/// A connection as its owner has it.
struct Owned {
    flow: FlowKey,
    template: Template,
    tcp: Connection,
}

struct Ours {
    // As the engine has them: apart from each other, and larger than what a segment touches.
    #[allow(clippy::vec_box)]
    connections: Vec<Box<Owned>>,
    received: Vec<Vec<u8>>,
    /// Connections that are to be answered in this turn.
    asked: Vec<usize>,
    flows: FlowTable,
    /// The connection of the last frame, with which the next one is compared if it is not looked up ahead.
    last: Option<u32>,
    buffers: Vec<Storage>,
    free: Vec<u32>,
    now: Instant,
    answers: u64,
    looks_ahead: bool,
    application: [u8; LENGTH],
}

impl Ours {
    fn new(fars: &mut [Far], looks_ahead: bool) -> Ours {
        // As the stack's own defaults have it.
        let config = Config { timestamps: false, ..Config::default() };
        let mut ours = Ours {
            connections: Vec::new(),
            received: Vec::new(),
            asked: Vec::new(),
            flows: FlowTable::new(KeyedHash::new([1, 2])),
            last: None,
            buffers: vec![Storage([0; HEADROOM + LENGTH]); fars.len() + BURST],
            free: (0..(fars.len() + BURST) as u32).rev().collect(),
            now: Instant::from_nanos(1_000_000_000),
            answers: 0,
            looks_ahead,
            application: [0; LENGTH],
        };
        for (index, far) in fars.iter_mut().enumerate() {
            let syn = far.frame(TcpFlags::SYN, &[]);
            let Ok(Frame::Tcp(syn)) = classify(&syn, syn.len()) else { panic!("a SYN") };
            let isn = SeqNumber(index as u32 * 7919);
            let mut connection = Connection::accept(&config, &syn.header, isn, ours.now);
            assert!(connection.poll_transmit(ours.now).is_some());
            far.acknowledgment = isn + 1;
            let ack = far.frame(TcpFlags::ACK, &[]);
            let Ok(Frame::Tcp(ack)) = classify(&ack, ack.len()) else { panic!("an ACK") };
            connection.on_segment(ours.now, &ack.header, 0, 0, BufferToken(0));
            let path = Path::new(OUR_MAC, THEIR_MAC, US.into(), THEM.into());
            let template = Template::new(&path, PORT, far.port).expect("one version of IP");
            ours.flows.insert(ours.flows.tag(&syn.flow), index as u32);
            ours.connections.push(Box::new(Owned { flow: syn.flow, template, tcp: connection }));
        }
        ours
    }

    /// Asks for what the frames will touch, a step of all of them at a time. Returns which connections they seem to be
    /// of.
    fn look_ahead(&self, frames: &[Vec<u8>]) -> [Option<u32>; BURST] {
        let mut tags = [None; BURST];
        for (tag, frame) in tags.iter_mut().zip(frames) {
            *tag = peek_flow(frame).map(|flow| self.flows.tag(&flow));
            tag.inspect(|tag| self.flows.prefetch(*tag));
        }
        let numbers = tags.map(|tag| tag.and_then(|tag| self.flows.find(tag, |_| true)));
        for number in numbers.into_iter().flatten() {
            prefetch(&self.connections[number as usize]);
        }
        for place in 0..DISTANCE {
            self.look_ahead_at(&numbers, place);
        }
        numbers
    }

    /// Asks for what the frame at `place` of the burst touches, and for what hangs on that of one that comes earlier.
    #[inline]
    fn look_ahead_at(&self, numbers: &[Option<u32>; BURST], place: usize) {
        if let Some(Some(number)) = numbers.get(place) {
            let connection = &*self.connections[*number as usize];
            prefetch(&connection.flow);
            prefetch(&connection.template);
            prefetch_range(connection.tcp.places());
        }
        if let Some(Some(number)) = place.checked_sub(DISTANCE / 2).and_then(|place| numbers.get(place)) {
            let connection = &self.connections[*number as usize].tcp;
            prefetch_range(connection.further_places());
            if let Some(token) = connection.oldest_record() {
                prefetch(&self.buffers[token.0 as usize].0[HEADROOM - HEADERS..]);
            }
        }
    }

    fn receive(&mut self, frame: &[u8], guess: Option<u32>) -> Option<usize> {
        let classified = classify(frame, frame.len());
        let Ok(Frame::Tcp(tcp)) = &classified else { return None };
        if !tcp.checksum_is_good(frame, checksum_sum) {
            return None;
        }
        let guess = guess.or(self.last);
        let is_it = |number| self.connections[number as usize].flow == tcp.flow;
        let number =
            guess.filter(|guess| is_it(*guess)).or_else(|| self.flows.find(self.flows.tag(&tcp.flow), is_it))? as usize;
        self.last = Some(number as u32);
        let connection = &mut self.connections[number].tcp;
        let received = connection.on_segment(self.now, &tcp.header, tcp.payload_len as u32, tcp.ecn, BufferToken(!0));
        while let Some(token) = connection.pop_acknowledged() {
            self.free.push(token.0);
        }
        let Payload::InOrder { skip, len } = received.payload else { return None };
        let from = tcp.payload_offset + skip as usize;
        self.application.get_mut(..len as usize)?.copy_from_slice(frame.get(from..from + len as usize)?);
        Some(number)
    }

    fn reply(&mut self, number: usize) {
        let Owned { template, tcp: connection, .. } = &mut *self.connections[number];
        if connection.send_space() >= LENGTH as u32
            && let Some(token) = self.free.pop()
        {
            self.buffers[token as usize].0[HEADROOM..].copy_from_slice(&self.application);
            connection.push(BufferToken(token), LENGTH as u32);
        }
        while connection.wants_transmit()
            && let Some(transmit) = &connection.poll_transmit(self.now)
        {
            let Some(slice) = transmit.payload else { continue };
            let (headroom, payload) = self.buffers[slice.token.0 as usize].0.split_at_mut(HEADROOM);
            let sum = Some(checksum_sum(payload));
            let headers = template.prepend(headroom, &transmit.header, transmit.ecn, slice.len as usize, sum);
            self.answers += u64::from(black_box(headers).is_some());
        }
        // The owner's timer.
        black_box(connection.deadline());
    }
}

impl Stack for Ours {
    fn load(&mut self, frames: &[Vec<u8>]) {
        self.received.clear();
        self.received.extend_from_slice(frames);
    }

    #[inline(never)]
    fn turn(&mut self, _: &[usize]) {
        self.now += Duration::from_micros(1);
        let frames = std::mem::take(&mut self.received);
        let guesses = if self.looks_ahead && frames.len() > 1 { self.look_ahead(&frames) } else { [None; BURST] };
        let mut asked = std::mem::take(&mut self.asked);
        for (place, frame) in frames.iter().enumerate() {
            if self.looks_ahead {
                self.look_ahead_at(&guesses, place + DISTANCE);
            }
            asked.extend(self.receive(frame, guesses[place]));
        }
        self.received = frames;
        for number in asked.drain(..) {
            self.reply(number);
        }
        self.asked = asked;
    }

    fn answers(&self) -> u64 {
        self.answers
    }
}

/// smoltcp's device: packets that came, and room for one that goes.
#[derive(Default)]
struct Wire {
    received: Vec<Vec<u8>>,
    next: usize,
    packet: Vec<u8>,
    sent: u64,
}

struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

struct Sent<'a>(&'a mut Vec<u8>, &'a mut u64);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        *self.1 += 1;
        self.0.resize(length, 0);
        fill(self.0)
    }
}

impl Device for Wire {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: PeerInstant) -> Option<(Received<'_>, Sent<'_>)> {
        let packet = self.received.get(self.next)?;
        self.next += 1;
        // It is told to be on a link without Ethernet, which spares it that header.
        Some((Received(&packet[ETHERNET..]), Sent(&mut self.packet, &mut self.sent)))
    }

    fn transmit(&mut self, _: PeerInstant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.packet, &mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

struct Smoltcp {
    interface: Interface,
    wire: Wire,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
    micros: i64,
    application: [u8; LENGTH],
}

impl Smoltcp {
    fn new(fars: &mut [Far]) -> Smoltcp {
        let mut wire = Wire::default();
        let mut interface = Interface::new(InterfaceConfig::new(HardwareAddress::Ip), &mut wire, PeerInstant::ZERO);
        interface.update_ip_addrs(|addresses| addresses.push(IpCidr::new(US.into(), 24)).expect("room"));
        let sockets = SocketSet::new(Vec::new());
        let mut smoltcp =
            Smoltcp { interface, wire, sockets, handles: Vec::new(), micros: 1, application: [0; LENGTH] };
        for far in fars {
            let buffer = || tcp::SocketBuffer::new(vec![0; 4096]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            socket.listen(PORT).expect("a port");
            smoltcp.handles.push(smoltcp.sockets.add(socket));
            smoltcp.show(far.frame(TcpFlags::SYN, &[]));
            let (answer, _) = TcpHeader::parse(&smoltcp.wire.packet[20..]).expect("a header");
            assert_eq!(answer.flags, TcpFlags::SYN | TcpFlags::ACK);
            far.acknowledgment = answer.sequence + 1;
            smoltcp.show(far.frame(TcpFlags::ACK, &[]));
        }
        smoltcp.wire.sent = 0;
        smoltcp
    }

    fn poll(&mut self) {
        self.interface.poll(PeerInstant::from_micros(self.micros), &mut self.wire, &mut self.sockets);
    }

    fn show(&mut self, frame: Vec<u8>) {
        self.load(&[frame]);
        self.poll();
    }
}

impl Stack for Smoltcp {
    fn load(&mut self, frames: &[Vec<u8>]) {
        self.wire.received.clear();
        self.wire.received.extend_from_slice(frames);
        self.wire.next = 0;
    }

    #[inline(never)]
    fn turn(&mut self, numbers: &[usize]) {
        self.micros += 1;
        self.poll();
        for number in numbers {
            let socket = self.sockets.get_mut::<tcp::Socket>(self.handles[*number]);
            if socket.recv_slice(&mut self.application) == Ok(LENGTH) {
                let _ = socket.send_slice(&self.application);
            }
        }
        self.poll();
    }

    fn answers(&self) -> u64 {
        self.wire.sent
    }
}

/// Time of `segments` segments in turns of `burst`, without that of making them.
fn run<S: Stack>(
    stack: &mut S,
    fars: &mut [Far],
    order: &mut impl Iterator<Item = usize>,
    burst: usize,
    segments: u64,
) -> Duration {
    let mut taken = Duration::ZERO;
    let mut left = segments;
    while left > 0 {
        let count = left.min(BURST as u64) as usize;
        let numbers: Vec<usize> = order.take(count).collect();
        let frames: Vec<Vec<u8>> = numbers.iter().map(|number| fars[*number].question()).collect();
        let before = stack.answers();
        for (frames, numbers) in frames.chunks(burst).zip(numbers.chunks(burst)) {
            stack.load(frames);
            let start = Clock::now();
            stack.turn(numbers);
            taken += start.elapsed();
        }
        assert_eq!(stack.answers() - before, count as u64, "every segment is answered once");
        left -= count as u64;
    }
    taken
}

/// All numbers below `count` again and again, in a random order.
fn shuffled(count: usize) -> impl Iterator<Item = usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    order.into_iter().cycle()
}

fn segments(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive_and_reply_64");
    group.throughput(Throughput::Elements(1)).sample_size(30);
    // Reading the clock twice a turn, which all of them contain.
    group.bench_function("clock", |bencher| {
        bencher.iter_custom(|count| {
            let mut taken = Duration::ZERO;
            for _ in 0..count {
                let start = Clock::now();
                taken += start.elapsed();
            }
            taken
        });
    });
    for (name, count, burst, looks_ahead) in [
        ("one_by_one/1", 1, 1, false),
        ("bursts_of_32/1000", 1000, BURST, true),
        ("bursts_of_32/10000", 10_000, BURST, true),
        ("taken_at_once/10000", 10_000, BURST, false),
    ] {
        group.bench_function(format!("uwarp/{name}"), |bencher| {
            let mut fars: Vec<Far> = (0..count).map(Far::new).collect();
            let mut stack = Ours::new(&mut fars, looks_ahead);
            let mut order = shuffled(count);
            bencher.iter_custom(|segments| run(&mut stack, &mut fars, &mut order, burst, segments));
        });
    }
    for (name, count, burst) in
        [("one_by_one/1", 1, 1), ("bursts_of_32/1000", 1000, BURST), ("bursts_of_32/5000", 5000, BURST)]
    {
        group.bench_function(format!("smoltcp/{name}"), |bencher| {
            let mut fars: Vec<Far> = (0..count).map(Far::new).collect();
            let mut stack = Smoltcp::new(&mut fars);
            let mut order = shuffled(count);
            bencher.iter_custom(|segments| run(&mut stack, &mut fars, &mut order, burst, segments));
        });
    }
    group.finish();
}

criterion_group!(benches, segments);
criterion_main!(benches);
