//! What all objects of one context share, and how it ends.

use crate::config::{Config, InterfaceAddress};
use crate::error::Error;
use crate::runtime::cpus::CommitCpus;
use crate::runtime::driver::{Backoff, inline};
use crate::runtime::engine_handle::{EngineHandle, STOP_MARGIN};
use crate::runtime::lingering::LingeringList;
use crate::runtime::lock::lock;
use crate::runtime::numbers::Objects;
use crate::runtime::ports::Launch;
use crate::runtime::switch::{Link, Watcher};
use crate::runtime::tcp_ports::TcpPorts;
use crate::runtime::waiters::Waiters;
use crate::stats::{ObjectCounts, PortSnapshot, SilentEngine, StatsSnapshot};
use crossbeam::channel::{Receiver, RecvTimeoutError, TryRecvError, at, bounded, never, select};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use uwarp_engine::command::Command;
use uwarp_engine::stats::EngineStats;
use uwarp_memory::RegionTable;

/// How long a snapshot waits for an engine.
const STATS_TIMEOUT: Duration = Duration::from_millis(500);

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
    pub(crate) objects: Objects,
    pub(crate) ports: TcpPorts,
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
    lingering: Mutex<LingeringList<Box<dyn Linger>>>,
    next_engine: AtomicUsize,
    state: AtomicU8,
}

/// A dropped queue pair whose connection has not ended.
pub(crate) trait Linger: std::fmt::Debug + Send {
    fn number(&self) -> u32;

    /// Goes on as far as possible without waiting; true when nothing is left of it.
    fn is_gone(&mut self, core: &Core) -> bool;
}

