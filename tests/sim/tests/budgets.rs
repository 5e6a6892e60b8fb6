//! A hundred peers that make an engine keep what it cannot use yet: FPDUs that stop in the middle, and data behind a
//! gap. Each of them is within its rights. All together get no more memory than the budget, and others do not notice.

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{
    Command, ConnectionEvent, ConnectionRequest, DisconnectReason, StartupOptions, TerminateCode,
};
use uwarp_engine::config::Budgets;
use uwarp_engine::ports::decorated::FaultRates;
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::stats::EngineStats;
use uwarp_engine::work::{SendOpcode, Sge, Status};
use uwarp_iwarp::framing::{insert_markers, marked_len};
use uwarp_memory::kernels::crc32c;
use uwarp_memory::{Access, Registration};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request, write};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World, middlebox};
use uwarp_testkit::sim::SimOptions;

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);
const PEERS: u8 = 100;

/// A peer, its stream's queue pair here, and the memory that it writes to.
struct Hoarder {
    peer: RawPeer,
    pair: Pair,
    region: Registration,
    ended: bool,
}

/// Two engines, the second with a budget; a stream between them that must not be affected; and the peers.
struct Scene {
    world: World,
    _requests: Receiver<ConnectionRequest>,
    bystander: Pair,
    its_peer: Pair,
    hoarders: Vec<Hoarder>,
}

fn scene(budgets: Budgets, markers: bool, octets: usize) -> Scene {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions { queue_pairs: 256, ..HostOptions::default() }, |config| config.budgets = budgets);
    let requests = world.hosts[1].listen(PORT);
    let bystander = world.hosts[0].pair(PairOptions::default());
    let its_peer = world.hosts[1].pair(PairOptions::default());
    world.join((0, &bystander), (1, &its_peer), &requests, PORT);
    let asked = request();
    let hoarders = (0..PEERS)
        .map(|number| {
            let pair = world.hosts[1].pair(PairOptions::default());
            let region = world.hosts[1].register(vec![0; octets], Access::REMOTE_WRITE);
            let accept = StartupOptions { markers, ..StartupOptions::default() };
            let how = (&asked[..], accept);
            let (peer, _) = RawPeer::start_with(&mut world, 100 + number, 1, &pair, &requests, PORT, how);
            Hoarder { peer, pair, region, ended: false }
        })
        .collect();
    Scene { world, _requests: requests, bystander, its_peer, hoarders }
}

impl Scene {
    fn stats(&self) -> EngineStats {
        self.world.hosts[1].engine.as_ref().expect("alive").stats()
    }

    /// Lets time pass for all; `look` sees the engine's statistics throughout.
    fn go_on(&mut self, time: Duration, mut look: impl FnMut(&EngineStats)) {
        let end = self.world.now() + time;
        let step = (time / 500).max(Duration::from_micros(200));
        while self.world.now() < end {
            let now = self.world.now();
            for hoarder in self.hoarders.iter_mut().filter(|hoarder| !hoarder.ended) {
                hoarder.peer.turn(now);
            }
            // The peers' waits are not events of the world.
            self.world.run(step);
            look(&self.stats());
            for hoarder in &mut self.hoarders {
                match hoarder.pair.events.try_recv() {
                    Ok(ConnectionEvent::Disconnected(reason)) => {
                        let code = TerminateCode { layer: 0, error_type: 0, code: 0 };
                        assert_eq!(reason, DisconnectReason::LocalTerminated(code));
                        hoarder.ended = true;
                    }
                    Ok(ConnectionEvent::Established(_)) | Err(_) => {}
                    Ok(other) => panic!("{other:?}"),
                }
            }
        }
    }

