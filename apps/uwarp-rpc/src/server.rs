//! The side that is called, over RPC-over-RDMA.

use crate::cli::ServeArguments;
use crate::program::{Blobs, SIZE_MAX, Server};
use std::sync::Arc;
use std::time::Duration;
use uwarp::config::EngineMode;
use uwarp::{Context, ListenOptions};
use uwarp_app::signals;
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::responder::{Responder, ResponderOptions, Retries};
use uwarp_rpcrdma::walk::Part;

/// Calls of a client that may be under way.
const CREDITS: u32 = 256;
/// Memory for the blobs of one client.
const MEMORY: u64 = 4 * SIZE_MAX;
/// Rounds without anything to do after which a threaded server sleeps a little.
const IDLE: u32 = 1000;

/// Serves all clients in one thread until interrupted; with `once`, until the first has left.
///
/// # Errors
/// The port is taken, or the engine failed.
pub fn serve(context: &Context, arguments: &ServeArguments) -> anyhow::Result<()> {
    let threshold = arguments.rdma.threshold()?;
    let options = ResponderOptions {
        credits: CREDITS,
        send_size: threshold,
        receive_size: threshold,
        remote_invalidation: !arguments.rdma.no_invalidation,
        // An echo is a long call of its data and a header.
        longest_call: SIZE_MAX + 4096,
        memory: MEMORY,
        ..ResponderOptions::default()
    };
    let bindings: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Blobs)]);
    let retries = Arc::new(Retries::default());
    let mut listener = context.listen(arguments.port, ListenOptions::default())?;
    let inline = context.config().engine.mode == EngineMode::Inline;
    let mut clients: Vec<(Responder, Server)> = Vec::new();
    let mut idle = 0_u32;
    while !signals::interrupted() {
        // Nothing is lost by looking for clients less often than for calls.
        if (clients.is_empty() || idle.is_multiple_of(64) && idle > 0)
            && let Some(request) = listener.try_next()?
        {
            let (bindings, retries) = (Arc::clone(&bindings), Arc::clone(&retries));
            let peer = request.peer();
            match Responder::accept(context, request, bindings, options.clone(), retries) {
                Ok(responder) => clients.push((responder, Server::default())),
                Err(error) => eprintln!("uwarp-rpc: client {peer}: {error}"),
            }
        }
        idle = idle.saturating_add(1);
        let mut left = false;
        clients.retain_mut(|(responder, server)| match responder.poll() {
            Ok(None) => true,
            Ok(Some(request)) => {
                idle = 0;
                let answer = server.answer(request.procedure, &request.arguments, || responder.reclaim());
                for part in request.arguments {
                    if let Part::Item(blob) = part {
                        responder.recycle(blob);
                    }
                }
                responder.answer(request.token, answer);
                true
            }
            Err(_) => {
                left = true;
                false
            }
        });
        if left && arguments.once {
            return Ok(());
        }
        if idle > IDLE {
            if clients.is_empty() {
                std::thread::sleep(Duration::from_micros(if inline { 10 } else { 200 }));
            } else if !inline {
                std::thread::yield_now();
            }
        }
    }
    Ok(())
}
