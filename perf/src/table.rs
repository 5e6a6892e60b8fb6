//! A run as text: the machine, every figure with its spread, and one table of ratios.

use comfy_table::Table;
use uwarp_app::output;

use crate::parts::names::*;
use crate::record::{Figures, Key, Machine, Quantity, Ratio, Run, octets};

/// Prints a run.
pub fn print(run: &Run) {
    output::print(text(run));
}

fn text(run: &Run) -> String {
    let machine = run.machine();
    let mut text = format!("{}\n{}\n", run.about, run.what_counts());
    for (device, figures) in &run.devices {
        text += &format!("\n{device}\n{}\n", figures_table(figures, machine));
    }
    let ratios = ratios(run);
    if !ratios.is_empty() {
        let mut table = output::table(["device", "ratio", "of the medians", "round by round", "quartiles", "rounds"]);
        for row in &ratios {
            table.add_row(row.cells());
        }
        output::align_numbers(&mut table, 2);
        text += &format!("\n{table}\n");
    }
    text.truncate(text.trim_end().len());
    text
}

fn figures_table(figures: &Figures, machine: Machine) -> Table {
    let mut table =
        output::table(["figure", "median", "lower quartile", "upper quartile", "kept", "dropped", "failed"]);
    for figure in &figures.0 {
        let kept = figure.kept(machine);
        let [low, median, high] = kept.quartiles().map_or([const { String::new() }; 3], |values| values.map(number));
        let dropped = figure.samples.len() - kept.count();
        table.add_row([
            figure.key.to_string(),
            median,
            low,
            high,
            kept.count().to_string(),
            dropped.to_string(),
            figure.failed.to_string(),
        ]);
    }
    output::align_numbers(&mut table, 1);
    table
}

/// Three significant digits or all before the point.
pub fn number(value: f64) -> String {
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}")
}

/// A ratio with its names.
pub struct Row {
    /// The device.
    pub device: String,
    /// What is divided by what.
    pub name: String,
    /// The figures.
    pub ratio: Ratio,
}

impl Row {
    /// As the columns of a table.
    pub fn cells(&self) -> [String; 6] {
        let Ratio { kept, rounds: [low, median, high], count } = self.ratio;
        [
            self.device.clone(),
            self.name.clone(),
            kept.map_or_else(|| "too few".to_owned(), |kept| format!("{kept:.2} ×")),
            format!("{median:.2} ×"),
            format!("{low:.2} to {high:.2}"),
            count.to_string(),
        ]
    }
}

/// The raw device's figure that ratios are taken of: uwarp-perf's or the C program's, whichever is faster.
fn limit(figures: &Figures, machine: Machine) -> &'static str {
    let [raw, c] = [RAW, RAW_C].map(|what| Key::new(what, Quantity::LatencyP50, 64));
    let is_slower = Ratio::of(figures, &raw, &c, machine).is_some_and(|ratio| ratio.best() > 1.0);
    if is_slower { RAW_C } else { RAW }
}

/// What is divided by what; what both have in common stands once.
fn name(above: &Key, below: &Key) -> String {
    if *above == (Key { queue_pairs: above.queue_pairs, ..below.clone() }) {
        format!(
            "{}: {} with {} queue pairs, of {}",
            above.what,
            above.quantity.name(),
            above.queue_pairs,
            below.queue_pairs
        )
    } else if *above == (Key { what: above.what.clone(), ..below.clone() }) {
        let size = if above.size > 0 { format!(", {}", octets(above.size)) } else { String::new() };
        format!("{} of {}{size}: {}", above.what, below.what, above.quantity.name())
    } else {
        format!("{above}, of {below}")
    }
}

/// All ratios for which the run has both figures, device by device.
pub fn ratios(run: &Run) -> Vec<Row> {
    let machine = run.machine();
    let mut rows = Vec::new();
    for (device, figures) in &run.devices {
        let mut add = |above: Key, below: Key| {
            if let Some(ratio) = Ratio::of(figures, &above, &below, machine) {
                rows.push(Row { device: device.clone(), name: name(&above, &below), ratio });
            }
        };
        for (above, below, quantity, size) in same_quantity(limit(figures, machine)) {
            add(Key::new(above, quantity, size), Key::new(below, quantity, size));
        }
        add(Key::new(RAW, Quantity::LatencyP50, 64), Key::new(RAW_C, Quantity::LatencyP50, 64));
        add(Key::new(IB_SEND_LAT, Quantity::LatencyP50, 64), Key::new(LIBFABRIC_RXM, Quantity::LatencyMean, 64));
        add(Key::new(NULL, Quantity::LatencyP50, 0), Key::new(SEND, Quantity::LatencyP50, 64));
        for figure in &figures.0 {
            if figure.key.quantity == Quantity::Cost && figure.key.queue_pairs > 1 {
                add(figure.key.clone(), Key { queue_pairs: 1, ..figure.key.clone() });
            }
        }
    }
    rows
}

