//! When a queue pair that was taken away is answered for: the process of its engine may end then, and nothing that has
//! completed is lost.

mod common;

use std::time::Duration;

use common::{PORT, SECOND, completions, contents, end, joined, nothing_left, pattern, sge};
use crossbeam::channel::{Receiver, unbounded};
use uwarp_engine::command::{Abandoned, Command, DisconnectReason, ShutdownReport};
use uwarp_engine::work::{SendOpcode, Status};
use uwarp_memory::Access;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

fn take_away(world: &World, pair: &Pair) -> Receiver<Option<Abandoned>> {
    let (reply, rings) = unbounded();
    world.hosts[0].command(Command::AbandonQueuePair { queue_pair: pair.number, reply });
    rings
}

/// Runs until the queue pair is answered for, at which the process of the first host ends.
fn end_process(world: &mut World, rings: &Receiver<Option<Abandoned>>, limit: Duration) {
    assert!(world.run_until(limit, |_| !rings.is_empty()), "no answer within {limit:?}");
    assert!(rings.try_recv().expect("an answer").is_none(), "the rings were dropped at once");
    world.hosts[0].engine = None;
}

/// A Send that the server has posted no receive for, and waits.
fn with_a_message_that_waits() -> (World, Pair, Pair) {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |config| config.iwarp.receive_wait = 2 * SECOND);
    let requests = world.hosts[1].listen(PORT);
    let (mut client, server) = common::join(&mut world, &requests, PairOptions::default());
    client.post_simple(1, SendOpcode::Send, None, (0, 0));
    (world, client, server)
}

/// The server gets the message, and then the end.
fn is_delivered(world: &mut World, server: &mut Pair) {
    let done = completions(world, server, 1, SECOND);
    assert_eq!(done.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::Success]);
    assert_eq!(end(world, server, SECOND), DisconnectReason::PeerClosed);
}

#[test]
fn what_was_lost_on_the_way_is_retransmitted_first() {
    for seed in 0..20 {
        let mut world = World::new(seed, SimOptions { loss: 0.2, ..SimOptions::default() });
        // Without timestamps, what acknowledges a retransmission ends no back-off.
        world.add(HostOptions::default(), |config| config.tcp.timestamps = seed % 2 == 0);
        world.add(HostOptions::default(), |_| {});
        let requests = world.hosts[1].listen(PORT);
        let (mut client, server) = common::join(&mut world, &requests, PairOptions::default());
        let source = world.hosts[0].register(pattern(60_000, seed), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 60_000], Access::REMOTE_WRITE);
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 60_000)), (target.stag(), 0));
        let done = completions(&mut world, &mut client, 1, 10 * SECOND);
        assert_eq!(done.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::Success], "seed {seed}");
        let rings = take_away(&world, &client);
        end_process(&mut world, &rings, 30 * SECOND);
        world.run(SECOND);
        assert!(contents(&target) == contents(&source), "seed {seed}");
        assert_eq!(end(&mut world, &server, SECOND), DisconnectReason::PeerClosed, "seed {seed}");
    }
}

#[test]
fn what_waits_for_a_receive_of_the_peer_is_delivered_first() {
    let (mut world, mut client, mut server) = with_a_message_that_waits();
    assert_eq!(completions(&mut world, &mut client, 1, SECOND).len(), 1);
    let rings = take_away(&world, &client);
    world.run(SECOND);
    assert!(rings.is_empty(), "the message was acknowledged and is not delivered");
    assert!(server.post_receive(1, &[]));
    end_process(&mut world, &rings, SECOND);
    is_delivered(&mut world, &mut server);
}

#[test]
fn nobody_waits_for_a_peer_that_is_gone() {
    let (mut world, mut client, server) = joined();
    let source = world.hosts[0].register(pattern(60_000, 3), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 60_000], Access::REMOTE_WRITE);
    world.hosts[1].engine = None;
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 1000)), (target.stag(), 0));
    assert_eq!(completions(&mut world, &mut client, 1, SECOND).len(), 1);
    let rings = take_away(&world, &client);
    assert!(world.run_until(5 * SECOND, |_| !rings.is_empty()), "it is silent");
    assert_eq!(server.events.len(), 0);
    // TCP has not given up yet.
    assert_eq!(world.hosts[0].engine.as_ref().expect("alive").stats().flows, 1);
    world.run(60 * SECOND);
    nothing_left(&mut world);
}

#[test]
fn nor_does_a_shutdown_take_back_what_waits_for_a_receive_of_the_peer() {
    let (mut world, _client, mut server) = with_a_message_that_waits();
    let (done, report) = unbounded();
    world.hosts[0].command(Command::Shutdown { linger: 5 * SECOND, done });
    world.run(SECOND);
    assert!(report.is_empty(), "the message was acknowledged and is not delivered");
    assert!(server.post_receive(1, &[]));
    assert!(world.run_until(SECOND, |_| !report.is_empty()));
    assert_eq!(report.try_recv(), Ok(ShutdownReport::default()));
    world.hosts[0].engine = None;
    is_delivered(&mut world, &mut server);
}
