//! Two ports joined back to back inside one process: what one sends, the other receives, by reference.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use super::heap::{HeapBuffer, HeapPool, capabilities};
use crate::link::port::{Batch, Capabilities, ChecksumStatus, LinkState, PoolLevels, Port, ReceivedChecksums};

/// Settings of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Largest IP packet in octets.
    pub mtu: u16,
    /// Buffers of each side's pool.
    pub buffers: usize,
    /// Frames that lie between the two sides in one direction.
    pub queue: usize,
    /// Compute and check checksums as over a real wire; without, both sides claim them to be offloaded.
    pub checksums: bool,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions { mtu: 1500, buffers: 4096, queue: 1024, checksums: true }
    }
}

/// One side of a pair.
#[derive(Debug)]
pub struct LoopPort {
    pool: HeapPool,
    outgoing: Arc<ArrayQueue<HeapBuffer>>,
    incoming: Arc<ArrayQueue<HeapBuffer>>,
    capabilities: Capabilities,
    checksums: bool,
}

impl LoopPort {
    /// Two ports that reach each other, with hardware addresses 02:00:00:00:00:01 and :02.
    pub fn pair(options: LoopOptions) -> (LoopPort, LoopPort) {
        let forth = Arc::new(ArrayQueue::new(options.queue.max(1)));
        let back = Arc::new(ArrayQueue::new(options.queue.max(1)));
        let side = |last: u8, outgoing: &Arc<ArrayQueue<HeapBuffer>>, incoming: &Arc<ArrayQueue<HeapBuffer>>| {
            let capabilities = capabilities([2, 0, 0, 0, 0, last], options.mtu, !options.checksums);
            LoopPort {
                pool: HeapPool::new(options.buffers, capabilities.data_room, capabilities.headroom),
                outgoing: Arc::clone(outgoing),
                incoming: Arc::clone(incoming),
                capabilities,
                checksums: options.checksums,
            }
        };
        (side(1, &forth, &back), side(2, &back, &forth))
    }
}

impl Port for LoopPort {
    type Buffer = HeapBuffer;

    fn alloc(&mut self) -> Option<HeapBuffer> {
        self.pool.alloc()
    }

    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        let mut taken = 0;
        while !batch.is_full() {
            let Some(mut frame) = self.incoming.pop() else { break };
            if !self.checksums {
                let good = ReceivedChecksums { ip: ChecksumStatus::Good, tcp: ChecksumStatus::Good };
                frame.set_received_checksums(good);
            }
            batch.push(frame);
            taken += 1;
        }
        taken
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let mut taken = 0;
        while let Some(frame) = frames.pop_front() {
            if let Err(frame) = self.outgoing.push(frame) {
                frames.push_front(frame);
                break;
            }
            taken += 1;
        }
        taken
    }

    fn link(&mut self) -> LinkState {
        // The other side is gone when nobody else holds the queue any more.
        if Arc::strong_count(&self.outgoing) > 1 { LinkState::Up } else { LinkState::Down }
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pool_levels(&self) -> PoolLevels {
        let (total, free) = (self.pool.total() as u32, self.pool.free() as u32);
        // Frames are received by reference to the sender's pool: there is no receive pool to run dry.
        PoolLevels { receive_total: total, receive_free: total, transmit_total: total, transmit_free: free }
    }

    fn transmit_free(&self) -> usize {
        self.pool.free()
    }
}
