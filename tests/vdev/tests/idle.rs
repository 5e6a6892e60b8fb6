//! An idle process sleeps: with ten connections on which nothing happens, few things wake it, and it still answers the
//! first message afterwards.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uwarp::{Context, ListenOptions};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, answer, exchange, prepare_answer};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire};
use uwarp_vdev_tests::peer::{self, Peer};

const CONNECTIONS: usize = 10;
/// How long both processes rest, in seconds.
const REST: u64 = 5;
/// Until announcements and the last acknowledgments are over.
const SETTLE: Duration = Duration::from_secs(2);
/// Octets in each direction of the exchange after the rest.
const EXCHANGE: usize = 10_000;
const REGION: usize = 64 + 2 * EXCHANGE;
/// Wake-ups a second of a process whose device announces frames: keep-alive probes and their answers, a look at the
/// device and at its link, DPDK's own threads.
const FEW: u64 = 25;
/// The same beside a device that announces nothing: about a hundred naps that grow, then one of 50 ms after the other.
const NAPS: u64 = 40 + FEW;

#[derive(Serialize, Deserialize)]
struct Task {
    wire: Wire,
}

/// What all threads of this process have done so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Cost {
    /// Sleeps.
    sleeps: u64,
    /// Time on a processor.
    nanoseconds: u64,
}

impl Cost {
    fn so_far() -> Self {
        let tasks = fs::read_dir("/proc/self/task").expect("the kernel tells about threads").flatten();
        tasks.fold(Self { sleeps: 0, nanoseconds: 0 }, |sum, task| {
            let text = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let (status, schedule) = (text("status"), text("schedstat"));
            let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let nanoseconds = schedule.split(' ').next();
            let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
            Self { sleeps: sum.sleeps + number(sleeps), nanoseconds: sum.nanoseconds + number(nanoseconds) }
        })
    }

    /// What a rest of this process costs. All its threads are idle meanwhile, this one included.
    fn of_a_rest(rest: impl FnOnce(Duration)) -> Self {
        std::thread::sleep(SETTLE);
        let before = Self::so_far();
        rest(Duration::from_secs(REST));
        let after = Self::so_far();
        Self { sleeps: after.sleeps - before.sleeps, nanoseconds: after.nanoseconds - before.nanoseconds }
    }

    fn check(self, who: &str, most: u64) {
        let share = self.nanoseconds as f64 / (REST as f64 * 1e9) * 100.0;
        println!("{who}: {} wake-ups and {share:.3} % of a core in {REST} s", self.sleeps);
        assert!(self.sleeps <= REST * most, "{who}: more than {most} wake-ups a second");
        assert!(self.sleeps > 0 && self.nanoseconds > 0, "{who}: the counters stand still");
    }
}

fn serve(task: &Task) {
    let context = Context::open(config(&task.wire, Side::Server).threaded(1)).expect("the context opens");
    let mut listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
    let words = peer::words();
    peer::tell("open");
    let accept = |_| {
        let mut endpoint = Endpoint::new(&context, REGION);
        prepare_answer(&mut endpoint);
        endpoint.accept(&context, &mut listener);
        endpoint
    };
    let mut endpoints: Vec<Endpoint> = (0..CONNECTIONS).map(accept).collect();
    words.recv().expect("a word");
    let cost = Cost::of_a_rest(std::thread::sleep);
    peer::tell(&serde_json::to_string(&cost).expect("numbers"));
    for endpoint in &mut endpoints {
        answer(endpoint, EXCHANGE);
    }
    for endpoint in &mut endpoints {
        assert!(
            endpoint.queue_pair.control.wait_disconnected(uwarp_vdev_tests::PATIENCE).unwrap(),
            "the peer disconnects"
        );
    }
}

/// As in the other tests, but with the default keep-alive.
fn config(wire: &Wire, side: Side) -> uwarp::Config {
    let mut config = wire.config(side);
    config.tcp.keep_alive = uwarp::config::KeepAlive::default();
    config
}

fn rest(name: &str, device: Device, inline: bool) {
    if let Some(task) = peer::task::<Task>() {
        return serve(&task);
    }
    let Some(network) = Network::new(device) else { return };
    let mut server = Peer::start(name, &Task { wire: network.wire.clone() });
    server.await_word("open", || {});
    let config = config(&network.wire, Side::Client);
    let context = Context::open(if inline { config.inline() } else { config.threaded(1) }).expect("the context opens");
    let connect = |_| {
        let mut endpoint = Endpoint::new(&context, REGION);
        endpoint.connect(&context);
        endpoint
    };
    let mut endpoints: Vec<Endpoint> = (0..CONNECTIONS).map(connect).collect();
    server.say("rest");
    let most = if device == Device::Memif { NAPS } else { FEW };
    let cost = Cost::of_a_rest(|time| {
        if inline {
            // The engine goes on inside a wait only.
            let idle = endpoints[0].completions.wait(time).expect("the context works");
            assert!(!idle, "nothing completes");
        } else {
            std::thread::sleep(time);
        }
    });
    let slept = context.stats().engines[0].counters.wakeups;
    cost.check(&format!("{device:?} client, slept {slept:?}"), most);
    let cost: Cost = serde_json::from_str(&server.told()).expect("numbers");
    cost.check(&format!("{device:?} server"), most);
    for (seed, endpoint) in endpoints.iter_mut().enumerate() {
        exchange(endpoint, seed as u64, EXCHANGE);
    }
    for endpoint in &mut endpoints {
        endpoint.disconnect();
    }
}

#[test]
fn idle_processes_sleep_beside_virtio() {
    rest("idle_processes_sleep_beside_virtio", Device::Virtio, false);
}

#[test]
fn idle_processes_nap_beside_memif() {
    rest("idle_processes_nap_beside_memif", Device::Memif, false);
}

#[test]
fn idle_processes_sleep_beside_packet_sockets() {
    rest("idle_processes_sleep_beside_packet_sockets", Device::AfPacket, false);
}

#[test]
fn idle_processes_sleep_beside_taps() {
    rest("idle_processes_sleep_beside_taps", Device::Tap, false);
}

#[test]
fn an_inline_wait_sleeps_beside_virtio() {
    rest("an_inline_wait_sleeps_beside_virtio", Device::Virtio, true);
}

#[test]
fn an_inline_wait_naps_beside_memif() {
    rest("an_inline_wait_naps_beside_memif", Device::Memif, true);
}
