//! Attacks by TCP's acknowledgments, windows and segments.

use std::time::Duration;

use crate::hostile::den::{Acknowledging, Den, Growth, Opening, Pace, Reader};
use crate::hostile::{Attack, PORT, Scene, Target};
use crate::raw::{fpdu, write};
use uwarp_engine::stats::EngineStats;
use uwarp_tcp::Instant;
use uwarp_wire::tcp::{SackBlock, SackBlocks, SeqNumber};

use super::Maker;

/// The attacks of this file.
pub const ATTACKS: &[(&str, Maker)] = &[
    ("slow-reader", || Box::new(Acknowledger::new(Manner::SlowReader))),
    ("slow-acker", || Box::new(Acknowledger::new(Manner::SlowAcker))),
    ("optimistic-acks", || Box::new(Acknowledger::new(Manner::Optimist))),
    ("tiny-mss", || Box::new(Acknowledger::new(Manner::TinyMss))),
    ("zero-window", || Box::new(Acknowledger::new(Manner::ZeroWindow))),
    ("sack-flood", || Box::new(Acknowledger::new(Manner::SackFlood))),
    ("sack-scoreboard", || Box::new(Scoreboard::default())),
    ("one-octet-segments", || Box::new(OneOctetSegments::default())),
    ("half-fpdus", || Box::new(HalfFpdus::default())),
    ("hoarder", || Box::new(Hoarder::default())),
];

/// Time between frames: 50,000 a second, a twentieth of what the target can process.
pub const STEP: Duration = Duration::from_micros(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// A window of six segments, emptied once a millisecond.
    SlowReader,
    /// An acknowledgment every 400 ms.
    SlowAcker,
    /// Acknowledges data that has not arrived, or was not sent.
    Optimist,
    /// Announces an MSS of one octet.
    TinyMss,
    /// Closes its window behind the first segments, and answers probes.
    ZeroWindow,
    /// Acknowledges nothing, and reports four scattered blocks each time.
    SackFlood,
}

/// A peer that reads, and acknowledges in a harmful way.
#[derive(Debug)]
struct Acknowledger {
    manner: Manner,
    number: Option<usize>,
    reader: Reader,
    pace: Pace,
    begin: Option<SeqNumber>,
    random: fastrand::Rng,
}

impl Acknowledger {
    fn new(manner: Manner) -> Acknowledger {
        let every = match manner {
            Manner::SlowReader => Duration::from_millis(1),
            Manner::SlowAcker => Duration::from_millis(400),
            Manner::Optimist | Manner::TinyMss | Manner::SackFlood => STEP,
            Manner::ZeroWindow => Duration::from_millis(100),
        };
        let reader = Reader::new(64 << 10, 8);
        Acknowledger {
            manner,
            number: None,
            reader,
            pace: Pace::every(every),
            begin: None,
            random: fastrand::Rng::with_seed(1),
        }
    }

    fn opening(&self) -> Opening {
        let opening = Opening::rdma(PORT);
        match self.manner {
            Manner::SlowReader => Opening { scale: 0, window: 6 * 1460, ..opening.manual() },
            Manner::TinyMss => Opening { mss: 1, ..opening },
            _ => opening.manual(),
        }
    }
}

impl Attack for Acknowledger {
    fn warm_up(&self) -> Duration {
        match self.manner {
            Manner::SlowAcker => Duration::from_secs(2),
            Manner::ZeroWindow => Duration::from_secs(5),
            _ => Duration::from_millis(20),
        }
    }

    fn is_greedy(&self) -> bool {
        matches!(self.manner, Manner::Optimist | Manner::TinyMss)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        let opening = self.opening();
        let number = *self.number.get_or_insert_with(|| den.open(now, opening));
        if !den.puppet(number).is_running() {
            return None;
        }
        let next = den.puppet(number).next;
        let begin = *self.begin.get_or_insert_with(|| {
            self.reader.ask(now, den, number, target.stag);
            next
        });
        for _ in 0..self.pace.due(now) {
            let next = den.puppet(number).next;
            match self.manner {
                Manner::SlowReader | Manner::SlowAcker => {
                    den.acknowledge_all(now, number);
                    self.reader.ask(now, den, number, target.stag);
                }
                Manner::Optimist => {
                    // A few segments ahead some of it was sent; far ahead nothing was.
                    let ahead = if self.random.u32(0..16) == 0 { 16 << 20 } else { 1460 * self.random.u32(0..16) };
                    den.acknowledge_all(now, number);
                    den.claim(now, number, next + ahead, SackBlocks::NONE);
                    self.reader.ask(now, den, number, target.stag);
                }
                Manner::TinyMss => self.reader.ask(now, den, number, target.stag),
                Manner::ZeroWindow => {
                    den.puppet(number).window = 0;
                    den.acknowledge_all(now, number);
                }
                Manner::SackFlood => {
                    let segments = next.offset_from(begin) / 1460;
                    let mut blocks = SackBlocks::NONE;
                    for _ in 0..4 {
                        let left = begin + 1460 * self.random.u32(1..segments.max(2));
                        blocks.push(SackBlock { left, right: left + 1460 });
                    }
                    den.acknowledge(now, number, begin, blocks);
                }
            }
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, den: &Den) -> bool {
        match self.manner {
            Manner::SlowReader | Manner::TinyMss => den.messages() > 0,
            Manner::Optimist => den.messages() > 16,
            Manner::SlowAcker | Manner::ZeroWindow | Manner::SackFlood => den.running() == 1,
        }
    }
}

/// Octets that a scoreboard attack has in flight before it begins: some 8,000 segments.
const SCOREBOARD: u32 = 12 << 20;

/// Grows the target's window, then repeatedly reports all of a flight except its first and third segment.
#[derive(Debug)]
struct Scoreboard {
    number: Option<usize>,
    reader: Reader,
    growth: Growth,
    pace: Pace,
}

impl Default for Scoreboard {
    fn default() -> Self {
        let growth = Growth::to(SCOREBOARD);
        Scoreboard { number: None, reader: Reader::new(1 << 20, 16), growth, pace: Pace::every(STEP) }
    }
}

impl Attack for Scoreboard {
    fn scene(&self) -> Scene {
        Scene { transmit_buffers: 16_384, ..Scene::default() }
    }

