//! For tools that count what the stack does, instead of timing it.

use crate::runtime::clock;
use crate::runtime::driver::inline;
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

/// Has the calling thread turn all engines of the threaded contexts that it opens from now on, by [`turn_each`] alone:
/// what several engines do can then be told apart. Each is built on a thread of its own, as otherwise. Calls that wait
/// for an engine have to be made by another thread, and the contexts cannot be closed.
pub fn seat_engines_here() {
    inline::seat_all();
}

/// Reads the clock and turns each engine of the calling thread once, in the order in which they were made. Calls
/// `before` with its index right before each turn.
pub fn turn_each(before: impl FnMut(usize)) {
    inline::turn_each(before);
}
