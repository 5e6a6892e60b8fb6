use std::sync::Mutex;

use super::*;
use crate::access::{Access, Association, DomainId, Scope, StreamId};
use crate::options::TaggedBase;
use crate::registration::Registration;
use crate::table::RegionTable;
use crate::turn::{CommitTarget, KeptRange, Turn};

const US: Association = Association { domain: DomainId(1), stream: StreamId(1) };
const WRITE: Access = Access::REMOTE_WRITE;

/// A store in memory, and what of it is safe.
#[derive(Default)]
struct Disk {
    written: Vec<(u64, Vec<u8>)>,
    synced: Vec<(u64, Vec<u8>)>,
    syncs: usize,
    write_error: Option<io::ErrorKind>,
    sync_error: Option<io::ErrorKind>,
}

#[derive(Clone, Default)]
struct Handle(Arc<Mutex<Disk>>);

impl Store for Handle {
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if let Some(kind) = disk.write_error {
            return Err(kind.into());
        }
        disk.written.push((offset, octets.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        disk.syncs += 1;
        if let Some(kind) = disk.sync_error {
            return Err(kind.into());
        }
        let written = std::mem::take(&mut disk.written);
        disk.synced.extend(written);
        Ok(())
    }
}

fn region(length: usize) -> (Arc<RegionTable>, Registration, Committer, Handle) {
    let table = RegionTable::new(8, 1 << 30, 1);
    let disk = Handle::default();
    let (registration, committer) = table
        .register_durable(
            vec![0; length],
            WRITE,
            Scope::Domain(US.domain),
            TaggedBase::Zero,
            Box::new(disk.clone()),
            false,
        )
        .unwrap();
    (table, registration, committer, disk)
}

/// Asks for a commit; gives how many parts it has.
fn ask(table: &Arc<RegionTable>, stag: u32, offset: u64, length: u32, key: u64, stream: &CommitStream) -> usize {
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let mut parts = 0;
    turn.commit_targets(US, stag, offset, length, |target, _| match target {
        CommitTarget::Durable { durable, offset, length } => {
            durable.commit(offset, length, key, stream).unwrap();
            parts += 1;
        }
        CommitTarget::Plain | CommitTarget::Persistent(_) => panic!("not durable"),
    })
    .unwrap();
    parts
}

#[test]
fn each_status_has_the_code_of_its_place() {
    use CommitStatus as S;
    let statuses = [S::Success, S::Failure, S::ReadOnly, S::NoSpace, S::Limit, S::Transient, S::Unsupported];
    for (code, status) in (0..).zip(statuses) {
        assert_eq!((status.code(), CommitStatus::from_code(code)), (code, Some(status)));
    }
    assert_eq!(CommitStatus::from_code(7), None);
}

#[test]
fn a_mailbox_can_be_shown() {
    assert_eq!(format!("{:?}", CommitMailbox::new(None).0), "CommitMailbox { .. }");
}

#[test]
fn a_commit_is_answered_when_its_octets_were_written_and_synced() {
    let (table, registration, mut committer, disk) = region(200_000);
    let octets: Vec<u8> = (0..200_000u32).map(|at| (at * 7) as u8).collect();
    registration.write(0, &octets).unwrap();
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    assert_eq!(ask(&table, registration.stag(), 1000, 150_000, 5, &stream), 1);
    assert!(replies.is_empty());
    assert_eq!(committer.work(), 1);
    assert_eq!(replies.try_recv(), Ok(CommitReply { key: 5, status: CommitStatus::Success, length: 150_000 }));
    let disk = disk.0.lock().unwrap();
    let mut safe = vec![0; 200_000];
    for (offset, written) in &disk.synced {
        safe[*offset as usize..][..written.len()].copy_from_slice(written);
    }
    assert_eq!(safe[1000..151_000], octets[1000..151_000]);
    assert!(safe[..1000].iter().chain(&safe[151_000..]).all(|octet| *octet == 0), "nothing else was written");
}

/// The committer that was left to engines, as one of them finds it that was asked for the region's first octet.
fn of_engines(table: &Arc<RegionTable>, stag: u32) -> EngineCommitter {
    let mut found = None;
    table
        .engine()
        .enter()
        .commit_targets(US, stag, 0, 1, |target, _| match target {
            CommitTarget::Durable { durable, .. } => found = durable.engine_committer(),
            CommitTarget::Plain | CommitTarget::Persistent(_) => panic!("not durable"),
        })
        .unwrap();
    found.unwrap()
}

/// Lets it work until nothing is left.
fn work_as_an_engine(table: &Arc<RegionTable>, stag: u32) {
    assert!(!of_engines(table, stag).work(u64::MAX), "all that waits is one batch");
}

#[test]
fn a_committer_that_was_left_to_engines_works_in_them_and_before_the_region_is_gone() {
    let (table, registration, committer, disk) = region(64);
    let (_, other, others, _) = region(64);
    registration.commit_in_engines(committer).unwrap();
    assert!(registration.commit_in_engines(others).is_err(), "it has one");
    assert!(other.is_durable());
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    registration.write(0, b"committed").unwrap();
    for key in 0..3 {
        ask(&table, registration.stag(), 3 * key, 3, key, &stream);
    }
    assert!(replies.is_empty());
    work_as_an_engine(&table, registration.stag());
    let success = |key| CommitReply { key, status: CommitStatus::Success, length: if key < 3 { 3 } else { 9 } };
    assert_eq!(replies.try_iter().collect::<Vec<_>>(), [0, 1, 2].map(success));
    assert_eq!(disk.0.lock().unwrap().syncs, 1, "what waits shares a sync");
    work_as_an_engine(&table, registration.stag());
    assert_eq!(disk.0.lock().unwrap().syncs, 1, "nothing waits");
    ask(&table, registration.stag(), 0, 9, 3, &stream);
    assert_eq!(&registration.deregister().as_slice()[..9], b"committed");
    assert_eq!(replies.try_iter().collect::<Vec<_>>(), [success(3)]);
    assert_eq!(disk.0.lock().unwrap().syncs, 2);
}

#[test]
fn a_store_that_panics_in_an_engine_has_failed_for_good() {
    struct Panics;
    impl Store for Panics {
        fn write(&mut self, _offset: u64, _octets: &[u8]) -> io::Result<()> {
            panic!("a store's own fault")
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let table = RegionTable::new(8, 1 << 30, 1);
    let scope = Scope::Domain(US.domain);
    let (registration, committer) =
        table.register_durable(vec![0; 64], WRITE, scope, TaggedBase::Zero, Box::new(Panics), false).unwrap();
    registration.commit_in_engines(committer).unwrap();
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    ask(&table, registration.stag(), 0, 8, 1, &stream);
    work_as_an_engine(&table, registration.stag());
    ask(&table, registration.stag(), 0, 8, 2, &stream);
    work_as_an_engine(&table, registration.stag());
    let failed = |key| CommitReply { key, status: CommitStatus::Failure, length: 8 };
    assert_eq!(replies.try_iter().collect::<Vec<_>>(), [1, 2].map(failed));
}

#[test]
fn commits_that_wait_share_a_sync() {
    let (table, registration, mut committer, disk) = region(64);
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    for key in 0..10 {
        ask(&table, registration.stag(), key, 1, key, &stream);
    }
    assert_eq!(committer.work(), 10);
    assert_eq!(disk.0.lock().unwrap().syncs, 1);
    assert_eq!(replies.try_iter().map(|reply| reply.key).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn errors_of_the_device_have_their_status_and_some_stay() {
    use io::ErrorKind as K;
    for (on_sync, kind, status, stays) in [
        (false, K::Other, CommitStatus::Failure, true),
        (false, K::ReadOnlyFilesystem, CommitStatus::ReadOnly, true),
        (false, K::StorageFull, CommitStatus::NoSpace, false),
        (false, K::QuotaExceeded, CommitStatus::NoSpace, false),
        (false, K::WouldBlock, CommitStatus::Transient, false),
        (true, K::Other, CommitStatus::Failure, true),
        (true, K::ReadOnlyFilesystem, CommitStatus::ReadOnly, true),
        // After a sync that failed nobody knows what is safe.
        (true, K::StorageFull, CommitStatus::Failure, true),
    ] {
        let (table, registration, mut committer, disk) = region(64);
        let (mailbox, replies) = CommitMailbox::new(None);
        let stream = mailbox.stream();
        let set = |error| {
            let mut disk = disk.0.lock().unwrap();
            *(if on_sync { &mut disk.sync_error } else { &mut disk.write_error }) = error;
        };
        set(Some(kind));
        ask(&table, registration.stag(), 0, 8, 1, &stream);
        committer.work();
        set(None);
        ask(&table, registration.stag(), 0, 8, 2, &stream);
        committer.work();
        let found: Vec<CommitStatus> = replies.try_iter().map(|reply| reply.status).collect();
        let second = if stays { status } else { CommitStatus::Success };
        assert_eq!(found, [status, second], "{kind:?}");
        assert_eq!(CommitStatus::from_code(status.code()), Some(status));
    }
    assert_eq!(CommitStatus::from_code(7), None);
}

#[test]
fn a_committer_ends_with_its_region_and_answers_before() {
    let (table, registration, committer, disk) = region(64);
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    registration.write(0, &[7; 64]).unwrap();
    for key in 0..100 {
        ask(&table, registration.stag(), 0, 64, key, &stream);
    }
    let thread = std::thread::spawn(move || committer.run());
    let buffer = registration.deregister();
    assert_eq!(buffer.as_slice(), [7; 64]);
    thread.join().unwrap();
    assert_eq!(replies.try_iter().filter(|reply| reply.status == CommitStatus::Success).count(), 100);
    assert!(disk.0.lock().unwrap().written.is_empty());
}

#[test]
fn a_committer_that_sleeps_is_woken_by_each_commit_and_by_the_end_of_its_region() {
    let (table, registration, committer, _disk) = region(64);
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    let thread = std::thread::spawn(move || committer.run());
    for key in 0..5000 {
        ask(&table, registration.stag(), 0, 64, key, &stream);
        let reply = replies.recv_timeout(std::time::Duration::from_secs(30)).expect("the thread is awake");
        assert_eq!((reply.key, reply.status), (key, CommitStatus::Success));
    }
    registration.deregister();
    thread.join().unwrap();
    // The end comes at any time: before the thread sleeps, and when it does.
    for _ in 0..1000 {
        let (_table, registration, committer, _disk) = region(64);
        let thread = std::thread::spawn(move || committer.run());
        std::thread::yield_now();
        registration.deregister();
        thread.join().unwrap();
    }
}

#[test]
fn commits_without_a_committer_fail() {
    let (table, registration, committer, _disk) = region(64);
    let (mailbox, _replies) = CommitMailbox::new(None);
    drop(committer);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    turn.commit_targets(US, registration.stag(), 0, 1, |target, _| {
        let CommitTarget::Durable { durable, .. } = target else { panic!("not durable") };
        assert_eq!(durable.commit(0, 1, 0, &mailbox.stream()), Err(CommitStatus::Failure), "nobody is there");
    })
    .unwrap();
}

#[test]
fn octets_that_several_commits_name_are_written_once_for_all_that_wait() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let (table, registration, mut committer, disk) = region(300_000);
        let (mailbox, replies) = CommitMailbox::new(None);
        let streams = [mailbox.stream(), mailbox.stream()];
        registration.fill(0, 300_000, 7).unwrap();
        let mut named = vec![0; 300_000];
        let count = random.u64(1..40);
        for key in 0..count {
            let (offset, longest) = (random.usize(..299_000), random.choice([10, 1000, 200_000]).unwrap());
            let length = random.usize(1..=longest).min(300_000 - offset);
            named[offset..offset + length].fill(7);
            ask(&table, registration.stag(), offset as u64, length as u32, key, random.choice(&streams).unwrap());
        }
        assert_eq!(committer.work() as u64, count);
        assert!(replies.try_iter().all(|reply| reply.status == CommitStatus::Success));
        let disk = disk.0.lock().unwrap();
        let mut written = vec![0; 300_000];
        for (offset, octets) in &disk.synced {
            written[*offset as usize..][..octets.len()].iter_mut().zip(octets).for_each(|(sum, octet)| *sum += octet);
        }
        assert!(written == named, "all that was named, once, and nothing else");
        assert_eq!(mailbox.octets_written(), named.iter().filter(|octet| **octet == 7).count() as u64);
    }
}

#[test]
fn a_failed_write_is_that_of_the_commits_that_asked_for_it() {
    /// Has no room for octet 100,000.
    struct Full;
    impl Store for Full {
        fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
            let hits = (offset..offset + octets.len() as u64).contains(&100_000);
            if hits { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let table = RegionTable::new(8, 1 << 30, 1);
    let scope = Scope::Domain(US.domain);
    let (registration, mut committer) =
        table.register_durable(vec![0; 300_000], WRITE, scope, TaggedBase::Zero, Box::new(Full), false).unwrap();
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    let asked = [(0, 300_000), (0, 1), (100_000, 1), (200_000, 8), (120_000, 90_000)];
    for (key, (offset, length)) in asked.into_iter().enumerate() {
        ask(&table, registration.stag(), offset, length, key as u64, &stream);
    }
    assert_eq!(committer.work(), asked.len());
    let mut failed: Vec<_> =
        replies.try_iter().filter(|reply| reply.status == CommitStatus::NoSpace).map(|reply| reply.key).collect();
    failed.sort_unstable();
    // The last one begins in the same piece of the first.
    assert_eq!(failed, [0, 2, 4]);
}

#[test]
fn commits_that_nobody_wants_any_more_are_dropped() {
    let (table, registration, mut committer, disk) = region(64);
    let (mailbox, replies) = CommitMailbox::new(None);
    let (gone, stays) = (mailbox.stream(), mailbox.stream());
    for key in 0..10 {
        ask(&table, registration.stag(), key, 1, key, if key % 2 == 0 { &gone } else { &stays });
    }
    gone.abandon_before(7);
    assert_eq!(committer.work(), 6);
    let mut answered: Vec<_> = replies.try_iter().map(|reply| reply.key).collect();
    answered.sort_unstable();
    assert_eq!(answered, [1, 3, 5, 7, 8, 9]);
    assert_eq!((mailbox.octets_written(), disk.0.lock().unwrap().syncs), (6, 1));
}

#[test]
fn an_engine_writes_as_much_at_a_time_as_it_wants() {
    let (table, registration, committer, disk) = region(1 << 20);
    registration.commit_in_engines(committer).unwrap();
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    ask(&table, registration.stag(), 0, 1 << 20, 0, &stream);
    let committer = of_engines(&table, registration.stag());
    for step in 1..16 {
        assert!(committer.work(64 << 10), "more is left");
        assert_eq!(mailbox.octets_written(), step * (64 << 10));
        if step == 5 {
            // It waits for the next batch, since its octets may have been read already.
            registration.fill(0, 8, 9).unwrap();
            ask(&table, registration.stag(), 0, 8, 1, &stream);
        }
    }
    assert_eq!((replies.len(), disk.0.lock().unwrap().syncs), (0, 0));
    assert!(committer.work(64 << 10), "another batch");
    assert_eq!(replies.try_iter().map(|reply| reply.key).collect::<Vec<_>>(), [0]);
    assert!(!committer.work(64 << 10));
    assert_eq!(replies.try_iter().map(|reply| reply.key).collect::<Vec<_>>(), [1]);
    assert_eq!(disk.0.lock().unwrap().synced.last(), Some(&(0, vec![9; 8])));
    // Many small parts count for a page each.
    for key in 0..100 {
        ask(&table, registration.stag(), 10_000 * key, 1, key, &stream);
    }
    let before = mailbox.octets_written();
    assert!(committer.work(64 << 10));
    assert_eq!(mailbox.octets_written() - before, 16);
}

#[test]
fn a_window_leads_to_the_committers_of_its_regions() {
    let (table, registration, mut committer, _disk) = region(64);
    let plain = table.register(vec![0; 64], Access::LOCAL_WRITE, Scope::Domain(US.domain), TaggedBase::Zero).unwrap();
    let writable = table
        .register_durable(
            vec![0; 64],
            Access::LOCAL_WRITE,
            Scope::Domain(US.domain),
            TaggedBase::Zero,
            Box::new(Handle::default()),
            true,
        )
        .unwrap();
    let mut window = table.allocate_window(US.domain, 2).unwrap();
    let stag = window.next_stag();
    let mut epoch = table.engine();
    let turn = epoch.enter();
    assert!(turn.has_transparent());
    let pieces = [(plain.stag(), 10), (writable.0.stag(), 20)];
    let pieces = pieces.map(|(stag, offset)| crate::BindPiece { stag, offset, length: 30 });
    turn.bind(US, stag, 0, WRITE, pieces.into_iter()).unwrap();
    let mut seen = Vec::new();
    turn.commit_targets(US, stag, 25, 20, |target, _| {
        seen.push(match target {
            CommitTarget::Plain | CommitTarget::Persistent(_) => None,
            CommitTarget::Durable { offset, length, .. } => Some((offset, length)),
        });
    })
    .unwrap();
    assert_eq!(seen, [None, Some((20, 15))]);
    let kept = |turn: &Turn<'_>, stag, offset, length| {
        let mut parts = Vec::new();
        let note = |range: KeptRange| {
            parts.push(turn.keep(&range).map(|target| match target {
                CommitTarget::Durable { offset, length, .. } => (offset, length),
                other => panic!("{other:?}"),
            }));
        };
        turn.place_transparent(US, stag, offset, &vec![1; length], Access::REMOTE_WRITE, note).unwrap();
        parts
    };
    assert_eq!(kept(&turn, stag, 29, 1), []);
    assert_eq!(kept(&turn, stag, 30, 1), [Some((20, 1))]);
    assert_eq!(kept(&turn, stag, 10, 50), [Some((20, 30))], "the part of it that is in the region");
    assert_eq!(kept(&turn, registration.stag(), 0, 9), []);
    // What was written through a window stays to be kept when that is gone, and for as long as the region is there.
    let mut ranges = Vec::new();
    turn.place_transparent(US, stag, 40, &[2; 10], Access::REMOTE_WRITE, |range| ranges.push(range)).unwrap();
    turn.invalidate(US, stag, false).unwrap();
    assert!(matches!(turn.keep(&ranges[0]), Some(CommitTarget::Durable { offset: 30, length: 10, .. })));
    turn.invalidate(US, writable.0.stag(), false).unwrap();
    assert!(turn.keep(&ranges[0]).is_some());
    drop(turn);
    drop(writable);
    assert!(epoch.enter().keep(&ranges[0]).is_none());
    assert!(!epoch.enter().has_transparent());
    assert_eq!(committer.work(), 0);
}

/// Another thread makes the STag invalid at any moment: what was stored until then is to be kept all the same.
#[test]
fn what_was_placed_is_noted_whatever_becomes_of_its_stag() {
    let table = RegionTable::new(8, 1 << 30, 1);
    let mut epoch = table.engine();
    let (mut stored, mut refused) = (0, 0);
    for round in 0..4000 {
        let scope = Scope::Domain(US.domain);
        let store = Box::new(Handle::default());
        let (region, _committer) =
            table.register_durable(vec![0; 64], WRITE, scope, TaggedBase::Zero, store, true).unwrap();
        let turn = epoch.enter();
        let (begun, spin) = (std::sync::Barrier::new(2), round % 64);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                begun.wait();
                (0..spin).for_each(|_| std::hint::spin_loop());
                region.invalidate();
            });
            begun.wait();
            let mut noted = 0;
            let placed = turn.place_transparent(US, region.stag(), 8, &[1; 16], Access::REMOTE_WRITE, |_| noted += 1);
            assert_eq!(noted, u32::from(placed.is_ok()));
            if placed.is_ok() {
                stored += 1
            } else {
                refused += 1
            }
            // The other thread waits for the end of this turn.
            drop(turn);
        });
    }
    assert!(stored > 0 && refused > 0, "{stored} stored, {refused} refused: the two never met");
}

