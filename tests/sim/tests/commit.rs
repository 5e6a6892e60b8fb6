//! RDMA Commit (draft-talpey-rdma-commit) between two engines, over stores that lose unsynced writes.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{Command, ConnectionRequest, DisconnectReason, Features, StartupOptions, TerminateCode};
use uwarp_engine::work::{
    AtomicOperands, Completion, CompletionOpcode, SendElement, SendFlags, SendOpcode, Sge, Status,
};
use uwarp_memory::{Access, CommitStatus, Committer, DomainId, Registration, Scope, TaggedBase};
use uwarp_sim_tests::durable::{COMMIT, durable, post_commit, post_write_commit, statuses};
use uwarp_sim_tests::pairs::{PORT, SECOND, completions, element, ends, frames_sent, joined, joined_with, sge, with};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

#[test]
fn a_commit_completes_when_the_octets_are_safe_and_not_before() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, shadow) = durable(&world, 1, 10_000, false);
    let (other, mut other_committer, other_shadow) = durable(&world, 1, 100, false);
    let octets: Vec<u8> = (0..10_000u32).map(|at| (at * 13) as u8 | 1).collect();
    let source = world.hosts[0].register(octets.clone(), Access::LOCAL_READ);
    assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 10_000)), (region.stag(), 0)));
    assert!(client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, 100)), (other.stag(), 0)));
    let regions = [sge(&region, 3_000, 2_000), sge(&other, 10, 20), sge(&region, 9_000, 1_000)];
    assert!(post_commit(&mut client, 3, &regions));
    let done = completions(&mut world, &mut client, 3);
    assert_eq!(done.len(), 2, "the commit waits: {done:?}");
    assert_eq!((committer.work(), shadow.safe()[3_000]), (2, octets[3_000]));
    assert_eq!(completions(&mut world, &mut client, 1), [], "one part is still to come");
    assert_eq!(other_committer.work(), 1);
    let done = completions(&mut world, &mut client, 1);
    assert_eq!(statuses(&done), [(3, Status::Success, Some(0))]);
    assert_eq!((done[0].opcode, done[0].length), (CompletionOpcode::Commit, 0));
    let mut expected = vec![0; 10_000];
    for range in [3_000..5_000, 9_000..10_000] {
        expected[range.clone()].copy_from_slice(&octets[range]);
    }
    assert_eq!(shadow.safe(), expected);
    assert_eq!(other_shadow.safe()[10..30], octets[10..30]);
    assert_eq!(server.poll(), None, "the responder's application is told nothing");
}

#[test]
fn a_write_and_its_commit_leave_in_one_segment_if_they_fit() {
    // 1448 octets of a segment hold a Write's FPDU (2 + 14 + payload + padding + 4) and 44 octets of a Commit Request.
    for (length, segments) in
        [(0, 1), (1, 1), (64, 1), (1384, 1), (1385, 2), (1428, 2), (1428 + 1384, 2), (1428 + 1385, 3)]
    {
        let (mut world, mut client, _server, _requests) = joined(COMMIT, COMMIT);
        let octets: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
        let source = world.hosts[0].register(octets.clone(), Access::LOCAL_READ);
        let (region, mut committer, shadow) = durable(&world, 1, 4096, false);
        world.run(SECOND / 100);
        let before = frames_sent(&world, 0);
        assert!(post_write_commit(&mut client, 9, sge(&source, 0, length as u32), (region.stag(), 5)));
        let mut done = completions(&mut world, &mut client, 1);
        // An empty range needs nothing of the store.
        if length > 0 {
            assert_eq!(done, [], "{length} octets");
            assert_eq!(frames_sent(&world, 0) - before, segments, "{length} octets");
            assert_eq!(committer.work(), 1);
            done = completions(&mut world, &mut client, 1);
        }
        assert_eq!(statuses(&done), [(9, Status::Success, Some(0))]);
        assert_eq!(done[0].length, length as u32);
        assert_eq!(shadow.safe()[5..5 + length], octets);
    }
}

/// Two streams from the first host to the second.
fn two_streams() -> (World, [(Pair, Pair); 2], Receiver<ConnectionRequest>) {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let pairs = [(); 2].map(|()| {
        let client = world.hosts[0].pair(PairOptions::default());
        let server = world.hosts[1].pair(PairOptions::default());
        uwarp_sim_tests::pairs::join_with(&mut world, &client, &server, &requests, with(COMMIT), with(COMMIT));
        (client, server)
    });
    (world, pairs, requests)
}

