//! `compare`: runs everything in turn, in several rounds.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use uwarp_app::output;
use uwarp_app::units::parse_duration;

use crate::foreign::{self, Place, libfabric, ucx};
use crate::kernel::{Namespaces, Test};
use crate::parts::names::*;
use crate::parts::{PATIENCE, Parts, Patience};
use crate::programs::{RawC, UwarpBench, UwarpPerf, UwarpRpc};
use crate::record::{About, Figures, Key, Quantity, Run};
use crate::{page, table};

/// How long `--quick` may take, less one part. A round begins only if it will probably end before.
const QUICK: Duration = Duration::from_secs(165);

/// What to compare, and how often.
#[derive(Args)]
pub struct Options {
    /// Devices, one after another [default: virtio,memif; with --quick virtio]
    #[arg(long, value_delimiter = ',')]
    device: Vec<String>,
    #[command(flatten)]
    common: Common,
    /// End in three minutes: fewer sizes, and at most three rounds
    #[arg(long)]
    quick: bool,
    /// Leave out the kernel's TCP, libfabric and UCX (their namespaces need root)
    #[arg(long)]
    no_kernel: bool,
    /// Compare RPC over RDMA instead: with bare operations of the same size, and with RPC over a TCP stream
    #[arg(long)]
    rpc: bool,
    /// Measure nothing; take a run that --json wrote
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    from: Option<PathBuf>,
}

/// What all comparisons take.
#[derive(Args)]
pub struct Common {
    /// Rounds of A B A B; medians are over the parts during which the CPUs had their usual distance and did not share
    /// their cores [default: 15; verbs 9; with --quick at most 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Length of one part: the shorter, the less the machine changes in it [default: 300ms; with --quick 100ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Wait so long in all for the host of a virtual machine to move the two CPUs together again [default: 15min; with
    /// --quick not at all]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub patience: Option<Duration>,
    /// CPUs of the two ends
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "0,1")]
    pub cpus: Vec<usize>,
    /// Install missing Debian packages of the programs to compare with (needs root)
    #[arg(long)]
    pub install: bool,
    /// Also write every sample and the machine's condition around it here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write a page with tables and plots here, for a browser
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Common {
    /// The CPUs of server and client.
    pub fn pair(&self) -> (usize, usize) {
        (self.cpus[0], self.cpus[1])
    }

    /// Prints a run, and writes it where the options say.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn publish(&self, run: &Run) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            output::write_json(path, run)?;
        }
        if let Some(path) = &self.html {
            std::fs::write(path, page::page(run)?).with_context(|| format!("cannot write {}", path.display()))?;
        }
        table::print(run);
        Ok(())
    }
}

/// Runs the comparison.
///
/// # Errors
/// A program is missing or fails, or the run is interrupted.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(path) = &options.from {
        return options.common.publish(&Run::read(path)?);
    }
    let common = &options.common;
    let perf = UwarpPerf::find()?;
    let folder = tempfile::tempdir()?;
    let mut about = About::here();
    let peers = if options.rpc {
        Peers::Calls(UwarpRpc::find()?)
    } else {
        Peers::Operations(Operations::find(options, folder.path(), &mut about)?)
    };
    let (rounds, duration) = if options.quick { (3, 100) } else { (15, 300) };
    let (rounds, duration) =
        (common.rounds.unwrap_or(rounds), common.duration.unwrap_or(Duration::from_millis(duration)));
    let devices = match (&options.device[..], options.quick) {
        ([], true) => vec!["virtio".to_owned()],
        ([], false) => vec!["virtio".to_owned(), "memif".to_owned()],
        (named, _) => named.to_vec(),
    };

    let mut run = Run { about, devices: devices.iter().map(|device| (device.clone(), Figures::default())).collect() };
    let end = options.quick.then(|| Instant::now() + QUICK);
    let mut patience = Patience::new(common.patience.unwrap_or(if options.quick { Duration::ZERO } else { PATIENCE }));
    let mut completed = 0;
    let mut longest = Duration::ZERO;
    while completed < rounds {
        if end.is_some_and(|end| Instant::now() + longest > end) {
            run.about.left_out.push(format!("{} of {rounds} rounds, for want of time", rounds - completed));
            break;
        }
        completed += 1;
        let start = Instant::now();
        for device in &devices {
            eprintln!("{device}: round {completed} of {rounds}");
            let figures = run.devices.entry(device.clone()).or_default();
            let mut parts = Parts::new(figures, completed, common.pair(), duration, &mut patience).until(end);
            match &peers {
                Peers::Calls(rpc) => measure_calls(&mut parts, device, &perf, rpc)?,
                Peers::Operations(operations) => operations.measure(&mut parts, device, &perf)?,
            }
            if parts.is_over() {
                run.about.left_out.push(format!("the last parts of round {completed} over {device}, for want of time"));
            }
        }
        longest = longest.max(start.elapsed());
    }
    run.about.rounds = format!("rounds: {completed}, parts of {} ms", duration.as_millis());
    common.publish(&run)
}

