//! The mailbox: executes commands.

use std::net::IpAddr;

use uwarp_wire::address::IpAddress;

use crate::api::command::{Command, ControlError, ListenerId};
use crate::api::config::{EngineConfig, Limits};
use crate::api::snapshot::queue_pair_tcp_info as tcp_info;
use crate::connection::Connections;
use crate::connection::flow::KeyedHash;
use crate::connection::listener::{Listener, Requests};
use crate::connection::shares::Silent;
use crate::core::Core;
use crate::link::port::{Buffer, Port};
use crate::net::Net;
use crate::rdma::queue_pair::QueuePair;

/// Most commands executed in one turn.
const COMMANDS_PER_TURN: usize = 64;

impl<P: Port> Core<P> {
    /// Executes the commands in the mailbox.
    #[cold]
    pub(crate) fn run_commands(&mut self) {
        self.needs_attention = true;
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.control.commands.try_recv() else { return };
            self.run_command(command);
            self.end_connections();
        }
        // There may be more, for the next turn.
        self.control.doorbells.ring_mailbox();
    }

    #[cold]
    fn run_command(&mut self, command: Command) {
        let Core { connections, link, net, rdma, counters, config, now, .. } = self;
        let now = *now;
        match command {
            Command::AddCompletionQueue { queue, lane, notifier } => rdma.lanes.add(queue, lane, notifier),
            Command::ReplaceLane { queue, lane } => rdma.lanes.replace(queue, lane),
            Command::RemoveCompletionQueue { queue } => rdma.lanes.remove(queue),
            Command::CreateQueuePair(setup) => {
                let number = setup.number as usize;
                if let Some(place) = rdma.queue_pairs.get_mut(number)
                    && place.is_none()
                {
                    let queue_pair = QueuePair::new(*setup);
                    queue_pair.receive.forget_share(queue_pair.number);
                    *place = Some(Box::new(queue_pair));
                }
            }
            Command::DestroyQueuePair { queue_pair, done } => {
                connections.destroy_queue_pair(link, rdma, counters, now, queue_pair);
                // Its number may be another's next.
                rdma.lanes.forget(queue_pair);
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            Command::AbandonQueuePair { queue_pair, reply } => {
                let abandoned = connections.abandon_queue_pair(link, rdma, counters, now, queue_pair);
                self.control.farewells.push((reply, abandoned));
            }
            Command::Connect(parameters) => self.connect(*parameters),
            Command::Accept(parameters) => connections.accept(rdma, &config.iwarp, now, *parameters),
            Command::Reject { request, private_data } => {
                connections.reject(link, counters, now, request, &private_data)
            }
            Command::Disconnect { queue_pair } => {
                if let Some(index) = rdma.queue_pair(queue_pair).and_then(|queue_pair| queue_pair.connection) {
                    connections.disconnect(link, rdma, counters, config, now, index);
                }
            }
            Command::Abort { queue_pair } => connections.abort_queue_pair(link, rdma, counters, now, queue_pair),
            Command::Listen { listener, address, port, backlog, requests, watch, reply } => {
                let requests = Requests::Rdma { requests, watch };
                let _ = reply.send(connections.listen(net, config, listener, (address, port), backlog, requests));
            }
            Command::ListenStreams { listener, port, backlog, waiting, options, incoming, reply } => {
                let requests = Requests::Streams { incoming, options, waiting };
                let _ = reply.send(connections.listen(net, config, listener, (None, port), backlog, requests));
            }
            Command::ConnectStream(parameters) => {
                connections.connect_stream(link, net, counters, config, now, *parameters)
            }
            Command::ConvertStream(parameters) => self.convert_stream(*parameters),
            Command::SetNagle { stream, nagle } => connections.set_stream_nagle(&stream, nagle),
            Command::SendUrgent { handle, octets, reply } => {
                connections.send_stream_urgent(handle, octets);
                let _ = reply.send(());
            }
            Command::StreamInfo { handle, reply } => {
                let _ = reply.send(connections.stream_info(handle));
            }
            Command::StopListening { listener } => connections.stop_listening(link, counters, now, listener),
            Command::Stats { reply } => {
                let _ = reply.send(Box::new(self.snapshot()));
            }
            Command::TcpInfo { queue_pair, reply } => {
                let _ = reply.send(tcp_info(connections, rdma, queue_pair));
            }
            Command::SetFaults { faults } => link.port.set_faults(faults),
            Command::StartCapture { path, reply } => {
                let _ = reply.send(link.port.start_capture(&path));
            }
            Command::StopCapture => link.port.stop_capture(),
            Command::Fail { cause } => self.fail(&cause),
            Command::Shutdown { linger, done } => {
                if self.control.shutdown.is_none() {
                    self.begin_shutdown(linger, done);
                }
            }
        }
    }
}

impl<B: Buffer> Connections<B> {
    fn listen(
        &mut self,
        net: &Net,
        config: &EngineConfig,
        id: ListenerId,
        (address, port): (Option<IpAddr>, u16),
        backlog: u32,
        requests: Requests,
    ) -> Result<(), ControlError> {
        self.check_listen(&config.limits, port)?;
        if let Some(own) = address
            && !net.addresses.may_be_own(own.into())
        {
            return Err(ControlError::NotOwn(own));
        }
        let address = address.map(IpAddress::from);
        let silent = Silent::new(KeyedHash::new(config.secret));
        self.opening.listeners.insert(
            port,
            Listener { id, address, backlog: backlog.max(1), pending: 0, half_open: 0, silent, requests },
        );
        Ok(())
    }

    fn check_listen(&self, limits: &Limits, port: u16) -> Result<(), ControlError> {
        if port == 0 {
            return Err(ControlError::BadPort);
        }
        if self.opening.is_closed {
            return Err(ControlError::ShuttingDown);
        }
        if self.opening.listeners.contains_key(&port) {
            return Err(ControlError::PortInUse(port));
        }
        if self.opening.listeners.len() >= limits.listeners as usize {
            return Err(ControlError::Limit("listeners"));
        }
        Ok(())
    }
}
