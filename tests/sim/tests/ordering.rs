//! The ordering tables of RFC 5040 §5.5 and appendix B, of RFC 7306 §7 and of draft-talpey-rdma-commit §3.2.3, as
//! properties of random schedules. Both sides of a stream post random work over a bad network. What each sees, and what
//! its store would contain after a power failure, is compared with the documents' guarantees. What they only permit
//! must occur, too, or the schedules would show nothing.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uwarp_engine::command::{ConnectionEvent, Features, StartupOptions};
use uwarp_engine::work::{
    AtomicOperands, Completion, CompletionOpcode, SendElement, SendFlags, SendOpcode, Sge, Status,
};
use uwarp_memory::{Access, Committer, DomainId, Registration, Scope, Store, TaggedBase};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

const SEEDS: u64 = 150;
/// Operations of each side.
const OPERATIONS: u64 = 150;
/// Target areas of Writes, each a run of equal words.
const PLACES: usize = 6;
/// Octets of an area: the later ones take several segments.
const fn place_len(place: usize) -> u32 {
    if place < 3 { 8 } else { 4000 }
}
const PLACE_STRIDE: u64 = 4096;
/// Offset of the word behind the areas: the counter that FetchAdd increments.
const COUNTER: u64 = PLACES as u64 * PLACE_STRIDE;
const REGION: usize = COUNTER as usize + 8;
/// Receives kept posted, and work in flight.
const DEPTH: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Immediate,
    Write {
        place: usize,
    },
    WriteImmediate {
        place: usize,
    },
    Read {
        place: usize,
    },
    FetchAdd,
    Commit {
        place: usize,
    },
    /// Of the word that the atomics change.
    CommitCounter,
    WriteCommit {
        place: usize,
    },
}

impl Kind {
    fn is_delivered(self) -> bool {
        matches!(self, Kind::Send | Kind::Immediate | Kind::WriteImmediate { .. })
    }
}

/// An operation under way, as its poster knows it.
#[derive(Debug, Clone, Copy)]
struct Posted {
    id: u64,
    kind: Kind,
    /// Number of the last Write to each area that was posted before.
    before: [u64; PLACES],
    /// Messages with a completion at the peer that were posted before.
    delivered_before: u64,
    /// Atomics that were posted before.
    additions_before: u64,
    /// For a Read: the last Write to its area that it may see, because the next one is fenced.
    limit: u64,
}

/// Permitted behaviour that occurred, beyond the guarantees.
#[derive(Debug, Default)]
struct Met {
    /// A Send completed at the sink while an earlier Read or atomic of its stream was not answered.
    send_overtook_request: u64,
    /// A Read saw a Write that was posted behind it.
    write_overtook_read: u64,
    /// A Read without a fence saw exactly what had been written before.
    exact_reads: u64,
    /// A Send completed at the sink while an earlier Commit of its stream was not answered.
    send_overtook_commit: u64,
    /// A Commit made a Write durable that was posted behind it.
    write_overtook_commit: u64,
    /// A Commit made durable exactly what had been written before.
    exact_commits: u64,
    fenced: u64,
    frames_lost: u64,
}

/// The store of a durable region.
#[derive(Debug, Default)]
struct Kept {
    /// Its contents after a power failure.
    safe: Vec<u8>,
    cache: Vec<(u64, Vec<u8>)>,
}

#[derive(Debug, Clone, Default)]
struct Keeper(Arc<Mutex<Kept>>);

impl Keeper {
    fn safe(&self, offset: u64, length: u32) -> Vec<u64> {
        numbers(&self.0.lock().expect("not poisoned").safe[offset as usize..][..length as usize])
    }
}