    /// Sends what was withheld, and waits until each peer's Write of `length` octets is there.
    fn fill_gaps(&mut self, length: usize) {
        for hoarder in &mut self.hoarders {
            hoarder.peer.fill();
        }
        let is_there = |hoarder: &Hoarder| {
            let mut last = [0];
            hoarder.region.read(length - 1, &mut last).is_ok() && last == [9]
        };
        let all = (0..600).any(|_| {
            self.go_on(SECOND / 10, |_| ());
            self.hoarders.iter().all(is_there)
        });
        assert!(all, "what was held is there, and what was not comes again");
    }

    /// A Write and a Send from the first engine reach the second, and their stream has not been affected.
    fn check_bystander(&mut self) {
        let source = self.world.hosts[0].register((0..100_000).map(|at| at as u8 | 1).collect(), Access::LOCAL_READ);
        let target = self.world.hosts[1].register(vec![0; 100_000], Access::REMOTE_WRITE);
        assert!(self.its_peer.post_receive(3, &[]));
        let local = Sge { stag: source.stag(), length: 100_000, offset: 0 };
        assert!(self.bystander.post_simple(1, SendOpcode::Write, Some(local), (target.stag(), 0)));
        assert!(self.bystander.post_simple(2, SendOpcode::Send, None, (0, 0)));
        let mut told = None;
        assert!(self.world.run_until(SECOND, |_| {
            told = self.its_peer.poll();
            told.is_some()
        }));
        assert_eq!(told.map(|told| (told.id, told.status)), Some((3, Status::Success)));
        let (mut sent, mut there) = (vec![0; 100_000], vec![0; 100_000]);
        source.read(0, &mut sent).expect("in range");
        target.read(0, &mut there).expect("in range");
        assert!(sent == there);
        assert!(self.bystander.events.try_recv().is_err() && self.its_peer.events.try_recv().is_err());
    }
}

/// An FPDU as it is sent at this position of its stream.
fn on_the_wire(mut fpdu: Vec<u8>, markers: bool, position: u64) -> Vec<u8> {
    if markers {
        let length = fpdu.len();
        fpdu.resize(marked_len(position, length), 0);
        insert_markers(&mut fpdu, length, position, Some(crc32c));
    }
    fpdu
}

/// Everything that peers send is parts of a long FPDU without its end.
fn stop_inside_fpdus(markers: bool) {
    const BUDGET: u64 = 64 << 10;
    const LENGTH: usize = 50_000;
    let budgets = Budgets { gather_octets: BUDGET, ..Budgets::default() };
    let mut scene = scene(budgets, markers, LENGTH);
    let send = |scene: &mut Scene, from: usize, to: usize| {
        for hoarder in scene.hoarders.iter_mut().filter(|hoarder| !hoarder.ended) {
            let whole = on_the_wire(fpdu(&write(hoarder.region.stag(), 0, &[9; LENGTH])), markers, 0);
            hoarder.peer.send(&whole[from..to.min(whole.len())]);
        }
    };
    let mut most = 0;
    let mut look = |stats: &EngineStats| most = most.max(stats.gather_octets);
    // So little from each that there is room for all, though not for what they announce.
    send(&mut scene, 0, 100);
    scene.go_on(Duration::from_millis(20), &mut look);
    assert!(scene.hoarders.iter().all(|hoarder| !hoarder.ended), "there is room for all");
    let stats = scene.stats();
    assert!(stats.gather_octets >= 100 * u64::from(PEERS));
    let apiece = (stats.connection_octets - stats.gather_octets) / stats.connections.len() as u64;
    assert!((1024..8192).contains(&apiece), "{apiece} octets for a connection without pieces");
    send(&mut scene, 100, LENGTH);
    scene.go_on(Duration::from_millis(100), &mut look);
    // Until the engine has waited long enough for the peers that it has sent a Terminate to close.
    scene.go_on(3 * SECOND, &mut look);
    let ended = scene.hoarders.iter().filter(|hoarder| hoarder.ended).count();
    assert!((1..usize::from(PEERS)).contains(&ended), "whoever still fits goes on, and {ended} do not");
    assert!((LENGTH as u64 / 2..=BUDGET).contains(&most), "{most} octets held");
    assert!(scene.hoarders.iter().all(|hoarder| {
        let mut octets = vec![1; LENGTH];
        hoarder.region.read(0, &mut octets).is_ok() && octets.iter().all(|octet| *octet == 0)
    }));
    scene.check_bystander();
    // The others continue as if nothing had happened.
    send(&mut scene, LENGTH, usize::MAX);
    scene.go_on(Duration::from_millis(20), |_| ());
    assert!(scene.hoarders.iter().filter(|hoarder| !hoarder.ended).all(|hoarder| {
        let mut octets = vec![0; LENGTH];
        hoarder.region.read(0, &mut octets).is_ok() && octets.iter().all(|octet| *octet == 9)
    }));
    assert_eq!(scene.hoarders.iter().filter(|hoarder| hoarder.ended).count(), ended);
    let stats = scene.stats();
    assert_eq!(
        (stats.gather_octets, stats.counters.crc_errors),
        (0, 0),
        "nothing waits any more, and nothing was misread"
    );
}

