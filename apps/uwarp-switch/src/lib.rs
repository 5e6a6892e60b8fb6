//! The switch that joins programs of one host over shared memory: each client has a port of its own, all have the same
//! addresses, and TCP ports tell them apart.
//!
//! - [`core`]: tables and verdicts, without I/O. Everything about trust is decided there.
//! - [`forward`]: the loop that moves frames, over any [`Port`](uwarp_engine::port::Port).
//! - [`daemon`]: devices, the control socket, and who may connect.
#![forbid(unsafe_code)]

pub mod core;
pub mod daemon;
pub mod forward;
#[doc(hidden)]
pub mod measure;
