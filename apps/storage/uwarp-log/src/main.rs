//! A replicated durable log over RDMA Commit, and its targets.
#![forbid(unsafe_code)]

mod append;
mod bench;
mod file;
mod follow;
mod link;
mod newcomers;
mod pair;
mod proving;
mod secret;
mod serve;

use append::AppendOptions;
use clap::{Args, Parser, Subcommand};
use link::PORT;
use pair::PairArguments;
use secret::SecretFlag;
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use uwarp::config::EngineMode;
use uwarp_app::output::{self, JsonFlag};
use uwarp_app::units::parse_size;
use uwarp_app::{AllowFlags, ConfineFlags, NetworkFlags, Role, signals, usage};
use uwarp_log::layout::Geometry;
use uwarp_log::record::{Kind, Record};

const EXAMPLES: &str = "\
Examples:
  Three targets and a writer on this machine, and what every file holds:
    uwarp-log pair
    uwarp-log pair --targets 1 --iterations 10k --size 4K

  What Write with Commit saves: latency, round trips, wake-ups of the target:
    uwarp-log bench

  In four terminals, which share a secret (a socket joins each target with the writer):
    (umask 077; head -c 32 /dev/urandom | base64 > log.secret)
    export UWARP_LOG_SECRET_FILE=log.secret
    uwarp-log serve /srv/a.log --socket /tmp/a.sock
    uwarp-log serve /srv/b.log --socket /tmp/b.sock
    uwarp-log serve /srv/c.log --socket /tmp/c.sock
    journalctl -f | uwarp-log append --target /tmp/a.sock \\
        --target /tmp/b.sock --target /tmp/c.sock

  Afterwards, or meanwhile:
    uwarp-log read /srv/b.log

A target lends its file's memory to the writer. The writer puts records there by RDMA Write and makes them durable by \
RDMA Commit, while the target's program sleeps. A record is acknowledged when a majority of the targets have it in \
their files. Kill what you like: a new writer finds everything that was acknowledged, and a target that comes back is \
brought up to date. Always name all targets of a log.";

/// Appends records to a durable log that other processes keep, by RDMA Write and Commit.
#[derive(Parser, Debug)]
#[command(name = "uwarp-log", version, after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    network: NetworkFlags,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Keep a copy of the log in a file, until interrupted
    Serve(ServeArguments),
    /// Append lines, from standard input or a file
    Append(AppendArguments),
    /// Print the records that a target's file holds
    Read(ReadArguments),
    /// Start targets and a writer on this machine, append, and compare what the files hold
    Pair(PairArguments),
    /// Time a durable append: by RDMA Write and Commit, by Sends, and without a network
    Bench(bench::BenchArguments),
    /// One side of a benchmark
    #[command(hide = true)]
    BenchSide(bench::SideArguments),
}

#[derive(Args, Debug)]
struct ServeArguments {
    /// The file; it is made if it is not there
    file: PathBuf,
    /// Octets of a new file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    size: u64,
    /// Octets of its segments, the same in all targets: what is dropped at once when the log is full
    #[arg(long, value_name = "SIZE", value_parser = parse_segment, default_value = "64K")]
    segment: u32,
    /// Print records when they are durable here (the writer has to append with --notify)
    #[arg(long)]
    follow: bool,
    /// Take commands from standard input: 'shrink SIZE' asks the writer to give memory back, 'status' tells what is
    #[arg(long)]
    control: bool,
    /// Port to listen on
    #[arg(long, short, default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    allow: AllowFlags,
    #[command(flatten)]
    secret: SecretFlag,
    #[command(flatten)]
    confine: ConfineFlags,
}

#[derive(Args, Debug)]
struct AppendArguments {
    /// File with the lines [default: standard input]
    file: Option<PathBuf>,
    /// A target: an address, ADDRESS:PORT, or the path of a socket; one, or three times [default: the one of --socket]
    #[arg(long = "target", short, value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    options: AppendOptions,
    /// Print the number of each record when it is acknowledged
    #[arg(long)]
    acknowledge: bool,
    #[command(flatten)]
    json: JsonFlag,
}

