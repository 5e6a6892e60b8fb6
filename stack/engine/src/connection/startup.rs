//! Start-up: active and passive opens, MPA Request and Reply, until full operation.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use uwarp_iwarp::startup::{Initiator, InitiatorOptions, Outcome, ReadLimits, ReadyToReceiveKinds, Revision};
use uwarp_tcp::{Instant, TimeWait};
use uwarp_wire::address::{FlowKey, IpAddress};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::tcp::SeqNumber;

use crate::api::command::{
    ConnectFailure, ConnectParameters, ConnectionRequest, RequestId, StartupOptions, Watch, Watched,
};
use crate::api::common::Common;
use crate::api::config::{IwarpConfig, Limits};
use crate::api::counters::Counters;
use crate::connection::listener::{Listener, Requests};
use crate::connection::phase::{Initiating, Origin, Phase};
use crate::connection::slab::Handle;
use crate::connection::{Connection, Connections, NextHop};
use crate::link::Link;
use crate::link::handoff::Claim;
use crate::link::port::{Buffer, Port};
use crate::net::Net;

/// Time between keep-alive probes of a peer on our switch that does not answer. Its end shows at the next one.
const SWITCH_PROBES: Duration = Duration::from_secs(30);

/// Local and remote endpoint of a flow.
pub(crate) fn endpoints(flow: &FlowKey) -> (SocketAddr, SocketAddr) {
    let local = SocketAddr::new(flow.local.to_ip_addr(), flow.local_port);
    let remote = SocketAddr::new(flow.remote.to_ip_addr(), flow.remote_port);
    (local, remote)
}

/// Whether CRCs may be asked for on a connection to this peer.
pub(crate) fn may_want_crc(net: &Net, common: &Common, peer: IpAddress) -> bool {
    common.config.iwarp.crc_within_host || !net.addresses.is_on_switch(peer)
}

/// What a start-up says of Reads.
pub(crate) fn read_limits(iwarp: &IwarpConfig, options: &StartupOptions) -> ReadLimits {
    let ird = options.ird.min(iwarp.max_ird);
    ReadLimits {
        ird,
        // A peer that wants more is served more, but not where none are to be served.
        maximum_ird: if ird == 0 { 0 } else { iwarp.max_ird.max(ird) },
        ord: options.ord.min(iwarp.max_ord),
        minimum_ord: options.minimum_ord,
        negotiate: options.negotiate_reads,
    }
}

/// The state machine of an initiator.
pub(crate) fn initiating(common: &Common, options: &StartupOptions) -> Result<Initiating, ConnectFailure> {
    let initiator = InitiatorOptions {
        revision: if options.revision == 1 { Revision::One } else { Revision::Two },
        crc: options.crc,
        markers: options.markers,
        limits: read_limits(&common.config.iwarp, options),
        ready_to_receive: if options.peer_to_peer { options.ready_to_receive } else { ReadyToReceiveKinds::NONE },
    };
    if options.peer_to_peer && options.ready_to_receive.is_empty() {
        return Err(ConnectFailure::ReadyToReceive);
    }
    let mut machine = Initiator::new(initiator, &options.private_data).map_err(|_| ConnectFailure::Startup)?;
    if options.fall_back {
        machine.fall_back_to_client_server();
    }
    let StartupOptions { first_fpdu_delay, features, timeout, reply_timeout, .. } = *options;
    Ok(Initiating { machine, first_fpdu_delay, features, retry: None, until: common.now + timeout, reply_timeout })
}

/// Whether a connection may be opened again although its predecessor is in TIME-WAIT. Within a host segments arrive in
/// order and once, so none of an old connection comes behind the SYN of a new one.
fn may_reopen(net: &Net, now: Instant, flow: &FlowKey, wait: &TimeWait) -> bool {
    net.addresses.is_own(flow.remote) || wait.may_reopen(now)
}

impl<B: Buffer> Connections<B> {
    /// Adds a connection to the table and the flow table.
    pub(crate) fn add_connection(
        &mut self,
        own_mac: EthernetAddress,
        net: &Net,
        counters: &mut Counters,
        flow: FlowKey,
        tcp: uwarp_tcp::Connection,
        phase: Phase,
    ) -> (Handle, &mut Connection) {
        let tag = self.flows.tag(&flow);
        let to_self = net.addresses.loops_back(flow.remote);
        counters.connections_opened += 1;
        let (handle, connection) = self.table.insert(Connection {
            flow,
            index: 0,
            scheduled: false,
            finished: false,
            gone: false,
            next_hop: NextHop {
                to_self,
                unresolved: false,
                mac: if to_self { own_mac.0 } else { [0; 6] },
                epoch: 0,
                template: None,
            },
            quiet: false,
            confirmed: 0,
            queue_pair: None,
            tcp,
            phase,
            stream: None,
            startup_frame: None,
            gather: Vec::new(),
            gather_number: 0,
            end: None,
        });
        connection.index = handle.index;
        self.flows.insert(tag, handle.index);
        self.opening.reserved.connected(flow.local_port);
        if net.paths.mtu(flow.remote).is_some() {
            connection.fit(&net.paths);
        }
        (handle, connection)
    }

