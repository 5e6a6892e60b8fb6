//! RDMA Read: the client fetches the server's memory, without the server's help.
//!
//! ```text
//! cargo run -p uwarp --example read
//! cargo run -p uwarp --example read -- --device config/virtio-user.toml server
//! cargo run -p uwarp --example read -- --device config/vhost.toml client 10.99.0.1
//! ```

mod common;

use std::net::SocketAddr;

use common::{LIMIT, Outcome};
use uwarp::{AcceptOptions, Access, ConnectOptions, Context, Listener, QueuePairOptions, RemoteMemory, SendRequest};

const TEXT: &[u8] = b"a page of the archive";

fn server(context: &Context, mut listener: Listener) -> Outcome {
    let completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let memory = domain.register(TEXT.to_vec(), Access::REMOTE_READ)?;
    let request = listener.next(LIMIT)?.ok_or("no client came")?;
    request.accept(&mut queue_pair.control, AcceptOptions::default().private_data(memory.remote().to_octets()))?;
    // The engine answers Reads by itself until the client disconnects.
    queue_pair.control.wait_disconnected(LIMIT)?;
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let peer = context.connect(&mut queue_pair.control, server, ConnectOptions::default())?;
    let theirs = RemoteMemory::from_octets(&peer.private_data)?;
    let memory = domain.register(vec![0; TEXT.len()], Access::LOCAL_WRITE)?;
    queue_pair.send.post(&[SendRequest::read(1, &[memory.sge(..)?], theirs.stag, theirs.offset).signalled()])?;
    let read = completions.next(LIMIT)?.ok_or("no completion")?;
    println!("read: {} ({:?})", String::from_utf8_lossy(&memory.to_vec(0, TEXT.len())?), read.status);
    queue_pair.control.disconnect();
    Ok(())
}

fn main() -> Outcome {
    common::run(common::listen, server, client)
}
