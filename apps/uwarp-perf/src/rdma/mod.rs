//! The RDMA tests. One process connects a control connection and the data queue pairs, says what is to be tested, and
//! measures; the other does what it is told.

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

/// Opens the context. An inline engine runs on this thread, which is pinned; a threaded one is pinned by itself, and this
/// thread goes where the scheduler likes.
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