#[test]
fn fpdus_that_stop_in_the_middle_take_no_more_memory_than_their_budget() {
    stop_inside_fpdus(false);
}

#[test]
fn fpdus_with_markers_that_stop_in_the_middle_take_no_more_memory_than_their_budget() {
    stop_inside_fpdus(true);
}

/// A buffer that was grown for a long FPDU is not kept for the first octets of a short one.
fn short_behind_long(markers: bool) {
    const BUDGET: u64 = 64 << 10;
    const LENGTH: usize = 50_000;
    let budgets = Budgets { gather_octets: BUDGET, ..Budgets::default() };
    let mut scene = scene(budgets, markers, LENGTH);
    for number in 0..10 {
        let hoarder = &mut scene.hoarders[number];
        let long = on_the_wire(fpdu(&write(hoarder.region.stag(), 0, &[9; LENGTH])), markers, 0);
        hoarder.peer.send(&long);
        scene.go_on(Duration::from_millis(5), |stats| assert!(stats.gather_octets <= BUDGET));
        assert!(markers || scene.stats().counters.fpdus_gathered > number as u64, "it came in pieces");
        let hoarder = &mut scene.hoarders[number];
        let short = fpdu(&write(hoarder.region.stag(), 0, &[8; 100]));
        hoarder.peer.send(&on_the_wire(short, markers, long.len() as u64)[..50]);
        scene.go_on(Duration::from_millis(1), |stats| assert!(stats.gather_octets <= BUDGET));
    }
    assert!(scene.hoarders.iter().all(|hoarder| !hoarder.ended));
    assert!((10 * 50..10 * 200).contains(&scene.stats().gather_octets), "all of them wait");
    scene.check_bystander();
}

#[test]
fn a_short_fpdu_behind_a_long_one_takes_little() {
    short_behind_long(false);
}

#[test]
fn a_short_fpdu_with_markers_behind_a_long_one_takes_little() {
    short_behind_long(true);
}

