//! Peers that violate the protocol: each costs its own connection and nothing else.

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{
    AsyncEvent, Command, ConnectionEvent, ConnectionRequest, DisconnectReason, EventSink, Features, ListenerId,
    StartupOptions, TerminateCode, Watch,
};
use uwarp_engine::work::{SendElement, SendFlags, SendOpcode, Sge, Status};
use uwarp_memory::{Access, DomainId, Registration, Scope, TaggedBase};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request, untagged, write};
use uwarp_tcp::{Config, Events};
use uwarp_testkit::rig::{Pair, PairOptions, World};
use uwarp_wire::ddp::{Header, QueueNumber, Stag, TaggedOffset};
use uwarp_wire::rdmap::{AtomicRequest, CommitRegion, CommitRequest, Opcode, ReadRequest, Terminate};

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);

/// An engine with a healthy stream from another engine, and a raw peer in full operation with a queue pair of its own.
struct Scene {
    world: World,
    requests: Receiver<ConnectionRequest>,
    healthy: Pair,
    healthy_server: Pair,
    victim: Pair,
    region: Registration,
    peer: RawPeer,
}

fn scene() -> Scene {
    scene_with(Access::REMOTE_WRITE | Access::REMOTE_READ, StartupOptions::default())
}

fn scene_with(access: Access, accept: StartupOptions) -> Scene {
    scene_over(access, accept, &Config::default())
}

/// The raw peer has these TCP settings.
fn scene_over(access: Access, accept: StartupOptions, config: &Config) -> Scene {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let healthy = world.hosts[0].pair(PairOptions::default());
    let healthy_server = world.hosts[1].pair(PairOptions::default());
    world.join((0, &healthy), (1, &healthy_server), &requests, PORT);
    let victim = world.hosts[1].pair(PairOptions::default());
    let region = world.hosts[1].register(vec![0; 4096], access);
    let peer = RawPeer::connect_with(&world, 9, 1, PORT, config);
    let (peer, _) = peer.start_on(&mut world, 1, &victim, &requests, (&request(), accept));
    Scene { world, requests, healthy, healthy_server, victim, region, peer }
}

impl Scene {
    /// Sends a first, valid FPDU: before it a Responder may not send, not even a Terminate.
    fn greet(&mut self) {
        let hello = fpdu(&write(self.region.stag(), 0, b"hello"));
        self.peer.send(&hello);
        let region = &self.region;
        assert!(self.peer.run_until(&mut self.world, SECOND, |_, _| {
            let mut octets = [0; 5];
            region.read(0, &mut octets).is_ok() && octets == *b"hello"
        }));
    }

    /// The victim's stream has ended, the healthy one has not, and nothing is left behind.
    fn check(mut self, reason: Option<DisconnectReason>) {
        let mut ended = None;
        let victim = &self.victim;
        self.peer.run_until(&mut self.world, 40 * SECOND, |_, _| {
            ended = ended.take().or(victim.events.try_recv().ok());
            ended.is_some()
        });
        match (ended, reason) {
            (Some(ConnectionEvent::Disconnected(reason)), Some(expected)) => assert_eq!(reason, expected),
            (Some(ConnectionEvent::Disconnected(_)), None) => {}
            (other, _) => panic!("the stream did not end: {other:?}"),
        }
        while let Some(completion) = self.victim.poll() {
            assert_eq!(completion.status, Status::Flushed);
        }
        check_healthy(&mut self.world, &mut self.healthy);
        self.world.hosts[0].command(Command::Disconnect { queue_pair: self.healthy.number });
        assert!(self.peer.run_until(&mut self.world, 60 * SECOND, |_, world| {
            world.hosts.iter().all(|host| host.engine.as_ref().is_some_and(|engine| engine.flow_count() == 0))
        }));
        nothing_left(&mut self.world);
        drop(self.requests);
    }
}

