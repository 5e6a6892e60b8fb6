//! Connections whose two ends have agreed on the rules of InfiniBand: how long messages wait for receives, immediate
//! data beside the octets of a Send, and who gets which status.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{PORT, SECOND, completions, contents, nothing_left, pattern, sge};
use crossbeam::channel::{Receiver, bounded};
use uwarp_engine::command::{
    AsyncEvent, Command, ConnectionEvent, ConnectionRequest, DisconnectReason, Features, NotReady, NotReadyRetries,
    Rules, StartupOptions,
};
use uwarp_engine::work::{
    AtomicOperands, Completion, CompletionFlags, CompletionOpcode, SendElement, SendFlags, SendOpcode, Status,
};
use uwarp_memory::{Access, Registration};
use uwarp_ring::Notifier;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

const PLACED: PairOptions = PairOptions { send_depth: 64, receive_depth: 64, completions: 256, complete_on_ack: true };
const FEATURES: Features = Features { atomics: true, immediate: true, commit: false, infiniband: true };
/// How long messages wait that do not say it themselves.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);
/// What a network without faults and a look for a receive take, and more.
const SLACK: Duration = Duration::from_millis(1);
/// No region has it.
const BAD_STAG: u32 = 77;

/// Two hosts, and a queue pair of each that outlives its peer. Messages find no receive `retries` times.
fn two(seed: u64, network: SimOptions, retries: u8) -> (World, Pair, Pair, Receiver<ConnectionRequest>) {
    let mut world = World::new(seed, network);
    let not_ready = NotReady { retries: NotReadyRetries::new(retries).expect("up to 7"), pause: PAUSE };
    let mut pairs = Vec::new();
    for number in 0..2 {
        world.add(HostOptions::default(), |config| config.iwarp.receive_wait = WAIT);
        let notifier = Arc::new(Notifier::new().expect("an eventfd"));
        pairs.push(world.hosts[number].pair_with(0, PLACED, notifier, |setup| {
            setup.rules = Rules { outlives_peer: true, not_ready, holds_sends: false };
        }));
    }
    let requests = world.hosts[1].listen(PORT);
    let [client, server] = pairs.try_into().expect("two of them");
    (world, client, server, requests)
}

fn join(world: &mut World, client: &Pair, server: &Pair, requests: &Receiver<ConnectionRequest>, markers: bool) {
    let options = StartupOptions { features: FEATURES, markers, ..StartupOptions::default() };
    let remote = (world.hosts[1].address, PORT).into();
    world.join_by((0, client), (1, server), requests, remote, [options.clone(), options]);
}

fn joined(retries: u8) -> (World, Pair, Pair) {
    let (mut world, client, server, requests) = two(1, SimOptions::default(), retries);
    join(&mut world, &client, &server, &requests, false);
    (world, client, server)
}

fn outcomes(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|one| (one.id, one.status)).collect()
}

/// The server's queue pair is as it was: its receives are posted, and it hears nothing. The next Send of its own fails.
fn stays_until_it_sends(world: &mut World, server: &mut Pair, receive: u64) {
    assert!(server.post_receive(receive, &[]));
    world.run(30 * SECOND);
    assert_eq!((server.poll(), server.events.try_recv().ok()), (None, None));
    assert!(server.post_simple(99, SendOpcode::Send, None, (0, 0)));
    let done = completions(world, server, 2, SECOND);
    assert_eq!(outcomes(&done), [(99, Status::PeerGone), (receive, Status::Flushed)]);
    assert!(matches!(server.events.try_recv(), Ok(ConnectionEvent::Disconnected(_))));
}

#[test]
fn a_message_waits_as_often_as_it_says_and_as_long_as_the_receiver_says() {
    for retries in 0..7 {
        let (mut world, mut client, mut server) = joined(retries);
        let begun = world.now();
        assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)));
        assert!(client.post_simple(2, SendOpcode::Send, None, (0, 0)));
        let done = completions(&mut world, &mut client, 2, SECOND);
        assert_eq!(outcomes(&done), [(1, Status::ReceiverNotReady), (2, Status::Flushed)], "{retries}");
        let waited = world.now() - begun;
        let limit = PAUSE * u32::from(retries);
        assert!((limit..limit + SLACK).contains(&waited), "{retries}: {waited:?}");
        stays_until_it_sends(&mut world, &mut server, 3);
        assert!(matches!(client.events.try_recv(), Ok(ConnectionEvent::Disconnected(_))));
        nothing_left(&mut world);
    }
}