#[test]
fn persistent_memory_is_written_back_where_it_is() {
    let table = RegionTable::new(8, 1 << 30, 1);
    let scope = Scope::Domain(US.domain);
    let octets: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
    let region = table.register_persistent(octets.clone().into(), WRITE, scope, TaggedBase::Zero, true).unwrap();
    let mut epoch = table.engine();
    let turn = epoch.enter();
    assert!(turn.has_transparent());
    let mut noted = 0;
    let note = |mut range: KeptRange| {
        assert_eq!((range.split_front(3).length(), range.length()), (3, 4));
        assert!(matches!(turn.keep(&range), Some(CommitTarget::Persistent(_))));
        noted += 1;
    };
    turn.place_transparent(US, region.stag(), 5, &octets[5..12], Access::REMOTE_WRITE, note).unwrap();
    assert_eq!(noted, 1);
    for (offset, length) in [(0, 1), (63, 2), (64, 64), (1, 999), (999, 1), (0, 1000)] {
        let mut ranges = 0;
        turn.commit_targets(US, region.stag(), offset, length, |target, kept| {
            assert_eq!(kept.length(), u64::from(length));
            let CommitTarget::Persistent(range) = target else { panic!("{target:?}") };
            range.write_back();
            ranges += 1;
        })
        .unwrap();
        assert_eq!(ranges, 1);
    }
    drop(turn);
    assert_eq!(region.deregister().as_slice(), octets, "nothing was changed by it");
    assert!(!epoch.enter().has_transparent());
}

