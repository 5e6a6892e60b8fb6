//! A peer that is not an engine: a proper TCP, and above it exactly the octets that a test wants.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use uwarp_engine::Port;
use uwarp_engine::port::{Batch, Buffer};
use uwarp_iwarp::framing::{Framed, LENGTH_LEN, Trailer, deframe};
use uwarp_memory::kernels::{checksum_sum, crc32c};
use uwarp_tcp::{BufferToken, Config, Connection, Events, Instant, Payload};
use uwarp_testkit::rig::World;
use uwarp_testkit::sim::SimPort;
use uwarp_wire::address::FlowKey;
use uwarp_wire::arp::ArpOperation;
use uwarp_wire::ddp::{Header, MessageSequenceNumber, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, emit_fragment, prepend_tcp};
use uwarp_wire::mpa::{EnhancedData, FrameKind, StartupFrame};
use uwarp_wire::rdmap::{Control, Opcode, Terminate};
use uwarp_wire::tcp::{self, SeqNumber};

/// Room for all headers in front of a payload.
const HEADROOM: usize = 128;

/// The peer: one TCP connection to an engine.
#[derive(Debug)]
pub struct RawPeer {
    port: SimPort,
    mac: EthernetAddress,
    remote_mac: EthernetAddress,
    flow: FlowKey,
    tcp: Connection,
    records: HashMap<u32, Vec<u8>>,
    next_record: u32,
    next_packet: u32,
    waiting: VecDeque<Vec<u8>>,
    /// The next segment of data is never sent; its sequence number, once that is known.
    withheld: Option<Option<SeqNumber>>,
    /// Segments of data leave in two IP fragments.
    pub in_fragments: bool,
    /// Octets received in order and not consumed yet.
    pub received: Vec<u8>,
    /// Everything that TCP reported.
    pub events: Events,
}

impl RawPeer {
    /// Opens a connection from the address 10.0.0.`host` to an engine of the world (which is the `to`-th host).
    pub fn connect(world: &World, host: u8, to: usize, port: u16) -> RawPeer {
        RawPeer::connect_with(world, host, to, port, &Config::default())
    }

    /// As [`RawPeer::connect`], with TCP settings: the offered window and segment size.
    pub fn connect_with(world: &World, host: u8, to: usize, port: u16, config: &Config) -> RawPeer {
        let sim = world.network.port(1500, 256, 256);
        let mac = EthernetAddress(sim.capabilities().mac);
        let address = Ipv4Addr::new(10, 0, 0, host);
        let flow = FlowKey {
            remote: world.hosts[to].address.into(),
            local: address.into(),
            remote_port: port,
            local_port: 40_000 + u16::from(host),
        };
        RawPeer {
            port: sim,
            mac,
            remote_mac: EthernetAddress([2, 0, 0, 0, 0, to as u8 + 1]),
            flow,
            tcp: Connection::connect(config, SeqNumber(7), world.now()),
            records: HashMap::new(),
            next_record: 0,
            next_packet: 0,
            waiting: VecDeque::new(),
            withheld: None,
            in_fragments: false,
            received: Vec::new(),
            events: Events::NONE,
        }
    }

    /// Opens a connection and performs MPA start-up: full operation follows.
    ///
    /// # Panics
    /// The engine does not answer as it should.
    pub fn start(
        world: &mut World,
        host: u8,
        to: usize,
        pair: &uwarp_testkit::rig::Pair,
        requests: &crossbeam::channel::Receiver<uwarp_engine::command::ConnectionRequest>,
        port: u16,
    ) -> RawPeer {
        let accept = uwarp_engine::command::StartupOptions::default();
        RawPeer::start_with(world, host, to, pair, requests, port, (&request(), accept)).0
    }

    /// As [`RawPeer::start`], with a given Request and answer; also returns the Reply frame.
    ///
    /// # Panics
    /// The engine does not answer as it should.
    pub fn start_with(
        world: &mut World,
        host: u8,
        to: usize,
        pair: &uwarp_testkit::rig::Pair,
        requests: &crossbeam::channel::Receiver<uwarp_engine::command::ConnectionRequest>,
        port: u16,
        startup: (&[u8], uwarp_engine::command::StartupOptions),
    ) -> (RawPeer, Vec<u8>) {
        let peer = RawPeer::connect(world, host, to, port);
        peer.start_on(world, to, pair, requests, startup)
    }