fn check_healthy(world: &mut World, healthy: &mut Pair) {
    let source = world.hosts[0].register((0..100_000).map(|at| at as u8).collect::<Vec<u8>>(), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 100_000], Access::REMOTE_WRITE);
    let local = Sge { stag: source.stag(), length: 100_000, offset: 0 };
    assert!(healthy.post_simple(1, SendOpcode::Write, Some(local), (target.stag(), 0)));
    assert!(world.run_until(SECOND, |_| {
        let (mut sent, mut there) = (vec![0; 100_000], vec![0; 100_000]);
        source.read(0, &mut sent).is_ok() && target.read(0, &mut there).is_ok() && sent == there
    }));
}

fn nothing_left(world: &mut World) {
    world.run(Duration::from_millis(10));
    for host in &world.hosts {
        let engine = host.engine.as_ref().expect("alive");
        let stats = engine.stats();
        assert_eq!(engine.buffers_held(), 0);
        assert_eq!(stats.pools.transmit_free, stats.pools.transmit_total);
        assert_eq!(stats.pools.receive_free, stats.pools.receive_total);
    }
}

/// A Terminate is followed by FIN and not by a reset, however much the peer still sends and whether or not the
/// application keeps the queue pair: a reset could destroy the Terminate before the peer has read it (RFC 5040 §6.2.1).
/// What the peer sends is accepted and discarded, and a peer that never closes is reset when its time is up.
fn drained(keep: bool) {
    let mut scene = scene();
    scene.greet();
    scene.peer.send(&fpdu(&write(0x1234_5678, 0, &[0; 64])));
    let good = fpdu(&write(scene.region.stag(), 0, &[7; 1024]));
    for _ in 0..1024 {
        scene.peer.send(&good);
    }
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((1, 1, 0)));
    if !keep {
        scene.world.hosts[1].command(Command::DestroyQueuePair { queue_pair: scene.victim.number, done: None });
    }
    let limit = uwarp_engine::IwarpConfig::default().terminate_drain;
    scene.peer.run_until(&mut scene.world, limit / 2, |peer, _| peer.is_reset());
    assert!(!scene.peer.is_reset(), "before the peer had time to read");
    assert!(scene.peer.events.contains(Events::PEER_FIN), "no FIN behind the Terminate");
    assert!(scene.peer.has_sent_everything(), "what came behind the fault has to be taken");
    let mut octets = [0; 8];
    scene.region.read(0, &mut octets).expect("in bounds");
    assert_eq!(octets, *b"hello\0\0\0", "placed behind a fault");
    assert!(scene.peer.run_until(&mut scene.world, limit, |peer, _| peer.is_reset()), "a peer that never closes");
    check_healthy(&mut scene.world, &mut scene.healthy);
    nothing_left(&mut scene.world);
}

#[test]
fn a_terminate_is_followed_by_fin_and_no_reset() {
    drained(true);
}

#[test]
fn a_terminate_is_followed_by_no_reset_though_the_queue_pair_is_gone() {
    drained(false);
}

#[test]
fn faults_behind_the_first_give_a_peer_no_more_time() {
    let mut scene = scene();
    scene.greet();
    let mut bad = fpdu(&write(scene.region.stag(), 100, b"evil"));
    bad[20] ^= 1;
    scene.peer.send(&bad);
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((2, 0, 2)));
    let limit = uwarp_engine::IwarpConfig::default().terminate_drain;
    let end = scene.world.now() + limit + SECOND;
    while scene.world.now() < end && !scene.peer.is_reset() {
        scene.peer.send(&bad);
        scene.peer.run_until(&mut scene.world, SECOND / 2, |peer, _| peer.is_reset());
    }
    assert!(scene.peer.is_reset(), "kept alive by its own faults");
    scene.check(Some(DisconnectReason::LocalTerminated(TerminateCode { layer: 2, error_type: 0, code: 2 })));
}

fn terminated(send: impl FnOnce(&mut Scene), layer: u8, error_type: u8, code: u8) {
    let mut scene = scene();
    assert!(scene.victim.post_receive(1, &[]));
    scene.greet();
    send(&mut scene);
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((layer, error_type, code)));
    scene.check(Some(DisconnectReason::LocalTerminated(TerminateCode { layer, error_type, code })));
}

