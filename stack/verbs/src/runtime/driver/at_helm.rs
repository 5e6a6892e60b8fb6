//! The thread of an engine, and the threads of the application that relieve it while they poll.

use super::backoff::Backoff;
use super::seat::Seat;
use super::sleep::sleep;
use crate::config::EngineOptions;
use std::time::Duration;
use uwarp_engine::Wakeup;
use uwarp_ring::Held;
use uwarp_tcp::Instant;

/// Who turns an engine. Empty before the engine runs and afterwards.
pub(crate) type Helm = uwarp_ring::Helm<Option<Seat>>;

/// The application polls if it counts one in this time, while the thread turns: a poll in vain takes less. A program
/// that polls memory, and the queue in between, counts less.
const POLL_TIME: Duration = Duration::from_micros(1);
/// The same while the application turns. A poll in vain takes up to eight turns, of less than a microsecond each. A
/// poll counts as much as the frames it moves, which take less than that.
const TURN_TIME: Duration = Duration::from_micros(8);
/// How long the application has to have polled before the thread stands back.
const PATIENCE: Duration = Duration::from_micros(50);
/// The same after the thread was often needed at once.
const MOST_PATIENCE: Duration = Duration::from_millis(50);
/// How long the thread stands back at first. Whoever stops polling without a call waits as long for an acknowledgment.
const LEAST_REST: Duration = Duration::from_micros(100);
/// How long it stands back while the application goes on polling.
const LONGEST_REST: Duration = Duration::from_millis(1);
/// Polls in vain after which the application wakes a thread that sleeps with the helm in its hands.
const POLLS_BEFORE_CALL: u32 = 64;

/// A turn by a thread of the application that polls a completion queue, if nobody else turns the engine now.
/// `empty_polls`: how often the queue was empty in a row since its last completion. True if the turn had something to
/// do.
#[inline]
pub(crate) fn turn_for_application(helm: &Helm, empty_polls: u32) -> bool {
    let Some(mut held) = helm.try_take() else {
        helm.count(1);
        if empty_polls % POLLS_BEFORE_CALL == POLLS_BEFORE_CALL - 1 {
            helm.wake();
        }
        return false;
    };
    let Some(seat) = &mut *held else { return false };
    let turned = seat.turn_for_application(empty_polls);
    drop(held);
    helm.count(1 + (turned.received + turned.transmitted) as u32);
    turned.busy
}

/// Rings a queue pair's doorbell without an atomic operation, if the calling thread is the one that turns the engine
/// all the time. Its next poll answers, or [`turn_for_answer`]; if there is none, the engine's thread does when it
/// comes back.
#[inline]
pub(crate) fn ring_for_application(helm: &Helm, number: u32) -> bool {
    helm.take_as_usual().is_some_and(|mut held| held.as_mut().is_some_and(|seat| seat.ring_here(number)))
}

/// A turn behind a post, if the calling thread is the one that turns the engine all the time, and has not had one since
/// its last poll.
#[inline]
pub(crate) fn turn_for_answer(helm: &Helm) {
    let Some(mut held) = helm.take_as_usual() else { return };
    let Some(seat) = &mut *held else { return };
    let turned = seat.turn_for_answer();
    drop(held);
    helm.count((turned.received + turned.transmitted) as u32);
}

/// Turns until the engine is shut down or fails: the body of an engine thread. While the application polls the thread
/// stands back, if the options say so.
pub(crate) fn run(helm: &Helm, mut seat: Seat, options: &EngineOptions) {
    seat.is_live = true;
    let mut held = helm.take();
    *held = Some(seat);
    let mut backoff = Backoff::new(options);
    let mut watch = options.poll_turns.unwrap_or(false).then(|| Watch::new(helm));
    let mut woken = None;
    while let Some(seat) = held.as_mut().filter(|seat| !seat.is_done()) {
        let now = seat.clock.now();
        let turned = seat.turn_at_helm(now);
        if let Some(watch) = &mut watch {
            watch.has_turned(turned.received > 0);
            if watch.is_polled(helm, now) {
                held = watch.stand_back(helm, held);
                backoff.reset();
                continue;
            }
        }
        if turned.received > 0 || turned.transmitted > 0 {
            woken = None;
            backoff.reset();
        } else if turned.busy {
            // A timer that leads to no frame, such as one that was armed again for later, is no reason to poll.
            if woken != Some(Wakeup::Timer) {
                backoff.reset();
            }
        } else if backoff.idle(now) {
            woken = sleep(std::slice::from_mut(seat), backoff.nap(now), Duration::MAX);
            if woken.is_none() {
                backoff.reset();
            }
        }
    }
    let seat = held.take();
    // Nobody waits for the end of an engine.
    drop(held);
    drop(seat);
}

