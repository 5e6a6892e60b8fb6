//! Commits that peers request (draft-talpey-rdma-commit §3.2), and those that precede the delivery of a message because
//! its sender has written to a transparent region (§3.1.2).
//!
//! The engine asks the committer of each durable region and goes on. Answers come to a mailbox that it checks once a
//! turn while it waits for any. Until then a request keeps its place among the peer's requests, and a received message
//! its place among the messages. A time limit replaces an answer that does not come.
//!
//! A request of few octets may name much memory. Its overlapping ranges are joined, and a stream has a share of octets
//! under way at a time (`shares`). So nothing is refused for its size, and other streams have their turns meanwhile.
//!
//! A committer that is left to the engines works between turns, some octets at a time, so that commits of one batch
//! share a sync.
//!
//! Persistent memory has no committer: its caches are written back here. A little is written back at once, at
//! nanoseconds a line, which is cheaper than asking a thread. More is written back in parts, a bounded number of octets
//! a turn, for all waiting streams in turn.

mod held;
mod shares;

use uwarp_iwarp::Stream;
use uwarp_iwarp::stream::InboundCommit;
use uwarp_memory::{Access, AccessError, CommitStatus, CommitTarget, Turn};
use uwarp_tcp::Instant;

use self::shares::{Asker, Ended};
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::work::{Completion, Status};
use crate::connection::Connections;
use crate::connection::phase::Phase;
use crate::connection::running::Running;
use crate::link::port::Buffer;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::receive::{Failure, read_fault};
use crate::rdma::{Moment, Rdma};

pub(crate) use self::held::{Held, Hold, WaitingCommit, WrittenRanges};
pub(crate) use self::shares::Commits;

impl QueuePair {
    /// The stream is over: undelivered messages complete as flushed. They arrived, but what preceded them is not known
    /// to be durable.
    #[cold]
    pub(crate) fn flush_held(&mut self, lanes: &mut Lanes, counters: &mut Counters) {
        for mut held in self.held.drain(..) {
            held.completion.status = Status::Flushed;
            if !lanes.push(held.queue, held.completion) {
                counters.completion_overflows += 1;
            }
        }
    }

    /// Delivers the messages that no longer wait.
    pub(crate) fn deliver_held(&mut self, lanes: &mut Lanes) {
        while let Some(held) = self.held.front()
            && held.waits_for.is_none()
            && let Some(held) = self.held.pop_front()
        {
            if !lanes.push(held.queue, held.completion) {
                self.overflowed = Some(held.queue);
            }
        }
    }
}

impl Rdma {
    /// Takes a commit that the peer requests.
    #[cold]
    pub(crate) fn on_commit_request(
        &mut self,
        moment: Moment<'_>,
        running: &mut Running,
        queue_pair: &mut QueuePair,
        commit: &InboundCommit<'_>,
    ) -> Result<(), Failure> {
        let association = queue_pair.peer.writes;
        // Everything is checked before anything is asked for.
        let (mut ranges, mut is_plain) = (self.commits.list(), false);
        for region in commit.regions() {
            moment
                .turn
                .commit_targets(
                    association,
                    region.stag.0,
                    region.offset.0,
                    region.length,
                    |target, range| match target {
                        CommitTarget::Plain => is_plain = true,
                        CommitTarget::Persistent(_) | CommitTarget::Durable { .. } => ranges.push(range),
                    },
                )
                .map_err(|error| Failure::from(read_fault(error)))?;
        }
        let status = if commit.exceeds() {
            CommitStatus::Limit
        } else if is_plain && self.config.strict_commit {
            CommitStatus::Unsupported
        } else {
            CommitStatus::Success
        };
        let ticket = running.stream.accept_commit(commit.head);
        if running.stream.commit_waits(ticket) {
            queue_pair.waiting_commits.push_back(WaitingCommit { ticket, ranges, status });
        } else {
            self.begin_commit(moment, running, queue_pair.number, WaitingCommit { ticket, ranges, status });
        }
        Ok(())
    }

    /// Begins the commits that no longer wait for atomics.
    #[cold]
    pub(crate) fn begin_waiting_commits(
        &mut self,
        moment: Moment<'_>,
        running: &mut Running,
        queue_pair: &mut QueuePair,
    ) {
        while let Some(commit) = queue_pair.waiting_commits.front()
            && !running.stream.commit_waits(commit.ticket)
            && let Some(commit) = queue_pair.waiting_commits.pop_front()
        {
            self.begin_commit(moment, running, queue_pair.number, commit);
        }
    }

    fn begin_commit(&mut self, moment: Moment<'_>, running: &mut Running, queue_pair: u32, commit: WaitingCommit) {
        let WaitingCommit { ticket, ranges, mut status } = commit;
        let asker = || Asker::Request { ticket };
        if self.commits.begin(moment.turn, queue_pair, ranges, &mut status, moment.now, asker).is_none() {
            running.stream.commit_done(ticket, status.code());
        }
    }