#[test]
fn a_file_that_is_not_in_persistent_memory_is_refused() {
    let file = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    // SAFETY: the file is this test's alone, and stays as long as it is.
    let refused = unsafe { RegionBuffer::persistent(&file, 0, 4096) }.unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()), "{refused}");
}

/// Deregisters its own region while it is written.
struct Leaves(Arc<Mutex<Option<Registration>>>, Handle);

impl Store for Leaves {
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
        drop(self.0.lock().unwrap().take());
        self.1.write(offset, octets)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.1.sync()
    }
}

#[test]
fn a_store_may_deregister_its_own_region_and_what_was_asked_for_is_carried_out() {
    let table = RegionTable::new(8, 1 << 30, 1);
    let (own, disk) = (Arc::default(), Handle::default());
    let store = Box::new(Leaves(Arc::clone(&own), disk.clone()));
    let scope = Scope::Domain(US.domain);
    let (registration, committer) =
        table.register_durable(vec![3; 200_000], WRITE, scope, TaggedBase::Zero, store, false).unwrap();
    registration.commit_in_engines(committer).unwrap();
    let stag = registration.stag();
    *own.lock().unwrap() = Some(registration);
    let (mailbox, replies) = CommitMailbox::new(None);
    let stream = mailbox.stream();
    ask(&table, stag, 0, 200_000, 0, &stream);
    let committer = of_engines(&table, stag);
    assert!(!committer.work(1), "there is no next turn for it");
    assert_eq!(
        replies.try_iter().map(|reply| (reply.key, reply.status)).collect::<Vec<_>>(),
        [(0, CommitStatus::Success)]
    );
    assert_eq!(disk.0.lock().unwrap().synced.iter().map(|(_, octets)| octets.len()).sum::<usize>(), 200_000);
    assert!(!table.engine().enter().has_transparent() && table.regions() == 0);
}

