//! Received data that is ahead of a gap.

use std::collections::VecDeque;

use crate::event::{BufferToken, HeldPayload};
use crate::position::Position;

/// A held payload: the wanted octets, and where they begin in the buffer.
#[derive(Clone, Copy, Debug)]
struct Held {
    start: Position,
    end: Position,
    /// Octets of the payload before `start`.
    skip: u32,
    token: BufferToken,
}

/// A stretch without gaps, for a SACK block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: Position,
    pub(crate) end: Position,
}

/// The result for an offered payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    Held,
    /// All of it is held already.
    Duplicate,
    /// Data that precedes it uses up the budget.
    OverBudget,
}

/// Held payloads in the order of the sequence space, without overlaps, and the runs that they form. It is one null
/// pointer until something arrives out of order.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    lists: Option<Box<Lists>>,
}

#[derive(Debug, Default)]
struct Lists {
    held: VecDeque<Held>,
    /// The most recently changed run first (RFC 2018 §4).
    runs: Vec<Run>,
    /// Buffers to be returned.
    discarded: Vec<BufferToken>,
    /// The duplicate to report first in the next acknowledgment (RFC 2883).
    duplicate: Option<Run>,
    /// The owner takes nothing for now, so data in order is held, too.
    holding: bool,
    /// Octets behind RCV.NXT that the owner has, and that are not to be acknowledged yet.
    withheld: u32,
}

impl Reassembly {
    /// Whether nothing is held, and data in order need not be.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.as_ref().is_none_or(|lists| lists.held.is_empty() && !lists.holding)
    }

    /// Whether data in order is held, too.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.lists.as_ref().is_some_and(|lists| lists.holding)
    }

    /// Holds data in order, too, or no longer.
    pub(crate) fn set_holding(&mut self, holding: bool) {
        if holding || self.lists.is_some() {
            self.lists.get_or_insert_default().holding = holding;
        }
    }

    /// Whether nothing is held or to be held, and nothing has to be reported.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.lists.as_ref().is_none_or(|lists| lists.is_plain())
    }

    /// Octets behind RCV.NXT that the owner has, and that are not to be acknowledged yet.
    #[inline]
    pub(crate) fn withheld(&self) -> u32 {
        self.lists.as_ref().map_or(0, |lists| lists.withheld)
    }

    /// Withholds the last `octets` that were taken of the data before `next`. What waits to be taken is ahead of a gap
    /// then. Returns the new RCV.NXT, which is not before `acknowledged`.
    pub(crate) fn withhold(&mut self, next: Position, octets: u32, acknowledged: Position) -> Position {
        self.lists.get_or_insert_default().withhold(next, octets, acknowledged)
    }

    /// Withholds nothing any more. Returns the new RCV.NXT.
    pub(crate) fn release(&mut self, next: Position) -> Position {
        let withheld = self.lists.as_mut().map_or(0, |lists| std::mem::take(&mut lists.withheld));
        self.reach(next + withheld)
    }

    /// Whether the next acknowledgment has something to report.
    pub(crate) fn reports(&self) -> bool {
        self.lists.as_ref().is_some_and(|lists| lists.reports())
    }

    /// A duplicate arrived: the next acknowledgment reports it.
    pub(crate) fn note_duplicate(&mut self, duplicate: Run) {
        self.lists.get_or_insert_default().duplicate = Some(duplicate);
    }

    /// The duplicate that has not been reported yet.
    pub(crate) fn take_duplicate(&mut self) -> Option<Run> {
        self.lists.as_mut()?.duplicate.take()
    }

    /// Whether the owner has every buffer back.
    pub(crate) fn is_drained(&self) -> bool {
        self.lists.as_ref().is_none_or(|lists| lists.held.is_empty() && lists.discarded.is_empty())
    }

    /// Buffers held.
    pub(crate) fn len(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| lists.held.len())
    }

    /// The runs, the most recently changed first.
    #[inline]
    pub(crate) fn runs(&self) -> &[Run] {
        self.lists.as_ref().map_or(&[], |lists| &lists.runs)
    }

    /// A buffer that is no longer needed.
    #[inline]
    pub(crate) fn pop_discarded(&mut self) -> Option<BufferToken> {
        self.lists.as_mut()?.discarded.pop()
    }

    /// Octets of heap in use.
    pub(crate) fn heap(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| size_of::<Lists>() + lists.heap())
    }

    /// Frees memory.
    pub(crate) fn shrink(&mut self) {
        if self.is_drained() && self.is_plain() {
            self.lists = None;
        }
        if let Some(lists) = &mut self.lists {
            lists.held.shrink_to(0);
            lists.runs.shrink_to(0);
            lists.discarded.shrink_to(0);
        }
    }

    /// Discards everything.
    pub(crate) fn clear(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.discarded.extend(lists.held.drain(..).map(|held| held.token));
            lists.runs.clear();
            lists.holding = false;
            lists.withheld = 0;
        }
    }

    /// Offers the payload `start .. end`, of which `skip` octets before `start` are not wanted; at most `budget`
    /// buffers are held. Where payloads overlap, the one held first keeps its octets.
    pub(crate) fn offer(
        &mut self,
        start: Position,
        end: Position,
        skip: u32,
        token: BufferToken,
        budget: u32,
    ) -> Offered {
        self.lists.get_or_insert_default().offer(start, end, skip, token, budget)
    }

    /// The stream ends at `position`: discards everything held behind it.
    pub(crate) fn end_at(&mut self, position: Position) {
        if let Some(lists) = &mut self.lists {
            lists.end_at(position);
        }
    }

    /// Data up to `next` was delivered by another path: drops duplicates of it.
    pub(crate) fn drop_before(&mut self, next: Position) {
        if let Some(lists) = &mut self.lists {
            lists.drop_before(next);
        }
    }

    /// How far the stream reaches without a gap, given that it reaches `next` without held payloads.
    pub(crate) fn reach(&mut self, next: Position) -> Position {
        self.lists.as_mut().map_or(next, |lists| lists.reach(next))
    }

    /// Whether a payload before `next` waits to be taken, or would have to wait.
    #[inline]
    pub(crate) fn has_deliverable(&self, next: Position) -> bool {
        self.lists.as_ref().is_some_and(|lists| lists.has_deliverable(next))
    }

    /// The first held payload, if it lies before `next`, the end of the stream without gaps.
    #[inline]
    pub(crate) fn take(&mut self, next: Position) -> Option<HeldPayload> {
        self.lists.as_mut()?.take(next)
    }

    /// Panics if the lists do not agree. For tests.
    pub(crate) fn check(&self, next: Position) {
        if let Some(lists) = &self.lists {
            lists.check(next);
        }
    }
}

