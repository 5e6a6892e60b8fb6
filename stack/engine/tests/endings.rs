//! How streams end, seen from both sides: in order, by Terminate, by loss; and that nothing is left of them.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use common::{PORT, SECOND, completions, contents, end, event, join, joined, joined_with, nothing_left, pattern, sge};
use crossbeam::channel::{Receiver, unbounded};
use uwarp_engine::command::{
    Abandoned, AsyncEvent, Command, ConnectFailure, ConnectionEvent, DisconnectReason, StartupOptions, TerminateCode,
};
use uwarp_engine::port::Batch;
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_engine::work::{SendOpcode, Status};
use uwarp_engine::{Capabilities, LinkState, PoolLevels, Port};
use uwarp_memory::Access;
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{Pair, PairOptions, World};

fn code(layer: u8, error_type: u8, code: u8) -> TerminateCode {
    TerminateCode { layer, error_type, code }
}

#[test]
fn a_disconnect_finishes_what_was_posted_and_flushes_what_waits() {
    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(pattern(300_000, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 300_000], Access::REMOTE_WRITE);
    for id in 0..3 {
        assert!(client.post_receive(100 + id, &[]));
        assert!(server.post_receive(200 + id, &[]));
    }
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 300_000)), (target.stag(), 0));
    client.post_simple(2, SendOpcode::Send, None, (0, 0));
    world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
    assert_eq!(end(&mut world, &server, 5 * SECOND), DisconnectReason::PeerClosed);
    assert_eq!(end(&mut world, &client, 5 * SECOND), DisconnectReason::Local);
    assert_eq!(contents(&target), contents(&source));
    let done: Vec<_> = client.poll_all().iter().map(|completion| (completion.id, completion.status)).collect();
    let flushed = Status::Flushed;
    assert_eq!(done, [(1, Status::Success), (2, Status::Success), (100, flushed), (101, flushed), (102, flushed)]);
    let done: Vec<_> = server.poll_all().iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, [(200, Status::Success), (201, flushed), (202, flushed)]);
    // What is posted afterwards is flushed at once.
    client.post_simple(3, SendOpcode::Send, None, (0, 0));
    assert!(client.post_receive(103, &[]));
    let late = completions(&mut world, &mut client, 2, SECOND);
    assert!(late.iter().all(|completion| completion.status == flushed) && late.len() == 2);
    nothing_left(&mut world);
}

#[test]
fn a_request_can_be_rejected_with_words() {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let client = world.hosts[0].pair(PairOptions::default());
    let options = StartupOptions { private_data: b"let me in".to_vec(), ird: 3, ord: 5, ..StartupOptions::default() };
    world.hosts[0].connect(&client, (world.hosts[1].address, PORT), options);
    let mut request = None;
    assert!(world.run_until(SECOND, |_| {
        request = requests.try_recv().ok();
        request.is_some()
    }));
    let request = request.expect("seen");
    assert_eq!((request.private_data.as_slice(), request.ird, request.ord), (&b"let me in"[..], Some(3), Some(5)));
    world.hosts[1].command(Command::Reject { request: request.request, private_data: b"no".to_vec() });
    let rejected = event(&mut world, &client, SECOND);
    assert_eq!(
        rejected,
        Some(ConnectionEvent::Rejected { private_data: b"no".to_vec(), peer_ird: Some(16), peer_ord: Some(16) })
    );
    // The queue pair is idle again and may try once more.
    let server = world.hosts[1].pair(PairOptions::default());
    world.join((0, &client), (1, &server), &requests, PORT);
}

