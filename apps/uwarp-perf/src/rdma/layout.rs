//! Where the messages are in each side's one registered region: the same on both sides.

/// Octets of the slots that a queue pair rotates through in each direction: few enough for a second-level cache,
/// similar to the single buffer of the usual RDMA benchmarks.
const ROUND: u64 = 512 << 10;
/// The fewest slots, so that one can be filled while another is under way.
const SLOTS_MIN: u64 = 2;
/// Each slot begins on its own cache line.
const LINE: u64 = 64;

/// The layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Octets of a message.
    pub size: u64,
    /// Queue pairs.
    pub qps: u32,
    /// Slots of each queue pair in each direction.
    pub slots: u32,
    stride: u64,
}

impl Layout {
    /// The layout for messages of `size` octets with at most `depth` under way in each of `qps` queue pairs.
    pub fn new(size: u64, depth: u32, qps: u32) -> Self {
        let stride = size.next_multiple_of(LINE);
        let slots = (ROUND / stride).clamp(SLOTS_MIN, u64::from(depth).max(SLOTS_MIN));
        Self {
            size,
            qps,
            // At most the depth, or 2.
            slots: slots as u32,
            stride,
        }
    }

    /// Slots of a queue pair in both directions. There is one more inward: a receive for the marker behind the
    /// messages.
    fn all_slots(&self) -> u64 {
        2 * u64::from(self.slots) + 1
    }

    /// Octets of the region.
    pub fn len(&self) -> u64 {
        u64::from(self.qps) * (self.all_slots() * self.stride + LINE)
    }

    /// Offset of a slot for messages to the other side.
    pub fn out(&self, queue_pair: u32, slot: u32) -> u64 {
        (u64::from(queue_pair) * self.all_slots() + u64::from(slot)) * self.stride
    }

    /// Offset of a slot for messages from the other side; there is one more than `slots`.
    pub fn inward(&self, queue_pair: u32, slot: u32) -> u64 {
        self.out(queue_pair, slot + self.slots)
    }

    /// Offset where the other side writes how many receives it has posted for a queue pair: eight octets.
    pub fn credit(&self, queue_pair: u32) -> u64 {
        u64::from(self.qps) * self.all_slots() * self.stride + u64::from(queue_pair) * LINE
    }

    /// The slot of a message.
    #[inline]
    pub fn slot(&self, message: u64) -> u32 {
        // Less than the number of slots.
        (message % u64::from(self.slots)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap() {
        for (size, depth, qps) in [(1, 1, 1), (64, 256, 3), (65_536, 64, 2), (1 << 20, 64, 1), (1500, 7, 4)] {
            let layout = Layout::new(size, depth, qps);
            let mut starts = Vec::new();
            for queue_pair in 0..qps {
                for slot in 0..layout.slots {
                    starts.push((layout.out(queue_pair, slot), size));
                    starts.push((layout.inward(queue_pair, slot), size));
                }
                starts.push((layout.inward(queue_pair, layout.slots), size));
                starts.push((layout.credit(queue_pair), 8));
            }
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            let (start, len) = starts[starts.len() - 1];
            assert!(start + len <= layout.len());
        }
    }
}