/// The references for uwarp's own operations.
enum Peers {
    /// C on the raw device, the kernel's TCP, libfabric and UCX.
    Operations(Operations),
    /// Calls over RDMA and over a stream.
    Calls(UwarpRpc),
}

/// What a comparison of operations consists of.
struct Operations {
    c: RawC,
    bench: UwarpBench,
    kernel: Option<Namespaces>,
    libfabric: bool,
    ucx: bool,
    folder: PathBuf,
    sweeps: &'static Sweeps,
}

/// What is varied.
struct Sweeps {
    /// Octets of a message whose latency is measured, 64 first.
    latency: &'static [u64],
    /// Octets of a message whose bandwidth is measured.
    bandwidth: &'static [u64],
    /// Queue pairs between two processes.
    queue_pairs: &'static [u32],
    /// Queue pairs within one process.
    in_process: &'static [u32],
}

// Powers of four, as the plots' axes have them.
const FULL: Sweeps = Sweeps {
    latency: &[64, 1 << 10, 1 << 12, 1 << 14, 1 << 16],
    bandwidth: &[1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 20],
    queue_pairs: &[1, 10, 100, 1_000, 10_000],
    in_process: &[1, 10, 100, 1_000, 10_000],
};
const SHORT: Sweeps = Sweeps {
    latency: &[64, 1 << 12, 1 << 16],
    bandwidth: &[1 << 12, 1 << 16, 1 << 20],
    queue_pairs: &[1, 100],
    in_process: &[1, 100, 10_000],
};

/// Name, test of `uwarp-perf`, message size, further flags: what is not part of a sweep.
const SINGLE: &[(&str, &str, u64, &[&str])] = &[
    (RAW, "raw-latency", 64, &[]),
    (SEND, "send-latency", 64, &[]),
    (READ, "read-latency", 64, &[]),
    (READ, "read-latency", 8, &[]),
    (FETCH_ADD, "atomic-latency", 8, &[]),
    ("Write and Commit, memory", "commit-latency", 64, &["--plain"]),
    ("Write and Commit, file", "commit-latency", 64, &[]),
    (RAW, "raw-bandwidth", 1460, &[]),
    (STREAM, "stream-latency", 64, &[]),
    (STREAM, "stream-bandwidth", 1 << 16, &[]),
    (NULL_PROTOCOL_9000, "null-bandwidth", 1 << 16, &["--mtu", "9000"]),
    (WRITE_9000, "write-bandwidth", 1 << 16, &["--depth", "64", "--mtu", "9000"]),
    (STREAM_9000, "stream-bandwidth", 1 << 16, &["--mtu", "9000"]),
    (WRITE, "write-rate", 64, &["--depth", "64"]),
];

impl Operations {
    fn find(options: &Options, folder: &Path, about: &mut About) -> anyhow::Result<Self> {
        let install = options.common.install;
        let mut there = [false; 2];
        let kernel = if options.no_kernel {
            about.left_out.push("the kernel's TCP, libfabric and UCX: --no-kernel".to_owned());
            None
        } else {
            let programs = [(libfabric::PROGRAM, libfabric::PACKAGE), (ucx::PROGRAM, ucx::PACKAGE)];
            for (is_there, (program, package)) in there.iter_mut().zip(programs) {
                match foreign::find(program, package, install)? {
                    Ok(()) => *is_there = true,
                    Err(reason) => {
                        eprintln!("{reason}");
                        about.left_out.push(reason);
                    }
                }
            }
            Some(Namespaces::new()?)
        };
        Ok(Self {
            c: RawC::build(folder)?,
            bench: UwarpBench::find()?,
            kernel,
            libfabric: there[0],
            ucx: there[1],
            folder: folder.to_owned(),
            sweeps: if options.quick { &SHORT } else { &FULL },
        })
    }

    /// One round over one device.
    fn measure(&self, parts: &mut Parts<'_>, device: &str, perf: &UwarpPerf) -> anyhow::Result<()> {
        parts.begin();
        match self.c.pair(device, parts.cpus)? {
            Some(latency) => parts.add_latency(RAW_C, 64, &latency, None)?,
            None => eprintln!("{device}: the C program does not know this device"),
        }
        for (what, test, size, more) in SINGLE {
            if parts.is_over() {
                return Ok(());
            }
            parts.uwarp(perf, device, what, test, *size, more)?;
        }
        // What is compared is close in time: all of one size, one after another.
        for &size in self.sweeps.latency {
            if parts.is_over() {
                return Ok(());
            }
            parts.uwarp(perf, device, WRITE, "write-latency", size, &[])?;
            self.peers_latency(parts, size)?;
        }
        for &size in self.sweeps.bandwidth {
            if parts.is_over() {
                return Ok(());
            }
            if size == 1 << 16 {
                parts.uwarp(perf, device, NULL_PROTOCOL, "null-bandwidth", size, &[])?;
            }
            parts.uwarp(perf, device, WRITE, "write-bandwidth", size, &["--depth", "64"])?;
            self.peers_bandwidth(parts, size)?;
        }
        self.queue_pairs(parts, device, perf)
    }

