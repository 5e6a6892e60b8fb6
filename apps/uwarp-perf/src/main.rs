//! Measures latency, bandwidth and message rate of RDMA over DPDK devices, and of the bare devices.
#![forbid(unsafe_code)]

mod cli;
mod namespace;
mod pair;
mod pattern;
mod raw;
mod rdma;
mod report;
mod streams;

use cli::{Cli, Command, RunArguments, ServeArguments, Transport};
use std::process::ExitCode;
use uwarp::config::EngineMode;
use uwarp_app::{Role, signals};

fn main() -> ExitCode {
    uwarp_app::run::<Cli>(|cli| {
        signals::install()?;
        match &cli.command {
            Command::Pair(arguments) => pair::run(arguments),
            Command::Serve(arguments) => serve(arguments),
            Command::Run(arguments) => run(arguments),
        }
    })
}

fn serve(arguments: &ServeArguments) -> anyhow::Result<()> {
    let config = arguments.network.resolve(Role::Server, EngineMode::Inline)?;
    match arguments.transport {
        Transport::Raw => raw::server(&config, &arguments.network, arguments.once),
        Transport::Tcp => streams::server(config, arguments),
        Transport::Rdma => rdma::server(config, arguments),
    }
}

fn run(arguments: &RunArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    let network = &arguments.network;
    let config = network.resolve(Role::Client, EngineMode::Inline)?;
    let device = uwarp_app::network::device_name(config.device.as_ref());
    let server = arguments.server.address(network, arguments.port);
    let report = match plan.test.transport() {
        Transport::Raw => raw::client(&config, network, &plan, &device)?,
        Transport::Tcp => streams::client(config, network, &plan, server, &device)?,
        Transport::Rdma => rdma::client(config, network, &plan, server, &device)?,
    };
    report.publish(&arguments.options.json)
}
