//! The send queue: records that the owner pushed, and the scoreboard of sent segments.
//!
//! It has two lists. *Records* are what the owner pushed, each with its buffer's token, kept until acknowledged.
//! *Segments* are sent and unacknowledged, in the order of the sequence space without gaps. Each lies within one
//! record, or is the SYN or the FIN. Octets in flight, selectively acknowledged and considered lost are counted per
//! segment, so the three sums always agree with the list.

mod cut;
mod fresh;
mod order;
mod segment;
mod transmissions;

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::{BufferToken, Slice};
use crate::instant::Instant;
use crate::position::Position;
use crate::short_queue::ShortQueue;
use segment::Record;
pub(crate) use segment::{Content, Delivered, Fate, Segment, Unsent};
use transmissions::SendOrder;

/// State needed only while segments are lost or selectively acknowledged.
#[derive(Debug, Default)]
struct Marks {
    /// Ends of the lost segments, the lowest first, followed by some that are no longer lost. Meaningless while none is
    /// lost.
    lost: BinaryHeap<Reverse<Position>>,
    sacked_segments: u32,
    order: SendOrder,
    /// Segments examined since [`SendQueue::take_walked`].
    walked: u64,
}

/// The queue, without the rare state.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQueue {
    /// Marked with the number of the first of them.
    records: ShortQueue<Record>,
    /// Marked with the number of the first record that has unsent octets.
    segments: ShortQueue<Segment>,
    /// SND.UNA.
    unacknowledged: Position,
    /// SND.NXT: the end of `segments`.
    next: Position,
    /// The end of the records.
    end: Position,
    /// The highest end of a delivered segment (RFC 8985, RACK.fack).
    forward: Position,
    in_flight: u32,
    sacked: u32,
    lost: u32,
    /// The octet behind `next` was sent as a window probe.
    probed: bool,
    /// None until something is marked.
    marks: Option<Box<Marks>>,
}

impl SendQueue {
    /// A queue whose sequence space begins with a SYN at `initial`.
    pub(crate) fn new(initial: Position) -> SendQueue {
        SendQueue {
            records: ShortQueue::default(),
            segments: ShortQueue::default(),
            unacknowledged: initial,
            next: initial,
            end: initial + 1,
            in_flight: 0,
            sacked: 0,
            lost: 0,
            forward: initial,
            probed: false,
            marks: None,
        }
    }

    /// SND.UNA.
    #[inline]
    pub(crate) fn unacknowledged(&self) -> Position {
        self.unacknowledged
    }

    /// SND.NXT.
    #[inline]
    pub(crate) fn next(&self) -> Position {
        self.next
    }

    /// The end of everything ever sent.
    #[inline]
    pub(crate) fn highest(&self) -> Position {
        self.next + u32::from(self.probed)
    }

    /// The end of the pushed records, where the FIN goes.
    #[inline]
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// Octets sent and neither acknowledged, selectively acknowledged nor considered lost.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Octets selectively acknowledged.
    #[inline]
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Segments selectively acknowledged.
    #[inline]
    pub(crate) fn sacked_segments(&self) -> u32 {
        self.marks.as_ref().map_or(0, |marks| marks.sacked_segments)
    }

    /// Octets considered lost.
    #[inline]
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// Octets pushed and never sent.
    #[inline]
    pub(crate) fn unsent(&self) -> u64 {
        self.end.since(self.next)
    }

    /// Records that are not given back.
    #[inline]
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    /// Segments that are not acknowledged.
    #[inline]
    pub(crate) fn segments(&self) -> &ShortQueue<Segment> {
        &self.segments
    }

    /// Appends a record.
    #[inline(always)]
    pub(crate) fn push(&mut self, token: BufferToken, len: u32) {
        self.records.push_back(Record { start: self.end, len, token });
        self.end = self.end + len;
    }

    /// The last record if none of it was sent.
    #[inline]
    pub(crate) fn unsent_tail(&self) -> Option<(BufferToken, u32)> {
        self.records.back().filter(|record| record.start >= self.highest()).map(|record| (record.token, record.len))
    }