    /// Performs MPA start-up on this connection.
    ///
    /// # Panics
    /// The engine does not answer as it should.
    pub fn start_on(
        mut self,
        world: &mut World,
        to: usize,
        pair: &uwarp_testkit::rig::Pair,
        requests: &crossbeam::channel::Receiver<uwarp_engine::command::ConnectionRequest>,
        (frame, accept): (&[u8], uwarp_engine::command::StartupOptions),
    ) -> (RawPeer, Vec<u8>) {
        let peer = &mut self;
        peer.send(frame);
        let mut request = None;
        assert!(peer.run_until(world, Duration::from_secs(5), |_, _| {
            request = requests.try_recv().ok();
            request.is_some()
        }));
        if let Some(request) = request {
            world.hosts[to].accept(pair, &request, accept);
        }
        let mut length = None;
        assert!(peer.run_until(world, Duration::from_secs(5), |peer, _| {
            length = StartupFrame::parse(FrameKind::Reply, &peer.received).ok().flatten().map(|(_, length)| length);
            length.is_some()
        }));
        let reply = peer.received.drain(..length.unwrap_or(0)).collect();
        let _ = pair.events.try_recv();
        (self, reply)
    }

    /// Queues octets.
    pub fn send(&mut self, octets: &[u8]) {
        for piece in octets.chunks(1400) {
            self.waiting.push_back(piece.to_vec());
        }
    }

    /// Makes a gap: the next segment of data is not sent, however often TCP retransmits it, until [`RawPeer::fill`].
    pub fn withhold(&mut self) {
        self.withheld = Some(None);
    }

    /// Sends what was withheld, at TCP's next retransmission.
    pub fn fill(&mut self) {
        self.withheld = None;
    }

    /// Sends FIN behind the queued octets.
    pub fn close(&mut self, world: &mut World) {
        self.run_until(world, Duration::from_secs(1), |peer, _| peer.waiting.is_empty());
        self.tcp.close(world.now());
    }

    /// Whether the engine has reset the connection.
    pub fn is_reset(&self) -> bool {
        self.events.contains(Events::RESET)
    }

    /// Whether the engine's TCP has acknowledged everything that was queued.
    pub fn has_sent_everything(&self) -> bool {
        self.waiting.is_empty() && self.records.is_empty()
    }

    /// Receives and sends what is due at `now`.
    pub fn turn(&mut self, now: Instant) {
        self.port.set_now(now);
        let mut batch = Batch::new();
        while self.port.rx_burst(&mut batch) > 0 {
            for frame in batch.drain(..) {
                self.receive(now, frame.data());
            }
        }
        if self.tcp.deadline().is_some_and(|at| at <= now) {
            let events = self.tcp.on_deadline(now);
            self.events |= events;
        }
        while self.tcp.send_space() > 0 {
            let Some(octets) = self.waiting.pop_front() else { break };
            self.next_record += 1;
            self.tcp.push(BufferToken(self.next_record), octets.len() as u32);
            self.records.insert(self.next_record, octets);
        }
        while let Some(transmit) = self.tcp.poll_transmit(now) {
            let payload = transmit
                .payload
                .map_or(&[][..], |slice| &self.records[&slice.token.0][slice.offset as usize..][..slice.len as usize]);
            if let Some(withheld) = &mut self.withheld
                && !payload.is_empty()
                && *withheld.get_or_insert(transmit.header.sequence) == transmit.header.sequence
            {
                continue;
            }
            let mut header = transmit.header;
            (header.source_port, header.destination_port) = (self.flow.local_port, self.flow.remote_port);
            let mut frame = vec![0; HEADROOM];
            let path = Path::new(self.mac, self.remote_mac, self.flow.local, self.flow.remote);
            let checksum = TcpChecksum::Full { payload_sum: checksum_sum(payload) };
            let length = prepend_tcp(&mut frame, &path, &header, 0, payload.len(), checksum).expect("it fits");
            frame.drain(..HEADROOM - length);
            frame.extend_from_slice(payload);
            if !self.in_fragments || payload.is_empty() {
                self.put(&frame);
                continue;
            }
            let packet = &frame[path.headers_len()..];
            self.next_packet += 1;
            let (first, second) = packet.split_at((packet.len() / 2) & !7);
            for (offset, part) in [(0, first), (first.len(), second)] {
                let mut frame = [0; 1514];
                let place = (offset, offset == 0);
                let length =
                    emit_fragment(&mut frame, &path, tcp::PROTOCOL, self.next_packet, place, part).expect("it fits");
                self.put(&frame[..length]);
            }
        }
        while let Some(token) = self.tcp.pop_acknowledged() {
            self.records.remove(&token.0);
        }
    }

