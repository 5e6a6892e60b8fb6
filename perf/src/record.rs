//! A recorded run: every sample, the machine that it was taken on, and which samples count.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use uwarp_app::cacheline;
use uwarp_app::units::format_size;

/// The host of a virtual machine moves its CPUs, and a measurement on CPUs at another distance is one of another
/// machine. So only those parts are compared around which a cache line's round trip stayed within this factor of one
/// value: the value that covers the most parts of the run.
pub const SAME: f64 = 1.25;
/// And only those around which the same arithmetic took no longer than this factor of the fastest time of the run.
/// Otherwise another guest shares a core, which slows a path of many instructions by half, and one that waits for cache
/// lines not at all.
pub const UNDISTURBED: f64 = 1.12;
/// If a cache line's round trip changed by this factor around two parts, the host has moved the CPUs in between.
const MOVED: f64 = 2.0;
/// Fewer parts than this yield no ratio of medians.
const ENOUGH: usize = 3;

/// One run.
#[derive(Serialize, Deserialize)]
pub struct Run {
    /// Where and how it was measured.
    pub about: About,
    /// The figures by device.
    pub devices: BTreeMap<String, Figures>,
}

/// Where and how a run was measured.
#[derive(Clone, Serialize, Deserialize)]
pub struct About {
    /// The processor's name.
    pub processor: String,
    /// CPUs that the run could use.
    pub cpus: usize,
    /// The operating system's kernel.
    pub kernel: String,
    /// uwarp's version, how it was compiled, and its CRC and copy kernels.
    pub build: String,
    /// Rounds that were completed, and the length of one part.
    pub rounds: String,
    /// What was not measured, with the reason.
    pub left_out: Vec<String>,
}

impl About {
    /// This machine and this build.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        let profile = if cfg!(debug_assertions) { "debug build: its times mean nothing" } else { "release build" };
        Self {
            processor,
            cpus: cacheline::usable().len(),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            build: format!("uwarp {}, {profile}, kernels {}", uwarp::VERSION, uwarp_memory::kernels::selected()),
            rounds: String::new(),
            left_out: Vec::new(),
        }
    }
}

impl fmt::Display for About {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cpus, kernel, build, rounds, left_out } = self;
        write!(formatter, "{processor}, {cpus} CPUs, {kernel}; {build}; {rounds}")?;
        left_out.iter().try_for_each(|reason| write!(formatter, "\nleft out: {reason}"))
    }
}

/// What a figure is a figure of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What ran.
    pub what: String,
    /// What of it was measured.
    pub quantity: Quantity,
    /// Octets of a message.
    pub size: u64,
    /// Queue pairs, or connections.
    pub queue_pairs: u32,
}

impl Key {
    /// A figure of one connection.
    pub fn new(what: &str, quantity: Quantity, size: u64) -> Self {
        Self { what: what.to_owned(), quantity, size, queue_pairs: 1 }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.what)?;
        if self.size > 0 {
            write!(formatter, ", {}", octets(self.size))?;
        }
        if self.queue_pairs != 1 {
            write!(formatter, ", {} queue pairs", self.queue_pairs)?;
        }
        write!(formatter, ": {}", self.quantity)
    }
}

/// A number of octets as people write it: `64 B`, `64 KiB`.
pub fn octets(size: u64) -> String {
    let text = format_size(size);
    match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) => format!("{number} {}iB", &text[number.len()..]),
        None => format!("{text} B"),
    }
}

/// What is measured. Latencies are full round trips, or from a post to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Median latency in nanoseconds.
    LatencyP50,
    /// 99th percentile of the latency in nanoseconds.
    LatencyP99,
    /// 99.9th percentile of the latency in nanoseconds.
    LatencyP999,
    /// Mean latency in nanoseconds.
    LatencyMean,
    /// Payload in 10^9 bit/s.
    Bandwidth,
    /// 10^6 messages per second.
    Rate,
    /// 10^3 reads of a disk per second.
    Iops,
    /// Nanoseconds for each operation.
    Cost,
    /// CPU time of the client in microseconds for each MiB.
    ClientCpu,
    /// CPU time of the server in microseconds for each MiB.
    ServerCpu,
}

