//! Errors, each with its cause and its remedy in one sentence.

use std::path::PathBuf;
use std::time::Duration;

/// An error of the device layer. Its text says what happened and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process already runs DPDK with other settings.
    #[error(
        "DPDK is already running in this process with other settings ({running}): use one EAL configuration per process"
    )]
    AlreadyInitialised {
        /// The arguments that it was started with.
        running: String,
    },
    /// `rte_eal_init` refused.
    #[error("DPDK did not start: {reason}")]
    Initialisation {
        /// DPDK's message, and the remedy where it is known.
        reason: String,
    },
    /// Hugepages were requested but none are free.
    #[error("no free hugepages: run without them (hugepages = false), or reserve some with scripts/hugepages")]
    NoHugepages,
    /// The operating system refused for lack of a privilege.
    #[error("no permission for {what}: {cure}")]
    Permission {
        /// What was refused.
        what: String,
        /// How to be allowed it.
        cure: String,
    },
    /// No driver serves the device.
    #[error(
        "DPDK has no driver {driver} here, but {}: {}, or choose another device",
        available.join(", "),
        if crate::loads_drivers() { package(driver) } else { REBUILD.to_owned() }
    )]
    NoSuchDriver {
        /// The driver that is missing.
        driver: String,
        /// The drivers found.
        available: Vec<String>,
    },
    /// The socket of the peer does not exist, or nobody listens on it.
    #[error("nobody listens on {} after {waited:?}: start the peer that serves this socket first, or wait longer", socket.display())]
    PeerAbsent {
        /// The socket's path.
        socket: PathBuf,
        /// How long it was tried.
        waited: Duration,
    },
    /// The link did not come up in time.
    #[error(
        "the link of {device} is not up after {waited:?}: is the peer running, with the same kind of device and the same socket?"
    )]
    LinkDown {
        /// The device's name.
        device: String,
        /// How long it was waited.
        waited: Duration,
    },
    /// The device cannot do what its configuration requests.
    #[error("{device}: {reason}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What it cannot do, and what it can.
        reason: String,
    },
    /// DPDK refused a call on a device.
    #[error("{device}: {call} failed: {reason}")]
    Device {
        /// The device's name.
        device: String,
        /// The call.
        call: &'static str,
        /// The system's reason, and the driver's message.
        reason: String,
    },
    /// There is not enough packet memory.
    #[error("not enough DPDK memory for {what}: raise memory-mib (now {memory_mib} MiB) or use fewer buffers")]
    OutOfMemory {
        /// The purpose of the memory.
        what: String,
        /// The memory that DPDK has, in MiB.
        memory_mib: u32,
    },
    /// An invalid value in the configuration.
    #[error("{0}")]
    Configuration(String),
    /// A call of the operating system failed.
    #[error("{what}: {reason}")]
    System {
        /// The attempted operation.
        what: String,
        /// The system's reason.
        reason: String,
    },
    /// All thread slots of DPDK are taken.
    #[error(
        "no free DPDK thread slot: at most 127 threads can be registered at a time: use fewer engines or contexts in a process"
    )]
    NoThreadSlot,
}

/// What to do for a driver that is not in a program with DPDK inside.
pub(crate) const REBUILD: &str =
    "build it with UWARP_DPDK=shared, which takes the installed DPDK and all of its drivers";

/// How to get a driver. The version of DPDK's interface follows in the name of Debian's package.
fn package(driver: &str) -> String {
    // The package of virtio has the driver of virtio-user.
    let name = driver.strip_suffix("_user").unwrap_or(driver);
    format!("install the package that `apt-cache search librte-{}` finds", name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_in_a_package() {
        for (driver, name) in [
            ("net_memif", "librte-net-memif"),
            ("net_virtio_user", "librte-net-virtio"),
            ("net_af_packet", "librte-net-af-packet"),
        ] {
            let text = package(driver);
            assert!(text.contains(&format!("`apt-cache search {name}`")), "{text}");
        }
    }

    #[test]
    fn the_script_that_cures_missing_hugepages_is_there() {
        let text = Error::NoHugepages.to_string();
        let script = text.split_whitespace().last().expect("the cure");
        let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(script);
        assert!(script.is_file(), "{text}: but there is no {}", script.display());
    }
}
