//! The layout of a target's file, and of the region that it lends to the writer.
//!
//! | octets of the file | content |
//! |---|---|
//! | 0–4095 | [`Identity`]: the target's own, which no peer can access |
//! | then | the region |
//!
//! | octets of the region | content |
//! |---|---|
//! | 0–7 | start: the position of the first kept record |
//! | 64–71 | head: the position of the last record known to be acknowledged |
//! | 4096– | the table, an entry of 32 octets for each slot; zeros up to a page |
//! | then | the slots, a segment each |
//!
//! The log is one sequence of octets, cut into *segments* of equal size; segment `n` starts at position `n` times the
//! size. A segment can be in any slot, and the slot's entry says which it is. So slots can be returned and segments
//! moved while the log is in use. If two entries name the same segment, the later stamp counts. An entry has 8 octets
//! for the segment's number plus one (0: none), 8 for the stamp, and 8 for the sequence number of the first record that
//! begins in the segment (0: none). Then follow 4 octets for that record's offset in the segment (the segment's size:
//! none) and 4 for a CRC32C over the preceding fields.
//!
//! A target learns of a new start before it has the record there, since older records may occupy its place. Until then
//! any octets may be there, even a whole record of the slot's previous segment. The sequence number in the segment's
//! entry exposes it.

use crate::record::LIMIT;
use crc32c::crc32c;
use std::collections::BTreeMap;
use std::fmt;

/// Octets of a page; everything is aligned to it.
pub const PAGE: u64 = 4096;
/// Offset in the region of the first kept position.
pub const START: u64 = 0;
/// Offset in the region of the position of the last record known to be acknowledged.
pub const HEAD: u64 = 64;
/// Octets of the words in front.
pub const WORDS: u64 = 72;
/// Octets of an entry of the table.
pub const ENTRY: u64 = 32;
/// Octets of a segment at least.
pub const MIN_SEGMENT: u32 = 4096;
/// The most octets of a segment, since it is moved as a whole.
pub const MAX_SEGMENT: u32 = 1 << 20;
/// The fewest slots: one being written, one that is kept, and one to move to.
pub const MIN_SLOTS: u32 = 3;
/// The most slots, since the table is read as a whole.
pub const MAX_SLOTS: u32 = 1 << 15;

const MAGIC: [u8; 8] = *b"uwarplog";
const VERSION: u32 = 2;

/// Part of a region: offset and octets.
pub type Piece = (u64, u64);

/// Sizes of a target's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Geometry {
    /// Octets of a segment: a multiple of [`PAGE`].
    pub segment: u32,
    /// Entries of the table, which never change after the file was created.
    pub entries: u32,
    /// Slots: fewer than entries after some were returned.
    pub slots: u32,
}

/// One entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the segment.
    pub segment: u64,
    /// Grows with every entry that is written.
    pub stamp: u64,
    /// The first record that begins in it.
    pub first: First,
}

/// The first record that begins in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// Offset in the segment; the segment's size if none begins there.
    pub offset: u32,
    /// Its sequence number; 0 if none does.
    pub sequence: u64,
}

impl Geometry {
    /// The geometry of a region with as many slots as fit into `length` octets of a file.
    ///
    /// # Errors
    /// Why the numbers are impossible.
    pub fn new(length: u64, segment: u32) -> Result<Geometry, String> {
        if !Self::is_segment(segment) {
            return Err(format!(
                "segments of {segment} octets: choose a multiple of {PAGE}, from {MIN_SEGMENT} to {MAX_SEGMENT}"
            ));
        }
        // Each slot takes its segment and its entry; the remainder is two pages, and the rounding of the table.
        let each = u64::from(segment) + ENTRY;
        let slots = (length.saturating_sub(3 * PAGE) / each).min(u64::from(MAX_SLOTS)) as u32;
        let geometry = Geometry { segment, entries: slots, slots };
        geometry.check()?;
        Ok(geometry)
    }

    /// Whether segments may have this size.
    pub fn is_segment(octets: u32) -> bool {
        (MIN_SEGMENT..=MAX_SEGMENT).contains(&octets) && u64::from(octets).is_multiple_of(PAGE)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), String> {
        let Geometry { segment, entries, slots } = *self;
        if !Self::is_segment(segment) || entries > MAX_SLOTS || slots > entries {
            return Err(format!("{slots} of {entries} slots of {segment} octets are not possible in this version"));
        }
        if slots < MIN_SLOTS {
            return Err(format!(
                "there is room for {slots} segments of {segment} octets: a log needs {MIN_SLOTS}, so give it more room or smaller segments"
            ));
        }
        Ok(())
    }

