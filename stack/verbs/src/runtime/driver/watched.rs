//! A port of tests: it panics when it is told to, and sees in what order an engine wakes up.

use super::PortSeed;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use uwarp_engine::port::{Batch, Descriptors};
use uwarp_engine::ports::{HeapBuffer, LoopPort};
use uwarp_engine::{Capabilities, LinkState, PoolLevels, Port};

/// What a test has in common with its port.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The next receive burst panics.
    pub(crate) panics: AtomicBool,
    /// How often the engine received a frame and sent one while the device still announced frames.
    pub(crate) answered_first: AtomicU32,
}

/// One end of a pair in this process, under watch.
pub(crate) struct WatchedPort {
    inner: LoopPort,
    watch: Arc<Watch>,
    /// Since announcements were enabled: a frame came, and one left behind it.
    received: bool,
    answered: bool,
}

impl WatchedPort {
    pub(crate) fn seed(inner: LoopPort, watch: &Arc<Watch>) -> PortSeed {
        PortSeed::Watched(WatchedPort { inner, watch: Arc::clone(watch), received: false, answered: false })
    }
}

impl Port for WatchedPort {
    type Buffer = HeapBuffer;

    fn alloc(&mut self) -> Option<HeapBuffer> {
        self.inner.alloc()
    }

    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        assert!(!self.watch.panics.load(Ordering::Relaxed), "told to panic");
        let received = self.inner.rx_burst(batch);
        self.received |= received > 0;
        received
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let sent = self.inner.tx_burst(frames);
        self.answered |= self.received && sent > 0;
        sent
    }

    fn enable_wakeups(&mut self) -> bool {
        (self.received, self.answered) = (false, false);
        self.inner.enable_wakeups()
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        self.inner.wakeup_descriptors()
    }

    fn disable_wakeups(&mut self) -> bool {
        self.watch.answered_first.fetch_add(self.answered.into(), Ordering::Relaxed);
        self.inner.disable_wakeups()
    }

    fn link(&mut self) -> LinkState {
        self.inner.link()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn pool_levels(&self) -> PoolLevels {
        self.inner.pool_levels()
    }
}
