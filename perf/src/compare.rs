//! Runs everything in turn, in several rounds, and prints medians and ratios.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use uwarp_app::cacheline;
use uwarp_app::units::parse_duration;

use crate::kernel::{Namespaces, Test};
use crate::programs::{RawC, UwarpPerf, UwarpRpc};

/// The host of a virtual machine moves its CPUs, and a measurement on CPUs at another distance is one of another
/// machine. So only those parts are compared around which a cache line's round trip stayed within this factor of one
/// value: the value that covers the most parts of the run.
const SAME: f64 = 1.25;
/// And only those around which the same arithmetic took no longer than this factor of the fastest time of the run.
/// Otherwise another guest shares a core, which slows a path of many instructions by half, and one that waits for cache
/// lines not at all.
const UNDISTURBED: f64 = 1.12;
/// Fewer parts than this yield no ratio of medians.
const ENOUGH: usize = 3;
/// The raw figure must be within this factor of the C program's before a ratio to it is meaningful.
const HONEST: f64 = 1.2;

/// What to compare, and how often.
#[derive(Args)]
pub struct Options {
    /// Devices, one after another
    #[arg(long, value_delimiter = ',', default_value = "virtio,memif")]
    device: Vec<String>,
    /// Rounds of A B A B; medians are over the parts during which the CPUs had their usual distance and did not share
    /// their cores
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of one part: the shorter, the less the machine changes in it
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse_duration)]
    duration: Duration,
    /// CPUs of the two ends
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "0,1")]
    cpus: Vec<usize>,
    /// Leave out the kernel's TCP (its namespaces need root)
    #[arg(long)]
    no_kernel: bool,
    /// Compare RPC over RDMA instead: with bare operations of the same size, and with RPC over a TCP stream
    #[arg(long)]
    rpc: bool,
    /// Also write every sample and the medians here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure nothing; print a file written with --json
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    from: Option<PathBuf>,
}

/// One part's outcome.
#[derive(Serialize, Deserialize)]
struct Sample {
    /// In the unit at the end of the figure's name.
    value: f64,
    /// A cache line's round trip between the two CPUs, before and after; none on one CPU.
    cacheline_ns: Option<[f64; 2]>,
    /// Fixed arithmetic on both CPUs at once, before and after; none in older recorded runs.
    #[serde(default)]
    arithmetic_ns: Option<[f64; 2]>,
}

/// The round trip of a cache line, and the time of the arithmetic.
type Look = (Option<f64>, Option<f64>);

/// Looks at the machine.
fn look(cpus: (usize, usize)) -> Look {
    (cacheline::round_trip(cpus.0, cpus.1), cacheline::arithmetic(cpus.0, cpus.1))
}

impl Sample {
    fn new(value: f64, before: Look, after: Look) -> Self {
        let both = |before: Option<f64>, after| before.zip(after).map(|(before, after)| [before, after]);
        Self { value, cacheline_ns: both(before.0, after.0), arithmetic_ns: both(before.1, after.1) }
    }
}

/// The condition of the machine around a part that counts.
#[derive(Clone, Copy)]
struct Machine {
    /// Round trip of a cache line in nanoseconds, within [`SAME`].
    cacheline_ns: f64,
    /// Quickest arithmetic in nanoseconds.
    arithmetic_ns: f64,
}

impl Machine {
    /// The condition in which most of the parts were measured.
    fn of(samples: &[&Sample]) -> Self {
        let arithmetic_ns = samples
            .iter()
            .filter_map(|sample| sample.arithmetic_ns)
            .flatten()
            .min_by(f64::total_cmp)
            .unwrap_or_default();
        let kept = |machine: &Self| samples.iter().filter(|sample| machine.had(sample)).count();
        samples
            .iter()
            .filter_map(|sample| sample.cacheline_ns)
            .flatten()
            .map(|cacheline_ns| Self { cacheline_ns, arithmetic_ns })
            .max_by_key(kept)
            // On one CPU there is no distance.
            .unwrap_or(Self { cacheline_ns: 0.0, arithmetic_ns })
    }

    fn had(&self, sample: &Sample) -> bool {
        let near = |line: f64| line <= self.cacheline_ns * SAME && line >= self.cacheline_ns / SAME;
        let quick = |time: f64| time <= self.arithmetic_ns * UNDISTURBED;
        sample.cacheline_ns.is_none_or(|times| times.into_iter().all(near))
            && sample.arithmetic_ns.is_none_or(|times| times.into_iter().all(quick))
    }
}

