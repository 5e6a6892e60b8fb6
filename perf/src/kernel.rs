//! The peer for comparison: the kernel's TCP over a veth pair between two network namespaces, without segmentation or
//! checksum offload and at MTU 1500. That is comparable with a stack that touches every octet.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use uwarp_app::measure::{Latency, Samples, gbit_per_s};
use uwarp_app::units::name_of;
use uwarp_netns::{self as netns, End, Namespace};

/// The role of one end of the kernel peer.
#[derive(Args)]
pub struct Options {
    /// Which end
    role: Role,
    /// What to measure
    test: Test,
    /// Where the server listens
    address: SocketAddr,
    /// Octets of each message
    size: usize,
    /// How long the client measures, in milliseconds
    milliseconds: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Role {
    Server,
    Client,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Test {
    /// Round trips, both ends spinning on non-blocking sockets
    SpinningLatency,
    /// Round trips, both ends blocking
    BlockingLatency,
    /// One way, blocking
    Bandwidth,
}

/// What the client prints as JSON.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Round trips.
    pub latency_ns: Latency,
    /// Their mean.
    pub mean_ns: f64,
    /// Payload.
    pub gbit_per_s: f64,
}

/// Runs one end, in the namespace that it was started in.
pub fn run(options: &Options) -> anyhow::Result<()> {
    match options.role {
        Role::Server => serve(options),
        Role::Client => {
            println!("{}", serde_json::to_string(&measure(options)?)?);
            Ok(())
        }
    }
}

fn serve(options: &Options) -> anyhow::Result<()> {
    let listener = TcpListener::bind(options.address)?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut message = vec![0; options.size];
    match options.test {
        Test::SpinningLatency | Test::BlockingLatency => {
            stream.set_nonblocking(options.test == Test::SpinningLatency)?;
            while spin_read(&mut stream, &mut message)? {
                spin_write(&mut stream, &message)?;
            }
        }
        Test::Bandwidth => {
            let mut total = 0_u64;
            let mut buffer = vec![0; 1 << 20];
            loop {
                match stream.read(&mut buffer)? {
                    0 => break,
                    count => total += count as u64,
                }
            }
            stream.write_all(&total.to_be_bytes())?;
        }
    }
    Ok(())
}

/// Fewest round trips of a measurement: otherwise there is no 99th percentile.
const LEAST: u64 = 100;

fn measure(options: &Options) -> anyhow::Result<Outcome> {
    let mut stream = TcpStream::connect(options.address)?;
    stream.set_nodelay(true)?;
    let duration = Duration::from_millis(options.milliseconds);
    let mut message = vec![0; options.size];
    match options.test {
        Test::SpinningLatency | Test::BlockingLatency => {
            stream.set_nonblocking(options.test == Test::SpinningLatency)?;
            let mut samples = Samples::new()?;
            let warm_up = Instant::now() + duration / 5;
            let end = warm_up + duration;
            loop {
                let start = Instant::now();
                spin_write(&mut stream, &message)?;
                ensure!(spin_read(&mut stream, &mut message)?, "the kernel peer left early");
                let now = Instant::now();
                if start >= warm_up {
                    let _ = samples.push(now - start);
                }
                // On a busy machine a short part may be over before anything has been measured.
                if now >= end && samples.count() >= LEAST {
                    break;
                }
            }
            Ok(Outcome { latency_ns: samples.latency(), mean_ns: samples.mean(), gbit_per_s: 0.0 })
        }
        Test::Bandwidth => {
            let start = Instant::now();
            while start.elapsed() < duration {
                stream.write_all(&message)?;
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut total = [0; 8];
            stream.read_exact(&mut total)?;
            let gbit_per_s = gbit_per_s(u64::from_be_bytes(total) as f64, start.elapsed().as_secs_f64());
            Ok(Outcome { latency_ns: Latency::default(), mean_ns: 0.0, gbit_per_s })
        }
    }
}

/// Reads a whole message; `false` at the end of the stream.
fn spin_read(stream: &mut TcpStream, message: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < message.len() {
        match stream.read(&mut message[filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn spin_write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < message.len() {
        match stream.write(&message[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Two network namespaces with a veth pair between them; removed on drop.
pub struct Namespaces {
    ends: [Namespace; 2],
}

/// Address in the first namespace.
pub const SERVER_ADDRESS: &str = "10.88.0.1";
/// Address in the second namespace.
pub const CLIENT_ADDRESS: &str = "10.88.0.2";

impl Namespaces {
    /// Creates them; needs root, iproute2 and ethtool.
    pub fn new() -> anyhow::Result<Self> {
        let ends = [Namespace::new("bench")?, Namespace::new("bench")?];
        let addresses = [SERVER_ADDRESS, CLIENT_ADDRESS].map(|address| format!("{address}/24"));
        for namespace in &ends {
            namespace.ip(&["link", "set", "lo", "up"])?;
            // Some kernels default to BBR, which paces; the comparison is with a bulk flow without loss.
            let set = || std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
            namespace.inside(set)?.context("the congestion control of a network namespace cannot be set")?;
        }
        let [server, client] = [[addresses[0].as_str()], [addresses[1].as_str()]];
        netns::veth(1500, [End::kernel("bench0", &server).of(&ends[0]), End::kernel("bench0", &client).of(&ends[1])])?;
        Ok(Namespaces { ends })
    }

    /// Runs one measurement with the server on the first CPU and the client on the second.
    pub fn measure(&self, test: Test, size: u64, duration: Duration, cpus: (usize, usize)) -> anyhow::Result<Outcome> {
        let port = 4000 + (test as u16);
        let address = format!("{SERVER_ADDRESS}:{port}");
        let words = [name_of(test), address, size.to_string(), duration.as_millis().to_string()];
        let program = std::env::current_exe()?;
        let start = |end: usize, role: &str, cpu: usize| {
            let mut command = self.command(end, cpu);
            command.arg(&program).args(["kernel-peer", role]).args(&words);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the kernel peer")
        };
        let mut server = start(0, "server", cpus.0)?;
        let mut ready = [0; 6];
        server.stdout.as_mut().context("the server's output")?.read_exact(&mut ready)?;
        let client = start(1, "client", cpus.1)?;
        let output = client.wait_with_output()?;
        ensure!(output.status.success(), "the kernel peer's client failed");
        server.wait()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A command in the first or second namespace, on a CPU; the program is its first argument.
    pub fn command(&self, end: usize, cpu: usize) -> Command {
        let mut command = self.ends[end].command("taskset");
        command.args(["-c", &cpu.to_string()]);
        command
    }
}
