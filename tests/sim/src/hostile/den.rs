//! The attackers: a port of their own on a network, simulated or real, and TCP connections that do exactly what an
//! attack wants.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use uwarp_engine::Port;
use uwarp_engine::port::{Batch, Buffer};
use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::Instant;
use uwarp_testkit::rig::World;
use uwarp_testkit::sim::SimPort;
use uwarp_wire::address::{FlowKey, IpAddress};
use uwarp_wire::arp::ArpOperation;
use uwarp_wire::ddp::Stag;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, TcpFrame, classify, prepend_tcp};
use uwarp_wire::mpa::{EnhancedData, FrameKind, StartupFrame};
use uwarp_wire::rdmap::{Opcode, ReadRequest};
use uwarp_wire::tcp::{SackBlocks, SeqNumber, TcpFlags, TcpHeader};

use crate::raw::{fpdu, request_with, untagged};

/// Room for all headers in front of a payload.
const HEADROOM: usize = 128;
/// Addresses of one den.
pub const ADDRESSES: u8 = 40;
/// When an unacknowledged segment is retransmitted. A full ring of the target is the only cause of loss.
const RESEND: Duration = Duration::from_millis(20);

/// Which side acknowledges arrived data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledging {
    /// The puppet, at once.
    Prompt,
    /// The attack, at any time; the puppet itself only until MPA start-up is done.
    Attack,
}

/// How a connection is opened.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// Which of the den's addresses it comes from.
    pub from: u8,
    /// Port at the target.
    pub port: u16,
    /// MSS option.
    pub mss: u16,
    /// Window scale option.
    pub scale: u8,
    /// Window field of every segment.
    pub window: u16,
    /// Perform MPA start-up when TCP is open.
    pub rdma: bool,
    /// Who acknowledges.
    pub acknowledging: Acknowledging,
}

impl Opening {
    /// An RDMA stream to this port with a window of 4 MiB, acknowledged promptly.
    pub fn rdma(port: u16) -> Opening {
        let acknowledging = Acknowledging::Prompt;
        Opening { from: 0, port, mss: 1460, scale: 6, window: u16::MAX, rdma: true, acknowledging }
    }

    /// A plain TCP stream to this port.
    pub fn plain(port: u16) -> Opening {
        Opening { rdma: false, ..Opening::rdma(port) }
    }

    /// The attack acknowledges.
    pub fn manual(self) -> Opening {
        Opening { acknowledging: Acknowledging::Attack, ..self }
    }
}

/// How far a puppet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The SYN was sent.
    Opening,
    /// TCP is open.
    Open,
    /// The MPA Request was sent.
    Starting,
    /// MPA start-up is done.
    Running,
    /// The target or the attack has reset it.
    Gone,
}

/// One TCP connection of an attacker.
#[derive(Debug)]
pub struct Puppet {
    /// How far it is.
    pub stage: Stage,
    /// The next octet expected from the target: all before it have arrived.
    pub next: SeqNumber,
    /// The next octet that is sent.
    pub sequence: SeqNumber,
    /// RDMA messages received whole.
    pub messages: u64,
    /// The target has sent FIN.
    pub ended: bool,
    /// Window field of every segment.
    pub window: u16,
    /// Who acknowledges.
    pub acknowledging: Acknowledging,
    flow: FlowKey,
    rdma: bool,
    /// The acknowledged part.
    acknowledged: SeqNumber,
    owes: bool,
    startup: Vec<u8>,
    messages_walk: Walk,
    unacknowledged: VecDeque<(SeqNumber, Vec<u8>)>,
    resend_at: Option<Instant>,
}

/// Counts messages in a stream of FPDUs, of which it only parses the first three octets.
#[derive(Debug, Default)]
struct Walk {
    skip: usize,
    head: Vec<u8>,
}

impl Walk {
    /// Processes octets of the stream; returns the number of messages that end in them.
    fn take(&mut self, mut octets: &[u8]) -> u64 {
        let mut messages = 0;
        while let Some(&first) = octets.first() {
            if self.skip > 0 {
                let count = self.skip.min(octets.len());
                self.skip -= count;
                octets = &octets[count..];
                continue;
            }
            self.head.push(first);
            octets = &octets[1..];
            if let [high, low, control] = self.head[..] {
                let length = usize::from(u16::from_be_bytes([high, low]));
                messages += u64::from(control & 0x40 != 0);
                // Length, ULPDU and padding to four octets, CRC; three octets of it have been parsed.
                self.skip = (2 + length).next_multiple_of(4) + 4 - 3;
                self.head.clear();
            }
        }
        messages
    }
}

