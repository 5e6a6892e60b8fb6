//! DPDK from Rust: the bindings (made at build time from the installed headers), a C shim for what DPDK has only as inline
//! functions, and the hot ones of those ported ([`fast`]). Nothing here is safe by itself: the crate `uwarp-dpdk` is the safe side.
#![allow(unsafe_code)] // One of the four unsafe islands: this is the border to C.

pub mod fast;

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unnecessary_transmutes)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
