//! The measured programs: `uwarp-perf` and `uwarp-rpc` in this program's directory, and the C ping-pong built from
//! perf/c.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use uwarp_app::measure::Latency;

/// The used part of the output of `uwarp-perf --json`.
#[derive(Debug, Deserialize)]
pub struct Report {
    /// Round trips or times from post to completion.
    pub latency_ns: Option<Latency>,
    /// Payload.
    pub gbit_per_s: Option<f64>,
    /// Operations.
    pub mops: Option<f64>,
    /// Messages that were timed.
    pub iterations: u64,
    /// How long they took.
    pub seconds: f64,
}

/// The used part of the output of `uwarp-rpc --json`.
#[derive(Debug, Deserialize)]
pub struct RpcReport {
    /// From the start of a call to its end.
    pub latency_ns: Latency,
    /// Payload.
    pub gbit_per_s: Option<f64>,
    /// Milliseconds of CPU time for each MiB.
    pub cpu_ms_per_mib: Option<CpuTime>,
}

/// CPU time of each side.
#[derive(Debug, Deserialize)]
pub struct CpuTime {
    /// The client's.
    pub client: f64,
    /// The server's.
    pub server: f64,
}

/// A program in this program's directory.
struct Neighbour {
    name: &'static str,
    path: PathBuf,
}

impl Neighbour {
    fn find(name: &'static str) -> anyhow::Result<Self> {
        let path = std::env::current_exe()?.with_file_name(name);
        ensure!(path.exists(), "{} does not exist: run cargo build --release -p {name}", path.display());
        Ok(Self { name, path })
    }

    /// Runs `pair TEST` once over `device`, and parses its output.
    fn pair<Read: serde::de::DeserializeOwned>(
        &self,
        test: &str,
        device: &str,
        more: &[String],
        duration: Duration,
    ) -> anyhow::Result<Read> {
        let name = self.name;
        let output = Command::new(&self.path)
            .args(["pair", test, "--device", device, "--json", "-"])
            .args(["--duration", &format!("{}ms", duration.as_millis())])
            .args(more)
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!("{name} pair {test} over {device}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("{name} pair {test} printed no report: {}", String::from_utf8_lossy(&output.stdout))
        })
    }
}

/// `uwarp-perf`.
pub struct UwarpPerf(Neighbour);

impl UwarpPerf {
    /// Finds it.
    pub fn find() -> anyhow::Result<Self> {
        Neighbour::find("uwarp-perf").map(Self)
    }

    /// Runs `pair TEST` once.
    pub fn pair(
        &self,
        test: &str,
        device: &str,
        size: u64,
        more: &[String],
        duration: Duration,
    ) -> anyhow::Result<Report> {
        let size = ["--size".to_owned(), size.to_string()];
        self.0.pair(test, device, &[&size[..], more].concat(), duration)
    }
}

/// This program, as a process of its own.
pub struct UwarpBench(PathBuf);

impl UwarpBench {
    /// Finds it.
    pub fn find() -> anyhow::Result<Self> {
        std::env::current_exe().map(Self).context("cannot find this program's own file")
    }

    /// Nanoseconds of one operation of `in-process WORK` of 64 octets over so many queue pairs, on some CPUs.
    pub fn in_process(&self, work: &str, queue_pairs: u32, cpus: &[usize], more: &[&str]) -> anyhow::Result<f64> {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let output = Command::new("taskset")
            .args(["-c", &cpus.join(",")])
            .arg(&self.0)
            .args(["in-process", work, "--json", "--iterations", IN_PROCESS, "--qps", &queue_pairs.to_string()])
            .args(more)
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "uwarp-bench in-process {work} --qps {queue_pairs}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let report: InProcess = serde_json::from_slice(&output.stdout).context("the report of in-process")?;
        Ok(report.ns_each)
    }
}

/// Operations of `in-process`: each of 10,000 queue pairs is used at least twice.
const IN_PROCESS: &str = "1000000";

/// What `in-process --json` prints.
#[derive(Debug, Serialize, Deserialize)]
pub struct InProcess {
    /// Nanoseconds of one operation.
    pub ns_each: f64,
}

/// `uwarp-rpc`.
pub struct UwarpRpc(Neighbour);

impl UwarpRpc {
    /// Finds it.
    pub fn find() -> anyhow::Result<Self> {
        Neighbour::find("uwarp-rpc").map(Self)
    }

    /// Runs `pair TEST` once over one transport.
    pub fn pair(
        &self,
        test: &str,
        device: &str,
        transport: &str,
        more: &[String],
        duration: Duration,
    ) -> anyhow::Result<RpcReport> {
        let transport = ["--transport".to_owned(), transport.to_owned()];
        let reports: Vec<RpcReport> = self.0.pair(test, device, &[&transport[..], more].concat(), duration)?;
        reports.into_iter().next().with_context(|| format!("uwarp-rpc pair {test} has no result"))
    }
}

/// The C program that only calls bursts. It shows that the raw figure is not limited by our code.
pub struct RawC {
    program: PathBuf,
}

impl RawC {
    /// Builds it with the system's compiler into `folder`.
    pub fn build(folder: &Path) -> anyhow::Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/raw_pingpong.c");
        let program = folder.join("raw_pingpong");
        let flags =
            Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output().context("pkg-config")?;
        let flags = String::from_utf8(flags.stdout)?;
        let status = Command::new("cc")
            .args(["-O3", "-o"])
            .arg(&program)
            .arg(source)
            .args(flags.split_whitespace())
            .status()
            .context("cannot run cc")?;
        ensure!(status.success(), "the C ping-pong does not build");
        Ok(Self { program })
    }

    /// Round trips in nanoseconds of a frame of [`WRITE_OF_64`] octets over `device`; `None` if the program does not
    /// support the device.
    pub fn pair(&self, device: &str, cpus: (usize, usize)) -> anyhow::Result<Option<Latency>> {
        let device = match device {
            "memif" => "memif",
            // The default of `uwarp-perf`.
            "virtio" => "virtio-packed",
            _ => return Ok(None),
        };
        let output = Command::new(&self.program)
            .args(["--device", device, "--size", WRITE_OF_64, "--iterations", "1000000"])
            .args(["--cpus", &format!("{},{}", cpus.0, cpus.1)])
            .stdin(Stdio::null())
            .output()?;
        ensure!(output.status.success(), "the C ping-pong: {}", String::from_utf8_lossy(&output.stderr).trim());
        let report: RawReport = serde_json::from_slice(&output.stdout).context("the C ping-pong's report")?;
        Ok(Some(report.latency_ns))
    }
}

/// Octets of the frame that carries a Write of 64 octets: Ethernet 14, IP and TCP 40, FPDU 84. It is the default of
/// `uwarp-perf raw-latency`.
const WRITE_OF_64: &str = "138";

#[derive(Deserialize)]
struct RawReport {
    latency_ns: Latency,
}
