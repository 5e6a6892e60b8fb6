//! From a prepared context to running engines: the device, the engines' ports, and the threads.

use crate::config::{Config, EngineMode, EngineOptions};
use crate::error::Error;
use crate::runtime::core::Core;
use crate::runtime::cpus;
use crate::runtime::driver::at_helm::{self, Helm};
use crate::runtime::driver::{Built, EngineSeed, PortSeed, Seat, inline};
use crate::runtime::instruments::start_capture;
use crate::runtime::lock::lock;
use crate::runtime::ports::Launch;
use crate::runtime::settings::{connections, engine_config, random, tcp_config};
use crate::runtime::switch;
use crossbeam::channel::{Sender, bounded};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::JoinHandle;
use uwarp_engine::EngineChannels;
use uwarp_engine::command::{AsyncEvent, EventSink};
use uwarp_engine::handoff::Handoff;
use uwarp_ring::Notifier;

/// Opens the device, or joins the switch, and starts the engines and the capture, unless that was done. After an error
/// the context is as it was before, or the capture alone is left to do.
pub(crate) fn start(core: &Core) -> Result<(), Error> {
    let mut launch = lock(&core.launch);
    core.check_open()?;
    let Launch { ports, capture, events } = &mut *launch;
    if let Some(source) = ports {
        let mut config = core.config.clone();
        let (link, switched) = switch::join(&mut config, &core.ports.reserved)?.unzip();
        // Once the engines run, nothing may fail.
        let watcher = link.as_ref().map(|_| core.watcher()).transpose()?;
        let (port, seeds) = source.open(&config, switched)?;
        run_engines(core, &config, link.as_deref(), events, port.as_ref(), seeds)?;
        *lock(&core.port) = port;
        if let (Some(link), Some(watcher)) = (link, watcher) {
            core.joined(link, watcher);
        }
        core.set_running();
        *ports = None;
    }
    if let Some(path) = capture {
        start_capture(core, path)?;
        *capture = None;
    }
    Ok(())
}

/// An engine that is built and waits for the others.
enum Candidate {
    Here(Built),
    Thread(WaitingThread),
}

/// Builds every engine, and lets them run if all could be built.
fn run_engines(
    core: &Core,
    config: &Config,
    link: Option<&switch::Link>,
    events: &EventSink<AsyncEvent>,
    port: Option<&uwarp_dpdk::Port>,
    seeds: Vec<PortSeed>,
) -> Result<(), Error> {
    if seeds.len() != core.engines.len() {
        let reason = "its port was lost with an earlier attempt to start".to_owned();
        return Err(Error::EngineFailed { engine: seeds.len(), reason });
    }
    let steering = port.filter(|_| seeds.len() > 1).and_then(uwarp_dpdk::Port::rss);
    let wakes: Vec<_> = core.engines.iter().map(|engine| Arc::clone(engine.wake())).collect();
    let mut handoff = handoff(config, &wakes).into_iter();
    // The answer to a SYN cookie may come to another engine than its own.
    let (tcp, cookie_secret) = (tcp_config(config), [random(), random()]);
    let mut candidates = Vec::with_capacity(seeds.len());
    for (index, (engine, port)) in core.engines.iter().zip(seeds).enumerate() {
        let mut settings = engine_config(config, index as u16, steering.as_ref(), tcp, cookie_secret);
        if let Some(link) = link {
            // Other programs have the same addresses, and other ports.
            (settings.loop_back, settings.ephemeral_ports) = (false, link.block().into_inner());
            settings.switch_addresses = link.addresses().others();
        }
        let seed = EngineSeed {
            config: settings,
            port,
            channels: EngineChannels {
                regions: Arc::clone(&core.regions),
                ports: Arc::clone(&core.ports.reserved),
                doorbells: Arc::clone(engine.doorbells()),
                commands: engine.mailbox().ok_or(Error::ContextClosed)?,
                events: events.clone(),
                waker: Some(Waker::from(Arc::new(WakeEngine(Arc::clone(engine.wake()))))),
                handoff: handoff.next(),
            },
            health: Arc::clone(engine.health()),
            wake: Arc::clone(engine.wake()),
        };
        candidates.push(match config.engine.mode {
            EngineMode::Inline => Candidate::Here(Seat::build(core.id, seed, false)?),
            EngineMode::Threaded if inline::seats_all() => {
                Candidate::Here((build_elsewhere(core.id, index, seed)?, None))
            }
            EngineMode::Threaded => {
                let helm = Arc::clone(engine.helm());
                Candidate::Thread(WaitingThread::start(core.id, index, &config.engine, seed, helm)?)
            }
        });
    }
    for (engine, candidate) in core.engines.iter().zip(candidates) {
        match candidate {
            Candidate::Here(seat) => {
                engine.runs(None);
                inline::seat(seat);
            }
            Candidate::Thread(thread) => engine.runs(Some(thread.go())),
        }
    }
    Ok(())
}

