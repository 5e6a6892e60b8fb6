//! `verbs`: unmodified RDMA programs on uwarp's libibverbs and librdmacm. First as `uwarp-run` runs them, on a switch,
//! beside programs over the kernel's TCP; then on a device of their own, each beside the native tool that does the
//! same.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;

use crate::compare::Common;
use crate::foreign::iperf;
use crate::foreign::iscsi::{self, Load, Transport};
use crate::foreign::perftest::{self, DropIn};
use crate::foreign::{self, Place, iterations, libfabric, ucx};
use crate::kernel::{Namespaces, Test};
use crate::parts::names::*;
use crate::parts::{PATIENCE, Parts, Patience};
use crate::programs::{UwarpBench, UwarpPerf};
use crate::record::{About, Figures, Key, Quantity, Run};

/// Rounds and length of a part if the command line has none: nine rounds take about eight minutes.
const ROUNDS: u32 = 9;
const DURATION: Duration = Duration::from_millis(300);
/// CPUs for `ib_write_lat`, which polls memory at both ends beside two engine threads.
const CPUS_OF_WRITE_LATENCY: usize = 4;

/// What to measure.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// Where `scripts/verbs-lib` has put the libraries [default: verbs, beside this program]
    #[arg(long, value_name = "FOLDER")]
    libraries: Option<PathBuf>,
}

/// Runs the comparison.
///
/// # Errors
/// A library or a program is missing, one of uwarp's own tools fails, or the run is interrupted.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let common = &options.common;
    let (perf, bench) = (UwarpPerf::find()?, UwarpBench::find()?);
    let mut about = About::here();
    let libraries = match &options.libraries {
        Some(folder) => folder.clone(),
        None => std::env::current_exe()?.with_file_name("verbs"),
    };
    ensure!(
        libraries.join("libibverbs.so.1").exists(),
        "there is no libibverbs.so.1 in {}: run scripts/verbs-lib, or name its folder with --libraries",
        libraries.display()
    );
    // Programs start in a folder of their own.
    let libraries = libraries.canonicalize()?;
    let missing: Vec<String> = [
        (IB_SEND_LAT, perftest::PACKAGE),
        (libfabric::PROGRAM, libfabric::PACKAGE),
        (ucx::PROGRAM, ucx::PACKAGE),
        (iscsi::TARGET, iscsi::TARGET_PACKAGE),
        (iscsi::PROGRAM, iscsi::PACKAGE),
        (iperf::PROGRAM, iperf::PACKAGE),
    ]
    .into_iter()
    .map(|(program, package)| foreign::find(program, package, common.install))
    .filter_map(|found| found.map(Result::err).transpose())
    .collect::<anyhow::Result<_>>()?;
    if !missing.is_empty() {
        bail!("{}", missing.join("; "));
    }
    let with_write_latency = about.cpus >= CPUS_OF_WRITE_LATENCY;
    if !with_write_latency {
        let reason = format!(
            "ib_write_lat: it polls memory beside an engine thread at each end and needs {CPUS_OF_WRITE_LATENCY} CPUs; \
             there are {}",
            about.cpus
        );
        eprintln!("left out: {reason}");
        about.left_out.push(reason);
    }
    let (rounds, duration) = (common.rounds.unwrap_or(ROUNDS), common.duration.unwrap_or(DURATION));
    let folder = tempfile::tempdir()?;
    let namespaces = Namespaces::new()?;
    let place = Place { namespaces: &namespaces, cpus: common.pair(), folder: folder.path() };
    let switched = DropIn::on_switch(&libraries, folder.path())?;
    let drop_in = DropIn::new(&libraries, folder.path())?;
    let (mut of_switch, mut figures) = (Figures::default(), Figures::default());
    let mut patience = Patience::new(common.patience.unwrap_or(PATIENCE));
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        let mut parts = Parts::new(&mut of_switch, round, common.pair(), duration, &mut patience);
        measure_default(&mut parts, &place, &switched)?;
        let mut parts = Parts::new(&mut figures, round, common.pair(), duration, &mut patience);
        measure(&mut parts, &perf, &place, &drop_in, with_write_latency)?;
        for (what, cpus, more) in [
            (IN_PROCESS, &[common.pair().0][..], &[][..]),
            (IN_PROCESS_THREAD, &[common.pair().0, common.pair().1], &["--engine-thread"]),
        ] {
            parts.begin();
            let each = bench.in_process("write-ping-pong", 1, cpus, more)?;
            parts.add(&[(Key::new(what, Quantity::Cost, 64), each)])?;
        }
    }
    about.rounds = format!("rounds: {rounds}, parts of {} ms", duration.as_millis());
    let devices = [(SWITCH.to_owned(), of_switch), (DEVICE.to_owned(), figures)].into();
    common.publish(&Run { about, devices })
}

