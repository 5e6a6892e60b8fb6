//! From a configuration to running engines.

use crate::config::{Config, Congestion, Ecn, EngineMode, FaultOptions};
use crate::core::{Core, EngineHandle, Waiters};
use crate::cpus::CommitCpus;
use crate::driver::{self, EngineSeed, Health, PortSeed, Seat};
use crate::error::Error;
use crossbeam::channel::{Receiver, bounded, unbounded};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;
use uwarp_engine::command::{AsyncEvent, Command, EventSink};
use uwarp_engine::handoff::Handoff;
use uwarp_engine::ports::decorated::{FaultRates, Rates};
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_engine::steering::Steering;
use uwarp_engine::{Budgets, EngineChannels, EngineConfig, IwarpConfig};
use uwarp_memory::RegionTable;
use uwarp_ring::{Doorbells, Notifier};

/// What opening gives, besides the core.
pub(crate) struct Opened {
    pub(crate) core: Arc<Core>,
    pub(crate) events: Receiver<AsyncEvent>,
    pub(crate) event_notifier: Arc<Notifier>,
}

/// Opens the configured device and starts the engines on it.
pub(crate) fn open(config: Config) -> Result<Opened, Error> {
    config.validate()?;
    let Some(device) = &config.device else {
        // Nobody at the other end: frames to the own address never leave the engine, others find no neighbour.
        let ports = (0..config.engine.count).map(|_| PortSeed::Loop(loop_pair(&config).0)).collect();
        return start(config, None, ports);
    };
    let eal = match uwarp_dpdk::Eal::get() {
        Some(eal) => eal,
        None => uwarp_dpdk::Eal::init(&eal_config(&config))?,
    };
    let options = uwarp_dpdk::PortOptions {
        mtu: config.mtu,
        queues: config.engine.count as u16,
        rx_buffers: config.buffers.receive,
        tx_buffers: config.buffers.transmit,
        rx_descriptors: config.buffers.descriptors,
        tx_descriptors: config.buffers.descriptors,
        wait_for_peer: config.wait_for_peer,
        offloads: uwarp_dpdk::Offloads {
            tso: config.tcp.segmentation_offload,
            lro: config.tcp.segmentation_offload,
            ..uwarp_dpdk::Offloads::default()
        },
        ..uwarp_dpdk::PortOptions::default()
    };
    let port = uwarp_dpdk::Port::open(&eal, device, &options)?;
    let mut ports = Vec::new();
    for index in 0..options.queues {
        let queue = port.take_queue(index).ok_or_else(|| {
            Error::argument(
                "engine.count",
                options.queues,
                format!("the device has {} queues only", port.queue_count()),
            )
        })?;
        ports.push(PortSeed::Device { queue, eal: eal.clone() });
    }
    start(config, Some(port), ports)
}

/// Opens two contexts that are joined back to back, engine by engine.
pub(crate) fn open_pair(a: Config, b: Config) -> Result<(Opened, Opened), Error> {
    a.validate()?;
    b.validate()?;
    if a.engine.count != b.engine.count {
        return Err(Error::argument(
            "engine.count",
            format!("{} and {}", a.engine.count, b.engine.count),
            "the two sides of a pair need the same number of engines",
        ));
    }
    let (mut ports_a, mut ports_b) = (Vec::new(), Vec::new());
    for _ in 0..a.engine.count {
        let (port_a, port_b) = loop_pair(&a);
        ports_a.push(PortSeed::Loop(port_a));
        ports_b.push(PortSeed::Loop(port_b));
    }
    let first = start(a, None, ports_a)?;
    match start(b, None, ports_b) {
        Ok(second) => Ok((first, second)),
        Err(error) => {
            first.core.close();
            Err(error)
        }
    }
}

/// A pair of which the first side's engine panics when the switch is turned on.
#[cfg(test)]
pub(crate) fn open_panicking_pair(
    a: Config,
    b: Config,
    switch: &Arc<std::sync::atomic::AtomicBool>,
) -> Result<(Opened, Opened), Error> {
    let (port_a, port_b) = loop_pair(&a);
    let port_a = driver::panicking::seed(port_a, switch);
    Ok((start(a, None, vec![port_a])?, start(b, None, vec![PortSeed::Loop(port_b)])?))
}

fn loop_pair(config: &Config) -> (LoopPort, LoopPort) {
    LoopPort::pair(LoopOptions {
        mtu: config.mtu,
        buffers: config.buffers.transmit as usize,
        queue: usize::from(config.buffers.descriptors),
        checksums: true,
    })
}

