//! A process that another process of the same tool has started, and that ends with it.

use std::process::Command;

/// Tells a process that it is a side of a pair, and ends with the process that started it.
const SIDE: &str = "UWARP_SIDE_OF_A_PAIR";

/// Makes a command's process, which runs [`crate::run`], end with the thread that starts it.
pub fn ends_with_this(command: &mut Command) -> &mut Command {
    command.env(SIDE, "1")
}

/// Whether this process is a side of a pair.
pub fn is_side() -> bool {
    std::env::var_os(SIDE).is_some()
}

/// Lets a side of a pair end with the pair.
pub(crate) fn end_with_pair() -> std::io::Result<()> {
    if is_side() {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    Ok(())
}
