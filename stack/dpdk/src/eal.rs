//! The environment abstraction layer (EAL): started once per process, shared by all ports.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use dpdk_sys::{self as sys, fast, release};
use serde::{Deserialize, Serialize};

use crate::lock::lock;
use crate::log::{error_text, last_error};
pub use crate::pool::UnusedPool;
use crate::{Error, gate, locked, log, maintenance, pci, pool, signal};

/// How DPDK is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct EalConfig {
    /// Use hugepages, which must be reserved. Without them DPDK uses ordinary memory, which costs no latency on virtual
    /// devices.
    pub hugepages: bool,
    /// Memory for packets, rings and drivers, in MiB.
    pub memory_mib: u32,
    /// The prefix of DPDK's run-time files, unique per process. Default `uwarp-<pid>`.
    pub file_prefix: Option<String>,
    /// PCI addresses that may be used, each with optional driver arguments after a comma. If empty, the PCI bus is not
    /// probed.
    pub pci: Vec<String>,
    /// Log DPDK's informational messages too, not only warnings and errors.
    pub verbose: bool,
    /// Further arguments for DPDK, verbatim.
    pub extra: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> Self {
        EalConfig {
            hugepages: false,
            memory_mib: 256,
            file_prefix: None,
            pci: Vec::new(),
            verbose: false,
            extra: Vec::new(),
        }
    }
}

impl EalConfig {
    /// The arguments for `rte_eal_init`, the program's name first.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["uwarp".to_owned()];
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|&word| word.to_owned()));
        // A vhost or memif peer maps our memory, so it must be in files, and in few of them. It is without hugepages.
        if self.hugepages || release::SINGLE_FILES_WITHOUT_HUGEPAGES {
            add(&["--single-file-segments"]);
        }
        if self.hugepages {
            // This needs no mounted hugetlbfs, and leaves no files.
            add(&["--in-memory"]);
        } else {
            // Without a shared configuration there is no directory for run-time files to leave behind.
            add(&["--no-huge", "--no-shconf"]);
        }
        add(&["-m", &self.memory_mib.to_string()]);
        add(&["--no-telemetry"]);
        if self.pci.is_empty() {
            // Use virtual addresses in descriptors also as root, where EAL would choose physical ones. With a PCI
            // device EAL chooses: uio has no IOMMU, and wants physical ones.
            add(&["--no-pci", "--iova-mode=va"]);
        }
        for address in &self.pci {
            add(&["-a", address]);
        }
        let prefix = self.file_prefix.clone().unwrap_or_else(|| format!("uwarp-{}", std::process::id()));
        add(&["--file-prefix", &prefix]);
        // One lcore for EAL's own thread, on all the CPUs that the process may use.
        add(&[&format!("--lcores=0@({})", cpus())]);
        arguments.extend(self.extra.iter().cloned());
        arguments
    }
}

/// The CPUs that this thread may run on, in EAL's notation.
fn cpus() -> String {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let numbers: Vec<String> = (0..sys::RTE_MAX_LCORE as usize)
        .filter(|&cpu| allowed.as_ref().is_some_and(|set| set.is_set(cpu)))
        .map(|cpu| cpu.to_string())
        .collect();
    if numbers.is_empty() { "0".to_owned() } else { numbers.join(",") }
}

#[derive(Debug)]
struct Running {
    config: EalConfig,
    arguments: String,
    gate: Result<(), String>,
}

/// DPDK, running in this process. This is a handle: clones are the same.
#[derive(Clone, Debug)]
pub struct Eal {
    running: Arc<Running>,
}

/// The result of starting EAL. There is only one attempt: a second `rte_eal_init` is refused.
static STARTED: Mutex<Option<Result<Eal, Error>>> = Mutex::new(None);

impl Eal {
    /// Starts DPDK, or returns the existing handle if it already runs with the same settings.
    ///
    /// The calling thread's affinity and the process's signals are left alone: EAL starts on a thread of its own, and
    /// no thread of this crate or of DPDK takes a signal. A peer that dies during a control exchange raises no SIGPIPE.
    ///
    /// # Errors
    /// [`Error::AlreadyInitialised`] if it runs with other settings; otherwise the reason why DPDK cannot start.
    pub fn init(config: &EalConfig) -> Result<Eal, Error> {
        let mut started = lock(&STARTED);
        match &*started {
            Some(Ok(eal)) if eal.running.config == *config => return Ok(eal.clone()),
            Some(Ok(eal)) => return Err(Error::AlreadyInitialised { running: eal.running.arguments.clone() }),
            Some(Err(error)) => return Err(error.clone()),
            None => {}
        }
        // Errors that can be found without DPDK must not use up the one attempt.
        check(config)?;
        let result = start(config);
        *started = Some(result.clone());
        result
    }

