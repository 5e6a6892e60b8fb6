//! A console over the devices of uwarp, as testpmd is one over those of DPDK: it forwards frames between ports, sends,
//! counts and captures them, and damages them on purpose.
#![forbid(unsafe_code)]

mod commands;
mod console;
mod device;
mod execute;
mod forward;
mod frames;
mod grammar;
mod line;
mod ports;
mod reply;
mod session;
mod show;

use clap::Parser;
use device::{Common, Plan};
use reply::Output;
use session::{Session, Settings};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use uwarp_app::units::parse_duration;
use uwarp_app::{signals, usage};

const EXAMPLES: &str = "\
Ports:
  A port is a kind of device with the fields that a configuration file has for it, or such a file:
    memif,role=server,socket=/tmp/a.sock     af-packet,interface=veth0
    virtio-user,socket=/tmp/a.sock           tap,name=uwarp0
    vhost,socket=/tmp/a.sock                 pci:0000:01:00.0
    ring,name=a                              null
    config/memif-server.toml
  Two rings of one name are the ends of a cable. The first port on the command line is port 0. Each has one queue.

Examples:
  A console over two ports that are joined by a cable:
    uwarp-pmd ring,name=a ring,name=a

  In it, send 32 frames by each and let them go round:
    start tx_first
    show stats every 1s
    stop

  The same from a file, with results that a program reads:
    uwarp-pmd ring,name=a ring,name=a --commands FILE --json

  Forward between a kernel interface and a memif client, with loss:
    uwarp-pmd af-packet,interface=veth0 memif,role=server,socket=/tmp/a
    set fault 1 loss 1%
    start

'help' in the console lists the commands. Where testpmd has the same, they are testpmd's. Ctrl-C ends what runs, Ctrl-D \
or 'quit' ends the console.";

/// A console over devices: forwards frames between ports, sends, counts and captures them, and damages them on purpose.
#[derive(Parser, Debug)]
#[command(name = "uwarp-pmd", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// The ports, see below
    #[arg(required = true, value_name = "PORT")]
    ports: Vec<String>,

    /// Take commands from this file (- for standard input, as always where that is no terminal). The first that fails
    /// ends it, with its line's number and exit status 1
    #[arg(long, value_name = "FILE")]
    commands: Option<PathBuf>,

    /// Print one JSON object for each result
    #[arg(long)]
    json: bool,

    /// Largest IP packet, 576 to 9000 octets [default: the file's, or 1500]
    #[arg(long, value_name = "OCTETS")]
    mtu: Option<u16>,

    /// Packet buffers of each pool; a port has one to receive and one to send
    #[arg(long, value_name = "NUMBER", default_value_t = 4096)]
    buffers: u32,

    /// CPU of the forwarding core [default: the system's choice]
    #[arg(long, value_name = "CPU")]
    cpus: Option<usize>,

    /// How long to wait for a port's other end, where the port connects to it [default: the file's, or 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,

    /// Take DPDK's memory from hugepages, which must be reserved
    #[arg(long)]
    hugepages: bool,
}

/// Most ports. DPDK has no more.
const PORTS_MAX: usize = 32;
/// Most buffers of a pool.
const BUFFERS_MAX: u32 = 1 << 20;

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        signals::install()?;
        run(&arguments)
    })
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let buffers = arguments.buffers;
    if !(64..=BUFFERS_MAX).contains(&buffers) {
        return Err(usage(format!("--buffers is {buffers}: choose 64 to {BUFFERS_MAX}")));
    }
    if arguments.ports.len() > PORTS_MAX {
        return Err(usage(format!("{} ports are too many: {PORTS_MAX} at most", arguments.ports.len())));
    }
    let common = Common { mtu: arguments.mtu, buffers, wait: arguments.wait, hugepages: arguments.hugepages };
    let plans = arguments.ports.iter().map(|text| Plan::read(text, &common)).collect::<anyhow::Result<Vec<_>>>()?;
    let file = match &arguments.commands {
        Some(file) => Some(file.as_path()),
        None if std::io::stdin().is_terminal() => None,
        None => Some(Path::new("-")),
    };
    let settings = Settings { cpu: arguments.cpus, ..Settings::default() };
    let mut session = signals::at_once(|| Session::open(plans, settings))?;
    let output = Output { json: arguments.json };
    match file {
        Some(file) => console::run_file(&mut session, output, file),
        None => console::run_terminal(&mut session, output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
