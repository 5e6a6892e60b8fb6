//! Stock RDMA programs on uwarp's libibverbs and librdmacm: hosts for them, and what they print.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use uwarp::switch::protocol::{self, Status, connect};
use uwarp_netns::Namespace;

/// How long a program may take. Hung programs are killed, and fail their test.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a program may find its clock unsteady.
pub const TRIES: usize = 5;
/// The same for a program that waits for time limits, or on a bad network.
pub const LONG: Duration = Duration::from_secs(300);
/// The address of all programs on the switch. The namespace's own network has it, too, as programs expect that use
/// both.
pub const ADDRESS: &str = "10.9.0.1";
/// The same of IPv6.
pub const ADDRESS6: &str = "fd00:9::1";
/// The interface of the namespace that has these addresses.
pub const INTERFACE: &str = "host0";

/// The directory of the libraries that `scripts/verbs-lib --debug` links beside the tests' own binaries.
///
/// # Panics
/// If they are not there, with what to do.
pub fn libraries() -> PathBuf {
    let directory = binaries().join("verbs");
    assert!(
        directory.join("libibverbs.so.1").exists(),
        "no libibverbs.so.1 in {}: run scripts/verbs-lib --debug",
        directory.display()
    );
    directory
}

/// The directory of the tools.
///
/// # Panics
/// If the test is not where cargo puts it.
pub fn binaries() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its file");
    test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_owned()
}

/// Has a program see a device of RoCE.
pub const ROCE: (&str, &str) = ("UWARP_DEVICE", "roce");

/// The switch's arguments if its addresses are fixed.
const OWN: [&str; 4] = ["--address", "10.9.0.1/24", "--address", "fd00:9::1/64"];

/// What a program has left behind.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it printed, errors among the rest.
    pub output: String,
}

impl Ended {
    /// Whether a program of perftest gave up because the processor's counter and the clock did not go together while it
    /// compared them, as may happen beside other work: then start it again.
    pub fn lost_its_clock(&self) -> bool {
        !self.status.success() && self.output.contains("Correlation coefficient")
    }

    /// # Panics
    /// If the program failed.
    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert!(self.status.success(), "{}\n{}", self.status, self.output);
        &self.output
    }
}

