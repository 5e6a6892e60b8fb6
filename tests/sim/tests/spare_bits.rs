//! Peers that lie in the bits that RFC 5040 and RFC 5041 reserve. Two ends that have agreed on InfiniBand's rules say
//! there how long a message waits for a receive, and that a Send has immediate data. A peer that says nonsense ends its
//! own stream, or is not listened to.

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{
    Command, ConnectionEvent, ConnectionRequest, DisconnectReason, Features, NotReady, NotReadyRetries, Rules,
    StartupOptions, TerminateCode,
};
use uwarp_engine::work::{Completion, CompletionFlags, SendOpcode, Sge, Status};
use uwarp_memory::{Access, Registration};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request, untagged, write};
use uwarp_testkit::rig::{Pair, PairOptions, World};
use uwarp_wire::ddp::{QueueNumber, Stag, TaggedOffset};
use uwarp_wire::rdmap::{Opcode, ReadRequest, Terminate, TerminateLayer, TerminatedHeader};

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// Octets of the region that the peer may use.
const ROOM: usize = 4096;
/// The mark of immediate data, in the second octet.
const IMMEDIATE: u8 = 0x20;
/// How a receiver says that a message found no buffer.
const NO_BUFFER: (u8, u8) = (2, 2);

/// An engine with a healthy stream from another one, and a raw peer in full operation with a queue pair of its own.
struct Scene {
    world: World,
    healthy: [Pair; 2],
    victim: Pair,
    region: Registration,
    peer: RawPeer,
    _requests: Receiver<ConnectionRequest>,
    /// The number of the peer's next message.
    next: u32,
}

impl Scene {
    fn new(infiniband: bool) -> Scene {
        let mut world = World::two();
        let requests = world.hosts[1].listen(PORT);
        let options = PairOptions { receive_depth: 64, ..PairOptions::default() };
        let healthy = [world.hosts[0].pair(options), world.hosts[1].pair(options)];
        world.join((0, &healthy[0]), (1, &healthy[1]), &requests, PORT);
        let victim = world.hosts[1].pair(options);
        let not_ready = NotReady { retries: NotReadyRetries::FOR_EVER, pause: PAUSE };
        let rules = Rules { not_ready, ..Rules::default() };
        let (done, _) = crossbeam::channel::bounded(1);
        world.hosts[1].command(Command::SetRules { queue_pair: victim.number, rules, done });
        let region = world.hosts[1].register(vec![0; ROOM], Access::REMOTE_WRITE | Access::REMOTE_READ);
        let features = Features { infiniband, immediate: true, atomics: true, commit: false };
        let accept = StartupOptions { features, ..StartupOptions::default() };
        let (peer, _) = RawPeer::start_with(&mut world, 9, 1, &victim, &requests, PORT, (&request(), accept));
        Scene { world, healthy, victim, region, peer, _requests: requests, next: 1 }
    }

    /// Sends a message of queue 0 with these spare bits in its two control octets and this word in place of an STag.
    fn send(&mut self, opcode: Opcode, (ddp, rdmap): (u8, u8), word: u32, payload: &[u8]) {
        let mut ulpdu = untagged(opcode, 0, self.next, 0, payload);
        self.next += 1;
        (ulpdu[0], ulpdu[1]) = (ulpdu[0] | ddp, ulpdu[1] | rdmap);
        ulpdu[2..6].copy_from_slice(&word.to_be_bytes());
        self.peer.send(&fpdu(&ulpdu));
    }

