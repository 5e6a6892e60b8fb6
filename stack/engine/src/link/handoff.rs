//! Packets that arrive at the wrong engine, and how they reach the right one.
//!
//! The engines of a context share an address, and each has its own queues. Where the device does not steer every packet
//! of a flow to its engine's queue, an engine that receives a packet of an unknown flow asks [`FlowOwners`] and copies
//! the frame into the owner's ring. ARP and Neighbor Discovery go to every engine. All of this is counted. A packet
//! that arrives where it should takes no part in it.

mod exchange;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use uwarp_ring::Claim;
use uwarp_ring::{Claims, Consumer, Notifier, Producer, ring};
use uwarp_tcp::Instant;
use uwarp_wire::address::FlowKey;

use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::link::hash::KeyedHash;

/// Octets of one slot of a ring.
const SLOT: usize = 256;
/// Octets in front of a frame: its length with [`VERIFIED`].
const LENGTH: usize = 4;
/// Fewest slots of a ring: enough for the longest frame, an IP packet of 64 KiB that was joined from segments.
const RING_MIN: usize = 512;
/// Flag beside the length: the TCP checksum was verified. If the device verified it, the frame may not contain it.
const VERIFIED: u32 = 1 << 31;

/// Which engine of a context has a flow. Engines add and remove their own flows; all engines look them up.
#[derive(Debug)]
pub struct FlowOwners {
    claims: Claims,
    hasher: KeyedHash,
    /// Until when an answer to a SYN cookie of any engine may arrive, in nanoseconds of the shared clock.
    cookies_until: AtomicU64,
}

impl FlowOwners {
    /// A table for `flows` flows; `secret` keys the hash.
    pub fn new(flows: usize, secret: [u64; 2]) -> FlowOwners {
        FlowOwners { claims: Claims::new(flows), hasher: KeyedHash::new(secret), cookies_until: AtomicU64::new(0) }
    }

    /// The engine that has the flow.
    pub fn find(&self, flow: &FlowKey) -> Option<u16> {
        self.claims.find(self.hasher.hash_one(flow))
    }

    /// Adds a flow of an engine.
    pub fn claim(&self, flow: &FlowKey, engine: u16) -> Claim {
        self.claims.claim(self.hasher.hash_one(flow), engine)
    }

    /// Removes a flow of an engine.
    pub fn release(&self, flow: &FlowKey, engine: u16) {
        self.claims.release(self.hasher.hash_one(flow), engine);
    }

    /// An engine has sent a SYN cookie. The answer may arrive at any engine.
    pub(crate) fn await_cookies(&self, until: Instant) {
        self.cookies_until.fetch_max(until.as_nanos(), Ordering::Release);
    }

    /// Until when an answer to any engine's cookie may arrive.
    pub(crate) fn cookies_until(&self) -> Instant {
        Instant::from_nanos(self.cookies_until.load(Ordering::Acquire))
    }

    /// Number of flows. Counts them, which takes time.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// Whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }
}

/// A slot of a ring: a piece of a frame. The frame's first piece starts with its length.
type Slot = [u8; SLOT];

/// On a cache line of its own: others may have put frames into the rings to an engine since it last took this back.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Mark(AtomicBool);

/// One engine's end of a context's hand-off.
#[derive(Debug)]
pub struct Handoff {
    owners: Arc<FlowOwners>,
    engine: u16,
    /// Rings to the other engines.
    out: Vec<Option<Producer<Slot>>>,
    /// Rings from the other engines.
    from: Vec<Option<Consumer<Slot>>>,
    /// Of each engine. So an engine looks at one word, however many others there are.
    marks: Arc<[Mark]>,
    /// The rings are not known to be empty.
    has_some: bool,
    /// The engine whose frame was taken last.
    served: usize,
    /// What wakes each engine's thread; empty if they never sleep.
    wakes: Vec<Arc<Notifier>>,
    /// The frame under way came from another engine.
    second_hand: bool,
    /// Memory for such a frame.
    scratch: Vec<u8>,
}

impl Handoff {
    /// The ends of `engines` engines: rings for about `frames` frames of usual size between any two, and a shared table
    /// for `flows` flows.
    pub fn between(engines: usize, frames: usize, flows: usize, secret: [u64; 2]) -> Vec<Handoff> {
        let owners = Arc::new(FlowOwners::new(flows, secret));
        let marks: Arc<[Mark]> = (0..engines).map(|_| Mark::default()).collect();
        let empty = |index: usize| Handoff {
            owners: Arc::clone(&owners),
            engine: index as u16,
            out: (0..engines).map(|_| None).collect(),
            from: (0..engines).map(|_| None).collect(),
            marks: Arc::clone(&marks),
            has_some: false,
            served: 0,
            wakes: Vec::new(),
            second_hand: false,
            scratch: Vec::new(),
        };
        let mut parts: Vec<Handoff> = (0..engines).map(empty).collect();
        for sender in 0..engines {
            for receiver in (0..engines).filter(|receiver| *receiver != sender) {
                let (producer, consumer) = ring((frames * 1536usize.div_ceil(SLOT)).next_power_of_two().max(RING_MIN));
                parts[sender].out[receiver] = Some(producer);
                parts[receiver].from[sender] = Some(consumer);
            }
        }
        parts
    }

