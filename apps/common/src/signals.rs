//! Ctrl-C and SIGTERM: the first asks the tool to finish what it is doing, the second ends it at once. While a device
//! opens, which may wait for its peer, the first does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Calls of [`at_once`] under way.
static AT_ONCE: AtomicUsize = AtomicUsize::new(0);
/// What [`before_exit`] has been given.
static BEFORE_EXIT: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Installs the handler. Call it once, early.
///
/// # Errors
/// The system refuses a handler.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        let is_second = INTERRUPTED.swap(true, Ordering::SeqCst);
        if is_second || AT_ONCE.load(Ordering::SeqCst) > 0 {
            end();
        }
    })?;
    Ok(())
}

fn end() -> ! {
    if let Some(work) = BEFORE_EXIT.get() {
        work();
    }
    std::process::exit(130)
}

/// Has a signal that ends the tool do this first. The first call counts.
pub fn before_exit(work: impl Fn() + Send + Sync + 'static) {
    let _ = BEFORE_EXIT.set(Box::new(work));
}

/// Does something that may wait long and does not look at [`interrupted`]: the first Ctrl-C ends the tool meanwhile,
/// and so does one before.
pub fn at_once<Done>(work: impl FnOnce() -> Done) -> Done {
    AT_ONCE.fetch_add(1, Ordering::SeqCst);
    if INTERRUPTED.load(Ordering::SeqCst) {
        end();
    }
    let done = work();
    AT_ONCE.fetch_sub(1, Ordering::SeqCst);
    done
}

/// Whether the user has interrupted the tool.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Whether the user has, and forgets it: for a tool that goes on when what it was doing has ended.
pub fn take() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) && INTERRUPTED.swap(false, Ordering::SeqCst)
}

/// Fails if the user has interrupted the tool.
///
/// # Errors
/// The user has.
pub fn check_interrupted() -> anyhow::Result<()> {
    anyhow::ensure!(!interrupted(), "interrupted");
    Ok(())
}
