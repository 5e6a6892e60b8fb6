//! `uwarp-perf pair` runs every test over every device, and every octet that it moves is checked.
//!
//! All combinations of test, size, depth, queue pairs, engine and MTU for each device are too many for every change.
//! The normal run takes a pairwise subset over all devices; the long run (`UWARP_LONG=1`) takes all.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use uwarp_vdev_tests::{count, is_long};

const DEVICES: [&str; 3] = ["virtio", "memif", "af_packet"];
const TESTS: [&str; 9] = [
    "write-latency",
    "read-latency",
    "send-latency",
    "write-bandwidth",
    "read-bandwidth",
    "send-bandwidth",
    "write-rate",
    "raw-latency",
    "raw-bandwidth",
];
const SIZES: [Size; 6] =
    [Size::Octets(1), Size::Octets(64), Size::Edge(-1), Size::Edge(0), Size::Edge(1), Size::ManySegments];
const DEPTHS: [u32; 2] = [1, 64];
const QPS: [u32; 2] = [1, 16];
const ENGINES: [&str; 2] = ["inline", "threaded"];
const MTUS: [u32; 2] = [1500, 9000];

#[derive(Clone, Copy, Debug)]
enum Size {
    Octets(u64),
    /// This many octets more than the longest message that fits into one segment.
    Edge(i64),
    /// 256 KiB, 1 MiB in the long run: a deep pipeline of sixteen queue pairs has a thousand of them under way.
    ManySegments,
}

/// One run, as indices into the columns above.
type Row = [usize; 7];

/// A row as a command line.
#[derive(Debug)]
struct Run {
    device: &'static str,
    test: &'static str,
    size: u64,
    depth: u32,
    qps: u32,
    engine: &'static str,
    mtu: u32,
}

impl Run {
    fn of([device, test, size, depth, qps, engine, mtu]: Row) -> Self {
        let (test, mtu) = (TESTS[test], MTUS[mtu]);
        let size = match SIZES[size] {
            Size::Octets(octets) => octets,
            Size::Edge(more) => (longest_in_a_segment(test, mtu) as i64 + more) as u64,
            Size::ManySegments => count(256 << 10, 1 << 20) as u64,
        };
        Self { device: DEVICES[device], test, size, depth: DEPTHS[depth], qps: QPS[qps], engine: ENGINES[engine], mtu }
    }

    fn iterations(&self) -> u64 {
        if self.test == "raw-bandwidth" {
            // Lost raw frames are not retransmitted: use enough of them that some arrive and can be timed.
            return if self.size > 100_000 { 200 } else { 50_000 };
        }
        // Every queue pair gets its turn, and a deep pipeline fills; for large messages this is the minimum.
        if self.size > 100_000 {
            return (u64::from(self.depth) + 2) * u64::from(self.qps);
        }
        if self.test.ends_with("latency") {
            // On a busy machine one message may take a tenth of a second: it waits for the turns of four threads.
            return (4 * u64::from(self.qps)).max(40);
        }
        40 * u64::from(self.qps) + 2 * u64::from(self.depth)
    }
}

/// Payload of a message that fills one segment: EMSS less 20 octets of IP and TCP headers each, then less MPA's length,
/// CRC and padding (RFC 5044 §4.5), then less the DDP and RDMAP headers, which are longer for untagged messages (RFC
/// 5041 §4).
fn longest_in_a_segment(test: &str, mtu: u32) -> u64 {
    let emss = mtu - 40;
    let mulpdu = emss - (6 + emss % 4);
    u64::from(mulpdu - if test.starts_with("send") { 18 } else { 14 })
}

/// A latency test has one message under way; a raw one has neither queue pairs nor an engine.
fn makes_sense(&[_, test, _, depth, qps, engine, _]: &Row) -> bool {
    let (test, first) = (TESTS[test], (depth == 0, qps == 0 && engine == 0));
    (first.0 || !test.ends_with("latency")) && (first.1 || !test.starts_with("raw"))
}

fn all_rows() -> Vec<Row> {
    let mut rows = vec![[0; 7]];
    let lengths = [DEVICES.len(), TESTS.len(), SIZES.len(), DEPTHS.len(), QPS.len(), ENGINES.len(), MTUS.len()];
    for (column, length) in lengths.into_iter().enumerate() {
        let grown = rows.iter().flat_map(|row| {
            (0..length).map(move |value| {
                let mut row = *row;
                row[column] = value;
                row
            })
        });
        rows = grown.collect();
    }
    rows.retain(makes_sense);
    rows
}

/// The pairs of (column, value) that occur together in a row.
fn pairs(row: &Row) -> impl Iterator<Item = [usize; 4]> {
    (0..row.len()).flat_map(move |a| (a + 1..row.len()).map(move |b| [a, row[a], b, row[b]]))
}

/// Rows that cover all pairs, chosen greedily.
fn covering_rows() -> Vec<Row> {
    let all = all_rows();
    let mut left: HashSet<[usize; 4]> = all.iter().flat_map(pairs).collect();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        // Among equals, prefer the device that has had the fewest.
        let gain = |row: &&Row| {
            let gain = pairs(row).filter(|pair| left.contains(pair)).count();
            let share = chosen.iter().filter(|other: &&Row| other[0] == row[0]).count();
            (gain, std::cmp::Reverse(share))
        };
        let best = *all.iter().max_by_key(gain).expect("there are rows");
        for pair in pairs(&best) {
            left.remove(&pair);
        }
        chosen.push(best);
    }
    chosen
}

