//! Everything in turn, several rounds, medians and ratios.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::kernel::{Namespaces, Test};
use crate::programs::{RawC, UwarpPerf};

/// A part is thrown away when a cache line's round trip changed by more than this factor around it: the host has moved a
/// CPU, and everything measured meanwhile belongs to two machines.
const STEADY: f64 = 1.5;
/// The raw figure must come this close to the C program's before a ratio to it means anything.
const HONEST: f64 = 1.2;

/// What to compare, and how often.
#[derive(Args)]
pub struct Options {
    /// Devices, one after the other
    #[arg(long, value_delimiter = ',', default_value = "virtio,memif")]
    device: Vec<String>,
    /// Rounds of A B A B; medians are over the rounds that the machine left alone
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one part in milliseconds
    #[arg(long, default_value_t = 1000)]
    milliseconds: u64,
    /// CPUs of the two ends
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "0,1")]
    cpus: Vec<usize>,
    /// Leave the kernel's TCP out (it needs root for its namespaces)
    #[arg(long)]
    no_kernel: bool,
    /// Also write every sample and the medians here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Samples of one figure, in the unit that its name ends with.
#[derive(Default, Serialize)]
struct Figure {
    samples: Vec<f64>,
    dropped: usize,
}

impl Figure {
    fn median(&self) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        (!sorted.is_empty()).then(|| sorted[sorted.len() / 2])
    }
}

type Figures = BTreeMap<String, Figure>;

/// Runs the comparison.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.rounds >= 1, "--rounds must be at least 1");
    let perf = UwarpPerf::find()?;
    let folder = tempfile::tempdir()?;
    let c = RawC::build(folder.path())?;
    let kernel = if options.no_kernel { None } else { Some(Namespaces::new()?) };
    let cpus = (options.cpus[0], options.cpus[1]);
    let duration = Duration::from_millis(options.milliseconds);
    let flags = ["--cpus".to_owned(), format!("{},{}", cpus.0, cpus.1)];

    let mut all = BTreeMap::new();
    for device in &options.device {
        let mut figures = Figures::new();
        for round in 1..=options.rounds {
            eprintln!("{device}: round {round} of {}", options.rounds);
            match c.pair(device, cpus)? {
                Some(p50_ns) => figures.entry("C raw latency, p50 ns".into()).or_default().samples.push(p50_ns),
                None => eprintln!("{device}: the C program does not know this device"),
            }
            for (name, test, size, more) in PARTS {
                let more = [&flags[..], &more.iter().map(ToString::to_string).collect::<Vec<_>>()].concat();
                let report = perf.pair(test, device, *size, &more, duration)?;
                let steady = report
                    .cacheline_ns
                    .as_ref()
                    .is_none_or(|line| line.before.max(line.after) <= STEADY * line.before.min(line.after));
                let (suffix, value) = match (&report.latency_ns, test.ends_with("latency"), test.ends_with("rate")) {
                    (Some(latency), true, _) => ("p50 ns", Some(latency.p50)),
                    (_, _, true) => ("M/s", report.mops),
                    _ => ("Gbit/s", report.gbit_per_s),
                };
                let figure = figures.entry(format!("{name}, {suffix}")).or_default();
                match value {
                    Some(value) if steady => figure.samples.push(value),
                    _ => figure.dropped += 1,
                }
            }
            if let Some(kernel) = &kernel {
                let outcome = kernel.measure(Test::Latency, 64, duration, cpus)?;
                figures.entry("kernel TCP spinning, p50 ns".into()).or_default().samples.push(outcome.p50_ns);
                let outcome = kernel.measure(Test::Bandwidth, 1 << 16, duration, cpus)?;
                figures.entry("kernel TCP no offloads, Gbit/s".into()).or_default().samples.push(outcome.gbit_per_s);
            }
        }
        print(device, &figures);
        all.insert(device.clone(), figures);
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&all)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Name, test of `uwarp-perf`, message size, further flags.
const PARTS: &[(&str, &str, usize, &[&str])] = &[
    ("raw latency", "raw-latency", 64, &[]),
    ("Write latency", "write-latency", 64, &[]),
    ("Send latency", "send-latency", 64, &[]),
    ("Read latency", "read-latency", 64, &[]),
    ("raw bandwidth MTU 1500", "raw-bandwidth", 1460, &[]),
    ("Write bandwidth MTU 1500", "write-bandwidth", 65_536, &["--depth", "64"]),
    ("stream latency", "stream-latency", 64, &[]),
    ("stream bandwidth MTU 1500", "stream-bandwidth", 65_536, &[]),
    ("Write bandwidth MTU 9000", "write-bandwidth", 65_536, &["--depth", "64", "--mtu", "9000"]),
    ("Write rate", "write-rate", 64, &["--depth", "64"]),
];

fn print(device: &str, figures: &Figures) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(["figure", "median", "min", "max", "kept", "dropped"]);
    for column in 1..6 {
        table.column_mut(column).expect("the header has it").set_cell_alignment(CellAlignment::Right);
    }
    for (name, figure) in figures {
        let of = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        table.add_row([
            name.clone(),
            of(figure.median()),
            of(figure.samples.iter().copied().reduce(f64::min)),
            of(figure.samples.iter().copied().reduce(f64::max)),
            figure.samples.len().to_string(),
            figure.dropped.to_string(),
        ]);
    }
    println!("{device}\n{table}");
    let median = |name: &str| figures.get(name).and_then(Figure::median);
    let honest = match (median("C raw latency, p50 ns"), median("raw latency, p50 ns")) {
        (Some(c), Some(raw)) if raw > HONEST * c => {
            println!("no ratio to the raw device: it is {:.2} x the C program's, more than {HONEST}", raw / c);
            false
        }
        _ => true,
    };
    let ratio = |what: &str, of: &str| {
        if let (Some(above), Some(below)) = (median(what), median(of)) {
            println!("{:5.2} x  {what}, of {of}", above / below);
        }
    };
    if honest {
        for name in ["Write latency, p50 ns", "Send latency, p50 ns", "Read latency, p50 ns"] {
            ratio(name, "raw latency, p50 ns");
        }
    }
    ratio("kernel TCP spinning, p50 ns", "Write latency, p50 ns");
    ratio("kernel TCP spinning, p50 ns", "stream latency, p50 ns");
    ratio("Write bandwidth MTU 1500, Gbit/s", "kernel TCP no offloads, Gbit/s");
    ratio("stream bandwidth MTU 1500, Gbit/s", "kernel TCP no offloads, Gbit/s");
}
