//! Opening a device.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use super::description::{Capabilities, PortInfo, PortOptions};
use super::device::{
    Device, Features, add, configure, failed, interface_mtu, on_bus, port_of, set_up_queue, start_once, unplug,
    wake_vhost,
};
use super::inner::{Correction, Inner, QueueState};
use super::replug::Recipe;
use crate::alarm::{Alarm, Announcement, Watch};
use crate::gate::{self, Registered};
use crate::log::Mark;
use crate::maintenance::{Cure, Reconnector};
use crate::plan::{self, Plan, Socket};
use crate::pool::Pool;
use crate::{DeviceConfig, Eal, Error, HEADROOM, MemifRole, copies, pci, ring, signal};

/// Between two attempts to reach a peer.
const RETRY: Duration = Duration::from_millis(10);

/// Whether the driver of memif would take the memory that there is for zero-copy.
fn check_zero_copy(eal: &Eal, config: &DeviceConfig) -> Result<(), Error> {
    let wants_it = matches!(config, DeviceConfig::Memif { role: MemifRole::Client, zero_copy: true, .. });
    if wants_it && !eal.config().hugepages && !sys::release::SINGLE_FILES_WITHOUT_HUGEPAGES {
        return Err(Error::Configuration(
            "with DPDK 25.11, zero-copy of memif needs hugepages: set hugepages = true, or leave zero-copy out"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Creates, configures and starts a device on this thread.
pub(crate) fn open(eal: &Eal, config: &DeviceConfig, options: &PortOptions, plan: &Plan) -> Result<Inner, Error> {
    if let Some(driver) = config.driver() {
        let available = eal.drivers();
        if !available.is_empty() && !available.iter().any(|name| name == driver) {
            return Err(Error::NoSuchDriver { driver: driver.to_owned(), available });
        }
    }
    check_interface(config, options)?;
    check_zero_copy(eal, config)?;
    if let Some(socket) = &plan.socket
        && socket.listens
    {
        plan::clear_stale(socket)?;
    }
    let numa = options.numa_node.and_then(|node| i32::try_from(node).ok());
    let deadline = Instant::now() + options.wait_for_peer;
    let mut device = make(eal, config, options, plan, numa.unwrap_or(0), deadline)?;
    let Some(port) = device.port else {
        return Err(Error::Device {
            device: plan.name.clone(),
            call: "rte_eal_hotplug_add",
            reason: "made no port".to_owned(),
        });
    };

    let mut limits = sys::rte_eth_dev_info::default();
    let mark = Mark::now();
    // SAFETY: the port is open; the structure is filled in.
    let result = unsafe { sys::rte_eth_dev_info_get(port, &mut limits) };
    if result != 0 {
        return Err(failed(plan, "rte_eth_dev_info_get", result, &mark));
    }
    let max_queues = limits.max_rx_queues.min(limits.max_tx_queues);
    if options.queues > max_queues {
        return Err(Error::Unsupported {
            device: plan.name.clone(),
            reason: format!("has at most {max_queues} queues, and {} are asked for", options.queues),
        });
    }
    // SAFETY: the port is open.
    let own_node = unsafe { sys::rte_eth_dev_socket_id(port) };
    let node = numa.unwrap_or(own_node.max(0));

    let features = configure(port, plan, options, &limits)?;
    if plan.bus == "pci" && options.queues > 1 && !features.rss {
        // The em driver offers two queues and fills the first.
        return Err(Error::Unsupported {
            device: plan.name.clone(),
            reason: format!(
                "its driver {} does not spread received packets over queues: use one engine",
                driver_name(&limits)
            ),
        });
    }
    let queues = set_up_queues(eal, port, plan, options, &limits, node, features)?;
    if let DeviceConfig::Tap { name, .. } = config {
        let kept = signal::keep_those_of_taps().and_then(|()| signal::keep_from_children(name));
        kept.map_err(|error| Error::System {
            what: format!("{} cannot be kept from other threads and programs", plan.name),
            reason: error.to_string(),
        })?;
    }
    // Before a peer can come. Other devices that announce packets are gated, and the gate tells of changes.
    if plan.announcement == Announcement::Peer || plan.announcement == Announcement::Driver && !plan.gated {
        device.watch = Some(Watch::start(port, queues.iter().map(|queue| Arc::clone(&queue.alarm)).collect()));
    }
    start(port, plan, options, deadline)?;
    for queue in &queues {
        queue.alarm.find(port);
    }
    if let (DeviceConfig::Vhost { .. }, Some(Socket { path, listens: true, .. })) = (config, &plan.socket) {
        wake_vhost(path);
    }

    // A virtual link delivers every frame whatever the address; on a shared link this is needed for several addresses.
    // SAFETY: the port is started. A device that refuses is not worse off.
    unsafe { sys::rte_eth_allmulticast_enable(port) };
    let mut mac = sys::rte_ether_addr::default();
    // SAFETY: fills the address in.
    unsafe { sys::rte_eth_macaddr_get(port, &mut mac) };
    // The driver also gives its own address to the kernel's interface, and a station does not answer itself, so ours
    // differs in one bit. The driver delivers every frame whatever its address.
    if matches!(config, DeviceConfig::Tap { .. }) {
        mac.addr_bytes[5] ^= 1;
    }
    // A ring has no address. All zeros is no station's, and an ARP packet from it is ignored.
    if mac.addr_bytes == [0; 6] {
        mac.addr_bytes = plan::own_address(u32::from(port));
    }
    let driver = driver_name(&limits);
    let has = |offload: u64, of: u64| of & offload != 0;
    let capabilities = Capabilities {
        mac: mac.addr_bytes,
        mtu: options.mtu,
        max_frame: u32::from(options.mtu) + 14,
        headroom: HEADROOM as u16,
        data_room: u32::from(plan.tx_room),
        rx_ipv4_checksum: has(sys::UWARP_ETH_RX_IPV4_CKSUM, features.rx),
        rx_tcp_checksum: has(sys::UWARP_ETH_RX_TCP_CKSUM, features.rx),
        tx_ipv4_checksum: has(sys::UWARP_ETH_TX_IPV4_CKSUM, features.tx),
        tx_tcp_checksum: has(sys::UWARP_ETH_TX_TCP_CKSUM, features.tx),
        tx_multi_segment: has(sys::UWARP_ETH_TX_MULTI_SEGS, features.tx),
        tx_max_segments: match (has(sys::UWARP_ETH_TX_MULTI_SEGS, features.tx), limits.tx_desc_lim.nb_mtu_seg_max) {
            (false, _) => 1,
            // The driver states no limit. Half of the smallest ring fits every ring.
            (true, 0 | u16::MAX) => 16,
            (true, most) => most,
        },
        rx_scatter: has(sys::UWARP_ETH_RX_SCATTER, features.rx) || !matches!(config, DeviceConfig::Pci { .. }),
        tso: has(sys::UWARP_ETH_TX_TCP_TSO, features.tx),
        rss: features.rss,
        rss_key_len: limits.hash_key_size,
        rss_table_len: limits.reta_size,
        max_queues,
    };
    let info = PortInfo {
        device: plan.name.clone(),
        driver,
        port_id: port,
        numa_node: u32::try_from(own_node).ok(),
        capabilities,
    };
    let cure = match (&plan.socket, plan.restarts) {
        (Some(Socket { listens: false, .. }), true) => Some(Cure::Restart),
        (Some(Socket { listens: false, .. }), false) if plan.gated => Some(Cure::Replug(Box::new(Recipe {
            plan: plan.clone(),
            options: options.clone(),
            node,
            features,
            rx_pools: queues.iter().filter_map(|queue| NonNull::new(queue.rx_pool.raw())).collect(),
        }))),
        _ => None,
    };
    let flags = queues.iter().filter_map(|queue| queue.flag.as_ref()).map(Registered::flag).collect();
    let reconnector = cure.map(|cure| Reconnector::start(port, cure, flags));
    let device = Device {
        plan: device.plan.clone(),
        port: device.port.take(),
        ring: device.ring.take(),
        watch: device.watch.take(),
    };
    Ok(Inner { info, device, queues, reconnector, correction: correction(plan, features) })
}

fn driver_name(limits: &sys::rte_eth_dev_info) -> String {
    if limits.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: the driver's name is a static string.
    unsafe { CStr::from_ptr(limits.driver_name) }.to_string_lossy().into_owned()
}

/// Checks the kernel's interface first, because DPDK's messages are less clear.
fn check_interface(config: &DeviceConfig, options: &PortOptions) -> Result<(), Error> {
    let DeviceConfig::AfPacket { interface, .. } = config else { return Ok(()) };
    let mtu = interface_mtu(interface, None)?;
    if mtu < i32::from(options.mtu) {
        return Err(Error::Configuration(format!(
            "the MTU of interface {interface} is {mtu}, and {} is asked for: ip link set dev {interface} mtu {}",
            options.mtu, options.mtu
        )));
    }
    Ok(())
}

/// What the driver says wrongly of received packets.
fn correction(plan: &Plan, features: Features) -> Correction {
    if plan.shares_memory {
        return Correction::ChainLengths;
    }
    if plan.bus != "pci" {
        return Correction::None;
    }
    // A driver may call the checksums of damaged packets good if it was not asked to look (igb).
    let unasked = |offload: u64, flags: u64| if features.rx & offload == 0 { flags } else { 0 };
    let flags = unasked(sys::UWARP_ETH_RX_IPV4_CKSUM, sys::UWARP_RX_IP_CKSUM_MASK)
        | unasked(sys::UWARP_ETH_RX_TCP_CKSUM, sys::UWARP_RX_L4_CKSUM_MASK);
    if flags == 0 { Correction::None } else { Correction::Verdicts(flags) }
}

/// Creates the device on its bus and finds its port.
fn make(
    eal: &Eal,
    config: &DeviceConfig,
    options: &PortOptions,
    plan: &Plan,
    node: i32,
    deadline: Instant,
) -> Result<Device, Error> {
    let mut device = Device { plan: plan.clone(), port: None, ring: None, watch: None };
    match config {
        DeviceConfig::Ring { name, loopback } => {
            let short = plan.name.strip_prefix("net_ring_").unwrap_or(&plan.name);
            let (port, end) = on_bus(|| ring::open(name, short, *loopback, options.queues, node))?;
            device.port = Some(port);
            device.ring = Some(end);
            return Ok(device);
        }
        DeviceConfig::Pci { .. } => {
            if !eal.config().pci.iter().any(|listed| listed.split(',').next() == Some(plan.name.as_str())) {
                return Err(Error::Configuration(format!(
                    "DPDK has not looked for the PCI device {}: it looks once in a process, as it starts, for that of the first \
                     context: open this device before any other",
                    plan.name
                )));
            }
            // EAL has probed the devices on its list; a device that was closed before is probed again.
            if let Some(port) = port_of(plan) {
                device.port = Some(port);
                return Ok(device);
            }
        }
        _ => {}
    }
    match &plan.socket {
        Some(socket) if matches!(config, DeviceConfig::VirtioUser { .. }) && socket.listens => {
            add_when_accepted(plan, socket, options.wait_for_peer)?;
        }
        Some(socket) if matches!(config, DeviceConfig::VirtioUser { .. }) => {
            retry(plan, socket, options.wait_for_peer, deadline, "rte_eal_hotplug_add", || on_bus(|| add(plan)))?;
        }
        _ => {
            let mark = Mark::now();
            let result = on_bus(|| add(plan));
            if result != 0 {
                let error = failed(plan, "rte_eal_hotplug_add", result, &mark);
                return Err(match (plan.bus, &error) {
                    ("pci", Error::Device { reason, .. }) => pci::without_port(&plan.name, reason),
                    _ => error,
                });
            }
        }
    }
    device.port = port_of(plan);
    if device.port.is_none() && plan.bus == "vdev" {
        unplug(plan);
    }
    Ok(device)
}

/// Retries until the peer that serves a socket is there.
fn retry(
    plan: &Plan,
    socket: &Socket,
    limit: Duration,
    deadline: Instant,
    call: &'static str,
    attempt: impl Fn() -> c_int,
) -> Result<(), Error> {
    loop {
        let mark = Mark::now();
        let there = socket.path.exists();
        if there {
            let result = attempt();
            if result == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let error = failed(plan, call, result, &mark);
                let text = error.to_string();
                // The messages of a connecting end if the socket file exists and nobody accepts.
                let absent =
                    ["onnection refused", "onnect error", "Failed to connect"].iter().any(|sign| text.contains(sign));
                return Err(if absent {
                    Error::PeerAbsent { socket: socket.path.clone(), waited: limit }
                } else {
                    error
                });
            }
        } else if Instant::now() >= deadline {
            return Err(Error::PeerAbsent { socket: socket.path.clone(), waited: limit });
        }
        std::thread::sleep(RETRY);
    }
}

/// The driver of a listening virtio-user device waits inside for its first peer, without limit; this provides one.
fn add_when_accepted(plan: &Plan, socket: &Socket, limit: Duration) -> Result<(), Error> {
    let mark = Mark::now();
    let (done, finished) = mpsc::channel::<()>();
    let (result, timed_out) = std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let timed_out = matches!(finished.recv_timeout(limit), Err(mpsc::RecvTimeoutError::Timeout));
            if timed_out {
                plan::poke(socket);
            }
            timed_out
        });
        // Not under our own lock. But DPDK's list of virtual devices is locked as long as the driver waits, so a peer
        // in this process has to be open already.
        let result = add(plan);
        drop(done);
        (result, watch.join().unwrap_or(false))
    });
    match result {
        0 => Ok(()),
        _ if timed_out => {
            let _ = std::fs::remove_file(&socket.path);
            Err(Error::PeerAbsent { socket: socket.path.clone(), waited: limit })
        }
        _ => Err(failed(plan, "rte_eal_hotplug_add", result, &mark)),
    }
}