    /// The next completion of the victim.
    fn completion(&mut self) -> Completion {
        let (mut found, victim) = (None, &mut self.victim);
        self.peer.run_until(&mut self.world, SECOND, |_, _| {
            found = victim.poll();
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("no completion; {:?}", self.victim.events.try_recv()))
    }

    /// The victim's stream goes on.
    fn goes_on(&mut self) {
        assert!(self.victim.post_receive(999, &[]));
        self.send(Opcode::Send, (0, 0), 0, &[]);
        let done = self.completion();
        assert_eq!((done.id, done.status, done.flags), (999, Status::Success, CompletionFlags::default()));
    }

    /// What the victim hears of its end.
    fn end(&mut self) -> DisconnectReason {
        let (mut ended, victim) = (None, &self.victim);
        self.peer.run_until(&mut self.world, 40 * SECOND, |_, _| {
            ended = victim.events.try_recv().ok();
            ended.is_some()
        });
        let Some(ConnectionEvent::Disconnected(reason)) = ended else { panic!("the stream did not end: {ended:?}") };
        reason
    }

    /// The healthy stream goes on, and what the engines hold is given back at its end.
    fn harms_nobody(mut self) {
        let source = self.world.hosts[0].register(vec![7; 100_000], Access::LOCAL_READ);
        let target = self.world.hosts[1].register(vec![0; 100_000], Access::REMOTE_WRITE);
        let local = Sge { stag: source.stag(), length: 100_000, offset: 0 };
        let [healthy, _] = &mut self.healthy;
        assert!(healthy.post_simple(1, SendOpcode::Write, Some(local), (target.stag(), 0)));
        let is_there = |_: &mut World| {
            let mut found = vec![0; 100_000];
            target.read(0, &mut found).is_ok() && found.iter().all(|octet| *octet == 7)
        };
        assert!(self.world.run_until(SECOND, is_there));
        self.world.hosts[0].command(Command::Disconnect { queue_pair: self.healthy[0].number });
        self.world.hosts[1].command(Command::Abort { queue_pair: self.victim.number });
        assert!(self.peer.run_until(&mut self.world, 60 * SECOND, |_, world| {
            world.hosts.iter().all(|host| host.engine.as_ref().is_some_and(|engine| engine.flow_count() == 0))
        }));
        self.world.run(Duration::from_millis(10));
        for engine in self.world.hosts.iter().flat_map(|host| &host.engine) {
            let pools = engine.stats().pools;
            assert_eq!(engine.buffers_held(), 0);
            assert_eq!((pools.transmit_free, pools.receive_free), (pools.transmit_total, pools.receive_total));
        }
    }
}

/// Every value of the bits in the first octet, as both of its bits and as the number among them.
fn spare() -> impl Iterator<Item = u8> {
    (0..16).map(|bits| bits << 2)
}

#[test]
fn without_the_agreement_spare_bits_mean_nothing() {
    let mut scene = Scene::new(false);
    for (id, ddp) in spare().enumerate() {
        for opcode in [Opcode::Send, Opcode::SendSolicited] {
            assert!(scene.victim.post_receive(id as u64, &[]));
            scene.send(opcode, (ddp, IMMEDIATE), 0xdead_beef, &[]);
            let done = scene.completion();
            assert_eq!((done.id, done.status, done.immediate_data()), (id as u64, Status::Success, None));
            assert!(!done.flags.contains(CompletionFlags::IMMEDIATE), "{done:?}");
        }
    }
    scene.goes_on();
    scene.harms_nobody();
}

/// A Write, a Read Request and an Immediate have no immediate data of a Send's, whatever they say.
#[test]
fn with_the_agreement_the_mark_of_immediate_data_counts_on_a_send_alone() {
    let mut scene = Scene::new(true);
    for ddp in spare() {
        let mut ulpdu = write(scene.region.stag(), 0, b"placed");
        (ulpdu[0], ulpdu[1]) = (ulpdu[0] | ddp, ulpdu[1] | IMMEDIATE);
        scene.peer.send(&fpdu(&ulpdu));
        assert!(scene.victim.post_receive(1, &[]));
        scene.send(Opcode::Immediate, (ddp, IMMEDIATE), 0xdead_beef, &5_u64.to_be_bytes());
        let done = scene.completion();
        assert_eq!((done.id, done.status, done.immediate_data()), (1, Status::Success, Some(5)));
        assert!(!done.flags.contains(CompletionFlags::WITH_SEND), "{done:?}");
        let mut found = [0; 6];
        scene.region.read(0, &mut found).expect("in bounds");
        assert_eq!(&found, b"placed");
    }
    // Where it counts.
    assert!(scene.victim.post_receive(2, &[]));
    scene.send(Opcode::SendSolicited, (0, IMMEDIATE), 0xdead_beef, &[]);
    assert_eq!(scene.completion().immediate_data(), Some(0xdead_beef));
    let read = ReadRequest {
        sink_stag: Stag(77),
        sink_offset: TaggedOffset(0),
        length: 6,
        source_stag: Stag(scene.region.stag()),
        source_offset: TaggedOffset(0),
    };
    let mut ulpdu = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST.0, 1, 0, &read.to_octets());
    (ulpdu[0], ulpdu[1]) = (ulpdu[0] | 0x3c, ulpdu[1] | IMMEDIATE);
    scene.peer.send(&fpdu(&ulpdu));
    let mut answer = None;
    scene.peer.run_until(&mut scene.world, SECOND, |peer, _| {
        answer = peer.take_fpdu();
        answer.is_some()
    });
    assert!(answer.is_some_and(|answer| answer.ends_with(b"placed")));
    scene.goes_on();
    scene.harms_nobody();
}

