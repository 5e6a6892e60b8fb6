//! DPDK made safe: the environment abstraction layer, ports, queues, and packet buffers.
//!
//! The types rule out these errors of C:
//!
//! - [`Eal`] exists once per process and is never torn down while it is in use.
//! - A [`Port`] is closed when it and all of its [`Queue`]s are dropped, in the order that DPDK requires.
//! - A [`Queue`] belongs to one thread at a time (`Send`, not `Sync`), as DPDK's queues do.
//! - An [`Mbuf`] is one reference to a packet buffer. Dropping it returns the reference, [`Queue::tx_burst`] moves it
//!   into the device, and its octets can be changed only while it is the sole reference.
//! - The memory of a buffer pool outlives every buffer taken from it, even if the port is closed before.
//!
//! On a packet's path this crate allocates nothing, takes no lock and makes no system call; drivers may.
#![allow(unsafe_code)] // One of the unsafe islands: this crate turns C's promises into Rust's.

mod alarm;
mod copies;
pub mod device;
pub mod eal;
mod error;
mod gate;
mod lock;
mod locked;
mod log;
mod maintenance;
mod mbuf;
#[doc(hidden)]
pub mod measure;
mod pci;
mod plan;
mod pool;
mod port;
mod queue;
mod ring;
mod signal;
pub mod socket;

pub use device::{DeviceConfig, MemifRole};
pub use eal::{
    Caches, Eal, EalConfig, ThreadRegistration, list_drivers, loads_drivers, plugin_directory, without_cancellation,
};
pub use error::Error;
pub use mbuf::{ChecksumStatus, Mbuf, RxChecksum, Segments, TxChecksum};
pub use pci::NIC_DRIVERS;
pub use plan::CUT_ROOM;
pub use port::{Capabilities, Link, Offloads, Port, PortInfo, PortOptions, Rss, Statistics};
pub use queue::{PoolLevels, Queue};
pub use signal::with_signals_blocked;

/// The most packets that one receive or transmit burst moves.
pub const MAX_BURST: usize = 64;

/// Octets in front of a received packet, and the offset at which a fresh transmit buffer starts.
pub const HEADROOM: usize = 128;
