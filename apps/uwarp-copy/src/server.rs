//! The serving side. Each client has a thread of its own. With an inline engine, which belongs to one thread, clients
//! are served one after another.

use crate::link::{Happening, LOOK, Link};
use crate::protocol::{GREETING, Reply, Request, SLOTS};
use crate::report::Meter;
use crate::store::{Incoming, Outgoing, Store};
use anyhow::{Context as _, bail};
use std::net::SocketAddr;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use uwarp::config::EngineMode;
use uwarp::{AcceptOptions, Access, Config, ConnectRequest, Context, ListenOptions};
use uwarp_app::{Allow, NetworkFlags, output, signals};

/// What is served, and how.
pub struct Service {
    /// The directory.
    pub store: Store,
    /// End with the first client.
    pub once: bool,
    /// Refuse to store.
    pub read_only: bool,
    /// Port to listen on.
    pub port: u16,
    /// Who is served.
    pub allow: Allow,
    /// Most connections from one address.
    pub per_address: usize,
    /// How long a client may say nothing between two files; zero for no limit.
    pub idle: Duration,
}

/// Serves until interrupted.
///
/// # Errors
/// The device cannot be opened; with `once`, also what the one client's connection failed with.
pub fn run(network: &NetworkFlags, config: Config, service: &Service) -> anyhow::Result<()> {
    let in_turn = service.once || config.engine.mode == EngineMode::Inline;
    let context = network.open(config)?;
    let mut listener = context.listen(service.port, ListenOptions::default())?;
    output::print(format!("serving {} on {}", service.allow, context.socket_address(service.port)));
    let mut refused = None;
    // A client that keeps reconnecting must not fill the log.
    let mut log_refusal = move |peer: SocketAddr, reason: &str| {
        if refused.is_none_or(|last: Instant| last.elapsed() > Duration::from_secs(1)) {
            refused = Some(Instant::now());
            output::complain(format_args!("uwarp-copy: client {peer} was refused: {reason}"));
        }
    };
    std::thread::scope(|scope| {
        // The address and the thread of each client.
        let mut clients = Vec::new();
        while !signals::interrupted() {
            let Some(request) = listener.next(LOOK)? else {
                continue;
            };
            let peer = request.peer();
            if !service.allow.permits(peer.ip()) {
                log_refusal(peer, "--allow does not name its address");
                let _ = request.reject(Allow::refusal(peer.ip()).as_bytes());
                continue;
            }
            if request.private_data() != GREETING {
                // Nothing here depends on whether the rejection is sent.
                let _ = request.reject(b"this is uwarp-copy, of another version or for other clients");
                continue;
            }
            clients.retain(|(_, thread): &(_, ScopedJoinHandle<'_, _>)| !thread.is_finished());
            if clients.iter().filter(|(address, _)| *address == peer.ip()).count() >= service.per_address {
                let reason = format!(
                    "{} has {} connections, which is the limit (--connections-per-address)",
                    peer.ip(),
                    service.per_address
                );
                log_refusal(peer, &reason);
                let _ = request.reject(reason.as_bytes());
                continue;
            }
            if in_turn {
                let result = serve_and_report(&context, request, service);
                if service.once {
                    return result;
                }
            } else {
                let context = &context;
                clients.push((peer.ip(), scope.spawn(move || serve_and_report(context, request, service))));
            }
        }
        Ok(())
    })
}

fn serve_and_report(context: &Context, request: ConnectRequest, service: &Service) -> anyhow::Result<()> {
    let peer = request.peer();
    let result = serve(context, request, service, peer);
    if let Err(error) = &result
        && !signals::interrupted()
        && !service.once
    {
        // It may quote the client.
        let words = output::printable(&format!("{error:#}"));
        output::complain(format_args!("uwarp-copy: client {peer}: {words}"));
    }
    result
}

/// The transfer that a client is in the middle of.
enum Transfer {
    Nothing,
    /// A file comes, or what is left of one after a failure.
    Put(Option<Incoming>, String, Meter),
    /// A file goes.
    Get {
        file: Outgoing,
        name: String,
        /// Slots that can be filled.
        free: Vec<u32>,
    },
}

fn serve(context: &Context, request: ConnectRequest, service: &Service, peer: SocketAddr) -> anyhow::Result<()> {
    let mut link = Link::new(context, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    link.idle = Some(service.idle).filter(|idle| !idle.is_zero());
    request.accept(&mut link.channel.queue_pair().control, AcceptOptions::default().private_data(GREETING))?;
    let mut transfer = Transfer::Nothing;
    loop {
        let limited = !matches!(transfer, Transfer::Nothing);
        let request = match link.next(limited)? {
            Happening::Message(request) => request,
            Happening::Done(_) => continue,
            Happening::Closed => match transfer {
                Transfer::Nothing => return Ok(()),
                Transfer::Put(_, name, _) | Transfer::Get { name, .. } => {
                    bail!("left in the middle of '{}': {}", name.escape_debug(), link.channel.why_closed())
                }
            },
        };
        transfer = match step(&mut link, transfer, request, service, peer) {
            Ok(next) => next,
            Err(error) => {
                let reason = format!("{error:#}");
                link.tell(&Reply::Failed { reason }).context(error)?;
                Transfer::Nothing
            }
        };
    }
}

/// Executes one request. A failure ends the file, not the connection: the client is told the reason.
fn step(
    link: &mut Link,
    transfer: Transfer,
    request: Request,
    service: &Service,
    peer: SocketAddr,
) -> anyhow::Result<Transfer> {
    match (transfer, request) {
        (Transfer::Nothing, Request::Put { name, size }) => {
            if service.read_only {
                bail!("this server stores nothing (it was started with --read-only)");
            }
            let meter = Meter::start();
            let incoming = service.store.incoming(&name, size)?;
            let window = link.window();
            link.tell(&Reply::PutReady { window })?;
            Ok(Transfer::Put(Some(incoming), name, meter))
        }
        (Transfer::Put(Some(mut incoming), name, meter), Request::Written { slot, length }) => {
            let appended = incoming.append(&link.slot(slot, length)?.lend()?[..length as usize]);
            if let Err(error) = appended {
                // Parts that are still under way are discarded silently.
                let reason = format!("{error:#}");
                link.tell(&Reply::Failed { reason })?;
                return Ok(Transfer::Put(None, name, meter));
            }
            link.tell(&Reply::Taken { slot })?;
            Ok(Transfer::Put(Some(incoming), name, meter))
        }
        (Transfer::Put(Some(incoming), name, meter), Request::PutEnd { hash }) => {
            let size = incoming.received();
            incoming.finish(&hash)?;
            output::print(format!("{peer} put '{}', {size} octets", name.escape_debug()));
            link.tell(&Reply::Stored { cpu_ns: meter.cpu_ns() })?;
            Ok(Transfer::Nothing)
        }
        (Transfer::Put(..), Request::PutAbort) => Ok(Transfer::Nothing),
        // After a failure.
        (Transfer::Put(None, name, meter), Request::Written { .. }) => Ok(Transfer::Put(None, name, meter)),
        (Transfer::Put(None, ..), Request::PutEnd { .. }) => Ok(Transfer::Nothing),
        (Transfer::Nothing, Request::Get { name }) => {
            let file = service.store.outgoing(&name)?;
            let window = link.window();
            let size = file.size();
            link.tell(&Reply::GetReady { window, size })?;
            offer(link, Transfer::Get { file, name, free: (0..SLOTS).rev().collect() }, peer)
        }
        (Transfer::Get { file, name, mut free }, Request::Read { slot }) => {
            link.slot(slot, 0)?;
            free.push(slot);
            offer(link, Transfer::Get { file, name, free }, peer)
        }
        // The last slots of a file that is complete, or that failed.
        (Transfer::Nothing, Request::Read { .. }) => Ok(Transfer::Nothing),
        (Transfer::Nothing, Request::Written { .. } | Request::PutEnd { .. } | Request::PutAbort) => {
            Ok(Transfer::Nothing)
        }
        (Transfer::Put(..) | Transfer::Get { .. }, _) => {
            bail!("the client asked for something in the middle of a file")
        }
    }
}

/// Fills the free slots with a file that is being sent, and ends it when everything has been read.
fn offer(link: &mut Link, transfer: Transfer, peer: SocketAddr) -> anyhow::Result<Transfer> {
    let Transfer::Get { mut file, name, mut free } = transfer else {
        return Ok(transfer);
    };
    while file.left() > 0
        && let Some(slot) = free.pop()
    {
        let next = file.next(&mut link.slot(slot, 0)?.lend()?);
        // At most a slot.
        let length = next.with_context(|| format!("'{}'", name.escape_debug()))? as u32;
        link.tell(&Reply::Part { slot, length })?;
    }
    if file.left() > 0 || (free.len() as u32) < SLOTS {
        return Ok(Transfer::Get { file, name, free });
    }
    output::print(format!("{peer} got '{}', {} octets", name.escape_debug(), file.size()));
    link.tell(&Reply::GetEnd { hash: file.hash() })?;
    Ok(Transfer::Nothing)
}
