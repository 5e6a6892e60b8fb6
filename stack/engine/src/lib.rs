//! The engine: one poll-mode core that owns a device queue, the TCP connections on it and their queue pairs, and does
//! all work within its turn.
//!
//! [`Engine::turn`] receives a burst, takes each frame through TCP, MPA, DDP and RDMAP into registered memory, fires
//! timers, pulls posted work from the rings whose doorbells rang, answers Read Requests, and transmits. The layers
//! below return values; this crate alone joins them and owns the buffers. A steady turn has no callback, lock or
//! allocation. Time is an argument and random numbers have a seed, so a network of engines runs in one thread under
//! virtual time, as in the crate `uwarp-testkit`.
//!
//! The rest of the program talks to an engine through rings of [`work`], doorbells, and commands ([`command`]).

#![forbid(unsafe_code)]

mod api;
mod bytestream;
mod channels;
mod connection;
mod core;
mod engine;
mod hot;
mod link;
mod net;
pub mod ports;
mod rdma;
mod turn;

pub use api::ends as stream;
pub use api::ports::ReservedPorts;
pub use api::{command, config, datagram, shared, stats, steering, work};
pub use link::{handoff, port};

pub use channels::{EngineChannels, EngineError};
pub use config::{Budgets, EngineConfig, InterfaceAddress, IwarpConfig, Limits};
pub use engine::{Engine, Turned, Wakeup};
pub use port::{Buffer, Capabilities, LinkState, PoolLevels, Port};
pub use stream::{Interest, StreamEnds, StreamFailure, StreamOptions};
