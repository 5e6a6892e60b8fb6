use super::*;
use uwarp_memory::{Access, Association, Committer, DomainId, RegionTable, Registration, Scope, Store, StreamId};
use uwarp_memory::{EngineEpoch, TaggedBase};

struct Nowhere;

impl Store for Nowhere {
    fn write(&mut self, _offset: u64, _octets: &[u8]) -> std::io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const US: Association = Association { domain: DomainId(1), stream: StreamId(1) };

fn region(length: usize) -> (EngineEpoch, Registration, Committer) {
    let table = RegionTable::new(8, 1 << 40, 1);
    let (region, committer) = table
        .register_durable(
            vec![0; length],
            Access::ALL,
            Scope::Domain(US.domain),
            TaggedBase::Zero,
            Box::new(Nowhere),
            false,
        )
        .expect("room");
    (table.engine(), region, committer)
}

fn ask(commits: &mut Commits, turn: &Turn<'_>, region: &Registration, length: u32, at: Instant) -> u64 {
    let mut ranges = commits.list();
    turn.commit_targets(US, region.stag(), 0, length, |_, range| ranges.push(range)).expect("within");
    let asker = || Asker::Message { written: WrittenRanges::default() };
    commits.begin(turn, 1, ranges, &mut CommitStatus::Success.clone(), at, asker).expect("it is durable memory")
}

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn next(commits: &mut Commits, turn: &Turn<'_>, now: Instant) -> Option<(u64, CommitStatus)> {
    commits.next(turn, now).map(|ended| (ended.key, ended.status))
}

#[test]
fn one_commit_that_does_not_end_keeps_no_traces_of_those_that_do() {
    let mut commits = Commits::new(None, &IwarpConfig::default());
    let (mut epoch, stuck, _never_works) = region(64);
    let turn = epoch.enter();
    let slow = ask(&mut commits, &turn, &stuck, 64, Instant::ZERO);
    for _ in 0..100_000 {
        let key = ask(&mut commits, &turn, &stuck, 64, Instant::ZERO);
        commits.settled.push_back(CommitReply { key, status: CommitStatus::Success, length: 64 });
        assert_eq!(next(&mut commits, &turn, Instant::ZERO), Some((key, CommitStatus::Success)));
        assert!(commits.limits.len() < 100);
    }
    assert_eq!(next(&mut commits, &turn, seconds(29)), None);
    assert_eq!(next(&mut commits, &turn, seconds(30)), Some((slow, CommitStatus::Transient)));
    commits.settled.push_back(CommitReply { key: slow, status: CommitStatus::Success, length: 64 });
    assert_eq!(next(&mut commits, &turn, seconds(30)), None, "told already");
    assert_eq!((commits.pending.len(), commits.limits.len(), commits.streams[&1].share), (0, 0, 0));
    assert!(commits.streams[&1].keys.is_empty());
}

#[test]
fn a_long_commit_has_time_for_as_long_as_it_gets_on() {
    let config = IwarpConfig { commit_share: 1 << 20, ..IwarpConfig::default() };
    let mut commits = Commits::new(None, &config);
    let (mut epoch, region, mut committer) = region(16 << 20);
    let turn = epoch.enter();
    let keys = [(); 2].map(|()| ask(&mut commits, &turn, &region, 16 << 20, Instant::ZERO));
    for share in 1..=20 {
        assert_eq!(committer.work(), 1, "a share");
        let done = next(&mut commits, &turn, seconds(20 * share));
        assert_eq!(done, (share == 16).then_some((keys[0], CommitStatus::Success)));
    }
    // The store stops.
    assert_eq!(next(&mut commits, &turn, seconds(429)), None);
    assert_eq!(next(&mut commits, &turn, seconds(430)), Some((keys[1], CommitStatus::Transient)));
    assert_eq!(committer.work(), 0, "nobody waits for it any more");
    assert_eq!(commits.octets_written(), 20 << 20);
}
