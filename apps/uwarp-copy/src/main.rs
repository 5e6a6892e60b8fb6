//! Copies files to and from a directory that another uwarp process serves: contents by RDMA Write and RDMA Read, with
//! BLAKE3 end to end.
#![forbid(unsafe_code)]

mod client;
mod gate;
mod kernel;
mod link;
mod pair;
mod protocol;
mod report;
mod server;
mod store;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use uwarp::config::EngineMode;
use uwarp_app::output::JsonFlag;
use uwarp_app::units::parse_duration;
use uwarp_app::{AllowFlags, ConfineFlags, Confinement, NetworkFlags, Role, ServerFlag, signals};

const EXAMPLES: &str = "\
Examples:
  In two terminals of one machine, over virtio-user and vhost:
    uwarp-copy serve /srv/files
    uwarp-copy put report.pdf data.bin
    uwarp-copy get data.bin --output /tmp/copy.bin

  Between two memory-backed directories, beside the kernel's TCP:
    uwarp-copy pair /dev/shm/data.bin --device memif --mtu 9000

  Over memif, or between hosts whose NICs are bound to vfio-pci:
    uwarp-copy serve /srv/files --device memif --socket /tmp/copy.sock
    uwarp-copy get data.bin --device pci:0000:03:00.0 \\
        --address 10.1.0.2/24 --server 10.1.0.1

  To one host only:
    uwarp-copy serve /srv/files --device pci:0000:03:00.0 \\
        --address 10.1.0.1/24 --allow 10.1.0.2

A file appears under its name only when it is whole and its BLAKE3 hash is the sender's; until then it has a name of \
its own (.uwarp-copy-...) in the same directory. Names that leave the served directory are refused, also through \
symbolic links.";

/// Copies files by RDMA to and from a directory that another uwarp process serves.
#[derive(Parser)]
#[command(name = "uwarp-copy", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    confine: ConfineFlags,

    #[command(flatten)]
    network: NetworkFlags,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a directory until interrupted
    Serve {
        /// The directory
        directory: PathBuf,
        /// End when the first client has left
        #[arg(long)]
        once: bool,
        /// Refuse to store files
        #[arg(long)]
        read_only: bool,
        /// Port to listen on
        #[arg(long, short, default_value_t = protocol::PORT)]
        port: u16,
        #[command(flatten)]
        allow: AllowFlags,
        /// Most connections of one address
        #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
        connections_per_address: u16,
        /// Disconnect a client that asks for nothing for so long; 0 for never
        #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_duration)]
        idle_timeout: Duration,
    },
    /// Copy files into the served directory
    Put {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Name for the file there, if there is one only; may contain directories that exist
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Directory in which the client says that it is connected, and waits for leave to begin
        #[arg(long, hide = true)]
        gate: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Copy files from the served directory
    Get {
        /// Names in the served directory
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Where to: a directory, or the file's name if there is one only [default: the current directory]
        #[arg(long, short, value_name = "PATH")]
        output: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
    /// Copy a file between two processes of this machine, by RDMA and by the kernel's TCP in turn
    Pair(pair::PairArguments),
    /// One side of a copy by the kernel's TCP
    #[command(hide = true)]
    KernelSide(kernel::SideArguments),
    /// The part of a copy that no network can save
    #[command(hide = true)]
    Alone(pair::AloneArguments),
}

/// Where the client finds its server, and where its results go.
#[derive(Args)]
struct Target {
    #[command(flatten)]
    server: ServerFlag,
    /// Its port
    #[arg(long, short, default_value_t = protocol::PORT)]
    port: u16,
    #[command(flatten)]
    json: JsonFlag,
}

impl Target {
    fn client<'a>(&'a self, network: &'a NetworkFlags, config: uwarp::Config) -> client::Client<'a> {
        let server = self.server.address(network, self.port);
        client::Client { network, config, server, json: &self.json, gate: None }
    }

    /// Leaves the file for the results open.
    fn confine(&self, confinement: Confinement) -> Confinement {
        match self.json.file() {
            Some(file) => confinement.creates(file),
            None => confinement,
        }
    }
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        let network = &arguments.network;
        // The signal handler has a thread, and so does DPDK: both must come after the confinement.
        let confinement = |config: &uwarp::Config| Confinement::new(config, &arguments.confine);
        match arguments.command {
            Command::Serve { directory, once, read_only, port, allow, connections_per_address, idle_timeout } => {
                let store = store::Store::open(&directory)?;
                let config = network.resolve(Role::Server, EngineMode::Threaded)?;
                let allow = allow.resolve(&config);
                let confinement = confinement(&config);
                if read_only { confinement.reads(&directory) } else { confinement.writes(&directory) }.apply()?;
                signals::install()?;
                let (per_address, idle) = (connections_per_address.into(), idle_timeout);
                server::run(
                    network,
                    config,
                    &server::Service { store, once, read_only, port, allow, per_address, idle },
                )
            }
            Command::Put { files, name, gate, target } => {
                // Everything that can be wrong with the files is found before a connection is made.
                let files = client::open_files(&files, name.as_deref())?;
                let config = network.resolve(Role::Client, EngineMode::Threaded)?;
                let gate = gate.map(gate::Gate::new);
                let confinement = target.confine(confinement(&config));
                match &gate {
                    Some(gate) => confinement.creates(gate.ready()),
                    None => confinement,
                }
                .apply()?;
                signals::install()?;
                client::put(client::Client { gate: gate.as_ref(), ..target.client(network, config) }, files)
            }
            Command::Get { names, output, target } => {
                let places = client::choose_places(&names, output.as_deref())?;
                let config = network.resolve(Role::Client, EngineMode::Threaded)?;
                let confinement = confinement(&config).writes(client::folder(output.as_deref()));
                target.confine(confinement).apply()?;
                signals::install()?;
                client::get(target.client(network, config), places)
            }
            Command::Pair(arguments) => {
                signals::install()?;
                pair::run(network, &arguments)
            }
            Command::KernelSide(arguments) => {
                signals::install()?;
                kernel::run(network, &arguments)
            }
            Command::Alone(arguments) => {
                signals::install()?;
                pair::run_alone(network, &arguments)
            }
        }
    })
}