#[test]
fn seven_waits_for_ever() {
    let (mut world, mut client, mut server) = joined(7);
    let source = world.hosts[0].register(pattern(100_000, 1), Access::LOCAL_READ);
    let inbox = world.hosts[1].register(vec![0; 100_000], Access::LOCAL_WRITE);
    assert!(client.post_simple(1, SendOpcode::Send, Some(sge(&source, 0, 100_000)), (0, 0)));
    world.run(3600 * SECOND);
    assert_eq!((client.poll(), server.poll()), (None, None));
    assert!(client.events.is_empty() && server.events.is_empty());
    assert!(server.post_receive(2, &[sge(&inbox, 0, 100_000)]));
    assert_eq!(outcomes(&completions(&mut world, &mut server, 1, SECOND)), [(2, Status::Success)]);
    assert_eq!(outcomes(&completions(&mut world, &mut client, 1, SECOND)), [(1, Status::Success)]);
    assert_eq!(contents(&inbox), contents(&source));
}

/// It answers nothing any more, so it is noticed as any other that dies.
#[test]
fn a_peer_that_dies_while_a_message_waits_is_noticed() {
    for waited in [Duration::from_millis(5), 100 * SECOND] {
        let (mut world, mut client, _server) = joined(7);
        assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)));
        world.run(waited);
        assert_eq!(client.poll(), None);
        world.hosts[1].engine = None;
        assert_eq!(outcomes(&completions(&mut world, &mut client, 1, 60 * SECOND)), [(1, Status::PeerGone)]);
    }
}

#[test]
fn a_receive_that_is_posted_in_time_takes_the_message() {
    let (mut world, mut client, mut server) = joined(6);
    for id in 0..20 {
        assert!(client.post_simple(id, SendOpcode::Send, None, (0, 0)));
        // Each message has a wait of its own.
        world.run(PAUSE * 4);
        assert_eq!((client.poll(), server.poll()), (None, None));
        assert!(server.post_receive(id, &[]));
        assert_eq!(outcomes(&completions(&mut world, &mut server, 1, SECOND)), [(id, Status::Success)]);
        assert_eq!(outcomes(&completions(&mut world, &mut client, 1, SECOND)), [(id, Status::Success)]);
    }
}

#[test]
fn what_was_before_the_message_is_kept_and_answered() {
    let (mut world, mut client, mut server) = joined(0);
    let source = world.hosts[0].register(pattern(9000, 1), Access::LOCAL_READ);
    let sink = world.hosts[0].register(vec![0; 9000], Access::LOCAL_WRITE);
    let target = world.hosts[1].register(vec![0; 9000], Access::REMOTE_WRITE | Access::REMOTE_READ);
    let inbox = world.hosts[1].register(vec![0; 9000], Access::LOCAL_WRITE);
    assert!(server.post_receive(10, &[sge(&inbox, 0, 9000)]));
    let remote = (target.stag(), target.base_offset());
    for (id, opcode, local) in [
        (1, SendOpcode::Send, sge(&source, 0, 9000)),
        (2, SendOpcode::Write, sge(&source, 0, 9000)),
        (3, SendOpcode::Read, sge(&sink, 0, 9000)),
        (4, SendOpcode::Send, sge(&source, 0, 9000)),
        (5, SendOpcode::Write, sge(&source, 0, 1)),
    ] {
        assert!(client.post_simple(id, opcode, Some(local), remote));
    }
    let done = completions(&mut world, &mut client, 5, SECOND);
    let wanted = [1, 2, 3].map(|id| (id, Status::Success)).into_iter();
    let wanted: Vec<_> = wanted.chain([(4, Status::ReceiverNotReady), (5, Status::Flushed)]).collect();
    assert_eq!(outcomes(&done), wanted);
    assert_eq!(outcomes(&server.poll_all()), [(10, Status::Success)]);
    for there in [&sink, &target, &inbox] {
        assert!(contents(there) == contents(&source));
    }
    stays_until_it_sends(&mut world, &mut server, 11);
}