    /// The handle, if DPDK runs in this process.
    pub fn get() -> Option<Eal> {
        lock(&STARTED).as_ref()?.as_ref().ok().cloned()
    }

    /// The settings that DPDK runs with.
    pub fn config(&self) -> &EalConfig {
        &self.running.config
    }

    /// The network drivers that are loaded, by DPDK's names (`net_memif`).
    pub fn drivers(&self) -> Vec<String> {
        list_drivers()
    }

    /// Registers the calling thread with DPDK until the guard is dropped. The thread then has a cache of its own in
    /// each buffer pool, which makes taking and returning buffers three times faster. Registering a thread twice costs
    /// nothing.
    ///
    /// # Errors
    /// [`Error::NoThreadSlot`] if 127 threads are registered.
    pub fn register_thread(&self) -> Result<ThreadRegistration, Error> {
        let depth = REGISTRATIONS.get();
        if depth == 0 {
            OWN_LCORE.set(sys::UWARP_LCORE_ANY);
            if fast::lcore_id() == sys::UWARP_LCORE_ANY {
                // SAFETY: EAL runs; the thread is not registered.
                if unsafe { sys::rte_thread_register() } != 0 {
                    return Err(Error::NoThreadSlot);
                }
                fast::lcore_changed();
                OWN_LCORE.set(fast::lcore_id());
            }
        }
        REGISTRATIONS.set(depth + 1);
        Ok(ThreadRegistration { detached: None, _not_send: PhantomData })
    }

    /// The buffer pools that closed ports left behind. Buffers missing from one are still referenced.
    pub fn unused_pools(&self) -> Vec<UnusedPool> {
        pool::unused()
    }

    /// Whether bursts can be gated against EAL's interrupt thread, or why not. Without the gate, memif would crash when
    /// its peer dies.
    pub(crate) fn gate(&self) -> Result<(), &str> {
        self.running.gate.as_ref().copied().map_err(String::as_str)
    }
}

/// DPDK's version, `DPDK 22.11.11`.
pub fn version() -> String {
    // SAFETY: returns a static string.
    unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
}

thread_local! {
    static REGISTRATIONS: Cell<u32> = const { Cell::new(0) };
    /// The lcore that a registration gave this thread. While it uses another thread's [`Caches`] it has that one's.
    static OWN_LCORE: Cell<u32> = const { Cell::new(sys::UWARP_LCORE_ANY) };
}

/// Keeps the thread that created it registered with DPDK. It cannot leave that thread.
#[derive(Debug)]
#[must_use]
pub struct ThreadRegistration {
    detached: Option<Detached>,
    _not_send: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Detached {
    lcore: u32,
    /// Held by the [`Caches`] too.
    alive: Arc<()>,
}

impl ThreadRegistration {
    /// Detaches the thread's buffer caches from the thread: from now on whoever has the returned value uses them, and
    /// this thread takes buffers without a cache otherwise. `None` if they are detached already, or the thread has
    /// none.
    pub fn detach_caches(&mut self) -> Option<Caches> {
        let lcore = fast::lcore_id();
        let is_own = lcore != sys::UWARP_LCORE_ANY && lcore == OWN_LCORE.get();
        if self.detached.is_some() || REGISTRATIONS.get() != 1 || !is_own {
            return None;
        }
        let alive = Arc::new(());
        self.detached = Some(Detached { lcore, alive: Arc::clone(&alive) });
        // SAFETY: the thread has no lcore from here on.
        unsafe { fast::set_lcore(sys::UWARP_LCORE_ANY) };
        Some(Caches { lcore, _alive: alive })
    }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        if let Some(Detached { lcore, alive }) = self.detached.take() {
            if Arc::strong_count(&alive) > 1 {
                // Somebody may use the caches for ever: the thread's slot is lost.
                REGISTRATIONS.set(REGISTRATIONS.get() - 1);
                return;
            }
            // SAFETY: the `Caches` are gone, and with them all other users of this thread's lcore.
            unsafe { fast::set_lcore(lcore) };
        }
        let depth = REGISTRATIONS.get() - 1;
        REGISTRATIONS.set(depth);
        if depth > 0 {
            return;
        }
        // Otherwise it was not registered here, or has the lcore of others now; then its slot is lost.
        let own = OWN_LCORE.replace(sys::UWARP_LCORE_ANY);
        if own != sys::UWARP_LCORE_ANY && own == fast::lcore_id() {
            pool::flush_caches();
            // SAFETY: this thread was registered by `register_thread`, and nothing here uses its slot any more.
            unsafe { sys::rte_thread_unregister() };
            fast::lcore_changed();
        }
    }
}