fn set_up_queues(
    eal: &Eal,
    port: u16,
    plan: &Plan,
    options: &PortOptions,
    limits: &sys::rte_eth_dev_info,
    node: i32,
    features: Features,
) -> Result<Vec<QueueState>, Error> {
    let memory = eal.config().memory_mib;
    let mut queues = Vec::new();
    for queue in 0..options.queues {
        let rx_pool = Pool::take(options.rx_buffers, plan.rx_room, plan.rx_shift(), node, memory)?;
        let tx_pool = Pool::take(options.tx_buffers, plan.tx_room, 0, node, memory)?;
        // Without memory for copies, frames are sent as they are.
        let copies = plan.virtio.then(|| copies::pool(plan.tx_descriptors, node, memory).ok()).flatten();
        // SAFETY: the port is configured for this queue and stopped; the pool outlives the port.
        unsafe { set_up_queue(port, queue, plan, limits, node, features, rx_pool.raw()) }?;
        let alarm = Alarm::new(plan.announcement, queue).map(Arc::new).map_err(|error| Error::System {
            what: format!("an event descriptor for {}", plan.name),
            reason: error.to_string(),
        })?;
        let flag = plan.gated.then(|| Registered::new(port, Arc::clone(&alarm)));
        queues.push(QueueState { rx_pool, tx_pool, copies, alarm, flag, taken: AtomicBool::new(false) });
    }
    Ok(queues)
}

