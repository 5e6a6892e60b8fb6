//! DPDK from Rust: the bindings (generated at build time from the installed headers), a C shim for functions that DPDK
//! only has inline, and Rust ports of the hot ones ([`fast`]). Nothing here is safe by itself: `uwarp-dpdk` is the safe
//! interface.
#![allow(unsafe_code)] // One of the unsafe islands: this is the border to C.

mod bindings;
pub mod fast;
pub mod release;

pub use bindings::*;

/// The drivers of DPDK that are linked into each program, as in the file `drivers`. None if DPDK is a shared library:
/// EAL loads its drivers.
pub const DRIVERS: &[&str] = include!(concat!(env!("OUT_DIR"), "/drivers.rs"));
