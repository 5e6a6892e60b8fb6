//! What DPDK says: its log, passed on to `tracing`, whose last messages are kept for the texts of errors; and its error
//! numbers.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char};
use std::sync::Mutex;

use dpdk_sys as sys;

use crate::lock::lock;

/// DPDK's levels: 1 emergency, 2 alert, 3 critical, 4 error, 5 warning, 6 notice, 7 information, 8 debug.
const CRITICAL: u32 = 3;
const ERROR: u32 = 4;
const WARNING: u32 = 5;
const INFORMATION: u32 = 7;

/// How many messages are kept.
const KEPT: usize = 16;

#[derive(Default)]
struct Complaints {
    /// All that ever were.
    count: u64,
    last: VecDeque<String>,
}

static COMPLAINTS: Mutex<Complaints> = Mutex::new(Complaints { count: 0, last: VecDeque::new() });

/// Redirects DPDK's messages here. Call it before EAL starts.
pub(crate) fn redirect(verbose: bool) {
    // SAFETY: the hook is static.
    unsafe { sys::uwarp_log_to(Some(hook), if verbose { INFORMATION } else { WARNING }) };
}

unsafe extern "C" fn hook(level: u32, text: *const c_char, length: usize) {
    // SAFETY: the shim passes a live buffer of this many octets.
    let octets = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    // A subscriber that panics must not unwind into C.
    let _ = std::panic::catch_unwind(|| pass_on(level, &String::from_utf8_lossy(octets)));
}

fn pass_on(level: u32, text: &str) {
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if level <= WARNING {
            let mut complaints = lock(&COMPLAINTS);
            complaints.count += 1;
            if complaints.last.len() == KEPT {
                complaints.last.pop_front();
            }
            complaints.last.push_back(line.to_owned());
        }
        // Drivers log errors when a peer leaves, several times and from threads of their own. Applications learn what
        // they need from the link's state and from the texts of our errors, which quote these lines.
        match level {
            0..=CRITICAL => tracing::error!(target: "dpdk", "{line}"),
            ERROR..=INFORMATION => tracing::debug!(target: "dpdk", "{line}"),
            _ => tracing::trace!(target: "dpdk", "{line}"),
        }
    }
}

/// A position in the log at the start of a call, to find DPDK's messages during the call.
pub(crate) struct Mark(u64);

impl Mark {
    pub(crate) fn now() -> Mark {
        Mark(lock(&COMPLAINTS).count)
    }

    /// The complaints since then, joined, or `otherwise`.
    pub(crate) fn reason(&self, otherwise: &str) -> String {
        let complaints = lock(&COMPLAINTS);
        let new = usize::try_from(complaints.count - self.0).unwrap_or(KEPT).min(complaints.last.len());
        if new == 0 {
            return otherwise.to_owned();
        }
        let said: Vec<&str> = complaints.last.iter().skip(complaints.last.len() - new).map(String::as_str).collect();
        format!("{otherwise} ({})", said.join("; "))
    }
}

/// The last call's `rte_errno`.
pub(crate) fn last_error() -> i32 {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::uwarp_errno() }
}

/// The text of an error number, which may be negative as calls return it.
pub(crate) fn error_text(number: i32) -> String {
    // SAFETY: the text is static or the thread's own, and copied here.
    unsafe { CStr::from_ptr(sys::rte_strerror(number.abs())) }.to_string_lossy().into_owned()
}
