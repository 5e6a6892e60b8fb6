//! The scoreboard in the order of transmission, for RACK (RFC 8985 §6.2, step 5): it finds losses without examining
//! everything in flight.
//!
//! Segments sent once were sent in the order of the sequence space. For them the scoreboard itself is the list, and a
//! position says how far it was read. Retransmissions have a list of their own. Both are read together, up to the
//! newest segment that RACK knows to be delivered, which only moves forward: so each transmission is read once. Those
//! that may still be in flight by then are *overtaken*. The oldest of them is lost first, and the newest determines the
//! next check.
//!
//! The lists are not updated when the fate of a segment changes: a transmission that is no longer in flight is dropped
//! when it is encountered.

use super::SendQueue;
use super::segment::{Fate, Segment};
use super::transmissions::Transmission;
use crate::instant::Instant;
use crate::position::Position;
use crate::short_queue::ShortQueue;

/// Index of the segment of this transmission, if it is still in flight.
fn find(segments: &ShortQueue<Segment>, sent: Transmission) -> Option<usize> {
    let index = segments.partition_point(|segment| segment.end() < sent.1);
    segments
        .get(index)
        .filter(|segment| segment.transmission() == sent && segment.fate == Fate::InFlight)
        .map(|_| index)
}

impl SendQueue {
    /// A segment was retransmitted.
    pub(super) fn note_sent_again(&mut self, sent: Transmission) {
        let order = &mut self.marks.get_or_insert_default().order;
        // At the end, unless several were sent at once and out of the order of the sequence space.
        let place = order.again.partition_point(|earlier| *earlier < sent);
        order.again.insert(place, sent);
        // Where nothing reads the list, as without SACK, it fills with stale entries.
        if order.again.len() > 2 * self.segments.len() {
            self.read_anew();
        }
    }

    /// Restarts reading at the oldest segment.
    pub(super) fn read_anew(&mut self) {
        let Some(marks) = &mut self.marks else { return };
        marks.walked += self.segments.len() as u64;
        let order = &mut marks.order;
        order.read_to = Position::default();
        order.overtaken.clear();
        order.again.clear();
        let again = self.segments.iter().filter(|segment| segment.resent && segment.fate == Fate::InFlight);
        order.again.extend(again.map(Segment::transmission));
        order.again.make_contiguous().sort_unstable();
    }

    /// Reads the transmissions before `newest`, which never becomes earlier.
    pub(crate) fn overtake(&mut self, newest: Transmission) {
        match self.segments.front() {
            Some(front) if front.resent || front.transmission() < newest => {}
            // The usual end: all remaining transmissions are later.
            _ => return,
        }
        let mut index = self.marks.as_ref().map_or(0, |marks| self.index_of(marks.order.read_to));
        let marks = self.marks.get_or_insert_default();
        let order = &mut marks.order;
        loop {
            marks.walked += 1;
            let once = self.segments.get(index);
            if once.is_some_and(|segment| segment.resent) {
                index += 1;
                continue;
            }
            let once = once.map(Segment::transmission);
            let again = order.again.front().copied();
            let Some(next) = once.into_iter().chain(again).min().filter(|next| *next < newest) else { break };
            if once == Some(next) {
                index += 1;
            } else {
                order.again.pop_front();
            }
            if find(&self.segments, next).is_some() {
                order.overtaken.push_back(next);
            }
        }
        order.read_to = self.segments.get(index).map_or(self.next, |segment| segment.start);
    }

    /// The first-sent segment among those overtaken and in flight: its index, and when it was sent.
    pub(crate) fn oldest_overtaken(&mut self) -> Option<(usize, Instant)> {
        let marks = self.marks.as_mut()?;
        let order = &mut marks.order;
        while let Some(&oldest) = order.overtaken.front() {
            marks.walked += 1;
            if let Some(index) = find(&self.segments, oldest) {
                return Some((index, oldest.0));
            }
            order.overtaken.pop_front();
        }
        None
    }

    /// When the last-sent segment among those overtaken and in flight was sent.
    pub(crate) fn newest_overtaken(&mut self) -> Option<Instant> {
        let marks = self.marks.as_mut()?;
        let order = &mut marks.order;
        while let Some(&newest) = order.overtaken.back() {
            marks.walked += 1;
            if find(&self.segments, newest).is_some() {
                return Some(newest.0);
            }
            order.overtaken.pop_back();
        }
        None
    }

    /// Panics if a segment in flight is in no list. For tests.
    pub(super) fn check_order(&self) {
        let order = self.marks.as_ref().map(|marks| &marks.order);
        let listed = order.into_iter().flat_map(|order| order.again.iter().chain(&order.overtaken));
        let listed: std::collections::BTreeSet<_> = listed.collect();
        let read_to = order.map_or(Position::default(), |order| order.read_to);
        for segment in self.segments.iter().filter(|segment| segment.fate == Fate::InFlight) {
            assert!(
                listed.contains(&segment.transmission()) || (!segment.resent && segment.end() > read_to),
                "{segment:?} would never be considered lost"
            );
        }
        assert!(order.is_none_or(|order| order.again.iter().is_sorted()), "an unsorted list");
    }
}
