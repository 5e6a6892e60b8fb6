//! An attack on a server costs other peers nothing but their fair share. Attacker and bystander are one process, over
//! one device; the server is another. The bystander transfers its 64 MiB, and the attack's work is counted at the
//! server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uwarp::{
    AcceptOptions, Access, ConnectOptions, ConnectRequest, Context, Features, ListenOptions, MAX_COMMIT_REGIONS,
    RegionOptions, SendRequest, Sge, Store,
};
use uwarp_app::channel::{Channel, Event, Shape};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, Place, pattern};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::scripted::Scripted;

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), PORT);
/// Octets that the bystander writes, one part at a time.
const ALL: usize = 64 << 20;
const PIECE: usize = 1 << 20;
const DEPTH: usize = 8;
const SEED: u64 = 1;
/// Private data of an attacker.
const ATTACKER: &[u8] = b"attacker";
/// The server's channels, as in uwarp-copy.
const SHAPE: Shape = Shape { message: 8192, messages: 24, work: 8 };
const COMMIT: Features = Features { atomics: false, immediate: false, commit: true, infiniband: false };
/// Octets of the region that a Commit lists as often as possible.
const DURABLE: usize = 16 << 20;

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Attack {
    /// Messages to a channel whose answers are never read.
    Messages,
    /// Commits that name one region many times.
    Commits,
}

#[derive(Serialize, Deserialize)]
struct Task {
    wire: Wire,
    attack: Attack,
}

