//! What of its peer's work is reported to an application, and what is not (RFC 5040 §3 and §5, RFC 5041 §7.2).

mod common;

use common::{SECOND, completions, contents, end, join, joined, joined_with, pattern, sge};
use uwarp_engine::command::DisconnectReason;
use uwarp_engine::work::{SendOpcode, Status};
use uwarp_memory::Access;
use uwarp_testkit::rig::PairOptions;

/// RFC 5040 §5.1: a Write takes no receive, and its sink learns of it only through a message behind it.
#[test]
fn a_write_that_succeeds_is_not_reported_to_its_sink() {
    for length in [0u32, 1, 1428, 5000] {
        let (mut world, mut client, mut server) = joined();
        let source = world.hosts[0].register(pattern(5000, 1), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 5000], Access::REMOTE_WRITE);
        assert!(server.post_receive(1, &[]));
        client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, length)), (target.stag(), 0));
        let done = completions(&mut world, &mut client, 1, SECOND);
        assert_eq!(done.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(), [(2, Status::Success)]);
        world.run(SECOND);
        assert_eq!(contents(&target)[..length as usize], contents(&source)[..length as usize]);
        assert_eq!(server.poll(), None, "a Write of {length} octets was reported");
        assert!(server.events.is_empty() && world.hosts[1].events.is_empty());
        // The receive is still there for the first message.
        client.post_simple(3, SendOpcode::Send, None, (0, 0));
        let received = completions(&mut world, &mut server, 1, SECOND);
        assert_eq!(received.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(), [(1, Status::Success)]);
    }
}

/// The segment that brings an answer also acknowledges what it answers.
#[test]
fn a_message_completes_before_the_receive_of_its_answer() {
    let options = PairOptions { complete_on_ack: true, ..PairOptions::default() };
    let (mut world, mut client, mut server, _) = joined_with(options);
    for answer in [SendOpcode::Send, SendOpcode::Immediate] {
        for id in 0..4 {
            assert!(client.post_receive(100 + id, &[]) && server.post_receive(id, &[]));
            client.post_simple(id, SendOpcode::Send, None, (0, 0));
            // Posted in the turn in which the message arrives, so that its acknowledgment goes along.
            let mut is_answered = false;
            let mut order = Vec::new();
            world.run_until(SECOND, |_| {
                if !is_answered && server.poll_all().iter().any(|one| one.id == id) {
                    is_answered = true;
                    server.post_simple(50 + id, answer, None, (0, 0));
                }
                order.extend(client.poll_all().iter().map(|one| one.id));
                order.len() == 2
            });
            assert_eq!(order, [id, 100 + id], "{answer:?}");
        }
    }
}

/// RFC 5041 §7.2: messages before the fault are delivered before the fault is reported.
#[test]
fn messages_before_a_fault_are_delivered_and_those_behind_it_are_not() {
    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(pattern(64, 1), Access::LOCAL_READ);
    let inbox = world.hosts[1].register(vec![0; 64 * 4], Access::LOCAL_WRITE);
    // The third receive is too short for its message.
    for (id, length) in [(1, 64), (2, 64), (3, 63), (4, 64)] {
        assert!(server.post_receive(id, &[sge(&inbox, 64 * (id - 1), length)]));
    }
    for id in 0..4 {
        client.post_simple(id, SendOpcode::Send, Some(sge(&source, 0, 64)), (0, 0));
    }
    let done = completions(&mut world, &mut server, 4, SECOND);
    let done: Vec<_> = done.iter().map(|one| (one.id, one.status)).collect();
    let expected = [(1, Status::Success), (2, Status::Success), (3, Status::LocalLength), (4, Status::Flushed)];
    assert_eq!(done, expected);
    assert!(matches!(end(&mut world, &server, 5 * SECOND), DisconnectReason::LocalTerminated(_)));
    let octets = contents(&inbox);
    assert_eq!((&octets[..64], &octets[64..128]), (&contents(&source)[..], &contents(&source)[..]));
    assert!(octets[128..].iter().all(|octet| *octet == 0), "the failing segment is not placed, nor what is behind it");
}

