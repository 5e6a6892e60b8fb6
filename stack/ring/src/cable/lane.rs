//! One direction of a cable.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::bell::Bell;
use super::map::Map;

/// The longest frame in octets: the longest IP packet with its Ethernet header.
pub const LONGEST_FRAME: usize = 65_535 + 14;
/// Octets of records, a power of two: eight of the longest frames, so that both ends work at once, within a
/// second-level cache.
pub(super) const OCTETS: usize = 512 << 10;
/// What precedes the records: the receiver's words, each on a cache line of its own.
const WORDS: usize = 4096;
/// A direction.
pub(super) const LANE: usize = WORDS + OCTETS;
/// Records begin at cache lines, so that the two ends write to lines of their own.
const LINE: usize = 64;
/// Octets of the header of a record.
const HEADER: usize = 8;

/// Where the receiver says how far it is.
const POSITION: usize = 0;
/// Where it says what it does: one of the three below.
const STATE: usize = LINE;
/// Nobody receives yet.
const ABSENT: u32 = 0;
/// It polls.
const AWAKE: u32 = 1;
/// It wants to be woken.
const ASLEEP: u32 = 2;

/// In a header: the checksums of the frame are left out, as for a device that computes them.
const VOUCHED: u64 = 1 << 32;
/// Octets of a record in the ring.
#[inline(always)]
const fn record(length: usize) -> usize {
    (HEADER + length).next_multiple_of(LINE)
}

/// The memory of a direction.
#[derive(Debug)]
pub(super) struct Lane {
    map: Arc<Map>,
    start: usize,
}

impl Lane {
    pub(super) fn new(map: Arc<Map>, start: usize) -> Lane {
        Lane { map, start }
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the map, aligned, and valid for any bits; all processes access it as an atomic.
        unsafe { self.map.at(self.start + at, 8).cast().as_ref() }
    }

    #[inline(always)]
    fn state(&self) -> &AtomicU32 {
        // SAFETY: as for `word`.
        unsafe { self.map.at(self.start + STATE, 4).cast().as_ref() }
    }

    /// The header of the record at a position.
    #[inline(always)]
    fn header(&self, position: u64) -> &AtomicU64 {
        self.word(WORDS + (position as usize & (OCTETS - 1) & !(LINE - 1)))
    }

    /// A run from an offset on, and how much of `length` fits before the ring wraps.
    #[inline(always)]
    fn run(&self, position: u64, length: usize) -> (NonNull<u8>, usize) {
        let at = position as usize & (OCTETS - 1);
        let first = length.min(OCTETS - at);
        (self.map.at(self.start + WORDS + at, first), first)
    }

