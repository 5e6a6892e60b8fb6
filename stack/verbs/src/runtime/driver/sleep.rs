//! How a thread sleeps until one of the engines that it turns has something to do.

use super::seat::Seat;
use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::Duration;
use uwarp_engine::Wakeup;

/// Longest sleep of an engine whose device announces every frame: a safety net, and for devices that do not announce
/// changes of their link.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Descriptors that one sleep can wait for.
const MOST_DESCRIPTORS: usize = 24;

/// Lets the calling thread sleep, which turns these engines, until one of them has something to do, at most for
/// `limit`; if a device announces nothing, at most for `nap`. Returns what ended the sleep; `None` if an engine had
/// something to do before it or right after it, other than a timer that led to no frame.
pub(super) fn sleep(seats: &mut [Seat], nap: Duration, limit: Duration) -> Option<Wakeup> {
    // First the wake-ups are enabled, then every engine turns once more. So whatever comes is seen now, or ends the
    // sleep.
    let mut announced = seats.len() * 3 <= MOST_DESCRIPTORS;
    for seat in seats.iter_mut() {
        seat.wake.arm();
        announced &= seat.enable_wakeups();
    }
    let mut limit = limit.min(if announced { LONGEST_SLEEP } else { nap });
    let mut busy = false;
    for seat in seats.iter_mut() {
        let now = seat.clock.now();
        busy |= seat.turn_at_helm(now).busy || seat.is_done();
        if let Some(deadline) = seat.next_deadline() {
            limit = limit.min(Duration::from_nanos(deadline.as_nanos().saturating_sub(now.as_nanos())));
        }
    }
    let woken = (!busy && !limit.is_zero()).then(|| wait(seats, limit));
    if woken.is_some() {
        // What has come is answered first: right after a sleep, ending the announcements takes microseconds.
        for seat in seats.iter_mut() {
            let now = seat.clock.now();
            let turned = seat.turn_at_helm(now);
            busy |= turned.received > 0 || turned.transmitted > 0 || turned.busy && woken != Some(Wakeup::Timer);
        }
    }
    for seat in seats {
        seat.wake_up(woken);
    }
    woken.filter(|_| !busy)
}

/// Waits for what wakes any of these engines.
fn wait(seats: &[Seat], limit: Duration) -> Wakeup {
    let mut polled = ArrayVec::<PollFd<'_>, MOST_DESCRIPTORS>::new();
    for seat in seats {
        // Those of a thread with very many engines that do not fit are looked at after a nap.
        let _ = polled.try_push(PollFd::from_borrowed_fd(seat.wake.as_fd(), PollFlags::IN));
    }
    let doorbells = polled.len();
    for descriptor in seats.iter().flat_map(Seat::wakeup_descriptors) {
        let _ = polled.try_push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    }
    let limit = Timespec::try_from(limit).ok();
    // An interruption by a signal counts as the end of the time.
    let _ = poll(&mut polled, limit.as_ref());
    match polled.iter().position(|polled| !polled.revents().is_empty()) {
        Some(index) if index < doorbells => Wakeup::Doorbell,
        Some(_) => Wakeup::Device,
        None => Wakeup::Timer,
    }
}
