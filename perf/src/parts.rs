//! The parts of a round: each measures one thing, with a look at the machine between every two of them.

use std::time::{Duration, Instant};

use anyhow::ensure;
use uwarp_app::measure::Latency;
use uwarp_app::signals;

use crate::foreign::{End, Place, libfabric, ucx};
use crate::kernel::{Namespaces, Test};
use crate::programs::{Report, UwarpPerf};
use crate::record::{Figures, Key, Look, Quantity, Sample, look};

/// What runs, as tables and plots name it.
pub mod names {
    /// `perf/c/raw_pingpong.c`.
    pub const RAW_C: &str = "raw device, in C";
    /// `uwarp-perf raw-*`.
    pub const RAW: &str = "raw device";
    /// `uwarp-perf null-bandwidth`: what every octet costs any stack.
    pub const NULL_PROTOCOL: &str = "null protocol";
    /// The same in frames of 9000 octets.
    pub const NULL_PROTOCOL_9000: &str = "null protocol, MTU 9000";
    /// RDMA Writes.
    pub const WRITE: &str = "Write";
    /// The same in packets of 9000 octets.
    pub const WRITE_9000: &str = "Write, MTU 9000";
    /// Sends.
    pub const SEND: &str = "Send";
    /// RDMA Reads.
    pub const READ: &str = "Read";
    /// A plain stream of uwarp's TCP.
    pub const STREAM: &str = "uwarp's TCP";
    /// The same in packets of 9000 octets.
    pub const STREAM_9000: &str = "uwarp's TCP, MTU 9000";
    /// The kernel's TCP over a veth pair without offloads; both ends poll.
    pub const KERNEL_SPINNING: &str = "kernel TCP, spinning";
    /// The same; both ends sleep.
    pub const KERNEL_BLOCKING: &str = "kernel TCP, blocking";
    /// libfabric over the kernel's TCP.
    pub const LIBFABRIC_TCP: &str = "libfabric tcp";
    /// The same with reliable datagrams.
    pub const LIBFABRIC_RXM: &str = "libfabric tcp;ofi_rxm";
    /// UCX over the kernel's TCP, tagged messages.
    pub const UCX_TAG: &str = "UCX tag";
    /// The same, puts.
    pub const UCX_PUT: &str = "UCX put";
    /// Atomics.
    pub const FETCH_ADD: &str = "FetchAdd";
    /// A null call of RPC-over-RDMA.
    pub const NULL: &str = "null RPC over RDMA";
    /// The same over a plain stream.
    pub const NULL_TCP: &str = "null RPC over a stream";
    /// A call whose data the server writes by RDMA.
    pub const RPC_READ: &str = "RPC read by RDMA";
    /// The same over a plain stream.
    pub const RPC_READ_TCP: &str = "RPC read over a stream";
    /// perftest's tools on uwarp's libraries.
    pub const IB_SEND_LAT: &str = "ib_send_lat";
    /// The same.
    pub const IB_WRITE_LAT: &str = "ib_write_lat";
    /// The same.
    pub const IB_WRITE_BW: &str = "ib_write_bw";
    /// iperf3 over the loopback interface: the kernel's TCP at its best.
    pub const IPERF: &str = "iperf3, loopback";
    /// libfabric on uwarp's libraries.
    pub const LIBFABRIC_VERBS: &str = "libfabric verbs;ofi_rxm";
    /// A Write and one back within one process, which turns the engines itself.
    pub const IN_PROCESS: &str = "Write and back in process";
    /// The same with an engine that has a thread of its own: the program spins on memory, as `ib_write_lat` does.
    pub const IN_PROCESS_THREAD: &str = "Write and back in process, engine thread";
    /// tgt and `iscsi-perf` on uwarp's libraries.
    pub const ISER: &str = "iSER";
    /// The same over the kernel's TCP.
    pub const ISCSI: &str = "iSCSI, kernel TCP";
}

