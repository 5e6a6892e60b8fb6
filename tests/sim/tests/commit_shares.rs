//! Commits (draft-talpey-rdma-commit) of much memory: what they write, and what they delay.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{Command, ConnectionRequest, DisconnectReason};
use uwarp_engine::work::{SendOpcode, Status};
use uwarp_memory::{Access, CommitStatus, Committer, DomainId, Registration, Scope, Store, TaggedBase};
use uwarp_sim_tests::durable::{COMMIT, durable, post_commit, statuses};
use uwarp_sim_tests::pairs::{PORT, SECOND, completions, ends, join_with, joined, sge, with};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request, untagged, write};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::ddp::{Stag, TaggedOffset};
use uwarp_wire::rdmap::{CommitRegion, CommitRequest, CommitResponse, Opcode};

const MIB: usize = 1 << 20;
/// The octets of one stream at a committer, by default.
const SHARE: u64 = MIB as u64;

/// A store that counts the octets that it gets.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU64>);

impl Counted {
    fn octets(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Store for Counted {
    fn write(&mut self, _offset: u64, octets: &[u8]) -> io::Result<()> {
        self.0.fetch_add(octets.len() as u64, Relaxed);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn counted(world: &World, length: usize) -> (Registration, Committer, Counted) {
    let store = Counted::default();
    let (scope, base) = (Scope::Domain(DomainId(1)), TaggedBase::Zero);
    let (region, committer) = world.hosts[1]
        .regions
        .register_durable(vec![0; length], Access::ALL, scope, base, Box::new(store.clone()), false)
        .expect("the table has room");
    (region, committer, store)
}

fn two_streams(world: &mut World) -> ([Pair; 2], [Pair; 2], Receiver<ConnectionRequest>) {
    let requests = world.hosts[1].listen(PORT);
    let [first, second] = [(); 2].map(|()| {
        let client = world.hosts[0].pair(PairOptions { send_depth: 1024, ..PairOptions::default() });
        let server = world.hosts[1].pair(PairOptions::default());
        join_with(world, &client, &server, &requests, with(COMMIT), with(COMMIT));
        (client, server)
    });
    ([first.0, second.0], [first.1, second.1], requests)
}

#[test]
fn a_request_writes_each_octet_that_it_names_once() {
    let mib = MIB as u64;
    let once = |ranges: &[(u64, u64)], expected: u64| {
        let mut world = World::two();
        let requests = world.hosts[1].listen(PORT);
        let pair = world.hosts[1].pair(PairOptions::default());
        let (region, mut committer, store) = counted(&world, 16 * MIB);
        let (mut peer, _) = RawPeer::start_with(&mut world, 9, 1, &pair, &requests, PORT, (&request(), with(COMMIT)));
        peer.send(&fpdu(&write(1, 0, &[])));
        let of = |&(offset, length): &(u64, u64)| CommitRegion {
            stag: Stag(region.stag()),
            length: length as u32,
            offset: TaggedOffset(offset),
        };
        let regions: Vec<CommitRegion> = ranges.iter().map(of).collect();
        let mut body = vec![0; CommitRequest::emit_len(regions.len())];
        CommitRequest::emit(5, &regions, &mut body);
        peer.send(&fpdu(&untagged(Opcode::CommitRequest, 1, 1, 0, &body)));
        let mut answer = None;
        assert!(peer.run_until(&mut world, SECOND, |peer, _| {
            let before = store.octets();
            committer.work();
            assert!(store.octets() - before <= SHARE, "no more than a share at a time");
            answer = peer.take_fpdu();
            answer.is_some()
        }));
        let success = CommitResponse { request_identifier: 5, status: CommitStatus::Success.code() };
        assert_eq!(answer, Some(untagged(Opcode::CommitResponse, 3, 1, 0, &success.to_octets())));
        assert_eq!(store.octets(), expected);
        let stats = world.hosts[1].engine.as_ref().map(|engine| engine.stats().commit_octets);
        assert_eq!(stats, Some(expected));
        body.len()
    };
    // 1,028 octets of RDMAP, and 1 GiB if each range were written separately.
    assert_eq!(once(&[(0, 16 * mib); 64], 16 * mib), 1028);
    once(&[(8 * mib, 4 * mib), (0, mib), (9 * mib, mib), (11 * mib, 3 * mib), (mib, 1)], 7 * mib + 1);
}

#[test]
fn requests_that_wait_together_write_what_they_share_once_and_later_ones_anew() {
    let (mut world, mut client, _server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, shadow) = durable(&world, 1, 60_000, false);
    let (other, mut counting, store) = counted(&world, 60_000);
    let source = world.hosts[0].register(vec![5; 60_000], Access::LOCAL_READ);
    for id in 0..2 {
        assert!(post_commit(&mut client, id, &[sge(&other, 20_000 * id, 40_000)]));
    }
    world.run(SECOND / 100);
    assert_eq!(counting.work(), 2);
    assert_eq!(store.octets(), 60_000);
    let both = [0, 1].map(|id| (id, Status::Success, Some(0)));
    assert_eq!(statuses(&completions(&mut world, &mut client, 2)), both);
    // The second commit also makes durable what is written between them.
    for id in 0..2 {
        assert!(post_commit(&mut client, id, &[sge(&region, 0, 40_000)]));
        world.run(SECOND / 100);
        assert!(client.post_simple(9, SendOpcode::Write, Some(sge(&source, 0, 30_000)), (region.stag(), 20_000 * id)));
    }
    assert!(post_commit(&mut client, 2, &[sge(&region, 0, 60_000)]));
    world.run(SECOND / 100);
    assert_eq!(committer.work(), 3);
    let done = completions(&mut world, &mut client, 5);
    assert!(done.iter().all(|one| one.status == Status::Success), "{done:?}");
    assert_eq!(shadow.safe()[..50_000], [5; 50_000]);
}

#[test]
fn who_commits_little_does_not_wait_for_who_commits_much() {
    let mut world = World::two();
    let ([mut greedy, mut modest], _servers, _requests) = two_streams(&mut world);
    let length = 16 * MIB;
    let (region, mut committer, store) = counted(&world, length);
    let (mut posted, mut done) = (0, 0);
    for round in 0..50 {
        while posted < done + 8 {
            assert!(post_commit(&mut greedy, posted, &[sge(&region, 0, length as u32)]));
            posted += 1;
        }
        assert!(post_commit(&mut modest, round, &[sge(&region, round, 8)]));
        world.run(SECOND / 1000);
        let before = store.octets();
        committer.work();
        assert_eq!(statuses(&completions(&mut world, &mut modest, 1)), [(round, Status::Success, Some(0))]);
        let waited_for = store.octets() - before;
        assert!(waited_for <= SHARE + 8, "{waited_for} octets");
        done += greedy.poll_all().iter().filter(|one| one.status == Status::Success).count() as u64;
    }
    // And the stream with large commits progresses.
    assert!(world.run_until(SECOND, |_| {
        committer.work();
        done += greedy.poll_all().iter().filter(|one| one.status == Status::Success).count() as u64;
        done == posted
    }));
}

#[test]
fn many_small_parts_of_one_stream_do_not_fill_the_committer_for_another() {
    let mut world = World::two();
    let ([mut greedy, mut modest], _servers, _requests) = two_streams(&mut world);
    let (region, mut committer, _store) = counted(&world, 16 * MIB);
    for id in 0..16 {
        let scattered: Vec<_> = (0..60).map(|part| sge(&region, 8192 * (64 * id + part), 1)).collect();
        assert!(post_commit(&mut greedy, id, &scattered));
        world.run(SECOND / 1000);
    }
    assert!(post_commit(&mut modest, 100, &[sge(&region, 3, 1)]));
    world.run(SECOND / 100);
    assert_eq!(committer.work(), (SHARE / 4096) as usize + 1, "as many as there are pages in a share, and the other's");
    assert_eq!(statuses(&completions(&mut world, &mut modest, 1)), [(100, Status::Success, Some(0))]);
    let mut done = 0;
    assert!(world.run_until(SECOND, |_| {
        committer.work();
        done += greedy.poll_all().iter().filter(|one| one.status == Status::Success).count();
        done == 16
    }));
}

#[test]
fn commits_of_a_peer_that_has_gone_are_not_carried_out() {
    let (mut world, mut client, server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, store) = counted(&world, 16 * MIB);
    for id in 0..8 {
        assert!(post_commit(&mut client, id, &[sge(&region, 0, 16 << 20)]));
    }
    world.run(SECOND / 100);
    world.hosts[0].command(Command::Abort { queue_pair: client.number });
    assert_eq!(ends(&mut world, &server), DisconnectReason::Reset);
    assert_eq!((committer.work(), store.octets()), (0, 0));
}

#[test]
fn commits_whose_time_is_over_are_not_carried_out() {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |config| config.iwarp.commit_timeout = SECOND);
    let ([mut client, _other], _servers, _requests) = two_streams(&mut world);
    let (region, mut committer, store) = counted(&world, 16 * MIB);
    for id in 0..8 {
        assert!(post_commit(&mut client, id, &[sge(&region, 0, 16 << 20)]));
    }
    world.run(SECOND + SECOND / 2);
    let over = |id| (id, Status::CommitFailed, Some(CommitStatus::Transient.code()));
    assert_eq!(statuses(&client.poll_all()), (0..8).map(over).collect::<Vec<_>>());
    assert_eq!((committer.work(), store.octets()), (0, 0));
    // The stream has its whole share again.
    assert!(post_commit(&mut client, 9, &[sge(&region, 0, 1 << 20)]));
    world.run(SECOND / 100);
    assert_eq!((committer.work(), store.octets()), (1, SHARE));
    assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [(9, Status::Success, Some(0))]);
}

#[test]
fn an_engine_that_carries_out_commits_writes_a_little_in_each_turn() {
    let mut world = World::two();
    let ([mut greedy, mut modest], _servers, _requests) = two_streams(&mut world);
    let (region, committer, store) = counted(&world, 16 * MIB);
    assert!(region.commit_in_engines(committer).is_ok());
    let sink = world.hosts[0].register(vec![0; 64], Access::LOCAL_WRITE);
    for id in 0..4 {
        assert!(post_commit(&mut greedy, id, &[sge(&region, 0, 16 << 20)]));
    }
    assert!(modest.post_simple(9, SendOpcode::Read, Some(sge(&sink, 0, 64)), (region.stag(), 0)));
    let (mut order, mut before) = (Vec::new(), 0);
    // The engine turns once between two looks.
    assert!(world.run_until(SECOND, |_| {
        let written = store.octets() - std::mem::replace(&mut before, store.octets());
        assert!(written <= 64 << 10, "{written} octets in a turn");
        for pair in [&mut modest, &mut greedy] {
            order.extend(pair.poll_all().iter().map(|one| (one.id, one.status)));
        }
        order.len() == 5
    }));
    assert_eq!(order, [9, 0, 1, 2, 3].map(|id| (id, Status::Success)));
}

#[test]
fn a_region_that_goes_in_the_middle_of_its_commit_is_not_said_to_be_durable() {
    let (mut world, mut client, _server, _requests) = joined(COMMIT, COMMIT);
    let (region, mut committer, _store) = counted(&world, 16 * MIB);
    assert!(post_commit(&mut client, 1, &[sge(&region, 0, 16 << 20)]));
    world.run(SECOND / 100);
    assert_eq!(committer.work(), 1);
    world.run(SECOND / 100);
    drop(region);
    assert_eq!(committer.work(), 1, "what was under way");
    let failed = (1, Status::CommitFailed, Some(CommitStatus::Failure.code()));
    assert_eq!(statuses(&completions(&mut world, &mut client, 1)), [failed]);
}
