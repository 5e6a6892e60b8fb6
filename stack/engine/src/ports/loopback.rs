//! Two connected ports within one process: what one sends, the other receives by reference.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uwarp_ring::{Consumer, Notifier, Producer};

use super::heap::{HeapBuffer, HeapPool, capabilities};
use crate::link::port::{
    Batch, Capabilities, ChecksumStatus, Descriptors, LinkState, PoolLevels, Port, ReceivedChecksums,
};

/// Settings of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Largest IP packet in octets.
    pub mtu: u16,
    /// Buffers in each side's pool.
    pub buffers: usize,
    /// Most frames in flight in one direction, rounded up to a power of two.
    pub queue: usize,
    /// Compute and check checksums as over a real wire. Without it, both sides claim checksum offload.
    pub checksums: bool,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions { mtu: 1500, buffers: 4096, queue: 1024, checksums: true }
    }
}

/// What both sides know of one direction, beside the frames.
#[derive(Debug)]
struct Line {
    /// Wakes the receiver; none if the process has no descriptors left, so the receiver has to look now and then.
    wake: Option<Notifier>,
    /// The sender is gone.
    closed: AtomicBool,
}

impl Line {
    fn new() -> Arc<Line> {
        Arc::new(Line { wake: Notifier::new().ok(), closed: AtomicBool::new(false) })
    }

    #[inline]
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.fire_if_armed();
        }
    }
}

/// One side of a pair.
#[derive(Debug)]
pub struct LoopPort {
    pool: HeapPool,
    sent: Producer<HeapBuffer>,
    outgoing: Arc<Line>,
    arriving: Consumer<HeapBuffer>,
    incoming: Arc<Line>,
    capabilities: Capabilities,
    checksums: bool,
}

impl LoopPort {
    /// Two connected ports, with hardware addresses 02:00:00:00:00:01 and 02:00:00:00:00:02.
    pub fn pair(options: LoopOptions) -> (LoopPort, LoopPort) {
        let (forth, back) = (Line::new(), Line::new());
        let (sent_forth, arriving_forth) = uwarp_ring::ring(options.queue);
        let (sent_back, arriving_back) = uwarp_ring::ring(options.queue);
        let side = |last: u8, (sent, outgoing): (_, &Arc<Line>), (arriving, incoming): (_, &Arc<Line>)| {
            let capabilities = capabilities([2, 0, 0, 0, 0, last], options.mtu, !options.checksums);
            LoopPort {
                pool: HeapPool::new(options.buffers, capabilities.data_room, capabilities.headroom),
                sent,
                outgoing: Arc::clone(outgoing),
                arriving,
                incoming: Arc::clone(incoming),
                capabilities,
                checksums: options.checksums,
            }
        };
        let first = side(1, (sent_forth, &forth), (arriving_back, &back));
        (first, side(2, (sent_back, &back), (arriving_forth, &forth)))
    }

    /// Puts a frame on the line, as the other side will see it. Gives it back if the line is full.
    #[inline(always)]
    fn give(&mut self, mut frame: HeapBuffer) -> Result<(), HeapBuffer> {
        if !self.checksums {
            let good = ReceivedChecksums { ip: ChecksumStatus::Good, tcp: ChecksumStatus::Good };
            frame.set_received_checksums(good);
        }
        self.sent.push(frame)
    }
}

impl Port for LoopPort {
    type Buffer = HeapBuffer;

    #[inline(always)]
    fn alloc(&mut self) -> Option<HeapBuffer> {
        self.pool.alloc()
    }

    #[inline(always)]
    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        let before = batch.len();
        while !batch.is_full()
            && let Some(frame) = self.arriving.pop()
        {
            batch.push(frame);
        }
        batch.len() - before
    }

    #[inline(always)]
    fn tx_one(&mut self, frame: HeapBuffer) -> Result<(), HeapBuffer> {
        self.give(frame)?;
        self.outgoing.wake();
        Ok(())
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let mut taken = 0;
        while let Some(frame) = frames.pop_front() {
            if let Err(frame) = self.give(frame) {
                frames.push_front(frame);
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.outgoing.wake();
        }
        taken
    }

    fn enable_wakeups(&mut self) -> bool {
        if let Some(wake) = &self.incoming.wake {
            wake.arm();
        }
        self.incoming.wake.is_some()
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        self.incoming.wake.iter().map(AsFd::as_fd).collect()
    }

    fn disable_wakeups(&mut self) -> bool {
        if let Some(wake) = &self.incoming.wake {
            wake.disarm();
            wake.drain();
        }
        self.incoming.closed.load(Ordering::Acquire)
    }

    fn link(&mut self) -> LinkState {
        if self.incoming.closed.load(Ordering::Acquire) { LinkState::Down } else { LinkState::Up }
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pool_levels(&self) -> PoolLevels {
        let (total, free) = (self.pool.total() as u32, self.pool.free() as u32);
        // Frames are received as references to the sender's pool, so no receive pool can run dry.
        PoolLevels { receive_total: total, receive_free: total, transmit_total: total, transmit_free: free }
    }

    #[inline]
    fn transmit_free(&self) -> usize {
        self.pool.free()
    }
}

impl Drop for LoopPort {
    fn drop(&mut self) {
        self.outgoing.closed.store(true, Ordering::Release);
        self.outgoing.wake();
    }
}
