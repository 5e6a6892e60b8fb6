//! A peer that leaves the first FPDU unread until more octets come, as Linux' siw may, and other silent peers.

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{ConnectionEvent, ReadyToReceiveKinds, StartupOptions};
use uwarp_engine::stream::{IncomingStream, StreamEnds, StreamOptions};
use uwarp_engine::work::{Completion, CompletionOpcode, SendOpcode, Sge, Status};
use uwarp_iwarp::framing::{Framed, deframe};
use uwarp_memory::kernels::crc32c;
use uwarp_memory::{Access, Registration};
use uwarp_sim_tests::raw::{fpdu, untagged, write};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::mpa::{FrameKind, StartupFrame};
use uwarp_wire::rdmap::Opcode;

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);
/// What the client sends, and what it gets for it.
const QUESTION: [u8; 8] = *b"question";
const ANSWER: [u8; 8] = *b"answers.";
/// A Write of nothing.
const NUDGE: [u8; 14] = [0xC1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

/// A client on an engine, and a peer that has nothing of iWARP but what the test does with its octets.
struct Scene {
    world: World,
    client: Pair,
    region: Registration,
    incoming: Receiver<IncomingStream>,
    done: Vec<Completion>,
    peer: Option<StreamEnds>,
    /// What the peer has and has not read.
    unread: Vec<u8>,
}

impl Scene {
    /// The client waits so long before it sends what the peer may have missed.
    fn new(nudge_after: Duration) -> Scene {
        let mut world = World::new(1, SimOptions::default());
        world.add(HostOptions::default(), |config| config.iwarp.nudge_after = nudge_after);
        world.add(HostOptions::default(), |_| {});
        let incoming = world.hosts[1].listen_streams(PORT, 8, StreamOptions::default());
        let mut client = world.hosts[0].pair(PairOptions::default());
        let mut octets = vec![0; 16];
        octets[8..].copy_from_slice(&QUESTION);
        let region = world.hosts[0].register(octets, Access::LOCAL_WRITE);
        assert!(client.post_receive(1, &[Sge { stag: region.stag(), length: 8, offset: 0 }]));
        Scene { world, client, region, incoming, done: Vec::new(), peer: None, unread: Vec::new() }
    }

    /// Connects, up to the peer's Reply.
    fn start(&mut self, options: StartupOptions) {
        let address = (self.world.hosts[1].address, PORT);
        self.world.hosts[0].connect(&self.client, address, options);
        let mut answered = false;
        assert!(self.run_until(SECOND, |scene| {
            let Some(peer) = &mut scene.peer else {
                scene.peer = scene.incoming.try_recv().ok().and_then(IncomingStream::take);
                return false;
            };
            let request = StartupFrame::parse(FrameKind::Request, &scene.unread).expect("a Request");
            if let Some((request, length)) = request
                && !answered
            {
                let reply = StartupFrame { kind: FrameKind::Reply, private_data: &[], ..request };
                let mut octets = vec![0; reply.emit_len()];
                reply.emit(&mut octets).expect("it fits");
                scene.unread.drain(..length);
                assert_eq!(peer.write(&octets), octets.len());
                answered = true;
            }
            answered && matches!(scene.client.events.try_recv(), Ok(ConnectionEvent::Established(_)))
        }));
    }

    fn ask(&mut self) {
        let local = Sge { stag: self.region.stag(), length: 8, offset: 8 };
        assert!(self.client.post_simple(2, SendOpcode::Send, Some(local), (0, 0)));
    }

    fn answer(&mut self, number: u32) {
        let octets = fpdu(&untagged(Opcode::Send, 0, number, 0, &ANSWER));
        assert_eq!(self.peer.as_mut().expect("it is there").write(&octets), octets.len());
    }

    /// TCP takes all that comes, whether or not anybody reads it.
    fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Scene) -> bool) -> bool {
        let end = self.world.now() + limit;
        while self.world.now() < end {
            let mut room = [0; 4096];
            if let Some(peer) = &mut self.peer {
                let count = peer.read(&mut room);
                self.unread.extend_from_slice(&room[..count]);
            }
            self.done.extend(self.client.poll_all());
            if done(self) {
                return true;
            }
            self.world.step();
        }
        false
    }

    fn run(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// The FPDUs that the peer has not read.
    fn fpdus(&self) -> Vec<Vec<u8>> {
        let (mut rest, mut found) = (&self.unread[..], Vec::new());
        while let Framed::Fpdu { ulpdu, fpdu_len } = deframe(rest, Some(crc32c)) {
            found.push(rest[ulpdu].to_vec());
            rest = &rest[fpdu_len..];
        }
        assert!(rest.is_empty(), "{rest:x?}");
        found
    }

    fn nudges(&self) -> u64 {
        let stats = self.world.hosts[0].engine.as_ref().expect("it lives").stats();
        assert_eq!(stats.counters.internal_faults, 0);
        stats.counters.nudges_sent
    }

    /// One message was sent, one received, and nothing else.
    fn check(&mut self) {
        self.run(SECOND);
        let mut done: Vec<_> = self.done.iter().map(|one| (one.id, one.opcode, one.status)).collect();
        done.sort_unstable_by_key(|one| one.0);
        let receive = (1, CompletionOpcode::Receive, Status::Success);
        assert_eq!(done, [receive, (2, CompletionOpcode::Send, Status::Success)]);
        let mut octets = [0; 8];
        self.region.read(0, &mut octets).expect("in range");
        assert_eq!(octets, ANSWER);
        assert!(self.client.events.try_recv().is_err(), "the stream goes on");
    }
}

