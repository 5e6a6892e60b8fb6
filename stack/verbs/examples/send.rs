//! Send and receive between two processes over a real device.
//!
//! ```text
//! cargo run --example send -- server config/virtio-user.toml
//! cargo run --example send -- client config/vhost.toml 10.99.0.1
//! ```

use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, Config, ConnectOptions, Context, Error, ListenOptions, QueuePairOptions, ReceiveRequest,
    SendRequest,
};

const PORT: u16 = 7471;
const LIMIT: Duration = Duration::from_secs(60);

fn server(context: &Context) -> Result<(), Error> {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let memory = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;
    // Before the connection is there, since the peer may send at once.
    queue_pair.post_receive(&[ReceiveRequest::new(1, &[memory.sge(..)?])])?;
    let mut listener = context.listen(PORT, ListenOptions::default())?;
    println!("waiting for a client");
    let Some(request) = listener.next(LIMIT)? else {
        println!("nobody came");
        return Ok(());
    };
    let peer = request.accept(&mut queue_pair, AcceptOptions::default())?;
    match completions.next(LIMIT)? {
        Some(received) if received.status.is_success() => {
            let octets = memory.to_vec(0, received.length as usize)?;
            println!("{} says: {}", peer.peer, String::from_utf8_lossy(&octets));
        }
        other => println!("no message: {other:?}"),
    }
    Ok(())
}

fn client(context: &Context, host: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let peer = format!("{host}:{PORT}").parse()?;
    context.connect(&mut queue_pair, peer, ConnectOptions::default())?;
    let memory = domain.register(b"good morning".to_vec(), Access::LOCAL_READ)?;
    queue_pair.post_send(&[SendRequest::send(1, &[memory.sge(..)?]).signalled()])?;
    println!("{:?}", completions.next(LIMIT)?);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", config] => server(&Context::open(Config::from_toml_file(config)?)?)?,
        ["client", config, host] => {
            client(&Context::open(Config::from_toml_file(config)?)?, host)?;
        }
        _ => {
            eprintln!("usage: send server CONFIG | send client CONFIG ADDRESS");
            std::process::exit(2);
        }
    }
    Ok(())
}
