//! Who turns the engines: a thread each, the application's own thread, or both by turns.

use crate::config::{EngineOptions, Idle};
use crate::error::Error;
use crate::runtime::clock::Clock;
use crate::runtime::lock::lock;
use crate::runtime::waiters::Waiters;
use arrayvec::ArrayVec;
use crossbeam::channel::{Receiver, Sender, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use uwarp_engine::port::Descriptors;
use uwarp_engine::ports::LoopPort;
use uwarp_engine::ports::decorated::Decorated;
use uwarp_engine::{Engine, EngineChannels, EngineConfig, Turned, Wakeup};
use uwarp_port_dpdk::DpdkPort;
use uwarp_ring::Notifier;
use uwarp_tcp::Instant;

/// What an engine's port is made from, on the engine's own thread.
pub(crate) enum PortSeed {
    /// A queue of a DPDK device.
    Device { queue: uwarp_dpdk::Queue, eal: uwarp_dpdk::Eal },
    /// One end of a pair in this process.
    Loop(LoopPort),
    #[cfg(test)]
    Watched(watched::WatchedPort),
}

/// Everything that an engine is built from. Crosses to its thread, which builds it.
pub(crate) struct EngineSeed {
    pub(crate) config: EngineConfig,
    pub(crate) port: PortSeed,
    pub(crate) channels: EngineChannels,
    pub(crate) health: Arc<Health>,
    /// Wakes the engine's thread.
    pub(crate) wake: Arc<Notifier>,
}

/// What other threads may know about an engine.
#[derive(Debug)]
pub(crate) struct Health {
    failure: OnceLock<String>,
    stopped: AtomicBool,
    /// Dropped when the engine stops, which disconnects `ended`.
    running: Mutex<Option<Sender<()>>>,
    ended: Receiver<()>,
    waiters: Arc<Waiters>,
}

impl Health {
    pub(crate) fn new(waiters: Arc<Waiters>) -> Self {
        let (running, ended) = bounded(0);
        let (failure, stopped) = (OnceLock::new(), AtomicBool::new(false));
        Self { failure, stopped, running: Mutex::new(Some(running)), ended, waiters }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.end();
        self.waiters.wake();
    }

    /// Nobody waits for the engine any more.
    pub(crate) fn end(&self) {
        lock(&self.running).take();
    }

    /// Something that the engine needs is gone for good: nobody waits for it any more.
    pub(crate) fn give_up(&self, reason: &str) {
        let _ = self.failure.set(reason.to_owned());
        self.stop();
    }

    /// Why the engine failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Disconnected when the engine has stopped.
    pub(crate) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Whether the engine will never turn again.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

enum Kind {
    Device(Box<Engine<Decorated<DpdkPort>>>),
    Loop(Box<Engine<Decorated<LoopPort>>>),
    #[cfg(test)]
    Watched(Box<Engine<Decorated<watched::WatchedPort>>>),
}

/// Calls the same method of whichever engine it is.
macro_rules! each_kind {
    ($kind:expr, $engine:ident => $call:expr) => {
        match $kind {
            Kind::Device($engine) => $call,
            Kind::Loop($engine) => $call,
            #[cfg(test)]
            Kind::Watched($engine) => $call,
        }
    };
}

/// An engine with what surrounds it.
pub(crate) struct Seat {
    /// `None` after a panic.
    engine: Option<Kind>,
    context: u64,
    clock: Clock,
    health: Arc<Health>,
    /// It has turned, or may: others wait for it.
    is_live: bool,
    wake: Arc<Notifier>,
    /// The buffer caches of the engine's thread, if others turn the engine too.
    caches: Option<uwarp_dpdk::Caches>,
    /// When a thread of the application last turned it.
    turned_at: Instant,
    /// The application has not turned it for an answer since its last poll that did.
    answers: bool,
}

/// A seat, and what has to stay on the thread that built it, longer than the seat.
pub(crate) type Built = (Seat, Option<uwarp_dpdk::ThreadRegistration>);

impl Seat {
    /// Builds the engine on the calling thread. If it is `shared`, other threads will turn it too.
    pub(crate) fn build(context: u64, seed: EngineSeed, shared: bool) -> Result<Built, Error> {
        let EngineSeed { config, port, channels, health, wake } = seed;
        let index = usize::from(config.index);
        let refused =
            |reason: uwarp_engine::EngineError| Error::EngineFailed { engine: index, reason: reason.to_string() };
        let (engine, mut registration) = match port {
            PortSeed::Device { queue, eal } => {
                let registration = eal.register_thread()?;
                let port = Decorated::new(DpdkPort::new(queue));
                let engine = Engine::new(config, port, channels).map_err(refused)?;
                (Kind::Device(Box::new(engine)), Some(registration))
            }
            PortSeed::Loop(port) => {
                let engine = Engine::new(config, Decorated::new(port), channels).map_err(refused)?;
                (Kind::Loop(Box::new(engine)), None)
            }
            #[cfg(test)]
            PortSeed::Watched(port) => {
                let engine = Engine::new(config, Decorated::new(port), channels).map_err(refused)?;
                (Kind::Watched(Box::new(engine)), None)
            }
        };
        let (clock, is_live) = (Clock::get(), false);
        let caches = registration.as_mut().filter(|_| shared).and_then(uwarp_dpdk::ThreadRegistration::detach_caches);
        let turned_at = Instant::ZERO;
        let engine = Some(engine);
        let answers = false;
        let seat = Self { engine, context, clock, health, is_live, wake, caches, turned_at, answers };
        Ok((seat, registration))
    }

    /// One turn. A panic ends the engine, and nothing else: its queue pairs fail, its waiters wake.
    #[inline(never)]
    fn turn(&mut self, now: Instant) -> Turned {
        self.turn_within::<false>(now)
    }

    /// One turn as a part of the caller. What is caught is a function of its own if there are two places: `INLINE`
    /// tells them apart.
    #[inline(always)]
    fn turn_within<const INLINE: bool>(&mut self, now: Instant) -> Turned {
        let Some(engine) = &mut self.engine else {
            return Turned::default();
        };
        // The engine is never used again after a panic except to fail its queue pairs, so broken invariants stay
        // inside.
        let turned = catch_unwind(AssertUnwindSafe(|| each_kind!(engine, engine => engine.turn(now))));
        match turned {
            Ok(turned) => turned,
            Err(panic) => {
                self.fail(&panic_message(&*panic));
                Turned::default()
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.engine.as_ref().and_then(|engine| each_kind!(engine, engine => engine.next_deadline()))
    }

    #[cold]
    fn fail(&mut self, reason: &str) {
        tracing::error!(context = self.context, reason, "an engine panicked");
        if let Some(mut engine) = self.engine.take() {
            let flushed = catch_unwind(AssertUnwindSafe(|| each_kind!(&mut engine, engine => engine.fail(reason))));
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(engine)));
            if flushed.is_err() || dropped.is_err() {
                tracing::error!(context = self.context, "the engine's remains could not be cleared completely");
            }
        }
        let _ = self.health.failure.set(reason.to_owned());
        self.health.stop();
    }

    fn is_done(&self) -> bool {
        match &self.engine {
            Some(engine) => each_kind!(engine, engine => engine.is_shut_down()),
            None => true,
        }
    }

    /// As [`turn`](Self::turn), with the buffer caches of whoever holds the helm.
    #[inline]
    fn turn_at_helm(&mut self, now: Instant) -> Turned {
        let Some(mut caches) = self.caches.take() else { return self.turn(now) };
        let turned = caches.with(|| self.turn(now));
        self.caches = Some(caches);
        turned
    }

    /// A turn by a thread of the application, which holds the helm and polls a completion queue. `empty_polls`: how
    /// often the queue was empty in a row. Several turns, while there is nothing to do, if it only polls: to take the
    /// helm costs as much as a turn. No turn right behind a completion, unless work waits for one: a program that
    /// drains a queue polls once more before it looks at what it got, and its answer would wait.
    fn turn_for_application(&mut self, empty_polls: u32) -> Turned {
        if self.is_done() {
            return Turned::default();
        }
        self.answers = true;
        if empty_polls == 0 && !self.has_waiting_work() {
            return Turned::default();
        }
        let most = if empty_polls >= POLLS_OF_A_WAIT { IDLE_TURNS } else { 1 };
        self.turn_guarded(most)
    }

    /// A turn by a thread of the application, which holds the helm and has posted, if it is the first time since it
    /// polled: what it posted may be an answer that the peer waits for. What it posts next leaves with its next poll.
    fn turn_for_answer(&mut self) -> Turned {
        if !std::mem::take(&mut self.answers) || self.is_done() {
            return Turned::default();
        }
        self.turn_guarded(1)
    }

    /// Turns until there is something to do, `most` times at most, with the buffer caches of this seat and without
    /// being cancelled.
    #[inline]
    fn turn_guarded(&mut self, most: u32) -> Turned {
        let caches = self.caches.take();
        uwarp_dpdk::without_cancellation(|| match caches {
            Some(mut caches) => {
                let turned = caches.with(|| self.turn_until_busy(most));
                self.caches = Some(caches);
                turned
            }
            None => self.turn_until_busy(most),
        })
    }

    #[inline]
    fn turn_until_busy(&mut self, most: u32) -> Turned {
        // The time stamp counters of two cores may differ by less than a hand-over takes.
        self.turned_at = self.turned_at.max(self.clock.now());
        let mut turned = Turned::default();
        for _ in 0..most {
            turned = self.turn(self.turned_at);
            if turned.busy {
                break;
            }
        }
        turned
    }

    /// Rings a doorbell from the thread that has the seat. False if the doorbells for all threads have to be used.
    #[inline]
    fn ring_here(&mut self, number: u32) -> bool {
        self.engine.as_mut().is_some_and(|engine| each_kind!(engine, engine => engine.ring_here(number)))
    }

    #[inline]
    fn has_waiting_work(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| each_kind!(engine, engine => engine.has_waiting_work()))
    }

    fn enable_wakeups(&mut self) -> bool {
        self.engine.as_mut().is_none_or(|engine| each_kind!(engine, engine => engine.enable_wakeups()))
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        match &self.engine {
            Some(engine) => each_kind!(engine, engine => engine.wakeup_descriptors()),
            None => Descriptors::new(),
        }
    }

    fn wake_up(&mut self, by: Option<Wakeup>) {
        match (&mut self.engine, by) {
            (Some(engine), Some(by)) => each_kind!(engine, engine => engine.wake_up(by)),
            (Some(engine), None) => each_kind!(engine, engine => engine.stay_awake()),
            (None, _) => {}
        }
        // Who fires disarms first and writes to the descriptor a moment later, which then ends the next sleep.
        if !self.wake.disarm() || by == Some(Wakeup::Doorbell) {
            self.wake.drain();
        }
    }
}

/// Empty polls of a queue in a row, behind which the application does nothing but wait for it.
const POLLS_OF_A_WAIT: u32 = 4;
/// Turns in one poll of the application that waits, at most, while there is nothing to do.
const IDLE_TURNS: u32 = 8;
/// Longest sleep of an engine whose device announces every frame: a safety net, and for devices that do not announce
/// changes of their link.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Descriptors that one sleep can wait for.
const MOST_DESCRIPTORS: usize = 24;

/// Lets the calling thread sleep, which turns these engines, until one of them has something to do, at most for
/// `limit`; if a device announces nothing, at most for `nap`. Returns what ended the sleep; `None` if an engine had
/// something to do before it or right after it, other than a timer that led to no frame.
fn sleep(seats: &mut [Seat], nap: Duration, limit: Duration) -> Option<Wakeup> {
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

impl Drop for Seat {
    fn drop(&mut self) {
        // A panic while dropping must not take the process along.
        if let Some(engine) = self.engine.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        }
        if self.is_live {
            self.health.stop();
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

/// How an idle poller gives way: it spins a little, then yields, then says that it may sleep.
pub(crate) struct Backoff {
    idle: Idle,
    spin: Duration,
    nap: Duration,
    turns: u32,
    since: Option<Instant>,
}

/// Idle turns that only spin: about as long as one packet's round trip on a virtual device.
const SPINS: u32 = 64;
/// A nap lasts this part of the time since there was something to do: who has been silent for long may wait longer.
const NAP_PART: u32 = 8;
/// Shortest nap: shorter ones take longer than they last.
const LEAST_NAP: Duration = Duration::from_micros(20);

impl Backoff {
    pub(crate) fn new(options: &EngineOptions) -> Self {
        Self { idle: options.idle, spin: options.spin, nap: options.nap, turns: 0, since: None }
    }

    /// There was something to do.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// Longest sleep beside a device that announces nothing.
    pub(crate) fn nap(&self, now: Instant) -> Duration {
        let idle = self.since.map_or(0, |since| now.as_nanos().saturating_sub(since.as_nanos()));
        (Duration::from_nanos(idle) / NAP_PART).max(LEAST_NAP).min(self.nap)
    }

    /// There was nothing to do. True when it is time to sleep.
    #[inline]
    pub(crate) fn idle(&mut self, now: Instant) -> bool {
        self.turns = self.turns.saturating_add(1);
        if self.idle == Idle::Spin || self.turns < SPINS {
            std::hint::spin_loop();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.as_nanos().saturating_sub(since.as_nanos()) < self.spin.as_nanos() as u64 {
            // Costs a fraction of a microsecond when nobody wants the core, and saves a time slice when somebody does,
            // be it a poller of another process, which cannot be counted from here.
            std::thread::yield_now();
            return false;
        }
        true
    }
}

/// Inline engines of a thread.
struct Seats {
    list: Vec<Seat>,
    /// Of the same index as the seat. Dropped after the engines, whose buffers go back through this thread's caches.
    registrations: Vec<Option<uwarp_dpdk::ThreadRegistration>>,
}

thread_local! {
    /// Inline engines that this thread turns.
    static SEATS: RefCell<Seats> = const { RefCell::new(Seats { list: Vec::new(), registrations: Vec::new() }) };
}

/// Puts an inline engine on the calling thread.
pub(crate) fn seat_here((mut seat, registration): Built) {
    seat.is_live = true;
    SEATS.with_borrow_mut(|seats| {
        seats.list.push(seat);
        seats.registrations.push(registration);
    });
}

/// Whether the calling thread turns this context's engine.
pub(crate) fn is_seated_here(context: u64) -> bool {
    SEATS.try_with(|seats| seats.borrow().list.iter().any(|seat| seat.context == context)).unwrap_or(false)
}

/// Rings the doorbell of a queue pair or connection of an inline context. False if its engine is not on this thread, or
/// busy: then the doorbells for all threads have to be used.
#[inline]
pub(crate) fn ring_inline(context: u64, number: u32) -> bool {
    SEATS
        .try_with(|seats| {
            let Ok(mut seats) = seats.try_borrow_mut() else { return false };
            seats.list.iter_mut().find(|seat| seat.context == context).is_some_and(|seat| seat.ring_here(number))
        })
        .unwrap_or(false)
}

/// Turns one inline context. `None` if it belongs to another thread.
#[inline]
pub(crate) fn turn_inline(context: u64) -> Option<bool> {
    SEATS
        .try_with(|seats| {
            let mut seats = seats.borrow_mut();
            let seat = seats.list.iter_mut().find(|seat| seat.context == context)?;
            let now = seat.clock.now();
            Some(seat.turn_within::<true>(now).busy)
        })
        .ok()
        .flatten()
}

/// Turns all inline engines of the calling thread once; a thread that waits for one of two contexts in one process
/// would otherwise wait for ever.
pub(crate) fn turn_all_inline() -> bool {
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

/// Lets the calling thread sleep until one of its inline engines has something to do, at most for `limit`.
pub(crate) fn sleep_inline(backoff: &mut Backoff, limit: Duration) {
    let nap = backoff.nap(Clock::get().now());
    if let Ok(None) = SEATS.try_with(|seats| sleep(&mut seats.borrow_mut().list, nap, limit)) {
        backoff.reset();
    }
}

/// Takes an inline engine off the calling thread and drops it. False if it is not here.
pub(crate) fn unseat(context: u64) -> bool {
    let seat = SEATS
        .try_with(|seats| {
            let mut seats = seats.borrow_mut();
            let index = seats.list.iter().position(|seat| seat.context == context)?;
            Some((seats.list.swap_remove(index), seats.registrations.swap_remove(index)))
        })
        .ok()
        .flatten();
    // Dropped here, with the list free again.
    seat.is_some()
}

pub(crate) mod at_helm;
#[cfg(test)]
mod idle_turns;
#[cfg(test)]
mod panicking;
#[cfg(test)]
mod waking;
#[cfg(test)]
pub(crate) mod watched;
