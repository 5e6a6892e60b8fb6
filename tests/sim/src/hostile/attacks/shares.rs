//! Attacks that take what belongs to everybody: buffers, windows, budgets, places.

use std::time::Duration;

use crate::hostile::den::{Den, Growth, Opening, Pace, Reader, Stage};
use crate::hostile::{Attack, PLAIN_PORT, PORT, Scene, Target};
use crate::raw::{fpdu, untagged, write};
use uwarp_engine::stats::EngineStats;
use uwarp_tcp::Instant;
use uwarp_wire::rdmap::Opcode;
use uwarp_wire::tcp::{SackBlocks, SeqNumber};

use super::Maker;
use super::tcp::STEP;

/// The attacks of this file.
pub const ATTACKS: &[(&str, Maker)] = &[
    ("pinned-by-slow-acks", || Box::new(Pinned::new(false))),
    ("pinned-by-zero-window", || Box::new(Pinned::new(true))),
    ("out-of-order-squeeze", || Box::new(Squeeze::default())),
    ("gather-budget", || Box::new(GatherBudget::default())),
    ("abandoned-stream", || Box::new(AbandonedStream::default())),
    ("unposted-receives", || Box::new(UnpostedReceives::default())),
];

/// Octets in flight that take nearly all that one connection can have of the transmit pool: 4096 buffers, but for 256
/// that no record may take, and a fifth of the others.
const POOL: u32 = 3_000 * 1_460;

/// Grows the target's window until a flight takes the transmit pool, then keeps it there: acknowledges a segment every
/// 5 s, or closes its window and answers probes.
#[derive(Debug)]
struct Pinned {
    closes: bool,
    number: Option<usize>,
    reader: Reader,
    growth: Growth,
    acknowledged: Option<SeqNumber>,
    pace: Pace,
}

impl Pinned {
    fn new(closes: bool) -> Pinned {
        let pace = Pace::every(Duration::from_secs(5));
        let (reader, growth) = (Reader::new(1 << 20, 16), Growth::to(POOL));
        Pinned { closes, number: None, reader, growth, acknowledged: None, pace }
    }
}

impl Attack for Pinned {
    fn warm_up(&self) -> Duration {
        // Within the user time-out, after which a closed window is given up.
        Duration::from_secs(if self.closes { 5 } else { 20 })
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        let opening = Opening { scale: 14, ..Opening::rdma(PORT).manual() };
        let number = *self.number.get_or_insert_with(|| den.open(now, opening));
        if !den.puppet(number).is_running() {
            return None;
        }
        let (first, _) = match self.growth.turn(now, den, number, &mut self.reader, target.stag) {
            Ok(flight) => flight,
            Err(wake) => return wake,
        };
        for _ in 0..self.pace.due(now) {
            let mut to = self.acknowledged.unwrap_or(first);
            if self.closes {
                // It takes the octet of each probe.
                den.puppet(number).window = 0;
            }
            to += if self.closes { 1 } else { 1460 };
            self.acknowledged = Some(to);
            den.acknowledge(now, number, to, SackBlocks::NONE);
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, _den: &Den) -> bool {
        self.growth.is_done()
    }
}

/// Three peers of 513 segments each behind gaps, an octet a segment.
#[derive(Debug)]
struct Squeeze {
    numbers: Vec<usize>,
    sent: u32,
    pace: Pace,
}

impl Default for Squeeze {
    fn default() -> Self {
        Squeeze { numbers: Vec::new(), sent: 0, pace: Pace::every(Duration::from_micros(10)) }
    }
}

impl Attack for Squeeze {
    fn warm_up(&self) -> Duration {
        Duration::from_millis(30)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        while self.numbers.len() < 3 {
            let from = self.numbers.len() as u8;
            self.numbers.push(den.open(now, Opening { from, ..Opening::rdma(PORT) }));
        }
        if !self.numbers.iter().all(|number| den.puppet(*number).is_running()) {
            return None;
        }
        for _ in 0..self.pace.due(now) {
            if self.sent >= 3 * 513 {
                return None;
            }
            let number = self.numbers[self.sent as usize % 3];
            self.sent += 1;
            let at = den.puppet(number).sequence + 2 * (1 + self.sent / 3);
            den.send_at(now, number, at, &[1]);
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, _den: &Den) -> bool {
        self.sent >= 3 * 513
    }
}

/// Begins so many FPDUs that the budget of gather buffers is used up to the last octets, beside a bystander whose FPDUs
/// come in pieces, too.
#[derive(Debug)]
struct GatherBudget {
    streams: Vec<(usize, bool)>,
    pace: Pace,
    /// Octets of the pieces: half as many each time that one was too much.
    piece: usize,
    whole: Vec<u8>,
}

impl Default for GatherBudget {
    fn default() -> Self {
        GatherBudget { streams: Vec::new(), pace: Pace::every(STEP), piece: 1400, whole: Vec::new() }
    }
}

impl Attack for GatherBudget {
    fn scene(&self) -> Scene {
        Scene { recut: true, gather_octets: 64 << 10, ..Scene::default() }
    }

