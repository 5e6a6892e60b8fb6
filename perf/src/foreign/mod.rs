//! Programs of others to compare with, from Debian's packages: a server and a client in two network namespaces.

pub mod iperf;
pub mod iscsi;
pub mod libfabric;
pub mod perftest;
pub mod ucx;

use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use uwarp::switch::protocol::{self, connect};

use crate::kernel::Namespaces;

/// How long a program may take to listen, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a program can be started.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Finds a program, or says which package has it. With `install`, installs the package first.
///
/// # Errors
/// apt cannot install it.
pub fn find(program: &str, package: &str, install: bool) -> anyhow::Result<Result<(), String>> {
    if !is_there(program) && install {
        let status = Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends", "--no-remove", package])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .context("cannot run apt-get")?;
        ensure!(status.success(), "apt-get cannot install {package}: try 'apt-get update' first");
    }
    Ok(if is_there(program) {
        Ok(())
    } else {
        Err(format!("there is no {program}: install Debian's package {package}, or give --install"))
    })
}

/// One end of a pair.
#[derive(Clone, Default)]
pub struct End {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
}

impl End {
    /// A program with its arguments.
    pub fn new<W: AsRef<str>>(words: &[W]) -> Self {
        Self { words: words.iter().map(|word| word.as_ref().to_owned()).collect(), variables: Vec::new() }
    }

    /// The same with an environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    fn start(&self, namespaces: &Namespaces, end: usize, cpu: usize, folder: &Path) -> anyhow::Result<Running> {
        let output = tempfile::tempfile_in(folder)?;
        let mut command = namespaces.command(end, cpu);
        command.args(&self.words).envs(self.variables.iter().cloned()).current_dir(folder);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = command.spawn().with_context(|| format!("cannot start {}", self.words[0]))?;
        Ok(Running { child, output, name: self.words[0].clone() })
    }
}

/// A program that runs; killed when dropped.
struct Running {
    child: Child,
    output: std::fs::File,
    name: String,
}

impl Running {
    /// What it printed, errors among the rest. It prints nothing useful afterwards: the place in the file is its own,
    /// too.
    fn printed(&self) -> String {
        let mut octets = Vec::new();
        let mut output = &self.output;
        match output.rewind().and_then(|()| output.read_to_end(&mut octets)) {
            Ok(_) => String::from_utf8_lossy(&octets).into_owned(),
            Err(error) => format!("what it printed cannot be read: {error}"),
        }
    }

    /// Waits until something is so, while the program runs.
    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(u32) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !is_so(self.child.id()) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended before it {what}, with {status}: {}", self.name, self.printed().trim());
            }
            ensure!(start.elapsed() < PATIENCE, "{} never {what}: {}", self.name, self.printed().trim());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for its end; what it printed.
    fn wait(mut self) -> anyhow::Result<String> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let printed = self.printed();
                ensure!(status.success(), "{} failed with {status}: {}", self.name, printed.trim());
                return Ok(printed);
            }
            ensure!(start.elapsed() < PATIENCE, "{} does not end: {}", self.name, self.printed().trim());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // For a child that has ended, both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What shows that a server can be connected to.
#[derive(Clone, Copy)]
pub enum Ready<'a> {
    /// It listens on this TCP port of the kernel's.
    Port(u16),
    /// It has made this file. One that an earlier server left is removed before.
    File(&'a Path),
    /// It listens on the switch with this socket.
    Listener(&'a Path),
}

/// How many ports the clients of a switch have reserved; `None` if no switch answers.
fn listeners(socket: &Path) -> Option<usize> {
    let status = protocol::status(connect(socket).ok()?).ok()?;
    Some(status.clients.iter().map(|client| client.listening.len()).sum())
}

/// Whether a process's namespace has a listener of the kernel's on a TCP port.
fn listens(process: u32, port: u16) -> bool {
    // Local address, peer, and the state LISTEN, in hexadecimal.
    let port = format!(":{port:04X} ");
    ["tcp", "tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        text.lines()
            .any(|line| line.split_once(&port).is_some_and(|(_, rest)| rest.split_whitespace().nth(1) == Some("0A")))
    })
}

/// Where pairs run.
pub struct Place<'a> {
    /// The server is in the first, the client in the second.
    pub namespaces: &'a Namespaces,
    /// CPUs of server and client.
    pub cpus: (usize, usize),
    /// For their files.
    pub folder: &'a Path,
}

impl Place<'_> {
    /// Runs a server, and its client as soon as the server is ready; what the client printed.
    ///
    /// # Errors
    /// Either fails, or does not end.
    pub fn pair(&self, server: &End, client: &End, ready: Ready<'_>) -> anyhow::Result<String> {
        self.pair_in([0, 1], server, client, ready)
    }

    /// The same with both in the server's namespace, over its loopback.
    ///
    /// # Errors
    /// Either fails, or does not end.
    pub fn pair_at_home(&self, server: &End, client: &End, ready: Ready<'_>) -> anyhow::Result<String> {
        self.pair_in([0, 0], server, client, ready)
    }

    fn pair_in(&self, ends: [usize; 2], server: &End, client: &End, ready: Ready<'_>) -> anyhow::Result<String> {
        if let Ready::File(path) = ready {
            remove(path)?;
        }
        let mut server = server.start(self.namespaces, ends[0], self.cpus.0, self.folder)?;
        server.wait_until("listened", |process| match ready {
            Ready::Port(port) => listens(process, port),
            Ready::File(path) => path.exists(),
            Ready::Listener(switch) => listeners(switch).is_some_and(|count| count > 0),
        })?;
        let printed = client.start(self.namespaces, ends[1], self.cpus.1, self.folder)?.wait()?;
        server.wait()?;
        Ok(printed)
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Messages that take about `duration`, if one takes `nanoseconds`; enough for a percentile, and no endless run.
pub fn iterations(duration: Duration, nanoseconds: u64) -> u64 {
    (duration.as_nanos() as u64 / nanoseconds).clamp(1_000, 1_000_000)
}