/// What is divided by what: the quantity and the size are those of both.
fn same_quantity(raw: &'static str) -> Vec<(&'static str, &'static str, Quantity, u64)> {
    use Quantity::{Bandwidth, ClientCpu, Cost, Iops, LatencyMean, LatencyP50, ServerCpu};
    let of_raw = [WRITE, SEND, READ].map(|what| (what, raw, LatencyP50, 64));
    of_raw
        .into_iter()
        .chain([
            (READ, WRITE, LatencyP50, 64),
            (FETCH_ADD, READ, LatencyP50, 8),
            (WRITE, KERNEL_SPINNING, LatencyP50, 64),
            (STREAM, KERNEL_SPINNING, LatencyP50, 64),
            (WRITE, KERNEL_BLOCKING, LatencyP50, 64),
            (WRITE, UCX_TAG, LatencyP50, 64),
            (WRITE, UCX_PUT, LatencyP50, 64),
            (WRITE, LIBFABRIC_TCP, LatencyMean, 64),
            (SEND, LIBFABRIC_RXM, LatencyMean, 64),
            (WRITE, NULL_PROTOCOL, Bandwidth, 1 << 16),
            (WRITE_9000, NULL_PROTOCOL_9000, Bandwidth, 1 << 16),
            (STREAM_9000, NULL_PROTOCOL_9000, Bandwidth, 1 << 16),
            (STREAM, NULL_PROTOCOL, Bandwidth, 1 << 16),
            (WRITE, KERNEL_BLOCKING, Bandwidth, 1 << 16),
            (STREAM, KERNEL_BLOCKING, Bandwidth, 1 << 16),
            (WRITE, UCX_TAG, Bandwidth, 1 << 16),
            (WRITE, UCX_PUT, Bandwidth, 1 << 16),
            (NULL_TCP, NULL, LatencyP50, 0),
            (RPC_READ, WRITE, Bandwidth, 1 << 20),
            (RPC_READ, RPC_READ_TCP, Bandwidth, 1 << 20),
            (IB_SEND_LAT, SEND, LatencyP50, 64),
            (IB_WRITE_BW, WRITE, Bandwidth, 1 << 16),
            (IB_WRITE_LAT, WRITE, LatencyP50, 64),
            (LIBFABRIC_VERBS, LIBFABRIC_RXM, LatencyMean, 64),
            (IB_WRITE_BW, IPERF, Bandwidth, 1 << 16),
            (LIBFABRIC_VERBS, UCX_TAG, LatencyMean, 64),
            (LIBFABRIC_VERBS, KERNEL_SPINNING, LatencyMean, 64),
            (IN_PROCESS_THREAD, IN_PROCESS, Cost, 64),
            (ISER, ISCSI, Iops, 4 << 10),
            (ISER, ISCSI, Bandwidth, 256 << 10),
        ])
        .chain(
            [4 << 10, 256 << 10]
                .into_iter()
                .flat_map(|size| [ClientCpu, ServerCpu].map(|cpu| (ISER, ISCSI, cpu, size))),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::record::{About, Sample};

    fn run(values: &[(&str, f64)]) -> Run {
        let mut figures = Figures::default();
        let look = (Some(100.0), Some(1000.0));
        for &(what, value) in values {
            for round in 1..=3 {
                figures.add(&Key::new(what, Quantity::LatencyP50, 64), Sample::new(round, value, look, look));
            }
        }
        Run { about: About::here(), devices: [("memif".to_owned(), figures)].into() }
    }

    fn names(run: &Run) -> Vec<String> {
        ratios(run).into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn ratios_are_of_the_faster_of_the_two_raw_figures() {
        let slower_c = run(&[(RAW_C, 500.0), (RAW, 400.0), (WRITE, 800.0)]);
        assert_eq!(names(&slower_c), ["Write of raw device, 64 B: p50", "raw device of raw device, in C, 64 B: p50"]);
        assert_eq!(ratios(&slower_c)[0].cells()[2], "2.00 ×");
        let slower_perf = run(&[(RAW_C, 400.0), (RAW, 440.0), (WRITE, 800.0)]);
        assert_eq!(names(&slower_perf)[0], "Write of raw device, in C, 64 B: p50");
        assert_eq!(ratios(&slower_perf)[0].cells()[2], "2.00 ×");
    }

    #[test]
    fn failures_and_dropped_samples_are_counted_in_the_table() {
        let mut run = run(&[(WRITE, 800.0), (UCX_TAG, 9000.0)]);
        let figures = run.devices.get_mut("memif").expect("the device");
        let key = Key::new(UCX_TAG, Quantity::LatencyP50, 64);
        figures.fail(&key);
        let far = (Some(500.0), Some(1000.0));
        figures.add(&key, Sample::new(4, 9000.0, far, far));
        let text = text(&run);
        let row = text.lines().find(|line| line.contains("UCX tag, 64 B: p50 ns")).expect("a row");
        let cells: Vec<&str> = row.trim_matches('│').split_whitespace().rev().take(3).collect();
        assert_eq!(cells, ["1", "1", "3"], "failed, dropped and kept: {row}");
    }

    #[test]
    fn the_recorded_baselines_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("baselines");
        for (file, ratio) in [
            ("near-cores.json", "Write of kernel TCP, spinning, 64 B: p50"),
            ("rpc.json", "RPC read by RDMA of Write, 1 MiB: bandwidth"),
        ] {
            let run = Run::read(&folder.join(file)).expect("a recorded run");
            assert!(text(&run).contains(ratio), "{file} has no {ratio}");
        }
    }
}
