//! One receive and transmit queue pair of a port: the path of the packets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::{Capabilities, Mbuf};

/// How full the buffer pools are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLevels {
    /// Free buffers of the receive pool; the device's descriptors hold some.
    pub rx_free: u32,
    /// All buffers of the receive pool.
    pub rx_total: u32,
    /// Free buffers of the transmit pool.
    pub tx_free: u32,
    /// All buffers of the transmit pool.
    pub tx_total: u32,
}

/// A queue pair. One thread at a time may hold it.
#[derive(Debug)]
pub struct Queue {
    _not_sync: PhantomData<Cell<()>>,
}

impl Queue {
    /// The queue's number in its port.
    pub fn index(&self) -> u16 {
        todo!()
    }

    /// What the port can do.
    pub fn capabilities(&self) -> &Capabilities {
        todo!()
    }

    /// Whether the link is up, as the driver last knew it. Costs up to a microsecond on some devices: ask every millisecond, not every turn.
    pub fn link_up(&self) -> bool {
        todo!()
    }

    /// Receives as many packets as are there and as `out` has spare capacity for, at most [`MAX_BURST`](crate::MAX_BURST).
    /// `out` never grows its allocation. Returns how many were added.
    pub fn rx_burst(&mut self, out: &mut Vec<Mbuf>) -> usize {
        let _ = out;
        todo!()
    }

    /// Hands packets to the device from the front of `frames`, until it takes no more. Those taken are removed; the rest
    /// stay in order. Returns how many were taken.
    pub fn tx_burst(&mut self, frames: &mut VecDeque<Mbuf>) -> usize {
        let _ = frames;
        todo!()
    }

    /// A fresh buffer of the transmit pool, empty, starting at [`HEADROOM`](crate::HEADROOM); `None` when the pool is empty.
    pub fn alloc(&mut self) -> Option<Mbuf> {
        todo!()
    }

    /// The pools' levels as this thread sees them: buffers in other threads' caches count as used. Cheap (a few loads).
    pub fn pool_levels(&self) -> PoolLevels {
        todo!()
    }
}
