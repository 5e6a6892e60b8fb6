//! A switch and its clients.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use uwarp::switch::protocol::{self, ClientStatus, Status, connect};
use uwarp::{Config, Context, ListenOptions};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, answer, prepare_answer};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, pause};

/// Octets of the patterns that ends of a connection exchange.
pub const LENGTH: usize = 10_000;
/// Octets of their regions.
pub const REGION: usize = 64 + 2 * LENGTH;

/// A running switch; killed when dropped.
pub struct Switch {
    child: Child,
    pub socket: PathBuf,
    directory: TempDir,
}

impl Switch {
    /// Starts one with the addresses 10.0.0.1 and fd00::1.
    pub fn start() -> Switch {
        Switch::start_with(&[])
    }

    /// With further arguments.
    pub fn start_with(arguments: &[&str]) -> Switch {
        let addresses = ["--address", "10.0.0.1/24", "--address", "fd00::1/64"];
        let (switch, line) = Switch::start_at("s", &[&addresses, arguments].concat());
        assert!(line.contains("10.0.0.1/24, fd00::1/64, MTU 1500"), "{line:?}");
        switch
    }

    /// With no other arguments than these, and this socket in a directory of its own. Gives what it says.
    pub fn start_at(path: &str, arguments: &[&str]) -> (Switch, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join(path);
        let log = File::create(directory.path().join("log")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-switch"));
        command.arg("serve").args(arguments).arg("--socket").arg(&socket);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the switch starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let switch = Switch { child, socket, directory };
        assert!(!line.is_empty(), "{}", switch.log());
        (switch, line)
    }

    /// Its own directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it has said about itself.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).expect("its log")
    }

    pub fn status(&self) -> Status {
        status(&self.socket)
    }

    /// The client that listens on a port.
    pub fn listener_on(&self, port: u16) -> ClientStatus {
        let status = self.status();
        let found = status.clients.iter().find(|client| client.listening.contains(&port));
        found.unwrap_or_else(|| panic!("nobody listens on {port}: {status:?}")).clone()
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the switch runs").count()
    }

    /// Octets of memory that it has in use, without what it shares with clients.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the switch runs");
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux says it");
        anonymous.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// How often the thread that moves frames has gone to sleep.
    pub fn sleeps(&self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the switch runs").flatten();
        let read = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).expect("a thread of the switch");
        let pump = threads.map(|thread| thread.path()).find(|path| read(path, "comm").trim() == "uwarp-pump");
        let status = read(&pump.expect("the switch has a pump"), "status");
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps.and_then(|count| count.trim().parse().ok()).expect("a number")
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("the switch is our child");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        eprint!("{}", self.log());
    }
}

/// The status of the switch at a socket.
pub fn status(socket: &Path) -> Status {
    let socket = connect(socket).expect("the switch serves");
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).expect("a time-out");
    protocol::status(&socket).expect("an answer")
}

/// A small configuration on the switch, whose connections send no probes of their own.
pub fn config(socket: &Path) -> Config {
    let mut config = Config::on_switch(socket).without_monitor();
    (config.buffers.receive, config.buffers.transmit, config.buffers.descriptors) = (512, 512, 256);
    config.tcp.keep_alive.enabled = false;
    // Dozens of idle engines share two processors.
    (config.engine.spin, config.engine.nap) = (Duration::ZERO, Duration::from_millis(1));
    config.linger = Duration::from_secs(1);
    config
}

/// Waits for something that the switch does by itself.
pub fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "{what} does not happen");
        pause();
    }
}

/// What a second process does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    pub role: Role,
    pub socket: PathBuf,
    /// The port to listen on.
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Listens, says "ready", and answers one exchange after the other on its first connection.
    Server,
    /// Listens, says "ready"; told to, it connects to `port + 1` and exchanges; told once more, it ends.
    OneOfMany,
    /// Answers all honest connections at once.
    OpenServer,
    /// Says "ready", and has connections answered until it is killed.
    Exchanger,
    /// Attacks the server until it is told to stop.
    Attacker(crate::hostile::Attack),
    /// Does to the switch what a local user can, one after the other.
    Abuser,
    /// Says what `Config::from_environment` finds.
    Environment,
}

/// Does a task, if this process has one.
pub fn is_peer() -> bool {
    let Some(task) = peer::task::<Task>() else { return false };
    match task.role {
        Role::Server => serve(&task),
        Role::OneOfMany => be_one_of_many(&task),
        Role::OpenServer => crate::hostile::serve_everybody(&task),
        Role::Exchanger => crate::endurance::exchange_for_ever(&task),
        Role::Attacker(attack) => crate::hostile::attack(&task, attack),
        Role::Abuser => crate::abuse::abuse(&task),
        Role::Environment => match Config::from_environment() {
            Ok(config) => peer::tell(&format!("{:?} {:?}", config.switch, config.device.is_some())),
            Err(error) => peer::tell(&error.to_string()),
        },
    }
    true
}

fn serve(task: &Task) {
    let context = match Context::open(config(&task.socket)) {
        Ok(context) => context,
        Err(error) => return peer::tell(&error.to_string()),
    };
    let mut listener = context.listen(task.port, ListenOptions::default()).expect("the port is free");
    let mut endpoint = Endpoint::new(&context, REGION);
    prepare_answer(&mut endpoint);
    peer::tell("ready");
    endpoint.accept(&context, &mut listener);
    loop {
        answer(&mut endpoint, LENGTH);
        peer::tell("answered");
    }
}

fn be_one_of_many(task: &Task) {
    let words = peer::words();
    let context = Context::open(config(&task.socket)).expect("there is a place");
    let mut listener = context.listen(task.port, ListenOptions::default()).expect("the port is free");
    let mut here = Endpoint::new(&context, REGION);
    prepare_answer(&mut here);
    peer::tell("ready");
    let next = words.recv().expect("the test says what to do").parse().expect("a port");
    let mut there = Endpoint::new(&context, REGION);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            here.accept(&context, &mut listener);
            answer(&mut here, LENGTH);
        });
        connect_to(&mut there, &context, ([127, 0, 0, 1], next).into());
        uwarp_vdev_tests::endpoint::exchange(&mut there, u64::from(task.port), LENGTH);
    });
    peer::tell("done");
    let _ = words.recv();
}

/// Connects an endpoint.
pub fn connect_to(endpoint: &mut Endpoint, context: &Context, server: std::net::SocketAddr) {
    use uwarp_vdev_tests::endpoint::Place;
    let options =
        uwarp::ConnectOptions::default().private_data(Place::of(&endpoint.region).to_octets()).timeout(PATIENCE);
    let established = context.connect(&mut endpoint.queue_pair.control, server, options).expect("the server accepts");
    endpoint.place = Some(Place::from_octets(&established.private_data));
}

/// A server as a process of its own, which is ready.
pub fn server(name: &str, switch: &Switch) -> Peer {
    let server = Peer::start(name, &Task { role: Role::Server, socket: switch.socket.clone(), port: PORT });
    assert_eq!(server.told(), "ready");
    server
}
