//! Latency, bandwidth and CPU time of remote procedure calls over RDMA, beside the same over a TCP stream.
#![forbid(unsafe_code)]

mod cli;
mod client;
mod pair;
mod program;
mod report;
mod server;
mod stream;

use cli::{Cli, Command, RunArguments, ServeArguments, Transport};
use std::process::ExitCode;
use uwarp::config::EngineMode;
use uwarp_app::side::is_side;
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
    arguments.rdma.threshold()?;
    let network = &arguments.network;
    let context = network.open(network.resolve(Role::Server, EngineMode::Inline)?)?;
    if !is_side() {
        // Standard output is for results, of which a server has none.
        eprintln!("serving on {}", context.socket_address(arguments.port));
    }
    match arguments.transport {
        Transport::Rdma => server::serve(&context, arguments)?,
        Transport::Tcp => stream::serve(&context, arguments.port, arguments.once)?,
    }
    context.close()?;
    Ok(())
}

fn run(arguments: &RunArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    let config = arguments.network.resolve(Role::Client, EngineMode::Inline)?;
    let report = client::run(config, arguments, &plan)?;
    report::publish(&[report], &arguments.options.json)
}
