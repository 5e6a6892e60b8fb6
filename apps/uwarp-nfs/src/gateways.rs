//! All clients of the gateway, over RDMA and over TCP.

use crate::backend::{Last, SAME_PORT};
use crate::descriptors::explained;
use crate::gateway::{Gateway, Policy};
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::server::{CLIENTS_MAX, LONGEST_CALL, MEMORY};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::config::InterfaceAddress;
use uwarp::{Context, Error, ListenOptions, Listener, TcpListener};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::responder::{Common, Responder, ResponderOptions};

/// What a call under way may take: its arguments, its results, and as much that is kept for the next; and for each client a reply that
/// is coming, which may have grown to twice what it is.
pub const OF_A_CALL: u64 = 5 * LONGEST_CALL;

/// Ports to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// NFS over RDMA.
    pub rdma: u16,
    /// Plain TCP, which is passed on.
    pub tcp: u16,
}

/// The gateways of all clients to one server. One thread owns them and turns them by [`step`](Self::step).
pub struct Gateways {
    context: Context,
    listener: Listener,
    /// Not where some calls are refused, which pass it unseen.
    plain: Option<TcpListener>,
    bindings: Arc<[Arc<dyn Binding>]>,
    common: Arc<Common>,
    server: SocketAddr,
    policy: Policy,
    allow: Vec<InterfaceAddress>,
    metrics: Arc<Metrics>,
    /// Of each kind.
    most: usize,
    clients: Vec<Gateway>,
    relays: Vec<Relay>,
    /// Connections to the server of clients that have left, for when they come back: the server may know their calls by them.
    left: VecDeque<(IpAddr, Last)>,
}

impl std::fmt::Debug for Gateways {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = formatter.debug_struct("Gateways");
        out.field("clients", &self.clients.len()).field("relays", &self.relays.len()).finish_non_exhaustive()
    }
}

impl Gateways {
    /// Puts RDMA on one port in front of a server, and passes plain TCP on from the other, for clients of these subnets, or for all.
    /// Where the policy lets nothing be changed there is no plain TCP.
    ///
    /// Calls over RDMA take `memory` octets at most, or those of one call for each client if that is more ([`OF_A_CALL`]).
    ///
    /// # Errors
    /// A port is taken.
    pub fn start(
        context: &Context,
        ports: Ports,
        server: SocketAddr,
        policy: Policy,
        allow: Vec<InterfaceAddress>,
        metrics: Arc<Metrics>,
        memory: u64,
    ) -> anyhow::Result<Self> {
        let listener = context.listen(ports.rdma, ListenOptions::default())?;
        let plain = if policy.read_only {
            None
        } else {
            let mut plain = TcpListener::bind(context, ports.tcp)?;
            plain.set_nonblocking(true);
            Some(plain)
        };
        Ok(Self {
            context: context.clone(),
            listener,
            plain,
            bindings: Arc::new([Arc::new(Nfs3)]),
            common: Arc::new(Common::new(usize::try_from(memory / OF_A_CALL).unwrap_or(usize::MAX))),
            server,
            policy,
            allow,
            metrics,
            most: CLIENTS_MAX,
            clients: Vec::new(),
            relays: Vec::new(),
            left: VecDeque::new(),
        })
    }

    /// Goes on without waiting; false if there was nothing to do.
    ///
    /// # Errors
    /// The context or its engine is gone.
    pub fn step(&mut self) -> Result<bool, Error> {
        let mut busy = self.accept()?;
        self.relays.retain_mut(|relay| match relay.step() {
            Ok(Some(moved)) => {
                busy |= moved;
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::info!("client {} over TCP: {error}", relay.client());
                false
            }
        });
        let left = &mut self.left;
        self.clients.retain_mut(|client| match client.step() {
            Ok(moved) => {
                busy |= moved;
                true
            }
            Err(over) => {
                let calls = client.stats().calls;
                tracing::info!("client {} has left after {calls} calls ({:?})", client.client(), over.reason);
                left.extend(client.leave().map(|last| (client.client().ip(), last)));
                false
            }
        });
        while left.front().is_some_and(|(_, last)| last.lost.elapsed() >= SAME_PORT) || left.len() > self.most {
            left.pop_front();
        }
        Ok(busy)
    }

