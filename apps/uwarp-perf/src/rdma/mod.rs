//! The RDMA tests. The client connects a control connection and the data queue pairs, requests a test, and measures;
//! the server follows its instructions.

mod bandwidth;
mod client;
mod latency;
mod layout;
mod server;
mod session;
mod wire;

pub use client::run as client;
pub use server::run as server;

use uwarp::config::EngineMode;
use uwarp::{Config, Context};
use uwarp_app::cacheline::pin;
use uwarp_app::usage;

/// Opens the context. An inline engine runs on this thread, which is pinned. A threaded engine is pinned by itself, and
/// the scheduler places this thread.
pub fn open(config: Config, cpu: Option<usize>) -> anyhow::Result<Context> {
    let inline = config.engine.mode == EngineMode::Inline;
    let context = Context::open(config)?;
    if inline
        && let Some(cpu) = cpu
        && !pin(cpu)
    {
        return Err(usage(format!("this process may not run on CPU {cpu}")));
    }
    Ok(context)
}
