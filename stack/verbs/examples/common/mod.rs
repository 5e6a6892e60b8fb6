//! What the examples share: without arguments both ends run in this process, without a device; with `--device` one end
//! runs over the device of a configuration file.
#![allow(dead_code)] // Each example uses a part of it.

use std::net::SocketAddr;
use std::time::Duration;

use uwarp::{Config, Context, ListenOptions, Listener};

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The server's port.
pub const PORT: u16 = 7471;
/// How long one end waits for the other.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Listens for RDMA connections, for [`run`].
pub fn listen(context: &Context) -> Outcome<Listener> {
    Ok(context.listen(PORT, ListenOptions::default())?)
}

/// Runs the ends that the command line asks for. The server listens before a client connects.
pub fn run<L: Send + 'static>(
    listen: fn(&Context) -> Outcome<L>,
    server: fn(&Context, L) -> Outcome,
    client: fn(&Context, SocketAddr) -> Outcome,
) -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            let ours = Config::without_device("10.0.0.1/24")?;
            let (here, there) = Context::pair_in_process(ours, Config::without_device("10.0.0.2/24")?)?;
            let (listener, address) = (listen(&there)?, there.socket_address(PORT));
            let serving = std::thread::spawn(move || server(&there, listener));
            client(&here, address)?;
            serving.join().expect("the server ends")
        }
        ["--device", config, "server"] => {
            let context = Context::open(Config::from_toml_file(config)?)?;
            let listener = listen(&context)?;
            println!("waiting for a client");
            server(&context, listener)
        }
        ["--device", config, "client", host] => {
            let context = Context::open(Config::from_toml_file(config)?)?;
            client(&context, SocketAddr::new(host.parse()?, PORT))
        }
        _ => Err("usage: cargo run --example NAME [-- --device CONFIG server | --device CONFIG client ADDRESS]".into()),
    }
}