    /// Appends octets to the last record if none of it was sent. Returns whether it did.
    #[inline]
    pub(crate) fn extend_tail(&mut self, octets: u32) -> bool {
        let highest = self.highest();
        match self.records.back_mut() {
            Some(record) if record.start >= highest => {
                let Some(len) = record.len.checked_add(octets) else { return false };
                record.len = len;
                self.end = self.end + octets;
                true
            }
            _ => false,
        }
    }

    /// Nobody knows when the SYN was sent.
    pub(crate) fn forget_times(&mut self) {
        for segment in self.segments.iter_mut() {
            segment.retransmitted = true;
        }
    }

    /// Whether no record is left.
    pub(crate) fn is_drained(&self) -> bool {
        self.records.is_empty()
    }

    /// The oldest record if all of it is acknowledged.
    #[inline]
    pub(crate) fn pop_acknowledged(&mut self) -> Option<BufferToken> {
        let record = self.records.front()?;
        if record.end() > self.unacknowledged {
            return None;
        }
        self.pop_record()
    }

    /// Any record, at the end of the connection.
    #[inline]
    pub(crate) fn pop_record(&mut self) -> Option<BufferToken> {
        let record = self.records.pop_front()?;
        if self.segments.mark == self.records.mark {
            self.segments.mark = self.segments.mark.wrapping_add(1);
        }
        self.records.mark = self.records.mark.wrapping_add(1);
        Some(record.token)
    }

    /// Keeps a record that will not be sent, to be returned with the others.
    pub(crate) fn refuse(&mut self, token: BufferToken) {
        self.records.push_back(Record { start: self.end, len: 0, token });
    }

    /// Marks segments in flight with a payload above `limit` octets as lost; returns whether there are any.
    pub(crate) fn lose_larger_than(&mut self, limit: u32) -> bool {
        let mut found = false;
        for index in 0..self.segments.len() {
            if self.segments[index].len > limit && self.segments[index].fate == Fate::InFlight {
                self.set_fate(index, Fate::Lost);
                found = true;
            }
        }
        found
    }

    /// Forgets sent segments at the end of the connection. Records stay until they are popped.
    pub(crate) fn stop(&mut self) {
        self.segments.reset();
        (self.in_flight, self.sacked, self.lost) = (0, 0, 0);
        self.marks = None;
    }

    /// Frees memory that a busy period has left behind.
    pub(crate) fn shrink(&mut self) {
        self.records.shrink();
        self.segments.shrink();
        if self.segments.is_empty() {
            self.marks = None;
        }
    }

    /// Octets of heap in use.
    pub(crate) fn heap(&self) -> usize {
        let marks = self.marks.as_ref().map_or(0, |marks| {
            size_of::<Marks>() + marks.order.heap() + marks.lost.capacity() * size_of::<Reverse<Position>>()
        });
        self.records.heap() + self.segments.heap() + marks
    }

