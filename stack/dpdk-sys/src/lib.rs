//! DPDK from Rust: the bindings (generated at build time from the installed headers), a C shim for functions that DPDK
//! only has inline, and Rust ports of the hot ones ([`fast`]). Nothing here is safe by itself: `uwarp-dpdk` is the safe
//! interface.
#![allow(unsafe_code)] // One of the four unsafe islands: this is the border to C.

pub mod fast;
mod mbuf;

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unnecessary_transmutes)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    use super::rte_mbuf;

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
pub use mbuf::rte_mbuf;
