//! TCP ports that are spoken for.

use std::fmt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use uwarp_ring::Notifier;

/// Ports of one [`Block`].
const BLOCK: usize = 64;

/// What is known about consecutive ports.
#[derive(Default)]
struct Block {
    /// Who is reserved, a bit each.
    reserved: AtomicU64,
    /// Connections of each, once there was one.
    connections: OnceLock<Box<[AtomicU32; BLOCK]>>,
}

/// The TCP ports of a context that somebody has: a listener, or an application that will use one. Engines do not choose
/// them for active opens by themselves. Also counts the connections of each port.
pub struct ReservedPorts {
    blocks: Box<[Block; (1 << 16) / BLOCK]>,
    /// Fired, if armed, when a port's last connection has ended.
    unused: OnceLock<Arc<Notifier>>,
}

impl Default for ReservedPorts {
    fn default() -> ReservedPorts {
        ReservedPorts { blocks: Box::new(std::array::from_fn(|_| Block::default())), unused: OnceLock::new() }
    }
}

impl ReservedPorts {
    fn block(&self, port: u16) -> (&Block, usize) {
        let port = usize::from(port);
        (&self.blocks[port / BLOCK], port % BLOCK)
    }

    fn place(&self, port: u16) -> (&AtomicU64, u64) {
        let (block, index) = self.block(port);
        (&block.reserved, 1 << index)
    }

    /// Takes a port. False: somebody has it.
    pub fn reserve(&self, port: u16) -> bool {
        let (word, bit) = self.place(port);
        word.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Gives a port back.
    pub fn release(&self, port: u16) {
        let (word, bit) = self.place(port);
        word.fetch_and(!bit, Relaxed);
    }

    /// Whether somebody has a port.
    pub fn contains(&self, port: u16) -> bool {
        let (word, bit) = self.place(port);
        word.load(Relaxed) & bit != 0
    }

    /// Whether a connection has this local port. Those in TIME-WAIT do not count.
    pub fn has_connections(&self, port: u16) -> bool {
        let (block, index) = self.block(port);
        block.connections.get().is_some_and(|connections| connections[index].load(Acquire) > 0)
    }

    /// Has a notifier fire, if it is armed, when a port's last connection has ended. Only the first call counts.
    pub fn notify_unused(&self, notifier: Arc<Notifier>) {
        let _ = self.unused.set(notifier);
    }

    /// The number of connections of a port.
    fn count(&self, port: u16) -> &AtomicU32 {
        let (block, index) = self.block(port);
        let connections = block.connections.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU32::new(0))));
        &connections[index]
    }

    /// A connection of this local port begins.
    pub(crate) fn connected(&self, port: u16) {
        self.count(port).fetch_add(1, Relaxed);
    }

    /// A connection of this local port has ended.
    pub(crate) fn disconnected(&self, port: u16) {
        if self.count(port).fetch_sub(1, AcqRel) == 1
            && let Some(notifier) = self.unused.get()
        {
            notifier.fire_if_armed();
        }
    }
}

impl fmt::Debug for ReservedPorts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u32 = self.blocks.iter().map(|block| block.reserved.load(Relaxed).count_ones()).sum();
        formatter.debug_struct("ReservedPorts").field("count", &count).finish_non_exhaustive()
    }
}
