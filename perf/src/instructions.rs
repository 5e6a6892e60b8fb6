//! Instructions of an operation in process, counted by valgrind's callgrind. They show whether a change made the path
//! of a packet longer.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use uwarp_app::units::name_of;

use crate::in_process::Work;

/// What to count.
#[derive(Args)]
pub struct Options {
    /// Which operations
    #[arg(long, value_enum, default_value_t = Set::All)]
    set: Set,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Operations to count.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Set {
    /// Every one
    All,
    /// Those that have a budget, which a test holds
    Budgets,
}

/// One figure.
struct Figure {
    name: &'static str,
    work: Work,
    /// Payload octets.
    size: u32,
    /// Rounds of the two runs, whose difference cancels start and end out.
    rounds: [u64; 2],
    /// How many of what the figure is about are in one round.
    per_round: u64,
    /// Counts only inside of the function with this in its name.
    inside: Option<&'static str>,
    has_budget: bool,
}

impl Figure {
    const fn new(name: &'static str, work: Work) -> Figure {
        Figure { name, work, size: 64, rounds: [2_016, 10_016], per_round: 1, inside: None, has_budget: true }
    }
}

/// Segments of a Write of 64 KiB: an FPDU of at most 1460 octets has 1440 of payload.
const SEGMENTS: u64 = (65_536_u64).div_ceil(1440);

/// The figures. A round of a ping-pong is two messages.
const FIGURES: [Figure; 14] = [
    Figure { per_round: 2, ..Figure::new("write", Work::WritePingPong) },
    Figure::new("read", Work::Read),
    Figure { per_round: 2, ..Figure::new("send", Work::SendPingPong) },
    Figure::new("fetch-add", Work::FetchAdd),
    Figure {
        size: 65_536,
        rounds: [96, 352],
        per_round: SEGMENTS,
        ..Figure::new("segment of 64 KiB Writes", Work::WriteStream)
    },
    Figure::new("idle turn", Work::IdleTurn),
    Figure { per_round: 2, inside: Some("post_one"), ..Figure::new("post_send", Work::WritePingPong) },
    // Each poll finds a completion, behind an idle turn.
    Figure { inside: Some("reap_one"), ..Figure::new("poll", Work::WriteCompletion) },
    Figure { inside: Some("ibv_post_send"), ..Figure::new("ibv_post_send", Work::VerbsWrite) },
    Figure { inside: Some("ibv_poll_cq"), ..Figure::new("ibv_poll_cq", Work::VerbsWrite) },
    Figure { inside: Some("forward_turn"), ..Figure::new("frame through the switch", Work::Forward) },
    Figure { has_budget: false, ..Figure::new("write-stream", Work::WriteStream) },
    Figure { has_budget: false, ..Figure::new("rpc-null", Work::RpcNull) },
    Figure { has_budget: false, ..Figure::new("rpc-read", Work::RpcRead) },
];

/// Counts, and what they depend on beside the code.
#[derive(Serialize)]
struct Counts {
    /// The kernels for CRC32C and copies that ran: valgrind's processor has no AVX-512.
    kernels: String,
    /// Instructions by the figure's name.
    instructions: BTreeMap<&'static str, u64>,
}

/// Runs this program under callgrind; returns the instructions collected and the kernels used.
fn run(figure: &Figure, rounds: u64) -> anyhow::Result<(u64, String)> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    if let Some(inside) = figure.inside {
        valgrind.arg(format!("--toggle-collect=*{inside}*"));
    }
    let output = valgrind
        .arg(std::env::current_exe()?)
        .args(["in-process", &name_of(figure.work), "--size", &figure.size.to_string()])
        .args(["--iterations", &rounds.to_string(), "--stepped-clock"])
        .stdin(Stdio::null())
        .output()
        .context("cannot run valgrind: apt-get install valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "under valgrind: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, collected) = collected.with_context(|| format!("valgrind printed no count: {text}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, kernels) = said.trim_end().rsplit_once("kernels ").context("the run names no kernels")?;
    Ok((collected.trim().parse()?, kernels.to_owned()))
}

/// Counts and prints.
pub fn count(options: &Options) -> anyhow::Result<()> {
    let mut counts = Counts { kernels: String::new(), instructions: BTreeMap::new() };
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["operation", "octets", "instructions, both ends"]);
    for figure in FIGURES.iter().filter(|figure| options.set == Set::All || figure.has_budget) {
        let [few, many] = figure.rounds;
        let (less, _) = run(figure, few)?;
        let (more, kernels) = run(figure, many)?;
        ensure!(more > less, "{}: nothing was counted, is '{:?}' still a function?", figure.name, figure.inside);
        let each = (more - less) as f64 / ((many - few) * figure.per_round) as f64;
        counts.instructions.insert(figure.name, each.round() as u64);
        counts.kernels = kernels;
        table.add_row([figure.name.to_owned(), figure.size.to_string(), format!("{each:.0}")]);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&counts)?);
        return Ok(());
    }
    for column in [1, 2] {
        table.column_mut(column).context("the header has it")?.set_cell_alignment(CellAlignment::Right);
    }
    println!("with the kernels {} (callgrind knows no AVX-512)\n{table}", counts.kernels);
    Ok(())
}
