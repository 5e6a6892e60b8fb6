//! One poll-mode engine: a core that owns a device queue, the TCP connections on it and their queue pairs, and runs
//! everything to completion in its turn.
//!
//! [`Engine::turn`] receives a burst, takes each frame through TCP, MPA, DDP and RDMAP into registered memory, fires
//! timers, pulls posted work from the rings of rung queue pairs, answers read requests, and transmits. Layers below
//! return values; this crate alone joins them and owns the buffers. There are no callbacks, no locks, no allocation in
//! a steady turn, and time and randomness are arguments, so that a network of engines runs in one thread under virtual
//! time, as the crate `uwarp-testkit` does.
//!
//! An engine talks to the rest of the program through rings of [`work`], doorbells, and the mailbox of [`command`].

#![forbid(unsafe_code)]

mod api;
mod bytestream;
mod connection;
mod core;
mod engine;
mod link;
mod net;
pub mod ports;
mod rdma;
mod turn;

pub use api::{command, config, stats, work};
pub use bytestream::ends as stream;
pub use connection::ports::ReservedPorts;
pub use link::{handoff, port, steering};
pub use rdma::shared;

pub use config::{Budgets, EngineConfig, InterfaceAddress, IwarpConfig, Limits};
pub use engine::{Engine, EngineChannels, EngineError, Turned, Wakeup};
pub use port::{Buffer, Capabilities, LinkState, PoolLevels, Port};
pub use stream::{Interest, StreamEnds, StreamFailure, StreamOptions};
