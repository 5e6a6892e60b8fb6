//! Connections: connecting, accepting, rejecting.

use crate::error::{ConnectError, Error};
use crate::rdma::peer_to_peer::PeerToPeer;
use crate::rdma::queue_pair::QueuePairControl;
use crate::runtime::context::{Context, Shared};
use crate::runtime::core::NoReply;
use crate::tcp::Lent;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_engine::command::{
    AcceptParameters, Command, ConnectFailure, ConnectParameters, ConnectionEvent, ConnectionRequest, Established,
    Features, ReadyToReceiveKinds, StartupOptions,
};

/// What blocking calls add to a time limit, within which the engine itself reports the time-out.
const GRACE: Duration = Duration::from_secs(2);

/// Most octets of private data with MPA revision 2, whose IRD and ORD take four (RFC 6581 §5); with revision 1 it is
/// 512 (RFC 5044 §7.1.1). Linux takes 256 (its `MPA_MAX_PRIVDATA`), those four included, and answers more with a reset.
pub const MAX_PRIVATE_DATA: usize = 508;

fn most_private_data(mpa_revision: u8) -> usize {
    if mpa_revision == 1 { 512 } else { MAX_PRIVATE_DATA }
}

/// Wishes for a new connection as its initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Octets for the peer to see before it accepts, at most [`MAX_PRIVATE_DATA`] (512 with revision 1).
    pub private_data: Vec<u8>,
    /// Inbound RDMA Reads that are taken at once.
    pub ird: u16,
    /// RDMA Reads outstanding at once; the peer's IRD may lower it.
    pub ord: u16,
    /// Limit on the whole start-up.
    pub timeout: Duration,
    /// Limit on the wait for the peer's answer once TCP is open, in place of what `timeout` leaves: its application
    /// may take its time.
    pub answer_timeout: Option<Duration>,
    /// MPA revision of the request: 2 (RFC 6581) with IRD and ORD, or 1 (RFC 5044).
    pub mpa_revision: u8,
    /// Try once more with revision 1, on a new TCP connection, if the peer closes the first one during start-up, as one
    /// that does not know RFC 6581 does (its §10). IRD and ORD are then not exchanged: the applications see to it that
    /// they fit. The time limit counts for each attempt. The second attempt is client-server, so this excludes
    /// [`PeerToPeer::Require`].
    pub retry_without_enhancement: bool,
    /// The least `ord` to do with: if the peer serves fewer reads at once, there is no connection.
    pub minimum_ord: u16,
    /// Send `ird` and `ord` to the peer. If not, each side keeps its own, and the applications see to it that they fit
    /// (RFC 6581 §9.1, 0x3FFF).
    pub negotiate_reads: bool,
    /// Whether the responder may send first.
    pub peer_to_peer: PeerToPeer,
    /// Optional operations that both applications have agreed to use (RFC 7306 §1.1: nothing on the wire says so). What
    /// is not in here is refused, to the application when it posts it and to the peer by a Terminate.
    pub features: Features,
    /// Ask the peer for markers in what it sends (RFC 5044 §4.3); what it asks for is done in any case. They cost time
    /// on both sides and serve nothing here but tests of the peer.
    pub markers: bool,
    /// The own address to connect from; `None` lets the engine choose.
    pub local_address: Option<IpAddr>,
    /// Local TCP port; `None` lets the engine choose. A [`PortReservation`](crate::PortReservation) keeps one for this.
    pub local_port: Option<u16>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            ird: 16,
            ord: 16,
            timeout: Duration::from_secs(10),
            answer_timeout: None,
            mpa_revision: 2,
            retry_without_enhancement: false,
            minimum_ord: 0,
            negotiate_reads: true,
            peer_to_peer: PeerToPeer::Never,
            features: Features::default(),
            markers: false,
            local_address: None,
            local_port: None,
        }
    }
}

impl ConnectOptions {
    /// Sets the private data.
    pub fn private_data(mut self, octets: impl Into<Vec<u8>>) -> Self {
        self.private_data = octets.into();
        self
    }

