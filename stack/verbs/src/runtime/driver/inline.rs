//! The inline engines of a thread, which turn while that thread calls.

use super::backoff::Backoff;
use super::seat::{Built, Seat};
use super::sleep::sleep;
use crate::runtime::clock::Clock;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Inline engines of a thread.
struct Seats {
    list: Vec<Seat>,
    /// Of the same index as the seat. Dropped after the engines, whose buffers go back through this thread's caches.
    registrations: Vec<Option<uwarp_dpdk::ThreadRegistration>>,
}

thread_local! {
    /// Inline engines that this thread turns.
    static SEATS: RefCell<Seats> = const { RefCell::new(Seats { list: Vec::new(), registrations: Vec::new() }) };
    /// Engines that would have threads of their own get a seat here instead.
    static SEATS_ALL: Cell<bool> = const { Cell::new(false) };
}

/// As [`crate::measure::seat_engines_here`] says.
pub(crate) fn seat_all() {
    SEATS_ALL.set(true);
}

/// Whether the calling thread has called [`seat_all`].
pub(crate) fn seats_all() -> bool {
    SEATS_ALL.get()
}

/// As [`crate::measure::turn_each`] says.
pub(crate) fn turn_each(mut before: impl FnMut(usize)) {
    let now = Clock::get().now();
    SEATS.with_borrow_mut(|seats| {
        for (index, seat) in seats.list.iter_mut().enumerate() {
            before(index);
            seat.turn(now);
        }
    });
}

/// Puts an inline engine on the calling thread.
pub(crate) fn seat((mut seat, registration): Built) {
    seat.is_live = true;
    SEATS.with_borrow_mut(|seats| {
        seats.list.push(seat);
        seats.registrations.push(registration);
    });
}

/// Whether the calling thread turns this context's engine.
pub(crate) fn is_here(context: u64) -> bool {
    SEATS.try_with(|seats| seats.borrow().list.iter().any(|seat| seat.context == context)).unwrap_or(false)
}

/// Rings the doorbell of a queue pair or connection of an inline context. False if its engine is not on this thread, or
/// busy: then the doorbells for all threads have to be used.
#[inline]
pub(crate) fn ring(context: u64, number: u32) -> bool {
    SEATS
        .try_with(|seats| {
            let Ok(mut seats) = seats.try_borrow_mut() else { return false };
            seats.list.iter_mut().find(|seat| seat.context == context).is_some_and(|seat| seat.ring_here(number))
        })
        .unwrap_or(false)
}

/// Turns one inline context, unless it belongs to another thread. True if there was something to do.
#[inline]
pub(crate) fn turn(context: u64) -> bool {
    SEATS
        .try_with(|seats| {
            seats.borrow_mut().list.iter_mut().find(|seat| seat.context == context).is_some_and(|seat| {
                let now = seat.clock.now();
                seat.turn_within::<true>(now).busy
            })
        })
        .unwrap_or(false)
}

/// Turns all inline engines of the calling thread once; a thread that waits for one of two contexts in one process
/// would otherwise wait for ever.
pub(crate) fn turn_all() -> bool {
    SEATS
        .try_with(|seats| {
            let mut busy = false;
            for seat in seats.borrow_mut().list.iter_mut() {
                let now = seat.clock.now();
                busy |= seat.turn(now).busy;
            }
            busy
        })
        .unwrap_or(false)
}

/// Turns all inline engines of the calling thread until `attempt` gets something; `None` when the time is over. Turns
/// in vain give way.
///
/// # Errors
/// Those of `attempt`.
pub(crate) fn turn_until<T, E>(
    mut backoff: Backoff,
    deadline: Option<Instant>,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    loop {
        let busy = turn_all();
        if let Some(done) = attempt()? {
            return Ok(Some(done));
        }
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(None);
        }
        if busy {
            backoff.reset();
            continue;
        }
        let now = Clock::get().now();
        if backoff.idle(now)
            && let Ok(None) = SEATS.try_with(|seats| sleep(&mut seats.borrow_mut().list, backoff.nap(now), left))
        {
            backoff.reset();
        }
    }
}

/// Takes an inline engine off the calling thread, if it is here, and drops it.
pub(crate) fn unseat(context: u64) {
    let seat = SEATS.try_with(|seats| {
        let mut seats = seats.borrow_mut();
        let index = seats.list.iter().position(|seat| seat.context == context)?;
        Some((seats.list.swap_remove(index), seats.registrations.swap_remove(index)))
    });
    // With the list free again.
    drop(seat);
}