/// TCP is open at once; the peer's application may take its time, up to a limit of its own.
#[test]
fn an_initiator_waits_for_the_reply_as_long_as_it_is_told() {
    for (reply_timeout, wait, is_long_enough) in
        [(None, 2, false), (Some(60 * SECOND), 50, true), (Some(5 * SECOND), 6, false)]
    {
        let mut world = World::two();
        let requests = world.hosts[1].listen(PORT);
        let client = world.hosts[0].pair(PairOptions::default());
        let server = world.hosts[1].pair(PairOptions::default());
        let options = StartupOptions { timeout: SECOND, reply_timeout, ..StartupOptions::default() };
        world.hosts[0].connect(&client, (world.hosts[1].address, PORT), options);
        world.run(wait * SECOND);
        let request = requests.try_recv().expect("seen");
        assert_eq!(client.events.is_empty(), is_long_enough);
        if is_long_enough {
            world.hosts[1].accept(&server, &request, StartupOptions::default());
        }
        match event(&mut world, &client, SECOND) {
            Some(ConnectionEvent::Established(_)) => assert!(is_long_enough),
            failed => assert_eq!(failed, Some(ConnectionEvent::Failed(ConnectFailure::TimedOut))),
        }
    }
}

#[test]
fn an_accept_is_told_to_the_client_though_a_disconnect_or_a_shutdown_is_right_behind_it() {
    for shutdown in [false, true] {
        let mut world = World::two();
        let requests = world.hosts[1].listen(PORT);
        let client = world.hosts[0].pair(PairOptions::default());
        let server = world.hosts[1].pair(PairOptions::default());
        world.hosts[0].connect(&client, (world.hosts[1].address, PORT), StartupOptions::default());
        assert!(world.run_until(SECOND, |_| !requests.is_empty()));
        let request = requests.try_recv().expect("seen");
        let options = StartupOptions { private_data: b"hello, and goodbye".to_vec(), ..StartupOptions::default() };
        world.hosts[1].accept(&server, &request, options);
        let (done, report) = unbounded();
        world.hosts[1].command(match shutdown {
            true => Command::Shutdown { linger: 5 * SECOND, done },
            false => Command::Disconnect { queue_pair: server.number },
        });
        let Some(ConnectionEvent::Established(established)) = event(&mut world, &client, SECOND) else {
            panic!("no Reply: shutdown {shutdown}");
        };
        assert_eq!(established.private_data, b"hello, and goodbye");
        assert_eq!(end(&mut world, &client, SECOND), DisconnectReason::PeerClosed);
        let Some(ConnectionEvent::Established(_)) = event(&mut world, &server, SECOND) else { panic!("it accepted") };
        assert_eq!(end(&mut world, &server, SECOND), DisconnectReason::Local);
        if shutdown {
            assert!(world.run_until(SECOND, |_| !report.is_empty()));
            world.hosts[1].engine = None;
        }
        nothing_left(&mut world);
    }
}

#[test]
fn attempts_that_cannot_succeed_say_why() {
    let mut world = World::two();
    let client = world.hosts[0].pair(PairOptions::default());
    let failed = |reason| Some(ConnectionEvent::Failed(reason));
    let attempt = |world: &mut World, host: [u8; 4], port| {
        world.hosts[0].connect(&client, (std::net::Ipv4Addr::from(host), port), StartupOptions::default());
        event(world, &client, 20 * SECOND)
    };
    assert_eq!(attempt(&mut world, [10, 0, 0, 2], 1), failed(ConnectFailure::Refused));
    assert_eq!(attempt(&mut world, [10, 0, 0, 77], 1), failed(ConnectFailure::Unreachable));
    assert_eq!(attempt(&mut world, [224, 0, 0, 1], 1), failed(ConnectFailure::Address));
    let requests = world.hosts[1].listen(PORT);
    // Nobody answers the request.
    assert_eq!(attempt(&mut world, [10, 0, 0, 2], PORT), failed(ConnectFailure::TimedOut));
    // The request is gone once the reset has arrived.
    world.run(Duration::from_millis(1));
    let request = requests.try_recv().expect("it came");
    let server = world.hosts[1].pair(PairOptions::default());
    world.hosts[1].accept(&server, &request, StartupOptions::default());
    let gone = Some(ConnectionEvent::Failed(ConnectFailure::RequestGone));
    assert_eq!(event(&mut world, &server, SECOND), gone);
    nothing_left(&mut world);
}