/// Builds an engine on a thread of its own, which stays: its memory lies where it would if that thread turned it.
fn build_elsewhere(context: u64, index: usize, seed: EngineSeed) -> Result<Seat, Error> {
    let (sender, built) = bounded(1);
    std::thread::spawn(move || {
        // What registers the thread stays here.
        let (seat, _registration) = match Seat::build(context, seed, false) {
            Ok((seat, registration)) => (Ok(seat), registration),
            Err(error) => (Err(error), None),
        };
        let _ = sender.send(seat);
        loop {
            std::thread::park();
        }
    });
    let ended = || Error::EngineFailed { engine: index, reason: "its thread ended while it was built".to_owned() };
    built.recv().map_err(|_| ended())?
}

/// The thread of an engine that is built and does not run yet. Dropping this ends it.
struct WaitingThread {
    start: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WaitingThread {
    fn start(
        context: u64,
        index: usize,
        options: &EngineOptions,
        seed: EngineSeed,
        helm: Arc<Helm>,
    ) -> Result<Self, Error> {
        let options = options.clone();
        let cpu = options.cpus.get(index).copied();
        let (built_sender, built) = bounded(1);
        let (start, started) = bounded(1);
        let body = move || {
            // The shortest naps are shorter than the 50 µs by which the kernel may stretch them.
            if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
                tracing::debug!(%error, "the timer slack stays as it is");
            }
            let pinned = cpu.map_or(Ok(()), |cpu| cpus::pin("engine.cpus", cpu));
            let shared = options.poll_turns.unwrap_or(false);
            match pinned.and_then(|()| Seat::build(context, seed, shared)) {
                Ok((seat, registration)) => {
                    let _ = built_sender.send(Ok(()));
                    match started.recv() {
                        Ok(()) => at_helm::run(&helm, seat, &options),
                        Err(_) => drop(seat),
                    }
                    // After the engine, whose buffers go back through this thread's caches.
                    drop(registration);
                }
                Err(error) => {
                    let _ = built_sender.send(Err(error));
                }
            }
        };
        // Linux shows 15 characters.
        let builder = std::thread::Builder::new().name(format!("uwarp-{context}-{index}"));
        let thread = uwarp_dpdk::with_signals_blocked(|| builder.spawn(body))
            .map_err(Error::system("the engine's thread cannot be started"))?;
        let waiting = Self { start: Some(start), thread: Some(thread) };
        match built.recv() {
            Ok(Ok(())) => Ok(waiting),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                Err(Error::EngineFailed { engine: index, reason: "its thread ended while it was built".to_owned() })
            }
        }
    }

    /// Lets the engine run.
    fn go(mut self) -> JoinHandle<()> {
        if let Some(start) = self.start.take() {
            let _ = start.send(());
        }
        match self.thread.take() {
            Some(thread) => thread,
            None => unreachable!("only this and dropping take it"),
        }
    }
}

impl Drop for WaitingThread {
    fn drop(&mut self) {
        self.start.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How committers of durable regions wake an engine.
struct WakeEngine(Arc<Notifier>);

impl Wake for WakeEngine {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fire_if_armed();
    }
}

/// The engines' parts of their hand-off: none for one engine.
fn handoff(config: &Config, wakes: &[Arc<Notifier>]) -> Vec<Handoff> {
    let engines = wakes.len();
    if engines < 2 {
        return Vec::new();
    }
    // Rings of a few MiB in all.
    let frames = (1024 / engines).max(16);
    // A flow in TIME-WAIT is still its engine's.
    let flows = connections(config) as usize + uwarp_engine::Limits::default().time_wait as usize;
    let mut parts = Handoff::between(engines, frames, flows * engines, [random(), random()]);
    for part in &mut parts {
        part.wake_by(wakes.to_vec());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::without_device("10.0.0.1/24").unwrap()
    }

    #[test]
    fn two_engines_hand_frames_to_each_other_and_one_does_not() {
        let wakes = [(); 2].map(|()| Arc::new(Notifier::new().unwrap()));
        assert!(handoff(&config(), &wakes[..1]).is_empty());
        assert_eq!(handoff(&config(), &wakes).len(), 2);
    }
}