    /// Names what wakes the thread of each engine, by its index.
    pub fn wake_by(&mut self, wakes: Vec<Arc<Notifier>>) {
        self.wakes = wakes;
    }

    /// The table that all engines share.
    pub fn owners(&self) -> &Arc<FlowOwners> {
        &self.owners
    }

    /// Another engine that has the flow.
    fn owner(&self, flow: &FlowKey) -> Option<u16> {
        self.owners.find(flow).filter(|owner| *owner != self.engine)
    }

    pub(crate) fn claim(&self, flow: &FlowKey) -> Claim {
        self.owners.claim(flow, self.engine)
    }

    pub(crate) fn release(&self, flow: &FlowKey) {
        self.owners.release(flow, self.engine);
    }

    /// Copies a frame that consists of these pieces into another engine's ring, if there is room. `verified`: its TCP
    /// checksum is right.
    fn send<'a>(
        &mut self,
        counters: &mut Counters,
        engine: u16,
        length: usize,
        verified: bool,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) {
        let Some(Some(producer)) = self.out.get_mut(usize::from(engine)) else {
            return counters.cannot_be("a frame is for an engine that is not there");
        };
        let Some(mut reservation) = producer.reserve((LENGTH + length).div_ceil(SLOT)) else {
            return counters.count_drop(DropReason::HandoffFull);
        };
        let mut slot = [0; SLOT];
        let word = length as u32 | if verified { VERIFIED } else { 0 };
        slot[..LENGTH].copy_from_slice(&word.to_be_bytes());
        let mut filled = LENGTH;
        let mut copied = 0;
        for mut piece in pieces {
            while !piece.is_empty() {
                let taken = piece.len().min(SLOT - filled);
                slot[filled..filled + taken].copy_from_slice(&piece[..taken]);
                filled += taken;
                copied += taken;
                piece = &piece[taken..];
                if filled == SLOT {
                    // Behind `length` octets nothing is reserved.
                    if copied <= length {
                        reservation.write(slot);
                    }
                    filled = 0;
                }
            }
        }
        if copied != length {
            return counters.cannot_be("the parts of a frame are not as long as the frame");
        }
        if filled > 0 {
            reservation.write(slot);
        }
        reservation.commit();
        counters.handed_off += 1;
        if let Some(Mark(mark)) = self.marks.get(usize::from(engine)) {
            mark.store(true, Ordering::Release);
        }
        if let Some(wake) = self.wakes.get(usize::from(engine)) {
            wake.fire_if_armed();
        }
    }

    /// Whether frames are waiting, or may be.
    #[inline]
    pub(crate) fn has_frames(&mut self) -> bool {
        if let Some(Mark(mark)) = self.marks.get(usize::from(self.engine))
            && mark.load(Ordering::Relaxed)
        {
            // First taken back, then looked at: what comes later marks again.
            mark.swap(false, Ordering::Acquire);
            self.has_some = true;
        }
        self.has_some
    }

    /// Moves the next frame from another engine into `out`; true if its TCP checksum is known to be right.
    pub(crate) fn receive(&mut self, counters: &mut Counters, out: &mut Vec<u8>) -> Option<bool> {
        if !self.has_frames() {
            return None;
        }
        // Each engine in its turn: a flood of one must not keep the others waiting.
        let engines = self.from.len();
        for step in 1..=engines {
            let at = (self.served + step) % engines;
            let Some(consumer) = &mut self.from[at] else { continue };
            let Some(first) = consumer.pop() else { continue };
            self.served = at;
            let word = u32::from_be_bytes([first[0], first[1], first[2], first[3]]);
            let length = (word & !VERIFIED) as usize;
            out.clear();
            out.extend_from_slice(&first[LENGTH..SLOT.min(LENGTH + length)]);
            while out.len() < length {
                let Some(slot) = consumer.pop() else {
                    counters.cannot_be("the slots of a frame are not published together");
                    return None;
                };
                out.extend_from_slice(&slot[..SLOT.min(length - out.len())]);
            }
            return Some(word & VERIFIED != 0);
        }
        self.has_some = false;
        None
    }
}

#[cfg(test)]
mod tests;