/// Lets the client do something that the server answers with a Terminate, and checks that a second connection between
/// the same hosts goes on and that nothing is left of the first.
fn terminated(expected: TerminateCode, act: impl FnOnce(&mut World, &mut Pair, &mut Pair)) -> (World, Pair, Pair) {
    let (mut world, mut client, mut server, requests) = joined_with(PairOptions::default());
    let (mut other, _other_server) = join(&mut world, &requests, PairOptions::default());
    act(&mut world, &mut client, &mut server);
    assert_eq!(end(&mut world, &client, 5 * SECOND), DisconnectReason::PeerTerminated(expected));
    assert_eq!(end(&mut world, &server, 5 * SECOND), DisconnectReason::LocalTerminated(expected));
    let told: Vec<AsyncEvent> = world.hosts[0].events.try_iter().collect();
    assert_eq!(told, [AsyncEvent::PeerTerminated { queue_pair: client.number, code: expected }]);
    let source = world.hosts[0].register(pattern(100_000, 2), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 100_000], Access::REMOTE_WRITE);
    other.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 100_000)), (target.stag(), 0));
    assert!(world.run_until(SECOND, |_| contents(&target) == contents(&source)));
    world.hosts[0].command(Command::Disconnect { queue_pair: other.number });
    end(&mut world, &other, 5 * SECOND);
    nothing_left(&mut world);
    (world, client, server)
}

#[test]
fn a_write_to_an_unknown_stag_is_terminated() {
    terminated(code(1, 1, 0), |world, client, _| {
        let source = world.hosts[0].register(vec![0; 8], Access::LOCAL_READ);
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 8)), (0x1234_5678, 0));
        world.run(Duration::from_millis(1));
    });
}

#[test]
fn a_write_out_of_bounds_is_terminated_and_places_nothing() {
    let mut target = None;
    terminated(code(1, 1, 1), |world, client, _| {
        let source = world.hosts[0].register(vec![9; 4000], Access::LOCAL_READ);
        let region = world.hosts[1].register(vec![0; 3000], Access::REMOTE_WRITE);
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 4000)), (region.stag(), 2500));
        world.run(Duration::from_millis(1));
        target = Some(region);
    });
    assert!(target.is_some_and(|region| contents(&region).iter().all(|octet| *octet == 0)));
}

#[test]
fn a_write_to_memory_that_may_only_be_read_is_terminated() {
    terminated(code(1, 1, 0), |world, client, _| {
        let source = world.hosts[0].register(vec![0; 8], Access::LOCAL_READ);
        let region = world.hosts[1].register(vec![0; 8], Access::REMOTE_READ);
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 8)), (region.stag(), 0));
        world.run(Duration::from_millis(1));
    });
}

#[test]
fn a_read_that_is_refused_fails_with_the_peers_reason() {
    let (_, mut client, _) = terminated(code(0, 1, 2), |world, client, _| {
        let sink = world.hosts[0].register(vec![0; 8], Access::LOCAL_WRITE);
        let region = world.hosts[1].register(vec![0; 8], Access::REMOTE_WRITE);
        client.post_simple(1, SendOpcode::Read, Some(sge(&sink, 0, 8)), (region.stag(), 0));
        client.post_simple(2, SendOpcode::Read, Some(sge(&sink, 0, 8)), (region.stag(), 0));
        world.run(Duration::from_millis(1));
    });
    let done: Vec<_> = client.poll_all().iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, [(1, Status::RemoteAccess), (2, Status::Flushed)]);
}

#[test]
fn a_send_without_a_receive_is_terminated() {
    terminated(code(1, 2, 2), |world, client, _| {
        client.post_simple(1, SendOpcode::Send, None, (0, 0));
        world.run(Duration::from_millis(1));
    });
}

