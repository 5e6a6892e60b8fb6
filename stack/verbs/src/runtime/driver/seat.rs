//! An engine with what surrounds it.

use super::health::Health;
#[cfg(test)]
use super::watched;
use crate::error::Error;
use crate::runtime::clock::Clock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use uwarp_engine::port::Descriptors;
use uwarp_engine::ports::decorated::Decorated;
use uwarp_engine::ports::{LoopPort, SwitchedPort};
use uwarp_engine::{Engine, EngineChannels, EngineConfig, Turned, Wakeup};
use uwarp_port_dpdk::DpdkPort;
use uwarp_ring::Notifier;
use uwarp_tcp::Instant;

/// Empty polls of a queue in a row, behind which the application does nothing but wait for it.
const POLLS_OF_A_WAIT: u32 = 4;
/// Turns in one poll of the application that waits, at most, while there is nothing to do.
pub(super) const IDLE_TURNS: u32 = 8;

/// What an engine's port is made from, on the engine's own thread.
pub(crate) enum PortSeed {
    /// A queue of a DPDK device.
    Device { queue: uwarp_dpdk::Queue, eal: uwarp_dpdk::Eal },
    /// One end of a pair in this process.
    Loop(LoopPort),
    /// A place in a switch.
    Switched(Box<SwitchedPort>),
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

/// An engine by the kind of its port.
pub(super) enum Kind {
    Device(Box<Engine<Decorated<DpdkPort>>>),
    Loop(Box<Engine<Decorated<LoopPort>>>),
    Switched(Box<Engine<Decorated<SwitchedPort>>>),
    #[cfg(test)]
    Watched(Box<Engine<Decorated<watched::WatchedPort>>>),
}

/// Calls the same method of whichever engine it is.
macro_rules! each_kind {
    ($kind:expr, $engine:ident => $call:expr) => {
        match $kind {
            Kind::Device($engine) => $call,
            Kind::Loop($engine) => $call,
            Kind::Switched($engine) => $call,
            #[cfg(test)]
            Kind::Watched($engine) => $call,
        }
    };
}

#[cfg(test)]
pub(super) use each_kind;

/// An engine with what surrounds it.
pub(crate) struct Seat {
    /// `None` after a panic.
    pub(super) engine: Option<Kind>,
    pub(super) context: u64,
    pub(super) clock: Clock,
    health: Arc<Health>,
    /// It has turned, or may: others wait for it.
    pub(super) is_live: bool,
    pub(super) wake: Arc<Notifier>,
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
            PortSeed::Switched(port) => {
                let engine = Engine::new(config, Decorated::new(*port), channels).map_err(refused)?;
                (Kind::Switched(Box::new(engine)), None)
            }
            #[cfg(test)]
            PortSeed::Watched(port) => {
                let engine = Engine::new(config, Decorated::new(port), channels).map_err(refused)?;
                (Kind::Watched(Box::new(engine)), None)
            }
        };
        let seat = Self {
            engine: Some(engine),
            context,
            clock: Clock::get(),
            health,
            is_live: false,
            wake,
            caches: registration.as_mut().filter(|_| shared).and_then(uwarp_dpdk::ThreadRegistration::detach_caches),
            turned_at: Instant::ZERO,
            answers: false,
        };
        Ok((seat, registration))
    }

    /// One turn. A panic ends the engine, and nothing else: its queue pairs fail, its waiters wake.
    #[inline(never)]
    pub(super) fn turn(&mut self, now: Instant) -> Turned {
        self.turn_within::<false>(now)
    }

    /// One turn as a part of the caller. What is caught is a function of its own if there are two places: `INLINE`
    /// tells them apart.
    #[inline(always)]
    pub(super) fn turn_within<const INLINE: bool>(&mut self, now: Instant) -> Turned {
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

    pub(super) fn next_deadline(&self) -> Option<Instant> {
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
        self.health.give_up(reason);
    }

    pub(super) fn is_done(&self) -> bool {
        match &self.engine {
            Some(engine) => each_kind!(engine, engine => engine.is_shut_down()),
            None => true,
        }
    }

    /// As [`turn`](Self::turn), with the buffer caches of whoever holds the helm.
    #[inline]
    pub(super) fn turn_at_helm(&mut self, now: Instant) -> Turned {
        self.with_caches(|seat| seat.turn(now))
    }

    #[inline]
    fn with_caches(&mut self, turn: impl FnOnce(&mut Self) -> Turned) -> Turned {
        let Some(mut caches) = self.caches.take() else { return turn(self) };
        let turned = caches.with(|| turn(self));
        self.caches = Some(caches);
        turned
    }

    /// A turn by a thread of the application, which holds the helm and polls a completion queue. `empty_polls`: how
    /// often the queue was empty in a row. Several turns, while there is nothing to do, if it only polls: to take the
    /// helm costs as much as a turn. No turn right behind a completion, unless work waits for one: a program that
    /// drains a queue polls once more before it looks at what it got, and its answer would wait.
    pub(super) fn turn_for_application(&mut self, empty_polls: u32) -> Turned {
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
    pub(super) fn turn_for_answer(&mut self) -> Turned {
        if !std::mem::take(&mut self.answers) || self.is_done() {
            return Turned::default();
        }
        self.turn_guarded(1)
    }

    /// Turns until there is something to do, `most` times at most, with the buffer caches of this seat and without
    /// being cancelled.
    #[inline]
    fn turn_guarded(&mut self, most: u32) -> Turned {
        uwarp_dpdk::without_cancellation(|| self.with_caches(|seat| seat.turn_until_busy(most)))
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
    pub(super) fn ring_here(&mut self, number: u32) -> bool {
        self.engine.as_mut().is_some_and(|engine| each_kind!(engine, engine => engine.ring_here(number)))
    }

    #[inline]
    fn has_waiting_work(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| each_kind!(engine, engine => engine.has_waiting_work()))
    }

    pub(super) fn enable_wakeups(&mut self) -> bool {
        self.engine.as_mut().is_none_or(|engine| each_kind!(engine, engine => engine.enable_wakeups()))
    }

    pub(super) fn wakeup_descriptors(&self) -> Descriptors<'_> {
        match &self.engine {
            Some(engine) => each_kind!(engine, engine => engine.wakeup_descriptors()),
            None => Descriptors::new(),
        }
    }

    pub(super) fn wake_up(&mut self, by: Option<Wakeup>) {
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
