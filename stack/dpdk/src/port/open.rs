//! Opening and closing a device.

use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use super::replug::Recipe;
use super::{Capabilities, Inner, PortInfo, PortOptions, QueueState};
use crate::alarm::{Alarm, Announcement, Watch};
use crate::gate::{self, Registered};
use crate::log::{Mark, error_text, last_error};
use crate::maintenance::{Cure, Reconnector};
use crate::plan::{self, Plan, Socket};
use crate::pool::Pool;
use crate::{DeviceConfig, Eal, Error, HEADROOM, ring, signal};

/// Between two attempts to reach a peer.
const RETRY: Duration = Duration::from_millis(10);

/// A device on its bus. It is closed and unplugged once.
#[derive(Debug)]
pub(crate) struct Device {
    plan: Plan,
    port: Option<u16>,
    ring: Option<ring::End>,
    /// What the driver reports.
    watch: Option<Watch>,
}

/// DPDK's device lists do not support two threads at a time.
static BUS: Mutex<()> = Mutex::new(());

pub(super) fn on_bus<T>(work: impl FnOnce() -> T) -> T {
    let _bus = BUS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    work()
}

impl Device {
    /// Stops, closes and unplugs the device.
    pub(crate) fn close(&mut self) {
        self.watch = None;
        if let Some(port) = self.port.take() {
            let plan = &self.plan;
            let close = || close_device(plan, port);
            signal::aside(|| {
                on_bus(|| {
                    if plan.gated {
                        // The interrupt thread may be about to notice that the peer is gone.
                        gate::settle();
                        gate::exclusive(close);
                    } else {
                        close();
                    }
                });
            });
        }
        self.ring = None;
    }

    /// Sets the number of the device's port; `None` if it was unplugged.
    pub(crate) fn set_port(&mut self, port: Option<u16>) {
        self.port = port;
    }
}

/// Has DPDK accept connections to a vhost socket at once. Before version 24.11 the thread that does so sees a new socket only
/// when it wakes next, up to a second later, and the first peer waits as long.
fn wake_vhost(socket: &Path) {
    let mut path = socket.as_os_str().to_owned();
    path.push(format!(".{}", std::process::id()));
    // If this cannot be done, such as with a path that is too long, the peer waits.
    let Ok(_listener) = UnixListener::bind(&path) else { return };
    if let Ok(name) = CString::new(path.as_bytes()) {
        // SAFETY: the string is copied.
        unsafe { sys::uwarp_vhost_wake(name.as_ptr()) };
    }
    let _ = std::fs::remove_file(&path);
}

/// Stops and closes a port that no queue uses any more, and unplugs its device.
pub(super) fn close_device(plan: &Plan, port: u16) {
    // SAFETY: the port is open.
    unsafe {
        sys::rte_eth_dev_stop(port);
        sys::rte_eth_dev_close(port);
    }
    if plan.bus == "vdev" {
        unplug(plan);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}

fn unplug(plan: &Plan) {
    if let (Ok(bus), Ok(name)) = (CString::new(plan.bus), CString::new(plan.name.as_str())) {
        // SAFETY: the strings are read during the call.
        unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
    }
}

/// A call's failure: the device, the call, the result and DPDK's log.
fn failed(plan: &Plan, call: &'static str, result: c_int, mark: &Mark) -> Error {
    let number = if result < -1 { result } else { last_error() };
    let reason = mark.reason(&error_text(number));
    let denied = [libc::EPERM, libc::EACCES].contains(&number.abs())
        || ["not permitted", "Permission denied"].iter().any(|text| reason.contains(text));
    if denied {
        return Error::Permission {
            what: format!("{} ({call}: {reason})", plan.name),
            cure: "run as root or with the capabilities CAP_NET_ADMIN and CAP_NET_RAW, or use a device over a socket (virtio-user, vhost, memif)".to_owned(),
        };
    }
    // The driver computes the group's number as process number XOR interface index; groups are per namespace.
    let reason = if reason.contains("PACKET_FANOUT") {
        format!(
            "{reason} (another process of this network namespace may have the fanout group: give the interface an index far from those of other such interfaces, as in 'ip link add NAME index 16400 ...', or start again)"
        )
    } else {
        reason
    };
    Error::Device { device: plan.name.clone(), call, reason }
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
    // SAFETY: the driver's name is a static string, or null.
    let driver = unsafe {
        if limits.driver_name.is_null() {
            String::new()
        } else {
            CStr::from_ptr(limits.driver_name).to_string_lossy().into_owned()
        }
    };
    let has = |offload: u64, of: u64| of & offload != 0;
    let capabilities = Capabilities {
        mac: mac.addr_bytes,
        mtu: options.mtu,
        max_frame: u32::from(options.mtu) + 14,
        headroom: HEADROOM as u16,
        data_room: u32::from(plan.data_room),
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
        tso_max_segments: match (has(sys::UWARP_ETH_TX_TCP_TSO, features.tx), limits.tx_desc_lim.nb_seg_max) {
            (false, _) => 0,
            // Several such packets must fit into the ring.
            (true, 0) => plan.tx_descriptors / 4,
            (true, most) => most.min(plan.tx_descriptors / 4),
        },
        lro: has(sys::UWARP_ETH_RX_TCP_LRO, features.rx),
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
    Ok(Inner { info, device, queues, reconnector, miscounts_chains: plan.shares_memory })
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

/// The MTU of a kernel interface in this thread's network namespace, after setting it to `new`, if given.
fn interface_mtu(interface: &str, new: Option<u16>) -> Result<i32, Error> {
    use std::os::fd::AsRawFd;
    let failed = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::ENODEV) => {
            Error::Configuration(format!("there is no network interface {interface} here: see ip link"))
        }
        _ => Error::System { what: format!("the MTU of interface {interface}"), reason: error.to_string() },
    };
    // /sys shows the namespace that the process started in: query by socket instead.
    let query = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
        .map_err(|error| failed(error.into()))?;
    if interface.len() >= libc::IFNAMSIZ {
        return Err(failed(std::io::Error::from_raw_os_error(libc::ENODEV)));
    }
    // SAFETY: a zeroed request is valid, and the name ends with a zero. The kernel reads and writes the request only.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        if let Some(new) = new {
            request.ifr_ifru.ifru_mtu = i32::from(new);
            if libc::ioctl(query.as_raw_fd(), libc::SIOCSIFMTU, &mut request) != 0 {
                return Err(failed(std::io::Error::last_os_error()));
            }
        }
        if libc::ioctl(query.as_raw_fd(), libc::SIOCGIFMTU, &mut request) != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(request.ifr_ifru.ifru_mtu)
    }
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
                return Err(failed(plan, "rte_eal_hotplug_add", result, &mark));
            }
        }
    }
    device.port = port_of(plan);
    if device.port.is_none() && plan.bus == "vdev" {
        unplug(plan);
    }
    Ok(device)
}

