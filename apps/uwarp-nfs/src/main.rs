//! Puts RDMA in front of an NFS server.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use clap::Parser;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::config::{EngineMode, InterfaceAddress};
use uwarp::{Context, ListenOptions, TcpListener};
use uwarp_app::{NetworkFlags, Role, signals, usage};
use uwarp_nfs::gateway::{Gateway, PORT, Policy};
use uwarp_nfs::relay::Relay;
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::responder::{Responder, ResponderOptions, Retries};

const EXAMPLES: &str = "\
Examples:
  uwarp-nfs --backend 127.0.0.1:2049 --device af_packet --interface eth1 --address 10.1.0.5/24
  uwarp-nfs --backend nas.example:2049 --device pci:0000:03:00.0 --address 10.1.0.5/24 --allow 10.1.0.0/24 --read-only

A client mounts NFS version 3 at this address over RDMA, or over TCP. The MOUNT protocol, which is not for RDMA, is asked for over TCP at the
same address. With Linux, if the server answers MOUNT on the port of --backend, as many do that are not the kernel's:
  mount -t nfs -o vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=2049,nolock 10.1.0.5:/ /mnt";

/// TCP port of NFS.
const TCP_PORT: u16 = 2049;
/// How long clients may take to leave at the end.
const FAREWELL: Duration = Duration::from_secs(3);
/// Rounds without anything to do after which the thread sleeps a little.
const IDLE: u32 = 2000;
const NAP: Duration = Duration::from_micros(50);

/// Puts NFS over RDMA (RFC 8166, RFC 8267) in front of an NFS version 3 server that speaks TCP.
#[derive(Parser, Debug)]
#[command(name = "uwarp-nfs", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// The server: HOST:PORT
    #[arg(long, value_name = "HOST:PORT")]
    backend: String,

    /// Port to listen on
    #[arg(long, short, default_value_t = PORT)]
    port: u16,

    /// Port for plain TCP, which is passed on to the server as it is
    #[arg(long, default_value_t = TCP_PORT)]
    tcp_port: u16,

    /// Refuse what would change files or directories over RDMA; what comes over TCP is the server's to refuse
    #[arg(long)]
    read_only: bool,

    /// Take clients of this subnet only; may be repeated
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    allow: Vec<InterfaceAddress>,

    #[command(flatten)]
    network: NetworkFlags,
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        signals::install()?;
        serve(&arguments)
    })
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let server = resolve(&arguments.backend)?;
    let config = arguments.network.resolve(Role::Server, EngineMode::Threaded)?;
    if config.engine.mode == EngineMode::Inline {
        return Err(usage("--engine inline would stand still while the server is asked: leave it out"));
    }
    let policy = Policy { read_only: arguments.read_only };
    let context = Context::open(config)?;
    let mut listener = context.listen(arguments.port, ListenOptions::default())?;
    let mut plain = TcpListener::bind(&context, arguments.tcp_port)?;
    plain.set_nonblocking(true);
    let mut relays: Vec<Relay> = Vec::new();
    eprintln!("NFS over RDMA on {} in front of {server}", context.socket_address(arguments.port));
    let bindings: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Nfs3)]);
    let retries = Arc::new(Retries::default());
    let mut clients: Vec<Gateway> = Vec::new();
    let mut idle = 0_u32;
    while !signals::interrupted() {
        if let Some(request) = listener.try_next()? {
            let peer = request.peer();
            if !arguments.allows(peer) {
                request.reject(&[])?;
                continue;
            }
            let (bindings, retries) = (Arc::clone(&bindings), Arc::clone(&retries));
            match Responder::accept(&context, request, bindings, ResponderOptions::default(), retries) {
                Ok(responder) => {
                    eprintln!("client {peer} is here");
                    clients.push(Gateway::new(responder, server, policy));
                }
                Err(error) => eprintln!("client {peer}: {error}"),
            }
            idle = 0;
        }
        if let Ok((stream, peer)) = plain.accept()
            && arguments.allows(peer)
        {
            match Relay::new(stream, server) {
                Ok(relay) => relays.push(relay),
                Err(error) => eprintln!("client {peer} over TCP: {error}"),
            }
            idle = 0;
        }
        idle = idle.saturating_add(1);
        relays.retain_mut(|relay| match relay.step() {
            Ok(Some(busy)) => {
                if busy {
                    idle = 0;
                }
                true
            }
            Ok(None) | Err(_) => false,
        });
        clients.retain_mut(|client| match client.step() {
            Ok(busy) => {
                if busy {
                    idle = 0;
                }
                true
            }
            Err(over) => {
                let stats = client.stats();
                eprintln!("client {} has left after {} calls ({:?})", client.client(), stats.calls, over.reason);
                false
            }
        });
        if idle > IDLE {
            std::thread::sleep(NAP);
        }
    }
    drop((listener, plain, relays));
    // What is answered goes out; what is not, clients send again to whoever comes next.
    let start = Instant::now();
    for client in &mut clients {
        client.disconnect();
    }
    while !clients.is_empty() && start.elapsed() < FAREWELL {
        clients.retain_mut(|client| client.step().is_ok());
        std::thread::sleep(NAP);
    }
    drop(clients);
    context.close()?;
    Ok(())
}

impl Arguments {
    /// Whether this client may come; says so if not.
    fn allows(&self, peer: SocketAddr) -> bool {
        let allowed = self.allow.is_empty() || self.allow.iter().any(|subnet| subnet.contains(peer.ip()));
        if !allowed {
            eprintln!("client {peer} is of no subnet that --allow names");
        }
        allowed
    }
}

fn resolve(name: &str) -> anyhow::Result<SocketAddr> {
    let wrong = || format!("--backend is {name}: write HOST:PORT, such as 127.0.0.1:2049");
    if !name.contains(':') {
        return Err(usage(wrong()));
    }
    name.to_socket_addrs().with_context(wrong)?.next().with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_server_is_named_with_its_port() {
        assert_eq!(resolve("127.0.0.1:2049").unwrap(), SocketAddr::from(([127, 0, 0, 1], 2049)));
        for wrong in ["127.0.0.1", ":", "127.0.0.1:port"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }
}