    /// The oldest record's buffer.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<BufferToken> {
        self.records.front().map(|record| record.token)
    }

    #[inline]
    fn record(&self, number: u32) -> Option<&Record> {
        self.records.get(number.wrapping_sub(self.records.mark) as usize)
    }

    /// The first record with unsent octets. Empty records are skipped.
    #[inline(always)]
    pub(crate) fn first_unsent(&self) -> Option<Unsent> {
        let mut number = self.segments.mark;
        while let Some(record) = self.record(number) {
            let end = record.end();
            if end > self.next {
                return Some(Unsent { number, record: *record, len: end.octets_since(self.next) });
            }
            number = number.wrapping_add(1);
        }
        None
    }

    /// Sends the next `len` octets for the first time, all or some of `unsent`, which is [`SendQueue::first_unsent`].
    #[inline(always)]
    pub(crate) fn send_fresh(&mut self, now: Instant, unsent: Unsent, len: u32) -> Slice {
        let Unsent { number, record, len: rest } = unsent;
        let offset = record.len - rest;
        let len = len.min(rest);
        let again = self.probed;
        self.append(Segment {
            start: self.next,
            sent_at: now,
            len,
            record: number,
            sacked_len: 0,
            fate: Fate::InFlight,
            content: Content::Data,
            // The octet may have arrived as a window probe, which makes its timing ambiguous.
            retransmitted: again,
            resent: false,
        });
        self.segments.mark = if len == rest { number.wrapping_add(1) } else { number };
        Slice { token: record.token, offset, len, whole_first_transmission: len == record.len && !again }
    }

    /// Sends the SYN or the FIN for the first time.
    pub(crate) fn send_control(&mut self, now: Instant, content: Content) {
        self.append(Segment {
            start: self.next,
            sent_at: now,
            len: 1,
            record: 0,
            sacked_len: 0,
            fate: Fate::InFlight,
            content,
            retransmitted: false,
            resent: false,
        });
    }

    #[inline(always)]
    fn append(&mut self, segment: Segment) {
        self.in_flight += segment.len;
        self.next = segment.end();
        self.probed = false;
        self.segments.push_back(segment);
    }

    /// The octet behind SND.NXT, as the payload of a window probe (RFC 9293 §3.8.6.1). It does not count as sent.
    pub(crate) fn probe_octet(&mut self) -> Option<Slice> {
        let unsent = self.first_unsent()?;
        self.probed = true;
        Some(Slice {
            token: unsent.record.token,
            offset: unsent.record.len - unsent.len,
            len: 1,
            whole_first_transmission: false,
        })
    }

    /// The payload of a segment of the list.
    #[inline]
    fn slice(&self, segment: &Segment) -> Option<Slice> {
        if segment.content != Content::Data {
            return None;
        }
        let record = self.record(segment.record)?;
        Some(Slice {
            token: record.token,
            offset: segment.start.octets_since(record.start),
            len: segment.len,
            whole_first_transmission: false,
        })
    }

    /// Index of the first segment that ends behind `position`.
    #[inline]
    fn index_of(&self, position: Position) -> usize {
        self.segments.partition_point(|segment| segment.end() <= position)
    }

    /// Index of the segment with this end, if it is lost.
    #[inline]
    fn find_lost(&self, end: Position) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.end() < end);
        self.segments.get(index).filter(|segment| segment.end() == end && segment.fate == Fate::Lost).map(|_| index)
    }

    /// Index of the lost segment with the lowest sequence number.
    #[inline]
    pub(crate) fn first_lost(&self) -> Option<usize> {
        if self.lost == 0 {
            return None;
        }
        let Reverse(end) = self.marks.as_ref()?.lost.peek()?;
        self.find_lost(*end)
    }

    /// Octets of the segment from [`SendQueue::first_lost`].
    pub(crate) fn first_lost_len(&self) -> u32 {
        self.first_lost().map_or(0, |index| self.segments[index].len)
    }

    /// Restores the invariant that the lowest end in the list of lost segments is that of a lost one.
    #[cold]
    fn tidy_lost(&mut self) {
        while let Some(end) = self.marks.as_ref().and_then(|marks| marks.lost.peek().copied())
            && self.find_lost(end.0).is_none()
            && let Some(marks) = &mut self.marks
        {
            marks.walked += 1;
            marks.lost.pop();
        }
    }

    /// Retransmits at most `limit` octets of a segment of the list. The remainder becomes a segment of its own with the
    /// fate that this one had. Returns the segment as sent, and its payload.
    pub(crate) fn retransmit(&mut self, now: Instant, index: usize, limit: u32) -> Option<(Segment, Option<Slice>)> {
        let segment = *self.segments.get(index)?;
        debug_assert!(segment.fate != Fate::Sacked, "retransmission of a segment that the peer has");
        if segment.len > limit && limit > 0 {
            let rest = Segment { start: segment.start + limit, len: segment.len - limit, ..segment };
            self.segments[index].len = limit;
            self.segments.insert(index + 1, rest);
        }
        self.set_fate(index, Fate::InFlight);
        let segment = &mut self.segments[index];
        segment.sent_at = now;
        segment.retransmitted = true;
        segment.resent = true;
        let segment = *segment;
        self.note_sent_again(segment.transmission());
        Some((segment, self.slice(&segment)))
    }

    /// Index of the segment with the highest sequence number that can be sent as a probe.
    pub(crate) fn last(&self) -> Option<usize> {
        self.segments.last_position(|segment| segment.fate != Fate::Sacked)
    }

    #[inline]
    fn count(&mut self, fate: Fate, len: u32) {
        match fate {
            Fate::InFlight => self.in_flight += len,
            Fate::Sacked => {
                self.sacked += len;
                self.marks.get_or_insert_default().sacked_segments += 1;
            }
            Fate::Lost => self.lost += len,
        }
    }

    #[inline]
    fn uncount(&mut self, fate: Fate, len: u32) {
        match fate {
            Fate::InFlight => self.in_flight -= len,
            Fate::Sacked => {
                self.sacked -= len;
                self.marks.get_or_insert_default().sacked_segments -= 1;
            }
            Fate::Lost => self.lost -= len,
        }
    }

    /// Changes the fate of a segment.
    #[inline]
    pub(crate) fn set_fate(&mut self, index: usize, fate: Fate) {
        let segment = &mut self.segments[index];
        let (before, len, end) = (segment.fate, segment.len, Reverse(segment.end()));
        if before == fate {
            return;
        }
        segment.fate = fate;
        segment.sacked_len = len;
        if fate == Fate::Lost {
            let lost = &mut self.marks.get_or_insert_default().lost;
            if self.lost == 0 {
                lost.clear();
            }
            lost.push(end);
        }
        self.uncount(before, len);
        self.count(fate, len);
        if before == Fate::Lost && self.marks.as_ref().is_some_and(|marks| marks.lost.peek() == Some(&end)) {
            self.tidy_lost();
        }
    }

    /// The peer has everything before `position` (at most [`SendQueue::highest`]).
    #[inline]
    pub(crate) fn acknowledge(&mut self, position: Position, delivered: &mut Delivered) {
        // Most often all were sent once, and none before the acknowledgment was reported: the ends of the run say all.
        let plain = self.segments.count_first(|segment| segment.end() <= position && segment.is_plain());
        if let Some(last) = plain.checked_sub(1).and_then(|last| self.segments.get(last).copied()) {
            let first = self.segments[0];
            delivered.add_run(&first, &last, &mut self.forward);
            self.in_flight -= last.end().octets_since(first.start);
            self.segments.drop_first(plain);
        }
        while let Some(segment) = self.segments.front_mut() {
            if segment.end() <= position {
                let segment = *segment;
                self.segments.pop_front();
                self.uncount(segment.fate, segment.len);
                if segment.fate != Fate::Sacked {
                    delivered.add(&segment, &mut self.forward);
                }
            } else if segment.start < position {
                // Partly acknowledged: the remainder keeps its fate.
                let part = Segment { len: position.octets_since(segment.start), ..*segment };
                segment.start = position;
                segment.len -= part.len;
                segment.sacked_len = segment.sacked_len.saturating_sub(part.len);
                match part.fate {
                    Fate::InFlight => self.in_flight -= part.len,
                    Fate::Sacked => self.sacked -= part.len,
                    Fate::Lost => self.lost -= part.len,
                }
                if part.fate != Fate::Sacked {
                    delivered.add(&part, &mut self.forward);
                }
                break;
            } else {
                break;
            }
        }
        if self.lost > 0 {
            self.tidy_lost();
        }
        delivered.advanced = position.octets_since(self.unacknowledged);
        self.unacknowledged = position;
        if self.next < position {
            // The octet of a window probe was accepted.
            self.next = position;
            self.probed = false;
        }
    }

    /// The same, if it covers just the oldest segment, which was sent once and not overtaken. Returns when it was sent
    /// and its octets. Otherwise it does nothing. For phases without losses and SACK reports.
    #[inline(always)]
    pub(crate) fn acknowledge_oldest(&mut self, position: Position) -> Option<(Instant, u32)> {
        let segment = self.segments.front()?;
        if segment.end() != position
            || segment.retransmitted
            || segment.fate != Fate::InFlight
            || position < self.forward
        {
            return None;
        }
        let (sent_at, len) = (segment.sent_at, segment.len);
        self.segments.drop_front();
        self.in_flight -= len;
        self.forward = position;
        self.unacknowledged = position;
        Some((sent_at, len))
    }

    /// The peer holds `left .. right`. A segment counts if the block covers all of it.
    ///
    /// A peer repeats its blocks and extends them. Segments already sacked are skipped in steps that grow with each
    /// use, as in a union-find structure. Whatever the blocks are, the work is at worst the number of newly sacked
    /// segments times the logarithm of all.
    pub(crate) fn sack(&mut self, left: Position, right: Position, delivered: &mut Delivered) {
        let first = self.segments.partition_point(|segment| segment.start < left);
        let mut index = first;
        let mut walked = 0;
        let mut end = left;
        while let Some(segment) = self.segments.get(index).copied()
            && segment.end() <= right
        {
            walked += 1;
            if segment.fate != Fate::Sacked {
                self.set_fate(index, Fate::Sacked);
                delivered.add(&segment, &mut self.forward);
                end = segment.end();
                index += 1;
                continue;
            }
            end = segment.start + segment.sacked_len;
            let next = if segment.sacked_len == segment.len { index + 1 } else { self.index_of(end) };
            if let Some(behind) = self.segments.get(next)
                && behind.fate == Fate::Sacked
            {
                self.segments[index].sacked_len = segment.sacked_len + behind.sacked_len;
            }
            index = next;
        }
        if walked > 1 {
            self.segments[first].sacked_len = end.octets_since(self.segments[first].start);
        }
        if let Some(marks) = &mut self.marks {
            marks.walked += walked;
        }
    }

    /// Segments examined since the last call, to process SACK blocks and to find losses.
    pub(crate) fn take_walked(&mut self) -> u64 {
        self.marks.as_mut().map_or(0, |marks| core::mem::take(&mut marks.walked))
    }

    /// The peer has discarded what it reported (RFC 2018 §8): no segment counts as sacked any more.
    pub(crate) fn forget_sacks(&mut self) {
        for index in 0..self.segments.len() {
            if self.segments[index].fate == Fate::Sacked {
                self.set_fate(index, Fate::Lost);
            }
        }
    }

    /// Nothing was lost after all.
    pub(crate) fn forget_losses(&mut self) {
        if let Some(marks) = &mut self.marks {
            marks.lost.clear();
            marks.walked += self.segments.len() as u64;
        }
        for index in 0..self.segments.len() {
            if self.segments[index].fate == Fate::Lost {
                self.set_fate(index, Fate::InFlight);
            }
        }
        // They have been in flight since a transmission that was already read.
        self.read_anew();
    }

    /// Panics if the sums do not agree with the lists. For tests.
    pub(crate) fn check(&self) {
        let sum = |fate: Fate| self.segments.iter().filter(|segment| segment.fate == fate).map(|s| s.len).sum::<u32>();
        assert_eq!(self.in_flight, sum(Fate::InFlight), "in flight");
        assert_eq!(self.sacked, sum(Fate::Sacked), "sacked");
        assert_eq!(self.lost, sum(Fate::Lost), "lost");
        assert_eq!(
            self.sacked_segments() as usize,
            self.segments.iter().filter(|segment| segment.fate == Fate::Sacked).count()
        );
        let mut at = self.unacknowledged;
        for segment in self.segments.iter() {
            assert_eq!(segment.start, at, "a gap in the scoreboard");
            assert!(segment.len > 0);
            at = segment.end();
        }
        assert_eq!(at, self.next);
        assert!(self.unacknowledged <= self.next && self.next <= self.highest());
        let marks = self.marks.as_deref();
        let mut run_end = self.next;
        for index in (0..self.segments.len()).rev() {
            let segment = self.segments[index];
            if segment.fate != Fate::Sacked {
                run_end = segment.start;
                continue;
            }
            let end = segment.start + segment.sacked_len;
            assert!(segment.end() <= end && end <= run_end, "{segment:?}: sacked_len exceeds what is sacked");
            assert_eq!(self.segments[self.index_of(end) - 1].end(), end, "a step that ends inside a segment");
        }
        let mut lost = self.segments.iter().filter(|segment| segment.fate == Fate::Lost);
        let first = self.segments.iter().position(|segment| segment.fate == Fate::Lost);
        assert_eq!(self.first_lost(), first, "the first lost segment");
        assert!(lost.all(|lost| marks.is_some_and(|marks| marks.lost.iter().any(|end| end.0 == lost.end()))));
        self.check_order();
    }
}