#[test]
fn immediate_data_waits_for_a_receive_as_well() {
    for opcode in [SendOpcode::Immediate, SendOpcode::SendImmediate] {
        let (mut world, mut client, mut server) = joined(2);
        assert!(client.post_simple(1, opcode, None, (0, 5)));
        world.run(PAUSE);
        assert!(client.poll().is_none() && server.post_receive(1, &[]));
        assert_eq!(outcomes(&completions(&mut world, &mut server, 1, SECOND)), [(1, Status::Success)]);
        assert!(client.post_simple(2, opcode, None, (0, 5)));
        let done = completions(&mut world, &mut client, 2, SECOND);
        assert_eq!(outcomes(&done), [(1, Status::Success), (2, Status::ReceiverNotReady)], "{opcode:?}");
        stays_until_it_sends(&mut world, &mut server, 3);
    }
}

fn set_rules(world: &mut World, host: usize, rules: Rules) {
    let (done, answer) = bounded(1);
    world.hosts[host].command(Command::SetRules { queue_pair: 0, rules, done });
    assert!(world.run_until(SECOND, |_| answer.try_recv().is_ok()));
}

/// The sender may say something else at any time, and the receiver, too.
#[test]
fn what_is_posted_next_goes_by_the_last_that_was_said() {
    let (mut world, mut client, mut server) = joined(7);
    let says = |world: &mut World, host: usize, retries: u8, pause: Duration| {
        let not_ready = NotReady { retries: NotReadyRetries::new(retries).expect("up to 7"), pause };
        set_rules(world, host, Rules { outlives_peer: true, not_ready, holds_sends: false });
    };
    says(&mut world, 0, 1, PAUSE);
    says(&mut world, 1, 1, PAUSE * 50);
    let begun = world.now();
    assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)));
    assert_eq!(outcomes(&completions(&mut world, &mut client, 1, SECOND)), [(1, Status::ReceiverNotReady)]);
    let waited = world.now() - begun;
    assert!((PAUSE * 50..PAUSE * 50 + SLACK).contains(&waited), "{waited:?}");
    stays_until_it_sends(&mut world, &mut server, 3);
}

/// What has failed was not received, and what was received has not failed, however close the two are.
#[test]
fn a_message_that_has_failed_was_not_received() {
    let mut found = [0; 2];
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let loss = if random.bool() { 0.0 } else { 0.1 };
        let (mut world, mut client, mut server, requests) = two(seed, SimOptions::default(), 1);
        join(&mut world, &client, &server, &requests, random.bool());
        world.network.set_options(SimOptions { loss, reordering: loss, ..SimOptions::default() });
        assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)));
        world.run(PAUSE - Duration::from_micros(200) + Duration::from_micros(random.u64(0..400)));
        assert!(server.post_receive(1, &[]));
        let done = completions(&mut world, &mut client, 1, 60 * SECOND);
        let received = server.poll_all();
        match done[0].status {
            Status::Success => assert_eq!(outcomes(&received), [(1, Status::Success)], "seed {seed}"),
            Status::ReceiverNotReady => assert_eq!(outcomes(&received), [], "seed {seed}"),
            // Its Terminate was lost for too long.
            Status::PeerGone => assert!(loss > 0.0 && received.is_empty(), "seed {seed}"),
            other => panic!("seed {seed}: {other:?}"),
        }
        found[usize::from(done[0].status == Status::Success)] += 1;
    }
    assert!(found.iter().all(|count| *count > 20), "{found:?}");
}

/// Only a message that says something waits as it says, and only if both ends have agreed.
#[test]
fn without_the_agreement_the_bits_mean_nothing() {
    for (of_client, of_server) in [(true, false), (false, true)] {
        let (mut world, mut client, server, requests) = two(1, SimOptions::default(), 0);
        let options = [of_client, of_server].map(|infiniband| {
            let features = Features { infiniband, ..FEATURES };
            StartupOptions { features, ..StartupOptions::default() }
        });
        let remote = (world.hosts[1].address, PORT).into();
        world.join_by((0, &client), (1, &server), &requests, remote, options);
        let begun = world.now();
        assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)));
        let done = completions(&mut world, &mut client, 1, 2 * WAIT);
        assert!(done.len() == 1 && !done[0].status.is_success(), "{done:?}");
        assert!(world.now() >= begun + WAIT);
        assert!(matches!(common::end(&mut world, &server, 60 * SECOND), DisconnectReason::LocalTerminated(_)));
    }
}

