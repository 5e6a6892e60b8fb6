//! DPDK made safe: the environment abstraction layer, ports, queues, and packet buffers.
//!
//! What may go wrong in C is kept out by types here:
//!
//! - [`Eal`] exists once a process and is never torn down while something uses it.
//! - A [`Port`] is closed when it and all of its [`Queue`]s are gone, in the order that DPDK asks for.
//! - A [`Queue`] belongs to one thread at a time (`Send`, not `Sync`), as DPDK's queues do.
//! - An [`Mbuf`] is one reference to a packet buffer: dropping it gives the reference back, handing it to
//!   [`Queue::tx_burst`] moves it into the device, and its octets can be changed only while it is the sole reference.
//! - The memory of a buffer pool outlives every buffer taken from it, also when the port is closed before.
//!
//! Nothing on the path of a packet allocates, locks or makes a system call of its own; what a driver does is its own.
#![allow(unsafe_code)] // One of the four unsafe islands: this crate is where C's promises are turned into Rust's.

pub mod device;
pub mod eal;
mod error;
mod gate;
mod log;
mod maintenance;
mod mbuf;
#[doc(hidden)]
pub mod measure;
mod plan;
mod pool;
mod port;
mod queue;
mod ring;
mod signal;

pub use device::{DeviceConfig, MemifRole};
pub use eal::{Eal, EalConfig, ThreadRegistration, list_drivers, plugin_directory};
pub use error::Error;
pub use mbuf::{ChecksumStatus, Mbuf, RxChecksum, Segments, TxChecksum};
pub use port::{Capabilities, Link, Offloads, Port, PortInfo, PortOptions, Rss, Statistics};
pub use queue::{PoolLevels, Queue};

/// The most packets that one receive or transmit burst moves.
pub const MAX_BURST: usize = 64;

/// The room in front of a received packet, and the offset at which a fresh transmit buffer starts, in octets.
pub const HEADROOM: usize = 128;
