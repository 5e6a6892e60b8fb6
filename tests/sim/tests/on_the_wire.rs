//! What an engine sends and accepts, octet by octet, where only a peer that reads every FPDU can tell (RFC 5040, 5041,
//! 5044 and 6581).

use std::path::Path;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{
    Command, ConnectionEvent, ConnectionRequest, DisconnectReason, Features, ReadyToReceiveKinds, StartupOptions,
    TerminateCode,
};
use uwarp_engine::work::{AtomicOperands, SendElement, SendFlags, SendOpcode, Sge, Status};
use uwarp_iwarp::framing::{CRC_LEN, Framed, deframe, insert_markers};
use uwarp_memory::kernels::crc32c;
use uwarp_memory::{Access, DomainId, Registration, Scope, TaggedBase};
use uwarp_sim_tests::pairs::{PORT, SECOND, element, sge, with};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request, request_with, untagged, write};
use uwarp_tcp::Events;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::ddp::{Header, Stag, TaggedOffset};
use uwarp_wire::frame::{Frame, TcpFrame, classify};
use uwarp_wire::mpa::{EnhancedData, FrameKind, StartupFrame};
use uwarp_wire::rdmap::{AtomicRequest, Opcode, ReadRequest};

/// A raw peer in full operation with a queue pair of host 1.
struct Scene {
    world: World,
    requests: Receiver<ConnectionRequest>,
    pair: Pair,
    region: Registration,
    peer: RawPeer,
}

fn scene(accept: StartupOptions) -> Scene {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let pair = world.hosts[1].pair(PairOptions::default());
    let region = world.hosts[1].register(vec![0; 4096], Access::ALL);
    // As many requests as an engine likes.
    let request = request_with(EnhancedData { ird: 16, ord: 16, ..EnhancedData::default() });
    let (peer, _) = RawPeer::start_with(&mut world, 9, 1, &pair, &requests, PORT, (&request, accept));
    Scene { world, requests, pair, region, peer }
}

impl Scene {
    /// Sends an FPDU. After the first one the Responder may send.
    fn say(&mut self, ulpdu: &[u8]) {
        self.peer.send(&fpdu(ulpdu));
        self.pass();
    }

    /// Time for everything to arrive.
    fn pass(&mut self) {
        self.peer.run_until(&mut self.world, SECOND / 100, |_, _| false);
    }

    /// The received FPDUs, until there are `count`.
    fn hear(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        self.peer.run_until(&mut self.world, SECOND, |peer, _| {
            all.extend(std::iter::from_fn(|| peer.take_fpdu()));
            all.len() >= count
        });
        all
    }

    fn statuses(&mut self) -> Vec<(u64, Status)> {
        self.pair.poll_all().iter().map(|one| (one.id, one.status)).collect()
    }

    fn end(&mut self) -> Option<DisconnectReason> {
        let (pair, mut end) = (&self.pair, None);
        self.peer.run_until(&mut self.world, 40 * SECOND, |_, _| {
            end = pair.events.try_recv().ok();
            end.is_some()
        });
        match end {
            Some(ConnectionEvent::Disconnected(reason)) => Some(reason),
            _ => None,
        }
    }
}

fn octets(region: &Registration) -> Vec<u8> {
    let mut all = vec![0; region.len()];
    region.read(0, &mut all).expect("in range");
    all
}

/// A message on the wire, with its number if it is untagged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Send { number: u32, length: usize },
    Immediate { number: u32, data: u64 },
    Read { number: u32, source_offset: u64 },
    FetchAdd { number: u32, offset: u64 },
    Write { offset: u64 },
}