    /// Lets all clients go, over TCP, too, and ends; waits no longer than `limit`. What the server has is answered; what it has not,
    /// clients send again to whoever comes next.
    pub fn stop(self, limit: Duration) {
        let start = Instant::now();
        let Self { context, mut clients, listener, plain, mut relays, .. } = self;
        drop((listener, plain));
        clients.iter_mut().for_each(Gateway::stop_taking);
        relays.iter_mut().for_each(Relay::stop_taking);
        while !(clients.is_empty() && relays.is_empty()) && start.elapsed() < limit {
            relays.retain_mut(|relay| matches!(relay.step(), Ok(Some(_))));
            clients.retain_mut(|client| {
                if client.outstanding() == 0 {
                    client.disconnect();
                }
                client.step().is_ok()
            });
            context.poll();
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn accept(&mut self) -> Result<bool, Error> {
        let mut busy = false;
        if let Some(request) = self.listener.try_next()? {
            busy = true;
            let peer = request.peer();
            if !self.takes(peer, self.clients.len()) {
                request.reject(&[])?;
            } else {
                let options =
                    ResponderOptions { longest_call: LONGEST_CALL, memory: MEMORY, ..ResponderOptions::default() };
                let (bindings, common) = (Arc::clone(&self.bindings), Arc::clone(&self.common));
                match Responder::accept(&self.context, request, bindings, options, common) {
                    Ok(responder) => {
                        tracing::info!("client {peer} is here");
                        Metrics::count(&self.metrics.rdma_clients);
                        let metrics = Arc::clone(&self.metrics);
                        let mut client = Gateway::new(responder, self.server, self.policy, metrics);
                        // Of several connections of one host, which mostly come back as they went.
                        let last = self.left.iter().position(|(host, _)| *host == peer.ip());
                        client.continue_from(last.and_then(|index| self.left.remove(index)).map(|(_, last)| last));
                        self.clients.push(client);
                    }
                    Err(error) => tracing::warn!("client {peer}: {}", explained(&error)),
                }
            }
        }
        if let Some(Ok((stream, peer))) = self.plain.as_mut().map(TcpListener::accept) {
            busy = true;
            if self.takes(peer, self.relays.len()) {
                Metrics::count(&self.metrics.tcp_clients);
                match Relay::new(stream, self.server) {
                    Ok(relay) => self.relays.push(relay),
                    Err(error) => tracing::warn!("client {peer} over TCP: {}", explained(&error)),
                }
            }
        }
        Ok(busy)
    }

    /// Whether one more client may come, where there are so many of its kind; says so if not.
    fn takes(&self, peer: SocketAddr, clients: usize) -> bool {
        if !self.allow.is_empty() && !self.allow.iter().any(|subnet| subnet.contains(peer.ip())) {
            Metrics::count(&self.metrics.not_allowed);
            tracing::warn!("client {peer} is of no subnet that --allow names");
            return false;
        }
        if clients >= self.most {
            tracing::warn!("client {peer} is one too many: there are {clients}");
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::PORT;
    use uwarp::{Config, TcpStream};
    use uwarp_rpcrdma::requester::{Requester, RequesterOptions};

    const LONG: Duration = Duration::from_secs(20);

    fn gateways(allow: &[&str]) -> (Context, Gateways) {
        gateways_with(allow, Policy::default())
    }

    fn gateways_with(allow: &[&str], policy: Policy) -> (Context, Gateways) {
        let config =
            |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
        let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
        let allow = allow.iter().map(|subnet| subnet.parse().unwrap()).collect();
        // Nobody listens there.
        let server = SocketAddr::from(([127, 0, 0, 1], 1));
        let ports = Ports { rdma: PORT, tcp: 2049 };
        (here, Gateways::start(&there, ports, server, policy, allow, Arc::default(), 1 << 30).unwrap())
    }

    #[test]
    fn clients_of_the_subnets_that_are_named_may_come() {
        let takes = |allow: &[&str], host: [u8; 4]| gateways(allow).1.takes(SocketAddr::from((host, 700)), 0);
        assert!(takes(&[], [192, 0, 2, 1]), "without any it takes all");
        let some = ["10.1.0.0/24", "10.2.0.7/32"];
        assert!(takes(&some, [10, 1, 0, 200]) && takes(&some, [10, 2, 0, 7]));
        assert!(!takes(&some, [10, 1, 1, 200]) && !takes(&some, [10, 2, 0, 8]));
    }

    #[test]
    fn no_more_clients_come_than_there_is_room_for() {
        let (here, mut gateways) = gateways(&[]);
        gateways.most = 2;
        let peer = gateways.context.socket_address(PORT);
        let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
        let mut clients: Vec<Requester> = (0..3)
            .map(|_| Requester::start_connect(&here, peer, vec![Arc::new(Nfs3)], options.clone()).unwrap())
            .collect();
        let deadline = Instant::now() + LONG;
        let connected = |client: &Requester| client.stats().connections;
        // One is told so, the others are served.
        while !clients.iter().any(|client| format!("{client:?}").contains("closed"))
            || clients.iter().map(connected).sum::<u64>() < 2
        {
            gateways.step().unwrap();
            for client in &mut clients {
                assert!(client.poll().is_none());
            }
            assert!(Instant::now() < deadline, "{clients:?}");
        }
        assert_eq!(gateways.clients.len(), 2);
        assert!(gateways.metrics.text().contains("uwarp_nfs_rdma_clients_total 2"));
    }

    #[test]
    fn who_may_change_nothing_cannot_over_tcp_either() {
        for read_only in [false, true] {
            let (here, mut gateways) = gateways_with(&[], Policy { read_only });
            let peer = gateways.context.socket_address(2049);
            let mut client = TcpStream::start_connect(&here, peer, &uwarp::TcpStreamOptions::default()).unwrap();
            let deadline = Instant::now() + LONG;
            let connected = loop {
                gateways.step().unwrap();
                match client.check_connected() {
                    Ok(None) => assert!(Instant::now() < deadline),
                    Ok(Some(_)) => break true,
                    Err(_) => break false,
                }
            };
            assert_eq!(connected, !read_only);
        }
    }

    #[test]
    fn what_was_asked_over_tcp_is_answered_before_the_end() {
        use std::io::{Read as _, Write as _};
        let (here, mut gateways) = gateways(&[]);
        let there = gateways.context.clone();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        gateways.server = listener.local_addr().unwrap();
        let (asked, question) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut call = [0; 8];
            stream.read_exact(&mut call).unwrap();
            asked.send(call).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            stream.write_all(b"\x80\0\0\x05reply").unwrap();
            // It ends in order.
            assert_eq!(stream.read(&mut call).unwrap(), 0);
        });
        let peer = there.socket_address(2049);
        let mut client = TcpStream::start_connect(&here, peer, &uwarp::TcpStreamOptions::default()).unwrap();
        let deadline = Instant::now() + LONG;
        while client.check_connected().unwrap().is_none() {
            gateways.step().unwrap();
            assert!(Instant::now() < deadline);
        }
        client.set_nonblocking(true);
        assert_eq!(client.write(b"\x80\0\0\x04call").unwrap(), 8);
        while question.try_recv().is_err() {
            gateways.step().unwrap();
            here.poll();
            assert!(Instant::now() < deadline);
        }
        let start = Instant::now();
        gateways.stop(2 * LONG);
        assert!(start.elapsed() < LONG, "no longer than the answer takes");
        let (mut got, mut room) = (Vec::new(), [0; 100]);
        loop {
            match client.read(&mut room) {
                Ok(0) => break,
                Ok(count) => got.extend_from_slice(&room[..count]),
                Err(_) => {}
            }
            there.poll();
            assert!(Instant::now() < deadline);
        }
        assert_eq!(got, b"\x80\0\0\x05reply");
        server.join().unwrap();
    }

    /// A server that does not even refuse: to wait for it would keep all other clients waiting.
    #[test]
    fn a_server_that_says_nothing_holds_nobody_up() {
        let (here, mut gateways) = gateways(&[]);
        // A listener whose queue is full takes no more connections, and drops what asks for them.
        let listener = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
        let listener = std::net::TcpListener::from(listener.unwrap());
        rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        gateways.server = listener.local_addr().unwrap();
        let _first = std::net::TcpStream::connect(gateways.server).unwrap();
        let peer = gateways.context.socket_address(2049);
        let mut streams = Vec::new();
        let deadline = Instant::now() + LONG;
        // All are here before the first is given up.
        while gateways.relays.len() < 3 {
            if streams.len() == gateways.relays.len() {
                streams.push(TcpStream::start_connect(&here, peer, &uwarp::TcpStreamOptions::default()).unwrap());
            }
            gateways.step().unwrap();
            here.poll();
            assert!(Instant::now() < deadline);
        }
    }
}