/// The buffer caches of a registered thread, for one thread at a time. DPDK finds them by a thread-local number, which
/// is set while they are in use.
#[derive(Debug)]
pub struct Caches {
    lcore: u32,
    _alive: Arc<()>,
}

impl Caches {
    /// Runs `work`, which uses these caches, on the calling thread.
    #[inline]
    pub fn with<T>(&mut self, work: impl FnOnce() -> T) -> T {
        // SAFETY: there is one value for an lcore, it is borrowed exclusively, and the registered thread has no lcore
        // itself. The calling thread's own one nobody else gets meanwhile: an lcore belongs to a thread or to a
        // `Caches`.
        unsafe { fast::with_lcore(self.lcore, work) }
    }
}

/// Runs `work`, during which the calling thread is not cancelled (pthread_cancel(3)): drivers make system calls that
/// are cancellation points, and a thread that ended in one would leave the queue as it is.
#[inline]
pub fn without_cancellation<T>(work: impl FnOnce() -> T) -> T {
    struct Former(bool);
    impl Drop for Former {
        #[inline(always)]
        fn drop(&mut self) {
            if self.0 {
                // SAFETY: a call that changes the calling thread's own state.
                unsafe { sys::uwarp_cancellable(1) };
            }
        }
    }
    // SAFETY: as above.
    let _former = Former(unsafe { sys::uwarp_cancellable(0) } != 0);
    work()
}

/// Whether EAL loads the drivers of the installed DPDK. If not, DPDK is in the program, with drivers of virtual devices
/// and of few NICs ([`NIC_DRIVERS`](crate::NIC_DRIVERS)).
pub const fn loads_drivers() -> bool {
    sys::DRIVERS.is_empty()
}

/// The directory of DPDK's drivers, if they are not in the program: EAL loads every plug-in in it.
pub fn plugin_directory() -> Option<&'static Path> {
    loads_drivers().then(|| Path::new(sys::RTE_EAL_PMD_PATH.to_str().unwrap_or_default()))
}

/// The network drivers in this program or of the installed DPDK, by DPDK's names, without starting DPDK.
pub fn list_drivers() -> Vec<String> {
    let mut drivers = BTreeSet::new();
    let mut add = |name: &str| {
        if name.starts_with("net_") {
            drivers.insert(name.to_owned());
        }
        // It contains both the PCI driver and virtio-user.
        if name == "net_virtio" {
            drivers.insert("net_virtio_user".to_owned());
        }
    };
    sys::DRIVERS.iter().for_each(|name| add(name));
    for entry in plugin_directory().and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let library =
            file.to_str().and_then(|file| file.strip_prefix("librte_")).and_then(|file| file.split_once(".so"));
        if let Some((name, _)) = library {
            add(name);
        }
    }
    drivers.into_iter().collect()
}

fn check(config: &EalConfig) -> Result<(), Error> {
    for device in &config.pci {
        pci::check(device.split(',').next().unwrap_or(device), config.hugepages)?;
    }
    if config.memory_mib < 32 {
        return Err(Error::Configuration(format!("memory-mib is {}: DPDK needs at least 32", config.memory_mib)));
    }
    check_extra(&config.extra)?;
    if config.hugepages && free_hugepages() == 0 {
        return Err(Error::NoHugepages);
    }
    Ok(())
}

/// Whether EAL knows the arguments. DPDK 25.11 ends the process over one that it does not know.
fn check_extra(words: &[String]) -> Result<(), Error> {
    let refuse = |word: &str, reason: &str| {
        Err(Error::Configuration(format!("eal.extra has '{word}', {reason}: see the EAL parameters of DPDK's manual")))
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        // A short one may have its value behind it: -m64.
        let is_joined = |known: &&str| !known.starts_with("--") && !name.starts_with("--") && name.starts_with(*known);
        if release::ARGUMENTS_ALONE.contains(&name) {
            continue;
        }
        if release::ARGUMENTS_WITH_VALUE.contains(&name) {
            if value.is_none() && words.next().is_none() {
                return refuse(word, "whose value is missing");
            }
        } else if !release::ARGUMENTS_WITH_VALUE.iter().any(is_joined) {
            return refuse(word, "which is none of EAL's arguments");
        }
    }
    Ok(())
}

/// Free hugepages of all sizes.
pub fn free_hugepages() -> u64 {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    sizes
        .filter_map(|size| std::fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse::<u64>().ok())
        .sum()
}