#[test]
fn data_behind_gaps_takes_no_more_buffers_than_its_budget_and_comes_in_the_end() {
    const BUDGET: u32 = 64;
    const LENGTH: usize = 20 * 1400;
    let budgets = Budgets { out_of_order: Some(BUDGET), ..Budgets::default() };
    let mut scene = scene(budgets, false, LENGTH);
    for hoarder in &mut scene.hoarders {
        hoarder.peer.withhold();
        hoarder.peer.send(&fpdu(&write(hoarder.region.stag(), 0, &[9; LENGTH])));
    }
    let mut most = 0;
    let held = |stats: &EngineStats| stats.connections.iter().map(|one| one.tcp.out_of_order_buffers).sum::<u64>();
    scene.go_on(Duration::from_millis(200), |stats| {
        most = most.max(held(stats));
        let pools = &stats.pools;
        assert!(pools.receive_total - pools.receive_free <= BUDGET, "{pools:?}");
    });
    let stats = scene.stats();
    // TCP counts segments; a segment that a middlebox has joined takes several buffers.
    let is_full = if middlebox().is_some() { most <= u64::from(BUDGET) } else { most == u64::from(BUDGET) };
    assert!(is_full, "as much as may be, and no more: {most}");
    assert!(stats.drops["out-of-order-budget"] > 0, "{:?}", stats.drops);
    scene.check_bystander();
    // A gap that is filled: held data is there, and other data is retransmitted.
    for hoarder in &mut scene.hoarders {
        hoarder.peer.fill();
    }
    let mut left = usize::from(PEERS);
    for _ in 0..600 {
        scene.go_on(SECOND / 10, |stats| assert!(held(stats) <= u64::from(BUDGET)));
        left = scene
            .hoarders
            .iter()
            .filter(|hoarder| {
                let mut last = [0];
                !(hoarder.region.read(LENGTH - 1, &mut last).is_ok() && last == [9])
            })
            .count();
        if left == 0 {
            break;
        }
    }
    assert_eq!(left, 0, "peers whose data is missing");
    assert!(scene.hoarders.iter().all(|hoarder| !hoarder.ended));
    assert_eq!(held(&scene.stats()), 0);
}

/// Segments that were joined on the way arrive as a chain of buffers, and are held as one.
#[test]
fn joined_segments_behind_gaps_count_with_all_their_buffers() {
    const BUDGET: u32 = 64;
    const LENGTH: usize = 20 * 1400;
    let budgets = Budgets { out_of_order: Some(BUDGET), ..Budgets::default() };
    let mut scene = scene(budgets, false, LENGTH);
    let recutting = Recutting { cutting: 0.0, joining: 1.0 };
    scene.world.hosts[1]
        .command(Command::SetFaults { faults: Some(FaultRates { recutting, ..FaultRates::default() }) });
    for hoarder in &mut scene.hoarders {
        hoarder.peer.withhold();
        hoarder.peer.send(&fpdu(&write(hoarder.region.stag(), 0, &[9; LENGTH])));
    }
    scene.go_on(Duration::from_millis(200), |_| ());
    let stats = scene.stats();
    assert!(stats.faults["receive-joined"] > 0 && stats.drops["out-of-order-budget"] > 0, "{stats:?}");
    let kept = stats.pools.receive_total - stats.pools.receive_free;
    assert!((BUDGET / 2..=BUDGET).contains(&kept), "{:?}", stats.pools);
    scene.check_bystander();
    scene.fill_gaps(LENGTH);
    let pools = scene.stats().pools;
    assert_eq!(pools.receive_free, pools.receive_total);
}

/// Segments that came in fragments are held as copies in transmit buffers, which others need to send.
#[test]
fn fragments_behind_gaps_leave_transmit_buffers_to_others() {
    const LENGTH: usize = 20 * 1400;
    let mut scene = scene(Budgets::default(), false, LENGTH);
    for hoarder in &mut scene.hoarders {
        hoarder.peer.in_fragments = true;
        hoarder.peer.withhold();
        hoarder.peer.send(&fpdu(&write(hoarder.region.stag(), 0, &[9; LENGTH])));
    }
    scene.go_on(Duration::from_millis(200), |stats| {
        let taken = stats.pools.transmit_total - stats.pools.transmit_free;
        // A burst of acknowledgments is under way now and then.
        assert!(taken <= stats.pools.transmit_total / 8 + 64, "{:?}", stats.pools);
    });
    let stats = scene.stats();
    assert!(stats.counters.reassembled > 500 && stats.drops["out-of-order-budget"] > 0, "{stats:?}");
    scene.check_bystander();
    scene.fill_gaps(LENGTH);
    let pools = scene.stats().pools;
    assert_eq!(pools.transmit_free, pools.transmit_total);
}