/// What carries the frames of a den.
pub trait Carrier: fmt::Debug {
    /// Sends a frame.
    ///
    /// # Panics
    /// It has no room.
    fn send(&mut self, now: Instant, frame: &[u8]);

    /// The frames that have arrived.
    fn receive(&mut self, now: Instant) -> Vec<Vec<u8>>;
}

/// A port of the simulated network. 512 frames may be under way to it.
impl Carrier for SimPort {
    fn send(&mut self, now: Instant, frame: &[u8]) {
        let mut buffer = self.alloc().expect("the port holds nothing");
        buffer.fill(frame);
        self.set_now(now);
        self.tx_burst(&mut VecDeque::from([buffer]));
    }

    fn receive(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.set_now(now);
        let mut batch = Batch::new();
        let mut frames = Vec::new();
        while self.rx_burst(&mut batch) > 0 {
            frames.extend(batch.drain(..).map(|frame| frame.data().to_vec()));
        }
        frames
    }
}

/// A port of attackers, with counters of what they send.
#[derive(Debug)]
pub struct Den {
    /// Frames sent.
    pub frames: u64,
    /// Octets of them.
    pub octets: u64,
    /// Its hardware address.
    pub mac: EthernetAddress,
    /// That of the target.
    pub target_mac: EthernetAddress,
    carrier: Box<dyn Carrier>,
    target: Ipv4Addr,
    first: u8,
    puppets: Vec<Puppet>,
    flows: HashMap<FlowKey, usize>,
    next_port: u16,
}

impl Den {
    /// Den number `number` of this carrier and Ethernet address, and its target.
    pub fn new(
        carrier: Box<dyn Carrier>,
        mac: EthernetAddress,
        number: u8,
        (target, target_mac): (Ipv4Addr, EthernetAddress),
    ) -> Den {
        Den {
            frames: 0,
            octets: 0,
            mac,
            target_mac,
            carrier,
            target,
            first: 100 + ADDRESSES * number,
            puppets: Vec::new(),
            flows: HashMap::new(),
            next_port: 20_000,
        }
    }

    /// Den number `number`, whose target is host `to` of the world.
    pub fn in_world(world: &World, number: u8, to: usize) -> Den {
        let port = world.network.port(1500, 8192, 512);
        let mac = EthernetAddress(port.capabilities().mac);
        let target = (world.hosts[to].address, EthernetAddress([2, 0, 0, 0, 0, to as u8 + 1]));
        Den::new(Box::new(port), mac, number, target)
    }

