//! From nothing to an open log, and returning targets.

use super::peer::{Behind, Op, Scan, Stage};
use super::{Action, CHUNK, COMMIT_REGIONS, Over, Phase, Writer, alike};
use crate::layout::{Geometry, PAGE, START, Table, WORDS};
use crate::message::ToTarget;
use crate::record::{Found, Kind, Tail};

/// The most segments of a part of the log, apart from its ends.
const PART_SEGMENTS: u64 = 128;
/// A start only moves to acknowledged records, and so stays before the end of each chosen log.
const BEYOND: &str = "its log starts behind the end of the log: its file is damaged, give it an empty one";

impl Writer {
    /// Most targets have changed while the log was chosen: restarts with a later epoch. Records of this epoch may
    /// already be at some target, and must not be mixed with later ones.
    pub(super) fn begin_again(&mut self) {
        self.phase = Phase::Gathering;
        for peer in &mut self.peers {
            if peer.is_claimed() || matches!(peer.stage, Stage::Claiming) {
                peer.epoch = peer.epoch.max(self.epoch);
                peer.stage = Stage::Waiting;
                // Answers still under way precede everything that is read from now on.
                peer.flight.iter_mut().for_each(|op| *op = Op::Stale);
                (peer.under_way, peer.head_posted) = (0, false);
            }
            peer.durable = None;
        }
        self.pending.clear();
        self.cache.clear();
    }

    pub(super) fn welcome(&mut self, target: usize, log: u64, epoch: u64, geometry: Geometry) {
        let problem = geometry.check().err().or_else(|| {
            let other = self.peers.iter().filter_map(|peer| peer.geometry).find(|other| !alike(other, &geometry));
            other.map(|other| {
                format!("its segments have {} octets, those of others {}", geometry.segment, other.segment)
            })
        });
        let peer = &mut self.peers[target];
        if let Some(problem) = problem {
            peer.problem = Some(problem);
            peer.stage = Stage::Useless;
            return;
        }
        peer.geometry = Some(geometry);
        (peer.log, peer.epoch) = (log, epoch);
        if log == 0 {
            // A file that has not joined, or not the former one: maybe another in its place. What the former one
            // contained does not count.
            peer.durable = None;
        }
        peer.stage = Stage::Waiting;
        match self.phase {
            Phase::Gathering => {}
            Phase::Choosing if epoch >= self.epoch => self.begin_again(),
            Phase::Choosing => self.claim(target, false),
            Phase::Opening { .. } | Phase::Open if epoch > self.epoch => self.over = Some(Over::Superseded { epoch }),
            Phase::Opening { .. } | Phase::Open => self.claim(target, true),
        }
    }

    /// Starts when the connected targets can decide what was acknowledged: most of those that have the log, or all. A
    /// target without any log may have lost it.
    pub(super) fn claim_if_enough(&mut self) {
        let waiting = self.peers.iter().filter(|peer| matches!(peer.stage, Stage::Waiting));
        let logs: Vec<u64> = waiting.clone().map(|peer| peer.log).filter(|log| *log != 0).collect();
        if logs.len() < self.quorum() && waiting.clone().count() < self.options.targets {
            return;
        }
        if let Some(other) = logs.iter().find(|log| **log != logs[0]) {
            self.over = Some(Over::DifferentLogs(logs[0], *other));
            return;
        }
        // A target that reports the last possible epoch is hostile, and the others refuse such a claim.
        self.epoch = waiting.map(|peer| peer.epoch).max().unwrap_or(0).max(self.epoch).saturating_add(1);
        self.log = logs.first().copied().unwrap_or(self.options.new_log);
        self.phase = Phase::Choosing;
        for target in 0..self.peers.len() {
            if matches!(self.peers[target].stage, Stage::Waiting) {
                self.claim(target, false);
            }
        }
    }

    fn claim(&mut self, target: usize, established: bool) {
        let replicas = self.options.targets as u32;
        let claim = ToTarget::Claim { epoch: self.epoch, established, log: self.log, replicas };
        self.peers[target].stage = Stage::Claiming;
        self.actions.push_back((target, Action::Send(claim)));
    }

