//! Data of an answered Commit survives the loss of everything unsynced. The target is a process that is killed; its
//! file is on a disk whose unsynced writes are lost with the process that serves it, which is killed, too
//! ([`uwarp_vdev_tests::disk`]). And each failure of such a disk is returned as the status of a Commit, over a
//! connection that survives.
//!
//! 6 losses; 100 in the long run. A disk that only claims to sync is detected, which shows that the first test can
//! fail.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use uwarp::{
    AcceptOptions, Access, CommitStatus, Completion, Config, ConnectOptions, Context, Features, FileStore,
    ListenOptions, Listener, MemoryRegion, ProtectionDomain, QueuePairState, ReadyToReceiveKinds, RegionOptions,
    SendRequest, Status,
};
use uwarp_netns as netns;
use uwarp_vdev_tests::disk::{Disk, DiskProcess, Trouble};
use uwarp_vdev_tests::endpoint::{self, Endpoint, PORT, Place};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, count};

/// Records in the region; each is a number, repeated four times.
const RECORDS: usize = 256;
const RECORD: usize = 32;
const REGION: usize = RECORDS * RECORD;
/// Writes with Commit under way.
const DEPTH: usize = 12;
const COMMIT: Features = Features { atomics: false, immediate: false, commit: true, infiniband: false };

#[derive(Serialize, Deserialize)]
enum Task {
    Disk(Disk),
    Target { wire: Wire, file: PathBuf },
}

/// The work of a process other than the test's own.
fn be_peer(task: Task) {
    match task {
        Task::Disk(disk) => disk.serve(),
        Task::Target { wire, file } => be_target(&wire, &file),
    }
}

/// While a test waits for another process nothing turns its engine: no connection must time out for that.
fn patient(mut config: Config) -> Config {
    config.tcp.user_timeout = Some(PATIENCE);
    config.tcp.keep_alive.enabled = false;
    config
}

/// Offers the file to the test, which writes first; registers it anew on request.
fn be_target(wire: &Wire, path: &PathBuf) {
    let context = Context::open(patient(wire.config(Side::Client)).threaded(1)).expect("the context opens");
    let domain = context.allocate_domain();
    let mut region = register(&domain, path);
    let completions = context.create_completion_queue(8).expect("a completion queue");
    let options = uwarp::QueuePairOptions::new(&completions).depth(4, 4);
    let mut queue_pair = domain.create_queue_pair(&options).expect("a queue pair");
    let options = ConnectOptions::default().features(COMMIT).peer_to_peer(ReadyToReceiveKinds::ALL);
    let options = options.private_data(Place::of(&region).to_octets());
    endpoint::connect(&context, &mut queue_pair, options);
    for _anew in peer::words() {
        drop(region);
        region = register(&domain, path);
        peer::tell(&serde_json::to_string(&Place::of(&region).to_octets()).expect("octets"));
    }
    drop(queue_pair);
}

fn register(domain: &ProtectionDomain, path: &PathBuf) -> MemoryRegion {
    let file = File::options().read(true).write(true).open(path).expect("the disk's file");
    let mut store = FileStore::default();
    store.add(&file, 0, REGION as u64).expect("the file takes the region");
    let memory = store.load().expect("the file can be read");
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    domain.register(memory, RegionOptions::new(access).store(store)).expect("a durable region")
}

/// A running disk and target, and the means to restart them.
struct Machine {
    disk: DiskProcess,
    target: Peer,
}

struct Rig {
    name: &'static str,
    network: Network,
    folder: tempfile::TempDir,
    context: Context,
    listener: Listener,
    lives: usize,
}

