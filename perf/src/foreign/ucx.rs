//! `ucx_perftest` of ucx-utils, over TCP.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use super::{End, Place, Ready, iterations};
use crate::kernel::SERVER_ADDRESS;

/// The program.
pub const PROGRAM: &str = "ucx_perftest";
/// Its package.
pub const PACKAGE: &str = "ucx-utils";
const PORT: u16 = 13_337;
/// UCX counts MiB per second and calls them MB/s.
const MIB: f64 = (1 << 20) as f64;

/// A latency.
#[derive(Debug, PartialEq)]
pub struct RoundTrip {
    /// Median in nanoseconds.
    pub p50: f64,
    /// Mean in nanoseconds.
    pub mean: f64,
}

/// The round trip of one of its latency tests.
///
/// # Errors
/// The program fails, or prints something unknown.
pub fn latency(place: &Place<'_>, test: &str, size: u64, duration: Duration) -> anyhow::Result<RoundTrip> {
    let fields = run(place, test, size, iterations(duration, 10_000 + size / 2))?;
    // Half a round trip, in microseconds.
    Ok(RoundTrip { p50: fields[0] * 2e3, mean: fields[2] * 2e3 })
}

/// The payload in Gbit/s of one of its bandwidth tests.
///
/// # Errors
/// The program fails, or prints something unknown.
pub fn bandwidth(place: &Place<'_>, test: &str, size: u64, duration: Duration) -> anyhow::Result<f64> {
    let fields = run(place, test, size, iterations(duration, 1_000 + size / 2))?;
    Ok(fields[4] * MIB * 8.0 / 1e9)
}

fn run(place: &Place<'_>, test: &str, size: u64, count: u64) -> anyhow::Result<[f64; 7]> {
    let end = |words: &[&str]| End::new(words).with("UCX_TLS", "tcp,self");
    let (size, warm_up, count) = (size.to_string(), (count / 10).to_string(), count.to_string());
    let own: &[&str] = if takes_mpi(&help()?) { &["-P", "0"] } else { &[] };
    let client = [&[PROGRAM, SERVER_ADDRESS, "-t", test, "-s", &size, "-n", &count, "-w", &warm_up], own].concat();
    let printed = place.pair(&end(&[&[PROGRAM], own].concat()), &end(&client), Ready::Port(PORT))?;
    parse(&printed).with_context(|| format!("ucx_perftest printed no result for {test}: {}", printed.trim()))
}

/// What it says of its options.
fn help() -> anyhow::Result<String> {
    let output = Command::new(PROGRAM).arg("-h").stdin(Stdio::null()).output();
    Ok(String::from_utf8_lossy(&output.context("cannot start ucx_perftest")?.stdout).into_owned())
}

/// Whether it is built with MPI, as in Debian 13. Without a terminal it then takes itself for one of MPI's processes,
/// unless `-P 0` says otherwise, which one without MPI refuses.
fn takes_mpi(help: &str) -> bool {
    help.lines().any(|line| line.trim_start().starts_with("-P "))
}

/// Behind the number of iterations: latency as percentile, recent average and overall average; MiB/s as recent and
/// overall average; messages per second likewise.
fn parse(printed: &str) -> Option<[f64; 7]> {
    let line = printed.lines().find_map(|line| line.trim_start().strip_prefix("Final:"))?;
    let mut fields = line.split_whitespace().skip(1).map(|field| field.parse().ok());
    let mut values = [0.0; 7];
    for value in &mut values {
        *value = fields.next()??;
    }
    fields.next().is_none().then_some(values)
}

#[cfg(test)]
mod tests {
    use super::{parse, takes_mpi};

    #[test]
    fn the_final_line_has_latency_bandwidth_and_rate() {
        let printed = include_str!("../../tests/data/ucx_perftest-tag_lat.txt");
        assert_eq!(parse(printed), Some([4.051, 11.806, 11.806, 5.17, 5.17, 84701.0, 84701.0]));
    }

    #[test]
    fn reports_on_the_way_are_not_taken() {
        let printed = include_str!("../../tests/data/ucx_perftest-tag_bw.txt");
        assert!(printed.contains("[thread 0]"), "the recorded run has a report on its way");
        assert_eq!(parse(printed), Some([4.763, 94.005, 125.3, 664.86, 498.8, 10638.0, 7981.0]));
    }

    #[test]
    fn only_a_program_with_mpi_is_told_to_do_without() {
        assert!(takes_mpi("  Options:\n     -P <0|1>       disable/enable MPI mode (1)\n     -h  help\n"));
        assert!(!takes_mpi("  Options:\n     -p <port>      TCP port\n     -h  help\n"));
    }

    #[test]
    fn a_failed_run_has_no_result() {
        assert_eq!(parse("[1700000000.0] [host:1] perftest.c:700 UCX ERROR failed"), None);
        assert_eq!(parse("Final:                 10000      4.051    11.806"), None);
    }
}