#[test]
fn commits_are_answered_in_the_order_of_requests_and_nobody_else_waits() {
    let (mut world, [(mut first, mut first_server), (mut second, _second_server)], _requests) = two_streams();
    let (region, mut committer, _shadow) = durable(&world, 1, 4096, false);
    let (other, mut other_committer, _shadow) = durable(&world, 1, 64, false);
    let sink = world.hosts[0].register(vec![0; 4096], Access::LOCAL_WRITE);
    let inbox = world.hosts[1].register(vec![0; 64], Access::LOCAL_WRITE);
    assert!(first_server.post_receive(50, &[sge(&inbox, 0, 64)]));
    assert!(post_commit(&mut first, 1, &[sge(&region, 0, 8)]));
    assert!(first.post_simple(2, SendOpcode::Read, Some(sge(&sink, 0, 4096)), (region.stag(), 0)));
    assert!(post_commit(&mut first, 3, &[sge(&other, 8, 8)]));
    assert!(first.post_simple(4, SendOpcode::Send, None, (0, 0)));
    assert!(second.post_simple(5, SendOpcode::Read, Some(sge(&sink, 0, 4096)), (region.stag(), 0)));
    // The Send is delivered although earlier requests are not answered; the other stream does not notice.
    assert_eq!(completions(&mut world, &mut first_server, 1).len(), 1);
    assert_eq!(completions(&mut world, &mut second, 1)[0].id, 5);
    assert_eq!(completions(&mut world, &mut first, 1), [], "a Read behind a Commit is answered behind it");
    assert_eq!(other_committer.work(), 1, "both commits were begun");
    assert_eq!(
        completions(&mut world, &mut first, 1),
        [],
        "the second is done first, and is answered behind the other"
    );
    assert_eq!(committer.work(), 1);
    let done = completions(&mut world, &mut first, 4);
    assert_eq!(done.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(done.iter().all(|one| one.status == Status::Success));
}

#[test]
fn commits_beyond_the_limit_of_requests_wait() {
    let limits = StartupOptions { ord: 2, ..with(COMMIT) };
    let accept = StartupOptions { ird: 2, ..with(COMMIT) };
    let (mut world, mut client, _server, _requests) = joined_with(limits, accept);
    let (region, mut committer, _shadow) = durable(&world, 1, 64, false);
    let source = world.hosts[0].register(vec![1; 64], Access::LOCAL_READ);
    for id in 0..10 {
        assert!(if id % 2 == 0 {
            post_commit(&mut client, id, &[sge(&region, id, 1)])
        } else {
            post_write_commit(&mut client, id, sge(&source, 0, 1), (region.stag(), id))
        });
    }
    let mut done = Vec::new();
    for _ in 0..5 {
        world.run(SECOND / 100);
        assert_eq!(committer.work(), 2, "no more than two at a time");
        done.extend(completions(&mut world, &mut client, 2));
    }
    assert_eq!(done.iter().map(|one| one.id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_store_that_fails_gives_statuses_and_the_connection_goes_on() {
    for (kind, status, stays) in [
        (io::ErrorKind::Other, CommitStatus::Failure, true),
        (io::ErrorKind::ReadOnlyFilesystem, CommitStatus::ReadOnly, true),
        (io::ErrorKind::StorageFull, CommitStatus::NoSpace, false),
        (io::ErrorKind::WouldBlock, CommitStatus::Transient, false),
    ] {
        let (mut world, mut client, _server, _requests) = joined(COMMIT, COMMIT);
        let (region, mut committer, shadow) = durable(&world, 1, 64, false);
        let sink = world.hosts[0].register(vec![0; 64], Access::LOCAL_WRITE);
        let mut commit = |world: &mut World, committer: &mut Committer, region: &Registration, id| {
            // A failure is reported even if no completion was requested.
            let element = SendElement {
                flags: if id == 1 { SendFlags::empty() } else { SendFlags::SIGNALLED },
                entries: 1,
                ..element(id, SendOpcode::Commit)
            };
            assert!(client.post(element, &[sge(region, 0, 8)], &[]));
            world.run(SECOND / 100);
            committer.work();
            let done = completions(world, &mut client, 1);
            (done[0].status, done[0].commit_status())
        };
        shadow.fail(Some(kind));
        let failed = (Status::CommitFailed, Some(status.code()));
        assert_eq!(commit(&mut world, &mut committer, &region, 1), failed);
        shadow.fail(None);
        let good = (Status::Success, Some(0));
        assert_eq!(commit(&mut world, &mut committer, &region, 2), if stays { failed } else { good }, "{kind:?}");
        // Registered again, it works like a new one.
        drop(region);
        let (region, mut committer, _shadow) = durable(&world, 1, 64, false);
        assert_eq!(commit(&mut world, &mut committer, &region, 3), good);
        assert!(client.post_simple(4, SendOpcode::Read, Some(sge(&sink, 0, 64)), (region.stag(), 0)));
        assert_eq!(completions(&mut world, &mut client, 1)[0].status, Status::Success);
    }
}

#[test]
fn memory_that_is_not_durable_is_committed_in_words_only() {
    for strict in [false, true] {
        let mut world = World::new(1, SimOptions::default());
        world.add(HostOptions::default(), |_| {});
        world.add(HostOptions::default(), |config| config.iwarp.strict_commit = strict);
        let (mut client, _server, _requests) = uwarp_sim_tests::pairs::join_two(&mut world, with(COMMIT), with(COMMIT));
        let plain = world.hosts[1].register(vec![0; 64], Access::REMOTE_WRITE);
        assert!(post_commit(&mut client, 1, &[sge(&plain, 0, 64)]));
        let expected = if strict {
            (1, Status::CommitFailed, Some(CommitStatus::Unsupported.code()))
        } else {
            (1, Status::Success, Some(0))
        };
        assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [expected]);
        // Nothing to do: STag and offset do not matter.
        let nothing = Sge { stag: 0xdead_beef, length: 0, offset: u64::MAX };
        assert!(post_commit(&mut client, 2, &[nothing]));
        assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [(2, Status::Success, Some(0))]);
    }
}

#[test]
fn persistent_memory_is_committed_at_once_and_holds_no_message_up() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let region = world.hosts[1]
        .regions
        .register_persistent(vec![0; 300].into(), Access::ALL, Scope::Domain(DomainId(1)), TaggedBase::Zero, true)
        .expect("the table has room");
    let source = world.hosts[0].register(vec![7; 300], Access::LOCAL_READ);
    assert!(server.post_receive(1, &[]));
    assert!(post_write_commit(&mut client, 2, sge(&source, 0, 300), (region.stag(), 0)));
    assert!(client.post_simple(3, SendOpcode::Write, Some(sge(&source, 0, 8)), (region.stag(), 8)));
    assert!(client.post_simple(4, SendOpcode::Send, None, (0, 0)));
    let done = completions(&mut world, &mut client, 3);
    assert_eq!(statuses(&done[..1]), [(2, Status::Success, Some(0))]);
    assert_eq!(completions(&mut world, &mut server, 1)[0].status, Status::Success);
}

#[test]
fn a_store_that_does_not_answer_has_a_time_limit() {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |config| config.iwarp.commit_timeout = SECOND);
    let (mut client, _server, _requests) = uwarp_sim_tests::pairs::join_two(&mut world, with(COMMIT), with(COMMIT));
    let (region, mut committer, _shadow) = durable(&world, 1, 64, false);
    let sink = world.hosts[0].register(vec![0; 64], Access::LOCAL_WRITE);
    let posted = world.now();
    assert!(post_commit(&mut client, 1, &[sge(&region, 0, 64)]));
    let done = completions(&mut world, &mut client, 1);
    assert_eq!(done, [], "not before its time");
    let done = completions(&mut world, &mut client, 1);
    assert_eq!(statuses(&done), [(1, Status::CommitFailed, Some(CommitStatus::Transient.code()))]);
    assert!(world.now() - posted >= SECOND);
    // Nobody waits for it any more.
    assert_eq!(committer.work(), 0);
    assert!(post_commit(&mut client, 2, &[sge(&region, 0, 64)]));
    world.run(SECOND / 100);
    assert_eq!(committer.work(), 1);
    assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [(2, Status::Success, Some(0))]);
    assert!(client.post_simple(3, SendOpcode::Read, Some(sge(&sink, 0, 64)), (region.stag(), 0)));
    assert_eq!(completions(&mut world, &mut client, 1)[0].status, Status::Success);
}

