//! What all objects of one context share, and how it ends.

use crate::config::Config;
use crate::cpus::CommitCpus;
use crate::driver::at_helm::Helm;
use crate::driver::{self, Backoff, Health};
use crate::error::Error;
use crate::launch::Launch;
use crate::lingering::LingeringList;
use crate::numbers::Numbers;
use crate::queue_pair::Lingering;
use crate::stats::{ObjectCounts, PortSnapshot, SilentEngine, StatsSnapshot};
use crate::switch::{Link, ReservedPort};
use crate::waiters::Waiters;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, at, bounded, never, select, unbounded};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uwarp_engine::ReservedPorts;
use uwarp_engine::command::{Command, CompletionQueueId};
use uwarp_engine::stats::EngineStats;
use uwarp_memory::RegionTable;
use uwarp_ring::{Doorbells, Notifier};

/// How long a snapshot waits for an engine.
const STATS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long beyond the linger time an engine may take to stop before its thread is given up.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// Locks a mutex whose data stay right even if a holder panicked: all of them are plain lists.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One engine, seen from the threads of the application.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    doorbells: Arc<Doorbells>,
    /// Wakes the engine's thread.
    wake: Arc<Notifier>,
    /// The engine itself, if it has a thread.
    helm: Arc<Helm>,
    health: Arc<Health>,
    /// The mailbox's other end, until the engine runs.
    mailbox: Mutex<Option<Receiver<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EngineHandle {
    /// An engine that does not run yet.
    pub(crate) fn new(doorbells: Arc<Doorbells>, wake: Arc<Notifier>, health: Arc<Health>) -> Self {
        let (commands, mailbox) = unbounded();
        let helm = Arc::new(Helm::new(None, Arc::clone(&wake)));
        Self { commands, doorbells, wake, helm, health, mailbox: Mutex::new(Some(mailbox)), thread: Mutex::new(None) }
    }

    /// Ends the engine from any thread, when it is called: its queue pairs fail, and nobody waits for it. An engine with a
    /// `thread` of its own gets the time to say so.
    fn ender(&self, thread: bool) -> impl FnOnce(&str) + Send + 'static {
        let (commands, doorbells) = (self.commands.clone(), Arc::clone(&self.doorbells));
        let (wake, health) = (Arc::clone(&self.wake), Arc::clone(&self.health));
        move |cause| {
            let _ = commands.send(Command::Fail { cause: cause.to_owned() });
            doorbells.ring_mailbox();
            wake.fire_if_armed();
            if thread {
                let _ = health.waiters().stopped().recv_timeout(STOP_MARGIN);
            }
            health.give_up(cause);
        }
    }

    /// Puts a command into the mailbox. An engine that does not run yet finds it there when it does; one that is gone drops
    /// it, and with it the reply channels inside.
    pub(crate) fn command(&self, command: Command) {
        if let Command::RemoveCompletionQueue { queue } = &command
            && self.forget(*queue)
        {
            return;
        }
        if self.commands.send(command).is_ok() {
            self.doorbells.ring_mailbox();
            self.wake.fire_if_armed();
        }
    }

    /// Takes a completion queue out of the mailbox of an engine that does not run yet, so that a program which makes many
    /// before the start does not fill it. False if the engine runs.
    fn forget(&self, queue: CompletionQueueId) -> bool {
        let mailbox = lock(&self.mailbox);
        let Some(mailbox) = &*mailbox else { return false };
        for command in mailbox.try_iter().collect::<Vec<_>>() {
            if !matches!(&command, Command::AddCompletionQueue { queue: added, .. } if *added == queue) {
                let _ = self.commands.send(command);
            }
        }
        true
    }

    /// The mailbox for an engine that is about to run; none if it runs, or never will.
    pub(crate) fn mailbox(&self) -> Option<Receiver<Command>> {
        lock(&self.mailbox).clone()
    }

    /// The engine runs from now on, on this thread or the caller's.
    pub(crate) fn runs(&self, thread: Option<JoinHandle<()>>) {
        lock(&self.mailbox).take();
        *lock(&self.thread) = thread;
    }

    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    pub(crate) fn wake(&self) -> &Arc<Notifier> {
        &self.wake
    }

    pub(crate) fn helm(&self) -> &Arc<Helm> {
        &self.helm
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }
}

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const CLOSED: u8 = 2;