impl Store for Keeper {
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
        self.0.lock().expect("not poisoned").cache.push((offset, octets.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let kept = &mut *self.0.lock().expect("not poisoned");
        for (offset, octets) in kept.cache.drain(..) {
            kept.safe[offset as usize..][..octets.len()].copy_from_slice(&octets);
        }
        Ok(())
    }
}

struct Side {
    pair: Pair,
    /// The durable target of the peer's operations.
    target: Registration,
    committer: Committer,
    keeper: Keeper,
    /// Messages are delivered when what was written before them is durable.
    transparent: bool,
    /// Outgoing data, slot by slot.
    source: Registration,
    /// The sink of Reads.
    sink: Registration,
    inbox: Registration,
    random: fastrand::Rng,
    next: u64,
    last_write: [u64; PLACES],
    /// Completed atomics, and posted ones.
    additions: u64,
    additions_posted: u64,
    delivered: u64,
    /// In posting order: not yet completed here.
    under_way: VecDeque<Posted>,
    /// In posting order: not yet completed at the peer.
    expected: VecDeque<Posted>,
    received: u64,
    done: u64,
}

impl Side {
    fn new(world: &mut World, host: usize, seed: u64) -> Self {
        let pair = world.hosts[host].pair(PairOptions { send_depth: 256, ..PairOptions::default() });
        let host = &world.hosts[host];
        let keeper = Keeper::default();
        keeper.0.lock().expect("not poisoned").safe = vec![0; REGION];
        let transparent = seed % 4 < 2;
        let (scope, store) = (Scope::Domain(DomainId(1)), Box::new(keeper.clone()));
        let (target, committer) = host
            .regions
            .register_durable(vec![0; REGION], Access::ALL, scope, TaggedBase::Zero, store, transparent)
            .expect("the table has room");
        Side {
            pair,
            target,
            committer,
            keeper,
            transparent,
            source: host.register(vec![0; DEPTH * PLACE_STRIDE as usize], Access::LOCAL_READ),
            sink: host.register(vec![0; DEPTH * PLACE_STRIDE as usize], Access::LOCAL_WRITE),
            inbox: host.register(vec![0; DEPTH * 8], Access::LOCAL_WRITE),
            random: fastrand::Rng::with_seed(seed),
            next: 1,
            last_write: [0; PLACES],
            additions: 0,
            additions_posted: 0,
            delivered: 0,
            under_way: VecDeque::new(),
            expected: VecDeque::new(),
            received: 0,
            done: 0,
        }
    }

    fn post_receive(&mut self, number: u64) {
        let slot = number % DEPTH as u64;
        let entry = Sge { stag: self.inbox.stag(), length: 8, offset: self.inbox.base_offset() + slot * 8 };
        assert!(self.pair.post_receive(number, &[entry]));
    }

