//! Two processes over real DPDK devices.
//!
//! EAL is one per process, so a test starts its own binary again, once for each role, with the configuration and the
//! role in the environment. A child tells what it does in lines that begin with `@@`.

use crate::transfer;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use uwarp::{Config, DeviceConfig, MemifRole};
use uwarp_netns::{self as netns, End, Namespace};

/// Far longer than anything takes: only a defect makes a test wait for it.
pub const LONG: Duration = Duration::from_secs(60);
/// The port that children listen on.
pub const PORT: u16 = 7471;

const ROLE: &str = "UWARP_TEST_ROLE";
const CONFIG: &str = "UWARP_TEST_CONFIG";
const ARGUMENTS: &str = "UWARP_TEST_ARGUMENTS";

/// A kind of device with two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// virtio-user and vhost.
    Virtio { packed: bool },
    /// The same, and vhost takes frames of several segments.
    VirtioSegmentation,
    /// memif.
    Memif { zero_copy: bool },
    /// Packet sockets on the two ends of a veth pair, each in a network namespace.
    AfPacket,
}

/// A pair of devices for one test, with what it needs on the host.
pub struct Wire {
    device: Device,
    directory: tempfile::TempDir,
    namespaces: Vec<Namespace>,
}

impl Wire {
    /// Makes what the device needs; af_packet wants network namespaces, and so root.
    pub fn new(device: Device) -> Result<Self> {
        let mut namespaces = Vec::new();
        if device == Device::AfPacket {
            let ends = [Namespace::new("verbs")?, Namespace::new("verbs")?];
            netns::veth(9000, ends.each_ref().map(|namespace| End::silent("veth0").of(namespace)))?;
            namespaces.extend(ends);
        }
        Ok(Self { device, directory: tempfile::tempdir()?, namespaces })
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("wire.sock")
    }

    /// Waits until the listening end is ready for the other one to start. A virtio-user end only opens when its vhost
    /// end is there, so there is nothing to wait for; its client tries until it is heard.
    pub fn await_server(&self, server: &mut Role) -> Result<()> {
        match self.device {
            Device::Virtio { .. } | Device::VirtioSegmentation => Ok(()),
            Device::Memif { .. } | Device::AfPacket => server.await_line("ready"),
        }
    }

    /// The configurations of the listening and of the connecting end: 10.99.0.1 and 10.99.0.2.
    pub fn configs(&self) -> Result<(Config, Config)> {
        let (server, client) = match self.device {
            Device::Virtio { .. } | Device::VirtioSegmentation => {
                let packed = self.device == Device::Virtio { packed: true };
                let tso = self.device == Device::VirtioSegmentation;
                let socket = self.socket();
                (
                    DeviceConfig::VirtioUser { socket, server: true, packed, queue_size: None, mac: None },
                    DeviceConfig::Vhost { socket: self.socket(), client: true, tso },
                )
            }
            Device::Memif { zero_copy } => {
                let memif = |role| DeviceConfig::Memif {
                    role,
                    socket: self.socket(),
                    zero_copy: zero_copy && role == MemifRole::Client,
                    ring_size: None,
                    buffer_size: None,
                };
                (memif(MemifRole::Server), memif(MemifRole::Client))
            }
            Device::AfPacket => {
                let packet = |namespace: &Namespace| DeviceConfig::AfPacket {
                    interface: "veth0".to_owned(),
                    netns: Some(namespace.name().to_owned()),
                    frame_count: None,
                };
                let [a, b] = self.namespaces.as_slice() else { bail!("no namespaces") };
                (packet(a), packet(b))
            }
        };
        let finish = |device, address| -> Result<Config> {
            let mut config = uwarp_middlebox::behind(Config::new(device, address)?.without_monitor());
            config.tcp.rto_initial = Duration::from_millis(100);
            config.limits.queue_pairs = 256;
            Ok(config)
        };
        Ok((finish(server, "10.99.0.1/24")?, finish(client, "10.99.0.2/24")?))
    }
}

/// A running child. Killed when dropped.
pub struct Role {
    name: String,
    child: Child,
    lines: Receiver<String>,
}

impl Role {
    /// Starts this binary again in a role; its test named `child` takes it up.
    pub fn start(role: &str, config: &Config, arguments: &[(&str, u64)]) -> Result<Self> {
        let arguments: serde_json::Map<String, serde_json::Value> =
            arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(CONFIG, config.to_toml()?)
            .env(ARGUMENTS, serde_json::Value::Object(arguments).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("a child without standard output")?;
        let (sender, lines) = channel();
        let name = format!("{role} {}", child.id());
        let prefix = name.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test runner writes in front of the first line.
                if let Some((_, said)) = line.split_once("@@") {
                    eprintln!("[{prefix}] {said}");
                    if sender.send(said.to_owned()).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self { name, child, lines })
    }

    /// Waits until the child has said this.
    pub fn await_line(&mut self, expected: &str) -> Result<()> {
        let deadline = Instant::now() + LONG;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(said) if said == expected => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("{} never said {expected:?}", self.name),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("{} ended ({status}) before it said {expected:?}", self.name)
                }
            }
        }
    }

    /// Waits for the child's end, which must be a success.
    pub fn succeed(mut self) -> Result<()> {
        let deadline = Instant::now() + LONG;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} failed: {status}", self.name),
                None if Instant::now() > deadline => bail!("{} does not end", self.name),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells the parent something.
pub fn say(what: &str) {
    println!("@@{what}");
}

/// What a child was started with.
pub struct Arguments(serde_json::Value);

impl Arguments {
    /// A number, 0 if it was not given.
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }
}

/// The body of the test named `child`: the role, if there is one.
pub fn child_main() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if let Err(error) = run_role(&role) {
        eprintln!("[{role} {}] {error:#}", std::process::id());
        std::process::exit(1);
    }
}

fn run_role(role: &str) -> Result<()> {
    let config = Config::from_toml_str(&std::env::var(CONFIG)?)?;
    let arguments = Arguments(serde_json::from_str(&std::env::var(ARGUMENTS)?)?);
    match role {
        "transfer-server" => transfer::server(config, &arguments),
        "transfer-client" => transfer::client(config, &arguments),
        other => bail!("there is no role {other}"),
    }
}

/// The address of the listening end.
pub fn server_address() -> std::net::SocketAddr {
    std::net::SocketAddr::from(([10, 99, 0, 1], PORT))
}

/// Octets that differ from place to place.
pub fn pattern(seed: u64, octets: &mut [u8]) {
    fastrand::Rng::with_seed(seed).fill(octets);
}
