//! From a configuration to a context whose engines do not run yet, and the engines' settings.

use crate::config::Config;
use crate::error::Error;
use crate::runtime::core::Core;
use crate::runtime::cpus::{self, CommitCpus};
use crate::runtime::driver::Health;
#[cfg(test)]
use crate::runtime::driver::{self, PortSeed};
use crate::runtime::engine_handle::EngineHandle;
use crate::runtime::instruments::set_faults;
use crate::runtime::ports::{Launch, Ports};
use crate::runtime::settings::{engine_limits, random};
use crate::runtime::switch;
use crate::runtime::waiters::Waiters;
use crossbeam::channel::{Receiver, unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uwarp_engine::command::{AsyncEvent, EventSink};
use uwarp_memory::RegionTable;
use uwarp_ring::{Doorbells, Notifier};

/// A context whose engines do not run yet.
pub(crate) struct Prepared {
    pub(crate) core: Arc<Core>,
    pub(crate) events: Receiver<AsyncEvent>,
    pub(crate) event_notifier: Arc<Notifier>,
}

/// Prepares a context for the configured device.
pub(crate) fn prepare(config: Config) -> Result<Prepared, Error> {
    let config = switch::resolve(config)?;
    let ports = if config.device.is_some() || config.switch.is_some() { Ports::Device } else { Ports::Alone };
    prepare_with(config, ports)
}

/// Prepares two contexts that are joined back to back, engine by engine.
pub(crate) fn prepare_pair(a: Config, b: Config) -> Result<(Prepared, Prepared), Error> {
    a.validate()?;
    b.validate()?;
    if a.engine.count != b.engine.count {
        return Err(Error::argument(
            "engine.count",
            format!("{} and {}", a.engine.count, b.engine.count),
            "the two sides of a pair need the same number of engines",
        ));
    }
    let (ports_a, ports_b) = Ports::pair(&a);
    Ok((prepare_with(a, ports_a)?, prepare_with(b, ports_b)?))
}

/// A pair, the first port of whose first side is under watch.
#[cfg(test)]
pub(crate) fn prepare_watched_pair(
    a: Config,
    b: Config,
    watch: &Arc<driver::watched::Watch>,
) -> Result<(Prepared, Prepared), Error> {
    let (mut ports_a, mut ports_b) = (Vec::new(), Vec::new());
    for index in 0..a.engine.count {
        let (port_a, port_b) = crate::runtime::ports::loop_pair(&a);
        ports_a.push(match index {
            0 => driver::watched::WatchedPort::seed(port_a, watch),
            _ => PortSeed::Loop(port_a),
        });
        ports_b.push(PortSeed::Loop(port_b));
    }
    Ok((prepare_with(a, Ports::Made(ports_a))?, prepare_with(b, Ports::Made(ports_b))?))
}

fn prepare_with(config: Config, ports: Ports) -> Result<Prepared, Error> {
    static CONTEXTS: AtomicU64 = AtomicU64::new(1);
    config.validate()?;
    cpus::check("engine.cpus", &config.engine.cpus)?;
    let commit_cpus = if config.commit.in_engine { None } else { Some(CommitCpus::of(&config)?) };
    let id = CONTEXTS.fetch_add(1, Ordering::Relaxed);
    let notifier = || Notifier::new().map(Arc::new).map_err(Error::system("no event file descriptor for the context"));
    let regions = RegionTable::new(
        config.limits.regions as u32,
        config.limits.registered_octets,
        u128::from(random()) << 64 | u128::from(random()),
    );
    let waiters = Arc::new(Waiters::default());
    let (event_sender, events) = unbounded();
    let event_notifier = notifier()?;
    waiters.add(&event_notifier);
    let doorbells = engine_limits(&config).doorbells();
    let mut engines = Vec::with_capacity(config.engine.count);
    for _ in 0..config.engine.count {
        let health = Arc::new(Health::new(Arc::clone(&waiters)));
        engines.push(EngineHandle::new(Arc::new(Doorbells::new(doorbells)), notifier()?, health));
    }
    let sink = EventSink::new(event_sender, Some(Arc::clone(&event_notifier)));
    let launch = Launch::new(ports, config.pcap.clone(), sink);
    let core = Arc::new(Core::new(id, config, engines, regions, waiters, commit_cpus, launch));
    if core.config.faults.is_some() {
        set_faults(&core, core.config.faults)?;
    }
    Ok(Prepared { core, events, event_notifier })
}