    /// One of its addresses.
    pub fn address(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self.first + number % ADDRESSES)
    }

    /// The target's address.
    pub fn target(&self) -> Ipv4Addr {
        self.target
    }

    /// A puppet.
    pub fn puppet(&mut self, number: usize) -> &mut Puppet {
        &mut self.puppets[number]
    }

    /// Puppets whose RDMA streams are in full operation.
    pub fn running(&self) -> usize {
        self.puppets.iter().filter(|puppet| puppet.is_running()).count()
    }

    /// RDMA messages that all puppets have received.
    pub fn messages(&self) -> u64 {
        self.puppets.iter().map(|puppet| puppet.messages).sum()
    }

    /// The path from one of its addresses to the target.
    pub fn path(&self, from: u8) -> Path {
        Path::new(self.mac, self.target_mac, self.address(from).into(), self.target.into())
    }

    /// The start of a segment from the target in flight to a puppet, as an ICMP error quotes it: its IP header and
    /// eight octets.
    ///
    /// # Panics
    /// Never: the headers fit.
    pub fn quote(&self, number: usize) -> Vec<u8> {
        let puppet = &self.puppets[number];
        let path = Path::new(self.target_mac, self.mac, puppet.flow.remote, puppet.flow.local);
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.source_port, header.destination_port) = (puppet.flow.remote_port, puppet.flow.local_port);
        header.sequence = puppet.acknowledged;
        let mut frame = vec![0; HEADROOM];
        let checksum = TcpChecksum::Full { payload_sum: 0 };
        let length = prepend_tcp(&mut frame, &path, &header, 0, 1400, checksum).expect("it fits");
        frame[HEADROOM - length + 14..][..28].to_vec()
    }

    /// Sends any frame.
    pub fn send_frame(&mut self, now: Instant, frame: &[u8]) {
        self.frames += 1;
        self.octets += frame.len().max(60) as u64;
        self.carrier.send(now, frame);
    }

    /// Sends a segment from any address.
    ///
    /// # Panics
    /// If it is longer than a frame.
    pub fn send_segment(
        &mut self,
        now: Instant,
        (from, to): (IpAddress, IpAddress),
        header: &TcpHeader,
        payload: &[u8],
    ) {
        let path = Path::new(self.mac, self.target_mac, from, to);
        let mut frame = vec![0; HEADROOM];
        let checksum = TcpChecksum::Full { payload_sum: checksum_sum(payload) };
        let length = prepend_tcp(&mut frame, &path, header, 0, payload.len(), checksum).expect("it fits");
        frame.drain(..HEADROOM - length);
        frame.extend_from_slice(payload);
        self.send_frame(now, &frame);
    }

    /// Opens a connection; returns the puppet's number.
    pub fn open(&mut self, now: Instant, opening: Opening) -> usize {
        self.next_port += 1;
        let flow = FlowKey {
            remote: self.target.into(),
            local: self.address(opening.from).into(),
            remote_port: opening.port,
            local_port: self.next_port,
        };
        let number = self.puppets.len();
        self.puppets.push(Puppet {
            stage: Stage::Opening,
            next: SeqNumber(0),
            sequence: SeqNumber(1_001),
            messages: 0,
            ended: false,
            window: opening.window,
            acknowledging: opening.acknowledging,
            flow,
            rdma: opening.rdma,
            acknowledged: SeqNumber(0),
            owes: false,
            startup: Vec::new(),
            messages_walk: Walk::default(),
            unacknowledged: VecDeque::new(),
            resend_at: None,
        });
        self.flows.insert(flow, number);
        let mut header = TcpHeader::new(TcpFlags::SYN);
        header.sequence = SeqNumber(1_000);
        header.window = opening.window;
        header.options.mss = Some(opening.mss);
        header.options.window_scale = Some(opening.scale);
        header.options.sack_permitted = true;
        self.send_as(now, number, header, &[]);
        number
    }

    /// Sends a segment of a puppet's flow.
    fn send_as(&mut self, now: Instant, number: usize, mut header: TcpHeader, payload: &[u8]) {
        let flow = self.puppets[number].flow;
        (header.source_port, header.destination_port) = (flow.local_port, flow.remote_port);
        self.send_segment(now, (flow.local, flow.remote), &header, payload);
    }

    /// Sends octets of a puppet's stream, however small the target's window is; retransmits them until they are
    /// acknowledged.
    pub fn send(&mut self, now: Instant, number: usize, octets: &[u8]) {
        for piece in octets.chunks(1400) {
            let puppet = &mut self.puppets[number];
            let at = puppet.sequence;
            puppet.sequence += piece.len() as u32;
            puppet.unacknowledged.push_back((at, piece.to_vec()));
            puppet.resend_at.get_or_insert(now + RESEND);
            self.send_at(now, number, at, piece);
        }
    }

    /// Sends a segment of data with this sequence number, once.
    pub fn send_at(&mut self, now: Instant, number: usize, at: SeqNumber, octets: &[u8]) {
        let puppet = &mut self.puppets[number];
        if puppet.is_prompt() {
            puppet.owes = false;
            puppet.acknowledged = puppet.next;
        }
        let mut header = TcpHeader::new(TcpFlags::ACK | TcpFlags::PSH);
        (header.sequence, header.acknowledgment, header.window) = (at, puppet.acknowledged, puppet.window);
        self.send_as(now, number, header, octets);
    }

    /// Acknowledges up to `acknowledgment`, with these blocks.
    pub fn acknowledge(&mut self, now: Instant, number: usize, acknowledgment: SeqNumber, sack: SackBlocks) {
        let puppet = &mut self.puppets[number];
        puppet.owes = false;
        puppet.acknowledged = acknowledgment;
        self.claim(now, number, acknowledgment, sack);
    }

    /// As [`Den::acknowledge`], but later segments do not repeat it.
    pub fn claim(&mut self, now: Instant, number: usize, acknowledgment: SeqNumber, sack: SackBlocks) {
        let puppet = &self.puppets[number];
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.sequence, header.acknowledgment, header.window) = (puppet.sequence, acknowledgment, puppet.window);
        header.options.sack = sack;
        self.send_as(now, number, header, &[]);
    }

    /// Acknowledges everything that has arrived.
    pub fn acknowledge_all(&mut self, now: Instant, number: usize) {
        let next = self.puppets[number].next;
        self.acknowledge(now, number, next, SackBlocks::NONE);
    }

    /// Resets the connection.
    pub fn reset(&mut self, now: Instant, number: usize) {
        let puppet = &mut self.puppets[number];
        puppet.stage = Stage::Gone;
        let mut header = TcpHeader::new(TcpFlags::RST | TcpFlags::ACK);
        (header.sequence, header.acknowledgment) = (puppet.sequence, puppet.next);
        self.send_as(now, number, header, &[]);
    }

    /// Resets all connections.
    pub fn reset_all(&mut self, now: Instant) {
        for number in 0..self.puppets.len() {
            if self.puppets[number].is_running() {
                self.reset(now, number);
            }
        }
    }

    /// Receives what has arrived, and sends a puppet's automatic answers.
    pub fn turn(&mut self, now: Instant) {
        for frame in self.carrier.receive(now) {
            self.receive(now, &frame);
        }
        for number in 0..self.puppets.len() {
            if self.puppets[number].stage != Stage::Gone {
                self.look_after(now, number);
            }
        }
    }

    fn look_after(&mut self, now: Instant, number: usize) {
        let puppet = &mut self.puppets[number];
        if puppet.stage == Stage::Open && puppet.rdma {
            puppet.stage = Stage::Starting;
            let asked = request_with(EnhancedData { ird: 16, ord: 16, ..EnhancedData::default() });
            return self.send(now, number, &asked);
        }
        if puppet.owes && puppet.is_prompt() {
            self.acknowledge_all(now, number);
        }
        let puppet = &mut self.puppets[number];
        if puppet.resend_at.is_some_and(|at| at <= now) {
            puppet.resend_at = None;
            if let Some((at, octets)) = puppet.unacknowledged.front().cloned() {
                puppet.resend_at = Some(now + RESEND);
                self.send_at(now, number, at, &octets);
            }
        }
    }

    /// When [`Den::turn`] next has something to do by itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.puppets.iter().filter(|puppet| puppet.stage != Stage::Gone).filter_map(|puppet| puppet.resend_at).min()
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        match classify(frame, frame.len()) {
            Ok(Frame::Arp(arp))
                if arp.packet.operation == ArpOperation::Request && self.is_home_of(arp.packet.target_address) =>
            {
                let mut reply = [0; 64];
                let length = arp.packet.reply(self.mac).emit_frame(&mut reply).expect("it fits");
                self.send_frame(now, &reply[..length]);
            }
            Ok(Frame::Tcp(tcp)) => {
                if let Some(&number) = self.flows.get(&tcp.flow) {
                    self.puppets[number].take(now, &tcp, frame);
                }
            }
            _ => {}
        }
    }

    /// Whether it has this address.
    pub fn is_home_of(&self, address: impl Into<IpAddr>) -> bool {
        let IpAddr::V4(address) = address.into() else { return false };
        let [a, b, c, host] = address.octets();
        [a, b, c] == [10, 0, 0] && (self.first..self.first + ADDRESSES).contains(&host)
    }
}

