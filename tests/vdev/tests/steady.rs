//! A steady turn allocates nothing over a real device: with loss, and with a thousand queue pairs.
//!
//! Both processes count the allocations of the thread that turns their engine. Queues grow to their largest contents,
//! and a loss at a new moment may set a new maximum. So the traffic continues in periods until one of them is free of
//! allocations. Code that allocates per packet, message or loss never has such a period.

use serde::{Deserialize, Serialize};
use uwarp::{
    AcceptOptions, Access, Completion, CompletionOpcode, CompletionQueue, ConnectOptions, Context, FaultOptions,
    ListenOptions, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{PORT, Place};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire};
use uwarp_vdev_tests::peer::{self, Peer};

const REGION: usize = 8192;
/// Sends of a queue pair that can be under way before the server posts receives again: two rounds, and some.
const RECEIVES: usize = 8;
/// Periods after which an allocation is no longer a late maximum. Eight do on a quiet machine. On a busy one, and
/// behind a middlebox, each of a thousand connections sets maxima of its own, by how much waits at once.
const PERIODS: usize = 60;

#[derive(Clone, Serialize, Deserialize)]
struct Task {
    wire: Wire,
    queue_pairs: usize,
    /// Rounds of a period.
    rounds: usize,
    loss: f64,
}

/// One side: queue pairs over one region and one completion queue.
struct End {
    context: Context,
    completions: CompletionQueue,
    region: MemoryRegion,
    queue_pairs: Vec<QueuePair>,
    _domain: ProtectionDomain,
}

impl End {
    fn open(task: &Task, side: Side) -> End {
        let mut config = task.wire.config(side).inline();
        if task.loss > 0.0 {
            config = config.faults(FaultOptions { loss: task.loss, seed: 5, ..uwarp_middlebox::faults() });
            config.tcp.user_timeout = Some(PATIENCE);
        }
        let context = Context::open(config).expect("the context opens");
        let completions = context.create_completion_queue(task.queue_pairs * 16).expect("a completion queue");
        let domain = context.allocate_domain();
        let region = domain.register(vec![7; REGION], Access::ALL).expect("a region");
        let options = QueuePairOptions::new(&completions).depth(16, RECEIVES);
        let queue_pairs = (0..task.queue_pairs).map(|_| domain.create_queue_pair(&options).expect("a queue pair"));
        let queue_pairs = queue_pairs.collect();
        End { context, completions, region, queue_pairs, _domain: domain }
    }

    fn receive_again(&mut self, which: usize) {
        let entry = self.region.sge(..4096).expect("inside the region");
        self.queue_pairs[which].receive.post(&[ReceiveRequest::new(which as u64, &[entry])]).expect("room");
    }
}

fn expect_success(completion: &Completion) {
    assert!(completion.status.is_success(), "{completion:?}");
}

/// A Write, a Read and a Send of every queue pair, `rounds` times.
fn traffic(end: &mut End, place: Place, rounds: usize) {
    let mut out = [Completion::default(); 64];
    for round in 0..rounds {
        let length = [64, 4000][round % 2];
        for queue_pair in &mut end.queue_pairs {
            let entry = [end.region.sge(..length).expect("inside the region")];
            let requests = [
                SendRequest::write(1, &entry, place.stag, place.offset).signalled(),
                SendRequest::read(2, &entry, place.stag, place.offset).signalled(),
                SendRequest::send(3, &entry).signalled(),
            ];
            assert_eq!(queue_pair.send.post(&requests).expect("connected"), 3);
        }
        let mut left = 3 * end.queue_pairs.len();
        while left > 0 {
            let count = end.completions.poll(&mut out);
            out[..count].iter().for_each(expect_success);
            left -= count;
        }
    }
}