    /// Copies octets in.
    #[inline(always)]
    fn write(&self, position: u64, octets: &[u8]) {
        let (place, first) = self.run(position, octets.len());
        // SAFETY: both runs are within the records. The peer may read or even write them meanwhile: then it gets, or
        // leaves, other octets in a frame of its own.
        unsafe {
            place.as_ptr().copy_from_nonoverlapping(octets.as_ptr(), first);
            let rest = &octets[first..];
            let start = self.map.at(self.start + WORDS, rest.len());
            start.as_ptr().copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
    }

    /// Copies octets out.
    #[inline(always)]
    fn read(&self, position: u64, octets: &mut [u8]) {
        let (place, first) = self.run(position, octets.len());
        // SAFETY: both runs are within the records. The peer may write them meanwhile: the copy has some octets or
        // others, and any are valid.
        unsafe {
            octets.as_mut_ptr().copy_from_nonoverlapping(place.as_ptr(), first);
            let rest = &mut octets[first..];
            let start = self.map.at(self.start + WORDS, rest.len());
            rest.as_mut_ptr().copy_from_nonoverlapping(start.as_ptr(), rest.len());
        }
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    lane: Lane,
    bell: Bell,
    /// Octets sent so far, modulo 2^64.
    position: u64,
    /// How far the receiver was when it was last looked at.
    released: u64,
    is_attended: bool,
}

impl Sender {
    pub(super) fn new(lane: Lane, bell: Bell) -> Sender {
        Sender { lane, bell, position: 0, released: 0, is_attended: false }
    }

    /// Whether there is room for a frame of so many octets, without regard to what the receiver has released since it
    /// was last asked.
    #[inline(always)]
    fn fits(&self, octets: usize) -> bool {
        // One more line: the header of the next record is cleared.
        let used = self.position.wrapping_sub(self.released);
        used + (record(octets) + LINE) as u64 <= OCTETS as u64
    }

    #[cold]
    fn has_room(&mut self, octets: usize) -> bool {
        let released = self.lane.word(POSITION).load(Acquire);
        // A position that cannot be is none.
        if self.position.wrapping_sub(released) <= OCTETS as u64 {
            self.released = released;
        }
        self.fits(octets)
    }

    /// Sends a frame of 1 to [`LONGEST_FRAME`] octets. Its checksums may be left out if they are `vouched` for: memory
    /// does not damage it. False if there is no room now, or it has another length. Call [`wake`](Self::wake) behind
    /// the last frame of a burst.
    #[inline]
    pub fn send(&mut self, frame: &[u8], vouched: bool) -> bool {
        if frame.is_empty() || frame.len() > LONGEST_FRAME || !self.fits(frame.len()) && !self.has_room(frame.len()) {
            return false;
        }
        let next = self.position.wrapping_add(record(frame.len()) as u64);
        self.lane.write(self.position + HEADER as u64, frame);
        self.lane.header(next).store(0, Relaxed);
        let header = frame.len() as u64 | if vouched { VOUCHED } else { 0 };
        self.lane.header(self.position).store(header, Release);
        self.position = next;
        true
    }

    /// Wakes the receiver if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // Pairs with the fence in `Receiver::arm`: the receiver sees the last header, or this sees it asleep.
        fence(SeqCst);
        if self.lane.state().load(Relaxed) == ASLEEP {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        if self.lane.state().swap(AWAKE, Relaxed) == ASLEEP {
            self.bell.ring();
        }
    }

    /// Whether the other side has begun to receive. Until then, frames may wait for ever.
    #[inline]
    pub fn is_attended(&mut self) -> bool {
        self.is_attended = self.is_attended || self.lane.state().load(Relaxed) != ABSENT;
        self.is_attended
    }
}

/// A frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its octets. Those beyond the caller's room are lost.
    pub length: usize,
    /// Its sender has left its checksums out.
    pub vouched: bool,
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver {
    lane: Lane,
    bell: Bell,
    /// Octets received so far, modulo 2^64.
    position: u64,
    /// Ends of sleeps, modulo 256.
    silent: u8,
}

impl Receiver {
    pub(super) fn new(lane: Lane, bell: Bell) -> Receiver {
        Receiver { lane, bell, position: 0, silent: 0 }
    }

    /// Has the sender know that frames are received from now on.
    pub fn attend(&self) {
        self.lane.state().store(AWAKE, Relaxed);
    }

    /// Whether a frame waits.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.lane.header(self.position).load(Relaxed) != 0
    }

    /// Copies the next frame into `room`. Call [`release`](Self::release) behind the last one of a burst.
    #[inline]
    pub fn receive(&mut self, room: &mut [u8]) -> Option<Arrival> {
        let header = self.lane.header(self.position).load(Acquire);
        if header == 0 {
            return None;
        }
        // The sender writes no other length; a hostile one may.
        let length = (header as u32 as usize).clamp(1, LONGEST_FRAME);
        let copied = length.min(room.len());
        self.lane.read(self.position + HEADER as u64, &mut room[..copied]);
        self.position = self.position.wrapping_add(record(length) as u64);
        Some(Arrival { length, vouched: header & VOUCHED != 0 })
    }

    /// Gives the sender the room of what was received.
    #[inline]
    pub fn release(&self) {
        self.lane.word(POSITION).store(self.position, Release);
    }

    /// Octets received so far, modulo 2^64. A sender has at most [`LANE_OCTETS`](super::LANE_OCTETS) under way.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Asks for a wake-up by [`AsFd`]. What came before is not announced: look once more with
    /// [`is_waiting`](Self::is_waiting).
    pub fn arm(&self) {
        self.lane.state().store(ASLEEP, Relaxed);
        // Pairs with the fence in `Sender::wake`.
        fence(SeqCst);
    }

    /// Ends the wake-ups.
    pub fn disarm(&mut self) {
        self.silent = self.silent.wrapping_add(1);
        // A sender that rings without need is found out, too.
        if self.lane.state().swap(AWAKE, Relaxed) != ASLEEP || self.silent == 0 {
            self.bell.drain();
        }
    }
}

impl AsFd for Receiver {
    /// Readable when the sender has rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
