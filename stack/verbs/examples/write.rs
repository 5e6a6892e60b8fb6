//! An RDMA Write into the memory of another process, over a real device.
//!
//! ```text
//! cargo run --example write -- server config/virtio-user.toml
//! cargo run --example write -- client config/vhost.toml 10.99.0.1
//! ```

use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, Config, ConnectOptions, Context, Error, ListenOptions, MemoryRegion, QueuePairOptions,
    SendRequest,
};

const PORT: u16 = 7471;
const LIMIT: Duration = Duration::from_secs(60);

/// Where the peer may go: STag and tagged offset of the first octet, as this example's two sides agree to write them.
fn place(memory: &MemoryRegion) -> Vec<u8> {
    let mut octets = memory.stag().to_be_bytes().to_vec();
    octets.extend(memory.remote_offset().to_be_bytes());
    octets
}

fn parse_place(octets: &[u8]) -> Option<(u32, u64)> {
    let (stag, offset) = octets.split_at_checked(4)?;
    Some((u32::from_be_bytes(stag.try_into().ok()?), u64::from_be_bytes(offset.try_into().ok()?)))
}

const LENGTH: usize = 1 << 20;

fn server(context: &Context) -> Result<(), Error> {
    let completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let memory = domain.register_zeroed(LENGTH, Access::REMOTE_WRITE)?;
    let mut listener = context.listen(PORT, ListenOptions::default())?;
    println!("waiting for a client");
    let Some(request) = listener.next(LIMIT)? else {
        println!("nobody came");
        return Ok(());
    };
    let options = AcceptOptions::default().private_data(place(&memory));
    let peer = request.accept(&mut queue_pair, options)?;
    // The last octet is placed last.
    while memory.load_acquire_u8(LENGTH - 1)? == 0 {
        context.poll();
        std::thread::yield_now();
    }
    let octets = memory.to_vec(0, LENGTH)?;
    println!(
        "{} wrote {LENGTH} octets, {} of them are 7",
        peer.peer,
        octets.iter().filter(|&&octet| octet == 7).count()
    );
    Ok(())
}

fn client(context: &Context, host: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let peer = format!("{host}:{PORT}").parse()?;
    let peer = context.connect(&mut queue_pair, peer, ConnectOptions::default())?;
    let (stag, offset) = parse_place(&peer.private_data).ok_or("the peer is not this example")?;
    let memory = domain.register(vec![7; LENGTH], Access::LOCAL_READ)?;
    queue_pair.post_send(&[SendRequest::write(1, &[memory.sge(..)?], stag, offset).signalled()])?;
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
            eprintln!("usage: write server CONFIG | write client CONFIG ADDRESS");
            std::process::exit(2);
        }
    }
    Ok(())
}