#[test]
fn a_bad_crc_is_terminated_and_nothing_of_it_is_placed() {
    terminated(
        |scene| {
            let mut bad = fpdu(&write(scene.region.stag(), 100, b"evil"));
            bad[20] ^= 1;
            scene.peer.send(&bad);
            scene.peer.run_until(&mut scene.world, Duration::from_millis(1), |_, _| false);
            let mut octets = [0; 8];
            scene.region.read(100, &mut octets).expect("in range");
            assert_eq!(octets, [0; 8]);
        },
        2,
        0,
        2,
    );
}

#[test]
fn a_wrong_message_number_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&untagged(Opcode::Send, 0, 2, 0, b""))), 1, 2, 3);
}

#[test]
fn a_wrong_message_offset_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&untagged(Opcode::Send, 0, 1, 4, b""))), 1, 2, 4);
}

#[test]
fn an_unknown_queue_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&untagged(Opcode::Send, 5, 1, 0, b""))), 1, 2, 1);
}

#[test]
fn an_unknown_stag_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&write(scene.region.stag() ^ 1, 0, b"evil"))), 1, 1, 0);
}

#[test]
fn an_offset_out_of_range_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&write(scene.region.stag(), 4093, b"evil"))), 1, 1, 1);
}

#[test]
fn an_offset_that_wraps_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&write(scene.region.stag(), u64::MAX, b"evil"))), 1, 1, 3);
}

#[test]
fn a_second_send_without_a_receive_is_terminated() {
    let mut scene = scene();
    scene.greet();
    scene.peer.send(&fpdu(&untagged(Opcode::Send, 0, 1, 0, b"")));
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((1, 2, 2)));
    scene.check(Some(DisconnectReason::LocalTerminated(TerminateCode { layer: 1, error_type: 2, code: 2 })));
}

#[test]
fn an_opcode_that_is_not_enabled_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&untagged(Opcode::AtomicRequest, 1, 1, 0, &[0; 52]))), 0, 2, 6);
}

#[test]
fn too_long_a_request_is_no_fault_of_a_posted_receive() {
    let mut scene = scene();
    for id in [1, 2] {
        assert!(scene.victim.post_receive(id, &[]));
    }
    scene.greet();
    scene.peer.send(&fpdu(&untagged(Opcode::ReadRequest, 1, 1, 0, &[0; 1045])));
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((1, 2, 5)));
    let done: Vec<_> = scene.victim.poll_all().iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(1, Status::Flushed), (2, Status::Flushed)]);
    let told: Vec<AsyncEvent> = scene.world.hosts[1].events.try_iter().collect();
    let status = Status::PeerProtocol;
    assert_eq!(told, [AsyncEvent::QueuePairFatal { queue_pair: scene.victim.number, status }]);
    scene.check(Some(DisconnectReason::LocalTerminated(TerminateCode { layer: 1, error_type: 2, code: 5 })));
}

#[test]
fn a_segment_shorter_than_its_header_is_terminated() {
    terminated(|scene| scene.peer.send(&fpdu(&[0xC1, 0x40, 0])), 1, 0, 0);
}

#[test]
fn a_read_response_that_nobody_asked_for_is_terminated() {
    terminated(
        |scene| {
            let mut response = write(scene.region.stag(), 0, b"evil");
            response[1] = 0x42;
            scene.peer.send(&fpdu(&response));
        },
        0,
        2,
        6,
    );
}

#[test]
fn more_reads_than_agreed_are_terminated() {
    // The engine answers at once, so the requests must arrive in one segment.
    terminated(
        |scene| {
            let stag = scene.region.stag();
            let mut body = vec![0; 28];
            body[0..4].copy_from_slice(&1u32.to_be_bytes());
            body[12..16].copy_from_slice(&4096u32.to_be_bytes());
            body[16..20].copy_from_slice(&stag.to_be_bytes());
            let requests: Vec<u8> =
                (1..=200).flat_map(|number| fpdu(&untagged(Opcode::ReadRequest, 1, number, 0, &body))).collect();
            scene.peer.send(&requests);
        },
        1,
        2,
        2,
    );
}

