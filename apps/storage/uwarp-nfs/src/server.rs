//! The NFS server of a directory: connections over RDMA and over TCP, and the service behind them.

use crate::call::Call;
use crate::clients::{ClientRules, Idle};
use crate::descriptors::explained;
use crate::directory::Directory;
use crate::directory::number;
use crate::directory::procedures::TRANSFER_MAX;
use crate::metrics::Metrics;
use crate::programs::{MOUNT, MOUNT_VERSION, Mounts, PORT_MAPPER, PORT_MAPPER_HIGH, PORT_MAPPER_LOW};
use crate::programs::{PortMapper, Registration};
use crate::service::{Finished, Programs, Service};
use crate::stream::StreamClient;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{Context, Error, ListenOptions, Listener, TcpListener};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::responder::{Common, Over, Request, Responder, ResponderOptions, Token};
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::Reader;

/// Octets that the chunks of a connection's calls may take.
pub(crate) const MEMORY: u64 = 32 << 20;
/// Most octets of a call's Read chunks.
pub(crate) const LONGEST_CALL: u64 = TRANSFER_MAX as u64 + (64 << 10);
/// Octets that a call under way may take: its chunks, its results, and as much kept for the next call.
pub const OF_A_CALL: u64 = 3 * LONGEST_CALL;

/// Ports to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// NFS over RDMA.
    pub rdma: u16,
    /// NFS over TCP.
    pub nfs: u16,
    /// MOUNT.
    pub mount: u16,
    /// The port mapper.
    pub port_mapper: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { rdma: nfs3::PORT, nfs: 2049, mount: 20_048, port_mapper: 111 }
    }
}

/// The destination of a reply.
#[derive(Debug)]
enum To {
    Rdma(u64, Token),
    Stream(u64, u32),
}

