//! A live queue pair: an engine with memory and posted work, and a peer whose segments, messages and octets come from
//! the input, in virtual time. Start-up, CRCs and TCP are valid; everything above them may be anything.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use uwarp_engine::command::{Command, ConnectionEvent, Features, StartupOptions};
use uwarp_engine::work::{AtomicOperands, SendElement, SendFlags, SendOpcode, Sge};
use uwarp_memory::{Access, Committer, DomainId, Registration, Scope, Store, StreamId, TaggedBase, Window};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::ddp::{Header, MessageSequenceNumber, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader};
use uwarp_wire::rdmap::{
    AtomicRequest, AtomicResponse, CommitRegion, CommitRequest, CommitResponse, Control, ReadRequest,
};

const PORT: u16 = 7471;
/// Octets of each region.
const REGION: usize = 256;
/// Octets of a posted receive.
const RECEIVE: usize = 16;
/// What memory holds that nobody may change.
const CANARY: u8 = 0xa5;
/// Steps of an input at most.
const STEPS: usize = 64;
const MILLISECOND: Duration = Duration::from_millis(1);

/// The input, octet by octet; zeros after its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn octet(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.octet(), self.octet(), self.octet(), self.octet()])
    }

    fn octets(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A store that keeps nothing, and sometimes fails.
struct Nowhere(u32);

impl Store for Nowhere {
    fn write(&mut self, _offset: u64, _octets: &[u8]) -> io::Result<()> {
        self.0 += 1;
        if self.0.is_multiple_of(5) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory of the host, by what a peer may do with it.
struct Memory {
    /// With all rights; then for writing, for atomics and reading, durable.
    open: [Registration; 4],
    committers: [Committer; 2],
    /// Memory that no peer may change: for reading, of another domain, of another queue pair, for local use.
    closed: [Registration; 4],
    /// Where receives and Reads put octets.
    inbox: Registration,
    /// What posted work binds to open memory.
    window: Window,
}

impl Memory {
    fn of(world: &World, pair: &Pair) -> Memory {
        let regions = &world.hosts[0].regions;
        let register = |octet, access, scope| {
            regions.register(vec![octet; REGION], access, scope, TaggedBase::Zero).expect("the table has room")
        };
        let domain = Scope::Domain(DomainId(1));
        let durable = |transparent| {
            let store = Box::new(Nowhere(0));
            let made =
                regions.register_durable(vec![0; REGION], Access::ALL, domain, TaggedBase::Zero, store, transparent);
            made.expect("the table has room")
        };
        let ((durable_one, committer_one), (durable_two, committer_two)) = (durable(false), durable(true));
        let another = Scope::Stream { domain: DomainId(1), stream: StreamId(pair.number + 1) };
        Memory {
            open: [
                register(0, Access::ALL, domain),
                register(0, Access::REMOTE_WRITE, domain),
                durable_one,
                durable_two,
            ],
            committers: [committer_one, committer_two],
            closed: [
                register(CANARY, Access::REMOTE_READ, domain),
                register(CANARY, Access::ALL, Scope::Domain(DomainId(2))),
                register(CANARY, Access::ALL, another),
                register(CANARY, Access::LOCAL_WRITE, domain),
            ],
            inbox: register(CANARY, Access::LOCAL_WRITE, domain),
            window: regions.allocate_window(DomainId(1), 2).expect("the table has room"),
        }
    }

    fn region(&self, number: u8) -> &Registration {
        let all = self.open.iter().chain(&self.closed).chain([&self.inbox]);
        all.cycle().nth(usize::from(number % 9)).expect("there are nine")
    }

    /// The STag of one of the regions, or the window's.
    fn stag(&self, number: u8) -> u32 {
        if number == 9 { self.window.stag() } else { self.region(number).stag() }
    }

    /// A buffer and an offset: mostly inside or near the ends of one of the regions or the window, sometimes anywhere.
    fn place(&self, input: &mut Input) -> (Stag, TaggedOffset) {
        let (kind, at) = (input.octet(), input.octet());
        let stag = if kind & 0xf0 == 0xf0 { Stag(input.word()) } else { Stag(self.stag(kind & 0x0f)) };
        let offset = match kind >> 4 & 3 {
            0 | 1 => u64::from(at),
            2 => (REGION as u64).wrapping_add_signed(i64::from(at as i8)),
            _ => u64::from(input.word()) << 32 | u64::from(at),
        };
        (stag, TaggedOffset(offset))
    }

    fn check(&self, receives: usize) {
        let mut octets = [0; REGION];
        for region in &self.closed {
            region.read(0, &mut octets).expect("all of it");
            assert_eq!(octets, [CANARY; REGION], "memory that no peer may change");
        }
        self.inbox.read(0, &mut octets).expect("all of it");
        let touched = (receives * RECEIVE).min(REGION / 2);
        assert!(
            octets[touched..REGION / 2].iter().all(|octet| *octet == CANARY),
            "memory that no receive was posted for"
        );
    }
}

/// One life of the queue pair.
struct Life<'a> {
    input: Input<'a>,
    world: World,
    pair: Pair,
    peer: RawPeer,
    memory: Memory,
    /// The next message number on each of the peer's queues.
    numbers: [u32; 4],
    /// Posted work that has not completed.
    open: HashMap<u64, &'static str>,
    next: u64,
    receives: usize,
    terminates: usize,
    /// Requests that the peer has got.
    asked: usize,
}

/// Uses `data` as settings, and then as actions of the peer and the application. Whatever they are: the engine
/// continues, posted work completes once, memory without rights for the peer is unchanged, sent FPDUs have valid CRCs,
/// at most one Terminate is sent and nothing after it, and no buffer is lost.
pub fn queue_pair(data: &[u8]) {
    let mut input = Input(data);
    let settings = input.octet();
    let features = Features {
        atomics: settings & 1 != 0,
        immediate: settings & 2 != 0,
        commit: settings & 4 != 0,
        infiniband: settings & 0x80 != 0,
    };
    let accept = StartupOptions { features, ird: 4, ord: u16::from(settings >> 4 & 3), ..StartupOptions::default() };
    let mut world = World::new(1, SimOptions::default());
    let host = HostOptions { receive_buffers: 128, transmit_buffers: 128, queue_pairs: 4, ..HostOptions::default() };
    world.add(host, |config| config.iwarp.strict_commit = settings & 8 != 0);
    let requests = world.hosts[0].listen(PORT);
    let pair = world.hosts[0].pair(PairOptions {
        send_depth: 32,
        receive_depth: 16,
        completions: 128,
        complete_on_ack: settings & 0x40 != 0,
    });
    let memory = Memory::of(&world, &pair);
    let (peer, _) = RawPeer::start_with(&mut world, 9, 0, &pair, &requests, PORT, (&request(), accept));
    let mut life = Life {
        input,
        world,
        pair,
        peer,
        memory,
        numbers: [1; 4],
        open: HashMap::new(),
        next: 1,
        receives: 0,
        terminates: 0,
        asked: 0,
    };
    for _ in 0..STEPS {
        if life.input.0.is_empty() {
            break;
        }
        life.step();
    }
    life.end();
}

impl Life<'_> {
    fn step(&mut self) {
        match self.input.octet() & 15 {
            0 => {
                let length = usize::from(self.input.octet());
                self.peer.send(&fpdu(self.input.octets(length)));
            }
            1 => {
                let length = usize::from(self.input.octet());
                self.peer.send(self.input.octets(length));
            }
            2..=4 => self.send_tagged(),
            5 => self.send_untagged(None),
            6 | 7 => self.send_request(),
            8 => self.send_response(),
            9 => self.post_receive(),
            10..=12 => self.post_work(),
            13 => self.memory.committers.iter_mut().for_each(|committer| _ = committer.work()),
            14 => self.go_on(MILLISECOND * u32::from(self.input.0.first().copied().unwrap_or(1))),
            _ => match self.input.octet() & 7 {
                0 => self.world.hosts[0].command(Command::Disconnect { queue_pair: self.pair.number }),
                1 => self.peer.close(&mut self.world),
                number => self.memory.region(number).invalidate(),
            },
        }
        if self.input.0.first().is_some_and(|next| next & 0x80 != 0) {
            self.go_on(MILLISECOND);
        }
    }

    fn control(&mut self, opcode: u8) -> Control {
        // Version 1 and no reserved bits, mostly.
        let odd = self.input.octet();
        Control(if odd < 0xf0 { 0x40 | opcode & 0x0f } else { odd << 4 | opcode & 0x0f })
    }

    fn send_tagged(&mut self) {
        let (stag, offset) = self.memory.place(&mut self.input);
        let (bits, length) = (self.input.octet(), usize::from(self.input.octet()));
        // A Write, a Read Response, or neither.
        let opcode = if bits & 3 == 3 { self.input.octet() } else { bits << 1 & 2 };
        let header = TaggedHeader { last: bits & 0x80 == 0, control: self.control(opcode), stag, offset };
        let mut ulpdu = vec![0; 14];
        header.emit(&mut ulpdu);
        ulpdu.extend_from_slice(self.input.octets(length));
        self.peer.send(&fpdu(&ulpdu));
    }

    /// A Send, Immediate Data or Terminate, or the given `message`, mostly with the next number of its queue.
    fn send_untagged(&mut self, message: Option<(u8, usize, Vec<u8>)>) {
        let (opcode, queue, octets) = message.unwrap_or_else(|| {
            let (opcode, length) = (self.input.octet(), usize::from(self.input.octet()));
            (opcode, if opcode & 0x0f == 7 { 2 } else { 0 }, self.input.octets(length).to_vec())
        });
        let (odd, distance) = (self.input.octet(), self.input.octet());
        let last = odd & 1 == 0;
        let number = self.numbers[queue];
        if last {
            self.numbers[queue] = number.wrapping_add(1);
        }
        let strange = |bit: u8| odd & 0xc0 == 0xc0 && odd & bit != 0;
        let stag = if opcode & 0x0d == 4 { self.memory.place(&mut self.input).0 } else { Stag(0) };
        let header = UntaggedHeader {
            last,
            control: self.control(opcode),
            invalidate_stag: stag,
            queue: QueueNumber(if strange(2) { u32::from(distance) } else { queue as u32 }),
            message_sequence_number: MessageSequenceNumber(number.wrapping_add_signed(if strange(4) {
                i32::from(distance as i8)
            } else {
                0
            })),
            message_offset: if strange(8) { u32::from(distance) } else { 0 },
        };
        let mut ulpdu = vec![0; 18];
        header.emit(&mut ulpdu);
        ulpdu.extend_from_slice(&octets);
        self.peer.send(&fpdu(&ulpdu));
    }

    fn send_request(&mut self) {
        let (kind, length) = (self.input.octet(), u32::from(self.input.octet()));
        let (stag, offset) = self.memory.place(&mut self.input);
        let request_identifier = u32::from(kind);
        let (opcode, octets) = match kind & 3 {
            0 | 1 => {
                let request = ReadRequest {
                    sink_stag: Stag(0x1234_5678),
                    sink_offset: TaggedOffset(u64::from(kind) << 8),
                    length: if kind & 0x80 == 0 { length } else { length << 24 },
                    source_stag: stag,
                    source_offset: offset,
                };
                (1, request.to_octets().to_vec())
            }
            2 => {
                let request = AtomicRequest {
                    operation: if kind & 0x80 == 0 { kind >> 1 & 2 } else { kind >> 3 },
                    request_identifier,
                    stag,
                    offset,
                    add_swap_data: u64::from(length),
                    add_swap_mask: u64::from(kind),
                    compare_data: 0,
                    compare_mask: u64::MAX,
                };
                (10, request.to_octets().to_vec())
            }
            _ => {
                let mut regions = vec![CommitRegion { stag, length, offset }];
                for _ in 0..kind >> 2 & 3 {
                    let (stag, offset) = self.memory.place(&mut self.input);
                    regions.push(CommitRegion { stag, length: u32::from(self.input.octet()), offset });
                }
                let mut octets = vec![0; CommitRequest::emit_len(regions.len())];
                CommitRequest::emit(request_identifier, &regions, &mut octets);
                (12, octets)
            }
        };
        self.send_untagged(Some((opcode, 1, octets)));
    }

    fn send_response(&mut self) {
        let (kind, value) = (self.input.octet(), self.input.word());
        let identifier = value >> 24;
        let (opcode, octets) = if kind & 1 == 0 {
            let response = AtomicResponse { request_identifier: identifier, original_value: u64::from(value) };
            (11, response.to_octets().to_vec())
        } else {
            (13, CommitResponse { request_identifier: identifier, status: value & 7 }.to_octets().to_vec())
        };
        self.send_untagged(Some((opcode, 3, octets)));
    }

    fn post_receive(&mut self) {
        let (id, place) = (self.next, self.receives * RECEIVE);
        if place >= REGION / 2 {
            return;
        }
        let entry = Sge { stag: self.memory.inbox.stag(), length: RECEIVE as u32, offset: place as u64 };
        if self.pair.post_receive(id, &[entry]) {
            self.next += 1;
            self.receives += 1;
            self.open.insert(id, "receive");
        }
    }

    fn post_work(&mut self) {
        let (kind, length) = (self.input.octet(), u32::from(self.input.octet()) / 2);
        let flags = if kind & 0x80 == 0 { SendFlags::SIGNALLED } else { SendFlags::SIGNALLED.union(SendFlags::FENCE) };
        let mut element = SendElement {
            id: self.next,
            opcode: SendOpcode::Send,
            flags,
            stag: 77,
            remote_offset: 8,
            length,
            entries: 1,
        };
        let source = [Sge { stag: self.memory.open[0].stag(), length, offset: 0 }];
        let sink = [Sge { stag: self.memory.inbox.stag(), length, offset: REGION as u64 / 2 }];
        let peers = [Sge { stag: 77, length, offset: 0 }];
        let operands = AtomicOperands { add_swap: 1, add_swap_mask: 0, compare: 0, compare_mask: u64::MAX }.to_octets();
        let with_immediate = [source[0], SendElement::immediate_entry(u64::from(kind))];
        // To open memory, and sometimes to memory of another domain, which must be refused.
        let bound = self.memory.open.get(length as usize & 7).unwrap_or(&self.memory.closed[1]);
        let rights = if length & 8 == 0 { Access::REMOTE_READ | Access::REMOTE_WRITE } else { Access::ALL };
        let bound = Sge { stag: bound.stag(), length: REGION as u32 / 2, offset: 64 };
        let bind = [bound, SendElement::rights_entry(rights)];
        let (entries, inline): (&[Sge], &[u8]) = match kind % 12 {
            0 => (&source, &[]),
            1 => {
                element.opcode = SendOpcode::Write;
                (&source, &[])
            }
            2 => {
                element.opcode = SendOpcode::Read;
                (&sink, &[])
            }
            3 => {
                element = SendElement { opcode: SendOpcode::Immediate, stag: 0, length: 0, entries: 0, ..element };
                (&[], &[])
            }
            number @ (4 | 7) => {
                element = SendElement {
                    opcode: if number == 4 { SendOpcode::FetchAdd } else { SendOpcode::CompareSwap },
                    flags: flags.union(SendFlags::INLINE),
                    length: AtomicOperands::LEN as u32,
                    entries: 0,
                    ..element
                };
                (&[], &operands)
            }
            5 => {
                element = SendElement { opcode: SendOpcode::Commit, stag: 0, length: 0, ..element };
                (&peers, &[])
            }
            6 => {
                element.opcode = SendOpcode::WriteCommit;
                (&source, &[])
            }
            8 => {
                element = SendElement { opcode: SendOpcode::WriteImmediate, entries: 2, ..element };
                (&with_immediate, &[])
            }
            9 => {
                element.opcode = SendOpcode::SendInvalidate;
                (&source, &[])
            }
            10 => {
                // Sometimes with an STag that was bound before, or never existed.
                let window = &mut self.memory.window;
                let stag = if length & 1 == 0 { window.next_stag() } else { window.stag() };
                let opcode = SendOpcode::Bind;
                element = SendElement { opcode, stag, remote_offset: 0, length: 0, entries: 2, ..element };
                (&bind, &[])
            }
            _ => {
                let stag = if length >= 32 { self.memory.window.stag() } else { self.memory.stag(length as u8 & 15) };
                element = SendElement { opcode: SendOpcode::LocalInvalidate, stag, length: 0, entries: 0, ..element };
                (&[], &[])
            }
        };
        if self.pair.post(element, entries, inline) {
            self.open.insert(self.next, "work");
            self.next += 1;
        }
    }

    /// Lets some time pass, and checks the results.
    fn go_on(&mut self, time: Duration) {
        self.peer.run_until(&mut self.world, time, |_, _| false);
        while let Some(ulpdu) = self.peer.take_fpdu() {
            assert_eq!(self.terminates, 0, "something behind a Terminate: {ulpdu:02x?}");
            match Header::parse(&ulpdu).expect("the engine's own segments are right") {
                Header::Untagged(header) if header.queue == QueueNumber::TERMINATE => self.terminates += 1,
                Header::Untagged(_) => self.asked += 1,
                Header::Tagged(_) => {}
            }
        }
        while let Some(completion) = self.pair.poll() {
            assert!(self.open.remove(&completion.id).is_some(), "completed twice, or never posted: {completion:?}");
        }
    }

    fn end(mut self) {
        self.go_on(10 * MILLISECOND);
        self.memory.committers.iter_mut().for_each(|committer| _ = committer.work());
        self.go_on(10 * MILLISECOND);
        self.world.hosts[0].command(Command::Abort { queue_pair: self.pair.number });
        self.go_on(10 * MILLISECOND);
        let ended = std::iter::from_fn(|| self.pair.events.try_recv().ok())
            .filter(|event| matches!(event, ConnectionEvent::Disconnected(_)))
            .count();
        assert_eq!(ended, 1, "the connection ends once");
        assert!(self.open.is_empty(), "work without an end: {:?}", self.open);
        self.memory.check(self.receives);
        let idle = |world: &World| {
            let engine = world.hosts[0].engine.as_ref().expect("alive");
            let pools = engine.stats().pools;
            engine.flow_count() == 0
                && engine.buffers_held() == 0
                && pools.transmit_free == pools.transmit_total
                && pools.receive_free == pools.receive_total
        };
        let rests = self.peer.run_until(&mut self.world, Duration::from_secs(300), |_, world| idle(world));
        assert!(rests, "something is left: {:?}", self.world.hosts[0].engine.as_ref().expect("alive").stats());
    }
}