/// The results of one part in all rounds.
#[derive(Default, Serialize, Deserialize)]
struct Figure(Vec<Sample>);

impl Figure {
    /// The measurements on `machine`, ascending.
    fn kept(&self, machine: Machine) -> Vec<f64> {
        let mut values: Vec<f64> =
            self.0.iter().filter(|sample| machine.had(sample)).map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

/// One figure divided by another of the same run.
struct Ratio {
    /// Of the medians of the parts that count; none if there are too few.
    kept: Option<f64>,
    /// Of all rounds.
    rounds: Rounds,
}

/// The ratios of single rounds: the parts of a round are close in time, so other load on the machine mostly slows both.
struct Rounds {
    count: usize,
    /// Lower quartile, median and upper quartile of the rounds' own ratios.
    quartiles: [f64; 3],
}

impl Ratio {
    /// `None` if the run has not both.
    fn of(figures: &Figures, above: &str, below: &str, machine: Machine) -> Option<Self> {
        let (above, below) = (figures.get(above)?, figures.get(below)?);
        let median = |figure: &Figure| {
            let kept = figure.kept(machine);
            middle(&kept).filter(|_| kept.len() >= ENOUGH)
        };
        let kept = median(above).zip(median(below)).map(|(above, below)| above / below);
        let mut each: Vec<f64> = above.0.iter().zip(&below.0).map(|(above, below)| above.value / below.value).collect();
        each.sort_by(f64::total_cmp);
        let count = each.len();
        let quartiles = [count / 4, count / 2, 3 * count / 4].map(|at| each.get(at).copied().unwrap_or(f64::NAN));
        Some(Self { kept, rounds: Rounds { count, quartiles } })
    }
}

/// The median of a sorted list.
fn middle(kept: &[f64]) -> Option<f64> {
    kept.get(kept.len() / 2).copied()
}

type Figures = BTreeMap<String, Figure>;

/// Runs the comparison.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(path) = &options.from {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        show(&serde_json::from_str(&text).with_context(|| format!("{} is not a recorded run", path.display()))?);
        return Ok(());
    }
    let perf = UwarpPerf::find()?;
    let folder = tempfile::tempdir()?;
    let peers = if options.rpc {
        Peers::Calls(UwarpRpc::find()?)
    } else {
        let kernel = if options.no_kernel { None } else { Some(Namespaces::new()?) };
        Peers::Operations(RawC::build(folder.path())?, kernel)
    };

    let mut all = BTreeMap::new();
    for device in &options.device {
        let mut figures = Figures::new();
        for round in 1..=options.rounds {
            eprintln!("{device}: round {round} of {}", options.rounds);
            let mut part = Parts::new(options, &mut figures);
            match &peers {
                Peers::Calls(rpc) => measure_calls(&mut part, device, &perf, rpc)?,
                Peers::Operations(c, kernel) => measure(&mut part, device, &perf, c, kernel.as_ref())?,
            }
        }
        all.insert(device.clone(), figures);
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&all)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    show(&all);
    Ok(())
}

/// Prints a run, device by device.
fn show(all: &BTreeMap<String, Figures>) {
    let samples: Vec<&Sample> = all.values().flat_map(BTreeMap::values).flat_map(|figure| &figure.0).collect();
    let machine = Machine::of(&samples);
    if machine.cacheline_ns > 0.0 {
        println!(
            "kept are the {} of {} parts around which a cache line's round trip was {:.0} to {:.0} ns",
            samples.iter().filter(|sample| machine.had(sample)).count(),
            samples.len(),
            machine.cacheline_ns / SAME,
            machine.cacheline_ns * SAME,
        );
    }
    if machine.arithmetic_ns > 0.0 {
        println!("and the same arithmetic took at most {:.0} ns", machine.arithmetic_ns * UNDISTURBED);
    }
    for (device, figures) in all {
        print(device, figures, machine);
    }
}

/// The references for uwarp's own operations.
enum Peers {
    /// C on the raw device, and the kernel's TCP.
    Operations(RawC, Option<Namespaces>),
    /// Calls over RDMA and over a stream.
    Calls(UwarpRpc),
}

/// The parts of a round, with the machine's condition between every two of them.
struct Parts<'a> {
    figures: &'a mut Figures,
    cpus: (usize, usize),
    duration: Duration,
    before: Look,
}