#[test]
fn a_peer_that_has_not_agreed_does_not_know_commits() {
    let unexpected = TerminateCode { layer: 0, error_type: 2, code: 6 };
    for with_write in [false, true] {
        let (mut world, mut client, server, _requests) = joined(COMMIT, Features { commit: false, ..COMMIT });
        let target = world.hosts[1].register(vec![0; 64], Access::ALL);
        assert!(if with_write {
            post_write_commit(&mut client, 1, Sge::default(), (target.stag(), 0))
        } else {
            post_commit(&mut client, 1, &[sge(&target, 0, 8)])
        });
        assert_eq!(ends(&mut world, &client), DisconnectReason::PeerTerminated(unexpected));
        assert_eq!(ends(&mut world, &server), DisconnectReason::LocalTerminated(unexpected));
        let failed = completions(&mut world, &mut client, 1);
        assert_eq!(statuses(&failed), [(1, Status::RemoteOperation, None)]);
    }
    // And here it is not sent.
    for regions in [1, 62] {
        let (features, status) =
            if regions == 1 { (Features::default(), Status::LocalOperation) } else { (COMMIT, Status::Success) };
        let (mut world, mut client, _server, _requests) = joined(features, COMMIT);
        let target = world.hosts[1].register(vec![0; 64], Access::ALL);
        assert!(post_commit(&mut client, 1, &vec![sge(&target, 0, 8); regions]));
        assert_eq!(completions(&mut world, &mut client, 1)[0].status, status);
    }
}

