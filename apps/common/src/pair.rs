//! Two processes of one program, a server and its client, each on its own CPU: shared by the tools that measure.

use crate::network::fits_a_socket;
use crate::outcome::of_child;
use crate::side::ends_with_this;
use crate::{DeviceKind, NetworkFlags, Role, cacheline, signals, usage};
use anyhow::Context as _;
use serde::de::DeserializeOwned;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the server may take to end after the client.
const FAREWELL: Duration = Duration::from_secs(10);

/// The CPUs of server and client: the named ones, or the first two that this process may use, or the only one.
///
/// # Errors
/// Not two are named, or this process may not use one of them.
pub fn choose_cpus(named: &[usize]) -> anyhow::Result<[usize; 2]> {
    let usable = cacheline::usable();
    match *named {
        [] => Ok(match usable[..] {
            [first, second, ..] => [first, second],
            [only] => [only, only],
            [] => [0, 0],
        }),
        [server, client] => {
            if let Some(cpu) = named.iter().find(|cpu| !usable.contains(cpu)) {
                return Err(usage(format!(
                    "--cpus names CPU {cpu}, which this process may not use: choose from {}",
                    usable.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
                )));
            }
            Ok([server, client])
        }
        _ => Err(usage("--cpus needs two numbers, of the server's and the client's CPU, such as 0,1")),
    }
}

/// A temporary directory, with the path of the socket that joins the two sides. It goes with this value.
#[derive(Debug)]
pub struct Folder {
    folder: tempfile::TempDir,
    /// The socket.
    pub socket: PathBuf,
}

impl Folder {
    /// Makes it; its name begins with `prefix`.
    ///
    /// # Errors
    /// The temporary directory cannot be written, or its path is too long for a socket.
    pub fn new(prefix: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir().context("cannot make a temporary directory")?;
        let socket = folder.path().join("pair.sock");
        if !fits_a_socket(&socket) {
            return Err(usage(format!(
                "the temporary directory's path {} is too long for a socket: set TMPDIR to a shorter one",
                folder.path().display()
            )));
        }
        Ok(Self { folder, socket })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Refuses the flags of one side that a pair sets itself; `instead` names the subcommands that take them.
///
/// # Errors
/// [`crate::Usage`] that names the flag.
pub fn check_flags(network: &NetworkFlags, instead: &str) -> anyhow::Result<()> {
    refuse(
        &[
            (network.socket.is_some(), "--socket"),
            (network.interface.is_some(), "--interface"),
            (network.address.is_some(), "--address"),
        ],
        instead,
    )
}

/// Refuses a configuration file, which is one side's, and a device that does not join two processes by a socket;
/// `instead` names the subcommands that take them.
///
/// # Errors
/// [`crate::Usage`] that names the flag.
pub fn check_socket_device(network: &NetworkFlags, instead: &str) -> anyhow::Result<()> {
    refuse(&[(network.config.is_some(), "--config")], instead)?;
    match network.kind() {
        DeviceKind::Virtio | DeviceKind::Memif => Ok(()),
        kind => Err(usage(format!("--device {kind} does not join two processes of one machine: use {instead}"))),
    }
}

fn refuse(flags: &[(bool, &str)], instead: &str) -> anyhow::Result<()> {
    match flags.iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, flag)) => Err(usage(format!("{flag} is one process's, and several are started here: use {instead}"))),
    }
}

/// The command of one side: this program with a subcommand, on its CPU, with the flags that both sides share, and
/// `--pcap` for the client. The process ends with this one, whatever ends it.
///
/// # Errors
/// This program's file cannot be found.
pub fn side(subcommand: &str, role: Role, cpus: [usize; 2], network: &NetworkFlags) -> anyhow::Result<Command> {
    let cpu = cpus[usize::from(role == Role::Client)];
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    ends_with_this(&mut command).args([subcommand, "--cpus", &cpu.to_string()]).args(network.to_arguments());
    if let (Role::Client, Some(file)) = (role, &network.pcap) {
        command.arg("--pcap").arg(file);
    }
    Ok(command)
}

/// A process that is killed when this is dropped.
pub struct Side(pub Child);

impl Side {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a process.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        Ok(Self(command.spawn().context("cannot start a process of the pair")?))
    }

    fn has_ended(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        self.0.try_wait().context("cannot query a process of the pair")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // For a child that has ended, both do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server, then the client, and waits for both; returns the client's result, which it writes to standard
/// output as JSON. `join` runs once both are started. Its argument says whether both still run and no interrupt has
/// arrived.
///
/// # Errors
/// A side failed (it has reported why), `join` failed, or the server did not end after the client. The other side is
/// then killed.
pub fn run<Report: DeserializeOwned>(
    server: &mut Command,
    client: &mut Command,
    join: impl FnOnce(&mut dyn FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    let mut server = Side::start(server.stdin(Stdio::null()).stdout(Stdio::null()))?;
    let (mut client, reader) = start_reporter(client)?;
    join(&mut || Ok(!signals::interrupted() && client.has_ended()?.is_none() && server.has_ended()?.is_none()))?;
    wait(&mut server, &mut client)?;
    reader.finish()
}

/// Starts one process that needs no other, and waits for it; returns its result, as [`run`] does.
///
/// # Errors
/// It failed (it has reported why), or the user interrupts; the process is then killed.
pub fn run_one<Report: DeserializeOwned>(command: &mut Command) -> anyhow::Result<Report> {
    let (mut side, reader) = start_reporter(command)?;
    loop {
        signals::check_interrupted()?;
        if let Some(status) = side.has_ended()? {
            of_child(status)?;
            return reader.finish();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the standard output of a process until its end, so that the process never waits for a reader.
struct Reader(JoinHandle<std::io::Result<String>>);

fn start_reporter(command: &mut Command) -> anyhow::Result<(Side, Reader)> {
    let mut side = Side::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let mut output = side.0.stdout.take().context("the process has no standard output")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    Ok((side, Reader(reader)))
}

impl Reader {
    /// The result that the process has written as JSON.
    fn finish<Report: DeserializeOwned>(self) -> anyhow::Result<Report> {
        let text = self
            .0
            .join()
            .map_err(|_| anyhow::anyhow!("a process's result was not read"))?
            .context("cannot read a process's result")?;
        serde_json::from_str(&text).context("a process's result cannot be read")
    }
}

/// Waits for the client, then for the server.
fn wait(server: &mut Side, client: &mut Side) -> anyhow::Result<()> {
    let mut left = None;
    loop {
        signals::check_interrupted()?;
        if left.is_none()
            && let Some(status) = client.has_ended()?
        {
            of_child(status)?;
            left = Some(Instant::now());
        }
        if let Some(status) = server.has_ended()? {
            of_child(status)?;
            if left.is_some() {
                return Ok(());
            }
            // The server has seen the client leave, so the client is about to end.
            return of_child(client.0.wait().context("cannot wait for the client")?);
        }
        if left.is_some_and(|since: Instant| since.elapsed() > FAREWELL) {
            anyhow::bail!("the server did not end within {FAREWELL:?} of the client");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
