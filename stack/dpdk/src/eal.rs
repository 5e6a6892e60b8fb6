//! The environment abstraction layer: started once a process, shared by all ports.

use serde::{Deserialize, Serialize};

use crate::Error;

/// How DPDK is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct EalConfig {
    /// Use hugepages, which have to be reserved. Without them DPDK works on ordinary memory, at no loss of latency on virtual devices.
    pub hugepages: bool,
    /// Memory for packets, rings and drivers, in MiB.
    pub memory_mib: u32,
    /// The prefix of DPDK's run-time files, one per process. Default `uwarp-<pid>`.
    pub file_prefix: Option<String>,
    /// PCI addresses that may be used. With none, the PCI bus is left alone.
    pub pci: Vec<String>,
    /// Pass DPDK's informational messages on to the log too, not only warnings and errors.
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

/// DPDK, running in this process. A handle: clones are the same.
#[derive(Clone, Debug)]
pub struct Eal {
    _private: (),
}

impl Eal {
    /// Starts DPDK, or gives the handle again if it runs with the same settings already.
    ///
    /// The calling thread's affinity is left alone. SIGPIPE is set to be ignored where it has its default action, since
    /// a peer that dies in a control exchange would end this process otherwise.
    ///
    /// # Errors
    /// [`Error::AlreadyInitialised`] if it runs with other settings, otherwise what kept DPDK from starting.
    pub fn init(config: &EalConfig) -> Result<Eal, Error> {
        let _ = config;
        todo!()
    }

    /// The handle, if DPDK runs in this process.
    pub fn get() -> Option<Eal> {
        todo!()
    }

    /// The network drivers that are loaded, by DPDK's names (`net_memif`).
    pub fn drivers(&self) -> Vec<String> {
        list_drivers()
    }

    /// Makes the calling thread known to DPDK until the guard is dropped: it then has a cache of its own in each buffer
    /// pool, which makes taking and giving back buffers three times faster. A second registration of a thread is free of charge.
    ///
    /// # Errors
    /// [`Error::NoThreadSlot`] if 127 threads are registered.
    pub fn register_thread(&self) -> Result<ThreadRegistration, Error> {
        todo!()
    }
}

/// Keeps the thread known to DPDK that made it. Cannot leave that thread.
#[derive(Debug)]
#[must_use]
pub struct ThreadRegistration {
    _not_send: std::marker::PhantomData<*const ()>,
}

/// The network drivers that this machine's DPDK has, by DPDK's names, without starting DPDK.
pub fn list_drivers() -> Vec<String> {
    todo!()
}