/// The data of a context. The monitor thread holds it too, so dropping it closes nothing; [`Shared`] does that.
#[derive(Debug)]
pub(crate) struct Core {
    /// Number of the context in this process, from 1.
    pub(crate) id: u64,
    pub(crate) config: Config,
    pub(crate) engines: Vec<EngineHandle>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) queue_pairs: Numbers,
    /// TCP ports that listeners and reservations have.
    pub(crate) ports: Arc<ReservedPorts>,
    /// Small numbers, used again: every engine keeps a list of its lanes by them.
    pub(crate) completion_queues: Numbers,
    /// Elements of the completion queues that there are.
    pub(crate) completion_entries: AtomicUsize,
    pub(crate) port: Mutex<Option<uwarp_dpdk::Port>>,
    pub(crate) opened: Instant,
    pub(crate) waiters: Arc<Waiters>,
    /// The place in the configured switch, once the engines run.
    switch: OnceLock<Arc<Link>>,
    /// Where committers run; none: in the engines.
    pub(crate) commit_cpus: Option<CommitCpus>,
    /// Locked by whoever starts or closes the context.
    pub(crate) launch: Mutex<Launch>,
    is_running: AtomicBool,
    lingering: Mutex<LingeringList<Lingering>>,
    objects: AtomicU32,
    next_engine: AtomicUsize,
    state: AtomicU8,
}

/// A blocking call that did not get its answer.
#[derive(Debug)]
pub(crate) enum NoReply {
    /// The time is over.
    TimedOut,
    /// The engine is gone: it dropped the other end.
    Gone,
    /// This thread cannot turn the engine.
    WrongThread,
}

impl Core {
    pub(crate) fn new(
        id: u64,
        config: Config,
        engines: Vec<EngineHandle>,
        regions: Arc<RegionTable>,
        waiters: Arc<Waiters>,
        commit_cpus: Option<CommitCpus>,
        launch: Launch,
    ) -> Self {
        let queue_pairs = Numbers::new(config.limits.queue_pairs);
        let completion_queues = Numbers::new(config.limits.completion_queues);
        Self {
            id,
            config,
            engines,
            regions,
            queue_pairs,
            ports: Arc::default(),
            completion_queues,
            completion_entries: AtomicUsize::new(0),
            port: Mutex::new(None),
            opened: Instant::now(),
            waiters,
            switch: OnceLock::new(),
            commit_cpus,
            launch: Mutex::new(launch),
            is_running: AtomicBool::new(false),
            lingering: Mutex::default(),
            objects: AtomicU32::new(1),
            next_engine: AtomicUsize::new(0),
            state: AtomicU8::new(OPEN),
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.config.engine.mode == crate::config::EngineMode::Inline
    }

    /// Whether the engines run, or have run.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    pub(crate) fn set_running(&self) {
        self.is_running.store(true, Ordering::Release);
    }

    /// A number for an object of which numbers are not scarce.
    pub(crate) fn next_object(&self) -> u32 {
        self.objects.fetch_add(1, Ordering::Relaxed)
    }

    /// The engine for the next active connection: each in its turn.
    pub(crate) fn pick_engine(&self) -> usize {
        self.next_engine.fetch_add(1, Ordering::Relaxed) % self.engines.len().max(1)
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.state.load(Ordering::Acquire) != OPEN {
            return Err(Error::ContextClosed);
        }
        self.check_alive()
    }

    /// The context has a place in its switch, and ends with it.
    pub(crate) fn joined(&self, link: Arc<Link>) -> Result<(), Error> {
        let thread = !self.is_inline();
        let enders: Vec<_> = self.engines.iter().map(|engine| engine.ender(thread)).collect();
        link.watch(move |cause| enders.into_iter().for_each(|end| end(cause)))?;
        let _ = self.switch.set(link);
        Ok(())
    }

    /// Reserves a TCP port to listen on, where a switch shares them out; it may choose one in place of 0.
    pub(crate) fn reserve(&self, port: u16) -> Result<Option<ReservedPort>, Error> {
        self.switch.get().map(|link| link.reserve(port)).transpose()
    }

