//! Which commit waits for what, and how much of it is under way.
//!
//! Each stream has a queue of the parts of its commits. At any time, a share of octets of it is at the committers;
//! answers make room for more. So a committer never has more work than one share for each stream, and a dead peer's
//! requests are dropped with its queue.

use std::collections::VecDeque;
use std::time::Duration;

use crossbeam::channel::Receiver;
use hashbrown::HashMap;
use uwarp_iwarp::stream::CommitTicket;
use uwarp_memory::{
    CommitMailbox, CommitReply, CommitStatus, CommitStream, CommitTarget, EngineCommitter, KeptRange, Turn,
};
use uwarp_tcp::Instant;

use super::held::WrittenRanges;
use crate::api::config::IwarpConfig;
use crate::api::counters::Faults;

/// Octets of persistent memory that are written back at once for a request or message: some microseconds.
const WRITE_BACK_AT_ONCE: u64 = 16 << 10;
/// Octets that are written back in a turn for larger requests, and for each stream before the next one's turn.
const WRITE_BACK: u64 = 64 << 10;
const WRITE_BACK_PART: u64 = 8 << 10;
/// What a tiny part counts for there.
const WRITE_BACK_LEAST: u64 = 256;
/// Octets that an engine writes to a store between two turns, if it executes commits itself.
const STORE: u64 = 64 << 10;
/// What a tiny part counts for in a stream's share: stores write whole pages.
const PAGE: u64 = 4 << 10;

/// Who waits for a commit.
#[derive(Debug)]
pub(super) enum Asker {
    /// A request of a peer.
    Request { ticket: CommitTicket },
    /// A message that the queue pair has received, because of these writes.
    Message { written: WrittenRanges },
}

/// A commit that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) key: u64,
    pub(super) queue_pair: u32,
    pub(super) asker: Asker,
    pub(super) status: CommitStatus,
}

#[derive(Debug)]
struct Pending {
    queue_pair: u32,
    asker: Asker,
    begun: Instant,
    /// Answers to come, including those of parts that still wait here.
    outstanding: u32,
    /// Octets of the stream's share that its parts at committers use.
    share: u64,
    /// The worst answer so far.
    status: CommitStatus,
}

/// A part of a commit that waits for room in its stream's share, or that is in persistent memory.
#[derive(Debug)]
struct Part {
    range: KeptRange,
    key: u64,
}

/// The commits of one queue pair.
#[derive(Debug)]
struct StreamCommits {
    stream: CommitStream,
    /// Commits that have not ended, oldest first.
    keys: VecDeque<u64>,
    /// Parts that are not at a committer, in the order of their commits.
    waiting: VecDeque<Part>,
    /// Octets of the share in use at committers.
    share: u64,
    /// When the oldest commit last got an answer: time limits run from then.
    progress: Instant,
    /// It is in the queue of streams with persistent memory to write back.
    writes_back: bool,
}

/// Commits under way.
#[derive(Debug)]
pub(crate) struct Commits {
    mailbox: CommitMailbox,
    replies: Receiver<CommitReply>,
    /// Answers that needed no committer.
    settled: VecDeque<CommitReply>,
    pending: HashMap<u64, Pending>,
    /// By queue pair number: those that have requested commits since they connected.
    streams: HashMap<u32, StreamCommits>,
    /// Time limits, in order. Later progress may have postponed one.
    limits: VecDeque<(Instant, u64)>,
    next_key: u64,
    /// Queue pairs whose oldest part is persistent memory.
    write_backs: VecDeque<u32>,
    /// Committers with work that this engine executes itself.
    own: VecDeque<EngineCommitter>,
    /// A list for reuse.
    spare: Vec<KeptRange>,
    /// Most octets of a stream at committers.
    share: u64,
    time_limit: Duration,
    faults: Faults,
}

/// What `length` octets use of a stream's share.
const fn cost(length: u64) -> u64 {
    if length == 0 || length > PAGE { length } else { PAGE }
}

impl Commits {
    pub(crate) fn new(waker: Option<std::task::Waker>, config: &IwarpConfig) -> Commits {
        let (mailbox, replies) = CommitMailbox::new(waker);
        Commits {
            mailbox,
            replies,
            settled: VecDeque::new(),
            pending: HashMap::new(),
            streams: HashMap::new(),
            limits: VecDeque::new(),
            next_key: 0,
            write_backs: VecDeque::new(),
            own: VecDeque::new(),
            spare: Vec::new(),
            share: config.commit_share.max(PAGE),
            time_limit: config.commit_timeout,
            faults: Faults::default(),
        }
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.count()
    }

    /// Whether [`next`](Self::next) or [`write_back`](Self::write_back) has work.
    #[inline]
    pub(crate) fn unsettled(&self, now: Instant) -> bool {
        !self.pending.is_empty() && (self.has_answers() || self.deadline().is_some_and(|at| at <= now))
    }

