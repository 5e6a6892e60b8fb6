//! Shared code of the tests over real devices: networks between two processes, the second process, a connection under
//! load, and a peer that violates the rules.
//!
//! Each test is a program of its own, since DPDK is initialised once per process. Its peer is the same program, started
//! again with its task in an environment variable.
#![forbid(unsafe_code)]

pub mod confined;
pub mod disk;
pub mod endpoint;
pub mod load;
pub mod network;
pub mod packets;
pub mod peer;
pub mod scripted;

use std::time::Duration;

/// Far longer than a busy machine needs: only a defect makes a test wait this long.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Between two attempts to connect to somebody who is about to listen.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Whether this is the long run (`UWARP_LONG=1`), which is not for every change.
pub fn is_long() -> bool {
    std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Selects the normal run's number or the long run's.
pub fn count(normal: usize, long: usize) -> usize {
    if is_long() { long } else { normal }
}

/// Leaves the processor to others while there is nothing to do but look again.
pub fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

/// Resident memory of this process, in KiB.
pub fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("the kernel tells about processes");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line about resident memory");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number of KiB")
}