/// The device of both the programs and the native tools.
const DEVICE: &str = "virtio";

/// What is between programs that `uwarp-run` runs.
const SWITCH: &str = "switch";

/// What two perftest programs measure.
const PERCENTILES: [Quantity; 3] = [Quantity::LatencyP50, Quantity::LatencyP99, Quantity::LatencyP999];

/// A latency of perftest.
fn ib_latency(parts: &mut Parts<'_>, place: &Place<'_>, drop_in: &DropIn, tool: &str) -> anyhow::Result<()> {
    parts.attempt(tool, 64, &PERCENTILES, |duration| {
        let count = iterations(duration, 5_000);
        let perftest::RoundTrip { p50, p99, p99_9 } = drop_in.latency(place, tool, 64, count)?;
        Ok(vec![p50, p99, p99_9])
    })
}

/// The bandwidth of Writes by perftest.
fn ib_bandwidth(parts: &mut Parts<'_>, place: &Place<'_>, drop_in: &DropIn) -> anyhow::Result<()> {
    parts.attempt(IB_WRITE_BW, 1 << 16, &[Quantity::Bandwidth], |duration| {
        let count = iterations(duration * perftest::LONGER_BANDWIDTH, 10_000);
        Ok(vec![drop_in.bandwidth(place, IB_WRITE_BW, 1 << 16, count)?])
    })
}

/// One round of what users get who set nothing up.
fn measure_default(parts: &mut Parts<'_>, place: &Place<'_>, drop_in: &DropIn) -> anyhow::Result<()> {
    ib_latency(parts, place, drop_in, IB_SEND_LAT)?;
    parts.libfabric(place, LIBFABRIC_VERBS, "verbs;ofi_rxm", 64, |end, side| drop_in.adapt(end, side))?;
    parts.libfabric(place, LIBFABRIC_RXM, "tcp;ofi_rxm", 64, |end, _| end)?;
    parts.ucx_latency(place, UCX_TAG, "tag_lat", 64)?;
    ib_bandwidth(parts, place, drop_in)?;
    parts.attempt(IPERF, 1 << 16, &[Quantity::Bandwidth], |duration| {
        Ok(vec![iperf::bandwidth(place, 1 << 16, duration)?])
    })
}

/// One round beside the native tools.
fn measure(
    parts: &mut Parts<'_>,
    perf: &UwarpPerf,
    place: &Place<'_>,
    drop_in: &DropIn,
    with_write_latency: bool,
) -> anyhow::Result<()> {
    parts.uwarp(perf, DEVICE, SEND, "send-latency", 64, &[])?;
    ib_latency(parts, place, drop_in, IB_SEND_LAT)?;
    if with_write_latency {
        parts.uwarp(perf, DEVICE, WRITE, "write-latency", 64, &[])?;
        ib_latency(parts, place, drop_in, IB_WRITE_LAT)?;
    }
    parts.uwarp(perf, DEVICE, WRITE, "write-bandwidth", 1 << 16, &[])?;
    ib_bandwidth(parts, place, drop_in)?;
    parts.libfabric(place, LIBFABRIC_VERBS, "verbs;ofi_rxm", 64, |end, side| drop_in.adapt(end, side))?;
    parts.libfabric(place, LIBFABRIC_RXM, "tcp;ofi_rxm", 64, |end, _| end)?;
    parts.ucx_latency(place, UCX_TAG, "tag_lat", 64)?;
    parts.kernel(place.namespaces, Test::SpinningLatency, 64)?;
    for (size, depth, random, quantity) in
        [(4 << 10, 32, true, Quantity::Iops), (256 << 10, 8, false, Quantity::Bandwidth)]
    {
        for (what, transport) in [(ISER, Transport::Iser), (ISCSI, Transport::KernelTcp)] {
            let quantities = [quantity, Quantity::ClientCpu, Quantity::ServerCpu];
            parts.attempt(what, size, &quantities, |duration| {
                let load = Load { size, depth, random };
                let outcome = iscsi::read(place, drop_in, transport, load, duration)?;
                let main = if quantity == Quantity::Iops { outcome.kiops } else { outcome.gbit_per_s };
                Ok(vec![main, outcome.client_cpu, outcome.server_cpu])
            })?;
        }
    }
    Ok(())
}