#[test]
fn a_send_longer_than_its_receive_is_terminated() {
    let (_, _, mut server) = terminated(code(1, 2, 5), |world, client, server| {
        let source = world.hosts[0].register(vec![1; 100], Access::LOCAL_READ);
        let sink = world.hosts[1].register(vec![0; 99], Access::LOCAL_WRITE);
        assert!(server.post_receive(5, &[sge(&sink, 0, 99)]));
        assert!(server.post_receive(6, &[]));
        client.post_simple(1, SendOpcode::Send, Some(sge(&source, 0, 100)), (0, 0));
        world.run(Duration::from_millis(1));
    });
    let done: Vec<_> = server.poll_all().iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, [(5, Status::LocalLength), (6, Status::Flushed)]);
}

/// The queue pairs of the first host that went to the error state, and why.
fn fatal(world: &World) -> Vec<(u32, Status)> {
    let events = world.hosts[0].events.try_iter();
    events
        .filter_map(|event| match event {
            AsyncEvent::QueuePairFatal { queue_pair, status } => Some((queue_pair, status)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_local_mistake_fails_its_own_work_and_flushes_the_rest() {
    let (mut world, mut client, server) = joined();
    let source = world.hosts[0].register(vec![0; 8], Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 8], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 8)), (target.stag(), 0));
    client.post_simple(2, SendOpcode::Write, Some(sge(&source, 1, 8)), (target.stag(), 0));
    client.post_simple(3, SendOpcode::Write, Some(sge(&source, 0, 8)), (target.stag(), 0));
    let reason = DisconnectReason::LocalError(Status::LocalProtection);
    assert_eq!(end(&mut world, &client, 5 * SECOND), reason);
    assert_eq!(end(&mut world, &server, 5 * SECOND), DisconnectReason::PeerTerminated(code(0, 0, 0)));
    let done: Vec<_> = client.poll_all().iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)]);
    assert_eq!(fatal(&world), [(client.number, Status::LocalProtection)]);
    nothing_left(&mut world);
}

#[test]
fn a_survivor_learns_of_a_killed_peer_and_what_it_did_not_get() {
    let (mut world, mut client, _server) = joined();
    let source = world.hosts[0].register(vec![0; 100_000], Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 100_000], Access::REMOTE_WRITE);
    assert!(client.post_receive(50, &[]));
    world.hosts[1].engine = None;
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 5_000)), (target.stag(), 0));
    assert_eq!(end(&mut world, &client, 60 * SECOND), DisconnectReason::TimedOut);
    let done: Vec<_> = client.poll_all().iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, [(1, Status::Success), (50, Status::Flushed)]);
    let told: Vec<AsyncEvent> = world.hosts[0].events.try_iter().collect();
    assert!(matches!(told[..], [AsyncEvent::OctetsNotAcknowledged { octets, .. }] if octets >= 5_000), "{told:?}");
    nothing_left(&mut world);
}

#[test]
fn a_silent_survivor_learns_of_a_killed_peer_too() {
    let (mut world, mut client, _server) = joined();
    assert!(client.post_receive(50, &[]));
    world.run(SECOND);
    world.hosts[1].engine = None;
    assert_eq!(end(&mut world, &client, 60 * SECOND), DisconnectReason::TimedOut);
    assert_eq!(client.poll().map(|completion| completion.status), Some(Status::Flushed));
    nothing_left(&mut world);
}

#[test]
fn destroying_a_queue_pair_does_not_take_back_what_was_completed() {
    let (mut world, mut client, server) = joined();
    let source = world.hosts[0].register(pattern(60_000, 3), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 60_000], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 60_000)), (target.stag(), 0));
    assert_eq!(completions(&mut world, &mut client, 1, SECOND).len(), 1);
    let (done, gone) = unbounded();
    world.hosts[0].command(Command::DestroyQueuePair { queue_pair: client.number, done: Some(done) });
    assert_eq!(end(&mut world, &server, 5 * SECOND), DisconnectReason::PeerClosed);
    assert_eq!(gone.try_recv(), Ok(()));
    assert_eq!(contents(&target), contents(&source));
    nothing_left(&mut world);
}

