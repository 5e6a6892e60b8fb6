//! RDMA Write: the client fills the server's memory, without the server's help.
//!
//! ```text
//! cargo run -p uwarp --example write
//! cargo run -p uwarp --example write -- --device config/virtio-user.toml server
//! cargo run -p uwarp --example write -- --device config/vhost.toml client 10.99.0.1
//! ```

mod common;

use std::net::SocketAddr;
use std::time::Instant;

use common::{LIMIT, Outcome};
use uwarp::{AcceptOptions, Access, ConnectOptions, Context, Listener, QueuePairOptions, RemoteMemory, SendRequest};

const LENGTH: usize = 64;

fn server(context: &Context, mut listener: Listener) -> Outcome {
    let completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let memory = domain.register(vec![0; LENGTH], Access::REMOTE_WRITE)?;
    let request = listener.next(LIMIT)?.ok_or("no client came")?;
    request.accept(&mut queue_pair.control, AcceptOptions::default().private_data(memory.remote().to_octets()))?;
    // The octets of a segment are placed in order, so the last one tells that all are there.
    let start = Instant::now();
    while memory.load_acquire_u8(LENGTH - 1)? == 0 {
        if start.elapsed() > LIMIT {
            return Err("nothing was written".into());
        }
        std::thread::yield_now();
    }
    println!("the memory holds: {:?}", &memory.to_vec(0, LENGTH)?[..8]);
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let peer = context.connect(&mut queue_pair.control, server, ConnectOptions::default())?;
    let theirs = RemoteMemory::from_octets(&peer.private_data)?;
    let memory = domain.register(vec![7; LENGTH], Access::LOCAL_READ)?;
    queue_pair.send.post(&[SendRequest::write(1, &[memory.sge(..)?], theirs.stag, theirs.offset).signalled()])?;
    let written = completions.next(LIMIT)?.ok_or("no completion")?;
    println!("written: {:?}", written.status);
    Ok(())
}

fn main() -> Outcome {
    common::run(common::listen, server, client)
}