    /// Octets of the region.
    pub fn region(&self) -> u64 {
        self.slot(self.slots)
    }

    /// Octets of the file.
    pub fn file(&self) -> u64 {
        PAGE + self.region()
    }

    /// Where a slot begins.
    pub fn slot(&self, slot: u32) -> u64 {
        PAGE + self.table().1.next_multiple_of(PAGE) + u64::from(slot) * u64::from(self.segment)
    }

    /// Where a slot's entry is.
    pub fn entry(&self, slot: u32) -> u64 {
        PAGE + u64::from(slot) * ENTRY
    }

    /// The table.
    pub fn table(&self) -> Piece {
        (PAGE, u64::from(self.entries) * ENTRY)
    }

    /// The number of the segment that holds a position.
    pub fn segment_of(&self, position: u64) -> u64 {
        position / u64::from(self.segment)
    }

    /// The location of a range of the log, with `slot` as the table; `None` if one of its segments is in no slot, or if
    /// it would exceed the largest position.
    pub fn pieces(&self, position: u64, length: u64, slot: impl Fn(u64) -> Option<u32>) -> Option<Vec<Piece>> {
        let (mut at, end) = (position, position.checked_add(length)?);
        let mut pieces = Vec::new();
        while at < end {
            let segment = self.segment_of(at);
            let within = at % u64::from(self.segment);
            let part = (end - at).min(u64::from(self.segment) - within);
            pieces.push((self.slot(slot(segment)?) + within, part));
            at += part;
        }
        Some(pieces)
    }
}

impl Entry {
    /// As it stands in the table.
    pub fn to_octets(self) -> [u8; ENTRY as usize] {
        let mut octets = [0; ENTRY as usize];
        octets[..8].copy_from_slice(&(self.segment + 1).to_le_bytes());
        octets[8..16].copy_from_slice(&self.stamp.to_le_bytes());
        octets[16..24].copy_from_slice(&self.first.sequence.to_le_bytes());
        octets[24..28].copy_from_slice(&self.first.offset.to_le_bytes());
        let crc = crc32c(&octets[..28]);
        octets[28..].copy_from_slice(&crc.to_le_bytes());
        octets
    }

    /// Parses an entry; `None` if it is empty, partly written, or has a stamp that no writer reaches.
    pub fn from_octets(octets: &[u8; ENTRY as usize]) -> Option<Entry> {
        let double = |at: usize| octets[at..].first_chunk().map(|part| u64::from_le_bytes(*part));
        let word = |at: usize| octets[at..].first_chunk().map(|part| u32::from_le_bytes(*part));
        let (segment, stamp) = (double(0)?.checked_sub(1)?, double(8)?);
        let first = First { offset: word(24)?, sequence: double(16)? };
        (crc32c(&octets[..28]) == word(28)? && stamp < LIMIT).then_some(Entry { segment, stamp, first })
    }
}

/// The contents of a region's words and table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Position of the first kept record.
    pub start: u64,
    /// Position of the last record known to be acknowledged.
    pub head: u64,
    /// The segments by number: slot and entry.
    pub segments: BTreeMap<u64, (u32, Entry)>,
    /// Greatest stamp of any entry.
    pub stamp: u64,
}

