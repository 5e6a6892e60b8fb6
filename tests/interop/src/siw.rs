//! A Linux guest whose kernel implements iWARP (siw), created and started by `scripts/siw-guest`.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uwarp::Config;

/// The guest's address; the stack's is [`STACK`].
pub const GUEST: &str = "10.77.0.2";
/// The stack's address, with its prefix.
pub const STACK: &str = "10.77.0.1/24";
/// The guest's IPv6 address; the stack's is [`STACK6`], if a test assigns one.
pub const GUEST6: &str = "fd77::2";
/// The stack's IPv6 address, with its prefix.
pub const STACK6: &str = "fd77::1/64";

/// Longest wait for the guest to start and for each of its commands: under emulation, beside other tests, it is slow.
const PATIENCE: Duration = Duration::from_secs(150);

/// Sets what a tool that talks to siw needs when all suites run behind the middlebox.
pub fn spare(command: &mut Command) {
    if is_spared() {
        command.env("UWARP_RECUT_RECEIVED_ONLY", "true");
    }
}

/// The same for a context of this process.
pub fn spared(mut config: Config) -> Config {
    if is_spared()
        && let Some(faults) = &mut config.faults
    {
        faults.recut_received_only = true;
    }
    config
}

/// If a CRC lies in two segments, siw overwrites its first part with the second (`siw_get_trailer`), and rejects it.
fn is_spared() -> bool {
    uwarp_middlebox::is_skipped("what goes to siw is not cut: it takes a CRC in two segments for a wrong one")
}

/// The other end of the guest's network device.
#[derive(Debug, Clone, Copy)]
pub enum Attachment<'a> {
    /// A vhost-user socket, which the stack creates. The guest waits for it, and waits again whenever the stack has
    /// gone.
    Vhost(&'a Path),
    /// A tap interface of this process's network namespace.
    Tap(&'a str),
}

/// A running guest. It ends when this value is dropped.
pub struct Guest {
    process: Child,
    agent: BufReader<UnixStream>,
    next: u64,
    answers: HashMap<u64, Outcome>,
    /// The output of qemu and the guest's kernel is here.
    folder: tempfile::TempDir,
}

/// A command that runs in the guest.
#[derive(Debug)]
#[must_use = "its outcome has to be looked at"]
pub struct Job(u64);

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The shell's exit status: 128 and more are signals.
    pub status: u32,
    /// The end of its output and errors.
    pub output: String,
}

impl Outcome {
    /// Its output, if it was successful.
    ///
    /// # Panics
    /// It was not.
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.status, 0, "in the guest: {}", self.output);
        self.output
    }
}

impl Guest {
    /// Creates the guest if it does not exist, and starts it. With `offloads` it leaves segmentation to its device, if
    /// that supports it.
    ///
    /// # Panics
    /// It does not start; the text has the reason.
    pub fn boot(attachment: Attachment<'_>, offloads: bool) -> Self {
        Self::boot_with(Some(attachment), offloads, &[])
    }

    /// The same with the kernel of Debian testing, without offloads.
    ///
    /// # Panics
    /// As [`boot`](Self::boot).
    pub fn boot_current(attachment: Attachment<'_>) -> Self {
        Self::boot_with(Some(attachment), false, &["--kernel", "testing"])
    }

    /// As [`boot`](Self::boot) without offloads, and port 2049 of this network namespace's loopback leads to the
    /// guest's NFS server, which is started. It serves `/export`, an empty file system in the guest's memory.
    ///
    /// # Panics
    /// As [`boot`](Self::boot), and if the server does not start.
    pub fn boot_with_nfs_server(attachment: Attachment<'_>) -> Self {
        let mut guest = Self::boot_with(Some(attachment), false, &["--forward", "2049:2049"]);
        guest.run("nfs-server").success();
        guest
    }

    /// The same, and what is in `folder` is in the guest, as a folder of the same name at the root. A file is written
    /// beside it.
    ///
    /// # Panics
    /// As [`boot`](Self::boot), and if the path is not UTF-8.
    pub fn boot_with_folder(attachment: Attachment<'_>, folder: &Path) -> Self {
        Self::boot_with(Some(attachment), false, &["--add", folder.to_str().expect("a path in UTF-8")])
    }

