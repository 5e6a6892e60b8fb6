//! All clients of the gateway, over RDMA and over TCP.

use crate::backend::{Last, SAME_PORT};
use crate::clients::ClientRules;
use crate::descriptors::explained;
use crate::gateway::{Gateway, Policy};
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::server::{LONGEST_CALL, MEMORY};
use crate::stream::{CALLS_MAX, StreamClient};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{Context, Error, ListenOptions, Listener, TcpListener};
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::responder::{Answer, Common, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::Status;

/// Octets that a call under way may take: its arguments, its results, and as much kept for the next call; and for each
/// client an incoming reply, whose buffer may have grown to twice its size.
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
    /// Absent if some calls are refused, which would pass through it unseen.
    plain: Option<TcpListener>,
    bindings: Arc<[Arc<dyn Binding>]>,
    common: Arc<Common>,
    server: SocketAddr,
    policy: Policy,
    rules: ClientRules,
    metrics: Arc<Metrics>,
    clients: Vec<Gateway>,
    relays: Vec<Relay>,
    /// Untrusted clients over TCP: the server would trust the gateway's address.
    untrusted: Vec<StreamClient>,
    /// Sources of the server connections of clients that have left, for when they return: the server may recognise
    /// their calls by them.
    left: VecDeque<(IpAddr, Last)>,
}

impl std::fmt::Debug for Gateways {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = formatter.debug_struct("Gateways");
        out.field("clients", &self.clients.len()).field("relays", &self.relays.len()).finish_non_exhaustive()
    }
}

impl Gateways {
    /// Serves RDMA on one port in front of a server, and forwards plain TCP on the other, for clients that these rules
    /// admit. With a read-only policy there is no plain TCP.
    ///
    /// Calls over RDMA take at most `memory` octets, or those of one call per client if that is more ([`OF_A_CALL`]).
    ///
    /// # Errors
    /// A port is taken.
    pub fn start(
        context: &Context,
        ports: Ports,
        server: SocketAddr,
        policy: Policy,
        rules: ClientRules,
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
            rules,
            metrics,
            clients: Vec::new(),
            relays: Vec::new(),
            untrusted: Vec::new(),
            left: VecDeque::new(),
        })
    }

    /// Continues without waiting; false if there was nothing to do.
    ///
    /// # Errors
    /// The context or its engine is gone.
    pub fn step(&mut self) -> Result<bool, Error> {
        let mut busy = self.accept()?;
        let (rules, metrics, now) = (&self.rules, &self.metrics, Instant::now());
        self.relays.retain_mut(|relay| match relay.step() {
            Ok(Some(moved)) => {
                busy |= moved;
                !rules.is_over(relay.idle(now), relay.client(), metrics)
            }
            Ok(None) => false,
            Err(error) => {
                tracing::info!("client {} over TCP: {error}", relay.client());
                false
            }
        });
        self.untrusted.retain_mut(|client| match serve_untrusted(client) {
            Ok(moved) => {
                busy |= moved;
                !rules.is_over(client.idle(now), client.peer(), metrics)
            }
            Err(_) => false,
        });
        let left = &mut self.left;
        self.clients.retain_mut(|client| match client.step() {
            Ok(moved) => {
                busy |= moved;
                let is_over = rules.is_over(client.idle(now), client.client(), metrics);
                if is_over {
                    left.extend(client.leave().map(|last| (client.client().ip(), last)));
                }
                !is_over
            }
            Err(over) => {
                let calls = client.stats().calls;
                tracing::info!("client {} has left after {calls} calls ({:?})", client.client(), over.reason);
                left.extend(client.leave().map(|last| (client.client().ip(), last)));
                false
            }
        });
        while left.front().is_some_and(|(_, last)| last.lost.elapsed() >= SAME_PORT) || left.len() > rules.connections {
            left.pop_front();
        }
        Ok(busy)
    }

    /// Disconnects all clients, over TCP too, and ends, within `limit`. Calls that the server has are answered; clients
    /// send the others again to the next server.
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
            if !self.rules.admit(peer, self.clients.iter().map(Gateway::client), &self.metrics) {
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
                        // A host with several connections usually restores them in the order in which they ended.
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
            let untrusted = self.untrusted.iter().map(StreamClient::peer);
            if self.rules.admit(peer, self.relays.iter().map(Relay::client).chain(untrusted), &self.metrics) {
                Metrics::count(&self.metrics.tcp_clients);
                if self.rules.is_trusted(peer) {
                    match Relay::new(stream, self.server) {
                        Ok(relay) => self.relays.push(relay),
                        Err(error) => tracing::warn!("client {peer} over TCP: {}", explained(&error)),
                    }
                } else {
                    self.untrusted.push(StreamClient::new(stream, false, Arc::clone(&self.metrics)));
                }
            }
        }
        Ok(busy)
    }
}