/// As [`scene`], with atomics and commits, and memory that the peer's stream must not use: of another domain, and of
/// another queue pair of its own domain.
fn scene_beside_others() -> (Scene, [Registration; 2]) {
    let features = Features { atomics: true, commit: true, ..Features::default() };
    let mut scene = scene_with(Access::ALL, StartupOptions { features, ..StartupOptions::default() });
    let host = &scene.world.hosts[1];
    let another = Scope::Domain(DomainId(2));
    let of_a_domain = host.regions.register(vec![7; 64], Access::ALL, another, TaggedBase::Zero);
    let of_a_stream = host.register_for(&scene.healthy_server, vec![7; 64], Access::ALL);
    scene.greet();
    (scene, [of_a_domain.expect("the table has room"), of_a_stream])
}

/// Waits for the Terminate, which must be the first message.
fn whole_terminate(scene: &mut Scene) -> Terminate {
    let mut said = None;
    scene.peer.run_until(&mut scene.world, 5 * SECOND, |peer, _| {
        said = peer.take_fpdu();
        said.is_some()
    });
    let said = said.expect("an answer");
    let Ok(Header::Untagged(header)) = Header::parse(&said) else { panic!("{said:02x?}") };
    assert_eq!(header.queue, QueueNumber::TERMINATE);
    Terminate::parse(&said[18..]).expect("a Terminate")
}

#[test]
fn requests_for_what_other_streams_have_are_terminated() {
    type Make = fn(Stag) -> (Opcode, Vec<u8>);
    let requests: [(&str, Make); 3] = [
        ("Read", |source_stag| {
            let (sink_stag, offset) = (Stag(0x1234), TaggedOffset(0));
            let read = ReadRequest { sink_stag, sink_offset: offset, length: 8, source_stag, source_offset: offset };
            (Opcode::ReadRequest, read.to_octets().to_vec())
        }),
        ("FetchAdd", |stag| {
            let atomic = AtomicRequest {
                operation: 0,
                request_identifier: 1,
                stag,
                offset: TaggedOffset(0),
                add_swap_data: 1,
                add_swap_mask: 0,
                compare_data: 0,
                compare_mask: 0,
            };
            (Opcode::AtomicRequest, atomic.to_octets().to_vec())
        }),
        ("Commit", |stag| {
            let mut octets = vec![0; CommitRequest::emit_len(1)];
            CommitRequest::emit(1, &[CommitRegion { stag, length: 8, offset: TaggedOffset(0) }], &mut octets);
            (Opcode::CommitRequest, octets)
        }),
    ];
    for (name, make) in requests {
        for other in 0..2 {
            let (mut scene, others) = scene_beside_others();
            let (opcode, body) = make(Stag(others[other].stag()));
            let ulpdu = untagged(opcode, 1, 1, 0, &body);
            scene.peer.send(&fpdu(&ulpdu));
            let terminate = whole_terminate(&mut scene);
            // RFC 5040 §7.2: remote protection error, STag not associated with the stream.
            let code = (terminate.layer.code(), terminate.error_type, terminate.code);
            assert_eq!(code, (0, 1, 3), "{name}");
            assert_eq!(terminate.segment_length, Some(ulpdu.len() as u16), "{name}");
            assert!(terminate.ddp_header.is_some_and(|quoted| ulpdu.starts_with(quoted.as_slice())), "{name}");
            // Figure 10 has an RDMAP header for Read Requests only.
            assert_eq!(terminate.read_request.is_some(), opcode == Opcode::ReadRequest, "{name}");
            let mut octets = [0; 64];
            others[other].read(0, &mut octets).expect("in range");
            assert_eq!(octets, [7; 64], "{name}");
            let code = TerminateCode { layer: 0, error_type: 1, code: 3 };
            scene.check(Some(DisconnectReason::LocalTerminated(code)));
        }
    }
}

