//! An NFS server over RDMA: of a directory, or in front of another server.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use uwarp::config::{EngineMode, InterfaceAddress};
use uwarp::{Config, Context};
use uwarp_app::allow::IpNet;
use uwarp_app::units::{parse_duration, parse_size};
use uwarp_app::{ConfineFlags, Confinement, NetworkFlags, Role, signals, usage};
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::directory::{Directory, DirectoryOptions};
use uwarp_nfs::gateway::{PORT, Policy};
use uwarp_nfs::gateways::{self, Gateways};
use uwarp_nfs::metrics::{Keeper, Metrics};
use uwarp_nfs::server::{Ports, Server};

const EXAMPLES: &str = "\
Examples:
  Serve a directory; to one subnet only, and read-only:
    uwarp-nfs /srv/data --device af_packet --interface eth1 \\
        --address 10.1.0.5/24
    uwarp-nfs /srv/data --read-only --allow 10.1.0.0/24 \\
        --device pci:0000:03:00.0 --address 10.1.0.5/24

  Put RDMA in front of a server that speaks TCP:
    uwarp-nfs --backend nas.example:2049 --device af_packet \\
        --interface eth1 --address 10.1.0.5/24

  A Linux client mounts the directory, or a path below it:
    mount -t nfs -o vers=3,proto=rdma,port=20049,nolock 10.1.0.5:/ /mnt

  Through a gateway, if the server behind it answers MOUNT on the port of --backend, as many do that are not the \
kernel's, add the options
    mountproto=tcp,mountport=2049";

/// How long disconnecting the clients may take at the end.
const FAREWELL: Duration = Duration::from_secs(3);
/// Rounds without work after which the thread sleeps briefly.
const IDLE: u32 = 2000;
const NAP: Duration = Duration::from_micros(50);
/// How often metrics are written.
const METRICS: Duration = Duration::from_secs(5);

/// Serves NFS version 3 over RDMA (RFC 8166, RFC 8267): a directory, or a server that speaks TCP.
#[derive(Parser, Debug)]
#[command(name = "uwarp-nfs", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// The directory to serve
    #[arg(value_name = "DIRECTORY", conflicts_with = "backend", required_unless_present = "backend")]
    directory: Option<PathBuf>,

    /// Instead of a directory, the server to put RDMA in front of: HOST:PORT
    #[arg(long, value_name = "HOST:PORT")]
    backend: Option<String>,

    /// Port to listen on
    #[arg(long, short, default_value_t = PORT)]
    port: u16,

    /// Port for NFS over TCP; in front of another server, plain TCP is passed on to it from here
    #[arg(long, default_value_t = Ports::default().nfs)]
    tcp_port: u16,

    /// Port for MOUNT, of a directory
    #[arg(long, default_value_t = Ports::default().mount, conflicts_with = "backend")]
    mount_port: u16,

    /// Port for the port mapper, of a directory: clients look for it at 111
    #[arg(long, default_value_t = Ports::default().port_mapper, conflicts_with = "backend")]
    port_mapper: u16,

    /// Refuse what would change files or directories; in front of another server there is no plain TCP then
    #[arg(long)]
    read_only: bool,

    /// Serve this address or subnet only; may be repeated [default: everybody]
    #[arg(long, value_name = "ADDRESS[/PREFIX]", value_parser = uwarp_app::allow::parse)]
    allow: Vec<IpNet>,

    /// Most connections of one address over RDMA, and as many over TCP
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    connections_per_address: u16,

    /// Disconnect a client that has been idle for so long; 0 for never
    #[arg(long, value_name = "TIME", default_value = "6min", value_parser = parse_duration)]
    idle_timeout: Duration,

    /// Take calls over TCP from ports of 1024 and above, which any user of a client's system can have
    #[arg(long)]
    insecure_ports: bool,

    /// Let a client's root be root here; otherwise it is nobody (65534)
    #[arg(long, conflicts_with = "backend")]
    no_root_squash: bool,

    /// Threads that read, write and sync
    #[arg(long, default_value_t = 4, conflicts_with = "backend", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// Memory for calls over RDMA. Clients share it; each can always have one call under way (3.2 MiB, or 5.3 MiB in
    /// front of another server). A served directory takes as much again for calls over TCP and for clients that have
    /// left
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse_size)]
    memory: u64,

    /// Keep what was done in this file, in the text format of Prometheus
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,

    #[command(flatten)]
    confine: ConfineFlags,

    #[command(flatten)]
    network: NetworkFlags,
}

impl Arguments {
    fn rules(&self) -> ClientRules {
        ClientRules {
            allow: self
                .allow
                .iter()
                .map(|subnet| InterfaceAddress { address: subnet.addr(), prefix: subnet.prefix_len() })
                .collect(),
            per_address: self.connections_per_address.into(),
            idle: self.idle_timeout,
            insecure_ports: self.insecure_ports,
            ..ClientRules::default()
        }
    }
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        let config = arguments.network.resolve(Role::Server, EngineMode::Threaded)?;
        if config.engine.mode == EngineMode::Inline {
            return Err(usage(
                "--engine inline would stop while this process waits for files or a server: leave it out",
            ));
        }
        // Each client takes some descriptors, and so does each open object.
        let limit = getrlimit(Resource::Nofile);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
            eprintln!("cannot raise the limit of {:?} descriptors: {error}", limit.current);
        }
        match (&arguments.directory, &arguments.backend) {
            (Some(directory), _) => serve(&arguments, directory, config),
            (None, Some(backend)) => forward(&arguments, backend, config),
            (None, None) => Err(usage("nothing to serve: name a directory, or a server with --backend HOST:PORT")),
        }
    })
}