/// The server. One thread owns it and turns it by [`step`](Self::step).
pub struct Server {
    context: Context,
    listener: Listener,
    streams: Vec<TcpListener>,
    bindings: Arc<[Arc<dyn Binding>]>,
    common: Arc<Common>,
    rules: ClientRules,
    metrics: Arc<Metrics>,
    service: Service<To>,
    /// Calls under way of clients over RDMA, over TCP, and of those that have left.
    calls: usize,
    rdma: HashMap<u64, (Responder, Idle)>,
    tcp: HashMap<u64, StreamClient>,
    next: u64,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = formatter.debug_struct("Server");
        out.field("rdma", &self.rdma.len()).field("tcp", &self.tcp.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves a directory to clients that these rules admit, with `threads` threads for calls that wait for the disk.
    ///
    /// Calls over RDMA take at most `memory` octets, or those of one call per client if that is more; calls over TCP
    /// may take as much. While calls of clients that have left take as much, no further client is admitted.
    ///
    /// # Errors
    /// A port is taken, or the system has no more threads.
    pub fn start(
        context: &Context,
        ports: Ports,
        directory: Directory,
        metrics: Arc<Metrics>,
        rules: ClientRules,
        threads: usize,
        memory: u64,
    ) -> anyhow::Result<Self> {
        let address = context.socket_address(ports.rdma).ip();
        let over = |rdma, port, program, version| Registration { program, version, rdma, port };
        let mut registrations = vec![
            over(false, ports.nfs, nfs3::PROGRAM, 3),
            over(true, ports.rdma, nfs3::PROGRAM, 3),
            over(false, ports.mount, MOUNT, MOUNT_VERSION),
        ];
        let mapper = |version| over(false, ports.port_mapper, PORT_MAPPER, version);
        registrations.extend((PORT_MAPPER_LOW..=PORT_MAPPER_HIGH).map(mapper));
        let programs = Programs {
            directory,
            mounts: Mounts::default(),
            port_mapper: PortMapper::new(address, registrations),
            metrics: Arc::clone(&metrics),
        };
        let mut streams = Vec::new();
        // All programs answer on each port: some clients are told one port for both.
        for port in [ports.nfs, ports.mount, ports.port_mapper] {
            let mut listener = TcpListener::bind(context, port)?;
            listener.set_nonblocking(true);
            streams.push(listener);
        }
        let calls = usize::try_from(memory / OF_A_CALL).unwrap_or(usize::MAX).max(1);
        Ok(Self {
            context: context.clone(),
            listener: context.listen(ports.rdma, ListenOptions::default())?,
            streams,
            bindings: Arc::new([Arc::new(Nfs3)]),
            common: Arc::new(Common::new(calls)),
            calls,
            rules,
            metrics,
            service: Service::start(Arc::new(programs), threads)?,
            rdma: HashMap::new(),
            tcp: HashMap::new(),
            next: 0,
        })
    }

    /// Continues without waiting; false if there was nothing to do.
    ///
    /// # Errors
    /// The context or its engine is gone.
    pub fn step(&mut self) -> Result<bool, Error> {
        let accepted = self.accept()?;
        Ok(self.serve() || accepted)
    }

    /// Connected clients over RDMA.
    pub fn rdma_clients(&self) -> usize {
        self.rdma.len()
    }

    /// Connected clients over TCP.
    pub fn tcp_clients(&self) -> usize {
        self.tcp.len()
    }

    /// Answers the calls that are being executed, disconnects all clients, and ends, within `limit`. Other received
    /// calls are not begun: the directory is not changed without telling the client.
    pub fn stop(mut self, limit: Duration) {
        let start = Instant::now();
        self.rdma.values_mut().for_each(|(responder, _)| responder.stop_taking());
        self.tcp.values_mut().for_each(StreamClient::stop_taking);
        let mut dismissed = false;
        while !(self.rdma.is_empty() && self.tcp.is_empty()) && start.elapsed() < limit {
            if !dismissed && self.service.outstanding() == 0 {
                dismissed = true;
                self.dismiss();
            }
            if !self.serve() {
                std::thread::yield_now();
            }
        }
    }

    /// Ends the connections over RDMA behind the answers given so far, without waiting.
    pub fn dismiss(&mut self) {
        for (responder, _) in self.rdma.values_mut() {
            responder.disconnect();
        }
    }

    /// Whether clients that have left have as many calls under way as there is memory for. Such calls cannot be
    /// revoked: a thread may have begun each of them. So a client that keeps reconnecting with calls to a slow disk has
    /// to wait for the disk here.
    fn is_held_up(&self) -> bool {
        let is_gone = |to: &&To| match to {
            To::Rdma(id, _) => !self.rdma.contains_key(id),
            To::Stream(id, _) => !self.tcp.contains_key(id),
        };
        self.service.outstanding() >= self.calls && self.service.awaited().filter(is_gone).count() >= self.calls
    }

    fn accept(&mut self) -> Result<bool, Error> {
        if self.is_held_up() {
            return Ok(false);
        }
        let mut busy = false;
        if let Some(request) = self.listener.try_next()? {
            busy = true;
            let peer = request.peer();
            let connected = self.rdma.values().map(|(responder, _)| responder.peer());
            if !self.rules.admit(peer, connected, &self.metrics) {
                request.reject(&[])?;
            } else {
                let options =
                    ResponderOptions { longest_call: LONGEST_CALL, memory: MEMORY, ..ResponderOptions::default() };
                let (bindings, common) = (Arc::clone(&self.bindings), Arc::clone(&self.common));
                match Responder::accept(&self.context, request, bindings, options, common) {
                    Ok(responder) => {
                        tracing::info!("client {peer} is here");
                        Metrics::count(&self.metrics.rdma_clients);
                        self.next += 1;
                        self.rdma.insert(self.next, (responder, Idle::new()));
                    }
                    Err(error) => tracing::warn!("client {peer}: {}", explained(&error)),
                }
            }
        }
        for index in 0..self.streams.len() {
            if let Ok((stream, peer)) = self.streams[index].accept() {
                busy = true;
                if self.rules.admit(peer, self.tcp.values().map(StreamClient::peer), &self.metrics) {
                    tracing::info!("client {peer} is here, over TCP");
                    Metrics::count(&self.metrics.tcp_clients);
                    self.next += 1;
                    let (is_trusted, metrics) = (self.rules.is_trusted(peer), Arc::clone(&self.metrics));
                    self.tcp.insert(self.next, StreamClient::new(stream, is_trusted, metrics));
                }
            }
        }
        Ok(busy)
    }

    /// Accepts calls, and answers those that have been executed.
    fn serve(&mut self) -> bool {
        let mut busy = false;
        let (service, rules, metrics, now) = (&mut self.service, &self.rules, &self.metrics, Instant::now());
        self.rdma.retain(|&id, (responder, idle)| {
            loop {
                match responder.poll() {
                    Ok(Some(request)) => {
                        busy = true;
                        submit(service, responder, id, request);
                    }
                    Ok(None) => return !rules.is_over(idle.time_of(responder, now), responder.peer(), metrics),
                    Err(Over { reason }) => {
                        let (peer, calls) = (responder.peer(), responder.stats().calls);
                        tracing::info!("client {peer} has left after {calls} calls ({reason:?})");
                        return false;
                    }
                }
            }
        });
        let part = (self.calls / self.tcp.len().max(1)).max(1);
        self.tcp.retain(|&id, client| {
            loop {
                match client.poll(part) {
                    Ok(Some(call)) => {
                        busy = true;
                        let to = To::Stream(id, call.xid);
                        let call = Call::of_stream(call, client.peer());
                        service.submit(call, to);
                    }
                    Ok(None) => return !rules.is_over(client.idle(now), client.peer(), metrics),
                    Err(_) => {
                        tracing::info!("client {} has left", client.peer());
                        return false;
                    }
                }
            }
        });
        while let Some(Finished { to, answer, arguments }) = self.service.poll() {
            busy = true;
            match to {
                // A client that has left meanwhile repeats the call on its next connection.
                To::Rdma(id, token) => {
                    if let Some((responder, _)) = self.rdma.get_mut(&id) {
                        responder.answer(token, answer);
                        for part in arguments {
                            if let Part::Item(memory) = part {
                                responder.recycle(memory);
                            }
                        }
                    }
                }
                To::Stream(id, xid) => {
                    if let Some(client) = self.tcp.get_mut(&id)
                        && client.answer(xid, &answer).is_err()
                    {
                        self.tcp.remove(&id);
                    }
                }
            }
        }
        busy
    }
}

fn submit(service: &mut Service<To>, responder: &mut Responder, id: u64, request: Request) {
    let room = if request.program == nfs3::PROGRAM && request.procedure == number::READ {
        read_count(&request.arguments).map_or_else(Vec::new, |count| responder.buffer(count))
    } else {
        Vec::new()
    };
    let call = Call {
        client: SocketAddr::new(responder.peer().ip(), 0),
        xid: request.token.xid(),
        program: request.program,
        version: request.version,
        procedure: request.procedure,
        credential: request.credential,
        arguments: request.arguments,
        room,
    };
    service.submit(call, To::Rdma(id, request.token));
}

/// Octets that a READ requests (RFC 1813 §3.3.6), limited to what it gets.
fn read_count(arguments: &[Part]) -> Option<usize> {
    let mut reader = Reader::new(arguments.first()?.octets());
    reader.opaque(64).ok()?;
    reader.u64().ok()?;
    Some(reader.u32().ok()?.min(TRANSFER_MAX) as usize)
}