/// Sends `length` octets with immediate data; gives what the server's receive completes with.
fn immediate(world: &mut World, (client, server): (&mut Pair, &mut Pair), inbox: &Registration, element: SendElement) {
    let length = element.length;
    let source = world.hosts[0].register(pattern(length.max(1) as usize, 1), Access::LOCAL_READ);
    assert!(server.post_receive(element.id, &[sge(inbox, 0, inbox.len() as u32)]));
    assert!(client.post(element, &[sge(&source, 0, length)], &[]));
    let done = completions(world, client, 1, SECOND);
    assert_eq!((outcomes(&done), done[0].opcode), (vec![(element.id, Status::Success)], CompletionOpcode::Send));
    let [received] = server.poll_all().try_into().expect("one receive for both");
    assert_eq!((received.id, received.status, received.length), (element.id, Status::Success, length));
    assert!(received.flags.contains(CompletionFlags::IMMEDIATE.union(CompletionFlags::WITH_SEND)));
    let is_solicited = element.flags.contains(SendFlags::SOLICITED);
    assert_eq!(received.flags.contains(CompletionFlags::SOLICITED), is_solicited);
    assert_eq!(received.immediate_data(), Some(element.remote_offset));
    assert!(contents(inbox)[..length as usize] == contents(&source)[..length as usize]);
}

#[test]
fn a_send_has_immediate_data_beside_its_octets() {
    for markers in [false, true] {
        let (mut world, mut client, mut server, requests) = two(1, SimOptions::default(), 7);
        join(&mut world, &client, &server, &requests, markers);
        let inbox = world.hosts[1].register(vec![0; 200_000], Access::LOCAL_WRITE);
        for (id, length) in [0, 1, 64, 5000, 200_000].into_iter().enumerate() {
            for (data, flags) in
                [(0, SendFlags::SIGNALLED), (0xffff_fffe, SendFlags::SIGNALLED.union(SendFlags::SOLICITED))]
            {
                let opcode = SendOpcode::SendImmediate;
                let (id, remote_offset) = (id as u64, data);
                let element = SendElement { id, opcode, flags, stag: 0, remote_offset, length, entries: 1 };
                immediate(&mut world, (&mut client, &mut server), &inbox, element);
            }
        }
        // One without it is told from one with zero.
        assert!(server.post_receive(90, &[]) && client.post_simple(90, SendOpcode::Send, None, (0, 0)));
        let done = completions(&mut world, &mut server, 1, SECOND);
        assert_eq!((done[0].flags, done[0].immediate_data()), (CompletionFlags::default(), None));
    }
}

#[test]
fn a_send_with_immediate_data_needs_the_agreement() {
    let (mut world, mut client, _server) = common::joined();
    assert!(client.post_simple(1, SendOpcode::SendImmediate, None, (0, 5)));
    let done = completions(&mut world, &mut client, 1, SECOND);
    assert_eq!(outcomes(&done), [(1, Status::LocalOperation)]);
}

/// Each side's status if the client posts `element` and the server has a receive of `receive`.
fn statuses(element: SendElement, inline: &[u8], receive: fn(&World) -> Registration) -> (Status, Status) {
    let (mut world, mut client, mut server) = joined(7);
    let source = world.hosts[0].register(vec![1; 4096], Access::LOCAL_READ | Access::LOCAL_WRITE);
    let word = world.hosts[1].register(vec![0; 16], Access::REMOTE_ATOMIC);
    let inbox = receive(&world);
    assert!(server.post_receive(5, &[sge(&inbox, 0, inbox.len() as u32)]));
    let is_atomic = element.opcode == SendOpcode::FetchAdd;
    let element = if is_atomic { SendElement { stag: word.stag(), ..element } } else { element };
    let entries = if inline.is_empty() { vec![sge(&source, 0, element.length)] } else { Vec::new() };
    assert!(client.post(element, &entries, inline));
    let failed = completions(&mut world, &mut client, 1, SECOND);
    let received = completions(&mut world, &mut server, 1, SECOND);
    assert_eq!((failed.len(), received.len()), (1, 1), "{failed:?}, {received:?}");
    (failed[0].status, received[0].status)
}

