//! Shared code of the interop tests: peers that do not use the stack's own codecs.
#![forbid(unsafe_code)]

pub mod echo;
pub mod flows;
pub mod link;
pub mod nic;
pub mod raw_peer;
pub mod scripts;
pub mod siw;
pub mod stack;
pub mod tools;
pub mod witness;

/// Whether the run is the long one (`UWARP_LONG=1`), which is not for every change.
pub fn is_long() -> bool {
    std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}
