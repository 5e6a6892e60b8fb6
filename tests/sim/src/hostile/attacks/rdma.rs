//! Attacks by legitimate RDMA requests.

use std::time::Duration;

use crate::hostile::den::{Den, Opening, Pace, Reader, Stage};
use crate::hostile::{Attack, PORT, REGION, Scene, Target};
use crate::raw::{fpdu, untagged, write};
use uwarp_engine::stats::EngineStats;
use uwarp_tcp::Instant;
use uwarp_wire::ddp::{Stag, TaggedOffset};
use uwarp_wire::rdmap::{CommitRegion, CommitRequest, Opcode};

use super::Maker;

/// The attacks of this file.
pub const ATTACKS: &[(&str, Maker)] = &[
    ("read-storm", || Box::new(ReadStorm::default())),
    ("commit-storm", || Box::new(CommitStorm::new(false, false))),
    ("commit-abandoned", || Box::new(CommitStorm::new(true, false))),
    ("commit-in-engine", || Box::new(CommitStorm::new(false, true))),
    ("terminate-storm", || Box::new(TerminateStorm::default())),
];

/// Always requests as much as its IRD admits.
#[derive(Debug)]
struct ReadStorm {
    number: Option<usize>,
    reader: Reader,
}

impl Default for ReadStorm {
    fn default() -> Self {
        ReadStorm { number: None, reader: Reader::new(64 << 10, 16) }
    }
}

impl Attack for ReadStorm {
    fn is_greedy(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        let number = *self.number.get_or_insert_with(|| den.open(now, Opening::rdma(PORT)));
        if den.puppet(number).is_running() {
            self.reader.ask(now, den, number, target.stag);
        }
        None
    }

    fn works(&self, _stats: &EngineStats, den: &Den) -> bool {
        den.messages() > 50
    }
}

/// Commits that each list one region 64 times, four of them at once.
#[derive(Debug)]
struct CommitStorm {
    abandons: bool,
    in_engine: bool,
    number: Option<usize>,
    asked: u64,
    pace: Pace,
}

impl CommitStorm {
    fn new(abandons: bool, in_engine: bool) -> CommitStorm {
        CommitStorm { abandons, in_engine, number: None, asked: 0, pace: Pace::every(Duration::from_millis(2)) }
    }
}

fn commit(number: u64, stag: u32) -> Vec<u8> {
    let regions = [CommitRegion { stag: Stag(stag), length: REGION as u32, offset: TaggedOffset(0) }; 64];
    let mut octets = vec![0; CommitRequest::emit_len(regions.len())];
    CommitRequest::emit(number as u32, &regions, &mut octets);
    fpdu(&untagged(Opcode::CommitRequest, 1, number as u32, 0, &octets))
}

impl Attack for CommitStorm {
    fn scene(&self) -> Scene {
        Scene { commit_in_engine: self.in_engine, ..Scene::default() }
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        let number = *self.number.get_or_insert_with(|| den.open(now, Opening::rdma(PORT)));
        if den.puppet(number).stage == Stage::Gone {
            (self.number, self.asked) = (None, 0);
            return Some(now);
        }
        if !den.puppet(number).is_running() {
            return None;
        }
        for _ in 0..self.pace.due(now) {
            if self.abandons && self.asked >= 4 {
                den.reset(now, number);
                return Some(now);
            }
            while self.asked < den.puppet(number).messages + 4 {
                self.asked += 1;
                let asks = commit(self.asked, target.durable);
                den.send(now, number, &asks);
                if !self.abandons {
                    break;
                }
            }
        }
        self.pace.next()
    }

    fn leave(&mut self, now: Instant, den: &mut Den) {
        if let Some(number) = self.number.filter(|_| self.abandons) {
            den.reset(now, number);
        }
    }

    fn works(&self, _stats: &EngineStats, den: &Den) -> bool {
        if self.abandons { den.frames > 16 } else { self.asked > 1 && den.running() == 1 }
    }
}

/// Connects, violates the protocol, is terminated, and connects again.
#[derive(Debug)]
struct TerminateStorm {
    pace: Pace,
    under_way: Vec<(usize, bool)>,
}

impl Default for TerminateStorm {
    fn default() -> Self {
        TerminateStorm { pace: Pace::every(Duration::from_micros(200)), under_way: Vec::new() }
    }
}

impl Attack for TerminateStorm {
    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            if self.under_way.len() < 16 {
                self.under_way.push((den.open(now, Opening::rdma(PORT)), false));
            }
        }
        self.under_way.retain_mut(|(number, sent)| {
            if den.puppet(*number).is_running() && !*sent {
                *sent = true;
                den.send(now, *number, &fpdu(&write(target.stag ^ 1, 0, b"evil")));
            }
            if den.puppet(*number).messages > 0 {
                den.reset(now, *number);
            }
            den.puppet(*number).stage != Stage::Gone
        });
        self.pace.next()
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.counters.terminates_sent > 50
    }
}