#[test]
fn an_invalidation_of_what_the_stream_does_not_have_fails_the_receive_with_its_data_placed() {
    for opcode in [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate] {
        // Of no region, of another domain, of another queue pair.
        for other in [None, Some(0), Some(1)] {
            let (mut scene, others) = scene_beside_others();
            let inbox = scene.world.hosts[1].register(vec![0; 64], Access::LOCAL_WRITE);
            for (id, offset) in [(5, 0), (6, 32)] {
                assert!(scene.victim.post_receive(id, &[Sge { stag: inbox.stag(), length: 32, offset }]));
            }
            let stag = other.map_or(0xdead_be00, |other: usize| others[other].stag());
            let mut ulpdu = untagged(opcode, 0, 1, 0, b"these have come");
            ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
            scene.peer.send(&fpdu(&ulpdu));
            let terminate = whole_terminate(&mut scene);
            // RFC 5040 §7.2: remote protection error, STag cannot be invalidated.
            assert_eq!((terminate.layer.code(), terminate.error_type, terminate.code), (0, 1, 9), "{stag:#x}");
            assert_eq!(terminate.segment_length, Some(ulpdu.len() as u16));
            let done: Vec<_> = scene.victim.poll_all().iter().map(|one| (one.id, one.status)).collect();
            assert_eq!(done, [(5, Status::RemoteOperation), (6, Status::Flushed)], "{stag:#x}");
            let mut octets = [0; 64];
            inbox.read(0, &mut octets).expect("in range");
            assert_eq!(&octets[..16], b"these have come\0");
            assert!(octets[16..].iter().all(|octet| *octet == 0));
            assert!(others.iter().all(Registration::is_valid), "the STag stays");
            let code = TerminateCode { layer: 0, error_type: 1, code: 9 };
            scene.check(Some(DisconnectReason::LocalTerminated(code)));
        }
    }
}

/// The victim's stream ends because the peer has closed its half, and keeps it closed; returns what completes
/// meanwhile.
fn after_the_peers_fin(scene: &mut Scene) -> Vec<(u64, Status)> {
    scene.peer.close(&mut scene.world);
    let (victim, mut done) = (&mut scene.victim, Vec::new());
    assert!(
        scene.peer.run_until(&mut scene.world, 5 * SECOND, |peer, _| peer.events.contains(Events::PEER_FIN)),
        "no FIN of ours"
    );
    scene.peer.run_until(&mut scene.world, SECOND, |_, _| {
        done.extend(victim.poll_all().iter().map(|one| (one.id, one.status)));
        false
    });
    done
}

#[test]
fn what_is_fenced_behind_a_read_is_flushed_when_the_peer_closes_without_an_answer() {
    let mut scene = scene();
    scene.greet();
    let sink = scene.world.hosts[1].register(vec![0; 8], Access::LOCAL_WRITE);
    let local = Sge { stag: sink.stag(), length: 8, offset: 0 };
    assert!(scene.victim.post_simple(1, SendOpcode::Read, Some(local), (0x77, 0)));
    let element = SendElement {
        id: 3,
        opcode: SendOpcode::Send,
        flags: SendFlags::SIGNALLED.union(SendFlags::FENCE),
        stag: 0,
        remote_offset: 0,
        length: 0,
        entries: 0,
    };
    // Work without a fence does not wait for the answer.
    assert!(scene.victim.post_simple(2, SendOpcode::Send, None, (0, 0)));
    assert!(scene.victim.post(element, &[], &[]));
    for _ in 0..2 {
        assert!(scene.peer.run_until(&mut scene.world, SECOND, |peer, _| peer.take_fpdu().is_some()));
    }
    let done = after_the_peers_fin(&mut scene);
    assert!(scene.peer.received.is_empty(), "what is behind the fence stays");
    assert_eq!(done, [(1, Status::Flushed), (2, Status::Flushed), (3, Status::Flushed)]);
    scene.check(Some(DisconnectReason::PeerClosed));
}

#[test]
fn a_responder_that_never_heard_anything_flushes_its_work_when_the_peer_closes() {
    let mut scene = scene();
    assert!(scene.victim.post_simple(1, SendOpcode::Send, None, (0, 0)));
    let done = after_the_peers_fin(&mut scene);
    assert_eq!(done, [(1, Status::Flushed)]);
    assert!(scene.peer.received.is_empty(), "it has to be silent");
    scene.check(Some(DisconnectReason::PeerClosed));
}