fn start(port: u16, plan: &Plan, options: &PortOptions, deadline: Instant) -> Result<(), Error> {
    if plan.shares_memory {
        // SAFETY: walks over EAL's memory.
        unsafe { sys::uwarp_spare_memory_descriptors() };
    }
    let attempt = || if plan.restarts { gate::exclusive(|| start_once(port)) } else { start_once(port) };
    match &plan.socket {
        Some(socket) if plan.restarts && !socket.listens => {
            retry(plan, socket, options.wait_for_peer, deadline, "rte_eth_dev_start", attempt)
        }
        _ => {
            let mark = Mark::now();
            match attempt() {
                0 => Ok(()),
                result => Err(failed(plan, "rte_eth_dev_start", result, &mark)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceConfig;

    #[test]
    fn a_nic_is_believed_about_what_it_was_asked_to_check() {
        let checks = sys::UWARP_ETH_RX_IPV4_CKSUM | sys::UWARP_ETH_RX_TCP_CKSUM;
        let with = |rx| Features { rx, tx: 0, rss: false };
        let of = |config: &DeviceConfig| Plan::new(config, &PortOptions::default()).expect("a plan");
        let nic = of(&DeviceConfig::Pci { address: "0000:03:00.0".to_owned() });
        assert_eq!(correction(&nic, with(checks)), Correction::None);
        let Correction::Verdicts(neither) = correction(&nic, with(0)) else { panic!("all is believed") };
        assert_eq!(neither, sys::UWARP_RX_IP_CKSUM_MASK | sys::UWARP_RX_L4_CKSUM_MASK);
        let ip = correction(&nic, with(sys::UWARP_ETH_RX_TCP_CKSUM));
        assert_eq!(ip, Correction::Verdicts(sys::UWARP_RX_IP_CKSUM_MASK));
        // Of a virtio peer the flags say that memory does not corrupt.
        let null = of(&DeviceConfig::Null { frame_size: None });
        assert_eq!(correction(&null, with(0)), Correction::None);
    }
}
