//! What other threads may know about an engine.

use crate::runtime::lock::lock;
use crate::runtime::waiters::Waiters;
use crossbeam::channel::{Receiver, Sender, bounded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// What other threads may know about an engine.
#[derive(Debug)]
pub(crate) struct Health {
    failure: OnceLock<String>,
    stopped: AtomicBool,
    /// Dropped when the engine stops, which disconnects `ended`.
    running: Mutex<Option<Sender<()>>>,
    ended: Receiver<()>,
    waiters: Arc<Waiters>,
}

impl Health {
    pub(crate) fn new(waiters: Arc<Waiters>) -> Self {
        let (running, ended) = bounded(0);
        let (failure, stopped) = (OnceLock::new(), AtomicBool::new(false));
        Self { failure, stopped, running: Mutex::new(Some(running)), ended, waiters }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.end();
        self.waiters.wake();
    }

    /// Nobody waits for the engine any more.
    pub(crate) fn end(&self) {
        lock(&self.running).take();
    }

    /// The engine has failed, or something that it needs is gone for good: nobody waits for it any more.
    pub(crate) fn give_up(&self, reason: &str) {
        let _ = self.failure.set(reason.to_owned());
        self.stop();
    }

    /// Why the engine failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Disconnected when the engine has stopped.
    pub(crate) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Whether the engine will never turn again.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}
