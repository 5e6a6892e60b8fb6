//! Collects facts about the machine. Nothing here starts DPDK or changes anything.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Version of uwarp.
    pub version: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The implementation of CRC32C and copying that is selected for this CPU.
    pub crc_kernel: String,
    /// Hugepages by size.
    pub hugepages: Vec<Hugepages>,
    /// Octets that may be locked in memory; `None` without a limit.
    pub locked_memory_limit: Option<u64>,
    /// DPDK's network drivers.
    pub drivers: Vec<String>,
    /// Kinds of device.
    pub devices: Vec<Device>,
    /// Network devices on the PCI bus.
    pub nics: Vec<Nic>,
    /// Limits of a context with a default configuration.
    pub limits: BTreeMap<String, u64>,
    /// Monitor sockets of running contexts.
    pub processes: Vec<String>,
}

/// Hugepages of one size.
#[derive(Debug, Serialize)]
pub struct Hugepages {
    /// Octets of a page.
    pub size: u64,
    /// Pages reserved.
    pub total: u64,
    /// Pages free.
    pub free: u64,
}

/// One kind of device.
#[derive(Debug, Serialize)]
pub struct Device {
    /// Its name on the command line.
    pub kind: String,
    /// Its DPDK driver or drivers.
    pub driver: String,
    /// What is missing; nothing if it works.
    pub missing: Vec<String>,
}

/// One NIC.
#[derive(Debug, Serialize)]
pub struct Nic {
    /// PCI address.
    pub address: String,
    /// The kernel's driver that has it.
    pub driver: Option<String>,
    /// The kernel's interfaces on it.
    pub interfaces: Vec<String>,
}

impl Machine {
    /// Looks around.
    pub fn look() -> Self {
        let drivers = uwarp_dpdk::list_drivers();
        let hugepages = hugepages();
        let nics = nics();
        let devices = devices(&drivers, &nics, &hugepages);
        let limits = uwarp::config::Limits::default();
        let buffers = uwarp::config::Buffers::default();
        Self {
            version: uwarp::VERSION.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            crc_kernel: uwarp_memory::kernels::selected().to_owned(),
            hugepages,
            locked_memory_limit: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
            drivers,
            devices,
            nics,
            limits: [
                ("queue pairs", limits.queue_pairs as u64),
                ("completion queues", limits.completion_queues as u64),
                ("regions", limits.regions as u64),
                ("elements of a work queue", limits.queue_depth as u64),
                ("elements of a completion queue", limits.completion_depth as u64),
                ("waiting connection requests", limits.backlog as u64),
                ("receive buffers of an engine", u64::from(buffers.receive)),
                ("transmit buffers of an engine", u64::from(buffers.transmit)),
            ]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
            processes: processes(),
        }
    }
}

fn devices(drivers: &[String], nics: &[Nic], hugepages: &[Hugepages]) -> Vec<Device> {
    let root = rustix::process::geteuid().is_root();
    let missing_drivers = |names: &[&str]| -> Vec<String> {
        names
            .iter()
            .filter(|name| !drivers.iter().any(|driver| driver == *name))
            .map(|name| format!("DPDK's driver {name}: install it (Debian: libdpdk-dev)"))
            .collect()
    };
    let tool = |name: &str, package: &str| {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
        (!found).then(|| format!("the program '{name}': install {package}"))
    };
    let raw_sockets = (!root).then(|| {
        "the privilege CAP_NET_RAW: run as root, or in a user namespace (uwarp-perf pair makes one)".to_owned()
    });
    let mut af_packet = missing_drivers(&["net_af_packet"]);
    af_packet.extend(raw_sockets);
    af_packet.extend(tool("ip", "iproute2"));
    let mut tap = missing_drivers(&["net_tap"]);
    if !Path::new("/dev/net/tun").exists() {
        tap.push("/dev/net/tun: load the kernel module tun".to_owned());
    }
    if !root {
        tap.push("the privilege CAP_NET_ADMIN: run as root, or in a user namespace".to_owned());
    }
    let nic_drivers =
        if uwarp_dpdk::loads_drivers() { "by the device".to_owned() } else { uwarp_dpdk::NIC_DRIVERS.join(", ") };
    let mut pci = Vec::new();
    if nics.is_empty() {
        pci.push("a PCI network device: there is none".to_owned());
    } else if !nics.iter().any(Nic::is_free) {
        pci.push(
            "a NIC bound to vfio-pci, or one whose driver shares it with DPDK (mlx5_core): bind one with dpdk-devbind.py"
                .to_owned(),
        );
    }
    if hugepages.iter().all(|pool| pool.free == 0) {
        pci.push("free hugepages, which NIC drivers need: reserve some with scripts/hugepages".to_owned());
    }
    let device = |kind: &str, driver: &str, missing: Vec<String>| Device {
        kind: kind.to_owned(),
        driver: driver.to_owned(),
        missing,
    };
    vec![
        device("virtio", "net_virtio_user, net_vhost", missing_drivers(&["net_virtio_user", "net_vhost"])),
        device("memif", "net_memif", missing_drivers(&["net_memif"])),
        device("af_packet", "net_af_packet", af_packet),
        device("tap", "net_tap", tap),
        device("pci", &nic_drivers, pci),
    ]
}

fn hugepages() -> Vec<Hugepages> {
    let mut found: Vec<Hugepages> = entries("/sys/kernel/mm/hugepages")
        .into_iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let folder = Path::new("/sys/kernel/mm/hugepages").join(&name);
            let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
            Some(Hugepages { size: kib << 10, total: number("nr_hugepages")?, free: number("free_hugepages")? })
        })
        .collect();
    found.sort_by_key(|pool| pool.size);
    found
}

impl Nic {
    /// Whether DPDK could use it as it is.
    fn is_free(&self) -> bool {
        matches!(self.driver.as_deref(), Some("vfio-pci" | "uio_pci_generic" | "igb_uio" | "mlx5_core" | "mlx4_core"))
    }
}

fn nics() -> Vec<Nic> {
    const BUS: &str = "/sys/bus/pci/devices";
    let mut found: Vec<Nic> = entries(BUS)
        .into_iter()
        .filter_map(|address| {
            let folder = Path::new(BUS).join(&address);
            let class = fs::read_to_string(folder.join("class")).ok()?;
            // PCI class 02 is a network controller.
            if !class.starts_with("0x02") {
                return None;
            }
            let driver = fs::read_link(folder.join("driver"))
                .ok()
                .and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
            let interfaces = entries(folder.join("net"));
            Some(Nic { address, driver, interfaces })
        })
        .collect();
    found.sort_by(|one, other| one.address.cmp(&other.address));
    found
}

/// Names in a directory; none if it cannot be read.
fn entries(folder: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Processes whose monitor sockets accept a connection: those are running.
fn processes() -> Vec<String> {
    uwarp::monitor::all_sockets()
        .into_iter()
        .filter(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
        .map(|path| path.display().to_string())
        .collect()
}
