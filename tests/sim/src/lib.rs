//! Tests of whole engines on a simulated network in virtual time: the same seed gives the same run, so a failure names
//! its seed and comes again.
//!
//! * [`traffic`]: streams that carry a seeded mix of Sends, Writes and Reads over a network with faults, and check every
//!   octet;
//! * [`beside`]: a host, and whatever frames a test has for it;
//! * [`durable`]: regions over stores that lose what was not synced, and Commits of them;
//! * [`hostile`]: attacks beside an honest bystander, and what may come of them;
//! * [`pairs`]: two engines with connected queue pairs;
//! * [`raw`]: a peer that is no engine, and breaks the protocol where it is told to.

#![forbid(unsafe_code)]

pub mod beside;
pub mod durable;
pub mod hostile;
pub mod pairs;
pub mod raw;
pub mod traffic;