impl Puppet {
    /// Whether the connection is open and MPA start-up is done.
    pub fn is_running(&self) -> bool {
        self.stage == Stage::Running
    }

    fn is_prompt(&self) -> bool {
        self.acknowledging == Acknowledging::Prompt
            || self.acknowledged == SeqNumber(0)
            || self.stage == Stage::Starting
    }

    fn take(&mut self, now: Instant, tcp: &TcpFrame, frame: &[u8]) {
        let header = &tcp.header;
        if header.flags.contains(TcpFlags::RST) {
            self.stage = Stage::Gone;
            return;
        }
        if self.stage == Stage::Opening {
            if header.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
                self.next = header.sequence + 1;
                self.owes = true;
                self.stage = Stage::Open;
            }
            return;
        }
        while let Some((at, octets)) = self.unacknowledged.front()
            && (*at + octets.len() as u32).le(header.acknowledgment)
        {
            self.unacknowledged.pop_front();
            self.resend_at = (!self.unacknowledged.is_empty()).then(|| now + RESEND);
        }
        let length = tcp.payload_len as u32;
        let end = header.sequence + length;
        // An old octet means a keep-alive or a probe.
        self.owes |= length > 0 || header.sequence.lt(self.next);
        if length > 0 && header.sequence.le(self.next) && end.gt(self.next) {
            let from = tcp.payload_offset + self.next.offset_from(header.sequence) as usize;
            self.next = end;
            self.read(&frame[from..tcp.payload_offset + length as usize]);
        }
        if header.flags.contains(TcpFlags::FIN) && end == self.next && !self.ended {
            self.ended = true;
            self.owes = true;
            self.next += 1;
        }
    }

    fn read(&mut self, octets: &[u8]) {
        match self.stage {
            Stage::Running => self.messages += self.messages_walk.take(octets),
            Stage::Starting => {
                self.startup.extend_from_slice(octets);
                if let Ok(Some((_, length))) = StartupFrame::parse(FrameKind::Reply, &self.startup) {
                    self.stage = Stage::Running;
                    let rest = self.startup.split_off(length);
                    self.messages += self.messages_walk.take(&rest);
                }
            }
            Stage::Opening | Stage::Open | Stage::Gone => {}
        }
    }
}

