//! A user and a mount namespace for an ordinary user's program. A process of its own makes them, since there is no way
//! back from a namespace in which something is refused; this one joins them when they are whole.

use super::{mounts, shared};
use anyhow::{Context as _, anyhow, bail};
use nix::sched::{CloneFlags, unshare};
use rustix::process::{getgid, getuid};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use uwarp_verbs_device::Face;

/// The option by which `uwarp-run` becomes the process that makes namespaces.
pub(crate) const MAKER: &str = "make-namespaces";
/// What it says when they are made.
const MADE: &str = "made\n";

/// Moves this process, which has to have one thread, into namespaces that show the files.
///
/// # Errors
/// The system does not allow it, with what it was. Then nothing is changed.
pub(super) fn enter(face: &Face) -> anyhow::Result<()> {
    let mut maker = Command::new(std::env::current_exe()?)
        .arg(format!("--{MAKER}"))
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("no process to make namespaces")?;
    let entered = enter_those_of(&mut maker, face);
    // It ends with its standard input.
    drop(maker.stdin.take());
    maker.wait()?;
    entered
}

fn enter_those_of(maker: &mut Child, face: &Face) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(face)?;
    line.push('\n');
    let (Some(input), Some(output)) = (&mut maker.stdin, &mut maker.stdout) else { bail!("no pipes") };
    input.write_all(line.as_bytes()).context("the process that makes namespaces")?;
    let mut answer = String::new();
    BufReader::new(output).read_line(&mut answer)?;
    if answer != MADE {
        bail!("{}", answer.trim());
    }
    shared::enter(&Path::new("/proc").join(maker.id().to_string()))
}

/// Makes namespaces, says how that went, and keeps them until the end of standard input.
///
/// # Errors
/// Nobody is there to be told.
pub(crate) fn serve() -> anyhow::Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let face = serde_json::from_str(&line)?;
    let mut output = std::io::stdout().lock();
    match make(&face) {
        Ok(()) => output.write_all(MADE.as_bytes())?,
        Err(error) => writeln!(output, "{error:#}")?,
    }
    output.flush()?;
    input.read_to_end(&mut Vec::new())?;
    Ok(())
}

fn make(face: &Face) -> anyhow::Result<()> {
    let origin = shared::origin()?;
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER).context("no user namespace")?;
    // The kernel's condition for the next but one.
    std::fs::write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
    for (file, number) in [("uid_map", user), ("gid_map", group)] {
        std::fs::write(format!("/proc/self/{file}"), format!("{number} {number} 1"))
            .with_context(|| format!("/proc/self/{file}"))?;
    }
    mounts::enter()?;
    mounts::show(face).and_then(|()| shared::mark(&origin)).map_err(|error| anyhow!("in a user namespace: {error:#}"))
}