    /// Whether the next turn has work, whatever arrives.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.own.is_empty() || !self.pending.is_empty() && self.has_answers()
    }

    /// Whether a commit waits for its committer or has not been told to its asker.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether [`work`](Self::work) has something to do.
    #[inline]
    pub(crate) fn has_own_work(&self) -> bool {
        !self.own.is_empty()
    }

    fn has_answers(&self) -> bool {
        !self.settled.is_empty() || !self.replies.is_empty() || !self.write_backs.is_empty()
    }

    /// When the next time limit passes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.limits.front().map(|(at, _)| *at)
    }

    /// Octets that commits have written to stores or written back.
    pub(crate) fn octets_written(&self) -> u64 {
        self.mailbox.octets_written()
    }

    /// An empty list for ranges, to be passed to [`begin`](Self::begin).
    pub(super) fn list(&mut self) -> Vec<KeptRange> {
        let mut list = std::mem::take(&mut self.spare);
        list.clear();
        list
    }

    /// Begins the commit of `ranges` for a queue pair. Returns its key if it must wait, and keeps `asker` for it.
    /// Otherwise the commit has ended, with `status`.
    pub(super) fn begin(
        &mut self,
        turn: &Turn<'_>,
        queue_pair: u32,
        mut ranges: Vec<KeptRange>,
        status: &mut CommitStatus,
        now: Instant,
        asker: impl FnOnce() -> Asker,
    ) -> Option<u64> {
        let key = self.next_key;
        self.next_key += 1;
        KeptRange::merge(&mut ranges);
        let (mut at_once, mut outstanding) = (WRITE_BACK_AT_ONCE, 0);
        for range in ranges.drain(..) {
            match turn.keep(&range) {
                Some(CommitTarget::Persistent(octets)) if range.length() <= at_once => {
                    at_once -= range.length();
                    octets.write_back();
                    self.mailbox.count_written(range.length());
                }
                Some(_) => {
                    let commits = self.streams.entry(queue_pair).or_insert_with(|| StreamCommits {
                        stream: self.mailbox.stream(),
                        keys: VecDeque::new(),
                        waiting: VecDeque::new(),
                        share: 0,
                        progress: now,
                        writes_back: false,
                    });
                    commits.waiting.push_back(Part { range, key });
                    outstanding += 1;
                }
                // The owner has deregistered it.
                None => *status = CommitStatus::Failure.max(*status),
            }
        }
        self.spare = ranges;
        if outstanding == 0 {
            return None;
        }
        if let Some(commits) = self.streams.get_mut(&queue_pair) {
            commits.keys.push_back(key);
        }
        let pending = Pending { queue_pair, asker: asker(), begun: now, outstanding, share: 0, status: *status };
        self.pending.insert(key, pending);
        self.limits.push_back((now + self.time_limit, key));
        self.refill(turn, queue_pair);
        Some(key)
    }

    /// Gives the committers what the queue pair's share has room for.
    fn refill(&mut self, turn: &Turn<'_>, queue_pair: u32) {
        // Nothing of the stream had to wait.
        let Some(commits) = self.streams.get_mut(&queue_pair) else { return };
        while let Some(Part { range, key }) = commits.waiting.front_mut() {
            let key = *key;
            let answered = match turn.keep(range) {
                Some(CommitTarget::Durable { durable, offset, length }) => {
                    let length = length.min(self.share);
                    if commits.share + cost(length) > self.share {
                        return;
                    }
                    let Some(pending) = self.pending.get_mut(&key) else {
                        return self.faults.note("a part of a commit outlives it");
                    };
                    range.split_front(length);
                    if range.length() > 0 {
                        pending.outstanding += 1;
                    }
                    match durable.commit(offset, length, key, &commits.stream) {
                        Ok(()) => {
                            commits.share += cost(length);
                            pending.share += cost(length);
                            if let Some(committer) = durable.engine_committer()
                                && !self.own.contains(&committer)
                            {
                                self.own.push_back(committer);
                            }
                            None
                        }
                        Err(refused) => Some(refused),
                    }
                }
                Some(CommitTarget::Persistent(_)) => {
                    if !commits.writes_back {
                        commits.writes_back = true;
                        self.write_backs.push_back(queue_pair);
                    }
                    return;
                }
                // The owner has deregistered it: the rest of it is not durable.
                Some(CommitTarget::Plain) | None => {
                    range.split_front(u64::MAX);
                    Some(CommitStatus::Failure)
                }
            };
            if range.length() == 0 {
                commits.waiting.pop_front();
            }
            if let Some(status) = answered {
                self.settled.push_back(CommitReply { key, status, length: 0 });
            }
        }
    }

    /// Writes back as much persistent memory as a turn may, for all waiting streams in turn.
    pub(super) fn write_back(&mut self, turn: &Turn<'_>) {
        let mut left = WRITE_BACK;
        while left > 0
            && let Some(queue_pair) = self.write_backs.pop_front()
        {
            // The stream may have ended.
            let Some(commits) = self.streams.get_mut(&queue_pair) else { continue };
            commits.writes_back = false;
            if let Some(Part { range, key }) = commits.waiting.front_mut()
                && let Some(CommitTarget::Persistent(_)) = turn.keep(range)
            {
                let part = range.split_front(left.min(WRITE_BACK_PART));
                if let Some(CommitTarget::Persistent(octets)) = turn.keep(&part) {
                    octets.write_back();
                }
                left = left.saturating_sub(part.length().max(WRITE_BACK_LEAST));
                self.mailbox.count_written(part.length());
                if range.length() == 0 {
                    self.settled.push_back(CommitReply { key: *key, status: CommitStatus::Success, length: 0 });
                    commits.waiting.pop_front();
                }
            }
            self.refill(turn, queue_pair);
        }
    }

    /// Processes answers and expired time limits until a commit has ended.
    pub(super) fn next(&mut self, turn: &Turn<'_>, now: Instant) -> Option<Ended> {
        while let Some(reply) = self.settled.pop_front().or_else(|| self.replies.try_recv().ok()) {
            if let Some(ended) = self.take(turn, reply, now) {
                return Some(ended);
            }
        }
        self.expire(turn, now)
    }

    fn take(&mut self, turn: &Turn<'_>, reply: CommitReply, now: Instant) -> Option<Ended> {
        let key = reply.key;
        // An answer to an abandoned commit.
        let pending = self.pending.get_mut(&key)?;
        let queue_pair = pending.queue_pair;
        pending.status = pending.status.max(reply.status);
        pending.outstanding -= 1;
        pending.share -= cost(reply.length);
        let has_ended = pending.outstanding == 0;
        if let Some(commits) = self.streams.get_mut(&queue_pair) {
            commits.share -= cost(reply.length);
            if commits.keys.front() == Some(&key) {
                commits.progress = now;
            }
        }
        let ended = if has_ended { self.end(key) } else { None };
        self.refill(turn, queue_pair);
        ended
    }

    /// Removes a commit and its account.
    fn end(&mut self, key: u64) -> Option<Ended> {
        let Pending { queue_pair, asker, outstanding, share, status, .. } = self.pending.remove(&key)?;
        if let Some(commits) = self.streams.get_mut(&queue_pair) {
            commits.share -= share;
            // Most commits end in order.
            if let Some(place) = commits.keys.iter().position(|one| *one == key) {
                commits.keys.remove(place);
            }
            if outstanding > 0 {
                commits.waiting.retain(|part| part.key != key);
            }
        }
        self.forget_limits();
        Some(Ended { key, queue_pair, asker, status })
    }

    /// Drops time limits of commits that have ended. One that has not ended must not keep all those behind it.
    fn forget_limits(&mut self) {
        while self.limits.front().is_some_and(|(_, key)| !self.pending.contains_key(key)) {
            self.limits.pop_front();
        }
        if self.limits.len() > 2 * self.pending.len() + 64 {
            self.limits.retain(|(_, key)| self.pending.contains_key(key));
        }
    }

    /// Ends a commit whose time limit has passed.
    fn expire(&mut self, turn: &Turn<'_>, now: Instant) -> Option<Ended> {
        while let Some((at, key)) = self.limits.front().copied()
            && at <= now
        {
            self.limits.pop_front();
            // It may have ended before.
            let Some(pending) = self.pending.get(&key) else { continue };
            let Some(commits) = self.streams.get(&pending.queue_pair) else {
                self.faults.note("a commit outlives its stream");
                continue;
            };
            let until = pending.begun.max(commits.progress) + self.time_limit;
            if until > now {
                let place = self.limits.partition_point(|(at, _)| *at <= until);
                self.limits.insert(place, (until, key));
                continue;
            }
            // The time limits of all earlier ones passed no later.
            commits.stream.abandon_before(key + 1);
            let ended = self.end(key)?;
            self.refill(turn, ended.queue_pair);
            return Some(Ended { status: CommitStatus::Transient, ..ended });
        }
        None
    }

    /// Drops the commits of a queue pair whose stream is over.
    pub(crate) fn abandon(&mut self, queue_pair: u32) {
        // It may have asked for none.
        let Some(commits) = self.streams.remove(&queue_pair) else { return };
        commits.stream.abandon_before(u64::MAX);
        for key in commits.keys {
            self.pending.remove(&key);
        }
        self.forget_limits();
    }

    /// Executes some work of committers without a thread: a part of one region's. Call it between turns, since a store
    /// may do anything.
    pub(crate) fn work(&mut self) {
        if let Some(committer) = self.own.pop_front()
            && committer.work(STORE)
        {
            self.own.push_back(committer);
        }
    }
}

#[cfg(test)]
mod tests;
