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
use uwarp::{Config, Context};
use uwarp_app::{NetworkFlags, Role, cacheline, signals, usage};

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
    end_with_parent(arguments.with_parent)?;
    arguments.rdma.threshold()?;
    let context = open(resolve(&arguments.network, Role::Server, arguments.cpu)?, arguments.cpu)?;
    if !arguments.with_parent {
        // Standard output is for results, and a server has none.
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
    end_with_parent(arguments.with_parent)?;
    let plan = arguments.options.plan(arguments.test)?;
    let config = resolve(&arguments.network, Role::Client, arguments.cpu)?;
    let report = client::run(config, arguments, &plan)?;
    report::publish(&[report], arguments.options.json.as_deref())
}

/// The configuration of one side. A threaded engine goes to the CPU; an inline one is pinned later with its thread.
fn resolve(network: &NetworkFlags, role: Role, cpu: Option<usize>) -> anyhow::Result<Config> {
    let mut config = network.resolve(role, EngineMode::Inline)?;
    if config.engine.mode == EngineMode::Threaded
        && config.engine.count == 1
        && let Some(cpu) = cpu
    {
        config.engine.cpus = vec![cpu];
    }
    Ok(config)
}

/// Opens the context; an inline engine runs on this thread, which is pinned.
fn open(config: Config, cpu: Option<usize>) -> anyhow::Result<Context> {
    let inline = config.engine.mode == EngineMode::Inline;
    let context = Context::open(config)?;
    if inline
        && let Some(cpu) = cpu
        && !cacheline::pin(cpu)
    {
        return Err(usage(format!("this process may not run on CPU {cpu}")));
    }
    Ok(context)
}

/// Ends this process with its pair, however that ends.
fn end_with_parent(wanted: bool) -> anyhow::Result<()> {
    if wanted {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    Ok(())
}
