//! A writer's knowledge of one target.

use crate::layout::{Entry, First, Geometry, Table};
use crate::record::{Found, Tail};
use std::collections::VecDeque;
use std::collections::{BTreeMap, BTreeSet};

/// The slot of a segment, and its entry in the table.
type Place = (u32, Entry);

/// Where a target is.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Away,
    /// A Hello is on its way.
    Greeting,
    /// It has said what it has.
    Waiting,
    /// A Claim is on its way.
    Claiming,
    /// Its table is read.
    Reading,
    /// Its records are being read, from the head on.
    Scanning(Box<Scan>),
    Scanned(Tail),
    /// Committing words and table, and the end of the chosen copy.
    Settling {
        /// Up to here it is the log's.
        end: u64,
    },
    /// It is getting what it lacks.
    Behind(Behind),
    /// It gets each record as it is appended.
    Live,
    /// It gets nothing until what is under way has been answered.
    Draining {
        /// Return slots after that.
        shrink: bool,
    },
    /// Segments are moved to other slots.
    Moving {
        slots: u32,
        segments: Vec<u64>,
    },
    /// It makes its region smaller.
    Resizing,
    /// It cannot be worked with.
    Useless,
}

impl Stage {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Stage::Away => "away",
            Stage::Greeting | Stage::Waiting | Stage::Claiming => "greeted",
            Stage::Reading | Stage::Scanning(_) | Stage::Scanned(_) | Stage::Settling { .. } => "read",
            Stage::Behind(_) => "behind",
            Stage::Live => "live",
            Stage::Draining { .. } => "draining",
            Stage::Moving { .. } | Stage::Resizing => "shrinking",
            Stage::Useless => "useless",
        }
    }
}

/// A search for the end of a copy.
#[derive(Debug)]
pub(super) struct Scan {
    /// Where it began.
    pub(super) from: u64,
    /// The required sequence number of the first record, if the walk begins at the start. At a head, it is the one
    /// found there.
    pub(super) first: Option<u64>,
    /// What was found.
    pub(super) tail: Tail,
    /// Octets from the tail's position on.
    pub(super) octets: Vec<u8>,
}

impl Scan {
    /// Whether committed data is missing. The committed log reached up to `durable`, perhaps in the middle of a record:
    /// a copy that was away gets its part of the log in parts of any length, and may be lost between two of them.
    pub(super) fn lacks(&self, durable: u64) -> bool {
        let Some(rest) = durable.checked_sub(self.tail.position).filter(|rest| *rest > 0) else { return false };
        let rest = usize::try_from(rest).ok().and_then(|rest| self.octets.get(..rest));
        !rest.is_some_and(|rest| matches!(self.tail.find(rest), Found::Needs(_)))
    }
}

/// The progress of a copy that gets its missing part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    /// Where its next part begins,
    pub(super) at: u64,
    /// and the most octets of it. Each part is larger than the last, because the log grows while one is under way.
    pub(super) part: u64,
    /// Something is under way.
    pub(super) busy: bool,
}

/// An unanswered action at a target.
#[derive(Debug)]
pub(super) enum Op {
    Table,
    Scan,
    Settle {
        last: bool,
    },
    Start(u64),
    Append {
        end: u64,
        octets: u64,
    },
    Copy {
        end: u64,
        /// Each record follows it.
        last: bool,
    },
    Head(u64),
    /// A part of the log for another target.
    Fetch {
        for_peer: usize,
        incarnation: u64,
        position: u64,
    },
    MoveRead {
        segment: u64,
    },
    MoveData {
        segment: u64,
        slot: u32,
    },
    MoveEntry {
        segment: u64,
        slot: u32,
        entry: Entry,
    },
    /// The answer matters no more.
    Stale,
}

/// A target.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) stage: Stage,
    /// Counts connections.
    pub(super) incarnation: u64,
    pub(super) geometry: Option<Geometry>,
    pub(super) epoch: u64,
    pub(super) log: u64,
    /// Words of its region.
    pub(super) start: u64,
    pub(super) head: u64,
    pub(super) head_posted: bool,
    /// Where its segments are.
    pub(super) segments: BTreeMap<u64, Place>,
    pub(super) free: BTreeSet<u32>,
    pub(super) stamp: u64,
    /// Up to here its store has the log. Stays valid while it is away.
    pub(super) durable: Option<u64>,
    pub(super) flight: VecDeque<Op>,
    /// Octets of records among that.
    pub(super) under_way: u64,
    /// The most slots that it wants to keep.
    pub(super) shrink: Option<u32>,
    /// Its region must be registered anew.
    pub(super) renew: bool,
    pub(super) problem: Option<String>,
    /// Why its last failed commit failed, and how much of the log it had then.
    pub(super) failure: Option<(Option<u64>, String)>,
}

