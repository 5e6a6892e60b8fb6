//! A lock in the memory of one process that four others hold in turn (RFC 7306 §5): a word with the number being served
//! in its lower half, and the next free number in its upper half. FetchAdd draws a number; its mask keeps carries in
//! the upper half. CmpSwap returns the lock; its masks see and change the lower half only, while others draw numbers.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uwarp::{
    AcceptOptions, CompareSwap, Completion, Config, ConnectOptions, Context, DeviceConfig, Features, ListenOptions,
    SendRequest,
};
use uwarp_netns as netns;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, Place};
use uwarp_vdev_tests::network::configure;
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, count};

const NAME: &str = "four_processes_hold_a_lock_in_turn";
/// The first one has the memory.
const INTERFACES: [&str; 5] = ["lock0", "lock1", "lock2", "lock3", "lock4"];
const CLIENTS: u64 = INTERFACES.len() as u64 - 1;
const ATOMICS: Features = Features { atomics: true, immediate: false, commit: false, infiniband: false };
/// Offsets of the words: the lock, what it guards, and who held it, by number.
const LOCK: u64 = 0;
const GUARDED: u64 = 8;
const HOLDERS: u64 = 16;
/// The served number in the lock's word.
const SERVED: u64 = u32::MAX as u64;

/// How often each client acquires the lock.
fn rounds() -> u64 {
    count(100, 2000) as u64
}

#[derive(Serialize, Deserialize)]
struct Task {
    number: usize,
}

fn open(number: usize) -> Context {
    let device = DeviceConfig::AfPacket { interface: INTERFACES[number].into(), netns: None, frame_count: None };
    let mut config = configure(Config::new(device, &format!("10.0.0.{}/24", 1 + number)).expect("a good address"));
    // This many processes on few processors are slow.
    config.tcp.user_timeout = Some(PATIENCE);
    config.tcp.keep_alive.enabled = false;
    Context::open(config.threaded(1)).expect("the context opens")
}

/// A client's access to the memory. Its own region is one word long.
struct Client {
    endpoint: Endpoint,
    next: u64,
}

impl Client {
    fn run(&mut self, request: impl FnOnce(u64, Place) -> SendRequest<'static>) -> Completion {
        self.next += 1;
        self.endpoint.post(&[request(self.next, self.endpoint.place())]);
        let completion = self.endpoint.success();
        assert_eq!(completion.id, self.next);
        completion
    }

    /// A word of the memory, by RDMA Read.
    fn read(&mut self, at: u64) -> u64 {
        self.next += 1;
        let (place, sink) = (self.endpoint.place(), self.endpoint.region.sge(..8).expect("a word"));
        self.endpoint.post(&[SendRequest::read(self.next, &[sink], place.stag, place.offset + at)]);
        assert_eq!(self.endpoint.success().id, self.next);
        self.endpoint.region.load_acquire_u64(0).expect("a word")
    }

    /// Writes a word of the memory by RDMA Write, which does not report when it is placed.
    fn write(&mut self, at: u64, value: u64) {
        self.next += 1;
        let place = self.endpoint.place();
        let octets = value.to_ne_bytes();
        self.endpoint.post(&[SendRequest::write_inline(self.next, &octets, place.stag, place.offset + at)]);
        assert_eq!(self.endpoint.success().id, self.next);
    }

    fn lock(&mut self) -> u64 {
        let drawn = self.run(|id, place| {
            SendRequest::fetch_add_masked(id, place.stag, place.offset + LOCK, 1 << 32, 1 << 63 | 1 << 31)
        });
        let number = drawn.original_value().expect("an atomic") >> 32;
        let start = Instant::now();
        while self.read(LOCK) & SERVED != number {
            assert!(start.elapsed() < PATIENCE, "number {number} is never served");
            std::thread::sleep(Duration::from_micros(50));
        }
        number
    }

    /// The Writes before it are placed before it is executed (RFC 7306 §7).
    fn unlock(&mut self, number: u64) {
        let operands = CompareSwap { compare: number, compare_mask: SERVED, swap: number + 1, swap_mask: SERVED };
        let given =
            self.run(|id, place| SendRequest::compare_swap_masked(id, place.stag, place.offset + LOCK, &operands));
        assert_eq!(given.original_value().expect("an atomic") & SERVED, number, "somebody else was served");
    }
}

fn be_client(number: usize) {
    let context = open(number);
    let mut endpoint = Endpoint::new(&context, 8);
    let options = ConnectOptions::default().features(ATOMICS).timeout(PATIENCE);
    let server = std::net::SocketAddr::from(([10, 0, 0, 1], PORT));
    let established = context.connect(&mut endpoint.queue_pair.control, server, options).expect("a connection");
    endpoint.place = Some(Place::from_octets(&established.private_data));
    let mut client = Client { endpoint, next: 0 };
    for _ in 0..rounds() {
        let drawn = client.lock();
        let value = client.read(GUARDED);
        client.write(GUARDED, value + 1);
        client.write(HOLDERS + 8 * drawn, number as u64);
        client.unlock(drawn);
    }
    client.endpoint.disconnect();
}

#[test]
fn four_processes_hold_a_lock_in_turn() {
    netns::test_inside(NAME, || {
        if let Some(task) = peer::task::<Task>() {
            return be_client(task.number);
        }
        netns::switch(1500, &INTERFACES).expect("a kernel with bridges (CONFIG_BRIDGE)");
        let context = open(0);
        let mut listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
        let all = CLIENTS * rounds();
        let memory = Endpoint::new(&context, (HOLDERS + 8 * all) as usize);
        let clients: Vec<_> = (1..INTERFACES.len()).map(|number| Peer::start(NAME, &Task { number })).collect();
        let mut queue_pairs = Vec::new();
        for _ in &clients {
            let options = uwarp::QueuePairOptions::new(&memory.completions).depth(1, 1);
            let mut queue_pair = memory.domain.create_queue_pair(&options).expect("a queue pair");
            let request = listener.next(PATIENCE).expect("the listener works").expect("a client comes");
            let options = AcceptOptions::default().features(ATOMICS).timeout(PATIENCE);
            let place = Place::of(&memory.region).to_octets();
            // The engine does the rest by itself.
            let accepting =
                request.start_accept(&mut queue_pair.control, options.private_data(place)).expect("an answer");
            queue_pairs.push((queue_pair, accepting));
        }
        for client in clients {
            assert!(client.end(|| {}).success());
        }
        let word = |at: u64| memory.region.load_acquire_u64(at as usize).expect("a word");
        assert_eq!(word(LOCK), all << 32 | all);
        assert_eq!(word(GUARDED), all, "no addition was lost: one at a time held the lock");
        let mut held = [0; INTERFACES.len()];
        for number in 0..all {
            held[word(HOLDERS + 8 * number) as usize] += 1;
        }
        assert_eq!(held[0], 0, "each number had its holder");
        assert!(held[1..].iter().all(|times| *times == rounds()), "{held:?}");
    });
}