/// Who sends what a blocking call waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// The engine with this index.
    One(usize),
    /// Any engine: as long as one runs, something may come.
    Any,
    /// All engines together: nobody waits any more once one of them has stopped.
    All,
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
        let objects = Objects::new(&config.limits);
        Self {
            id,
            config,
            engines,
            regions,
            objects,
            ports: TcpPorts::default(),
            port: Mutex::new(None),
            opened: Instant::now(),
            waiters,
            switch: OnceLock::new(),
            commit_cpus,
            launch: Mutex::new(launch),
            is_running: AtomicBool::new(false),
            lingering: Mutex::default(),
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

    /// What ends the engines with the context's switch.
    pub(crate) fn watcher(&self) -> Result<Watcher, Error> {
        let thread = !self.is_inline();
        let enders: Vec<_> = self.engines.iter().map(|engine| engine.ender(thread)).collect();
        let movers: Vec<_> = self.engines.iter().map(EngineHandle::mover).collect();
        Watcher::start(
            move |addresses, station| movers.iter().for_each(|set_addresses| set_addresses(addresses, station)),
            move |cause| enders.into_iter().for_each(|end| end(cause)),
        )
    }

    /// The context has a place in its switch, and ends with it.
    pub(crate) fn joined(&self, link: Arc<Link>, watcher: Watcher) {
        watcher.watch(Arc::clone(&link));
        let _ = self.switch.set(link);
    }

    /// The context's addresses: those of its switch may change.
    pub(crate) fn addresses(&self) -> Vec<InterfaceAddress> {
        self.switch.get().map_or_else(|| self.config.addresses().collect(), |link| link.addresses().own)
    }

    /// Where a peer is reached: on a switch, a loopback address is this host, whose addresses the context has.
    pub(crate) fn reachable(&self, peer: SocketAddr) -> SocketAddr {
        if self.config.switch.is_none() || !peer.ip().is_loopback() {
            return peer;
        }
        let own = self.addresses().into_iter().find(|own| own.address.is_ipv4() == peer.is_ipv4());
        own.map_or(peer, |own| SocketAddr::new(own.address, peer.port()))
    }

    /// The place in the switch, where one shares the TCP ports out.
    pub(crate) fn link(&self) -> Option<&Arc<Link>> {
        self.switch.get()
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
            if let Some(reason) = engine.health().failure() {
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
        if self.is_inline() && !inline::is_here(self.id) {
            return Err(Error::WrongThread);
        }
        Ok(())
    }

    /// Waits for a message, turning the engine if it is this thread's. It is in vain when `origin` has stopped.
    pub(crate) fn receive<T>(
        &self,
        receiver: &Receiver<T>,
        origin: Origin,
        deadline: Option<Instant>,
    ) -> Result<T, NoReply> {
        if !self.is_inline() {
            return self.receive_from_threads(receiver, origin, deadline);
        }
        if !inline::is_here(self.id) {
            return receiver.try_recv().map_err(|error| match error {
                TryRecvError::Empty => NoReply::WrongThread,
                // The engine is gone, or has never run.
                TryRecvError::Disconnected => NoReply::Gone,
            });
        }
        let received = inline::turn_until(Backoff::new(&self.config.engine), deadline, || match receiver.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Disconnected) => Err(NoReply::Gone),
            // An inline context has one engine.
            Err(TryRecvError::Empty) if self.engines.iter().any(|engine| engine.health().is_stopped()) => {
                receiver.try_recv().map(Some).map_err(|_| NoReply::Gone)
            }
            Err(TryRecvError::Empty) => Ok(None),
        })?;
        received.ok_or(NoReply::TimedOut)
    }

    fn receive_from_threads<T>(
        &self,
        receiver: &Receiver<T>,
        origin: Origin,
        deadline: Option<Instant>,
    ) -> Result<T, NoReply> {
        let over = deadline.map_or_else(never, at);
        let engines = match origin {
            Origin::One(index) => &self.engines[index..=index],
            Origin::Any => &self.engines[..],
            Origin::All => &[],
        };
        let mut ends = engines.iter().map(|engine| engine.health().ended());
        let mut running = if let Origin::All = origin { Some(self.waiters.stopped()) } else { ends.next() };
        while let Some(ended) = running {
            select! {
                recv(receiver) -> message => return message.map_err(|_| NoReply::Gone),
                recv(ended) -> _ => running = ends.next(),
                recv(over) -> _ => return receiver.try_recv().map_err(|_| NoReply::TimedOut),
            }
        }
        receiver.try_recv().map_err(|_| NoReply::Gone)
    }

    /// Waits for the answer to a command that this engine carries out at once.
    pub(crate) fn reply<T>(&self, engine: usize, receiver: &Receiver<T>) -> Result<T, Error> {
        let deadline = Instant::now() + STOP_MARGIN;
        self.receive(receiver, Origin::One(engine), Some(deadline)).map_err(|reason| match reason {
            NoReply::WrongThread => Error::WrongThread,
            NoReply::TimedOut | NoReply::Gone => match self.check_alive() {
                Err(error) => error,
                Ok(()) => Error::ContextClosed,
            },
        })
    }

    /// Keeps a dropped queue pair until its connection has ended.
    pub(crate) fn linger(&self, mut queue_pair: Box<dyn Linger>) {
        // Its destruction begins here if the connection has ended already.
        if queue_pair.is_gone(self) {
            self.objects.queue_pairs.put(queue_pair.number());
            return;
        }
        let mut lingering = lock(&self.lingering);
        let is_due = lingering.add(queue_pair);
        if self.state.load(Ordering::Acquire) == CLOSED {
            // It holds its completion queues, and they hold this.
            lingering.clear();
            return;
        }
        drop(lingering);
        if is_due {
            self.reap_lingering();
        }
    }

    /// Destroys dropped queue pairs whose connections have ended, and frees their numbers.
    pub(crate) fn reap_lingering(&self) {
        lock(&self.lingering)
            .remove_gone(|queue_pair| queue_pair.is_gone(self), |gone| self.objects.queue_pairs.put(gone.number()));
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
                self.receive(receiver, Origin::One(index), Some(deadline)).ok()
            } else {
                receiver.recv_deadline(deadline).ok()
            };
            match reply {
                Some(stats) => engines.push(*stats),
                None => silent_engines.push(SilentEngine {
                    index: index as u16,
                    reason: match self.engines[index].health().failure() {
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
            version: crate::VERSION.to_owned(),
            pid: std::process::id(),
            context: self.id,
            uptime_ns: self.opened.elapsed().as_nanos() as u64,
            mode: if self.is_inline() { "inline" } else { "threaded" }.to_owned(),
            address: self.config.address.to_string(),
            mtu: self.config.mtu,
            switch: self.config.switch.clone(),
            port: lock(&self.port).as_ref().map(port_snapshot),
            engines,
            silent_engines,
            objects: ObjectCounts {
                queue_pairs: self.objects.queue_pairs.in_use(),
                queue_pairs_limit: limits.queue_pairs,
                completion_queues: self.objects.completion_queues.in_use(),
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
                true => self.receive(report, Origin::All, Some(deadline)),
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
            let thread = engine.take_thread();
            if stopped && let Some(thread) = thread {
                // The body catches panics; nothing is left to be told.
                let _ = thread.join();
            }
        }
        if self.is_inline() {
            inline::unseat(self.id);
        }
        // The queues are back, unless an engine was left behind: then the last one to go closes the device.
        lock(&self.port).take();
        if let Some(link) = self.switch.get() {
            link.close();
        }
        self.state.store(CLOSED, Ordering::Release);
        lock(&self.lingering).clear();
        self.waiters.wake();
        self.engines.iter().for_each(|engine| engine.health().end());
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
