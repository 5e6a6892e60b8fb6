//! A hierarchical timer wheel with one entry for each connection.
//!
//! Entries are nodes of doubly linked lists in one vector with the indexes of the connections, so arming and disarming
//! cost a few stores and do not allocate in a steady state. Entries are re-armed lazily: when a deadline moves later,
//! the entry stays, and the engine checks the true deadline when the entry fires. A tick is 2^15 ns (about 33 µs), far
//! below the shortest timer, the delayed ACK.

use uwarp_memory::kernels::prefetch;
use uwarp_tcp::Instant;

/// Nanoseconds of a tick, as a power of two.
const TICK_SHIFT: u32 = 15;
const LEVELS: usize = 5;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// How many ticks ahead entries can be (about 9.7 hours); those farther away fire early and are armed again.
const HORIZON: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
const NIL: u32 = u32::MAX;
const UNARMED: u16 = u16::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    when: u64,
    next: u32,
    previous: u32,
    /// Level × 64 + slot, or `UNARMED`.
    place: u16,
}

/// The wheel.
#[derive(Debug)]
pub(crate) struct Wheel {
    heads: [[u32; SLOTS]; LEVELS],
    occupied: [u64; LEVELS],
    nodes: Vec<Node>,
    /// Every entry at or before this tick has fired.
    elapsed: u64,
    /// No entry fires before this tick; [`NEVER`] if there is none.
    earliest: u64,
}

/// The last tick of all.
const NEVER: u64 = u64::MAX >> TICK_SHIFT;

fn tick_of(at: Instant) -> u64 {
    at.as_nanos() >> TICK_SHIFT
}

