//! FetchAdd: the client draws tickets from a counter in the server's memory (RFC 7306).
//!
//! ```text
//! cargo run -p uwarp --example atomic
//! cargo run -p uwarp --example atomic -- --device config/virtio-user.toml server
//! cargo run -p uwarp --example atomic -- --device config/vhost.toml client 10.99.0.1
//! ```

mod common;

use std::net::SocketAddr;

use common::{LIMIT, Outcome};
use uwarp::{
    AcceptOptions, Access, ConnectOptions, Context, Features, Listener, QueuePairOptions, RemoteMemory, SendRequest,
};

/// Both ends switch atomics on.
const ATOMICS: Features = Features { atomics: true, immediate: false, commit: false, infiniband: false };

fn server(context: &Context, mut listener: Listener) -> Outcome {
    let completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let rights = Access::REMOTE_ATOMIC;
    let counter = domain.register(vec![0; 8], rights)?;
    counter.store_release_u64(0, 100)?;
    let request = listener.next(LIMIT)?.ok_or("no client came")?;
    let options = AcceptOptions::default().features(ATOMICS).private_data(counter.remote().to_octets());
    request.accept(&mut queue_pair.control, options)?;
    queue_pair.control.wait_disconnected(LIMIT)?;
    println!("the next ticket is {}", counter.load_acquire_u64(0)?);
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let peer = context.connect(&mut queue_pair.control, server, ConnectOptions::default().features(ATOMICS))?;
    let theirs = RemoteMemory::from_octets(&peer.private_data)?;
    for id in 1..=3 {
        queue_pair.send.post(&[SendRequest::fetch_add(id, theirs.stag, theirs.offset, 1).signalled()])?;
        let drawn = completions.next(LIMIT)?.ok_or("no completion")?;
        println!("ticket {:?}", drawn.original_value().ok_or("the peer refuses")?);
    }
    queue_pair.control.disconnect();
    Ok(())
}

fn main() -> Outcome {
    common::run(common::listen, server, client)
}