    /// Posts the next operation, if there is room for it. `credit` is the number of the peer's receives.
    fn post(&mut self, target: &Registration, credit: u64, met: &mut Met) {
        if self.next > OPERATIONS || self.under_way.len() + 1 >= DEPTH {
            return;
        }
        let place = self.random.usize(..PLACES);
        let kind = match self.random.u8(..13) {
            0 | 1 => Kind::Send,
            2 => Kind::Immediate,
            3..=5 => Kind::Write { place },
            6 => Kind::WriteImmediate { place },
            7 | 8 => Kind::Read { place },
            9 => Kind::FetchAdd,
            10 => Kind::Commit { place },
            11 => Kind::CommitCounter,
            _ => Kind::WriteCommit { place },
        };
        if kind.is_delivered() && self.delivered >= credit {
            return;
        }
        let id = self.next;
        self.next += 1;
        let fence = self.random.u8(..5) == 0;
        let mut flags = SendFlags::SIGNALLED;
        if fence {
            flags = flags.union(SendFlags::FENCE);
            met.fenced += 1;
        }
        // The slot is free again when the operation that used it has completed; at most DEPTH are under way.
        let slot = (id % DEPTH as u64) * PLACE_STRIDE;
        let posted = Posted {
            id,
            kind,
            before: self.last_write,
            delivered_before: self.delivered,
            additions_before: self.additions_posted,
            limit: u64::MAX,
        };
        let mut element =
            SendElement { id, opcode: SendOpcode::Send, flags, stag: 0, remote_offset: 0, length: 0, entries: 0 };
        let mut entries = Vec::new();
        let mut inline = Vec::new();
        match kind {
            Kind::Send => {
                element.flags = flags.union(SendFlags::INLINE);
                element.length = 8;
                inline.extend_from_slice(&id.to_le_bytes());
            }
            Kind::Immediate => {
                element.opcode = SendOpcode::Immediate;
                element.remote_offset = id;
            }
            Kind::Write { place } | Kind::WriteImmediate { place } | Kind::WriteCommit { place } => {
                let length = place_len(place);
                let words = id.to_le_bytes().repeat(length as usize / 8);
                self.source.write(slot as usize, &words).expect("in range");
                entries.push(Sge { stag: self.source.stag(), length, offset: self.source.base_offset() + slot });
                element.opcode = SendOpcode::Write;
                if let Kind::WriteImmediate { .. } = kind {
                    element.opcode = SendOpcode::WriteImmediate;
                    entries.push(SendElement::immediate_entry(id));
                } else if let Kind::WriteCommit { .. } = kind {
                    element.opcode = SendOpcode::WriteCommit;
                }
                element.stag = target.stag();
                element.remote_offset = target.base_offset() + place as u64 * PLACE_STRIDE;
                element.length = length;
                self.last_write[place] = id;
                if fence {
                    // It is sent only when the Reads before it are complete: they cannot see it.
                    for earlier in &mut self.under_way {
                        if earlier.kind == (Kind::Read { place }) {
                            earlier.limit = earlier.limit.min(id - 1);
                        }
                    }
                }
            }
            Kind::Read { place } => {
                let length = place_len(place);
                entries.push(Sge { stag: self.sink.stag(), length, offset: self.sink.base_offset() + slot });
                element.opcode = SendOpcode::Read;
                element.stag = target.stag();
                element.remote_offset = target.base_offset() + place as u64 * PLACE_STRIDE;
                element.length = length;
            }
            Kind::Commit { place } => {
                let offset = target.base_offset() + place as u64 * PLACE_STRIDE;
                entries.push(Sge { stag: target.stag(), length: place_len(place), offset });
                element.opcode = SendOpcode::Commit;
            }
            Kind::CommitCounter => {
                entries.push(Sge { stag: target.stag(), length: 8, offset: target.base_offset() + COUNTER });
                element.opcode = SendOpcode::Commit;
            }
            Kind::FetchAdd => {
                self.additions_posted += 1;
                let operands = AtomicOperands { add_swap: 1, add_swap_mask: 0, compare: 0, compare_mask: u64::MAX };
                inline.extend_from_slice(&operands.to_octets());
                element.opcode = SendOpcode::FetchAdd;
                element.flags = flags.union(SendFlags::INLINE);
                element.stag = target.stag();
                element.remote_offset = target.base_offset() + COUNTER;
                element.length = AtomicOperands::LEN as u32;
            }
        }
        element.entries = entries.len() as u8;
        assert!(self.pair.post(element, &entries, &inline));
        self.under_way.push_back(posted);
        if kind.is_delivered() {
            self.delivered += 1;
            self.expected.push_back(posted);
        }
    }
}

fn words(region: &Registration, offset: u64, length: u32) -> Vec<u64> {
    let mut octets = vec![0; length as usize];
    region.read(offset as usize, &mut octets).expect("in range");
    numbers(&octets)
}

fn numbers(octets: &[u8]) -> Vec<u64> {
    octets.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight octets"))).collect()
}

/// A receive of `sink` completed: it belongs to the oldest message of `source`, and everything that was written before
/// that message is there (RFC 5040 §5.5 rules 1 and 5, appendix B).
fn delivered(source: &mut Side, sink: &mut Side, completion: &Completion, met: &mut Met) {
    let posted = source.expected.pop_front().expect("a completion without a message");
    assert_eq!((completion.status, completion.opcode), (Status::Success, CompletionOpcode::Receive));
    assert_eq!(completion.id, sink.received, "receives are taken in the order of posting");
    match posted.kind {
        Kind::Send => {
            let slot = completion.id % DEPTH as u64 * 8;
            assert_eq!(words(&sink.inbox, slot, 8), [posted.id], "Sends complete in order");
            assert_eq!((completion.length, completion.immediate_data()), (8, None));
        }
        _ => assert_eq!(completion.immediate_data(), Some(posted.id), "Immediate Data keeps its place among Sends"),
    }
    let mut before = posted.before;
    if let Kind::WriteImmediate { place } = posted.kind {
        before[place] = posted.id;
    }
    for (place, least) in before.into_iter().enumerate() {
        let seen = words(&sink.target, place as u64 * PLACE_STRIDE, place_len(place));
        assert!(
            seen.iter().all(|word| *word >= least),
            "message {} was delivered before Write {least} lay in place {place}: {:?}",
            posted.id,
            seen.iter().min()
        );
        let safe = sink.keeper.safe(place as u64 * PLACE_STRIDE, place_len(place));
        assert!(
            !sink.transparent || safe.iter().all(|word| *word >= least),
            "message {} was told before Write {least} was durable in place {place}: {:?}",
            posted.id,
            safe.iter().min()
        );
    }
    for earlier in source.under_way.iter().take_while(|earlier| earlier.id < posted.id) {
        match earlier.kind {
            Kind::Read { .. } | Kind::FetchAdd => met.send_overtook_request += 1,
            Kind::Commit { .. } | Kind::CommitCounter | Kind::WriteCommit { .. } => met.send_overtook_commit += 1,
            _ => {}
        }
    }
    sink.received += 1;
    sink.post_receive(sink.received + DEPTH as u64 - 1);
}

/// Work of `poster` completed.
fn completed(poster: &mut Side, peer: &Side, completion: &Completion, met: &mut Met) {
    let posted = poster.under_way.pop_front().expect("a completion without work");
    assert_eq!(completion.status, Status::Success);
    assert_eq!(completion.id, posted.id, "work completes in the order of posting");
    poster.done += 1;
    match posted.kind {
        Kind::Read { place } => {
            let slot = (posted.id % DEPTH as u64) * PLACE_STRIDE;
            let seen = words(&poster.sink, slot, place_len(place));
            let (least, most) = (seen.iter().min().expect("words"), seen.iter().max().expect("words"));
            assert!(*least >= posted.before[place], "Read {} did not see Write {}", posted.id, posted.before[place]);
            assert!(*most <= posted.limit, "Read {} saw the fenced Write {most}", posted.id);
            assert!(*most <= poster.last_write[place]);
            if *most > posted.before[place] {
                met.write_overtook_read += 1;
            } else {
                met.exact_reads += 1;
            }
        }
        Kind::FetchAdd => {
            assert_eq!(completion.original_value(), Some(poster.additions), "atomics are carried out in order");
            poster.additions += 1;
            let now = words(&peer.target, COUNTER, 8)[0];
            assert!(now >= poster.additions, "the word changes before its response is delivered");
        }
        Kind::CommitCounter => {
            assert_eq!(completion.commit_status(), Some(0));
            let safe = peer.keeper.safe(COUNTER, 8)[0];
            assert!(
                safe >= posted.additions_before,
                "Commit {} was answered when of {} atomics only {safe} were durable",
                posted.id,
                posted.additions_before
            );
        }
        Kind::Commit { place } | Kind::WriteCommit { place } => {
            assert_eq!(completion.commit_status(), Some(0));
            let least = if posted.kind == (Kind::Commit { place }) { posted.before[place] } else { posted.id };
            let safe = peer.keeper.safe(place as u64 * PLACE_STRIDE, place_len(place));
            let (oldest, newest) = (safe.iter().min().expect("words"), safe.iter().max().expect("words"));
            assert!(
                *oldest >= least,
                "Commit {} was answered when of Write {least} only {oldest} was durable",
                posted.id
            );
            assert!(*newest <= poster.last_write[place]);
            if *newest > least {
                met.write_overtook_commit += 1;
            } else {
                met.exact_commits += 1;
            }
        }
        _ => return,
    }
    // The answered request was sent behind these, so they were complete before the answer was made.
    assert!(
        peer.received >= posted.delivered_before,
        "{posted:?} was answered when {} of {} earlier messages were delivered",
        peer.received,
        posted.delivered_before
    );
}

fn run(seed: u64, met: &mut Met) {
    let options = SimOptions { loss: 0.01, duplication: 0.01, reordering: 0.03, ..SimOptions::default() };
    let mut world = World::new(seed, options);
    for _ in 0..2 {
        world.add(HostOptions::default(), |config| config.tcp.rto_min = Duration::from_millis(1));
    }
    let features = Features { atomics: true, immediate: true, commit: true, infiniband: false };
    let startup = StartupOptions { features, ord: 4, ird: 4, ..StartupOptions::default() };
    let requests = world.hosts[1].listen(7471);
    let mut sides = [Side::new(&mut world, 0, seed), Side::new(&mut world, 1, !seed)];
    world.hosts[0].connect(&sides[0].pair, (world.hosts[1].address, 7471), startup.clone());
    for side in &mut sides {
        for number in 0..DEPTH as u64 {
            side.post_receive(number);
        }
    }
    let mut open = [false; 2];
    assert!(world.run_until(Duration::from_secs(20), |world| {
        if let Ok(request) = requests.try_recv() {
            world.hosts[1].accept(&sides[1].pair, &request, startup.clone());
        }
        for (open, side) in open.iter_mut().zip(&sides) {
            *open |= matches!(side.pair.events.try_recv(), Ok(ConnectionEvent::Established(_)));
        }
        open == [true; 2]
    }));
    let mut random = fastrand::Rng::with_seed(seed.rotate_left(32));
    let finished = world.run_until(Duration::from_secs(60), |world| {
        // Stores take their time, but not when everything waits for them.
        let idle = world.network.next_arrival().is_none();
        for side in &mut sides {
            if idle || random.u8(..32) == 0 {
                side.committer.work();
            }
        }
        // Receives first: what was delivered in a turn was delivered before any answer of the same turn arrives.
        let polled = [sides[0].pair.poll_all(), sides[1].pair.poll_all()];
        for receives in [true, false] {
            for (at, completions) in polled.iter().enumerate() {
                let [first, second] = &mut sides;
                let (own, peer) = if at == 0 { (first, second) } else { (second, first) };
                for completion in completions.iter().filter(|one| (one.opcode == CompletionOpcode::Receive) == receives)
                {
                    if receives {
                        delivered(peer, own, completion, met);
                    } else {
                        completed(own, peer, completion, met);
                    }
                }
            }
        }
        for at in 0..2 {
            let [first, second] = &mut sides;
            let (own, peer) = if at == 0 { (first, second) } else { (second, first) };
            for _ in 0..random.u8(..4) {
                let credit = peer.received + DEPTH as u64;
                own.post(&peer.target, credit, met);
            }
        }
        sides.iter().all(|side| side.done == OPERATIONS && side.expected.is_empty())
    });
    assert!(finished, "seed {seed}: {:?}", sides.map(|side| (side.done, side.expected, side.under_way)));
    met.frames_lost += world.network.counters().lost;
}

fn seeds(range: std::ops::Range<u64>) {
    let mut met = Met::default();
    for seed in range {
        eprintln!("seed {seed}");
        run(seed, &mut met);
    }
    println!("{met:?}");
    let Met { send_overtook_request, write_overtook_read, exact_reads, fenced, frames_lost, .. } = met;
    assert!(send_overtook_request > 0 && write_overtook_read > 0 && exact_reads > 0 && fenced > 0 && frames_lost > 0);
    assert!(met.send_overtook_commit > 0 && met.write_overtook_commit > 0 && met.exact_commits > 0);
}

#[test]
fn what_both_sides_see_is_in_the_order_of_the_tables() {
    seeds(0..SEEDS);
}