fn eal_config(config: &Config) -> uwarp_dpdk::EalConfig {
    let options = &config.eal;
    uwarp_dpdk::EalConfig {
        hugepages: options.hugepages,
        memory_mib: options.memory_mib.unwrap_or_else(|| needed_mib(config)),
        file_prefix: options.file_prefix.clone(),
        pci: match &config.device {
            Some(crate::config::DeviceConfig::Pci { address }) => vec![address.clone()],
            _ => Vec::new(),
        },
        extra: options.extra.clone(),
        ..uwarp_dpdk::EalConfig::default()
    }
}

/// Memory for the pools, twice for DPDK's own needs and a second context, and for its rings.
fn needed_mib(config: &Config) -> u32 {
    let buffer = u64::from(config.mtu).max(1536) + 1024;
    let buffers = u64::from(config.buffers.receive) + u64::from(config.buffers.transmit);
    let pools = (buffer * buffers * config.engine.count as u64) >> 20;
    u32::try_from(128 + 2 * pools).unwrap_or(u32::MAX).max(384)
}

fn start(config: Config, port: Option<uwarp_dpdk::Port>, ports: Vec<PortSeed>) -> Result<Opened, Error> {
    static CONTEXTS: AtomicU64 = AtomicU64::new(1);
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
    let mut engines: Vec<EngineHandle> = Vec::with_capacity(ports.len());
    let mut handoff = handoff(&config, ports.len()).into_iter();
    let steering = port.as_ref().filter(|_| ports.len() > 1).and_then(uwarp_dpdk::Port::rss);
    let commit_cpus = if config.commit.in_engine { None } else { Some(CommitCpus::of(&config)?) };
    // The answer to a SYN cookie may come to another engine than its own.
    let (tcp, cookie_secret) = (tcp_config(&config), [random(), random()]);
    for (index, port_seed) in ports.into_iter().enumerate() {
        let (commands, mailbox) = unbounded();
        let engine_config = engine_config(&config, index as u16, steering.as_ref(), tcp, cookie_secret);
        let doorbells = Arc::new(Doorbells::new(engine_config.limits.doorbells()));
        let wake = notifier()?;
        let health = Arc::new(Health::new(Arc::clone(&waiters)));
        let seed = EngineSeed {
            config: engine_config,
            port: port_seed,
            channels: EngineChannels {
                regions: Arc::clone(&regions),
                doorbells: Arc::clone(&doorbells),
                commands: mailbox,
                events: EventSink::new(event_sender.clone(), Some(Arc::clone(&event_notifier))),
                waker: Some(Waker::from(Arc::new(WakeEngine(Arc::clone(&wake))))),
                handoff: handoff.next(),
            },
            health: Arc::clone(&health),
        };
        let thread = match config.engine.mode {
            EngineMode::Inline => {
                driver::seat_here(Seat::build(id, seed)?);
                None
            }
            EngineMode::Threaded => match spawn(id, index, &config, seed, Arc::clone(&wake)) {
                Ok(thread) => Some(thread),
                Err(error) => {
                    // Those that run already are stopped again.
                    Core::new(id, config, engines, regions, port, waiters, commit_cpus).close();
                    return Err(error);
                }
            },
        };
        engines.push(EngineHandle::new(commands, doorbells, wake, health, thread));
    }
    let core = Arc::new(Core::new(id, config, engines, regions, port, waiters, commit_cpus));
    if let Err(error) = apply_switches(&core) {
        core.close();
        return Err(error);
    }
    Ok(Opened { core, events, event_notifier })
}

/// How committers of durable regions wake an engine; one that is inline is never asleep.
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
fn handoff(config: &Config, engines: usize) -> Vec<Handoff> {
    if engines < 2 {
        return Vec::new();
    }
    // Rings of a few MiB in all.
    let frames = (1024 / engines).max(16);
    // A flow in TIME-WAIT is still its engine's.
    let flows = connections(config) as usize + uwarp_engine::Limits::default().time_wait as usize;
    Handoff::between(engines, frames, flows * engines, [random(), random()])
}