/// A program that runs; killed when dropped.
pub struct Running {
    child: Child,
    output: File,
    what: String,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let what = format!("{command:?}");
        let output = tempfile::tempfile().expect("a file for what it prints");
        let copies = [output.try_clone().expect("a copy"), output.try_clone().expect("a copy")];
        let [out, errors] = copies;
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        Running { child, output, what }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it ends");
    }

    /// What it has printed so far.
    pub fn printed(&self) -> String {
        let length = self.output.metadata().expect("the file is ours").len();
        let mut octets = vec![0; length as usize];
        // Not by its cursor, at which the program writes.
        self.output.read_exact_at(&mut octets, 0).expect("the file is ours");
        String::from_utf8_lossy(&octets).into_owned()
    }

    /// Waits until it ends.
    ///
    /// # Panics
    /// If that takes too long.
    #[track_caller]
    pub fn wait(self) -> Ended {
        self.wait_within(LIMIT)
    }

    /// Waits until it ends, for a program that may take longer than others.
    ///
    /// # Panics
    /// If it takes longer than `limit`.
    #[track_caller]
    pub fn wait_within(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return Ended { status, output: self.printed() };
            }
            if start.elapsed() > limit {
                let printed = self.printed();
                panic!("{} does not end:\n{printed}", self.what);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host of its own: a network namespace with addresses that nobody else has, and a switch for its RDMA programs.
pub struct Host {
    switch: Child,
    socket: PathBuf,
    namespace: Namespace,
    directory: TempDir,
    user: Option<u32>,
    /// How the switch is started.
    arguments: Vec<String>,
}

impl Host {
    /// A host whose programs run as this test's user.
    pub fn new(purpose: &str) -> Host {
        Self::with_user(purpose, None, &OWN)
    }

    /// A host whose programs, and its switch, run as an ordinary user.
    pub fn of_ordinary_user(purpose: &str) -> Host {
        Self::with_user(purpose, is_a_user(NOBODY).then_some(NOBODY), &OWN)
    }

    /// A host of an ordinary user whose switch also serves programs of other network namespaces, at the addresses of
    /// these.
    pub fn for_containers(purpose: &str) -> Host {
        Self::with_user(purpose, is_a_user(NOBODY).then_some(NOBODY), &[])
    }

    /// A host whose programs reach other hosts by an interface, which it finds in its namespace. They have these
    /// addresses, and the namespace's own network has none: its kernel would answer, too. `more` are further arguments
    /// of the switch.
    pub fn with_uplink(namespace: Namespace, interface: &str, addresses: [&str; 2], more: &[&str]) -> Host {
        let uplink = format!("af-packet,interface={interface}");
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("switch.sock");
        let mut arguments = vec!["--uplink", &uplink];
        for address in addresses {
            arguments.extend(["--address", address]);
        }
        let arguments: Vec<String> = arguments.iter().chain(more).map(|word| (*word).to_owned()).collect();
        let switch = start_switch(&namespace, None, &socket, &arguments);
        Host { switch, socket, namespace, directory, user: None, arguments }
    }

    fn with_user(purpose: &str, user: Option<u32>, arguments: &[&str]) -> Host {
        let namespace = Namespace::new(purpose).expect("root may make a namespace");
        namespace.ip(&["link", "set", "lo", "up"]).expect("a loop-back interface");
        // libfabric uses no address of the loop-back interface.
        namespace.ip(&["link", "add", INTERFACE, "type", "bridge"]).expect("an interface");
        namespace.ip(&["link", "set", INTERFACE, "up"]).expect("an interface");
        for address in [format!("{ADDRESS}/24"), format!("{ADDRESS6}/64")] {
            namespace.ip(&["addr", "add", &address, "dev", INTERFACE, "nodad"]).expect("an address");
        }
        let directory = tempfile::tempdir().expect("a directory");
        if user.is_some() {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777))
                .expect("the directory is ours");
        }
        let socket = directory.path().join("switch.sock");
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let switch = start_switch(&namespace, user, &socket, &arguments);
        Host { switch, socket, namespace, directory, user, arguments }
    }

    /// Its network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// SIGKILL to the switch.
    pub fn kill_switch(&mut self) {
        self.switch.kill().expect("the switch is our child");
        self.switch.wait().expect("it ends");
    }

    /// Starts the switch again.
    pub fn restart_switch(&mut self) {
        self.switch = start_switch(&self.namespace, self.user, &self.socket, &self.arguments);
    }

    /// The socket of its switch.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where programs may leave files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A program on the switch.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = as_user(&self.namespace, self.user, words[0]);
        command.args(&words[1..]);
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", libraries()).env("LD_BIND_NOW", "1").env("UWARP_SWITCH", &self.socket);
        command.env_remove("UWARP_CONFIG").env("HOME", self.directory.path()).current_dir(self.directory.path());
    }

    /// Starts a program.
    pub fn start(&self, words: &[&str]) -> Running {
        Running::start(self.command(words))
    }

    /// Starts a program with further environment variables.
    pub fn start_with(&self, variables: &[(&str, &str)], words: &[&str]) -> Running {
        let mut command = self.command(words);
        command.envs(variables.iter().copied());
        Running::start(command)
    }

    /// Starts a program of the host's user in another network namespace.
    pub fn start_in(&self, network: &Namespace, variables: &[(&str, &str)], words: &[&str]) -> Running {
        let mut command = as_user(network, self.user, words[0]);
        command.args(&words[1..]);
        self.prepare(&mut command);
        command.envs(variables.iter().copied());
        Running::start(command)
    }

    /// Compiles one of our own programs in C (`c/`), against Debian's headers.
    ///
    /// # Panics
    /// If the compiler complains.
    #[track_caller]
    pub fn compile(&self, name: &str) -> String {
        let program = self.directory().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name).with_extension("c");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).args([&program, &source]);
        let compiled = compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]).output().expect("a compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        program.to_str().expect("a path").to_owned()
    }

    /// Compiles one of our own programs in C, and runs these tests of it one after the other.
    #[track_caller]
    pub fn run_tests(&self, variables: &[(&str, &str)], name: &str, tests: &[&str], arguments: &[&str]) {
        let program = self.compile(name);
        for test in tests {
            let words = [&[program.as_str(), test], arguments].concat();
            let Ended { status, output } = self.start_with(variables, &words).wait_within(LONG);
            assert!(status.success(), "{test}: {status}\n{output}");
        }
    }

    /// One of uwarp's own tools.
    pub fn tool(&self, name: &str, arguments: &[&str]) -> Ended {
        self.run(&[&[binaries().join(name).to_str().expect("a path")], arguments].concat())
    }

    /// Runs a program to its end.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Ended {
        self.start(words).wait()
    }

    /// Starts a server and waits until it listens on a TCP port of rdma_cm's.
    #[track_caller]
    pub fn serve(&self, words: &[&str]) -> Running {
        self.serve_until(words, |_| !self.listening().is_empty())
    }

    /// Starts a server and waits until it listens on all of these ports of rdma_cm's.
    #[track_caller]
    pub fn serve_on(&self, words: &[&str], ports: &[u16]) -> Running {
        self.serve_until(words, |_| {
            let listening = self.listening();
            ports.iter().all(|port| listening.contains(port))
        })
    }

    /// Starts a server and waits until it listens on a TCP port of the kernel's.
    #[track_caller]
    pub fn serve_on_kernels(&self, words: &[&str], port: u16) -> Running {
        self.serve_until(words, |server| Self::listens_on_kernels(server, port))
    }

    /// Whether somebody listens on a TCP port of the kernel's, where a program runs.
    pub fn listens_on_kernels(server: &Running, port: u16) -> bool {
        let of = |name: &str| std::fs::read_to_string(format!("/proc/{}/net/{name}", server.id())).unwrap_or_default();
        // Local address, peer, and the state LISTEN, in hexadecimal.
        let port = format!(":{port:04X} ");
        [of("tcp"), of("tcp6")]
            .iter()
            .flat_map(|table| table.lines())
            .any(|line| line.split_once(&port).is_some_and(|(_, rest)| rest.split_whitespace().nth(1) == Some("0A")))
    }

    /// Starts a program in a container: it shares nothing with the host but the files, the switch's socket among them.
    /// Namespaces of its own are those of mounts, processes and `network`.
    pub fn start_contained(&self, network: &Namespace, words: &[&str]) -> Running {
        let mut command = network.command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).args(words);
        self.prepare(&mut command);
        Running::start(command)
    }

    /// Waits until a server that was started listens.
    #[track_caller]
    pub fn await_listener(&self, server: Running, words: &[&str]) -> Running {
        Self::wait_until(server, words, |_| !self.listening().is_empty())
    }

    #[track_caller]
    fn serve_until(&self, words: &[&str], is_ready: impl FnMut(&Running) -> bool) -> Running {
        Self::wait_until(self.start(words), words, is_ready)
    }

    /// Waits until a server that was started is ready.
    #[track_caller]
    pub fn wait_until(mut server: Running, words: &[&str], mut is_ready: impl FnMut(&Running) -> bool) -> Running {
        let start = Instant::now();
        while !is_ready(&server) {
            if let Some(status) = server.child.try_wait().expect("it is our child") {
                panic!("{words:?} ended before it listened: {status}\n{}", server.printed());
            }
            assert!(start.elapsed() < LIMIT, "{words:?} does not listen:\n{}", server.printed());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Waits until the switch knows that nobody listens any more.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn await_free_ports(&self) {
        let start = Instant::now();
        while !self.listening().is_empty() {
            assert!(start.elapsed() < LIMIT, "somebody listens on {:?}", self.listening());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether one of the switch's programs listens on a port.
    pub fn listens(&self, port: u16) -> bool {
        self.listening().contains(&port)
    }

    /// The ports that the switch's programs listen on.
    fn listening(&self) -> Vec<u16> {
        self.status().clients.into_iter().flat_map(|client| client.listening).collect()
    }

    /// What the switch says about itself.
    pub fn status(&self) -> Status {
        protocol::status(connect(&self.socket).expect("the switch serves")).expect("an answer")
    }

    /// A server and its client, both of which have to succeed. Gives what they printed.
    #[track_caller]
    pub fn pair(&self, server: &[&str], client: &[&str]) -> (String, String) {
        let mut running = self.serve(server);
        let mut ended = self.run(client);
        for _ in 1..TRIES {
            if !ended.lost_its_clock() {
                break;
            }
            running.kill();
            running = self.serve(server);
            ended = self.run(client);
        }
        let client = ended.succeeded().to_owned();
        (running.wait().succeeded().to_owned(), client)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // What a program that had to be killed has started itself.
        if let Ok(left) = Command::new("ip").args(["netns", "pids", self.namespace.name()]).output() {
            let switch = self.switch.id().to_string();
            let left = String::from_utf8_lossy(&left.stdout).into_owned();
            for process in left.lines().map(str::trim).filter(|process| *process != switch) {
                let _ = Command::new("kill").args(["-KILL", process]).status();
            }
        }
        let _ = self.switch.kill();
        let _ = self.switch.wait();
    }
}

fn start_switch(namespace: &Namespace, user: Option<u32>, socket: &Path, arguments: &[String]) -> Child {
    let mut command = as_user(namespace, user, binaries().join("uwarp-switch"));
    command.arg("serve").args(arguments).arg("--socket").arg(socket);
    let mut switch = command.stdout(Stdio::piped()).spawn().expect("the switch starts");
    let mut line = String::new();
    BufReader::new(switch.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.contains("MTU"), "{line:?}");
    switch
}

/// `nobody`; there is no other user on every machine.
const NOBODY: u32 = 65534;

/// Whether a process here may become this user. In a user namespace that an ordinary user has made, everybody is that
/// user.
fn is_a_user(number: u32) -> bool {
    let ranges = std::fs::read_to_string("/proc/self/uid_map").expect("a kernel with user namespaces");
    ranges.lines().any(|line| {
        let range: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(range[..], [first, _, count] if (first..first.saturating_add(count)).contains(&number))
    })
}

/// A program inside of a namespace, of an ordinary user if one is given.
fn as_user(namespace: &Namespace, user: Option<u32>, program: impl AsRef<OsStr>) -> Command {
    let Some(user) = user else { return namespace.command(program) };
    let mut command = namespace.command("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups").arg(program.as_ref());
    // It is of whoever runs the tests.
    command.env_remove("XDG_RUNTIME_DIR");
    command
}
