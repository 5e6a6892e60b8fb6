//! Contexts: how they are prepared, started and closed, what drives their engines, and the switch that they may share.

pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod core;
pub(crate) mod cpus;
pub(crate) mod driver;
pub(crate) mod engine_handle;
pub(crate) mod events;
mod instruments;
mod launch;
mod lingering;
pub(crate) mod lock;
pub mod monitor;
mod numbers;
mod ports;
mod prepare;
pub(crate) mod reservation;
pub(crate) mod settings;
pub mod switch;
pub(crate) mod tcp_ports;
mod waiters;