    /// Sets the time limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets both read limits.
    pub fn reads(mut self, ird: u16, ord: u16) -> Self {
        self.ird = ird;
        self.ord = ord;
        self
    }

    /// Sets the optional operations to be used.
    pub fn features(mut self, features: Features) -> Self {
        self.features = features;
        self
    }

    /// Lets the peer send first, after an indication of one of these kinds; [`ReadyToReceiveKinds::ALL`] leaves the
    /// choice to both engines.
    pub fn peer_to_peer(mut self, kinds: ReadyToReceiveKinds) -> Self {
        self.peer_to_peer = PeerToPeer::Require(kinds);
        self
    }

    /// As [`peer_to_peer`](Self::peer_to_peer), but goes on as client-server with a peer that does not know it.
    pub fn prefer_peer_to_peer(mut self, kinds: ReadyToReceiveKinds) -> Self {
        self.peer_to_peer = PeerToPeer::Prefer(kinds);
        self
    }

    /// Sets the own address to connect from.
    pub fn local_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.local_address = Some(address.into());
        self
    }
}

/// Options of a responder's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptOptions {
    /// Octets for the initiator, at most [`MAX_PRIVATE_DATA`] (512 if it speaks revision 1).
    pub private_data: Vec<u8>,
    /// Inbound RDMA Reads that are taken at once.
    pub ird: u16,
    /// RDMA Reads outstanding at once; the peer's IRD may lower it.
    pub ord: u16,
    /// The least `ord` to do with: if the peer serves fewer reads at once, it is rejected and told how many are wanted.
    pub minimum_ord: u16,
    /// The ready-to-receive indications that are understood from a peer-to-peer initiator (RFC 6581 §9.2).
    pub ready_to_receive: ReadyToReceiveKinds,
    /// Optional operations that both applications have agreed to use, as in [`ConnectOptions::features`].
    pub features: Features,
    /// Ask the peer for markers in what it sends (RFC 5044 §4.3); what it asks for is done in any case. They cost time
    /// on both sides and serve nothing here but tests of the peer.
    pub markers: bool,
    /// Limit on the rest of the start-up.
    pub timeout: Duration,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            ird: 16,
            ord: 16,
            minimum_ord: 0,
            ready_to_receive: ReadyToReceiveKinds::ALL,
            features: Features::default(),
            markers: false,
            timeout: Duration::from_secs(10),
        }
    }
}

impl AcceptOptions {
    /// Sets the private data.
    pub fn private_data(mut self, octets: impl Into<Vec<u8>>) -> Self {
        self.private_data = octets.into();
        self
    }

    /// Sets the time limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets the optional operations to be used.
    pub fn features(mut self, features: Features) -> Self {
        self.features = features;
        self
    }
}

/// A peer that wants to connect. Dropping it without an answer rejects it.
#[derive(Debug)]
pub struct ConnectRequest {
    /// Taken by the answer.
    request: Option<ConnectionRequest>,
    /// What was a plain stream.
    pub(super) lent: Option<Lent>,
    pub(super) shared: Arc<Shared>,
}

impl ConnectRequest {
    /// The request that came to a listener.
    pub(crate) fn of_listener(shared: &Arc<Shared>, request: ConnectionRequest) -> Self {
        Self { request: Some(request), lent: None, shared: Arc::clone(shared) }
    }

    /// The request that came on what was a plain stream.
    pub(crate) fn of_stream(shared: &Arc<Shared>, request: ConnectionRequest, lent: Lent) -> Self {
        Self { request: Some(request), lent: Some(lent), shared: Arc::clone(shared) }
    }

    fn request(&self) -> Option<&ConnectionRequest> {
        self.request.as_ref()
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.request().map_or_else(unspecified, |request| request.peer)
    }

    /// This side's address.
    pub fn local(&self) -> SocketAddr {
        self.request().map_or_else(unspecified, |request| request.local)
    }