#[test]
fn a_responder_that_never_heard_anything_does_not_wait_for_ever_to_disconnect() {
    let mut scene = scene();
    assert!(scene.victim.post_simple(1, SendOpcode::Send, None, (0, 0)));
    // A peer may be silent while it waits for an answer.
    let ended = |peer: &mut RawPeer, _: &mut World| peer.is_reset() || peer.events.contains(Events::PEER_FIN);
    assert!(!scene.peer.run_until(&mut scene.world, 60 * SECOND, ended));
    scene.world.hosts[1].command(Command::Disconnect { queue_pair: scene.victim.number });
    assert!(scene.peer.run_until(&mut scene.world, 11 * SECOND, |peer, _| peer.is_reset()));
    assert!(scene.peer.received.is_empty(), "it has to be silent");
    scene.check(Some(DisconnectReason::Local));
}

#[test]
fn stopping_inside_an_fpdu_by_a_close_ends_the_stream() {
    let mut scene = scene();
    scene.greet();
    let whole = fpdu(&write(scene.region.stag(), 0, &[1; 1000]));
    scene.peer.send(&whole[..500]);
    scene.peer.close(&mut scene.world);
    assert_eq!(scene.peer.terminate(&mut scene.world), Some((2, 0, 1)));
    let mut octets = [0; 8];
    scene.region.read(8, &mut octets).expect("in range");
    assert_eq!(octets, [0; 8]);
    scene.check(Some(DisconnectReason::PeerClosedEarly));
}

#[test]
fn work_that_was_sent_before_a_response_failed_has_succeeded() {
    let mut scene = scene();
    let first = scene.world.hosts[1].register_for(&scene.victim, vec![1; 1000], Access::ALL);
    let second = scene.world.hosts[1].register_for(&scene.victim, vec![2; 1000], Access::ALL);
    assert!(scene.victim.post_receive(5, &[]));
    // Not before the peer has sent; then in turn with the responses.
    assert!(scene.victim.post_simple(1, SendOpcode::Send, None, (0, 0)));
    let read = |number, region: &Registration| {
        let read = ReadRequest {
            sink_stag: Stag(1),
            sink_offset: TaggedOffset(0),
            length: 1000,
            source_stag: Stag(region.stag()),
            source_offset: TaggedOffset(0),
        };
        fpdu(&untagged(Opcode::ReadRequest, 1, number, 0, &read.to_octets()))
    };
    // The second region is deregistered when its response is due.
    let mut gone = untagged(Opcode::SendInvalidate, 0, 1, 0, &[]);
    gone[2..6].copy_from_slice(&second.stag().to_be_bytes());
    scene.peer.send(&[read(1, &first), read(2, &second), fpdu(&gone)].concat());
    let (mut said, mut last) = (Vec::new(), Vec::new());
    scene.peer.run_until(&mut scene.world, SECOND, |peer, _| {
        while let Some(ulpdu) = peer.take_fpdu() {
            said.push(ulpdu[1] & 15);
            last = ulpdu;
        }
        said.len() == 3
    });
    assert_eq!(said, [2, 3, 7], "a Read Response, the Send, a Terminate");
    let terminate = Terminate::parse(&last[18..]).expect("a Terminate");
    let request = terminate.read_request.expect("the request at fault");
    assert_eq!((request.length, request.source_offset), (1000, TaggedOffset(0)), "nothing of it was answered");
    let done: Vec<_> = scene.victim.poll_all().iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(5, Status::Success), (1, Status::Success)]);
    scene.check(None);
}

#[test]
fn stopping_inside_an_fpdu_by_dying_ends_the_stream_when_no_probe_is_answered() {
    let mut scene = scene();
    scene.greet();
    let whole = fpdu(&write(scene.region.stag(), 0, &[1; 60_000]));
    scene.peer.send(&whole[..30_000]);
    scene.peer.run_until(&mut scene.world, Duration::from_millis(10), |_, _| false);
    let Scene { mut world, mut healthy, victim, peer, .. } = scene;
    drop(peer);
    let mut ended = None;
    world.run_until(60 * SECOND, |_| {
        ended = victim.events.try_recv().ok();
        ended.is_some()
    });
    let reason = DisconnectReason::TimedOut;
    assert_eq!(ended, Some(ConnectionEvent::Disconnected(reason)));
    check_healthy(&mut world, &mut healthy);
    world.hosts[0].command(Command::Disconnect { queue_pair: healthy.number });
    assert!(world.run_until(60 * SECOND, |world| {
        world.hosts[1].engine.as_ref().is_some_and(|engine| engine.flow_count() == 0)
    }));
    nothing_left(&mut world);
}