/// `uwarp-perf` of the same build as this test; built if a source is newer.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this program's path");
    let folder = own.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let program = folder.join("uwarp-perf");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/vdev");
    let built = program.metadata().and_then(|file| file.modified()).ok();
    let newest =
        ["stack", "apps/common", "apps/uwarp-perf/src"].iter().filter_map(|part| newest(&root.join(part))).max();
    if built.is_none() || newest > built {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--package", "uwarp-perf", "--bin", "uwarp-perf"]).current_dir(root);
        cargo.arg("--target-dir").arg(folder.parent().expect("target"));
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo runs").success(), "uwarp-perf cannot be built");
    }
    program
}

/// When the newest source in a folder was changed; `tests` and `benches` are not part of a program.
fn newest(folder: &Path) -> Option<std::time::SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let changed = entries.filter_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            let skipped = ["tests", "benches", "examples"].iter().any(|name| path.ends_with(name));
            return if skipped { None } else { newest(&path) };
        }
        let source = path.extension().is_some_and(|extension| extension == "rs" || extension == "c");
        if source { entry.metadata().ok()?.modified().ok() } else { None }
    });
    changed.max()
}

fn check(program: &Path, run: &Run) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(["pair", run.test, "--device", run.device, "--verify", "--json", "-"]);
    command.args(["--size", &run.size.to_string(), "--iterations", &run.iterations().to_string()]);
    command.args(["--mtu", &run.mtu.to_string(), "--wait", "60s"]);
    if !run.test.ends_with("latency") {
        command.args(["--depth", &run.depth.to_string()]);
    }
    if !run.test.starts_with("raw") {
        command.args(["--qps", &run.qps.to_string(), "--engine", run.engine]);
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, said.trim()));
    }
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {said}"))?;
    judge(run, &report).map_err(|what| format!("{what} in {report}"))
}

/// Checks that the report is that of the requested run.
fn judge(run: &Run, report: &Value) -> Result<(), String> {
    let expect = |name: &str, value: Value| {
        if report[name] == value { Ok(()) } else { Err(format!("{name} is not {value}")) }
    };
    expect("test", run.test.into())?;
    expect("device", run.device.into())?;
    expect("size", run.size.into())?;
    expect("mtu", run.mtu.into())?;
    if run.test == "raw-bandwidth" {
        let arrived = report["iterations"].as_u64().unwrap_or(0);
        if !(1..=run.iterations()).contains(&arrived) {
            return Err("more messages arrived than were sent, or none".to_owned());
        }
    } else {
        expect("iterations", run.iterations().into())?;
    }
    if !run.test.starts_with("raw") {
        expect("crc", true.into())?;
        expect("engine", run.engine.into())?;
        expect("qps", run.qps.into())?;
        expect("depth", run.depth.into())?;
    }
    if report["verified"].as_u64().is_none_or(|verified| verified == 0) {
        return Err("nothing was verified".to_owned());
    }
    if run.test.ends_with("latency") {
        let latency = |name: &str| report["latency_ns"][name].as_u64().ok_or_else(|| format!("no {name}"));
        let rising = [latency("min")?, latency("p50")?, latency("p99")?, latency("p99_9")?, latency("max")?];
        if !rising.is_sorted() {
            return Err("percentiles do not rise".to_owned());
        }
    } else if [&report["gbit_per_s"], &report["mops"]].iter().any(|rate| rate.as_f64().is_none_or(|rate| rate <= 0.0)) {
        return Err("no rate".to_owned());
    }
    Ok(())
}

fn run_all(device: &str) {
    let program = program();
    let rows = if is_long() { all_rows() } else { covering_rows() };
    let runs: Vec<Run> = rows.into_iter().map(Run::of).filter(|run| run.device == device).collect();
    let failed: Vec<String> = runs
        .iter()
        .filter_map(|run| {
            let start = std::time::Instant::now();
            let outcome = check(&program, run);
            eprintln!("{:?} {run:?}: {}", start.elapsed(), if outcome.is_ok() { "right" } else { "WRONG" });
            outcome.err().map(|error| format!("{run:?}: {error}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} of {} runs failed:\n{}", failed.len(), runs.len(), failed.join("\n"));
}

#[test]
fn over_virtio() {
    run_all("virtio");
}

#[test]
fn over_memif() {
    run_all("memif");
}

#[test]
fn over_af_packet() {
    // At an MTU of 9000 the driver locks more memory than an ordinary user may.
    if uwarp_notes::lacks_root("af_packet with frames of 9000 octets") {
        return;
    }
    run_all("af_packet");
}

#[test]
fn the_normal_run_meets_every_pair() {
    let rows = covering_rows();
    let met: HashSet<_> = rows.iter().flat_map(pairs).collect();
    assert!(all_rows().iter().flat_map(pairs).all(|pair| met.contains(&pair)));
    eprintln!("{} of {} rows", rows.len(), all_rows().len());
}
