//! TCP ports that are spoken for.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The TCP ports of a context that somebody has: a listener, or an application that will use one. Engines do not choose them
/// for active opens by themselves.
pub struct ReservedPorts(Box<[AtomicU64; 1024]>);

impl Default for ReservedPorts {
    fn default() -> ReservedPorts {
        ReservedPorts(Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl ReservedPorts {
    fn place(&self, port: u16) -> (&AtomicU64, u64) {
        (&self.0[usize::from(port / 64)], 1 << (port % 64))
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
}

impl fmt::Debug for ReservedPorts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u32 = self.0.iter().map(|word| word.load(Relaxed).count_ones()).sum();
        formatter.debug_struct("ReservedPorts").field("count", &count).finish()
    }
}