/// Faults and capture that the configuration asks for from the start.
fn apply_switches(core: &Core) -> Result<(), Error> {
    if let Some(faults) = core.config.faults {
        set_faults(core, Some(faults))?;
    }
    if let Some(path) = &core.config.pcap {
        start_capture(core, path)?;
    }
    Ok(())
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

fn spawn(
    context: u64,
    index: usize,
    config: &Config,
    seed: EngineSeed,
    wake: Arc<Notifier>,
) -> Result<std::thread::JoinHandle<()>, Error> {
    let options = config.engine.clone();
    let cpu = options.cpus.get(index).copied();
    if let Some(cpu) = cpu {
        let usable = core_affinity::get_core_ids().unwrap_or_default();
        if !usable.iter().any(|core| core.id == cpu) {
            return Err(Error::argument(
                "engine.cpus",
                cpu,
                format!(
                    "this process may use the CPUs {}",
                    usable.iter().map(|core| core.id.to_string()).collect::<Vec<_>>().join(", ")
                ),
            ));
        }
    }
    let (built_sender, built) = bounded(1);
    let thread = std::thread::Builder::new()
        // Linux shows 15 characters.
        .name(format!("uwarp-{context}-{index}"))
        .spawn(move || {
            if let Some(cpu) = cpu
                && !core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
            {
                tracing::warn!(cpu, "the engine could not be pinned to its CPU");
            }
            // Naps are far shorter than the 50 µs by which the kernel may stretch them.
            if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
                tracing::debug!(%error, "the timer slack stays as it is");
            }
            match Seat::build(context, seed) {
                Ok(mut seat) => {
                    let _ = built_sender.send(Ok(()));
                    seat.run(&options, &wake);
                }
                Err(error) => {
                    let _ = built_sender.send(Err(error));
                }
            }
        })
        .map_err(Error::system("the engine's thread cannot be started"))?;
    match built.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::EngineFailed { engine: index, reason: "its thread ended while it was built".to_owned() }),
    }
}

fn engine_config(
    config: &Config,
    index: u16,
    rss: Option<&uwarp_dpdk::Rss>,
    tcp: uwarp_tcp::Config,
    cookie_secret: [u64; 2],
) -> EngineConfig {
    let limits = &config.limits;
    let engine_limits = uwarp_engine::Limits::default();
    EngineConfig {
        index,
        addresses: config
            .addresses()
            .map(|own| uwarp_engine::InterfaceAddress { address: own.address, prefix_length: own.prefix })
            .collect(),
        gateway: config.gateway,
        gateway6: config.gateway6,
        duplicate_address_detection: config.duplicate_address_detection,
        vlan: config.vlan.map(|vlan| u16::from(vlan.priority) << 13 | vlan.number),
        neighbours: config.neighbours.iter().map(|neighbour| (neighbour.address, neighbour.mac.0)).collect(),
        tcp,
        iwarp: IwarpConfig {
            crc: config.mpa.crc,
            startup_timeout: config.mpa.startup_timeout,
            commit_timeout: config.commit.timeout,
            commit_share: config.commit.share,
            strict_commit: config.commit.strict,
            ..IwarpConfig::default()
        },
        limits: uwarp_engine::Limits {
            queue_pairs: limits.queue_pairs as u32,
            half_open: limits.backlog as u32,
            connections: connections(config),
            neighbours: limits.neighbours as u32,
            reassembly_octets: limits.reassembly_octets as u32,
            least_rate: limits.least_rate as u32,
            ..engine_limits
        },
        budgets: Budgets { gather_octets: limits.gather_octets, ..Budgets::default() },
        steering: rss.map(|rss| Steering { key: rss.key.clone(), table: rss.table.clone(), queue: index }),
        // The whole usable range (RFC 6056 §3.2): engines of one context know which flows the others have.
        ephemeral_ports: EPHEMERAL_PORTS,
        seed: random(),
        secret: [random(), random()],
        cookie_secret,
    }
}

/// Ports that active opens draw from, with a random start.
const EPHEMERAL_PORTS: (u16, u16) = (1024, 65_535);

/// Connections of one engine: those in TIME-WAIT have no queue pair any more.
fn connections(config: &Config) -> u32 {
    (4 * config.limits.queue_pairs as u32).max(uwarp_engine::Limits::default().connections)
}

fn tcp_config(config: &Config) -> uwarp_tcp::Config {
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
fn random() -> u64 {
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
    fn two_engines_hand_frames_to_each_other_and_one_does_not() {
        assert!(handoff(&config(), 1).is_empty());
        assert_eq!(handoff(&config(), 2).len(), 2);
    }

    #[test]
    fn memory_is_asked_for_by_buffers_and_engines() {
        assert_eq!(needed_mib(&config()), 384);
        let mut config = config().threaded(2);
        (config.buffers.receive, config.buffers.transmit) = (1 << 16, 1 << 16);
        // 2560 octets a buffer: 640 MiB of pools, twice, and 128 MiB.
        assert_eq!(needed_mib(&config), 1408);
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