    pub(super) fn claimed(&mut self, target: usize, epoch: u64, geometry: Geometry) {
        let peer = &mut self.peers[target];
        // After an answer to a claim with an abandoned epoch, another answer follows.
        if !matches!(peer.stage, Stage::Claiming) || epoch != self.epoch {
            return;
        }
        peer.geometry = Some(geometry);
        peer.stage = Stage::Reading;
        let (begin, length) = geometry.table();
        let mut pieces = vec![(START, WORDS)];
        pieces.extend((0..length).step_by(CHUNK as usize).map(|at| (begin + at, CHUNK.min(length - at))));
        peer.flight.push_back(Op::Table);
        self.actions.push_back((target, Action::Read(pieces)));
    }

    pub(super) fn refused(&mut self, target: usize, reason: String, epoch: u64) {
        if !matches!(self.peers[target].stage, Stage::Claiming) {
            return;
        }
        if epoch < self.epoch {
            self.over = Some(Over::Refused { target, reason });
        } else if self.phase == Phase::Choosing {
            self.peers[target].epoch = epoch;
            self.peers[target].stage = Stage::Waiting;
            self.begin_again();
        } else {
            self.over = Some(Over::Superseded { epoch });
        }
    }

    pub(super) fn table_read(&mut self, target: usize, octets: &[u8]) {
        let peer = &mut self.peers[target];
        let Some(geometry) = peer.geometry else { return };
        match Table::parse(&geometry, octets) {
            Ok(table) => {
                let from = table.scan_from();
                let first = (from == table.start).then(|| table.sequence_at_start(&geometry));
                peer.learn(table);
                let tail = Tail { position: from, ..Tail::default() };
                peer.stage = Stage::Scanning(Box::new(Scan { from, first, tail, octets: Vec::new() }));
                self.scan_on(target);
            }
            Err(problem) => self.leave_out(target, &problem),
        }
    }

    /// Reads the next part of a copy, up to the end of a segment; or the copy has ended.
    fn scan_on(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        let (Stage::Scanning(scan), Some(geometry)) = (&peer.stage, peer.geometry) else { return };
        let at = scan.tail.position + scan.octets.len() as u64;
        let segment = u64::from(geometry.segment);
        let length = (segment - at % segment).min(self.options.chunk);
        let place = |number| peer.segments.get(&number).map(|place| place.0);
        match geometry.pieces(at, length, place) {
            Some(pieces) => {
                peer.flight.push_back(Op::Scan);
                self.actions.push_back((target, Action::Read(pieces)));
            }
            None => self.scanned(target),
        }
    }

    pub(super) fn scan_read(&mut self, target: usize, octets: &[u8]) {
        let peer = &mut self.peers[target];
        let Stage::Scanning(scan) = &mut peer.stage else { return };
        scan.octets.extend_from_slice(octets);
        let mut used = 0;
        let more = loop {
            match scan.tail.find(&scan.octets[used..]) {
                Found::Needs(_) => break true,
                Found::End => break false,
                Found::Record(record)
                    if scan.tail.position == scan.from
                        && scan.first.is_some_and(|sequence| sequence != record.tail.sequence) =>
                {
                    break false;
                }
                Found::Record(record) => {
                    used += (record.tail.position - scan.tail.position) as usize;
                    scan.tail = record.tail;
                }
            }
        };
        scan.octets.drain(..used);
        if more {
            self.scan_on(target);
        } else {
            self.scanned(target);
        }
    }

    fn scanned(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        let Stage::Scanning(scan) = &peer.stage else { return };
        let (from, tail) = (scan.from, scan.tail);
        let has_head = tail.position > from || peer.head <= peer.start;
        if !has_head || peer.durable.is_some_and(|durable| scan.lacks(durable)) {
            let (end, had) = (tail.position, peer.durable.unwrap_or(0).max(peer.head));
            let problem = format!("its log ends at {end}, and was committed up to {had}: give it an empty file");
            self.leave_out(target, &problem);
            return;
        }
        peer.stage = Stage::Scanned(tail);
        if matches!(self.phase, Phase::Opening { .. } | Phase::Open) {
            if peer.start > self.tail.position {
                self.leave_out(target, BEYOND);
            } else {
                self.bring_up(target, tail);
            }
        }
    }

    /// Continues without a target whose file cannot be relied on.
    fn leave_out(&mut self, target: usize, problem: &str) {
        let peer = &mut self.peers[target];
        peer.problem = Some(problem.to_owned());
        peer.stage = Stage::Useless;
        peer.durable = None;
        if matches!(self.phase, Phase::Choosing) {
            self.begin_again();
        }
    }

