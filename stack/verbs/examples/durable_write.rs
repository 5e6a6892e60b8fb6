//! A durable write: RDMA Write and Commit as one request, which completes when the octets are in the server's file and
//! synced.
//!
//! ```text
//! cargo run -p uwarp --example durable_write
//! cargo run -p uwarp --example durable_write -- --device config/virtio-user.toml server
//! cargo run -p uwarp --example durable_write -- --device config/vhost.toml client 10.99.0.1
//! ```

mod common;

use std::io::Read;
use std::net::SocketAddr;

use common::{LIMIT, Outcome};
use uwarp::{
    AcceptOptions, Access, ConnectOptions, Context, Features, FileStore, Listener, QueuePairOptions, RegionOptions,
    RemoteMemory, SendRequest,
};

/// Both ends switch Commit on.
const COMMIT: Features = Features { atomics: false, immediate: false, commit: true, infiniband: false };
const TEXT: &[u8] = b"paid: 100";

fn server(context: &Context, mut listener: Listener) -> Outcome {
    let completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let mut file = tempfile::tempfile()?;
    let mut store = FileStore::default();
    store.add(&file, 0, 4096)?;
    let memory = domain.register(store.load()?, RegionOptions::new(Access::REMOTE_WRITE).store(store))?;
    let request = listener.next(LIMIT)?.ok_or("no client came")?;
    let options = AcceptOptions::default().features(COMMIT).private_data(memory.remote().to_octets());
    request.accept(&mut queue_pair.control, options)?;
    // The engine and the region's own thread do the work.
    queue_pair.control.wait_disconnected(LIMIT)?;
    let mut text = [0; TEXT.len()];
    file.read_exact(&mut text)?;
    println!("the file holds: {}", String::from_utf8_lossy(&text));
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let peer = context.connect(&mut queue_pair.control, server, ConnectOptions::default().features(COMMIT))?;
    let theirs = RemoteMemory::from_octets(&peer.private_data)?;
    queue_pair
        .send
        .post(&[SendRequest::write_inline(1, TEXT, theirs.stag, theirs.offset).with_commit().signalled()])?;
    let durable = completions.next(LIMIT)?.ok_or("no completion")?;
    println!("durable: {:?}", durable.status);
    queue_pair.control.disconnect();
    Ok(())
}

fn main() -> Outcome {
    common::run(common::listen, server, client)
}