#[test]
fn who_is_at_fault_gets_the_status_of_infiniband() {
    let writable: fn(&World) -> Registration = |world| world.hosts[1].register(vec![0; 100], Access::LOCAL_WRITE);
    let readable: fn(&World) -> Registration = |world| world.hosts[1].register(vec![0; 100], Access::LOCAL_READ);
    let element = |opcode, length| SendElement {
        id: 1,
        opcode,
        flags: SendFlags::SIGNALLED,
        stag: BAD_STAG,
        remote_offset: 0,
        length,
        entries: 1,
    };
    let send = element(SendOpcode::Send, 101);
    assert_eq!(statuses(send, &[], writable), (Status::RemoteInvalidRequest, Status::LocalLength));
    let send = element(SendOpcode::SendImmediate, 101);
    assert_eq!(statuses(send, &[], writable), (Status::RemoteInvalidRequest, Status::LocalLength));
    let send = element(SendOpcode::Send, 100);
    assert_eq!(statuses(send, &[], readable), (Status::RemoteOperation, Status::LocalProtection));
    for opcode in [SendOpcode::Write, SendOpcode::Read] {
        assert_eq!(statuses(element(opcode, 64), &[], writable), (Status::RemoteAccess, Status::Flushed), "{opcode:?}");
    }
    let operands = AtomicOperands { add_swap: 1, ..AtomicOperands::default() }.to_octets();
    let add = element(SendOpcode::FetchAdd, operands.len() as u32);
    let flags = add.flags.union(SendFlags::INLINE);
    let add = SendElement { flags, remote_offset: 4, entries: 0, ..add };
    assert_eq!(statuses(add, &operands, writable), (Status::RemoteInvalidRequest, Status::Flushed));
}

/// A requester's mistake is its own: the peer goes on as if it had left.
#[test]
fn a_mistake_of_the_requester_does_not_disturb_the_responder() {
    let (mut world, mut client, mut server) = joined(7);
    assert!(server.post_receive(5, &[]));
    let nowhere = uwarp_engine::work::Sge { stag: BAD_STAG, length: 10, offset: 0 };
    assert!(client.post_simple(1, SendOpcode::Send, Some(nowhere), (0, 0)));
    assert_eq!(outcomes(&completions(&mut world, &mut client, 1, SECOND)), [(1, Status::LocalProtection)]);
    world.run(30 * SECOND);
    assert_eq!((server.poll(), server.events.try_recv().ok()), (None, None));
    assert!(server.post_simple(99, SendOpcode::Send, None, (0, 0)));
    let done = completions(&mut world, &mut server, 2, SECOND);
    assert_eq!(outcomes(&done), [(99, Status::PeerGone), (5, Status::Flushed)]);
}

/// Has the client's queue pair hold its requests, or go on.
fn hold(world: &mut World, holds_sends: bool) {
    let not_ready = NotReady { retries: NotReadyRetries::new(7).expect("up to 7"), pause: PAUSE };
    set_rules(world, 0, Rules { outlives_peer: true, not_ready, holds_sends });
}

/// How often the client's queue has been reported as drained since the last look.
fn drained(world: &World) -> usize {
    let told: Vec<AsyncEvent> = world.hosts[0].events.try_iter().collect();
    told.iter().filter(|event| **event == AsyncEvent::SendQueueDrained { queue_pair: 0 }).count()
}

