//! Side-by-side measurements: uwarp, the raw device under it, a C program on the same device, the kernel's TCP,
//! libfabric and UCX, interleaved in one run so that every figure has a limit and a peer beside it.
#![forbid(unsafe_code)]

mod compare;
mod engines;
mod foreign;
mod in_process;
mod instructions;
mod kernel;
mod memory;
mod page;
mod parts;
mod plot;
mod programs;
mod record;
mod rpc;
mod table;
mod verbs;
mod wake;

use clap::{Parser, Subcommand};

/// Measures uwarp beside its limit and its peers.
#[derive(Parser)]
#[command(name = "uwarp-bench", version = uwarp::VERSION, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  cargo build --release -p uwarp-perf -p uwarp-rpc -p uwarp-bench
  target/release/uwarp-bench compare --quick --html compare.html
  target/release/uwarp-bench compare --device memif --rounds 9 \\
      --json perf/baselines/memif.json
  target/release/uwarp-bench compare --rpc --json perf/baselines/rpc.json
  scripts/verbs-lib && target/release/uwarp-bench verbs --install
  target/release/uwarp-bench in-process write-ping-pong
  target/release/uwarp-bench memory --depth 64
  target/release/uwarp-bench wake
  target/release/uwarp-bench instructions
  target/release/uwarp-bench engines --engines 1,2,16";

#[derive(Subcommand)]
enum Command {
    /// Round trips and bandwidth of uwarp, the raw device, C on the raw device, kernel TCP, libfabric and UCX, in turn
    Compare(compare::Options),
    /// Stock RDMA programs on uwarp's libraries beside uwarp's own tools, libfabric and UCX over TCP, and kernel TCP
    Verbs(verbs::Options),
    /// Both ends in one thread, connected in memory: the cost of the stack itself
    InProcess(in_process::Options),
    /// Instructions per in-process operation, counted by valgrind's callgrind
    Instructions(instructions::Options),
    /// Cache lines that two engines write, and instructions of a Write, by the number of engines (valgrind's lackey)
    Engines(engines::Options),
    /// Memory that idle connected queue pairs take, both ends in this process
    Memory(memory::Options),
    /// The first Read after a silence, which has to wake the responder's engine, beside the wake-up of a thread
    Wake(wake::Options),
    /// One end of the kernel TCP peer (started by `compare`)
    #[command(hide = true)]
    KernelPeer(kernel::Options),
    /// What `engines` traces
    #[command(hide = true)]
    EnginesTraced(engines::Traced),
}

fn main() -> anyhow::Result<()> {
    let command = Arguments::parse().command;
    if matches!(command, Command::Compare(_) | Command::Verbs(_)) {
        // They remove their network namespaces before they end.
        uwarp_app::signals::install()?;
    }
    let outcome = match command {
        Command::Compare(options) => compare::run(&options),
        Command::Verbs(options) => verbs::run(&options),
        Command::InProcess(options) => in_process::run(&options),
        Command::Instructions(options) => instructions::count(&options),
        Command::Engines(options) => engines::count(&options),
        Command::EnginesTraced(options) => engines::run_traced(&options),
        Command::Memory(options) => memory::run(&options),
        Command::Wake(options) => wake::run(&options),
        Command::KernelPeer(options) => kernel::run(&options),
    };
    // The signal has ended the measured programs, too, and how they failed is of no interest.
    uwarp_app::signals::check_interrupted()?;
    outcome
}
