//! What connects an engine to the rest of the program.

use std::sync::Arc;
use std::task::Waker;

use crossbeam::channel::Receiver;
use uwarp_memory::RegionTable;
use uwarp_ring::Doorbells;

use crate::api::command::{AsyncEvent, Command, EventSink};
use crate::api::ports::ReservedPorts;
use crate::link::handoff::Handoff;

/// What connects an engine to the rest of the program.
#[derive(Debug)]
pub struct EngineChannels {
    /// The context's regions.
    pub regions: Arc<RegionTable>,
    /// Ports that no engine of the context chooses by itself.
    pub ports: Arc<ReservedPorts>,
    /// Doorbells of this engine, one a queue pair number.
    pub doorbells: Arc<Doorbells>,
    /// Commands from applications. Each is announced by
    /// [`Doorbells::ring_mailbox`](uwarp_ring::Doorbells::ring_mailbox).
    pub commands: Receiver<Command>,
    /// Receives asynchronous events.
    pub events: EventSink<AsyncEvent>,
    /// Wakes the engine's thread if it sleeps. Used by committers of durable regions, which answer from their own
    /// threads.
    pub waker: Option<Waker>,
    /// Exchanges packets with the context's other engines; `None` if there are none.
    pub handoff: Option<Handoff>,
}

/// Why an engine could not be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A setting is out of bounds.
    #[error("{0}")]
    Config(&'static str),
}
