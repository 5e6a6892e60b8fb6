//! Commits: those that peers ask for (draft-talpey-rdma-commit section 3.2), and those that come before a message is told
//! because its sender wrote to a region that wants it so (section 3.1.2).
//!
//! The engine asks the committer of each durable region concerned and goes on; the answers come to a mailbox that it looks
//! into once a turn while it waits for any. Until then a request keeps its place among the peer's requests, and a message
//! that was received keeps its place among the messages. A time limit stands for an answer that does not come.
//!
//! A committer that was left to the engines is let work at the end of the turn, so that what came in one batch shares a sync.
//!
//! Persistent memory has no committer: its caches are written back here. A little of it at once, nanoseconds a line, which is less
//! than asking somebody; much of it in parts, so many octets a turn, all that wait for it in turn.

use std::collections::VecDeque;

use crossbeam::channel::Receiver;
use hashbrown::HashMap;
use uwarp_iwarp::Fault;
use uwarp_iwarp::Stream;
use uwarp_iwarp::stream::{CommitTicket, InboundCommit};
use uwarp_memory::{Access, AccessError, CommitMailbox, CommitReply, CommitStatus, CommitTarget, KeptRange, Turn};
use uwarp_tcp::Instant;

use crate::command::CompletionQueueId;
use crate::connection::{Connection, Phase, Running};
use crate::core::Core;
use crate::port::Port;
use crate::queue_pair::QueuePair;
use crate::receive::{Failure, read_fault};
use crate::slab::Handle;
use crate::work::{Completion, Status};

/// Ranges of writes that a queue pair remembers one by one. Beyond it they are joined: more is made durable than need be.
const RANGES: usize = 16;
/// Octets of persistent memory that one request or message may have written back at once: some microseconds.
const WRITE_BACK_AT_ONCE: u64 = 16 << 10;
/// Octets that are written back in a turn for those that ask for more, and for each of them before the next has its turn.
const WRITE_BACK: u64 = 64 << 10;
const WRITE_BACK_PART: u64 = 8 << 10;

/// Who waits for a commit.
#[derive(Debug)]
enum Asker {
    /// A request of a peer.
    Request { connection: Handle, ticket: CommitTicket },
    /// A message that this queue pair has received, because of these writes.
    Message { queue_pair: u32, written: WrittenRanges },
    /// Nobody any more: the time was over.
    Nobody,
}

#[derive(Debug)]
struct Pending {
    asker: Asker,
    /// Answers that are still to come.
    outstanding: u32,
    /// The worst of those that came.
    status: CommitStatus,
}

/// A part of a commit: persistent memory that was too much for the turn that it was asked for in.
#[derive(Debug)]
struct WriteBack {
    range: KeptRange,
    key: u64,
}

/// A commit of a peer that is begun when the atomics before it were carried out.
#[derive(Debug)]
pub(crate) struct WaitingCommit {
    ticket: CommitTicket,
    ranges: Vec<KeptRange>,
    /// What is known of it already.
    asked: Asked,
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
    write_backs: VecDeque<WriteBack>,
    /// What was asked for in this turn of regions whose commits engines carry out themselves.
    own: Vec<KeptRange>,
}

impl Commits {
    pub(crate) fn new(waker: Option<std::task::Waker>) -> Commits {
        let (mailbox, replies) = CommitMailbox::new(waker);
        Commits {
            mailbox,
            replies,
            pending: HashMap::new(),
            limits: VecDeque::new(),
            next_key: 0,
            write_backs: VecDeque::new(),
            own: Vec::new(),
        }
    }

    /// Whether [`Core::run_commits`] has something to do.
    #[inline]
    pub(crate) fn unsettled(&self, now: Instant) -> bool {
        !self.pending.is_empty()
            && (!self.own.is_empty()
                || !self.replies.is_empty()
                || !self.write_backs.is_empty()
                || self.deadline().is_some_and(|at| at <= now))
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
        (!matches!(pending.asker, Asker::Nobody)).then_some((pending.asker, pending.status, reply.key))
    }

