//! The worst attacks of the suite `tests/sim/tests/hostile`, against a server over a real device. The attackers send
//! from a packet socket on the bystander's end of a veth pair. The bystander and a newcomer lose nothing, and when the
//! attackers have left, the server has all its buffers back.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uwarp::config::MacAddress;
use uwarp::stats::EngineStats;
use uwarp::{
    AcceptOptions, Access, CompletionQueue, ConnectRequest, Connecting, Context, Features, ListenOptions, MemoryRegion,
    ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, RegionOptions, SendRequest, TaggedBase,
};
use uwarp_sim_tests::hostile::den::Den;
use uwarp_sim_tests::hostile::{REGION, Target, attacks};
use uwarp_testkit::rig::is_skipped;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, pattern};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire};
use uwarp_vdev_tests::packets::PacketSocket;
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, pause};
use uwarp_wire::ethernet::EthernetAddress;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HONEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The attackers' Ethernet address.
const ATTACKER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 99]);
/// Octets that the bystander writes, one part at a time.
const ALL: usize = 32 << 20;
const PIECE: usize = 1 << 20;
const DEPTH: usize = 4;
const SEED: u64 = 3;
/// An attack that does not work by then has lost too much.
const ATTEMPT: Duration = Duration::from_secs(2);
const COMMIT: Features = Features { atomics: false, immediate: false, commit: true, infiniband: false };

/// Writes its pattern to the server, and reports it by a Send.
fn transfer(endpoint: &mut Endpoint) {
    endpoint.region.write(0, &pattern(SEED, ALL)).expect("inside the region");
    let place = endpoint.place();
    for number in 0..ALL / PIECE {
        let start = number * PIECE;
        let source = endpoint.region.sge(start..start + PIECE).expect("inside the region");
        endpoint.post(&[SendRequest::write(number as u64, &[source], place.stag, place.offset + start as u64)]);
        if number >= DEPTH {
            endpoint.success();
        }
    }
    endpoint.post(&[SendRequest::send_inline(0, b"all")]);
    for _ in 0..=DEPTH {
        endpoint.success();
    }
}

/// The bystander, and then the newcomer.
fn be_client(wire: &Wire) {
    let context = Context::open(wire.config(Side::Client).threaded(1)).expect("the context opens");
    let words = peer::words();
    let mut bystander = Endpoint::new(&context, ALL + 64);
    bystander.connect(&context);
    assert_eq!(words.recv_timeout(2 * PATIENCE).as_deref(), Ok("go"), "the attack gets under way");
    transfer(&mut bystander);
    let mut newcomer = Endpoint::new(&context, ALL + 64);
    newcomer.connect(&context);
    transfer(&mut newcomer);
    assert_eq!(words.recv_timeout(2 * PATIENCE).as_deref(), Ok("done"), "the server has everything");
}

/// The server's side of the attackers: accepts all of them, and lets them read and write a region.
struct Victims<'a> {
    context: &'a Context,
    domain: ProtectionDomain,
    region: MemoryRegion,
    accepted: Vec<(QueuePair, CompletionQueue, Connecting)>,
}

impl<'a> Victims<'a> {
    fn new(context: &'a Context) -> Self {
        let domain = context.allocate_domain();
        let options = RegionOptions::new(Access::ALL).base(TaggedBase::Zero);
        let region = domain.register(vec![3; REGION], options).expect("a region");
        Self { context, domain, region, accepted: Vec::new() }
    }

    fn accept(&mut self, request: ConnectRequest) {
        let completions = self.context.create_completion_queue(64).expect("a completion queue");
        let options = QueuePairOptions::new(&completions).depth(16, 16);
        let mut queue_pair = self.domain.create_queue_pair(&options).expect("a queue pair");
        let room = self.region.sge(0..4096).expect("inside the region");
        for id in 0..8 {
            queue_pair.receive.post(&[ReceiveRequest::new(id, &[room])]).expect("the receive queue has room");
        }
        // An attacker may be gone already.
        if let Ok(connecting) = request.start_accept(&mut queue_pair.control, AcceptOptions::default().features(COMMIT))
        {
            self.accepted.push((queue_pair, completions, connecting));
        }
    }

    /// Forgets those that have ended.
    fn reap(&mut self) {
        self.accepted.retain_mut(|(queue_pair, completions, _)| {
            while completions.poll_one().is_some() {}
            !queue_pair.control.wait_disconnected(Duration::ZERO).unwrap_or(true)
        });
    }
}

/// What the attackers report.
#[derive(Default)]
struct Reports {
    works: AtomicBool,
    is_over: AtomicBool,
}

