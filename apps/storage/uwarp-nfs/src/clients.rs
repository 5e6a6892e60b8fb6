//! Which clients are served, and for how long.

use crate::metrics::Metrics;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uwarp::config::InterfaceAddress;
use uwarp_rpcrdma::responder::Responder;

/// The first unprivileged port. Only root may use those below it, and vouches for the users in the calls.
const FIRST_UNRESERVED: u16 = 1024;

/// What a server or a gateway requires of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    /// Subnets whose clients may connect; empty for all.
    pub allow: Vec<InterfaceAddress>,
    /// Most connections of each kind, over RDMA and over TCP.
    pub connections: usize,
    /// Most connections of each kind from one address.
    pub per_address: usize,
    /// How long a client may stay connected without a call under way and without any traffic; zero for no limit.
    pub idle: Duration,
    /// Accept calls over TCP from unreserved ports.
    pub insecure_ports: bool,
}

impl Default for ClientRules {
    /// A thousand clients of each kind, a hundred per address, six minutes as in Linux' server, and reserved ports
    /// only.
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            connections: 1000,
            per_address: 100,
            idle: Duration::from_secs(360),
            insecure_ports: false,
        }
    }
}

impl ClientRules {
    /// Whether another client may connect in addition to those of its kind. Counts and logs refusals.
    pub(crate) fn admit(
        &self,
        peer: SocketAddr,
        connected: impl Iterator<Item = SocketAddr>,
        metrics: &Metrics,
    ) -> bool {
        if !self.allow.is_empty() && !self.allow.iter().any(|subnet| subnet.contains(peer.ip())) {
            Metrics::count(&metrics.not_allowed);
            tracing::warn!("client {peer} is turned away: --allow names no subnet of its address");
            return false;
        }
        let (mut all, mut of_address) = (0, 0);
        for other in connected {
            all += 1;
            of_address += usize::from(other.ip() == peer.ip());
        }
        if all >= self.connections {
            Metrics::count(&metrics.turned_away);
            tracing::warn!("client {peer} is turned away: {all} clients are connected, which is the limit");
            return false;
        }
        if of_address >= self.per_address {
            Metrics::count(&metrics.turned_away);
            tracing::warn!(
                "client {peer} is turned away: its address has {of_address} connections, which is the limit \
                 (--connections-per-address)"
            );
            return false;
        }
        true
    }

    /// Whether a client over TCP may make all calls, not only the harmless ones.
    pub(crate) fn is_trusted(&self, peer: SocketAddr) -> bool {
        self.insecure_ports || peer.port() < FIRST_UNRESERVED
    }

    /// Whether a client must be disconnected after this idle time. Counts and logs it if so.
    pub(crate) fn is_over(&self, idle: Duration, peer: SocketAddr, metrics: &Metrics) -> bool {
        let is_over = !self.idle.is_zero() && idle >= self.idle;
        if is_over {
            Metrics::count(&metrics.timed_out);
            tracing::info!("client {peer} is disconnected: it has been idle for {:?} (--idle-timeout)", self.idle);
        }
        is_over
    }
}

/// How long a client has been idle.
#[derive(Debug)]
pub(crate) struct Idle {
    /// A number that grows with all traffic from and to the client.
    progress: u64,
    since: Instant,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { progress: 0, since: Instant::now() }
    }

    /// How long there has been no progress and no call under way.
    pub(crate) fn time(&mut self, progress: u64, calls: usize, now: Instant) -> Duration {
        if calls > 0 || progress != self.progress {
            (self.progress, self.since) = (progress, now);
        }
        now.duration_since(self.since)
    }

    /// The same of a client over RDMA.
    pub(crate) fn time_of(&mut self, client: &Responder, now: Instant) -> Duration {
        let stats = client.stats();
        self.time(stats.received + stats.replies + stats.errors, client.outstanding(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn peer(host: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, host], port).into()
    }

    #[test]
    fn clients_are_admitted_by_subnet_number_and_address() {
        let metrics = Metrics::default();
        let connected = [peer(1, 700), peer(1, 701), peer(2, 700)];
        let admits = |rules: &ClientRules, peer| rules.admit(peer, connected.into_iter(), &metrics);
        let rules = ClientRules { per_address: 2, connections: 4, ..ClientRules::default() };
        assert_eq!([1, 2, 3].map(|host| admits(&rules, peer(host, 702))), [false, true, true]);
        assert_eq!(metrics.turned_away.load(Ordering::Relaxed), 1);
        assert!(!admits(&ClientRules { connections: 3, ..rules.clone() }, peer(3, 700)), "there are three");
        assert_eq!(metrics.turned_away.load(Ordering::Relaxed), 2);
        let allow = ["10.0.0.8/30", "10.2.0.7/32"].map(|subnet| subnet.parse().unwrap()).to_vec();
        let rules = ClientRules { allow, ..rules };
        assert!(admits(&rules, peer(11, 700)) && admits(&rules, ([10, 2, 0, 7], 700).into()));
        assert!(!admits(&rules, peer(12, 700)) && !admits(&rules, ([10, 2, 0, 8], 700).into()));
        assert_eq!(metrics.not_allowed.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn ports_below_1024_are_trusted_and_the_others_if_told_so() {
        let rules = ClientRules::default();
        assert!(rules.is_trusted(peer(1, 1023)) && !rules.is_trusted(peer(1, 1024)));
        assert!(ClientRules { insecure_ports: true, ..rules }.is_trusted(peer(1, 1024)));
    }

    #[test]
    fn a_client_is_idle_while_nothing_moves_and_no_call_is_under_way() {
        let (mut idle, metrics) = (Idle::new(), Metrics::default());
        let after = |seconds| Instant::now() + Duration::from_secs(seconds);
        let rules = ClientRules { idle: Duration::from_secs(50), ..ClientRules::default() };
        let mut is_over = |progress, calls, seconds| {
            rules.is_over(idle.time(progress, calls, after(seconds)), peer(1, 700), &metrics)
        };
        assert!(!is_over(0, 0, 40));
        // A call arrives and is under way for long.
        assert!(!is_over(1, 1, 100) && !is_over(1, 1, 200));
        // Its reply is sent.
        assert!(!is_over(2, 0, 230) && !is_over(2, 0, 270));
        assert_eq!(metrics.timed_out.load(Ordering::Relaxed), 0);
        assert!(is_over(2, 0, 290));
        assert_eq!(metrics.timed_out.load(Ordering::Relaxed), 1);
        let for_ever = ClientRules { idle: Duration::ZERO, ..rules };
        assert!(!for_ever.is_over(Duration::from_secs(1 << 30), peer(1, 700), &metrics));
    }
}