impl<'a> Parts<'a> {
    fn new(options: &Options, figures: &'a mut Figures) -> Self {
        let cpus = (options.cpus[0], options.cpus[1]);
        Self { figures, cpus, duration: options.duration, before: look(cpus) }
    }

    /// The flags of a tool: its CPUs, and `more`.
    fn flags(&self, more: &[&str]) -> Vec<String> {
        let mut flags = vec!["--cpus".to_owned(), format!("{},{}", self.cpus.0, self.cpus.1)];
        flags.extend(more.iter().map(ToString::to_string));
        flags
    }

    /// Adds the results of the part that has just ended.
    fn add(&mut self, values: &[(&str, f64)]) {
        let after = look(self.cpus);
        for (name, value) in values {
            self.figures.entry((*name).to_owned()).or_default().0.push(Sample::new(*value, self.before, after));
        }
        self.before = after;
    }
}

/// One round over one device.
fn measure(
    parts: &mut Parts<'_>,
    device: &str,
    perf: &UwarpPerf,
    c: &RawC,
    kernel: Option<&Namespaces>,
) -> anyhow::Result<()> {
    let (cpus, duration) = (parts.cpus, parts.duration);
    match c.pair(device, cpus)? {
        Some(p50_ns) => parts.add(&[("C raw latency, p50 ns", p50_ns)]),
        None => eprintln!("{device}: the C program does not know this device"),
    }
    for (name, test, size, more) in PARTS {
        let report = perf.pair(test, device, *size, &parts.flags(more), duration)?;
        let (suffix, value) = match (&report.latency_ns, test.ends_with("latency"), test.ends_with("rate")) {
            (Some(latency), true, _) => ("p50 ns", Some(latency.p50)),
            (_, _, true) => ("M/s", report.mops),
            _ => ("Gbit/s", report.gbit_per_s),
        };
        let value = value.with_context(|| format!("uwarp-perf pair {test} reports no {suffix}"))?;
        parts.add(&[(&format!("{name}, {suffix}"), value)]);
    }
    if let Some(kernel) = kernel {
        let outcome = kernel.measure(Test::Latency, 64, duration, cpus)?;
        parts.add(&[("kernel TCP spinning, p50 ns", outcome.p50_ns)]);
        let outcome = kernel.measure(Test::Bandwidth, 1 << 16, duration, cpus)?;
        parts.add(&[("kernel TCP no offloads, Gbit/s", outcome.gbit_per_s)]);
    }
    Ok(())
}

/// One round of calls over one device, each beside the figure that it is compared with. The data of a call comes from
/// the server, so the Writes go the same way: their client has the server's end of the device.
fn measure_calls(parts: &mut Parts<'_>, device: &str, perf: &UwarpPerf, rpc: &UwarpRpc) -> anyhow::Result<()> {
    let duration = parts.duration;
    // The messages of a null call have 68 octets one way and 52 the other.
    let latency =
        perf.pair("send-latency", device, 64, &parts.flags(&[]), duration)?.latency_ns.context("no latency")?;
    parts.add(&[(SEND, latency.p50)]);
    for (transport, name) in [("rdma", NULL), ("tcp", NULL_TCP)] {
        let report = rpc.pair("null", device, transport, &parts.flags(&[]), duration)?;
        parts.add(&[(name, report.latency_ns.p50)]);
    }
    let one_way = parts.flags(&["--depth", UNDER_WAY, "--exchange-ends"]);
    let rate = perf.pair("write-bandwidth", device, 1 << 20, &one_way, duration)?.gbit_per_s;
    parts.add(&[(WRITE, rate.context("no bandwidth")?)]);
    for (transport, name) in [("rdma", READ), ("tcp", READ_TCP)] {
        let report =
            rpc.pair("get", device, transport, &parts.flags(&["--size", "1M", "--depth", UNDER_WAY]), duration)?;
        let cpu = report.cpu_ms_per_mib.context("no CPU time")?;
        let what = name.trim_end_matches(", Gbit/s");
        parts.add(&[
            (name, report.gbit_per_s.context("no bandwidth")?),
            (&format!("{what}, client's CPU µs/MiB"), 1e3 * cpu.client),
            (&format!("{what}, server's CPU µs/MiB"), 1e3 * cpu.server),
        ]);
    }
    Ok(())
}

