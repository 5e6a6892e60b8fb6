//! Ctrl-C and SIGTERM: the first asks the tool to finish what it is doing, the second ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler. Call it once, early.
///
/// # Errors
/// The system refuses a handler.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    Ok(())
}

/// Whether the user has interrupted the tool.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
