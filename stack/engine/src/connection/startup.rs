//! Start-up: active and passive opens, MPA Request and Reply, until full operation.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use uwarp_iwarp::opcode::Features;
use uwarp_iwarp::startup::{
    Initiator, InitiatorOptions, Outcome, Parameters, ReadLimits, ReadyToReceiveKinds, Revision,
};
use uwarp_iwarp::{Fault, Stream};
use uwarp_wire::address::{FlowKey, IpAddress};

use crate::api::command::{
    ConnectFailure, ConnectParameters, ConnectionEvent, ConnectionRequest, DisconnectReason, EstablishedEvent,
    RequestId, StartupOptions, Watch, Watched,
};
use crate::connection::Connection;
use crate::connection::listener::{Listener, Requests};
use crate::connection::phase::{Initiating, Origin, Phase};
use crate::core::Core;
use crate::link::handoff::Claim;
use crate::link::port::Port;
use crate::rdma::queue_pair::Stage;
use crate::rdma::running::{Ending, Limit, Running};

/// Local and remote endpoint of a flow.
pub(crate) fn endpoints(flow: &FlowKey) -> (SocketAddr, SocketAddr) {
    let local = SocketAddr::new(flow.local.to_ip_addr(), flow.local_port);
    let remote = SocketAddr::new(flow.remote.to_ip_addr(), flow.remote_port);
    (local, remote)
}

impl<P: Port> Core<P> {
    pub(crate) fn limits(&self, options: &StartupOptions) -> ReadLimits {
        let ird = options.ird.min(self.config.iwarp.max_ird);
        ReadLimits {
            ird,
            maximum_ird: self.config.iwarp.max_ird.max(ird),
            ord: options.ord.min(self.config.iwarp.max_ord),
            minimum_ord: options.minimum_ord,
            negotiate: options.negotiate_reads,
        }
    }