/// As much as is counted in this time by a program that polls once in each `each`.
#[inline]
fn polls_in(time: Duration, each: Duration) -> u128 {
    time.as_nanos().div_ceil(each.as_nanos())
}

/// How the engine's thread sees whether the application polls.
struct Watch {
    /// What was counted at the last look, and when that was.
    polled: u32,
    looked_at: Instant,
    calls: u32,
    patience: Duration,
    /// The thread came back because the application did not poll, and has not turned yet.
    is_back: bool,
}

impl Watch {
    fn new(helm: &Helm) -> Self {
        let (polled, calls) = (helm.polled(), helm.calls());
        Self { polled, looked_at: Instant::ZERO, calls, patience: PATIENCE, is_back: false }
    }

    /// Frames that wait for a thread that has stood back are a sign that somebody waits for them without polling.
    #[inline]
    fn has_turned(&mut self, received: bool) {
        if std::mem::take(&mut self.is_back) && received {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
    }

    /// Whether the application has polled all the time since the last look, and nobody has begun to wait. The thread
    /// looks whenever its patience is over; if the last look was longer ago, the thread did not run. Then the
    /// application may have the same core, and need not have polled longer.
    #[inline]
    fn is_polled(&mut self, helm: &Helm, now: Instant) -> bool {
        if self.elapsed(now) < self.patience {
            return false;
        }
        let calls = self.calls;
        self.look(helm, now) >= polls_in(self.patience, POLL_TIME) && self.calls == calls
    }

    /// The time since the last look.
    #[inline]
    fn elapsed(&self, now: Instant) -> Duration {
        Duration::from_nanos(now.as_nanos().saturating_sub(self.looked_at.as_nanos()))
    }

    /// What was counted since the last look.
    fn look(&mut self, helm: &Helm, now: Instant) -> u128 {
        let polled = helm.polled();
        let counted = polled.wrapping_sub(self.polled);
        (self.polled, self.looked_at, self.calls) = (polled, now, helm.calls());
        counted.into()
    }

    /// Lets the application turn the engine for as long as it polls. Returns with the helm.
    #[cold]
    fn stand_back<'a>(&mut self, helm: &'a Helm, held: Held<'a, Option<Seat>>) -> Held<'a, Option<Seat>> {
        let Some(clock) = held.as_ref().map(|seat| seat.clock) else { return held };
        // What was announced before the notifier was armed.
        let last = |seat: &mut Option<Seat>| {
            if let Some(seat) = seat {
                let now = seat.clock.now();
                seat.turn_at_helm(now);
            }
        };
        if let Err(held) = helm.stand_back(held, self.calls, last) {
            self.calls = helm.calls();
            return held;
        }
        let mut rest = LEAST_REST;
        loop {
            let is_called = helm.rest(rest);
            let now = clock.now();
            let needed = polls_in(self.elapsed(now), TURN_TIME);
            let is_polled = self.look(helm, now) >= needed;
            if is_called || !is_polled {
                self.is_back = !is_called;
                return helm.come_back();
            }
            self.patience = PATIENCE.max(self.patience / 2);
            rest = (rest * 2).min(LONGEST_REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use uwarp_ring::Notifier;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    /// Whether a program polls that counted so much in this time.
    fn is_polled(counted: u32, time: Duration) -> bool {
        let helm = Helm::new(None, Arc::new(Notifier::new().unwrap()));
        let mut watch = Watch::new(&helm);
        watch.look(&helm, START);
        helm.count(counted);
        watch.is_polled(&helm, START + time)
    }

    #[test]
    fn a_program_polls_that_counts_one_in_a_microsecond_while_the_thread_runs() {
        assert!(is_polled(50, PATIENCE));
        assert!(!is_polled(49, PATIENCE));
        assert!(!is_polled(1_000, PATIENCE - Duration::from_nanos(1)), "it is too early to say");
    }

    #[test]
    fn a_program_on_the_core_of_the_thread_polls_while_the_thread_does_not_run() {
        // A time slice of the thread, in which nothing was polled, is not counted against the program.
        assert!(is_polled(256, Duration::from_millis(4)));
        assert!(!is_polled(5, Duration::from_millis(4)));
    }

    #[test]
    fn whoever_calls_does_not_poll() {
        let helm = Helm::new(None, Arc::new(Notifier::new().unwrap()));
        let mut watch = Watch::new(&helm);
        watch.look(&helm, START);
        helm.count(1_000);
        helm.call();
        assert!(!watch.is_polled(&helm, START + PATIENCE));
    }
}