impl Rig {
    fn new(name: &'static str) -> Self {
        let network = Network::new(Device::Virtio).expect("virtio needs no root");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("platter"), [0; REGION]).expect("a file");
        let context = Context::open(patient(network.wire.config(Side::Server)).inline()).expect("the context opens");
        let listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
        Self { name, network, folder, context, listener, lives: 0 }
    }

    /// Starts a disk with the contents of its platter, and a target on it.
    fn start(&mut self, deceitful: bool) -> (Machine, Endpoint) {
        self.lives += 1;
        let mountpoint = self.folder.path().join(format!("mount-{}", self.lives));
        let disk = Disk { platter: self.folder.path().join("platter"), mountpoint, deceitful };
        let file = disk.file();
        let disk = DiskProcess::start(self.name, &disk, &Task::Disk(disk.clone()));
        let target = Peer::start(self.name, &Task::Target { wire: self.network.wire.clone(), file });
        let mut endpoint = Endpoint::new(&self.context, REGION);
        let request = self.listener.next(PATIENCE).expect("the listener works");
        let request = request.unwrap_or_else(|| panic!("no request came: {:#?}", self.context.stats()));
        endpoint.place = Some(Place::from_octets(request.private_data()));
        let options = AcceptOptions::default().features(COMMIT).timeout(PATIENCE);
        request.accept(&mut endpoint.queue_pair.control, options).expect("the start-up succeeds");
        (Machine { disk, target }, endpoint)
    }
}

/// The contents of the peer's region.
fn read_back(endpoint: &mut Endpoint) -> Vec<u8> {
    let place = endpoint.place();
    let sink = endpoint.region.sge(..).expect("all of it");
    endpoint.post(&[SendRequest::read(u64::MAX, &[sink], place.stag, place.offset)]);
    assert_eq!(endpoint.success().id, u64::MAX);
    endpoint.region.to_vec(0, REGION).expect("all of it")
}

/// For each record, the newest number reported as durable, and the newest that was sent.
struct Account {
    durable: [u64; RECORDS],
    sent: [u64; RECORDS],
    under_way: HashMap<u64, usize>,
    next: u64,
    random: fastrand::Rng,
}

