//! Measures latency, bandwidth and message rate of RDMA over DPDK devices, and of the bare devices.
#![forbid(unsafe_code)]

mod cli;
mod meter;
mod namespace;
mod pair;
mod pattern;
mod raw;
mod rdma;
mod report;
mod samples;
mod streams;

use cli::{Cli, ClientArguments, Command, ServerArguments};
use std::process::ExitCode;
use uwarp::config::EngineMode;
use uwarp_app::{Role, signals, usage};

fn main() -> ExitCode {
    uwarp_app::run::<Cli>(|cli| {
        signals::install()?;
        match &cli.command {
            Command::Pair(arguments) => pair::run(arguments),
            Command::Server(arguments) => server(arguments),
            Command::Client(arguments) => client(arguments),
        }
    })
}

fn server(arguments: &ServerArguments) -> anyhow::Result<()> {
    end_with_parent(arguments.with_parent)?;
    let config = resolve(&arguments.network, Role::Server, arguments.cpus)?;
    if arguments.raw {
        return raw::server(&config, arguments.cpus, arguments.once);
    }
    if arguments.streams {
        return streams::server(config, arguments);
    }
    rdma::server(config, arguments)
}

fn client(arguments: &ClientArguments) -> anyhow::Result<()> {
    end_with_parent(arguments.with_parent)?;
    let plan = arguments.options.plan(arguments.test)?;
    let config = resolve(&arguments.network, Role::Client, arguments.cpus)?;
    let device = uwarp_app::network::device_name(config.device.as_ref());
    let report = if plan.test.is_raw() {
        raw::client(&config, arguments.cpus, &plan, &device)?
    } else {
        let Some(server) = arguments.server else {
            return Err(usage("the server's address is missing: give it after the name of the test"));
        };
        let server = std::net::SocketAddr::from((server, arguments.port));
        if plan.test.is_stream() {
            streams::client(config, arguments.cpus, &plan, server, &device)?
        } else {
            rdma::client(config, arguments.cpus, &plan, server, &device)?
        }
    };
    report.publish(arguments.options.json.as_deref())
}

/// The configuration of one side. A threaded engine goes to the CPU; an inline one is pinned later with its thread.
fn resolve(network: &uwarp_app::NetworkFlags, role: Role, cpu: Option<usize>) -> anyhow::Result<uwarp::Config> {
    let mut config = network.resolve(role, EngineMode::Inline)?;
    if config.engine.mode == EngineMode::Threaded
        && config.engine.count == 1
        && let Some(cpu) = cpu
    {
        config.engine.cpus = vec![cpu];
    }
    Ok(config)
}

/// Ends this process with its pair, however that ends.
fn end_with_parent(wanted: bool) -> anyhow::Result<()> {
    if wanted {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    Ok(())
}
