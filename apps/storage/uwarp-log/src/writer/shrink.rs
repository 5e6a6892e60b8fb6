//! A target that wants memory back: segments are moved out of its last slots, and it makes its region smaller. No
//! access right is revoked while work uses it (draft-talpey-rdma-commit §7).

use super::peer::{Behind, Op, Stage};
use super::{Action, CHUNK, Writer};
use crate::layout::{Entry, Geometry, MIN_SLOTS};
use crate::message::ToTarget;

impl Writer {
    /// Starts, or continues, to return slots of a target.
    pub(super) fn shrink_if_asked(&mut self, target: usize) {
        let Some(wanted) = self.peers[target].shrink else { return };
        if matches!(self.peers[target].stage, Stage::Live) {
            // One to write to, and one that stays free.
            let needed = |used: usize| used as u32 + 2;
            while self.options.overwrite
                && needed(self.kept_segments(target)) > wanted.max(MIN_SLOTS)
                && self.drop_oldest()
            {}
            self.peers[target].stage = Stage::Draining { shrink: true };
        }
        let peer = &mut self.peers[target];
        if matches!(peer.stage, Stage::Draining { shrink: true }) && peer.flight.is_empty() {
            let Some(geometry) = peer.geometry else { return };
            let used = peer.segments.len() as u32;
            let slots = wanted.max(used + 2).max(MIN_SLOTS).min(geometry.slots);
            let segments = peer.segments.iter().filter(|(_, (slot, _))| *slot >= slots).map(|(number, _)| *number);
            let segments = segments.collect();
            peer.free.retain(|slot| *slot < slots);
            peer.stage = Stage::Moving { slots, segments };
            self.move_on(target);
        }
    }

    /// Segments that the target will have when its start is the log's.
    fn kept_segments(&self, target: usize) -> usize {
        let first = self.start / self.segment_size();
        self.peers[target].segments.range(first..).count()
    }

    /// Moves the next segment, or reports that all are moved.
    fn move_on(&mut self, target: usize) {
        let peer = &mut self.peers[target];
        let (Stage::Moving { slots, segments }, Some(geometry)) = (&mut peer.stage, peer.geometry) else { return };
        let Some(segment) = segments.pop() else {
            let slots = *slots;
            peer.stage = Stage::Resizing;
            self.actions.push_back((target, Action::Send(ToTarget::Shrunk { slots })));
            return;
        };
        let Some((slot, _)) = peer.segments.get(&segment) else { return };
        let (begin, size) = (geometry.slot(*slot), u64::from(geometry.segment));
        let pieces = (0..size).step_by(CHUNK as usize).map(|at| (begin + at, CHUNK.min(size - at))).collect();
        peer.flight.push_back(Op::MoveRead { segment });
        self.actions.push_back((target, Action::Read(pieces)));
    }

    pub(super) fn move_read(&mut self, target: usize, segment: u64, octets: &[u8]) {
        let peer = &mut self.peers[target];
        let (Stage::Moving { .. }, Some(geometry)) = (&peer.stage, peer.geometry) else { return };
        let Some(slot) = peer.free.pop_first() else {
            self.failed(target, "there is no slot to move a segment to");
            return;
        };
        peer.flight.push_back(Op::MoveData { segment, slot });
        self.actions.push_back((target, Action::Write(vec![(geometry.slot(slot), octets.to_vec())], None)));
    }

    /// The copy is in the store. Only now may the table name it.
    pub(super) fn move_written(&mut self, target: usize, segment: u64, slot: u32) {
        let peer = &mut self.peers[target];
        let (Some(geometry), Some((_, entry))) = (peer.geometry, peer.segments.get(&segment)) else { return };
        let first = entry.first;
        let entry = peer.new_entry(segment, first);
        peer.flight.push_back(Op::MoveEntry { segment, slot, entry });
        let writes = vec![(geometry.entry(slot), entry.to_octets().to_vec())];
        self.actions.push_back((target, Action::Write(writes, None)));
    }

    pub(super) fn move_done(&mut self, target: usize, segment: u64, slot: u32, entry: Entry) {
        let peer = &mut self.peers[target];
        peer.segments.insert(segment, (slot, entry));
        self.move_on(target);
    }

    /// The target has made its region smaller.
    pub(super) fn resized(&mut self, target: usize, geometry: Geometry) {
        let peer = &mut self.peers[target];
        if !matches!(peer.stage, Stage::Resizing) {
            return;
        }
        peer.geometry = Some(geometry);
        peer.shrink = None;
        peer.free.retain(|slot| *slot < geometry.slots);
        let at = peer.durable.unwrap_or(self.start);
        peer.stage = Stage::Behind(Behind { at, part: self.options.chunk, busy: false });
    }
}