    /// What the peer sent along.
    pub fn private_data(&self) -> &[u8] {
        self.request().map_or(&[], |request| request.private_data.as_slice())
    }

    /// RDMA Reads that the peer takes at once, if it says so (MPA revision 2).
    pub fn ird(&self) -> Option<u16> {
        self.request().and_then(|request| request.ird)
    }

    /// RDMA Reads that the peer wants to have outstanding, if it says so (MPA revision 2).
    pub fn ord(&self) -> Option<u16> {
        self.request().and_then(|request| request.ord)
    }

    /// MPA revision of the request.
    pub fn mpa_revision(&self) -> u8 {
        self.request().map_or(0, |request| request.revision)
    }

    /// Whether the initiator asks for peer-to-peer start-up: this side may then send first.
    pub fn peer_to_peer(&self) -> bool {
        self.request().is_some_and(|request| request.peer_to_peer)
    }

    /// The engine that the request arrived at; the accepting queue pair is bound to it.
    pub fn engine(&self) -> usize {
        self.request().map_or(0, |request| usize::from(request.request.engine))
    }

    /// Accepts, and waits until the stream is in full operation. Post receives before, since the peer may send at once.
    /// This side's own work waits until the peer has sent something (RFC 5044 §7.1.2), which a peer-to-peer initiator
    /// does by itself.
    pub fn accept(self, queue_pair: &mut QueuePairControl, options: AcceptOptions) -> Result<Established, Error> {
        self.shared.check_here()?;
        self.start_accept(queue_pair, options)?.wait(queue_pair)
    }

    /// Accepts without waiting.
    pub fn start_accept(
        mut self,
        queue_pair: &mut QueuePairControl,
        options: AcceptOptions,
    ) -> Result<Connecting, Error> {
        self.check_private_data(&options.private_data)?;
        if queue_pair.shared().id != self.shared.id {
            return Err(Error::argument("the queue pair", "of another context", "use one of the listener's context"));
        }
        queue_pair.bind(Some(self.engine()))?;
        let Some(request) = self.request.take() else {
            return Err(Error::ContextClosed);
        };
        queue_pair.set_connecting(options.features);
        let timeout = options.timeout;
        self.shared.engines[queue_pair.engine()].command(Command::Accept(Box::new(AcceptParameters {
            request: request.request,
            queue_pair: queue_pair.number(),
            options: StartupOptions {
                private_data: options.private_data,
                ird: options.ird,
                ord: options.ord,
                revision: request.revision,
                minimum_ord: options.minimum_ord,
                negotiate_reads: true,
                peer_to_peer: false,
                fall_back: false,
                ready_to_receive: options.ready_to_receive,
                features: options.features,
                markers: options.markers,
                crc: self.shared.config.mpa.crc,
                timeout,
                reply_timeout: None,
                first_fpdu_delay: Duration::ZERO,
            },
        })));
        Ok(Connecting::new(request.peer, true, timeout))
    }

    pub(super) fn check_private_data(&self, octets: &[u8]) -> Result<(), Error> {
        check_private_data(octets, most_private_data(self.request().map_or(2, |request| request.revision)))
    }

    /// Rejects with up to [`MAX_PRIVATE_DATA`] octets of explanation (512 if the initiator speaks revision 1).
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        self.check_private_data(private_data)?;
        self.refuse(private_data.to_vec());
        Ok(())
    }

    pub(super) fn refuse(&mut self, private_data: Vec<u8>) {
        if let Some(request) = self.request.take()
            && let Some(engine) = self.shared.engines.get(usize::from(request.request.engine))
        {
            engine.command(Command::Reject { request: request.request, private_data });
        }
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        self.refuse(Vec::new());
    }
}

fn unspecified() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

fn check_private_data(octets: &[u8], most: usize) -> Result<(), Error> {
    if octets.len() > most {
        return Err(Error::argument("the length of the private data", octets.len(), format!("at most {most} octets")));
    }
    Ok(())
}

