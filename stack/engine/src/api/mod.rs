//! The engine's interface: commands and events, formats of work and completions, settings, statistics.

use std::sync::Arc;

use crossbeam::channel::Receiver;
use uwarp_ring::Doorbells;

use crate::api::command::{AsyncEvent, Command, EventSink};
use crate::connection::shutdown::Shutdown;

pub mod command;
pub(crate) mod completion;
pub mod config;
pub(crate) mod counters;
pub(crate) mod event;
mod mailbox;
pub(crate) mod snapshot;
pub mod stats;
pub mod work;

/// The state of this room: what comes from applications, and where events go.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) commands: Receiver<Command>,
    pub(crate) events: EventSink<AsyncEvent>,
    pub(crate) doorbells: Arc<Doorbells>,
    /// Queue pairs and plain streams whose doorbells rang and that were not served yet.
    pub(crate) rung: Vec<u32>,
    pub(crate) shutdown: Option<Shutdown>,
}

impl Control {
    /// See [`crate::Engine::ring_here`].
    #[inline]
    pub(crate) fn ring_here(&mut self, number: u32) -> bool {
        if self.rung.last() == Some(&number) {
            return true;
        }
        let room = self.rung.len() < self.rung.capacity();
        if room {
            self.rung.push(number);
        }
        room
    }
}