pub(super) fn add(plan: &Plan) -> c_int {
    let (Ok(bus), Ok(name), Ok(arguments)) =
        (CString::new(plan.bus), CString::new(plan.name.as_str()), CString::new(plan.arguments.as_str()))
    else {
        return -libc::EINVAL;
    };
    if plan.bus == "vdev" {
        // Hotplug has room for 127 octets of arguments in DPDK 24.11, and the path of a socket alone may have 107.
        // SAFETY: the strings are copied.
        return unsafe { sys::rte_vdev_init(name.as_ptr(), arguments.as_ptr()) };
    }
    // SAFETY: the strings are copied.
    unsafe { sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) }
}

pub(super) fn port_of(plan: &Plan) -> Option<u16> {
    let name = CString::new(plan.name.as_str()).ok()?;
    let mut port = 0;
    // SAFETY: looks the name up and fills the number in.
    (unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) } == 0).then_some(port)
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
        // Not under the bus's lock: the peer may be another port of this process.
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

/// The offloads that are switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    rx: u64,
    tx: u64,
    rss: bool,
}

pub(super) fn configure(
    port: u16,
    plan: &Plan,
    options: &PortOptions,
    limits: &sys::rte_eth_dev_info,
) -> Result<Features, Error> {
    let wanted = options.offloads;
    let pick = |on: bool, offload: u64| if on { offload } else { 0 };
    let rx = (pick(
        wanted.rx_checksum,
        sys::UWARP_ETH_RX_IPV4_CKSUM | sys::UWARP_ETH_RX_TCP_CKSUM | sys::UWARP_ETH_RX_UDP_CKSUM,
    ) | pick(wanted.lro, sys::UWARP_ETH_RX_TCP_LRO)
        | pick(options.queues > 1, sys::UWARP_ETH_RX_RSS_HASH)
        | sys::UWARP_ETH_RX_SCATTER)
        & limits.rx_offload_capa;
    // The tap driver has no hardware to leave work to. Since DPDK 23.11 it cuts the headers off a frame whose checksum it
    // computes, although the stack still holds the frame to send it again
    // (https://github.com/DPDK/dpdk/commit/81890dbb91d1a0cdeef097ab653fa00de5f230b7). And it refuses to cut segments of
    // full size, because it compares the whole frame with the MTU.
    let is_tap = plan.tells_mtu.is_some();
    let tx = (pick(wanted.tx_checksum && !is_tap, sys::UWARP_ETH_TX_IPV4_CKSUM | sys::UWARP_ETH_TX_TCP_CKSUM)
        | pick(wanted.tso && !is_tap, sys::UWARP_ETH_TX_TCP_TSO)
        | sys::UWARP_ETH_TX_MULTI_SEGS)
        & limits.tx_offload_capa;
    let hash = (sys::UWARP_ETH_RSS_TCP4 | sys::UWARP_ETH_RSS_TCP6) & limits.flow_type_rss_offloads;
    let rss = options.queues > 1 && hash != 0;

    let mut config = sys::rte_eth_conf::default();
    config.rxmode.offloads = rx;
    config.txmode.offloads = tx;
    // memif and some others do not know their limit, and carry whatever the buffers hold.
    let overhead = if limits.max_mtu != u16::MAX && limits.max_rx_pktlen > u32::from(limits.max_mtu) {
        limits.max_rx_pktlen - u32::from(limits.max_mtu)
    } else {
        18
    };
    let told = u32::from(options.mtu).min(u32::from(limits.max_mtu)).min(limits.max_rx_pktlen.saturating_sub(overhead));
    if told < u32::from(options.mtu) && plan.bus == "pci" {
        return Err(Error::Unsupported {
            device: plan.name.clone(),
            reason: format!("carries an MTU of {told} at most, and {} is asked for", options.mtu),
        });
    }
    config.rxmode.mtu = told;
    // SAFETY: the flags are a static word of the device.
    let flags = unsafe { limits.dev_flags.as_ref() }.copied().unwrap_or(0);
    if flags & sys::UWARP_DEV_INTR_LSC != 0 {
        // The driver then updates the link's state by itself, virtio-user accepts its next peer, and queries are cheap.
        config.intr_conf.set_lsc(1);
    }
    if plan.announcement.is_configured() {
        config.intr_conf.set_rxq(1);
    }
    let mut key = options.rss_key.clone();
    if rss {
        config.rxmode.mq_mode = sys::UWARP_MQ_RX_RSS;
        config.rx_adv_conf.rss_conf.rss_hf = hash;
        if let Some(key) = &mut key {
            if key.len() != usize::from(limits.hash_key_size) {
                return Err(Error::Configuration(format!(
                    "the hash key has {} octets, and {} has one of {}",
                    key.len(),
                    plan.name,
                    limits.hash_key_size
                )));
            }
            config.rx_adv_conf.rss_conf.rss_key = key.as_mut_ptr();
            config.rx_adv_conf.rss_conf.rss_key_len = limits.hash_key_size;
        }
    }
    let mark = Mark::now();
    // SAFETY: the port is stopped; the configuration, and the key that it points to, are copied.
    let result = unsafe { sys::rte_eth_dev_configure(port, options.queues, options.queues, &config) };
    if result != 0 {
        return Err(failed(plan, "rte_eth_dev_configure", result, &mark));
    }
    if let Some(interface) = &plan.tells_mtu {
        interface_mtu(interface, Some(options.mtu))?;
    }
    Ok(Features { rx, tx, rss })
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
        let rx_pool = Pool::take(options.rx_buffers, plan.data_room, node, memory)?;
        let tx_pool = Pool::take(options.tx_buffers, plan.data_room, node, memory)?;
        // SAFETY: the port is configured for this queue and stopped; the pool outlives the port.
        unsafe { set_up_queue(port, queue, plan, limits, node, features, rx_pool.raw()) }?;
        let alarm = Alarm::new(plan.announcement, queue).map(Arc::new).map_err(|error| Error::System {
            what: format!("an event descriptor for {}", plan.name),
            reason: error.to_string(),
        })?;
        let flag = plan.gated.then(|| Registered::new(port, Arc::clone(&alarm)));
        queues.push(QueueState { rx_pool, tx_pool, alarm, flag, taken: AtomicBool::new(false) });
    }
    Ok(queues)
}