    fn warm_up(&self) -> Duration {
        Duration::from_millis(50)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        if self.whole.is_empty() {
            self.whole = fpdu(&write(target.stag, 0, &[8; 60_000]));
        }
        for _ in 0..self.pace.due(now) {
            if self.streams.len() < 100 {
                let from = self.streams.len() as u8;
                self.streams.push((den.open(now, Opening { from, ..Opening::rdma(PORT) }), false));
            }
        }
        for (number, sent) in &mut self.streams {
            let is_over = den.puppet(*number).messages > 0 || den.puppet(*number).stage == Stage::Gone;
            if is_over {
                den.reset(now, *number);
                self.piece = (self.piece / 2).max(16);
                (*number, *sent) = (den.open(now, Opening::rdma(PORT)), false);
            } else if den.puppet(*number).is_running() && !*sent {
                *sent = true;
                den.send(now, *number, &self.whole[..self.piece]);
            }
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, _den: &Den) -> bool {
        self.streams.iter().filter(|(_, sent)| *sent).count() >= 40
    }
}

/// Opens a plain stream whose application soon leaves, and acknowledges an octet of what it left every 5 s.
#[derive(Debug)]
struct AbandonedStream {
    number: Option<usize>,
    acknowledged: Option<SeqNumber>,
    pace: Pace,
}

impl Default for AbandonedStream {
    fn default() -> Self {
        AbandonedStream { number: None, acknowledged: None, pace: Pace::every(Duration::from_secs(5)) }
    }
}

impl Attack for AbandonedStream {
    fn warm_up(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        let opening = Opening { scale: 0, ..Opening::plain(PLAIN_PORT).manual() };
        let number = *self.number.get_or_insert_with(|| den.open(now, opening));
        if den.puppet(number).stage != Stage::Open {
            return None;
        }
        let next = den.puppet(number).next;
        for _ in 0..self.pace.due(now) {
            let to = *self.acknowledged.get_or_insert(next) + 1;
            self.acknowledged = Some(to);
            den.acknowledge(now, number, to, SackBlocks::NONE);
        }
        self.pace.next()
    }

    fn judge(&self, stats: &EngineStats, den: &Den) -> Option<String> {
        let lives = stats.connections.iter().any(|one| den.is_home_of(one.remote.ip()));
        lives.then(|| "300 s behind its application the stream is still there".to_owned())
    }

    fn works(&self, _stats: &EngineStats, _den: &Den) -> bool {
        self.acknowledged.is_some()
    }
}

/// Receives that the target's application posts for each connection.
const RECEIVES: u32 = 8;

/// Peers that send more messages than there are receives. One message of each waits, and the others pin a receive
/// buffer each behind it.
#[derive(Debug)]
struct UnpostedReceives {
    /// Numbers, and the messages sent.
    streams: Vec<(usize, u32)>,
    turn: usize,
    pace: Pace,
}

impl Default for UnpostedReceives {
    fn default() -> Self {
        UnpostedReceives { streams: Vec::new(), turn: 0, pace: Pace::every(Duration::from_micros(5)) }
    }
}

impl Attack for UnpostedReceives {
    fn scene(&self) -> Scene {
        // The bystander's FPDUs come in pieces, so it needs gather buffers, too.
        Scene { recut: true, receive_wait: Duration::from_secs(5), ..Scene::default() }
    }

    fn warm_up(&self) -> Duration {
        Duration::from_millis(50)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        while self.streams.len() < 16 {
            let from = self.streams.len() as u8;
            self.streams.push((den.open(now, Opening { from, ..Opening::rdma(PORT) }), 0));
        }
        for _ in 0..self.pace.due(now) {
            self.turn += 1;
            let next = self.turn % self.streams.len();
            let (number, sent) = &mut self.streams[next];
            if den.puppet(*number).messages > 0 || den.puppet(*number).stage == Stage::Gone {
                den.reset(now, *number);
                (*number, *sent) = (den.open(now, Opening { from: next as u8, ..Opening::rdma(PORT) }), 0);
            } else if den.puppet(*number).is_running() && *sent < 600 {
                *sent += 1;
                den.send(now, *number, &fpdu(&untagged(Opcode::Send, 0, *sent, 0, b"x")));
            }
        }
        self.pace.next()
    }

    fn judge(&self, stats: &EngineStats, _den: &Den) -> Option<String> {
        let held: u64 = stats.connections.iter().map(|one| one.tcp.out_of_order_buffers).sum();
        // Half of the pool of 4096 is for held frames, and half of that for those that wait.
        (held > 1024).then(|| format!("{held} frames wait"))
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        let held: u64 = stats.connections.iter().map(|one| one.tcp.out_of_order_buffers).sum();
        stats.counters.receive_waits >= 16 && self.streams.iter().all(|(_, sent)| *sent > RECEIVES) && held > 900
    }
}