/// Keeps RDMA Reads of a puppet outstanding.
#[derive(Debug)]
pub struct Reader {
    length: u32,
    depth: u64,
    asked: u64,
}

impl Reader {
    /// Reads of `length` octets, `depth` of them at once.
    pub fn new(length: u32, depth: u64) -> Reader {
        Reader { length, depth, asked: 0 }
    }

    /// Asks for as many as are missing.
    pub fn ask(&mut self, now: Instant, den: &mut Den, number: usize, stag: u32) {
        while self.asked < den.puppet(number).messages + self.depth {
            self.asked += 1;
            let request = ReadRequest { length: self.length, source_stag: Stag(stag), ..ReadRequest::default() };
            let asks = untagged(Opcode::ReadRequest, 1, self.asked as u32, 0, &request.to_octets());
            den.send(now, number, &fpdu(&asks));
        }
    }
}

/// Grows the target's congestion window: acknowledges a whole flight at a time, after a delay that grows slowly enough
/// for the target's estimate of the round-trip time to follow.
#[derive(Debug)]
pub struct Growth {
    /// Octets that must be in flight at once.
    wanted: u32,
    pause: Duration,
    next: Option<Instant>,
    /// The first octet that is not acknowledged.
    first: Option<SeqNumber>,
    is_done: bool,
}

impl Growth {
    /// Until `wanted` octets are in flight.
    pub fn to(wanted: u32) -> Growth {
        Growth { wanted, pause: Duration::from_micros(100), next: None, first: None, is_done: false }
    }

    /// Whether it is finished.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Does what is due for this puppet. When done, returns the data in flight, which stays unacknowledged: its first
    /// octet and the one behind its last.
    ///
    /// # Errors
    /// Not done yet; the error is when there is something to do next.
    pub fn turn(
        &mut self,
        now: Instant,
        den: &mut Den,
        number: usize,
        reader: &mut Reader,
        stag: u32,
    ) -> Result<(SeqNumber, SeqNumber), Option<Instant>> {
        let next = den.puppet(number).next;
        let first = *self.first.get_or_insert_with(|| {
            reader.ask(now, den, number, stag);
            next
        });
        self.is_done |= next.offset_from(first) >= self.wanted;
        if self.is_done {
            return Ok((first, next));
        }
        let due = *self.next.get_or_insert(now + self.pause);
        if due > now {
            return Err(Some(due));
        }
        let mut at = first;
        while at.lt(next) {
            at = (at + 2 * 1460).min(next);
            den.acknowledge(now, number, at, SackBlocks::NONE);
        }
        // A request for more must acknowledge the earlier responses, which occupy their slots until then.
        reader.ask(now, den, number, stag);
        self.first = Some(next);
        // While it grows at this pace, the target's time-out stays half as long again as the delay. Only a slow target,
        // which takes tens of milliseconds to send the whole flight, reaches the ceiling: it needs a longer `rto_min`.
        self.pause = (self.pause * 5 / 4).min(Duration::from_millis(60));
        self.next = Some(now + self.pause);
        Err(self.next)
    }
}

/// Something that happens at a steady pace.
#[derive(Debug)]
pub struct Pace {
    every: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// Once in this time.
    pub fn every(every: Duration) -> Pace {
        Pace { every, next: None }
    }

    /// How often it is due now, including missed times.
    pub fn due(&mut self, now: Instant) -> u32 {
        let mut next = self.next.unwrap_or(now);
        let mut count = 0;
        while next <= now && count < 64 {
            next += self.every;
            count += 1;
        }
        self.next = Some(next);
        count
    }

    /// When it is due next.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }
}