/// Sets one queue pair up.
///
/// # Safety
/// The port is configured for this queue and stopped, and the pool outlives it.
pub(super) unsafe fn set_up_queue(
    port: u16,
    queue: u16,
    plan: &Plan,
    limits: &sys::rte_eth_dev_info,
    node: i32,
    features: Features,
    rx_pool: *mut sys::rte_mempool,
) -> Result<(), Error> {
    let (mut rx_count, mut tx_count) = (plan.rx_descriptors, plan.tx_descriptors);
    // SAFETY: both numbers are adjusted in place.
    unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(port, &mut rx_count, &mut tx_count) };
    let mut rx_config = limits.default_rxconf;
    rx_config.offloads = features.rx & limits.rx_queue_offload_capa;
    let mut tx_config = limits.default_txconf;
    tx_config.offloads = features.tx & limits.tx_queue_offload_capa;
    let mark = Mark::now();
    let node = node.unsigned_abs();
    // SAFETY: the caller's promise.
    let result = unsafe { sys::rte_eth_rx_queue_setup(port, queue, rx_count, node, &rx_config, rx_pool) };
    if result != 0 {
        return Err(failed(plan, "rte_eth_rx_queue_setup", result, &mark));
    }
    // SAFETY: as above.
    let result = unsafe { sys::rte_eth_tx_queue_setup(port, queue, tx_count, node, &tx_config) };
    if result != 0 {
        return Err(failed(plan, "rte_eth_tx_queue_setup", result, &mark));
    }
    Ok(())
}

/// Starts a configured port.
pub(super) fn start_once(port: u16) -> c_int {
    // SAFETY: the port is configured; a port that failed to start can be started again.
    unsafe { sys::rte_eth_dev_start(port) }
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