#[test]
fn a_commit_that_does_not_fit_a_segment_fails_here() {
    let mut world = World::new(1, SimOptions::default());
    for _ in 0..2 {
        world.add(HostOptions { mtu: 576, ..HostOptions::default() }, |_| {});
    }
    let (mut client, _server, _requests) = uwarp_sim_tests::pairs::join_two(&mut world, with(COMMIT), with(COMMIT));
    let target = world.hosts[1].register(vec![0; 64], Access::ALL);
    // EMSS 524, MULPDU 518: 18 + 4 + 16 × 31.
    assert!(post_commit(&mut client, 1, &vec![sge(&target, 0, 8); 31]));
    assert_eq!(completions(&mut world, &mut client, 1)[0].status, Status::Success);
    assert!(post_commit(&mut client, 2, &vec![sge(&target, 0, 8); 32]));
    assert_eq!(completions(&mut world, &mut client, 1)[0].status, Status::LocalOperation);
}

#[test]
fn messages_wait_for_what_was_written_before_them() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, shadow) = durable(&world, 1, 100_000, true);
    let plain = world.hosts[1].register(vec![0; 64], Access::ALL);
    let source = world.hosts[0].register((0..100_000u32).map(|at| at as u8 | 1).collect(), Access::LOCAL_READ);
    for id in 0..4 {
        assert!(server.post_receive(id, &[sge(&plain, 0, 64)]));
    }
    // Nothing durable is written before the first.
    assert!(client.post_simple(10, SendOpcode::Send, Some(sge(&source, 0, 4)), (0, 0)));
    assert!(client.post_simple(11, SendOpcode::Write, Some(sge(&source, 0, 64)), (plain.stag(), 0)));
    assert_eq!(completions(&mut world, &mut server, 1)[0].id, 0);
    for (id, from) in [(12, 0), (13, 50_000)] {
        assert!(client.post_simple(id, SendOpcode::Write, Some(sge(&source, from, 30_000)), (region.stag(), from)));
    }
    assert!(client.post_simple(14, SendOpcode::Send, Some(sge(&source, 0, 5)), (0, 0)));
    // Behind it, a message that would not have to wait.
    let immediate = SendElement { remote_offset: 77, ..element(15, SendOpcode::Immediate) };
    assert!(client.post(immediate, &[], &[]));
    assert_eq!(completions(&mut world, &mut server, 1), [], "not told yet");
    assert!(committer.work() > 0);
    let told = completions(&mut world, &mut server, 2);
    assert_eq!(told.iter().map(|one| (one.id, one.length)).collect::<Vec<_>>(), [(1, 5), (2, 0)]);
    assert_eq!(told[1].immediate_data(), Some(77));
    let mut octets = vec![0; 100_000];
    region.read(0, &mut octets).expect("in range");
    assert_eq!(shadow.safe(), octets);
    assert!(octets[50_000..80_000].iter().all(|octet| *octet != 0));
    // A failure is reported with the message.
    shadow.fail(Some(io::ErrorKind::Other));
    assert!(client.post_simple(16, SendOpcode::Write, Some(sge(&source, 0, 8)), (region.stag(), 8)));
    assert!(client.post_simple(17, SendOpcode::Send, Some(sge(&source, 0, 6)), (0, 0)));
    world.run(SECOND / 100);
    committer.work();
    let told = completions(&mut world, &mut server, 1);
    assert_eq!((told[0].id, told[0].status, told[0].length), (3, Status::CommitFailed, 6));
}