impl Quantity {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::LatencyP50 => "p50",
            Self::LatencyP99 => "p99",
            Self::LatencyP999 => "p99.9",
            Self::LatencyMean => "mean",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
            Self::Iops => "IOPS",
            Self::Cost => "cost",
            Self::ClientCpu => "client's CPU",
            Self::ServerCpu => "server's CPU",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::LatencyP50 | Self::LatencyP99 | Self::LatencyP999 | Self::LatencyMean | Self::Cost => "ns",
            Self::Bandwidth => "Gbit/s",
            Self::Rate => "M/s",
            Self::Iops => "k/s",
            Self::ClientCpu | Self::ServerCpu => "µs/MiB",
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.name(), self.unit())
    }
}

/// One part's outcome.
#[derive(Serialize, Deserialize)]
pub struct Sample {
    /// The round, from 1.
    pub round: u32,
    /// In the unit of the figure's quantity.
    pub value: f64,
    /// A cache line's round trip between the two CPUs, before and after; none on one CPU.
    pub cacheline_ns: Option<[f64; 2]>,
    /// Fixed arithmetic on both CPUs at once, before and after; none if a CPU cannot be used.
    pub arithmetic_ns: Option<[f64; 2]>,
}

/// The round trip of a cache line, and the time of the arithmetic.
pub type Look = (Option<f64>, Option<f64>);

/// Looks at the machine.
pub fn look(cpus: (usize, usize)) -> Look {
    (cacheline::round_trip(cpus.0, cpus.1), cacheline::arithmetic(cpus.0, cpus.1))
}

impl Sample {
    /// A value of a round, with the machine's condition around it.
    pub fn new(round: u32, value: f64, before: Look, after: Look) -> Self {
        let both = |before: Option<f64>, after| before.zip(after).map(|(before, after)| [before, after]);
        Self { round, value, cacheline_ns: both(before.0, after.0), arithmetic_ns: both(before.1, after.1) }
    }
}

/// Whether the CPUs moved around two parts.
fn have_moved(one: &Sample, other: &Sample) -> bool {
    let lines = || one.cacheline_ns.into_iter().chain(other.cacheline_ns).flatten();
    lines().any(|line| lines().any(|longer| longer >= line * MOVED))
}

/// The condition of the machine around a part that counts.
#[derive(Clone, Copy)]
pub struct Machine {
    /// Round trip of a cache line in nanoseconds, within [`SAME`].
    pub cacheline_ns: f64,
    /// Quickest arithmetic in nanoseconds.
    pub arithmetic_ns: f64,
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

    /// Whether a sample was taken in this condition.
    pub fn had(&self, sample: &Sample) -> bool {
        let near = |line: f64| line <= self.cacheline_ns * SAME && line >= self.cacheline_ns / SAME;
        let quick = |time: f64| time <= self.arithmetic_ns * UNDISTURBED;
        sample.cacheline_ns.is_none_or(|times| times.into_iter().all(near))
            && sample.arithmetic_ns.is_none_or(|times| times.into_iter().all(quick))
    }
}