#[test]
fn nor_does_an_abort_or_taking_it_away() {
    for is_aborted in [true, false] {
        let (mut world, mut client, server) = joined();
        let source = world.hosts[0].register(pattern(60_000, 3), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 60_000], Access::REMOTE_WRITE);
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 60_000)), (target.stag(), 0));
        let done = completions(&mut world, &mut client, 1, SECOND);
        assert_eq!(done.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::Success]);
        assert_ne!(contents(&target), contents(&source), "octets are under way");
        // Not begun yet.
        client.post_simple(3, SendOpcode::Send, None, (0, 0));
        if is_aborted {
            assert!(client.post_receive(2, &[]));
            world.hosts[0].command(Command::Abort { queue_pair: client.number });
        } else {
            let (reply, _rings) = unbounded();
            world.hosts[0].command(Command::AbandonQueuePair { queue_pair: client.number, reply });
        }
        assert_eq!(end(&mut world, &client, SECOND), DisconnectReason::Aborted);
        assert_eq!(end(&mut world, &server, 5 * SECOND), DisconnectReason::PeerClosed);
        assert_eq!(contents(&target), contents(&source));
        let flushed: Vec<_> = client.poll_all().iter().map(|one| (one.id, one.status)).collect();
        let posted: &[_] = if is_aborted { &[(3, Status::Flushed), (2, Status::Flushed)] } else { &[] };
        assert_eq!(flushed, posted);
        nothing_left(&mut world);
    }
}

#[test]
fn a_message_that_is_half_sent_is_taken_back_by_both() {
    for is_aborted in [true, false] {
        let (mut world, mut client, server) = joined();
        let source = world.hosts[0].register(pattern(4_000_000, 3), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 4_000_000], Access::REMOTE_WRITE);
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 4_000_000)), (target.stag(), 0));
        assert!(world.run_until(SECOND, |_| contents(&target)[0] == contents(&source)[0]));
        let number = client.number;
        if is_aborted {
            world.hosts[0].command(Command::Abort { queue_pair: number });
        } else {
            let (reply, _rings) = unbounded();
            world.hosts[0].command(Command::AbandonQueuePair { queue_pair: number, reply });
        }
        assert_eq!(end(&mut world, &client, SECOND), DisconnectReason::Aborted);
        assert_eq!(end(&mut world, &server, SECOND), DisconnectReason::Reset);
        assert_eq!(client.poll().map(|one| one.status), is_aborted.then_some(Status::Flushed));
        nothing_left(&mut world);
    }
}

#[test]
fn a_shutdown_waits_until_everything_is_acknowledged() {
    let (mut world, mut client, server) = joined();
    let source = world.hosts[0].register(pattern(500_000, 4), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 500_000], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 500_000)), (target.stag(), 0));
    let (done, report) = unbounded();
    world.hosts[0].command(Command::Shutdown { linger: 5 * SECOND, done });
    assert!(world.run_until(5 * SECOND, |world| {
        world.hosts[0].engine.as_ref().is_some_and(uwarp_engine::Engine::is_shut_down)
    }));
    assert_eq!(report.try_recv(), Ok(uwarp_engine::command::ShutdownReport::default()));
    world.hosts[0].engine = None;
    assert_eq!(end(&mut world, &server, 5 * SECOND), DisconnectReason::PeerClosed);
    assert_eq!(contents(&target), contents(&source));
}