impl Lists {
    fn heap(&self) -> usize {
        self.held.capacity() * size_of::<Held>()
            + self.runs.capacity() * size_of::<Run>()
            + self.discarded.capacity() * size_of::<BufferToken>()
    }

    fn offer(&mut self, start: Position, end: Position, skip: u32, token: BufferToken, budget: u32) -> Offered {
        let mut new = Held { start, end, skip, token };
        // Nearly always the new payload is the last one.
        let mut at = self.held.partition_point(|held| held.start <= new.start);
        if at > 0 {
            let before = self.held[at - 1];
            if before.end > new.start {
                new.skip += before.end.min(new.end).octets_since(new.start);
                new.start = before.end.min(new.end);
            }
        }
        let held = self.held.len();
        while let Some(behind) = self.held.get(at).copied()
            && new.start < new.end
            && behind.start < new.end
        {
            if behind.start <= new.start {
                // It now begins where the new one begins.
                new.skip += behind.end.min(new.end).octets_since(new.start);
                new.start = behind.end.min(new.end);
                at += 1;
            } else if behind.end <= new.end {
                // The new one covers it: one buffer instead of two.
                self.discarded.push(behind.token);
                self.held.remove(at);
            } else {
                new.end = behind.start;
            }
        }
        if new.start >= new.end {
            self.touch(start, end);
            return Offered::Duplicate;
        }
        // One that has replaced others takes no more buffers than they did, and is all that there is of their octets.
        if self.held.len() == held && held >= budget as usize {
            // Payloads nearest to the gap are worth most.
            match self.held.back().copied() {
                Some(last) if at < self.held.len() => {
                    self.held.pop_back();
                    self.discarded.push(last.token);
                    self.cut_runs(last.start);
                }
                _ => return Offered::OverBudget,
            }
        }
        self.held.insert(at, new);
        self.join(new.start, new.end);
        Offered::Held
    }