/// Answers an untrusted client's NULL calls, which mount.nfs sends from any port, and denies everything else.
fn serve_untrusted(client: &mut StreamClient) -> io::Result<bool> {
    let mut busy = false;
    for _ in 0..CALLS_MAX {
        let Some(call) = client.poll(CALLS_MAX)? else { break };
        busy = true;
        let answer = match call.procedure {
            0 => Answer::success(Vec::new()),
            _ => Answer::failure(Status::ProgramUnavailable),
        };
        client.answer(call.xid, &answer)?;
    }
    Ok(busy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::PORT;
    use uwarp::{Config, TcpStream, TcpStreamOptions};
    use uwarp_rpcrdma::requester::{Requester, RequesterOptions};

    const LONG: Duration = Duration::from_secs(20);

    fn gateways() -> (Context, Gateways) {
        gateways_with(Policy::default())
    }

    fn gateways_with(policy: Policy) -> (Context, Gateways) {
        let config =
            |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
        let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
        // Nothing listens there.
        let server = SocketAddr::from(([127, 0, 0, 1], 1));
        let (ports, rules) = (Ports { rdma: PORT, tcp: 2049 }, ClientRules::default());
        (here, Gateways::start(&there, ports, server, policy, rules, Arc::default(), 1 << 30).unwrap())
    }

    /// A stream from this port.
    fn stream(here: &Context, gateways: &Gateways, local_port: u16) -> TcpStream {
        let options = TcpStreamOptions { local_port: Some(local_port), ..TcpStreamOptions::default() };
        TcpStream::start_connect(here, gateways.context.socket_address(2049), &options).unwrap()
    }

    #[test]
    fn no_more_clients_come_than_there_is_room_for() {
        let (here, mut gateways) = gateways();
        gateways.rules.connections = 2;
        let peer = gateways.context.socket_address(PORT);
        let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
        let mut clients: Vec<Requester> = (0..3)
            .map(|_| Requester::start_connect(&here, peer, vec![Arc::new(Nfs3)], options.clone()).unwrap())
            .collect();
        let deadline = Instant::now() + LONG;
        let connected = |client: &Requester| client.stats().connections;
        // One is told so; the others are served.
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
            let (here, mut gateways) = gateways_with(Policy { read_only });
            let mut client = stream(&here, &gateways, 700);
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

    /// The server behind trusts the gateway's address, but may not trust the client's.
    #[test]
    fn who_comes_over_tcp_from_any_port_reaches_nothing_but_whether_it_is_there() {
        use crate::records::{Records, record};
        use std::io::{Read as _, Write as _};
        use uwarp_rpcrdma::rpc::{Auth, CallHeader, ReplyHeader};
        for (port, insecure_ports) in [(1024, false), (1023, false), (1024, true)] {
            let (here, mut gateways) = gateways();
            gateways.rules.insecure_ports = insecure_ports;
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            gateways.server = listener.local_addr().unwrap();
            let mut client = stream(&here, &gateways, port);
            let deadline = Instant::now() + LONG;
            while client.check_connected().unwrap().is_none() {
                gateways.step().unwrap();
                assert!(Instant::now() < deadline);
            }
            client.set_nonblocking(true);
            // NULL, GETATTR, and MNT of MOUNT.
            let mut calls = Vec::new();
            for (xid, (program, procedure)) in (0..).zip([(100_003, 0), (100_003, 1), (100_005, 1)]) {
                let (credential, verifier) = (Auth::NONE, Auth::NONE);
                let mut call = Vec::new();
                CallHeader { xid, program, version: 3, procedure, credential, verifier }.encode(&mut call);
                calls.extend(record([&call[..], if procedure == 0 { &[] } else { &[0, 0, 0, 1, b'/', 0, 0, 0] }]));
            }
            assert_eq!(client.write(&calls).unwrap(), calls.len());
            let (mut records, mut room, mut statuses, mut reached) = (Records::new(1000), [0; 1000], Vec::new(), None);
            let is_trusted = port < 1024 || insecure_ports;
            while if is_trusted { reached.is_none() } else { statuses.len() < 3 } {
                gateways.step().unwrap();
                here.poll();
                reached = reached.or_else(|| listener.accept().ok());
                if let Ok(count @ 1..) = client.read(&mut room) {
                    records.push(&room[..count]);
                }
                while let Some(reply) = records.take().unwrap() {
                    statuses.push(ReplyHeader::parse(&reply).unwrap().0.status);
                }
                assert!(Instant::now() < deadline, "{statuses:?}");
            }
            if !is_trusted {
                assert_eq!(statuses, [Status::Success, Status::AuthError(5), Status::AuthError(5)]);
                assert!(reached.is_none());
                assert!(gateways.metrics.text().contains("uwarp_nfs_refused_total 2"));
            }
        }
    }

    #[test]
    fn idle_clients_of_each_kind_are_disconnected() {
        let (here, mut gateways) = gateways();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        gateways.server = listener.local_addr().unwrap();
        let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
        let peer = gateways.context.socket_address(PORT);
        let mut client = Requester::start_connect(&here, peer, vec![Arc::new(Nfs3)], options).unwrap();
        let mut streams = [1023, 1024].map(|port| stream(&here, &gateways, port));
        let deadline = Instant::now() + LONG;
        let mut turn_until = |gateways: &mut Gateways, all: usize| {
            while gateways.clients.len() + gateways.relays.len() + gateways.untrusted.len() != all {
                gateways.step().unwrap();
                assert!(client.poll().is_none());
                for stream in &mut streams {
                    _ = stream.check_connected();
                }
                assert!(Instant::now() < deadline, "{gateways:?}");
            }
        };
        turn_until(&mut gateways, 3);
        gateways.rules.idle = Duration::from_millis(1);
        turn_until(&mut gateways, 0);
        assert!(gateways.metrics.text().contains("uwarp_nfs_timed_out_total 3"));
    }

    #[test]
    fn what_was_asked_over_tcp_is_answered_before_the_end() {
        use std::io::{Read as _, Write as _};
        let (here, mut gateways) = gateways();
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
        let mut client = stream(&here, &gateways, 700);
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

    /// A server that does not even refuse: waiting for it would delay all other clients.
    #[test]
    fn a_server_that_says_nothing_holds_nobody_up() {
        let (here, mut gateways) = gateways();
        // A listener whose queue is full drops further connection attempts.
        let listener = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
        let listener = std::net::TcpListener::from(listener.unwrap());
        rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        gateways.server = listener.local_addr().unwrap();
        let _first = std::net::TcpStream::connect(gateways.server).unwrap();
        let mut streams = Vec::new();
        let deadline = Instant::now() + LONG;
        // All are connected before the first attempt times out.
        while gateways.relays.len() < 3 {
            if streams.len() == gateways.relays.len() {
                streams.push(stream(&here, &gateways, 700 + streams.len() as u16));
            }
            gateways.step().unwrap();
            here.poll();
            assert!(Instant::now() < deadline);
        }
    }
}
