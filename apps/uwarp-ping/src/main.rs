//! Implements the protocol of rping, in both roles: in each round the server reads the client's text by RDMA Read and
//! writes it back by RDMA Write.
#![forbid(unsafe_code)]

mod advert;
mod client;
mod options;
mod server;
mod text;

use clap::{Args, Parser, Subcommand};
use options::Options;
use std::process::ExitCode;
use std::time::Duration;
use uwarp::ReadyToReceiveKinds;
use uwarp::config::EngineMode;
use uwarp_app::units::{parse_duration, parse_size};
use uwarp_app::{NetworkFlags, Role, ServerFlag, signals, usage};

const EXAMPLES: &str = "\
Examples:
  In two terminals, over virtio-user and vhost:
    uwarp-ping serve -v
    uwarp-ping run -C 10 -V -v

  With rping of rdma-core at the other end, uwarp on a tap interface:
    uwarp-ping serve --device tap --address 10.0.0.2/24
      and there: rping -c -a 10.0.0.2 -C 10 -V
    uwarp-ping run --server 10.0.0.1 --device tap \\
        --address 10.0.0.2/24 -C 10
      and there: rping -s

  Open the stream with a Read of no octets; ask for markers; keep packets:
    uwarp-ping run -C 4 --peer-to-peer read
    uwarp-ping run -C 4 --markers
    uwarp-ping run -C 4 --pcap ping.pcap";

/// Pings by RDMA: Send, RDMA Read and RDMA Write in each round, as rping does.
#[derive(Parser)]
#[command(name = "uwarp-ping", version, disable_version_flag = true, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// The server's port
    #[arg(short = 'p', long, default_value_t = text::PORT, global = true)]
    port: u16,

    /// Rounds; 0 goes on until interrupted, or until the client leaves
    #[arg(short = 'C', long, value_name = "ROUNDS", default_value_t = 0, global = true)]
    iterations: u64,

    /// Octets of each round's text
    #[arg(short = 'S', long, default_value = "64", value_parser = parse_size, global = true)]
    size: u64,

    /// Check what comes back
    #[arg(short = 'V', long, global = true)]
    verify: bool,

    /// Print the text
    #[arg(short = 'v', long, global = true)]
    verbose: bool,

    /// Ask the other side for MPA markers in what it sends
    #[arg(long, global = true)]
    markers: bool,

    // Without clap's short form: -V is rping's check.
    /// Print version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,

    #[command(flatten)]
    network: NetworkFlags,
}

#[derive(Subcommand)]
enum Command {
    /// Serve one client after the other until interrupted
    Serve {
        /// End when the first client has left
        #[arg(long)]
        once: bool,
    },
    /// Ping a server
    Run(RunArguments),
}

#[derive(Args)]
struct RunArguments {
    #[command(flatten)]
    server: ServerFlag,

    /// Open the stream with a ready-to-receive indication, so that either side may send first (RFC 6581). KIND is
    /// write, read or send; without it, what both sides prefer
    #[arg(long, value_name = "KIND", num_args = 0..=1, default_missing_value = "any")]
    peer_to_peer: Option<Indication>,

    /// Pause between the connection and the first message, for a server that loses an early one [default: the file's
    /// mpa.first-fpdu-delay, or none]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    first_fpdu_delay: Option<Duration>,
}

/// Kinds of ready-to-receive indications.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Indication {
    /// What both sides prefer
    Any,
    /// A Write of no octets
    Write,
    /// A Read of no octets
    Read,
    /// A Send of no octets
    Send,
}

impl Indication {
    const fn kinds(self) -> ReadyToReceiveKinds {
        let none = ReadyToReceiveKinds::NONE;
        match self {
            Indication::Any => ReadyToReceiveKinds::ALL,
            Indication::Write => ReadyToReceiveKinds { write: true, ..none },
            Indication::Read => ReadyToReceiveKinds { read: true, ..none },
            Indication::Send => ReadyToReceiveKinds { send: true, ..none },
        }
    }
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        signals::install()?;
        let size = usize::try_from(arguments.size).unwrap_or(usize::MAX);
        if !(text::SIZE_MIN..=text::SIZE_MAX).contains(&size) {
            return Err(usage(format!(
                "--size is {size}: choose {} to {} octets, as rping does",
                text::SIZE_MIN,
                text::SIZE_MAX
            )));
        }
        let options = Options {
            port: arguments.port,
            rounds: arguments.iterations,
            size,
            verify: arguments.verify,
            verbose: arguments.verbose,
            markers: arguments.markers,
        };
        let network = &arguments.network;
        match arguments.command {
            Command::Serve { once } => {
                let config = network.resolve(Role::Server, EngineMode::Inline)?;
                server::run(&network.open(config)?, &options, once)
            }
            Command::Run(RunArguments { server, peer_to_peer, first_fpdu_delay }) => {
                let mut config = network.resolve(Role::Client, EngineMode::Inline)?;
                if let Some(delay) = first_fpdu_delay {
                    config.mpa.first_fpdu_delay = delay;
                }
                let start = client::Start {
                    server: server.address(network, options.port),
                    peer_to_peer: peer_to_peer.map(Indication::kinds),
                };
                client::run(&network.open(config)?, &start, &options)
            }
        }
    })
}