/// How long a run waits for the host if nothing else is asked for.
pub const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// CPUs are apart if a cache line takes this factor of the shortest round trip of the run: half of one is seen now and
/// then where nothing has moved.
const APART: f64 = 3.0;
/// Between two looks at CPUs that the host has moved apart.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The time that a run may wait for the host to move the CPUs together again: parts beside which they are far apart
/// would be dropped.
pub struct Patience {
    left: Duration,
    /// The shortest round trip of a cache line in this run, in nanoseconds.
    shortest: f64,
}

impl Patience {
    /// Waits for so long in the whole run.
    pub fn new(whole: Duration) -> Self {
        Self { left: whole, shortest: f64::INFINITY }
    }

    /// Waits, if the CPUs are apart `now`, until they are not, or the time is over, or `end`. Returns the last look.
    fn until_together(&mut self, cpus: (usize, usize), mut now: Look, end: Option<Instant>) -> Look {
        let mut is_told = false;
        while let Some(line) = now.0 {
            self.shortest = self.shortest.min(line);
            let began = Instant::now();
            let is_over = self.left.is_zero() || end.is_some_and(|end| began > end) || signals::interrupted();
            if line < self.shortest * APART || is_over {
                break;
            }
            if !std::mem::replace(&mut is_told, true) {
                eprintln!("a cache line takes {line:.0} ns, {:.0} before: waiting for the host", self.shortest);
            }
            std::thread::sleep(LOOK_AGAIN);
            now = look(cpus);
            self.left = self.left.saturating_sub(began.elapsed());
        }
        now
    }
}

/// A round of measurements.
pub struct Parts<'a> {
    figures: &'a mut Figures,
    round: u32,
    /// CPUs of server and client.
    pub cpus: (usize, usize),
    /// Length of one part.
    pub duration: Duration,
    /// When the run has to end, if it has to.
    end: Option<Instant>,
    patience: &'a mut Patience,
    before: Look,
}

impl<'a> Parts<'a> {
    /// Begins a round.
    pub fn new(
        figures: &'a mut Figures,
        round: u32,
        cpus: (usize, usize),
        duration: Duration,
        patience: &'a mut Patience,
    ) -> Self {
        Self { figures, round, cpus, duration, end: None, patience, before: look(cpus) }
    }

    /// The same in a run that has to end.
    pub fn until(self, end: Option<Instant>) -> Self {
        Self { end, ..self }
    }