/// Attacks until it is over. An attack may need a flight that the network loses when this thread gets no CPU for a
/// while: it begins anew then.
fn raid(name: &str, server_mac: EthernetAddress, target: Target, stats: impl Fn() -> EngineStats, reports: &Reports) {
    let socket = PacketSocket::open("client").expect("a packet socket of root");
    let mut den = Den::new(Box::new(socket), ATTACKER, 0, (SERVER, server_mac));
    let mut attack = attacks::by_name(name);
    let start = Instant::now();
    let now = || uwarp_tcp::Instant::from_nanos(start.elapsed().as_nanos() as u64);
    let (mut looked, mut begun) = (Instant::now(), Instant::now());
    while !reports.is_over.load(Ordering::Relaxed) {
        den.turn(now());
        let _ = attack.turn(now(), &mut den, &target);
        if looked.elapsed() > Duration::from_millis(100) {
            looked = Instant::now();
            reports.works.fetch_or(attack.works(&stats(), &den), Ordering::Relaxed);
        }
        if begun.elapsed() > ATTEMPT && !reports.works.load(Ordering::Relaxed) {
            begun = Instant::now();
            den.reset_all(now());
            attack = attacks::by_name(name);
        }
        pause();
    }
    attack.leave(now(), &mut den);
    eprintln!("{name}: {} frames, {} octets, {} messages answered", den.frames, den.octets, den.messages());
}

fn run(test: &str, attack: &str) {
    if let Some(wire) = peer::task::<Wire>() {
        be_client(&wire);
        return;
    }
    if is_skipped("what attackers do with single frames is not to be cut") {
        return;
    }
    let Some(network) = Network::new(Device::AfPacket) else { return };
    let mut client = Peer::start(test, &network.wire);
    let mut config = network.wire.config(Side::Server).threaded(1);
    if attack == "pinned-by-zero-window" {
        // It takes flights without a retransmission, even where the attacker gets no CPU for some 10 ms.
        config.tcp.rto_min = config.tcp.rto_initial;
    }
    let context = Context::open(config).expect("the context opens");
    let mut listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
    let mut honest = vec![Endpoint::new(&context, ALL + 64)];
    honest[0].post_receive(7, ALL..ALL + 64);
    honest[0].accept(&context, &mut listener);
    let mut victims = Victims::new(&context);
    let stats = || context.stats().engines.into_iter().next().unwrap_or_default();

    let mac: MacAddress = context.stats().port.expect("a device").mac.parse().expect("its address");
    let target = Target { stag: victims.region.stag(), durable: 0 };
    let reports = Reports::default();
    std::thread::scope(|scope| {
        let attacker = || raid(attack, EthernetAddress(mac.0), target, stats, &reports);
        let raid = scope.spawn(move || network.namespace().inside(attacker));
        let (mut warned, mut complete, start) = (false, 0, Instant::now());
        while complete < 2 {
            assert!(start.elapsed() < 4 * PATIENCE, "the honest are not done: {:#?}", context.stats());
            if !warned && reports.works.load(Ordering::Relaxed) {
                warned = true;
                client.say("go");
                eprintln!("{attack}: under way after {:.1} s", start.elapsed().as_secs_f64());
            }
            if let Some(request) = listener.next(Duration::from_millis(1)).expect("the listener works") {
                if request.peer().ip() == HONEST {
                    let mut newcomer = Endpoint::new(&context, ALL + 64);
                    newcomer.post_receive(7, ALL..ALL + 64);
                    newcomer.accept_request(&context, request);
                    honest.push(newcomer);
                } else {
                    victims.accept(request);
                }
            }
            victims.reap();
            for endpoint in &mut honest {
                if endpoint.completions.poll_one().is_some_and(|completion| completion.id == 7) {
                    let all = endpoint.region.to_vec(0, ALL).expect("inside the region");
                    assert!(all == pattern(SEED, ALL), "every octet, in spite of {attack}");
                    complete += 1;
                    eprintln!("{attack}: {complete} of 2 complete after {:.1} s", start.elapsed().as_secs_f64());
                }
            }
        }
        reports.is_over.store(true, Ordering::Relaxed);
        raid.join().expect("the attackers leave").expect("the namespace is there");
    });
    client.say("done");
    assert!(client.end(|| victims.reap()).success());
    drop(honest);

    let held = |stats: &EngineStats| {
        let pools = &stats.pools;
        let transmit = pools.transmit_total - pools.transmit_free;
        let receive = pools.receive_total - pools.receive_free;
        (transmit, receive, stats.gather_octets, stats.fragment_octets)
    };
    let start = Instant::now();
    // Until the user timeout ends the attackers' connections.
    while held(&stats()) != (0, 0, 0, 0) {
        victims.reap();
        assert!(start.elapsed() < 2 * PATIENCE, "{attack} still holds {:?}", held(&stats()));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn icmp_errors_with_smaller_and_smaller_mtus() {
    run("icmp_errors_with_smaller_and_smaller_mtus", "packet-too-big");
}

#[test]
fn a_storm_of_reads() {
    run("a_storm_of_reads", "read-storm");
}

#[test]
fn acknowledgments_of_what_was_not_sent() {
    run("acknowledgments_of_what_was_not_sent", "optimistic-acks");
}

#[test]
fn an_mss_of_one_octet() {
    run("an_mss_of_one_octet", "tiny-mss");
}

#[test]
fn a_pool_pinned_behind_a_closed_window() {
    run("a_pool_pinned_behind_a_closed_window", "pinned-by-zero-window");
}