impl Peer {
    /// Clears the state of the connection.
    pub(super) fn leave(&mut self) {
        self.stage = Stage::Away;
        self.incarnation += 1;
        self.flight.clear();
        self.under_way = 0;
        self.head_posted = false;
        self.shrink = None;
        self.segments.clear();
        self.free.clear();
    }

    /// Whether it is connected and has admitted the writer.
    pub(super) fn is_claimed(&self) -> bool {
        !matches!(self.stage, Stage::Away | Stage::Greeting | Stage::Waiting | Stage::Claiming | Stage::Useless)
    }

    /// Stores the contents of a table.
    pub(super) fn learn(&mut self, table: Table) {
        (self.start, self.head, self.stamp, self.segments) = (table.start, table.head, table.stamp, table.segments);
    }

    /// Forgets segments behind the log's end at `position`, and determines the free slots.
    pub(super) fn settle_slots(&mut self, position: u64) {
        let Some(geometry) = self.geometry else { return };
        let beyond = geometry.segment_of(position.saturating_sub(1)) + 1;
        let _ = self.segments.split_off(&beyond);
        self.free = (0..geometry.slots).collect();
        for (slot, _) in self.segments.values() {
            self.free.remove(slot);
        }
    }

    /// Frees the slots before the start.
    pub(super) fn free_before_start(&mut self) {
        let Some(geometry) = self.geometry else { return };
        let kept = self.segments.split_off(&geometry.segment_of(self.start));
        let old = std::mem::replace(&mut self.segments, kept);
        self.free.extend(old.into_values().map(|(slot, _)| slot).filter(|slot| *slot < geometry.slots));
    }

    /// Whether there are slots for a range of the log.
    pub(super) fn has_room(&self, position: u64, length: u64) -> bool {
        let Some(geometry) = self.geometry else { return false };
        let last = geometry.segment_of(position + length.saturating_sub(1));
        let missing = (geometry.segment_of(position)..=last).filter(|segment| !self.segments.contains_key(segment));
        missing.count() <= self.free.len()
    }

    /// A new entry for segment `segment`, with a stamp above all others.
    pub(super) fn new_entry(&mut self, segment: u64, first: First) -> Entry {
        self.stamp += 1;
        Entry { segment, stamp: self.stamp, first }
    }

    /// The writes that put octets of the log in their places, with entries for segments that have none or a wrong one;
    /// `None` if there is no room.
    pub(super) fn writes(
        &mut self,
        position: u64,
        octets: &[u8],
        firsts: &BTreeMap<u64, First>,
    ) -> Option<Vec<(u64, Vec<u8>)>> {
        let geometry = self.geometry?;
        let length = octets.len() as u64;
        if !self.has_room(position, length) {
            return None;
        }
        let mut writes = Vec::new();
        for segment in geometry.segment_of(position)..=geometry.segment_of(position + length.saturating_sub(1)) {
            // A log that was read from its middle on knows this for the segments in its table, which are all.
            let none = First { offset: geometry.segment, sequence: 0 };
            let first = firsts.get(&segment).copied().unwrap_or(none);
            let slot = match self.segments.get(&segment) {
                Some((_, entry)) if entry.first == first => continue,
                Some((slot, _)) => *slot,
                None => self.free.pop_first()?,
            };
            let entry = self.new_entry(segment, first);
            self.segments.insert(segment, (slot, entry));
            writes.push((geometry.entry(slot), entry.to_octets().to_vec()));
        }
        let pieces = geometry.pieces(position, length, |segment| self.segments.get(&segment).map(|place| place.0))?;
        let mut rest = octets;
        for (offset, length) in pieces {
            let (part, behind) = rest.split_at(length as usize);
            writes.push((offset, part.to_vec()));
            rest = behind;
        }
        Some(writes)
    }
}
