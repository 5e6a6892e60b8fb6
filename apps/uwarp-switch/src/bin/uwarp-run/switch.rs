//! The switch of a program: found, or started.

use anyhow::{Context as _, anyhow};
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uwarp::switch::{SWITCH_VARIABLE, default_sockets, find, is_served, own_socket};
use uwarp_app::output::{complain, printable};
use uwarp_app::usage;

/// A switch that nobody started by hand ends when it has not been needed for so long.
const UNUSED: &str = "10min";

/// The socket of a switch, which is started if there is none.
pub(crate) fn join(own: &Path) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(SWITCH_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let socket = match named {
        Some(path) if is_served(&path) => return Ok(path),
        // The switch is started in another directory.
        Some(path) => std::path::absolute(path).context("the socket of the switch")?,
        None => {
            let found = find();
            let is_found = found.is_some();
            let socket = found.or_else(own_socket).ok_or_else(|| {
                usage(format!("there is no directory for a switch's socket: name a path in {SWITCH_VARIABLE}"))
            })?;
            tell_of_others(&socket);
            if is_found {
                return Ok(socket);
            }
            socket
        }
    };
    start(own, &socket)?;
    Ok(socket)
}

/// Says which switch is used if it is not the user's own, or which others there are: a program's peers may be there.
fn tell_of_others(used: &Path) {
    let own = own_socket();
    if own.as_deref() != Some(used) {
        return complain(format_args!("uwarp-run: uses the switch at {}", used.display()));
    }
    let mut others: Vec<PathBuf> = default_sockets().into_iter().filter(|socket| is_served(socket)).collect();
    others.extend(switches_of_others());
    others.sort();
    others.dedup();
    let others: Vec<String> =
        others.iter().filter(|other| *other != used).map(|other| printable(&other.to_string_lossy())).collect();
    if !others.is_empty() {
        complain(format_args!(
            "uwarp-run: uses the switch at {}, whose programs do not reach those at {}: {SWITCH_VARIABLE} names another \
             one, which has to --allow-uid {}",
            used.display(),
            others.join(", "),
            rustix::process::getuid()
        ));
    }
}

/// The usual sockets at which switches listen in this network namespace, whoever may connect to them.
fn switches_of_others() -> Vec<PathBuf> {
    // The kernel's flag of a socket that listens.
    const LISTENS: &str = "00010000";
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let listening = table.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.nth(3) == Some(LISTENS)).then(|| words.nth(3)).flatten()
    });
    // Everybody may give a socket a name elsewhere.
    listening
        .filter(|path| path.starts_with("/run/") && path.ends_with("/uwarp/switch.sock"))
        .map(PathBuf::from)
        .collect()
}

/// Opens the file of a switch's messages, beside its socket.
fn open_log(socket: &Path) -> anyhow::Result<File> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".log");
    let path = PathBuf::from(path);
    if let Some(directory) = path.parent() {
        // As the switch itself makes it.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("the directory {} cannot be made", directory.display()))?;
    }
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    // In a directory of everybody's, somebody else may have put a link there.
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options.open(&path).with_context(|| format!("the switch's log {} cannot be opened", path.display()))
}

/// Starts a switch, and waits until it serves.
fn start(own: &Path, socket: &Path) -> anyhow::Result<()> {
    // Others may want a switch here at the same moment: one starts it, and the rest find it when their turn comes. The
    // switch has its own description of the file, so the turn ends with this function.
    let turn = open_log(socket)?;
    flock(&turn, FlockOperation::LockExclusive).context("no turn to start a switch")?;
    if is_served(socket) {
        return Ok(());
    }
    let mut log = open_log(socket)?;
    let earlier = log.metadata()?.len();
    // Not a pipe, which would be broken as soon as this process becomes the program.
    let errors = log.try_clone().context("the switch's log cannot be opened twice")?;
    let program = own.join("uwarp-switch");
    let mut child = Command::new(&program)
        .args(["serve", "--exit-when-unused", UNUSED, "--socket"])
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        // An interrupt of the program's terminal is not for the switch, which others may use.
        .process_group(0)
        .spawn()
        .with_context(|| format!("the switch {} cannot be started", program.display()))?;
    // The switch prints this line and no more.
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    // Another one may have been started at the same time.
    if !line.is_empty() || is_served(socket) {
        return Ok(());
    }
    let mut reason = String::new();
    log.seek(SeekFrom::Start(earlier))?;
    log.read_to_string(&mut reason)?;
    Err(anyhow!("the switch could not be started: {}", reason.trim()))
}