/// Attacks until the bystander is done; returns how many messages or commits that were.
fn attack(context: &Context, attack: Attack, is_over: &AtomicBool, count: &AtomicU64) {
    match attack {
        Attack::Messages => {
            while !is_over.load(Ordering::Relaxed) {
                let mut attacker = Scripted::connect(context, SERVER, ATTACKER);
                while !is_over.load(Ordering::Relaxed) && attacker.flood(&[1; 1000], 1) > 0 {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Attack::Commits => {
            let mut attacker = Endpoint::new(context, 64);
            let options = ConnectOptions::default().private_data(ATTACKER).features(COMMIT).timeout(PATIENCE);
            let established = context.connect(&mut attacker.queue_pair.control, SERVER, options).expect("connected");
            let Place { stag, offset } = Place::from_octets(&established.private_data);
            let regions = [Sge { stag, offset, length: DURABLE as u32 }; MAX_COMMIT_REGIONS];
            while !is_over.load(Ordering::Relaxed) {
                attacker.post(&[SendRequest::commit(1, &regions)]);
                assert_eq!(attacker.success().commit_status(), Some(0));
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Attacker and bystander.
fn be_client(task: &Task) {
    let context = Context::open(task.wire.config(Side::Client).threaded(1)).expect("the context opens");
    let mut bystander = Endpoint::new(&context, ALL + 64);
    bystander.region.write(0, &pattern(SEED, ALL)).expect("inside the region");
    bystander.connect(&context);
    // The attack is under way before the bystander begins.
    let beginning = match task.attack {
        Attack::Messages => 1000,
        Attack::Commits => 1,
    };
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| attack(&context, task.attack, &is_over, &count));
        let start = Instant::now();
        while count.load(Ordering::Relaxed) < beginning {
            assert!(start.elapsed() < PATIENCE, "the attack does not begin");
            std::thread::yield_now();
        }
        let Place { stag, offset } = bystander.place();
        for number in 0..ALL / PIECE {
            let start = number * PIECE;
            let source = bystander.region.sge(start..start + PIECE).expect("inside the region");
            bystander.post(&[SendRequest::write(number as u64, &[source], stag, offset + start as u64)]);
            if number >= DEPTH {
                bystander.success();
            }
        }
        bystander.post(&[SendRequest::send_inline(0, b"all")]);
        for _ in 0..=DEPTH {
            bystander.success();
        }
        // The server reports when it has received everything.
        let _ = peer::words().recv_timeout(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
    });
    peer::tell(&count.into_inner().to_string());
}

/// Counts the octets that it is given.
struct Counter(Arc<AtomicU64>);

impl Store for Counter {
    fn write(&mut self, _offset: u64, octets: &[u8]) -> io::Result<()> {
        self.0.fetch_add(octets.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers a channel's messages with long ones until its connection has ended; returns the most messages that were
/// queued.
fn answer(context: &Context, request: ConnectRequest) -> usize {
    let domain = context.allocate_domain();
    let mut channel = Channel::new(context, &domain, SHAPE).expect("a channel");
    request.accept(&mut channel.queue_pair().control, AcceptOptions::default()).expect("accepted");
    while let Ok(Some(Event::Message(_))) = channel.next(PATIENCE) {
        if channel.send_within(&[2; SHAPE.message], Duration::from_millis(100)).is_err() {
            break;
        }
    }
    channel.most_queued()
}

/// The server's counts.
struct Counted {
    /// Channels that served the attacker one after another.
    connections: usize,
    /// Most messages queued on one of them.
    most_queued: usize,
    /// Octets that commits wrote to the store.
    octets_written: u64,
    /// Messages or commits of the attacker.
    attacks: u64,
}

fn run(name: &str, attack: Attack) -> Option<Counted> {
    if let Some(task) = peer::task::<Task>() {
        be_client(&task);
        return None;
    }
    let network = Network::new(Device::Virtio).expect("virtio needs no root");
    let task = Task { wire: network.wire.clone(), attack };
    let mut client = Peer::start(name, &task);
    let context = Context::open(network.wire.config(Side::Server).threaded(1)).expect("the context opens");
    let mut listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
    let mut bystander = Endpoint::new(&context, ALL + 64);
    bystander.post_receive(7, ALL..ALL + 64);
    bystander.accept(&context, &mut listener);

    let octets_written = Arc::new(AtomicU64::new(0));
    // The attacker's end here, and the memory that it commits.
    let mut target = Endpoint::new(&context, 64);
    let store = Counter(Arc::clone(&octets_written));
    let options = RegionOptions::new(Access::REMOTE_WRITE).store(store);
    let durable = target.domain.register(vec![0; DURABLE], options);
    let durable = durable.expect("registered");

    std::thread::scope(|scope| {
        let mut channels = Vec::new();
        let start = Instant::now();
        let attacks = loop {
            assert!(start.elapsed() < 2 * PATIENCE, "the bystander does not end: {:#?}", context.stats());
            if let Some(told) = client.try_told() {
                break told;
            }
            if bystander.completions.poll_one().is_some_and(|completion| completion.id == 7) {
                let all = bystander.region.to_vec(0, ALL).expect("inside the region");
                assert!(all == pattern(SEED, ALL), "every octet of the bystander's");
                client.say("done");
            }
            let Some(request) = listener.next(Duration::from_millis(10)).expect("the listener works") else { continue };
            assert_eq!(request.private_data(), ATTACKER);
            match attack {
                Attack::Messages => channels.push(scope.spawn(|| answer(&context, request))),
                Attack::Commits => {
                    let options = AcceptOptions::default().private_data(Place::of(&durable).to_octets());
                    request.accept(&mut target.queue_pair.control, options.features(COMMIT)).expect("accepted");
                }
            }
        };
        let attacks = attacks.parse().expect("a number");
        assert!(client.end(|| {}).success());
        // Their peer is gone.
        let connections = channels.len();
        let most_queued = channels.into_iter().map(|channel| channel.join().expect("it ends")).max().unwrap_or(0);
        Some(Counted { connections, most_queued, octets_written: octets_written.load(Ordering::Relaxed), attacks })
    })
}

#[test]
fn a_flood_of_messages_queues_no_more_than_the_receives() {
    let name = "a_flood_of_messages_queues_no_more_than_the_receives";
    let Some(counted) = run(name, Attack::Messages) else { return };
    let Counted { connections, most_queued, attacks, .. } = counted;
    eprintln!("{attacks} messages on {connections} connections: {most_queued} queued at most");
    assert!(attacks > 10 * SHAPE.messages as u64, "{attacks} messages are no flood");
    assert!(most_queued <= SHAPE.messages, "{most_queued} messages queued");
}

#[test]
fn a_commit_that_names_a_region_many_times_writes_it_once() {
    let name = "a_commit_that_names_a_region_many_times_writes_it_once";
    let Some(counted) = run(name, Attack::Commits) else { return };
    let Counted { octets_written, attacks, .. } = counted;
    eprintln!("{attacks} commits of {MAX_COMMIT_REGIONS} times {DURABLE} octets: {octets_written} octets written");
    assert!(attacks > 0);
    // The last one may be under way.
    let most = (attacks + 1) * DURABLE as u64;
    assert!(octets_written <= most, "{octets_written} octets written, {most} are enough");
}
