//! Entries of the scoreboard for frames that the device has cut into segments: the peer may have some of those and not
//! others, so an entry is cut in two where that shows.

use core::cmp::Reverse;

use super::SendQueue;
use super::segment::{Fate, Segment};
use crate::position::Position;

impl SendQueue {
    /// Cuts frames inside which `left .. right`, which the peer holds, begins or ends, so that entries cover just the
    /// segments that it holds whole. `piece`: octets of a segment that the device has cut out of a frame. No longer
    /// entry than `segment` octets is no frame, and stays.
    ///
    /// It cuts only where whole segments remain on both sides. So a peer, whatever it reports, causes as many entries
    /// as there are segments.
    pub(crate) fn cut_around(&mut self, left: Position, right: Position, (piece, segment): (u32, u32)) {
        let from = self.rounded(left, segment, |inside| inside.next_multiple_of(piece));
        let to = self.rounded(right, segment, |inside| inside / piece * piece);
        if from >= to {
            return;
        }
        for edge in [from, to] {
            let index = self.index_of(edge);
            if let Some(entry) = self.segments.get(index)
                && entry.start < edge
                && entry.len > segment
                && entry.fate != Fate::Sacked
            {
                self.cut(index, edge.octets_since(entry.start));
            }
        }
    }

    /// A position inside a frame with its distance from the frame's start rounded; any other as it is.
    fn rounded(&self, edge: Position, segment: u32, round: impl Fn(u32) -> u32) -> Position {
        match self.segments.get(self.index_of(edge)) {
            Some(entry) if entry.start < edge && entry.len > segment && entry.fate != Fate::Sacked => {
                entry.start + round(edge.octets_since(entry.start)).min(entry.len)
            }
            _ => edge,
        }
    }

    /// Cuts a segment that is not sacked behind `octets` of it, fewer than it has. Both parts have its fate and its
    /// time.
    pub(crate) fn cut(&mut self, index: usize, octets: u32) {
        let whole = self.segments[index];
        debug_assert!(octets > 0 && octets < whole.len && whole.fate != Fate::Sacked);
        self.segments[index].len = octets;
        self.segments.insert(index + 1, Segment { start: whole.start + octets, len: whole.len - octets, ..whole });
        // The second part has the end of the whole, which the lists know; they learn of the first.
        let first = self.segments[index];
        let Some(marks) = &mut self.marks else { return };
        marks.walked += 1;
        if whole.fate == Fate::Lost {
            marks.lost.push(Reverse(first.end()));
            return;
        }
        let order = &mut marks.order;
        let list = match whole.resent {
            true => &mut order.again,
            false if whole.end() <= order.read_to => &mut order.overtaken,
            // It is still to be read.
            false => return,
        };
        let place = list.partition_point(|earlier| *earlier < first.transmission());
        list.insert(place, first.transmission());
    }
}