/// That a queue pair belongs to a context.
pub(crate) fn check_context(shared: &Arc<Shared>, queue_pair: &QueuePairControl) -> Result<(), Error> {
    if queue_pair.shared().id != shared.id {
        return Err(Error::argument("the queue pair", "of another context", "use one of the same context"));
    }
    Ok(())
}

/// An initiator's wishes as the engine has them.
pub(crate) fn initiator_options(shared: &Arc<Shared>, options: ConnectOptions) -> Result<StartupOptions, Error> {
    if !(1..=2).contains(&options.mpa_revision) {
        return Err(Error::argument("the MPA revision", options.mpa_revision, "choose 1 (RFC 5044) or 2 (RFC 6581)"));
    }
    let kinds = options.peer_to_peer.kinds();
    if kinds.is_some_and(ReadyToReceiveKinds::is_empty) {
        return Err(Error::argument("the set of ready-to-receive indications", "empty", "allow at least one kind"));
    }
    if kinds.is_some() && options.mpa_revision == 1 {
        return Err(Error::argument("the MPA revision", 1, "peer-to-peer start-up needs 2 (RFC 6581)"));
    }
    let is_required = matches!(options.peer_to_peer, PeerToPeer::Require(_));
    if options.retry_without_enhancement && (is_required || options.mpa_revision == 1) {
        return Err(Error::argument(
            "the retry without enhancement",
            true,
            "it needs MPA revision 2 in the first attempt and excludes that peer-to-peer start-up is required",
        ));
    }
    check_private_data(&options.private_data, most_private_data(options.mpa_revision))?;
    Ok(StartupOptions {
        private_data: options.private_data,
        ird: options.ird,
        ord: options.ord,
        revision: options.mpa_revision,
        minimum_ord: options.minimum_ord,
        negotiate_reads: options.negotiate_reads,
        peer_to_peer: kinds.is_some(),
        fall_back: !is_required,
        ready_to_receive: kinds.unwrap_or(ReadyToReceiveKinds::ALL),
        features: options.features,
        markers: options.markers,
        crc: shared.config.mpa.crc,
        timeout: options.timeout,
        reply_timeout: options.answer_timeout,
        first_fpdu_delay: shared.config.mpa.first_fpdu_delay,
    })
}

impl Context {
    /// Connects an idle queue pair and waits until the stream is in full operation. Post receives before, since the
    /// peer may send at once.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason: rejected with private data, refused, timed out, and so on. The queue pair is
    /// idle again then.
    pub fn connect(
        &self,
        queue_pair: &mut QueuePairControl,
        peer: SocketAddr,
        options: ConnectOptions,
    ) -> Result<Established, Error> {
        self.shared().check_here()?;
        self.start_connect(queue_pair, peer, options)?.wait(queue_pair)
    }

    /// Begins to connect an idle queue pair, without waiting.
    pub fn start_connect(
        &self,
        queue_pair: &mut QueuePairControl,
        peer: SocketAddr,
        options: ConnectOptions,
    ) -> Result<Connecting, Error> {
        start_connect(self.shared(), queue_pair, peer, options)
    }
}

/// Begins an active open.
pub(crate) fn start_connect(
    shared: &Arc<Shared>,
    queue_pair: &mut QueuePairControl,
    peer: SocketAddr,
    options: ConnectOptions,
) -> Result<Connecting, Error> {
    let peer = shared.reachable(peer);
    let timeout = options.answer_timeout.map_or(options.timeout, |answer| options.timeout.saturating_add(answer));
    let features = options.features;
    let (local_address, local_port) = (options.local_address, options.local_port);
    let retries = options.retry_without_enhancement;
    let options = initiator_options(shared, options)?;
    if peer.port() == 0 {
        return Err(Error::argument("the port to connect to", 0, "choose 1 to 65535"));
    }
    check_context(shared, queue_pair)?;
    queue_pair.bind(None)?;
    let retry = retries.then(|| Box::new(StartupOptions { revision: 1, peer_to_peer: false, ..options.clone() }));
    let limit = if retry.is_some() { timeout.saturating_mul(2) } else { timeout };
    let queue_pair_number = queue_pair.number();
    let parameters =
        ConnectParameters { queue_pair: queue_pair_number, remote: peer, local_address, local_port, options, retry };
    queue_pair.set_connecting(features);
    shared.engines[queue_pair.engine()].command(Command::Connect(Box::new(parameters)));
    let deadline = Instant::now().checked_add(limit.saturating_add(GRACE));
    Ok(Connecting { peer, passive: false, timeout, deadline })
}