    fn put(&mut self, frame: &[u8]) {
        if let Some(mut buffer) = self.port.alloc() {
            buffer.fill(frame);
            self.port.tx_burst(&mut VecDeque::from([buffer]));
        }
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        match classify(frame, frame.len()) {
            Ok(Frame::Arp(arp))
                if arp.packet.operation == ArpOperation::Request
                    && self.flow.local == arp.packet.target_address.into() =>
            {
                let mut reply = [0; 64];
                let length = arp.packet.reply(self.mac).emit_frame(&mut reply).expect("it fits");
                self.put(&reply[..length]);
            }
            Ok(Frame::Tcp(tcp)) if tcp.flow == self.flow => {
                let length = tcp.payload_len as u32;
                let received = self.tcp.on_segment(now, &tcp.header, length, tcp.ecn, BufferToken(0));
                self.events |= received.events;
                // The network keeps the order, so nothing is ever held.
                if let Payload::InOrder { skip, len } = received.payload {
                    let from = tcp.payload_offset + skip as usize;
                    self.received.extend_from_slice(&frame[from..from + len as usize]);
                }
            }
            _ => {}
        }
    }

    /// Lets the world and the peer continue until `done` returns true or the time is up; returns whether it was done.
    pub fn run_until(
        &mut self,
        world: &mut World,
        limit: Duration,
        mut done: impl FnMut(&mut RawPeer, &mut World) -> bool,
    ) -> bool {
        let end = world.now() + limit;
        while world.now() < end {
            self.turn(world.now());
            if done(self, world) {
                return true;
            }
            world.step();
        }
        false
    }

    /// The ULPDU of the next received FPDU.
    pub fn take_fpdu(&mut self) -> Option<Vec<u8>> {
        match deframe(&self.received, Some(crc32c)) {
            Framed::Fpdu { ulpdu, fpdu_len } => {
                let ulpdu = self.received[ulpdu].to_vec();
                self.received.drain(..fpdu_len);
                Some(ulpdu)
            }
            Framed::Incomplete { .. } => None,
            Framed::BadCrc { .. } => panic!("the engine sent a bad CRC"),
        }
    }

    /// Waits for a Terminate: layer, error type, code.
    pub fn terminate(&mut self, world: &mut World) -> Option<(u8, u8, u8)> {
        let mut found = None;
        self.run_until(world, Duration::from_secs(5), |peer, _| {
            while let Some(ulpdu) = peer.take_fpdu() {
                if matches!(Header::parse(&ulpdu), Ok(Header::Untagged(header)) if header.queue == QueueNumber::TERMINATE) {
                    let terminate = Terminate::parse(&ulpdu[18..]).expect("a Terminate");
                    found = Some((terminate.layer.code(), terminate.error_type, terminate.code));
                }
            }
            found.is_some()
        });
        found
    }
}

/// An enhanced MPA Request that requests CRCs.
pub fn request() -> Vec<u8> {
    request_with(EnhancedData { ird: 4, ord: 4, ..EnhancedData::default() })
}

/// An MPA Request with this enhanced data that requests CRCs.
pub fn request_with(enhanced: EnhancedData) -> Vec<u8> {
    let frame = StartupFrame {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        reject: false,
        revision: 2,
        enhanced: Some(enhanced),
        private_data: &[],
    };
    let mut octets = vec![0; frame.emit_len()];
    frame.emit(&mut octets).expect("it fits");
    octets
}

/// The FPDU around a ULPDU.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    octets.extend_from_slice(Trailer::padding_octets(ulpdu.len()));
    let crc = crc32c(&octets);
    octets.truncate(LENGTH_LEN + ulpdu.len());
    octets.extend_from_slice(Trailer::new(ulpdu.len(), Some(crc)).as_bytes());
    octets
}

/// A ULPDU of an RDMA Write.
pub fn write(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; 14];
    let control = Control::new(Opcode::Write);
    TaggedHeader { last: true, control, stag: Stag(stag), offset: TaggedOffset(offset) }.emit(&mut ulpdu);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// A ULPDU of an untagged message.
pub fn untagged(opcode: Opcode, queue: u32, number: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; 18];
    UntaggedHeader {
        last: true,
        control: Control::new(opcode),
        invalidate_stag: Stag(0),
        queue: QueueNumber(queue),
        message_sequence_number: MessageSequenceNumber(number),
        message_offset: offset,
    }
    .emit(&mut ulpdu);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// Checks that `answer` is a Terminate with this layer, error type and code, which returns the length and the DDP
/// header of `ulpdu` and no RDMAP header.
///
/// # Panics
/// It is not; `name` identifies the case.
pub fn assert_terminates(name: &str, answer: &[u8], ulpdu: &[u8], expected: (u8, u8, u8)) {
    let Ok(Header::Untagged(header)) = Header::parse(answer) else { panic!("{name}: {answer:x?}") };
    assert_eq!(header.queue, QueueNumber::TERMINATE, "{name}");
    let terminate = Terminate::parse(&answer[18..]).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((terminate.layer.code(), terminate.error_type, terminate.code), expected, "{name}");
    assert_eq!(terminate.segment_length, Some(ulpdu.len() as u16), "{name}");
    assert!(terminate.ddp_header.is_some_and(|quoted| ulpdu.starts_with(quoted.as_slice())), "{name}");
    assert_eq!(terminate.read_request, None, "{name}");
}
