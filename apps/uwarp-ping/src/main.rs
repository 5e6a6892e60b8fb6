//! Implements the protocol of rping, in both roles: in each round the server reads the client's text by RDMA Read and
//! writes it back by RDMA Write.
#![forbid(unsafe_code)]

mod advert;
mod client;
mod server;
mod text;

use clap::Parser;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;
use uwarp::ReadyToReceiveKinds;
use uwarp::config::EngineMode;
use uwarp_app::channel::Shape;
use uwarp_app::units::{parse_duration, parse_size};
use uwarp_app::{NetworkFlags, Role, signals, usage};

const EXAMPLES: &str = "\
Examples:
  In two terminals, over virtio-user and vhost:
    uwarp-ping -s -v
    uwarp-ping -c -C 10 -V -v

  With rping of rdma-core at the other end, uwarp on a tap interface:
    uwarp-ping -s --device tap --address 10.0.0.2/24
      and there: rping -c -a 10.0.0.2 -C 10 -V
    uwarp-ping -c -a 10.0.0.1 --device tap --address 10.0.0.2/24 \\
        -C 10 --first-fpdu-delay 100ms
      and there: rping -s

  Open the stream with a Read of no octets; ask for markers; keep packets:
    uwarp-ping -c -C 4 --peer-to-peer read
    uwarp-ping -c -C 4 --markers
    uwarp-ping -c -C 4 --pcap ping.pcap";

/// Pings by RDMA: Send, RDMA Read and RDMA Write in each round, as rping does.
#[derive(Parser)]
#[command(name = "uwarp-ping", version, disable_version_flag = true, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// Be the server
    #[arg(short = 's', long, conflicts_with = "client", required_unless_present = "client")]
    server: bool,

    /// Be the client
    #[arg(short = 'c', long)]
    client: bool,

    /// Client: the server's address [default: 10.77.0.1]; server: its own, in a subnet of 24 bits (IPv6: 64)
    #[arg(short = 'a', long = "addr", value_name = "ADDRESS")]
    addr: Option<IpAddr>,

    /// The server's port
    #[arg(short = 'p', long, default_value_t = text::PORT)]
    port: u16,

    /// Rounds; 0 goes on until interrupted [default: 0 as server, which the client's end ends]
    #[arg(short = 'C', long, value_name = "ROUNDS", default_value_t = 0)]
    count: u64,

    /// Octets of each round's text
    #[arg(short = 'S', long, default_value = "64", value_parser = parse_size)]
    size: u64,

    /// Check what comes back
    #[arg(short = 'V', long)]
    verify: bool,

    /// Print the text
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Server: take one client after the other, instead of ending with the first
    #[arg(short = 'P', long)]
    persistent: bool,

    /// Client: open the stream with a ready-to-receive indication, so that either side may send first (RFC 6581); of the
    /// KIND write, read or send, or what both sides prefer
    #[arg(long, value_name = "KIND", num_args = 0..=1, default_missing_value = "any", conflicts_with = "server")]
    peer_to_peer: Option<Indication>,

    /// Client: pause between the connection and the first message, for a server that loses an early one (Linux siw may leave it
    /// unread until a second one comes; 100ms is enough)
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "server")]
    first_fpdu_delay: Option<Duration>,

    /// Ask the other side for MPA markers in what it sends
    #[arg(long)]
    markers: bool,

    // Without clap's short form: -V is rping's check.
    /// Print version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,

    #[command(flatten)]
    network: NetworkFlags,
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

/// What a ping is like.
pub struct Options {
    /// The server's port.
    pub port: u16,
    /// Rounds; 0 has no end.
    pub count: u64,
    /// Octets of the text.
    pub size: usize,
    /// Check what comes back.
    pub verify: bool,
    /// Print the text.
    pub verbose: bool,
    /// Server: go on after a client.
    pub persistent: bool,
    /// Client: peer-to-peer start-up with one of these indications.
    pub peer_to_peer: Option<ReadyToReceiveKinds>,
    /// Client: pause before the first message.
    pub first_fpdu_delay: Duration,
    /// Ask for markers.
    pub markers: bool,
}

/// rping keeps one receive and one Send posted; more are harmless.
pub const SHAPE: Shape = Shape { message: advert::LEN, messages: 4, work: 4 };

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
            count: arguments.count,
            size,
            verify: arguments.verify,
            verbose: arguments.verbose,
            persistent: arguments.persistent,
            peer_to_peer: arguments.peer_to_peer.map(Indication::kinds),
            first_fpdu_delay: arguments.first_fpdu_delay.unwrap_or_default(),
            markers: arguments.markers,
        };
        let network = &arguments.network;
        if arguments.server {
            let config = network.resolve_at(Role::Server, EngineMode::Inline, arguments.addr)?;
            server::run(config, &options)
        } else {
            let config = network.resolve(Role::Client, EngineMode::Inline)?;
            let address = arguments.addr.unwrap_or_else(|| network.default_address(Role::Server));
            client::run(config, (address, arguments.port).into(), &options)
        }
    })
}
