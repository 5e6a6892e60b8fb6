//! What the interop tests share: a peer that was not written with the stack's own codecs.
#![forbid(unsafe_code)]

pub mod echo;
pub mod flows;
pub mod raw_peer;
pub mod scripts;
pub mod siw;
pub mod stack;
pub mod tools;
pub mod witness;
