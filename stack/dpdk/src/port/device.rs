//! A device on its bus: how it is added, configured, started, closed and removed.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Mutex;

use dpdk_sys as sys;

use super::description::PortOptions;
use crate::alarm::Watch;
use crate::gate;
use crate::lock::lock;
use crate::locked;
use crate::log::{Mark, error_text, last_error};
use crate::plan::Plan;
use crate::{Error, ring, signal};

/// A device on its bus. It is closed and unplugged once.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) plan: Plan,
    pub(super) port: Option<u16>,
    pub(super) ring: Option<ring::End>,
    /// What the driver reports.
    pub(super) watch: Option<Watch>,
}

/// DPDK's device lists do not support two threads at a time.
static BUS: Mutex<()> = Mutex::new(());

pub(super) fn on_bus<T>(work: impl FnOnce() -> T) -> T {
    let _bus = lock(&BUS);
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
                    if plan.gated || plan.virtio {
                        // The interrupt thread may be about to notice that the peer is gone. A virtio-user driver
                        // leaves its descriptor registered, and closes it, if that thread is in its handler.
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

/// Has DPDK accept connections to a vhost socket at once. Before version 24.11 the thread that does so sees a new
/// socket only when it wakes next, up to a second later, and the first peer waits as long.
pub(super) fn wake_vhost(socket: &Path) {
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
    unsafe { sys::uwarp_close_port(port) };
    if plan.bus == "vdev" {
        unplug(plan);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn unplug(plan: &Plan) {
    if let (Ok(bus), Ok(name)) = (CString::new(plan.bus), CString::new(plan.name.as_str())) {
        // SAFETY: the strings are read during the call.
        unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
    }
}

/// A call's failure: the device, the call, the result and DPDK's log.
pub(super) fn failed(plan: &Plan, call: &'static str, result: c_int, mark: &Mark) -> Error {
    let number = if result < -1 { result } else { last_error() };
    let text = if number == 0 { "the driver gives no reason".to_owned() } else { error_text(number) };
    let reason = mark.reason(&text);
    if let Some(limit) = locked::explanation() {
        return Error::Device { device: plan.name.clone(), call, reason: format!("{reason}: {limit}") };
    }
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

/// The MTU of a kernel interface in this thread's network namespace, after setting it to `new`, if given.
pub(super) fn interface_mtu(interface: &str, new: Option<u16>) -> Result<i32, Error> {
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

/// The offloads that are switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(super) rx: u64,
    pub(super) tx: u64,
    pub(super) rss: bool,
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
    ) | pick(options.queues > 1, sys::UWARP_ETH_RX_RSS_HASH)
        | sys::UWARP_ETH_RX_SCATTER)
        & limits.rx_offload_capa;
    // The tap driver has no hardware to leave work to. Since DPDK 23.11 it cuts the headers off a frame whose checksum
    // it computes, although the stack still holds the frame to send it again
    // (https://github.com/DPDK/dpdk/commit/81890dbb91d1a0cdeef097ab653fa00de5f230b7). And it refuses to cut segments of
    // full size, because it compares the whole frame with the MTU.
    let is_tap = plan.tells_mtu.is_some();
    let tx = (pick(wanted.tx_checksum && !is_tap, sys::UWARP_ETH_TX_IPV4_CKSUM | sys::UWARP_ETH_TX_TCP_CKSUM)
        | pick(plan.cuts, sys::UWARP_ETH_TX_TCP_TSO)
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

#[cfg(test)]
mod tests {
    use crate::{DeviceConfig, Eal, EalConfig, Port, PortOptions};
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    static CLOSED: AtomicU32 = AtomicU32::new(0);
    static CLOSED_AGAIN: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn look(descriptor: c_int) -> c_int {
        // SAFETY: asks for a flag; no pointers.
        let is_open = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } != -1;
        let counter = if is_open { &CLOSED } else { &CLOSED_AGAIN };
        counter.fetch_add(1, Ordering::Relaxed);
        0
    }

    /// The driver of virtio-user closes eventfds twice. Another thread may have their numbers by then.
    #[test]
    fn no_descriptor_is_closed_twice() {
        let eal = Eal::init(&EalConfig::default()).unwrap();
        let directory = tempfile::Builder::new().prefix("uw").tempdir().unwrap();
        let socket = directory.path().join("v");
        let open = |device| Port::open(&eal, &device, &PortOptions::default()).unwrap();
        let host = open(DeviceConfig::Vhost { socket: socket.clone(), client: false, tso: false });
        let guest =
            open(DeviceConfig::VirtioUser { socket, server: false, packed: false, queue_size: None, mac: None });
        guest.wait_link_up(Duration::from_secs(30)).unwrap();
        // SAFETY: the function is static.
        unsafe { dpdk_sys::uwarp_close_through(Some(look)) };
        drop(guest);
        drop(host);
        assert!(CLOSED.load(Ordering::Relaxed) > 0);
        assert_eq!(CLOSED_AGAIN.load(Ordering::Relaxed), 0);
    }
}