/// A connection that is being made, of either role. It belongs to the queue pair that it was started with. Dropping it
/// does not stop anything; [`QueuePairControl::disconnect`] does.
#[derive(Debug)]
#[must_use = "the outcome tells whether there is a connection"]
pub struct Connecting {
    peer: SocketAddr,
    passive: bool,
    timeout: Duration,
    deadline: Option<Instant>,
}

impl Connecting {
    pub(crate) fn new(peer: SocketAddr, passive: bool, timeout: Duration) -> Self {
        let deadline = Instant::now().checked_add(timeout.saturating_add(GRACE));
        Self { peer, passive, timeout, deadline }
    }

    /// Looks for the outcome: `None` if it is not known yet. An inline context's engine is turned first.
    pub fn poll(&mut self, queue_pair: &mut QueuePairControl) -> Result<Option<Established>, Error> {
        queue_pair.shared().turn();
        match queue_pair.try_outcome() {
            Ok(None) => {
                queue_pair.shared().check_alive()?;
                Ok(None)
            }
            Ok(Some(outcome)) => self.judge(outcome).map(Some),
            Err(reason) => Err(self.unanswered(queue_pair, reason)),
        }
    }

    /// Waits for the outcome, at most for the time limit given at the start.
    pub fn wait(self, queue_pair: &mut QueuePairControl) -> Result<Established, Error> {
        match queue_pair.outcome(self.deadline) {
            Ok(outcome) => self.judge(outcome),
            Err(reason) => Err(self.unanswered(queue_pair, reason)),
        }
    }

    fn judge(&self, outcome: ConnectionEvent) -> Result<Established, Error> {
        match outcome {
            ConnectionEvent::Established(event) => Ok(*event),
            ConnectionEvent::Rejected { private_data, peer_ird, peer_ord } => {
                Err(self.error(ConnectError::Rejected { private_data, peer_ird, peer_ord }))
            }
            ConnectionEvent::Failed(failure) => Err(self.error(match failure {
                ConnectFailure::Refused => ConnectError::Refused,
                ConnectFailure::TimedOut => ConnectError::TimedOut(self.timeout),
                ConnectFailure::Unreachable => ConnectError::Unreachable,
                ConnectFailure::Closed | ConnectFailure::Reset => ConnectError::Closed,
                ConnectFailure::Startup | ConnectFailure::ReadLimits | ConnectFailure::ReadyToReceive => {
                    ConnectError::Startup(failure.to_string())
                }
                ConnectFailure::NoPort
                | ConnectFailure::AddressInUse
                | ConnectFailure::Limit
                | ConnectFailure::QueuePair
                | ConnectFailure::RequestGone
                | ConnectFailure::Address
                | ConnectFailure::LocalAddress
                | ConnectFailure::ShuttingDown => ConnectError::Engine(failure),
            })),
            ConnectionEvent::Disconnected(_) => Err(self.error(ConnectError::Closed)),
        }
    }

    fn unanswered(&self, queue_pair: &QueuePairControl, reason: NoReply) -> Error {
        match reason {
            NoReply::WrongThread => Error::WrongThread,
            NoReply::TimedOut => self.error(ConnectError::TimedOut(self.timeout)),
            NoReply::Gone => match queue_pair.shared().check_alive() {
                Err(error) => error,
                Ok(()) => Error::ContextClosed,
            },
        }
    }

    fn error(&self, reason: ConnectError) -> Error {
        let peer = self.peer;
        if self.passive { Error::Accept { peer, reason } } else { Error::Connect { peer, reason } }
    }
}