impl Table {
    /// Parses the [`WORDS`] octets in front of a region, and its table.
    ///
    /// # Errors
    /// There are too few octets, or the words are not positions of a log.
    pub fn parse(geometry: &Geometry, octets: &[u8]) -> Result<Table, String> {
        let (words, entries) = octets.split_at_checked(WORDS as usize).ok_or("the words of a region are cut off")?;
        let double = |at: u64| words[at as usize..].first_chunk().map_or(0, |part| u64::from_le_bytes(*part));
        let mut table = Table { start: double(START), head: double(HEAD), ..Table::default() };
        // They have no checksum.
        if table.start.max(table.head) >= LIMIT {
            let Table { start, head, .. } = table;
            return Err(format!("the words of a region are damaged: a start at {start} and a head at {head}"));
        }
        if (entries.len() as u64) < u64::from(geometry.slots) * ENTRY {
            return Err("the table of a region is cut off".to_owned());
        }
        let (entries, _) = entries.as_chunks::<{ ENTRY as usize }>();
        for (slot, octets) in (0..geometry.slots).zip(entries) {
            let Some(entry) = Entry::from_octets(octets) else { continue };
            table.stamp = table.stamp.max(entry.stamp);
            let known = table.segments.entry(entry.segment).or_insert((slot, entry));
            if known.1.stamp < entry.stamp {
                *known = (slot, entry);
            }
        }
        // Slots before the start may be overwritten at any time.
        let first = geometry.segment_of(table.start);
        table.segments = table.segments.split_off(&first);
        Ok(table)
    }

    /// Where to start reading to find the log's end.
    pub fn scan_from(&self) -> u64 {
        self.head.max(self.start)
    }

    /// The sequence number of the record at the start; 0 if the table has none there.
    pub fn sequence_at_start(&self, geometry: &Geometry) -> u64 {
        let number = geometry.segment_of(self.start);
        let first = self.segments.get(&number).map(|(_, entry)| entry.first);
        let is_there = |first: &First| number * u64::from(geometry.segment) + u64::from(first.offset) == self.start;
        first.filter(is_there).map_or(0, |first| first.sequence)
    }

    /// The location of a range of the log.
    pub fn pieces(&self, geometry: &Geometry, position: u64, length: u64) -> Option<Vec<Piece>> {
        geometry.pieces(position, length, |segment| self.segments.get(&segment).map(|(slot, _)| *slot))
    }
}

/// A target's own data, in the first page of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Sizes.
    pub geometry: Geometry,
    /// Which log this is a copy of; 0: none yet.
    pub log: u64,
    /// How many targets that log has.
    pub replicas: u32,
    /// The latest admitted writer: none with this epoch or an earlier one is admitted any more.
    pub epoch: u64,
}

impl Identity {
    /// The identity of a file that belongs to no log yet.
    pub fn new(geometry: Geometry) -> Identity {
        Identity { geometry, log: 0, replicas: 0, epoch: 0 }
    }

    /// As it stands in the file.
    pub fn to_octets(self) -> [u8; 64] {
        let mut octets = [0; 64];
        octets[..8].copy_from_slice(&MAGIC);
        let words = [VERSION, self.geometry.segment, self.geometry.entries, self.geometry.slots, self.replicas];
        for (place, word) in octets[8..28].chunks_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        octets[32..40].copy_from_slice(&self.log.to_le_bytes());
        octets[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = crc32c(&octets[..60]);
        octets[60..].copy_from_slice(&crc.to_le_bytes());
        octets
    }

    /// Reads it.
    ///
    /// # Errors
    /// The octets are not of this version.
    pub fn from_octets(octets: &[u8; 64]) -> Result<Identity, NotALog> {
        let word = |at: usize| u32::from_le_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if octets[..8] != MAGIC {
            return Err(NotALog("it does not begin as one".to_owned()));
        }
        if crc32c(&octets[..60]) != word(60) {
            return Err(NotALog("its first page is damaged".to_owned()));
        }
        if word(8) != VERSION {
            return Err(NotALog(format!("it is of version {}, and this program knows {VERSION}", word(8))));
        }
        let geometry = Geometry { segment: word(12), entries: word(16), slots: word(20) };
        geometry.check().map_err(NotALog)?;
        Ok(Identity { geometry, replicas: word(24), log: double(32), epoch: double(40) })
    }
}

/// Why a file is no target's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotALog(pub String);

impl fmt::Display for NotALog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "this is not a log's file: {}", self.0)
    }
}

impl std::error::Error for NotALog {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_room_and_no_more() {
        for (length, segment) in [(1 << 20, 4096), (1 << 30, 1 << 20), (100_000, 8192), (64 << 20, 65_536)] {
            let geometry = Geometry::new(length, segment).unwrap();
            assert!(geometry.file() <= length, "{geometry:?}");
            let more = Geometry { entries: geometry.entries + 3, slots: geometry.slots + 3, ..geometry };
            assert!(more.file() > length, "{geometry:?}");
            assert!(geometry.entry(geometry.slots) <= geometry.slot(0));
            assert!(geometry.slot(0).is_multiple_of(PAGE));
        }
        assert!(Geometry::new(20_000, 4096).is_err());
        assert!(Geometry::new(1 << 20, 4097).is_err());
        assert!(Geometry::new(1 << 20, 512).is_err());
        assert!(Geometry::new(1 << 30, MAX_SEGMENT).is_ok());
        assert!(Geometry::new(1 << 30, MAX_SEGMENT + 4096).is_err());
    }