    /// Moves the run that contains `start .. end` to the front.
    fn touch(&mut self, start: Position, end: Position) {
        if let Some(index) = self.runs.iter().position(|run| run.start <= start && end <= run.end) {
            self.runs[..=index].rotate_right(1);
        }
    }

    /// Adds `start .. end` to the runs; the run that it ends up in comes first.
    fn join(&mut self, start: Position, end: Position) {
        let mut joined = Run { start, end };
        self.runs.retain(|run| {
            let apart = run.end < start || end < run.start;
            if !apart {
                joined.start = joined.start.min(run.start);
                joined.end = joined.end.max(run.end);
            }
            apart
        });
        self.runs.insert(0, joined);
    }

    fn end_at(&mut self, position: Position) {
        while let Some(back) = self.held.back_mut()
            && back.end > position
        {
            if back.start < position {
                back.end = position;
                break;
            }
            self.discarded.push(back.token);
            self.held.pop_back();
        }
        self.cut_runs(position);
    }

    /// Nothing from `position` on is held any more.
    fn cut_runs(&mut self, position: Position) {
        for run in &mut self.runs {
            run.end = run.end.min(position);
        }
        self.runs.retain(|run| run.start < run.end);
    }

    fn drop_before(&mut self, next: Position) {
        while let Some(front) = self.held.front()
            && front.end <= next
        {
            self.discarded.push(front.token);
            self.held.pop_front();
        }
        if let Some(front) = self.held.front_mut()
            && front.start < next
        {
            front.skip += next.octets_since(front.start);
            front.start = next;
        }
    }

    fn reach(&mut self, next: Position) -> Position {
        // Runs are apart from each other, so only one can touch.
        let reached = self.runs.iter().find(|run| run.start <= next && run.end > next).map_or(next, |run| run.end);
        self.runs.retain(|run| run.end > reached);
        reached
    }

    fn is_plain(&self) -> bool {
        self.held.is_empty() && !self.holding && self.withheld == 0 && !self.reports()
    }

    fn withhold(&mut self, next: Position, octets: u32, acknowledged: Position) -> Position {
        let taken = self.held.front().map_or(next, |front| front.start.min(next));
        let first = (taken - octets).max(acknowledged);
        if first == taken {
            return next;
        }
        if taken < next {
            self.join(taken, next);
        }
        self.withheld = taken.octets_since(first);
        first
    }

    fn reports(&self) -> bool {
        !self.runs.is_empty() || self.duplicate.is_some()
    }

    fn has_deliverable(&self, next: Position) -> bool {
        self.holding || self.held.front().is_some_and(|front| front.end <= next)
    }

    #[inline]
    fn take(&mut self, next: Position) -> Option<HeldPayload> {
        let front = self.held.front()?;
        if front.end > next || self.holding {
            return None;
        }
        let taken = HeldPayload { token: front.token, skip: front.skip, len: front.end.octets_since(front.start) };
        self.held.pop_front();
        Some(taken)
    }

    fn check(&self, next: Position) {
        let mut at = None;
        for held in &self.held {
            assert!(held.start < held.end);
            assert!(at.is_none_or(|at| at <= held.start));
            at = Some(held.end);
            if held.end > next {
                assert!(held.start > next, "in order and not handed out");
                assert!(self.runs.iter().any(|run| run.start <= held.start && held.end <= run.end));
            }
        }
        for (index, run) in self.runs.iter().enumerate() {
            assert!(run.start < run.end && run.start > next);
            assert!(self.runs[..index].iter().all(|other| other.end < run.start || run.end < other.start));
            let inside = self.held.iter().filter(|held| run.start <= held.start && held.end <= run.end);
            let octets: u64 = inside.map(|held| held.end.since(held.start)).sum();
            assert_eq!(octets, run.end.since(run.start), "octets are reported that nobody holds");
        }
    }
}

#[cfg(test)]
mod tests;
