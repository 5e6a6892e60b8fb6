//! A network of engines in one thread under virtual time, for tests and instruction counts: only they depend on this
//! crate.
//!
//! [`sim`] is a network that loses, repeats, delays and damages frames by a seed, and that breaks rules on purpose.
//! [`rig`] has hosts on it, driven by hand. [`capture`] reads what an engine captured.

#![forbid(unsafe_code)]

pub mod capture;
mod offload;
pub mod rig;
pub mod sim;