#[test]
fn an_atomic_is_among_what_a_commit_behind_it_makes_durable() {
    let (mut world, mut client, _server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, shadow) = durable(&world, 1, 64, false);
    let long = world.hosts[1].register(vec![1; 1 << 20], Access::REMOTE_READ);
    let sink = world.hosts[0].register(vec![0; 1 << 20], Access::LOCAL_WRITE);
    // The atomics must wait for their turn behind a long answer, and meanwhile the commits arrive.
    assert!(client.post_simple(1, SendOpcode::Read, Some(sge(&sink, 0, 1 << 20)), (long.stag(), 0)));
    let operands = AtomicOperands { add_swap: 5, add_swap_mask: 0, compare: 0, compare_mask: u64::MAX };
    let add = |client: &mut Pair, id| {
        let element = SendElement {
            flags: SendFlags::SIGNALLED.union(SendFlags::INLINE),
            stag: region.stag(),
            remote_offset: 8,
            length: AtomicOperands::LEN as u32,
            ..element(id, SendOpcode::FetchAdd)
        };
        assert!(client.post(element, &[], &operands.to_octets()));
    };
    add(&mut client, 2);
    assert!(post_commit(&mut client, 3, &[sge(&region, 8, 8)]));
    add(&mut client, 4);
    assert!(post_commit(&mut client, 5, &[sge(&region, 8, 8)]));
    let mut done = Vec::new();
    assert!(world.run_until(SECOND, |_| {
        // The store is fast.
        committer.work();
        for one in client.poll_all() {
            let safe = u64::from_le_bytes(shadow.safe()[8..16].try_into().expect("eight octets"));
            assert!(one.commit_status().is_none() || safe >= 5 * (one.id / 2), "{one:?}: {safe}");
            done.push((one.id, one.status));
        }
        done.len() == 5
    }));
    assert_eq!(done, (1..=5).map(|id| (id, Status::Success)).collect::<Vec<_>>());
}

#[test]
fn no_message_is_told_well_before_what_was_written_is_durable_also_if_the_store_failed_meanwhile() {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |config| config.iwarp.commit_timeout = SECOND);
    let (mut client, mut server, _requests) = uwarp_sim_tests::pairs::join_two(&mut world, with(COMMIT), with(COMMIT));
    let (region, mut committer, shadow) = durable(&world, 1, 64, true);
    let source = world.hosts[0].register(vec![1; 64], Access::LOCAL_READ);
    for id in 0..10 {
        assert!(server.post_receive(id, &[]));
    }
    let write = |client: &mut Pair, at| {
        assert!(client.post_simple(100, SendOpcode::Write, Some(sge(&source, 0, 8)), (region.stag(), at)));
    };
    let send = |client: &mut Pair| assert!(client.post_simple(101, SendOpcode::Send, None, (0, 0)));
    let told = |world: &mut World, server: &mut Pair, count| {
        completions(world, server, count).iter().map(|one| (one.id, one.status)).collect::<Vec<_>>()
    };
    // The first fails; so do those behind it that have already arrived, whatever happens to their own Writes.
    write(&mut client, 0);
    send(&mut client);
    send(&mut client);
    world.run(SECOND / 100);
    shadow.fail(Some(io::ErrorKind::StorageFull));
    committer.work();
    shadow.fail(None);
    assert_eq!(told(&mut world, &mut server, 2), [(0, Status::CommitFailed), (1, Status::CommitFailed)]);
    // The next one retries.
    write(&mut client, 8);
    send(&mut client);
    world.run(SECOND / 100);
    assert_eq!(server.poll(), None);
    committer.work();
    assert_eq!(told(&mut world, &mut server, 1), [(2, Status::Success)]);
    assert_eq!(shadow.safe()[..16], [1; 16]);
    // Nor is a message reported as good because the store did not answer about those before it.
    write(&mut client, 16);
    send(&mut client);
    assert!(world.run_until(2 * SECOND, |_| server.poll().is_some_and(|one| one.status == Status::CommitFailed)));
    send(&mut client);
    world.run(SECOND / 100);
    assert_eq!(server.poll(), None);
    committer.work();
    assert_eq!(told(&mut world, &mut server, 1), [(4, Status::Success)]);
    assert_eq!(shadow.safe()[..24], [1; 24]);
    // Without any write since, there is nothing to wait for.
    send(&mut client);
    assert_eq!(told(&mut world, &mut server, 1), [(5, Status::Success)]);
}