/// RFC 5040 §3.1: TCP is lost in the middle of a Read and of a Send. Both end in error, however much of them was
/// placed.
#[test]
fn what_a_lost_connection_cuts_off_completes_in_error() {
    const LENGTH: u32 = 400_000;
    let (mut world, mut client, mut server) = joined();
    let remote = world.hosts[1].register(vec![7; LENGTH as usize], Access::REMOTE_READ);
    let sink = world.hosts[0].register(vec![0; LENGTH as usize], Access::LOCAL_WRITE);
    let inbox = world.hosts[0].register(vec![0; LENGTH as usize], Access::LOCAL_WRITE);
    assert!(client.post_receive(1, &[sge(&inbox, 0, LENGTH)]));
    client.post_simple(2, SendOpcode::Read, Some(sge(&sink, 0, LENGTH)), (remote.stag(), 0));
    assert!(world.run_until(SECOND, |_| contents(&sink)[0] == 7));
    assert_eq!(contents(&sink)[LENGTH as usize - 1], 0, "the Read is not complete yet");
    world.hosts[1].engine = None;
    assert_eq!(end(&mut world, &client, 60 * SECOND), DisconnectReason::TimedOut);
    let done: Vec<_> = client.poll_all().iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(2, Status::Flushed), (1, Status::Flushed)]);
    assert_eq!(contents(&sink)[0], 7, "part of the sink was written");
    drop(server.poll_all());

    let (mut world, mut client, mut server) = joined();
    let source = world.hosts[0].register(vec![7; LENGTH as usize], Access::LOCAL_READ);
    let inbox = world.hosts[1].register(vec![0; LENGTH as usize], Access::LOCAL_WRITE);
    assert!(server.post_receive(1, &[sge(&inbox, 0, LENGTH)]));
    client.post_simple(2, SendOpcode::Send, Some(sge(&source, 0, LENGTH)), (0, 0));
    assert!(world.run_until(SECOND, |_| contents(&inbox)[0] == 7));
    world.hosts[0].engine = None;
    assert_eq!(end(&mut world, &server, 60 * SECOND), DisconnectReason::TimedOut);
    let done: Vec<_> = server.poll_all().iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(1, Status::Flushed)]);
    assert_eq!(contents(&inbox)[LENGTH as usize - 1], 0, "the message never came whole");
}

/// RFC 5040 §8.1.2 (7): streams share no slots for Read Requests.
#[test]
fn a_second_stream_has_read_slots_of_its_own() {
    const READS: u64 = 40;
    let (mut world, mut first, _server, requests) = joined_with(PairOptions::default());
    let (mut second, _second_server) = join(&mut world, &requests, PairOptions::default());
    let remote = world.hosts[1].register(vec![7; 8192], Access::REMOTE_READ);
    let sink = world.hosts[0].register(vec![0; 8192], Access::LOCAL_WRITE);
    for id in 0..READS {
        for pair in [&mut first, &mut second] {
            assert!(pair.post_simple(id, SendOpcode::Read, Some(sge(&sink, 0, 8192)), (remote.stag(), 0)));
        }
    }
    let limit = uwarp_engine::command::StartupOptions::default().ord as usize;
    let (mut most, mut done) = (0, [0; 2]);
    assert!(world.run_until(SECOND, |world| {
        let stats = world.hosts[0].engine.as_ref().expect("it lives").stats();
        let outstanding: Vec<_> = stats.queue_pairs.iter().map(|pair| pair.reads_outstanding as usize).collect();
        assert!(outstanding.iter().all(|count| *count <= limit), "{outstanding:?}");
        most = most.max(outstanding.iter().sum());
        for (done, pair) in done.iter_mut().zip([&mut first, &mut second]) {
            *done += pair.poll_all().iter().filter(|one| one.status == Status::Success).count();
        }
        done == [READS as usize; 2]
    }));
    assert_eq!(most, 2 * limit, "both streams used all of their slots at once");
}
