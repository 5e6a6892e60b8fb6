//! For tools that count what the stack does, instead of timing it.

use crate::runtime::clock;
use std::time::Duration;

/// Replaces the clock of all engines of this process by one that moves by `step` each time that an engine reads it:
/// once a turn, if the application turns it. Timers then fire behind the same number of turns on every machine and
/// under every tool, so a count of instructions can be repeated. Waits of the application still take real time.
///
/// Only for programs that poll: while an engine sleeps, this clock stands still, and its timers are never due.
///
/// Returns false, and changes nothing, if the clock is in use: call it before the first context is opened.
#[must_use]
pub fn step_clock(step: Duration) -> bool {
    clock::step(step)
}