#[test]
fn what_was_written_through_a_window_is_durable_before_a_message_though_the_window_is_gone() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, shadow) = durable(&world, 1, 64, true);
    let plain = world.hosts[1].register(vec![0; 64], Access::ALL);
    let source = world.hosts[0].register(vec![1; 64], Access::LOCAL_READ);
    let mut window = world.hosts[1].regions.allocate_window(DomainId(1), 2).expect("room");
    let stag = window.next_stag();
    let pieces = [sge(&plain, 0, 40), sge(&region, 10, 40), SendElement::rights_entry(Access::REMOTE_WRITE)];
    let bind = SendElement { stag, length: 80, entries: 3, ..element(1, SendOpcode::Bind) };
    assert!(server.post(bind, &pieces, &[]));
    assert!(server.post_receive(7, &[]));
    // A Responder sends nothing before it has received from its peer.
    assert!(client.post_simple(5, SendOpcode::Write, Some(sge(&source, 0, 1)), (plain.stag(), 0)));
    world.run(SECOND / 100);
    // It begins in memory that is not durable.
    assert!(client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, 60)), (stag, 20)));
    world.run(SECOND / 100);
    assert!(server.post(SendElement { stag, ..element(3, SendOpcode::LocalInvalidate) }, &[], &[]));
    world.run(SECOND / 100);
    assert_eq!(statuses(&server.poll_all()), [(1, Status::Success, None), (3, Status::Success, None)]);
    assert!(client.post_simple(4, SendOpcode::Send, None, (0, 0)));
    world.run(SECOND / 100);
    assert_eq!(server.poll(), None, "told before it is durable");
    assert_eq!(committer.work(), 1);
    assert_eq!(completions(&mut world, &mut server, 1)[0].status, Status::Success);
    assert_eq!((shadow.safe()[9], &shadow.safe()[10..50], shadow.safe()[50]), (0, &[1; 40][..], 0));
}

#[test]
fn one_commit_covers_ranges_of_every_kind_under_one_stag() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, shadow) = durable(&world, 1, 64, false);
    let (scope, base) = (Scope::Domain(DomainId(1)), TaggedBase::Zero);
    let persistent = world.hosts[1]
        .regions
        .register_persistent(vec![0; 64].into(), Access::ALL, scope, base, false)
        .expect("the table has room");
    let plain = world.hosts[1].register(vec![0; 64], Access::ALL);
    let source = world.hosts[0].register(vec![1; 64], Access::LOCAL_READ);
    let mut window = world.hosts[1].regions.allocate_window(DomainId(1), 3).expect("room");
    let stag = window.next_stag();
    let rights = SendElement::rights_entry(Access::REMOTE_WRITE);
    let pieces = [sge(&persistent, 4, 20), sge(&region, 10, 20), sge(&plain, 0, 20), rights];
    assert!(server.post(SendElement { stag, length: 60, entries: 4, ..element(1, SendOpcode::Bind) }, &pieces, &[]));
    // A Responder sends nothing before it has received from its peer.
    assert!(client.post_simple(2, SendOpcode::Write, Some(sge(&source, 0, 1)), (plain.stag(), 0)));
    world.run(SECOND / 100);
    assert!(post_write_commit(&mut client, 3, sge(&source, 0, 60), (stag, 0)));
    world.run(SECOND / 100);
    assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [(2, Status::Success, None)]);
    assert_eq!(client.poll(), None, "the part in the store is not safe yet");
    assert_eq!(committer.work(), 1);
    assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [(3, Status::Success, Some(0))]);
    assert_eq!((shadow.safe()[9], &shadow.safe()[10..30], shadow.safe()[30]), (0, &[1; 20][..], 0));
    let mut octets = [0; 22];
    persistent.read(3, &mut octets).expect("in range");
    assert_eq!((octets[0], &octets[1..21], octets[21]), (0, &[1; 20][..], 0));
}

#[test]
fn much_persistent_memory_is_written_back_while_the_others_go_on() {
    let (mut world, [(mut first, _first_server), (mut second, _second_server)], _requests) = two_streams();
    let length = 4 << 20;
    let register = |world: &World| {
        let (scope, base) = (Scope::Domain(DomainId(1)), TaggedBase::Zero);
        let memory = vec![0; length as usize].into();
        world.hosts[1].regions.register_persistent(memory, Access::ALL, scope, base, false).expect("room")
    };
    let (region, going) = (register(&world), register(&world));
    let sink = world.hosts[0].register(vec![0; 64], Access::LOCAL_WRITE);
    assert!(post_commit(&mut first, 1, &[sge(&region, 0, length); 8]));
    assert!(second.post_simple(2, SendOpcode::Read, Some(sge(&sink, 0, 64)), (region.stag(), 0)));
    let mut order = Vec::new();
    assert!(world.run_until(SECOND, |_| {
        for pair in [&mut second, &mut first] {
            order.extend(pair.poll_all().iter().map(|one| (one.id, one.status)));
        }
        order.len() == 2
    }));
    assert_eq!(order, [(2, Status::Success), (1, Status::Success)]);
    // Nor does another of its kind wait for all of it.
    order.clear();
    assert!(post_commit(&mut first, 4, &[sge(&region, 0, length); 8]));
    world.run(SECOND / 100_000);
    assert!(post_commit(&mut second, 5, &[sge(&region, 0, 20_000)]));
    assert!(world.run_until(SECOND, |_| {
        for pair in [&mut second, &mut first] {
            order.extend(pair.poll_all().iter().map(|one| (one.id, one.status)));
        }
        order.len() == 2
    }));
    assert_eq!(order, [(5, Status::Success), (4, Status::Success)]);
    // A region that is deregistered meanwhile is not durable.
    assert!(post_commit(&mut first, 3, &[sge(&region, 0, length), sge(&going, 0, length)]));
    let (sent, mut going) = (frames_sent(&world, 0), Some(going));
    assert!(world.run_until(SECOND, |world| {
        if frames_sent(world, 0) > sent && world.network.next_arrival().is_none() {
            going = None;
        }
        order.extend(first.poll_all().iter().map(|one| (one.id, one.status)));
        order.len() == 3
    }));
    assert_eq!(order[2], (3, Status::CommitFailed));
}

