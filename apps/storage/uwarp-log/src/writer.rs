//! The writer's side without I/O: it is told events, and returns actions.
//!
//! ```text
//!                 hello        most are here       let in             table           records
//!  Away ──▶ Greeting ──▶ Waiting ──────▶ Claiming ──────▶ Reading ──────▶ Scanning ──────▶ Scanned
//!                                                                                             │ the log is chosen
//!                     shrunk                      the last part is on its way                  ▼
//!  Resizing ◀── Moving ◀── Draining ◀── Live ◀──────────────────────── Behind ◀────────── Settling (the chosen copy)
//!      └──────────────────────────────────────────────────────────────▶
//! ```
//! A lost target is away, whatever its stage was.

mod peer;
mod recovery;
mod shrink;

use crate::layout::{First, Geometry, HEAD, Piece, START};
use crate::message::{ToClient, ToTarget};
use crate::record::{self, Kind, MAX_PAYLOAD, Tail};
use peer::{Op, Peer, Stage};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// The most parts of a region in one Commit: it fits into a segment with the smallest MTU.
pub const COMMIT_REGIONS: usize = 16;
/// Octets per read of a table, or of a segment that is moved.
const CHUNK: u64 = 64 << 10;

/// How a writer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Targets of the log: 1 or 3.
    pub targets: usize,
    /// Number of a new log. Not 0.
    pub new_log: u64,
    /// Write heads when the log is this many octets beyond them. Recovery has to scan this much.
    pub head_every: u64,
    /// Octets of records that may be under way to a target, besides what it lacked when it came. A target that does not
    /// keep up is treated as if it had been away.
    pub window: u64,
    /// Octets of the log per read, and in the first part for a target that was away; the next part is longer. Records
    /// may be longer, too.
    pub chunk: u64,
    /// Send Immediate Data with the sequence number behind each record, so that the targets' applications are notified.
    /// For many records that a target lacked, send that of the last.
    pub notify: bool,
    /// When there is no room, drop the oldest segment.
    pub overwrite: bool,
}

impl Options {
    /// The default options of a log with this many targets.
    pub fn new(targets: usize, new_log: u64) -> Options {
        let (head_every, window, chunk) = (256 << 10, 4 << 20, 64 << 10);
        Options { targets, new_log, head_every, window, chunk, notify: false, overwrite: false }
    }
}

/// An action at a target, in the order of its actions. Each is answered, in the same order, except the first and the
/// last kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send(ToTarget),
    /// Read parts of the region; answered by [`Writer::read_done`] with all their octets.
    Read(Vec<Piece>),
    /// Write octets to offsets of the region and commit all of them by one Commit behind the Writes; then, with the
    /// number, send Immediate Data. Answered by [`Writer::committed`].
    Write(Vec<(u64, Vec<u8>)>, Option<u64>),
    /// Commit parts of the region; answered by [`Writer::committed`].
    Commit(Vec<Piece>),
    /// End the connection, and make another. Do not report it by [`Writer::lost`].
    Reconnect,
}

/// Why a record was not appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// The log is not open, or too much is under way: retry after the next event.
    NotNow,
    /// The targets have no room, and the oldest records must not be dropped.
    Full,
    /// The payload is too long.
    TooLong,
    /// The writer is over.
    Over(Over),
}

/// Why a writer cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Another writer has been admitted, or was about to be.
    Superseded {
        /// Its epoch.
        epoch: u64,
    },
    /// The targets belong to different logs.
    DifferentLogs(u64, u64),
    /// A target does not admit this writer.
    Refused {
        /// The target's number.
        target: usize,
        /// Its words.
        reason: String,
    },
}

impl fmt::Display for Over {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Superseded { epoch } => {
                write!(formatter, "a later writer has the log (epoch {epoch}): only one can write")
            }
            Over::DifferentLogs(one, other) => {
                write!(formatter, "the targets are copies of different logs ({one:016x} and {other:016x})")
            }
            Over::Refused { target, reason } => {
                write!(formatter, "target {target} does not let this writer in: {reason}")
            }
        }
    }
}

impl std::error::Error for Over {}