/// The results of one part in all rounds.
#[derive(Serialize, Deserialize)]
pub struct Figure {
    /// What it is a figure of.
    #[serde(flatten)]
    pub key: Key,
    /// One of each round in which the part succeeded.
    pub samples: Vec<Sample>,
    /// Rounds in which the program failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What is left of a figure's samples, ascending.
pub struct Kept(Vec<f64>);

impl Kept {
    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Lower quartile, median and upper quartile; none if nothing is left.
    pub fn quartiles(&self) -> Option<[f64; 3]> {
        quartiles(&self.0)
    }
}

/// Of an ascending list; none of an empty one.
fn quartiles(values: &[f64]) -> Option<[f64; 3]> {
    let count = values.len();
    let at = |index: usize| values.get(index).copied();
    Some([at(count / 4)?, at(count / 2)?, at(3 * count / 4)?])
}

impl Figure {
    /// The measurements on `machine`.
    pub fn kept(&self, machine: Machine) -> Kept {
        let mut values: Vec<f64> =
            self.samples.iter().filter(|sample| machine.had(sample)).map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        Kept(values)
    }
}

/// Figures in the order in which they were measured.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(pub Vec<Figure>);

impl Figures {
    /// The figure of a key.
    pub fn get(&self, key: &Key) -> Option<&Figure> {
        self.0.iter().find(|figure| figure.key == *key)
    }