#[test]
fn what_is_asked_behind_a_message_that_waits_is_answered_behind_it() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, _shadow) = durable(&world, 1, 64, true);
    let sink = world.hosts[0].register(vec![0; 64], Access::LOCAL_WRITE);
    let source = world.hosts[0].register(vec![3; 64], Access::LOCAL_READ);
    for id in 0..2 {
        assert!(server.post_receive(id, &[]));
    }
    let read = |client: &mut Pair, id| {
        assert!(client.post_simple(id, SendOpcode::Read, Some(sge(&sink, 0, 8)), (region.stag(), 0)));
    };
    for id in [10, 20] {
        read(&mut client, id);
        assert!(client.post_simple(id + 1, SendOpcode::Write, Some(sge(&source, 0, 8)), (region.stag(), 0)));
        assert!(client.post_simple(id + 2, SendOpcode::Send, None, (0, 0)));
    }
    read(&mut client, 30);
    let ids = |done: Vec<Completion>| done.iter().map(|one| one.id).collect::<Vec<_>>();
    // The first Read came before all messages; the others show that the messages before them are complete (RFC 5040
    // appendix B).
    world.run(SECOND / 10);
    assert_eq!(ids(client.poll_all()), [10, 11, 12]);
    assert_eq!(server.poll_all(), []);
    assert_eq!(committer.work(), 2);
    world.run(SECOND / 10);
    assert_eq!(ids(server.poll_all()), [0, 1]);
    assert_eq!(ids(client.poll_all()), [20, 21, 22, 30]);
}

#[test]
fn messages_that_still_wait_when_the_stream_ends_are_flushed() {
    let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, _shadow) = durable(&world, 1, 64, true);
    let source = world.hosts[0].register(vec![1; 64], Access::LOCAL_READ);
    for id in 0..3 {
        assert!(server.post_receive(id, &[]));
    }
    assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 8)), (region.stag(), 0)));
    for id in 2..4 {
        assert!(client.post_simple(id, SendOpcode::Send, None, (0, 0)));
    }
    world.run(SECOND / 100);
    world.hosts[1].command(uwarp_engine::command::Command::Abort { queue_pair: server.number });
    let flushed = completions(&mut world, &mut server, 3);
    assert_eq!(
        flushed.iter().map(|one| (one.id, one.status)).collect::<Vec<_>>(),
        (0..3).map(|id| (id, Status::Flushed)).collect::<Vec<_>>()
    );
    committer.work();
    world.run(SECOND / 100);
    assert_eq!(server.poll(), None);
}

#[test]
fn a_message_that_waits_for_a_commit_is_told_though_the_peer_closes_right_behind_it() {
    for error in [None, Some(io::ErrorKind::Other)] {
        let (mut world, mut client, mut server, _requests) = joined(COMMIT, COMMIT);
        let (region, mut committer, shadow) = durable(&world, 1, 100, true);
        shadow.fail(error);
        let source = world.hosts[0].register(vec![7; 100], Access::LOCAL_READ);
        for id in [10, 11] {
            assert!(server.post_receive(id, &[]));
        }
        assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 100)), (region.stag(), 0)));
        assert!(client.post_simple(2, SendOpcode::Send, None, (0, 0)));
        world.hosts[0].command(Command::Disconnect { queue_pair: client.number });
        world.run(SECOND / 100);
        assert_eq!(server.poll_all(), [], "the commit is not done");
        assert_eq!(committer.work(), 1);
        assert_eq!(ends(&mut world, &server), DisconnectReason::PeerClosed);
        assert_eq!(ends(&mut world, &client), DisconnectReason::Local);
        let told = if error.is_none() { Status::Success } else { Status::CommitFailed };
        let done: Vec<_> = server.poll_all().iter().map(|one| (one.id, one.status)).collect();
        assert_eq!(done, [(10, told), (11, Status::Flushed)]);
    }
}

