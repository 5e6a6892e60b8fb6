//! The side that is called, over RPC-over-RDMA.

use crate::cli::ServeArguments;
use crate::program::{Blobs, SIZE_MAX, Server};
use std::sync::Arc;
use std::time::Duration;
use uwarp::config::EngineMode;
use uwarp::{Context, ListenOptions, Listener};
use uwarp_app::{output, signals};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::responder::{Common, Responder, ResponderOptions};
use uwarp_rpcrdma::walk::Part;

/// Calls of a client that may be under way.
const CREDITS: u32 = 256;
/// Memory for the blobs of one client.
const MEMORY: u64 = 4 * SIZE_MAX;
/// Rounds without work after which a threaded server sleeps briefly.
const IDLE: u32 = 1000;

/// Rounds between checks for new clients, which need not be as frequent as those for calls.
const ACCEPT: u32 = 64;

/// Serves all clients in one thread until interrupted, or with `once` until the first has left.
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
    let mut clients = Clients::new(context, arguments.port, options)?;
    let inline = context.config().engine.mode == EngineMode::Inline;
    let mut idle = 0_u32;
    while !signals::interrupted() {
        let Round { busy, left } = clients.step()?;
        if left && arguments.once {
            return Ok(());
        }
        idle = if busy { 0 } else { idle.saturating_add(1) };
        if idle > IDLE {
            if clients.clients.is_empty() {
                std::thread::sleep(Duration::from_micros(if inline { 10 } else { 200 }));
            } else if !inline {
                std::thread::yield_now();
            }
        }
    }
    Ok(())
}

/// The clients, each with the blob that it has put.
struct Clients<'a> {
    context: &'a Context,
    listener: Listener,
    options: ResponderOptions,
    bindings: Arc<[Arc<dyn Binding>]>,
    common: Arc<Common>,
    clients: Vec<(Responder, Server)>,
    rounds: u32,
}

/// The work of a round.
struct Round {
    /// A call was answered.
    busy: bool,
    /// A client has left.
    left: bool,
}

impl<'a> Clients<'a> {
    fn new(context: &'a Context, port: u16, options: ResponderOptions) -> anyhow::Result<Self> {
        Ok(Self {
            context,
            listener: context.listen(port, ListenOptions::default())?,
            options,
            bindings: Arc::new([Arc::new(Blobs)]),
            common: Arc::default(),
            clients: Vec::new(),
            rounds: 0,
        })
    }

    /// Takes a call of each client, and occasionally a new client, whether the others are busy or not.
    fn step(&mut self) -> anyhow::Result<Round> {
        self.rounds = self.rounds.wrapping_add(1);
        if (self.clients.is_empty() || self.rounds.is_multiple_of(ACCEPT))
            && let Some(request) = self.listener.try_next()?
        {
            let (bindings, common) = (Arc::clone(&self.bindings), Arc::clone(&self.common));
            let peer = request.peer();
            match Responder::accept(self.context, request, bindings, self.options.clone(), common) {
                Ok(responder) => self.clients.push((responder, Server::default())),
                Err(error) => output::complain(format_args!("uwarp-rpc: client {peer}: {error}")),
            }
        }
        let mut round = Round { busy: false, left: false };
        self.clients.retain_mut(|(responder, server)| match responder.poll() {
            Ok(None) => true,
            Ok(Some(request)) => {
                round.busy = true;
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
                round.left = true;
                false
            }
        });
        Ok(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{NULL, PROGRAM, VERSION};
    use std::time::Instant;
    use uwarp::Config;
    use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};

    #[test]
    fn a_client_that_never_rests_keeps_no_other_out() {
        let config =
            |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
        let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
        let mut clients = Clients::new(&there, 7, ResponderOptions::default()).unwrap();
        let connect = || {
            let bindings: Vec<Arc<dyn Binding>> = vec![Arc::new(Blobs)];
            Requester::start_connect(&here, there.socket_address(7), bindings, RequesterOptions::default()).unwrap()
        };
        let null = || Call { program: PROGRAM, version: VERSION, procedure: NULL, ..Call::default() };
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut first = connect();
        while clients.clients.is_empty() {
            clients.step().unwrap();
            assert!(first.poll().is_none() && Instant::now() < deadline);
        }
        let mut second = connect();
        second.start(null()).unwrap();
        while second.poll().is_none() {
            while first.outstanding() < 16 {
                first.start(null()).unwrap();
            }
            let _ = first.poll();
            clients.step().unwrap();
            assert!(Instant::now() < deadline, "it is not accepted");
        }
        assert_eq!(clients.clients.len(), 2);
    }
}
