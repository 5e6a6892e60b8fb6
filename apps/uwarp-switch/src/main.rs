//! Joins the RDMA programs of a host: each has the host's addresses, and TCP ports of its own.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use uwarp::config::{Config, DeviceConfig, InterfaceAddress};
use uwarp::switch::protocol::{self, Status, UplinkStatus, connect};
use uwarp::switch::{default_sockets, own_socket};
use uwarp_app::units::parse_duration;
use uwarp_app::{output, signals, usage};
use uwarp_switch::daemon::{self, Claim, Options, parse_device};

const EXAMPLES: &str = "\
Examples:
  A switch for this user's programs, and two of them:
    uwarp-switch serve &
    UWARP_SWITCH=$XDG_RUNTIME_DIR/uwarp/switch.sock uwarp-run rping -s &
    uwarp-run rping -c -a 127.0.0.1 -C 3

  Joined to other hosts by an interface on which the kernel has no address:
    uwarp-switch serve --uplink af-packet,interface=eth1 --address 10.1.0.5/24

  For containers that share a directory, and run as users 1000 and 1001:
    uwarp-switch serve --socket /srv/uwarp/switch.sock \\
        --allow-uid 1000 --allow-uid 1001

  Who is there, and what was dropped:
    uwarp-switch status";

/// Joins the RDMA programs of a host, without privileges: each has the host's addresses, and TCP ports of its own.
#[derive(Parser)]
#[command(name = "uwarp-switch", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// The socket [default: $XDG_RUNTIME_DIR/uwarp/switch.sock; without that variable /run/user/UID/uwarp/switch.sock,
    /// for root /run/uwarp/switch.sock, or ~/.local/state/uwarp/switch.sock]
    #[arg(long, value_name = "PATH", env = "UWARP_SWITCH", global = true)]
    socket: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve clients until interrupted
    Serve(ServeArguments),
    /// Print the clients of a switch, their ports, frames, and drops by reason
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct ServeArguments {
    /// Address that all clients have, with its prefix; may be repeated [default: the host's, whenever they change,
    /// without loopback and link-local ones; 127.0.0.1 and ::1 always lead to the first]
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    address: Vec<InterfaceAddress>,

    /// Device that joins the clients to other hosts, which needs --address: its kind, and settings as in the [device]
    /// table of a configuration file, such as af-packet,interface=eth1 or tap,name=uwarp0 or pci,address=0000:01:00.0
    /// [default: none]
    #[arg(long, value_name = "KIND[,KEY=VALUE...]", value_parser = parse_device, requires = "address")]
    uplink: Option<DeviceConfig>,

    /// Router for hosts outside of all subnets; one of each version of IP
    #[arg(long, value_name = "ADDRESS", requires = "uplink")]
    gateway: Vec<IpAddr>,

    /// Largest IP packet, 576 to 9000 octets (1280 with IPv6)
    #[arg(long, value_name = "OCTETS", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,

    /// User who may connect, beside root and the one who starts the switch; may be repeated
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,

    /// Addresses that a user's programs may bring from network namespaces of their own, such as 1000=10.8.0.0/24; may
    /// be repeated. Root and the one who starts the switch may bring all [default: any that nobody has]
    #[arg(long, value_name = "UID=ADDRESS/PREFIX", conflicts_with = "address")]
    allow_address: Vec<Claim>,

    /// Mode of the socket's file [default: 600, or 666 with --allow-uid]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    mode: Option<u32>,

    /// End when there has been no client for so long [default: serve until interrupted]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    exit_when_unused: Option<Duration>,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("write the mode as chmod takes it, such as 660".to_owned()),
    }
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|Arguments { command, socket }| match command {
        Command::Serve(arguments) => serve(socket, arguments),
        Command::Status { json } => status(socket, json),
    })
}

