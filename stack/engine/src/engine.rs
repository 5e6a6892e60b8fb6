//! The engine's public face.

use uwarp_memory::EngineEpoch;
use uwarp_tcp::Instant;

use crate::api::config::EngineConfig;
use crate::api::stats::{EngineStats, Work};
use crate::channels::{EngineChannels, EngineError};
use crate::core::Core;
use crate::link::port::{Batch, Descriptors, Port};

/// The report of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turned {
    /// Frames received.
    pub received: usize,
    /// Frames given to the device.
    pub transmitted: usize,
    /// Whether the turn did something or has more to do at once. Otherwise the engine may back off.
    pub busy: bool,
}

/// What ended a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// The device announced a frame or a change of its link.
    Device,
    /// The application, another engine or a committer.
    Doorbell,
    /// The time was over.
    Timer,
}

/// One poll-mode engine on one port. It may move to another thread between turns if its port may. Buffers come from and
/// return to the caches of the thread that turns it.
#[derive(Debug)]
pub struct Engine<P: Port> {
    core: Core<P>,
    epoch: EngineEpoch,
    batch: Batch<P::Buffer>,
}

impl<P: Port> Engine<P> {
    /// An engine without connections.
    ///
    /// # Errors
    /// A setting is out of bounds; the error says which.
    pub fn new(config: EngineConfig, port: P, channels: EngineChannels) -> Result<Engine<P>, EngineError> {
        let epoch = channels.regions.engine();
        let core = Core::new(config, port, channels)?;
        Ok(Engine { core, epoch, batch: Batch::new() })
    }

    /// Runs one turn. `now` is read once by the caller and must not go backwards.
    #[inline(always)]
    pub fn turn(&mut self, now: Instant) -> Turned {
        let worked = self.core.collect(now, &mut self.batch);
        let received = self.batch.len();
        if worked {
            let turn = self.epoch.enter();
            self.core.work(&turn, &mut self.batch);
        }
        self.core.flush();
        // The turn is over: a store may deregister regions now, since nobody uses one.
        if self.core.rdma.commits.has_own_work() {
            self.core.rdma.commits.work();
        }
        self.core.turned(worked, received)
    }

    /// When the engine must be turned again even if nothing arrives, as of the last turn; `None`: never.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.core.next_deadline()
    }

    /// Prepares for a sleep of the engine's thread: the device announces frames by [`Engine::wakeup_descriptors`] from
    /// now on. Turn once more before sleeping, at most until [`Engine::next_deadline`]. False if the device cannot
    /// announce frames now, so that the sleep has to be short. [`Engine::wake_up`] or [`Engine::stay_awake`] must
    /// follow.
    pub fn enable_wakeups(&mut self) -> bool {
        let announced = self.core.link.port.enable_wakeups();
        // Not every device announces that its link is up, which is when frames that wait can leave.
        announced && (self.core.link.is_up || self.core.link.transmit.queue.is_empty())
    }

    /// What to wait for after [`Engine::enable_wakeups`].
    pub fn wakeup_descriptors(&self) -> Descriptors<'_> {
        self.core.link.port.wakeup_descriptors()
    }

    /// The sleep is over.
    pub fn wake_up(&mut self, by: Wakeup) {
        let wakeups = &mut self.core.common.counters.wakeups;
        *match by {
            Wakeup::Device => &mut wakeups.device,
            Wakeup::Doorbell => &mut wakeups.doorbell,
            Wakeup::Timer => &mut wakeups.timer,
        } += 1;
        self.stay_awake();
    }

    /// There is no sleep after all.
    pub fn stay_awake(&mut self) {
        if self.core.link.port.disable_wakeups() {
            self.core.link.check_at = Instant::ZERO;
            self.core.quiet_until = Instant::ZERO;
        }
    }

    /// Rings the doorbell of a queue pair or connection from the thread that turns the engine, without a locked
    /// operation: as [`Doorbells::ring`](uwarp_ring::Doorbells::ring). False if that one has to be used, since too many
    /// have been rung.
    #[inline]
    pub fn ring_here(&mut self, number: u32) -> bool {
        self.core.control.ring_here(number)
    }

    /// Whether work waits for the next turn: a doorbell was rung, or a connection or frames are left from the last one.
    #[inline]
    pub fn has_waiting_work(&self) -> bool {
        let Core { control, connections, link, .. } = &self.core;
        control.is_rung() || !connections.ready.is_empty() || !link.transmit.queue.is_empty()
    }

    /// Ends everything at once after a failure of the device or the engine. All work is flushed, the oldest of it with
    /// [`crate::api::work::Status::Fatal`], all connections stop, and the application gets
    /// [`AsyncEvent::DeviceFatal`](crate::command::AsyncEvent::DeviceFatal).
    pub fn fail(&mut self, cause: &str) {
        self.core.fail(cause);
    }

    /// Whether a shutdown has finished: dropping the engine cuts off no connection.
    pub fn is_shut_down(&self) -> bool {
        self.core.control.is_shut_down()
    }

    /// Current counters, pool levels, connections and queue pairs.
    pub fn stats(&self) -> EngineStats {
        self.core.snapshot()
    }

    /// The work that peers have caused so far: a cheap part of [`Engine::stats`].
    pub fn work(&self) -> Work {
        self.core.connections.work_done(&self.core.common.counters)
    }

    /// Number of connections, including those in TIME-WAIT.
    pub fn flow_count(&self) -> usize {
        self.core.connections.flows.len() + self.core.connections.time_wait.len()
    }

    /// Buffers that connections hold: received out of order, or sent and not acknowledged.
    pub fn buffers_held(&self) -> usize {
        self.core.connections.held.len() + self.core.connections.records.len()
    }
}

impl<P: Port> Core<P> {
    /// What every room has to say of itself.
    pub(crate) fn snapshot(&self) -> EngineStats {
        let mut stats = self.common.counters.stats();
        stats.index = self.common.config.index;
        stats.counters.work = self.connections.work_done(&self.common.counters);
        self.link.describe(&mut stats);
        self.net.describe(&mut stats);
        self.connections.describe(&mut stats);
        self.rdma.describe(&self.connections, &mut stats);
        stats
    }
}