    fn place<'a>(&'a self, kernel: &'a Namespaces, parts: &Parts<'_>) -> Place<'a> {
        Place { namespaces: kernel, cpus: parts.cpus, folder: &self.folder }
    }

    fn peers_latency(&self, parts: &mut Parts<'_>, size: u64) -> anyhow::Result<()> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let place = self.place(kernel, parts);
        parts.kernel(kernel, Test::SpinningLatency, size)?;
        if size == 64 {
            parts.kernel(kernel, Test::BlockingLatency, size)?;
        }
        if self.libfabric {
            parts.libfabric(&place, LIBFABRIC_TCP, "tcp", size, |end, _| end)?;
            if size == 64 {
                parts.libfabric(&place, LIBFABRIC_RXM, "tcp;ofi_rxm", size, |end, _| end)?;
            }
        }
        if self.ucx {
            parts.ucx_latency(&place, UCX_TAG, "tag_lat", size)?;
            if size == 64 {
                parts.ucx_latency(&place, UCX_PUT, "ucp_put_lat", size)?;
            }
        }
        Ok(())
    }

    fn peers_bandwidth(&self, parts: &mut Parts<'_>, size: u64) -> anyhow::Result<()> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let place = self.place(kernel, parts);
        parts.kernel(kernel, Test::Bandwidth, size)?;
        if self.ucx {
            parts.ucx_bandwidth(&place, UCX_TAG, "tag_bw", size)?;
            if size == 1 << 16 {
                parts.ucx_bandwidth(&place, UCX_PUT, "ucp_put_bw", size)?;
            }
        }
        Ok(())
    }

    /// What one Write of 64 octets costs, with more and more queue pairs: between two processes over the device, and
    /// both ends in one thread without one.
    fn queue_pairs(&self, parts: &mut Parts<'_>, device: &str, perf: &UwarpPerf) -> anyhow::Result<()> {
        let key = |what: &str, queue_pairs| Key { queue_pairs, ..Key::new(what, Quantity::Cost, 64) };
        for &queue_pairs in self.sweeps.queue_pairs {
            if parts.is_over() {
                return Ok(());
            }
            let count = queue_pairs.to_string();
            parts.begin();
            let flags = parts.flags(&["--depth", "32", "--qps", &count]);
            let rate = perf.pair("write-rate", device, 64, &flags, parts.duration)?.mops.context("no rate")?;
            parts.add(&[(key("Write, depth 32", queue_pairs), 1e3 / rate)])?;
        }
        for &queue_pairs in self.sweeps.in_process {
            if parts.is_over() {
                return Ok(());
            }
            parts.begin();
            let each = self.bench.in_process("write-stream", queue_pairs, &[parts.cpus.0], &[])?;
            parts.add(&[(key("Write in process, bursts of 32", queue_pairs), each)])?;
        }
        Ok(())
    }
}

/// One round of calls over one device, each beside the figure that it is compared with. The data of a call comes from
/// the server, so the Writes go the same way: their client has the server's end of the device.
fn measure_calls(parts: &mut Parts<'_>, device: &str, perf: &UwarpPerf, rpc: &UwarpRpc) -> anyhow::Result<()> {
    let duration = parts.duration;
    // The messages of a null call have 68 octets one way and 52 the other.
    parts.uwarp(perf, device, SEND, "send-latency", 64, &[])?;
    for (transport, what) in [("rdma", NULL), ("tcp", NULL_TCP)] {
        parts.begin();
        let report = rpc.pair("null", device, transport, &parts.flags(&[]), duration)?;
        parts.add_latency(what, 0, &report.latency_ns, None)?;
    }
    parts.uwarp(perf, device, WRITE, "write-bandwidth", 1 << 20, &["--depth", UNDER_WAY, "--exchange-ends"])?;
    for (transport, what) in [("rdma", RPC_READ), ("tcp", RPC_READ_TCP)] {
        parts.begin();
        let report =
            rpc.pair("get", device, transport, &parts.flags(&["--size", "1M", "--depth", UNDER_WAY]), duration)?;
        let cpu = report.cpu_ms_per_mib.context("no CPU time")?;
        let key = |quantity| Key::new(what, quantity, 1 << 20);
        parts.add(&[
            (key(Quantity::Bandwidth), report.gbit_per_s.context("no bandwidth")?),
            (key(Quantity::ClientCpu), 1e3 * cpu.client),
            (key(Quantity::ServerCpu), 1e3 * cpu.server),
        ])?;
    }
    Ok(())
}

/// Depth in MiB of Writes, and of calls that cause them: enough to keep the link busy. Each call has its own memory,
/// and more of them exceed the second-level cache.
const UNDER_WAY: &str = "4";