fn serve(socket: Option<PathBuf>, arguments: ServeArguments) -> anyhow::Result<()> {
    let socket = socket
        .or_else(own_socket)
        .ok_or_else(|| usage("there is no directory for the socket: name a path with --socket"))?;
    if arguments.mtu < 1280 && arguments.address.iter().any(|own| own.address.is_ipv6()) {
        return Err(usage(format!("--mtu is {}: IPv6 needs 1280 (RFC 8200 §5)", arguments.mtu)));
    }
    check_gateways(&arguments)?;
    signals::install()?;
    let path = socket.clone();
    let options = Options {
        socket,
        addresses: arguments.address,
        uplink: arguments.uplink,
        gateways: arguments.gateway,
        mtu: arguments.mtu,
        allowed: arguments.allow_uid,
        claims: arguments.allow_address,
        mode: arguments.mode,
        exit_when_unused: arguments.exit_when_unused,
    };
    daemon::serve(options, |offer| {
        let addresses: Vec<String> = offer.addresses.iter().map(ToString::to_string).collect();
        // Whoever started the switch waits for the line, and may be gone.
        output::print(format_args!("{}: {}, MTU {}", path.display(), addresses.join(", "), offer.mtu));
    })
}

/// Routers have to be what a client's configuration accepts.
fn check_gateways(arguments: &ServeArguments) -> anyhow::Result<()> {
    let Some((first, more)) = arguments.address.split_first() else { return Ok(()) };
    let mut config = Config::without_device(&first.to_string())?;
    config.more_addresses = more.to_vec();
    config.mtu = arguments.mtu;
    for gateway in &arguments.gateway {
        let is_second = match gateway {
            IpAddr::V4(gateway) => config.gateway.replace(*gateway).is_some(),
            IpAddr::V6(gateway) => config.gateway6.replace(*gateway).is_some(),
        };
        if is_second {
            return Err(usage(format!("--gateway {gateway} is the second one of its version of IP")));
        }
    }
    config.validate().map_err(|error| usage(error.to_string()))
}

fn status(socket: Option<PathBuf>, json: bool) -> anyhow::Result<()> {
    let sockets = socket.map_or_else(default_sockets, |socket| vec![socket]);
    let names = || sockets.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let connected = sockets.iter().find_map(|path| connect(path).ok());
    let connected = connected.ok_or_else(|| anyhow::anyhow!("no switch serves {}: uwarp-switch serve", names()))?;
    let status = protocol::status(&connected).context("the switch does not say: may this user ask it?")?;
    if json {
        output::print(serde_json::to_string_pretty(&status)?);
    } else {
        output::print(show(&status));
    }
    Ok(())
}

/// The uplink as a line.
fn show_uplink(uplink: &UplinkStatus) -> String {
    let drops = show_drops(&uplink.drops);
    format!(
        "uplink {} · {} · {} · received {} ({} octets) · sent {} · answered {} · dropped {}\n",
        uplink.device,
        uplink.mac,
        if uplink.up { "up" } else { "down" },
        uplink.received,
        uplink.received_octets,
        uplink.sent,
        uplink.answered,
        if drops.is_empty() { "0" } else { &drops },
    )
}

fn show_drops(drops: &BTreeMap<String, u64>) -> String {
    let drops: Vec<String> = drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    drops.join(", ")
}

/// The status as a table.
fn show(status: &Status) -> String {
    let addresses: Vec<String> = status.offer.addresses.iter().map(ToString::to_string).collect();
    let mut table = output::table([
        "place",
        "pid",
        "uid",
        "program",
        "addresses",
        "block",
        "listening",
        "received",
        "octets",
        "sent",
        "answered",
        "dropped",
    ]);
    for client in &status.clients {
        let listening: Vec<String> = client.listening.iter().map(ToString::to_string).collect();
        let addresses: Vec<String> = client.addresses.iter().map(ToString::to_string).collect();
        table.add_row([
            client.place.to_string(),
            client.pid.to_string(),
            client.uid.to_string(),
            output::printable(&client.program),
            addresses.join(" "),
            format!("{}-{}", client.ports.0, client.ports.1),
            listening.join(" "),
            client.received.to_string(),
            client.received_octets.to_string(),
            client.sent.to_string(),
            client.answered.to_string(),
            show_drops(&client.drops),
        ]);
    }
    let uplink = status.uplink.as_ref().map(show_uplink).unwrap_or_default();
    format!(
        "uwarp-switch · process {} · {} · mtu {} · {} of {} clients\n{uplink}{table}",
        status.pid,
        addresses.join(", "),
        status.offer.mtu,
        status.clients.len(),
        status.most_clients
    )
}