    /// Opens a connection for a queue pair.
    pub(crate) fn open<P: Port<Buffer = B>>(
        &mut self,
        link: &Link<P>,
        net: &mut Net,
        common: &mut Common,
        parameters: ConnectParameters,
    ) -> Result<u32, ConnectFailure> {
        let ConnectParameters { queue_pair: number, remote, local_address, local_port, options, retry } = parameters;
        let address = self.check_connect(net, &common.config.limits, remote)?;
        // The flow last: whoever has claimed one goes on to make its connection.
        let options = StartupOptions { crc: options.crc && may_want_crc(net, common, address), ..options };
        let mut initiating = initiating(common, &options)?;
        initiating.retry = retry.map(|options| {
            let options = *options;
            let retry = None;
            Box::new(ConnectParameters { queue_pair: number, remote, local_address, local_port, options, retry })
        });
        let flow = self.choose_flow(link, net, common, (address, remote.port()), (local_address, local_port))?;
        let isn = self.begin_flow(&flow, common.now);
        let tcp = uwarp_tcp::Connection::connect(&self.tcp_config_for(address), isn, common.now);
        let phase = Phase::Initiating(Box::new(initiating));
        let (handle, connection) = self.add_connection(link.own_mac, net, &mut common.counters, flow, tcp, phase);
        connection.queue_pair = Some(number);
        self.schedule_index(handle.index);
        Ok(handle.index)
    }

    /// Whether a connection to that peer may be opened now. Returns its address.
    pub(crate) fn check_connect(
        &self,
        net: &Net,
        limits: &Limits,
        remote: SocketAddr,
    ) -> Result<IpAddress, ConnectFailure> {
        if self.opening.is_closed {
            return Err(ConnectFailure::ShuttingDown);
        }
        let address = IpAddress::from(remote.ip());
        if remote.port() == 0 || address.is_unspecified() || address.is_multicast() {
            return Err(ConnectFailure::Address);
        }
        if net.addresses.is_subnet_broadcast(address) {
            // RFC 9293 §3.9.2.3, MUST-46.
            return Err(ConnectFailure::Address);
        }
        if self.is_full(limits) {
            return Err(ConnectFailure::Limit);
        }
        Ok(address)
    }

    /// Chooses the flow of a connection to `remote`, from the own address and port that are wished for, if any, and
    /// claims it. [`Connections::begin_flow`] comes next.
    pub(crate) fn choose_flow<P: Port<Buffer = B>>(
        &self,
        link: &Link<P>,
        net: &mut Net,
        common: &Common,
        (remote, remote_port): (IpAddress, u16),
        (source, wish): (Option<IpAddr>, Option<u16>),
    ) -> Result<FlowKey, ConnectFailure> {
        let local = match source.map(IpAddress::from) {
            Some(own) if own.is_ipv4() != remote.is_ipv4() || !net.addresses.may_be_own(own) => {
                return Err(ConnectFailure::LocalAddress);
            }
            Some(own) => own,
            None => net.addresses.source_for(remote).ok_or(ConnectFailure::Address)?,
        };
        let mut flow = FlowKey { remote, local, remote_port, local_port: 0 };
        if let Some(port) = wish {
            flow.local_port = port;
            return if port == 0 {
                Err(ConnectFailure::AddressInUse)
            } else {
                self.claim(link, net, common.now, &flow).map(|()| flow)
            };
        }
        let (first, last) = common.config.ephemeral_ports;
        let count = u32::from(last - first) + 1;
        // A random start makes ports hard to guess (RFC 6056) and rarely taken.
        let start = net.random.u32(0..count);
        let mut failure = ConnectFailure::NoPort;
        // Of those in TIME-WAIT that may be used, the one that has waited longest; only if there is no other.
        let mut oldest: Option<(Instant, FlowKey)> = None;
        for step in 0..count {
            flow.local_port = first + ((start + step) % count) as u16;
            if self.opening.reserved.contains(flow.local_port) {
                continue;
            }
            let arrives_here = common.config.steering.as_ref().is_none_or(|steering| steering.is_ours(&flow));
            if !arrives_here {
                continue;
            }
            if let Some(wait) = self.time_wait.get(&flow) {
                let since = wait.deadline();
                if may_reopen(net, common.now, &flow, wait) && oldest.is_none_or(|(oldest, _)| since < oldest) {
                    oldest = Some((since, flow));
                }
                continue;
            }
            match self.claim(link, net, common.now, &flow) {
                Ok(()) => return Ok(flow),
                // Another port's flow may have room.
                Err(ConnectFailure::Limit) => failure = ConnectFailure::Limit,
                Err(_) => {}
            }
        }
        let (_, flow) = oldest.ok_or(failure)?;
        self.claim(link, net, common.now, &flow).map(|()| flow)
    }

