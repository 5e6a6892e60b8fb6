//! Commits: those that peers ask for (draft-talpey-rdma-commit section 3.2), and those that come before a message is told
//! because its sender wrote to a region that wants it so (section 3.1.2).
//!
//! The engine asks the committer of each durable region concerned and goes on; the answers come to a mailbox that it looks
//! into once a turn while it waits for any. Until then a request keeps its place among the peer's requests, and a message
//! that was received keeps its place among the messages. A time limit stands for an answer that does not come.

use std::collections::VecDeque;

use crossbeam::channel::Receiver;
use hashbrown::HashMap;
use uwarp_iwarp::Fault;
use uwarp_iwarp::Stream;
use uwarp_iwarp::stream::{CommitTicket, InboundCommit};
use uwarp_memory::{CommitMailbox, CommitReply, CommitStatus, CommitTarget, Turn};
use uwarp_tcp::Instant;

use crate::command::CompletionQueueId;
use crate::connection::{Connection, Phase};
use crate::core::Core;
use crate::port::Port;
use crate::queue_pair::QueuePair;
use crate::receive::{Failure, read_fault};
use crate::slab::Handle;
use crate::work::{Completion, Status};

/// Ranges of writes that a queue pair remembers one by one. Beyond it they are joined: more is made durable than need be.
const RANGES: usize = 16;

/// Who waits for a commit.
#[derive(Debug, Clone, Copy)]
enum Asker {
    /// A request of a peer.
    Request { connection: Handle, ticket: CommitTicket },
    /// A message that this queue pair has received.
    Message { queue_pair: u32 },
}

#[derive(Debug)]
struct Pending {
    asker: Asker,
    /// Answers that are still to come.
    outstanding: u32,
    /// The worst of those that came.
    status: CommitStatus,
    /// The asker has been told: its time was over.
    told: bool,
}

/// Commits under way.
#[derive(Debug)]
pub(crate) struct Commits {
    mailbox: CommitMailbox,
    replies: Receiver<CommitReply>,
    pending: HashMap<u64, Pending>,
    /// Time limits, in their order.
    limits: VecDeque<(Instant, u64)>,
    next_key: u64,
}

impl Commits {
    pub(crate) fn new(waker: Option<std::task::Waker>) -> Commits {
        let (mailbox, replies) = CommitMailbox::new(waker);
        Commits { mailbox, replies, pending: HashMap::new(), limits: VecDeque::new(), next_key: 0 }
    }

    /// Whether [`Core::run_commits`] has something to do.
    #[inline]
    pub(crate) fn unsettled(&self, now: Instant) -> bool {
        !self.pending.is_empty() && (!self.replies.is_empty() || self.deadline().is_some_and(|at| at <= now))
    }

    /// When the next time limit is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.limits.front().map(|(at, _)| *at)
    }

    /// Takes an answer; gives who is to be told, and what.
    fn take(&mut self, reply: CommitReply) -> Option<(Asker, CommitStatus, u64)> {
        let pending = self.pending.get_mut(&reply.key)?;
        pending.status = pending.status.max(reply.status);
        pending.outstanding -= 1;
        if pending.outstanding > 0 {
            return None;
        }
        let pending = self.pending.remove(&reply.key)?;
        // Most end in their order. One that does not must not keep the limits of all behind it.
        while self.limits.front().is_some_and(|(_, key)| !self.pending.contains_key(key)) {
            self.limits.pop_front();
        }
        if self.limits.len() > 2 * self.pending.len() + 64 {
            self.limits.retain(|(_, key)| self.pending.contains_key(key));
        }
        (!pending.told).then_some((pending.asker, pending.status, reply.key))
    }

    /// Takes the next time limit that is over; gives who is to be told. The answers are still waited for, and dropped.
    fn expire(&mut self, now: Instant) -> Option<(Asker, u64)> {
        while let Some((at, key)) = self.limits.front().copied()
            && at <= now
        {
            self.limits.pop_front();
            if let Some(pending) = self.pending.get_mut(&key)
                && !std::mem::replace(&mut pending.told, true)
            {
                return Some((pending.asker, key));
            }
        }
        None
    }
}

