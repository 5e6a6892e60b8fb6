//! The results, as JSON and as a table.

use crate::cli::{Registration, Test, Transport};
use serde::{Deserialize, Serialize};
use uwarp_app::cacheline::CacheLine;
use uwarp_app::measure::Latency;
use uwarp_app::output::{self, JsonFlag};
use uwarp_app::units::{format_nanoseconds, format_size, name_of};

/// CPU time of each side's process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// The client's.
    pub client: f64,
    /// The server's.
    pub server: f64,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the test.
    pub test: Test,
    /// The transport of the calls.
    pub transport: Transport,
    /// The device, as it was named on the command line.
    pub device: String,
    /// Octets of a blob or an echo.
    pub size: u64,
    /// Largest IP packet.
    pub mtu: u16,
    /// Inline or threaded.
    pub engine: String,
    /// Calls under way.
    pub depth: u32,
    /// How the client registered its buffers; none over TCP.
    pub registration: Option<Registration>,
    /// Calls that were timed.
    pub calls: u64,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// Calls of which every octet was checked, in a separate run.
    pub verified: u64,
    /// From the start of a call to its end.
    pub latency_ns: Latency,
    /// Octets of data in one direction, 10^9 bit/s; none without data.
    pub gbit_per_s: Option<f64>,
    /// Calls per second.
    pub calls_per_s: f64,
    /// Microseconds of CPU time for each call.
    pub cpu_us_per_call: CpuTime,
    /// Milliseconds of CPU time per MiB of data; none without data.
    pub cpu_ms_per_mib: Option<CpuTime>,
    /// Cache-line round trips between the two CPUs, in `pair`.
    pub cacheline_ns: Option<CacheLine>,
}

/// Writes JSON if requested (a list), and a table unless the JSON goes to standard output.
///
/// # Errors
/// The file cannot be written.
pub fn publish(reports: &[Report], json: &JsonFlag) -> anyhow::Result<()> {
    json.publish(table(reports), &reports)
}

fn table(reports: &[Report]) -> String {
    let mut table = output::table([
        "test",
        "over",
        "device",
        "size",
        "depth",
        "calls",
        "p50",
        "p99",
        "max",
        "Gbit/s",
        "calls/s",
        "CPU µs/call",
        "CPU ms/MiB",
        "verified",
        "cache line, ns",
    ]);
    let both = |time: CpuTime, digits: usize| format!("{:.digits$} + {:.digits$}", time.client, time.server);
    for report in reports {
        table.add_row([
            name_of(report.test),
            name_of(report.transport),
            report.device.clone(),
            format_size(report.size),
            report.depth.to_string(),
            report.calls.to_string(),
            format_nanoseconds(report.latency_ns.p50),
            format_nanoseconds(report.latency_ns.p99),
            format_nanoseconds(report.latency_ns.max),
            report.gbit_per_s.map_or_else(String::new, |rate| format!("{rate:.2}")),
            format!("{:.0}", report.calls_per_s),
            both(report.cpu_us_per_call, 2),
            report.cpu_ms_per_mib.map_or_else(String::new, |time| both(time, 3)),
            report.verified.to_string(),
            report.cacheline_ns.map_or_else(String::new, |line| line.to_string()),
        ]);
    }
    output::align_numbers(&mut table, 3);
    table.to_string()
}
