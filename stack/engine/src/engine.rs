//! The engine and its turn.

use std::sync::Arc;

use crossbeam::channel::Receiver;
use uwarp_memory::RegionTable;
use uwarp_ring::Doorbells;
use uwarp_tcp::Instant;

use crate::command::{AsyncEvent, Command, EventSink};
use crate::config::EngineConfig;
use crate::port::Port;

/// What joins an engine to the rest of the program.
#[derive(Debug)]
pub struct EngineChannels {
    /// The context's regions.
    pub regions: Arc<RegionTable>,
    /// Doorbells of this engine, one a queue pair number.
    pub doorbells: Arc<Doorbells>,
    /// The mailbox.
    pub commands: Receiver<Command>,
    /// Where asynchronous events go.
    pub events: EventSink<AsyncEvent>,
}

/// Why an engine cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A setting is out of its bounds.
    #[error("{0}")]
    Config(&'static str),
}

/// What a turn did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turned {
    /// Frames received.
    pub received: usize,
    /// Frames given to the device.
    pub transmitted: usize,
    /// Whether anything was done or is left to do at once: an idle engine may back off.
    pub busy: bool,
    /// When the engine must be turned again even if nothing arrives; `None` if no timer runs.
    pub next_deadline: Option<Instant>,
}

/// One poll-mode engine on one port. Built on the thread that turns it; it cannot leave that thread.
pub struct Engine<P: Port> {
    _port: P,
}

impl<P: Port> Engine<P> {
    /// An engine with nothing open.
    ///
    /// # Errors
    /// A setting out of bounds, said in one sentence.
    pub fn new(config: EngineConfig, port: P, channels: EngineChannels) -> Result<Engine<P>, EngineError> {
        let _ = (config, port, channels);
        todo!()
    }

    /// One pass over everything there is to do. `now` is read once by the caller and does not go backwards.
    pub fn turn(&mut self, now: Instant) -> Turned {
        let _ = now;
        todo!()
    }

    /// Ends everything at once, after a failure of the device or of the engine itself: all work is flushed with
    /// [`crate::work::Status::Fatal`], every connection is forgotten, and the application gets
    /// [`AsyncEvent::DeviceFatal`].
    pub fn fail(&mut self, cause: &str) {
        let _ = cause;
        todo!()
    }

    /// Whether a shutdown has finished: the engine may be dropped without cutting off any connection.
    pub fn is_shut_down(&self) -> bool {
        todo!()
    }
}
