//! Completions that a task of tokio awaits: no thread waits in uwarp, and nothing polls.
//!
//! ```text
//! cargo run -p uwarp --example tokio
//! ```
use anyhow::{Context as _, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use uwarp::*;

/// The next completion. `readiness` is of a clone of the queue's file descriptor.
async fn next(completions: &mut CompletionQueue, readiness: &AsyncFd<OwnedFd>) -> Result<Completion> {
    loop {
        completions.arm();
        // What came before the queue was armed raises no event.
        if let Some(completion) = completions.poll_one() {
            return Ok(completion);
        }
        let mut ready = readiness.readable().await?;
        completions.take_events();
        ready.clear_ready();
    }
}

/// Sends `messages` from a queue pair to another of the same context, and awaits each at both ends.
async fn exchange(messages: u64) -> Result<()> {
    let context = Context::open(Config::without_device("10.0.0.1/24")?)?;
    let (domain, mut completions) = (context.allocate_domain(), context.create_completion_queue(64)?);
    #[expect(deprecated, reason = "`register` is unsafe for descriptors that may close; an `OwnedFd` stays open")]
    let readiness = AsyncFd::new(completions.as_fd().try_clone_to_owned()?)?;
    let mut client = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let mut server = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let mut listener = context.listen(0, ListenOptions::default())?;
    let address = context.socket_address(listener.port());
    let connecting = context.start_connect(&mut client.control, address, ConnectOptions::default())?;
    let request = listener.next(Duration::from_secs(5))?.context("nobody has asked")?;
    drop(request.start_accept(&mut server.control, AcceptOptions::default())?);
    connecting.wait(&mut client.control)?;
    for id in 0..messages {
        server.receive.post(&[ReceiveRequest::new(id, &[])])?;
        client.send.post(&[SendRequest::send(id, &[]).signalled()])?;
        for _ in 0..2 {
            let completion = next(&mut completions, &readiness).await?;
            anyhow::ensure!(completion.id == id && completion.status.is_success(), "{completion:?}");
        }
    }
    Ok(())
}

pub(crate) fn main() -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(exchange(100))
}