    #[test]
    fn a_range_lies_in_the_slots_of_its_segments() {
        let geometry = Geometry { segment: 4096, entries: 10, slots: 10 };
        let slot = |segment: u64| (segment < 3).then_some(9 - segment as u32);
        let base = geometry.slot(0);
        assert_eq!(
            geometry.pieces(4000, 4300, slot),
            Some(vec![(base + 9 * 4096 + 4000, 96), (base + 8 * 4096, 4096), (base + 7 * 4096, 108)])
        );
        assert_eq!(geometry.pieces(4096, 0, slot), Some(vec![]));
        assert_eq!(geometry.pieces(12_280, 9, slot), None);
        assert_eq!(geometry.pieces(u64::MAX - 4095, 4096, |_| Some(0)), None);
    }

    #[test]
    fn the_later_of_two_entries_counts_and_old_segments_do_not() {
        let geometry = Geometry { segment: 4096, entries: 5, slots: 5 };
        let mut octets = vec![0; (WORDS + 5 * ENTRY) as usize];
        octets[..8].copy_from_slice(&5000u64.to_le_bytes());
        octets[64..72].copy_from_slice(&9000u64.to_le_bytes());
        let entries = [(0, 0, 1), (1, 2, 5), (2, 2, 4), (3, 1, 9)];
        for (slot, segment, stamp) in entries {
            let at = (WORDS + slot * ENTRY) as usize;
            octets[at..at + 32]
                .copy_from_slice(&Entry { segment, stamp, first: First { offset: 7, sequence: 9 } }.to_octets());
        }
        let table = Table::parse(&geometry, &octets).unwrap();
        assert_eq!((table.start, table.head, table.stamp, table.scan_from()), (5000, 9000, 9, 9000));
        let found: Vec<_> =
            table.segments.iter().map(|(number, (slot, entry))| (*number, *slot, entry.first.offset)).collect();
        assert_eq!(found, [(1, 3, 7), (2, 1, 7)]);
        // A partly written entry does not count.
        octets[(WORDS + ENTRY) as usize + 3] ^= 1;
        assert_eq!(Table::parse(&geometry, &octets).unwrap().segments[&2].0, 2);
        assert!(Table::parse(&geometry, &octets[..200]).is_err());
    }

    #[test]
    fn words_and_stamps_that_no_log_has_are_refused() {
        let geometry = Geometry { segment: 4096, entries: 3, slots: 3 };
        let octets = vec![0; (WORDS + 3 * ENTRY) as usize];
        for word in [START, HEAD] {
            for (position, is_read) in [(LIMIT - 1, true), (LIMIT, false), (u64::MAX - 4095, false), (u64::MAX, false)]
            {
                let mut octets = octets.clone();
                octets[word as usize..][..8].copy_from_slice(&position.to_le_bytes());
                assert_eq!(Table::parse(&geometry, &octets).is_ok(), is_read, "{position} at {word}");
            }
        }
        for (stamp, is_read) in [(LIMIT - 1, true), (LIMIT, false), (u64::MAX, false)] {
            let entry = Entry { segment: 0, stamp, first: First { offset: 0, sequence: 1 } };
            assert_eq!(Entry::from_octets(&entry.to_octets()).is_some(), is_read, "{stamp}");
        }
    }

    #[test]
    fn an_identity_is_read_as_it_was_written() {
        let geometry = Geometry { segment: 8192, entries: 100, slots: 90 };
        let identity = Identity { geometry, log: u64::MAX - 1, replicas: 3, epoch: 77 };
        let octets = identity.to_octets();
        assert_eq!(Identity::from_octets(&octets), Ok(identity));
        for bit in 0..64 * 8 {
            let mut damaged = octets;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::from_octets(&damaged).is_err(), "bit {bit}");
        }
    }
}
