//! Who waits for an engine.

use crate::runtime::lock::lock;
use crossbeam::channel::{Receiver, Sender, bounded};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use uwarp_ring::Notifier;

/// Who is woken when an engine stops, so that nobody waits for the dead.
#[derive(Debug)]
pub(crate) struct Waiters {
    notifiers: Mutex<Vec<Weak<Notifier>>>,
    /// Dropped when the first engine stops, which disconnects `stopped`.
    running: Mutex<Option<Sender<()>>>,
    stopped: Receiver<()>,
}

impl Default for Waiters {
    fn default() -> Self {
        let (running, stopped) = bounded(0);
        Self { notifiers: Mutex::default(), running: Mutex::new(Some(running)), stopped }
    }
}

impl Waiters {
    fn notifiers(&self) -> MutexGuard<'_, Vec<Weak<Notifier>>> {
        lock(&self.notifiers)
    }

    pub(crate) fn add(&self, notifier: &Arc<Notifier>) {
        let mut list = self.notifiers();
        if list.len() == list.capacity() {
            list.retain(|waiter| waiter.strong_count() > 0);
        }
        list.push(Arc::downgrade(notifier));
    }

    /// Disconnected when an engine has stopped.
    pub(crate) fn stopped(&self) -> &Receiver<()> {
        &self.stopped
    }

    pub(crate) fn wake(&self) {
        lock(&self.running).take();
        for waiter in self.notifiers().iter().filter_map(Weak::upgrade) {
            waiter.fire_if_armed();
        }
    }
}