/// In both directions: a full Write of ours, and one of the peer's.
fn streams_over(config: &Config) {
    const LENGTH: usize = 20_000;
    let mut scene = scene_over(Access::REMOTE_WRITE, StartupOptions::default(), config);
    scene.greet();
    let sent: Vec<u8> = (0..LENGTH).map(|at| (at * 7 + at / 251) as u8).collect();
    let source = scene.world.hosts[1].register(sent.clone(), Access::LOCAL_READ);
    let local = Sge { stag: source.stag(), length: LENGTH as u32, offset: 0 };
    assert!(scene.victim.post_simple(1, SendOpcode::Write, Some(local), (77, 0)));
    scene.peer.send(&fpdu(&write(scene.region.stag(), 100, &[9; 1000])));
    let mut received = Vec::new();
    let complete = scene.peer.run_until(&mut scene.world, 60 * SECOND, |peer, _| {
        while let Some(ulpdu) = peer.take_fpdu() {
            let Ok(Header::Tagged(header)) = Header::parse(&ulpdu) else { panic!("a Write: {ulpdu:?}") };
            assert_eq!((header.stag, header.offset), (Stag(77), TaggedOffset(received.len() as u64)));
            received.extend_from_slice(&ulpdu[14..]);
        }
        received.len() >= LENGTH && peer.has_sent_everything()
    });
    assert!(complete, "{} octets of the stream: {config:?}", received.len());
    assert!(received == sent);
    let mut there = vec![0; 1000];
    scene.region.read(100, &mut there).expect("in range");
    assert_eq!(there, [9; 1000]);
    let victim = &mut scene.victim;
    assert!(scene.peer.run_until(&mut scene.world, SECOND, |_, _| {
        victim.poll().is_some_and(|completion| completion.status == Status::Success)
    }));
    scene.peer.close(&mut scene.world);
    scene.check(None);
}

/// FPDUs are sent in parts, as the window admits them.
#[test]
fn a_window_smaller_than_an_fpdu_lets_the_stream_through() {
    for receive_window in [1000, 300, 100] {
        streams_over(&Config { receive_window, window_scale: false, ..Config::default() });
    }
}

/// DDP is offered at least 128 octets, however small the segments are: TCP cuts what is longer.
#[test]
fn segments_smaller_than_an_fpdu_let_the_stream_through() {
    for mss in [64, 100, 128, 152, 536] {
        streams_over(&Config { mss, ..Config::default() });
    }
}

#[test]
fn an_fpdu_in_single_octets_is_put_together() {
    let mut scene = scene();
    let whole = fpdu(&write(scene.region.stag(), 0, b"hello"));
    for octet in &whole {
        scene.peer.send(&[*octet]);
    }
    let region = &scene.region;
    assert!(scene.peer.run_until(&mut scene.world, 5 * SECOND, |_, _| {
        let mut octets = [0; 5];
        region.read(0, &mut octets).is_ok() && octets == *b"hello"
    }));
    scene.world.hosts[1].command(Command::Abort { queue_pair: scene.victim.number });
    scene.check(Some(DisconnectReason::Aborted));
}