/// The STag's word of a Send with Invalidate is an STag, and the mark does not make immediate data of it.
#[test]
fn a_send_with_invalidate_that_is_marked_invalidates_and_no_more() {
    let mut scene = Scene::new(true);
    let stag = scene.region.stag();
    assert!(scene.victim.post_receive(1, &[]));
    scene.send(Opcode::SendInvalidate, (0, IMMEDIATE), stag ^ 0xff00, &[]);
    assert!(matches!(scene.end(), DisconnectReason::LocalTerminated(_)), "no such STag");
    scene.harms_nobody();
}

/// What later segments of a message say is not what its first one said.
#[test]
fn only_the_first_segment_of_a_message_says_how_long_it_waits() {
    let mut scene = Scene::new(true);
    let inbox = scene.world.hosts[1].register(vec![0; 200], Access::LOCAL_WRITE);
    let retries = NotReadyRetries::FOR_EVER.bits();
    for (at, bits) in [(0, retries), (100, NotReadyRetries::new(0).expect("few").bits())] {
        let mut ulpdu = untagged(Opcode::Send, 0, 1, at, &[at as u8; 100]);
        // The first one is not the last.
        ulpdu[0] = ulpdu[0] & if at == 0 { !0x40 } else { 0xff } | bits;
        scene.peer.send(&fpdu(&ulpdu));
    }
    scene.next = 2;
    scene.peer.run_until(&mut scene.world, 100 * SECOND, |_, _| false);
    assert!(scene.victim.poll().is_none() && scene.victim.events.is_empty(), "it waits for ever");
    assert!(scene.victim.post_receive(1, &[Sge { stag: inbox.stag(), length: 200, offset: inbox.base_offset() }]));
    let done = scene.completion();
    assert_eq!((done.id, done.status, done.length), (1, Status::Success, 200));
    scene.goes_on();
    scene.harms_nobody();
}

/// The peer names a message that this side has never sent, or none at all.
#[test]
fn a_peer_that_is_not_ready_for_what_was_never_sent_ends_its_stream_alone() {
    for (asks, number) in [(false, 1), (false, 999), (true, 1), (true, 999)] {
        let mut scene = Scene::new(true);
        scene.goes_on();
        let sink = scene.world.hosts[1].register(vec![0; 8], Access::LOCAL_WRITE);
        if asks {
            // Never answered.
            let sink = Sge { stag: sink.stag(), length: 8, offset: sink.base_offset() };
            assert!(scene.victim.post_simple(5, SendOpcode::Read, Some(sink), (77, 0)));
            scene.peer.run_until(&mut scene.world, Duration::from_millis(50), |_, _| false);
        }
        let message = Terminate {
            segment_length: Some(18),
            ddp_header: TerminatedHeader::from_segment(&untagged(Opcode::Send, 0, number, 0, &[])),
            ..Terminate::new(TerminateLayer::Ddp, NO_BUFFER.0, NO_BUFFER.1)
        };
        let mut payload = vec![0; message.emit_len()];
        message.emit(&mut payload);
        let mut ulpdu = untagged(Opcode::Terminate, QueueNumber::TERMINATE.0, 1, 0, &payload);
        ulpdu[0] |= 0x3c;
        scene.peer.send(&fpdu(&ulpdu));
        let expected = TerminateCode { layer: 1, error_type: NO_BUFFER.0, code: NO_BUFFER.1 };
        assert_eq!(scene.end(), DisconnectReason::PeerTerminated(expected), "{asks} {number}");
        let failed = scene.victim.poll().map(|done| (done.id, done.status));
        assert_eq!(failed, asks.then_some((5, Status::ReceiverNotReady)));
        scene.harms_nobody();
    }
}

/// Messages that find no receive, more than anybody would keep, each of which says something else.
#[test]
fn a_flood_of_messages_that_are_to_wait_takes_no_more_than_its_share() {
    for retries in [NotReadyRetries::FOR_EVER, NotReadyRetries::new(6).expect("few")] {
        let mut scene = Scene::new(true);
        for at in 0..10_000_u32 {
            let said = if at == 0 { retries.bits() } else { (at as u8 & 0xf) << 2 };
            scene.send(Opcode::Send, (said, at as u8 & IMMEDIATE), at, &[1; 1000]);
        }
        let begun = scene.world.now();
        let mut least = u32::MAX;
        scene.peer.run_until(&mut scene.world, 5 * SECOND, |_, world| {
            let pools = world.hosts[1].engine.as_ref().expect("alive").stats().pools;
            least = least.min(pools.receive_free * 100 / pools.receive_total);
            false
        });
        assert!(least >= 25, "{least} % of the buffers were free");
        match retries.count() {
            None => assert!(scene.victim.events.is_empty(), "it waits for ever"),
            Some(count) => {
                assert!(matches!(scene.end(), DisconnectReason::LocalTerminated(_)));
                assert!(scene.world.now() >= begun + PAUSE * count);
            }
        }
        scene.harms_nobody();
    }
}
