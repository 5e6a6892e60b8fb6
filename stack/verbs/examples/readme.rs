//! The program of README.md, which is compiled here. It wants a server at 10.99.0.1, as the example `send` is one:
//!
//! ```text
//! cargo run -p uwarp --example send -- --device config/memif-server.toml server
//! cargo run -p uwarp --example readme
//! ```

use std::time::Duration;

use uwarp::{Access, Config, ConnectOptions, Context, QueuePairOptions, SendRequest};

#[rustfmt::skip]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // README.md
    let context = Context::open(Config::from_toml_file("config/memif-client.toml")?)?;
    let domain = context.allocate_domain();
    let mut completions = context.create_completion_queue(64)?;
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let region = domain.register(vec![7; 4096], Access::LOCAL_READ)?;
    context.connect(&mut queue_pair.control, "10.99.0.1:7471".parse()?, ConnectOptions::default())?;
    queue_pair.send.post(&[SendRequest::send(1, &[region.sge(..)?]).signalled()])?;
    let completion = completions.next(Duration::from_secs(1))?;
    // README.md
    println!("{completion:?}");
    Ok(())
}