    /// Takes the next time limit that is over; gives who is to be told. The answers are still waited for, and dropped.
    fn expire(&mut self, now: Instant) -> Option<(Asker, u64)> {
        while let Some((at, key)) = self.limits.front().copied()
            && at <= now
        {
            self.limits.pop_front();
            if let Some(pending) = self.pending.get_mut(&key) {
                return Some((std::mem::replace(&mut pending.asker, Asker::Nobody), key));
            }
        }
        None
    }

    /// Asks for `target`, which is `range`, as a part of the commit `key`.
    fn ask(&mut self, target: CommitTarget<'_>, range: KeptRange, key: u64, asked: &mut Asked) {
        match target {
            CommitTarget::Plain => asked.plain = true,
            CommitTarget::Persistent(now) if range.length() <= asked.at_once => {
                asked.at_once -= range.length();
                now.write_back();
            }
            CommitTarget::Persistent(_) => {
                self.write_backs.push_back(WriteBack { range, key });
                asked.outstanding += 1;
            }
            CommitTarget::Durable { durable, offset, length } => {
                let mut commit = durable.commit(offset, length, key, &self.mailbox);
                if commit == Err(CommitStatus::Transient) && durable.is_of_engines() {
                    // Nobody else makes room.
                    durable.work();
                    commit = durable.commit(offset, length, key, &self.mailbox);
                }
                match commit {
                    Ok(()) => {
                        asked.outstanding += 1;
                        if durable.is_of_engines() {
                            self.own.push(range);
                        }
                    }
                    Err(refused) => asked.status = asked.status.max(refused),
                }
            }
        }
    }

    /// Carries out what was asked for of regions whose commits are the engines' own.
    fn work(&mut self, turn: &Turn<'_>) {
        for range in self.own.drain(..) {
            // One that was deregistered meanwhile has seen to it.
            if let Some(CommitTarget::Durable { durable, .. }) = turn.keep(&range) {
                durable.work();
            }
        }
    }

    /// Writes back as many octets as are `left` in this turn, of those commits that somebody waits for; gives the next that ends.
    fn write_back(&mut self, turn: &Turn<'_>, left: &mut u64) -> Option<CommitReply> {
        while *left > 0
            && let Some(WriteBack { mut range, key }) = self.write_backs.pop_front()
        {
            let part = range.split_front((*left).min(WRITE_BACK_PART));
            let status = match self.pending.get(&key).map(|pending| &pending.asker) {
                None | Some(Asker::Nobody) => CommitStatus::Success,
                Some(asker) => match turn.keep(&part) {
                    Some(CommitTarget::Persistent(now)) => {
                        *left -= part.length();
                        now.write_back();
                        if range.length() > 0 {
                            self.write_backs.push_back(WriteBack { range, key });
                            continue;
                        }
                        CommitStatus::Success
                    }
                    // Its owner has taken it away: a message need not wait for that, and who asked for it is told.
                    _ if matches!(asker, Asker::Message { .. }) => CommitStatus::Success,
                    _ => CommitStatus::Failure,
                },
            };
            return Some(CommitReply { key, status });
        }
        None
    }

    fn next_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key - 1
    }
}

/// What became of the parts of a commit when they were asked for.
#[derive(Debug)]
struct Asked {
    /// Answers that will come.
    outstanding: u32,
    /// The worst of those that are known.
    status: CommitStatus,
    /// Some of it is not durable at all.
    plain: bool,
    /// Octets of persistent memory that may still be written back at once.
    at_once: u64,
}