impl Account {
    fn new(seed: u64) -> Self {
        Self {
            durable: [0; RECORDS],
            sent: [0; RECORDS],
            under_way: HashMap::new(),
            next: 1,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn post(&mut self, endpoint: &mut Endpoint) {
        let (record, number) = (self.random.usize(..RECORDS), self.next);
        let octets = [number.to_be_bytes(); RECORD / 8].concat();
        let place = endpoint.place();
        let offset = place.offset + (record * RECORD) as u64;
        endpoint.post(&[SendRequest::write_inline(number, &octets, place.stag, offset).with_commit()]);
        self.sent[record] = number;
        self.under_way.insert(number, record);
        self.next += 1;
    }

    fn take(&mut self, completion: &Completion) {
        let record = self.under_way.remove(&completion.id).expect("completed once");
        if completion.status == Status::Success {
            assert_eq!(completion.commit_status(), Some(0));
            self.durable[record] = self.durable[record].max(completion.id);
        }
    }

    /// Keeps the connection busy until this many Commits have succeeded.
    fn work(&mut self, endpoint: &mut Endpoint, wanted: usize) {
        for _ in 0..wanted {
            while self.under_way.len() < DEPTH {
                self.post(endpoint);
            }
            let completion = endpoint.success();
            self.take(&completion);
        }
    }

    /// Collects the remaining completions when the peer is gone: work may have succeeded before.
    fn settle(&mut self, endpoint: &mut Endpoint) {
        endpoint.queue_pair.control.abort();
        let start = Instant::now();
        while !self.under_way.is_empty() || endpoint.queue_pair.control.state() != QueuePairState::Disconnected {
            assert!(start.elapsed() < PATIENCE, "no end: {:?}", self.under_way);
            if let Some(completion) = endpoint.completions.poll_one() {
                self.take(&completion);
            }
        }
    }

    /// Counts records that are older than what was reported as durable. Newer ones were under way, and may be there in
    /// part.
    fn lost(&self, region: &[u8]) -> usize {
        let is_lost = |(record, octets): (usize, &[u8])| {
            octets.chunks(8).any(|word| {
                let found = u64::from_be_bytes(word.try_into().expect("eight octets"));
                assert!(found <= self.sent[record], "record {record} has {found}, which nobody wrote there");
                found < self.durable[record]
            })
        };
        region.chunks(RECORD).enumerate().filter(|chunk| is_lost(*chunk)).count()
    }
}

const SURVIVES: &str = "what_was_committed_survives_the_loss_of_everything_else";

#[test]
fn what_was_committed_survives_the_loss_of_everything_else() {
    netns::test_among_own_mounts(SURVIVES, || {
        if let Some(task) = peer::task::<Task>() {
            return be_peer(task);
        }
        let mut rig = Rig::new(SURVIVES);
        let mut account = Account::new(1);
        let losses = count(6, 100);
        for loss in 0..losses {
            let (machine, mut endpoint) = rig.start(false);
            assert_eq!(account.lost(&read_back(&mut endpoint)), 0, "lost the {loss}. time");
            let wanted = account.random.usize(1..2000);
            account.work(&mut endpoint, wanted);
            if loss % 2 == 0 {
                machine.disk.kill();
                machine.target.kill();
            } else {
                machine.target.kill();
                machine.disk.kill();
            }
            account.settle(&mut endpoint);
        }
        // Data that was only claimed to be durable is found to be lost.
        let (machine, mut endpoint) = rig.start(true);
        assert_eq!(account.lost(&read_back(&mut endpoint)), 0, "lost the last time");
        account.work(&mut endpoint, 100);
        machine.disk.kill();
        machine.target.kill();
        account.settle(&mut endpoint);
        let (_machine, mut endpoint) = rig.start(false);
        assert!(account.lost(&read_back(&mut endpoint)) > 0, "a disk that does not sync is not found out");
    });
}

const FAILS: &str = "each_failure_of_a_store_is_a_status";

#[test]
fn each_failure_of_a_store_is_a_status() {
    netns::test_among_own_mounts(FAILS, || {
        if let Some(task) = peer::task::<Task>() {
            return be_peer(task);
        }
        let mut rig = Rig::new(FAILS);
        let (Machine { mut disk, mut target }, mut endpoint) = rig.start(false);
        let mut number = 0;
        let mut commit = |endpoint: &mut Endpoint| {
            number += 1;
            let place = endpoint.place();
            let octets = u64::to_be_bytes(number);
            endpoint.post(&[SendRequest::write_inline(number, &octets, place.stag, place.offset).with_commit()]);
            let completion = endpoint.completions.next(PATIENCE).expect("the queue works").expect("an answer");
            let status = completion.commit_status().and_then(CommitStatus::from_code);
            let expected = if status == Some(CommitStatus::Success) { Status::Success } else { Status::CommitFailed };
            assert_eq!((completion.id, completion.status), (number, expected), "{completion:?}");
            // The octets are nevertheless in memory.
            assert_eq!(read_back(endpoint)[..8], octets);
            status.expect("one of ours")
        };
        assert_eq!(commit(&mut endpoint), CommitStatus::Success);
        for (trouble, status, stays) in [
            (Trouble::Full, CommitStatus::NoSpace, false),
            (Trouble::Busy, CommitStatus::Transient, false),
            (Trouble::ReadOnly, CommitStatus::ReadOnly, true),
            (Trouble::Broken, CommitStatus::Failure, true),
            (Trouble::Unsyncable, CommitStatus::Failure, true),
        ] {
            disk.set_trouble(Some(trouble));
            for _ in 0..3 {
                assert_eq!(commit(&mut endpoint), status, "{trouble:?}");
            }
            disk.set_trouble(None);
            let after = if stays { status } else { CommitStatus::Success };
            assert_eq!(commit(&mut endpoint), after, "after {trouble:?}");
            target.say("anew");
            let place: Vec<u8> = serde_json::from_str(&target.told()).expect("octets");
            endpoint.place = Some(Place::from_octets(&place));
            assert_eq!(commit(&mut endpoint), CommitStatus::Success, "registered anew after {trouble:?}");
        }
        disk.kill();
        for _ in 0..2 {
            assert_eq!(commit(&mut endpoint), CommitStatus::Failure, "a disk that is gone");
        }
        assert_eq!(endpoint.queue_pair.control.state(), QueuePairState::Connected);
        endpoint.disconnect();
    });
}