#[test]
fn a_held_queue_finishes_what_was_begun_and_goes_on_later() {
    let (mut world, mut client, mut server) = joined(7);
    let source = world.hosts[0].register(pattern(400_000, 1), Access::LOCAL_READ | Access::LOCAL_WRITE);
    let target = world.hosts[1].register(vec![0; 400_000], Access::REMOTE_WRITE | Access::REMOTE_READ);
    let all = Some(sge(&source, 0, 400_000));
    let remote = (target.stag(), target.base_offset());
    // Begun and not yet acknowledged: a Write that is being cut, or a Read whose response is awaited.
    for (first, opcode) in [(1, SendOpcode::Write), (11, SendOpcode::Read)] {
        assert!(client.post_simple(first, opcode, all, remote));
        world.run(Duration::from_micros(50));
        hold(&mut world, true);
        assert_eq!((client.poll_all(), drained(&world)), (vec![], 0), "{opcode:?} is under way");
        assert!(client.post_simple(first + 1, SendOpcode::Send, None, (0, 0)));
        assert!(client.post_simple(first + 2, SendOpcode::Send, None, (0, 0)));
        assert_eq!(outcomes(&completions(&mut world, &mut client, 1, SECOND)), [(first, Status::Success)]);
        world.run(10 * SECOND);
        assert_eq!((client.poll_all(), server.poll_all(), drained(&world)), (vec![], vec![], 1));
        assert!(server.post_receive(first, &[]) && server.post_receive(first + 1, &[]));
        hold(&mut world, false);
        let done = completions(&mut world, &mut client, 2, SECOND);
        assert_eq!(outcomes(&done), [(first + 1, Status::Success), (first + 2, Status::Success)]);
        assert_eq!((server.poll_all().len(), drained(&world)), (2, 0));
    }
    assert!(contents(&target) == contents(&source));
}

#[test]
fn a_held_queue_pair_serves_its_peer() {
    let (mut world, mut client, mut server) = joined(7);
    let of_client = world.hosts[0].register(pattern(100_000, 1), Access::REMOTE_READ);
    let of_server = world.hosts[1].register(vec![0; 100_000], Access::LOCAL_WRITE);
    // The responder waits for the initiator's first message.
    assert!(server.post_receive(0, &[]) && client.post_simple(0, SendOpcode::Send, None, (0, 0)));
    assert_eq!(completions(&mut world, &mut client, 1, SECOND).len() + server.poll_all().len(), 2);
    hold(&mut world, true);
    world.run(SECOND);
    assert_eq!(drained(&world), 1, "nothing was begun");
    assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)));
    assert!(client.post_receive(2, &[]) && server.post_receive(3, &[]));
    let remote = (of_client.stag(), of_client.base_offset());
    assert!(server.post_simple(4, SendOpcode::Read, Some(sge(&of_server, 0, 100_000)), remote));
    assert!(server.post_simple(5, SendOpcode::Send, None, (0, 0)));
    let done = completions(&mut world, &mut server, 2, SECOND);
    assert_eq!(outcomes(&done), [(4, Status::Success), (5, Status::Success)]);
    assert_eq!(outcomes(&client.poll_all()), [(2, Status::Success)]);
    assert!(contents(&of_server) == contents(&of_client));
    // To be held once more is nothing new.
    hold(&mut world, true);
    world.run(SECOND);
    assert_eq!((client.poll(), server.poll(), drained(&world)), (None, None, 0));
    hold(&mut world, false);
    assert_eq!(outcomes(&completions(&mut world, &mut server, 1, SECOND)), [(3, Status::Success)]);
}

#[test]
fn a_queue_pair_may_be_held_before_its_stream_and_when_that_has_ended() {
    let (mut world, mut client, mut server, requests) = two(1, SimOptions::default(), 7);
    hold(&mut world, true);
    assert_eq!(drained(&world), 1);
    join(&mut world, &client, &server, &requests, false);
    assert!(client.post_simple(1, SendOpcode::Send, None, (0, 0)) && server.post_receive(2, &[]));
    world.run(10 * SECOND);
    assert_eq!((client.poll(), server.poll(), drained(&world)), (None, None, 0));
    world.hosts[1].command(Command::Abort { queue_pair: 0 });
    world.run(10 * SECOND);
    assert_eq!((client.poll(), client.events.try_recv().ok()), (None, None), "nothing was begun");
    assert!(client.post_simple(3, SendOpcode::Send, None, (0, 0)));
    world.run(SECOND);
    assert_eq!(client.poll(), None);
    hold(&mut world, false);
    let done = completions(&mut world, &mut client, 2, SECOND);
    assert_eq!(outcomes(&done), [(1, Status::PeerGone), (3, Status::Flushed)]);
}