impl Asked {
    const fn of(status: CommitStatus) -> Asked {
        Asked { outstanding: 0, status, plain: false, at_once: WRITE_BACK_AT_ONCE }
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

/// What a peer has written to regions that want it durable before its next message is told, and is not known to be.
#[derive(Debug, Default)]
pub(crate) struct WrittenRanges(Vec<KeptRange>);

impl WrittenRanges {
    fn add(&mut self, range: KeptRange) {
        // Most writes go on where the last one ended.
        if self.0.iter_mut().rev().any(|earlier| earlier.extend(&range)) {
            return;
        }
        if self.0.len() >= RANGES
            && let Some(earlier) = self.0.iter_mut().find(|earlier| earlier.is_beside(&range))
        {
            return earlier.span(&range);
        }
        self.0.push(range);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes ranges back that could not be made durable.
    fn put_back(&mut self, ranges: WrittenRanges) {
        for range in ranges.0 {
            self.add(range);
        }
    }

    /// Takes the memory of ranges that are done with.
    fn reuse(&mut self, mut ranges: WrittenRanges) {
        if self.0.capacity() == 0 {
            ranges.clear();
            *self = ranges;
        }
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
            turn.commit_targets(association, region.stag.0, region.offset.0, region.length, |_, _| ())
                .map_err(|error| Failure::from(read_fault(error)))?;
        }
        let ticket = running.stream.accept_commit(commit.head);
        let waits = running.stream.commit_waits(ticket);
        let key = self.commits.next_key();
        let mut asked = Asked::of(if commit.exceeds { CommitStatus::Limit } else { CommitStatus::Success });
        let mut ranges = Vec::new();
        for region in &commit.regions {
            let (stag, offset, length) = (region.stag.0, region.offset.0, region.length);
            let looked = turn.commit_targets(association, stag, offset, length, |target, range| match target {
                CommitTarget::Persistent(_) | CommitTarget::Durable { .. } if waits => ranges.push(range),
                _ => self.commits.ask(target, range, key, &mut asked),
            });
            if looked.is_err() {
                // The owner takes the region away at this very moment.
                asked.status = asked.status.max(CommitStatus::Failure);
            }
        }
        running.stream.recycle(commit.regions);
        if waits {
            queue_pair.waiting_commits.push_back(WaitingCommit { ticket, ranges, asked });
        } else {
            self.commit_asked(running, handle, ticket, key, asked);
        }
        connection.quiet = false;
        Ok(())
    }

    /// Begins the commits that no atomic is before any more.
    #[cold]
    pub(crate) fn begin_waiting_commits(&mut self, turn: &Turn<'_>, running: &mut Running, queue_pair: &mut QueuePair) {
        let handle = queue_pair.connection.and_then(|index| self.connections.reserved_handle(index));
        while let (Some(handle), Some(commit)) = (handle, queue_pair.waiting_commits.front())
            && !running.stream.commit_waits(commit.ticket)
            && let Some(WaitingCommit { ticket, ranges, mut asked }) = queue_pair.waiting_commits.pop_front()
        {
            let key = self.commits.next_key();
            for range in ranges {
                match turn.keep(&range) {
                    Some(target) => self.commits.ask(target, range, key, &mut asked),
                    None => asked.status = asked.status.max(CommitStatus::Failure),
                }
            }
            self.commit_asked(running, handle, ticket, key, asked);
        }
    }

    /// All parts of a peer's commit have been asked for.
    fn commit_asked(
        &mut self,
        running: &mut Running,
        connection: Handle,
        ticket: CommitTicket,
        key: u64,
        mut asked: Asked,
    ) {
        if asked.plain && self.config.iwarp.strict_commit {
            asked.status = asked.status.max(CommitStatus::Unsupported);
        }
        if asked.outstanding == 0 {
            running.stream.commit_done(ticket, asked.status.code());
        } else {
            self.await_commit(key, Asker::Request { connection, ticket }, asked);
        }
    }

    fn await_commit(&mut self, key: u64, asker: Asker, asked: Asked) {
        let pending = Pending { asker, outstanding: asked.outstanding, status: asked.status };
        self.commits.pending.insert(key, pending);
        self.commits.limits.push_back((self.now + self.config.iwarp.commit_timeout, key));
    }

    /// Takes answers of committers, and the end of time limits, and writes back what is left from earlier turns.
    pub(crate) fn run_commits(&mut self, turn: &Turn<'_>) {
        self.commits.work(turn);
        let mut left = WRITE_BACK;
        while let Some(reply) = self.commits.write_back(turn, &mut left) {
            if let Some((asker, status, key)) = self.commits.take(reply) {
                self.commit_ended(asker, status, key);
            }
        }
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
            Asker::Nobody => {}
            Asker::Message { queue_pair, written } => {
                let Some(mut queue_pair) = self.queue_pairs.get_mut(queue_pair as usize).and_then(Option::take) else {
                    return;
                };
                if let Some(place) = queue_pair.held.iter().position(|held| held.waits_for == Some(key)) {
                    queue_pair.held[place].waits_for = None;
                    if status == CommitStatus::Success {
                        queue_pair.written.reuse(written);
                    } else {
                        // Those behind it were written for, too; and the next one tries again.
                        for held in queue_pair.held.range_mut(place..) {
                            held.completion.status = Status::CommitFailed;
                        }
                        queue_pair.written.put_back(written);
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
    }

    /// Places a segment of a Write, and remembers it if its region wants that.
    #[cold]
    pub(crate) fn place_and_note(
        turn: &Turn<'_>,
        queue_pair: &mut QueuePair,
        stag: u32,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), AccessError> {
        let (association, written) = (queue_pair.association, &mut queue_pair.written);
        let note = |range| written.add(range);
        turn.place_transparent(association, stag, offset, payload, Access::REMOTE_WRITE, note)
    }

    /// Asks for what was written to be made durable, before a message is told.
    #[cold]
    pub(crate) fn commit_written(&mut self, turn: &Turn<'_>, queue_pair: &mut QueuePair) -> Hold {
        let key = self.commits.next_key();
        let mut asked = Asked::of(CommitStatus::Success);
        // A region that its owner has deregistered is not to be kept.
        queue_pair
            .written
            .0
            .retain(|range| turn.keep(range).map(|target| self.commits.ask(target, *range, key, &mut asked)).is_some());
        if asked.outstanding > 0 {
            let written = std::mem::take(&mut queue_pair.written);
            self.await_commit(key, Asker::Message { queue_pair: queue_pair.number, written }, asked);
            Hold::Commit(key)
        } else if asked.status == CommitStatus::Success {
            queue_pair.written.clear();
            Hold::Free
        } else {
            Hold::Failed
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
    use uwarp_memory::{Access, Association, DomainId, RegionTable, Scope, Store, StreamId, TaggedBase};

    fn asked(commits: &mut Commits, at: Instant) -> u64 {
        let key = commits.next_key();
        let asker = Asker::Message { queue_pair: 1, written: WrittenRanges::default() };
        let pending = Pending { asker, outstanding: 1, status: CommitStatus::Success };
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
        let us = Association { domain: DomainId(1), stream: StreamId(1) };
        let table = RegionTable::new(8, 1 << 20, 1);
        let regions = [(); 3].map(|()| {
            let scope = Scope::Domain(us.domain);
            table
                .register_durable(vec![0; 512], Access::ALL, scope, TaggedBase::Zero, Box::new(Nowhere), true)
                .expect("room")
        });
        let mut epoch = table.engine();
        let turn = epoch.enter();
        let way = |range: &KeptRange| match turn.keep(range) {
            Some(CommitTarget::Durable { durable, offset, length }) => {
                (std::ptr::from_ref(durable), offset as usize..(offset + length) as usize)
            }
            other => panic!("{other:?}"),
        };
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let mut written = WrittenRanges::default();
            let mut octets = HashMap::new();
            for _ in 0..random.usize(..200) {
                let (region, offset) = (&regions[random.usize(..3)].0, random.u64(..500));
                let length = random.usize(1..=512 - offset as usize);
                let note = |range| {
                    let (region, place) = way(&range);
                    octets.entry(region).or_insert([false; 512])[place].fill(true);
                    written.add(range);
                };
                turn.place_transparent(us, region.stag(), offset, &vec![1; length], Access::REMOTE_WRITE, note)
                    .expect("within");
            }
            assert!(written.0.len() <= RANGES + 3);
            for (region, octets) in octets {
                for at in (0..512).filter(|at| octets[*at]) {
                    let covers = |range| way(range).0 == region && way(range).1.contains(&at);
                    assert!(written.0.iter().any(covers), "octet {at}");
                }
            }
        }
    }

    struct Nowhere;

    impl Store for Nowhere {
        fn write(&mut self, _offset: u64, _octets: &[u8]) -> std::io::Result<()> {
            Ok(())
        }

        fn sync(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