fn start(config: &EalConfig) -> Result<Eal, Error> {
    let words = config.arguments();
    let arguments = words[1..].join(" ");
    let (report, reported) = mpsc::sync_channel(1);
    let verbose = config.verbose;
    let body = move || {
        let result = start_here(&words, verbose);
        let running = result.is_ok();
        if report.send(result).is_ok() && running {
            maintenance::run();
        }
    };
    signal::with_signals_blocked(|| std::thread::Builder::new().name("uwarp-eal".to_owned()).spawn(body))
        .map_err(|error| Error::System { what: "no thread for DPDK".to_owned(), reason: error.to_string() })?;
    let gate = match reported.recv() {
        Ok(Ok(gate)) => gate,
        Ok(Err(reason)) => return Err(explain(config, reason)),
        Err(_) => return Err(Error::Initialisation { reason: "its thread ended".to_owned() }),
    };
    Ok(Eal { running: Arc::new(Running { config: config.clone(), arguments, gate }) })
}

/// Starts EAL on this thread, which becomes lcore 0. The inner result is the gate's.
fn start_here(words: &[String], verbose: bool) -> Result<Result<(), String>, String> {
    log::redirect(verbose);
    let mark = log::Mark::now();
    let mut owned = Vec::new();
    for word in words {
        owned.push(CString::new(word.as_str()).map_err(|_| "an argument contains a zero octet".to_owned())?.into_raw());
    }
    // EAL keeps pointers to its arguments and reorders them, so they are never freed.
    let arguments: &'static mut [*mut c_char] = Vec::leak(owned);
    let count = i32::try_from(arguments.len()).map_err(|_| "too many arguments".to_owned())?;
    let others = signal::memory_files();
    // SAFETY: the arguments are leaked, so they stay valid.
    if unsafe { sys::rte_eal_init(count, arguments.as_mut_ptr()) } < 0 {
        return Err(mark.reason(&error_text(last_error())));
    }
    signal::keep_memory_from_children(&others);
    // EAL creates a directory for run-time files even if there are none. Remove it if it is empty. SAFETY: returns a
    // static string.
    let directory = unsafe { CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
    let _ = std::fs::remove_dir(Path::new(directory.to_str().unwrap_or_default()));
    Ok(gate::install())
}

fn explain(config: &EalConfig, reason: String) -> Error {
    if let Some(limit) = locked::explanation() {
        return Error::Initialisation { reason: format!("{reason}: {limit}") };
    }
    if reason.contains("Permission denied") || reason.contains("not permitted") {
        return Error::Permission {
            what: format!("DPDK to start ({reason})"),
            cure: "run without hugepages and PCI devices, or as root".to_owned(),
        };
    }
    if reason.contains("annot allocate memory") || reason.contains("mmap") {
        return Error::OutOfMemory { what: format!("DPDK to start ({reason})"), memory_mib: config.memory_mib };
    }
    Error::Initialisation { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dpdk_says_of_its_start_becomes_a_cause_and_a_cure() {
        let config = EalConfig::default();
        for denied in ["cannot open /dev/vfio/vfio: Permission denied", "mlock: Operation not permitted"] {
            let error = explain(&config, denied.to_owned());
            assert!(matches!(error, Error::Permission { .. }), "{error:?}");
            let expected = format!(
                "no permission for DPDK to start ({denied}): run without hugepages and PCI devices, or as root"
            );
            assert_eq!(error.to_string(), expected);
        }
        let error = explain(&config, "Cannot allocate memory".to_owned());
        assert!(matches!(error, Error::OutOfMemory { memory_mib: 256, .. }), "{error:?}");
        let error = explain(&config, "invalid option".to_owned());
        assert_eq!(error.to_string(), "DPDK did not start: invalid option");
    }

    #[test]
    fn arguments_that_eal_would_not_know_are_refused_before_it_sees_them() {
        let check = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            check_extra(&words).map_err(|error| error.to_string())
        };
        let fine = [
            "--log-level=lib.eal:debug",
            "-m",
            "64",
            "-m64",
            "--vdev",
            "net_null0,copy=1",
            "--no-hpet",
            "--syslog=user",
        ];
        assert_eq!(check(&fine), Ok(()));
        for (words, expected) in [
            (&["--no-such-option"][..], "'--no-such-option', which is none of EAL's arguments"),
            // They would print something and end the program.
            (&["--no-pci", "--help"], "'--help', which is none"),
            (&["--version"], "'--version', which is none"),
            (&["stray"], "'stray', which is none"),
            (&["--vdev"], "'--vdev', whose value is missing"),
        ] {
            let error = check(words).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_build_has_the_drivers_of_every_virtual_device() {
        let drivers = list_drivers();
        for driver in ["net_memif", "net_vhost", "net_virtio_user", "net_af_packet", "net_tap"] {
            assert!(drivers.iter().any(|name| name == driver), "{driver} is not in {drivers:?}");
        }
        assert_eq!(drivers.iter().any(|name| name == "net_ixgbe"), loads_drivers(), "{drivers:?}");
    }
}
