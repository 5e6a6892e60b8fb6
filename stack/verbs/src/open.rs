//! From a configuration to a context whose engines do not run yet, and the engines' settings.

use crate::config::{Config, Congestion, Ecn, FaultOptions};
use crate::core::{Core, EngineHandle};
use crate::cpus::{self, CommitCpus};
use crate::driver::Health;
#[cfg(test)]
use crate::driver::{self, PortSeed};
use crate::error::Error;
use crate::launch::{Launch, Ports};
use crate::switch;
use crate::waiters::Waiters;
use crossbeam::channel::{Receiver, bounded, unbounded};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uwarp_engine::command::{AsyncEvent, Command, EventSink};
use uwarp_engine::ports::decorated::{FaultRates, Rates};
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::steering::Steering;
use uwarp_engine::{Budgets, EngineConfig, IwarpConfig};
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

/// A pair of which the first side's engine panics when the switch is turned on.
#[cfg(test)]
pub(crate) fn prepare_panicking_pair(
    a: Config,
    b: Config,
    switch: &Arc<std::sync::atomic::AtomicBool>,
) -> Result<(Prepared, Prepared), Error> {
    let (port_a, port_b) = crate::launch::loop_pair(&a);
    let ports_a = Ports::Made(vec![driver::panicking::seed(port_a, switch)]);
    Ok((prepare_with(a, ports_a)?, prepare_with(b, Ports::Made(vec![PortSeed::Loop(port_b)]))?))
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

fn rates(faults: &FaultOptions) -> Rates {
    Rates {
        loss: faults.loss / 100.0,
        duplication: faults.duplicate / 100.0,
        reordering: faults.reorder / 100.0,
        corruption: faults.corrupt / 100.0,
        marking: faults.mark / 100.0,
    }
}

/// Switches faults on or off in every engine.
pub(crate) fn set_faults(core: &Core, faults: Option<FaultOptions>) -> Result<(), Error> {
    if let Some(faults) = &faults {
        faults.validate()?;
    }
    for (index, engine) in core.engines.iter().enumerate() {
        engine.command(Command::SetFaults {
            faults: faults.map(|faults| FaultRates {
                // Each engine throws its own dice.
                seed: faults.seed.wrapping_add(index as u64),
                transmit: rates(&faults),
                receive: if faults.incoming { rates(&faults) } else { Rates::default() },
                recutting: Recutting { cutting: faults.recut / 100.0, joining: faults.recut / 100.0 },
                recut_received_only: faults.recut_received_only,
            }),
        });
    }
    Ok(())
}

/// Starts a capture in every engine: the first writes to `path`, the others to the same name with `.1`, `.2`, ...
pub(crate) fn start_capture(core: &Core, path: &std::path::Path) -> Result<(), Error> {
    for (index, engine) in core.engines.iter().enumerate() {
        let mut path = path.to_path_buf();
        if index > 0 {
            path.as_mut_os_string().push(format!(".{index}"));
        }
        let (reply, answer) = bounded(1);
        engine.command(Command::StartCapture { path, reply });
        core.reply(&answer)?.map_err(Error::Control)?;
    }
    Ok(())
}

pub(crate) fn engine_config(
    config: &Config,
    index: u16,
    rss: Option<&uwarp_dpdk::Rss>,
    tcp: uwarp_tcp::Config,
    cookie_secret: [u64; 2],
) -> EngineConfig {
    let limits = &config.limits;
    EngineConfig {
        index,
        addresses: config
            .addresses()
            .map(|own| uwarp_engine::InterfaceAddress { address: own.address, prefix_length: own.prefix })
            .collect(),
        loop_back: true,
        gateway: config.gateway,
        gateway6: config.gateway6,
        duplicate_address_detection: config.duplicate_address_detection,
        vlan: config.vlan.map(|vlan| u16::from(vlan.priority) << 13 | vlan.number),
        neighbours: config.neighbours.iter().map(|neighbour| (neighbour.address, neighbour.mac.0)).collect(),
        tcp,
        iwarp: IwarpConfig {
            crc: config.mpa.crc,
            startup_timeout: config.mpa.startup_timeout,
            receive_wait: limits.receive_wait.unwrap_or_default(),
            commit_timeout: config.commit.timeout,
            commit_share: config.commit.share,
            strict_commit: config.commit.strict,
            ..IwarpConfig::default()
        },
        limits: engine_limits(config),
        budgets: Budgets { gather_octets: limits.gather_octets, ..Budgets::default() },
        steering: rss.map(|rss| Steering { key: rss.key.clone(), table: rss.table.clone(), queue: index }),
        // The whole usable range (RFC 6056 §3.2): engines of one context know which flows the others have.
        ephemeral_ports: EPHEMERAL_PORTS,
        seed: random(),
        secret: [random(), random()],
        cookie_secret,
        hot: true,
    }
}

fn engine_limits(config: &Config) -> uwarp_engine::Limits {
    let limits = &config.limits;
    uwarp_engine::Limits {
        queue_pairs: limits.queue_pairs as u32,
        half_open: limits.backlog as u32,
        connections: connections(config),
        neighbours: limits.neighbours as u32,
        reassembly_octets: limits.reassembly_octets as u32,
        least_rate: limits.least_rate as u32,
        ..uwarp_engine::Limits::default()
    }
}

/// Ports that active opens draw from, with a random start.
const EPHEMERAL_PORTS: (u16, u16) = (1024, 65_535);

/// Connections of one engine: those in TIME-WAIT have no queue pair any more.
pub(crate) fn connections(config: &Config) -> u32 {
    (4 * config.limits.queue_pairs as u32).max(uwarp_engine::Limits::default().connections)
}

pub(crate) fn tcp_config(config: &Config) -> uwarp_tcp::Config {
    let tcp = &config.tcp;
    uwarp_tcp::Config {
        // IPv4 and TCP without options take 40 octets (RFC 9293 §3.7.1).
        mss: config.mtu - 40,
        receive_window: tcp.receive_window as u32,
        window_scale: true,
        timestamps: tcp.timestamps,
        timestamp_offset: random() as u32,
        sack: tcp.sack,
        rto_initial: tcp.rto_initial,
        rto_min: tcp.rto_min,
        rto_max: tcp.rto_max,
        syn_retries: tcp.syn_retries,
        delayed_ack: tcp.delayed_ack,
        ack_every: tcp.ack_every,
        keep_alive: tcp.keep_alive.enabled.then_some(uwarp_tcp::KeepAlive {
            idle: tcp.keep_alive.idle,
            interval: tcp.keep_alive.interval,
            probes: tcp.keep_alive.probes,
        }),
        user_timeout: tcp.user_timeout,
        time_wait: tcp.time_wait,
        // For RDMA streams, whose end is one for both directions (RFC 5040 §6.2): a peer that does not close must not hold a
        // queue pair for ever. A plain stream may be half closed for as long as its application likes.
        fin_wait_2: Some(tcp.user_timeout.unwrap_or(Duration::from_secs(60)).max(config.linger)),
        congestion: tcp_congestion(tcp.congestion),
        ecn: match tcp.ecn {
            Ecn::Off => uwarp_tcp::Ecn::Off,
            Ecn::Accept => uwarp_tcp::Ecn::Accept,
            Ecn::Offer => uwarp_tcp::Ecn::Offer,
        },
        ..uwarp_tcp::Config::default()
    }
}

/// The congestion control by TCP's own name.
pub(crate) fn tcp_congestion(congestion: Congestion) -> uwarp_tcp::Congestion {
    match congestion {
        Congestion::Cubic => uwarp_tcp::Congestion::Cubic,
        Congestion::Reno => uwarp_tcp::Congestion::Reno,
        Congestion::Dctcp => uwarp_tcp::Congestion::Dctcp,
    }
}

/// Random bits from the system, by way of the hasher that the standard library seeds with them.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ() {
        assert_ne!(random(), random());
    }

    fn config() -> Config {
        Config::without_device("10.0.0.1/24").unwrap()
    }

    #[test]
    fn shares_of_faults_are_percentages() {
        let faults = FaultOptions {
            loss: 1.0,
            duplicate: 2.0,
            reorder: 3.0,
            corrupt: 4.0,
            mark: 5.0,
            ..FaultOptions::default()
        };
        let rates = rates(&faults);
        let shares = [rates.loss, rates.duplication, rates.reordering, rates.corruption, rates.marking];
        assert_eq!(shares, [0.01, 0.02, 0.03, 0.04, 0.05]);
    }

    #[test]
    fn timestamps_are_as_configured() {
        let mut config = config();
        for timestamps in [false, true] {
            config.tcp.timestamps = timestamps;
            assert_eq!(tcp_config(&config).timestamps, timestamps);
        }
    }
}
