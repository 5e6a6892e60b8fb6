//! Tests of whole engines on a simulated network in virtual time: the same seed gives the same run, so a failure names
//! its seed and comes again.
//!
//! * [`traffic`]: streams that carry a seeded mix of Sends, Writes and Reads over a network with faults, and check every
//!   octet.

#![forbid(unsafe_code)]

pub mod traffic;
