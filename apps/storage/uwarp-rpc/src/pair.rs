//! `pair`: runs both sides as processes of their own, each on its CPU, for one transport after another.

use crate::cli::{Amount, PairArguments, Plan, Transport};
use crate::report::{Report, publish};
use anyhow::Context as _;
use std::path::Path;
use std::process::Command;
use uwarp::config::EngineMode;
use uwarp_app::pair::{self, CacheLine, Folder, check_flags, check_socket_device, choose_cpus};
use uwarp_app::{NetworkFlags, Role, cacheline};

/// Runs a pair.
///
/// # Errors
/// An invalid command line, or a side that failed (it has reported why).
pub fn run(arguments: &PairArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    arguments.rdma.threshold()?;
    let cpus = choose_cpus(&arguments.network.cpus)?;
    check(arguments)?;
    let folder = Folder::new("uwarp-rpc-")?;
    let transports = match arguments.transport {
        Some(transport) => vec![transport],
        None => vec![Transport::Rdma, Transport::Tcp],
    };
    let mut reports = Vec::new();
    for transport in transports {
        let before = cacheline::round_trip(cpus[0], cpus[1]);
        let mut report = both(arguments, &plan, transport, &folder.socket, cpus)?;
        let after = cacheline::round_trip(cpus[0], cpus[1]);
        report.cacheline_ns = before.zip(after).map(|(before, after)| CacheLine { before, after });
        reports.push(report);
    }
    publish(&reports, arguments.options.json.as_deref())
}

/// Refuses flags for what a pair decides itself.
fn check(arguments: &PairArguments) -> anyhow::Result<()> {
    let network = &arguments.network;
    check_flags(network, "'serve' and 'run'")?;
    check_socket_device(network, "'serve' and 'run'")?;
    // Mistakes of the other flags are found before anything starts.
    let network = NetworkFlags { cpus: Vec::new(), ..network.clone() };
    for role in [Role::Server, Role::Client] {
        network.resolve(role, EngineMode::Inline)?;
    }
    Ok(())
}

fn both(
    arguments: &PairArguments,
    plan: &Plan,
    transport: Transport,
    socket: &Path,
    cpus: [usize; 2],
) -> anyhow::Result<Report> {
    let command = |side: &str, cpu: usize| -> anyhow::Result<Command> {
        let mut command = pair::side(side, cpu, &arguments.network)?;
        command.args(["--transport", transport.name(), "--inline", &arguments.rdma.inline.to_string()]);
        if arguments.rdma.no_invalidation {
            command.arg("--no-invalidation");
        }
        command.arg("--socket").arg(socket);
        Ok(command)
    };
    let mut server = command("serve", cpus[0])?;
    server.arg("--once");
    let mut client = command("run", cpus[1])?;
    client.args([plan.test.name(), "--json", "-", "--depth", &plan.depth.to_string()]);
    client.args(["--server", &arguments.network.default_address(Role::Server).to_string()]);
    client.args(["--size", &plan.size.to_string(), "--registration", arguments.options.registration.name()]);
    match plan.amount {
        Amount::Iterations(iterations) => client.args(["--iterations", &iterations.to_string()]),
        Amount::Duration(duration) => client.args(["--duration", &format!("{}ns", duration.as_nanos())]),
    };
    if plan.verify {
        client.arg("--verify");
    }
    if let Some(file) = &arguments.network.pcap {
        client.arg("--pcap").arg(file);
    }
    let text = pair::run(&mut server, &mut client, |_| Ok(()))?;
    let mut reports: Vec<Report> = serde_json::from_str(&text).context("the client's result cannot be read")?;
    reports.pop().context("the client has no result")
}
