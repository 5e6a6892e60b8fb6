//! `pair`: runs both sides as processes of their own, each on its CPU, for one transport after another.

use crate::cli::{PairArguments, Plan, Transport};
use crate::report::{Report, publish};
use anyhow::Context as _;
use std::path::Path;
use std::process::Command;
use uwarp::config::EngineMode;
use uwarp_app::cacheline::CacheLine;
use uwarp_app::pair::{self, Folder, check_flags, check_socket_device, choose_cpus};
use uwarp_app::units::name_of;
use uwarp_app::{NetworkFlags, Role};

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
        let (mut report, line) = CacheLine::around(cpus, || both(arguments, &plan, transport, &folder.socket, cpus))?;
        report.cacheline_ns = line;
        reports.push(report);
    }
    publish(&reports, &arguments.options.json)
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
    let command = |side: &str, role: Role| -> anyhow::Result<Command> {
        let mut command = pair::side(side, role, cpus, &arguments.network)?;
        command.args(["--transport", &name_of(transport), "--inline", &arguments.rdma.inline.to_string()]);
        if arguments.rdma.no_invalidation {
            command.arg("--no-invalidation");
        }
        command.arg("--socket").arg(socket);
        Ok(command)
    };
    let mut server = command("serve", Role::Server)?;
    server.arg("--once");
    let mut client = command("run", Role::Client)?;
    client.args([&name_of(plan.test), "--json", "-", "--depth", &plan.depth.to_string()]);
    client.args(["--server", &arguments.network.default_address(Role::Server).to_string()]);
    client.args(["--size", &plan.size.to_string(), "--registration", &name_of(arguments.options.registration)]);
    client.args(plan.amount.to_arguments());
    if plan.verify {
        client.arg("--verify");
    }
    let mut reports: Vec<Report> = pair::run(&mut server, &mut client, |_| Ok(()))?;
    reports.pop().context("the client has no result")
}