    fn warm_up(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        let opening = Opening { scale: 14, ..Opening::rdma(PORT).manual() };
        let number = *self.number.get_or_insert_with(|| den.open(now, opening));
        if !den.puppet(number).is_running() {
            return None;
        }
        let (first, next) = match self.growth.turn(now, den, number, &mut self.reader, target.stag) {
            Ok(flight) => flight,
            Err(wake) => return wake,
        };
        let flight = next.offset_from(first);
        for _ in 0..self.pace.due(now) {
            let mut blocks = SackBlocks::NONE;
            for (from, to) in [(1460, flight), (2 * 1460, 3 * 1460), (3 * 1460, flight)] {
                blocks.push(SackBlock { left: first + from, right: first + to });
            }
            den.acknowledge(now, number, first, blocks);
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, den: &Den) -> bool {
        self.growth.is_done() && den.running() == 1
    }
}

/// Writes an octet a segment.
#[derive(Debug)]
struct OneOctetSegments {
    number: Option<usize>,
    pace: Pace,
    octets: Vec<u8>,
    at: usize,
}

impl Default for OneOctetSegments {
    fn default() -> Self {
        OneOctetSegments { number: None, pace: Pace::every(STEP), octets: Vec::new(), at: 0 }
    }
}

impl Attack for OneOctetSegments {
    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        let number = *self.number.get_or_insert_with(|| den.open(now, Opening::rdma(PORT)));
        if !den.puppet(number).is_running() {
            return None;
        }
        for _ in 0..self.pace.due(now) {
            if self.at == self.octets.len() {
                (self.octets, self.at) = (fpdu(&write(target.stag, 0, &[7; 1200])), 0);
            }
            self.at += 1;
            let octet = self.octets[self.at - 1];
            den.send(now, number, &[octet]);
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, den: &Den) -> bool {
        den.frames > 1000
    }
}

/// Starts long FPDUs on many connections, and ends none.
#[derive(Debug)]
struct HalfFpdus {
    numbers: Vec<usize>,
    sent: Vec<bool>,
    pace: Pace,
}

impl Default for HalfFpdus {
    fn default() -> Self {
        HalfFpdus { numbers: Vec::new(), sent: Vec::new(), pace: Pace::every(10 * STEP) }
    }
}

impl Attack for HalfFpdus {
    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            if self.numbers.len() < 64 {
                let from = self.numbers.len() as u8;
                self.numbers.push(den.open(now, Opening { from, ..Opening::rdma(PORT) }));
                self.sent.push(false);
            }
        }
        for (number, sent) in self.numbers.iter().zip(&mut self.sent) {
            if !*sent && den.puppet(*number).is_running() {
                *sent = true;
                let whole = fpdu(&write(target.stag, 0, &[8; 60_000]));
                den.send(now, *number, &whole[..whole.len() / 2]);
            }
        }
        self.pace.next()
    }

    fn judge(&self, stats: &EngineStats, _den: &Den) -> Option<String> {
        let budget = self.scene().gather_octets;
        (stats.gather_octets > budget).then(|| format!("{} octets of gather buffers", stats.gather_octets))
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.gather_octets > self.scene().gather_octets / 2
    }
}

/// Buffers that the target holds out of order for a den.
pub fn held(stats: &EngineStats, den: &Den) -> u64 {
    stats.connections.iter().filter(|one| den.is_home_of(one.remote.ip())).map(|one| one.tcp.out_of_order_buffers).sum()
}

/// Repeatedly sends full segments behind a gap, as many as its window takes.
#[derive(Debug)]
struct Hoarder {
    number: Option<usize>,
    pace: Pace,
    sent: u32,
}

impl Default for Hoarder {
    fn default() -> Self {
        Hoarder { number: None, pace: Pace::every(STEP), sent: 0 }
    }
}

impl Attack for Hoarder {
    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        let number = *self.number.get_or_insert_with(|| den.open(now, Opening::rdma(PORT)));
        if !den.puppet(number).is_running() {
            return None;
        }
        den.puppet(number).acknowledging = Acknowledging::Attack;
        for _ in 0..self.pace.due(now) {
            self.sent = self.sent % 700 + 1;
            let at = den.puppet(number).sequence + 1400 * self.sent;
            den.send_at(now, number, at, &[9; 1400]);
        }
        self.pace.next()
    }

    fn works(&self, stats: &EngineStats, den: &Den) -> bool {
        held(stats, den) > 100
    }
}