/// A received message that is not told yet, or waits behind one.
#[derive(Debug)]
pub(crate) struct Held {
    completion: Completion,
    queue: CompletionQueueId,
    /// The commit that it waits for.
    waits_for: Option<u64>,
    /// Requests of the peer that came before it.
    requests: u64,
}

impl Held {
    /// Whether the stream's next response is to a request that came behind this message, and so has to wait until it is told: a
    /// response says that the messages before its request are complete (RFC 5040 appendix B, RFC 7306 section 7).
    pub(crate) fn precedes_response(&self, stream: &Stream) -> bool {
        stream.requests_answered() >= self.requests
    }
}

/// What a queue pair has written to regions that want it durable before the next message is told: STag, offset, octets.
#[derive(Debug, Default)]
pub(crate) struct WrittenRanges(Vec<(u32, u64, u64)>);

impl WrittenRanges {
    fn add(&mut self, stag: u32, offset: u64, length: u64) {
        // Most writes go on where the last one ended.
        if let Some(range) = self.0.iter_mut().rev().find(|range| range.0 == stag && range.1 + range.2 == offset) {
            range.2 += length;
            return;
        }
        if self.0.len() >= RANGES
            && let Some(range) = self.0.iter_mut().find(|range| range.0 == stag)
        {
            let (start, end) = (range.1.min(offset), (range.1 + range.2).max(offset + length));
            (range.1, range.2) = (start, end - start);
            return;
        }
        self.0.push((stag, offset, length));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a message that was received has to wait for.
pub(crate) enum Hold {
    /// Nothing.
    Free,
    /// Nothing any more, but this went wrong.
    Failed,
    /// A commit.
    Commit(u64),
}

impl<P: Port> Core<P> {
    /// A commit that the peer asks for.
    #[cold]
    pub(crate) fn on_commit_request(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        commit: InboundCommit,
    ) -> Result<(), Failure> {
        let association = queue_pair.association;
        let handle = queue_pair.connection.and_then(|index| self.connections.reserved_handle(index));
        let Phase::Running(running) = &mut connection.phase else { return Ok(()) };
        let Some(handle) = handle else { return Err(Fault::LocalCatastrophic.into()) };
        // All of it is looked at before anything is asked for.
        for region in &commit.regions {
            turn.commit_targets(association, region.stag.0, region.offset.0, region.length, |_| ())
                .map_err(|error| Failure::from(read_fault(error)))?;
        }
        let ticket = running.stream.accept_commit(commit.head);
        let key = self.commits.next_key;
        self.commits.next_key += 1;
        let mut status = if commit.exceeds { CommitStatus::Limit } else { CommitStatus::Success };
        let mut outstanding = 0;
        for region in &commit.regions {
            let asked =
                turn.commit_targets(
                    association,
                    region.stag.0,
                    region.offset.0,
                    region.length,
                    |target| match target {
                        CommitTarget::Plain if self.config.iwarp.strict_commit => {
                            status = status.max(CommitStatus::Unsupported);
                        }
                        CommitTarget::Plain => {}
                        // Nanoseconds a line: less than asking somebody.
                        CommitTarget::Persistent(range) => range.write_back(),
                        CommitTarget::Durable { durable, offset, length } => {
                            match durable.commit(offset, length, key, &self.commits.mailbox) {
                                Ok(()) => outstanding += 1,
                                Err(refused) => status = status.max(refused),
                            }
                        }
                    },
                );
            if asked.is_err() {
                // The owner takes the region away at this very moment.
                status = status.max(CommitStatus::Failure);
            }
        }
        running.stream.recycle(commit.regions);
        connection.quiet = false;
        if outstanding == 0 {
            running.stream.commit_done(ticket, status.code());
        } else {
            self.await_commit(key, Asker::Request { connection: handle, ticket }, outstanding, status);
        }
        Ok(())
    }

    fn await_commit(&mut self, key: u64, asker: Asker, outstanding: u32, status: CommitStatus) {
        self.commits.pending.insert(key, Pending { asker, outstanding, status, told: false });
        self.commits.limits.push_back((self.now + self.config.iwarp.commit_timeout, key));
    }

    /// Takes answers of committers, and the end of time limits.
    pub(crate) fn run_commits(&mut self) {
        while let Ok(reply) = self.commits.replies.try_recv() {
            if let Some((asker, status, key)) = self.commits.take(reply) {
                self.commit_ended(asker, status, key);
            }
        }
        while let Some((asker, key)) = self.commits.expire(self.now) {
            self.commit_ended(asker, CommitStatus::Transient, key);
        }
    }

    fn commit_ended(&mut self, asker: Asker, status: CommitStatus, key: u64) {
        match asker {
            Asker::Request { connection, ticket } => {
                let Some(index) = self.connections.resolve(connection) else { return };
                let Some(connection) = self.connections.get_mut(index) else { return };
                if let Phase::Running(running) = &mut connection.phase
                    && running.stream.commit_done(ticket, status.code())
                {
                    connection.quiet = false;
                    Self::schedule(&mut self.ready, index, connection);
                }
            }
            Asker::Message { queue_pair } => {
                let Some(mut queue_pair) = self.queue_pairs.get_mut(queue_pair as usize).and_then(Option::take) else {
                    return;
                };
                for held in &mut queue_pair.held {
                    if held.waits_for == Some(key) {
                        held.waits_for = None;
                        if status != CommitStatus::Success {
                            held.completion.status = Status::CommitFailed;
                        }
                    }
                }
                self.tell_held(&mut queue_pair);
                // It may overflow a queue, and what is asked behind it may be answered now.
                if let Some(index) = queue_pair.connection {
                    self.schedule_index(index);
                }
                self.give_queue_pair(Some(queue_pair));
            }
        }
    }

    /// Tells the messages that wait for nothing any more.
    fn tell_held(&mut self, queue_pair: &mut QueuePair) {
        while let Some(held) = queue_pair.held.front()
            && held.waits_for.is_none()
            && let Some(held) = queue_pair.held.pop_front()
        {
            if !self.lanes.push(held.queue, held.completion) {
                queue_pair.overflowed = Some(held.queue);
            }
        }
    }

    /// The stream is over: messages that were not told are told as flushed. What they say came, but is not known to be
    /// durable.
    #[cold]
    pub(crate) fn flush_held(&mut self, queue_pair: &mut QueuePair) {
        for mut held in queue_pair.held.drain(..) {
            held.completion.status = Status::Flushed;
            if !self.lanes.push(held.queue, held.completion) {
                self.counters.completion_overflows += 1;
            }
        }
        queue_pair.written.0.clear();
    }

    /// Remembers a Write, if its region wants that.
    #[cold]
    pub(crate) fn note_write(turn: &Turn<'_>, queue_pair: &mut QueuePair, stag: u32, offset: u64, length: usize) {
        if turn.is_transparent(stag, offset) {
            queue_pair.written.add(stag, offset, length as u64);
        }
    }

    /// Asks for what was written to be made durable, before a message is told.
    #[cold]
    pub(crate) fn commit_written(&mut self, turn: &Turn<'_>, queue_pair: &mut QueuePair) -> Hold {
        let key = self.commits.next_key;
        self.commits.next_key += 1;
        let (mut outstanding, mut failed) = (0, false);
        let mut ranges = std::mem::take(&mut queue_pair.written);
        for (stag, offset, length) in ranges.0.drain(..) {
            let (mut at, mut left) = (offset, length);
            while left > 0 {
                let part = u32::try_from(left).unwrap_or(u32::MAX);
                let asked = turn.commit_targets(queue_pair.association, stag, at, part, |target| match target {
                    CommitTarget::Plain => {}
                    CommitTarget::Persistent(range) => range.write_back(),
                    CommitTarget::Durable { durable, offset, length } => {
                        match durable.commit(offset, length, key, &self.commits.mailbox) {
                            Ok(()) => outstanding += 1,
                            Err(_) => failed = true,
                        }
                    }
                });
                // A region that its owner took away meanwhile was not to be kept.
                let _ = asked;
                (at, left) = (at.wrapping_add(u64::from(part)), left - u64::from(part));
            }
        }
        queue_pair.written = ranges;
        let status = if failed { CommitStatus::Failure } else { CommitStatus::Success };
        if outstanding > 0 {
            self.await_commit(key, Asker::Message { queue_pair: queue_pair.number }, outstanding, status);
            Hold::Commit(key)
        } else if failed {
            Hold::Failed
        } else {
            Hold::Free
        }
    }

    /// Tells the application of a message that was received, now or when what it waits for is done.
    #[inline]
    pub(crate) fn tell_receive(
        &mut self,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        mut completion: Completion,
        hold: Hold,
    ) {
        let queue = queue_pair.receive_completions;
        let waits_for = match hold {
            Hold::Free if queue_pair.held.is_empty() => {
                if !self.lanes.push(queue, completion) {
                    queue_pair.overflowed = Some(queue);
                }
                return;
            }
            Hold::Free => None,
            Hold::Failed => {
                completion.status = Status::CommitFailed;
                None
            }
            Hold::Commit(key) => Some(key),
        };
        queue_pair.held.push_back(Held { completion, queue, waits_for, requests: stream.requests_accepted() });
        self.tell_held(queue_pair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn asked(commits: &mut Commits, at: Instant) -> u64 {
        let key = commits.next_key;
        commits.next_key += 1;
        let pending = Pending {
            asker: Asker::Message { queue_pair: 1 },
            outstanding: 1,
            status: CommitStatus::Success,
            told: false,
        };
        commits.pending.insert(key, pending);
        commits.limits.push_back((at + Duration::from_secs(30), key));
        key
    }

    #[test]
    fn one_commit_that_does_not_end_keeps_no_traces_of_those_that_do() {
        let mut commits = Commits::new(None);
        let slow = asked(&mut commits, Instant::ZERO);
        for _ in 0..100_000 {
            let key = asked(&mut commits, Instant::ZERO);
            let ended = commits.take(CommitReply { key, status: CommitStatus::Success });
            assert!(ended.is_some_and(|(_, status, told)| (status, told) == (CommitStatus::Success, key)));
            assert!(commits.limits.len() < 100);
        }
        assert_eq!(commits.expire(Instant::ZERO + Duration::from_secs(29)).map(|(_, key)| key), None);
        assert_eq!(commits.expire(Instant::ZERO + Duration::from_secs(30)).map(|(_, key)| key), Some(slow));
        assert!(commits.take(CommitReply { key: slow, status: CommitStatus::Success }).is_none(), "told already");
        assert_eq!((commits.pending.len(), commits.limits.len()), (0, 0));
    }

    #[test]
    fn writes_that_are_remembered_are_few_and_cover_all() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let mut written = WrittenRanges::default();
            let mut octets = vec![[false; 512]; 3];
            for _ in 0..random.usize(..200) {
                let (stag, offset) = (random.u32(..3), random.u64(..500));
                let length = random.u64(1..=512 - offset);
                written.add(stag, offset, length);
                octets[stag as usize][offset as usize..(offset + length) as usize].fill(true);
            }
            assert!(written.0.len() <= RANGES + 3);
            for (stag, octets) in octets.iter().enumerate() {
                for at in (0..512).filter(|at| octets[*at as usize]) {
                    let covered = written
                        .0
                        .iter()
                        .any(|(of, from, length)| *of == stag as u32 && (*from..from + length).contains(&at));
                    assert!(covered, "octet {at} of {stag}");
                }
            }
        }
    }
}