/// The state of a target, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its stage, in a word.
    pub stage: &'static str,
    /// Up to where it has the log, if known.
    pub durable: Option<u64>,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// Why its last failed commit failed. Kept until its store has more of the log than at that time: a target that
    /// returns repeatedly, and can commit other data, fails at the same place each time.
    pub failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not enough targets are here.
    Gathering,
    /// Their logs are read.
    Choosing,
    /// The log is chosen, and the mark is unacknowledged. The chosen copy is needed until it is acknowledged.
    Opening {
        source: usize,
        mark: u64,
    },
    Open,
}

/// A record that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Pending {
    begin: u64,
    end: u64,
    sequence: u64,
}

/// The writer.
#[derive(Debug)]
pub struct Writer {
    options: Options,
    phase: Phase,
    epoch: u64,
    log: u64,
    peers: Vec<Peer>,
    actions: VecDeque<(usize, Action)>,
    /// Where the log begins and ends.
    start: u64,
    tail: Tail,
    /// The end of the acknowledged part, the position of its last record, and that record's number.
    acked: u64,
    acked_begin: u64,
    acked_sequence: u64,
    pending: VecDeque<Pending>,
    /// The log's octets from `cached_from` to its end: at least the unacknowledged ones.
    cache: Vec<u8>,
    cached_from: u64,
    /// By segment: its first record.
    firsts: BTreeMap<u64, First>,
    over: Option<Over>,
}

impl Writer {
    /// A writer that knows nothing yet. Tell it of connections to the targets, which are numbered from 0.
    pub fn new(options: Options) -> Writer {
        Writer {
            options,
            phase: Phase::Gathering,
            epoch: 0,
            log: 0,
            peers: (0..options.targets).map(|_| Peer::default()).collect(),
            actions: VecDeque::new(),
            start: 0,
            tail: Tail::default(),
            acked: 0,
            acked_begin: 0,
            acked_sequence: 0,
            pending: VecDeque::new(),
            cache: Vec::new(),
            cached_from: 0,
            firsts: BTreeMap::new(),
            over: None,
        }
    }

    /// Targets that make a majority.
    pub fn quorum(&self) -> usize {
        self.options.targets / 2 + 1
    }

    /// The next action, and its target.
    pub fn next_action(&mut self) -> Option<(usize, Action)> {
        self.actions.pop_front()
    }