/// First tick whose start is not before `at`.
fn tick_not_before(at: Instant) -> u64 {
    let nanos = at.as_nanos();
    (nanos >> TICK_SHIFT) + u64::from(nanos & ((1 << TICK_SHIFT) - 1) != 0)
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel { heads: [[NIL; SLOTS]; LEVELS], occupied: [0; LEVELS], nodes: Vec::new(), elapsed: 0, earliest: NEVER }
    }

    /// Ensures that entry `index` fires no later than `at`.
    #[inline]
    pub(crate) fn arm(&mut self, index: u32, at: Instant) {
        // With each segment: nearly always it is armed for earlier.
        match self.nodes.get(index as usize) {
            Some(node) if node.place != UNARMED && node.when <= tick_of(at) => {}
            _ => self.arm_earlier(index, at),
        }
    }

    /// Whether entry `index` fires no later than `at`: nothing has to be armed for then.
    #[inline]
    pub(crate) fn fires_by(&self, index: u32, at: Instant) -> bool {
        self.nodes.get(index as usize).is_some_and(|node| node.place != UNARMED && node.when <= tick_of(at))
    }

    /// Whether entry `index` fires within a tick from `at`, as it does once it was armed for that.
    pub(crate) fn is_armed_for(&self, index: u32, at: Instant) -> bool {
        let when = tick_not_before(at).max(self.elapsed + 1);
        self.nodes.get(index as usize).is_some_and(|node| node.place != UNARMED && node.when <= when)
    }

    #[inline(never)]
    fn arm_earlier(&mut self, index: u32, at: Instant) {
        let when = tick_not_before(at).clamp(self.elapsed + 1, self.elapsed.saturating_add(HORIZON));
        if let Some(node) = self.nodes.get(index as usize)
            && node.place != UNARMED
        {
            if node.when <= when {
                return;
            }
            self.unlink(index);
        }
        if self.nodes.len() <= index as usize {
            let empty = Node { when: 0, next: NIL, previous: NIL, place: UNARMED };
            self.nodes.resize(index as usize + 1, empty);
        }
        self.link(index, when);
        self.earliest = self.earliest.min(when);
    }

    /// Prefetches entry `index`.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(node) = self.nodes.get(index as usize) {
            prefetch(node);
        }
    }

    /// Removes entry `index`.
    pub(crate) fn disarm(&mut self, index: u32) {
        if self.nodes.get(index as usize).is_some_and(|node| node.place != UNARMED) {
            self.unlink(index);
        }
    }

    /// No entry fires before this time.
    #[inline]
    pub(crate) fn due_at(&self) -> Instant {
        Instant::from_nanos(self.earliest << TICK_SHIFT)
    }

    /// Whether [`Wheel::advance`] has work.
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> bool {
        tick_of(now) >= self.earliest
    }

    /// Removes every entry that is due and appends its index to `fired`.
    pub(crate) fn advance(&mut self, now: Instant, fired: &mut Vec<u32>) {
        let target = tick_of(now);
        while let Some((level, slot, start)) = self.next_slot() {
            if start > target {
                break;
            }
            self.elapsed = self.elapsed.max(start);
            let mut index = self.heads[level][slot];
            self.heads[level][slot] = NIL;
            self.occupied[level] &= !(1 << slot);
            while index != NIL {
                let node = &mut self.nodes[index as usize];
                let next = node.next;
                node.place = UNARMED;
                let when = node.when;
                if when <= self.elapsed {
                    fired.push(index);
                } else {
                    self.link(index, when);
                }
                index = next;
            }
        }
        self.elapsed = self.elapsed.max(target);
        self.earliest = self.next_slot().map_or(NEVER, |(_, _, start)| start.min(NEVER));
    }

    /// When the engine must look at the wheel again. It may be too early after a removal, but is never too late.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        (self.earliest != NEVER).then(|| Instant::from_nanos(self.earliest << TICK_SHIFT))
    }

    /// The slot that comes first: level, slot, and the tick at which it starts.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let mut best: Option<(usize, usize, u64)> = None;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let now_slot = (self.elapsed >> shift) as u32 & (SLOTS as u32 - 1);
            // The present slot is empty on every level: its entries have moved down or fired. An entry there is a full
            // round ahead, so it comes last.
            let rotated = self.occupied[level].rotate_right((now_slot + 1) % SLOTS as u32);
            let ahead = u64::from(rotated.trailing_zeros()) + 1;
            let start = ((self.elapsed >> shift) + ahead) << shift;
            let slot = ((u64::from(now_slot) + ahead) % SLOTS as u64) as usize;
            if best.is_none_or(|(_, _, known)| start < known) {
                best = Some((level, slot, start));
            }
        }
        best
    }

    fn link(&mut self, index: u32, when: u64) {
        let differing = (when ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = (((63 - differing.leading_zeros()) / SLOT_BITS) as usize).min(LEVELS - 1);
        let slot = (when >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let head = self.heads[level][slot];
        self.nodes[index as usize] = Node { when, next: head, previous: NIL, place: (level * SLOTS + slot) as u16 };
        if head != NIL {
            self.nodes[head as usize].previous = index;
        }
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let node = self.nodes[index as usize];
        let (level, slot) = (node.place as usize / SLOTS, node.place as usize % SLOTS);
        if node.next != NIL {
            self.nodes[node.next as usize].previous = node.previous;
        }
        if node.previous != NIL {
            self.nodes[node.previous as usize].next = node.next;
        } else {
            self.heads[level][slot] = node.next;
            if node.next == NIL {
                self.occupied[level] &= !(1 << slot);
            }
        }
        self.nodes[index as usize].place = UNARMED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn entries_fire_not_before_their_time_and_within_a_tick() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut wheel = Wheel::new();
        let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 1_000_000_000u64;
        let mut fired = Vec::new();
        wheel.advance(Instant::from_nanos(now), &mut fired);
        for _ in 0..20_000 {
            match random.u32(0..10) {
                0..5 => {
                    let index = random.u32(0..64);
                    let at = now + (1u64 << random.u32(0..42)) + random.u64(0..1_000);
                    wheel.arm(index, Instant::from_nanos(at));
                    let known = wanted.entry(index).or_insert(at);
                    *known = at.min(*known);
                }
                5 => {
                    let index = random.u32(0..64);
                    wheel.disarm(index);
                    wanted.remove(&index);
                }
                _ => {
                    now += 1u64 << random.u32(0..40);
                    fired.clear();
                    wheel.advance(Instant::from_nanos(now), &mut fired);
                    for index in &fired {
                        let at = wanted.remove(index).expect("only armed entries fire");
                        assert!(at <= now, "entry {index} fired {} ns early", at - now);
                    }
                    for (index, at) in &wanted {
                        assert!(at + (1 << TICK_SHIFT) > now, "entry {index} is {} ns late", now - at);
                    }
                    match (wheel.next_deadline(), wanted.values().min()) {
                        (Some(deadline), Some(first)) => {
                            assert!(deadline.as_nanos() > now && deadline.as_nanos() < first + (1 << TICK_SHIFT));
                        }
                        (deadline, first) => assert_eq!((deadline, first), (None, None)),
                    }
                }
            }
        }
    }

    #[test]
    fn a_later_time_leaves_the_entry_where_it_is() {
        let mut wheel = Wheel::new();
        wheel.arm(3, Instant::from_nanos(1_000_000));
        wheel.arm(3, Instant::from_nanos(9_000_000));
        let mut fired = Vec::new();
        wheel.advance(Instant::from_nanos(1_100_000), &mut fired);
        assert_eq!(fired, [3]);
        assert_eq!(wheel.next_deadline(), None);
    }
}