/// The values written to each octet of the region, in order, and from which write on a value must be safe.
struct History {
    writes: Vec<Vec<(u32, u8)>>,
    floor: Vec<u32>,
    next: u32,
}

/// A posted commit: its ranges, and the writes before it.
struct Asked {
    id: u64,
    ranges: Vec<(usize, usize)>,
    before: u32,
}

/// A client writes and commits over a network that loses frames, and at a random moment the server loses everything
/// unsynced. Returns the first octet that must be safe and is not.
fn lose_power(seed: u64, lies: bool) -> Option<usize> {
    const LENGTH: usize = 3000;
    let mut random = fastrand::Rng::with_seed(seed);
    let rate = if random.bool() { 0.02 } else { 0.0 };
    let network = SimOptions { loss: rate, duplication: rate, reordering: rate, ..SimOptions::default() };
    let mut world = World::new(seed, network);
    for _ in 0..2 {
        world.add(HostOptions::default(), |config| config.tcp.rto_initial = Duration::from_millis(20));
    }
    let (mut client, _server, _requests) = uwarp_sim_tests::pairs::join_two(&mut world, with(COMMIT), with(COMMIT));
    let (region, mut committer, shadow) = durable(&world, 1, LENGTH, false);
    shadow.lie(lies);
    let source = world.hosts[0].register(vec![0; 64 * LENGTH], Access::LOCAL_READ);
    let mut history = History { writes: vec![Vec::new(); LENGTH], floor: vec![0; LENGTH], next: 1 };
    let mut asked: VecDeque<Asked> = VecDeque::new();
    let (mut id, mut slot) = (0u64, 0);
    let crash = random.usize(1..60);
    for step in 0..crash {
        let (from, length) = (random.usize(..LENGTH), random.usize(1..1500));
        let length = length.min(LENGTH - from);
        let kind = random.u32(..10);
        if kind < 8 && slot < 64 {
            // Each write has its own octets, so that every state can be distinguished.
            let octets: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            let place = slot * LENGTH;
            source.write(place, &octets).expect("in range");
            let piece = sge(&source, place as u64, length as u32);
            let with_commit = kind >= 5;
            let opcode = if with_commit { SendOpcode::WriteCommit } else { SendOpcode::Write };
            id += 1;
            if client.post_simple(id, opcode, Some(piece), (region.stag(), from as u64)) {
                slot += 1;
                for (at, octet) in octets.iter().enumerate() {
                    history.writes[from + at].push((history.next, *octet));
                }
                history.next += 1;
                if with_commit {
                    asked.push_back(Asked { id, ranges: vec![(from, length)], before: history.next });
                }
            }
        } else {
            let ranges: Vec<(usize, usize)> = (0..random.usize(1..4))
                .map(|_| {
                    let from = random.usize(..LENGTH);
                    (from, random.usize(..=LENGTH - from))
                })
                .collect();
            let regions: Vec<Sge> =
                ranges.iter().map(|(from, length)| sge(&region, *from as u64, *length as u32)).collect();
            id += 1;
            if post_commit(&mut client, id, &regions) {
                asked.push_back(Asked { id, ranges, before: history.next });
            }
        }
        world.run(Duration::from_micros(random.u64(..200)));
        if random.u32(..3) == 0 {
            committer.work();
        }
        if step + 1 == crash || random.bool() {
            world.run(Duration::from_micros(random.u64(..50_000)));
        }
        for done in client.poll_all() {
            assert_eq!(done.status, Status::Success, "seed {seed}");
            if asked.front().is_some_and(|front| front.id == done.id)
                && let Some(front) = asked.pop_front()
            {
                for (from, length) in front.ranges {
                    for at in from..from + length {
                        let last = history.writes[at].iter().rev().find(|(number, _)| *number < front.before);
                        history.floor[at] = history.floor[at].max(last.map_or(0, |(number, _)| *number));
                    }
                }
            }
        }
    }
    let safe = shadow.safe();
    (0..LENGTH).find(|at| {
        let floor = history.floor[*at];
        let allowed = history.writes[*at].iter().any(|(number, value)| *number >= floor && *value == safe[*at]);
        !(allowed || floor == 0 && safe[*at] == 0)
    })
}

#[test]
fn what_was_committed_survives_the_loss_of_everything_else() {
    for seed in 0..1000 {
        assert_eq!(lose_power(seed, false), None, "seed {seed}: an octet was lost");
    }
}

#[test]
fn a_sync_that_is_left_out_is_found_out() {
    let found = (0..50).filter(|seed| lose_power(*seed, true).is_some()).count();
    assert!(found > 25, "of 50 losses of power {found} were noticed");
}