#[test]
fn a_shutdown_gives_up_on_a_dead_peer_when_its_time_is_over() {
    let (mut world, mut client, _server) = joined();
    let source = world.hosts[0].register(vec![0; 4_000], Access::LOCAL_READ);
    world.hosts[1].engine = None;
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 4_000)), (77, 0));
    let (done, report) = unbounded();
    world.hosts[0].command(Command::Shutdown { linger: SECOND, done });
    assert!(world.run_until(2 * SECOND, |_| !report.is_empty()));
    let report = report.try_recv().expect("seen");
    assert_eq!(report.reset, 1);
    assert!(report.octets_not_acknowledged >= 4_000);
}

#[test]
fn an_overflowing_completion_queue_loses_nothing_and_ends_the_queue_pair() {
    let options = PairOptions { completions: 4, ..PairOptions::default() };
    let (mut world, mut client, _server, requests) = joined_with(options);
    // A second stream of the same two engines, whose queue has room; it is in the middle of something.
    let (mut bystander, mut its_peer) = join(&mut world, &requests, PairOptions::default());
    let source = world.hosts[0].register(pattern(200_000, 5), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 200_000], Access::REMOTE_WRITE);
    assert!(its_peer.post_receive(7, &[]));
    bystander.post_simple(100, SendOpcode::Write, Some(sge(&source, 0, 200_000)), (target.stag(), 0));
    for id in 0..10 {
        client.post_simple(id, SendOpcode::Write, None, (0, 0));
    }
    let reason = DisconnectReason::LocalError(Status::CompletionQueueOverflow);
    assert_eq!(end(&mut world, &client, 5 * SECOND), reason);
    let told: Vec<AsyncEvent> = world.hosts[0].events.try_iter().collect();
    let AsyncEvent::CompletionQueueOverflow { queue_pair, .. } = told[0] else { panic!("{told:?}") };
    assert_eq!(queue_pair, client.number);
    let status = Status::CompletionQueueOverflow;
    assert_eq!(told[1..], [AsyncEvent::QueuePairFatal { queue_pair, status }]);
    let done = completions(&mut world, &mut client, 10, SECOND);
    assert_eq!(done.iter().map(|completion| completion.id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    // The other stream has noticed nothing of it (RFC 5040 section 8.1.1): what was under way arrives, and more is
    // taken.
    bystander.post_simple(101, SendOpcode::Send, None, (0, 0));
    let done = completions(&mut world, &mut bystander, 2, SECOND);
    let done: Vec<_> = done.iter().map(|completion| (completion.id, completion.status)).collect();
    assert_eq!(done, [(100, Status::Success), (101, Status::Success)]);
    let received = completions(&mut world, &mut its_peer, 1, SECOND);
    assert_eq!(received.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(), [(7, Status::Success)]);
    assert_eq!(contents(&target), contents(&source));
    assert!(bystander.events.try_recv().is_err() && its_peer.events.try_recv().is_err(), "its connection stays");
}

#[test]
fn a_failed_device_flushes_everything() {
    let (mut world, mut client, _server) = joined();
    assert!(client.post_receive(7, &[]));
    if let Some(engine) = &mut world.hosts[0].engine {
        engine.fail("pulled out");
    }
    assert_eq!(client.poll().map(|completion| (completion.id, completion.status)), Some((7, Status::Fatal)));
    assert_eq!(end(&mut world, &client, SECOND), DisconnectReason::LocalError(Status::Fatal));
    assert_eq!(world.hosts[0].events.try_recv(), Ok(AsyncEvent::DeviceFatal { cause: "pulled out".to_owned() }));
}

/// A device whose peer is gone takes no frames, however long one waits.
#[test]
fn a_failed_engine_is_shut_down_whatever_its_device_takes() {
    let options = LoopOptions { queue: 1, ..LoopOptions::default() };
    let mut world: World<LoopPort> = World::back_to_back(options, 4);
    let mut engine = world.hosts[0].engine.take().expect("an engine");
    // Its announcements fill the device.
    engine.turn(Instant::ZERO + SECOND);
    engine.fail("unplugged");
    assert!(engine.is_shut_down());
    // The next ones find it full.
    engine.turn(Instant::ZERO + 10 * SECOND);
    assert!(engine.is_shut_down());
}

/// The acknowledgment of a message is delayed for a while, in which its receiver may go.
#[test]
fn a_message_that_was_received_completes_though_its_receivers_queue_pair_is_taken_away() {
    let options = PairOptions { complete_on_ack: true, ..PairOptions::default() };
    let (mut world, mut client, mut server, _) = joined_with(options);
    // The first is acknowledged at once: its segment is the second that the server gets.
    for id in 1..=2 {
        assert!(server.post_receive(id, &[]));
        client.post_simple(id, SendOpcode::Send, None, (0, 0));
        let received = completions(&mut world, &mut server, 1, SECOND);
        assert_eq!(received.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(), [(id, Status::Success)]);
    }
    let (reply, rings) = unbounded();
    world.hosts[1].command(Command::AbandonQueuePair { queue_pair: server.number, reply });
    assert_eq!(end(&mut world, &client, SECOND), DisconnectReason::PeerClosed);
    world.run(SECOND);
    assert!(rings.try_recv().is_ok());
    let done: Vec<_> = client.poll_all().iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::Success)]);
    nothing_left(&mut world);
}