/// The start-ups, and the indication that comes before all else in a peer-to-peer one.
fn startups() -> [(StartupOptions, Option<Vec<u8>>); 4] {
    let kind = |ready_to_receive| StartupOptions { peer_to_peer: true, ready_to_receive, ..StartupOptions::default() };
    let none = ReadyToReceiveKinds::NONE;
    let zero = uwarp_wire::rdmap::ReadRequest {
        sink_stag: uwarp_wire::ddp::Stag(1),
        source_stag: uwarp_wire::ddp::Stag(1),
        ..Default::default()
    };
    [
        (StartupOptions::default(), None),
        (kind(ReadyToReceiveKinds { write: true, ..none }), Some(NUDGE.to_vec())),
        (kind(ReadyToReceiveKinds { send: true, ..none }), Some(untagged(Opcode::Send, 0, 1, 0, &[]))),
        (
            kind(ReadyToReceiveKinds { read: true, ..none }),
            Some(untagged(Opcode::ReadRequest, 1, 1, 0, &zero.to_octets())),
        ),
    ]
}

#[test]
fn a_peer_that_leaves_the_first_fpdu_unread_until_more_comes_gets_more() {
    assert_eq!(write(1, 0, &[]), NUDGE);
    for (options, indication) in startups() {
        let mut scene = Scene::new(Duration::from_millis(5));
        scene.start(options);
        if indication.is_none() {
            scene.ask();
        }
        assert!(scene.run_until(SECOND, |scene| scene.fpdus().len() > 1), "{indication:?}");
        // Of a peer-to-peer start-up, the indication is the first FPDU, and either side may go on.
        let question = untagged(Opcode::Send, 0, 1, 0, &QUESTION);
        let first = indication.clone().unwrap_or_else(|| question.clone());
        assert_eq!(scene.fpdus(), [first.clone(), NUDGE.to_vec()]);
        scene.answer(1);
        if indication.is_some() {
            let count = scene.fpdus().len();
            scene.run(SECOND);
            assert_eq!(scene.fpdus().len(), count, "it has been heard");
            scene.ask();
        }
        scene.check();
        let last = scene.fpdus();
        assert_eq!((last.len(), scene.nudges()), (2 + usize::from(indication.is_some()), 1));
        // The Write has taken nothing of what numbers the messages.
        let number = if last[0] == untagged(Opcode::Send, 0, 1, 0, &[]) { 2 } else { 1 };
        assert!(indication.is_none() || last[2] == untagged(Opcode::Send, 0, number, 0, &QUESTION), "{last:x?}");
    }
}

#[test]
fn a_peer_that_is_silent_for_ever_gets_a_few_writes_of_nothing() {
    let mut scene = Scene::new(Duration::from_millis(5));
    scene.start(StartupOptions::default());
    scene.ask();
    scene.run(60 * SECOND);
    assert_eq!((scene.fpdus().len(), scene.nudges()), (1 + 5, 5));
    // It is no error to answer late.
    scene.answer(1);
    scene.check();
    assert_eq!(scene.nudges(), 5);
}

#[test]
fn whoever_turns_it_off_or_has_sent_nothing_sends_no_write_of_nothing() {
    for (nudge_after, asks) in [(Duration::ZERO, true), (Duration::from_millis(5), false)] {
        let mut scene = Scene::new(nudge_after);
        scene.start(StartupOptions::default());
        if asks {
            scene.ask();
        }
        scene.run(60 * SECOND);
        assert_eq!((scene.fpdus().len(), scene.nudges()), (usize::from(asks), 0));
    }
}

#[test]
fn a_peer_that_answers_at_once_gets_no_write_of_nothing() {
    let mut scene = Scene::new(Duration::from_millis(5));
    scene.start(StartupOptions::default());
    scene.ask();
    assert!(scene.run_until(SECOND, |scene| !scene.fpdus().is_empty()));
    scene.answer(1);
    scene.check();
    assert_eq!((scene.fpdus().len(), scene.nudges()), (1, 0));
}

#[test]
fn a_pause_before_the_first_fpdu_comes_before_the_peers_silence() {
    let mut scene = Scene::new(Duration::from_millis(5));
    scene.start(StartupOptions { first_fpdu_delay: Duration::from_millis(100), ..StartupOptions::default() });
    scene.ask();
    scene.run(Duration::from_millis(90));
    assert!(scene.fpdus().is_empty());
    assert!(scene.run_until(SECOND, |scene| scene.fpdus().len() > 1));
    scene.answer(1);
    scene.check();
    assert_eq!(scene.nudges(), 1);
}
