//! Tests of whole engines on a simulated network in virtual time: the same seed gives the same run, so a failure names
//! its seed and can be reproduced.
//!
//! * [`traffic`]: streams that carry a seeded mix of Sends, Writes and Reads over a network with faults, and check
//!   every octet;
//! * [`beside`]: a host, and arbitrary frames of a test for it;
//! * [`durable`]: regions over stores that lose unsynced writes, and Commits of them;
//! * [`hostile`]: attacks beside an honest bystander, and their bounds;
//! * [`pairs`]: two engines with connected queue pairs;
//! * [`raw`]: a peer that is not an engine, and violates the protocol on request.

#![forbid(unsafe_code)]

pub mod beside;
pub mod durable;
pub mod hostile;
pub mod pairs;
pub mod raw;
pub mod traffic;