    /// Whether the time for the run is over, so that no further part may begin.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() > end)
    }

    /// The flags of one of uwarp's tools: its CPUs, and `more`.
    pub fn flags(&self, more: &[&str]) -> Vec<String> {
        let mut flags = vec!["--cpus".to_owned(), format!("{},{}", self.cpus.0, self.cpus.1)];
        flags.extend(more.iter().map(ToString::to_string));
        flags
    }

    /// A part begins, as soon as the CPUs are together.
    pub fn begin(&mut self) {
        self.before = self.patience.until_together(self.cpus, self.before, self.end);
    }

    /// Adds the results of the part that has just ended.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn add(&mut self, values: &[(Key, f64)]) -> anyhow::Result<()> {
        signals::check_interrupted()?;
        let after = look(self.cpus);
        for (key, value) in values {
            self.figures.add(key, Sample::new(self.round, *value, self.before, after));
        }
        self.before = after;
        Ok(())
    }

    /// Adds percentiles.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn add_latency(&mut self, what: &str, size: u64, latency: &Latency, mean: Option<f64>) -> anyhow::Result<()> {
        let mut values: Vec<(Key, f64)> = [
            (Quantity::LatencyP50, latency.p50),
            (Quantity::LatencyP99, latency.p99),
            (Quantity::LatencyP999, latency.p99_9),
        ]
        .map(|(quantity, value)| (Key::new(what, quantity, size), value as f64))
        .into();
        values.extend(mean.map(|mean| (Key::new(what, Quantity::LatencyMean, size), mean)));
        self.add(&values)
    }

    /// Runs a part of a foreign program, a second time if it fails, and counts the failure if that fails, too.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn attempt(
        &mut self,
        what: &str,
        size: u64,
        quantities: &[Quantity],
        part: impl Fn(Duration) -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<()> {
        let keys: Vec<Key> = quantities.iter().map(|&quantity| Key::new(what, quantity, size)).collect();
        for attempt in 1..=2 {
            self.begin();
            match part(self.duration) {
                Ok(values) => return self.add(&keys.into_iter().zip(values).collect::<Vec<_>>()),
                Err(_) if signals::interrupted() => break,
                Err(error) => eprintln!("{what}: attempt {attempt} of 2 failed: {error:#}"),
            }
            // What the failed attempt took belongs to no part.
            self.before = look(self.cpus);
        }
        keys.iter().for_each(|key| self.figures.fail(key));
        signals::check_interrupted()?;
        Ok(())
    }

    /// One test of `uwarp-perf`.
    ///
    /// # Errors
    /// It fails.
    pub fn uwarp(
        &mut self,
        perf: &UwarpPerf,
        device: &str,
        what: &str,
        test: &str,
        size: u64,
        more: &[&str],
    ) -> anyhow::Result<Report> {
        self.begin();
        let report = perf.pair(test, device, size, &self.flags(more), self.duration)?;
        if let Some(latency) = &report.latency_ns {
            let mean = (report.iterations > 0).then(|| report.seconds * 1e9 / report.iterations as f64);
            self.add_latency(what, size, latency, mean)?;
        } else {
            let (quantity, value) = if test.ends_with("rate") {
                (Quantity::Rate, report.mops)
            } else {
                (Quantity::Bandwidth, report.gbit_per_s)
            };
            ensure!(value.is_some(), "uwarp-perf pair {test} reports no {quantity}");
            self.add(&value.map(|value| (Key::new(what, quantity, size), value)).into_iter().collect::<Vec<_>>())?;
        }
        Ok(report)
    }

    /// The kernel's TCP.
    ///
    /// # Errors
    /// It fails.
    pub fn kernel(&mut self, namespaces: &Namespaces, test: Test, size: u64) -> anyhow::Result<()> {
        self.begin();
        let outcome = namespaces.measure(test, size, self.duration, self.cpus)?;
        match test {
            Test::SpinningLatency => {
                self.add_latency(names::KERNEL_SPINNING, size, &outcome.latency_ns, Some(outcome.mean_ns))
            }
            Test::BlockingLatency => {
                self.add_latency(names::KERNEL_BLOCKING, size, &outcome.latency_ns, Some(outcome.mean_ns))
            }
            Test::Bandwidth => {
                self.add(&[(Key::new(names::KERNEL_BLOCKING, Quantity::Bandwidth, size), outcome.gbit_per_s)])
            }
        }
    }

    /// The round trip of `fi_pingpong` over a provider.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn libfabric(
        &mut self,
        place: &Place<'_>,
        what: &str,
        provider: &str,
        size: u64,
        adapt: impl Fn(End, usize) -> End,
    ) -> anyhow::Result<()> {
        self.attempt(what, size, &[Quantity::LatencyMean], |duration| {
            Ok(vec![libfabric::round_trip(place, provider, size, duration, &adapt)?])
        })
    }

    /// A round trip of `ucx_perftest`.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn ucx_latency(&mut self, place: &Place<'_>, what: &str, test: &str, size: u64) -> anyhow::Result<()> {
        self.attempt(what, size, &[Quantity::LatencyP50, Quantity::LatencyMean], |duration| {
            let ucx::RoundTrip { p50, mean } = ucx::latency(place, test, size, duration)?;
            Ok(vec![p50, mean])
        })
    }

    /// A bandwidth of `ucx_perftest`.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn ucx_bandwidth(&mut self, place: &Place<'_>, what: &str, test: &str, size: u64) -> anyhow::Result<()> {
        self.attempt(what, size, &[Quantity::Bandwidth], |duration| {
            Ok(vec![ucx::bandwidth(place, test, size, duration)?])
        })
    }
}