fn client(task: &Task, peer: &mut Peer) {
    let mut end = End::open(task, Side::Client);
    let server = std::net::SocketAddr::from(([10, 0, 0, 1], PORT));
    let mut place = None;
    for queue_pair in &mut end.queue_pairs {
        let established =
            end.context.connect(&mut queue_pair.control, server, ConnectOptions::default().timeout(PATIENCE));
        place = Some(Place::from_octets(&established.expect("connected").private_data));
    }
    let place = place.expect("there is a queue pair");
    let mut counts = Vec::new();
    let clean = (0..PERIODS).any(|_| {
        peer.say("count");
        peer.await_word("counting", || {
            end.context.poll();
        });
        let here = allocation_counter::measure(|| traffic(&mut end, place, task.rounds)).count_total;
        peer.say("told");
        let mut there = None;
        while there.is_none() {
            end.context.poll();
            there = peer.try_told();
        }
        let there: u64 = there.and_then(|word| word.parse().ok()).expect("a number");
        counts.push((here, there));
        here == 0 && there == 0
    });
    eprintln!("allocations (client, server) in each period: {counts:?}");
    let retransmissions = end.context.stats().engines[0].counters.retransmissions;
    assert!(retransmissions > 0 || task.loss == 0.0, "nothing was lost");
    assert!(clean, "every period allocates: {counts:?}");
    // Before this side's end flushes the other's receives.
    peer.say("end");
    peer.await_word("ended", || {
        end.context.poll();
    });
}

fn server(task: &Task) {
    let mut end = End::open(task, Side::Server);
    for which in 0..task.queue_pairs {
        (0..RECEIVES).for_each(|_| end.receive_again(which));
    }
    let mut listener = end.context.listen(PORT, ListenOptions::default()).expect("a free port");
    peer::tell("open");
    let options = AcceptOptions::default().private_data(Place::of(&end.region).to_octets());
    let mut by_number =
        vec![0; 1 + end.queue_pairs.iter().map(|pair| pair.control.number()).max().unwrap_or(0) as usize];
    for (which, queue_pair) in end.queue_pairs.iter_mut().enumerate() {
        by_number[queue_pair.control.number() as usize] = which;
        let request = listener.next(PATIENCE).expect("the listener works").expect("a request comes");
        request.accept(&mut queue_pair.control, options.clone()).expect("accepted");
    }
    let words = peer::words();
    let mut out = [Completion::default(); 64];
    let mut serve = |end: &mut End| {
        let count = end.completions.poll(&mut out);
        for completion in &out[..count] {
            expect_success(completion);
            assert_eq!(completion.opcode, CompletionOpcode::Receive);
            end.receive_again(by_number[completion.queue_pair as usize]);
        }
        count
    };
    let wait = |end: &mut End, serve: &mut dyn FnMut(&mut End) -> usize| loop {
        serve(end);
        if let Ok(word) = words.try_recv() {
            return word;
        }
    };
    loop {
        match wait(&mut end, &mut serve).as_str() {
            "count" => {
                peer::tell("counting");
                let expected = task.rounds * task.queue_pairs;
                let mut served = 0;
                let count = allocation_counter::measure(|| {
                    while served < expected {
                        served += serve(&mut end);
                    }
                });
                // The client may still wait for an acknowledgment.
                assert_eq!(wait(&mut end, &mut serve), "told");
                peer::tell(&count.count_total.to_string());
            }
            "end" => return peer::tell("ended"),
            other => panic!("{other:?} means nothing"),
        }
    }
}

fn run(name: &str, device: Device, queue_pairs: usize, rounds: usize, loss: f64) {
    if let Some(task) = peer::task::<Task>() {
        return server(&task);
    }
    let Some(network) = Network::new(device) else { return };
    let task = Task { wire: network.wire.clone(), queue_pairs, rounds, loss };
    let mut peer = Peer::start(name, &task);
    assert_eq!(peer.told(), "open");
    client(&task, &mut peer);
    assert!(peer.end(|| {}).success());
}

#[test]
fn one_queue_pair_over_virtio() {
    run("one_queue_pair_over_virtio", Device::Virtio, 1, 2000, 0.0);
}

#[test]
fn one_queue_pair_over_memif_with_loss() {
    run("one_queue_pair_over_memif_with_loss", Device::Memif, 1, 1000, 1.0);
}

#[test]
fn a_thousand_queue_pairs_over_virtio() {
    run("a_thousand_queue_pairs_over_virtio", Device::Virtio, 1000, 4, 0.0);
}