fn parse(ulpdu: &[u8]) -> Said {
    match Header::parse(ulpdu).expect("a DDP header") {
        Header::Tagged(header) => Said::Write { offset: header.offset.0 },
        Header::Untagged(header) => {
            let (number, body) = (header.message_sequence_number.0, &ulpdu[18..]);
            match header.control.opcode().expect("an opcode") {
                Opcode::Send => Said::Send { number, length: body.len() },
                Opcode::Immediate => {
                    Said::Immediate { number, data: u64::from_be_bytes(body.try_into().expect("eight octets")) }
                }
                Opcode::ReadRequest => {
                    Said::Read { number, source_offset: ReadRequest::parse(body).expect("28 octets").source_offset.0 }
                }
                Opcode::AtomicRequest => {
                    Said::FetchAdd { number, offset: AtomicRequest::parse(body).expect("52 octets").offset.0 }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// RFC 5040 §5.2.1, §5.3 and §5.5 (9), RFC 5041 §5.2: messages are sent in the order of posting, numbered on their
/// queues from 1.
#[test]
fn messages_leave_in_the_order_of_posting() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut scene = scene(with(Features { atomics: true, immediate: true, commit: false, infiniband: false }));
        let source = scene.world.hosts[1].register(vec![1; 64], Access::LOCAL_WRITE);
        scene.say(&write(1, 0, &[]));
        let (mut expected, mut sends, mut requests) = (Vec::new(), 0, 0);
        for id in 1..=16u64 {
            let remote = SendElement { stag: 7, remote_offset: 8 * id, ..element(id, SendOpcode::Write) };
            let local = [sge(&source, 0, id as u32)];
            let with_entry = |opcode| SendElement { opcode, length: id as u32, entries: 1, ..remote };
            let (element, entries, inline) = match random.u8(..5) {
                0 => {
                    sends += 1;
                    expected.push(Said::Send { number: sends, length: id as usize });
                    (with_entry(SendOpcode::Send), &local[..], vec![])
                }
                1 => {
                    sends += 1;
                    expected.push(Said::Immediate { number: sends, data: 8 * id });
                    (SendElement { opcode: SendOpcode::Immediate, ..remote }, &[][..], vec![])
                }
                2 => {
                    requests += 1;
                    expected.push(Said::Read { number: requests, source_offset: 8 * id });
                    (with_entry(SendOpcode::Read), &local[..], vec![])
                }
                3 => {
                    requests += 1;
                    expected.push(Said::FetchAdd { number: requests, offset: 8 * id });
                    let operands = AtomicOperands { add_swap: 1, add_swap_mask: 0, compare: 0, compare_mask: u64::MAX };
                    let length = AtomicOperands::LEN as u32;
                    let flags = SendFlags::SIGNALLED.union(SendFlags::INLINE);
                    let element = SendElement { opcode: SendOpcode::FetchAdd, flags, length, ..remote };
                    (element, &[][..], operands.to_octets().to_vec())
                }
                _ => {
                    expected.push(Said::Write { offset: 8 * id });
                    (with_entry(SendOpcode::Write), &local[..], vec![])
                }
            };
            assert!(scene.pair.post(element, entries, &inline));
        }
        let said: Vec<_> = scene.hear(expected.len()).iter().map(|ulpdu| parse(ulpdu)).collect();
        assert_eq!(said, expected, "seed {seed}");
    }
}

/// The octets behind the first segment of data (MPA's Request) that were sent to [`PORT`] of a network without loss.
fn sent_behind_the_request(path: &Path) -> Vec<u8> {
    let mut sent = Vec::new();
    for frame in uwarp_testkit::capture::frames(path) {
        if let Ok(Frame::Tcp(TcpFrame { header, payload_offset, payload_len, .. })) = classify(&frame, frame.len())
            && header.destination_port == PORT
        {
            sent.extend_from_slice(&frame[payload_offset..payload_offset + payload_len]);
        }
    }
    let request = StartupFrame::parse(FrameKind::Request, &sent).expect("a Request").expect("all of it");
    sent.split_off(request.1)
}

/// RFC 5044 §7.1.2 and RFC 6581 §5: an Initiator with work to send sends only its Request before the Reply has arrived,
/// and then its ready-to-receive indication before anything else.
#[test]
fn an_initiators_indication_is_its_first_fpdu() {
    let none = ReadyToReceiveKinds::NONE;
    let empty_read =
        ReadRequest { sink_stag: Stag(1), source_stag: Stag(1), length: 0, ..ReadRequest::default() }.to_octets();
    let kinds = [
        (ReadyToReceiveKinds { send: true, ..none }, untagged(Opcode::Send, 0, 1, 0, &[]), 2),
        (ReadyToReceiveKinds { write: true, ..none }, write(1, 0, &[]), 1),
        (ReadyToReceiveKinds { read: true, ..none }, untagged(Opcode::ReadRequest, 1, 1, 0, &empty_read), 1),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("start.pcap");
    for (ready_to_receive, indication, number) in kinds {
        let mut world = World::two();
        let (reply, opened) = crossbeam::channel::unbounded();
        world.hosts[0].command(Command::StartCapture { path: path.clone(), reply });
        world.run(SECOND / 1000);
        assert_eq!(opened.try_recv(), Ok(Ok(())));
        let requests = world.hosts[1].listen(PORT);
        let mut client = world.hosts[0].pair(PairOptions::default());
        let mut server = world.hosts[1].pair(PairOptions::default());
        assert!(server.post_receive(1, &[]) && server.post_receive(2, &[]));
        assert!(client.post_simple(3, SendOpcode::Write, None, (7, 8)));
        assert!(client.post_simple(4, SendOpcode::Send, None, (0, 0)));
        let options = StartupOptions { peer_to_peer: true, ready_to_receive, ..StartupOptions::default() };
        world.hosts[0].connect(&client, (world.hosts[1].address, PORT), options);
        assert!(world.run_until(SECOND, |_| !requests.is_empty()));
        world.run(SECOND);
        let stats = world.hosts[0].engine.as_ref().expect("it lives").stats();
        assert_eq!(stats.counters.fpdus_sent, 0, "{ready_to_receive:?}: it spoke before the Reply");
        let request = requests.try_recv().expect("seen");
        world.hosts[1].accept(&server, &request, StartupOptions::default());
        assert!(world.run_until(SECOND, |_| server.poll().is_some()), "{ready_to_receive:?}");
        world.hosts[0].command(Command::StopCapture);
        world.run(SECOND / 1000);
        let mut sent = &sent_behind_the_request(&path)[..];
        let mut ulpdus = Vec::new();
        while let Framed::Fpdu { ulpdu, fpdu_len } = deframe(sent, Some(crc32c)) {
            ulpdus.push(sent[ulpdu].to_vec());
            sent = &sent[fpdu_len..];
        }
        // Behind it, the posted messages in order.
        let send = untagged(Opcode::Send, 0, number, 0, &[]);
        assert_eq!(ulpdus, [indication, write(7, 8, &[]), send], "{ready_to_receive:?}");
    }
}

/// RFC 5040 §5.4: whatever still waits to be sent, a Terminate is the last message of its stream.
#[test]
fn nothing_follows_a_terminate() {
    let mut scene = scene(StartupOptions::default());
    let source = scene.world.hosts[1].register(vec![1; 100_000], Access::LOCAL_READ);
    for id in 0..20 {
        let local = Some(sge(&source, 0, 100_000));
        assert!(scene.pair.post_simple(id, SendOpcode::Write, local, (7, 0)));
    }
    scene.peer.send(&fpdu(&write(1, 0, &[])));
    scene.peer.run_until(&mut scene.world, SECOND, |peer, _| !peer.received.is_empty());
    scene.peer.send(&fpdu(&write(0xdead_beef, 0, b"evil")));
    let mut said = Vec::new();
    scene.peer.run_until(&mut scene.world, 5 * SECOND, |peer, _| {
        said.extend(std::iter::from_fn(|| peer.take_fpdu()));
        peer.events.contains(Events::PEER_FIN)
    });
    assert!(scene.peer.events.contains(Events::PEER_FIN) && scene.peer.received.is_empty());
    let terminates: Vec<_> = (0..said.len()).filter(|at| said[*at][1] == 0x47).collect();
    assert_eq!(terminates, [said.len() - 1], "of {} messages", said.len());
    let flushed = scene.statuses().iter().filter(|(_, status)| *status == Status::Flushed).count();
    assert!(flushed > 10, "work was still waiting: {flushed} Writes");
}

/// RFC 5040 §7.1 (1): a message that cannot be built is replaced by a Terminate without headers.
#[test]
fn a_message_that_cannot_be_built_is_replaced_by_a_terminate_without_headers() {
    for opcode in [SendOpcode::Send, SendOpcode::Write, SendOpcode::Read] {
        // One FPDU; and one of several, of which those before the mistake have been sent.
        for length in [8, 5000] {
            let mut scene = scene(StartupOptions::default());
            let short = scene.world.hosts[1].register(vec![1; length as usize - 1], Access::LOCAL_WRITE);
            scene.say(&write(1, 0, &[]));
            assert!(scene.pair.post_simple(5, opcode, Some(sge(&short, 0, length)), (7, 0)));
            assert!(scene.pair.post_simple(6, SendOpcode::Send, None, (0, 0)));
            scene.pass();
            let said = scene.hear(usize::MAX);
            let terminate = untagged(Opcode::Terminate, 2, 1, 0, &[0; 4]);
            assert_eq!(said.last(), Some(&terminate), "{opcode:?} of {length}: {said:02x?}");
            assert!(said.len() == 1 || length > 8);
            assert_eq!(scene.statuses(), [(5, Status::LocalProtection), (6, Status::Flushed)]);
            assert_eq!(scene.end(), Some(DisconnectReason::LocalError(Status::LocalProtection)));
        }
    }
}

/// RFC 5040 §5.5 (12): a Read Request is processed when everything before it is delivered, even if all arrived in one
/// segment.
#[test]
fn a_read_brings_what_a_write_before_it_in_the_same_segment_has_left() {
    let mut scene = scene(StartupOptions::default());
    let stag = scene.region.stag();
    for round in 1..=10u8 {
        let read = ReadRequest { length: 64, source_stag: Stag(stag), ..ReadRequest::default() };
        let read = untagged(Opcode::ReadRequest, 1, u32::from(round), 0, &read.to_octets());
        scene.peer.send(&[fpdu(&write(stag, 0, &[round; 64])), fpdu(&read)].concat());
        let said = scene.hear(1);
        assert_eq!(said[0][14..], [round; 64]);
    }
    // A part of a request is not a request yet, and nothing is read for it.
    let mut part = untagged(Opcode::ReadRequest, 1, 11, 0, &[0; 28]);
    part[0] &= !0x40;
    scene.say(&part);
    assert_eq!(scene.hear(1)[0][1], 0x47, "a Terminate and no response");
}

/// RFC 5040 §5.4: there is always room for the peer's Terminate.
#[test]
fn a_terminate_needs_no_posted_receive() {
    let mut scene = scene(StartupOptions { ird: 0, ord: 0, ..StartupOptions::default() });
    scene.say(&write(1, 0, &[]));
    scene.say(&untagged(Opcode::Terminate, 2, 1, 0, &[0x12, 5, 0, 0]));
    let code = TerminateCode { layer: 1, error_type: 2, code: 5 };
    assert_eq!(scene.end(), Some(DisconnectReason::PeerTerminated(code)));
}

/// RFC 5044 §7.1.2: nothing is sent or handed up before the Request is complete, and nothing is sent before it is
/// answered.
#[test]
fn a_responder_is_silent_until_it_answers_a_whole_request() {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let pair = world.hosts[1].pair(PairOptions::default());
    let mut peer = RawPeer::connect(&world, 9, 1, PORT);
    for octet in request() {
        assert!(requests.is_empty(), "handed up before it was whole");
        peer.send(&[octet]);
        assert!(peer.run_until(&mut world, SECOND, |peer, _| peer.has_sent_everything()));
        assert!(peer.received.is_empty() && !peer.is_reset());
    }
    let asked = requests.try_recv().expect("a request");
    for _ in 0..1000 {
        peer.turn(world.now());
        world.step();
    }
    assert!(peer.received.is_empty(), "the application has not answered");
    world.hosts[1].accept(&pair, &asked, StartupOptions::default());
    assert!(peer.run_until(&mut world, SECOND, |peer, _| !peer.received.is_empty()));
    assert!(StartupFrame::parse(FrameKind::Reply, &peer.received).is_ok_and(|reply| reply.is_some()));
}

/// RFC 5044 §8, code 3: under a valid CRC, a marker and the chain of lengths disagree.
#[test]
fn a_marker_that_points_elsewhere_is_terminated_and_its_fpdu_not_placed() {
    let mut scene = scene(StartupOptions { markers: true, ..StartupOptions::default() });
    let stag = scene.region.stag();
    let mut position = 0;
    let mut marked = |ulpdu: &[u8]| {
        let mut room = fpdu(ulpdu);
        let plain = room.len();
        room.resize(plain + 16, 0);
        let length = insert_markers(&mut room, plain, position, Some(crc32c));
        room.truncate(length);
        let at = (512 - position as usize % 512) % 512;
        position += length as u64;
        (room, at)
    };
    let (hello, _) = marked(&write(stag, 0, b"hello"));
    let (mut wrong, at) = marked(&write(stag, 0, &[7; 1000]));
    wrong[at + 3] ^= 4;
    let crc_at = wrong.len() - CRC_LEN;
    let crc = crc32c(&wrong[..crc_at]);
    wrong[crc_at..].copy_from_slice(&crc.to_le_bytes());
    scene.peer.send(&hello);
    scene.pass();
    assert_eq!(octets(&scene.region)[..8], *b"hello\0\0\0");
    scene.peer.send(&wrong);
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((2, 0, 3)));
    assert_eq!(octets(&scene.region)[..8], *b"hello\0\0\0");
    let code = TerminateCode { layer: 2, error_type: 0, code: 3 };
    assert_eq!(scene.end(), Some(DisconnectReason::LocalTerminated(code)));
}

/// RFC 5044 §4.4: CRCs are off only if neither side requests them. Then the field exists, is sent as zero, and is not
/// checked.
#[test]
fn crcs_are_checked_unless_both_sides_do_without() {
    for (ours, peers) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut world = World::new(1, SimOptions::default());
        world.add(HostOptions::default(), |_| {});
        world.add(HostOptions::default(), |config| config.iwarp.crc = ours);
        let requests = world.hosts[1].listen(PORT);
        let mut pair = world.hosts[1].pair(PairOptions::default());
        let region = world.hosts[1].register(vec![0; 64], Access::ALL);
        let mut request = request();
        request[16] = request[16] & !0x40 | if peers { 0x40 } else { 0 };
        let how = (&request[..], StartupOptions::default());
        let (mut peer, reply) = RawPeer::start_with(&mut world, 9, 1, &pair, &requests, PORT, how);
        assert_eq!(reply[16] & 0x40 != 0, ours || peers);
        let mut wrong = fpdu(&write(region.stag(), 0, b"hello"));
        *wrong.last_mut().expect("a CRC") ^= 1;
        peer.send(&fpdu(&write(1, 0, &[])));
        peer.send(&wrong);
        peer.run_until(&mut world, SECOND / 100, |_, _| false);
        let checked = ours || peers;
        assert_eq!(octets(&region)[..5] == *b"hello", !checked, "{ours} {peers}");
        assert!(pair.post_simple(1, SendOpcode::Send, None, (0, 0)));
        peer.run_until(&mut world, SECOND / 100, |_, _| false);
        if checked {
            assert_eq!(peer.terminate(&mut world), Some((2, 0, 2)));
        } else {
            let mut expected = fpdu(&untagged(Opcode::Send, 0, 1, 0, &[]));
            let crc_at = expected.len() - CRC_LEN;
            expected[crc_at..].fill(0);
            assert_eq!(peer.received, expected);
        }
    }
}

/// RFC 5041 §7.1 and §8: a Write to memory of another protection domain, or of another queue pair of its own domain.
#[test]
fn a_write_to_what_other_streams_have_is_terminated() {
    for of_a_domain in [true, false] {
        let mut scene = scene(StartupOptions::default());
        let other = scene.world.hosts[1].pair(PairOptions::default());
        let host = &scene.world.hosts[1];
        let region = match of_a_domain {
            true => {
                let scope = Scope::Domain(DomainId(2));
                host.regions.register(vec![7; 64], Access::ALL, scope, TaggedBase::Zero).expect("room")
            }
            false => host.register_for(&other, vec![7; 64], Access::ALL),
        };
        scene.say(&write(1, 0, &[]));
        scene.say(&write(region.stag(), 0, b"evil"));
        assert_eq!(scene.peer.terminate(&mut scene.world), Some((1, 1, 2)));
        assert_eq!(octets(&region), [7; 64]);
    }
}

/// RFC 5040 §7.1 (3) and §7.2: the fault of a Read's source, and the request is returned with both of its headers.
#[test]
fn a_read_whose_source_is_refused_comes_back_with_its_headers() {
    let cases: [(u64, u32, u8, u32); 6] =
        [(0, 8, 0, 1), (4096, 1, 1, 0), (0, 4097, 1, 0), (u64::MAX, 1, 1, 0), (u64::MAX, 2, 4, 0), (0, 8, 2, 2)];
    for (offset, length, code, other) in cases {
        let mut scene = scene(StartupOptions::default());
        let unreadable = scene.world.hosts[1].register(vec![7; 64], Access::REMOTE_WRITE);
        let stag = match other {
            0 => scene.region.stag(),
            1 => scene.region.stag() ^ 1,
            _ => unreadable.stag(),
        };
        let (source_stag, source_offset) = (Stag(stag), TaggedOffset(offset));
        let read = ReadRequest { length, source_stag, source_offset, sink_stag: Stag(9), ..ReadRequest::default() };
        let read = untagged(Opcode::ReadRequest, 1, 1, 0, &read.to_octets());
        scene.say(&write(1, 0, &[]));
        scene.say(&read);
        let answer = scene.hear(1).remove(0);
        let expected = [&[0x01, code, 0xe0, 0], &46u16.to_be_bytes()[..], &read].concat();
        assert_eq!(answer[18..], expected, "{length} octets at {offset:x} of {other}");
    }
}

/// RFC 5040 §4.4: a Read may have any length of 32 bits. Its response begins like every long one, alone and behind
/// another.
#[test]
fn the_longest_reads_are_answered_in_full_segments() {
    for before in [0, 1000] {
        let mut scene = scene(StartupOptions::default());
        // Only what is sent is ever touched.
        let long = scene.world.hosts[1].register(vec![0; u32::MAX as usize], Access::REMOTE_READ);
        scene.say(&write(1, 0, &[]));
        let mut asked = Vec::new();
        for (number, length) in [(1, before), (2, u32::MAX)] {
            let source_stag = Stag(long.stag());
            let read = ReadRequest { length, source_stag, sink_stag: Stag(9), ..ReadRequest::default() };
            asked.extend(fpdu(&untagged(Opcode::ReadRequest, 1, number, 0, &read.to_octets())));
        }
        scene.peer.send(&asked);
        let answers = scene.hear(40);
        let payloads: Vec<(usize, bool)> =
            answers.iter().map(|answer| (answer.len() - 14, answer[0] & 0x40 != 0)).collect();
        assert_eq!(payloads[0], (before as usize, true));
        let full = payloads[2].0;
        assert!(full > 1000 && payloads[1..].iter().all(|part| *part == (full, false)), "{payloads:?}");
    }
}

/// RFC 5041 §8 and RFC 5042: a message is placed in a receive of its own stream only, even if there is none.
#[test]
fn each_stream_fills_its_own_receives() {
    let mut first = scene(StartupOptions::default());
    let mut second_pair = first.world.hosts[1].pair(PairOptions::default());
    let how = (&request()[..], StartupOptions::default());
    let (mut second, _) = RawPeer::start_with(&mut first.world, 8, 1, &second_pair, &first.requests, PORT, how);
    let inbox = first.world.hosts[1].register(vec![0; 32], Access::LOCAL_WRITE);
    let entry = |at: u64| [Sge { stag: inbox.stag(), length: 8, offset: inbox.base_offset() + at }];
    assert!(first.pair.post_receive(1, &entry(0)));
    assert!(second_pair.post_receive(2, &entry(8)) && second_pair.post_receive(3, &entry(16)));
    second.send(&fpdu(&untagged(Opcode::Send, 0, 1, 0, b"second")));
    second.run_until(&mut first.world, SECOND / 100, |_, _| false);
    first.say(&untagged(Opcode::Send, 0, 1, 0, b"first"));
    assert_eq!(first.statuses(), [(1, Status::Success)]);
    let done: Vec<_> = second_pair.poll_all().iter().map(|one| (one.id, one.length)).collect();
    assert_eq!(done, [(2, 6)]);
    assert_eq!(octets(&inbox)[..16], *b"first\0\0\0second\0\0");
    // The first has no receive left; that the second has one does not help it.
    first.say(&untagged(Opcode::Send, 0, 2, 0, b"more"));
    assert_eq!(first.peer.terminate(&mut first.world), Some((1, 2, 2)));
    assert_eq!((second_pair.poll(), &octets(&inbox)[16..]), (None, &[0; 16][..]));
    // The second continues.
    second.send(&fpdu(&untagged(Opcode::Send, 0, 2, 0, b"again")));
    second.run_until(&mut first.world, SECOND / 100, |_, _| false);
    assert_eq!(second_pair.poll_all().iter().map(|one| one.id).collect::<Vec<_>>(), [3]);
    assert_eq!(octets(&inbox)[16..24], *b"again\0\0\0");
}