#[derive(Args, Debug)]
struct ReadArguments {
    /// The file
    file: PathBuf,
    /// Print a summary instead of records
    #[arg(long)]
    summary: bool,
    /// Write records (in hexadecimal) and summary to this file, or - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_segment(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        size if u32::try_from(size).is_ok_and(Geometry::is_segment) => Ok(size as u32),
        _ => Err("segments have 4K to 1M octets, a multiple of 4K".to_owned()),
    }
}

fn main() -> ExitCode {
    uwarp_app::run::<Cli>(|cli| {
        let network = &cli.network;
        if !matches!(cli.command, Command::Serve(_) | Command::Append(_)) {
            signals::install()?;
        }
        match &cli.command {
            Command::Serve(arguments) => {
                let ServeArguments { file, size, segment, follow, control, port, allow, secret, confine } = arguments;
                let config = network.resolve(Role::Server, EngineMode::Threaded)?;
                let secret = secret.read()?;
                if !secret.is_set() && allow.allow.is_empty() {
                    return Err(usage(format!(
                        "whoever reaches port {port} could become the log's writer and change what is in it: name a \
                         --secret-file, or the addresses that may connect with --allow ADDRESS/PREFIX, or both"
                    )));
                }
                let allow = allow.resolve(&config);
                let service = serve::Service {
                    file,
                    size: *size,
                    segment: *segment,
                    follow: *follow,
                    control: *control,
                    port: *port,
                    allow: &allow,
                    secret: &secret,
                    confine,
                };
                serve::run(config, &service)
            }
            Command::Append(arguments) => {
                let AppendArguments { file, targets, options, acknowledge, json } = arguments;
                let places = append::places(network, targets)?;
                append::run(network, places, options, file.as_deref(), *acknowledge, json)
            }
            Command::Read(arguments) => read(arguments),
            Command::Pair(arguments) => pair::run(network, arguments),
            Command::Bench(arguments) => bench::run(network, arguments),
            Command::BenchSide(arguments) => bench::side(network, arguments),
        }
    })
}

/// The state of a file.
#[derive(Debug, Serialize)]
struct Contents {
    /// Which log it is a copy of, in hexadecimal; 0 for none yet.
    log: String,
    /// Targets of that log.
    targets: u32,
    /// The latest writer that was let in.
    epoch: u64,
    /// Positions of the first record, of the last one known to be acknowledged, and of the end.
    start: u64,
    head: u64,
    end: u64,
    /// Number of the last record.
    last: u64,
    /// Whether the record at the head exists.
    whole: bool,
    /// Payloads by number, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Vec<(u64, String)>>,
}

fn read(arguments: &ReadArguments) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let name = || arguments.file.display().to_string();
    let file = File::open(&arguments.file).with_context(name)?;
    let quiet = arguments.summary || arguments.json.is_some();
    let mut records = Vec::new();
    let (identity, walk) = file::walk_file(&file, None, |&Record { kind, payload, tail }| {
        if kind == Kind::Payload && !quiet {
            output::print_data(payload)?;
        } else if kind == Kind::Payload && arguments.json.is_some() && !arguments.summary {
            records.push((tail.sequence, payload.iter().map(|octet| format!("{octet:02x}")).collect()));
        }
        Ok(())
    })
    .with_context(name)?;
    let contents = Contents {
        log: format!("{:016x}", identity.log),
        targets: identity.replicas,
        epoch: identity.epoch,
        start: walk.table.start,
        head: walk.table.head,
        end: walk.tail.position,
        last: walk.tail.sequence,
        whole: walk.has_head,
        records: (!arguments.summary).then_some(records),
    };
    if let Some(path) = &arguments.json {
        output::write_json(path, &contents)?;
    } else if arguments.summary {
        output::print(format!(
            "log {}, {} targets, epoch {}: positions {} to {}, head at {}, last record {}",
            contents.log, contents.targets, contents.epoch, contents.start, contents.end, contents.head, contents.last
        ));
    }
    if !walk.has_head {
        anyhow::bail!("{}: the record at the head is missing, so this copy has lost what it had made durable", name());
    }
    Ok(())
}