    /// Processes answers of committers and expired time limits, and continues to write back.
    pub(crate) fn run_commits<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        common: &mut Common,
        turn: &Turn<'_>,
    ) {
        self.commits.write_back(turn);
        while let Some(ended) = self.commits.next(turn, common.now) {
            self.commit_ended(connections, &mut common.counters, ended);
        }
    }

    fn commit_ended<B: Buffer>(&mut self, connections: &mut Connections<B>, counters: &mut Counters, ended: Ended) {
        let Ended { key, queue_pair, asker, status } = ended;
        let Rdma { queue_pairs, lanes, .. } = self;
        let queue_pair = queue_pairs.get_mut(queue_pair as usize).and_then(Option::as_deref_mut);
        let found = queue_pair.and_then(|queue_pair| {
            let index = queue_pair.connection?;
            Some((queue_pair, index, connections.table.disturb(index)?))
        });
        let Some((queue_pair, index, connection)) = found else {
            return counters.cannot_be("a commit outlives its stream, see `Commits::abandon`");
        };
        match asker {
            Asker::Request { ticket } => {
                if let Phase::Running(running) = &mut connection.phase
                    && running.stream.commit_done(ticket, status.code())
                {
                    connection.quiet = false;
                    connection.schedule(&mut connections.ready);
                }
            }
            Asker::Message { written } => {
                if let Some(place) = queue_pair.held.iter().position(|held| held.waits_for == Some(key)) {
                    queue_pair.held[place].waits_for = None;
                    if status == CommitStatus::Success {
                        queue_pair.written.reuse(written);
                    } else {
                        // The messages behind it depend on the same writes; the next one tries again.
                        for held in queue_pair.held.range_mut(place..) {
                            held.completion.status = Status::CommitFailed;
                        }
                        queue_pair.written.put_back(written);
                    }
                }
                queue_pair.deliver_held(lanes);
                // It may have overflowed a queue, and later requests may be answered now.
                connections.schedule_index(index);
            }
        }
    }

    /// Places a segment of a Write, and remembers it if its region is transparent.
    #[cold]
    pub(crate) fn place_and_note(
        turn: &Turn<'_>,
        queue_pair: &mut QueuePair,
        stag: u32,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), AccessError> {
        let (association, written) = (queue_pair.peer.writes, &mut queue_pair.written);
        let note = |range| written.add(range);
        turn.place_transparent(association, stag, offset, payload, Access::REMOTE_WRITE, note)
    }

    /// What a message waits for that the peer sent behind its writes.
    #[inline]
    pub(super) fn hold_for(&mut self, turn: &Turn<'_>, now: Instant, queue_pair: &mut QueuePair) -> Hold {
        if queue_pair.written.is_empty() { Hold::Free } else { self.commit_written(turn, now, queue_pair) }
    }

    /// Requests that what was written becomes durable before a message is delivered.
    #[cold]
    fn commit_written(&mut self, turn: &Turn<'_>, now: Instant, queue_pair: &mut QueuePair) -> Hold {
        let mut ranges = self.commits.list();
        // A region that its owner has deregistered need not be kept.
        queue_pair.written.0.retain(|range| turn.keep(range).is_some());
        ranges.extend_from_slice(&queue_pair.written.0);
        let (mut status, written) = (CommitStatus::Success, &mut queue_pair.written);
        let asker = || Asker::Message { written: std::mem::take(written) };
        match self.commits.begin(turn, queue_pair.number, ranges, &mut status, now, asker) {
            Some(key) => Hold::Commit(key),
            None if status == CommitStatus::Success => {
                queue_pair.written.clear();
                Hold::Free
            }
            None => Hold::Failed,
        }
    }

    /// Delivers a received message, now or when what it waits for is done.
    #[inline]
    pub(crate) fn deliver_receive(
        &mut self,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        mut completion: Completion,
        hold: Hold,
    ) {
        let queue = queue_pair.receive_completions;
        let waits_for = match hold {
            Hold::Free if queue_pair.held.is_empty() => {
                return queue_pair.complete_receive(&mut self.lanes, completion);
            }
            Hold::Free => None,
            Hold::Failed => {
                completion.status = Status::CommitFailed;
                None
            }
            Hold::Commit(key) => Some(key),
        };
        queue_pair.held.push_back(Held { completion, queue, waits_for, requests: stream.requests_accepted() });
        queue_pair.deliver_held(&mut self.lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::held::RANGES;
    use super::*;
    use hashbrown::HashMap;
    use uwarp_memory::KeptRange;
    use uwarp_memory::{Access, Association, DomainId, RegionTable, Scope, Store, StreamId, TaggedBase};

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