    /// Chooses the log when the deciding copies have been read.
    pub(super) fn choose_if_enough(&mut self) {
        let scanned = self.peers.iter().enumerate().filter_map(|(target, peer)| match &peer.stage {
            Stage::Scanned(tail) => Some((target, *tail, peer)),
            _ => None,
        });
        let knowing = scanned.clone().filter(|(.., peer)| peer.log != 0).count();
        if knowing < self.quorum() && scanned.clone().count() < self.options.targets {
            return;
        }
        let Some((first, start)) = scanned.clone().map(|(target, _, peer)| (target, peer.start)).max_by_key(|it| it.1)
        else {
            return;
        };
        let Some((source, tail, _)) = scanned.max_by_key(|(_, tail, _)| (tail.epoch, tail.position)) else { return };
        if start > tail.position {
            self.leave_out(first, BEYOND);
            self.claim_if_enough();
            return;
        }
        (self.start, self.tail) = (start, tail);
        (self.acked, self.acked_begin, self.acked_sequence) = (start, start, 0);
        (self.cached_from, self.acked) = (tail.position, tail.position);
        self.cache.clear();
        self.firsts = self.peers[source].segments.iter().map(|(number, (_, entry))| (*number, entry.first)).collect();
        self.settle(source);
        self.put(Kind::Mark, &[]);
        self.phase = Phase::Opening { source, mark: self.tail.position };
        for target in 0..self.peers.len() {
            if let Stage::Scanned(tail) = self.peers[target].stage {
                self.bring_up(target, tail);
            }
        }
    }

    /// Commits the chosen copy: what was read is in its memory, but may not be in its store.
    fn settle(&mut self, source: usize) {
        let peer = &mut self.peers[source];
        peer.settle_slots(self.tail.position);
        let Some(geometry) = peer.geometry else { return };
        peer.stage = Stage::Settling { end: self.tail.position };
        let from = peer.head.max(peer.start);
        let place = |number| peer.segments.get(&number).map(|place| place.0);
        let mut pieces = vec![(0, PAGE + geometry.table().1)];
        pieces.extend(geometry.pieces(from, self.tail.position - from, place).unwrap_or_default());
        let parts: Vec<_> = pieces.chunks(COMMIT_REGIONS).collect();
        for (number, part) in parts.iter().enumerate() {
            peer.flight.push_back(Op::Settle { last: number + 1 == parts.len() });
            self.actions.push_back((source, Action::Commit(part.to_vec())));
        }
    }

    pub(super) fn settled(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        let Stage::Settling { end } = peer.stage else { return };
        peer.durable = Some(end);
        peer.stage = Stage::Behind(Behind { at: end, part: self.options.chunk, busy: false });
    }

    /// Starts to give a target what it lacks. Its copy is the log's up to its head; or, if this writer has brought it
    /// up before, up to where that had come.
    fn bring_up(&mut self, target: usize, tail: Tail) {
        // A former writer had dropped segments, and only this target was told.
        let start = self.peers[target].start;
        if start > self.start {
            self.raise_start(start);
        }
        let peer = &mut self.peers[target];
        // Not the log's start, if that is later: the part before it counts as dropped when the new start is in the
        // target's store.
        let at = peer.durable.unwrap_or(0).max(peer.head).min(tail.position);
        // What its copy has behind that is overwritten in place: some of it may be acknowledged.
        peer.settle_slots(tail.position);
        peer.problem = None;
        peer.stage = Stage::Settling { end: at };
        if let Some(geometry) = peer.geometry {
            // A start and entries may have been written but not committed. They are relied on from now on: slots that
            // they do not name will be overwritten.
            peer.flight.push_back(Op::Settle { last: true });
            self.actions.push_back((target, Action::Commit(vec![(0, PAGE + geometry.table().1)])));
        }
    }

