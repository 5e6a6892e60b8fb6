//! One poll-mode engine: a core that owns a device queue, the TCP connections on it and their queue pairs, and runs
//! everything to completion in its turn.
//!
//! [`Engine::turn`] receives a burst, takes each frame through TCP, MPA, DDP and RDMAP into registered memory, fires
//! timers, pulls posted work from the rings of rung queue pairs, answers read requests, and transmits. Layers below
//! return values; this crate alone joins them and owns the buffers. There are no callbacks, no locks, no allocation in
//! a steady turn, and time and randomness are arguments, so that a network of engines runs in one thread under virtual
//! time (see [`ports::sim`]).
//!
//! An engine talks to the rest of the program through rings of [`work`], doorbells, and the mailbox of [`command`].

#![forbid(unsafe_code)]

mod addresses;
pub mod command;
mod commits;
pub mod config;
mod connection;
mod control;
mod conversion;
mod core;
mod discovery;
mod egress;
mod ending;
mod engine;
mod flow;
mod fpdu;
mod fragments;
mod guesses;
pub mod handoff;
mod icmp;
mod ingress;
mod lanes;
mod listener;
mod lookahead;
mod neighbours;
mod output;
mod path;
pub mod port;
pub mod ports;
mod queue_pair;
mod reassembly;
mod receive;
mod requests;
pub mod rig;
mod segmentation;
pub mod shared;
mod slab;
mod snapshot;
mod startup;
pub mod stats;
pub mod steering;
pub mod stream;
mod streaming;
mod template;
mod waits;
mod wheel;
pub mod work;

pub use config::{Budgets, EngineConfig, InterfaceAddress, IwarpConfig, Limits, Sabotage};
pub use engine::{Engine, EngineChannels, EngineError, Turned};
pub use port::{Buffer, Capabilities, LinkState, PoolLevels, Port};
pub use stream::{Interest, StreamEnds, StreamFailure, StreamOptions};
