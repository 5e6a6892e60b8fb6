//! Send and receive.
//!
//! ```text
//! cargo run -p uwarp --example send
//! cargo run -p uwarp --example send -- --device config/virtio-user.toml server
//! cargo run -p uwarp --example send -- --device config/vhost.toml client 10.99.0.1
//! ```

mod common;

use std::net::SocketAddr;

use common::{LIMIT, Outcome};
use uwarp::{AcceptOptions, Access, ConnectOptions, Context, Listener, QueuePairOptions, ReceiveRequest, SendRequest};

fn server(context: &Context, mut listener: Listener) -> Outcome {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let memory = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;
    // Before the connection stands, since the peer may send at once.
    queue_pair.receive.post(&[ReceiveRequest::new(1, &[memory.sge(..)?])])?;
    let request = listener.next(LIMIT)?.ok_or("no client came")?;
    let peer = request.accept(&mut queue_pair.control, AcceptOptions::default())?;
    let received = completions.next(LIMIT)?.ok_or("no message came")?;
    let text = memory.to_vec(0, received.length as usize)?;
    println!("{} sent: {} ({:?})", peer.peer, String::from_utf8_lossy(&text), received.status);
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut completions = context.create_completion_queue(16)?;
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    context.connect(&mut queue_pair.control, server, ConnectOptions::default())?;
    let memory = domain.register(b"good morning".to_vec(), Access::LOCAL_READ)?;
    queue_pair.send.post(&[SendRequest::send(1, &[memory.sge(..)?]).signalled()])?;
    let sent = completions.next(LIMIT)?.ok_or("no completion")?;
    println!("sent: {:?}", sent.status);
    Ok(())
}

fn main() -> Outcome {
    common::run(common::listen, server, client)
}