/// Serves a directory until interrupted.
fn serve(arguments: &Arguments, directory: &std::path::Path, config: Config) -> anyhow::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let options = DirectoryOptions { read_only: arguments.read_only, squash_root: !arguments.no_root_squash };
    let directory = Directory::open(directory, options, Arc::clone(&metrics))
        .map_err(|error| usage(format!("{} cannot be served: {error}", directory.display())))?;
    let path = directory.path().to_owned();
    if !directory.tells_callers_apart() {
        eprintln!("this process does not run as root: all callers have the rights of its user");
    }
    if !directory.keeps_births() {
        eprintln!(
            "the file system keeps no times of birth: a client's handle of an object that is gone may name another with its number"
        );
    }
    confine(arguments, &config, Some(&path))?;
    let context = signals::at_once(|| Context::open(config))?;
    let ports = Ports {
        rdma: arguments.port,
        nfs: arguments.tcp_port,
        mount: arguments.mount_port,
        port_mapper: arguments.port_mapper,
    };
    let (threads, rules, memory) = (arguments.threads.into(), arguments.rules(), arguments.memory);
    let mut server = Server::start(&context, ports, directory, Arc::clone(&metrics), rules, threads, memory)?;
    eprintln!("NFS over RDMA on {} of {}", context.socket_address(arguments.port), path.display());
    let mut keeper = keeper(arguments, metrics)?;
    let mut idle = 0_u32;
    while !signals::interrupted() {
        idle = if server.step()? { 0 } else { idle.saturating_add(1) };
        if let Some(keeper) = &mut keeper {
            keeper.step();
        }
        if idle > IDLE {
            std::thread::sleep(NAP);
        }
    }
    server.stop(FAREWELL);
    if let Some(mut keeper) = keeper {
        keeper.write();
    }
    context.close()?;
    Ok(())
}

/// Serves RDMA in front of a server until interrupted.
fn forward(arguments: &Arguments, backend: &str, config: Config) -> anyhow::Result<()> {
    let server = resolve(backend)?;
    let policy = Policy { read_only: arguments.read_only };
    confine(arguments, &config, None)?;
    let context = signals::at_once(|| Context::open(config))?;
    let rules = arguments.rules();
    let metrics = Arc::new(Metrics::of_gateway());
    let ports = gateways::Ports { rdma: arguments.port, tcp: arguments.tcp_port };
    let mut gateways = Gateways::start(&context, ports, server, policy, rules, Arc::clone(&metrics), arguments.memory)?;
    eprintln!("NFS over RDMA on {} in front of {server}", context.socket_address(arguments.port));
    let mut keeper = keeper(arguments, metrics)?;
    let mut idle = 0_u32;
    while !signals::interrupted() {
        idle = if gateways.step()? { 0 } else { idle.saturating_add(1) };
        if let Some(keeper) = &mut keeper {
            keeper.step();
        }
        if idle > IDLE {
            std::thread::sleep(NAP);
        }
    }
    gateways.stop(FAREWELL);
    if let Some(mut keeper) = keeper {
        keeper.write();
    }
    context.close()?;
    Ok(())
}

/// Confines this process to the files that it needs. After that, the signal handler and DPDK may start threads.
fn confine(arguments: &Arguments, config: &Config, directory: Option<&std::path::Path>) -> anyhow::Result<()> {
    let mut confinement = Confinement::new(config, &arguments.confine);
    if let Some(directory) = directory {
        confinement = if arguments.read_only { confinement.reads(directory) } else { confinement.writes(directory) };
    }
    if let Some(metrics) = &arguments.metrics {
        confinement = confinement.creates(metrics);
    }
    confinement.apply()?;
    signals::install()
}

/// Writes the metrics to their file, if there is one.
fn keeper(arguments: &Arguments, metrics: Arc<Metrics>) -> anyhow::Result<Option<Keeper>> {
    let Some(file) = &arguments.metrics else { return Ok(None) };
    let keeper = Keeper::new(metrics, file.clone(), METRICS);
    keeper.map(Some).with_context(|| format!("metrics cannot be written to {}", file.display()))
}

fn resolve(name: &str) -> anyhow::Result<SocketAddr> {
    let wrong = || format!("--backend is {name}: write HOST:PORT, such as 127.0.0.1:2049");
    if !name.contains(':') {
        return Err(usage(wrong()));
    }
    name.to_socket_addrs().with_context(wrong)?.next().with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let arguments = Arguments::parse_from(["uwarp-nfs", "/srv"]);
        assert_eq!(arguments.rules(), ClientRules::default());
    }

    #[test]
    fn a_server_is_named_with_its_port() {
        assert_eq!(resolve("127.0.0.1:2049").unwrap(), SocketAddr::from(([127, 0, 0, 1], 2049)));
        for wrong in ["127.0.0.1", ":", "127.0.0.1:port"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }
}