/// Depth in MiB of Writes, and of calls that cause them: enough to keep the link busy. Each call has its own memory,
/// and more of them exceed the second-level cache.
const UNDER_WAY: &str = "4";
const SEND: &str = "Send latency, p50 ns";
const NULL: &str = "null RPC over RDMA, p50 ns";
const NULL_TCP: &str = "null RPC over a stream, p50 ns";
const WRITE: &str = "Write bandwidth 1 MiB, Gbit/s";
const READ: &str = "RPC read 1 MiB by RDMA, Gbit/s";
const READ_TCP: &str = "RPC read 1 MiB over a stream, Gbit/s";

/// Name, test of `uwarp-perf`, message size, further flags.
const PARTS: &[(&str, &str, usize, &[&str])] = &[
    ("raw latency", "raw-latency", 64, &[]),
    ("Write latency", "write-latency", 64, &[]),
    ("Send latency", "send-latency", 64, &[]),
    ("Read latency", "read-latency", 64, &[]),
    ("Read of 8 octets latency", "read-latency", 8, &[]),
    ("atomic latency", "atomic-latency", 8, &[]),
    ("Write and Commit latency, memory", "commit-latency", 64, &["--plain"]),
    ("Write and Commit latency, file", "commit-latency", 64, &[]),
    ("raw bandwidth MTU 1500", "raw-bandwidth", 1460, &[]),
    ("Write bandwidth MTU 1500", "write-bandwidth", 65_536, &["--depth", "64"]),
    ("stream latency", "stream-latency", 64, &[]),
    ("stream bandwidth MTU 1500", "stream-bandwidth", 65_536, &[]),
    ("Write bandwidth MTU 9000", "write-bandwidth", 65_536, &["--depth", "64", "--mtu", "9000"]),
    ("Write rate", "write-rate", 64, &["--depth", "64"]),
];

fn print(device: &str, figures: &Figures, machine: Machine) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["figure", "median", "min", "max", "kept", "dropped"]);
    for column in 1..6 {
        table.column_mut(column).expect("the header has it").set_cell_alignment(CellAlignment::Right);
    }
    for (name, figure) in figures {
        let kept = figure.kept(machine);
        let of = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        table.add_row([
            name.clone(),
            of(middle(&kept)),
            of(kept.first().copied()),
            of(kept.last().copied()),
            kept.len().to_string(),
            (figure.0.len() - kept.len()).to_string(),
        ]);
    }
    println!("{device}\n{table}");
    let mut ratios = Table::new();
    ratios.load_style(presets::UTF8_FULL_CONDENSED);
    ratios.set_header(["ratio", "of the medians", "round by round", "quartiles", "rounds"]);
    for column in 1..5 {
        ratios.column_mut(column).expect("the header has it").set_cell_alignment(CellAlignment::Right);
    }
    let mut ratio = |what: &str, of: &str| {
        let Some(Ratio { kept, rounds: Rounds { count, quartiles: [low, median, high] } }) =
            Ratio::of(figures, what, of, machine)
        else {
            return;
        };
        ratios.add_row([
            format!("{what}, of {of}"),
            kept.map_or_else(|| "-".to_owned(), |kept| format!("{kept:.2} x")),
            format!("{median:.2} x"),
            format!("{low:.2} to {high:.2}"),
            count.to_string(),
        ]);
    };
    const RAW: &str = "raw latency, p50 ns";
    const C: &str = "C raw latency, p50 ns";
    ratio(RAW, C);
    // If too few parts count, by the rounds.
    let honest = Ratio::of(figures, RAW, C, machine);
    match honest.map(|raw| raw.kept.unwrap_or(raw.rounds.quartiles[1])) {
        Some(raw) if raw > HONEST => {
            println!("no ratio to the raw device: it is {raw:.2} x the C program's, more than {HONEST}");
        }
        _ => {
            for name in ["Write latency, p50 ns", "Send latency, p50 ns", "Read latency, p50 ns"] {
                ratio(name, RAW);
            }
        }
    }
    ratio("atomic latency, p50 ns", "Read of 8 octets latency, p50 ns");
    ratio(NULL, SEND);
    ratio(NULL_TCP, NULL);
    ratio(READ, WRITE);
    ratio(READ, READ_TCP);
    ratio("kernel TCP spinning, p50 ns", "Write latency, p50 ns");
    ratio("kernel TCP spinning, p50 ns", "stream latency, p50 ns");
    ratio("Write bandwidth MTU 1500, Gbit/s", "kernel TCP no offloads, Gbit/s");
    ratio("stream bandwidth MTU 1500, Gbit/s", "kernel TCP no offloads, Gbit/s");
    if ratios.row_count() > 0 {
        println!("{ratios}");
    }
}