    /// Continues with a target that lacks something.
    pub(super) fn advance(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        match peer.stage {
            Stage::Draining { shrink: false } if peer.flight.is_empty() => {
                let at = peer.durable.unwrap_or(self.start);
                peer.stage = Stage::Behind(Behind { at, part: self.options.chunk, busy: false });
            }
            Stage::Behind(_) => {}
            _ => return,
        }
        let Stage::Behind(Behind { at, part, busy: false }) = self.peers[target].stage else { return };
        let (start, peer) = (self.start, &self.peers[target]);
        if peer.start < start && !peer.flight.iter().any(|op| matches!(op, Op::Start(position) if *position >= start)) {
            // The following parts come behind it: nothing counts as present before the start does.
            self.write_start(target);
        }
        let peer = &mut self.peers[target];
        // The records in between were dropped meanwhile.
        let at = at.max(start);
        if peer.start >= start {
            peer.durable = peer.durable.max(Some(at));
        }
        if at >= self.tail.position {
            peer.stage = Stage::Live;
            self.join(target);
            return;
        }
        let left = self.tail.position - at;
        let length = if at >= self.cached_from { left } else { part.min(left) };
        if !peer.has_room(at, length) {
            // Before a start is committed, the slots before it are not free.
            if peer.start >= start {
                peer.problem = Some("there is no room for what the log keeps".to_owned());
                if self.phase == Phase::Open && self.options.overwrite {
                    self.drop_oldest();
                }
            }
            return;
        }
        if at >= self.cached_from {
            self.copy_all(target, at);
            return;
        }
        let length = length.min(self.cached_from - at);
        let incarnation = peer.incarnation;
        for source in 0..self.peers.len() {
            let peer = &mut self.peers[source];
            let (Stage::Live | Stage::Behind(_), Some(geometry)) = (&peer.stage, peer.geometry) else { continue };
            if source == target || peer.durable < Some(at + length) {
                continue;
            }
            let place = |number| peer.segments.get(&number).map(|place| place.0);
            let Some(pieces) = geometry.pieces(at, length, place) else { continue };
            peer.flight.push_back(Op::Fetch { for_peer: target, incarnation, position: at });
            self.actions.push_back((source, Action::Read(pieces)));
            self.peers[target].stage = Stage::Behind(Behind { at, part, busy: true });
            return;
        }
    }

    pub(super) fn fetched(&mut self, target: usize, incarnation: u64, position: u64, octets: &[u8]) {
        let peer = &mut self.peers[target];
        if peer.incarnation != incarnation {
            return;
        }
        let Stage::Behind(behind) = &mut peer.stage else { return };
        behind.busy = false;
        // Octets that were dropped meanwhile may already belong to other segments.
        if position >= self.start {
            self.copy(target, position, octets);
        }
    }

    /// Gives a target everything that it lacks, which is in the writer's memory, if there is room; then it gets each
    /// record. Waiting for this part would never end: the log would grow meanwhile, and there would always be another
    /// part.
    fn copy_all(&mut self, target: usize, mut at: u64) {
        let limit = self.part_limit();
        while at < self.tail.position {
            let length = limit.min(self.tail.position - at);
            let from = (at - self.cached_from) as usize;
            let octets = self.cache[from..from + length as usize].to_vec();
            if !self.copy(target, at, &octets) {
                return;
            }
            at += length;
        }
        self.peers[target].stage = Stage::Live;
    }

    /// The most octets of a part for a target: not so many segments that it has too many pieces.
    pub(super) fn part_limit(&self) -> u64 {
        (self.options.window / 2).min(PART_SEGMENTS * self.segment_size()).max(self.options.chunk)
    }

    /// Gives a target a part of what it lacks, if there is room.
    fn copy(&mut self, target: usize, at: u64, octets: &[u8]) -> bool {
        let limit = self.part_limit();
        let Tail { position, sequence, .. } = self.tail;
        let peer = &mut self.peers[target];
        let Stage::Behind(Behind { part, .. }) = peer.stage else { return false };
        let Some(writes) = peer.writes(at, octets, &self.firsts) else { return false };
        let end = at + octets.len() as u64;
        peer.stage = Stage::Behind(Behind { at: end, part: (2 * part).min(limit), busy: true });
        peer.problem = None;
        let last = end == position;
        peer.flight.push_back(Op::Copy { end, last });
        // Also for records that were appended while it was away, perhaps because it got more notifications than it had
        // receives.
        let notify = (self.options.notify && last && self.phase == Phase::Open).then_some(sequence);
        self.actions.push_back((target, Action::Write(writes, notify)));
        true
    }

    /// A target has everything that was acknowledged when it began to get each record: from now on its copy counts,
    /// also for later writers.
    pub(super) fn join(&mut self, target: usize) {
        let (log, replicas) = (self.log, self.options.targets as u32);
        let peer = &mut self.peers[target];
        if peer.log == 0 {
            peer.log = log;
            self.actions.push_back((target, Action::Send(ToTarget::Joined { log, replicas })));
        }
    }
}