    fn entry(&mut self, key: &Key) -> &mut Figure {
        let at = self.0.iter().position(|figure| figure.key == *key).unwrap_or_else(|| {
            self.0.push(Figure { key: key.clone(), samples: Vec::new(), failed: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Adds a sample.
    pub fn add(&mut self, key: &Key, sample: Sample) {
        self.entry(key).samples.push(sample);
    }

    /// Counts a failure.
    pub fn fail(&mut self, key: &Key) {
        self.entry(key).failed += 1;
    }
}

/// One figure divided by another of the same run.
pub struct Ratio {
    /// Of the medians of the parts that count; none if there are too few.
    pub kept: Option<f64>,
    /// Lower quartile, median and upper quartile of the ratios of single rounds. The parts of a round are close in
    /// time, so other load on the machine mostly slows both.
    pub rounds: [f64; 3],
    /// How many rounds those are: all that have both figures and in which the CPUs did not move. If they moved in each,
    /// all that have both.
    pub count: usize,
}

impl Ratio {
    /// `None` if no round has both.
    pub fn of(figures: &Figures, above: &Key, below: &Key, machine: Machine) -> Option<Self> {
        let (above, below) = (figures.get(above)?, figures.get(below)?);
        let median = |figure: &Figure| {
            let kept = figure.kept(machine);
            kept.quartiles().map(|[_, median, _]| median).filter(|_| kept.count() >= ENOUGH)
        };
        let kept = median(above).zip(median(below)).map(|(above, below)| above / below);
        let below: BTreeMap<u32, &Sample> = below.samples.iter().map(|sample| (sample.round, sample)).collect();
        let both: Vec<(&Sample, &Sample)> =
            above.samples.iter().filter_map(|sample| Some((sample, *below.get(&sample.round)?))).collect();
        let in_place: Vec<_> = both.iter().filter(|(above, below)| !have_moved(above, below)).collect();
        let counted = if in_place.is_empty() { both.iter().collect() } else { in_place };
        let mut each: Vec<f64> = counted.into_iter().map(|(above, below)| above.value / below.value).collect();
        each.sort_by(f64::total_cmp);
        Some(Self { kept, rounds: quartiles(&each)?, count: each.len() })
    }

    /// The best estimate: of the medians, or if too few parts count, of the rounds.
    pub fn best(&self) -> f64 {
        self.kept.unwrap_or(self.rounds[1])
    }
}

impl Run {
    /// Reads what `--json` recorded.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a run that --json of this version recorded", path.display()))
    }

    fn samples(&self) -> Vec<&Sample> {
        self.devices.values().flat_map(|figures| &figures.0).flat_map(|figure| &figure.samples).collect()
    }

    /// The condition of the machine in which most parts were measured.
    pub fn machine(&self) -> Machine {
        Machine::of(&self.samples())
    }

    /// How many samples were kept and dropped, and why, in a sentence.
    pub fn what_counts(&self) -> String {
        let (machine, samples) = (self.machine(), self.samples());
        let kept = samples.iter().filter(|sample| machine.had(sample)).count();
        let mut text = format!("{kept} of {} samples are kept, {} dropped", samples.len(), samples.len() - kept);
        let Machine { cacheline_ns, arithmetic_ns } = machine;
        if cacheline_ns > 0.0 {
            let (low, high) = (cacheline_ns / SAME, cacheline_ns * SAME);
            text += &format!(": kept are those around which a cache line's round trip was {low:.0} to {high:.0} ns");
        }
        if arithmetic_ns > 0.0 {
            text += &format!(", and the same arithmetic took at most {:.0} ns", arithmetic_ns * UNDISTURBED);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: &[(&str, u32, f64, f64)]) -> Figures {
        let mut figures = Figures::default();
        for &(what, round, value, line) in values {
            let look = (Some(line), Some(100.0));
            figures.add(&Key::new(what, Quantity::LatencyP50, 64), Sample::new(round, value, look, look));
        }
        figures
    }

    fn key(what: &str) -> Key {
        Key::new(what, Quantity::LatencyP50, 64)
    }

    #[test]
    fn parts_at_another_distance_are_dropped() {
        let figures = figures(&[("a", 1, 10.0, 100.0), ("a", 2, 50.0, 500.0), ("a", 3, 12.0, 110.0)]);
        let run = Run { about: About::here(), devices: [("memif".to_owned(), figures)].into() };
        let kept = run.devices["memif"].0[0].kept(run.machine());
        assert_eq!((kept.count(), kept.quartiles()), (2, Some([10.0, 12.0, 12.0])));
        assert!(run.what_counts().starts_with("2 of 3 samples are kept, 1 dropped"), "{}", run.what_counts());
    }

    #[test]
    fn a_round_without_one_of_the_two_yields_no_ratio_and_shifts_no_other() {
        let figures = figures(&[
            ("a", 1, 10.0, 100.0),
            ("a", 2, 20.0, 100.0),
            ("a", 3, 30.0, 100.0),
            ("b", 1, 10.0, 100.0),
            ("b", 3, 10.0, 100.0),
        ]);
        let run = Run { about: About::here(), devices: [("memif".to_owned(), figures)].into() };
        let ratio =
            Ratio::of(&run.devices["memif"], &key("a"), &key("b"), run.machine()).expect("two rounds have both");
        assert_eq!((ratio.count, ratio.rounds), (2, [1.0, 3.0, 3.0]));
        assert!(ratio.kept.is_none(), "two samples are too few for a ratio of medians");
        assert!(Ratio::of(&run.devices["memif"], &key("a"), &key("c"), run.machine()).is_none());
    }

    #[test]
    fn a_round_in_which_the_cpus_moved_yields_no_ratio_unless_they_moved_in_each() {
        let rounds = |samples: &[(&str, u32, f64, f64)]| {
            let run = Run { about: About::here(), devices: [("memif".to_owned(), figures(samples))].into() };
            let ratio = Ratio::of(&run.devices["memif"], &key("a"), &key("b"), run.machine()).expect("a ratio");
            (ratio.count, ratio.rounds)
        };
        let samples = [
            ("a", 1, 10.0, 100.0),
            ("b", 1, 5.0, 100.0),
            ("a", 2, 50.0, 500.0),
            ("b", 2, 5.0, 100.0),
            ("a", 3, 60.0, 450.0),
            ("b", 3, 20.0, 510.0),
        ];
        assert_eq!(rounds(&samples), (2, [2.0, 3.0, 3.0]));
        assert_eq!(rounds(&samples[2..4]), (1, [10.0; 3]));
    }

    #[test]
    fn a_key_reads_well() {
        let mut key = Key::new("Write", Quantity::LatencyP999, 65_536);
        assert_eq!(key.to_string(), "Write, 64 KiB: p99.9 ns");
        key.queue_pairs = 10;
        assert_eq!(key.to_string(), "Write, 64 KiB, 10 queue pairs: p99.9 ns");
    }
}