    /// Adds a connection to the table and the flow table.
    pub(crate) fn add_connection(&mut self, flow: FlowKey, tcp: uwarp_tcp::Connection, phase: Phase) -> u32 {
        let tag = self.connections.flows.tag(&flow);
        let to_self = self.net.addresses.loops_back(flow.remote);
        self.counters.connections_opened += 1;
        let handle = self.connections.table.insert(Connection {
            flow,
            tag,
            scheduled: false,
            unresolved: false,
            to_self,
            finished: false,
            gone: false,
            mac: if to_self { self.link.own_mac.0 } else { [0; 6] },
            epoch: 0,
            template: None,
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
        self.connections.flows.insert(tag, handle.index);
        self.connections.opening.reserved.connected(flow.local_port);
        if self.net.paths.mtu(flow.remote).is_some()
            && let Some(connection) = self.connections.table.get_mut(handle.index)
        {
            self.net.paths.fit(connection);
        }
        handle.index
    }

    /// Opens a connection actively.
    pub(crate) fn connect(&mut self, parameters: ConnectParameters) {
        let number = parameters.queue_pair;
        if let Err(reason) = self.try_connect(parameters) {
            self.connect_failed(number, reason);
        }
    }

    /// Reports to a queue pair that its connection failed.
    pub(crate) fn connect_failed(&mut self, number: u32, reason: ConnectFailure) {
        if let Some(queue_pair) = self.rdma.queue_pair(number) {
            queue_pair.tell(ConnectionEvent::Failed { queue_pair: number, reason });
        }
    }

    fn try_connect(&mut self, parameters: ConnectParameters) -> Result<(), ConnectFailure> {
        let ConnectParameters { queue_pair: number, remote, local_address, local_port, options, retry } = parameters;
        self.check_idle(number)?;
        let address = self.check_connect(remote)?;
        // The flow last: whoever has claimed one goes on to make its connection.
        let mut initiating = self.initiating(&options)?;
        initiating.retry = retry.map(|options| {
            let options = *options;
            let retry = None;
            Box::new(ConnectParameters { queue_pair: number, remote, local_address, local_port, options, retry })
        });
        let flow = self.choose_flow(address, remote.port(), local_address, local_port)?;
        let isn = self.connections.opening.isn.generate(&flow, self.now);
        let tcp = uwarp_tcp::Connection::connect(&self.connections.tcp_config_for(address), isn, self.now);
        let index = self.add_connection(flow, tcp, Phase::Initiating(Box::new(initiating)));
        if let Some(connection) = self.connections.table.get_mut(index) {
            connection.queue_pair = Some(number);
        }
        self.bind(number, index);
        self.connections.schedule_index(index);
        Ok(())
    }

    /// The state machine of an initiator.
    pub(crate) fn initiating(&self, options: &StartupOptions) -> Result<Initiating, ConnectFailure> {
        let initiator = InitiatorOptions {
            revision: if options.revision == 1 { Revision::One } else { Revision::Two },
            crc: options.crc,
            markers: options.markers,
            limits: self.limits(options),
            ready_to_receive: if options.peer_to_peer { options.ready_to_receive } else { ReadyToReceiveKinds::NONE },
        };
        if options.peer_to_peer && options.ready_to_receive.is_empty() {
            return Err(ConnectFailure::ReadyToReceive);
        }
        let mut machine = Initiator::new(initiator, &options.private_data).map_err(|_| ConnectFailure::Startup)?;
        if options.fall_back {
            machine.fall_back_to_client_server();
        }
        let StartupOptions { first_fpdu_delay, features, timeout, .. } = *options;
        Ok(Initiating { machine, first_fpdu_delay, features, retry: None, until: self.now + timeout })
    }

    /// Whether a connection to that peer may be opened now. Returns its address.
    pub(crate) fn check_connect(&self, remote: SocketAddr) -> Result<IpAddress, ConnectFailure> {
        if self.control.shutdown.is_some() {
            return Err(ConnectFailure::ShuttingDown);
        }
        let address = IpAddress::from(remote.ip());
        if remote.port() == 0 || address.is_unspecified() || address.is_multicast() {
            return Err(ConnectFailure::Address);
        }
        if self.net.addresses.is_subnet_broadcast(address) {
            // RFC 9293 §3.9.2.3, MUST-46.
            return Err(ConnectFailure::Address);
        }
        if self.connections.table.len() >= self.config.limits.connections as usize {
            return Err(ConnectFailure::Limit);
        }
        Ok(address)
    }

    pub(crate) fn check_idle(&mut self, number: u32) -> Result<(), ConnectFailure> {
        let Some(queue_pair) = self.rdma.queue_pair(number) else { return Err(ConnectFailure::QueuePair) };
        let (send, receive) = (queue_pair.send_completions, queue_pair.receive_completions);
        let idle = queue_pair.stage == Stage::Idle && queue_pair.connection.is_none();
        if idle && self.rdma.lanes.contains(send) && self.rdma.lanes.contains(receive) {
            Ok(())
        } else {
            Err(ConnectFailure::QueuePair)
        }
    }

    pub(crate) fn bind(&mut self, number: u32, index: u32) {
        if let Some(queue_pair) = self.rdma.queue_pair(number) {
            queue_pair.stage = Stage::Connected;
            queue_pair.connection = Some(index);
        }
    }

    pub(crate) fn choose_flow(
        &mut self,
        remote: IpAddress,
        remote_port: u16,
        source: Option<IpAddr>,
        wish: Option<u16>,
    ) -> Result<FlowKey, ConnectFailure> {
        let local = match source.map(IpAddress::from) {
            Some(own) if own.is_ipv4() != remote.is_ipv4() || !self.net.addresses.may_be_own(own) => {
                return Err(ConnectFailure::LocalAddress);
            }
            Some(own) => own,
            None => self.net.addresses.source_for(remote).ok_or(ConnectFailure::Address)?,
        };
        let mut flow = FlowKey { remote, local, remote_port, local_port: 0 };
        if let Some(port) = wish {
            flow.local_port = port;
            return if port == 0 { Err(ConnectFailure::AddressInUse) } else { self.take(&flow).map(|()| flow) };
        }
        let (first, last) = self.config.ephemeral_ports;
        let count = u32::from(last - first) + 1;
        // A random start makes ports hard to guess (RFC 6056) and rarely taken.
        let start = self.net.random.u32(0..count);
        let mut failure = ConnectFailure::NoPort;
        for step in 0..count {
            flow.local_port = first + ((start + step) % count) as u16;
            if self.connections.opening.reserved.contains(flow.local_port) {
                continue;
            }
            let arrives_here = self.config.steering.as_ref().is_none_or(|steering| steering.is_ours(&flow));
            if !arrives_here {
                continue;
            }
            match self.take(&flow) {
                Ok(()) => return Ok(flow),
                // Another port's flow may have room.
                Err(ConnectFailure::Limit) => failure = ConnectFailure::Limit,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    /// Claims a flow for a connection that we open.
    fn take(&self, flow: &FlowKey) -> Result<(), ConnectFailure> {
        if self.connections.find(flow).is_some()
            || self.connections.time_wait.contains(flow)
            || self.connections.opening.listeners.contains_key(&flow.local_port)
        {
            return Err(ConnectFailure::AddressInUse);
        }
        // A connection to ourselves has both ends in this table.
        if self.net.addresses.is_own(flow.remote)
            && (self.connections.find(&flow.reversed()).is_some()
                || self.connections.time_wait.contains(&flow.reversed()))
        {
            return Err(ConnectFailure::AddressInUse);
        }
        // No other engine has the flow, nor can claim it from now on.
        match self.claim(flow) {
            Claim::Granted => Ok(()),
            Claim::Taken => Err(ConnectFailure::AddressInUse),
            // Other engines would answer its packets with resets.
            Claim::NoRoom => Err(ConnectFailure::Limit),
        }
    }

    /// Claims a flow for this engine, so other engines hand over its packets.
    pub(crate) fn claim(&self, flow: &FlowKey) -> Claim {
        self.link.handoff.as_ref().map_or(Claim::Granted, |handoff| handoff.claim(flow))
    }

    /// TCP is open.
    pub(crate) fn on_established(&mut self, index: u32, connection: &mut Connection) {
        match &connection.phase {
            Phase::Initiating(initiating) => {
                connection.startup_frame = Some(initiating.machine.request().to_vec());
            }
            Phase::Responding(responding) => {
                if let Some(listener) = responding.listener() {
                    self.handshake_done(connection, listener);
                    self.await_request(index, connection.flow.local_port);
                }
            }
            Phase::Stream(_) => self.on_stream_open(index, connection),
            Phase::Incoming(incoming) => {
                let listener = incoming.listener;
                self.on_stream_accepted(index, connection, listener);
            }
            _ => {}
        }
    }

    /// Takes octets of the start-up exchange. Returns how many it used; the rest are FPDUs.
    pub(crate) fn on_startup_octets(&mut self, index: u32, connection: &mut Connection, octets: &[u8]) -> usize {
        match &mut connection.phase {
            Phase::Initiating(initiating) => match initiating.machine.receive(octets) {
                Ok(None) => octets.len(),
                Ok(Some((outcome, used))) => {
                    let (delay, features) = (initiating.first_fpdu_delay, initiating.features);
                    self.on_reply(connection, outcome, delay, features);
                    used
                }
                Err(_) => {
                    self.startup_failed(connection, ConnectFailure::Startup);
                    octets.len()
                }
            },
            Phase::Responding(responding) | Phase::Requested(responding) => {
                let had_request = responding.machine.request().is_some();
                match responding.machine.receive(octets) {
                    Ok(None) => {}
                    Ok(Some(_)) if had_request => {}
                    Ok(Some(_)) => self.on_request(index, connection),
                    Err(_) => self.startup_failed(connection, ConnectFailure::Startup),
                }
                octets.len()
            }
            Phase::Running(_) | Phase::Closing(_) | Phase::Incoming(_) | Phase::Stream(_) => 0,
        }
    }

    /// The peer's Request is complete: asks the application.
    fn on_request(&mut self, index: u32, connection: &mut Connection) {
        let engine = self.config.index;
        let Some(handle) = self.connections.table.reserved_handle(index) else { return };
        let Phase::Responding(responding) = &connection.phase else { return };
        let (local, peer) = endpoints(&connection.flow);
        let requests = match &responding.origin {
            Origin::Listener(listener) => {
                match self
                    .connections
                    .opening
                    .listeners
                    .get(&connection.flow.local_port)
                    .filter(|found| found.id == *listener)
                {
                    Some(Listener { requests: Requests::Rdma { requests, watch }, .. }) => {
                        Some((requests, Some(watch)))
                    }
                    _ => None,
                }
            }
            Origin::Stream(requests) => Some((requests, None)),
        };
        if let (Some(request), Some((requests, watch))) = (responding.machine.request(), requests) {
            let request = ConnectionRequest {
                request: RequestId { engine, handle: handle.to_bits() },
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
        }
        connection.phase.request();
    }

    /// The peer's Reply is complete.
    fn on_reply(
        &mut self,
        connection: &mut Connection,
        outcome: Outcome,
        delay: std::time::Duration,
        features: Features,
    ) {
        let Some(number) = connection.queue_pair else { return };
        match outcome {
            Outcome::Established(parameters) => {
                let limit = if delay.is_zero() { Limit::None } else { Limit::Pause(self.now + delay) };
                self.leave_stream(connection);
                self.begin_running(connection, number, parameters, features, limit);
            }
            Outcome::Rejected(rejection) => {
                if let Some(queue_pair) = self.unbind(connection) {
                    queue_pair.tell(ConnectionEvent::Rejected {
                        queue_pair: number,
                        private_data: rejection.private_data,
                        peer_ird: rejection.peer_ird,
                        peer_ord: rejection.peer_ord,
                    });
                }
                if !self.resume_stream(connection) {
                    self.finish_tcp(connection);
                }
            }
            Outcome::Refused(parameters, fault) => {
                // The stream continues only to send its Terminate.
                if let Some(queue_pair) = self.unbind(connection) {
                    let reason = match fault {
                        Fault::NoMatchingRtr => ConnectFailure::ReadyToReceive,
                        _ => ConnectFailure::ReadLimits,
                    };
                    queue_pair.tell(ConnectionEvent::Failed { queue_pair: number, reason });
                }
                self.refuse(connection, &parameters, fault);
            }
        }
    }

    fn refuse(&mut self, connection: &mut Connection, parameters: &Parameters, fault: Fault) {
        let mut running = Running::new(connection, parameters, Features::default());
        running.terminate = running.stream.fail(fault, None);
        running.ending = Ending::Closed;
        running.limit = Limit::Close(self.now + self.config.iwarp.terminate_drain);
        connection.phase.enter(Phase::Running(Box::new(running)));
    }

    /// Starts full operation for a queue pair.
    pub(crate) fn begin_running(
        &mut self,
        connection: &mut Connection,
        number: u32,
        parameters: Parameters,
        features: Features,
        limit: Limit,
    ) {
        let running = Running { limit, ..Running::new(connection, &parameters, features) };
        connection.phase.enter(Phase::Running(Box::new(running)));
        let (local, peer) = endpoints(&connection.flow);
        if let Some(queue_pair) = self.rdma.queue_pair(number) {
            queue_pair.established.store(true, Ordering::Release);
            queue_pair.tell(ConnectionEvent::Established(Box::new(EstablishedEvent {
                queue_pair: number,
                peer,
                local,
                ird: parameters.ird,
                ord: parameters.ord,
                peer_ird: parameters.peer_ird,
                peer_ord: parameters.peer_ord,
                transmit_markers: parameters.transmit_markers,
                receive_markers: parameters.receive_markers,
                peer_to_peer: parameters.ready_to_receive.is_some() || parameters.expects_ready_to_receive,
                crc: parameters.crc,
                private_data: parameters.private_data,
            })));
        }
    }

    /// Detaches the queue pair from its connection; it is idle again.
    pub(crate) fn unbind(&mut self, connection: &mut Connection) -> Option<&mut crate::rdma::queue_pair::QueuePair> {
        let number = connection.queue_pair.take()?;
        let queue_pair = self.rdma.queue_pair(number)?;
        queue_pair.connection = None;
        queue_pair.stage = Stage::Idle;
        Some(queue_pair)
    }

    /// The peer has ended an attempt before its Reply. True: another one follows, and the queue pair waits for that.
    pub(crate) fn try_again(&mut self, phase: &mut Phase) -> bool {
        let Phase::Initiating(initiating) = phase else { return false };
        let Some(retry) = initiating.retry.take() else { return false };
        self.connections.opening.retries.push(*retry);
        true
    }

    /// The start-up came to nothing: tells the queue pair and resets TCP.
    pub(crate) fn startup_failed(&mut self, connection: &mut Connection, reason: ConnectFailure) {
        if let Some(number) = connection.queue_pair
            && let Some(queue_pair) = self.unbind(connection)
        {
            queue_pair.tell(ConnectionEvent::Failed { queue_pair: number, reason });
        }
        if let Some(stream) = &connection.stream {
            stream.fail(reason.into());
        }
        connection.ends_by(DisconnectReason::Aborted);
        self.abort(connection);
    }
}

impl Running {
    fn new(connection: &Connection, parameters: &Parameters, features: Features) -> Running {
        // Full operation starts behind our start-up frame, which TCP may not have yet.
        let frame = connection.startup_frame.as_ref().map_or(0, Vec::len) as u64;
        Running {
            stream: Stream::new(parameters, features),
            crc: parameters.crc,
            marker_mask: if parameters.transmit_markers { u32::MAX } else { 0 },
            transmit_start: connection.tcp.octets_pushed() + frame,
            receive_markers: parameters.receive_markers,
            receive_position: 0,
            outgoing: None,
            balance: 0,
            limit: Limit::None,
            ending: Ending::No,
            receive_wait: None,
            peer_closed: false,
            terminate: None,
        }
    }
}