    /// Waits until a switch has delivered the frames that the engines gave to the device.
    pub(crate) fn deliver(&self) {
        if let Some(link) = self.switch.get() {
            link.deliver();
        }
    }

    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        if let Some(link) = self.switch.get() {
            link.check()?;
        }
        for (index, engine) in self.engines.iter().enumerate() {
            if let Some(reason) = engine.health.failure() {
                return Err(Error::EngineFailed { engine: index, reason: reason.to_owned() });
            }
        }
        if self.state.load(Ordering::Acquire) == CLOSED {
            return Err(Error::ContextClosed);
        }
        Ok(())
    }

    /// That the calling thread can make the engine go on.
    pub(crate) fn check_here(&self) -> Result<(), Error> {
        if self.is_inline() && !driver::is_seated_here(self.id) {
            return Err(Error::WrongThread);
        }
        Ok(())
    }

    /// What an idle inline wait until `deadline` does between turns.
    pub(crate) fn give_way(&self, backoff: &mut Backoff, busy: bool, deadline: Option<Instant>) {
        if busy {
            backoff.reset();
        } else if backoff.idle(crate::clock::Clock::get().now()) {
            driver::sleep_inline(backoff, remaining(deadline));
        }
    }

    /// Waits for a message of an engine, turning it if it is this thread's.
    pub(crate) fn receive<T>(&self, receiver: &Receiver<T>, deadline: Option<Instant>) -> Result<T, NoReply> {
        if !self.is_inline() {
            let over = deadline.map_or_else(never, at);
            return select! {
                recv(receiver) -> message => message.map_err(|_| NoReply::Gone),
                // An engine has stopped.
                recv(self.waiters.stopped()) -> _ => receiver.try_recv().map_err(|_| NoReply::Gone),
                recv(over) -> _ => receiver.try_recv().map_err(|_| NoReply::TimedOut),
            };
        }
        if !driver::is_seated_here(self.id) {
            return receiver.try_recv().map_err(|error| match error {
                TryRecvError::Empty => NoReply::WrongThread,
                // The engine is gone, or has never run.
                TryRecvError::Disconnected => NoReply::Gone,
            });
        }
        let mut backoff = Backoff::new(&self.config.engine);
        loop {
            let busy = driver::turn_all_inline();
            match receiver.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(NoReply::Gone),
                Err(TryRecvError::Empty) => {}
            }
            if remaining(deadline).is_zero() {
                return Err(NoReply::TimedOut);
            }
            if self.engines.iter().any(|engine| engine.health.is_stopped()) {
                return receiver.try_recv().map_err(|_| NoReply::Gone);
            }
            self.give_way(&mut backoff, busy, deadline);
        }
    }

    /// Waits for the answer to a command that the engine carries out at once.
    pub(crate) fn reply<T>(&self, receiver: &Receiver<T>) -> Result<T, Error> {
        self.receive(receiver, Some(Instant::now() + STOP_MARGIN)).map_err(|reason| match reason {
            NoReply::WrongThread => Error::WrongThread,
            NoReply::TimedOut | NoReply::Gone => match self.check_alive() {
                Err(error) => error,
                Ok(()) => Error::ContextClosed,
            },
        })
    }

    /// Keeps a dropped queue pair until its connection has ended.
    pub(crate) fn linger(&self, mut queue_pair: Lingering) {
        // Its destruction begins here if the connection has ended already.
        if queue_pair.is_gone(self) {
            self.queue_pairs.put(queue_pair.number());
            return;
        }
        let is_due = lock(&self.lingering).add(queue_pair);
        if is_due {
            self.reap_lingering();
        }
    }

    /// Destroys dropped queue pairs whose connections have ended, and frees their numbers.
    pub(crate) fn reap_lingering(&self) {
        lock(&self.lingering)
            .remove_gone(|queue_pair| queue_pair.is_gone(self), |gone| self.queue_pairs.put(gone.number()));
    }

    /// Asks every engine for its counters. Engines that do not answer are listed as silent.
    pub(crate) fn snapshot(&self, turn: bool) -> StatsSnapshot {
        self.reap_lingering();
        let is_running = self.is_running();
        let mut replies = Vec::with_capacity(self.engines.len());
        for engine in &self.engines {
            let (reply, receiver) = bounded::<Box<EngineStats>>(1);
            if !is_running {
                drop(reply);
                replies.push(receiver);
                continue;
            }
            engine.command(Command::Stats { reply });
            replies.push(receiver);
        }
        let deadline = Instant::now() + STATS_TIMEOUT;
        let mut engines = Vec::new();
        let mut silent_engines = Vec::new();
        for (index, receiver) in replies.iter().enumerate() {
            let reply = if turn && self.is_inline() {
                self.receive(receiver, Some(deadline)).ok()
            } else {
                receiver.recv_deadline(deadline).ok()
            };
            match reply {
                Some(stats) => engines.push(*stats),
                None => silent_engines.push(SilentEngine {
                    index: index as u16,
                    reason: match self.engines[index].health.failure() {
                        Some(failure) => failure.to_owned(),
                        None if !is_running => "the context has not been started".to_owned(),
                        None if self.is_inline() => "an inline engine answers when the application polls".to_owned(),
                        None => "no answer".to_owned(),
                    },
                }),
            }
        }
        let limits = &self.config.limits;
        StatsSnapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            context: self.id,
            uptime_ns: self.opened.elapsed().as_nanos() as u64,
            mode: if self.is_inline() { "inline" } else { "threaded" }.to_owned(),
            address: self.config.address.to_string(),
            mtu: self.config.mtu,
            port: lock(&self.port).as_ref().map(port_snapshot),
            engines,
            silent_engines,
            objects: ObjectCounts {
                queue_pairs: self.queue_pairs.in_use(),
                queue_pairs_limit: limits.queue_pairs,
                completion_queues: self.completion_queues.in_use(),
                completion_queues_limit: limits.completion_queues,
                regions: self.regions.regions() as usize,
                regions_limit: limits.regions,
                registered_octets: self.regions.registered_octets(),
                registered_octets_limit: limits.registered_octets,
            },
        }
    }

    /// Ends the context: nothing new, linger, stop the engines, close the device.
    pub(crate) fn close(&self) {
        if self.state.compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        // A start that is under way is waited for. Engines that do not run drop what is in their mailboxes.
        let launch = lock(&self.launch);
        if !self.is_running() {
            for engine in &self.engines {
                engine.runs(None);
            }
        }
        drop(launch);
        let linger = self.config.linger;
        let reports: Vec<_> = self
            .engines
            .iter()
            .map(|engine| {
                let (done, report) = bounded(1);
                engine.command(Command::Shutdown { linger, done });
                report
            })
            .collect();
        let deadline = Instant::now() + linger + STOP_MARGIN;
        let mut stopped = true;
        for (engine, report) in self.engines.iter().zip(&reports) {
            let report = match self.is_inline() {
                true => self.receive(report, Some(deadline)),
                // Whatever the other engines do.
                false => report.recv_deadline(deadline).map_err(|error| match error {
                    RecvTimeoutError::Timeout => NoReply::TimedOut,
                    RecvTimeoutError::Disconnected => NoReply::Gone,
                }),
            };
            match report {
                Ok(report) if report.reset > 0 => tracing::warn!(
                    connections = report.reset,
                    octets = report.octets_not_acknowledged,
                    "closed before the peers acknowledged everything"
                ),
                Ok(_) | Err(NoReply::Gone) => {}
                Err(NoReply::WrongThread) => {
                    // Its own thread drops the engine when it ends.
                    tracing::error!(
                        "an inline context was dropped by another thread than the one that opened it: its connections are cut off when that thread ends"
                    );
                    stopped = false;
                }
                Err(NoReply::TimedOut) => {
                    tracing::error!("an engine did not stop in time: its thread is left behind");
                    stopped = false;
                }
            }
            let thread = lock(&engine.thread).take();
            if stopped && let Some(thread) = thread {
                // The body catches panics; nothing is left to be told.
                let _ = thread.join();
            }
        }
        if self.is_inline() {
            driver::unseat(self.id);
        }
        lock(&self.lingering).clear();
        // The queues are back, unless an engine was left behind: then the last one to go closes the device.
        lock(&self.port).take();
        if let Some(link) = self.switch.get() {
            link.close();
        }
        self.state.store(CLOSED, Ordering::Release);
        self.waiters.wake();
    }
}

fn remaining(deadline: Option<Instant>) -> Duration {
    match deadline {
        Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        None => Duration::MAX,
    }
}

fn port_snapshot(port: &uwarp_dpdk::Port) -> PortSnapshot {
    let info = port.info();
    let statistics = port.statistics();
    PortSnapshot {
        device: info.device.clone(),
        driver: info.driver.clone(),
        mac: crate::config::MacAddress(info.capabilities.mac).to_string(),
        link_up: port.link_up(),
        rx_packets: statistics.rx_packets,
        tx_packets: statistics.tx_packets,
        rx_octets: statistics.rx_octets,
        tx_octets: statistics.tx_octets,
        rx_missed: statistics.rx_missed,
        rx_errors: statistics.rx_errors,
        tx_errors: statistics.tx_errors,
        rx_no_buffer: statistics.rx_no_buffer,
    }
}
