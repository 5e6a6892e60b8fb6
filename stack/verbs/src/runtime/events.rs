//! Asynchronous events.

use crate::error::Error;
use crate::runtime::context::{Context, Shared};
use crate::runtime::core::{NoReply, Origin};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_engine::command::AsyncEvent;

/// Events that no call of the application reports: lost connections, a peer's Terminate, completed octets that were
/// never acknowledged, a failed engine, a link that goes up or down.
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    shared: Arc<Shared>,
}

impl Context {
    /// The context's asynchronous events. Several handles share them: each event is delivered once.
    pub fn events(&self) -> AsyncEvents {
        AsyncEvents::new(self.shared())
    }
}

impl AsyncEvents {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// The next event, if there is one.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.shared.turn();
        self.shared.events.try_recv().ok()
    }

    /// Waits for the next event; `None` after the time limit, or if no event can follow.
    pub fn wait(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        match self.shared.receive(&self.shared.events, Origin::Any, deadline) {
            Ok(event) => Ok(Some(event)),
            Err(NoReply::TimedOut | NoReply::Gone) => Ok(None),
            Err(NoReply::WrongThread) => Err(Error::WrongThread),
        }
    }

    /// Makes the next event raise the file descriptor of [`as_fd`](AsFd::as_fd): at once, if one waits.
    pub fn arm(&self) {
        self.shared.event_notifier.drain();
        self.shared.event_notifier.arm();
        if !self.shared.events.is_empty() {
            self.shared.event_notifier.fire_if_armed();
        }
    }
}

impl AsFd for AsyncEvents {
    /// Readable after an event since [`arm`](AsyncEvents::arm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event_notifier.as_fd()
    }
}