    /// Starts a guest without a network of its own, in which DPDK can have the NICs that `options` of the script name.
    ///
    /// # Panics
    /// As [`boot`](Self::boot).
    pub fn boot_with_nics(folder: &Path, options: &[&str]) -> Self {
        let folder = folder.to_str().expect("a path in UTF-8");
        Self::boot_with(None, false, &[&["--add", folder], options].concat())
    }

    fn boot_with(attachment: Option<Attachment<'_>>, offloads: bool, more: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/siw-guest");
        let kernel = match attachment {
            None => "nic",
            Some(_) if more.contains(&"--kernel") => "testing",
            Some(_) => "6.1",
        };
        let made =
            Command::new(&script).args(["prepare", kernel]).stdin(Stdio::null()).output().expect("bash is there");
        assert!(made.status.success(), "the siw guest cannot be made: {}", String::from_utf8_lossy(&made.stderr));
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("agent");
        let mut command = Command::new(script);
        command.arg("run").args(["--offloads", if offloads { "on" } else { "off" }]);
        command.args(["--address6", &format!("{GUEST6}/64")]).args(more);
        match attachment {
            Some(Attachment::Vhost(path)) => _ = command.arg("--vhost").arg(path),
            Some(Attachment::Tap(name)) => _ = command.args(["--tap", name]),
            None => {}
        }
        command.arg("--agent").arg(&socket).arg("--console").arg(folder.path().join("console"));
        // qemu logs each time that the stack leaves and returns.
        let errors = std::fs::File::create(folder.path().join("qemu")).expect("a file");
        let mut process = command.stdin(Stdio::null()).stderr(errors).spawn().expect("bash is there");
        let deadline = Instant::now() + PATIENCE;
        let agent = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => {
                    let ended = process.try_wait().expect("waiting for a child");
                    if ended.is_some() || Instant::now() > deadline {
                        panic!("the siw guest does not start ({ended:?}, {error}): {}", last_words(&folder));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        };
        agent.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let agent = BufReader::new(agent);
        let mut guest = Self { process, agent, next: 0, answers: HashMap::new(), folder };
        if attachment.is_some() {
            let links = guest.run("rdma link").success();
            assert!(links.contains("netdev eth0"), "the guest has no siw: {links}");
        }
        guest
    }

    /// Starts a command, which runs concurrently with all others.
    pub fn start(&mut self, command: &str) -> Job {
        let number = self.next;
        self.next += 1;
        let sent = self.agent.get_mut().write_all(format!("{number} {command}\n").as_bytes());
        if let Err(error) = sent {
            self.give_up(&format!("its agent takes no commands: {error}"));
        }
        Job(number)
    }

    /// Waits until it has ended.
    pub fn finish(&mut self, job: Job) -> Outcome {
        loop {
            if let Some(outcome) = self.answers.remove(&job.0) {
                return outcome;
            }
            match self.read_answer() {
                Ok((number, outcome)) => _ = self.answers.insert(number, outcome),
                Err(error) => self.give_up(&format!("its agent does not answer: {error}")),
            }
        }
    }

    /// Runs a command to its end.
    pub fn run(&mut self, command: &str) -> Outcome {
        let job = self.start(command);
        self.finish(job)
    }

    /// Ends the guest as if its machine had lost power.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn read_answer(&mut self) -> io::Result<(u64, Outcome)> {
        let mut line = String::new();
        if self.agent.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(number)), Some(Ok(status)), Some(Ok(octets))) = (words.next(), words.next(), words.next()) else {
            return Err(io::Error::other(format!("{line:?}")));
        };
        let mut output = vec![0; octets as usize];
        self.agent.read_exact(&mut output)?;
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok((number, Outcome { status: status as u32, output }))
    }

    fn give_up(&mut self, why: &str) -> ! {
        panic!("the siw guest: {why}: {}", last_words(&self.folder));
    }
}

fn last_words(folder: &tempfile::TempDir) -> String {
    let said =
        |name| String::from_utf8_lossy(&std::fs::read(folder.path().join(name)).unwrap_or_default()).into_owned();
    format!("qemu said:\n{}its kernel said:\n{}", said("qemu"), said("console"))
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}