#[test]
fn what_a_turn_holds_of_a_region_or_window_is_not_freed_within_it() {
    let (table, registration, _committer, _disk) = region(64);
    let persistent = table
        .register_persistent(vec![0; 64].into(), WRITE, Scope::Domain(US.domain), TaggedBase::Zero, false)
        .unwrap();
    let window = table.allocate_window(US.domain, 1).unwrap();
    let (mailbox, _replies) = CommitMailbox::new(None);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let mut ranges = Vec::new();
    for stag in [registration.stag(), persistent.stag()] {
        turn.commit_targets(US, stag, 0, 8, |_, range| ranges.push(range)).unwrap();
    }
    let targets = [0, 1].map(|at| turn.keep(&ranges[at]).unwrap());
    let refused = |drop: Box<dyn FnOnce()>| catch_unwind(AssertUnwindSafe(drop)).is_err();
    assert!(refused(Box::new(|| drop(registration))));
    assert!(refused(Box::new(|| drop(persistent.deregister()))));
    assert!(refused(Box::new(|| drop(window))));
    let [CommitTarget::Durable { durable, offset, length }, CommitTarget::Persistent(octets)] = targets else {
        panic!("{targets:?}");
    };
    assert_eq!(durable.commit(offset, length, 1, &mailbox.stream()), Ok(()));
    octets.write_back();
    assert!(ranges.iter().all(|range| turn.keep(range).is_none()), "nobody else comes to them");
}