    /// The initial sequence number of a connection that we open on a flow of [`Connections::choose_flow`]. It begins
    /// beyond the finished connection of these ports (RFC 6191), and ends the wait of that.
    pub(crate) fn begin_flow(&mut self, flow: &FlowKey, now: Instant) -> SeqNumber {
        let isn = self.opening.isn.generate(flow, now);
        self.time_wait.remove(flow).map_or(isn, |previous| previous.isn_beyond(isn))
    }

    /// Claims a flow for a connection that we open.
    fn claim<P: Port<Buffer = B>>(
        &self,
        link: &Link<P>,
        net: &Net,
        now: Instant,
        flow: &FlowKey,
    ) -> Result<(), ConnectFailure> {
        let is_free = self.find(flow).is_none()
            && self.time_wait.get(flow).is_none_or(|wait| may_reopen(net, now, flow, wait))
            && !self.opening.listeners.has(flow.local_port)
            // A connection to ourselves has both ends in this table. The other end's wait ends with the SYN.
            && !(net.addresses.is_own(flow.remote) && self.find(&flow.reversed()).is_some());
        if !is_free {
            return Err(ConnectFailure::AddressInUse);
        }
        // No other engine has the flow, nor can claim it from now on.
        match link.claim(flow) {
            Claim::Granted => Ok(()),
            Claim::Taken => Err(ConnectFailure::AddressInUse),
            // Other engines would answer its packets with resets.
            Claim::NoRoom => Err(ConnectFailure::Limit),
        }
    }

    /// The peer's Request is complete: asks the application.
    pub(crate) fn on_request(&self, common: &mut Common, connection: &mut Connection) {
        let Phase::Responding(responding) = &connection.phase else {
            return common.counters.cannot_be("a Request comes for a connection that waits for none");
        };
        let handle = self.table.reserved_handle(connection.index);
        let (local, peer) = endpoints(&connection.flow);
        let requests = match &responding.origin {
            Origin::Listener(listener) => match self.opening.listeners.get(connection.flow.local_port, *listener) {
                Some(Listener { requests: Requests::Rdma { requests, watch }, .. }) => Some((requests, Some(watch))),
                _ => None,
            },
            Origin::Stream(requests) => Some((requests, None)),
        };
        let (Some(request), Some((requests, watch))) = (responding.machine.request(), requests) else {
            return common.counters.cannot_be("a Request is incomplete, or its listener is gone");
        };
        let request = ConnectionRequest {
            request: RequestId { engine: common.config.index, handle: handle.to_bits() },
            listener: responding.listener(),
            peer,
            local,
            private_data: request.private_data.clone(),
            ird: request.ird(),
            ord: request.ord(),
            revision: request.revision,
            peer_to_peer: request.enhanced.is_some_and(|data| data.peer_to_peer),
        };
        // Whoever attaches the listener moves the requests that wait, and no other comes meanwhile.
        let watch = watch.map(Watch::lock);
        match watch.as_deref() {
            Some(Some(watcher)) => watcher.send(Watched::Request(request)),
            _ => requests.send(request),
        }
        connection.phase.request();
    }
}

/// What the peer's octets of the start-up exchange ask for.
pub(crate) enum Startup {
    /// Nothing yet.
    More,
    /// The Request is complete.
    Request,
    /// The Reply is complete, and had so many octets. What follows are FPDUs.
    Reply(Outcome, usize),
    /// The start-up fails.
    Failed,
}

impl Connection {
    /// From now on the peer may be stopped for a while, if it is another program on our switch.
    pub(crate) fn be_patient(&mut self, net: &Net, common: &Common) {
        if let (Some(patience), Phase::Running(_)) = (common.config.iwarp.switch_timeout, &self.phase)
            && net.addresses.is_on_switch(self.flow.remote)
        {
            self.tcp.extend_patience(patience, SWITCH_PROBES, common.now);
        }
    }

    /// Takes octets of the start-up exchange: all of them, if they are not behind the Reply.
    pub(crate) fn take_startup(&mut self, counters: &mut Counters, octets: &[u8]) -> Startup {
        match &mut self.phase {
            Phase::Initiating(initiating) => match initiating.machine.receive(octets) {
                Ok(None) => Startup::More,
                Ok(Some((outcome, used))) => Startup::Reply(outcome, used),
                Err(_) => Startup::Failed,
            },
            Phase::Responding(responding) | Phase::Requested(responding) => {
                let had_request = responding.machine.request().is_some();
                match responding.machine.receive(octets) {
                    Ok(Some(_)) if !had_request => Startup::Request,
                    Ok(_) => Startup::More,
                    Err(_) => Startup::Failed,
                }
            }
            Phase::Running(_) | Phase::Closing(_) | Phase::Incoming(_) | Phase::Stream(_) => {
                counters.cannot_be("octets of the start-up exchange come in another phase");
                Startup::Failed
            }
        }
    }
}
