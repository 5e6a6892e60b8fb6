//! What the tests over real devices share: networks between two processes, the second process, a connection under load, and a
//! peer that keeps no rules.
//!
//! Each test is a program of its own, since DPDK is initialised once in a process. Its peer is the same program, started again
//! with what it has to do in an environment variable.
#![forbid(unsafe_code)]

pub mod confined;
pub mod disk;
pub mod endpoint;
pub mod load;
pub mod network;
pub mod peer;
pub mod scripted;

use std::time::Duration;

/// Far beyond what a busy machine needs: only a defect makes a test wait for it.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Whether the run is the long one (`UWARP_LONG=1`), which is not for every change.
pub fn is_long() -> bool {
    std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Chooses between the normal run's number and the long one's.
pub fn count(normal: usize, long: usize) -> usize {
    if is_long() { long } else { normal }
}

/// KiB of memory that this process has resident.
pub fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("the kernel tells about processes");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line about resident memory");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number of KiB")
}
