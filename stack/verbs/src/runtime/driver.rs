//! Who turns the engines: a thread each, the application's own thread, or both by turns.

pub(crate) mod at_helm;
mod backoff;
mod health;
#[cfg(test)]
mod idle_turns;
pub(crate) mod inline;
#[cfg(test)]
mod panicking;
mod seat;
mod sleep;
#[cfg(test)]
mod waking;
#[cfg(test)]
pub(crate) mod watched;

pub(crate) use backoff::Backoff;
pub(crate) use health::Health;
pub(crate) use seat::{Built, EngineSeed, PortSeed, Seat};