    /// Whether records can be appended.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.over.is_none()
    }

    /// Why nothing will happen any more.
    pub fn over(&self) -> Option<&Over> {
        self.over.as_ref()
    }

    /// The log's number.
    pub fn log(&self) -> u64 {
        self.log
    }

    /// This writer's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sequence number of the last acknowledged record; all before it are acknowledged, too.
    pub fn acknowledged(&self) -> u64 {
        self.acked_sequence
    }

    /// The log's end, including unacknowledged records.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// Position of the first kept record.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Targets that get each record as it is appended.
    pub fn live(&self) -> usize {
        self.peers.iter().filter(|peer| matches!(peer.stage, Stage::Live)).count()
    }

    /// What is known of each target.
    pub fn status(&self) -> Vec<Status> {
        let status = |peer: &Peer| Status {
            stage: peer.stage.name(),
            durable: peer.durable,
            problem: peer.problem.clone(),
            failure: peer.failure.as_ref().filter(|(had, _)| peer.durable <= *had).map(|(_, why)| why.clone()),
        };
        self.peers.iter().map(status).collect()
    }

    /// Why a connected target is left out: its file cannot be relied on.
    pub fn left_out(&self, target: usize) -> Option<&str> {
        let peer = &self.peers[target];
        peer.problem.as_deref().filter(|_| matches!(peer.stage, Stage::Useless))
    }

    /// A target is connected.
    pub fn connected(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        peer.stage = Stage::Greeting;
        let renew = std::mem::take(&mut peer.renew);
        self.actions.push_back((target, Action::Send(ToTarget::Hello { renew })));
    }

    /// The connection to a target has ended: pending actions are not answered any more.
    pub fn lost(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        let counted = peer.is_claimed() || matches!(peer.stage, Stage::Claiming);
        let flight = std::mem::take(&mut peer.flight);
        peer.leave();
        for op in flight {
            // Others that were to get something from it look for another source.
            if let Op::Fetch { for_peer, incarnation, .. } = op
                && self.peers[for_peer].incarnation == incarnation
                && let Stage::Behind(behind) = &mut self.peers[for_peer].stage
            {
                behind.busy = false;
            }
        }
        self.actions.retain(|(other, _)| *other != target);
        let needed = match self.phase {
            Phase::Opening { source, .. } => source == target,
            Phase::Choosing => counted,
            Phase::Gathering | Phase::Open => false,
        };
        if needed {
            self.begin_again();
        }
        self.pump();
    }

    /// A message from a target arrived.
    pub fn message(&mut self, target: usize, message: ToClient) {
        match message {
            ToClient::Welcome { log, epoch, geometry } => self.welcome(target, log, epoch, geometry),
            ToClient::Claimed { epoch, geometry, .. } => self.claimed(target, epoch, geometry),
            ToClient::Refused { reason, epoch } => self.refused(target, reason, epoch),
            ToClient::Shrink { slots } => self.peers[target].shrink = Some(slots),
            ToClient::Region { geometry, .. } => self.resized(target, geometry),
        }
        self.pump();
    }

    /// Octets that were read.
    pub fn read_done(&mut self, target: usize, octets: &[u8]) {
        match self.peers[target].flight.pop_front() {
            Some(Op::Table) => self.table_read(target, octets),
            Some(Op::Scan) => self.scan_read(target, octets),
            Some(Op::Fetch { for_peer, incarnation, position }) => {
                self.fetched(for_peer, incarnation, position, octets);
            }
            Some(Op::MoveRead { segment }) => self.move_read(target, segment, octets),
            _ => {}
        }
        self.pump();
    }

    /// A commit ended: well, or why not.
    pub fn committed(&mut self, target: usize, failure: Option<&str>) {
        let peer = &mut self.peers[target];
        let Some(op) = peer.flight.pop_front() else { return };
        if let Some(why) = failure {
            let failure = format!("a commit failed at the target ({why})");
            let problem = format!("{failure}: its store cannot be relied on");
            peer.failure = Some((peer.durable, failure));
            self.failed(target, &problem);
            return;
        }
        match op {
            Op::Settle { last } => {
                if last {
                    self.settled(target);
                }
            }
            Op::Start(position) => {
                peer.start = peer.start.max(position);
                peer.free_before_start();
            }
            Op::Append { end, octets } => {
                peer.under_way -= octets;
                peer.durable = peer.durable.max(Some(end));
            }
            Op::Copy { end, last } => {
                peer.durable = peer.durable.max(Some(end));
                let more = peer.flight.iter().any(|op| matches!(op, Op::Copy { .. }));
                match &mut peer.stage {
                    Stage::Behind(behind) => behind.busy = more,
                    Stage::Live if last => self.join(target),
                    _ => {}
                }
            }
            Op::Head(position) => {
                peer.head = position;
                peer.head_posted = false;
            }
            Op::MoveData { segment, slot } => self.move_written(target, segment, slot),
            Op::MoveEntry { segment, slot, entry } => self.move_done(target, segment, slot, entry),
            Op::Table | Op::Scan | Op::Fetch { .. } | Op::MoveRead { .. } | Op::Stale => {}
        }
        self.pump();
    }

    /// Appends a record, and returns its sequence number. It is acknowledged when [`acknowledged`](Self::acknowledged)
    /// has reached that.
    ///
    /// # Errors
    /// It was not appended; nothing has changed.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64, AppendError> {
        if let Some(over) = &self.over {
            return Err(AppendError::Over(over.clone()));
        }
        if payload.len() > MAX_PAYLOAD {
            return Err(AppendError::TooLong);
        }
        if !self.is_open() || self.live() == 0 || self.tail.position - self.acked >= self.window() {
            return Err(AppendError::NotNow);
        }
        self.make_room(record::size(payload.len()) as u64)?;
        let sequence = self.put(Kind::Payload, payload);
        self.pump();
        Ok(sequence)
    }

    /// Octets that may be unacknowledged. Less while a target catches up: its missing part is read behind them, and
    /// must be larger than what is appended meanwhile.
    fn window(&self) -> u64 {
        let catches_up = |peer: &Peer| matches!(peer.stage, Stage::Behind(_)) && peer.problem.is_none();
        let window = self.options.window;
        if self.peers.iter().any(catches_up) { (window / 8).min(self.part_limit() / 4).max(1) } else { window }
    }

    /// Checks that all known targets have room for a record of `length` octets, or starts to make room. One slot stays
    /// free: a full log must still accept the mark of the next writer.
    fn make_room(&mut self, length: u64) -> Result<(), AppendError> {
        let (position, start) = (self.tail.position, self.start);
        let fits = |peer: &Peer| {
            let Some(geometry) = peer.geometry else { return true };
            let segments = geometry.segment_of(position + length - 1) + 1 - geometry.segment_of(start);
            segments < u64::from(geometry.slots)
        };
        if self.peers.iter().all(fits) {
            // Slots become free when the new start is committed.
            let has_slots = |peer: &Peer| !matches!(peer.stage, Stage::Live) || peer.has_room(position, length);
            return if self.peers.iter().all(has_slots) { Ok(()) } else { Err(AppendError::NotNow) };
        }
        if self.options.overwrite && (self.drop_oldest() || !self.pending.is_empty()) {
            return Err(AppendError::NotNow);
        }
        Err(AppendError::Full)
    }

    /// Puts a record behind the log's end.
    fn put(&mut self, kind: Kind, payload: &[u8]) -> u64 {
        let begin = self.tail.position;
        self.tail.append(kind, self.epoch, payload, &mut self.cache);
        let end = self.tail.position;
        self.note_firsts(begin, end);
        self.pending.push_back(Pending { begin, end, sequence: self.tail.sequence });
        for target in 0..self.peers.len() {
            let peer = &mut self.peers[target];
            if !matches!(peer.stage, Stage::Live) {
                continue;
            }
            if peer.under_way > self.options.window {
                peer.stage = Stage::Draining { shrink: false };
                continue;
            }
            let notify = (self.options.notify && kind == Kind::Payload).then_some(self.tail.sequence);
            let octets = &self.cache[(begin - self.cached_from) as usize..];
            match peer.writes(begin, octets, &self.firsts) {
                Some(writes) => {
                    peer.under_way += end - begin;
                    peer.flight.push_back(Op::Append { end, octets: end - begin });
                    self.actions.push_back((target, Action::Write(writes, notify)));
                }
                None => self.failed(target, "there is no room at the target"),
            }
        }
        self.tail.sequence
    }

    /// Records where the first record begins in the segments that a record reaches.
    fn note_firsts(&mut self, begin: u64, end: u64) {
        let size = self.segment_size();
        let sequence = self.tail.sequence;
        if begin.is_multiple_of(size) {
            self.firsts.insert(begin / size, First { offset: 0, sequence });
        }
        for segment in begin / size + 1..end.div_ceil(size) {
            let left = end - segment * size;
            // At most a segment's size.
            let (offset, sequence) = if left < size { (left as u32, sequence + 1) } else { (size as u32, 0) };
            self.firsts.insert(segment, First { offset, sequence });
        }
    }

    fn segment_size(&self) -> u64 {
        // All targets have the same, which is checked when they connect.
        self.peers.iter().find_map(|peer| peer.geometry).map_or(1, |geometry| u64::from(geometry.segment))
    }

    /// Moves the log's start behind its oldest segment. Returns false if that contains the last record or
    /// unacknowledged octets. Targets that are away learn of it when they return.
    pub fn drop_oldest(&mut self) -> bool {
        let size = self.segment_size();
        let next = (self.start / size + 1..=self.acked_begin / size)
            .filter_map(|segment| Some((segment, self.firsts.get(&segment)?.offset)))
            .find(|(_, offset)| u64::from(*offset) < size)
            .map(|(segment, offset)| segment * size + u64::from(offset));
        let Some(start) = next.filter(|start| *start <= self.acked_begin) else { return false };
        self.raise_start(start);
        true
    }

    /// Moves the log's start, never backwards: earlier octets of a target may already be overwritten.
    fn raise_start(&mut self, start: u64) {
        self.start = start;
        self.firsts = self.firsts.split_off(&(start / self.segment_size()));
        for target in 0..self.peers.len() {
            let peer = &self.peers[target];
            if matches!(peer.stage, Stage::Live) && peer.start < start {
                self.write_start(target);
            }
        }
    }

    fn write_start(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        peer.flight.push_back(Op::Start(self.start));
        self.actions.push_back((target, Action::Write(vec![(START, self.start.to_le_bytes().to_vec())], None)));
    }

    /// Writes the heads that are not at the last acknowledged record: before the end, or when there is nothing else to
    /// do.
    pub fn flush(&mut self) {
        if self.is_open() {
            self.write_heads(true);
        }
    }

    /// Whether everything is acknowledged, and the heads of all connected targets say so.
    pub fn is_flushed(&self) -> bool {
        self.pending.is_empty() && self.heads_are_written()
    }

    fn heads_are_written(&self) -> bool {
        // A target that gets each record may still lack earlier ones.
        let is_behind = |peer: &Peer| peer.head < self.acked_begin || peer.durable < Some(self.acked);
        let is_busy = |peer: &Peer| peer.head_posted || is_behind(peer);
        !self.peers.iter().any(|peer| matches!(peer.stage, Stage::Live) && is_busy(peer))
    }

    fn write_heads(&mut self, all: bool) {
        for (target, peer) in self.peers.iter_mut().enumerate() {
            let due = self.acked_begin.saturating_sub(peer.head) >= if all { 1 } else { self.options.head_every };
            // The record that a head names, and all before it, are committed there.
            let has_it = peer.durable >= Some(self.acked);
            if matches!(peer.stage, Stage::Live) && due && has_it && !peer.head_posted {
                peer.head_posted = true;
                peer.flight.push_back(Op::Head(self.acked_begin));
                let octets = self.acked_begin.to_le_bytes().to_vec();
                self.actions.push_back((target, Action::Write(vec![(HEAD, octets)], None)));
            }
        }
    }

    /// The target cannot be used in its current state: reconnect.
    fn failed(&mut self, target: usize, problem: &str) {
        let peer = &mut self.peers[target];
        peer.problem = Some(problem.to_owned());
        peer.renew = true;
        self.lost(target);
        self.actions.push_back((target, Action::Reconnect));
    }

    /// Takes the steps that have become possible.
    fn pump(&mut self) {
        if self.over.is_some() {
            return;
        }
        match self.phase {
            Phase::Gathering => self.claim_if_enough(),
            Phase::Choosing => self.choose_if_enough(),
            Phase::Opening { .. } | Phase::Open => {}
        }
        if matches!(self.phase, Phase::Opening { .. } | Phase::Open) {
            for target in 0..self.peers.len() {
                self.advance(target);
            }
            self.acknowledge();
        }
        if self.phase == Phase::Open {
            self.write_heads(false);
            for target in 0..self.peers.len() {
                self.shrink_if_asked(target);
            }
        }
    }

    /// Counts the copies.
    fn acknowledge(&mut self) {
        let mut durable: Vec<u64> = self.peers.iter().filter_map(|peer| peer.durable).collect();
        durable.sort_unstable_by(|one, other| other.cmp(one));
        let Some(&most) = durable.get(self.quorum() - 1) else { return };
        if let Phase::Opening { mark, .. } = self.phase {
            if most < mark {
                return;
            }
            self.phase = Phase::Open;
        }
        while let Some(&Pending { begin, end, sequence }) = self.pending.front()
            && end <= most
        {
            self.pending.pop_front();
            (self.acked, self.acked_begin, self.acked_sequence) = (end, begin, sequence);
        }
        // Not with each record, since the remainder is moved. And not just before a returning target reaches the cached
        // part, which would recede again and again.
        let old = (self.acked - self.cached_from) as usize;
        let comes = |peer: &Peer| matches!(&peer.stage, Stage::Behind(it) if it.at + it.part >= self.cached_from);
        let is_waited_for = self.cache.len() as u64 <= 2 * self.options.window && self.peers.iter().any(comes);
        if old as u64 > self.options.chunk && old > self.cache.len() / 2 && !is_waited_for {
            self.cache.drain(..old);
            self.cached_from = self.acked;
        }
    }
}

/// Whether targets with these sizes can be copies of one log.
fn alike(one: &Geometry, other: &Geometry) -> bool {
    one.segment == other.segment
}