#[test]
fn words_that_are_no_mpa_request_are_answered_by_a_reset() {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let mut peer = RawPeer::connect(&world, 9, 1, PORT);
    peer.send(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n");
    assert!(peer.run_until(&mut world, SECOND, |peer, _| peer.events.contains(Events::RESET)));
    assert!(requests.try_recv().is_err());
    nothing_left(&mut world);
}

#[test]
fn a_peer_that_never_sends_its_request_is_reset() {
    let mut world = World::two();
    let _requests = world.hosts[1].listen(PORT);
    let mut peer = RawPeer::connect(&world, 9, 1, PORT);
    peer.send(&request()[..10]);
    assert!(peer.run_until(&mut world, 20 * SECOND, |peer, _| peer.events.contains(Events::RESET)));
    nothing_left(&mut world);
}

/// A hundred peers open a connection and send nothing: no more of them are held than the backlog has room for, and
/// those not for long.
#[test]
fn silent_peers_are_held_up_to_the_backlog_and_until_their_time_is_over() {
    const BACKLOG: u32 = 8;
    let mut world = World::two();
    let (sink, requests) = crossbeam::channel::unbounded();
    let (reply, _) = crossbeam::channel::unbounded();
    let requests_sink = EventSink::new(sink, None);
    let listener = ListenerId(1);
    world.hosts[1].command(Command::Listen {
        listener,
        address: None,
        port: PORT,
        backlog: BACKLOG,
        requests: requests_sink,
        watch: Watch::default(),
        reply,
    });
    let mut peers: Vec<_> = (100..200).map(|host| RawPeer::connect(&world, host, 1, PORT)).collect();
    let flows = |world: &World| world.hosts[1].engine.as_ref().map_or(0, |engine| engine.flow_count());
    let mut most = 0;
    let end = world.now() + 30 * SECOND;
    while world.now() < end {
        for peer in &mut peers {
            peer.turn(world.now());
        }
        most = most.max(flows(&world));
        // The peers' waits are not events of the world.
        world.run(Duration::from_millis(5));
    }
    assert!((1..=BACKLOG as usize).contains(&most), "{most} held at once");
    assert!(requests.try_recv().is_err());
    drop(peers);
    assert!(world.run_until(60 * SECOND, |world| flows(world) == 0));
    let client = world.hosts[0].pair(PairOptions::default());
    let server = world.hosts[1].pair(PairOptions::default());
    world.join((0, &client), (1, &server), &requests, PORT);
}

/// Valid streams with a few changed octets: nothing panics, no other stream is affected, everything is returned.
#[test]
fn damaged_streams_cost_at_most_themselves() {
    for seed in 0..150 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut scene = scene();
        for number in 0..4 {
            assert!(scene.victim.post_receive(number, &[]));
        }
        let stag = scene.region.stag();
        let mut octets = Vec::new();
        for number in 1..=random.u32(1..20) {
            let mut ulpdu = match random.u32(0..4) {
                0 => write(stag, random.u64(0..5000), &vec![1; random.usize(0..600)]),
                1 => untagged(Opcode::Send, 0, random.u32(1..=number), 0, &vec![2; random.usize(0..3)]),
                2 => untagged(Opcode::Terminate, 2, 1, 0, &[0x12, 5, 0xC0, 0]),
                _ => untagged(Opcode::ReadRequest, 1, random.u32(1..=number), 0, &[0; 28]),
            };
            // Before the CRC is computed, so that the damage reaches the layers above.
            if random.bool() {
                let place = random.usize(0..ulpdu.len().min(46));
                ulpdu[place] ^= 1 << random.u32(0..8);
            }
            octets.extend(fpdu(&ulpdu));
        }
        if random.bool() {
            octets.truncate(random.usize(0..octets.len()));
        }
        scene.peer.send(&octets);
        scene.peer.run_until(&mut scene.world, Duration::from_millis(50), |_, _| false);
        scene.peer.close(&mut scene.world);
        let Scene { mut world, mut healthy, victim, mut peer, .. } = scene;
        peer.run_until(&mut world, 5 * SECOND, |_, _| victim.events.try_recv().is_ok());
        world.hosts[1].command(Command::Abort { queue_pair: victim.number });
        check_healthy(&mut world, &mut healthy);
        world.hosts[0].command(Command::Disconnect { queue_pair: healthy.number });
        let over = peer.run_until(&mut world, 60 * SECOND, |_, world| {
            world.hosts.iter().all(|host| host.engine.as_ref().is_some_and(|engine| engine.flow_count() == 0))
        });
        assert!(over, "seed {seed}");
        nothing_left(&mut world);
    }
}