/// A port that notes whether an answer was there before its last frames were.
struct Watched {
    inner: LoopPort,
    answer: Rc<RefCell<Option<Receiver<Option<Abandoned>>>>>,
    sent: Rc<Cell<u32>>,
}

impl Port for Watched {
    type Buffer = <LoopPort as Port>::Buffer;

    fn alloc(&mut self) -> Option<Self::Buffer> {
        self.inner.alloc()
    }
    fn rx_burst(&mut self, batch: &mut Batch<Self::Buffer>) -> usize {
        self.inner.rx_burst(batch)
    }
    fn tx_burst(&mut self, frames: &mut VecDeque<Self::Buffer>) -> usize {
        if let Some(answer) = &*self.answer.borrow() {
            assert!(answer.is_empty(), "the answer came before {} frames were with the device", frames.len());
            self.sent.set(self.sent.get() + frames.len() as u32);
        }
        self.inner.tx_burst(frames)
    }
    fn link(&mut self) -> LinkState {
        self.inner.link()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn pool_levels(&self) -> PoolLevels {
        self.inner.pool_levels()
    }
}

/// A process may end as soon as its queue pair is destroyed, and its engine's thread with it.
#[test]
fn an_abandoned_queue_pair_is_answered_for_when_its_last_frames_are_with_the_device() {
    let (answer, sent) = (Rc::default(), Rc::new(Cell::new(0)));
    let (left, right) = LoopPort::pair(LoopOptions::default());
    let ports = [left, right].map(|inner| Watched { inner, answer: Rc::clone(&answer), sent: Rc::clone(&sent) });
    let mut world = World::of_ports(ports, 4);
    let requests = world.hosts[1].listen(PORT);
    let options = PairOptions { complete_on_ack: true, ..PairOptions::default() };
    let (mut client, mut server) = (world.hosts[0].pair(options), world.hosts[1].pair(options));
    world.join((0, &client), (1, &server), &requests, PORT);
    for id in 1..=2 {
        assert!(server.post_receive(id, &[]));
        client.post_simple(id, SendOpcode::Send, None, (0, 0));
        assert!(world.run_until(SECOND, |_| server.poll().is_some()));
    }
    let (reply, rings) = unbounded();
    *answer.borrow_mut() = Some(rings.clone());
    world.hosts[1].command(Command::AbandonQueuePair { queue_pair: server.number, reply });
    assert!(world.run_until(SECOND, |_| !rings.is_empty()), "no answer");
    *answer.borrow_mut() = None;
    assert!(rings.try_recv().is_ok());
    assert!(sent.get() > 0, "the last acknowledgment, with FIN");
    // That engine never turns again.
    world.hosts[1].engine = None;
    world.run(SECOND);
    let done: Vec<_> = client.poll_all().iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::Success)]);
}
