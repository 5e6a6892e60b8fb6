//! Memory that idle connected queue pairs take. Pages of long rings count once they are used.

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use crate::in_process::{self, Work};

/// How many queue pairs, and how long their rings are.
#[derive(Args)]
pub struct Options {
    /// Queue pairs at each end
    #[arg(long, default_value_t = 1_000)]
    qps: usize,
    /// Sends, and receives, that each has room for
    #[arg(long, default_value_t = 64)]
    depth: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Resident {
    /// Octets of resident memory for each queue pair.
    octets_each: u64,
}

/// Queue pairs that are connected first, so that what all of them share is there.
const FIRST: usize = 64;

/// Resident memory of this process, in octets.
fn resident() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the kernel tells no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS is no number")?;
    Ok(kib << 10)
}

/// Measures and prints.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let qps = FIRST + options.qps;
    let shared = in_process::Options {
        work: Work::IdleTurn,
        size: 64,
        iterations: 0,
        qps,
        mtu: 1500,
        engine_thread: false,
        stepped_clock: false,
        json: false,
    };
    let (mut here, mut there, mut listener) = in_process::ends(&shared)?;
    let depth = (options.depth, options.depth);
    in_process::connect((&mut here, &mut there, &mut listener), FIRST, depth)?;
    let before = resident()?;
    in_process::connect((&mut here, &mut there, &mut listener), options.qps, depth)?;
    while here.context.poll() || there.context.poll() {}
    let octets_each = resident()?.saturating_sub(before) / (2 * options.qps as u64).max(1);
    if options.json {
        println!("{}", serde_json::to_string(&Resident { octets_each })?);
        return Ok(());
    }
    println!(
        "an idle connected queue pair takes {:.1} KiB of resident memory: {} at each of two ends, with rings of {}",
        octets_each as f64 / 1024.0,
        options.qps,
        options.depth
    );
    Ok(())
}
