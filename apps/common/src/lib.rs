//! Code that the tools of uwarp share: the same device and address flags, errors and output everywhere.
//!
//! - [`allow`]: which peers a server serves.
//! - [`cacheline`]: CPUs: pinning, and the distance between two of them.
//! - [`channel`]: connections for short messages.
//! - [`confine`]: confines a process to the files that it needs.
//! - `documents`: manual pages and completions of the tools, for packages.
//! - [`measure`]: how much to measure, the warm-up, and the samples.
//! - [`network`]: the flags that every tool has, and how they are merged with a configuration file.
//! - [`units`]: sizes, times and choices as people write them on a command line.
//! - [`outcome`]: exit status and error messages (2 for an invalid command line or configuration, 1 for anything else).
//! - [`output`]: tables, JSON, progress bars.
//! - [`pair`]: two processes that measure each other.
//! - [`side`]: whether this process is one of those, and ends with them.
//! - [`signals`]: a flag that Ctrl-C sets.
#![forbid(unsafe_code)]

pub mod allow;
pub mod cacheline;
pub mod channel;
pub mod confine;
mod documents;
pub mod measure;
pub mod network;
pub mod outcome;
pub mod output;
pub mod pair;
pub mod side;
pub mod signals;
pub mod units;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use allow::{Allow, AllowFlags};
pub use confine::{ConfineFlags, Confinement};
pub use network::{DeviceKind, NetworkFlags, Role, ServerFlag};
pub use outcome::{Usage, run, usage};

/// Locks a mutex, also after a thread has panicked with it: for data of which each change is a single step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CPU time in nanoseconds that all threads of this process have used.
pub fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
